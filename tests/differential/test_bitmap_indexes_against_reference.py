"""Scans with bitmap indexes agree with the DuckDB reference and with scans without, on random tables and predicates."""

import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from nevermore import scan_core
from nevermore.checks.reference.expected_rows import live_rows
from nevermore.pipelines.iceberg.schema_evolution import schema_document
from nevermore.scan_core import ScanOptions
from tests.differential.table_histories import draw_table
from tests.differential.test_scan_against_reference import assert_equal, draw_predicate, filtered
from tests.support.bitmap_indexes import bitmaps_for_nothing, index_columns, indexable_columns
from tests.support.iceberg_json import Column
from tests.support.random_predicates import AS_WRITTEN, SCHEMA, predicates, tables
from tests.support.table_builder import TableBuilder

quick = settings(
    max_examples=6, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck), database=None
)
thorough = settings(quick, max_examples=1000, derandomize=False, print_blob=True)
OPTIONS = [ScanOptions(), ScanOptions(parallelism=3, split_bytes=1, batch_rows=2)]


def check_history(draw: Callable[..., Any]) -> None:
    """Indexes of some columns, made at some snapshot and perhaps again at the current one, under later deletes."""
    with tempfile.TemporaryDirectory() as folder, bitmaps_for_nothing(draw(st.sampled_from([0.1, 1.0]))):
        location = Path(folder) / "t"
        table = draw_table(draw, location).table
        expected = live_rows(table.metadata_path)
        names = indexable_columns(scan_core.open_table(location).schema)
        for snapshot in [draw(st.sampled_from([s["snapshot-id"] for s in table.snapshots]))] if table.snapshots else []:
            index_columns(location, draw(st.lists(st.sampled_from(names), unique=True, min_size=1)), snapshot)
            if draw(st.booleans()):
                index_columns(location, draw(st.lists(st.sampled_from(names), unique=True, min_size=1)))
        for _ in range(3):
            predicate = draw_predicate(draw, expected.schema)
            scan = scan_core.open_table(location).scan().where(predicate)
            wanted = filtered(expected, predicate, expected.column_names)
            for options in OPTIONS:
                chosen = scan.with_options(options)
                assert_equal(chosen.to_table(), wanted, predicate)
                assert chosen.count() == wanted.num_rows, predicate
                assert chosen.metrics.bitmap_indexes_refused == 0


def check_predicate(draw: Callable[..., Any]) -> None:
    """All types, lists and struct members, deep predicates, rows that position deletes remove."""
    with tempfile.TemporaryDirectory() as folder, bitmaps_for_nothing(draw(st.sampled_from([0.1, 1.0]))):
        location = Path(folder) / "t"
        rows = draw(tables())
        table = TableBuilder(
            location, [Column(f["id"], f["name"], f["type"]) for f in schema_document(SCHEMA)["fields"]]
        )
        file = table.data(rows.to_pydict(), row_group_size=max(1, rows.num_rows // 2))
        table.commit(file)
        dead = draw(st.lists(st.integers(0, rows.num_rows - 1), unique=True, max_size=3))
        if dead:
            table.commit(table.position_delete([(file, p) for p in sorted(dead)]))
        names = indexable_columns(SCHEMA)
        index_columns(location, draw(st.lists(st.sampled_from(names), unique=True, min_size=1)))
        alive = rows.append_column("pos", pa.array(range(rows.num_rows))).filter(
            pa.array([p not in dead for p in range(rows.num_rows)])
        )
        for _ in range(4):
            condition = draw(predicates(3))
            scan = scan_core.open_table(location).scan().where(condition.spark).select("_pos")
            found = [p.as_py() for p in scan.to_table()["_pos"]]
            with duckdb.connect() as connection:
                connection.execute(AS_WRITTEN)
                connection.register("t", alive)
                wanted = connection.execute(f"select pos from t where ({condition.duck}) order by pos").fetchall()
            assert found == [p for (p,) in wanted], condition.spark
            assert scan.metrics.bitmap_indexes_refused == 0


@quick
@given(st.data())
def test_queries_of_indexed_histories_equal_the_reference(data: st.DataObject) -> None:
    check_history(data.draw)


@quick
@given(st.data())
def test_deep_predicates_of_indexed_tables_equal_duckdb(data: st.DataObject) -> None:
    check_predicate(data.draw)


@pytest.mark.slow
@thorough
@given(st.data())
def test_queries_of_many_indexed_histories_equal_the_reference(data: st.DataObject) -> None:
    check_history(data.draw)


@pytest.mark.slow
@thorough
@given(st.data())
def test_deep_predicates_of_many_indexed_tables_equal_duckdb(data: st.DataObject) -> None:
    check_predicate(data.draw)
