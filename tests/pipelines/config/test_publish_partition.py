from decimal import Decimal
from pathlib import Path

import pytest

from nevermore.pipelines.config.project import parse
from nevermore.pipelines.config.published import PublishedPartition
from nevermore.pipelines.errors import ConfigError
from nevermore.pipelines.publish.query import published_entry, published_query
from nevermore.pipelines.publish.refresh_plan import ResultShape, WorkFinder
from nevermore.pipelines.publish.state import Base
from nevermore.scan_core.model.schema import NestedField, PrimitiveType


@pytest.mark.parametrize("key", ["9999-12-31", "0001-01-01"])
@pytest.mark.parametrize("unit", ["day", "day(day)", "month(day)", "year(day)", "hour(at)"])
def test_first_and_last_partition_there_is_are_like_any_other(key: str, unit: str) -> None:
    by = PublishedPartition.parse(unit)
    kind = PrimitiveType("timestamp" if by.unit == "hour" else "date")
    wanted = {"year": key[:4], "month": key[:7], "day": key, "hour": f"{key}T23"}[by.unit]
    value = by.physical(wanted, kind)
    assert by.key_of(value, kind) == wanted
    assert by.keys(f"{wanted}..{wanted}") == [wanted]
    assert [by.key_of(by.physical(by.keys(wanted)[0], kind), kind)] == [wanted]
    assert by.periods([value])[0].start == by.period(wanted).start
    assert ("partition_end" in by.parameters(wanted)) is (key < "9999")


def test_partition_without_a_name_is_refused_with_what_to_do() -> None:
    with pytest.raises(ConfigError, match="years 1 to 9999"):
        PublishedPartition.parse("day").key_of(10_000_000, PrimitiveType("date"))


def test_decimal_has_one_key_as_manifests_and_as_scans_tell_it() -> None:
    by, kind = PublishedPartition.parse("value(price)"), PrimitiveType("decimal", (10, 2))
    assert by.physical("1.50", kind) == Decimal("1.50")
    assert by.key_of(Decimal("1.50"), kind) == "1.50"


@pytest.mark.parametrize("text", ["null", "'null'", "'null", "NULL", "'", "''", ""])
def test_text_that_says_null_is_another_partition_than_null(text: str) -> None:
    by, kind = PublishedPartition.parse("value(city)"), PrimitiveType("string")
    key = by.key_of(text, kind)
    assert key != by.key_of(None, kind)
    assert (by.physical(key, kind), by.parameters(key)) == (text, {"partition": text})
    assert by.canonical(key, kind) == key


@pytest.mark.parametrize(
    ("kind", "key"),
    [
        (PrimitiveType("int"), "99999999999"),
        (PrimitiveType("long"), "1e3"),
        (PrimitiveType("decimal", (4, 2)), "1.505"),
        (PrimitiveType("decimal", (4, 2)), "1234.5"),
        (PrimitiveType("decimal", (4, 2)), "NaN"),
        (PrimitiveType("boolean"), "yes"),
        (PrimitiveType("date"), "2026-02-30"),
    ],
)
def test_key_that_the_partition_column_cannot_hold_is_refused(kind: PrimitiveType, key: str) -> None:
    with pytest.raises(ConfigError, match=f"'{key}' is not a {kind.name}"):
        PublishedPartition.parse("value(p)").physical(key, kind)


@pytest.mark.parametrize("text", ["..2026-01-31", "2026-01-31..", ".."])
def test_range_of_partitions_needs_both_ends(text: str) -> None:
    with pytest.raises(ConfigError, match="lacks its first or last key; write 2026-01-31"):
        PublishedPartition.parse("day").keys(text)


@pytest.mark.parametrize(
    ("partition", "kind", "keys"),
    [
        ("day", PrimitiveType("date"), ["2026-01-31", "2026-1-31"]),
        ("value(p)", PrimitiveType("int"), ["7", "07", " 7"]),
        ("value(p)", PrimitiveType("decimal", (10, 2)), ["1.50", "1.5"]),
        ("value(p)", PrimitiveType("boolean"), ["true", "True"]),
    ],
)
def test_partition_that_is_asked_for_in_two_ways_is_made_once(
    partition: str, kind: PrimitiveType, keys: list[str], tmp_path: Path
) -> None:
    text = f"""
tables: {{s.t: {{source: {{type: files, path: none}}, key: [id]}}}}
published: {{s.p: {{partition: {partition}, sql: "select p, :partition as day from s.t"}}}}
"""
    config = parse(text, tmp_path / "nevermore.yaml")
    finder = WorkFinder(published_entry(config, "s.p"), published_query(config, "s.p"), Base(None, None), None)
    column = NestedField(1, "p", kind, required=False)
    assert list(finder.asked_for(keys, ResultShape((column,), column)).why) == keys[:1]
