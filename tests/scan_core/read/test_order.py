"""The order of steps: cheap and selective ones first, as guessed, as measured, and as other splits measured."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from time import perf_counter

import pytest

from nevermore import scan_core
from nevermore.scan_core.expr.bind import bind
from nevermore.scan_core.read.predicate import guess_cost
from nevermore.scan_core.read.restriction import HINTS, Adaptivity
from tests.support.iceberg_json import Column
from tests.support.random_predicates import SCHEMA
from tests.support.table_builder import TableBuilder


@dataclass(frozen=True)
class Step:
    key: object
    first_guess: float


STEPS = [Step("dear", 1.0), Step("cheap", 2.0), Step("selective", 3.0)]


@pytest.fixture(autouse=True)
def _without_hints() -> Iterator[None]:
    HINTS.clear()
    yield
    HINTS.clear()


def measure(order: Adaptivity) -> None:
    """Seconds so far apart that no pause of a busy machine changes their order."""
    for step, seconds, rows_out in zip(STEPS, (5_000, 100, 100), (900, 900, 10), strict=True):
        order.record(step, perf_counter() - seconds, 1000, rows_out)


def test_order_follows_the_guess_until_something_is_measured() -> None:
    order = Adaptivity(adaptive=True)
    assert order.order(STEPS) == [0, 1, 2]
    measure(order)
    assert order.order(STEPS) == [2, 1, 0]
    fixed = Adaptivity(adaptive=False)
    measure(fixed)
    assert fixed.order(STEPS) == [0, 1, 2]


def test_measurements_are_a_hint_for_other_splits_of_the_same_scan_alone() -> None:
    measure(Adaptivity(adaptive=True, hint_key=("table", "a > 1")))
    assert Adaptivity(adaptive=True, hint_key=("table", "a > 1")).order(STEPS) == [2, 1, 0]
    assert Adaptivity(adaptive=True, hint_key=("table", "a > 2")).order(STEPS) == [0, 1, 2]
    assert Adaptivity(adaptive=False, hint_key=("table", "a > 1")).order(STEPS) == [0, 1, 2]


def test_hints_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("nevermore.scan_core.read.restriction._MAX_REMEMBERED_FILTERS", 2)
    for key in ("a", "b", "c"):
        measure(Adaptivity(adaptive=True, hint_key=key))
    assert [HINTS.find(key) is not None for key in ("a", "b", "c")] == [False, True, True]


def test_first_guess_prefers_cheap_conjuncts_and_those_on_one_column() -> None:
    texts = ["s rlike 'a.*b'", "i + l > 5", "lower(s) like '%x%'", "i > 5"]
    conjuncts = [bind(text, SCHEMA).conjuncts[0] for text in texts]
    columns = [1, 2, 1, 1]
    steps = [Step(k, guess_cost(c, n)) for k, (c, n) in enumerate(zip(conjuncts, columns, strict=True))]
    assert Adaptivity(adaptive=True).order(steps)[:2] == [3, 1]


def test_delete_sets_compete_with_conjuncts(tmp_path: Path) -> None:
    table = TableBuilder(tmp_path / "t", [Column(1, "id", "long"), Column(2, "name", "string")])
    count = 20_000
    table.commit(
        table.data({"id": range(count), "name": [f"n{k % 7} {k}" for k in range(count)]}, row_group_size=count // 4)
    )
    table.commit(table.equality_delete({"id": range(0, count, 2)}, ids=[1]))
    scan = scan_core.open_table(table.metadata_path).scan().where("name rlike '^n[0-6] .*[13579]$'")
    assert scan.count() == count // 2
    measured = next(iter(HINTS._kept.values()))[0]
    assert set(measured) == {("deletes", (1,)), ("predicate", 0)}
    later = scan.metrics.rows_removed_by_filter
    assert later + scan.metrics.rows_removed_by_equality_deletes == count // 2


def test_columns_are_cut_to_the_rows_left_only_where_that_is_cheaper() -> None:
    order = Adaptivity(adaptive=True)
    cheap, dear = Step("cheap", 5.0), Step("dear", 500.0)
    assert not order.narrows(cheap, 900, 1000)
    assert order.narrows(dear, 900, 1000)
    assert order.narrows(cheap, 400, 1000)
    assert Adaptivity(adaptive=False).narrows(cheap, 900, 1000)


def test_conjuncts_on_one_map_share_its_child_arrays_until_few_rows_are_left() -> None:
    order, step = Adaptivity(adaptive=True), Step("m[1] = 2", 35.0)
    assert order.narrows(step, 400, 1000)
    assert not order.narrows(step, 400, 1000, rereads_collection=True)
    assert order.narrows(step, 50, 1000, rereads_collection=True)
    assert Adaptivity(adaptive=False).narrows(step, 400, 1000, rereads_collection=True)
