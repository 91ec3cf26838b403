"""How arithmetic and numeric functions bind: result types and the casts that lead to them, as in Spark's ANSI mode."""

from scan_core.expr.argument_rules import ArgumentError, Arguments, number
from scan_core.expr.bound import BoundExpr, Call, Literal
from scan_core.expr.coercion import (
    BOOLEAN,
    DOUBLE,
    FLOATING,
    INT,
    LONG,
    arithmetic_type,
    decimal_of,
    decimal_type,
    is_numeric,
    name_of,
)
from scan_core.expr.constants import coerce
from scan_core.schema import Type


def arithmetic(operator: str, arguments: Arguments) -> BoundExpr:
    """+ - * / % div on numbers; `try_` forms give NULL instead of failing."""
    left, right = arguments
    plain = operator.removeprefix("try ")
    for index, argument in enumerate(arguments):
        if not is_numeric(argument.type) and name_of(argument.type) != "unknown":
            if name_of(argument.type) == "string":
                raise ArgumentError(f"{plain} takes numbers; write cast(... as double) or the like", index)
            raise ArgumentError(f"{plain} takes numbers, not {argument.type}", index)
    left, right = (coerce(a, INT) if name_of(a.type) == "unknown" else a for a in (left, right))
    result = arithmetic_type(plain, left.type, right.type)
    if name_of(result) in FLOATING:
        left, right = coerce(left, result), coerce(right, result)
    elif name_of(result) == "decimal":
        left, right = (coerce(a, _exact_decimal(a)) for a in (left, right))
        result = arithmetic_type(plain, left.type, right.type)
        _check_decimal_digits(plain, left.type, right.type, result)
    elif plain != "div" or "decimal" not in {name_of(left.type), name_of(right.type)}:
        left, right = coerce(left, result), coerce(right, result)
    return Call(operator, (left, right), result)


def _exact_decimal(argument: BoundExpr) -> Type:
    """The decimal type of an operand; an integer constant counts with the digits that it has."""
    if isinstance(argument, Literal) and isinstance(argument.value, int):
        return decimal_type(len(str(abs(argument.value))), 0)
    return decimal_type(*decimal_of(argument.type))


def _check_decimal_digits(operator: str, left: Type, right: Type, result: Type) -> None:
    (p1, s1), (p2, s2) = decimal_of(left), decimal_of(right)
    match operator:
        case "*":
            digits, most = p1 + p2 + 1, 76
        case "/":
            digits, most = p1 - s1 + s2 + max(decimal_of(result)[1] + 1, 4, s1 + p2 - s2 + 1), 76
        case "%" | "div":
            digits, most = max(p1 - s1, p2 - s2) + max(s1, s2), 18
        case _:
            return
    if digits > most:
        raise ArgumentError(
            f"{operator} of {left} and {right} is not supported in a filter: it needs {digits} digits, more than {most}; "
            "cast to a narrower decimal or to double"
        )


def negative(_: str, arguments: Arguments) -> BoundExpr:
    """Unary minus."""
    return Call("negative", (number(arguments[0], "-"),), arguments[0].type)


def absolute(name: str, arguments: Arguments) -> BoundExpr:
    """The absolute value, of the same type."""
    return Call("abs", (number(arguments[0], name),), arguments[0].type)


def rounded(name: str, arguments: Arguments) -> BoundExpr:
    """Floor and ceil: longs, or decimals without fraction."""
    (argument,) = (number(a, name) for a in arguments)
    if name_of(argument.type) in FLOATING | {"int", "long"}:
        return Call(
            name, (coerce(argument, DOUBLE) if name_of(argument.type) in FLOATING else coerce(argument, LONG),), LONG
        )
    precision, scale = decimal_of(argument.type)
    return Call(name, (argument,), decimal_type(min(38, precision - scale + 1), 0))


MAX_ROUNDED_DIGITS = 15
"""More fraction digits than this no double has for certain."""


def rounded_half_up(name: str, arguments: Arguments) -> BoundExpr:
    """Round to a constant number of fraction digits, half away from zero."""
    value = number(arguments[0], name)
    digits = arguments[1] if len(arguments) > 1 else Literal(0, INT)
    if not isinstance(digits, Literal) or not isinstance(digits.value, int) or isinstance(digits.value, bool):
        raise ArgumentError(f"{name} takes a constant number of digits", 1)
    if not 0 <= digits.value <= MAX_ROUNDED_DIGITS:
        raise ArgumentError(f"{name} takes 0 to {MAX_ROUNDED_DIGITS} digits in a filter, not {digits.value}", 1)
    if name_of(value.type) in {"int", "long"}:
        return value
    if name_of(value.type) in FLOATING:
        return Call(name, (value, coerce(digits, INT)), value.type)
    precision, scale = decimal_of(value.type)
    kept = min(scale, digits.value)
    return Call(name, (value, coerce(digits, INT)), decimal_type(min(38, precision - scale + kept + 1), kept))


def square_root(name: str, arguments: Arguments) -> BoundExpr:
    """The square root as a double; NaN of what is negative."""
    return Call(name, (coerce(number(arguments[0], name), DOUBLE),), DOUBLE)


def is_nan(name: str, arguments: Arguments) -> BoundExpr:
    """Is it NaN; false for NULL."""
    (argument,) = arguments
    value = argument if name_of(argument.type) in FLOATING else coerce(number(argument, name), DOUBLE)
    return Call("isnan", (value,), BOOLEAN)
