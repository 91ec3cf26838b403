"""Published tables against DuckDB: the same SQL over the change log must give the same rows."""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import date, datetime
from functools import cached_property
from typing import Any

import duckdb
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from sqlglot import exp

from checks.comparison import MAX_OFFENDING_KEYS, CheckResult, sample, surplus_rows
from checks.configured import published_results, staged_results
from checks.equality import in_type
from checks.manifest_facts import compare_manifests
from checks.mirror_checks import is_known_green, mirror_subject, snapshot_results
from checks.reference import sql_columns
from checks.reference.expected_rows import fold_log, live_rows
from checks.reference.sql_columns import open_connection
from pipelines.config.project import Config
from pipelines.config.publish_partition import PublishedPartition
from pipelines.config.published import PublishedConfig
from pipelines.errors import ConfigError
from pipelines.iceberg.catalog import find_table, has_catalog, open_catalog
from pipelines.publish.audit import StagedRows, Verdict
from pipelines.publish.query import PublishedQuery, arguments, published_entry, published_query
from pipelines.publish.state import Origin, Provenance, provenance_of, query_hash
from scan_core import (
    FilesAhead,
    PrimitiveType,
    Scan,
    ScanMetrics,
    ScanOptions,
    ScanPlan,
    Schema,
    Split,
    Table,
    Type,
    arrow_type,
    count_split,
    open_table,
    parse_transform,
    public_batch,
    read_split,
)
from scan_core.spark import unrepeatable

_MAX_DIGITS = 38
_DIGITS = {"TINYINT": 3, "SMALLINT": 5, "INT": 10, "BIGINT": 20}
"""Functions of whole numbers whose result is a decimal in Spark."""
_AS_TEXT = frozenset({*_DIGITS, "TEXT", "VARCHAR", "DATE", "NULL"})
"""Types whose values both engines write identically."""
_REAL = frozenset({"FLOAT", "DOUBLE"})
_TIMES = frozenset({"TIMESTAMP", "TIMESTAMPTZ", "TIMESTAMPNTZ"})
_PLAIN_TIME = re.compile(r"\d{4}-\d\d-\d\d([ T]\d\d:\d\d(:\d\d(\.\d{1,6})?)?)?")
_COMBINING = (exp.Binary, exp.Between, exp.In, exp.Coalesce, exp.Nullif, exp.Case)


def difference(node: exp.Expression) -> str | None:
    """Why an expression may have another value in DuckDB than in Spark, as the end of a sentence; None if it cannot.

    Args:
        node: a node of a typed tree; its operands are not examined.
    """
    kinds = {_kind(part) for part in _combined(node)}
    if isinstance(node, exp.Like):
        pattern = node.expression
        is_plain = isinstance(pattern, exp.Literal) and "\\" not in pattern.name
        return None if is_plain else "may match other text in DuckDB, where a backslash in patterns has no meaning"
    if isinstance(node, exp.DPipe):
        return None if kinds <= _AS_TEXT else "may write values as other text in DuckDB than in Spark"
    if "FLOAT" in kinds and (len(kinds - {"NULL", "BOOLEAN"}) > 1 or isinstance(node, exp.Div)):
        return "is computed of floats in DuckDB and of doubles in Spark"
    if kinds & _TIMES and any(_has_zone(part) for part in _combined(node)):
        return "may read text with a time zone differently in DuckDB than in Spark"
    if isinstance(node, exp.Div | exp.Avg) and _gives_decimal(node) and not _is_result(node):
        return "is a decimal in Spark and a double in DuckDB"
    if isinstance(node, exp.Add | exp.Sub | exp.Mul | exp.Mod) and "DECIMAL" in kinds and _gives_decimal(node):
        digits = _digits(node)
        return (
            None if digits and digits[0] <= _MAX_DIGITS else "may be rounded to another scale in DuckDB than in Spark"
        )
    return None


def _kind(node: exp.Expression) -> str:
    return "UNKNOWN" if node.type is None else str(node.type.this.name)


def _combined(node: exp.Expression) -> list[exp.Expression]:
    """The values that an expression compares or combines into one."""
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
    """Whether Spark computes a decimal, rounded to a scale."""
    parts = [node.this] if isinstance(node, exp.Avg) else [node.this, node.expression]
    is_real = any(_kind(part) in _REAL and not _is_decimal(part) for part in parts)
    return not is_real and any(_is_decimal(part) for part in parts)


def _is_result(node: exp.Expression) -> bool:
    """Whether a value reaches the result unchanged: computing with it would amplify differences in the last digit."""
    above = node.parent
    while isinstance(above, exp.Alias | exp.Paren | exp.Window):
        above = above.parent
    return isinstance(above, exp.Select) and above.parent is None


def _digits(node: exp.Expression | None) -> tuple[int, int] | None:
    """The precision and scale of a number in Spark; None if they are unknown."""
    match node:
        case exp.Paren() | exp.Neg() | exp.Abs() | exp.Min() | exp.Max() | exp.Window():
            return _digits(node.this)
        case exp.Literal() if not node.is_string and "e" not in node.name.lower():
            whole, _, fraction = node.name.partition(".")
            return len(whole) + len(fraction), len(fraction)
        case exp.Sum():
            inner = _digits(node.this)
            return inner and (min(inner[0] + 10, _MAX_DIGITS), inner[1])
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
    """DuckDB cannot compute the same result; the message gives the reason."""


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
"""By target, the types whose casts round, trim and overflow identically."""


def duckdb_sql(tree: exp.Query, arguments: Mapping[str, Any]) -> str:
    """Translate a query to DuckDB, with values for its parameters.

    Args:
        tree: the query, with qualified columns and known types.
        arguments: values by parameter.

    Raises:
        NotComparableError: a part of it may have another meaning in DuckDB than in Spark.
    """
    texts = [value for value in arguments.values() if isinstance(value, str)]
    if (function := unrepeatable(tree, texts)) is not None:
        raise NotComparableError(f"{function} gives no certain answer for the same rows")
    for node in tree.walk():
        if not isinstance(node, exp.Placeholder) and type(node).__name__ not in _KNOWN:
            raise NotComparableError(f"{_named(node)} may have another meaning in DuckDB than in Spark")
        if isinstance(node, exp.Cast) and not _is_cast_alike(node):
            raise NotComparableError(f"{node.sql('spark')} may round or read text differently in DuckDB than in Spark")
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


def rows_are_complete(staged: StagedRows, options: ScanOptions | None = None) -> CheckResult:
    """The staged snapshot has all rows that the tasks wrote, and no others in replaced partitions."""
    scan = staged_scan(staged, options)
    plan = scan.plan()
    own = _own(plan, staged)
    paths = staged.paths
    found = sum(scan.run(own, _count))
    details = []
    if missing := len(paths) - len({task.data_file.path for task in own.tasks}):
        details.append(f"{missing} files of the run are not in the snapshot")
    if found != staged.num_rows:
        details.append(f"tasks wrote {staged.num_rows:,} rows, the snapshot has {found:,}")
    if staged.mode == "replace":
        values = staged.values
        others = sum(
            (task.data_file.path in paths) is not (values is None or task.data_file.partition[0] in values)
            for task in (own if staged.by_key else plan).tasks
        )
        if others:
            details.append(f"{others} files are outside the partitions that were made, or inside but from other runs")
    return CheckResult(COMPLETE, not details, {"rows written": staged.num_rows, "rows found": found}, details=details)


def staged_manifests_match_files(staged: StagedRows) -> CheckResult:
    """The staged manifests describe files correctly, as far as they differ from those of the base snapshot."""
    table = open_table(staged.staged.table)
    snapshot = table.metadata.snapshots[staged.staged.committed.snapshot_id]
    return compare_manifests(table, snapshot, since=staged.staged.base_id)


def staged_scan(staged: StagedRows, options: ScanOptions | None) -> Scan:
    """A scan of all rows of the staged snapshot."""
    return open_table(staged.staged.table, options=options).scan().as_of_snapshot(staged.staged.committed.snapshot_id)


def staged_table(staged: StagedRows, options: ScanOptions | None) -> pa.Table:
    """The rows of this run alone; where it made single keys, all rows of their partitions."""
    scan = staged_scan(staged, options)
    schema, plan = scan.arrow_schema, scan.plan()
    own = _own(plan, staged)
    if staged.by_key:
        values = staged.values
        own = replace(plan, tasks=[t for t in plan.tasks if values is None or t.data_file.partition[0] in values])
    batches = [public_batch(batch, schema) for batch in scan.run(own, read_split)]
    return pa.Table.from_batches(batches, schema=schema)


def _own(plan: ScanPlan, staged: StagedRows) -> ScanPlan:
    paths = staged.paths
    return replace(plan, tasks=[task for task in plan.tasks if task.data_file.path in paths])


def _count(split: Split, metrics: ScanMetrics, ahead: FilesAhead) -> Iterator[int]:
    yield count_split(split, metrics, ahead)


def keys_of_rows(rows: pa.Table, partition: PublishedPartition, kind: Type) -> pa.Array:
    """The key of each row's partition.

    Args:
        rows: rows with the partition column.
        partition: partition of the table.
        kind: Iceberg type of that column.
    """
    column = rows.column(partition.column).cast(arrow_type(kind)).combine_chunks()
    transformed = parse_transform(partition.transform).apply(column, kind)
    distinct = pc.unique(transformed)
    if partition.transform == "identity":  # values as manifests store them
        identity = PublishedPartition(partition.column, "value", "identity")
        physical = [
            identity.physical_values(pa.array([value.as_py()], arrow_type(kind)), kind).pop() for value in distinct
        ]
    else:
        physical = (distinct.cast(pa.int32()) if pa.types.is_date32(distinct.type) else distinct).to_pylist()
    keys = [partition.key_of(value, kind) for value in physical]
    return pa.array(keys, pa.string()).take(pc.index_in(transformed, distinct))


NAME = "published_equals_duckdb"
MAX_BYTES = 2 * 1024**3
"""Maximum size of the mirrors' data files that are compared, because all of their rows are in memory at once."""


def published_equals_duckdb(config: Config, name: str, *, max_bytes: int = MAX_BYTES) -> CheckResult:
    """The rows of a published table, as a multiset, equal those that DuckDB computes; sums of floats need only be close.

    Args:
        config: the project.
        name: an entry of `published`.
        max_bytes: maximum size of the mirrors' data files; larger ones are not compared.

    Raises:
        ConfigError: an unknown name, or SQL that cannot run.
    """
    published_query(config, name)  # SQL that cannot run is an error even before the table exists
    try:
        table, provenance = _published_table(config, name)
        unknown = "no snapshot records the sources of the rows"
        comparison = _Comparison(config, name, max_bytes, table.schema, table.scan().to_table(), provenance, unknown)
        return _compare_parts(comparison, list(comparison.parts()))
    except NotComparableError as reason:
        return CheckResult(NAME, passed=True, details=[f"not compared: {reason}"])


def staged_rows_equal_duckdb(config: Config, staged: StagedRows, *, max_bytes: int = MAX_BYTES) -> CheckResult:
    """Compare exactly the rows that a run has staged; see `published_equals_duckdb`."""
    origin = Origin(staged.query, staged.sources)
    made = Provenance(rest=origin) if staged.keys is None else Provenance(dict.fromkeys(staged.keys, origin))
    try:
        _published_table(config, staged.name)
        schema, rows = staged_scan(staged, config.scan_options).schema, staged_table(staged, config.scan_options)
        comparison = _Comparison(config, staged.name, max_bytes, schema, rows, made, "no partition was made")
        return _compare_parts(comparison, list(comparison.parts()))
    except NotComparableError as reason:
        return CheckResult(NAME, passed=True, details=[f"not compared: {reason}"])


def _published_table(config: Config, name: str) -> tuple[Table, Provenance]:
    """The table, and the origins of its rows."""
    mode = published_entry(config, name).mode
    if mode != "replace":
        raise NotComparableError(f"mode: {mode} keeps rows of earlier states of the mirrors")
    table = find_table(open_catalog(config), name) if has_catalog(config) else None
    if table is None:
        raise NotComparableError(f"{name} does not exist yet")
    return open_table(table, options=config.scan_options), provenance_of(table)


def _compare_parts(comparison: "_Comparison", parts: Sequence["_Part"]) -> CheckResult:
    rows = sum(part.actual.num_rows for part in parts)
    compared = {"rows published": rows, "rows by DuckDB": sum(part.expected.num_rows for part in parts)}
    if left_out := comparison.rows.num_rows - rows:
        compared["rows not compared"] = left_out
    wrong, notes, offending = [], [], []
    for part in parts:
        text = part.partitions.text()
        more, fewer, num_more, num_fewer = surplus_rows(part.actual, part.expected, part.close)
        if not num_more and not num_fewer:
            continue
        if comparison.is_undetermined(part):
            notes.append(f"not compared: ties: DuckDB returns other rows for {text} when it reads in another order")
            continue
        wrong += [f"{num_more:,} rows of {text} are published that DuckDB does not compute"] if num_more else []
        wrong += [f"{num_fewer:,} rows that DuckDB computes for {text} are not published"] if num_fewer else []
        offending += [*sample(more), *sample(fewer)]
    return CheckResult(NAME, not wrong, compared, offending[:MAX_OFFENDING_KEYS], [*wrong, *notes])


@dataclass(frozen=True)
class _Only:
    """The partitions with these keys."""

    keys: frozenset[str]

    def text(self) -> str:
        return f"partitions {_shortened(self.keys)}"

    def rows(self, row_keys: pa.Array) -> pa.Array:
        """For each row, by the key of its partition, whether it belongs to these partitions."""
        return pc.is_in(row_keys, pa.array(sorted(self.keys), pa.string()))


@dataclass(frozen=True)
class _AllBut:
    """All partitions, or all of a table without partitions, except these keys."""

    keys: frozenset[str]

    def text(self) -> str:
        return f"all partitions but {_shortened(self.keys)}" if self.keys else "the table"

    def rows(self, row_keys: pa.Array) -> pa.Array:
        return pc.invert(_Only(self.keys).rows(row_keys))


def _shortened(keys: frozenset[str]) -> str:
    return ", ".join(sorted(keys)[:5]) + (", ..." if len(keys) > 5 else "")


@dataclass(frozen=True)
class _Part:
    """Rows that were made from the same snapshots by the same SQL."""

    origin: Origin
    partitions: _Only | _AllBut
    actual: pa.Table
    expected: pa.Table
    close: frozenset[str]


@dataclass(frozen=True)
class _Comparison:
    """The rows of a published table, or those that a run has staged, with their origins."""

    config: Config
    name: str
    max_bytes: int
    schema: Schema
    rows: pa.Table
    provenance: Provenance
    why_without_origin: str

    @cached_property
    def query(self) -> PublishedQuery:
        return published_query(self.config, self.name)

    @cached_property
    def entry(self) -> PublishedConfig:
        return published_entry(self.config, self.name)

    @cached_property
    def row_keys(self) -> pa.Array | None:
        """The partition key of each row; None for a table without partitions."""
        return self._keys_of(self.rows)

    def _keys_of(self, rows: pa.Table) -> pa.Array | None:
        partition = self.entry.partitioning
        return None if partition is None else keys_of_rows(rows, partition, self.schema.find(partition.column).type)

    def parts(self) -> Iterator[_Part]:
        """The table in parts of one origin each, with the rows that DuckDB computes for them."""
        if not self.schema.fields or any(not isinstance(f.type, PrimitiveType) for f in self.schema.fields):
            raise NotComparableError("the result has nested columns")
        by_origin: dict[tuple[Any, ...], tuple[Origin, set[str]]] = {}
        for key, origin in self.provenance.made.items():
            same = (origin.query, *sorted(origin.snapshots.items()))
            by_origin.setdefault(same, (origin, set()))[1].add(key)
        todo: list[tuple[Origin, _Only | _AllBut]] = [(origin, _Only(frozenset(k))) for origin, k in by_origin.values()]
        if self.provenance.rest is not None:
            todo.append((self.provenance.rest, _AllBut(frozenset(self.provenance.made))))
        current = [(o, partitions) for o, partitions in todo if o.query == query_hash(self.config, self.entry)]
        if not current:
            changed = "the rows were made with other SQL or settings than those of the config"
            raise NotComparableError(changed if todo else self.why_without_origin)
        for origin, partitions in current:
            expected, close = self._expected(origin, partitions)
            actual = self.rows.select(expected.column_names)
            if self.row_keys is not None:
                actual = actual.filter(partitions.rows(self.row_keys))
            yield _Part(origin, partitions, actual, expected, close)

    def is_undetermined(self, part: _Part) -> bool:
        """Whether DuckDB itself computes other rows when the mirrors' rows are in another order."""
        again, _ = self._expected(part.origin, part.partitions, is_reversed=True)
        return any(surplus_rows(part.expected, again, part.close)[2:])

    def _expected(
        self, origin: Origin, partitions: _Only | _AllBut, *, is_reversed: bool = False
    ) -> tuple[pa.Table, frozenset[str]]:
        schemas, rows = self._sources(origin)
        tree = self.query.in_full(schemas)
        if tree is None:
            raise NotComparableError("the SQL is not understood well enough")
        runs: list[str | None] = [None]
        if self.entry.partitioning is not None and self.query.depends_on_partition:
            existing = set(pc.unique(self.row_keys).to_pylist())
            runs = sorted(partitions.keys if isinstance(partitions, _Only) else existing - partitions.keys)
        parts, close = [], frozenset[str]()
        with open_connection() as connection:
            for table, view in self.query.view_names.items():
                backwards = pa.array(np.arange(rows[table].num_rows)[::-1])
                connection.register(view, rows[table].take(backwards) if is_reversed else rows[table])
            for key in runs:
                made, loose = self._run(connection, duckdb_sql(tree, arguments(self.query, self.entry, key)))
                close |= loose
                if (keys := self._keys_of(made)) is not None:
                    # a run for one partition publishes only the rows of this partition
                    made = made.filter((partitions if key is None else _Only(frozenset({key}))).rows(keys))
                parts.append(made)
        if not parts:
            raise NotComparableError("the table has no partitions")
        return pa.concat_tables(parts), close

    def _run(self, connection: duckdb.DuckDBPyConnection, sql: str) -> tuple[pa.Table, frozenset[str]]:
        """The rows in the types of the table, and the columns that are floats in DuckDB."""
        try:
            connection.execute(f"CREATE OR REPLACE TEMP TABLE made AS {sql}")
            found = connection.execute("DESCRIBE made").fetchall()
            by_name = {row[0].lower(): (row[0], row[1]) for row in found}
            fields = [f for f in self.schema.fields if f.name.lower() in by_name]
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
        """Schemas and live rows of the mirrors at the snapshots that were read; times without a zone are in UTC."""
        catalog = open_catalog(self.config)
        scans = {}
        for table in self.query.tables:
            mirror = find_table(catalog, table)
            if mirror is None:
                raise NotComparableError(f"{table} no longer exists")
            opened = open_table(mirror, options=self.config.scan_options)
            wanted = origin.snapshots.get(table)
            if wanted is not None and wanted not in opened.metadata.snapshots:
                raise NotComparableError(f"snapshot {wanted} of {table} has expired")
            is_current = wanted == opened.metadata.current_snapshot_id
            scans[table] = opened.scan() if wanted is None or is_current else opened.scan().as_of(wanted)
        schemas = {table: scan.schema for table, scan in scans.items()}
        size = sum(task.data_file.file_size_bytes for scan in scans.values() for task in scan.plan().tasks)
        if size > self.max_bytes:
            raise NotComparableError(f"the mirrors have {size:,} bytes, more than {self.max_bytes:,}")
        rows = {}
        for table, columns in self.query.columns(schemas).items():
            wanted = origin.snapshots.get(table)
            opened = scans[table].table
            alive = self._rows_by_log(scans[table], table, columns)
            if alive is None:
                past = None if wanted == opened.metadata.current_snapshot_id else wanted
                alive = live_rows(opened.metadata_path, snapshot_id=past, columns=columns)
            alive = alive.slice(0, 0) if wanted is None else alive
            naive = [pa.timestamp(f.type.unit) if pa.types.is_timestamp(f.type) else f.type for f in alive.schema]
            rows[table] = alive.cast(pa.schema(list(zip(alive.column_names, naive, strict=True))))
        return schemas, rows

    def _rows_by_log(self, scan: Scan, table: str, columns: Sequence[str]) -> pa.Table | None:
        """The rows that the log of a mirror requires at a snapshot; None if its files are known to have them.

        Also None for a table without a log, which only has files.
        """
        snapshot = scan.snapshot
        if snapshot is None or is_known_green(self.config, table, snapshot.snapshot_id):
            return None
        subject = mirror_subject(self.config, table)
        if subject is None or subject.change_log is None:
            return None
        ordinal = subject.applied_ordinal(snapshot.snapshot_id)
        why_not = subject.why_not_at(ordinal)
        if why_not is None and subject.soft_delete:
            why_not = "its log does not have the rows that are flagged as deleted"
        if why_not is None and ordinal is None:
            why_not = "it does not record which changes of its log it contains"
        if why_not is not None:
            raise NotComparableError(f"{table} has not passed its checks, and {why_not}")
        rows = fold_log(subject.change_log, subject.key, up_to_ordinal=ordinal, adopted=subject.adopted).rows
        found = [
            in_type(rows.column(f.name), f.type)
            if f.name in rows.column_names
            else pa.nulls(rows.num_rows, f.type)  # dropped by the source
            for f in scan.select(*columns).arrow_schema
        ]
        return pa.table(found, names=list(columns))


class ProjectAuditor:
    """Audits the tables of a project. Results for mirrors are stored next to them and computed once per snapshot."""

    def mirrors(self, config: Config, scans: Mapping[str, Scan]) -> Sequence[Verdict]:
        """Verdicts on the snapshots that scans read, by mirror."""
        found: list[Verdict] = []
        for table, scan in scans.items():
            kept = snapshot_results(config, table, scan.table.metadata_path)
            how = "" if kept.since is None else f"since snapshot {kept.since}: "
            found += [_verdict(table, result, how) for result in kept.results.values()]
        return found

    def rows(self, config: Config, staged: StagedRows) -> Sequence[Verdict]:
        """Check that exactly the rows of the tasks are staged, that manifests fit, and that DuckDB computes the same."""
        results = (
            rows_are_complete(staged, config.scan_options),
            staged_manifests_match_files(staged),
            staged_rows_equal_duckdb(config, staged),
            *self._expectations(config, staged),
        )
        return [_verdict(staged.name, result) for result in results]

    @staticmethod
    def _expectations(config: Config, staged: StagedRows) -> list[CheckResult]:
        """What the config expects: row by row of the rows of the tasks, otherwise of all rows of the staged snapshot."""

        def own(scan: Scan) -> Iterator[pa.RecordBatch]:
            schema = scan.arrow_schema
            return (public_batch(batch, schema) for batch in scan.run(_own(scan.plan(), staged), read_split))

        table = open_table(staged.staged.table, options=config.scan_options)
        snapshot_id = staged.staged.committed.snapshot_id
        base_id = staged.staged.base_id
        return staged_results(config, staged.name, table, snapshot_id=snapshot_id, base_id=base_id, own=own)


def check_published(config: Config, name: str, *, full: bool = False) -> Iterator[CheckResult]:
    """Check a published table in its present state. An invalid entry fails only its own check.

    Expectations that an earlier snapshot has met are checked on the rows that changed since, unless `full`.

    Raises:
        MissingFileError: a file of the table is missing.
        MalformedTableError: a file of the table cannot be read.
    """
    try:
        yield published_equals_duckdb(config, name)
    except ConfigError as error:
        yield CheckResult(NAME, passed=False, details=[str(error)])
    found = find_table(open_catalog(config), name) if has_catalog(config) else None
    if found is None:  # the first check has said so
        return
    table = open_table(found)
    yield compare_manifests(table, table.metadata.current_snapshot)
    if name in config.published:
        yield from published_results(config, name, full=full)


def _verdict(table: str, result: CheckResult, how: str = "") -> Verdict:
    return Verdict(
        table,
        result.name,
        result.passed,
        how + result.summary(),
        result.compared,
        tuple(result.offending_keys),
        result.severity,
        tuple(result.details),
    )
