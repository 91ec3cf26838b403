"""Published tables against DuckDB: the same SQL over the change log must give the same rows."""

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import date, datetime
from typing import Any

import duckdb
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from sqlglot import exp

import scan_core
from checks.comparison import CheckResult, sample, surplus_rows
from checks.equality import applied_ordinal
from checks.kept_results import KeptResults
from checks.manifest_facts import NAME as MANIFESTS
from checks.manifest_facts import compare_manifests
from checks.mirror_checks import is_known_green, mirror_subject, snapshot_results
from checks.reference import sql_columns
from checks.reference.expected_rows import fold_log, live_rows
from checks.reference.sql_columns import open_connection
from pipelines.config.project import Config
from pipelines.config.publish_partition import PublishedPartition
from pipelines.errors import ConfigError
from pipelines.iceberg.catalog import find_table, has_catalog, open_catalog
from pipelines.publish.audit import StagedRows, Verdict
from pipelines.publish.lineage.sql_functions import unrepeatable
from pipelines.publish.query import arguments, published_entry, published_query
from pipelines.publish.state import Origin, Provenance, provenance_of, query_hash
from scan_core import (
    FilesAhead,
    PrimitiveType,
    Scan,
    ScanMetrics,
    ScanPlan,
    Schema,
    Split,
    Type,
    arrow_type,
    count_split,
    open_table,
    parse_transform,
    public_batch,
    read_split,
)

_MOST_DIGITS = 38
_DIGITS = {"TINYINT": 3, "SMALLINT": 5, "INT": 10, "BIGINT": 20}
"""Of whole numbers where Spark makes decimals of them."""
_AS_TEXT = frozenset({*_DIGITS, "TEXT", "VARCHAR", "DATE", "NULL"})
"""Types whose values both engines write alike."""
_REAL = frozenset({"FLOAT", "DOUBLE"})
_TIMES = frozenset({"TIMESTAMP", "TIMESTAMPTZ", "TIMESTAMPNTZ"})
_PLAIN_TIME = re.compile(r"\d{4}-\d\d-\d\d([ T]\d\d:\d\d(:\d\d(\.\d{1,6})?)?)?")
_COMBINING = (exp.Binary, exp.Between, exp.In, exp.Coalesce, exp.Nullif, exp.Case)


def difference(node: exp.Expression) -> str | None:
    """Why an expression may have another value in DuckDB than in Spark, as the end of a sentence; None if it has not.

    Args:
        node: of a tree whose types are known; what is below it is not judged.
    """
    kinds = {_kind(part) for part in _combined(node)}
    if isinstance(node, exp.Like):
        pattern = node.expression
        is_plain = isinstance(pattern, exp.Literal) and "\\" not in pattern.name
        return None if is_plain else "may match other text in DuckDB, which knows no backslash in patterns"
    if isinstance(node, exp.DPipe):
        return None if kinds <= _AS_TEXT else "may write values as other text in DuckDB than in Spark"
    if "FLOAT" in kinds and (len(kinds - {"NULL", "BOOLEAN"}) > 1 or isinstance(node, exp.Div)):
        return "is computed of floats in DuckDB and of doubles in Spark"
    if kinds & _TIMES and any(_has_zone(part) for part in _combined(node)):
        return "may read text with a time zone otherwise in DuckDB than in Spark"
    if isinstance(node, exp.Div | exp.Avg) and _gives_decimal(node) and not _is_result(node):
        return "is a decimal in Spark and a double in DuckDB"
    if isinstance(node, exp.Add | exp.Sub | exp.Mul | exp.Mod) and "DECIMAL" in kinds and _gives_decimal(node):
        digits = _digits(node)
        return (
            None if digits and digits[0] <= _MOST_DIGITS else "may be rounded to another scale in DuckDB than in Spark"
        )
    return None


def _kind(node: exp.Expression) -> str:
    return "UNKNOWN" if node.type is None else str(node.type.this.name)


def _combined(node: exp.Expression) -> list[exp.Expression]:
    """The values that an expression compares with each other, or makes one of."""
    if not isinstance(node, _COMBINING):
        return []
    branches = node.args.get("ifs") or ()
    parts = [*node.iter_expressions(), *(value for branch in branches for value in branch.iter_expressions())]
    return [part for part in parts if not isinstance(part, exp.If | exp.Subquery | exp.Query)]


def _has_zone(node: exp.Expression) -> bool:
    return isinstance(node, exp.Literal) and node.is_string and _PLAIN_TIME.fullmatch(node.name) is None


def _is_decimal(node: exp.Expression) -> bool:
    if isinstance(node, exp.Literal):
        return not node.is_string and "." in node.name and "e" not in node.name.lower()
    inner = node.this if isinstance(node, exp.Paren | exp.Neg) else None
    return _kind(node) == "DECIMAL" or (isinstance(inner, exp.Expression) and _is_decimal(inner))


def _gives_decimal(node: exp.Expression) -> bool:
    """Whether Spark makes a decimal of it, rounded to a scale."""
    parts = [node.this] if isinstance(node, exp.Avg) else [node.this, node.expression]
    is_real = any(_kind(part) in _REAL and not _is_decimal(part) for part in parts)
    return not is_real and any(_is_decimal(part) for part in parts)


def _is_result(node: exp.Expression) -> bool:
    """Whether a value is handed on as it is: what is computed of it would make a last digit that differs larger."""
    above = node.parent
    while isinstance(above, exp.Alias | exp.Paren | exp.Window):
        above = above.parent
    return isinstance(above, exp.Select) and above.parent is None


def _digits(node: exp.Expression | None) -> tuple[int, int] | None:
    """All digits of a number as Spark has it, and those behind the point; None if they are not known."""
    match node:
        case exp.Paren() | exp.Neg() | exp.Abs() | exp.Min() | exp.Max() | exp.Window():
            return _digits(node.this)
        case exp.Literal() if not node.is_string and "e" not in node.name.lower():
            whole, _, fraction = node.name.partition(".")
            return len(whole) + len(fraction), len(fraction)
        case exp.Sum():
            inner = _digits(node.this)
            return inner and (min(inner[0] + 10, _MOST_DIGITS), inner[1])
        case exp.Add() | exp.Sub() | exp.Mul() | exp.Mod():
            left, right = _digits(node.this), _digits(node.expression)
            if left is None or right is None:
                return None
            if isinstance(node, exp.Mul):
                return left[0] + right[0] + 1, left[1] + right[1]
            scale = max(left[1], right[1])
            return max(left[0] - left[1], right[0] - right[1]) + scale + 1, scale
        case exp.Count():
            return _DIGITS["BIGINT"], 0
        case exp.Expression() if _kind(node) in _DIGITS:
            return _DIGITS[_kind(node)], 0
        case exp.Column() | exp.Cast() if node.type is not None and _kind(node) == "DECIMAL":
            numbers = [int(part.name) for part in node.type.expressions]
            return (numbers[0], numbers[1]) if len(numbers) == 2 else None
        case _:
            return None


class NotComparableError(Exception):
    """DuckDB cannot be asked; the message says why."""


_SHAPES = (
    "Select", "From", "Join", "Where", "Group", "Having", "Order", "Ordered", "Limit", "Offset", "Distinct", "With", "CTE",
    "Subquery", "Union", "Except", "Intersect", "Table", "TableAlias", "Column", "Identifier", "Alias", "Star", "Tuple",
    "Window", "WindowSpec", "Filter", "Rollup", "Cube", "GroupingSets", "Paren", "Values",
)  # fmt: skip
_VALUES = (
    "Literal", "Boolean", "Null", "And", "Or", "Not", "EQ", "NEQ", "GT", "GTE", "LT", "LTE", "NullSafeEQ", "NullSafeNEQ", "Is",
    "In", "Between", "Like", "Exists", "Any", "Case", "If", "Coalesce", "Nullif", "Add", "Sub", "Mul", "Div", "Mod", "Neg",
    "Abs", "DPipe", "Cast", "TryCast", "DataType", "DataTypeParam", "TimestampTrunc", "DateTrunc", "Var",
    "Year", "Month", "Day", "TsOrDsToDate",
)  # fmt: skip
_OF_MANY_ROWS = (
    "Count", "Sum", "Min", "Max", "Avg", "RowNumber", "Rank", "DenseRank", "Lag", "Lead", "FirstValue", "LastValue", "Ntile",
)  # fmt: skip
_KNOWN = frozenset((*_SHAPES, *_VALUES, *_OF_MANY_ROWS))
_INTEGERS = frozenset({"TINYINT", "SMALLINT", "INT", "BIGINT"})
_NUMBERS = _INTEGERS | {"DECIMAL", "FLOAT", "DOUBLE"}
_DUCKDB_TIMES = frozenset({"DATE", "TIMESTAMP", "TIMESTAMPTZ", "TIMESTAMPNTZ"})
_CASTS: Mapping[str, frozenset[str]] = {
    **dict.fromkeys(_DUCKDB_TIMES, _DUCKDB_TIMES),
    **dict.fromkeys(_INTEGERS, _INTEGERS | {"BOOLEAN"}),
    "DOUBLE": _NUMBERS,
    "DECIMAL": _INTEGERS | {"DECIMAL"},
    "TEXT": _INTEGERS | {"TEXT", "VARCHAR", "DATE"},
    "VARCHAR": _INTEGERS | {"TEXT", "VARCHAR", "DATE"},
    "BOOLEAN": frozenset({"BOOLEAN"}),
}
"""By target, the types whose casts round, trim and overflow alike."""


def duckdb_sql(tree: exp.Query, arguments: Mapping[str, Any]) -> str:
    """The query for DuckDB, with values for its parameters.

    Args:
        tree: columns named in full, types known.
        arguments: by parameter.

    Raises:
        NotComparableError: something in it may mean another thing to DuckDB than to Spark.
    """
    texts = [value for value in arguments.values() if isinstance(value, str)]
    if (function := unrepeatable(tree, texts)) is not None:
        raise NotComparableError(f"{function} gives no certain answer for the same rows")
    for node in tree.walk():
        if not isinstance(node, exp.Placeholder) and type(node).__name__ not in _KNOWN:
            raise NotComparableError(f"{_named(node)} may mean another thing to DuckDB than to Spark")
        if isinstance(node, exp.Cast) and not _is_cast_alike(node):
            raise NotComparableError(f"{node.sql('spark')} may round or read text otherwise in DuckDB than in Spark")
        if (reason := difference(node)) is not None:
            raise NotComparableError(f"{_named(node)} {reason}")

    def bound(node: exp.Expression) -> exp.Expression:
        return _literal(arguments[node.name]) if isinstance(node, exp.Placeholder) else node

    return str(tree.transform(bound).sql(dialect="duckdb"))


def _is_cast_alike(node: exp.Cast) -> bool:
    target, source = node.to.this.name, node.this.type
    if isinstance(node.this, exp.Literal) and node.this.is_string:
        return target in _DUCKDB_TIMES
    if isinstance(node.this, exp.Literal | exp.Null | exp.Placeholder):
        return True
    return source is not None and source.this.name in _CASTS.get(target, frozenset())


def _named(node: exp.Expression) -> str:
    if isinstance(node, exp.Anonymous):
        return f"{node.name}()"
    return f"{node.sql_name().lower()}()" if isinstance(node, exp.Func) else node.sql("spark")[:60]


def _literal(value: Any) -> exp.Expression:
    match value:
        case None:
            return exp.Null()
        case bool():
            return exp.Boolean(this=value)
        case int() | float():
            return exp.Literal.number(value)
        case datetime():
            return exp.cast(exp.Literal.string(value.replace(tzinfo=None).isoformat(sep=" ")), "timestamp")
        case date():
            return exp.cast(exp.Literal.string(value.isoformat()), "date")
        case _:
            return exp.Literal.string(str(value))


COMPLETE = "published_rows_are_complete"


def rows_are_complete(staged: StagedRows) -> CheckResult:
    """The staged snapshot has all rows that the tasks wrote, and no others in partitions that are replaced."""
    scan = staged_scan(staged)
    plan = scan.plan()
    own = _own(plan, staged)
    paths = staged.paths
    found = sum(scan.run(own, _count))
    details = []
    if missing := len(paths) - len({task.data_file.path for task in own.tasks}):
        details.append(f"{missing} files of the run are not in the snapshot")
    if found != staged.num_rows:
        details.append(f"tasks wrote {staged.num_rows:,} rows, the snapshot holds {found:,}")
    if staged.mode == "replace":
        values = staged.values
        others = sum(
            (task.data_file.path in paths) is not (values is None or task.data_file.partition[0] in values)
            for task in plan.tasks
        )
        if others:
            details.append(f"{others} files are not in the partitions that were made, or in them and of other runs")
    return CheckResult(COMPLETE, not details, {"rows written": staged.num_rows, "rows found": found}, details=details)


def staged_manifests_match_files(staged: StagedRows) -> CheckResult:
    """What manifests of the staged snapshot say of files is so, as far as the snapshot that it builds upon did not say it."""
    table = open_table(staged.staged.table)
    snapshot = table.metadata.snapshots[staged.staged.committed.snapshot_id]
    return compare_manifests(table, snapshot, since=staged.staged.base_id)


def staged_scan(staged: StagedRows) -> Scan:
    """All rows of the staged snapshot."""
    return open_table(staged.staged.table).scan().as_of_snapshot(staged.staged.committed.snapshot_id)


def staged_table(staged: StagedRows) -> pa.Table:
    """The rows of the run alone."""
    scan = staged_scan(staged)
    schema = scan.arrow_schema
    batches = [public_batch(batch, schema) for batch in scan.run(_own(scan.plan(), staged), read_split)]
    return pa.Table.from_batches(batches, schema=schema)


def _own(plan: ScanPlan, staged: StagedRows) -> ScanPlan:
    paths = staged.paths
    return replace(plan, tasks=[task for task in plan.tasks if task.data_file.path in paths])


def _count(split: Split, metrics: ScanMetrics, ahead: FilesAhead) -> Iterator[int]:
    yield count_split(split, metrics, ahead)


def keys_of_rows(rows: pa.Table, partition: PublishedPartition, kind: Type) -> pa.Array:
    """The key of each row's partition.

    Args:
        rows: with the column that partitions are made by.
        partition: of the table.
        kind: Iceberg type of that column.
    """
    column = rows.column(partition.column).cast(arrow_type(kind)).combine_chunks()
    physical = parse_transform(partition.transform).apply(column, kind)
    distinct = pc.unique(physical)
    identity = PublishedPartition(partition.column, "value", "identity")
    found = [_key(partition, identity, value, kind) for value in distinct]
    return pa.array(found, pa.string()).take(pc.index_in(physical, distinct))


def _key(partition: PublishedPartition, identity: PublishedPartition, value: pa.Scalar, kind: Type) -> str:
    """Of a value of the partition field, in the form of manifests."""
    if partition.transform == "identity":
        physical = identity.physical_values(pa.array([value.as_py()], arrow_type(kind)), kind).pop()
    elif pa.types.is_date32(value.type):
        physical = value.cast(pa.int32()).as_py()
    else:
        physical = value.as_py()
    return partition.key_of(physical, kind)


NAME = "published_equals_duckdb"
MOST_BYTES = 2 * 1024**3
"""Of data files of the mirrors, beyond which the rows are not made again: all of them are held in memory."""


def published_equals_duckdb(config: Config, name: str, *, most_bytes: int = MOST_BYTES) -> CheckResult:
    """The rows of a published table, as a multiset, are those that DuckDB computes; sums of floats need only be close.

    Args:
        config: the project.
        name: an entry of `published`.
        most_bytes: of the mirrors' data files; more are not compared.

    Raises:
        ConfigError: an unknown name, or SQL that cannot run.
    """
    return _result(lambda: _Comparison(config, name, most_bytes))


def staged_rows_equal_duckdb(config: Config, staged: StagedRows, *, most_bytes: int = MOST_BYTES) -> CheckResult:
    """As `published_equals_duckdb`, over exactly the rows that a run has staged."""
    return _result(lambda: _Comparison(config, staged.name, most_bytes, staged))


def _result(prepare: Callable[[], "_Comparison"]) -> CheckResult:
    try:
        comparison = prepare()
        parts = list(comparison.parts())
    except NotComparableError as reason:
        return CheckResult(NAME, passed=True, details=[f"not compared: {reason}"])
    rows = sum(part.actual.num_rows for part in parts)
    compared = {"rows published": rows, "rows by DuckDB": sum(part.expected.num_rows for part in parts)}
    if left_out := comparison.rows.num_rows - rows:
        compared["rows not compared"] = left_out
    details, offending = [], []
    for part in parts:
        more, fewer, num_more, num_fewer = surplus_rows(part.actual, part.expected, part.close)
        if not num_more and not num_fewer:
            continue
        if comparison.is_undetermined(part):
            details.append(
                f"not compared: ties: DuckDB gives other rows for {part.text} when it reads in another order"
            )
            continue
        details += [f"{num_more:,} rows of {part.text} are published that DuckDB does not compute"] if num_more else []
        details += [f"{num_fewer:,} rows that DuckDB computes for {part.text} are not published"] if num_fewer else []
        offending += [*sample(more), *sample(fewer)]
    failed = any(not text.startswith("not compared") for text in details)
    return CheckResult(NAME, not failed, compared, offending[:20], details)


@dataclass(frozen=True)
class _Part:
    """Rows of one origin: all of the table, or some partitions."""

    origin: Origin
    keys: frozenset[str]
    others: bool
    text: str
    actual: pa.Table
    expected: pa.Table
    close: frozenset[str] = field(default_factory=frozenset)


class _Comparison:
    def __init__(self, config: Config, name: str, most_bytes: int, staged: StagedRows | None = None) -> None:
        self._config = config
        self._entry = published_entry(config, name)
        self._query = published_query(config, name)
        if self._entry.mode != "replace":
            raise NotComparableError(f"mode: {self._entry.mode} keeps rows of earlier states of the mirrors")
        catalog = open_catalog(config) if has_catalog(config) else None
        table = None if catalog is None else find_table(catalog, name)
        if catalog is None or table is None:
            raise NotComparableError(f"{name} does not exist yet")
        self._most_bytes = most_bytes
        self._mirrors = {t: find_table(catalog, t) for t in self._query.tables}
        self._hash = query_hash(config, self._entry)
        self._why_without_origin = "no snapshot tells what the rows were made from"
        if staged is None:
            self._provenance: Provenance = provenance_of(table)
            scan = scan_core.open_table(table).scan()
            self.rows = scan.to_table()
        else:
            origin = Origin(staged.query, staged.sources)
            self._why_without_origin = "no partition was made"
            self._provenance = (
                Provenance(rest=origin) if staged.keys is None else Provenance(dict.fromkeys(staged.keys, origin))
            )
            scan = staged_scan(staged)
            self.rows = staged_table(staged)
        self._schema = scan.schema
        partition = self._entry.partitioning
        kind = None if partition is None else self._schema.find(partition.column).type
        self._keys = None if partition is None or kind is None else keys_of_rows(self.rows, partition, kind)

    def parts(self) -> Iterator[_Part]:
        """The table in parts of one origin each, with the rows that DuckDB computes for them."""
        if not self._schema.fields or any(not isinstance(f.type, PrimitiveType) for f in self._schema.fields):
            raise NotComparableError("the result has nested columns")
        by_origin: dict[tuple[Any, ...], tuple[Origin, set[str]]] = {}
        for key, origin in self._provenance.made.items():
            same = (origin.query, *sorted(origin.snapshots.items()))
            by_origin.setdefault(same, (origin, set()))[1].add(key)
        made, found, reason = frozenset(self._provenance.made), 0, self._why_without_origin
        todo = [(origin, frozenset(keys), False) for origin, keys in by_origin.values()]
        if self._provenance.rest is not None:
            todo.append((self._provenance.rest, made, True))
        for origin, keys, others in todo:
            if origin.query != self._hash:
                reason = "the rows were made by other SQL or settings than the config has now"
                continue
            shown = ", ".join(sorted(keys)[:5]) + (", ..." if len(keys) > 5 else "")
            text = ("the table" if not keys else f"all partitions but {shown}") if others else f"partitions {shown}"
            expected, close = self._expected(origin, keys, others=others)
            actual = self.rows.select(expected.column_names)
            if self._keys is not None:
                actual = actual.filter(_within(self._keys, keys, others=others))
            found += 1
            yield _Part(origin, keys, others, text, actual, expected, close)
        if not found:
            raise NotComparableError(reason)

    def is_undetermined(self, part: _Part) -> bool:
        """Whether DuckDB itself computes other rows when the mirrors' rows come in another order."""
        again, _ = self._expected(part.origin, part.keys, others=part.others, is_reversed=True)
        return any(surplus_rows(part.expected, again, part.close)[2:])

    def _expected(
        self, origin: Origin, keys: frozenset[str], *, others: bool, is_reversed: bool = False
    ) -> tuple[pa.Table, frozenset[str]]:
        schemas, rows = self._sources(origin)
        tree = self._query.in_full(schemas)
        if tree is None:
            raise NotComparableError("the SQL is not understood well enough")
        partition = self._entry.partitioning
        runs: list[str | None] = [None]
        if partition is not None and self._query.depends_on_partition:
            existing = set() if self._keys is None else set(pc.unique(self._keys).to_pylist())
            runs = list(sorted(existing - keys) if others else sorted(keys))
        parts, close = [], frozenset[str]()
        with open_connection() as connection:
            for table, view in self._query.view_names.items():
                connection.register(view, _reversed(rows[table]) if is_reversed else rows[table])
            for key in runs:
                sql = duckdb_sql(tree, arguments(self._query, self._entry, key))
                made, loose = self._run(connection, sql)
                close |= loose
                wanted = keys if key is None else frozenset({key})
                if partition is not None:
                    kind = self._schema.find(partition.column).type
                    made = made.filter(
                        _within(keys_of_rows(made, partition, kind), wanted, others=others and key is None)
                    )
                parts.append(made)
        if not parts:
            raise NotComparableError("the table has no partitions")
        return pa.concat_tables(parts), close

    def _run(self, connection: duckdb.DuckDBPyConnection, sql: str) -> tuple[pa.Table, frozenset[str]]:
        """The rows in the types of the table, and the columns that are floats to DuckDB."""
        try:
            connection.execute(f"CREATE OR REPLACE TEMP TABLE made AS {sql}")
            found = connection.execute("DESCRIBE made").fetchall()
            by_name = {row[0].lower(): (row[0], row[1]) for row in found}
            fields = [f for f in self._schema.fields if f.name.lower() in by_name]
            if len(fields) < len(found):
                raise NotComparableError("the table does not have all columns of the SQL")
            cast = ", ".join(
                f"CAST({sql_columns.quoted(by_name[f.name.lower()][0])} AS {sql_columns.sql_type(str(f.type))}) AS c{i}"
                for i, f in enumerate(fields)
            )
            rows = connection.sql(f"SELECT {cast} FROM made").to_arrow_table()
        except duckdb.Error as error:
            raise NotComparableError(f"DuckDB refuses the SQL: {str(error).splitlines()[0]}") from error
        loose = {f.name for f in fields if by_name[f.name.lower()][1] in {"DOUBLE", "FLOAT"}}
        columns = [rows.column(i).cast(arrow_type(f.type)) for i, f in enumerate(fields)]
        return pa.table(columns, names=[f.name for f in fields]), frozenset(loose)

    def _sources(self, origin: Origin) -> tuple[dict[str, Schema], dict[str, pa.Table]]:
        """Schemas and living rows of the mirrors, as they were read; times without zone, as those of UTC."""
        scans, locations = {}, {}
        for table, mirror in self._mirrors.items():
            if mirror is None:
                raise NotComparableError(f"{table} does not exist any more")
            opened = scan_core.open_table(mirror)
            wanted = origin.snapshots.get(table)
            if wanted is not None and wanted not in opened.metadata.snapshots:
                raise NotComparableError(f"snapshot {wanted} of {table} has expired")
            is_current = wanted == opened.metadata.current_snapshot_id
            locations[table] = str(mirror.metadata_location)
            scans[table] = opened.scan() if wanted is None or is_current else opened.scan().as_of(wanted)
        schemas = {table: scan.schema for table, scan in scans.items()}
        size = sum(task.data_file.file_size_bytes for scan in scans.values() for task in scan.plan().tasks)
        if size > self._most_bytes:
            raise NotComparableError(f"the mirrors hold {size:,} bytes, more than {self._most_bytes:,}")
        rows = {}
        for table, columns in self._query.columns(schemas).items():
            wanted = origin.snapshots.get(table)
            is_current = wanted == scans[table].table.metadata.current_snapshot_id
            alive = self._demanded(scans[table], table, columns)
            if alive is None:
                alive = live_rows(locations[table], snapshot_id=None if is_current else wanted, columns=columns)
            rows[table] = _without_zones(alive.slice(0, 0) if wanted is None else alive)
        return schemas, rows

    def _demanded(self, scan: Scan, table: str, columns: Sequence[str]) -> pa.Table | None:
        """The rows that the log of a mirror demands at a snapshot; None where its files are known to have just these rows.

        Also None for a table without a log, whose files are all there is to read.
        """
        snapshot = scan.snapshot
        if snapshot is None or is_known_green(self._config, table, snapshot.snapshot_id):
            return None
        subject = mirror_subject(self._config, table)
        if subject is None or subject.change_log is None:
            return None
        if subject.why_not_by_log is not None:
            raise NotComparableError(f"{table} has not passed its checks, and {subject.why_not_by_log}")
        if subject.soft_delete:
            raise NotComparableError(f"{table} has not passed its checks, and its log does not tell rows that are gone")
        ordinal = applied_ordinal(subject, snapshot.snapshot_id)
        if ordinal is None:
            raise NotComparableError(f"{table} has not passed its checks, and does not tell what of its log it holds")
        rows = fold_log(subject.change_log, subject.key, up_to_ordinal=ordinal, adopted=subject.adopted).rows
        found = []
        for column in scan.select(*columns).arrow_schema:
            if column.name not in rows.column_names:  # dropped by the source
                found.append(pa.nulls(rows.num_rows, column.type))
            elif isinstance(column.type, pa.BaseExtensionType):
                found.append(rows.column(column.name))
            else:  # the table's type may be wider
                found.append(rows.column(column.name).cast(column.type))
        return pa.table(found, names=list(columns))


def _within(row_keys: pa.Array, keys: frozenset[str], *, others: bool) -> pa.Array:
    inside = pc.is_in(row_keys, pa.array(sorted(keys), pa.string()))
    return pc.invert(inside) if others else inside


def _without_zones(rows: pa.Table) -> pa.Table:
    naive = [pa.timestamp(f.type.unit) if pa.types.is_timestamp(f.type) else f.type for f in rows.schema]
    return rows.cast(pa.schema(list(zip(rows.column_names, naive, strict=True))))


def _reversed(rows: pa.Table) -> pa.Table:
    return rows.take(pa.array(np.arange(rows.num_rows)[::-1]))


class ProjectAuditor:
    """Answers for the tables of a project. Results for mirrors are kept beside them, and found out once per snapshot."""

    def mirrors(self, config: Config, scans: Mapping[str, Scan]) -> Sequence[Verdict]:
        """The results of the checks of the snapshots that scans read, by mirror."""
        found: list[Verdict] = []
        for table, scan in scans.items():
            kept = snapshot_results(config, table, scan.table.metadata_path)
            found += [_verdict(table, result, _how(kept)) for result in kept.results.values()]
        return found

    def rows(self, config: Config, staged: StagedRows) -> Sequence[Verdict]:
        """Whether exactly the rows that tasks wrote are staged, as manifests say, and whether DuckDB computes the same ones."""
        results = (
            rows_are_complete(staged),
            staged_manifests_match_files(staged),
            staged_rows_equal_duckdb(config, staged),
        )
        return [_verdict(staged.name, result) for result in results]


def check_published(config: Config, name: str) -> Iterator[CheckResult]:
    """The checks of a published table as it is now. An entry that cannot be made fails its own check, and no other's.

    Raises:
        MissingFileError: a file of the table is gone.
        MalformedTableError: a file of the table cannot be read.
    """
    try:
        yield published_equals_duckdb(config, name)
    except ConfigError as error:
        yield CheckResult(NAME, passed=False, details=[str(error)])
    found = find_table(open_catalog(config), name) if has_catalog(config) else None
    if found is None:
        yield CheckResult(MANIFESTS, passed=True, details=[f"not compared: {name} does not exist yet"])
        return
    table = open_table(found)
    yield compare_manifests(table, table.metadata.current_snapshot)


def _how(kept: KeptResults) -> str:
    return "" if kept.since is None else f"since snapshot {kept.since}: "


def _verdict(table: str, result: CheckResult, how: str = "") -> Verdict:
    return Verdict(
        table, result.name, result.passed, how + result.summary(), result.compared, tuple(result.offending_keys)
    )
