"""Filters of other engines: applied whole and exactly, or handed back with the reason."""

from pathlib import Path

import pytest

from nevermore import scan_core
from nevermore.scan_core import PredicateError, Scan
from nevermore.scan_core.spark.frames import push_filters
from tests.support.iceberg_json import Column
from tests.support.table_builder import TableBuilder


@pytest.fixture
def scan(tmp_path: Path) -> Scan:
    """Ids 0 to 9, each with a name."""
    builder = TableBuilder(tmp_path / "t", [Column(1, "id", "long"), Column(2, "name", "string")])
    builder.commit(builder.data({"id": list(range(10)), "name": [f"n{i}" for i in range(10)]}))
    return scan_core.open_table(builder.metadata_path).scan()


def test_a_scan_tells_which_conjuncts_it_applies(scan: Scan) -> None:
    assert scan.applied_filters == ()
    narrowed = scan.where("id > 3 and name like 'n%'").where("id < 100 or id is null")
    assert narrowed.applied_filters == ("id > 3", "name like 'n%'", "id < 100 or id is null")
    assert all(text in narrowed.explain() for text in narrowed.applied_filters)
    with pytest.raises(PredicateError):
        _ = scan.where("soundex(name) = 'N000'").applied_filters


def test_what_cannot_be_applied_is_handed_back_untouched_with_the_reason(scan: Scan) -> None:
    pushed = push_filters(scan.select("id"), ["id > 3", "soundex(name) = 'N000'", "nmae = 'x'", "id > 3", "id < 6"])
    assert pushed.applied == ("id > 3", "id < 6")
    assert list(pushed.left) == ["soundex(name) = 'N000'", "nmae = 'x'"]
    assert "soundex" in pushed.left["soundex(name) = 'N000'"]
    assert pushed.scan.applied_filters == pushed.applied
    assert pushed.scan.to_table().to_pydict() == {"id": [4, 5]}


def test_filters_that_can_fail_are_applied_unless_another_is_left_that_may_spare_them_rows(scan: Scan) -> None:
    cast = "cast(substr(name, 2) as int) = 7"
    assert push_filters(scan, [cast, "id > 3"]).applied == (cast, "id > 3")
    mixed = push_filters(scan, [cast, "id > 3", "soundex(name) = 'N000'"])
    assert mixed.applied == ("id > 3",)
    assert mixed.left[cast].startswith("it can fail")


@pytest.mark.parametrize(
    "condition",
    [
        "id & 3 = 2",
        "~id = 1",
        "greatest(id, 2) = 2",
        "nanvl(cast(id as double), 0) > 1",
        "sqrt(id) = 2",
        "current_timestamp - interval '1 12:00:00' day to second > timestamp '2020-02-01'",
        "cast(id as decimal(9, 2)) div 2 = 1",
        "startswith(name, name)",
        "left(name, id) = 'n'",
        r"name rlike '\\p{L}'",
        "case when id | 1 = 1 then true end",
    ],
)
def test_conditions_that_are_refused_are_left_and_hold_back_those_that_can_fail(scan: Scan, condition: str) -> None:
    fallible = "cast(substr(name, 2) as int) = 7"
    pushed = push_filters(scan, [fallible, condition, "id > 3"])
    assert pushed.applied == ("id > 3",)
    assert set(pushed.left) == {fallible, condition}
