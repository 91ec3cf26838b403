"""The functions of the filter language: names, numbers of arguments, and the rules that bind them.

Names that the table lacks are refused. Each rule receives bound arguments and gives the bound call, with the
arguments cast to what its kernel takes. How functions are computed is in `kernels.py`.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from scan_core.expr.argument_rules import (
    ArgumentError,
    Arguments,
    condition_of,
    date_argument,
    integer,
    number,
    same_type,
    string,
)
from scan_core.expr.bits import bitwise
from scan_core.expr.bound import BoundExpr, Call, Case, Cast, Coalesce, Comparison, IsNull, Literal, Not
from scan_core.expr.coercion import (
    BINARY,
    BOOLEAN,
    BYTES,
    DATE,
    DOUBLE,
    FLOATING,
    INT,
    STRING,
    is_primitive,
    name_of,
)
from scan_core.expr.collection_rules import contains_element, list_size, size, subscript
from scan_core.expr.constants import coerce
from scan_core.expr.moment_rules import (
    DATE_PARTS,
    TIME_PARTS,
    date_difference,
    date_part,
    date_plus,
    date_trunc,
    from_epoch,
    time_part,
    to_epoch,
    trunc,
)
from scan_core.expr.number_rules import absolute, arithmetic, is_nan, negative, rounded, rounded_half_up, square_root
from scan_core.schema import PrimitiveType, Type


@dataclass(frozen=True, slots=True)
class Function:
    """Between `least` and `most` arguments (None: any number), and the rule that binds them."""

    least: int
    most: int | None
    bind: Callable[[str, Arguments], BoundExpr]


def _named_arithmetic(operator: str) -> Callable[[str, Arguments], BoundExpr]:
    return lambda _, arguments: arithmetic(operator, arguments)


def _strings(result: Type, integers: int = 0) -> Callable[[str, Arguments], BoundExpr]:
    """All arguments are strings, but the last `integers` possible ones, which are ints."""

    def bind(name: str, arguments: Arguments) -> BoundExpr:
        strings = 1 if integers else len(arguments)
        bound = [string(a, name, i) if i < strings else integer(a, name, i) for i, a in enumerate(arguments)]
        return Call(name, tuple(bound), result)

    return bind


def _replace(name: str, arguments: Arguments) -> BoundExpr:
    for index, argument in enumerate(arguments[1:], start=1):
        if not isinstance(argument, Literal):
            raise ArgumentError("replace takes constants for what it replaces", index)
    return _strings(STRING)(name, arguments)


def _alias(target: str, bind: Callable[[str, Arguments], BoundExpr]) -> Callable[[str, Arguments], BoundExpr]:
    return lambda _, arguments: bind(target, arguments)


def _coalesce(name: str, arguments: Arguments) -> BoundExpr:
    operands, type_ = same_type(name, arguments)
    return Coalesce(operands, type_)


def _if(name: str, arguments: Arguments) -> BoundExpr:
    condition = condition_of(arguments[0], name)
    (value, default), type_ = same_type(name, arguments[1:])
    return Case(((condition, value),), default, type_)


def _nvl2(name: str, arguments: Arguments) -> BoundExpr:
    return _if(name, (Not(IsNull(arguments[0])), *arguments[1:]))


def _nullif(name: str, arguments: Arguments) -> BoundExpr:
    (left, right), _ = same_type(name, arguments)
    return Case(((Comparison("=", left, right), Literal(None, arguments[0].type)),), arguments[0], arguments[0].type)


def _length(_: str, arguments: Arguments) -> BoundExpr:
    if name_of(arguments[0].type) in BYTES:
        return Call("octet_length", (coerce(arguments[0], BINARY),), INT)
    return _strings(INT)("length", arguments)


def _extreme(name: str, arguments: Arguments) -> BoundExpr:
    """The largest or smallest argument that is not NULL."""
    operands, type_ = same_type(name, arguments)
    if not is_primitive(type_):
        raise ArgumentError(f"{name} cannot compare {type_}")
    sign = ">=" if name == "greatest" else "<="
    result = operands[-1]
    for operand in reversed(operands[:-1]):
        branches = ((IsNull(operand), result), (IsNull(result), operand), (Comparison(sign, operand, result), operand))
        result = Case(branches, result, type_)
    return result


def _nanvl(name: str, arguments: Arguments) -> BoundExpr:
    (value, default), type_ = same_type(name, arguments)
    if name_of(type_) not in FLOATING:
        value, default, type_ = coerce(number(value, name), DOUBLE), coerce(number(default, name, 1), DOUBLE), DOUBLE
    return Case(((Call("isnan", (value,), BOOLEAN), default),), value, type_)


def _cast_call(target: PrimitiveType) -> Callable[[str, Arguments], BoundExpr]:
    return lambda _, arguments: Cast(arguments[0], target)


MAX_EXTREMES = 5
"""Of greatest and least: each argument doubles the work."""

FUNCTIONS: Mapping[str, Function] = {
    **{
        name: Function(2, 2, _named_arithmetic(operator))
        for name, operator in {
            **{operator: operator for operator in ("+", "-", "*", "/", "%", "div")},
            "mod": "%",
            "try_add": "try +",
            "try_subtract": "try -",
            "try_multiply": "try *",
            "try_divide": "try /",
            "try_mod": "try %",
        }.items()
    },
    "negative": Function(1, 1, negative),
    "abs": Function(1, 1, absolute),
    "floor": Function(1, 1, rounded),
    **dict.fromkeys(("ceil", "ceiling"), Function(1, 1, _alias("ceil", rounded))),
    **dict.fromkeys(("lower", "lcase"), Function(1, 1, _alias("lower", _strings(STRING)))),
    **dict.fromkeys(("upper", "ucase"), Function(1, 1, _alias("upper", _strings(STRING)))),
    **dict.fromkeys(("length", "char_length", "character_length", "len"), Function(1, 1, _length)),
    **dict.fromkeys(("substr", "substring"), Function(2, 3, _alias("substr", _strings(STRING, 2)))),
    "left": Function(2, 2, _strings(STRING, 1)),
    "right": Function(2, 2, _strings(STRING, 1)),
    "trim": Function(1, 1, _strings(STRING)),
    "ltrim": Function(1, 1, _strings(STRING)),
    "rtrim": Function(1, 1, _strings(STRING)),
    "reverse": Function(1, 1, _strings(STRING)),
    "replace": Function(2, 3, _replace),
    **dict.fromkeys(("concat", "||"), Function(1, None, _alias("concat", _strings(STRING)))),
    **dict.fromkeys(("startswith", "starts_with"), Function(2, 2, _alias("startswith", _strings(BOOLEAN)))),
    **dict.fromkeys(("endswith", "ends_with"), Function(2, 2, _alias("endswith", _strings(BOOLEAN)))),
    "contains": Function(2, 2, _strings(BOOLEAN)),
    **{part: Function(1, 1, date_part) for part in DATE_PARTS},
    "dayofmonth": Function(1, 1, _alias("day", date_part)),
    **{part: Function(1, 1, time_part) for part in TIME_PARTS},
    "date_trunc": Function(2, 2, date_trunc),
    "trunc": Function(2, 2, trunc),
    **dict.fromkeys(("date_add", "dateadd"), Function(2, 2, _alias("date_add", date_plus))),
    "date_sub": Function(2, 2, date_plus),
    "add_months": Function(2, 2, date_plus),
    **dict.fromkeys(("datediff", "date_diff"), Function(2, 2, date_difference)),
    **{name: Function(1, 1, to_epoch) for name in ("unix_date", "unix_seconds", "unix_millis", "unix_micros")},
    **{
        name: Function(1, 1, from_epoch)
        for name in ("date_from_unix_date", "timestamp_seconds", "timestamp_millis", "timestamp_micros")
    },
    **{name: Function(2, 2, bitwise) for name in ("&", "|", "^")},
    "~": Function(1, 1, bitwise),
    "round": Function(1, 2, rounded_half_up),
    "sqrt": Function(1, 1, square_root),
    **dict.fromkeys(("greatest", "least"), Function(2, MAX_EXTREMES, _extreme)),
    "nanvl": Function(2, 2, _nanvl),
    "last_day": Function(1, 1, lambda name, a: Call(name, (date_argument(a[0], name),), DATE)),
    **dict.fromkeys(("coalesce", "ifnull", "nvl"), Function(1, None, _coalesce)),
    **dict.fromkeys(("if", "iff"), Function(3, 3, _if)),
    "nvl2": Function(3, 3, _nvl2),
    "nullif": Function(2, 2, _nullif),
    "isnull": Function(1, 1, lambda _, a: IsNull(a[0])),
    "isnotnull": Function(1, 1, lambda _, a: Not(IsNull(a[0]))),
    "isnan": Function(1, 1, is_nan),
    **dict.fromkeys(("size", "cardinality"), Function(1, 1, size)),
    "array_size": Function(1, 1, list_size),
    **{name: Function(2, 2, subscript) for name in ("[]", "get", "element_at", "try_element_at")},
    "array_contains": Function(2, 2, contains_element),
    "map_contains_key": Function(2, 2, contains_element),
    **{
        name: Function(1, 1, _cast_call(PrimitiveType(target)))
        for name, target in {
            "int": "int",
            "bigint": "long",
            "float": "float",
            "double": "double",
            "string": "string",
            "boolean": "boolean",
            "binary": "binary",
            "date": "date",
            "to_date": "date",
            "timestamp": "timestamptz",
            "to_timestamp": "timestamptz",
        }.items()
    },
}
"""Every function and arithmetic operator, by its lower-case SQL name."""
