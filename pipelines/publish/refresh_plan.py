"""Decides what a run of a published table makes: nothing, everything, or some partitions.

Partitions are those that changes reach or that a user asked for. The work is done in `refresh.py`. This module
imports pyspark.
"""

from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from typing import Any, assert_never
from uuid import uuid4

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f
from sqlglot import exp

from pipelines.config.project import PublishedConfig
from pipelines.config.publish_partition import FORMATS, PublishedPartition
from pipelines.errors import ConfigError
from pipelines.publish.lineage.partition_lineage import OF_CHANGED, Reach
from pipelines.publish.lineage.query_tree import DIALECT
from pipelines.publish.mirror_reads import TIMES, changed_rows
from pipelines.publish.query import PublishedQuery, arguments
from pipelines.publish.state import Base, PublishedState
from pipelines.publish.writer import SPARK_FAILURES, iceberg_columns, partition_field, require_columns, spark_message
from scan_core import Changes, FileChanges, NestedField, Scan, ScanError, Type, arrow_type, file_changes, open_table


@dataclass(frozen=True, slots=True)
class MakeNothing:
    """The table reflects its mirrors."""

    reason: str


@dataclass(frozen=True, slots=True)
class MakeAll:
    """Every row is made anew."""

    reason: str


@dataclass(frozen=True, slots=True)
class MakeReached:
    """Partitions that changes can have reached are made anew.

    Attributes:
        reaches: of tables that changed, called as in `PublishedQuery.view_names`; all have values.
        changes: rows that came and went, by table of the config.
        keys: partitions to make in any case, with the reason.
    """

    reaches: tuple[Reach, ...]
    changes: Mapping[str, Changes]
    keys: Mapping[str, str]


RefreshPlan = MakeNothing | MakeAll | MakeReached


def plan_refresh(
    entry: PublishedConfig,
    query: PublishedQuery,
    scans: Mapping[str, Scan],
    base: Base,
    wanted: PublishedState,
    *,
    is_full: bool = False,
) -> RefreshPlan:
    """What to make so that the table reflects `wanted`.

    Args:
        entry: of the config.
        query: its SQL.
        scans: of the mirrors, with the columns that the query needs.
        base: what the table holds.
        wanted: what it is to hold.
        is_full: all was asked for.
    """
    if is_full:
        return MakeAll("all was asked for")
    state = base.state
    if state is None:
        return MakeAll(base.why_unknown)
    if state.query != wanted.query:
        return MakeAll("the SQL, its parameters or its settings changed")
    schemas = {table: scan.table.schema for table, scan in scans.items()}
    if (reason := query.why_unrepeatable(schemas)) is not None:
        return MakeAll(reason)
    changed = [table for table in query.tables if state.sources.get(table) != wanted.sources[table]]
    if not changed and not base.made_since and state.until == wanted.until:
        return MakeNothing("no mirror changed")
    if not entry.incremental or entry.partitioning is None:
        return MakeAll(f"changed: {', '.join(changed)}" if changed else "partitions were made alone since")
    return _reached(entry, query, scans, base=base, wanted=wanted, changed=changed)


def why_never_incremental(entry: PublishedConfig, query: PublishedQuery, scans: Mapping[str, Scan]) -> str | None:
    """Why no change of any mirror would ever be traced to partitions; None if some would."""
    if entry.partitioning is None:
        return "the table has no partition"
    reaches = query.reaches({table: scan.table.schema for table, scan in scans.items()}, entry.partitioning)
    known = {r.table for r in reaches} - {r.table for r in reaches if r.values is None}
    return None if known else next((r.reason for r in reaches if r.values is None), "the SQL reads no table")


def _reached(
    entry: PublishedConfig,
    query: PublishedQuery,
    scans: Mapping[str, Scan],
    *,
    base: Base,
    wanted: PublishedState,
    changed: list[str],
) -> RefreshPlan:
    state, partition = base.state, entry.partitioning
    if state is None or partition is None:
        raise ConfigError(f"published {query.name}: nothing to start from")
    found: list[Reach] = []
    changes: dict[str, Changes] = {}
    schemas = {table: scan.table.schema for table, scan in scans.items()}
    reaches = query.reaches(schemas, partition)
    for table in changed:
        before, after = state.sources.get(table), wanted.sources[table]
        if before is None or before.uuid != after.uuid:
            return MakeAll(f"{table} is another table than before")
        if before.columns != after.columns:
            return MakeAll(f"columns of {table} that the SQL reads have changed")
        try:
            between = _changes(scans[table], before.snapshot_id)
            differing = _differing(between)
        except ScanError as error:
            return MakeAll(f"what changed in {table} cannot be found any more: {error}")
        if not (differing.may_insert or differing.may_delete):
            continue
        of_table = [reach for reach in reaches if reach.table == query.view_names[table]]
        if (unknown := next((r for r in of_table if r.values is None), None)) is not None:
            return MakeAll(f"{table} changed, and its rows cannot be traced to partitions: {unknown.reason}")
        found += of_table
        changes[table] = between
    keys = dict.fromkeys(sorted(base.made_since), "made alone since the last run")
    return MakeReached(tuple(found), changes, keys)


def _changes(scan: Scan, since: int | None) -> Changes:
    """Rows that came or went in the columns that the query needs; a row that changed in others only did neither."""
    found = scan.changes(since)
    return replace(found, schema=found.context.projection)


def _differing(changes: Changes) -> FileChanges:
    """The files in which the snapshots differ."""
    if changes.to_snapshot is None:
        return FileChanges()
    return file_changes(changes.metadata, changes.from_snapshot, changes.to_snapshot, changes.context)


def told(plan: RefreshPlan) -> str:
    """The plan in one sentence."""
    match plan:
        case MakeNothing(reason):
            return f"nothing to make: {reason}"
        case MakeAll(reason):
            return f"all partitions: {reason}"
        case MakeReached(changes=changes):
            return f"partitions that changes of {', '.join(changes)} reach" if changes else "no rows changed"
        case _:
            assert_never(plan)


@dataclass(frozen=True, slots=True)
class Reached:
    """What changes reach.

    Attributes:
        by_table: values of the Iceberg partition field, by the table that changed.
        changed_rows: rows that came or went, in the columns that the query needs.
    """

    by_table: Mapping[str, frozenset[Any]]
    changed_rows: Mapping[str, int]

    @property
    def values(self) -> frozenset[Any]:
        """All of them."""
        return frozenset(value for values in self.by_table.values() for value in values)


def reached_partitions(
    spark: SparkSession,
    query: PublishedQuery,
    plan: MakeReached,
    views: Mapping[str, str],
    *,
    partition: PublishedPartition,
    kind: Type,
    spark_type: str,
) -> Reached:
    """The partitions that the changes of a plan can have reached.

    Args:
        spark: where views are.
        query: of the published table.
        plan: with changes.
        views: of the mirrors as they are now, by table.
        partition: by what the result is partitioned.
        kind: Iceberg type of its column.
        spark_type: the same in Spark's words.

    Raises:
        PySparkException: a query failed.
    """
    by_table: dict[str, frozenset[Any]] = {}
    num_changed: dict[str, int] = {}
    names = {view: views[table] for table, view in query.view_names.items()}
    for table, changes in plan.changes.items():
        rows = changed_rows(spark, changes)
        num_changed[table] = 0
        if rows is None:
            continue
        view = query.view_names[table]
        with _view_of(rows) as (changed, num_changed[table]):
            if not num_changed[table]:
                continue
            found = [
                spark.sql(
                    f"select distinct cast(k0 as {spark_type}) as k0 from "
                    f"({trace_text(reach.values, {**names, view + OF_CHANGED: changed})})"
                )
                for reach in plan.reaches
                if reach.table == view and reach.values is not None
            ]
            values: set[Any] = set()
            for frame in found:
                column = frame.toArrow().column("k0").combine_chunks()
                values |= partition.physical_values(_cast(column, arrow_type(kind)), kind)
            by_table[table] = frozenset(values)
    return Reached(by_table, num_changed)


@contextmanager
def _view_of(rows: DataFrame) -> Iterator[tuple[str, int]]:
    """A view of changed rows, which are read once, and how many there are."""
    name = f"nevermore_{uuid4().hex[:12]}"
    kept = rows.persist()
    try:
        (total,) = kept.agg(f.sum(TIMES)).collect()
        kept.drop(TIMES).createTempView(name)
        yield name, int(total[0] or 0)
    finally:
        rows.sparkSession.catalog.dropTempView(name)
        kept.unpersist()


def trace_text(query: exp.Select | None, names: Mapping[str, str]) -> str:
    """The text of a query of a `Reach`, with its tables called otherwise."""
    if query is None:
        raise ValueError("no query")
    copy = query.copy()
    for table in copy.find_all(exp.Table):
        if table.name in names:
            table.set("this", exp.to_identifier(names[table.name]))
    return str(copy.sql(dialect=DIALECT, identify=True))


def _cast(column: pa.Array, kind: pa.DataType) -> pa.Array:
    return column if column.type == kind else column.cast(kind)


ASKED_FOR = "asked for"
NEW = "new since the last run"
Why = Mapping[str, tuple[str, ...]]
"""By key of a partition, what made it necessary."""


@dataclass(frozen=True, slots=True)
class Work:
    """What to make.

    Attributes:
        values: of the Iceberg partition field; None for the whole table.
        reason: in one sentence.
        why: by key, as far as single partitions are known.
        changed_rows: of each mirror that changed.
        without: values of partitions that are left out of the whole table.
    """

    values: frozenset[Any] | None
    reason: str
    why: Why = field(default_factory=dict)
    changed_rows: Mapping[str, int] = field(default_factory=dict)
    without: frozenset[Any] = frozenset()


@dataclass(frozen=True, slots=True)
class ResultShape:
    """The columns of a result. `partition` is the column that partitions are made by; None for none."""

    columns: tuple[NestedField, ...]
    partition: NestedField | None
    spark_type: str = ""


def result_shape(entry: PublishedConfig, query: PublishedQuery, result: DataFrame) -> ResultShape:
    """The columns of a result, as the config wants them.

    Raises:
        ConfigError: one that the config names is missing, or of a type that cannot be.
    """
    by = entry.partitioning
    if by is None:
        found = ResultShape(iceberg_columns(query.name, result), None)
    else:
        column = partition_field(query.name, result, by)
        kind = result.schema[by.column].dataType.simpleString()
        found = ResultShape(iceberg_columns(query.name, result), column, kind)
    require_columns(query.name, result, (*entry.sort_by, *entry.options.bloom_filters, *entry.key))
    return found


def last_partition(entry: PublishedConfig, query: PublishedQuery) -> str | None:
    """The last partition there is by now, of SQL that asks for its partition; else None."""
    partition = entry.partitioning
    if partition is None or not partition.is_time or not query.depends_on_partition:
        return None
    return datetime.now(UTC).strftime(FORMATS[partition.unit])


def sample_arguments(entry: PublishedConfig, query: PublishedQuery) -> dict[str, Any]:
    """Values for the parameters when only the types of the result matter."""
    partition = entry.partitioning
    key = None
    if partition is not None and query.depends_on_partition:
        key = datetime.now(UTC).strftime(FORMATS[partition.unit]) if partition.is_time else ""
    return arguments(query, entry, key)


def work_without(
    work: Work, keys: Collection[str], entry: PublishedConfig, query: PublishedQuery, shape: ResultShape
) -> Work:
    """What is left to make where some partitions are made already."""
    partition = entry.partitioning
    if not keys or partition is None or shape.partition is None:
        return work
    kind = shape.partition.type
    done = frozenset(partition.physical(key, kind) for key in keys)
    why = {key: reasons for key, reasons in work.why.items() if partition.physical(key, kind) not in done}
    if work.values is not None:
        return replace(work, values=work.values - done, why=why)
    return replace(work, why=why, without=frozenset() if query.depends_on_partition else done)


class WorkFinder:
    """Finds the work of one run.

    Args:
        entry: of the config.
        query: its SQL.
        base: what the table holds.
        table: from the catalog; None if it does not exist.
    """

    def __init__(self, entry: PublishedConfig, query: PublishedQuery, base: Base, table: Any) -> None:
        self._entry = entry
        self._query = query
        self._base = base
        self._table = table

    def asked_for(self, keys: Sequence[str], shape: ResultShape) -> Work:
        """Partitions by their keys."""
        partition, kind = self._partition(shape)
        keys = [partition.canonical(key, kind) for key in keys]
        values = frozenset(partition.physical(key, kind) for key in keys)
        return Work(values, ASKED_FOR, dict.fromkeys(keys, (ASKED_FOR,)))

    def planned(self, spark: SparkSession, plan: RefreshPlan, shape: ResultShape, views: Mapping[str, str]) -> Work:
        """What a plan comes to; all, where Spark cannot tell what changed rows reach."""
        if isinstance(plan, MakeReached):
            partition, kind = self._partition(shape)
            try:
                reached = reached_partitions(
                    spark, self._query, plan, views, partition=partition, kind=kind, spark_type=shape.spark_type
                )
            except SPARK_FAILURES as error:
                plan = MakeAll(f"what changed rows reach cannot be told: {spark_message(error)}")
            else:
                return self._reached(plan, reached, shape)
        if shape.partition is None or not self._query.depends_on_partition:
            return Work(None, plan.reason)
        return Work(None, plan.reason, dict.fromkeys(self._offered(shape), ()))

    def _partition(self, shape: ResultShape) -> tuple[PublishedPartition, Type]:
        partition = self._entry.partitioning
        if partition is None or shape.partition is None:
            raise ConfigError(f"published {self._query.name} has no partitions")
        return partition, shape.partition.type

    def _reached(self, plan: MakeReached, reached: Reached, shape: ResultShape) -> Work:
        partition, kind = self._partition(shape)
        why = {partition.canonical(key, kind): [reason] for key, reason in plan.keys.items()}
        for table, values in reached.by_table.items():
            for value in values:
                why.setdefault(partition.key_of(value, kind), []).append(table)
        if self._query.depends_on_partition:
            offered = self._offered(shape)
            until = self._base.state.until if self._base.state is not None else None
            if partition.is_time and until is not None:
                for key in offered:
                    if partition.period(key).start > partition.period(until).start:
                        why.setdefault(key, []).append(NEW)
            why = {key: reasons for key, reasons in why.items() if key in offered}
        changed = [table for table, count in reached.changed_rows.items() if count]
        reason = f"changed: {', '.join(changed)}" if reached.values else "no change reaches a partition"
        if plan.keys and not reached.values:
            reason = "partitions were made alone since"
        told = {key: tuple(reasons) for key, reasons in sorted(why.items())}
        return Work(frozenset(partition.physical(key, kind) for key in why), reason, told, reached.changed_rows)

    def _offered(self, shape: ResultShape) -> list[str]:
        """The partitions there are, of SQL that is run for each of them: those configured, and those that exist."""
        partition, kind = self._partition(shape)
        found = [partition.canonical(value, kind) for value in self._entry.values]
        last = last_partition(self._entry, self._query)
        if last is not None:
            if self._entry.start is None:
                raise ConfigError(
                    f"published {self._query.name}: the SQL asks for its partition; say from which one on there are "
                    f"any, for example start: {last!r}"
                )
            if partition.period(self._entry.start).start > partition.period(last).start:
                raise ConfigError(
                    f"published {self._query.name}: start: {self._entry.start} lies in the future: the last {partition.unit} by now is {last}"
                )
            found = partition.keys(f"{self._entry.start}..{last}")
        if self._table is not None and self._base.snapshot_id is not None:
            tasks = open_table(self._table).scan().plan().tasks
            # files of a table without this partition have none: what does not fit is told when the table is written
            found += [partition.key_of(task.data_file.partition[0], kind) for task in tasks if task.data_file.partition]
        return list(dict.fromkeys(found))
