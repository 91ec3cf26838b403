"""Decides what a run of a published table makes: nothing, everything, some partitions, or some keys.

Partitions and keys are those that changes reach; a user may ask for partitions. A key is a tuple of values of result columns:
all rows that have it are computed again together, so that it may repeat, and equality deletes remove the earlier ones. The work
is done in `refresh.py`. This module imports pyspark.
"""

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from functools import reduce
from operator import and_, or_
from typing import TYPE_CHECKING, Any, Literal, Self

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f
from sqlglot import exp

from nevermore.pipelines.config.published import FORMATS, PublishedConfig, PublishedPartition
from nevermore.pipelines.errors import ConfigError
from nevermore.pipelines.iceberg.commit import RowDelta
from nevermore.pipelines.iceberg.row_shape import conform, distinct_rows
from nevermore.pipelines.iceberg.table_writer import check_key, write_deletes
from nevermore.pipelines.mirrors.delete_scope import live_keys
from nevermore.pipelines.publish.mirror_reads import ChangesView, view_of_changes
from nevermore.pipelines.publish.partition_lineage import OF_CHANGED, Reach, plain_columns
from nevermore.pipelines.publish.query import PublishedQuery, arguments
from nevermore.pipelines.publish.state import Base, PublishedState, SourceState
from nevermore.pipelines.publish.writer import iceberg_columns, partition_field, require_columns
from nevermore.pipelines.wording import counted
from nevermore.scan_core import (
    Changes,
    ContentFile,
    Expr,
    FileScanTask,
    NestedField,
    Scan,
    ScanError,
    Schema,
    Type,
    arrow_type,
    col,
    open_table,
)
from nevermore.scan_core.parts import file_changes
from nevermore.scan_core.spark import DIALECT, SPARK_FAILURES, quoted_name, spark_message

if TYPE_CHECKING:
    from nevermore.pipelines.iceberg.catalog import Table


MAX_KEYS = 1_000_000
"""Maximum of keys that a run makes one by one; the driver holds them, and each task gets them."""
MAX_SHARE = 4
"""Keys are made one by one up to one for this many rows of their partitions; for more, whole partitions cost less."""
MAX_NARROWED = 10_000
"""Keys by which a change log is filtered; for more, all of it is read."""
MAX_DELETE_FILES = 32
"""Delete files over a data file from which its partition is made as a whole, which removes them: readers load them all."""
_KEY_TYPES = frozenset({
    "boolean", "tinyint", "smallint", "int", "bigint", "string", "binary", "date", "timestamp", "timestamp_ntz",
})  # fmt: skip
"""Types of Spark whose values are equal in a delete file exactly if they are equal in Spark; decimals, too."""


@dataclass(frozen=True, slots=True)
class MakeNothing:
    """The table is up to date with its mirrors."""

    reason: str


@dataclass(frozen=True, slots=True)
class MakeAll:
    """All rows must be made again."""

    reason: str


@dataclass(frozen=True, slots=True)
class MakeReached:
    """The slices of the table that changes can have reached must be made again.

    Attributes:
        slices: partitions, or keys.
        reaches: how rows of the tables reach slices, named as in `PublishedQuery.view_names`; those of tables that changed
            have values.
        changes: scans of rows that appeared or disappeared, by table of the config.
        otherwise: what to make if the slices cannot be found, or cost more.
        also: partitions to make in any case, with the reason.
        note: the end of the reason to make them.
    """

    slices: Literal["partitions", "keys"]
    reaches: tuple[Reach, ...]
    changes: Mapping[str, Changes]
    otherwise: "MakeAll | MakeReached"
    also: Mapping[str, str] = field(default_factory=dict)
    note: str = ""

    def instead(self, why: str) -> "MakeAll | MakeReached":
        """What to make for this reason."""
        return MakeAll(why) if self.slices == "partitions" else _not_by_key(self.otherwise, why)


RefreshPlan = MakeNothing | MakeAll | MakeReached


def _not_by_key(plan: MakeAll | MakeReached, why: str) -> MakeAll | MakeReached:
    """The plan, with the reason why it is not for keys."""
    note = f"; not by key: {why}"
    return MakeAll(plan.reason + note) if isinstance(plan, MakeAll) else replace(plan, note=note)


def plan_refresh(
    entry: PublishedConfig,
    query: PublishedQuery,
    scans: Mapping[str, Scan],
    base: Base,
    wanted: PublishedState,
    *,
    is_full: bool = False,
) -> RefreshPlan:
    """Plan what to make so that a table that holds `base` reflects `wanted`, the state of the mirrors."""
    if is_full:
        return MakeAll("a full build was asked for")
    state = base.state
    if state is None:  # others may have written any rows
        return MakeAll(base.why_unknown)
    if state.query != wanted.query:  # rows that no change reaches were made under other rules
        return MakeAll("the SQL, its parameters or its settings changed")
    schemas = {table: scan.table.schema for table, scan in scans.items()}
    # rows would differ without any change of input; the windows of a history have one order, that of its log
    if not query.history_key and (reason := query.why_unrepeatable(schemas)) is not None:
        return MakeAll(reason)
    changed = [table for table in query.tables if state.sources.get(table) != wanted.sources[table]]
    if not changed and not base.made_since and state.until == wanted.until:
        return MakeNothing("no mirror changed")
    all_of_it = MakeAll(f"changed: {', '.join(changed)}" if changed else "partitions were made alone since")
    if not entry.incremental or (entry.partitioning is None and entry.incremental != "keys"):
        return all_of_it
    # Partitions that were made alone may reflect later mirrors than the rest: the state does not tell what changed
    # between.
    keys = dict.fromkeys(sorted(base.made_since), "made alone since the last run")
    sources = {table: (state.sources.get(table), wanted.sources[table]) for table in changed}
    changes = _plan_changes(scans, sources)
    if isinstance(changes, MakeAll):
        return changes
    return _plan_reached(entry, query, schemas, changes, all_of_it, keys=keys)


def _plan_reached(
    entry: PublishedConfig,
    query: PublishedQuery,
    schemas: Mapping[str, Schema],
    changes: Mapping[str, Changes],
    plan: MakeAll | MakeReached,
    *,
    keys: Mapping[str, str],
) -> MakeAll | MakeReached:
    """Trace changed rows to partitions, and to keys if the config asks for it; else the given plan, or all."""
    if entry.partitioning is not None:
        reaches = query.reaches(schemas, entry.partitioning)
        why = _why_not_traced(query, changes, reaches, "partitions")
        plan = MakeReached("partitions", reaches, changes, plan, keys) if why is None else MakeAll(why)
    if entry.incremental != "keys":
        return plan
    if keys:
        return _not_by_key(plan, "partitions were made alone since")
    reaches = query.reaches_of_keys(schemas, query.history_key or key_column_names(entry))
    why = _why_not_traced(query, changes, reaches, "keys")
    return MakeReached("keys", reaches, changes, plan) if why is None else _not_by_key(plan, why)


def _plan_changes(
    scans: Mapping[str, Scan], sources: Mapping[str, tuple[SourceState | None, SourceState]]
) -> dict[str, Changes] | MakeAll:
    """The changes of mirrors, given by their states before and after."""
    changes: dict[str, Changes] = {}
    for table, (before, after) in sources.items():
        if before is None or before.uuid != after.uuid:  # snapshot ids mean other rows in another table
            return MakeAll(f"{table} is another table than before")
        if before.columns != after.columns:  # every row may now read differently, although none was added or removed
            return MakeAll(f"columns of {table} that the SQL reads have changed")
        try:
            between = _changes_since(scans[table], before.snapshot_id)
        except ScanError as error:
            return MakeAll(f"what changed in {table} can no longer be found: {error}")
        if between is not None:
            changes[table] = between
    return changes


def _why_not_traced(
    query: PublishedQuery, changes: Mapping[str, Changes], reaches: Sequence[Reach], slices: str
) -> str | None:
    """Why it is not certain which slices changed rows reach; None if it is."""
    tables = {query.view_names[table]: table for table in changes}
    # one untraceable place where the SQL names the table is enough to make any slice depend on the changed rows
    unknown = next((r for r in reaches if r.values is None and r.table in tables), None)
    if unknown is None:
        return None
    return f"{tables[unknown.table]} changed, and its rows cannot be traced to {slices}: {unknown.reason}"


def _changes_since(scan: Scan, snapshot_id: int | None) -> Changes | None:
    """Rows that appeared or disappeared, judged by the columns that the query needs; None if no file changed."""
    changes = scan.changes(snapshot_id)
    changes = replace(changes, schema=changes.context.projection)
    if changes.to_snapshot is None:
        return None
    files = file_changes(changes.metadata, changes.from_snapshot, changes.to_snapshot, changes.context)
    return changes if files.may_insert or files.may_delete else None


def why_never_incremental(entry: PublishedConfig, query: PublishedQuery, scans: Mapping[str, Scan]) -> str | None:
    """Why `incremental: true` can never hold, as no change can be traced to partitions; None if it can, or is not set."""
    if entry.incremental is not True:
        return None
    if entry.partitioning is None:
        return "the table has no partition"
    schemas = {table: scan.table.schema for table, scan in scans.items()}
    if (reason := query.why_unrepeatable(schemas)) is not None:
        return reason
    reaches = query.reaches(schemas, entry.partitioning)
    known = {r.table for r in reaches} - {r.table for r in reaches if r.values is None}
    return None if known else next((r.reason for r in reaches if r.values is None), "the SQL reads no table")


def trace_text(query: exp.Select, names: Mapping[str, str], *, is_distinct: bool = True) -> str:
    """The text of a query of a `Reach`, with its tables renamed; one that is not distinct may repeat values."""
    copy = query.copy()
    if not is_distinct:
        copy.set("distinct", None)
    for table in copy.find_all(exp.Table):
        if table.name in names:
            table.set("this", exp.to_identifier(names[table.name]))
    return str(copy.sql(dialect=DIALECT, identify=True))


@dataclass(frozen=True, slots=True)
class Trace:
    """A query for the slices that changed rows can have reached.

    Attributes:
        text: the query, which gives `k0`, `k1` and so on.
        is_here: whether it reads nothing but changed rows that this process holds. Then Spark answers while it plans, as
            long as it need not look for values that repeat; those are few.
    """

    text: str
    is_here: bool

    @classmethod
    def of(cls, query: exp.Select, names: Mapping[str, str], changed: ChangesView) -> Self:
        """The query of a `Reach` over views, given by the names of its tables."""
        is_here = changed.is_here and changed.count <= MAX_KEYS and len([*query.find_all(exp.Query)]) == 1
        is_here = is_here and not query.args.get("joins")
        return cls(trace_text(query, names, is_distinct=not is_here), is_here)

    def values(self, spark: SparkSession, types: Sequence[str], limit: int | None = None) -> pa.Table | None:
        """The values, cast to types of Spark; None if there are more than `limit`, repeated ones counted if it is here."""
        casts = ", ".join(f"cast(k{n} as {kind}) as k{n}" for n, kind in enumerate(types))
        most = "" if limit is None else f" limit {limit + 1}"
        found = spark.sql(f"select {'' if self.is_here else 'distinct '}{casts} from ({self.text}){most}").toArrow()
        return None if limit is not None and found.num_rows > limit else found


ViewOf = Callable[[str], str]
"""Gives the name of a view of a table's rows, which costs something the first time that it is asked for a table."""
ASKED_FOR = "asked for"
NEW = "new since the last run"
Why = Mapping[str, tuple[str, ...]]
"""By key of a partition, the reason to make it."""


@dataclass(frozen=True, slots=True)
class KeyColumns:
    """The columns of a result that form its keys, with Spark's type of each."""

    fields: tuple[NestedField, ...]
    spark_types: tuple[str, ...]

    @property
    def names(self) -> list[str]:
        """Their names."""
        return [field.name for field in self.fields]

    def why_not(self) -> str | None:
        """Why rows cannot be found by these columns; None if they can."""
        for name, kind in zip(self.names, self.spark_types, strict=True):
            if kind not in _KEY_TYPES and not kind.startswith("decimal("):
                return f"{name} is {kind}, which cannot be a key"
        return None

    @classmethod
    def of_result(cls, shape: "ResultShape", names: Sequence[str]) -> Self:
        """Columns of a result by their names."""
        fields = {c.name: c for c in shape.columns}
        return cls(tuple(fields[name] for name in names), tuple(shape.spark_types[name] for name in names))

    def of(self, found: pa.Table) -> pa.Table:
        """Keys that a trace gives as `k0`, `k1` and so on."""
        arrays = [found.column(n).cast(arrow_type(f.type)) for n, f in enumerate(self.fields)]
        keys = pa.table(arrays, names=self.names)
        for column in self.fields:  # no row has such a key
            keys = keys.filter(pc.is_valid(keys.column(column.name))) if column.required else keys
        return keys


def key_column_names(entry: PublishedConfig, *, only_partition: bool = False) -> list[str]:
    """The columns by which rows are made again: with that of the partition, so that a delete is in one partition."""
    by = () if entry.partitioning is None else (entry.partitioning.column,)
    return list(dict.fromkeys(by if only_partition else (*entry.key, *by)))


@dataclass(frozen=True, slots=True)
class ChangedKeys:
    """The keys that a run makes.

    Attributes:
        columns: columns of the keys.
        rows: the keys, each once.
        reaches: how rows of the mirrors reach keys.
    """

    columns: KeyColumns
    rows: pa.Table
    reaches: tuple[Reach, ...]

    @classmethod
    def of(cls, columns: KeyColumns, found: Sequence[pa.Table], reaches: tuple[Reach, ...]) -> "ChangedKeys":
        """Keys that several traces found."""
        none = pa.table([pa.array([], arrow_type(field.type)) for field in columns.fields], names=columns.names)
        return cls(columns, distinct_rows(pa.concat_tables([none, *found])), reaches)

    def why_not(self, tasks: Iterable[FileScanTask]) -> str | None:
        """Why making whole partitions costs less, given the files that the table has in them; None if it does not."""
        tasks = list(tasks)
        rows = sum(task.data_file.record_count for task in tasks)
        if self.rows.num_rows > max(1, rows // MAX_SHARE):
            return f"{counted(self.rows.num_rows, 'key')} changed, too many for {rows:,} rows"
        deletes = max((sum(len(group.files) for group in task.equality_deletes) for task in tasks), default=0)
        if deletes >= MAX_DELETE_FILES:
            return f"earlier rows have {counted(deletes, 'delete file')} already"
        return None

    def narrowed(self, query: PublishedQuery, scans: Mapping[str, Scan]) -> dict[str, Scan]:
        """The scans without rows that certainly belong to other keys; they may leave some."""
        if query.history_key:
            few = self.rows.num_rows <= MAX_NARROWED
            return {table: scan.where(self._in_log()) if few else scan for table, scan in scans.items()}
        schemas = {table: scan.table.schema for table, scan in scans.items()}
        partners = self.partners(query, schemas)
        return {t: s.semi_join(partners[t].column_names, partners[t]) if t in partners else s for t, s in scans.items()}

    def _in_log(self) -> Expr:
        """Whether a change of a log may be of one of the keys; truncates are of all."""
        columns = [(name, self.rows.column(name).unique().to_pylist()) for name in self.columns.names]
        sides = (reduce(and_, (col(side, n).is_in(values) for n, values in columns)) for side in ("key", "after"))
        return reduce(or_, sides, col("op") == "t")

    def partners(self, query: PublishedQuery, schemas: Mapping[str, Schema]) -> dict[str, pa.Table]:
        """By table, values of some of its columns: rows with other values certainly belong to other keys."""
        found = {}
        for table, of_column in self._anchors(query, schemas).items():
            values = [self.rows.column(n) for n in of_column.values()]
            found[table] = distinct_rows(pa.table(values, names=list(of_column)))
        return found

    def _anchors(self, query: PublishedQuery, schemas: Mapping[str, Schema]) -> dict[str, dict[str, int]]:
        """By table, columns that are parts of the key, with the numbers of these."""
        found = {}
        for table, view in query.view_names.items():
            places = [plain_columns(reach, schemas[table]).items() for reach in self.reaches if reach.table == view]
            # a row that one place needs must not be left out for another
            common = reduce(and_, (set(place) for place in places)) if places else set()
            # NULL would meet no row
            of_column = {column: n for column, n in sorted(common) if not self.rows.column(n).null_count}
            if of_column:
                found[table] = of_column
        return found

    def chosen(self, result: DataFrame) -> DataFrame:
        """The rows of a result that have one of the keys; NULL is a value like any other."""
        labels = [f"_nevermore_key_{n}" for n in range(len(self.columns.fields))]
        keys = result.sparkSession.createDataFrame(self.rows.rename_columns(labels))
        keys = keys.select(*(f.col(x).cast(t).alias(x) for x, t in zip(labels, self.columns.spark_types, strict=True)))
        pairs = zip(self.columns.names, labels, strict=True)
        meets = reduce(and_, (result[quoted_name(name)].eqNullSafe(keys[label]) for name, label in pairs))
        return result.join(f.broadcast(keys), meets, "left_semi")

    def deletes(self, delta: RowDelta, run: str) -> list[ContentFile]:
        """Write equality deletes of the keys that the table may have; names of files begin with `run`."""
        key_ids = check_key(delta.schema, self.columns.names)
        keys = conform(self.rows, delta.schema.select(key_ids))
        keys = keys.filter(pa.array(live_keys(delta.table, delta.schema, self.columns.names).may_hold(keys)))
        return write_deletes(keys, delta.target, delta.default_spec, key_ids, prefix=run)


@dataclass(frozen=True, slots=True)
class Work:
    """The partitions to make.

    Attributes:
        values: values of the Iceberg partition field; None for the whole table.
        reason: the reason, in one sentence.
        why: the reason by key, as far as single partitions are known.
        changed_rows: number of changed rows of each mirror.
        without: values of partitions that are left out of the whole table.
        keys: the keys to make of these partitions; None for all.
    """

    values: frozenset[Any] | None
    reason: str
    why: Why = field(default_factory=dict)
    changed_rows: Mapping[str, int] = field(default_factory=dict)
    without: frozenset[Any] = frozenset()
    keys: ChangedKeys | None = None


@dataclass(frozen=True, slots=True)
class ResultShape:
    """Columns of a result, with Spark's types by name. `partition` is that by which partitions are made, if any."""

    columns: tuple[NestedField, ...]
    partition: NestedField | None
    spark_types: Mapping[str, str] = field(default_factory=dict)


def result_shape(entry: PublishedConfig, query: PublishedQuery, result: DataFrame) -> ResultShape:
    """Check the columns of a result against the config.

    Raises:
        ConfigError: a column that the config names is missing or has an unsuitable type.
    """
    by = entry.partitioning
    field = None if by is None else partition_field(query.name, result, by)
    columns = iceberg_columns(query.name, result)
    require_columns(query.name, result, (*entry.sort_by, *entry.options.bloom_filters, *entry.key))
    return ResultShape(columns, field, {f.name: f.dataType.simpleString() for f in result.schema})


def last_partition(entry: PublishedConfig, query: PublishedQuery) -> str | None:
    """The last partition by now, for SQL that uses its partition; else None."""
    partition = entry.partitioning
    if partition is None or not partition.is_time or not query.depends_on_partition:
        return None
    return datetime.now(UTC).strftime(FORMATS[partition.unit])


def sample_arguments(entry: PublishedConfig, query: PublishedQuery) -> dict[str, Any]:
    """Parameter values to use when only the types of the result matter."""
    return arguments(query, entry, last_partition(entry, query) or "")


def work_without(
    work: Work, keys: Collection[str], entry: PublishedConfig, query: PublishedQuery, shape: ResultShape
) -> Work:
    """The rest of the work where some partitions are already made."""
    partition = entry.partitioning
    if not keys or partition is None or shape.partition is None:
        return work
    kind = shape.partition.type
    done = frozenset(partition.physical(key, kind) for key in keys)
    why = {key: reasons for key, reasons in work.why.items() if partition.physical(key, kind) not in done}
    if work.values is not None:
        return replace(work, values=work.values - done, why=why)
    return replace(work, why=why, without=frozenset() if query.depends_on_partition else done)


@dataclass(frozen=True, slots=True)
class WorkFinder:
    """Finds the work of one run: `base` is the content of the table, `table` is None if it does not exist."""

    entry: PublishedConfig
    query: PublishedQuery
    base: Base
    table: "Table | None"

    def asked_for(self, keys: Sequence[str], shape: ResultShape) -> Work:
        """Look up partitions by their keys."""
        partition, kind = self._partition(shape)
        keys = [partition.canonical(key, kind) for key in keys]
        return Work(self._values(keys, shape), ASKED_FOR, dict.fromkeys(keys, (ASKED_FOR,)))

    def planned(self, spark: SparkSession, plan: RefreshPlan, shape: ResultShape, views: ViewOf) -> Work:
        """Turn a plan into work; all partitions if Spark cannot tell which ones changed rows reach."""
        while isinstance(plan, MakeReached):
            try:
                found = self._reached(spark, plan, shape, views)
            except SPARK_FAILURES as error:
                found = f"Spark cannot find the {plan.slices} that changed rows reach: {spark_message(error)}"
            if isinstance(found, Work):
                return found
            plan = plan.instead(found)
        if shape.partition is None or not self.query.depends_on_partition:
            return Work(None, plan.reason)
        return Work(None, plan.reason, dict.fromkeys(self._offered(shape), ()))

    def _partition(self, shape: ResultShape) -> tuple[PublishedPartition, Type]:
        partition = self.entry.partitioning
        if partition is None or shape.partition is None:
            raise ConfigError(f"published {self.query.name} has no partitions")
        return partition, shape.partition.type

    def _reached(self, spark: SparkSession, plan: MakeReached, shape: ResultShape, views: ViewOf) -> Work | str:
        """The work on the slices that changed rows reach; the reason if keys cost more than whole partitions."""
        by_key = plan.slices == "keys"
        names = key_column_names(self.entry, only_partition=not by_key)
        columns = KeyColumns.of_result(shape, self.query.history_key or names)
        if by_key and (reason := columns.why_not()) is not None:
            return reason
        num_changed: dict[str, int] = {}
        found: dict[str, pa.Table] = {}
        for table in plan.changes:
            num_changed[table], parts = self._traced(spark, plan, table, columns, views)
            if any(keys is None for keys in parts):
                return f"more than {MAX_KEYS:,} keys changed"
            if parts:
                found[table] = pa.concat_tables(map(columns.of, parts))
        why = self._why(plan, found, shape)
        values = self._values(why, shape)
        keys = ChangedKeys.of(columns, list(found.values()), plan.reaches) if by_key else None
        if keys is not None:
            if self.query.history_key and keys.rows.column(0).null_count:
                return "a truncate ends versions of all keys"
            if values is None and not keys.rows.num_rows:
                values = frozenset()
            tasks = (task for key, task in self._tasks(shape) if values is None or key in why)
            if (reason := keys.why_not(tasks)) is not None:
                return reason
        nothing = "partitions were made alone since" if plan.also else f"no change reaches a {plan.slices[:-1]}"
        changed = [table for table, of_table in found.items() if of_table.num_rows]
        reason = f"changed: {', '.join(changed)}" if changed else nothing
        return Work(values, reason + plan.note, {k: tuple(why[k]) for k in sorted(why)}, num_changed, keys=keys)

    def _traced(
        self, spark: SparkSession, plan: MakeReached, table: str, columns: KeyColumns, views: ViewOf
    ) -> tuple[int, list[pa.Table | None]]:
        """The number of changed rows of a table, and the slices that each place of it reaches; None for too many keys."""
        view = self.query.view_names[table]
        with view_of_changes(spark, plan.changes[table]) as changed:
            found = [r.values for r in plan.reaches if changed.count and r.table == view and r.values is not None]
            named = {of.name for values in found for of in values.find_all(exp.Table)}
            names = {name: views(of) for of, name in self.query.view_names.items() if name in named}
            names[view + OF_CHANGED] = changed.name
            limit = MAX_KEYS if plan.slices == "keys" else None
            traces = [Trace.of(values, names, changed) for values in found]
            return changed.count, [trace.values(spark, columns.spark_types, limit) for trace in traces]

    def _why(self, plan: MakeReached, found: Mapping[str, pa.Table], shape: ResultShape) -> dict[str, list[str]]:
        """The tables whose changed rows reach each partition, by its key."""
        if self.entry.partitioning is None:
            return {}
        partition, kind = self._partition(shape)
        why = {partition.canonical(key, kind): [reason] for key, reason in plan.also.items()}
        for table, keys in found.items():
            values = keys.column(partition.column).combine_chunks().cast(arrow_type(kind))
            for value in partition.physical_values(values, kind):
                why.setdefault(partition.key_of(value, kind), []).append(table)
        return self._of_offered(why, shape) if self.query.depends_on_partition else why

    def _values(self, keys: Iterable[str], shape: ResultShape) -> frozenset[Any] | None:
        """Values of the partition field; None without partitions."""
        if self.entry.partitioning is None:
            return None
        partition, kind = self._partition(shape)
        return frozenset(partition.physical(key, kind) for key in keys)

    def _tasks(self, shape: ResultShape) -> Iterator[tuple[str, FileScanTask]]:
        """The files of the table, each with the key of its partition."""
        for task in () if self.table is None else open_table(self.table).scan().plan().tasks:
            if self.entry.partitioning is None:
                yield "", task
            elif task.data_file.partition:  # a misfit, which has none, is reported when the table is written
                partition, kind = self._partition(shape)
                yield partition.key_of(task.data_file.partition[0], kind), task

    def _of_offered(self, why: dict[str, list[str]], shape: ResultShape) -> dict[str, list[str]]:
        """Reasons for SQL that runs per offered partition.

        Periods after the last run's must be made even if no change reaches them, and partitions that the config no longer
        offers are left as they are.
        """
        partition, _ = self._partition(shape)
        offered = self._offered(shape)
        until = self.base.state.until if self.base.state is not None else None
        if partition.is_time and until is not None:
            for key in offered:
                if partition.period(key).start > partition.period(until).start:
                    why.setdefault(key, []).append(NEW)
        return {key: reasons for key, reasons in why.items() if key in offered}

    def _offered(self, shape: ResultShape) -> list[str]:
        """Existing partitions, for SQL that runs for each of them: the configured ones, and those in the table."""
        partition, kind = self._partition(shape)
        found = [partition.canonical(value, kind) for value in self.entry.values]
        last = last_partition(self.entry, self.query)
        if last is not None:
            if self.entry.start is None:
                raise ConfigError(
                    f"published {self.query.name}: the SQL uses its partition; set start to the first one, "
                    f"for example start: {last!r}"
                )
            if partition.period(self.entry.start).start > partition.period(last).start:
                raise ConfigError(
                    f"published {self.query.name}: start: {self.entry.start} lies in the future: the last {partition.unit} by now is {last}"
                )
            found = partition.keys(f"{self.entry.start}..{last}")
        return list(dict.fromkeys([*found, *(key for key, _ in self._tasks(shape))]))
