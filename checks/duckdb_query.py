"""Translates the SQL of a published table to DuckDB.

Only expressions that both engines compute alike are translated; for all others the comparison is refused with a
reason.
"""

import re
from collections.abc import Mapping
from datetime import date, datetime
from typing import Any

from sqlglot import exp

from pipelines.publish.lineage.sql_functions import unrepeatable

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
