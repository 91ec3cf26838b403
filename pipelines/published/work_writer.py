"""The work of a run, query by query: what each part reads, the job that writes its rows, and files left behind.

Imports pyspark. How tasks write is told in `writer.py`; which files a snapshot names is decided by `commit.py`.
"""

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import date
from typing import Any
from uuid import uuid4

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.functions import col

from pipelines.config import Config, PublishedConfig
from pipelines.published.abandoned_runs import RunRecord
from pipelines.published.direct_copy import copied_columns
from pipelines.published.entries import arguments
from pipelines.published.mirror_reads import MirrorRead, read_of, views_of
from pipelines.published.partition_rows import query_result, rows_beyond, rows_of
from pipelines.published.query import PublishedQuery
from pipelines.published.refresh_report import PartitionWritten
from pipelines.published.refresh_work import ResultShape, Work
from pipelines.published.task import PublishTask
from pipelines.published.task_deletes import TaskDeletes
from pipelines.published.writer import CopiedRows, QueryRows, Rows, file_layout
from pipelines.tables.commit import RowDelta
from pipelines.tables.file_metrics import FileContent, WrittenFile
from pipelines.tables.leftover_files import remove_all, remove_leftovers
from pipelines.tables.storage import Storage
from scan_core.metrics import ScanMetrics
from scan_core.scan import Scan

MOST_COPIES = 64
"""Partitions of a run that are copied one by one; a single query makes more of them sooner."""


@dataclass(frozen=True, slots=True)
class _Part:
    """What one query makes: its key, for parameters, and values of the partition field; None for all of them."""

    key: str | None
    values: frozenset[Any] | None


class WorkWriter:
    """Writes the rows of one run.

    Args:
        spark: where tasks run.
        config: the project.
        entry: of the config.
        query: its SQL.
        scans: of the mirrors.
        work: what to make.
        shape: of the result.

    Attributes:
        reads: what was read, by table.
        written: what was written, by key of the partition.
        copied_rows: of them, those that the tasks wrote that had read them.
        leftover_files: files of failed attempts of tasks, removed.
    """

    def __init__(
        self,
        spark: SparkSession,
        config: Config,
        entry: PublishedConfig,
        query: PublishedQuery,
        scans: Mapping[str, Scan],
        *,
        work: Work,
        shape: ResultShape,
    ) -> None:
        self._spark = spark
        self._reports = config.spark.reports
        self._entry = entry
        self._query = query
        self._scans = scans
        self._work = work
        self._shape = shape
        self.reads: dict[str, MirrorRead] = {}
        self.written: dict[str, PartitionWritten] = {}
        self.copied_rows = 0
        self.leftover_files = 0
        self._records: list[tuple[RunRecord, Storage]] = []

    def __call__(self, delta: RowDelta, deletes: TaskDeletes | None) -> tuple[WrittenFile, ...]:
        """The files, with deletes of their keys, under the schema and spec of a commit; none is left if a job fails.

        Raises:
            PublishError: a job failed.
        """
        run = uuid4().hex[:12]
        record = RunRecord.begin(delta.table, run)
        key = self._entry.key if self._entry.mode == "upsert" else ()
        layout = file_layout(self._entry.options)
        task = PublishTask(
            target=delta.target, spec=delta.default_spec, layout=layout, run=run, key=key, deletes=deletes
        )
        files: list[WrittenFile] = []
        self.written = dict.fromkeys(self._work.why, PartitionWritten())
        self.copied_rows = 0
        is_done = False
        try:
            for part in self._parts():
                files += self._write(task, part)
            is_done = True
        finally:
            if not is_done:
                remove_all(delta.storage, delta.target.data_location, run)
                record.end(delta.storage)
        record.check(delta.storage)
        self._records.append((record, delta.storage))
        paths = {file.path for file in files}
        self.leftover_files += remove_leftovers(delta.storage, {path.rpartition("/")[0] for path in paths}, run, paths)
        self._count_rows(files, delta)
        return tuple(files)

    def check(self) -> None:
        """Refuse to commit files that were written where another run has taken this one for dead, and removes them.

        Raises:
            PublishError: it has.
        """
        for record, storage in self._records[-1:]:
            record.check(storage)

    @property
    def run(self) -> str:
        """Begins the names of the files that were written last."""
        return self._records[-1][0].run if self._records else ""

    def refuse(self) -> None:
        """The files that were written last failed a check and are kept for a look; all others are gone."""
        *gone, (record, storage) = self._records
        for earlier, its_storage in gone:
            earlier.end(its_storage)
        record.refused(storage)

    def end(self) -> None:
        """All files that were written are named by a snapshot, or gone."""
        for record, storage in self._records:
            record.end(storage)

    def count(self, scans: Mapping[str, Scan], metrics: Mapping[str, ScanMetrics]) -> None:
        """Add what scans have read."""
        for table, scan in scans.items():
            read, before = read_of(scan, metrics[table]), self.reads.get(table)
            self.reads[table] = read if before is None else replace(read, metrics=before.metrics + read.metrics)

    def _count_rows(self, files: Sequence[WrittenFile], delta: RowDelta) -> None:
        """Rows by partition, in a table that has the partitions of the config: one that is appended to may have others."""
        partition, kept = self._entry.partitioning, self._shape.partition
        if partition is None or kept is None:
            return
        fields = [(f.transform, delta.schema.field(f.source_id).name) for f in delta.default_spec.fields]
        if fields == [(partition.transform, partition.column)]:
            for file in files:
                if file.content is not FileContent.DATA:
                    continue
                key = partition.key_of(file.partition[0], kept.type)
                self.written[key] = self.written.get(key, PartitionWritten()).with_file(file)

    def _parts(self) -> Iterator[_Part]:
        partition, kept = self._entry.partitioning, self._shape.partition
        values = self._work.values
        if partition is not None and kept is not None and self._query.depends_on_partition:
            for key in self._work.why:
                yield _Part(key, frozenset({partition.physical(key, kept.type)}))
        elif values is not None and len(values) <= MOST_COPIES and self._are_copied(values):
            for value in values:
                yield _Part(None, frozenset({value}))
        elif values is None or values:
            yield _Part(None, values)

    def _write(self, task: PublishTask, part: _Part) -> tuple[WrittenFile, ...]:
        """The files of one query."""
        scans, _ = self._narrowed(part.values)
        copied = self._copied(part.values)
        with views_of(self._spark, scans, self._reports) as (views, reports):
            result = query_result(self._spark, self._query, views, arguments(self._query, self._entry, part.key))
            rows: Rows
            if copied is not None:
                (scan,) = scans.values()
                day = self._day_of(part.values)
                rows = CopiedRows(self._spark, scan, result, name=self._query.name, copied=copied, day=day)
            else:
                rows = QueryRows(self._query.name, self._chosen(result, part.values), self._entry)
            written = rows.write(task)
            metrics = {table: reports[table].total() for table in scans}
        if copied is not None:  # of one table, whose view nobody has read
            self.copied_rows += sum(file.record_count for file in written.files)
            metrics = dict.fromkeys(scans, written.metrics)
        self.count(scans, metrics)
        return written.files

    def _narrowed(self, values: Collection[Any] | None) -> tuple[Mapping[str, Scan], frozenset[str]]:
        """The scans that some partitions are made of, and the tables of which they give no other rows."""
        partition = self._entry.partitioning
        if partition is None or values is None:
            return self._scans, frozenset(self._scans if values is None and not self._work.without else ())
        schemas = {table: scan.table.schema for table, scan in self._scans.items()}
        found = self._query.conditions(schemas, partition, values)
        scans = {t: scan.where(found[t].sql) if t in found else scan for t, scan in self._scans.items()}
        return scans, frozenset(table for table, condition in found.items() if condition.is_exact)

    def _copied(self, values: Collection[Any] | None) -> list[str | None] | None:
        """What a copy by the tasks that read the mirror would copy; None where the query has to be run.

        Of several partitions each is copied alone: a task would write a file of each of them.
        """
        entry, partition = self._entry, self._entry.partitioning
        is_arranged = entry.sort_by or entry.options.distribution != "none" or entry.mode == "upsert"
        if not entry.options.direct_copy or is_arranged or len(self._scans) != 1:
            return None
        if partition is not None and (values is None or len(values) != 1):
            return None
        scans, exact = self._narrowed(values)
        if not exact:
            return None
        (scan,) = scans.values()
        day = None if partition is None or self._day_of(values) is None else partition.column
        return copied_columns(self._query, scan.schema.names, [c.name for c in self._shape.columns], day)

    def _are_copied(self, values: Collection[Any]) -> bool:
        return all(self._copied({value}) is not None for value in values)

    def _day_of(self, values: Collection[Any] | None) -> date | None:
        """The day of all rows, where the partition is one day of a date column."""
        partition = self._entry.partitioning
        if partition is None or values is None or str(partition) != partition.column or partition.unit != "day":
            return None
        (value,) = values
        return partition.periods([value])[0].start.date() if value is not None else None

    def _chosen(self, result: DataFrame, values: Collection[Any] | None) -> DataFrame:
        """The rows of some partitions, or of all but those that are left out, in as many tasks as make sense."""
        partition, kept = self._entry.partitioning, self._shape.partition
        if partition is None or kept is None:
            return result
        if values is not None:
            result = rows_of(result, partition, kept.type, values)
        elif self._work.without:
            result = rows_beyond(result, partition, kept.type, self._work.without)
        is_one = values is not None and len(values) == 1
        if is_one or self._entry.mode == "upsert" or self._entry.options.distribution != "none":
            return result
        return result.hint("rebalance", col(f"`{partition.column}`"))  # else each task writes a file of each
