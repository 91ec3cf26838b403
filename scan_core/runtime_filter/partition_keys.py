"""Which partitions can hold keys: the key set under each transform of a partition spec, whole columns at once.

Partition tuples are compared as tuples where few enough exist, so that `bucket(a), day(b)` of a key on (a, b) excludes
what neither does alone. What a transform's value does not tell (void, unknown, floats) is left out.
"""

from bisect import bisect_left
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from scan_core.expr.coercion import FLOATING, INTEGRAL, TIMESTAMPS, name_of
from scan_core.prune.partitions import Summary
from scan_core.runtime_filter.column_keys import engine_values
from scan_core.runtime_filter.key_set import KeySet
from scan_core.schema import Type
from scan_core.single_value import decode_bound
from scan_core.snapshot import PartitionSpec
from scan_core.transforms import Transform, parse_transform

MOST_TUPLES = 100_000
"""Beyond, partitions are as many as keys, and bounds of files tell as much."""
_TIMES = frozenset({"year", "month", "day", "hour"})
_UNTELLING = frozenset({"void", "unknown"})


@dataclass(frozen=True, slots=True, eq=False)
class PartitionKeys:
    """The partition values of one spec that keys have.

    Attributes:
        places: fields of the spec that are transforms of key columns.
        transforms: of these fields, with the type of their source.
        tuples: their values under all keys, together; None if they are too many.
        single: the values of each field alone, ascending; None where they are too many.
    """

    places: tuple[int, ...]
    transforms: tuple[tuple[Transform, Type], ...]
    tuples: frozenset[tuple[Any, ...]] | None
    single: tuple[list[Any] | None, ...]

    def may_hold(self, partition: Sequence[Any]) -> bool:
        """False if no key lies in the partition."""
        values = tuple(partition[place] for place in self.places)
        if None in values:  # of a NULL, which is no key
            return False
        if any(_tells_nothing(t, kind, v) for (t, kind), v in zip(self.transforms, values, strict=True)):
            return True
        return self.tuples is None or values in self.tuples

    def may_hold_some(self, summaries: Sequence[Summary] | None) -> bool:
        """False if no key lies in any partition within the ranges of a manifest."""
        if summaries is None or (self.places and max(self.places) >= len(summaries)):
            return True
        for place, (transform, source), values in zip(self.places, self.transforms, self.single, strict=True):
            if values is None:
                continue
            result = transform.result_type(source)
            low = decode_bound(summaries[place].lower_bound, result)
            high = decode_bound(summaries[place].upper_bound, result)
            if low is None or high is None or low > high or _is_cut(result):
                continue
            if _tells_nothing(transform, source, high):
                continue
            at = bisect_left(values, low)
            if at == len(values) or values[at] > high:
                return False
        return True


def partition_keys(keys: KeySet, spec: PartitionSpec) -> PartitionKeys | None:
    """The partitions of a spec that can hold keys; None if its partitions tell nothing of the key columns."""
    sources: Mapping[int, int] = {field.field_id: index for index, field in enumerate(keys.fields)}
    places: list[int] = []
    transforms: list[tuple[Transform, Type]] = []
    arrays: list[pa.Array] = []
    for place, field in enumerate(spec.fields):
        index = sources.get(field.source_id)
        if index is None or field.source_ids not in {(), (field.source_id,)}:
            continue
        transform, source = parse_transform(field.transform), keys.fields[index].type
        if transform.kind in _UNTELLING or name_of(source) in FLOATING:
            continue
        if transform.kind == "identity" and name_of(source) in TIMESTAMPS:  # may have been a date
            continue
        places.append(place)
        transforms.append((transform, source))
        arrays.append(transform.apply(keys.columns[index], source))
    if not places:
        return None
    single = tuple(_distinct(a, t) for a, (t, _) in zip(arrays, transforms, strict=True))
    return PartitionKeys(tuple(places), tuple(transforms), _tuples(arrays, transforms), single)


def _tuples(
    arrays: Sequence[pa.Array], transforms: Sequence[tuple[Transform, Type]]
) -> frozenset[tuple[Any, ...]] | None:
    labels = [f"p{i}" for i in range(len(arrays))]
    parts = [pa.table(dict(zip(labels, arrays, strict=True))).group_by(labels).aggregate([])]
    for label, (transform, _) in zip(labels, transforms, strict=True):
        if transform.kind in _TIMES:
            parts += [_a_step_later(part, label) for part in parts]
    if sum(part.num_rows for part in parts) > MOST_TUPLES:
        return None
    return frozenset(
        values
        for part in parts
        for values in zip(*(engine_values(column.combine_chunks()) for column in part.columns), strict=True)
    )


def _a_step_later(part: pa.Table, label: str) -> pa.Table:
    """Early Iceberg rounded times before 1970 toward it: the value 0 and less may hold the step before it."""
    import pyarrow.compute as pc

    column = part.column(label)
    steps = column.cast(pa.int32()) if pa.types.is_date32(column.type) else column
    later = pc.add(steps, pa.scalar(1, steps.type))
    place = part.column_names.index(label)
    moved = part.set_column(place, label, later.cast(column.type))
    return moved.filter(pc.less_equal(later, 0))


def _distinct(array: pa.Array, transform: Transform) -> list[Any] | None:
    distinct = array.unique()
    if len(distinct) > MOST_TUPLES:
        return None
    values = engine_values(distinct)
    if transform.kind in _TIMES:
        values += [v + 1 for v in values if v + 1 <= 0]
    return sorted(set(values))


def _is_cut(result: Type) -> bool:
    """Writers may cut bounds of text off without rounding the upper one up."""
    return name_of(result) in {"string", "binary", "fixed"}


def _tells_nothing(transform: Transform, source: Type, value: Any) -> bool:
    """Truncating the smallest integers wraps around to the largest; columns may have been promoted since."""
    if transform.kind == "truncate" and name_of(source) in INTEGRAL:
        return any(value <= end < value + transform.parameter - 1 for end in (2**31 - 1, 2**63 - 1))
    if transform.kind == "identity" and name_of(source) in {"int", "date"}:
        return not -(2**31) <= value <= 2**31 - 1
    return False
