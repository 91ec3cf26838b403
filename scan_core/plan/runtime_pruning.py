"""Runtime filters while a scan is planned: manifests, data files and delete files that no row with a key needs."""

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, TypeVar

from nevermore.scan_core.joins.column_keys import ColumnKeys, KeyRanges, may_hold
from nevermore.scan_core.joins.key_set import KeySet
from nevermore.scan_core.joins.request import RuntimeFilter, decide
from nevermore.scan_core.metadata.manifest_list import DATA_MANIFEST, ManifestFile
from nevermore.scan_core.model.schema import Schema
from nevermore.scan_core.model.snapshot import DataFile, DeleteContent, DeleteFile, PartitionSpec
from nevermore.scan_core.model.statistics import ColumnStatistics
from nevermore.scan_core.plan.file_pruner import PlanTrace, file_statistics
from nevermore.scan_core.prune.partitions import manifest_domains, partition_domains
from nevermore.scan_core.prune.verdicts import Domain
from nevermore.scan_core.split.tasks import ScanContext

_FLOATS = frozenset({"float", "double"})
F = TypeVar("F", DataFile, DeleteFile)


class PlanFilters:
    """The runtime filters of a scan, applied to what manifests say."""

    def __init__(self, context: ScanContext, schema: Schema, specs: Mapping[int, PartitionSpec]) -> None:
        self._context = context
        self._schema = schema
        self._filters = [_PlanFilter(filter_, context, schema, specs) for filter_ in context.runtime_filters]
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
    """One filter against facts of manifests: the keys of each of its columns against what the column can be."""

    def __init__(
        self, filter_: RuntimeFilter, context: ScanContext, schema: Schema, specs: Mapping[int, PartitionSpec]
    ) -> None:
        self.filter = filter_
        self.reason = f"the keys of the {filter_.name}"
        self.field_ids = tuple(f.field_id for f in filter_.fields)
        self._is_on = context.options.switches.prune_files
        self._schema = schema
        self._specs = specs
        keys = filter_.keys
        self._columns: Sequence[ColumnKeys | KeyRanges] = ()
        if isinstance(keys, KeySet):
            self._columns = keys.lookup(context.options).columns
        elif isinstance(keys, KeyRanges):
            self._columns = (keys,)
        self._domains: dict[int, dict[tuple[int, Any], Domain]] = defaultdict(dict)
        self._excluded: dict[tuple[int, tuple[Any, ...]], bool] = {}

    def excludes_manifest(self, manifest: ManifestFile) -> bool:
        """Whether no file of the manifest contains a key."""
        spec = None if manifest.spec_id is None else self._specs.get(manifest.spec_id)
        if spec is None or not self._is_on:
            return False
        return self._excludes_domains(manifest_domains(spec, manifest.partitions, self._schema))

    def excludes(self, file: DataFile, statistics_of: Callable[[int], ColumnStatistics | None]) -> bool:
        """Whether the file contains no key."""
        if not self._is_on:
            return False
        place = file.spec_id, file.partition
        if place not in self._excluded:
            known = self._domains[file.spec_id]
            domains = partition_domains(self._specs[file.spec_id], file.partition, self._schema, known)
            self._excluded[place] = self._excludes_domains(domains)
        return self._excluded[place] or self.excludes_bounds(statistics_of)

    def excludes_bounds(self, statistics_of: Callable[[int], ColumnStatistics | None]) -> bool:
        """Whether no key lies within these bounds."""
        return not all(may_hold(column, statistics_of) for column in self._columns)

    def _excludes_domains(self, domains: Mapping[int, Domain]) -> bool:
        known = [(column, domains.get(column.field.field_id)) for column in self._columns]
        return not all(domain is None or column.meets(domain) for column, domain in known)
