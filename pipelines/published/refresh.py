"""Published tables brought up to date: what changes of the mirrors reach, or what was asked for, in one snapshot.

Imports pyspark. What there is to make is decided by `refresh_plan.py` and `refresh_work.py`, written by `work_writer.py`
and committed by `commit.py`.
"""

import logging
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from pyspark.sql import SparkSession

from pipelines.catalog import find_table, open_catalog
from pipelines.config import Config, PublishedConfig
from pipelines.errors import CommitConflictError, ConfigError
from pipelines.published.abandoned_runs import branches_of, condemn_abandoned, remove_abandoned
from pipelines.published.appended import SOURCES, Appended, appended, fingerprint, remembered
from pipelines.published.audit import (
    Auditor,
    CheckFailedError,
    StagedRows,
    Verdict,
    require_green_mirrors,
    require_green_rows,
    told_checks,
)
from pipelines.published.commit import Publication, Published, PublishedTarget
from pipelines.published.entries import published_entry, published_query, requested_partitions
from pipelines.published.mirror_reads import mirror_scans, snapshots_read, views_of
from pipelines.published.partition_rows import query_result
from pipelines.published.provenance import SOURCE
from pipelines.published.query import PublishedQuery
from pipelines.published.refresh_plan import MakeAll, MakeNothing, RefreshPlan, plan_refresh, why_never_incremental
from pipelines.published.refresh_report import PublishReport, joined
from pipelines.published.refresh_work import (
    ResultShape,
    Work,
    WorkFinder,
    last_partition,
    result_shape,
    sample_arguments,
    work_without,
)
from pipelines.published.state import PARTITIONS, QUERY, STATE, PublishedState, base_of, current_state, partitions_json
from pipelines.published.work_writer import WorkWriter
from pipelines.recovery import open_for_writing
from pipelines.spark.place import project_session
from pipelines.tables.commit import retry_conflicts
from pipelines.tables.staged_commit import StagedSnapshot
from scan_core.scan import Scan

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
