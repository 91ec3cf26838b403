"""What a Spark task does to publish: Arrow batches in, Parquet files out, and a report that names them.

A snapshot names only files of reports that reached the driver, one report per task that Spark counts as done: retried
and speculative attempts leave files that nothing names, never rows twice. No pyspark here.
"""

import pickle
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field

import pyarrow as pa
import pyarrow.compute as pc

from pipelines.errors import PublishError
from pipelines.published.task_deletes import KeyDeletes, TaskDeletes
from pipelines.tables.file_metrics import WrittenFile
from pipelines.tables.rolling_writer import FileLayout, RollingWriter
from pipelines.tables.table_writer import WriteTarget
from scan_core.metrics import ScanMetrics
from scan_core.snapshot import PartitionSpec

REPORT_SCHEMA = "report binary"
"""Of the batches that a task yields, as Spark writes a schema."""
_EXAMPLES = 20


@dataclass(frozen=True, slots=True)
class TaskReport:
    """What one or several tasks wrote, and what they read where they read themselves."""

    files: tuple[WrittenFile, ...]
    metrics: ScanMetrics = field(default_factory=ScanMetrics)

    def batch(self) -> pa.RecordBatch:
        """As a task yields it."""
        return pa.RecordBatch.from_arrays([pa.array([pickle.dumps(self)], pa.binary())], names=["report"])


@dataclass(frozen=True, slots=True, kw_only=True)
class PublishTask:
    """Writes the rows of one task; pickled to the workers.

    Attributes:
        target: schema and place of the files.
        spec: under which they are written.
        layout: of the files.
        run: begins the names of all files of one run.
        key: columns that must identify a row, by which the rows come sorted; none for any rows.
        deletes: of rows with one of these keys that the table may hold.
    """

    target: WriteTarget
    spec: PartitionSpec
    layout: FileLayout
    run: str
    key: tuple[str, ...] = ()
    deletes: TaskDeletes | None = None

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """One report of the files with all rows of `batches`."""
        key_ids = tuple(self.target.schema.find(name).field_id for name in self.key)
        rows = _distinct(batches, self.key) if self.key else batches
        with (
            RollingWriter(self.target, self.spec, self.layout, self.run, key_ids) as writer,
            KeyDeletes(self.deletes, self.target, self.key, self.run) as deletes,
        ):
            writer.write(deletes.of(rows))
        yield TaskReport((*writer.files, *deletes.files)).batch()


def total_report(reports: Iterable[bytes]) -> TaskReport:
    """All reports of a job in one, files in a stable order."""
    found = [pickle.loads(report) for report in reports]  # noqa: S301 - written by our own tasks
    files = sorted((file for report in found for file in report.files), key=lambda file: file.path)
    return TaskReport(tuple(files), sum((report.metrics for report in found), ScanMetrics()))


def _distinct(batches: Iterable[pa.RecordBatch], key: Sequence[str]) -> Iterator[pa.RecordBatch]:
    """Batches sorted by `key`, as they are.

    Raises:
        PublishError: neighbours have the same key.
    """
    last: pa.Table | None = None
    for batch in batches:
        keys = pa.Table.from_batches([batch]).select(list(key))
        both = keys if last is None else pa.concat_tables([last, keys])
        if both.num_rows > 1:
            _refuse_equal(both.slice(1), both.slice(0, both.num_rows - 1), key)
        last = keys.slice(keys.num_rows - 1) if keys.num_rows else last
        yield batch


def _refuse_equal(rows: pa.Table, before: pa.Table, key: Sequence[str]) -> None:
    equal = pa.chunked_array([pa.repeat(True, rows.num_rows)])
    for name in key:
        this, that = rows.column(name), before.column(name)
        nulls = pc.and_(pc.is_null(this), pc.is_null(that))
        equal = pc.and_(equal, pc.fill_null(pc.equal(this, that), nulls))
    if twice := rows.filter(equal).slice(0, _EXAMPLES).to_pylist():
        shown = ", ".join(str(tuple(row.values())) for row in twice)
        raise PublishError(f"several rows of the result have the same key ({', '.join(key)}): {shown}; group by it")
