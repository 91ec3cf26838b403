"""Which manifests and data files can hold a row that fulfils the scan's filter.

Only narrows: unknown means keep. What a partition value or bound says about an expression is the business of
`prune/`; here the facts of files are brought to it.
"""

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from scan_core.errors import MalformedTableError
from scan_core.manifest_list import ManifestFile
from scan_core.metadata import TableMetadata
from scan_core.prune.match import Match
from scan_core.read.file_reader import ColumnStatistics
from scan_core.schema import PrimitiveType, Schema
from scan_core.single_value import decode_bound
from scan_core.snapshot import ContentFile, DataFile
from scan_core.split import ScanContext

if TYPE_CHECKING:
    from scan_core.expr.nodes import BoundPredicate
    from scan_core.prune.domain import Domain

BY_SUMMARY = "the filter, from the ranges of their partitions"
BY_PARTITION = "the filter, from their partitions"
BY_BOUNDS = "the filter, from the least and greatest values of their columns"


class FilePruner:
    """The scan's filter against partitions and bounds; what a partition says is worked out once."""

    def __init__(self, metadata: TableMetadata, context: ScanContext) -> None:
        schema = metadata.schemas.get(context.projection.schema_id)
        if schema is None:
            raise MalformedTableError(f"{context.table}: no schema {context.projection.schema_id}")
        self._schema: Schema = schema
        self._specs = metadata.specs
        self._options = context.options
        self._predicate: BoundPredicate | None = context.predicate
        self._by_partition: dict[tuple[int, tuple[Any, ...]], Mapping[int, Domain] | None] = {}

    @property
    def is_active(self) -> bool:
        """False if there is nothing to prune by."""
        return self._predicate is not None and (self._options.prune_partitions or self._options.prune_files)

    def may_hold_rows(self, manifest: ManifestFile) -> bool:
        """False if no file of the manifest can hold a row of the result."""
        if self._predicate is None or not self._options.prune_partitions:
            return True
        spec = None if manifest.spec_id is None else self._specs.get(manifest.spec_id)
        if spec is None:
            return True
        from scan_core.prune.partitions import match_manifest

        return match_manifest(self._predicate, spec, manifest.partitions, self._schema) is not Match.NEVER

    def reason_to_skip(self, file: DataFile) -> str | None:
        """Why the file holds no row of the result; None if it may hold one."""
        if self._predicate is None:
            return None
        from scan_core.prune.partitions import match_file

        domains = self._domains_of(file, self._predicate) if self._options.prune_partitions else {}
        if domains is None:
            return BY_PARTITION
        if not self._options.prune_files:
            return None
        verdict = match_file(self._predicate, domains, file_statistics(file, self._schema))
        return BY_BOUNDS if verdict is Match.NEVER else None

    def _domains_of(self, file: DataFile, predicate: "BoundPredicate") -> "Mapping[int, Domain] | None":
        """What the file's partition says about columns; None if no row of it can fulfil the filter."""
        key = file.spec_id, file.partition
        if key not in self._by_partition:
            from scan_core.prune.partitions import match_partition, partition_domains

            spec = self._specs[file.spec_id]
            verdict = match_partition(predicate, spec, file.partition, self._schema)
            is_never = verdict is Match.NEVER
            self._by_partition[key] = None if is_never else partition_domains(spec, file.partition, self._schema)
        return self._by_partition[key]


def file_statistics(file: ContentFile, schema: Schema) -> Callable[[int], ColumnStatistics | None]:
    """What a manifest knows of a file's columns, by field id, in the types of `schema`."""

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
