"""What one run of `publish` made, or would make, and why."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import TYPE_CHECKING, Any

from nevermore.pipelines.iceberg.index_upkeep import IndexUpdate
from nevermore.pipelines.publish.audit import CheckResult
from nevermore.pipelines.publish.publish_commit import Mode
from nevermore.scan_core import ContentFile, ScanMetrics

if TYPE_CHECKING:
    from nevermore.scan_core.spark import TableRead


@dataclass(frozen=True, slots=True)
class PartitionWritten:
    """What a run wrote into one partition.

    Attributes:
        rows: rows of the partition.
        data_files: that hold them.
        bytes_written: size of these files.
    """

    rows: int = 0
    data_files: int = 0
    bytes_written: int = 0

    def with_file(self, file: ContentFile) -> "PartitionWritten":
        """Together with one more file."""
        size = self.bytes_written + file.file_size_bytes
        return PartitionWritten(self.rows + file.record_count, self.data_files + 1, size)


@dataclass(frozen=True, slots=True)
class PublishReport:
    """Report of one run of `publish`.

    Attributes:
        name: the published table.
        partitions: keys of the partitions that were made; None for the whole table.
        reason: why these were made, in one sentence.
        why: by key, the reason: tables that changed, or words.
        changed_rows: by changed mirror, rows that appeared or disappeared, judged by the columns that the SQL needs.
        rows: rows written.
        data_files: data files that hold them.
        bytes_written: size of these files.
        snapshot_id: of the published table now; None where nothing was written and nothing is there.
        reads: what was read, by table.
        is_dry: whether nothing was made because only a plan was asked for.
        is_unchanged: whether there was nothing to make, so that no snapshot was added.
        mode: what was done with existing rows: replace, append or upsert.
        written: what was written, by key of the partition; empty where the config defines no partitions.
        copied_rows: those of `rows` that were written by the tasks that read them from a mirror.
        delete_rows: keys whose earlier rows were replaced.
        leftover_files: removed files of failed task attempts.
        is_unchecked: whether no check was asked for.
        checks: verdicts on the mirrors that were read and on the rows.
        indexes: what was done for the indexes of the config; None without any, or without a commit.
        changed_keys: number of keys that were made; None where whole partitions were.
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
    reads: Mapping[str, "TableRead"] = field(default_factory=dict)
    is_dry: bool = False
    is_unchanged: bool = False
    mode: Mode = "replace"
    written: Mapping[str, PartitionWritten] = field(default_factory=dict)
    copied_rows: int = 0
    delete_rows: int = 0
    leftover_files: int = 0
    is_unchecked: bool = False
    checks: tuple[CheckResult, ...] = ()
    indexes: IndexUpdate | None = None
    changed_keys: int | None = None

    @property
    def rows_by_partition(self) -> Mapping[str, int]:
        """Rows written, by partition key."""
        return {key: written.rows for key, written in self.written.items()}

    @property
    def metrics(self) -> ScanMetrics:
        """Metrics of all reads together."""
        return sum((read.metrics for read in self.reads.values()), ScanMetrics())

    @property
    def made(self) -> str:
        """What was made: all, nothing, keys or partitions."""
        if self.changed_keys:
            return "keys"
        return "all" if self.partitions is None else "partitions" if self.partitions else "nothing"

    @property
    def empty_partitions(self) -> tuple[str, ...]:
        """Keys of partitions that were made and have no rows now: their earlier content is gone."""
        if self.is_dry or self.is_unchanged or self.mode != "replace" or self.changed_keys is not None:
            return ()
        return tuple(key for key in self.partitions or () if not self.rows_by_partition.get(key))

    @property
    def rows_removed_by_deletes(self) -> int:
        """Rows in files that deletes removed while Spark read."""
        return self.metrics.rows_removed_by_position_deletes + self.metrics.rows_removed_by_equality_deletes

    def as_dict(self) -> dict[str, Any]:
        """As a dictionary for JSON and metadata."""
        document = asdict(replace(self, reads={}, checks=()))
        for name, field_name in (("dry_run", "is_dry"), ("unchanged", "is_unchanged"), ("unchecked", "is_unchecked")):
            document[name] = document.pop(field_name)
        return document | {
            "made": self.made,
            "empty_partitions": list(self.empty_partitions),
            "rows_removed_by_deletes": self.rows_removed_by_deletes,
            "checks": [check.as_dict() for check in self.checks],
            "rows_read": self.metrics.rows_out,
            "bytes_read": self.metrics.bytes_read,
            "bytes_skipped": self.metrics.bytes_skipped,
            "read_snapshots": {table: read.snapshot_id for table, read in self.reads.items()},
            "reads": {table: read.as_dict() for table, read in self.reads.items()},
        }


def joined(reports: Sequence[PublishReport]) -> PublishReport:
    """Join the reports of several runs, each on some partitions or all, into one with the state of the last."""
    reads: dict[str, TableRead] = {}
    for report in reports:
        for table, read in report.reads.items():
            before = reads.get(table)
            reads[table] = read if before is None else replace(read, metrics=before.metrics + read.metrics)
    partitions = tuple(key for report in reports for key in report.partitions or ())
    checks: list[CheckResult] = []
    for report in reports:  # those of the mirrors are the same for all
        checks += [verdict for verdict in report.checks if verdict not in checks]
    counts = ("rows", "data_files", "bytes_written", "copied_rows", "delete_rows", "leftover_files")
    sums: dict[str, Any] = {name: sum(getattr(report, name) for report in reports) for name in counts}
    return replace(
        reports[-1],
        partitions=None if reports[-1].partitions is None else partitions,
        why={key: reasons for report in reports for key, reasons in report.why.items()},
        reads=reads,
        written={key: written for report in reports for key, written in report.written.items()},
        checks=tuple(checks),
        **sums,
    )
