"""Row groups without a value that is asked for are left out by their dictionary pages, whatever bounds say."""

import datetime as dt
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

from nevermore import scan_core
from nevermore.scan_core import ScanOptions
from tests.support.iceberg_json import Column, struct
from tests.support.table_builder import TableBuilder

COLUMNS = [
    Column(1, "id", "long"),
    Column(2, "name", "string"),
    Column(3, "day", "date"),
    Column(4, "price", "decimal(9,2)"),
    Column(5, "s", struct(Column(6, "x", "string"))),
]
GROUP = 5_000


def table_of(folder: Path, **options: Any) -> scan_core.Table:
    """Four row groups with the same bounds in every column, each with values of its own in between."""
    rows = range(4 * GROUP)

    def own(k: int) -> int:
        return 0 if k % GROUP == 0 else 999 if k % GROUP == 1 else 10 * (k // GROUP) + k % 5 + 1

    table = TableBuilder(folder / "t", COLUMNS)
    values = {
        "id": [own(k) for k in rows],
        "name": [None if k % 7 == 3 and k % GROUP > 1 else f"n{own(k):03}" for k in rows],
        "day": [dt.date(2026, 1, 1) + dt.timedelta(days=own(k)) for k in rows],
        "price": [Decimal(own(k)) / 100 for k in rows],
        "s": [None if k % 7 == 2 and k % GROUP > 1 else {"x": f"x{own(k):03}"} for k in rows],
    }
    table.commit(table.data(values, row_group_size=GROUP, **options))
    return scan_core.open_table(table.metadata_path)


FILTERS = {
    "id = 13": 1,
    "name = 'n013'": 1,
    "name in ('n013', 'n023')": 2,
    "name in ('n013', 'n777')": 1,
    "day = date '2026-01-14'": 1,
    "price = 0.13": 4,  # stored in bytes, of which writers use different numbers
    "s.x = 'x013'": 1,
    "name = 'n777'": 0,
    "id = 13 and name = 'n023'": 0,
    "lower(name) = 'n013'": 4,
    "id > 13": 4,
    "name <> 'n013'": 4,
    "name is null": 4,
}


@pytest.mark.parametrize("where", FILTERS)
@pytest.mark.parametrize("version", ["1.0", "2.0"])
def test_row_groups_without_the_value_are_left_out(tmp_path: Path, where: str, version: str) -> None:
    table = table_of(tmp_path, data_page_version=version, compression="none")
    scan = table.scan().where(where)
    plain = scan.with_options(ScanOptions.of(prune_dictionaries=False))
    assert scan.count() == plain.count()
    assert scan.metrics.row_groups_read == FILTERS[where]
    assert plain.metrics.row_groups_read == 4
    assert plain.metrics.row_groups_pruned_by_dictionaries == 0
    assert scan.metrics.row_groups_pruned_by_dictionaries == 4 - FILTERS[where]


@pytest.mark.parametrize("options", [{"use_dictionary": False}, {"dictionary_pagesize_limit": 16}])
def test_chunks_that_are_not_wholly_encoded_are_read(tmp_path: Path, options: dict[str, Any]) -> None:
    scan = table_of(tmp_path, **options).scan().where("name = 'n013'")
    assert scan.count() == scan.with_options(ScanOptions.without_optimisations()).count() > 0
    assert scan.metrics.row_groups_pruned_by_dictionaries == 0
