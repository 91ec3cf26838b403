"""What functions demand of their arguments, and the error that says which one is wrong."""

from scan_core.expr.bound import BoundExpr, Cast
from scan_core.expr.coercion import BOOLEAN, DATE, INT, STRING, TIMESTAMPS, common_type, is_numeric, name_of
from scan_core.expr.constants import coerce
from scan_core.schema import Type

Arguments = tuple[BoundExpr, ...]
"""Bound arguments of a function."""


class ArgumentError(ValueError):
    """An argument that a function does not take; `index` says which, None for all of them."""

    def __init__(self, message: str, index: int | None = None) -> None:
        super().__init__(message)
        self.index = index


def number(argument: BoundExpr, function: str, index: int = 0) -> BoundExpr:
    """The argument, which must be a number."""
    if not is_numeric(argument.type):
        raise ArgumentError(f"{function} takes a number, not {argument.type}", index)
    return argument


def string(argument: BoundExpr, function: str, index: int = 0) -> BoundExpr:
    """The argument, which must be a string."""
    if name_of(argument.type) in {"string", "unknown"}:
        return coerce(argument, STRING)
    raise ArgumentError(f"{function} takes a string, not {argument.type}; write cast(... as string)", index)


def integer(argument: BoundExpr, function: str, index: int = 0) -> BoundExpr:
    """The argument, which must be an int."""
    if name_of(argument.type) in {"int", "unknown"}:
        return coerce(argument, INT)
    raise ArgumentError(f"{function} takes an int here, not {argument.type}", index)


def date_argument(argument: BoundExpr, function: str, index: int = 0) -> BoundExpr:
    """The argument as a date: timestamps and strings are cast."""
    if name_of(argument.type) in TIMESTAMPS | {"date", "string", "unknown"}:
        return coerce(argument, DATE) if name_of(argument.type) in {"string", "unknown"} else _as_date(argument)
    raise ArgumentError(f"{function} takes a date, not {argument.type}", index)


def _as_date(argument: BoundExpr) -> BoundExpr:
    return argument if name_of(argument.type) == "date" else Cast(argument, DATE)


def same_type(function: str, arguments: Arguments) -> tuple[Arguments, Type]:
    """All arguments in their common type.

    Raises:
        ArgumentError: they have none.
    """
    common = arguments[0].type
    for index, argument in enumerate(arguments[1:], start=1):
        found = common_type(common, argument.type)
        if found is None:
            raise ArgumentError(f"{function} cannot mix {common} and {argument.type}", index)
        common = found
    return tuple(coerce(a, common) for a in arguments), common


def condition_of(argument: BoundExpr, where: str, index: int = 0) -> BoundExpr:
    """The argument as a boolean.

    Raises:
        ArgumentError: it is none.
    """
    if name_of(argument.type) in {"boolean", "unknown"}:
        return coerce(argument, BOOLEAN)
    raise ArgumentError(f"{where} takes a condition, not {argument.type}", index)
