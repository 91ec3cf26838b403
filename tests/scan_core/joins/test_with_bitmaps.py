"""Semi joins on columns with a bitmap index: few keys are answered by it, many by values, the rows are the same."""

from pathlib import Path

import pytest

from nevermore import scan_core
from nevermore.scan_core import Scan, ScanOptions
from nevermore.scan_core.read import key_filter
from tests.support.bitmap_indexes import bitmaps_for_nothing, index_columns
from tests.support.iceberg_json import Column
from tests.support.table_builder import TableBuilder


@pytest.fixture
def scan(tmp_path: Path) -> Scan:
    """Ten colours in turn over two files of several row groups, NULL among them; index on the colour."""
    table = TableBuilder(
        tmp_path / "t", [Column(1, "id", "long"), Column(2, "colour", "string"), Column(3, "v", "int")]
    )
    for first in (0, 500):
        ids = list(range(first, first + 500))
        colours = [None if i % 10 == 9 else f"c{i % 10}" for i in ids]
        table.commit(table.data({"id": ids, "colour": colours, "v": [i % 7 for i in ids]}, row_group_size=200))
    table.commit(table.equality_delete({"id": [3, 13, 503]}, ids=[1]))
    index_columns(table.location, ["colour"])
    return scan_core.open_table(table.location).scan()


def test_few_keys_are_answered_by_the_index(scan: Scan, monkeypatch: pytest.MonkeyPatch) -> None:
    expected = [i for i in range(1000) if i % 10 in {3, 4} and i not in {3, 13, 503}]
    with bitmaps_for_nothing():
        joined = scan.semi_join("colour", ["c3", "c4", "none", None])
        assert sorted(joined.to_table()["id"].to_pylist()) == expected
        assert joined.metrics.bitmap_indexes_used == 2
        assert joined.metrics.rows_removed_by_bitmaps == joined.metrics.rows_removed_by_runtime_filters > 0
        beside = joined.where("v < 3 and colour <> 'c4'")
        assert sorted(beside.to_table()["id"].to_pylist()) == [i for i in expected if i % 7 < 3 and i % 10 == 3]
        off = joined.with_options(ScanOptions.of(use_bitmap_indexes=False))
        assert off.count() == len(expected)
        assert off.metrics.bitmap_indexes_used == 0
        monkeypatch.setattr(key_filter, "MAX_KEYS", 1)
        assert joined.count() == len(expected)


def test_keys_without_rows_leave_out_every_row_group(scan: Scan) -> None:
    with bitmaps_for_nothing():
        joined = scan.with_options(ScanOptions.of(prune_files=False)).semi_join("colour", ["c35", "c36"])
        assert joined.count() == 0
        assert joined.metrics.delete_files_opened == 0


def test_changes_between_snapshots_are_those_of_rows_with_a_key(scan: Scan) -> None:
    joined = scan.semi_join("colour", ["c3"])
    changes = joined.changes(scan.table.history()[0].snapshot_id).to_table()
    deleted = [row["id"] for row in changes.to_pylist() if row["_change_type"] == "delete"]
    assert sorted(deleted) == [3, 13]
    assert changes.num_rows == 50 - 1 + 2
    assert scan.prefilter("colour", ["c3"]).changes(None).to_table().num_rows == scan.count()
