from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from nevermore import scan_core
from nevermore.pipelines.errors import SourceError
from nevermore.pipelines.iceberg.bitmap_indexes import CatalogTarget, build_indexes
from nevermore.pipelines.iceberg.commit import RowDelta
from nevermore.pipelines.iceberg.dead_row_index import DeadRowReport, index_dead_rows
from nevermore.pipelines.iceberg.table_writer import check_key, write_deletes, write_rows
from nevermore.scan_core import ScanOptions
from nevermore.scan_core.bitmaps.dead_rows import DEAD_ROWS_TYPE, DELETES_TYPE
from nevermore.scan_core.bitmaps.puffin import read_footer
from nevermore.scan_core.io import cache
from nevermore.scan_core.io.location import FileIOConfig
from tests.pipelines.iceberg_tables import catalog_in, new_table, reloaded
from tests.support.dead_row_index import index_built
from tests.support.iceberg_json import Column
from tests.support.table_builder import TableBuilder

WITHOUT = ScanOptions.of(use_dead_row_bits=False)


@pytest.fixture
def catalog(tmp_path: Path) -> Any:
    return catalog_in(tmp_path)


@pytest.fixture
def table(catalog: Any) -> Any:
    return new_table(catalog, {"id": "long", "city": "string", "x": "double"})


def append(table: Any, ids: range) -> None:
    delta = RowDelta(table)
    rows = pa.table({"id": list(ids), "city": [f"c{i % 3}" for i in ids], "x": [float(i) for i in ids]})
    delta.commit(write_rows(rows, delta.target, delta.default_spec), {})


def delete(table: Any, ids: list[int]) -> None:
    delta = RowDelta(table)
    keys = pa.table({"id": pa.array(ids, pa.int64())})
    key_ids = check_key(delta.schema, ("id",))
    delta.commit(write_deletes(keys, delta.target, delta.default_spec, key_ids), {})


def index(catalog: Any) -> DeadRowReport:
    return index_dead_rows(CatalogTarget(reloaded(catalog)))


def read(catalog: Any, options: ScanOptions | None = None) -> tuple[list[int], scan_core.ScanMetrics]:
    scan = scan_core.open_table(reloaded(catalog)).scan().with_options(options or ScanOptions()).select("id")
    return sorted(scan.to_table()["id"].to_pylist()), scan.metrics


def test_deletes_in_the_index_are_not_read_again(catalog: Any, table: Any) -> None:
    append(table, range(100))
    delete(reloaded(catalog), [3, 7, 50])
    report = index(catalog)
    assert (report.data_files, report.resolved, report.kept, report.dead_rows) == (1, 1, 0, 3)
    rows, metrics = read(catalog)
    assert rows == [i for i in range(100) if i not in {3, 7, 50}]
    assert (metrics.dead_row_bits_used, metrics.delete_files_opened, metrics.delete_rows_loaded) == (1, 1, 3)
    assert metrics.rows_removed_by_position_deletes == 3
    assert metrics.rows_removed_by_equality_deletes == 0
    assert read(catalog, WITHOUT)[1].rows_removed_by_equality_deletes == 3


def test_only_newer_deletes_are_looked_up_and_resolved(catalog: Any, table: Any) -> None:
    append(table, range(100))
    delete(reloaded(catalog), [3])
    index(catalog)
    delete(reloaded(catalog), [4, 5])
    rows, metrics = read(catalog)
    assert rows == [i for i in range(100) if i not in {3, 4, 5}]
    assert metrics.rows_removed_by_position_deletes == 1
    assert metrics.rows_removed_by_equality_deletes == 2
    assert "1 data file with 1 dead row known by position, 1 delete file newer than the index" in (
        scan_core.open_table(reloaded(catalog)).scan().explain()
    )


def test_a_new_run_extends_the_index_and_removes_the_older_one(catalog: Any, table: Any) -> None:
    append(table, range(100))
    delete(reloaded(catalog), [3])
    first = index(catalog)
    assert index(catalog).path is None
    append(reloaded(catalog), range(100, 200))
    assert index(catalog).path is None  # no delete touches the new file
    delete(reloaded(catalog), [4])
    second = index(catalog)
    assert (second.data_files, second.resolved, second.dead_rows) == (1, 1, 2)
    assert [s.statistics_path for s in reloaded(catalog).metadata.statistics] == [second.path]
    assert not Path(str(first.path).removeprefix("file://")).exists()
    assert read(catalog)[1].rows_removed_by_position_deletes == 2


def test_dead_rows_of_untouched_files_are_copied(catalog: Any, table: Any) -> None:
    append(table, range(100))
    append(reloaded(catalog), range(1000, 1100))
    delete(reloaded(catalog), [3, 1005])
    index(catalog)
    delete(reloaded(catalog), [1006])  # by its bounds it touches the second file alone
    report = index(catalog)
    assert (report.resolved, report.kept, report.dead_rows) == (1, 1, 3)
    rows, metrics = read(catalog)
    assert rows == [i for i in (*range(100), *range(1000, 1100)) if i not in {3, 1005, 1006}]
    assert metrics.dead_row_bits_used == 2


def test_other_engines_load_the_table_and_both_kinds_of_index_stay(catalog: Any, table: Any) -> None:
    append(table, range(100))
    delete(reloaded(catalog), [3])
    for _ in range(2):
        build_indexes(CatalogTarget(reloaded(catalog)), ["city"])
        index(catalog)
    (entry,) = reloaded(catalog).metadata.statistics
    assert entry.blob_metadata == []
    types = {blob.type for blob in read_footer(entry.statistics_path, FileIOConfig()).blobs}
    assert types >= {DEAD_ROWS_TYPE, DELETES_TYPE}
    assert len(types) == 3
    build_indexes(CatalogTarget(reloaded(catalog)), ["id"])
    assert read(catalog)[1].dead_row_bits_used == 1


def _remove(path: Path) -> None:
    path.unlink()


def _cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-10])


def _flip(begin: float) -> Callable[[Path], None]:
    def flip(path: Path) -> None:
        data = bytearray(path.read_bytes())
        data[int(begin * len(data)) + 6] ^= 1
        path.write_bytes(data)

    return flip


@pytest.mark.parametrize("damage", [_remove, _cut, *map(_flip, (0.0, 0.02, 0.1, 0.2, 0.4, 0.6, 0.8, 0.95))])
def test_a_damaged_index_is_counted_and_the_deletes_are_applied(
    catalog: Any, table: Any, damage: Callable[[Path], None]
) -> None:
    append(table, range(100))
    delete(reloaded(catalog), [3, 7, 50])
    damage(Path(str(index(catalog).path).removeprefix("file://")))
    cache.clear()
    rows, metrics = read(catalog)
    assert rows == [i for i in range(100) if i not in {3, 7, 50}]
    assert metrics.dead_row_bits_refused >= 1
    assert metrics.rows_removed_by_equality_deletes == 3
    index(catalog)
    assert read(catalog)[1].dead_row_bits_refused == 0


def test_rows_whose_delete_was_withdrawn_are_alive_again(tmp_path: Path) -> None:
    table = TableBuilder(tmp_path / "t", [Column(1, "id", "long")])
    table.commit(table.data({"id": list(range(10))}))
    withdrawn = table.equality_delete({"id": [3]}, ids=[1])
    table.commit(withdrawn)
    table.commit(table.equality_delete({"id": [4]}, ids=[1]))
    index_built(table)
    table.commit(remove=[withdrawn], operation="delete")
    scan = scan_core.open_table(table.metadata_path).scan()
    assert scan.to_table()["id"].to_pylist() == [0, 1, 2, 3, 5, 6, 7, 8, 9]
    assert scan.metrics.dead_row_bits_used == 0


def test_newer_deletes_by_position_are_added(tmp_path: Path) -> None:
    table = TableBuilder(tmp_path / "t", [Column(1, "id", "long")])
    files = [table.data({"id": list(range(begin, begin + 10))}) for begin in (0, 10)]
    table.commit(*files)
    table.commit(table.equality_delete({"id": [3, 13]}, ids=[1]))
    index_built(table)
    table.commit(table.position_delete([(files[0], 3), (files[0], 5)]))
    scan = scan_core.open_table(table.metadata_path).scan()
    assert scan.to_table()["id"].to_pylist() == [i for i in range(20) if i not in {3, 5, 13}]
    assert scan.metrics.dead_row_bits_used == 2
    assert index_built(table).dead_rows == 3


def test_which_delete_removed_a_row_is_still_told(tmp_path: Path) -> None:
    table = TableBuilder(tmp_path / "t", [Column(1, "id", "long")])
    table.commit(table.data({"id": list(range(10))}))
    removed_by = table.equality_delete({"id": [3]}, ids=[1])
    table.commit(removed_by)
    index_built(table)
    scan = scan_core.open_table(table.metadata_path).scan().select("id", "_delete_file").where("_deleted")
    (row,) = scan.to_table().to_pylist()
    assert row["id"] == 3
    assert row["_delete_file"].endswith(".parquet")


def test_a_table_without_snapshot_is_refused(table: Any) -> None:
    with pytest.raises(SourceError, match="no snapshot"):
        index_dead_rows(CatalogTarget(table))
