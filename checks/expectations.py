"""Expectations on a table's rows, checked by Great Expectations: those of the config, and those of the schema.

Rows come from the scan engine. What holds row by row is checked in pandas frames of bounded size, whose results are joined;
what depends on all rows at once in one frame, or in Spark if a table is larger. The library is imported only where there is
something to check, because the import takes seconds and much memory.
"""

import json
import os
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, date, datetime, time
from difflib import get_close_matches
from itertools import chain
from threading import Lock
from typing import Any, Literal

import pyarrow as pa

from nevermore.checks.comparison import MAX_OFFENDING_KEYS, canonical
from nevermore.pipelines.config.checks import ExpectationConfig, TableChecksConfig, expectation_rules
from nevermore.pipelines.publish.audit import CheckResult
from nevermore.scan_core import PrimitiveType, Scan, Schema
from nevermore.scan_core.io import require_package

MUST = "meets_expectations"
"""Name of the check of the expectations that block."""
SHOULD = "should_meet_expectations"
"""Name of the check of the expectations that warn."""
NAMES: Mapping[Literal["block", "warn"], str] = {"block": MUST, "warn": SHOULD}
_TYPES: Mapping[str, tuple[str, ...]] = {
    "boolean": ("bool", "BooleanType"),
    "int": ("int32", "int", "IntegerType"),
    "long": ("int64", "int", "LongType"),
    "float": ("float32", "FloatType"),
    "double": ("float64", "DoubleType"),
    "decimal": ("Decimal", "DecimalType"),
    "date": ("date", "DateType"),
    "timestamp": ("datetime64[us]", "TimestampNTZType"),
    "string": ("str", "StringType"),
    "binary": ("bytes", "BinaryType"),
}
"""By Iceberg type, the names of its values in pandas and in Spark. Great Expectations cannot name times with a zone."""
_ROWS_OF_SCHEMA = 1_000
"""Rows that show the types of columns: a column of a table has one type."""
_PIECE_BYTES = 16 * 1024**2
"""Rows that are checked one by one need not be in one frame."""
_OF_NUMBERS = frozenset(
    f"expect_column_{what}"
    for what in (
        *("max_to_be_between", "min_to_be_between", "mean_to_be_between", "median_to_be_between", "sum_to_be_between"),
        *("stdev_to_be_between", "quantile_values_to_be_between", "value_z_scores_to_be_less_than"),
        "values_to_not_be_outliers",
    )
)
"""Expectations that Great Expectations computes in pandas from numbers and times only, not from Python's decimals and dates."""


def expectations_of_schema(
    schema: Schema, key: Sequence[str], severity: Literal["block", "warn"]
) -> list[ExpectationConfig]:
    """The expectations that follow from the schema: its columns and their types, columns without NULL, the unique key."""

    def make(name: str, **arguments: Any) -> ExpectationConfig:
        return ExpectationConfig(name=name, arguments=arguments, severity=severity)

    names = [f.name for f in schema.fields]
    found = [make("expect_table_columns_to_match_set", column_set=names, exact_match=True)] if names else []
    for f in schema.fields:
        base = str(f.type).partition("(")[0]
        if isinstance(f.type, PrimitiveType) and base in _TYPES:
            found.append(make("expect_column_values_to_be_in_type_list", column=f.name, type_list=[*_TYPES[base]]))
        if f.required or f.name in key:
            found.append(make("expect_column_values_to_not_be_null", column=f.name))
    if len(key) == 1:
        found.append(make("expect_column_values_to_be_unique", column=key[0]))
    elif key:
        found.append(make("expect_compound_columns_to_be_unique", column_list=list(key)))
    return found


@dataclass(frozen=True, slots=True)
class RowsToCheck:
    """The rows that expectations are about.

    Attributes:
        name: the table.
        scan: a scan of the snapshot that is checked.
        key: columns that identify a row, to show which rows are wrong.
        changed: the rows of a scan like `scan` that can be wrong, in batches, for expectations that hold row by row; None
            if all rows must be checked.
        session: makes the Spark session for tables that are too large for pandas.
    """

    name: str
    scan: Scan
    key: tuple[str, ...]
    changed: Callable[[Scan], Iterable[pa.RecordBatch]] | None
    session: Callable[[], Any]


@dataclass(frozen=True, slots=True)
class Found:
    """What became of one expectation.

    Attributes:
        expectation: the expectation.
        passed: whether it holds.
        statement: what is wrong; empty if it holds.
        rows: up to 20 rows that do not meet it: the key and the values.
    """

    expectation: ExpectationConfig
    passed: bool
    statement: str = ""
    rows: Sequence[Mapping[str, Any]] = ()


@dataclass(frozen=True, slots=True)
class Validation:
    """The result of all expectations of a table.

    Attributes:
        found: what became of each.
        num_rows: rows that were checked row by row, and rows that were checked as a whole.
        documents: the results as Great Expectations writes them.
    """

    found: Sequence[Found]
    num_rows: Mapping[str, int]
    documents: Sequence[Mapping[str, Any]]

    def results(self) -> dict[str, CheckResult]:
        """One check for the expectations that block, and one for those that warn; only where there are some."""
        made = {}
        for severity, name in NAMES.items():
            mine = [f for f in self.found if f.expectation.severity == severity]
            if not mine:
                continue
            wrong = [f for f in mine if not f.passed]
            rows = [row for f in wrong for row in f.rows][:MAX_OFFENDING_KEYS]
            compared = {"expectations": len(mine), **self.num_rows}
            details = [f.statement for f in wrong]
            made[name] = CheckResult(name, not wrong, compared, rows, details, severity=severity)
        return made

    @property
    def rows_passed(self) -> bool:
        """Whether all expectations hold that are decided row by row."""
        return all(f.passed for f in self.found if f.expectation.is_row_wise)


def expectations_of(checks: TableChecksConfig, schema: Schema, key: Sequence[str]) -> tuple[ExpectationConfig, ...]:
    """All expectations of a table: of the schema, of the config and of its suite, each once."""
    severity = checks.schema_severity
    derived = [] if severity == "off" else expectations_of_schema(schema, key, severity)
    if checks.is_schema_default:
        derived = [e for e in derived if "unique" not in e.name]  # the check of a mirror proves it, at less cost
    by_text = {(str(e), json.dumps(e.arguments, default=str)): e for e in (*derived, *checks.expectations)}
    return tuple(by_text.values())


_library_lock = Lock()
"""Great Expectations keeps its project in a global, so steps that work side by side take turns."""


def validate(rows: RowsToCheck, expectations: Sequence[ExpectationConfig], frame_bytes: int) -> Validation:
    """Check expectations.

    Args:
        rows: the rows.
        expectations: what must hold.
        frame_bytes: rows of up to this size are checked in pandas at once, more of them in Spark. Expectations that hold row
            by row are always checked in pandas, in frames of at most this size.

    Raises:
        MissingPackageError: Great Expectations is not installed.
        MissingRuntimeError: the table is too large for pandas, and there is no Java for Spark.
    """
    found: list[Found | None] = [_fault(e, rows.scan.schema) for e in expectations]
    groups: dict[tuple[str | None, str], list[int]] = {}
    for place, expectation in enumerate(expectations):
        if found[place] is None:
            groups.setdefault((expectation.where, _scope(expectation)), []).append(place)
    counts: dict[str, int] = {}
    documents: list[Mapping[str, Any]] = []
    with _library_lock:
        library = None
        for (where, scope), places in groups.items():
            library = library or _Library()
            chosen = {place: _with_typed_bounds(expectations[place], rows.scan.schema, scope) for place in places}
            made = _Group(library, rows, where, scope, chosen, frame_bytes).run()
            for place, result in made.results.items():
                found[place] = _found(expectations[place], result, rows.key)
            what = "changed rows" if scope == "rows" and rows.changed else "rows"
            if scope != "schema":
                counts[what] = max(counts.get(what, 0), made.num_rows)
            documents.append(made.document())
    return Validation([f for f in found if f is not None], counts, documents)


def _scope(expectation: ExpectationConfig) -> Literal["schema", "rows", "numbers", "all"]:
    if _is_of_table(expectation) or tuple(expectation.arguments.get("type_list", ())) in _TYPES.values():
        return "schema"
    if expectation.is_row_wise:
        return "rows"
    return "numbers" if expectation.name in _OF_NUMBERS else "all"


def _columns(expectation: ExpectationConfig) -> list[str]:
    """The columns that an expectation reads."""
    rule = expectation_rules()[expectation.name]
    found: list[str] = []
    for name, kind in rule.arguments.items():
        value = expectation.arguments.get(name)
        if kind == "column" and value is not None:
            found.append(value)
        elif kind == "columns" and name == "column_list" and value is not None:
            found += value
    return found


def _is_of_table(expectation: ExpectationConfig) -> bool:
    """Whether an expectation is about which columns there are."""
    return expectation.name.startswith("expect_table_column") or expectation.name == "expect_column_to_exist"


def _fault(expectation: ExpectationConfig, schema: Schema) -> Found | None:
    """What is wrong with an expectation that cannot be checked; None if it can."""
    if _is_of_table(expectation):
        return None
    names = [f.name for f in schema.fields]
    for column in _columns(expectation):
        if column not in names:
            near = get_close_matches(column, names, n=1)
            hint = f"; did you mean {near[0]}?" if near else f"; its columns are {', '.join(names)}"
            return Found(
                expectation, passed=False, statement=f"{expectation}: the table has no column {column!r}{hint}"
            )
    return None


def _with_typed_bounds(expectation: ExpectationConfig, schema: Schema, scope: str) -> ExpectationConfig:
    """Bounds in the type of their column: YAML has dates and times where the column may have the other, or text."""
    column = expectation.arguments.get("column")
    kind = next((str(f.type) for f in schema.fields if f.name == column), "")
    if not kind.startswith(("date", "timestamp")):
        return expectation
    as_date = kind == "date" and scope != "numbers"

    def typed(value: Any) -> Any:
        if isinstance(value, str):
            try:
                value = datetime.fromisoformat(value)
            except ValueError:
                return value
        if isinstance(value, date) and not isinstance(value, datetime):
            value = datetime.combine(value, time())
        if not isinstance(value, datetime):
            return value
        if kind == "timestamptz" and value.tzinfo is None:
            value = value.replace(tzinfo=UTC)
        return value.date() if as_date else value

    arguments = {
        name: [typed(v) for v in value]
        if name == "value_set"
        else typed(value)
        if name in {"min_value", "max_value"}
        else value
        for name, value in expectation.arguments.items()
    }
    return expectation.model_copy(update={"arguments": arguments})


class _Library:
    """Great Expectations, with a project in memory."""

    def __init__(self) -> None:
        os.environ.setdefault("GX_ANALYTICS_ENABLED", "false")
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # deprecations inside Great Expectations are not the user's
            require_package("great_expectations", "a check of expectations", "nevermore-iceberg[checks]")
            import great_expectations as gx
            from great_expectations.data_context.types import base

            self._gx = gx
            in_memory = base.InMemoryStoreBackendDefaults(init_temp_docs_sites=False)
            project = base.DataContextConfig(store_backend_defaults=in_memory, analytics_enabled=False)
            self._context = gx.get_context(mode="ephemeral", project_config=project)
            self._context.variables.progress_bars = base.ProgressBarsConfig(globally=False)
        self._number = 0

    def run(
        self, name: str, frame: Any, expectations: Mapping[int, ExpectationConfig], key: Sequence[str], engine: str
    ) -> Any:
        """The result of a suite on a frame; each expectation has its place in its `meta`."""
        self._number += 1
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            sources, unique = self._context.data_sources, f"{name} {self._number}"
            source = sources.add_spark(unique) if engine == "spark" else sources.add_pandas(unique)
            batch = source.add_dataframe_asset(name).add_batch_definition_whole_dataframe("all")
            suite = self._context.suites.add(self._gx.ExpectationSuite(name=unique))
            for place, expectation in expectations.items():
                made = getattr(self._gx.expectations, "".join(map(str.capitalize, expectation.name.split("_"))))
                severity = "critical" if expectation.severity == "block" else "warning"
                meta = {"place": place, **({"where": expectation.where} if expectation.where else {})}
                suite.add_expectation(made(**expectation.arguments, severity=severity, meta=meta))
            listed = {"result_format": "SUMMARY", "partial_unexpected_count": MAX_OFFENDING_KEYS}
            shown = {"unexpected_index_column_names": list(key)} if key else {}
            # a validation definition would store the result, which fails for truth values of NumPy
            return batch.get_batch(batch_parameters={"dataframe": frame}).validate(suite, result_format=listed | shown)


@dataclass(slots=True)
class _Made:
    results: dict[int, Any] = field(default_factory=dict)
    meta: Mapping[str, Any] = field(default_factory=dict)
    num_rows: int = 0

    def add(self, result: Any, num_rows: int) -> None:
        """Add the result for some rows to that for the rows before them."""
        self.num_rows += num_rows
        self.meta = result.to_json_dict()["meta"]
        for one in result.results:
            place = one.expectation_config.meta["place"]
            before = self.results.get(place)
            self.results[place] = one if before is None else _joined(before, one)

    def document(self) -> Mapping[str, Any]:
        """The results as the library writes them."""
        results = [one.to_json_dict() for one in self.results.values()]
        return {"meta": self.meta, "results": _plain_document(results)}


_ADDED = {
    "element_count",
    "unexpected_count",
    "missing_count",
    "partial_unexpected_list",
    "partial_unexpected_index_list",
}


def _joined(before: Any, after: Any) -> Any:
    """The result for two parts of the rows."""
    if before.success and not after.success:
        before, after = after, before
    found, more = before.result, after.result
    for name in found.keys() & more.keys() & _ADDED:
        total = found[name] + more[name]
        found[name] = total[:MAX_OFFENDING_KEYS] if isinstance(total, list) else total
    if "element_count" in found:
        missing = found.get("missing_count", 0)
        share = 100 * found["unexpected_count"] / max(found["element_count"] - missing, 1)
        found |= {"unexpected_percent": share, "unexpected_percent_nonmissing": share}
    return before


@dataclass(frozen=True, slots=True)
class _Group:
    """Expectations about the same rows."""

    library: _Library
    rows: RowsToCheck
    where: str | None
    scope: str
    chosen: Mapping[int, ExpectationConfig]
    frame_bytes: int

    def run(self) -> _Made:
        made, scan = _Made(), self._scan()
        shown = [name for name in self.rows.key if name in scan.schema.names]
        for frame, num_rows, engine in self._frames(scan):
            made.add(self.library.run(self.rows.name, frame, self.chosen, shown, engine), num_rows)
        return made

    def _frames(self, scan: Scan) -> Iterator[tuple[Any, int, str]]:
        """(frame, number of rows, engine): pandas frames, or one of Spark for rows that are too many to be seen at once."""
        if self.scope == "schema":
            scan = scan.limit(_ROWS_OF_SCHEMA)
        is_by_row = self.scope == "rows"
        limit = min(self.frame_bytes, _PIECE_BYTES) if is_by_row else self.frame_bytes
        batches = self.rows.changed(scan) if is_by_row and self.rows.changed else scan.to_batches()
        pieces = _pieces(batches, scan.arrow_schema, limit)
        first = next(pieces)
        if not is_by_row and next(pieces, None) is not None:
            from nevermore.scan_core.spark import dataframe

            yield _without_nan(dataframe(self.rows.session(), scan), scan.arrow_schema), scan.count(), "spark"
            return
        for rows in chain([first], pieces):
            yield self._frame(rows), rows.num_rows, "pandas"

    def _scan(self) -> Scan:
        """The rows, with the columns that are needed."""
        scan = self.rows.scan if self.where is None else self.rows.scan.where(self.where)
        if any(_is_of_table(e) for e in self.chosen.values()):
            return scan
        wanted = {*self.rows.key, *(column for e in self.chosen.values() for column in _columns(e))}
        names = [f.name for f in scan.schema.fields if f.name in wanted]
        return scan.select(*(names or scan.schema.names[:1]))

    def _frame(self, rows: pa.Table) -> Any:
        rows = canonical(rows)
        if self.scope == "numbers":
            for place, column in enumerate(rows.schema):
                kind = (
                    pa.float64()
                    if pa.types.is_decimal(column.type)
                    else pa.timestamp("us")
                    if pa.types.is_date(column.type)
                    else column.type
                )
                rows = rows.set_column(place, column.name, rows.column(place).cast(kind))
        return rows.to_pandas(integer_object_nulls=True)


def _without_nan(frame: Any, schema: pa.Schema) -> Any:
    """A Spark DataFrame with NULL in place of NaN, which pandas does not distinguish: a verdict must not depend on the size."""
    expressions = []
    for column in schema:
        name = "`" + column.name.replace("`", "``") + "`"
        nan = {pa.float32(): "float('NaN')", pa.float64(): "double('NaN')"}.get(column.type)
        expressions.append(name if nan is None else f"nullif({name}, {nan}) AS {name}")
    return frame.selectExpr(*expressions)


def _pieces(batches: Iterable[pa.RecordBatch], schema: pa.Schema, limit: int) -> Iterator[pa.Table]:
    """The rows in tables of about `limit` bytes; one without rows if there are none."""
    held: list[pa.RecordBatch] = []
    size = 0
    for batch in batches:
        if held and size + batch.nbytes > limit:
            yield pa.Table.from_batches(held, schema=schema)
            held, size = [], 0
        held.append(batch)
        size += batch.nbytes
    yield pa.Table.from_batches(held, schema=schema)


def _found(expectation: ExpectationConfig, result: Any, key: Sequence[str]) -> Found:
    if result.success:
        return Found(expectation, passed=True)
    details = result.result or {}
    info = result.exception_info or {}
    raised = [info] if "raised_exception" in info else [one for one in info.values() if isinstance(one, Mapping)]
    message = next((one["exception_message"] for one in raised if one.get("raised_exception")), None)
    if message is not None:
        return Found(expectation, passed=False, statement=f"{expectation}: {' '.join(str(message).split())}")
    if "unexpected_count" not in details:
        statement = f"{expectation}: observed {_plain(details.get('observed_value'))!r:.200}"
        return Found(expectation, passed=False, statement=statement)
    values = list(dict.fromkeys(map(str, details.get("partial_unexpected_list") or ())))
    shown = f": {', '.join(values)}" if values and values != ["None"] else ""
    of = (
        f" of {details['element_count']:,}" if "element_count" in details else ""
    )  # unknown to some, such as sums of columns
    statement = f"{expectation}: {details['unexpected_count']:,}{of} rows do not{shown}"
    rows = details.get("partial_unexpected_index_list") or ()
    ordered = [
        {n: _plain(r[n]) for n in dict.fromkeys([*(n for n in key if n in r), *r])}
        for r in rows
        if isinstance(r, Mapping)
    ]
    return Found(expectation, passed=False, statement=statement, rows=ordered[:MAX_OFFENDING_KEYS])


def _plain_document(value: Any) -> Any:
    """A document without NumPy's types, which its members may have."""
    if isinstance(value, dict):
        return {name: _plain_document(inner) for name, inner in value.items()}
    return [_plain_document(inner) for inner in value] if isinstance(value, list) else _plain(value)


def _plain(value: Any) -> Any:
    """A value without NumPy's type."""
    return value.item() if hasattr(value, "item") else value
