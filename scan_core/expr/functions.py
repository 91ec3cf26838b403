"""The functions of the filter language: names, arguments and result types. How they are computed is in `kernels.py`.

Names that the table lacks are refused. Each rule receives bound arguments and gives the bound call, with the
arguments cast to what its kernel takes.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from scan_core.expr.bound import BoundExpr, Call, Case, Cast, Coalesce, Comparison, IsNull, Literal, Not
from scan_core.expr.coercion import (
    BOOLEAN,
    DATE,
    DOUBLE,
    FLOATING,
    INT,
    LONG,
    STRING,
    TIMESTAMPS,
    TIMESTAMPTZ,
    arithmetic_type,
    common_type,
    decimal_of,
    decimal_type,
    is_numeric,
    name_of,
)
from scan_core.expr.constants import coerce
from scan_core.schema import ListType, MapType, PrimitiveType, Type

Arguments = tuple[BoundExpr, ...]
DATE_PARTS = ("year", "quarter", "month", "day", "dayofweek", "weekday", "dayofyear", "weekofyear")
TIME_PARTS = ("hour", "minute", "second")
TRUNCATIONS: Mapping[str, str] = {
    **dict.fromkeys(("year", "yyyy", "yy"), "year"),
    "quarter": "quarter",
    **dict.fromkeys(("month", "mm", "mon"), "month"),
    "week": "week",
    **dict.fromkeys(("day", "dd"), "day"),
    **{unit: unit for unit in ("hour", "minute", "second", "millisecond", "microsecond")},
}
_DATE_TRUNCATIONS = frozenset({"year", "quarter", "month", "week"})


class ArgumentError(ValueError):
    """An argument that a function does not take; `index` says which, None for all of them."""

    def __init__(self, message: str, index: int | None = None) -> None:
        super().__init__(message)
        self.index = index


@dataclass(frozen=True, slots=True)
class Function:
    """Between `least` and `most` arguments (None: any number), and the rule that binds them."""

    least: int
    most: int | None
    bind: Callable[[str, Arguments], BoundExpr]


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


def _named_arithmetic(operator: str) -> Callable[[str, Arguments], BoundExpr]:
    return lambda _, arguments: arithmetic(operator, arguments)


def negative(_: str, arguments: Arguments) -> BoundExpr:
    """Unary minus."""
    return Call("negative", (_number(arguments[0], "-"),), arguments[0].type)


def _number(argument: BoundExpr, function: str, index: int = 0) -> BoundExpr:
    if not is_numeric(argument.type):
        raise ArgumentError(f"{function} takes a number, not {argument.type}", index)
    return argument


def _string(argument: BoundExpr, function: str, index: int = 0) -> BoundExpr:
    if name_of(argument.type) in {"string", "unknown"}:
        return coerce(argument, STRING)
    raise ArgumentError(f"{function} takes a string, not {argument.type}; write cast(... as string)", index)


def _integer(argument: BoundExpr, function: str, index: int = 0) -> BoundExpr:
    if name_of(argument.type) in {"int", "unknown"}:
        return coerce(argument, INT)
    raise ArgumentError(f"{function} takes an int here, not {argument.type}", index)


def _strings(result: Type, integers: int = 0) -> Callable[[str, Arguments], BoundExpr]:
    """All arguments are strings, but the last `integers` possible ones, which are ints."""

    def bind(name: str, arguments: Arguments) -> BoundExpr:
        strings = 1 if integers else len(arguments)
        bound = [_string(a, name, i) if i < strings else _integer(a, name, i) for i, a in enumerate(arguments)]
        return Call(name, tuple(bound), result)

    return bind


def _replace(name: str, arguments: Arguments) -> BoundExpr:
    for index, argument in enumerate(arguments[1:], start=1):
        if not isinstance(argument, Literal):
            raise ArgumentError("replace takes constants for what it replaces", index)
    return _strings(STRING)(name, arguments)


def _alias(target: str, bind: Callable[[str, Arguments], BoundExpr]) -> Callable[[str, Arguments], BoundExpr]:
    return lambda _, arguments: bind(target, arguments)


def _date(argument: BoundExpr, function: str, index: int = 0) -> BoundExpr:
    if name_of(argument.type) in TIMESTAMPS | {"date", "string", "unknown"}:
        return coerce(argument, DATE) if name_of(argument.type) in {"string", "unknown"} else _as_date(argument)
    raise ArgumentError(f"{function} takes a date, not {argument.type}", index)


def _as_date(argument: BoundExpr) -> BoundExpr:
    return argument if name_of(argument.type) == "date" else Cast(argument, DATE)


def _date_part(name: str, arguments: Arguments) -> BoundExpr:
    return Call(name, (_date(arguments[0], name),), INT)


def _time_part(name: str, arguments: Arguments) -> BoundExpr:
    (argument,) = arguments
    if name_of(argument.type) in {"string", "date", "unknown"}:
        argument = coerce(argument, TIMESTAMPTZ)
    if name_of(argument.type) not in TIMESTAMPS | {"time"}:
        raise ArgumentError(f"{name} takes a timestamp, not {argument.type}", 0)
    return Call(name, (argument,), INT)


def _unit(argument: BoundExpr, function: str, units: frozenset[str]) -> Literal:
    if isinstance(argument, Literal) and isinstance(argument.value, str):
        unit = TRUNCATIONS.get(argument.value.lower())
        if unit in units:
            return Literal(unit, STRING)
    raise ArgumentError(f"{function} takes one of {', '.join(u for u in TRUNCATIONS if TRUNCATIONS[u] in units)}")


def _date_trunc(_: str, arguments: Arguments) -> BoundExpr:
    unit = _unit(arguments[0], "date_trunc", frozenset(TRUNCATIONS.values()))
    moment = arguments[1]
    if name_of(moment.type) in {"string", "date", "unknown"}:
        moment = coerce(moment, TIMESTAMPTZ)
    if name_of(moment.type) not in TIMESTAMPS:
        raise ArgumentError(f"date_trunc takes a timestamp, not {moment.type}", 1)
    return Call("date_trunc", (moment, unit), moment.type)


def _trunc(_: str, arguments: Arguments) -> BoundExpr:
    unit = _unit(arguments[1], "trunc", _DATE_TRUNCATIONS)
    return Call("trunc", (_date(arguments[0], "trunc"), unit), DATE)


def _date_plus(name: str, arguments: Arguments) -> BoundExpr:
    days = _integer(arguments[1], name, 1)
    return Call(name, (_date(arguments[0], name), days), DATE)


def _date_difference(_: str, arguments: Arguments) -> BoundExpr:
    return Call("datediff", tuple(_date(a, "datediff", i) for i, a in enumerate(arguments)), INT)


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


def _coalesce(name: str, arguments: Arguments) -> BoundExpr:
    operands, type_ = same_type(name, arguments)
    return Coalesce(operands, type_)


def _if(name: str, arguments: Arguments) -> BoundExpr:
    condition = condition_of(arguments[0], name)
    (value, default), type_ = same_type(name, arguments[1:])
    return Case(((condition, value),), default, type_)


def condition_of(argument: BoundExpr, where: str, index: int = 0) -> BoundExpr:
    """The argument as a boolean.

    Raises:
        ArgumentError: it is none.
    """
    if name_of(argument.type) in {"boolean", "unknown"}:
        return coerce(argument, BOOLEAN)
    raise ArgumentError(f"{where} takes a condition, not {argument.type}", index)


def _nvl2(name: str, arguments: Arguments) -> BoundExpr:
    return _if(name, (Not(IsNull(arguments[0])), *arguments[1:]))


def _nullif(name: str, arguments: Arguments) -> BoundExpr:
    (left, right), _ = same_type(name, arguments)
    return Case(((Comparison("=", left, right), Literal(None, arguments[0].type)),), arguments[0], arguments[0].type)


def _isnan(name: str, arguments: Arguments) -> BoundExpr:
    (argument,) = arguments
    number = argument if name_of(argument.type) in FLOATING else coerce(_number(argument, name), DOUBLE)
    return Call("isnan", (number,), BOOLEAN)


def _cast_call(target: PrimitiveType) -> Callable[[str, Arguments], BoundExpr]:
    return lambda _, arguments: Cast(arguments[0], target)


def _size(_: str, arguments: Arguments) -> BoundExpr:
    if not isinstance(arguments[0].type, ListType | MapType):
        raise ArgumentError(f"size takes a list or a map, not {arguments[0].type}", 0)
    return Call("size", arguments, INT)


def subscript(function: str, arguments: Arguments) -> BoundExpr:
    """`[]` (lists from 0), element_at (lists from 1, or from the end) and its try_ form; maps give NULL for no key."""
    operand, key = arguments
    match operand.type:
        case ListType(element):
            if name_of(key.type) not in {"int", "long"}:
                raise ArgumentError(f"a position in a list is an int, not {key.type}", 1)
            name = {"[]": "list_get", "get": "try list_get", "element_at": "list_element_at"}.get(
                function, "try list_element_at"
            )
            return Call(name, (operand, coerce(key, LONG)), element.type)
        case MapType(key_field, value_field):
            if common_type(key_field.type, key.type) is None:
                raise ArgumentError(f"the keys of this map are {key_field.type}, not {key.type}", 1)
            return Call("map_get", (operand, coerce(key, key_field.type)), value_field.type)
        case _:
            raise ArgumentError(f"{function} takes a list or a map, not {operand.type}", 0)


def _contains_element(name: str, arguments: Arguments) -> BoundExpr:
    operand, value = arguments
    element = operand.type.element if isinstance(operand.type, ListType) else None
    if name == "map_contains_key":
        element = operand.type.key if isinstance(operand.type, MapType) else None
    if element is None or common_type(element.type, value.type) is None:
        raise ArgumentError(f"{name} cannot look for {value.type} in {operand.type}")
    return Call(name, (operand, coerce(value, element.type)), BOOLEAN)


def _abs(name: str, arguments: Arguments) -> BoundExpr:
    return Call("abs", (_number(arguments[0], name),), arguments[0].type)


def _rounded(name: str, arguments: Arguments) -> BoundExpr:
    (number,) = (_number(a, name) for a in arguments)
    if name_of(number.type) in FLOATING | {"int", "long"}:
        return Call(name, (coerce(number, DOUBLE) if name_of(number.type) in FLOATING else coerce(number, LONG),), LONG)
    precision, scale = decimal_of(number.type)
    return Call(name, (number,), decimal_type(min(38, precision - scale + 1), 0))


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
    "abs": Function(1, 1, _abs),
    "floor": Function(1, 1, _rounded),
    **dict.fromkeys(("ceil", "ceiling"), Function(1, 1, _alias("ceil", _rounded))),
    **dict.fromkeys(("lower", "lcase"), Function(1, 1, _alias("lower", _strings(STRING)))),
    **dict.fromkeys(("upper", "ucase"), Function(1, 1, _alias("upper", _strings(STRING)))),
    **dict.fromkeys(
        ("length", "char_length", "character_length", "len"), Function(1, 1, _alias("length", _strings(INT)))
    ),
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
    **{part: Function(1, 1, _date_part) for part in DATE_PARTS},
    "dayofmonth": Function(1, 1, _alias("day", _date_part)),
    **{part: Function(1, 1, _time_part) for part in TIME_PARTS},
    "date_trunc": Function(2, 2, _date_trunc),
    "trunc": Function(2, 2, _trunc),
    **dict.fromkeys(("date_add", "dateadd"), Function(2, 2, _alias("date_add", _date_plus))),
    "date_sub": Function(2, 2, _date_plus),
    "add_months": Function(2, 2, _date_plus),
    **dict.fromkeys(("datediff", "date_diff"), Function(2, 2, _date_difference)),
    "last_day": Function(1, 1, lambda name, a: Call(name, (_date(a[0], name),), DATE)),
    **dict.fromkeys(("coalesce", "ifnull", "nvl"), Function(1, None, _coalesce)),
    **dict.fromkeys(("if", "iff"), Function(3, 3, _if)),
    "nvl2": Function(3, 3, _nvl2),
    "nullif": Function(2, 2, _nullif),
    "isnull": Function(1, 1, lambda _, a: IsNull(a[0])),
    "isnotnull": Function(1, 1, lambda _, a: Not(IsNull(a[0]))),
    "isnan": Function(1, 1, _isnan),
    **dict.fromkeys(("size", "cardinality"), Function(1, 1, _size)),
    **{name: Function(2, 2, subscript) for name in ("[]", "get", "element_at", "try_element_at")},
    "array_contains": Function(2, 2, _contains_element),
    "map_contains_key": Function(2, 2, _contains_element),
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
