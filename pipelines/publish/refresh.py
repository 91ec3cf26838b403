"""Brings a published table up to date in one snapshot.

Runs the plan of `refresh_plan.py`: one Spark job writes each part, one commit makes them current, and leftover files
are removed. This module imports pyspark.
"""

import logging
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import date
from functools import partial
from typing import Any
from uuid import uuid4

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.functions import col

from pipelines.config.project import Config, PublishedConfig
from pipelines.errors import CommitConflictError, ConfigError
from pipelines.iceberg.catalog import find_table, open_catalog
from pipelines.iceberg.commit import RowDelta, retry_conflicts
from pipelines.iceberg.file_metrics import FileContent, WrittenFile
from pipelines.iceberg.recovery import open_for_writing
from pipelines.iceberg.storage import Storage
from pipelines.publish.abandoned_runs import (
    RunRecord,
    branches_of,
    condemn_abandoned,
    remove_abandoned,
    remove_all,
    remove_leftovers,
)
from pipelines.publish.audit import (
    Auditor,
    CheckFailedError,
    StagedRows,
    Verdict,
    require_green_mirrors,
    require_green_rows,
    told_checks,
)
from pipelines.publish.direct_copy import copied_columns
from pipelines.publish.mirror_reads import MirrorRead, mirror_scans, read_of, snapshots_read, views_of
from pipelines.publish.publish_commit import Publication, Published, PublishedTarget, StagedSnapshot
from pipelines.publish.pushdown import Pushed, push_down
from pipelines.publish.query import PublishedQuery, arguments, published_entry, published_query, requested_partitions
from pipelines.publish.refresh_plan import (
    MakeAll,
    MakeNothing,
    RefreshPlan,
    ResultShape,
    Work,
    WorkFinder,
    last_partition,
    plan_refresh,
    result_shape,
    sample_arguments,
    why_never_incremental,
    work_without,
)
from pipelines.publish.refresh_report import PartitionWritten, PublishReport, joined
from pipelines.publish.state import (
    PARTITIONS,
    QUERY,
    SOURCE,
    SOURCES,
    STATE,
    Appended,
    PublishedState,
    appended,
    base_of,
    current_state,
    fingerprint,
    partitions_json,
    remembered,
)
from pipelines.publish.task import PublishTask, TaskDeletes
from pipelines.publish.writer import CopiedRows, QueryRows, Rows, file_layout, query_result, rows_beyond, rows_of
from pipelines.spark.session import project_session
from scan_core import Scan, ScanMetrics
from scan_core.spark import means_what_scans_mean, quoted_name

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

    def count(
        self, scans: Mapping[str, Scan], metrics: Mapping[str, ScanMetrics], pushed: Mapping[str, Pushed] | None = None
    ) -> None:
        """Add what scans have read."""
        for table, scan in scans.items():
            read, before = read_of(scan, metrics[table], (pushed or {}).get(table)), self.reads.get(table)
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
        given = arguments(self._query, self._entry, part.key)
        pushed: Mapping[str, Pushed] = {}
        if copied is None and self._entry.options.push_down and means_what_scans_mean(self._spark):
            found = push_down(self._query, scans, given)
            scans, pushed = found.scans, found.pushed
        with views_of(self._spark, scans, self._reports) as (views, reports):
            result = query_result(self._spark, self._query, views, given)
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
        self.count(scans, metrics, pushed)
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
        return result.hint("rebalance", col(quoted_name(partition.column)))  # else each task writes a file of each


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

    Of an incremental table only the partitions are made that changes of the mirrors since the last run can have reached,
    where that is certain; else all. The result is always that of making all. Partitions that are upserted make a
    snapshot each where they are asked for, or SQL is run for each of them, in that order: of rows with one key the last one stays.

    Args:
        config: the project.
        name: an entry of `published`.
        partitions: make these, whatever changed: keys, or `FIRST..LAST`.
        is_full: make all, whatever changed.
        is_dry: say what would be made, and make nothing.
        master: where Spark runs, instead of what the config says; a session that runs already is used in any case.
        remote: a Spark Connect server, likewise.
        auditor: is asked for the checks of what is read and of the rows that were made, before anyone sees them; None
            publishes unchecked, which the snapshot tells.

    Raises:
        ConfigError: an unknown name or partition, SQL that cannot run, or a table that does not fit its result.
        PublishError: a mirror does not exist yet, or the Spark job failed; nothing is published.
        CheckFailedError: a check of a mirror, or of the rows, failed; nothing is published. Rows that failed stay on a
            branch for a look.
        CommitConflictError: others kept changing the published table.
        MissingRuntimeError: no Java.
    """
    entry = published_entry(config, name)
    query = published_query(config, name)
    keys = requested_partitions(config, name, partitions, is_full=is_full)

    def make(keys: Sequence[str]) -> PublishReport:
        return _Run(config, entry, query, place=(master, remote), auditor=auditor).make(
            keys, is_full=is_full, is_dry=is_dry
        )

    if entry.mode == "upsert" and len(keys) > 1:
        return joined([retry_conflicts(partial(make, [key])) for key in keys])
    return retry_conflicts(partial(make, keys))


def check_incremental(config: Config, name: str, scans: Mapping[str, Scan] | None = None) -> str | None:
    """Why `incremental: true` could never hold for a table; None where it can, or was not asked for.

    Raises:
        PublishError: a mirror does not exist yet.
    """
    entry, query = published_entry(config, name), published_query(config, name)
    if entry.incremental is not True:
        return None
    scans = scans or mirror_scans(open_catalog(config), query)
    schemas = {table: scan.table.schema for table, scan in scans.items()}
    return query.why_unrepeatable(schemas) or why_never_incremental(entry, query, scans)


class _Run:
    """One attempt, over one state of mirrors and published table."""

    def __init__(
        self,
        config: Config,
        entry: PublishedConfig,
        query: PublishedQuery,
        *,
        place: tuple[str | None, str | None],
        auditor: Auditor | None,
    ) -> None:
        self._config = config
        self._entry = entry
        self._query = query
        self._place = place
        self._auditor = auditor
        self._verdicts: tuple[Verdict, ...] = ()
        self._catalog = open_for_writing(config)
        self._scans = mirror_scans(self._catalog, query)
        self._table = find_table(self._catalog, query.name)
        self._base = base_of(self._table, entry.mode)
        self._from = fingerprint(snapshots_read(self._scans))
        self._done = appended(self._table, self._from) if entry.mode == "append" else Appended()

    def make(self, keys: Sequence[str], *, is_full: bool, is_dry: bool) -> PublishReport:
        """Make and commit what there is to make, or only say what that is."""
        wanted = current_state(self._config, self._entry, self._scans, last_partition(self._entry, self._query))
        if self._done.is_all or (keys and self._done.keys.issuperset(keys)):
            return self._nothing(ALREADY_APPENDED, is_dry=is_dry)
        plan: RefreshPlan = MakeAll("the mirrors are in a state that was not appended")
        if self._entry.mode != "append":
            plan = plan_refresh(self._entry, self._query, self._scans, self._base, wanted, is_full=is_full)
        if not keys and isinstance(plan, MakeNothing):
            self._require_incremental()
            return self._nothing(plan.reason, is_dry=is_dry)
        if not is_dry:
            self._require_green_mirrors()
        spark = project_session(self._config.spark.at(*self._place))
        with views_of(spark, self._scans, self._config.spark.reports) as (views, reports):
            work, shape = self._work(spark, plan, keys, views)
            asked = {table: reports[table].total() for table in self._scans}
        writer = self._writer(spark, work, shape)
        writer.count(self._scans, asked)
        if is_dry:
            return replace(self._report(work, writer, None), is_dry=True)
        if self._entry.mode == "append" and work.values is not None and not work.values:
            return self._nothing(ALREADY_APPENDED, is_dry=False)
        what = "all of the table" if work.values is None else f"{len(work.values)} partitions"
        _log.info("%s: making %s (%s)", self._query.name, what, work.reason)
        if self._entry.mode == "upsert" and self._query.depends_on_partition and len(work.why) > 1:
            return self._one_by_one(spark, work, shape, wanted)
        return self._made(writer, work, shape, wanted, is_part=bool(keys))

    def _require_green_mirrors(self) -> None:
        if self._auditor is not None:
            self._verdicts = tuple(self._auditor.mirrors(self._config, self._scans))
            require_green_mirrors(self._query.name, self._verdicts)

    def _one_by_one(self, spark: SparkSession, work: Work, shape: ResultShape, wanted: PublishedState) -> PublishReport:
        """A snapshot for each partition, whose rows may have keys of those before it; the last one tells that all are made."""
        *before, last = [replace(work, why={key: reasons}) for key, reasons in work.why.items()]
        made = [self._made(self._writer(spark, part, shape), part, shape, wanted, is_part=True) for part in before]
        return joined([*made, self._made(self._writer(spark, last, shape), last, shape, wanted, is_part=False)])

    def _writer(self, spark: SparkSession, work: Work, shape: ResultShape) -> WorkWriter:
        return WorkWriter(spark, self._config, self._entry, self._query, self._scans, work=work, shape=shape)

    def _made(
        self, writer: WorkWriter, work: Work, shape: ResultShape, wanted: PublishedState, *, is_part: bool
    ) -> PublishReport:
        """Write and commit in one snapshot."""
        publication = self._publication(work, shape, writer, is_part=is_part)
        condemned = condemn_abandoned(self._table)
        publication.obsolete = partial(branches_of, condemned=condemned)
        found: list[Verdict] = []
        if self._auditor is not None:
            publication.audit = partial(self._audit, self._auditor, work, wanted.query, found)
        try:
            published = publication.commit(writer, self._told(work, wanted, is_part=is_part))
        except (CommitConflictError, ConfigError):
            writer.end()
            raise
        except CheckFailedError:
            writer.refuse()
            raise
        writer.end()
        writer.leftover_files += remove_abandoned(find_table(self._catalog, self._query.name), condemned)
        return self._report(work, writer, published, found)

    def _audit(self, auditor: Auditor, work: Work, query: str, found: list[Verdict], staged: StagedSnapshot) -> None:
        """Have staged rows checked; `found` then has the verdicts.

        Raises:
            CheckFailedError: they are wrong.
        """
        rows = StagedRows(
            name=self._query.name,
            mode=self._entry.mode,
            staged=staged,
            keys=tuple(work.why) if work.values is not None or self._query.depends_on_partition else None,
            values=work.values,
            query=query,
            sources=snapshots_read(self._scans),
        )
        found[:] = auditor.rows(self._config, rows)
        require_green_rows(rows, found)

    def _work(
        self, spark: SparkSession, plan: RefreshPlan, keys: Sequence[str], views: Mapping[str, str]
    ) -> tuple[Work, ResultShape]:
        result = query_result(spark, self._query, views, sample_arguments(self._entry, self._query))
        shape = result_shape(self._entry, self._query, result)
        self._require_incremental()  # not before it is told what is wrong with the SQL itself, and which columns it lacks
        finder = WorkFinder(self._entry, self._query, self._base, self._table)
        work = finder.asked_for(keys, shape) if keys else finder.planned(spark, plan, shape, views)
        return work_without(work, self._done.keys, self._entry, self._query, shape), shape

    def _require_incremental(self) -> None:
        if (why := check_incremental(self._config, self._query.name, self._scans)) is not None:
            raise ConfigError(
                f"published {self._query.name}: incremental: true, but partitions cannot be told from changed rows: {why}; "
                "write incremental: auto to make all where they cannot"
            )

    def _publication(self, work: Work, shape: ResultShape, writer: WorkWriter, *, is_part: bool) -> Publication:
        """The commit; what a plan for the whole table began from must still be there, parts can be made at any time."""
        entry = self._entry
        key = entry.key if entry.mode == "upsert" else ()
        target = PublishedTarget(
            self._catalog, self._query.name, shape.columns, entry.partitioning, entry.mode, key, entry.properties
        )

        def holds(table: Any) -> bool:
            writer.check()
            if entry.mode == "append":
                return appended(table, self._from) == self._done
            return is_part or entry.mode == "upsert" or table.metadata.current_snapshot_id == self._base.snapshot_id

        appends = remembered(self._from, work.why if is_part else None) if entry.mode == "append" else {}
        return Publication(target, work.values, holds, appends, run=lambda: writer.run)

    def _told(self, work: Work, wanted: PublishedState, *, is_part: bool) -> dict[str, str]:
        """What the snapshot says of its rows."""
        told = {QUERY: wanted.query, SOURCES: self._from}
        told |= told_checks(None if self._auditor is None else self._verdicts)
        told |= {SOURCE + name: str(i) for name, i in snapshots_read(self._scans).items()}
        if is_part:
            return told | {PARTITIONS: partitions_json(work.why)}
        return told if self._entry.mode == "append" else told | {STATE: wanted.as_json()}

    def _nothing(self, reason: str, *, is_dry: bool) -> PublishReport:
        made = PublishReport(self._query.name, (), reason, {}, {}, 0, 0, 0, self._base.snapshot_id)
        return replace(made, is_dry=is_dry, is_unchanged=True, mode=self._entry.mode)

    def _report(
        self, work: Work, writer: WorkWriter, published: Published | None, found: Sequence[Verdict] = ()
    ) -> PublishReport:
        files = () if published is None else published.files
        deletes = () if published is None else published.delete_files
        return PublishReport(
            name=self._query.name,
            partitions=None if work.values is None else tuple(work.why),
            reason=work.reason,
            why=work.why,
            changed_rows=work.changed_rows,
            rows=sum(file.record_count for file in files),
            data_files=len(files),
            bytes_written=sum(file.file_size_bytes for file in (*files, *deletes)),
            snapshot_id=None if published is None else published.committed.snapshot_id,
            reads=dict(writer.reads),
            mode=self._entry.mode,
            written=writer.written,
            copied_rows=writer.copied_rows,
            delete_rows=sum(file.record_count for file in deletes),
            leftover_files=writer.leftover_files,
            is_unchecked=self._auditor is None,
            checks=(*self._verdicts, *found),
        )
