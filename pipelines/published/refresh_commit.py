"""Partitions of a published table, or all of it, replaced in one snapshot that says what the rows are made from.

The commit happens only on the snapshot that the plan began from: what others did meanwhile is for a new plan. No
pyspark here.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pipelines.catalog import create_table, find_table
from pipelines.errors import CommitConflictError
from pipelines.published.commit import published_delta, require_partition
from pipelines.published.partition import PublishedPartition
from pipelines.tables.commit import Committed, RowDelta, everything
from pipelines.tables.commit_manifests import Selection
from pipelines.tables.file_metrics import WrittenFile
from pipelines.tables.manifest_writer import ManifestEntry
from scan_core.schema import NestedField
from scan_core.snapshot import PartitionSpec


@dataclass(frozen=True, slots=True)
class RefreshTarget:
    """The table that is made.

    Attributes:
        catalog: that has it, or will.
        name: in the catalog.
        columns: of the result.
        partition: None for none.
    """

    catalog: Any
    name: str
    columns: tuple[NestedField, ...]
    partition: PublishedPartition | None

    def delta(self, base_snapshot_id: int | None) -> RowDelta:
        """A commit on the snapshot that a plan began from; creates the table where it does not exist.

        Raises:
            ConfigError: the table has columns or partitions that do not fit.
            CommitConflictError: it has another snapshot by now.
        """
        by = [] if self.partition is None else [(self.partition.transform, self.partition.column)]
        table = find_table(self.catalog, self.name) or create_table(
            self.catalog, self.name, self.columns, partition_by=by
        )
        delta = published_delta(self.name, table, self.columns)
        require_partition(self.name, delta, by[0] if by else None)
        if delta.base_snapshot_id != base_snapshot_id:
            raise CommitConflictError(f"another writer changed {self.name}")
        return delta


def commit_refresh(
    delta: RowDelta,
    files: Sequence[WrittenFile],
    properties: Mapping[str, str],
    partitions: Collection[Any] | None,
) -> Committed:
    """Put the files in the place of what was there.

    Args:
        delta: that they were written for.
        files: of the new rows.
        properties: for the snapshot's summary.
        partitions: values of the partition field that are replaced; None replaces all.

    Raises:
        CommitConflictError: another writer was faster; nothing is visible, and the files are removed.
    """
    if partitions is None:
        remove: Selection = everything
    else:
        remove = _in_partitions(delta.default_spec.spec_id, frozenset(partitions))
    try:
        return delta.commit(files, properties, remove=remove, operation="overwrite")
    except CommitConflictError:
        delta.discard(files)
        raise


def _in_partitions(spec_id: int, values: frozenset[Any]) -> Selection:
    def selects(entry: ManifestEntry, spec: PartitionSpec) -> bool:
        return spec.spec_id == spec_id and entry.data_file["partition"][spec.fields[0].name] in values

    return selects
