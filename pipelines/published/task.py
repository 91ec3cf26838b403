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
from scan_core.distribute.worker_archives import keep_archives_of_spark
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
        key: columns that identify a row, where any do.
        is_by_key: rows with one key, of which there must be but one, would come as neighbours.
        deletes: of rows with one of these keys that the table may hold.
    """

    target: WriteTarget
    spec: PartitionSpec
    layout: FileLayout
    run: str
    key: tuple[str, ...] = ()
    is_by_key: bool = False
    deletes: TaskDeletes | None = None

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """One report of the files with all rows of `batches`."""
        keep_archives_of_spark()
        key_ids = tuple(self.target.schema.find(name).field_id for name in self.key)
        rows = _distinct(batches, self.key) if self.is_by_key else batches
        with (
            RollingWriter(self.target, self.spec, self.layout, self.run, key_ids) as writer,
            KeyDeletes(self.deletes, self.target, self.key, self.run) as deletes,
        ):
            writer.write(deletes.of(rows))
        yield TaskReport((*writer.files, *deletes.files)).batch()


def numbers(count: int) -> list[str]:
    """Names of columns on their way through Spark's `mapInArrow`, where dots and backticks in names mean something."""
    return [f"c{n}" for n in range(count)]


@dataclass(frozen=True, slots=True)
class KeyCheck:
    """Hands rows on that come sorted by their key, which must be there once; pickled to the workers.

    Attributes:
        names: of the columns, whatever they are called on the way.
        key: columns that identify a row.
    """

    names: tuple[str, ...]
    key: tuple[str, ...]

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """The batches as they are.

        Raises:
            PublishError: several rows have the same key.
        """
        named = (batch.rename_columns(list(self.names)) for batch in batches)
        for batch in _distinct(named, self.key):
            yield batch.rename_columns(numbers(len(self.names)))


@dataclass(frozen=True, slots=True)
class NumberedColumns:
    """A task whose rows come without the names of their columns: dots and backticks in them mean something to Spark."""

    task: PublishTask
    names: tuple[str, ...]

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """What the task yields for batches with their names."""
        return self.task(batch.rename_columns(list(self.names)) for batch in batches)


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
