from pathlib import Path
from typing import Any

import pytest

from nevermore import scan_core
from nevermore.scan_core import Scan, ScanOptions
from tests.support.iceberg_json import Column
from tests.support.table_builder import TableBuilder

COLUMNS = (Column(1, "id", "long"), Column(2, "name", "string"), Column(3, "qty", "int"), Column(4, "load", "string"))
ROWS = 60_000
SMALL_PAGES = {"data_page_size": 8_192, "write_batch_size": 500, "compression": "none", "use_dictionary": False}
PLAIN = ScanOptions.without_optimisations()


def table_of(path: Path, *delete_keys: dict[str, list[Any]]) -> TableBuilder:
    """One row group of ordered ids and names; `load` is too wide to be read for nothing."""
    table = TableBuilder(path, COLUMNS)
    ids = range(ROWS)
    rows = {
        "id": list(ids),
        "name": [f"n{i // 7:06}" for i in ids],
        "qty": [i * 7919 % 1000 for i in ids],
        "load": [f"{i:050}" for i in ids],
    }
    table.commit(table.data(rows, **SMALL_PAGES))
    for keys in delete_keys:
        table.commit(table.equality_delete(keys, ids=[{c.name: c.id for c in COLUMNS}[k] for k in keys]))
    return table


def scan_of(table: TableBuilder, options: ScanOptions | None = None) -> Scan:
    return scan_core.open_table(table.metadata_path).scan().with_options(options or ScanOptions(parallelism=1))


def is_equal_without_optimisations(scan: Scan) -> bool:
    return bool(scan.to_table() == scan.with_options(PLAIN).to_table())


@pytest.mark.each(4)
@pytest.mark.parametrize(
    "where", ["id between 30000 and 30100", "name = 'n004000'", "id < 500 or id > 59900", "id > 59000 and qty < 100"]
)
def test_pages_that_the_filter_excludes_are_not_read(tmp_path: Path, where: str) -> None:
    scan = scan_of(table_of(tmp_path)).where(where)
    assert is_equal_without_optimisations(scan)
    scan.to_table()
    metrics = scan.metrics
    assert metrics.pages_skipped > 10 * metrics.pages_read
    assert metrics.bytes_skipped > 5 * metrics.bytes_read
    assert metrics.rows_out + metrics.rows_removed_by_filter == ROWS
    whole = scan.with_options(ScanOptions.of(parallelism=1, prune_pages=False))
    whole.to_table()
    assert whole.metrics.bytes_read > 5 * metrics.bytes_read


def test_keys_are_read_only_in_pages_that_deletes_may_touch(tmp_path: Path) -> None:
    scan = scan_of(table_of(tmp_path, {"id": [41_000, 41_007, 41_900]}))
    assert scan.count() == ROWS - 3
    assert scan.metrics.pages_skipped > scan.metrics.pages_read > 0
    assert scan.metrics.bytes_skipped > 5 * scan.metrics.bytes_read
    assert scan.metrics.rows_removed_by_equality_deletes == 3
    assert is_equal_without_optimisations(scan)
    assert is_equal_without_optimisations(scan.where("qty < 500"))
    assert is_equal_without_optimisations(scan.select("load", "id").where("id % 2 = 1"))


def test_pages_that_deletes_cover_are_dropped_without_a_probe(tmp_path: Path) -> None:
    scan = scan_of(table_of(tmp_path, {"id": list(range(20_000, 50_000))}))
    assert scan.count() == ROWS - 30_000
    assert scan.metrics.rows_removed_by_equality_deletes == 30_000
    assert scan.metrics.pages_skipped > scan.metrics.pages_read
    assert is_equal_without_optimisations(scan)


def test_several_delete_sets_are_each_cut_to_their_pages(tmp_path: Path) -> None:
    keys: list[dict[str, list[Any]]] = [
        {"id": [5, 59_999]},
        {"name": ["n000100", "n008000"], "id": [700, 56_001]},
        {"name": ["n004000"]},
    ]
    scan = scan_of(table_of(tmp_path, *keys))
    assert scan.count() == ROWS - 2 - 2 - 7
    assert is_equal_without_optimisations(scan)
    assert is_equal_without_optimisations(scan.select("name").where("id > 100"))
