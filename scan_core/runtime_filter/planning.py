"""Runtime filters while a scan is planned: manifests, data files and delete files that no row with a key needs.

Only narrows: unknown means keep. A delete file is left out only by its key columns (SEMANTICS rule 8b), and only for
filters that the result depends on: elsewhere a row that it deletes might be read.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from scan_core.manifest_list import DATA_MANIFEST, ManifestFile
from scan_core.plan.file_pruner import file_statistics
from scan_core.plan.trace import PlanTrace
from scan_core.prune.match import Match
from scan_core.read.file_reader import ColumnStatistics
from scan_core.runtime_filter.estimate import decide
from scan_core.runtime_filter.key_ranges import KeyRanges
from scan_core.runtime_filter.key_set import KeyLookup, KeySet
from scan_core.runtime_filter.partition_keys import PartitionKeys, partition_keys
from scan_core.runtime_filter.request import RuntimeFilter
from scan_core.schema import Schema
from scan_core.snapshot import DataFile, DeleteContent, DeleteFile, PartitionSpec
from scan_core.split import ScanContext

_FLOATS = frozenset({"float", "double"})


class PlanFilters:
    """The runtime filters of a scan whose keys are known when it is planned."""

    def __init__(self, context: ScanContext, schema: Schema, specs: Mapping[int, PartitionSpec]) -> None:
        self._context = context
        self._schema = schema
        self._filters = [
            _PlanFilter(filter_, context, specs) for filter_ in context.runtime_filters if filter_.newest() is not None
        ]
        if not context.options.use_runtime_filters:
            self._filters = []

    def num_pruned(self, trace: PlanTrace) -> int:
        """Data files left out by runtime filters."""
        reasons = {f.reason for f in self._filters}
        return sum(pruned.count for reason, pruned in trace.data_files.items() if reason in reasons)

    def manifests_left(self, manifests: Sequence[ManifestFile], trace: PlanTrace) -> tuple[ManifestFile, ...]:
        """The manifests of which some file may hold a row with a key, all those of deletes; the others are traced."""
        kept: list[ManifestFile] = []
        for manifest in manifests:
            is_data = manifest.content == DATA_MANIFEST
            reason = next((f.reason for f in self._filters if is_data and f.excludes_manifest(manifest)), None)
            if reason is None:
                kept.append(manifest)
            else:
                trace.manifest_pruned(reason, manifest.path)
        return tuple(kept)

    def files_left(self, files: Sequence[DataFile], trace: PlanTrace) -> list[DataFile]:
        """The files that may hold a row with a key; the others are traced."""
        kept = list(files)
        for f in self._filters:
            excluded = [f.excludes(file, self._statistics_of(file)) for file in kept]
            for file, is_out in zip(kept, excluded, strict=True):
                if is_out:
                    trace.data_file_pruned(f.reason, file.path, file.file_size_bytes)
            kept = [file for file, is_out in zip(kept, excluded, strict=True) if not is_out]
        return kept

    def deletes_left(self, files: Sequence[DeleteFile], trace: PlanTrace) -> list[DeleteFile]:
        """The delete files that may hold a key of the result's rows; the others are traced."""
        if not self._context.options.prune_deletes:
            return list(files)
        kept = list(files)
        for f in self._filters:
            if not f.filter.is_exact:
                continue
            excluded = [self._excludes_delete(f, file) for file in kept]
            for file, is_out in zip(kept, excluded, strict=True):
                if is_out:
                    trace.delete_file_pruned(f.reason, file.path)
            kept = [file for file, is_out in zip(kept, excluded, strict=True) if not is_out]
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


class _PlanFilter:
    """One filter against facts of manifests."""

    def __init__(self, filter_: RuntimeFilter, context: ScanContext, specs: Mapping[int, PartitionSpec]) -> None:
        self.filter = filter_
        self.reason = f"the keys of the {filter_.name}"
        self.field_ids = tuple(f.field_id for f in filter_.fields)
        self._options = context.options
        self._specs = specs
        self._keys = filter_.newest()
        self._lookup: KeyLookup | None = self._keys.lookup(context.options) if isinstance(self._keys, KeySet) else None
        self._of_spec: dict[int, PartitionKeys | None] = {}
        self._of_partition: dict[tuple[int, tuple[Any, ...]], bool] = {}

    def excludes_manifest(self, manifest: ManifestFile) -> bool:
        """No file of the manifest holds a key."""
        if manifest.spec_id is None or not self._options.prune_partitions:
            return False
        known = self._partitions(manifest.spec_id)
        return known is not None and not known.may_hold_some(manifest.partitions)

    def excludes(self, file: DataFile, statistics_of: Callable[[int], ColumnStatistics | None]) -> bool:
        """The file holds no key."""
        if self._options.prune_partitions:
            place = file.spec_id, file.partition
            if place not in self._of_partition:
                known = self._partitions(file.spec_id)
                self._of_partition[place] = known is not None and not known.may_hold(file.partition)
            if self._of_partition[place]:
                return True
        return self._options.prune_files and self.excludes_bounds(statistics_of)

    def excludes_bounds(self, statistics_of: Callable[[int], ColumnStatistics | None]) -> bool:
        """No key lies within these bounds."""
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
