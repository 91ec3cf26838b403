"""Any order of restrictions, and any of them silenced at any level, gives the same rows."""

import itertools
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from nevermore import scan_core
from nevermore.scan_core import Scan, ScanOptions
from nevermore.scan_core.columns.file_reader import RowGroup
from nevermore.scan_core.prune.verdicts import Level, Match
from nevermore.scan_core.read.file_statistics import PageMatches
from nevermore.scan_core.read.key_filter import KeyFilter
from nevermore.scan_core.read.predicate import Conjunct
from nevermore.scan_core.read.restriction import Adaptivity, ByPosition, Cause, Restriction, Worth
from nevermore.scan_core.read.task import DeleteSet, Select, Skip, plan_row_group
from nevermore.scan_core.read.task import Scan as ScanAll
from nevermore.scan_core.rows.selection import All, nothing
from tests.support.bitmap_indexes import bitmaps_for_nothing, index_columns
from tests.support.iceberg_json import Column
from tests.support.table_builder import TableBuilder

ROWS, GROUP = 3_000, 500
TOLD: Mapping[type[Restriction], frozenset[Level]] = {
    Conjunct: frozenset({Level.ROW_GROUPS, Level.PAGES}),
    DeleteSet: frozenset({Level.ROW_GROUPS, Level.PAGES}),
    KeyFilter: frozenset({Level.PAGES}),
    ByPosition: frozenset({Level.ROW_GROUPS}),
}
"""At which levels each kind decides whole row groups or pages of this table."""


@pytest.fixture(scope="module")
def scan(tmp_path_factory: pytest.TempPathFactory) -> Scan:
    """A table on which restrictions of every kind remove rows."""
    columns = [
        Column(1, "id", "long"),
        Column(2, "colour", "string"),
        Column(3, "name", "string"),
        Column(4, "k", "int"),
    ]
    table = TableBuilder(tmp_path_factory.mktemp("restrictions") / "t", columns)
    ids = range(ROWS)
    first = table.data(
        {
            "id": ids,
            "colour": [f"c{i % 5}" for i in ids],
            "name": [f"n{i % 7} {i}" for i in ids],
            "k": [i // 100 for i in ids],
        },
        row_group_size=GROUP,
        write_page_index=True,
        max_rows_per_page=100,
        bloom_filter_options={"id": {"ndv": GROUP}, "k": {"ndv": 8}},
    )
    table.commit(first)
    table.commit(
        table.equality_delete({"id": [*range(0, 600, 3), *range(1_000, 1_500), 2_001]}, ids=[1]),
        table.position_delete([(first, p) for p in range(700, 2_100, 7)]),
    )
    index_columns(table.location, ["colour"])
    scan = scan_core.open_table(table.location).scan().with_options(ScanOptions(parallelism=1))
    scan = scan.where("colour <> 'c1'").where("colour = 'c2' or id % 2 = 0").where("name rlike '^n[0-5] .*[02468]$'")
    return scan.semi_join("k", [0, 1, 4, 5, 6, 7, 8, 12, 15, 17, 20, 22, 29]).where("id < 2950").sample(0.9, seed=1)


def rows_of(scan: Scan) -> list[dict[str, Any]]:
    with bitmaps_for_nothing(0.5):
        return sorted(scan.to_table().to_pylist(), key=repr)


def count_of(scan: Scan) -> int:
    with bitmaps_for_nothing(0.5):
        return scan.count()


@pytest.fixture(scope="module")
def expected(scan: Scan) -> list[dict[str, Any]]:
    found = rows_of(scan.with_options(ScanOptions.without_optimisations()))
    assert 100 < len(found) < 1_000
    assert count_of(scan) == len(found)
    return found


def test_every_order_of_restrictions_gives_the_same_rows(
    scan: Scan, expected: list[dict[str, Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    orders: set[tuple[object, ...]] = set()
    for seed in range(3):  # and within each an order per row group
        numbers = np.random.default_rng(seed)

        def permuted(_: Any, steps: Sequence[Any], numbers: Any = numbers) -> list[int]:
            order = numbers.permutation(len(steps)).tolist()
            orders.add(tuple(steps[i].key[0] for i in order))
            return [int(i) for i in order]

        monkeypatch.setattr(Adaptivity, "order", permuted)
        monkeypatch.setattr(Worth, "is_on", lambda *_, numbers=numbers: bool(numbers.random() < 0.5))
        assert rows_of(scan) == expected
        assert count_of(scan) == len(expected)
    assert any(order[:1] == ("deletes",) and "predicate" in order for order in orders), "a delete set before conjuncts"


@pytest.mark.parametrize("kind", TOLD)
def test_silencing_a_kind_of_restriction_at_any_level_changes_no_row(
    scan: Scan, expected: list[dict[str, Any]], kind: type[Restriction], monkeypatch: pytest.MonkeyPatch
) -> None:
    asked, looked = kind.row_group, kind.pages
    told: set[Level] = set()
    silent: Level | None = None

    def row_group(self: Any, group: RowGroup, level: Level) -> Match:
        found = Match.MAYBE if level is silent else asked(self, group, level)
        if found is not Match.MAYBE:
            told.add(level)
        return found

    def pages(self: Any, group: RowGroup) -> PageMatches:
        found = PageMatches.unknown(group.num_rows) if silent is Level.PAGES else looked(self, group)
        if not isinstance(found.rows(Match.MAYBE), All):
            told.add(Level.PAGES)
        return found

    monkeypatch.setattr(kind, "row_group", row_group)
    monkeypatch.setattr(kind, "pages", pages)
    assert rows_of(scan) == expected
    levels = frozenset(told)
    for silent in levels:  # noqa: B007  both functions above look at it
        assert rows_of(scan) == expected
    assert levels == TOLD[kind], "silence where nothing is told proves nothing"


def test_dearer_levels_are_asked_only_where_cheaper_ones_leave_rows() -> None:
    group, asked = RowGroup(0, 0, 10, 4, 100), []

    class Told(Restriction):
        def __init__(self, name: str, **answers: Match) -> None:
            self.name, self.answers = name, answers

        @property
        def cause(self) -> Cause:
            return Cause.PREDICATE

        def row_group(self, group: RowGroup, level: Level) -> Match:
            del group
            asked.append((self.name, level))
            return self.answers.get(level.name, Match.MAYBE)

    def later() -> Any:
        yield [cheap, dear]
        asked.append(("deletes", Level.ROW_GROUPS))
        yield [ByPosition(Cause.POSITION_DELETES, Level.ROW_GROUPS, lambda g: nothing(g.num_rows))]

    cheap, dear = Told("cheap", ROW_GROUPS=Match.ALWAYS), Told("dear", BLOOM_FILTERS=Match.NEVER)
    plan = plan_row_group(later(), group)
    assert isinstance(plan, Skip)
    assert (plan.by, plan.level) == (dear, Level.BLOOM_FILTERS)
    levels = (Level.ROW_GROUPS, Level.BITMAPS, Level.BLOOM_FILTERS)
    assert asked == [("cheap", Level.ROW_GROUPS), *itertools.product(["dear"], levels)]
    cheap, dear = Told("cheap"), Told("dear", BLOOM_FILTERS=Match.ALWAYS)
    skipped = plan_row_group(later(), group)
    assert isinstance(skipped, Skip)
    assert skipped.by.cause is Cause.POSITION_DELETES
    left = plan_row_group([[cheap, dear]], group)
    assert isinstance(left, Select)
    assert (left.selection, left.restrictions) == (All(10), (cheap,))
    assert plan_row_group([[Told("all", ROW_GROUPS=Match.ALWAYS)]], group) == ScanAll()


def test_row_group_whose_rows_are_all_deleted_is_not_decoded(tmp_path: Path) -> None:
    table = TableBuilder(tmp_path / "t", [Column(1, "id", "long"), Column(2, "v", "long")])
    first = table.data({"id": range(300), "v": range(300)}, row_group_size=100)
    table.commit(first)
    table.commit(
        table.equality_delete({"id": range(100)}, ids=[1]),
        table.position_delete([(first, p) for p in [5, *range(100, 200)]]),
    )
    scan = scan_core.open_table(table.metadata_path).scan()
    assert scan.to_table()["id"].to_pylist() == [*range(200, 300)]
    metrics = scan.metrics
    assert (metrics.rows_removed_by_position_deletes, metrics.rows_removed_by_equality_deletes) == (101, 99)
    assert metrics.rows_in_files == 300
    assert metrics.rows_out == 100
    assert metrics.bytes_read < metrics.bytes_skipped
