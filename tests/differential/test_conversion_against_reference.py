"""Converting the deletes of random tables changes no row, by the DuckDB reference, and leaves no equality delete."""

import tempfile
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pyiceberg.catalog.sql import SqlCatalog

from nevermore import scan_core
from nevermore.checks.reference.expected_rows import live_rows
from nevermore.pipelines.iceberg.commit import upgrade
from nevermore.pipelines.iceberg.conversion import convert
from nevermore.scan_core import ScanOptions
from tests.differential.table_histories import History, draw_table
from tests.differential.test_scan_against_reference import assert_equal

quick = settings(
    max_examples=25, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck), database=None
)
thorough = settings(quick, max_examples=1500, derandomize=False, print_blob=True)
OPTIONS = [ScanOptions(), ScanOptions.without_optimisations(), ScanOptions(parallelism=3)]


def check_history(draw: Callable[..., Any]) -> None:
    with tempfile.TemporaryDirectory() as folder:
        history = draw_table(draw, Path(folder) / "t", most_steps=8)
        for number in range(draw(st.integers(1, 2))):
            history.step()
            if history.table.snapshots and history.table.version > 1:
                with closing(SqlCatalog(str(number), uri="sqlite://", warehouse=folder)) as catalog:
                    check_conversion(history, catalog, draw)


def check_conversion(history: History, catalog: SqlCatalog, draw: Callable[..., Any]) -> None:
    catalog.create_namespace("lake")
    table = catalog.register_table("lake.t", str(history.table.metadata_path))
    expected = live_rows(history.table.metadata_path)
    before = table.metadata.current_snapshot_id
    if draw(st.booleans()) and table.format_version == 2:
        upgrade(table, 3)
    options = draw(st.sampled_from(OPTIONS))
    report = convert(table, options)
    assert_equal(live_rows(path_of(table)), expected)
    scan = scan_core.open_table(table).scan()
    assert_equal(scan.to_table(), expected)
    tasks = scan.plan().tasks
    assert not any(task.equality_deletes for task in tasks)
    if table.format_version > 2:
        assert not any(task.position_deletes for task in tasks)
    if report.snapshot_id is not None:
        assert table.metadata.current_snapshot_id == report.snapshot_id
        assert scan.changes(before).count() == 0
    assert convert(table, options).snapshot_id is None  # nothing is left


def path_of(table: Any) -> str:
    return str(table.metadata_location).removeprefix("file://")


@pytest.mark.slow
@quick
@given(st.data())
def test_converted_histories_equal_the_reference(data: st.DataObject) -> None:
    check_history(data.draw)


@pytest.mark.slow
@thorough
@given(st.data())
def test_many_converted_histories_equal_the_reference(data: st.DataObject) -> None:
    check_history(data.draw)
