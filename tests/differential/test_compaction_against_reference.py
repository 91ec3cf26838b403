"""Random tables are the same to the DuckDB reference after a compaction: every key, every delete, every evolution."""

import tempfile
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from nevermore import scan_core
from nevermore.checks.reference.expected_rows import live_rows
from nevermore.pipelines.maintain.compact import CompactSettings, compact
from nevermore.scan_core import ScanOptions
from tests.differential.table_histories import draw_table
from tests.differential.test_scan_against_reference import assert_equal
from tests.pipelines.iceberg_tables import catalog_in, reloaded

quick = settings(
    max_examples=20, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck), database=None
)
thorough = settings(quick, max_examples=1000, derandomize=False, print_blob=True)


def check_history(draw: Callable[..., Any]) -> None:
    with tempfile.TemporaryDirectory() as folder:
        history = draw_table(draw, Path(folder) / "t", most_steps=8, version=draw(st.sampled_from([2, 2, 3])))
        before = live_rows(history.table.metadata_path)
        catalog = catalog_in(Path(folder))
        catalog.create_namespace("shop")
        catalog.register_table("shop.t", str(history.table.metadata_path))
        first = history.table.snapshots[-1]["snapshot-id"] if history.table.snapshots else None
        everything = draw(st.booleans())
        specs = {task.data_file.spec_id for task in scan_core.open_table(reloaded(catalog)).scan().plan().tasks}
        known = lineage(reloaded(catalog))
        report = compact(reloaded(catalog), CompactSettings(rewrite_all=everything))
        table = reloaded(catalog)
        path = table.metadata_location.removeprefix("file://")
        assert_equal(live_rows(path), before)
        for options in (ScanOptions(), ScanOptions.without_optimisations()):
            scan = scan_core.open_table(table).scan().with_options(options)
            assert_equal(scan.to_table(), before)
        assert not known - lineage(table)
        if first is not None:
            changed = scan_core.open_table(table).scan().changes(first)
            assert changed.to_table().num_rows == 0
        if everything and first is not None:
            assert report.rows == before.num_rows
            plan = scan_core.open_table(table).scan().plan()
            assert not any(task.has_deletes for task in plan.tasks)
            assert {task.data_file.spec_id for task in plan.tasks} <= {table.spec().spec_id}
        if len(specs) > 1:  # the rows of files of older specs are now in partitions that have small files already
            compact(table, CompactSettings())
        assert not compact(table, CompactSettings()).has_changed


def lineage(table: Any) -> Counter[tuple[str, int, int]]:
    """The rows that have an id, with it and the commit that changed them last."""
    if table.format_version < 3 or table.current_snapshot() is None:
        return Counter()
    ids = ["_row_id", "_last_updated_sequence_number"]
    rows = scan_core.open_table(table).scan().select(*(f.name for f in table.schema().fields), *ids).to_table()
    keys = rows.select(ids).to_pylist()
    others = rows.drop_columns(ids).to_pylist()
    return Counter(
        (repr(row), *key.values()) for row, key in zip(others, keys, strict=True) if key["_row_id"] is not None
    )


@pytest.mark.slow
@quick
@given(st.data())
def test_compacted_histories_equal_the_reference(data: st.DataObject) -> None:
    check_history(data.draw)


@pytest.mark.slow
@thorough
@given(st.data())
def test_many_compacted_histories_equal_the_reference(data: st.DataObject) -> None:
    check_history(data.draw)
