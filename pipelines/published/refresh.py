"""Published tables brought up to date: what changes of the mirrors reach is made anew, in one snapshot.

Imports pyspark. What there is to make is decided by `refresh_plan.py` and `refresh_work.py`.
"""

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any
from uuid import uuid4

from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.functions import col

from pipelines.catalog import find_table, open_catalog
from pipelines.config import Config, PublishedConfig
from pipelines.errors import ConfigError, PublishError
from pipelines.published.entries import arguments, published_entry, published_query, requested_partitions
from pipelines.published.mirror_reads import MirrorRead, mirror_scans, read_of, snapshots_read, views_of
from pipelines.published.partition_rows import query_result, rows_of
from pipelines.published.query import PublishedQuery
from pipelines.published.refresh_commit import RefreshTarget, commit_refresh
from pipelines.published.refresh_plan import MakeNothing, plan_refresh, why_never_incremental
from pipelines.published.refresh_report import PublishReport
from pipelines.published.refresh_work import (
    ResultShape,
    Work,
    WorkFinder,
    last_partition,
    result_shape,
    sample_arguments,
)
from pipelines.published.state import PARTITIONS, STATE, base_of, current_state, partitions_json
from pipelines.published.task import PublishTask
from pipelines.published.writer import QueryRows, file_layout, spark_message
from pipelines.spark.place import project_session
from pipelines.tables.commit import RowDelta, retry_conflicts
from pipelines.tables.file_metrics import WrittenFile
from pipelines.tables.leftover_files import remove_leftovers
from scan_core.metrics import ScanMetrics
from scan_core.scan import Scan


def publish(
    config: Config,
    name: str,
    *,
    partitions: Sequence[str] = (),
    is_full: bool = False,
    is_dry: bool = False,
    master: str | None = None,
    remote: str | None = None,
) -> PublishReport:
    """Bring a published table up to date in one snapshot.

    Of an incremental table only the partitions are made that changes of the mirrors since the last run can have reached,
    where that is certain; else all. The result is always that of making all.

    Args:
        config: the project.
        name: an entry of `published`.
        partitions: make these, whatever changed: keys, or `FIRST..LAST`.
        is_full: make all, whatever changed.
        is_dry: say what would be made, and make nothing.
        master: where Spark runs, instead of what the config says; a session that runs already is used in any case.
        remote: a Spark Connect server, likewise.

    Raises:
        ConfigError: an unknown name or partition, SQL that cannot run, or a table that does not fit its result.
        PublishError: a mirror does not exist yet, or the Spark job failed; nothing is published.
        CommitConflictError: others kept changing the published table.
        MissingRuntimeError: no Java.
    """
    entry = published_entry(config, name)
    query = published_query(config, name)
    keys = requested_partitions(config, name, partitions, is_full=is_full)

    def attempt() -> PublishReport:
        return _Run(config, entry, query, place=(master, remote)).make(keys, is_full=is_full, is_dry=is_dry)

    return retry_conflicts(attempt)


def check_incremental(config: Config, name: str, scans: Mapping[str, Scan] | None = None) -> str | None:
    """Why `incremental: true` could never hold for a table; None where it can, or was not asked for.

    Raises:
        PublishError: a mirror does not exist yet.
    """
    entry, query = published_entry(config, name), published_query(config, name)
    if entry.incremental is not True:
        return None
    scans = scans or mirror_scans(open_catalog(config), query)
    return query.unrepeatable or why_never_incremental(entry, query, scans)


class _Run:
    """One attempt, over one state of mirrors and published table."""

    def __init__(
        self, config: Config, entry: PublishedConfig, query: PublishedQuery, place: tuple[str | None, str | None]
    ) -> None:
        self._config = config
        self._entry = entry
        self._query = query
        self._place = place
        self._catalog = open_catalog(config)
        self._scans = mirror_scans(self._catalog, query)
        self._table = find_table(self._catalog, query.name)
        self._base = base_of(self._table)
        self._reads: dict[str, MirrorRead] = {}
        if (why := check_incremental(config, query.name, self._scans)) is not None:
            raise ConfigError(
                f"published {query.name}: incremental: true, but partitions cannot be told from changed rows: {why}; "
                "write incremental: auto to make all where they cannot"
            )

    def make(self, keys: Sequence[str], *, is_full: bool, is_dry: bool) -> PublishReport:
        """Make and commit what there is to make, or only say what that is."""
        wanted = current_state(self._config, self._entry, self._scans, last_partition(self._entry, self._query))
        plan = plan_refresh(self._entry, self._query, self._scans, self._base, wanted, is_full=is_full)
        if not keys and isinstance(plan, MakeNothing):
            nothing = self._report(Work(frozenset(), plan.reason), (), self._base.snapshot_id, is_dry=is_dry)
            return replace(nothing, is_unchanged=True)
        spark = project_session(self._config.spark.at(*self._place))
        finder = WorkFinder(self._entry, self._query, self._base, self._table)
        with views_of(spark, self._scans, self._config.spark.reports) as (views, reports):
            result = query_result(spark, self._query, views, sample_arguments(self._entry, self._query))
            shape = result_shape(self._entry, self._query, result)
            work = finder.asked_for(keys, shape) if keys else finder.planned(spark, plan, shape, views)
            self._count(self._scans, {table: reports[table].total() for table in self._scans})
        if is_dry:
            return self._report(work, (), None, is_dry=True)
        target = RefreshTarget(self._catalog, self._query.name, shape.columns, self._entry.partitioning)
        delta = target.delta(self._base.snapshot_id)
        files = self._write(spark, delta, work, shape)
        told = {f"nevermore.source.{name}": str(i) for name, i in snapshots_read(self._scans).items()}
        told |= {PARTITIONS: partitions_json(set(work.why))} if keys else {STATE: wanted.as_json()}
        committed = commit_refresh(delta, files, told, work.values)
        return self._report(work, files, committed.snapshot_id, is_dry=False)

    def _write(self, spark: SparkSession, delta: RowDelta, work: Work, shape: ResultShape) -> tuple[WrittenFile, ...]:
        run = uuid4().hex[:12]
        layout = file_layout(self._entry.options)
        task = PublishTask(target=delta.target, spec=delta.default_spec, layout=layout, run=run)
        files: list[WrittenFile] = []
        try:
            for key, values in self._jobs(work, shape):
                files += self._write_one(spark, task, key, values, shape)
        except PySparkException as error:
            delta.discard(files)
            raise PublishError(f"published {self._query.name}: the Spark job failed: {spark_message(error)}") from error
        except PublishError:
            delta.discard(files)
            raise
        paths = {file.path for file in files}
        remove_leftovers(delta.storage, {path.rpartition("/")[0] for path in paths}, run, paths)
        return tuple(files)

    def _jobs(self, work: Work, shape: ResultShape) -> Iterator[tuple[str | None, frozenset[Any] | None]]:
        """(key for parameters, values of the partition field) of each query to run."""
        partition = self._entry.partitioning
        if partition is not None and shape.partition is not None and self._query.depends_on_partition:
            for key in work.why:
                yield key, frozenset({partition.physical(key, shape.partition.type)})
        elif work.values is None or work.values:
            yield None, work.values

    def _write_one(
        self,
        spark: SparkSession,
        task: PublishTask,
        key: str | None,
        values: Collection[Any] | None,
        shape: ResultShape,
    ) -> Sequence[WrittenFile]:
        """The files of one query, of some partitions or of all."""
        partition = self._entry.partitioning
        scans: Mapping[str, Scan] = self._scans
        if partition is not None and values is not None:
            schemas = {table: scan.table.schema for table, scan in scans.items()}
            conditions = self._query.conditions(schemas, partition, values)
            scans = {t: scan.where(conditions[t].sql) if t in conditions else scan for t, scan in scans.items()}
        with views_of(spark, scans, self._config.spark.reports) as (views, reports):
            result = query_result(spark, self._query, views, arguments(self._query, self._entry, key))
            if partition is not None and shape.partition is not None and values is not None:
                result = rows_of(result, partition, shape.partition.type, values)
            written = QueryRows(self._query.name, self._spread(result, values), self._entry).write(task)
            self._count(scans, {table: reports[table].total() for table in scans})
        return written.files

    def _spread(self, result: DataFrame, values: Collection[Any] | None) -> DataFrame:
        """Rows of one partition in few tasks, where there are several: else each task writes a file of each."""
        partition = self._entry.partitioning
        is_one = values is not None and len(values) == 1
        if partition is None or is_one or self._entry.options.distribution != "none":
            return result
        return result.hint("rebalance", col(f"`{partition.column}`"))

    def _count(self, scans: Mapping[str, Scan], metrics: Mapping[str, ScanMetrics]) -> None:
        for table, scan in scans.items():
            read, before = read_of(scan, metrics[table]), self._reads.get(table)
            self._reads[table] = read if before is None else replace(read, metrics=before.metrics + read.metrics)

    def _report(
        self, work: Work, files: Sequence[WrittenFile], snapshot_id: int | None, *, is_dry: bool
    ) -> PublishReport:
        return PublishReport(
            name=self._query.name,
            partitions=None if work.values is None else tuple(work.why),
            reason=work.reason,
            why=work.why,
            changed_rows=work.changed_rows,
            rows=sum(file.record_count for file in files),
            data_files=len(files),
            bytes_written=sum(file.file_size_bytes for file in files),
            snapshot_id=snapshot_id,
            reads=dict(self._reads),
            is_dry=is_dry,
        )
