"""Verdicts from partition values and manifest summaries, transform by transform."""

from decimal import Decimal
from typing import Any

import pytest

from nevermore.scan_core.expr.bind import bind
from nevermore.scan_core.metadata.manifest_list import PartitionSummary
from nevermore.scan_core.model.schema import PrimitiveType
from nevermore.scan_core.model.snapshot import PartitionField, PartitionSpec
from nevermore.scan_core.model.statistics import ColumnStatistics
from nevermore.scan_core.prune.partitions import (
    PartitionVerdicts,
    match_file,
    match_manifest,
    match_partition,
    partition_domains,
)
from nevermore.scan_core.prune.verdicts import Match
from tests.support.bound_bytes import encode_bound
from tests.support.random_predicates import SCHEMA

INT = PrimitiveType("int")


def spec(*fields: tuple[str, str]) -> PartitionSpec:
    return PartitionSpec(
        1, tuple(PartitionField(1000 + i, SCHEMA.find(n).field_id, f"p{i}", t) for i, (n, t) in enumerate(fields))
    )


@pytest.mark.parametrize(
    ("sql", "column", "transform", "value", "expected"),
    [
        ("i = 1", "i", "identity", 1, "ALWAYS"),
        ("i = 2", "i", "identity", 1, "NEVER"),
        ("i is null", "i", "identity", None, "ALWAYS"),
        ("i > 0", "i", "identity", None, "NEVER"),
        ("i + 1 = 2", "i", "identity", 1, "ALWAYS"),
        ("s like 'a%'", "s", "identity", "b", "NEVER"),
        ("i = 34", "i", "bucket[16]", 3, "MAYBE"),
        ("i = 34", "i", "bucket[16]", 4, "NEVER"),
        ("i > 5", "i", "bucket[16]", 3, "MAYBE"),
        ("i is null", "i", "bucket[16]", 3, "NEVER"),
        ("i between 10 and 19", "i", "truncate[10]", 10, "ALWAYS"),
        ("i = 20", "i", "truncate[10]", 10, "NEVER"),
        ("i < 0", "i", "truncate[10]", -10, "ALWAYS"),
        ("dec > 2", "dec", "truncate[100]", Decimal("1.00"), "NEVER"),
        ("s like 'ab%'", "s", "truncate[2]", "ab", "MAYBE"),
        ("s = 'abc'", "s", "truncate[2]", "ac", "NEVER"),
        ("s = 'abc'", "s", "truncate[4]", "ab", "NEVER"),
        ("s = 'ab'", "s", "truncate[4]", "ab", "ALWAYS"),
        ("ts >= timestamp '2020-01-01'", "ts", "year", 50, "ALWAYS"),
        ("ts >= timestamp '2021-01-01'", "ts", "year", 50, "NEVER"),
        ("year(ts) = 2020", "ts", "month", 600, "ALWAYS"),
        ("ts < timestamp '2020-02-01'", "ts", "month", 600, "ALWAYS"),
        ("dt = date '2020-01-15'", "dt", "month", 601, "NEVER"),
        ("cast(ts as date) = date '2020-01-01'", "ts", "day", 18262, "ALWAYS"),
        ("hour(ts) = 5", "ts", "day", 18262, "MAYBE"),
        ("ts >= timestamp '2020-01-01 01:00:00'", "ts", "hour", 18262 * 24, "NEVER"),
        ("i = -2147483648", "i", "truncate[3]", 2147483647, "MAYBE"),  # wrapped around below the smallest
        ("i < 0", "i", "truncate[3]", 2147483646, "MAYBE"),
        ("i < 0", "i", "truncate[3]", 2147483643, "NEVER"),
        ("i = 1", "i", "void", None, "MAYBE"),
        ("i = 1", "i", "zorder[3]", 5, "MAYBE"),
        ("l = 1", "i", "identity", 5, "MAYBE"),
    ],
)
def test_partition_value_decides(sql: str, column: str, transform: str, value: Any, expected: str) -> None:
    found = match_partition(bind(sql, SCHEMA), spec((column, transform)), (value,), SCHEMA)
    assert found.name == expected


@pytest.mark.parametrize(
    ("sql", "fields", "partitions", "kept"),
    [
        ("i % 7 = 3", [("i", "identity")], [(v,) for v in range(-8, 20)], [(-4 + 7,), (10,), (17,)]),
        (
            "i % 2 = 1 or s = 'a'",
            [("i", "identity"), ("s", "identity")],
            [(2, "a"), (2, "b"), (3, "b")],
            [(2, "a"), (3, "b")],
        ),
        ("dayofweek(dt) = 1", [("dt", "identity")], [(v,) for v in range(14)], [(3,), (10,)]),
        ("10 / i > 4 and i < 5", [("i", "identity")], [(0,), (1,), (2,), (3,), (6,), (None,)], [(0,), (1,), (2,)]),
        ("i + l = 3", [("i", "identity"), ("l", "bucket[4]")], [(1, 0), (2, 1), (None, 1)], [(1, 0), (2, 1)]),
        ("coalesce(i, 7) = 7", [("i", "identity")], [(None,), (7,), (8,)], [(None,), (7,)]),
        ("i = 34", [("i", "identity"), ("i", "bucket[16]")], [(34, 3), (34, 4), (35, 3), ()], [(34, 3), ()]),
        ("i > 0", [("i", "identity")], [(2**40,), (1,), (-1,)], [(2**40,), (1,)]),
        ("dec * 2 = 3", [("dec", "identity")], [(Decimal("1.50"),), (Decimal("2.50"),)], [(Decimal("1.50"),)]),
    ],
)
def test_partitions_are_decided_together(
    sql: str, fields: list[tuple[str, str]], partitions: list[tuple[Any, ...]], kept: list[tuple[Any, ...]]
) -> None:
    never = PartitionVerdicts(bind(sql, SCHEMA), spec(*fields), SCHEMA).without_rows(partitions)
    assert [p for p, is_never in zip(partitions, never.tolist(), strict=True) if not is_never] == kept


def test_bucket_excludes_every_other_bucket_and_no_value_of_its_own() -> None:
    verdicts = {
        b: match_partition(bind("i = 34", SCHEMA), spec(("i", "bucket[16]")), (b,), SCHEMA).name for b in range(16)
    }
    assert verdicts == {b: "MAYBE" if b == 3 else "NEVER" for b in range(16)}  # bucket 3: the specification's example
    listed = match_partition(bind("i in (34, 35)", SCHEMA), spec(("i", "bucket[16]")), (4,), SCHEMA)
    assert listed is not Match.ALWAYS


def test_before_1970_the_step_below_may_be_meant() -> None:
    partition = spec(("ts", "day"))
    predicate = bind("ts < timestamp '1970-01-01 00:00:00'", SCHEMA)
    assert match_partition(predicate, partition, (0,), SCHEMA) is Match.MAYBE  # old writers rounded toward 1970
    assert match_partition(predicate, partition, (1,), SCHEMA) is Match.NEVER


def test_several_fields_of_one_column_narrow_together() -> None:
    both = spec(("i", "truncate[10]"), ("i", "bucket[16]"))
    assert match_partition(bind("i = 34", SCHEMA), both, (30, 3), SCHEMA) is Match.MAYBE
    assert match_partition(bind("i = 34", SCHEMA), both, (30, 4), SCHEMA) is Match.NEVER
    assert match_partition(bind("i = 34", SCHEMA), both, (40, 3), SCHEMA) is Match.NEVER


def test_wrong_number_of_values_says_nothing() -> None:
    assert match_partition(bind("i = 34", SCHEMA), spec(("i", "identity")), (), SCHEMA) is Match.MAYBE
    assert match_manifest(bind("i = 34", SCHEMA), spec(("i", "identity")), None, SCHEMA) is Match.MAYBE


def summary(low: int | None, high: int | None, *, null: bool = False) -> PartitionSummary:
    return PartitionSummary(
        null, None, None if low is None else encode_bound(low, INT), None if high is None else encode_bound(high, INT)
    )


@pytest.mark.parametrize(
    ("sql", "transform", "bounds", "expected"),
    [
        ("i = 5", "identity", summary(1, 9), "MAYBE"),
        ("i = 15", "identity", summary(1, 9), "NEVER"),
        ("i > 0", "identity", summary(1, 9), "ALWAYS"),
        ("i > 0", "identity", summary(1, 9, null=True), "MAYBE"),
        ("i is null", "identity", summary(1, 9), "NEVER"),
        ("i is null", "identity", summary(None, None, null=True), "MAYBE"),
        ("i = 25", "truncate[10]", summary(0, 10), "NEVER"),
        ("i = 19", "truncate[10]", summary(0, 10), "MAYBE"),
        ("i = 34", "bucket[16]", summary(4, 9), "NEVER"),
        ("i = 34", "bucket[16]", summary(0, 3), "MAYBE"),
    ],
)
def test_manifest_summary_decides(sql: str, transform: str, bounds: PartitionSummary, expected: str) -> None:
    assert match_manifest(bind(sql, SCHEMA), spec(("i", transform)), [bounds], SCHEMA).name == expected


def test_partition_and_bounds_decide_an_or_together() -> None:
    predicate = bind("i = 1 or s = 'z'", SCHEMA)
    domains = partition_domains(spec(("i", "identity")), (2,), SCHEMA)
    bounds = {6: ColumnStatistics("a", "b", 0, None, 5)}
    assert match_file(predicate, domains, bounds.get) is Match.NEVER
    assert match_file(predicate, domains, {}.get) is Match.MAYBE
    assert match_file(predicate, {}, bounds.get) is Match.MAYBE


@pytest.mark.parametrize(("column", "end"), [("i", 2**31 - 1), ("l", 2**31 - 1), ("l", 2**63 - 1)])
def test_manifests_whose_truncated_values_may_have_wrapped_are_kept(column: str, end: int) -> None:
    kind = SCHEMA.find(column).type
    assert isinstance(kind, PrimitiveType)
    summary = PartitionSummary(False, False, encode_bound(0, kind), encode_bound(end, kind))
    for text in (f"{column} < 0", f"{column} > 0", f"{column} is null"):
        expected = Match.NEVER if "null" in text else Match.MAYBE
        found = match_manifest(bind(text, SCHEMA), spec((column, "truncate[3]")), [summary], SCHEMA)
        assert found is expected, text
