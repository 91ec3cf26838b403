"""Published tables against DuckDB: the same SQL over the live rows of the mirrors must give the same rows.

DuckDB reads them from the files of the mirrors, by the reference. Whether the files have the right rows, the checks of the
mirrors tell.
"""

import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any

import duckdb
import pyarrow as pa
from sqlglot import exp

from nevermore.checks.comparison import MAX_OFFENDING_KEYS, sample, surplus_rows
from nevermore.checks.configured import published_results, staged_results
from nevermore.checks.equality import DATABASE_SHARE, SCAN_SHARE, unless_none
from nevermore.checks.manifest_facts import compare_manifests
from nevermore.checks.mirror_checks import snapshot_results, store_properties
from nevermore.checks.reference import sql_columns
from nevermore.checks.reference.expected_rows import Members, store_live_rows, versions
from nevermore.checks.reference.sql_columns import (
    PrivateDatabase,
    TemporaryFolderError,
    limited_memory,
    private_database,
)
from nevermore.checks.subject import Subject
from nevermore.pipelines.config.project import Config
from nevermore.pipelines.config.published import NULL_KEY, PublishedPartition, values_of_key
from nevermore.pipelines.errors import ConfigError
from nevermore.pipelines.iceberg.catalog import find_table, has_catalog, open_catalog
from nevermore.pipelines.publish.audit import CheckResult, StagedRows
from nevermore.pipelines.publish.query import arguments, mirror_of, published_entry, published_query
from nevermore.pipelines.publish.state import Origin, Provenance, provenance_of, query_hash
from nevermore.pipelines.wording import counted
from nevermore.scan_core import (
    FileScanTask,
    NestedField,
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
    read_split,
)
from nevermore.scan_core.parts import FilesAhead, public_batch
from nevermore.scan_core.spark import sql_literal, unrepeatable

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
        is_exact = sum(_digits(node) or (_MAX_DIGITS + 1,)) <= _MAX_DIGITS
        return None if is_exact else "may be rounded to another scale in DuckDB than in Spark"
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


def _digits(node: exp.Expression) -> tuple[int, int] | None:
    """The most digits that a number has in Spark before and after the point; None if they are unknown."""
    if isinstance(node, exp.Paren | exp.Neg | exp.Abs | exp.Min | exp.Max | exp.Window | exp.Sum):
        inner = _digits(node.this)
        if inner is None or not isinstance(node, exp.Sum):
            return inner
        return min(inner[0] + 10, _MAX_DIGITS - inner[1]), inner[1]
    if isinstance(node, exp.Add | exp.Sub | exp.Mul | exp.Mod):
        left, right = _digits(node.this), _digits(node.expression)
        if left is None or right is None:
            return None
        if isinstance(node, exp.Mul):
            return left[0] + right[0] + 1, left[1] + right[1]
        return max(left[0], right[0]) + 1, max(left[1], right[1])
    if isinstance(node, exp.Literal) and not node.is_string and "e" not in node.name.lower():
        whole, _, fraction = node.name.partition(".")
        return len(whole), len(fraction)
    if _kind(node) == "DECIMAL" and node.type is not None and len(node.type.expressions) == 2:
        precision, scale = (int(part.name) for part in node.type.expressions)
        return (precision - scale, scale) if isinstance(node, exp.Column | exp.Cast) else None
    return (_DIGITS[_kind(node)], 0) if _kind(node) in _DIGITS else None


class NotComparableError(Exception):
    """DuckDB cannot compute the same result; the message gives the reason."""


_KNOWN = frozenset(
    [
        "Select",
        "From",
        "Join",
        "Where",
        "Group",
        "Having",
        "Order",
        "Ordered",
        "Limit",
        "Offset",
        "Distinct",
        "With",
        "CTE",
        "Subquery",
        "Union",
        "Except",
        "Intersect",
        "Table",
        "TableAlias",
        "Column",
        "Identifier",
        "Alias",
        "Star",
        "Tuple",
        "Window",
        "WindowSpec",
        "Filter",
        "Rollup",
        "Cube",
        "GroupingSets",
        "Paren",
        "Values",
        "Literal",
        "Boolean",
        "Null",
        "And",
        "Or",
        "Not",
        "EQ",
        "NEQ",
        "GT",
        "GTE",
        "LT",
        "LTE",
        "NullSafeEQ",
        "NullSafeNEQ",
        "Is",
        "In",
        "Between",
        "Like",
        "Exists",
        "Any",
        "Case",
        "If",
        "Coalesce",
        "Nullif",
        "Add",
        "Sub",
        "Mul",
        "Div",
        "Mod",
        "Neg",
        "Abs",
        "DPipe",
        "Cast",
        "TryCast",
        "DataType",
        "DataTypeParam",
        "TimestampTrunc",
        "DateTrunc",
        "Var",
        "Year",
        "Month",
        "Day",
        "TsOrDsToDate",
        "Count",
        "Sum",
        "Min",
        "Max",
        "Avg",
        "RowNumber",
        "Rank",
        "DenseRank",
        "Lag",
        "Lead",
        "FirstValue",
        "LastValue",
        "Ntile",
    ]
)
"""Parts of queries that both engines understand alike, as far as `difference` and the types of casts allow."""
_INTEGERS = frozenset({"TINYINT", "SMALLINT", "INT", "BIGINT"})
_NUMBERS = _INTEGERS | {"DECIMAL", "FLOAT", "DOUBLE"}
_DUCKDB_TIMES = _TIMES | {"DATE"}
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
        if not isinstance(node, exp.Placeholder):
            return node
        value = arguments[node.name]
        value = value.replace(tzinfo=None) if isinstance(value, datetime) else value
        return sql_literal(value) or exp.convert(value)

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
        others = sum(
            (task.data_file.path in paths) is not _is_made(task, staged)
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


def staged_batches(staged: StagedRows, options: ScanOptions | None) -> Iterator[pa.RecordBatch]:
    """The rows of this run alone; where it made single keys, all rows of their partitions."""
    scan = staged_scan(staged, options)
    schema, plan = scan.arrow_schema, scan.plan()
    own = _own(plan, staged)
    if staged.by_key:
        own = replace(plan, tasks=[task for task in plan.tasks if _is_made(task, staged)])
    return (public_batch(batch, schema) for batch in scan.run(own, read_split))


def _is_made(task: FileScanTask, staged: StagedRows) -> bool:
    """Whether a file belongs to a partition that the run has made."""
    return staged.values is None or task.data_file.partition[0] in staged.values


def _own(plan: ScanPlan, staged: StagedRows) -> ScanPlan:
    paths = staged.paths
    return replace(plan, tasks=[task for task in plan.tasks if task.data_file.path in paths])


def _count(split: Split, metrics: ScanMetrics, ahead: FilesAhead) -> Iterator[int]:
    yield count_split(split, metrics, ahead)


NAME = "published_equals_duckdb"
_WITHOUT_ZONE = {"TIMESTAMP WITH TIME ZONE": "TIMESTAMP", "TIMESTAMP_NS WITH TIME ZONE": "TIMESTAMP_NS"}
"""Types of DuckDB for times in UTC as Spark computes with them, by the types that they are stored in."""


def published_equals_duckdb(config: Config, name: str, partitions: Collection[str] | None = None) -> CheckResult:
    """The rows of a published table, as a multiset, equal those that DuckDB computes; sums of floats need only be close.

    Args:
        config: the project.
        name: an entry of `published`.
        partitions: compare only these, by their keys; None for all.

    Raises:
        ConfigError: an unknown name, SQL that cannot run, or a key that no partition can have.
    """
    published_query(config, name)  # SQL that cannot run is an error even before the table exists
    try:
        table, provenance = _published_table(config, name)
        scan = table.scan()
        plan = scan.plan()
        partition = published_entry(config, name).partitioning
        if partitions is not None and partition is not None:
            kind = scan.schema.find(partition.column).type
            partitions = {partition.canonical(key, kind) for key in partitions}
            tasks = [t for t in plan.tasks if partition.key_of(t.data_file.partition[0], kind) in partitions]
            plan = replace(plan, tasks=tasks)
        only = None if partitions is None or partition is None else frozenset(partitions)
        batches = (public_batch(batch, scan.arrow_schema) for batch in scan.run(plan, read_split))
        unknown = "no snapshot records the sources of the rows"
        return _compare(config, name, scan, batches, provenance, why_without_origin=unknown, only=only)
    except NotComparableError as reason:
        return CheckResult(NAME, passed=True, details=[f"not compared: {reason}"])


def staged_rows_equal_duckdb(config: Config, staged: StagedRows) -> CheckResult:
    """Compare exactly the rows that a run has staged; see `published_equals_duckdb`."""
    origin = Origin(staged.query, staged.sources)
    made = Provenance(rest=origin) if staged.keys is None else Provenance(dict.fromkeys(staged.keys, origin))
    try:
        _published_table(config, staged.name)
        options = _scan_options(config, staged.name)
        scan = staged_scan(staged, options)
        batches = staged_batches(staged, options)
        return _compare(config, staged.name, scan, batches, made, why_without_origin="no partition was made")
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
    return open_table(table, options=_scan_options(config, name)), provenance_of(table)


def _scan_options(config: Config, name: str) -> ScanOptions:
    """The options of scans of a published table whose rows are compared."""
    limit = published_entry(config, name).checks.memory_bytes // SCAN_SHARE
    options = config.scan_options
    return replace(options, memory_limit_bytes=min(limit, options.memory_limit_bytes))


def _compare(
    config: Config,
    name: str,
    scan: Scan,
    batches: Iterable[pa.RecordBatch],
    provenance: Provenance,
    *,
    why_without_origin: str,
    only: frozenset[str] | None = None,
) -> CheckResult:
    """Compare rows of a scan with those that DuckDB computes for their partitions, `only` these if given."""
    memory_bytes = published_entry(config, name).checks.memory_bytes
    parts = _origins(config, name, provenance, why_without_origin, only)
    if not scan.schema.fields or any(not isinstance(f.type, PrimitiveType) for f in scan.schema.fields):
        raise NotComparableError("the result has nested columns")
    scans = [_source_scans(config, name, origin) for origin, _ in parts]
    try:
        with limited_memory(memory_bytes // DATABASE_SHARE), private_database() as database:
            comparison = _Comparison(config, name, scan, database)
            comparison.store(batches)
            for (origin, partitions), sources in zip(parts, scans, strict=True):
                comparison.compare(origin, partitions, sources)
    except duckdb.OutOfMemoryException as error:
        raise NotComparableError(
            f"DuckDB needs more than half of checks: {{memory_bytes: {memory_bytes}}} of {name}; raise it"
        ) from error
    wrong, notes, compared = comparison.wrong, comparison.notes, comparison.compared
    if left_out := comparison.num_rows - compared["rows published"]:
        compared["rows not compared"] = left_out
        if provenance.others and provenance.rest is None:
            wrong.append(f"{counted(left_out, 'row')} in no partition that a publication made")
    if wrong and provenance.others:
        written = ", ".join(map(str, provenance.others[:SHOWN_KEYS]))
        notes.append(
            f"another program wrote to the table (snapshot {written}): nevermore publish {name} makes it again"
        )
    if only is not None:
        notes.append(f"compared only {_Partitions(only).text()}")
    rows_shown = comparison.offending[:MAX_OFFENDING_KEYS]
    return CheckResult(NAME, not wrong, compared, rows_shown, [*wrong, *notes], partitions=sorted(comparison.keys))


@dataclass(frozen=True)
class _Partitions:
    """The partitions with these keys, or all others, which of a table without partitions are all rows."""

    keys: frozenset[str]
    are_others: bool = False

    def text(self) -> str:
        if not self.are_others:
            return partitions_text(self.keys)
        return f"all but {partitions_text(self.keys)}" if self.keys else "the table"


def partitions_text(keys: Collection[str]) -> str:
    """`partitions 2026-01-01, 2026-01-02`, with the first of many keys."""
    shown = ", ".join(sorted(keys)[:SHOWN_KEYS]) + (", ..." if len(keys) > SHOWN_KEYS else "")
    return f"partition{'s' if len(keys) > 1 else ''} {shown}"


SHOWN_KEYS = 5
"""Keys of partitions in a message."""


def _origins(
    config: Config, name: str, provenance: Provenance, why_without_origin: str, only: frozenset[str] | None
) -> list[tuple[Origin, _Partitions]]:
    """The partitions that were made from the same snapshots by the present SQL."""
    by_origin: dict[tuple[Any, ...], tuple[Origin, set[str]]] = {}
    for key, origin in provenance.made.items():
        if only is None or key in only:
            same = (origin.query, *sorted(origin.snapshots.items()))
            by_origin.setdefault(same, (origin, set()))[1].add(key)
    found = [(origin, _Partitions(frozenset(k))) for origin, k in by_origin.values()]
    if provenance.rest is not None:
        made = frozenset(provenance.made)
        if only is None:
            found.append((provenance.rest, _Partitions(made, are_others=True)))
        elif rest := only - made:
            found.append((provenance.rest, _Partitions(rest)))
    current = [
        (o, partitions) for o, partitions in found if o.query == query_hash(config, published_entry(config, name))
    ]
    if not current:
        changed = "the rows were made with other SQL or settings than those of the config"
        raise NotComparableError(changed if found else why_without_origin)
    return current


def _source_scans(config: Config, name: str, origin: Origin) -> dict[str, Scan]:
    """Scans of the mirrors at the snapshots that were read."""
    catalog = open_catalog(config)
    scans = {}
    for table in published_query(config, name).tables:
        mirror = find_table(catalog, table)
        if mirror is None:
            raise NotComparableError(f"{table} no longer exists")
        opened = open_table(mirror, options=config.scan_options)
        wanted = origin.snapshots.get(table)
        if wanted is not None and wanted not in opened.metadata.snapshots:
            raise NotComparableError(f"snapshot {wanted} of {table} has expired")
        is_current = wanted == opened.metadata.current_snapshot_id
        scans[table] = opened.scan() if wanted is None or is_current else opened.scan().as_of(wanted)
    return scans


class _Comparison:
    """A published table and the mirrors' rows in a database of DuckDB, which spills what does not fit into memory.

    Attributes:
        num_rows: rows of the table.
        compared: counts of the comparisons so far.
        wrong: what is wrong, one statement each.
        notes: what was not compared.
        offending: some rows that differ.
        keys: keys of the partitions in which rows differ.
    """

    def __init__(self, config: Config, name: str, scan: Scan, database: PrivateDatabase) -> None:
        self._config = config
        self._name = name
        self._schema = scan.schema
        self._arrow = scan.arrow_schema
        self._database = database
        self._connection = database.connection
        self._entry = published_entry(config, name)
        self._query = published_query(config, name)
        self._stored: dict[str, tuple[str, object]] = {}
        self.num_rows = 0
        self.compared = dict.fromkeys(("rows published", "rows by DuckDB"), 0)
        self.wrong: list[str] = []
        self.notes: list[str] = []
        self.offending: list[Mapping[str, Any]] = []
        self.keys: set[str] = set()

    def store(self, batches: Iterable[pa.RecordBatch]) -> None:
        """Keep the rows of the published table, in columns c0, c1, ... of its schema."""
        kinds = ", ".join(f"c{i} {sql_columns.sql_type(str(f.type))}" for i, f in enumerate(self._schema.fields))
        self._connection.execute(f"CREATE TABLE {self._database.name('published')} ({kinds})")
        self.num_rows = self._database.append("published", batches)

    def compare(self, origin: Origin, partitions: _Partitions, scans: Mapping[str, Scan]) -> None:
        """Compare the rows of some partitions with those that DuckDB computes from the mirrors' snapshots."""
        self._store_sources(origin, scans)
        schemas = {table: scan.schema for table, scan in scans.items()}
        fields, close = self._compute("expected", schemas, partitions)
        columns = ", ".join(f"c{self._schema.fields.index(field)} AS c{i}" for i, field in enumerate(fields))
        actual = f"(SELECT {columns} FROM {self._within(self._database.name('published'), self._column, partitions)})"
        schema = pa.schema([self._arrow.field(field.name) for field in fields])
        expected = self._database.name("expected")
        difference = surplus_rows(self._connection, actual, expected, schema, close)
        for name, rows in zip(self.compared, (actual, expected), strict=False):
            self.compared[name] += self._connection.execute(f"SELECT count(*) FROM {rows}").fetchall()[0][0]
        if difference.equal:
            return
        keys = self._differing(fields)
        text = partitions_text(keys) if keys else partitions.text()
        # whether DuckDB itself computes other rows when the mirrors' rows are in another order
        self._compute("again", schemas, partitions, is_reversed=True)
        if not surplus_rows(self._connection, expected, self._database.name("again"), schema, close).equal:
            self.notes.append(
                f"not compared: ties: DuckDB returns other rows for {text} when it reads in another order"
            )
            return
        self.offending += [*sample(difference.left_only), *sample(difference.right_only)]
        self.wrong += [
            *unless_none(difference.num_left_only, "row", f"of {text} published that DuckDB does not compute"),
            *unless_none(difference.num_right_only, "row", f"that DuckDB computes for {text} not published"),
        ]
        self.keys |= keys

    def _differing(self, fields: Sequence[NestedField]) -> frozenset[str]:
        """The keys of the partitions that the surplus rows belong to; empty without partitions."""
        if self._column < 0:
            return frozenset()
        column = fields.index(self._schema.fields[self._column])
        sides = (f"SELECT {s}c{column} AS c{self._column} FROM surplus WHERE {s}n IS NOT NULL" for s in "lr")
        return frozenset(self._keys_in(f"({' UNION ALL '.join(sides)})"))

    @property
    def _column(self) -> int:
        """Number of the column by which the table is partitioned; -1 without partitions."""
        partition = self._entry.partitioning
        return -1 if partition is None else self._schema.names.index(self._schema.find(partition.column).name)

    def _place(self, column: int) -> str:
        """SQL for the partition of a row: a value, or the beginning of a range of time."""
        partition, field = self._entry.partitioning, self._schema.fields[self._column]
        if partition is None or partition.transform == "identity":
            return f"c{column}"
        return f"CAST(date_trunc('{partition.unit}', c{column}) AS {sql_columns.sql_type(str(field.type))})"

    def _within(self, rows: str, column: int, partitions: _Partitions) -> str:
        """SQL for the rows of some partitions, in a FROM clause."""
        partition = self._entry.partitioning
        if partition is None or (partitions.are_others and not partitions.keys):
            return rows
        kind = self._schema.fields[self._column].type
        places = [_place_of(partition, key, kind) for key in sorted(partitions.keys)]
        self._connection.register("places", pa.table({"place": pa.concat_arrays(places)}))
        self._connection.execute("CREATE OR REPLACE TEMP TABLE wanted AS SELECT * FROM places")
        self._connection.unregister("places")
        how = "ANTI" if partitions.are_others else "SEMI"
        return f"{rows} AS g {how} JOIN wanted AS w ON {self._place(column)} IS NOT DISTINCT FROM w.place"

    def _keys_in(self, rows: str) -> set[str]:
        """The keys of the partitions that have some of these rows; `rows` is SQL for a FROM clause."""
        partition = self._entry.partitioning
        if partition is None:
            return set()
        kind = self._schema.fields[self._column].type
        found = self._connection.sql(f"SELECT DISTINCT {self._place(self._column)} FROM {rows}").to_arrow_table()
        values = found.column(0).cast(arrow_type(kind)).combine_chunks()
        return {partition.key_of(value, kind) for value in partition.physical_values(values, kind)}

    def _compute(
        self, name: str, schemas: Mapping[str, Schema], partitions: _Partitions, *, is_reversed: bool = False
    ) -> tuple[list[NestedField], frozenset[str]]:
        """Store the rows of the SQL; return their columns, and the names of those that are floats in DuckDB."""
        tree = None if self._entry.history else self._query.in_full(schemas)
        if tree is None and self._entry.history is None:
            raise NotComparableError("the SQL is not understood well enough")
        runs: Sequence[str | None] = [None]
        if self._entry.partitioning is not None and self._query.depends_on_partition:
            runs = sorted(
                self._keys_in(self._database.name("published")) - partitions.keys
                if partitions.are_others
                else partitions.keys
            )
        for table, view in self._query.view_names.items():
            stored = self._database.name(self._stored[table][0])
            order = " ORDER BY rowid DESC" if is_reversed else ""
            columns = ", ".join(
                f"CAST({column} AS {_WITHOUT_ZONE[kind]}) AS {column}" if kind in _WITHOUT_ZONE else column
                for name, kind, *_ in self._connection.execute(f"DESCRIBE {stored}").fetchall()
                for column in (sql_columns.quoted(name),)
            )
            self._connection.execute(
                f"CREATE OR REPLACE TEMP VIEW {sql_columns.quoted(view)} AS SELECT {columns} FROM {stored}{order}"
            )
        target = self._database.name(name)
        self._connection.execute(f"DROP TABLE IF EXISTS {target}")
        fields, close = list[NestedField](), frozenset[str]()
        for number, key in enumerate(runs):
            # a run for one partition publishes only the rows of this partition
            within = partitions if key is None else _Partitions(frozenset({key}))
            sql = (
                duckdb_sql(tree, arguments(self._query, self._entry, key)) if tree else self._history(*schemas.values())
            )
            begin = f"INSERT INTO {target}" if number else f"CREATE TABLE {target} AS"
            fields, loose = self._run(begin, sql, within)
            close |= loose
        if not runs:
            raise NotComparableError("the table has no partitions")
        return fields, close

    def _history(self, log: Schema) -> str:
        """SQL of its own for the versions of the rows of a mirror."""
        types: list[Any] = [log.find(side).type for side in ("key", "after")]
        (view,), settings = self._query.view_names.values(), self._config.table(str(self._entry.history))
        return versions(
            self._connection,
            view,
            self._query.history_key,
            Members(*([member.name for member in kind.fields] for kind in types)),
            at="ingested_at" if self._entry.valid_by == "ingest" else "coalesce(source_ts, ingested_at)",
            with_deleted=settings.soft_delete,
            is_ordered=settings.order_by != "position" and "source_order" in log.names,
        )

    def _run(self, begin: str, sql: str, partitions: _Partitions) -> tuple[list[NestedField], frozenset[str]]:
        """Add the rows of one query in the types of the table."""
        try:
            found = self._connection.execute(f"DESCRIBE {sql}").fetchall()
            by_name = {row[0].lower(): (row[0], row[1]) for row in found}
            fields = [f for f in self._schema.fields if f.name.lower() in by_name]
            if len(fields) < len(found):
                raise NotComparableError("the table does not have all columns of the SQL")
            cast = ", ".join(
                f"CAST({sql_columns.quoted(by_name[f.name.lower()][0])} AS {sql_columns.sql_type(str(f.type))}) AS c{i}"
                for i, f in enumerate(fields)
            )
            column = fields.index(self._schema.fields[self._column]) if self._column >= 0 else -1
            rows = self._within(f"(SELECT {cast} FROM ({sql}))", column, partitions)
            self._connection.execute(f"{begin} SELECT * FROM {rows}")
        except duckdb.OperationalError:  # it lacks memory, or room for its files
            raise
        except duckdb.Error as error:
            raise NotComparableError(f"DuckDB refuses the SQL: {str(error).splitlines()[0]}") from error
        return fields, frozenset(f.name for f in fields if by_name[f.name.lower()][1] in {"DOUBLE", "FLOAT"})

    def _store_sources(self, origin: Origin, scans: Mapping[str, Scan]) -> None:
        """Keep the live rows of the mirrors at the snapshots that were read; times without a zone are in UTC."""
        schemas = {table: scan.schema for table, scan in scans.items()}
        for table, columns in self._query.columns(schemas).items():
            wanted, opened = origin.snapshots.get(table), scans[table].table
            stored = self._query.view_names[table].replace("nevermore", "mirror")
            if self._stored.get(table) == (stored, wanted):
                continue
            self._stored[table] = stored, wanted
            kept = self._database.name(stored)
            self._connection.execute(f"DROP TABLE IF EXISTS {kept}")
            mirror = find_table(open_catalog(self._config), table)
            properties = {} if mirror is None else store_properties(self._config, mirror)
            store_live_rows(
                self._connection,
                kept,
                opened.metadata_path,
                snapshot_id=None if wanted == opened.metadata.current_snapshot_id else wanted,
                columns=columns,
                filesystem=Subject(opened.metadata_path, (), properties=properties).filesystem,
            )
            if wanted is None:
                self._connection.execute(f"DELETE FROM {kept}")


def _place_of(partition: PublishedPartition, key: str, kind: Type) -> pa.Array:
    """The value, or the beginning of the range of time, that a key of a partition stands for."""
    if not partition.is_time or key == NULL_KEY:
        return pa.nulls(1, arrow_type(kind)) if key == NULL_KEY else values_of_key(key, kind)
    start = partition.period(key).start
    target = arrow_type(kind)
    return pa.array([start.date() if pa.types.is_date(target) else start], target)


class ProjectAuditor:
    """Audits the tables of a project. Results for mirrors are stored next to them and computed once per snapshot."""

    def mirrors(self, config: Config, scans: Mapping[str, Scan]) -> Sequence[CheckResult]:
        """Verdicts on the snapshots that scans read, by mirror."""
        found: list[CheckResult] = []
        for table, scan in scans.items():
            mirror = mirror_of(config, table)
            kept = snapshot_results(config, mirror, scan.table.metadata_path if mirror == table else None)
            how = "" if kept.since is None else f"since snapshot {kept.since}: "
            found += [replace(result, table=table, scope=how) for result in kept.results.values()]
        return found

    def rows(self, config: Config, staged: StagedRows) -> Sequence[CheckResult]:
        """Check that exactly the rows of the tasks are staged, that manifests fit, and that DuckDB computes the same."""
        severity = published_entry(config, staged.name).checks.published_equals_duckdb
        results = (
            rows_are_complete(staged, config.scan_options),
            staged_manifests_match_files(staged),
            *([] if severity == "off" else [replace(staged_rows_equal_duckdb(config, staged), severity=severity)]),
            *self._expectations(config, staged),
        )
        return [replace(result, table=staged.name) for result in results]

    @staticmethod
    def _expectations(config: Config, staged: StagedRows) -> list[CheckResult]:
        """What the config expects: row by row of the rows of the tasks, otherwise of all rows of the staged snapshot."""

        def own(scan: Scan) -> Iterator[pa.RecordBatch]:
            schema = scan.arrow_schema
            return (public_batch(batch, schema) for batch in scan.run(_own(scan.plan(), staged), read_split))

        return staged_results(config, staged, own)


def check_published(
    config: Config, name: str, *, full: bool = False, partitions: Collection[str] = ()
) -> Iterator[CheckResult]:
    """Check a published table in its present state. An invalid entry fails only its own check.

    Expectations that an earlier snapshot has met are checked on the rows that changed since, unless `full`.

    Args:
        config: the project.
        name: a published table.
        full: check all rows against all expectations.
        partitions: keys, or `FIRST..LAST`: only these are compared with DuckDB, and no other check runs.

    Raises:
        MissingFileError: a file of the table is missing.
        MalformedTableError: a file of the table cannot be read.
        ConfigError: `partitions` of a table that has none, or a key that no partition can have.
    """
    entry = config.published.get(name)
    severity = "block" if entry is None else entry.checks.published_equals_duckdb
    if partitions:
        partition = None if entry is None else entry.partitioning
        if partition is None:
            raise ConfigError(f"{name} has no partitions, so its rows cannot be checked by partition")
        keys = [key for text in partitions for key in partition.keys(text)]
        found = published_equals_duckdb(config, name, keys)
        yield replace(found, severity="warn" if severity == "warn" else "block")
        return
    if severity != "off":
        try:
            yield replace(published_equals_duckdb(config, name), severity=severity)
        except (ConfigError, TemporaryFolderError) as error:
            yield CheckResult(NAME, passed=False, details=[str(error)])
    handle = find_table(open_catalog(config), name) if has_catalog(config) else None
    if handle is None:  # the first check has said so
        return
    table = open_table(handle)
    yield compare_manifests(table, table.metadata.current_snapshot)
    if name in config.published:
        yield from published_results(config, name, full=full)
