"""Data-induced predicates: statistics of one side become ranges on the other, without reading either."""

from pathlib import Path

import pytest

from nevermore import scan_core
from nevermore.scan_core import Scan, induced_ranges
from nevermore.scan_core.joins.column_keys import merge_ranges
from nevermore.scan_core.model.errors import OptionError
from nevermore.scan_core.semi_join import GivenRanges, key_ranges
from tests.support.iceberg_json import Column
from tests.support.table_builder import TableBuilder


@pytest.fixture
def items(tmp_path: Path) -> Scan:
    """Items 0 to 99 in row groups of ten; their price grows with them, but for a cheap group at the end."""
    table = TableBuilder(tmp_path / "items", [Column(1, "item", "int"), Column(2, "price", "int")])
    numbers = list(range(100))
    table.commit(table.data({"item": numbers, "price": [i % 90 for i in numbers]}, row_group_size=10))
    return scan_core.open_table(table.metadata_path).scan()


@pytest.fixture
def sales(tmp_path: Path) -> Scan:
    """Sales of items 0 to 199, twenty to a file."""
    table = TableBuilder(tmp_path / "sales", [Column(1, "sale", "long"), Column(2, "item", "long")])
    for first in range(0, 200, 20):
        numbers = list(range(first, first + 20))
        table.commit(table.data({"sale": numbers, "item": numbers}))
    return scan_core.open_table(table.metadata_path).scan()


def test_surviving_row_groups_become_ranges(items: Scan) -> None:
    assert key_ranges(items.where("price < 5"), "item").ranges == ((0, 9), (90, 99))
    assert key_ranges(items.where("price < 5"), "item", 1).ranges == ((0, 99),)
    assert key_ranges(items.where("price > 1000"), "item").ranges == ()
    assert key_ranges(items, "item").ranges == ((0, 99),)


def test_ranges_prune_the_other_side_when_it_is_planned(items: Scan, sales: Scan) -> None:
    scan = sales.prefilter("item", induced_ranges(items.where("price < 5"), "item"))
    plan = scan.plan()
    assert plan.metrics.data_files_pruned_by_runtime_filters == 8
    assert "2 ranges by the statistics of the other side: 0 to 9, 90 to 99" in plan.explain()
    found = set(scan.to_table()["item"].to_pylist())
    assert {0, 1, 2, 3, 4, 90, 91, 92, 93, 94} <= found
    assert scan.semi_join("item", items.where("price < 5")).count() == 10


def test_it_works_in_the_other_direction(items: Scan, sales: Scan) -> None:
    few = sales.where("sale between 40 and 45")
    scan = items.prefilter("item", induced_ranges(few, "item"))
    assert scan.count() >= 6
    assert scan.metrics.row_groups_pruned_by_runtime_filters == 8
    assert not items.prefilter("item", induced_ranges(sales.where("sale > 900"), "item")).to_table().num_rows


def test_ranges_merge_over_the_narrowest_gaps() -> None:
    assert merge_ranges([(5, 6), (1, 2), (2, 3), (20, 30)], 2) == ((1, 6), (20, 30))
    assert merge_ranges([("a", "b"), ("c", "d"), ("x", "y")], 2) == (("a", "d"), ("x", "y"))
    assert merge_ranges([(b"\x00", b"\x01"), (b"\xf0", b"\xf1"), (b"\xf2", b"\xf3")], 2) == (
        (b"\x00", b"\x01"),
        (b"\xf0", b"\xf3"),
    )


def test_ranges_travel_as_tables(items: Scan) -> None:
    found = key_ranges(items.where("price < 5"), "item")
    assert GivenRanges.of(found).ranges(found.field) == found


def test_ranges_of_another_kind_are_refused(items: Scan, sales: Scan) -> None:
    with pytest.raises(OptionError, match="at least 1"):
        induced_ranges(items, "item", 0)
    with pytest.raises(OptionError, match="ranges are for prefilter"):
        sales.semi_join("item", induced_ranges(items, "item"))
