"""What is known of the functions of a query: answers that rows alone decide, functions of one row, of many rows."""

from typing import Any

from sqlglot import exp

VOLATILE = frozenset(
    [
        "now",
        "curdate",
        "current_catalog",
        "current_database",
        "current_date",
        "current_schema",
        "current_time",
        "current_timestamp",
        "current_timezone",
        "current_user",
        "localtimestamp",
        "session_user",
        "user",
        "version",
        "rand",
        "randn",
        "random",
        "uniform",
        "uuid",
        "randstr",
        "shuffle",
        "sample",
        "monotonically_increasing_id",
        "spark_partition_id",
        "input_file_name",
        "input_file_block_start",
        "input_file_block_length",
        "java_method",
        "reflect",
        "try_reflect",
    ]
)
"""Functions whose answer is not decided by the rows alone."""
_ROW_WISE = frozenset(
    [
        "bin",
        "bround",
        "btrim",
        "contains",
        "convert_timezone",
        "date_from_unix_date",
        "date_part",
        "dayname",
        "elt",
        "find_in_set",
        "format_number",
        "hash",
        "iff",
        "make_date",
        "make_interval",
        "make_timestamp",
        "make_timestamp_ltz",
        "make_timestamp_ntz",
        "monthname",
        "next_day",
        "nullifzero",
        "overlay",
        "pmod",
        "rint",
        "soundex",
        "timestamp_micros",
        "timestamp_millis",
        "timestamp_seconds",
        "to_timestamp_ltz",
        "to_timestamp_ntz",
        "try_add",
        "try_mod",
        "try_multiply",
        "try_subtract",
        "try_to_date",
        "try_to_timestamp",
        "unix_micros",
        "unix_millis",
        "unix_seconds",
        "weekday",
        "xxhash64",
        "zeroifnull",
    ]
)
"""Functions of one row that sqlglot does not know by type."""
_AGGREGATES = frozenset(
    ["every", "some", "histogram_numeric", "try_sum", "try_avg", "bitmap_construct_agg", "bitmap_or_agg"]
)
"""Aggregates that sqlglot does not know by type."""
_MANY_ROWS: tuple[type[Any], ...] = (exp.AggFunc, exp.Window, exp.Query, exp.UDTF, exp.Explode, exp.Inline, exp.Stack)


def is_aggregate(node: exp.Expression) -> bool:
    """Whether this is a call of a function of many rows."""
    return isinstance(node, exp.AggFunc) or (isinstance(node, exp.Anonymous) and _name(node) in _AGGREGATES)


def is_row_wise(expression: exp.Expression) -> bool:
    """Whether the expression is a function of one row, and the same one whenever it is asked."""
    return volatile_function(expression) is None and all(
        not isinstance(node, _MANY_ROWS)
        and not (isinstance(node, exp.Anonymous) and node.name.lower() not in _ROW_WISE)
        for node in expression.walk()
    )


def volatile_function(tree: exp.Expression) -> str | None:
    """A function in the tree whose answer is not decided by the rows alone."""
    for node in tree.walk():
        if isinstance(node, exp.TableSample):
            return "tablesample"
        if isinstance(node, exp.StrToUnix | exp.TimeToUnix) and node.this is None:
            return "unix_timestamp()"
        if isinstance(node, exp.Func) and _name(node) in VOLATILE:
            return f"{_name(node)}()"
    return None


def unknown_function(tree: exp.Expression) -> str | None:
    """A function that is not known to give the same answer for the same rows, such as one that a user registered."""
    for node in tree.find_all(exp.Anonymous):
        if _name(node) not in _ROW_WISE | _AGGREGATES | VOLATILE:
            return f"{_name(node)}()"
    return None


def _name(function: exp.Func) -> str:
    return str(function.name if isinstance(function, exp.Anonymous) else function.sql_name()).lower()
