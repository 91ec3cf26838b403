"""Runtime filters while a scan is planned: manifests, data files and delete files that no row with a key needs."""

from bisect import bisect_left
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeVar

import pyarrow as pa

from nevermore.scan_core.expr.coercion import FLOATING, INTEGRAL, TIMESTAMPS, name_of
from nevermore.scan_core.joins.column_keys import KeyRanges, engine_values
from nevermore.scan_core.joins.key_set import KeyLookup, KeySet
from nevermore.scan_core.joins.request import RuntimeFilter, decide
from nevermore.scan_core.metadata.manifest_list import DATA_MANIFEST, ManifestFile, PartitionSummary
from nevermore.scan_core.model.schema import Schema, Type
from nevermore.scan_core.model.snapshot import DataFile, DeleteContent, DeleteFile, PartitionSpec
from nevermore.scan_core.model.statistics import ColumnStatistics, decode_bound
from nevermore.scan_core.model.transforms import Transform, parse_transform
from nevermore.scan_core.plan.file_pruner import PlanTrace, file_statistics
from nevermore.scan_core.prune.verdicts import Match
from nevermore.scan_core.split.tasks import ScanContext

MAX_TUPLES = 100_000
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

    def may_hold_some(self, summaries: Sequence[PartitionSummary] | None) -> bool:
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
    if sum(part.num_rows for part in parts) > MAX_TUPLES:
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
    if len(distinct) > MAX_TUPLES:
        return None
    values = engine_values(distinct)
    if transform.kind in _TIMES:
        values += [v + 1 for v in values if v + 1 <= 0]
    return sorted(set(values))


def _is_cut(result: Type) -> bool:
    """Writers may cut bounds of text off without rounding the upper one up."""
    return name_of(result) in {"string", "binary", "fixed"}


def _tells_nothing(transform: Transform, source: Type, value: Any) -> bool:
    """Whether a partition value proves nothing: truncation of the smallest integers wraps around, and a column may have been promoted."""
    if transform.kind == "truncate" and name_of(source) in INTEGRAL:
        return any(value <= end < value + transform.parameter - 1 for end in (2**31 - 1, 2**63 - 1))
    if transform.kind == "identity" and name_of(source) in {"int", "date"}:
        return not -(2**31) <= value <= 2**31 - 1
    return False


_FLOATS = frozenset({"float", "double"})
F = TypeVar("F", DataFile, DeleteFile)


class PlanFilters:
    """The runtime filters of a scan, applied to what manifests say."""

    def __init__(self, context: ScanContext, schema: Schema, specs: Mapping[int, PartitionSpec]) -> None:
        self._context = context
        self._schema = schema
        self._filters = [_PlanFilter(filter_, context, specs) for filter_ in context.runtime_filters]
        if not context.options.switches.use_runtime_filters:
            self._filters = []

    def num_pruned(self, trace: PlanTrace) -> int:
        """Data files left out by runtime filters."""
        reasons = {f.reason for f in self._filters}
        return sum(pruned.count for reason, pruned in trace.data_files.items() if reason in reasons)

    def manifests_left(self, manifests: Sequence[ManifestFile], trace: PlanTrace) -> tuple[ManifestFile, ...]:
        """Manifests with files that may contain a row with a key, and all delete manifests; the others are recorded in the trace."""
        kept: list[ManifestFile] = []
        for manifest in manifests:
            is_data = manifest.content == DATA_MANIFEST
            reason = next((f.reason for f in self._filters if is_data and f.excludes_manifest(manifest)), None)
            if reason is None:
                kept.append(manifest)
            else:
                trace.manifests[reason].add(manifest.path)
        return tuple(kept)

    def files_left(self, files: Sequence[DataFile], trace: PlanTrace) -> list[DataFile]:
        """The files that may hold a row with a key; the others are traced."""
        kept = list(files)
        for f in self._filters:
            kept, excluded = _part(kept, [f.excludes(file, self._statistics_of(file)) for file in kept])
            for file in excluded:
                trace.data_files[f.reason].add(file.path, num_bytes=file.file_size_bytes)
        return kept

    def deletes_left(self, files: Sequence[DeleteFile], trace: PlanTrace) -> list[DeleteFile]:
        """The delete files that may hold a key of the result's rows; the others are traced."""
        if not self._context.options.switches.prune_deletes:
            return list(files)
        kept = list(files)
        for f in self._filters:
            if f.filter.is_exact:  # else rows without a key may be in the result, and their deletes matter
                kept, excluded = _part(kept, [self._excludes_delete(f, file) for file in kept])
                for file in excluded:
                    trace.delete_files[f.reason].add(file.path)
        return kept

    def decided(self, files: Sequence[DataFile]) -> ScanContext:
        """The context with what the cost model decides for each filter, given the files left."""
        decisions = [
            f.decided(decide(f, files, self._statistics_of, self._context.options))
            for f in self._context.runtime_filters
        ]
        return replace(self._context, runtime_filters=tuple(decisions))

    def _statistics_of(self, file: DataFile) -> Callable[[int], ColumnStatistics | None]:
        return file_statistics(file, self._schema)

    def _excludes_delete(self, f: "_PlanFilter", file: DeleteFile) -> bool:
        if file.content is not DeleteContent.EQUALITY or not set(f.field_ids) <= set(file.equality_ids):
            return False
        if any(str(field.type) in _FLOATS for field in f.filter.fields):  # SEMANTICS rule 12
            return False
        return f.excludes_bounds(file_statistics(file, self._schema))


def _part(files: Sequence[F], is_excluded: Sequence[bool]) -> tuple[list[F], list[F]]:
    """The files that are kept, and those that are excluded."""
    kept = [file for file, is_out in zip(files, is_excluded, strict=True) if not is_out]
    return kept, [file for file, is_out in zip(files, is_excluded, strict=True) if is_out]


class _PlanFilter:
    """One filter against facts of manifests."""

    def __init__(self, filter_: RuntimeFilter, context: ScanContext, specs: Mapping[int, PartitionSpec]) -> None:
        self.filter = filter_
        self.reason = f"the keys of the {filter_.name}"
        self.field_ids = tuple(f.field_id for f in filter_.fields)
        self._switches = context.options.switches
        self._specs = specs
        self._keys = filter_.keys
        self._lookup: KeyLookup | None = self._keys.lookup(context.options) if isinstance(self._keys, KeySet) else None
        self._of_spec: dict[int, PartitionKeys | None] = {}
        self._of_partition: dict[tuple[int, tuple[Any, ...]], bool] = {}

    def excludes_manifest(self, manifest: ManifestFile) -> bool:
        """Whether no file of the manifest contains a key."""
        if manifest.spec_id is None or not self._switches.prune_files:
            return False
        known = self._partitions(manifest.spec_id)
        return known is not None and not known.may_hold_some(manifest.partitions)

    def excludes(self, file: DataFile, statistics_of: Callable[[int], ColumnStatistics | None]) -> bool:
        """Whether the file contains no key."""
        if self._switches.prune_files:
            place = file.spec_id, file.partition
            if place not in self._of_partition:
                known = self._partitions(file.spec_id)
                self._of_partition[place] = known is not None and not known.may_hold(file.partition)
            if self._of_partition[place]:
                return True
        return self._switches.prune_files and self.excludes_bounds(statistics_of)

    def excludes_bounds(self, statistics_of: Callable[[int], ColumnStatistics | None]) -> bool:
        """Whether no key lies within these bounds."""
        keys = self._keys if self._lookup is None else self._lookup
        return isinstance(keys, KeyLookup | KeyRanges) and keys.match(statistics_of) is Match.NEVER

    def _partitions(self, spec_id: int) -> PartitionKeys | None:
        if spec_id not in self._of_spec:
            spec = self._specs.get(spec_id)
            is_known = spec is not None and isinstance(self._keys, KeySet)
            self._of_spec[spec_id] = (
                partition_keys(self._keys, spec) if is_known else None  # type: ignore[arg-type]
            )
        return self._of_spec[spec_id]
