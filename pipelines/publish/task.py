"""The part of publishing that runs in Spark tasks: write Arrow batches to Parquet files and report them.

This module imports neither pyspark nor what only the driver needs: workers of a cluster have the libraries of `nevermore.scan_core.spark.package.REQUIREMENTS` alone.
"""

import pickle
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from datetime import date

import pyarrow as pa
import pyarrow.parquet as pq

from nevermore.pipelines.changes.keys import same_rows
from nevermore.pipelines.errors import PublishError
from nevermore.pipelines.iceberg.row_shape import python_rows
from nevermore.pipelines.iceberg.storage import Storage
from nevermore.pipelines.iceberg.table_writer import FileLayout, RollingWriter, WriteTarget
from nevermore.scan_core import (
    ChangeType,
    ContentFile,
    PartitionSpec,
    ScanMetrics,
    read_changes,
    read_split,
    unpack_split,
)
from nevermore.scan_core.native import is_missed
from nevermore.scan_core.parts import ChangeSplit

KEY_BYTES = 64 * 1024**2
"""Maximum size of keys in memory."""


def written_keys(
    paths: Iterable[str], storage: Storage, key: Sequence[str], max_bytes: int = KEY_BYTES
) -> Iterator[pa.Table]:
    """Read the key columns in tables of whole row groups, as many as fit into `max_bytes`, and at least one.

    Looking up keys costs one pass over a table for each of these tables, not for each file.
    """
    gathered: list[pa.Table] = []
    held = 0
    for group in _groups(paths, storage, list(key)):
        if gathered and held + group.nbytes > max_bytes:
            yield pa.concat_tables(gathered)
            gathered, held = [], 0
        gathered.append(group)
        held += group.nbytes
    if gathered:
        yield pa.concat_tables(gathered)


def _groups(paths: Iterable[str], storage: Storage, key: list[str]) -> Iterator[pa.Table]:
    for path in paths:
        with storage.open_input(path) as source:
            parquet = pq.ParquetFile(source)
            for number in range(parquet.num_row_groups):
                yield parquet.read_row_group(number, columns=key).replace_schema_metadata(None)


REPORT_SCHEMA = "report binary"
"""Schema of the batches that a task yields, in Spark's syntax."""
_EXAMPLES = 20


@dataclass(frozen=True, slots=True)
class TaskReport:
    """What one or several tasks wrote, and what they read if they read mirrors themselves."""

    files: tuple[ContentFile, ...]
    metrics: ScanMetrics = field(default_factory=ScanMetrics)

    def batch(self) -> pa.RecordBatch:
        """As a batch, in the form in which a task yields it."""
        return pa.RecordBatch.from_arrays([pa.array([pickle.dumps(self)], pa.binary())], names=["report"])


@dataclass(frozen=True, slots=True, kw_only=True)
class PublishTask:
    """Writes the rows of one task; pickled to the workers.

    Attributes:
        target: schema and place of the files.
        spec: partition spec under which they are written.
        layout: layout of the files.
        run: prefix of the names of all files of one run.
        key: columns that identify a row, if there are any.
        is_by_key: whether rows are sorted by key, so that duplicate keys, which are refused, are adjacent.
    """

    target: WriteTarget
    spec: PartitionSpec
    layout: FileLayout
    run: str
    key: tuple[str, ...] = ()
    is_by_key: bool = False

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Write all rows of `batches`, and yield one report of the files."""
        from nevermore.scan_core.spark import prepare_worker

        prepare_worker()
        yield self.write(batches).batch()

    def write(self, batches: Iterable[pa.RecordBatch]) -> TaskReport:
        """Write all rows of `batches`."""
        key_ids = tuple(self.target.schema.find(name).field_id for name in self.key)
        rows = _distinct(batches, self.key) if self.is_by_key else batches
        with RollingWriter(self.target, self.spec, self.layout, self.run, key_ids) as writer:
            writer.write(rows)
        return TaskReport(tuple(writer.files))


@dataclass(frozen=True, slots=True, kw_only=True)
class CopyTask:
    """Reads splits and writes their rows; pickled to the workers.

    Attributes:
        publish: how and where to write.
        shared: data that the splits share, as packed with them.
        source: the columns of the splits as Spark would see them.
        sources: for each column of the result its index in `source`, None for the day.
        result: columns of the result.
        day: the day of all rows, where the result has a day that is not a column of the mirror.
    """

    publish: PublishTask
    shared: bytes
    source: pa.Schema
    sources: tuple[int | None, ...]
    result: pa.Schema
    day: date | None = None

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Return one report for all the packed splits in `batches`."""
        from nevermore.scan_core.spark import prepare_worker

        prepare_worker()
        metrics = ScanMetrics()
        task = self.publish
        with RollingWriter(task.target, task.spec, task.layout, task.run) as writer:
            writer.write(self._rows(batches, metrics))
        yield TaskReport(tuple(writer.files), metrics).batch()

    def _rows(self, batches: Iterable[pa.RecordBatch], metrics: ScanMetrics) -> Iterator[pa.RecordBatch]:
        from nevermore.scan_core.spark import conform as conform_for_spark

        for packed in (packed for batch in batches for packed in batch.column(0).to_pylist()):
            split = unpack_split(self.shared, packed)
            metrics.fallbacks += is_missed()
            for rows in read_split(split, metrics):
                given = conform_for_spark(rows, self.source)
                day = pa.repeat(pa.scalar(self.day, pa.date32()), given.num_rows)
                columns = [day if place is None else given.column(place) for place in self.sources]
                yield pa.RecordBatch.from_arrays(columns, schema=self.result)


@dataclass(frozen=True, slots=True)
class ReadChanges:
    """Reads parts of the change scan; pickled to the workers. Rows that disappeared count -1."""

    schema: pa.Schema
    """The columns, and how often a row appears."""

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Return the changed rows of the pickled splits in `batches`."""
        from nevermore.scan_core.spark import prepare_worker

        prepare_worker()
        for batch in batches:
            for packed in batch.column(0):
                for split in pickle.loads(packed.as_py()):  # noqa: S301 - of our own driver
                    yield from self.rows(split, ScanMetrics())

    def rows(self, split: ChangeSplit, metrics: ScanMetrics) -> Iterator[pa.RecordBatch]:
        """The changed rows of one split."""
        from nevermore.scan_core.spark import conform as conform_for_spark

        of_rows = pa.schema(list(self.schema)[:-1])
        for change, rows in read_changes(split, metrics):
            given = conform_for_spark(rows, of_rows)
            sign = pa.repeat(pa.scalar(-1 if change is ChangeType.DELETE else 1, pa.int64()), rows.num_rows)
            yield pa.RecordBatch.from_arrays([*given.columns, sign], schema=self.schema)


def numbers(count: int) -> list[str]:
    """Names for columns that pass through Spark's `mapInArrow`, where dots and backticks in names have a meaning."""
    return [f"c{n}" for n in range(count)]


def check_numbered_keys(
    names: Sequence[str], key: Sequence[str], batches: Iterable[pa.RecordBatch]
) -> Iterator[pa.RecordBatch]:
    """Pass on batches sorted by their key, whose columns have numbers instead of `names`.

    Raises:
        PublishError: several rows have the same key.
    """
    for batch in _distinct((batch.rename_columns(list(names)) for batch in batches), key):
        yield batch.rename_columns(numbers(len(names)))


def write_numbered(
    task: PublishTask, names: Sequence[str], batches: Iterable[pa.RecordBatch]
) -> Iterator[pa.RecordBatch]:
    """Run a task on batches whose columns have numbers instead of `names`."""
    return task(batch.rename_columns(list(names)) for batch in batches)


def total_report(reports: Iterable[bytes]) -> TaskReport:
    """Merge all reports of a job into one, with files in a stable order."""
    found = [pickle.loads(report) for report in reports]  # noqa: S301 - written by our own tasks
    files = sorted((file for report in found for file in report.files), key=lambda file: file.path)
    return TaskReport(tuple(files), sum((report.metrics for report in found), ScanMetrics()))


def _distinct(batches: Iterable[pa.RecordBatch], key: Sequence[str]) -> Iterator[pa.RecordBatch]:
    """Pass on batches sorted by `key` unchanged.

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
    equal = same_rows([rows.column(name) for name in key], [before.column(name) for name in key])
    if twice := python_rows(rows.filter(pa.array(equal)).slice(0, _EXAMPLES)):
        shown = ", ".join(str(tuple(row.values())) for row in twice)
        raise PublishError(f"several rows of the result have the same key ({', '.join(key)}): {shown}; group by it")
