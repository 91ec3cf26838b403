"""The SQL of a published table in DuckDB's words, where both engines are known to mean the same by it.

What is not known to mean the same is refused with a reason, never guessed: a comparison that fails must be a fault.
"""

from collections.abc import Mapping
from datetime import date, datetime
from typing import Any

from sqlglot import exp

from checks.engine_differences import difference
from pipelines.published.sql_functions import unrepeatable


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
_TIMES = frozenset({"DATE", "TIMESTAMP", "TIMESTAMPTZ", "TIMESTAMPNTZ"})
_CASTS: Mapping[str, frozenset[str]] = {
    **dict.fromkeys(_TIMES, _TIMES),
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
        return target in _TIMES
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
