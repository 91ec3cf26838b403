"""Published tables brought up to date: what changes of the mirrors reach is made anew, in one snapshot.

Imports pyspark. What there is to make is decided by `refresh_plan.py`; Spark says which partitions changed rows are part
of, and makes them.
"""

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Any
from uuid import uuid4

from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.functions import col

from pipelines.catalog import find_table, open_catalog
from pipelines.changed_partitions import Reached, reached_partitions
from pipelines.commit import RowDelta, retry_conflicts
from pipelines.config import Config, PublishedConfig
from pipelines.errors import ConfigError, PublishError
from pipelines.file_metrics import WrittenFile
from pipelines.leftover_files import remove_leftovers
from pipelines.mirror_reads import MirrorRead, mirror_scans, read_of, snapshots_read, views_of
from pipelines.partition_rows import partition_field, query_result, require_columns, rows_of
from pipelines.published_entries import arguments, published_entry, published_query
from pipelines.published_partition import FORMATS, PublishedPartition
from pipelines.published_query import PublishedQuery
from pipelines.published_state import (
    PARTITIONS,
    STATE,
    Base,
    PublishedState,
    base_of,
    current_state,
    partitions_json,
)
from pipelines.published_task import PublishTask
from pipelines.published_writer import QueryRows, file_layout, iceberg_columns, spark_message
from pipelines.refresh_commit import RefreshTarget, commit_refresh
from pipelines.refresh_plan import MakeAll, MakeNothing, MakeReached, RefreshPlan, plan_refresh, why_never_incremental
from pipelines.refresh_report import PublishReport
from pipelines.spark_place import project_session
from scan_core.metrics import ScanMetrics
from scan_core.scan import Scan
from scan_core.schema import NestedField
from scan_core.table import open_table

ASKED_FOR = "asked for"
NEW = "new since the last run"


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
    if entry.mode != "replace":
        raise ConfigError(f"published {name} has mode: {entry.mode}, by partition: nevermore materialize {name}")
    if partitions and entry.partitioning is None:
        raise ConfigError(f"published {name} has no partitions: leave out --partition")
    if partitions and is_full:
        raise ConfigError("--full makes all partitions; leave out --partition")
    keys = [key for text in partitions for key in (entry.partitioning.keys(text) if entry.partitioning else ())]

    def attempt() -> PublishReport:
        run = _Run(config, entry, query, project=(master, remote))
        return run.dry(keys, is_full=is_full) if is_dry else run.make(keys, is_full=is_full)

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


@dataclass(frozen=True, slots=True)
class _Work:
    """What to make: `values` of the partition field, None for all; `why` by key."""

    values: frozenset[Any] | None
    reason: str
    why: Mapping[str, tuple[str, ...]]
    changed_rows: Mapping[str, int]


class _Run:
    """One attempt, over one state of mirrors and published table."""

    def __init__(
        self, config: Config, entry: PublishedConfig, query: PublishedQuery, project: tuple[str | None, str | None]
    ) -> None:
        self._config = config
        self._entry = entry
        self._query = query
        self._place = project
        self._catalog = open_catalog(config)
        self._scans = mirror_scans(self._catalog, query)
        self._table = find_table(self._catalog, query.name)
        self._base: Base = base_of(self._table)
        self._reads: dict[str, MirrorRead] = {}
        if (why := check_incremental(config, query.name, self._scans)) is not None:
            raise ConfigError(
                f"published {query.name}: incremental: true, but partitions cannot be told from changed rows: {why}; "
                "write incremental: auto to make all where they cannot"
            )

    def dry(self, keys: Sequence[str], *, is_full: bool) -> PublishReport:
        """What `make` would do."""
        plan = self._plan(is_full=is_full)
        if not keys and isinstance(plan, MakeNothing):
            return self._nothing(plan, is_dry=True)
        spark = self._spark()
        work = self._work(spark, self._field(spark), plan, keys)
        return self._report(work, (), None, is_dry=True)

    def make(self, keys: Sequence[str], *, is_full: bool) -> PublishReport:
        """Make and commit what there is to make."""
        plan = self._plan(is_full=is_full)
        if not keys and isinstance(plan, MakeNothing):
            return self._nothing(plan, is_dry=False)
        spark = self._spark()
        field = self._field(spark)
        work = self._work(spark, field, plan, keys)
        columns = self._columns(spark)
        target = RefreshTarget(self._catalog, self._query.name, columns, self._entry.partitioning)
        delta = target.delta(self._base.snapshot_id)
        files = self._write(spark, delta, work, field)
        told = {f"nevermore.source.{name}": str(i) for name, i in snapshots_read(self._scans).items()}
        if keys:
            told[PARTITIONS] = partitions_json(set(keys))
        else:
            told[STATE] = self._wanted.as_json()
        committed = commit_refresh(delta, files, told, work.values)
        return self._report(work, files, committed.snapshot_id)

    # -- what to make ----------------------------------------------------------------------------------------------

    @property
    def _wanted(self) -> PublishedState:
        return current_state(self._config, self._entry, self._scans, self._until)

    @property
    def _until(self) -> str | None:
        """The last partition there is by now, of SQL that asks for its partition."""
        partition = self._entry.partitioning
        if partition is None or not partition.is_time or not self._query.depends_on_partition:
            return None
        return datetime.now(UTC).strftime(FORMATS[partition.unit])

    def _plan(self, *, is_full: bool) -> RefreshPlan:
        return plan_refresh(self._entry, self._query, self._scans, self._base, self._wanted, is_full=is_full)

    def _work(self, spark: SparkSession, field: NestedField | None, plan: RefreshPlan, keys: Sequence[str]) -> _Work:
        partition = self._entry.partitioning
        if keys and partition is not None and field is not None:
            values = frozenset(partition.physical(key, field.type) for key in keys)
            return _Work(values, ASKED_FOR, dict.fromkeys(keys, (ASKED_FOR,)), {})
        if isinstance(plan, MakeReached) and partition is not None and field is not None:
            try:
                reached = self._reached(spark, plan, partition, field)
            except PySparkException as error:
                plan = MakeAll(f"what changed rows reach cannot be told: {spark_message(error)}")
            else:
                return self._work_of(plan, reached, partition, field)
        reason = plan.reason if isinstance(plan, MakeAll | MakeNothing) else "the table has no partition"
        if partition is None or field is None or not self._query.depends_on_partition:
            return _Work(None, reason, {}, {})
        offered = frozenset(partition.physical(key, field.type) for key in self._offered(partition, field))
        return _Work(None, reason, {partition.key_of(v, field.type): () for v in offered}, {})

    def _work_of(self, plan: MakeReached, reached: Reached, partition: PublishedPartition, field: NestedField) -> _Work:
        why: dict[str, list[str]] = {key: [reason] for key, reason in plan.keys.items()}
        for table, values in reached.by_table.items():
            for value in values:
                why.setdefault(partition.key_of(value, field.type), []).append(table)
        if self._query.depends_on_partition:
            offered = self._offered(partition, field)
            until = self._base.state.until if self._base.state else None
            if partition.is_time and until is not None:
                new = (key for key in offered if partition.period(key).start > partition.period(until).start)
                why |= {key: [*why.get(key, []), NEW] for key in new}
            why = {key: reasons for key, reasons in why.items() if key in offered}
        values = frozenset(partition.physical(key, field.type) for key in why)
        reason = f"changed: {', '.join(t for t, n in reached.changed_rows.items() if n)}" if reached.values else ""
        told = {key: tuple(reasons) for key, reasons in sorted(why.items())}
        return _Work(values, reason or "no change reaches a partition", told, reached.changed_rows)

    def _reached(
        self, spark: SparkSession, plan: MakeReached, partition: PublishedPartition, field: NestedField
    ) -> Reached:
        if not plan.changes:
            return Reached({}, {})
        with views_of(spark, self._scans, self._config.spark.reports) as (views, reports):
            result = query_result(spark, self._query, views, self._arguments(None))
            reached = reached_partitions(
                spark,
                self._query,
                plan,
                views,
                partition=partition,
                kind=field.type,
                spark_type=result.schema[partition.column].dataType.simpleString(),
            )
            self._count(self._scans, {table: reports[table].total() for table in self._scans})
        return reached

    def _offered(self, partition: PublishedPartition, field: NestedField) -> list[str]:
        """The partitions there are, of SQL that is run for each of them: those configured, and those that exist."""
        found = list(self._entry.values)
        if self._until is not None:
            if self._entry.start is None:
                raise ConfigError(
                    f"published {self._query.name}: the SQL asks for its partition; say from which one on there are "
                    f"any: start: {self._until!r}"
                )
            found = partition.keys(f"{self._entry.start}..{self._until}")
        if self._table is not None and self._base.snapshot_id is not None:
            tasks = open_table(self._table).scan().plan().tasks
            found += [partition.key_of(task.data_file.partition[0], field.type) for task in tasks]
        return list(dict.fromkeys(found))

    # -- making it -------------------------------------------------------------------------------------------------

    def _spark(self) -> SparkSession:
        return project_session(self._config.spark.at(*self._place))

    def _arguments(self, key: str | None) -> dict[str, Any]:
        """Values of parameters; without a key some partition, for the types alone."""
        partition = self._entry.partitioning
        if key is None and partition is not None and self._query.depends_on_partition:
            key = datetime.now(UTC).strftime(FORMATS[partition.unit]) if partition.is_time else ""
        return arguments(self._query, self._entry, key)

    def _columns(self, spark: SparkSession) -> tuple[NestedField, ...]:
        with views_of(spark, self._scans, None) as (views, _):
            result = query_result(spark, self._query, views, self._arguments(None))
            require_columns(
                self._query.name, result, (*self._entry.sort_by, *self._entry.options.bloom_filters, *self._entry.key)
            )
            return iceberg_columns(self._query.name, result)

    def _field(self, spark: SparkSession) -> NestedField | None:
        """The partition column of the result."""
        if self._entry.partitioning is None:
            return None
        with views_of(spark, self._scans, None) as (views, _):
            result = query_result(spark, self._query, views, self._arguments(None))
            return partition_field(self._query.name, result, self._entry.partitioning)

    def _write(
        self, spark: SparkSession, delta: RowDelta, work: _Work, field: NestedField | None
    ) -> tuple[WrittenFile, ...]:
        run = uuid4().hex[:12]
        layout = file_layout(self._entry.options)
        task = PublishTask(target=delta.target, spec=delta.default_spec, layout=layout, run=run)
        files: list[WrittenFile] = []
        try:
            for key, values in self._jobs(work, field):
                files += self._write_one(spark, task, key, values, field)
        except PySparkException as error:
            delta.discard(files)
            raise PublishError(f"published {self._query.name}: the Spark job failed: {spark_message(error)}") from error
        except PublishError:
            delta.discard(files)
            raise
        paths = {file.path for file in files}
        remove_leftovers(delta.storage, {path.rpartition("/")[0] for path in paths}, run, paths)
        return tuple(files)

    def _jobs(self, work: _Work, field: NestedField | None) -> Iterator[tuple[str | None, frozenset[Any] | None]]:
        """(key for parameters, values of the partition field) of each query to run."""
        partition = self._entry.partitioning
        if partition is not None and field is not None and self._query.depends_on_partition:
            for key in work.why:
                yield key, frozenset({partition.physical(key, field.type)})
        elif work.values is None or work.values:
            yield None, work.values

    def _write_one(
        self,
        spark: SparkSession,
        task: PublishTask,
        key: str | None,
        values: Collection[Any] | None,
        field: NestedField | None,
    ) -> Sequence[WrittenFile]:
        partition = self._entry.partitioning
        scans: Mapping[str, Scan] = self._scans
        if partition is not None and values is not None:
            schemas = {table: scan.table.schema for table, scan in scans.items()}
            conditions = self._query.conditions(schemas, partition, values)
            scans = {t: scan.where(conditions[t].sql) if t in conditions else scan for t, scan in scans.items()}
        with views_of(spark, scans, self._config.spark.reports) as (views, reports):
            result = query_result(spark, self._query, views, self._arguments(key))
            if partition is not None and field is not None and values is not None:
                result = rows_of(result, partition, field.type, values)
            result = self._spread(result, values)
            written = QueryRows(self._query.name, result, self._entry).write(task)
            self._count(scans, {table: reports[table].total() for table in scans})
        return written.files

    def _spread(self, result: DataFrame, values: Collection[Any] | None) -> DataFrame:
        """Rows of one partition in few tasks, where there are several: else each task writes a file of each."""
        partition = self._entry.partitioning
        is_one = values is not None and len(values) == 1
        if partition is None or is_one or self._entry.options.distribution != "none":
            return result
        return result.hint("rebalance", col(f"`{partition.column}`"))

    # -- what was done ---------------------------------------------------------------------------------------------

    def _count(self, scans: Mapping[str, Scan], metrics: Mapping[str, ScanMetrics]) -> None:
        for table, scan in scans.items():
            read = read_of(scan, metrics[table])
            before = self._reads.get(table)
            self._reads[table] = read if before is None else replace(read, metrics=before.metrics + read.metrics)

    def _nothing(self, plan: MakeNothing, *, is_dry: bool) -> PublishReport:
        work = _Work(frozenset(), plan.reason, {}, {})
        return replace(self._report(work, (), self._base.snapshot_id, is_dry=is_dry), is_unchanged=True)

    def _report(
        self, work: _Work, files: Sequence[WrittenFile], snapshot_id: int | None, *, is_dry: bool = False
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
