"""What partition values say about a predicate: of one file, and of all files of a manifest.

A partition value narrows what its source column can be in the file; predicates are then decided as by bounds. So every
transform works for every expression: `year(ts) = 2026` on a table partitioned by `day(ts)`, too.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import lru_cache
from typing import Any

import numpy as np
import pyarrow as pa

from nevermore.scan_core.expr.bound import BoundExpr
from nevermore.scan_core.expr.coercion import FLOATING, INT_RANGE, name_of
from nevermore.scan_core.expr.kernels import judge
from nevermore.scan_core.expr.nodes import BoundPredicate, leaf_ids
from nevermore.scan_core.metadata.manifest_list import PartitionSummary
from nevermore.scan_core.model.schema import PrimitiveType, Schema, Type, arrow_type
from nevermore.scan_core.model.snapshot import PartitionField, PartitionSpec
from nevermore.scan_core.model.statistics import ColumnStatistics, decimal_of, decode_bound, unscaled_value
from nevermore.scan_core.model.transforms import Transform, parse_transform, partition_value
from nevermore.scan_core.prune.facts import DomainColumn, NoColumnError, narrow_by_partitions, unknown_column
from nevermore.scan_core.prune.verdicts import (
    MIN_TRUNCATED_LENGTH,
    Domain,
    Match,
    constant,
    domain_from_statistics,
    intersection,
    looked_up_once,
    match_all,
    outcomes,
    prefix_end,
    takes_only_columns,
    unknown,
)
from nevermore.scan_core.rows.buffers import Mask

_MICROS_PER_HOUR = 3_600_000_000
_STEPS = {"year": ("Y", 280_000), "month": ("M", 3_400_000), "day": ("D", 106_000_000), "hour": ("h", 2_500_000_000)}
"""NumPy's unit of each time transform, and the largest value that a 64-bit timestamp can have."""


_FITS = {"int": INT_RANGE, "date": INT_RANGE}
_INTEGER_ENDS = (INT_RANGE[1], 2**63 - 1)
_DATE_BITS = 32


def match_partition(predicate: BoundPredicate, spec: PartitionSpec, partition: Sequence[Any], schema: Schema) -> Match:
    """Does the predicate hold for no row, all rows or perhaps some rows of a file with this partition tuple?

    Args:
        predicate: bound to the schema in force.
        spec: the file's partition spec.
        partition: one value per field of the spec, in canonical form (`model/transforms.py`).
        schema: for the types of source columns; fields it lacks say nothing.
    """
    return _verdict(predicate, partition_domains(spec, partition, schema))


class PartitionVerdicts:
    """What partition tuples of one spec say about a predicate, decided for many of them at once.

    Conditions on identity partition columns are evaluated on the values themselves, so that `day % 7 = 3` is decided, too;
    comparisons of columns with constants are decided on arrays of domains; others tuple by tuple.
    """

    def __init__(self, predicate: BoundPredicate, spec: PartitionSpec, schema: Schema) -> None:
        self._predicate = predicate
        self._spec = spec
        self._schema = schema
        self._known: dict[tuple[int, Any], Domain] = {}

    def without_rows(self, partitions: Sequence[Sequence[Any]]) -> Mask:
        """The partitions of whose rows none fulfils the predicate."""
        never = np.zeros(len(partitions), np.bool_)
        for conjunct in self._predicate.conjuncts:
            left = np.flatnonzero(~never)
            if not len(left):
                break
            tuples = [partitions[i] for i in left.tolist()]
            found = self._by_values(conjunct, tuples)
            if found is None:
                found = self._by_domains(conjunct, tuples)
            if found is None:
                alone = BoundPredicate("", (conjunct,))
                each = (match_partition(alone, self._spec, p, self._schema) is Match.NEVER for p in tuples)
                found = np.fromiter(each, np.bool_, len(tuples))
            never[left] = found
        return never

    def domains(self, partition: Sequence[Any]) -> dict[int, Domain]:
        """See `partition_domains`; partitions of many days and few buckets share the domains of these."""
        return partition_domains(self._spec, partition, self._schema, self._known)

    def _by_values(self, conjunct: BoundExpr, partitions: Sequence[Sequence[Any]]) -> Mask | None:
        """Evaluate a condition of identity partition columns alone; None if it has others, or a value is not of the type."""
        wanted = leaf_ids(conjunct)
        places = {f.source_id: i for i, f in enumerate(self._spec.fields) if f.transform == "identity"}
        if not wanted or not wanted <= places.keys() or any(len(p) != len(self._spec.fields) for p in partitions):
            return None
        columns: dict[int, pa.Array] = {}
        for field_id in wanted:
            source = self._schema.field(field_id).type if field_id in self._schema else None
            if not isinstance(source, PrimitiveType) or not _has_one_source(self._spec.fields[places[field_id]]):
                return None
            values = [partition_value(p[places[field_id]], source) for p in partitions]
            try:
                columns[field_id] = _array_of(values, source)
            except (pa.ArrowException, ValueError, TypeError, ArithmeticError):
                return None  # reported with the file, where the column is read
        outcome = judge(conjunct, columns, len(partitions))
        return ~outcome.passed if outcome.failed is None else ~(outcome.passed | outcome.failed)

    def _by_domains(self, conjunct: BoundExpr, partitions: Sequence[Sequence[Any]]) -> Mask | None:
        """Decide a comparison of columns with constants; None if it is something else, or values fit no column."""
        if not takes_only_columns(conjunct):
            return None
        each = [self.domains(p) for p in partitions]

        def facts(field_id: int, type_: Type) -> DomainColumn:
            if not isinstance(type_, PrimitiveType):
                raise NoColumnError(str(type_))
            everything = unknown_column(type_, len(each))
            known = [domains.get(field_id) for domains in each]
            return narrow_by_partitions(everything, known, np.arange(len(each))) if any(known) else everything

        try:
            return ~np.broadcast_to(outcomes(conjunct, looked_up_once(facts)).true, len(each))
        except NoColumnError:
            return None


def _array_of(values: list[Any], type_: PrimitiveType) -> pa.Array:
    """Partition values as a column of the table; an ArrowException or the like if one is not of the type."""
    kind = arrow_type(type_)
    if pa.types.is_temporal(kind):  # numbers, whose size is that of the type
        return pa.array(values, pa.int32() if kind.bit_width == _DATE_BITS else pa.int64()).view(kind)
    return pa.array(values, kind)


def match_manifest(
    predicate: BoundPredicate, spec: PartitionSpec, summaries: Sequence[PartitionSummary] | None, schema: Schema
) -> Match:
    """Does the predicate hold for no row, all rows or perhaps some rows of the files of a manifest?

    Args:
        predicate: bound to the schema in force.
        spec: the manifest's partition spec.
        summaries: one per field of the spec, None where the manifest list has none.
        schema: for the types of source columns.
    """
    return _verdict(predicate, manifest_domains(spec, summaries, schema))


def manifest_domains(
    spec: PartitionSpec, summaries: Sequence[PartitionSummary] | None, schema: Schema
) -> dict[int, Domain]:
    """What the summaries of a manifest say about each source column, by field id; see `match_manifest`."""
    if summaries is None or len(summaries) != len(spec.fields):
        return {}

    def of_field(index: int, transform: Transform, source: Type) -> Domain:
        return _of_summary(transform, source, summaries[index])

    return _domains(spec, schema, of_field)


def match_file(
    predicate: BoundPredicate,
    domains: Mapping[int, Domain],
    statistics_of: Callable[[int], ColumnStatistics | None],
) -> Match:
    """The verdict from partition values and column bounds of a file together: OR may need both.

    Args:
        predicate: bound to the schema in force.
        domains: from `partition_domains`.
        statistics_of: bounds of the file by field id, in the table's types.
    """

    def facts(field_id: int, type_: Type) -> Domain:
        by_bounds = domain_from_statistics(statistics_of(field_id), type_)
        by_partition = domains.get(field_id)
        return by_bounds if by_partition is None else intersection(by_partition, by_bounds)

    return match_all(predicate, facts)


def partition_domains(
    spec: PartitionSpec, partition: Sequence[Any], schema: Schema, known: dict[tuple[int, Any], Domain] | None = None
) -> dict[int, Domain]:
    """What a partition tuple says about each source column, by field id.

    Args:
        spec: of the partition.
        partition: one value per field of the spec, in canonical form.
        schema: for the types of source columns; fields it lacks say nothing.
        known: domains by place and value in other partitions of the spec, to which those of this one are added.
    """
    if len(partition) != len(spec.fields):
        return {}
    shared = {} if known is None else known

    def of_field(index: int, transform: Transform, source: Type) -> Domain:
        key = index, partition[index]
        if key not in shared:
            shared[key] = _of_value(transform, source, partition_value(partition[index], transform.result_type(source)))
        return shared[key]

    return _domains(spec, schema, of_field)


def _domains(
    spec: PartitionSpec, schema: Schema, of_field: Callable[[int, Transform, Type], Domain]
) -> dict[int, Domain]:
    known: dict[int, Domain] = {}
    for index, field in enumerate(spec.fields):
        if not _has_one_source(field) or field.source_id not in schema:
            continue
        source = schema.field(field.source_id).type
        if not isinstance(source, PrimitiveType):
            continue
        domain = of_field(index, parse_transform(field.transform), source)
        before = known.get(field.source_id)
        known[field.source_id] = domain if before is None else intersection(before, domain)
    return known


def _has_one_source(field: PartitionField) -> bool:
    return field.source_ids in {(), (field.source_id,)}


def _verdict(predicate: BoundPredicate, known: Mapping[int, Domain]) -> Match:
    return match_all(predicate, lambda field_id, type_: known.get(field_id) or unknown(type_))


def _of_value(transform: Transform, source: Type, value: Any) -> Domain:
    if transform.kind in {"void", "unknown"}:
        return unknown(source)
    if value is None:
        return constant(None)
    match transform.kind:
        case "identity":
            return _of_identity(source, value)
        case "bucket":
            excludes = _bucket_test(transform, source, value, value)
            return Domain(may_be_null=False, may_be_nan=False, excludes=excludes)
        case "truncate":
            domain = _of_truncated(transform.parameter, source, value)
        case _:
            domain = _of_time(transform.kind, source, value)
    return replace(domain, may_be_null=False, may_be_nan=False)


def _of_identity(source: Type, value: Any) -> Domain:
    low, high = _FITS.get(name_of(source), (None, None))
    if low is not None and high is not None and not low <= value <= high:
        return unknown(source)  # promoted since: time travel shows the column in a narrower type
    return constant(value)


def _of_summary(transform: Transform, source: Type, summary: PartitionSummary) -> Domain:
    if transform.kind in {"void", "unknown"}:
        return unknown(source)
    result = transform.result_type(source)
    may_be_nan = name_of(source) in FLOATING and summary.contains_nan is not False
    low, high = decode_bound(summary.lower_bound, result), decode_bound(summary.upper_bound, result)
    if low is None or high is None or low > high:
        return Domain(may_be_null=summary.contains_null, may_be_nan=may_be_nan)
    if transform.kind == "bucket":
        excludes = _bucket_test(transform, source, low, high)
        return Domain(may_be_null=summary.contains_null, may_be_nan=False, excludes=excludes)
    if transform.kind == "truncate" and _may_have_wrapped(source, transform.parameter, high):
        return Domain(may_be_null=summary.contains_null, may_be_nan=may_be_nan)
    lower, upper = _of_value(transform, source, low).lower, _of_value(transform, source, high).upper
    if isinstance(upper, str | bytes) and len(upper) >= MIN_TRUNCATED_LENGTH:  # a writer may have cut it off
        upper = prefix_end(upper)
    return Domain(lower, upper, may_be_null=summary.contains_null, may_be_nan=may_be_nan)


def _bucket_test(transform: Transform, source: Type, low: Any, high: Any) -> Callable[[Any], bool] | None:
    if not isinstance(low, int) or not isinstance(high, int):
        return None
    return lambda value: not low <= _bucket(transform, source, value) <= high


@lru_cache(maxsize=65_536)
def _bucket(transform: Transform, source: Type, value: Any) -> int:
    return int(transform.apply(pa.array([value], type=arrow_type(source)), source)[0].as_py())


def _of_truncated(width: int, source: Type, value: Any) -> Domain:
    match source:
        case PrimitiveType("int" | "long"):
            return Domain() if _may_have_wrapped(source, width, value) else Domain(value, value + width - 1)
        case PrimitiveType("decimal", (_, scale)):
            return Domain(value, decimal_of(unscaled_value(value, scale) + width - 1, scale))
        case PrimitiveType("string" | "binary"):
            return Domain(value, value if len(value) < width else prefix_end(value))
        case _:
            return Domain()


def _may_have_wrapped(source: Type, width: int, value: Any) -> bool:
    """Writers truncate the smallest integers to below the smallest, which wraps around to the largest.

    A column may have been promoted since, so that of both integer types the ends count.
    """
    return name_of(source) in {"int", "long"} and any(value <= end < value + width - 1 for end in _INTEGER_ENDS)


def _of_time(kind: str, source: Type, value: Any) -> Domain:
    unit, limit = _STEPS[kind]
    if not isinstance(value, int) or abs(value) > limit:
        return Domain()
    # early Iceberg wrote values before 1970 rounded toward it: 0 and less may hold the step before, too
    first = value - 1 if value <= 0 else value
    if kind == "hour":
        lower, upper = first, value + 1
    else:
        days = np.array([first, value + 1], dtype=f"datetime64[{unit}]").astype("datetime64[D]").astype(np.int64)
        lower, upper = int(days[0]) * 24, int(days[1]) * 24
    if name_of(source) == "date":
        return Domain(lower // 24, upper // 24 - 1)
    ticks = _MICROS_PER_HOUR * (1000 if name_of(source).endswith("_ns") else 1)
    return Domain(lower * ticks, upper * ticks - 1)
