"""Which manifests and data files can hold a row that fulfils the predicate, and a trace of those that were excluded."""

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import numpy.typing as npt

from nevermore.scan_core.metadata.bulk_manifests import path_at
from nevermore.scan_core.metadata.manifest_list import ManifestFile
from nevermore.scan_core.model.errors import MalformedTableError
from nevermore.scan_core.model.schema import PrimitiveType, Schema
from nevermore.scan_core.model.snapshot import ContentFile, DataFile
from nevermore.scan_core.model.statistics import ColumnStatistics, decode_bound
from nevermore.scan_core.model.table_metadata import TableMetadata
from nevermore.scan_core.plan.file_set import ColumnPart
from nevermore.scan_core.prune.verdicts import Match
from nevermore.scan_core.split.tasks import ScanContext

if TYPE_CHECKING:
    from nevermore.scan_core.expr.nodes import BoundPredicate
    from nevermore.scan_core.prune.partitions import PartitionVerdicts
    from nevermore.scan_core.prune.verdicts import Domain

    PartitionVerdict = Mapping[int, Domain] | Literal[Match.NEVER]


EXAMPLES = 3
"""Enough to recognise what was pruned; a plan may leave out 100,000 files."""


@dataclass(slots=True)
class Pruned:
    """Things left out for one reason."""

    count: int = 0
    num_bytes: int = 0
    examples: list[str] = field(default_factory=list)

    def add(self, *names: str, count: int = 1, num_bytes: int = 0) -> None:
        """Count excluded items, with their total stored size and the names of at least the first few."""
        self.count += count
        self.num_bytes += num_bytes
        self.examples.extend(names[: EXAMPLES - len(self.examples)])


@dataclass(slots=True)
class PlanTrace:
    """What a plan read and what it excluded. Keys of the mappings are reasons in words."""

    manifests_read: int = 0
    data_files_seen: int = 0
    delete_files_seen: int = 0
    manifests: dict[str, Pruned] = field(default_factory=lambda: defaultdict(Pruned))
    data_files: dict[str, Pruned] = field(default_factory=lambda: defaultdict(Pruned))
    delete_files: dict[str, Pruned] = field(default_factory=lambda: defaultdict(Pruned))


def total(pruned: dict[str, Pruned]) -> int:
    """Total number excluded, for any reason."""
    return sum(p.count for p in pruned.values())


BY_SUMMARY = "the filter, from the ranges of their partitions"
BY_PARTITION = "the filter, from their partitions"
BY_BOUNDS = "the filter, from the least and greatest values of their columns"


class FilePruner:
    """Compares the scan's filter with partitions and bounds; each partition is evaluated once."""

    def __init__(self, metadata: TableMetadata, context: ScanContext) -> None:
        schema = metadata.schemas.get(context.projection.schema_id)
        if schema is None:
            raise MalformedTableError(f"{context.table}: no schema {context.projection.schema_id}")
        self._schema: Schema = schema
        self._specs = metadata.specs
        self._switches = context.options.switches
        self._predicate: BoundPredicate | None = context.predicate
        self._by_partition: dict[tuple[int, tuple[Any, ...]], PartitionVerdict] = {}
        self._verdicts: dict[int, PartitionVerdicts] = {}

    @property
    def is_active(self) -> bool:
        """Whether there is a filter to prune by."""
        return self._predicate is not None and self._switches.prune_files

    def may_hold_rows(self, manifest: ManifestFile) -> bool:
        """False if no file of the manifest can hold a row of the result."""
        if self._predicate is None or not self._switches.prune_files:
            return True
        spec = None if manifest.spec_id is None else self._specs.get(manifest.spec_id)
        if spec is None:
            return True
        from nevermore.scan_core.prune.partitions import match_manifest

        return match_manifest(self._predicate, spec, manifest.partitions, self._schema) is not Match.NEVER

    def reason_to_skip(self, file: DataFile) -> str | None:
        """Why the file holds no row of the result; None if it may hold one."""
        if self._predicate is None or not self._switches.prune_files:
            return None
        from nevermore.scan_core.prune.partitions import match_file

        domains = self._domains_of(file.spec_id, file.partition)
        if domains is Match.NEVER:
            return BY_PARTITION
        verdict = match_file(self._predicate, domains, file_statistics(file, self._schema))
        return BY_BOUNDS if verdict is Match.NEVER else None

    def is_fulfilled_by_all_rows(self, file: DataFile) -> bool:
        """True if bounds and counts of the file's columns prove that every row fulfils the filter."""
        if self._predicate is None:
            return True
        if not self._switches.prune_files:
            return False
        from nevermore.scan_core.prune.partitions import match_file

        return match_file(self._predicate, {}, file_statistics(file, self._schema)) is Match.ALWAYS

    def prune(self, part: ColumnPart[DataFile], trace: PlanTrace) -> ColumnPart[DataFile]:
        """The files that may hold a row of the result; the others are traced.

        The columns of manifests are compared; files that these cannot decide are compared one by one.
        """
        columns, rows = part.columns, part.rows
        assert self._predicate is not None  # noqa: S101 - otherwise there is nothing to prune by
        reasons = np.zeros(len(rows), np.int8)
        codes = columns.partition_codes[rows]
        domains: dict[int, Mapping[int, Domain]] = {}
        used = np.unique(codes).tolist()
        self._decide(columns.spec_id, [columns.partitions[code] for code in used])
        for code in used:
            found = self._domains_of(columns.spec_id, columns.partitions[code])
            if found is Match.NEVER:
                reasons[codes == code] = 1
            else:
                domains[code] = found
        from nevermore.scan_core.prune.facts import match_columns

        left = np.flatnonzero(reasons == 0)
        verdicts = match_columns(self._predicate, columns, rows[left], domains, self._schema)
        reasons[left[verdicts.never]] = 2
        for index in left[verdicts.undecidable].tolist():
            if self.reason_to_skip(part.file(index)) is not None:
                reasons[index] = 2
        _trace_pruned(reasons, part, trace)
        return part.where(reasons == 0)

    def _domains_of(self, spec_id: int, partition: tuple[Any, ...]) -> "PartitionVerdict":
        """What a partition says about columns, or NEVER if no row of it can fulfil the filter."""
        if (spec_id, partition) not in self._by_partition:
            self._decide(spec_id, [partition])
        return self._by_partition[spec_id, partition]

    def _decide(self, spec_id: int, partitions: Sequence[tuple[Any, ...]]) -> None:
        """Compare the filter with those of the partitions that were not seen before, all together."""
        assert self._predicate is not None  # noqa: S101 - otherwise there is nothing to prune by
        unseen = list(dict.fromkeys(p for p in partitions if (spec_id, p) not in self._by_partition))
        if not unseen:
            return
        if spec_id not in self._verdicts:
            from nevermore.scan_core.prune.partitions import PartitionVerdicts

            self._verdicts[spec_id] = PartitionVerdicts(self._predicate, self._specs[spec_id], self._schema)
        verdicts = self._verdicts[spec_id]
        for partition, is_never in zip(unseen, verdicts.without_rows(unseen).tolist(), strict=True):
            self._by_partition[spec_id, partition] = Match.NEVER if is_never else verdicts.domains(partition)


def _trace_pruned(reasons: npt.NDArray[np.int8], part: ColumnPart[DataFile], trace: PlanTrace) -> None:
    found = []
    for number, reason in ((1, BY_PARTITION), (2, BY_BOUNDS)):
        pruned = np.flatnonzero(reasons == number)
        if len(pruned):
            found.append((pruned.item(0), reason, pruned))
    for _, reason, pruned in sorted(found, key=lambda one: one[0]):
        names = [path_at(part.columns, row) for row in part.rows[pruned[:EXAMPLES]].tolist()]
        num_bytes = int(part.columns.file_sizes[part.rows[pruned]].sum())
        trace.data_files[reason].add(*names, count=len(pruned), num_bytes=num_bytes)


def file_statistics(file: ContentFile, schema: Schema) -> Callable[[int], ColumnStatistics | None]:
    """Statistics of a file's columns from its manifest, by field id, in the types of `schema`."""

    def of_column(field_id: int) -> ColumnStatistics | None:
        if field_id not in schema:
            return None
        column_type = schema.field(field_id).type
        if not isinstance(column_type, PrimitiveType):
            return None
        return ColumnStatistics(
            lower=decode_bound(file.lower_bounds.get(field_id), column_type),
            upper=decode_bound(file.upper_bounds.get(field_id), column_type),
            null_count=file.null_count(field_id),
            nan_count=file.nan_value_counts.get(field_id),
            value_count=file.value_count(field_id),
        )

    return of_column
