"""SQL over tables in Spark: conditions and join keys of a query are pushed down into the scans of its tables.

A scan may leave out rows that the query does not need, but need not: Spark runs the whole query over the result of the
scans. So everything here only narrows; what is uncertain, or costs more than it saves, is left to Spark, with the
reason. What may be pushed is decided without a session, for publications, too.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any
from uuid import uuid4
from weakref import WeakKeyDictionary

import pyarrow as pa
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import types as st
from sqlglot import exp

from nevermore.scan_core.joins.given_keys import distinct_keys
from nevermore.scan_core.model.errors import OptionError, UnsupportedError
from nevermore.scan_core.model.options import ScanMetrics
from nevermore.scan_core.model.schema import ListType, MapType, NestedField, PrimitiveType, Schema, StructType, Type
from nevermore.scan_core.plan.planner import ScanPlan
from nevermore.scan_core.scan import Scan
from nevermore.scan_core.semi_join import are_comparable, induced_ranges
from nevermore.scan_core.spark.frames import (
    choice_of,
    compares_case,
    dataframe,
    means_what_scans_mean,
    push_filters,
    reports_of,
)
from nevermore.scan_core.spark.native import NativeLimits
from nevermore.scan_core.spark.reader_choice import Reader, require_session
from nevermore.scan_core.spark.types import spark_schema
from nevermore.scan_core.sql.needed_rows import Partners, TablePlace, needed_rows
from nevermore.scan_core.sql.query import DIALECT, SqlQuery, parse_sql, sql_literal
from nevermore.scan_core.sql.query_shape import computes_by_queries

if TYPE_CHECKING:
    from nevermore.scan_core.scan import Scan, Table


_OTHER_SESSION = (
    "conditions have another meaning in this session: set spark.sql.ansi.enabled=true, spark.sql.caseSensitive=false "
    "and the time zone UTC"
)
_LIMITED = "the scan has a limit, and a condition would let other rows through"
_KINDS: dict[type[st.DataType], str] = {
    st.BooleanType: "boolean",
    st.IntegerType: "int",
    st.LongType: "long",
    st.FloatType: "float",
    st.DoubleType: "double",
    st.DateType: "date",
    st.TimestampType: "timestamptz",
    st.TimestampNTZType: "timestamp",
}


@dataclass(slots=True)
class Pushed:
    """What was pushed down into the scan of one table.

    Attributes:
        conditions: that the scan applies, as SQL.
        joins: filters from joins, in words: keys read from another table, or ranges from its statistics.
        left: by condition or join, why it is left to Spark.
    """

    conditions: tuple[str, ...] = ()
    joins: list[str] = field(default_factory=list)
    left: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class PushedScans:
    """The narrowed scans of all tables that a query reads, by table."""

    scans: Mapping[str, Scan]
    pushed: Mapping[str, Pushed]


@dataclass(frozen=True, slots=True)
class TableRead:
    """What one table contributed to a query, or would.

    Attributes:
        snapshot_id: the snapshot that was read.
        columns: columns that were read.
        where: conditions that the scan applied, as SQL.
        metrics: metrics of planning and all tasks.
        joins: joins whose keys filtered the scan, in words.
        left: by condition or join of the SQL, why the scan left it to Spark.
        reader: the reader of the rows, and why it was chosen.
    """

    snapshot_id: int | None
    columns: tuple[str, ...]
    where: str | None
    metrics: ScanMetrics
    joins: tuple[str, ...] = ()
    left: Mapping[str, str] = field(default_factory=dict)
    reader: str = ""

    @classmethod
    def of(cls, scan: Scan, metrics: ScanMetrics, reader: str, pushed: Pushed | None = None) -> "TableRead":
        """Describe a scan that was read, or planned."""
        where = " and ".join(str(p) for p in scan.predicates) or None
        snapshot_id = scan.snapshot.snapshot_id if scan.snapshot else None
        pushed = pushed or Pushed()
        return cls(
            snapshot_id,
            scan.schema.names if scan.columns is None else scan.columns,
            where,
            metrics,
            tuple(pushed.joins),
            pushed.left,
            reader,
        )

    def as_dict(self) -> dict[str, Any]:
        """The report as a dictionary for JSON and metadata."""
        return {
            "snapshot_id": self.snapshot_id,
            "reader": self.reader,
            "columns": list(self.columns),
            "where": self.where,
            "joins": list(self.joins),
            "applied_by_spark_alone": dict(self.left),
            "rows_read": self.metrics.rows_out,
            "bytes_read": self.metrics.bytes_read,
            "bytes_skipped": self.metrics.bytes_skipped,
            "data_files_skipped": self.metrics.data_files_pruned,
        }

    def described(self, table: str) -> Iterator[str]:
        """The report as lines of text, under the name of the table."""
        yield f"  read {table}, snapshot {self.snapshot_id}, by the {self.reader}"
        yield f"    columns: {', '.join(self.columns)}"
        if self.where is not None:
            yield f"    where: {self.where}"
        for joined in self.joins:
            yield f"    keys: {joined}"
        for condition, reason in self.left.items():
            yield f"    left to Spark: {condition} ({reason})"
        planned, pruned = self.metrics.data_files_planned, self.metrics.data_files_pruned
        rows, size = self.metrics.rows_out, self.metrics.bytes_read
        yield (
            f"    data files: {planned} of {planned + pruned}, with {rows:,} row{'s'[: rows != 1]} in "
            f"{size:,} byte{'s'[: size != 1]} at most"
        )


def push_down(
    query: SqlQuery,
    scans: Mapping[str, Scan],
    arguments: Mapping[str, Any],
    *,
    schemas: Mapping[str, Schema] | None = None,
) -> PushedScans:
    """Narrow the scans to the rows that the query may need.

    Keys of joins are read here, in this process, from tables that conditions or other joins have narrowed, smallest
    first, as long as they fit into the limits.

    Args:
        query: the parsed query.
        scans: scans of its tables, by name.
        arguments: values of its parameters.
        schemas: the columns that the query can name, by table, also of tables without a scan; None for all columns of
            the scans' tables.
    """
    schemas = schemas or {table: scan.table.schema for table, scan in scans.items()}
    pushed = {table: Pushed() for table in scans}
    places = _places(query, schemas, arguments)
    if isinstance(places, str):
        for each in pushed.values():
            each.left["all conditions"] = places
        return PushedScans(scans, pushed)
    by_table: dict[str, list[int]] = {}
    for index, place in enumerate(places):
        if place.table not in scans:
            continue
        by_table.setdefault(place.table, []).append(index)
    narrowed = dict(scans)
    at_place: dict[int, Scan] = {}
    for table, indexes in by_table.items():
        for index in indexes:
            at_place[index] = _with_conditions(scans[table], places[index].conditions, pushed[table])
        if len(indexes) == 1:
            narrowed[table] = at_place[indexes[0]]
        else:
            narrowed[table] = _with_either(scans[table], [at_place[index] for index in indexes])
        pushed[table].conditions = tuple(map(str, narrowed[table].predicates[len(scans[table].predicates) :]))
    single = {indexes[0]: table for table, indexes in by_table.items() if len(indexes) == 1}
    _Joins(places, at_place, single, pushed).narrow()
    return PushedScans(narrowed | {table: at_place[index] for index, table in single.items()}, pushed)


def _places(
    query: SqlQuery, schemas: Mapping[str, Schema], arguments: Mapping[str, Any]
) -> tuple[TablePlace, ...] | str:
    """Determine what the query needs of each table, by the names in the SQL; or why that is not certain."""
    flat = query.traceable(schemas)
    if isinstance(flat, str):
        return flat
    values = {name: sql_literal(value) for name, value in arguments.items()}

    def put(node: exp.Expression) -> exp.Expression:
        value = values.get(node.name) if isinstance(node, exp.Placeholder) else None
        return node if value is None else value.copy()

    tables = {view: table for table, view in query.view_names.items()}
    places = needed_rows(flat.transform(put))
    for place in places:
        place.table = tables[place.table]
        place.conditions = list(_on_columns(place.conditions, schemas[place.table]))
    for place in places:
        place.partners = list(_between_columns(place, places, schemas))
    return places


def _between_columns(
    place: TablePlace, places: Sequence[TablePlace], schemas: Mapping[str, Schema]
) -> Iterator[Partners]:
    """The joins of a place, with columns named as in the schemas."""
    for partners in place.partners:
        ours = [_field(schemas[place.table], name) for name in partners.columns]
        theirs = [_field(schemas[places[partners.keys.place].table], name) for name in partners.keys.columns]
        if None not in ours and None not in theirs:
            keys = replace(partners.keys, columns=tuple(each.name for each in theirs if each))
            yield Partners(tuple(each.name for each in ours if each), keys)


def _field(schema: Schema, name: str) -> NestedField | None:
    """The only column with this name, ignoring case; None if there are several or none."""
    found = [each for each in schema.fields if each.name.lower() == name.lower()]
    return found[0] if len(found) == 1 else None


_SAME_IN_SPARK = frozenset(
    {"boolean", "int", "long", "float", "double", "decimal", "string", "date", "timestamp", "timestamptz"}
)
"""Types whose values Spark compares as scans do. It compares a uuid as text, upper case and all, for example."""


def _on_columns(conditions: Sequence[exp.Expression], schema: Schema) -> Iterator[exp.Expression]:
    """The conditions with columns named as in the schema, without the qualifier of their source."""

    def put(node: exp.Expression) -> exp.Expression:
        found = _field(schema, node.name) if isinstance(node, exp.Column) else None
        return node if found is None else exp.column(exp.to_identifier(found.name, quoted=True))

    for condition in conditions:
        columns = [_field(schema, column.name) for column in condition.find_all(exp.Column)]
        # Spark reads a backslash in text as the beginning of an escape; other readers do not
        has_escapes = any("\\" in str(node.this) for node in condition.find_all(exp.Literal, exp.RawString))
        is_open = condition.find(exp.Placeholder) is not None
        if not has_escapes and not is_open and all(each and _is_same_in_spark(each.type) for each in columns):
            yield condition.transform(put)


def _is_same_in_spark(kind: Type) -> bool:
    match kind:
        case StructType(fields):
            return all(_is_same_in_spark(member.type) for member in fields)
        case ListType():
            return _is_same_in_spark(kind.element.type)
        case MapType():
            return _is_same_in_spark(kind.key.type) and _is_same_in_spark(kind.value.type)
        case PrimitiveType(name):
            return name in _SAME_IN_SPARK


def _with_conditions(scan: Scan, conditions: Sequence[exp.Expression], pushed: Pushed) -> Scan:
    """Add the conditions that the scan evaluates as Spark does and that fail on no row.

    A row that another part of the query removes must not fail the scan.
    """
    found = push_filters(scan, [condition.sql(dialect=DIALECT) for condition in conditions], never_failing=True)
    pushed.left.update(found.left)
    return found.scan


def _with_either(scan: Scan, places: Sequence[Scan]) -> Scan:
    """Restrict the scan to the rows that at least one place needs."""
    own = [tuple(map(str, place.predicates[len(scan.predicates) :])) for place in places]
    shared = [text for text in own[0] if all(text in texts for texts in own)]
    for text in shared:
        scan = scan.where(text)
    others = [[text for text in texts if text not in shared] for texts in own]
    if all(others):
        either = dict.fromkeys(" and ".join(f"({text})" for text in texts) for texts in others)
        scan = scan.where(" or ".join(f"({text})" for text in either))
    return scan


def most_read(plan: ScanPlan) -> ScanMetrics:
    """Metrics of the most that a plan can read: all rows of its files."""
    files = [task.data_file for task in plan.tasks]
    rows, size = sum(file.record_count for file in files), sum(file.file_size_bytes for file in files)
    return replace(plan.metrics, rows_out=rows, bytes_read=plan.metrics.bytes_read + size)


MAX_KEYS, MAX_KEY_BYTES = 1_000_000, 64 * 1024**2
"""Keys that are read for the filter of another table; more of them filter nothing, never a part of them."""
_WHOLE_NUMBERS = (st.ByteType, st.ShortType, st.IntegerType, st.LongType)
_FLOATS = (st.FloatType, st.DoubleType)
_SAME = (st.BinaryType, st.BooleanType, st.DateType, st.TimestampType, st.TimestampNTZType)
_MAX_DIGITS = 38


class _Joins:
    """Narrows scans by the keys of their join partners.

    Args:
        places: places of the query.
        scans: scans by place, with their conditions; changed in place.
        single: places whose table occurs only once: a scan serves all places of a table.
        pushed: what was pushed down, by table; added to.
    """

    def __init__(
        self,
        places: Sequence[TablePlace],
        scans: dict[int, Scan],
        single: Mapping[int, str],
        pushed: Mapping[str, Pushed],
    ) -> None:
        self._places = places
        self._scans = scans
        self._single = single
        self._pushed = pushed

    def narrow(self) -> None:
        """Go through the scans from the smallest on: each filters larger ones, which may then filter others."""
        asked = [
            (index, partners)
            for index, place in enumerate(self._places)
            for partners in place.partners
            if index in self._single and partners.keys.place in self._scans
        ]
        rows = {index: _max_rows(scan) for index, scan in self._scans.items()} if asked else {}
        order = sorted(rows, key=lambda index: (rows[index], index))
        for rank, small in enumerate(order):
            for index, partners in asked:
                other = partners.keys.place
                by_keys = other == small and index in order[rank + 1 :]
                by_ranges = index == small and other in order[rank + 1 :]
                if (by_keys or by_ranges) and (self._scans[other].predicates or self._scans[other].joins):
                    self._filter(index, partners, by_keys=by_keys)

    def _filter(self, index: int, partners: Partners, *, by_keys: bool) -> None:
        """Filter a scan by the keys of another one, read here, or by their ranges, which statistics give."""
        scan, keys, pushed = self._scans[index], self._scans[partners.keys.place], self._pushed[self._single[index]]
        table, pairs = self._places[partners.keys.place].table, (partners.columns, partners.keys.columns)
        what = f"{', '.join(partners.columns)} among {', '.join(partners.keys.columns)} of {table}"
        if by_keys:
            found = _keys_of_partners(scan, *pairs, keys)
            if isinstance(found, pa.Table):
                self._scans[index] = scan.prefilter(partners.columns, found)
                pushed.joins.append(f"{what}: {found.num_rows} rows of keys")
                return
            pushed.left[what] = found
        alike = [(a, b) for a, b in zip(*pairs, strict=True) if _are_comparable(scan, a, keys, b)]
        for ours, theirs in alike:
            scan = scan.prefilter(ours, induced_ranges(keys, theirs))
        self._scans[index] = scan
        if alike:
            pushed.joins.append(f"{what}: ranges of {', '.join(a for a, _ in alike)} that statistics give")


def _keys_of_partners(scan: Scan, columns: Sequence[str], key_columns: Sequence[str], keys: Scan) -> pa.Table | str:
    """The keys of another scan, without which rows have no effect; or why they are no filter."""
    wanted = keys.select(*key_columns)
    try:
        pairs = zip(spark_schema(scan.select(*columns).schema), spark_schema(wanted.schema), strict=True)
        fields = scan.key_fields(columns)
        keys.key_fields(key_columns)
    except (OptionError, UnsupportedError) as error:
        return str(error)
    if not all(_are_joined_exactly(ours.dataType, theirs.dataType) for ours, theirs in pairs):
        return "Spark casts the keys, and compares other values than a filter would"
    batches, size = [], 0
    for batch in wanted.to_batches():
        batches.append(batch)
        size += batch.nbytes
        if sum(each.num_rows for each in batches) > MAX_KEYS:
            return f"there are more than {MAX_KEYS} keys"
        if size > MAX_KEY_BYTES:
            return f"the keys take more than {MAX_KEY_BYTES} bytes"
    found = pa.Table.from_batches(batches, schema=wanted.arrow_schema)
    try:  # a type that Spark shows as text, such as UUID, may be another type here
        distinct_keys(found, fields, columns)
    except OptionError as error:
        return str(error)
    return found


def _are_joined_exactly(ours: st.DataType, theirs: st.DataType) -> bool:
    """Whether Spark compares the two types value for value, as a filter by keys does."""
    if isinstance(ours, st.StringType):
        return {ours.simpleString(), theirs.simpleString()} == {"string"}
    exact = (*_WHOLE_NUMBERS, st.DecimalType)
    if isinstance(ours, exact) and isinstance(theirs, exact):
        (one, one_scale), (other, other_scale) = _digits(ours), _digits(theirs)
        return max(one, other) + max(one_scale, other_scale) <= _MAX_DIGITS
    if isinstance(ours, _FLOATS):
        return isinstance(theirs, _FLOATS)
    return isinstance(ours, _SAME) and type(ours) is type(theirs)


def _digits(kind: st.DataType) -> tuple[int, int]:
    """Digits before and after the decimal point."""
    return (kind.precision - kind.scale, kind.scale) if isinstance(kind, st.DecimalType) else (20, 0)


def _are_comparable(scan: Scan, ours: str, keys: Scan, theirs: str) -> bool:
    try:
        return are_comparable(scan.key_fields([ours])[0], keys.key_fields([theirs])[0])
    except OptionError:
        return False


def _max_rows(scan: Scan) -> int:
    """Upper bound of the rows that the scan returns, from its plan."""
    return sum(task.data_file.record_count for task in scan.plan().tasks)


@dataclass(frozen=True, slots=True)
class _Read:
    """A scan of a query, what was pushed into it, and its DataFrame."""

    scan: "Scan"
    pushed: Pushed
    frame: DataFrame


_reads: "WeakKeyDictionary[DataFrame, Mapping[str, _Read]]" = WeakKeyDictionary()


def sql(
    spark: SparkSession,
    text: str,
    tables: "Mapping[str, Scan | Table | str | Path]",
    *,
    args: Mapping[str, Any] | None = None,
    reader: Reader = "auto",
    limits: NativeLimits | None = None,
) -> DataFrame:
    """Run a query whose conditions, columns and joins reach the scans of its tables.

    Each table is read with the columns that the query needs, and only where its conditions, also those implied by joins
    with equal keys, by `in` and by `exists`, let rows pass. Keys of selective tables filter the others; they are read
    here. What is not certain is left to Spark, which runs the whole query in any case; `reads_of_sql` says what and why.

    Args:
        spark: a session, classic or Connect.
        text: one query in Spark's SQL.
        tables: tables by the names that the query uses, such as `shop.orders`, in any letter case unless
            `spark.sql.caseSensitive` is set: scans, tables, or paths. Other names are views and tables of the session.
        args: values of its parameters, such as `:day`.
        reader: see `dataframe`.
        limits: see `dataframe`.

    Returns:
        The result, which Spark computes when it is used, from the snapshots that are current now.

    Raises:
        OptionError: not a single query, a table given with a wrong type, or `native` for a scan that it does not read.
        PySparkException: Spark refuses the query.
    """
    require_session(spark)
    if not isinstance(text, str):
        raise OptionError(f"the query is text in Spark's SQL, not {type(text).__name__}")
    if not isinstance(tables, Mapping):
        raise OptionError(
            "tables maps the names of the query to scans, tables or paths: {'orders': 'warehouse/orders'}"
        )
    given = dict(args or {})
    texts = tuple(value for value in given.values() if isinstance(value, str))
    query = parse_sql(text, texts, tables, case_sensitive=compares_case(spark))
    scans = {name: _scan_of(name, tables[name]) for name in query.tables if name in tables}
    found = _narrowed(spark, query, scans, given)
    frames = {
        name: dataframe(
            spark,
            scan,
            reader,
            limits=limits,
            is_filtered_again=not scans[name].predicates,
            is_one_relation=computes_by_queries(query.tree),  # the result is planned when it is used
        )
        for name, scan in found.scans.items()
    }
    views = {name: f"nevermore_{uuid4().hex}" for name in frames}
    # Spark formats the text: views by these names last as long as it needs them, in Connect sessions, too
    template = re.sub(r"[{}]", r"\g<0>\g<0>", query.over_views(views))
    for view in views.values():
        template = template.replace(view, f"{{{view}}}")
    if not views:
        template = text
    result = spark.sql(template, args=given or None, **{views[name]: frame for name, frame in frames.items()})
    _reads[result] = {name: _Read(found.scans[name], found.pushed[name], frame) for name, frame in frames.items()}
    return result


def reads_of_sql(frame: DataFrame) -> dict[str, TableRead]:
    """How the tables of a query are read, by the names given to `sql`: before it runs as planned, later with what its tasks have read.

    Raises:
        OptionError: `frame` was not returned by `sql` (one derived from it does not count).
    """
    if frame not in _reads:
        raise OptionError("only a DataFrame that sql() returned has reads of tables, not one derived from it")
    found = {}
    for name, read in _reads[frame].items():
        reports, choice = reports_of(read.frame), choice_of(read.frame)
        is_read = choice.strategy == "native" or reports.stage_ids
        metrics = reports.total() if is_read else most_read(read.scan.plan())
        found[name] = TableRead.of(read.scan, metrics, str(choice), read.pushed)
    return found


def explain_sql(frame: DataFrame) -> str:
    """The text of `reads_of_sql`: what was pushed into each scan, and what is left to Spark for which reason.

    Raises:
        OptionError: as `reads_of_sql`.
    """
    return "\n".join(line for name, read in reads_of_sql(frame).items() for line in read.described(name))


def _scan_of(name: str, given: "Scan | Table | str | Path") -> "Scan":
    from nevermore.scan_core.scan import Scan, Table, open_table

    match given:
        case Scan():
            return given
        case Table():
            return given.scan()
        case str() | Path():
            return open_table(str(given)).scan()
        case _:
            raise OptionError(f"table {name!r} is a scan, a table or a path, not {type(given).__name__}")


def _narrowed(
    spark: SparkSession, query: SqlQuery, scans: "Mapping[str, Scan]", given: Mapping[str, Any]
) -> PushedScans:
    """The scans with the columns and rows that the query may need."""
    schemas = {name: scan.schema for name, scan in scans.items()}
    for name in query.tables:
        if name not in schemas:
            schema = _schema_in_session(spark, query.spelled(name))
            if schema is None:
                return _unnarrowed(scans, f"the columns of {name} are not known")
            schemas[name] = schema
    columns = query.columns(schemas)
    selected = {name: scan.select(*columns[name]) for name, scan in scans.items()}
    if not means_what_scans_mean(spark):
        return _unnarrowed(selected, _OTHER_SESSION)
    if any(scan.row_limit is not None for scan in scans.values()):
        return _unnarrowed(selected, _LIMITED)
    return push_down(query, selected, given, schemas=schemas)


def _unnarrowed(scans: "Mapping[str, Scan]", reason: str) -> PushedScans:
    return PushedScans(scans, {name: Pushed(left={"all conditions": reason}) for name in scans})


def _schema_in_session(spark: SparkSession, name: str) -> Schema | None:
    """The columns of a view or table of the session; None if it has none of this name, and Spark says so itself."""
    try:
        columns = spark.table(name).schema
    except PySparkException:
        return None
    return Schema(0, tuple(NestedField(n, c.name, _type_of(c.dataType)) for n, c in enumerate(columns, 1)))


def _type_of(kind: st.DataType) -> PrimitiveType | StructType:
    """The type of scans that equals Spark's; for others one that equals none, so that no condition is carried over."""
    if isinstance(kind, st.DecimalType):
        return PrimitiveType("decimal", (kind.precision, kind.scale))
    if isinstance(kind, st.StringType) and kind.simpleString() == "string":
        return PrimitiveType("string")
    return PrimitiveType(_KINDS[type(kind)]) if type(kind) in _KINDS else StructType(())
