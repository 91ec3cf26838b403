"""Scans that skip known dead rows by position agree with the DuckDB reference, while the history of the table goes on."""

import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow.compute as pc
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from nevermore import scan_core
from nevermore.checks.reference.expected_rows import live_rows
from nevermore.scan_core import ScanOptions
from tests.differential.table_histories import History, draw_table
from tests.differential.test_scan_against_reference import assert_equal, draw_predicate, filtered
from tests.support.dead_row_index import index_built

quick = settings(
    max_examples=8, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck), database=None
)
thorough = settings(quick, max_examples=1500, derandomize=False, print_blob=True)
OPTIONS = [
    ScanOptions(),
    ScanOptions(parallelism=3, split_bytes=1, batch_rows=2, keep_order=False),
    ScanOptions.of(lazy_columns=False, use_numba=False),
    ScanOptions.of(use_dead_row_bits=False),
]


def check_history(draw: Callable[..., Any]) -> None:
    """An index, further commits, a newer index, and all snapshots before, between and after them."""
    with tempfile.TemporaryDirectory() as folder:
        history = draw_table(draw, Path(folder) / "t", most_steps=5)
        for _ in range(draw(st.integers(1, 3))):
            if history.table.snapshots:
                index_built(history.table, draw(st.sampled_from(OPTIONS)))
            for _ in range(draw(st.integers(0, 2))):
                history.step()
            check_table(history, draw)
        for snapshot in history.table.snapshots:
            scan = scan_core.open_table(history.table.metadata_path).scan().as_of(snapshot["snapshot-id"])
            expected = live_rows(history.table.metadata_path, snapshot_id=snapshot["snapshot-id"])
            assert_equal(scan.to_table(), expected)
            assert scan.count() == expected.num_rows


def check_table(history: History, draw: Callable[..., Any]) -> None:
    path = history.table.metadata_path
    expected = live_rows(path)
    predicate = draw_predicate(draw, expected.schema)
    wanted = filtered(expected, predicate, expected.column_names)
    scan = scan_core.open_table(path).scan()
    for options in OPTIONS:
        chosen = scan.with_options(options)
        assert_equal(chosen.to_table(), expected)
        assert chosen.count() == expected.num_rows
        assert_equal(chosen.where(predicate).to_table(), wanted, predicate)
        assert chosen.metrics.dead_row_bits_refused == 0
    flagged = scan.select("_file", "_pos", "_deleted").to_table()
    alive = flagged.filter(pc.invert(flagged["_deleted"])).drop_columns("_deleted")
    assert_equal(alive, live_rows(path, columns=["_file", "_pos"]))


@quick
@given(st.data())
def test_indexed_histories_equal_the_reference(data: st.DataObject) -> None:
    check_history(data.draw)


@pytest.mark.slow
@thorough
@given(st.data())
def test_many_indexed_histories_equal_the_reference(data: st.DataObject) -> None:
    check_history(data.draw)
