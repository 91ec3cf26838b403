"""What one run of `publish` made, or would make, and why."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from pipelines.published.mirror_reads import MirrorRead
from scan_core.metrics import ScanMetrics


@dataclass(frozen=True, slots=True)
class PublishReport:
    """What one run of `publish` did.

    Attributes:
        name: the published table.
        partitions: keys of those that were made; None for all of the table.
        reason: why these, in one sentence.
        why: by key, what made it necessary: tables that changed, or words.
        changed_rows: of each mirror that changed, rows that came or went in the columns that the SQL needs.
        rows: written.
        data_files: that hold them.
        bytes_written: their size.
        snapshot_id: of the published table now; None where nothing was written and nothing is there.
        reads: what was read, by table.
        is_dry: nothing was made.
        is_unchanged: there was nothing to make, and no snapshot was added.
    """

    name: str
    partitions: tuple[str, ...] | None
    reason: str
    why: Mapping[str, tuple[str, ...]]
    changed_rows: Mapping[str, int]
    rows: int
    data_files: int
    bytes_written: int
    snapshot_id: int | None
    reads: Mapping[str, MirrorRead] = field(default_factory=dict)
    is_dry: bool = False
    is_unchanged: bool = False

    @property
    def metrics(self) -> ScanMetrics:
        """Of all reads together."""
        return sum((read.metrics for read in self.reads.values()), ScanMetrics())

    def as_dict(self) -> dict[str, Any]:
        """For JSON and metadata."""
        return {
            "name": self.name,
            "made": "all" if self.partitions is None else "nothing" if not self.partitions else "partitions",
            "partitions": None if self.partitions is None else list(self.partitions),
            "reason": self.reason,
            "why": {key: list(reasons) for key, reasons in self.why.items()},
            "changed_rows": dict(self.changed_rows),
            "dry_run": self.is_dry,
            "rows": self.rows,
            "data_files": self.data_files,
            "bytes_written": self.bytes_written,
            "snapshot_id": self.snapshot_id,
            "rows_read": self.metrics.rows_out,
            "bytes_read": self.metrics.bytes_read,
            "bytes_skipped": self.metrics.bytes_skipped,
            "read_snapshots": {table: read.snapshot_id for table, read in self.reads.items()},
        }
