"""Whatever the data, statistics and filter: NEVER means that no row matches, ALWAYS that every row does."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from hypothesis import HealthCheck, event, given, settings
from hypothesis import strategies as st

from nevermore.scan_core.expr.bind import bind
from nevermore.scan_core.expr.kernels import judge
from nevermore.scan_core.expr.nodes import BoundPredicate
from nevermore.scan_core.metadata.manifest_list import PartitionSummary
from nevermore.scan_core.model.schema import PrimitiveType
from nevermore.scan_core.model.snapshot import PartitionField, PartitionSpec
from nevermore.scan_core.model.statistics import ColumnStatistics
from nevermore.scan_core.model.transforms import normalise_value, parse_transform, partition_value
from nevermore.scan_core.prune.partitions import (
    PartitionVerdicts,
    match_file,
    match_manifest,
    match_partition,
    partition_domains,
)
from nevermore.scan_core.prune.verdicts import Match, combined, match_conjuncts
from tests.support.bound_bytes import encode_bound
from tests.support.random_predicates import SCHEMA, Sql, predicates, tables

_SETTINGS = settings(deadline=None, max_examples=60, suppress_health_check=list(HealthCheck))
_LEAVES = {1: "i", 2: "l", 3: "f", 4: "d", 5: "dec", 6: "s", 7: "dt", 8: "ts", 9: "b", 18: "s2"}
_TRANSFORMS = {
    "i": ["identity", "bucket[4]", "truncate[3]", "void"],
    "l": ["identity", "bucket[3]", "truncate[10]"],
    "f": ["identity"],
    "d": ["identity"],
    "dec": ["identity", "bucket[4]", "truncate[100]"],
    "s": ["identity", "bucket[4]", "truncate[1]", "truncate[2]"],
    "dt": ["identity", "year", "month", "day", "bucket[4]"],
    "ts": ["identity", "year", "month", "day", "hour", "bucket[4]"],
    "b": ["identity"],
}


def leaf_array(table: pa.Table, field_id: int) -> pa.Array:
    if field_id in {11, 12}:
        return pc.struct_field(table.column("st").combine_chunks(), [field_id - 11])
    return table.column(_LEAVES[field_id]).combine_chunks()


def passing(predicate: BoundPredicate, table: pa.Table) -> tuple[np.ndarray, bool]:
    columns = {f.field_id: table.column(f.name).combine_chunks() for f in SCHEMA.fields}
    result = np.ones(table.num_rows, dtype=np.bool_)
    has_failed = False
    for conjunct in predicate.conjuncts:
        outcome = judge(conjunct, columns, table.num_rows)
        has_failed |= outcome.failed is not None
        result &= outcome.passed
    return result, has_failed


def assert_sound(verdict: Match, rows: np.ndarray, *, has_failed: bool) -> None:
    event(verdict.name)
    if verdict is Match.NEVER:
        assert not rows.any()
    elif verdict is Match.ALWAYS:
        assert rows.all()
        assert not has_failed


def bound(value: Any, array: pa.Array) -> Any:
    return value.value if pa.types.is_temporal(array.type) else value.as_py()


def true_statistics(array: pa.Array, precision: str) -> ColumnStatistics | None:
    if precision == "missing":
        return None
    nulls, numbers, nans = array.null_count, array.drop_null(), 0
    if pa.types.is_floating(array.type):
        nans = int(np.isnan(np.asarray(numbers)).sum())
        numbers = numbers.filter(pc.invert(pc.is_nan(numbers)))
    lower = upper = None
    if len(numbers) and not pa.types.is_nested(array.type):
        ends = pc.sort_indices(numbers)
        lower, upper = bound(numbers[ends[0].as_py()], array), bound(numbers[ends[-1].as_py()], array)
        if precision == "loose":
            lower, upper = loosened(lower, upper)
    if precision == "loose":
        return ColumnStatistics(lower, upper)
    return ColumnStatistics(lower, upper, nulls, nans, len(array))


def loosened(lower: Any, upper: Any) -> tuple[Any, Any]:
    if isinstance(upper, bool):
        return False, True
    if isinstance(upper, str):  # truncated as writers do: cut, the upper one rounded up
        return lower[:1], upper if len(upper) < 16 else upper[:15] + chr(ord(upper[15]) + 1)
    return lower - 1, upper + 1


def check_bounds(table: pa.Table, condition: Sql, data: st.DataObject) -> None:
    predicate = bind(condition.spark, SCHEMA)
    precision = data.draw(st.sampled_from(["exact", "exact", "loose", "missing"]))
    statistics = {i: true_statistics(leaf_array(table, i), precision) for i in (*_LEAVES, 11, 12)}
    rows, has_failed = passing(predicate, table)
    assert_sound(combined(match_conjuncts(predicate, statistics.get)), rows, has_failed=has_failed)


def check_partitions(table: pa.Table, condition: Sql, data: st.DataObject) -> None:
    predicate = bind(condition.spark, SCHEMA)
    names = data.draw(st.lists(st.sampled_from(list(_TRANSFORMS)), min_size=1, max_size=2))
    fields = [(n, data.draw(st.sampled_from(_TRANSFORMS[n]))) for n in names]
    sources = [SCHEMA.find(n) for n in names]
    spec = PartitionSpec(
        1,
        tuple(
            PartitionField(1000 + k, s.field_id, f"p{k}", f[1])
            for k, (s, f) in enumerate(zip(sources, fields, strict=True))
        ),
    )
    keys, types = [], []
    for source, (name, text) in zip(sources, fields, strict=True):
        transform = parse_transform(text)
        transformed = transform.apply(table.column(name).combine_chunks(), source.type)
        types.append(transform.result_type(source.type))
        keys.append(
            [None if not v.is_valid else normalise_value(bound(v, transformed), types[-1]) for v in transformed]
        )
    rows, _ = passing(predicate, table)
    tuples = list(zip(*keys, strict=True))
    distinct = list(dict.fromkeys(tuples))
    together = PartitionVerdicts(predicate, spec, SCHEMA).without_rows(distinct)
    for partition, is_never in zip(distinct, together.tolist(), strict=True):
        mask = np.array([t == partition for t in tuples])
        part, has_failed = passing(predicate, table.filter(pa.array(mask)))
        assert part.tolist() == rows[mask].tolist()
        verdict = match_partition(predicate, spec, partition, SCHEMA)
        assert_sound(verdict, part, has_failed=has_failed)
        assert not (is_never and part.any())
        assert is_never or verdict is not Match.NEVER
        statistics = {
            i: true_statistics(leaf_array(table.filter(pa.array(mask)), i), "exact") for i in (*_LEAVES, 11, 12)
        }
        both = match_file(predicate, partition_domains(spec, partition, SCHEMA), statistics.get)
        assert_sound(both, part, has_failed=has_failed)
        assert verdict is Match.MAYBE or both is verdict
    whole, has_failed = passing(predicate, table)
    summaries = [summary(column, t) for column, t in zip(zip(*tuples, strict=True), types, strict=True)]
    assert_sound(match_manifest(predicate, spec, summaries, SCHEMA), whole, has_failed=has_failed)


def summary(canonical: tuple[Any, ...], type_: Any) -> PartitionSummary:
    values = [partition_value(v, type_) for v in canonical if v is not None]
    numbers = [v for v in values if v == v]  # noqa: PLR0124
    assert isinstance(type_, PrimitiveType)
    return PartitionSummary(
        None in canonical,
        len(numbers) < len(values),
        encode_bound(min(numbers), type_) if numbers else None,
        encode_bound(max(numbers), type_) if numbers else None,
    )


def for_random_cases(check: Callable[..., None], max_examples: int) -> Callable[[], None]:
    cases = given(table=tables(10), condition=predicates(3), data=st.data())
    return settings(_SETTINGS, max_examples=max_examples)(cases(check))


test_verdicts_from_bounds_are_sound = for_random_cases(check_bounds, 100)
test_verdicts_from_partitions_are_sound = for_random_cases(check_partitions, 100)


@pytest.mark.slow
@pytest.mark.parametrize("check", [check_bounds, check_partitions])
def test_verdicts_are_sound_in_many_cases(check: Callable[..., None]) -> None:
    for_random_cases(check, 4000)()
