"""Brings a published table up to date in one snapshot.

Runs the plan of `refresh_plan.py`: one Spark job writes each part, one commit makes them current, and leftover files
are removed. This module imports pyspark.
"""

import logging
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from datetime import date
from functools import partial
from typing import TYPE_CHECKING, Any, Self
from uuid import uuid4

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.functions import col

from nevermore.pipelines.config.project import Config
from nevermore.pipelines.config.published import PublishedConfig
from nevermore.pipelines.errors import ConfigError
from nevermore.pipelines.iceberg.catalog import expanded, find_table
from nevermore.pipelines.iceberg.checked_catalog import open_for_writing
from nevermore.pipelines.iceberg.commit import RowDelta, describe, retry_conflicts
from nevermore.pipelines.iceberg.index_upkeep import keep_indexes
from nevermore.pipelines.iceberg.positions import current_snapshot, summary_properties
from nevermore.pipelines.iceberg.storage import Storage
from nevermore.pipelines.publish.audit import (
    Auditor,
    CheckResult,
    StagedRows,
    require_green_mirrors,
    require_green_rows,
    summarize_checks,
)
from nevermore.pipelines.publish.mirror_reads import (
    MirrorView,
    columns_of,
    mirror_scans,
    names_of,
    reads_of,
    snapshots_read,
    views_of,
)
from nevermore.pipelines.publish.publish_commit import (
    PARTITIONS,
    Publication,
    Published,
    PublishedTarget,
    StagedSnapshot,
)
from nevermore.pipelines.publish.query import (
    PublishedQuery,
    arguments,
    copied_columns,
    published_entry,
    published_query,
    requested_partitions,
)
from nevermore.pipelines.publish.refresh_plan import (
    MakeAll,
    MakeNothing,
    RefreshPlan,
    ResultShape,
    ViewOf,
    Work,
    WorkFinder,
    last_partition,
    plan_refresh,
    result_shape,
    sample_arguments,
    why_never_incremental,
    work_without,
)
from nevermore.pipelines.publish.refresh_report import PartitionWritten, PublishReport, joined
from nevermore.pipelines.publish.state import (
    QUERY,
    SOURCE,
    SOURCES,
    STATE,
    Appended,
    Base,
    PublishedState,
    appended,
    base_of,
    current_state,
    fingerprint,
    partitions_json,
    remembered,
)
from nevermore.pipelines.publish.task import PublishTask
from nevermore.pipelines.publish.writer import (
    file_layout,
    is_result_few,
    query_result,
    rows_beyond,
    rows_of,
    write_copy,
    write_few,
    write_result,
)
from nevermore.pipelines.spark.session import project_session
from nevermore.pipelines.watch import span
from nevermore.pipelines.wording import counted
from nevermore.scan_core import ContentFile, DataFile, Scan
from nevermore.scan_core.spark import (
    PushedScans,
    TableRead,
    expected_choice,
    means_what_scans_mean,
    most_read,
    planning,
    push_down,
    quoted_name,
)

if TYPE_CHECKING:
    from nevermore.pipelines.iceberg.catalog import Catalog, Table

DIRECT_COPY = "direct copy: the tasks that read the rows write them"
DRIVER_BYTES = 16 * 1024**2
"""Rows of a mirror that take at most this much memory are read, and small results written, by this process where that costs less
than starting tasks for them; 0 leaves everything to tasks, as tests want it."""
MAX_COPIES = 64
"""Maximum of partitions in a run that are copied one by one; beyond it, a single query is faster."""


@dataclass(frozen=True, slots=True)
class _Part:
    """One query's share: its key, for parameters, and values of the partition field; None for all of them."""

    key: str | None
    values: frozenset[Any] | None


@dataclass(frozen=True, slots=True)
class _RunQuery:
    """Spark runs the SQL over these scans."""

    scans: Mapping[str, Scan]


@dataclass(frozen=True, slots=True)
class _CopyColumns:
    """The tasks that read the only scan write its columns; None in `columns` stands for the `day` of all rows."""

    scans: Mapping[str, Scan]
    columns: list[str | None]
    day: date | None


@dataclass(slots=True)
class WorkWriter:
    """Writes the rows of one run.

    Attributes:
        spark: the session in which tasks run.
        scans: scans of the mirrors.
        work: the rows to make.
        shape: shape of the result.
        rows_before: rows that the table had before, if it is known.
        reads: what was read, by table.
        written: what was written, by key of the partition.
        copied_rows: rows among them that were written by the tasks that read them.
        leftover_files: removed files of failed task attempts.
    """

    spark: SparkSession
    config: Config
    entry: PublishedConfig
    query: PublishedQuery
    scans: Mapping[str, Scan]
    work: Work
    shape: ResultShape
    rows_before: int | None = None
    reads: dict[str, TableRead] = field(default_factory=dict)
    written: dict[str, PartitionWritten] = field(default_factory=dict)
    copied_rows: int = 0
    leftover_files: int = 0

    def __call__(self, delta: RowDelta) -> tuple[ContentFile, ...]:
        """Write the files, and deletes of their keys, under the schema and spec of a commit.

        Raises:
            PublishError: a job failed; all files are removed.
        """
        run = uuid4().hex[:12]
        key = self.entry.key if self.entry.mode == "upsert" else ()
        layout = file_layout(self.entry.options)
        task = PublishTask(target=delta.target, spec=delta.default_spec, layout=layout, run=run, key=key)
        files: list[ContentFile] = []
        self.written = dict.fromkeys(self.work.why, PartitionWritten())
        self.copied_rows = 0
        try:
            for part in self._parts():
                files += self._write(task, part)
            if self.work.keys is not None:
                files += self.work.keys.deletes(delta, run)
        except BaseException:  # however the run ends, no snapshot will name these files
            _remove_files(delta.storage, delta.storage.files_below(delta.target.data_location), run)
            raise
        paths = {file.path for file in files}
        folders = sorted({path.rpartition("/")[0] for path in paths})
        found = (path for folder in folders for path in delta.storage.files_in(folder) if path not in paths)
        self.leftover_files += _remove_files(delta.storage, found, run)
        self._count_rows(files, delta)
        return tuple(files)

    def count(self, reads: Mapping[str, TableRead]) -> None:
        """Add what scans have read."""
        for table, read in reads.items():
            before = self.reads.get(table)
            self.reads[table] = read if before is None else replace(read, metrics=before.metrics + read.metrics)

    def _count_rows(self, files: Sequence[ContentFile], delta: RowDelta) -> None:
        """Rows by partition, in a table with the config's partitions: one that is appended to may have others."""
        partition, kept = self.entry.partitioning, self.shape.partition
        if partition is None or kept is None:
            return
        fields = [(f.transform, delta.schema.field(f.source_id).name) for f in delta.default_spec.fields]
        if fields == [(partition.transform, partition.column)]:
            for file in files:
                if not isinstance(file, DataFile):
                    continue
                key = partition.key_of(file.partition[0], kept.type)
                self.written[key] = self.written.get(key, PartitionWritten()).with_file(file)

    def _parts(self) -> Iterator[_Part]:
        partition, kept = self.entry.partitioning, self.shape.partition
        values = self.work.values
        if self.work.keys is not None:
            yield from [_Part(None, values)] * bool(self.work.keys.rows.num_rows)
        elif partition is not None and kept is not None and self.query.depends_on_partition:
            for key in self.work.why:
                yield _Part(key, frozenset({partition.physical(key, kept.type)}))
        elif values and len(values) <= MAX_COPIES and all(self._is_copied(value) for value in values):
            # one at a time, as each task would write a file for each partition
            for value in values:
                yield _Part(None, frozenset({value}))
        elif values is None or values:
            yield _Part(None, values)

    def plan_reads(self) -> None:
        """Find how the rows would be read, without reading them: keys of joins are."""
        for part in self._parts():
            way = self._way(part.values)
            found = self._narrowed(way, arguments(self.query, self.entry, part.key))
            for table, scan in found.scans.items():
                reader, plan = DIRECT_COPY, scan.plan()
                if isinstance(way, _RunQuery):
                    chosen = expected_choice(
                        scan,
                        plan,
                        self.entry.options.reader,
                        runs_python=True,
                        is_filtered_again=True,
                        driver_bytes=DRIVER_BYTES,
                    )
                    reader = str(chosen)
                self.count({table: TableRead.of(scan, most_read(plan), reader, found.pushed.get(table))})

    def _narrowed(self, way: _RunQuery | _CopyColumns, given: Mapping[str, Any]) -> PushedScans:
        """The scans of a query, with what its SQL and the values of its parameters say of their rows."""
        if isinstance(way, _CopyColumns) or not means_what_scans_mean(self.spark):
            return PushedScans(way.scans, {})
        return push_down(self.query, way.scans, given)

    def _write(self, task: PublishTask, part: _Part) -> tuple[ContentFile, ...]:
        """Write the files of one query."""
        way, name = self._way(part.values), self.query.name
        given = arguments(self.query, self.entry, part.key)
        narrowed = self._narrowed(way, given)
        scans = narrowed.scans
        # of a copy, the view only gives the columns: nobody reads it
        reader = self.entry.options.reader if isinstance(way, _RunQuery) else "python"
        with views_of(self.spark, scans, self.config.spark.reports, reader, DRIVER_BYTES) as views:
            result = query_result(self.spark, self.query, names_of(views), given)
            match way:
                case _RunQuery():
                    chosen = self._chosen(result, part.values)
                    is_few = DRIVER_BYTES and is_result_few(chosen, self._expected_rows(views))
                    few = write_few(name, chosen, self.entry, task, DRIVER_BYTES) if is_few else None
                    written = few or write_result(name, self._spread(chosen, part.values), self.entry, task)
                    self.count(reads_of(scans, views, narrowed.pushed))
                case _CopyColumns(_, columns, day):
                    (scan,) = scans.values()
                    written = write_copy(name, self.spark, scan, result, task, copied=columns, day=day)
                    self.count({table: TableRead.of(scan, written.metrics, DIRECT_COPY) for table in scans})
                    self.copied_rows += sum(file.record_count for file in written.files)
        return written.files

    def _expected_rows(self, views: Mapping[str, MirrorView]) -> int | None:
        """How many rows a result is expected to have at most; None if that is unknown."""
        if self.work.keys is not None:
            return int(self.work.keys.rows.num_rows)
        if all(view.is_read for view in views.values()):
            return 0
        return self.rows_before

    def _is_copied(self, value: Any) -> bool:
        return isinstance(self._way({value}), _CopyColumns)

    def _way(self, values: Collection[Any] | None) -> _RunQuery | _CopyColumns:
        """How to make the rows of some partitions, or all: copied where they are all rows of one mirror's scan."""
        entry, partition = self.entry, self.entry.partitioning
        scans, exact = self.scans, frozenset(self.scans if values is None and not self.work.without else ())
        if partition is not None and values is not None:
            found = self.query.conditions({t: scan.table.schema for t, scan in scans.items()}, partition, values)
            scans = {t: scan.where(found[t].sql) if t in found else scan for t, scan in scans.items()}
            exact = frozenset(table for table, condition in found.items() if condition.is_exact)
        if self.work.keys is not None:
            return _RunQuery(self.work.keys.narrowed(self.query, scans))
        is_arranged = entry.sort_by or entry.options.distribution != "none" or entry.mode == "upsert"
        # a task that copies does not distinguish partitions: either all of its rows are in one, or the table has none
        is_mixed = partition is not None and (values is None or len(values) != 1)
        if is_arranged or is_mixed or len(scans) != 1 or not exact:
            return _RunQuery(scans)
        (scan,) = scans.values()
        day = self._day_of(values)
        day_column = None if partition is None or day is None else partition.column
        columns = copied_columns(self.query, scan.schema.names, [c.name for c in self.shape.columns], day_column)
        return _RunQuery(scans) if columns is None else _CopyColumns(scans, columns, day)

    def _day_of(self, values: Collection[Any] | None) -> date | None:
        """The day of all rows, where the partition is one day of a date column; else None."""
        partition = self.entry.partitioning
        if partition is None or values is None or str(partition) != partition.column or partition.unit != "day":
            return None
        (value,) = values
        return partition.periods([value])[0].start.date() if value is not None else None

    def _chosen(self, result: DataFrame, values: Collection[Any] | None) -> DataFrame:
        """The rows of some partitions, or of all except those that are left out."""
        partition, kept = self.entry.partitioning, self.shape.partition
        if self.work.keys is not None:
            result = self.work.keys.chosen(result)
        if partition is None or kept is None:
            return result
        if values is not None and self.work.keys is None:
            result = rows_of(result, partition, kept.type, values)
        elif self.work.without:
            result = rows_beyond(result, partition, kept.type, self.work.without)
        return result

    def _spread(self, result: DataFrame, values: Collection[Any] | None) -> DataFrame:
        """The rows in a reasonable number of tasks."""
        partition = self.entry.partitioning
        if partition is None:
            return result
        is_one = values is not None and len(values) == 1
        if is_one or self.entry.mode == "upsert" or self.entry.options.distribution != "none":
            return result
        # otherwise each task writes a file for each partition
        return result.hint("rebalance", col(quoted_name(partition.column)))


def _remove_files(storage: Storage, paths: Iterable[str], run: str) -> int:
    """Remove those of the files that a run has written; return how many there were."""
    own = [path for path in paths if path.rpartition("/")[2].startswith(f"{run}-")]
    storage.remove(own)
    return len(own)


_log = logging.getLogger(__name__)
ALREADY_APPENDED = "an earlier run has appended these rows"


def publish(
    config: Config,
    name: str,
    *,
    partitions: Sequence[str] = (),
    is_full: bool = False,
    is_dry: bool = False,
    master: str | None = None,
    remote: str | None = None,
    auditor: Auditor | None = None,
) -> PublishReport:
    """Bring a published table up to date in one snapshot, as its `mode` says.

    An incremental table makes only the partitions that changes of the mirrors since the last run can have reached,
    if these are certain, and otherwise all. The result is the same as that of making all. Upserted partitions make a
    snapshot each, in order, if they are asked for or if SQL runs per partition: of rows with one key the last one stays.

    Args:
        config: the project.
        name: an entry of `published`.
        partitions: make these regardless of changes: keys, or `FIRST..LAST`.
        is_full: make all, regardless of changes.
        is_dry: report what would be made, and make nothing.
        master: Spark master, instead of that of the config; a session that is already running is always used.
        remote: a Spark Connect server, likewise.
        auditor: checks the mirrors that are read and the new rows before readers can see them; None
            publishes unchecked, which the snapshot records.

    Raises:
        ConfigError: an unknown name or partition, SQL that cannot run, or a table that does not fit its result.
        PublishError: a mirror does not exist yet, or the Spark job failed; nothing is published.
        CheckFailedError: a check of a mirror, or of the rows, failed; nothing is published. Rows that failed stay on a
            branch for inspection.
        CommitConflictError: others kept changing the published table.
        MissingRuntimeError: no Java.
    """
    config = expanded(config)
    entry = published_entry(config, name)
    query = published_query(config, name)
    keys = requested_partitions(config, name, partitions, is_full=is_full)

    def make(keys: Sequence[str]) -> PublishReport:
        with span("nevermore.publish", table=name):
            return _Run.start(config, query, (master, remote), auditor).make(keys, is_full=is_full, is_dry=is_dry)

    if entry.mode == "upsert" and len(keys) > 1:
        return joined([retry_conflicts(partial(make, [key])) for key in keys])
    return retry_conflicts(partial(make, keys))


@dataclass(slots=True)
class _Run:
    """One attempt, for one state of mirrors and published table."""

    config: Config
    entry: PublishedConfig
    query: PublishedQuery
    place: tuple[str | None, str | None]
    auditor: Auditor | None
    catalog: "Catalog"
    scans: Mapping[str, Scan]
    table: "Table | None"
    base: Base
    source: str
    done: Appended
    verdicts: tuple[CheckResult, ...] = ()

    @classmethod
    def start(
        cls, config: Config, query: PublishedQuery, place: tuple[str | None, str | None], auditor: Auditor | None
    ) -> Self:
        """Load the mirrors and the published table as they are now."""
        entry = published_entry(config, query.name)
        catalog = open_for_writing(config)
        scans = mirror_scans(catalog, config, query)
        if entry.history is not None:
            (log,) = scans.values()
            query = published_query(config, query.name, log.schema)
        table = find_table(catalog, query.name)
        source = fingerprint(snapshots_read(scans))
        done = appended(table, source) if entry.mode == "append" else Appended()
        return cls(
            config, entry, query, place, auditor, catalog, scans, table, base_of(table, entry.mode), source, done
        )

    def make(self, keys: Sequence[str], *, is_full: bool, is_dry: bool) -> PublishReport:
        """Make and commit what is necessary, or only report it."""
        wanted = current_state(self.config, self.entry, self.scans, last_partition(self.entry, self.query))
        if self.done.is_all or (keys and self.done.keys.issuperset(keys)):
            return self._nothing(ALREADY_APPENDED, is_dry=is_dry)
        plan: RefreshPlan = MakeAll("the mirrors are in a state that was not appended")
        if self.entry.mode != "append":
            plan = plan_refresh(self.entry, self.query, self.scans, self.base, wanted, is_full=is_full)
        if not keys and isinstance(plan, MakeNothing):
            self._require_incremental()
            return self._nothing(plan.reason, is_dry=is_dry)
        if not is_dry and self.auditor is not None:
            self.verdicts = tuple(self.auditor.mirrors(self.config, self.scans))
            require_green_mirrors(self.query.name, self.verdicts)
        spark = project_session(self.config.spark.at(*self.place))
        with planning(spark, self.query.tree):
            return self._make_in(spark, plan, keys, wanted, is_dry=is_dry)

    def _make_in(
        self, spark: SparkSession, plan: RefreshPlan, keys: Sequence[str], wanted: PublishedState, *, is_dry: bool
    ) -> PublishReport:
        asked: dict[str, MirrorView] = {}
        with ExitStack() as stack:

            def view_of(table: str) -> str:
                if table not in asked:
                    scans, reader = {table: self.scans[table]}, self.entry.options.reader
                    asked.update(
                        stack.enter_context(views_of(spark, scans, self.config.spark.reports, reader, DRIVER_BYTES))
                    )
                return asked[table].name

            columns = stack.enter_context(columns_of(spark, self.scans))
            work, shape = self._work(spark, plan, keys, columns, view_of)
            reads = reads_of({table: self.scans[table] for table in asked}, asked)
        writer = self._writer(spark, work, shape)
        if is_dry:
            writer.plan_reads()
            return replace(self._report(work, writer, None), is_dry=True)
        writer.count(reads)
        if self.entry.mode == "append" and work.values is not None and not work.values:
            return self._nothing(ALREADY_APPENDED, is_dry=False)
        num_keys = None if work.keys is None else work.keys.rows.num_rows
        num_values = 0 if work.values is None else len(work.values)
        what = "all of the table" if work.values is None else counted(num_values, "partition")
        what = what if num_keys is None else counted(num_keys, "key")
        _log.info("%s: making %s (%s)", self.query.name, what, work.reason)
        if self.entry.mode == "upsert" and self.query.depends_on_partition and len(work.why) > 1:
            return self._indexed(self._one_by_one(spark, work, shape, wanted))
        return self._indexed(self._made(writer, work, shape, wanted, is_part=bool(keys)))

    def _indexed(self, report: PublishReport) -> PublishReport:
        """Describe the published table, and update its indexes, if the config asks for any."""
        if (table := find_table(self.catalog, self.query.name)) is None:
            return report
        describe(table, self.entry)
        return replace(report, indexes=keep_indexes(table, self.entry.index, self.config.scan_options))

    def _one_by_one(self, spark: SparkSession, work: Work, shape: ResultShape, wanted: PublishedState) -> PublishReport:
        """Commit a snapshot per partition, as later ones may repeat keys; the last records that all are made."""
        *before, last = [replace(work, why={key: reasons}) for key, reasons in work.why.items()]
        made = [self._made(self._writer(spark, part, shape), part, shape, wanted, is_part=True) for part in before]
        return joined([*made, self._made(self._writer(spark, last, shape), last, shape, wanted, is_part=False)])

    def _writer(self, spark: SparkSession, work: Work, shape: ResultShape) -> WorkWriter:
        known = None if self.table is None else summary_properties(current_snapshot(self.table)).get("total-records")
        rows = None if known is None else int(known)
        return WorkWriter(spark, self.config, self.entry, self.query, self.scans, work, shape, rows)

    def _made(
        self, writer: WorkWriter, work: Work, shape: ResultShape, wanted: PublishedState, *, is_part: bool
    ) -> PublishReport:
        """Write and commit in one snapshot."""
        publication = self._publication(work, shape, is_part=is_part)
        found: list[CheckResult] = []
        if self.auditor is not None:
            publication.audit = partial(self._audit, self.auditor, work, wanted.query, found)
        published = publication.commit(writer, self._summary(work, wanted, is_part=is_part))
        return self._report(work, writer, published, found)

    def _audit(
        self, auditor: Auditor, work: Work, query: str, found: list[CheckResult], staged: StagedSnapshot
    ) -> None:
        """Check staged rows, and add the verdicts to `found`.

        Raises:
            CheckFailedError: the rows are wrong.
        """
        rows = StagedRows(
            name=self.query.name,
            mode=self.entry.mode,
            staged=staged,
            keys=tuple(work.why) if work.values is not None or self.query.depends_on_partition else None,
            values=work.values,
            by_key=work.keys is not None,
            query=query,
            sources=snapshots_read(self.scans),
        )
        found[:] = auditor.rows(self.config, rows)
        require_green_rows(rows, found)

    def _work(
        self, spark: SparkSession, plan: RefreshPlan, keys: Sequence[str], columns: Mapping[str, str], views: ViewOf
    ) -> tuple[Work, ResultShape]:
        result = query_result(spark, self.query, columns, sample_arguments(self.entry, self.query))
        shape = result_shape(self.entry, self.query, result)
        self._require_incremental()  # after errors in the SQL itself and missing columns, which are reported first
        finder = WorkFinder(self.entry, self.query, self.base, self.table)
        work = finder.asked_for(keys, shape) if keys else finder.planned(spark, plan, shape, views)
        return work_without(work, self.done.keys, self.entry, self.query, shape), shape

    def _require_incremental(self) -> None:
        if (why := why_never_incremental(self.entry, self.query, self.scans)) is not None:
            raise ConfigError(
                f"published {self.query.name}: incremental: true, but changed rows cannot be traced to partitions: {why}; "
                "write incremental: auto to make all partitions in that case"
            )

    def _publication(self, work: Work, shape: ResultShape, *, is_part: bool) -> Publication:
        """The commit; a plan for the whole table needs its base to be there still, single partitions do not."""
        entry = self.entry
        key = entry.key if entry.mode == "upsert" else ()
        target = PublishedTarget(
            self.catalog, self.query.name, shape.columns, entry.partitioning, entry.mode, key, entry.table_properties
        )

        def holds(table: "Table") -> bool:
            if entry.mode == "append":
                return appended(table, self.source) == self.done
            return is_part or entry.mode == "upsert" or table.metadata.current_snapshot_id == self.base.snapshot_id

        appends = remembered(self.source, work.why if is_part else None) if entry.mode == "append" else {}
        # deletes of keys remove rows, and no file goes
        replaced = work.values if work.keys is None else frozenset[Any]()
        return Publication(target, replaced, holds, appends)

    def _summary(self, work: Work, wanted: PublishedState, *, is_part: bool) -> dict[str, str]:
        """Summary entries of the snapshot."""
        summary = {QUERY: wanted.query, SOURCES: self.source}
        summary |= summarize_checks(None if self.auditor is None else self.verdicts)
        summary |= {SOURCE + name: str(i) for name, i in snapshots_read(self.scans).items()}
        if is_part:
            return summary | {PARTITIONS: partitions_json(work.why)}
        return summary if self.entry.mode == "append" else summary | {STATE: wanted.as_json()}

    def _nothing(self, reason: str, *, is_dry: bool) -> PublishReport:
        made = PublishReport(self.query.name, (), reason, {}, {}, 0, 0, 0, self.base.snapshot_id)
        return replace(made, is_dry=is_dry, is_unchanged=True, mode=self.entry.mode)

    def _report(
        self, work: Work, writer: WorkWriter, published: Published | None, found: Sequence[CheckResult] = ()
    ) -> PublishReport:
        files = () if published is None else published.files
        deletes = () if published is None else published.delete_files
        return PublishReport(
            name=self.query.name,
            partitions=None if work.values is None else tuple(work.why),
            reason=work.reason,
            why=work.why,
            changed_rows=work.changed_rows,
            changed_keys=None if work.keys is None else work.keys.rows.num_rows,
            rows=sum(file.record_count for file in files),
            data_files=len(files),
            bytes_written=sum(file.file_size_bytes for file in (*files, *deletes)),
            snapshot_id=None if published is None else published.committed.snapshot_id,
            reads=dict(writer.reads),
            mode=self.entry.mode,
            written=writer.written,
            copied_rows=writer.copied_rows,
            delete_rows=sum(file.record_count for file in deletes),
            leftover_files=writer.leftover_files,
            is_unchecked=self.auditor is None,
            checks=(*self.verdicts, *found),
        )
