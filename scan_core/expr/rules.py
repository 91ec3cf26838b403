"""The functions of the filter language: names, numbers of arguments, and how each binds its arguments."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from itertools import chain, repeat

from nevermore.scan_core.expr.bound import BoundExpr, Call, Case, Cast, Coalesce, Comparison, IsNull, Literal, Not
from nevermore.scan_core.expr.coercion import (
    BINARY,
    BOOLEAN,
    BYTES,
    DATE,
    DOUBLE,
    FLOATING,
    INT,
    INTEGRAL,
    LONG,
    STRING,
    TIMESTAMPS,
    TIMESTAMPTZ,
    arithmetic_type,
    cast_to,
    coerce,
    common_type,
    decimal_of,
    decimal_type,
    from_python,
    is_numeric,
    is_primitive,
    name_of,
)
from nevermore.scan_core.model.schema import ListType, MapType, PrimitiveType, Type

Arguments = tuple[BoundExpr, ...]
"""Bound arguments of a function."""
Rule = Callable[[str, Arguments], BoundExpr]
"""How a function, by its name, binds its arguments."""


class ArgumentError(ValueError):
    """An argument that a function does not take; `index` is its position, None for all arguments."""

    def __init__(self, message: str, index: int | None = None) -> None:
        super().__init__(message)
        self.index = index


def number(argument: BoundExpr, function: str, index: int = 0) -> BoundExpr:
    """The argument, which must be a number."""
    if not is_numeric(argument.type):
        raise ArgumentError(f"{function} takes a number, not {argument.type}", index)
    return argument


def double(argument: BoundExpr, function: str, index: int = 0) -> BoundExpr:
    """The argument as a double; it must be a number."""
    return coerce(number(argument, function, index), DOUBLE)


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
    kind = name_of(argument.type)
    if kind not in TIMESTAMPS | {"date", "string", "unknown"}:
        raise ArgumentError(f"{function} takes a date, not {argument.type}", index)
    return Cast(argument, DATE) if kind in TIMESTAMPS else coerce(argument, DATE)


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
        ArgumentError: it is not a boolean.
    """
    if name_of(argument.type) in {"boolean", "unknown"}:
        return coerce(argument, BOOLEAN)
    raise ArgumentError(f"{where} takes a condition, not {argument.type}", index)


def size(name: str, arguments: Arguments) -> BoundExpr:
    """Elements of a list, or entries of a map, which array_size does not take."""
    if not isinstance(arguments[0].type, ListType if name == "array_size" else ListType | MapType):
        taken = "a list" if name == "array_size" else "a list or a map"
        raise ArgumentError(f"{name} takes {taken}, not {arguments[0].type}", 0)
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
            if common_type(key_field.type, key.type) != key_field.type:
                raise ArgumentError(f"the keys of this map are {key_field.type}, not {key.type}", 1)
            return Call("map_get", (operand, coerce(key, key_field.type)), value_field.type)
        case _:
            raise ArgumentError(f"{function} takes a list or a map, not {operand.type}", 0)


def contains_element(name: str, arguments: Arguments) -> BoundExpr:
    """Whether a value is among the elements of a list, or the keys of a map."""
    operand, value = arguments
    element = operand.type.element if isinstance(operand.type, ListType) else None
    if name == "map_contains_key":
        element = operand.type.key if isinstance(operand.type, MapType) else None
    if element is None or common_type(element.type, value.type) != element.type:
        raise ArgumentError(f"{name} cannot look for {value.type} in {operand.type}")
    return Call(name, (operand, coerce(value, element.type)), BOOLEAN)


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
_INTERVAL_MICROS = {
    "microsecond": 1,
    "millisecond": 10**3,
    "second": 10**6,
    "minute": 60 * 10**6,
    "hour": 3600 * 10**6,
    "day": 86_400 * 10**6,
    "week": 7 * 86_400 * 10**6,
}
_INTERVAL_DAYS = {"day": 1, "week": 7}
_INTERVAL_MONTHS = {"month": 1, "year": 12}
_DATE_TRUNCATIONS = frozenset({"year", "quarter", "month", "week"})


def time_part(name: str, arguments: Arguments) -> BoundExpr:
    """hour, minute, second of a timestamp or time."""
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


def date_trunc(_: str, arguments: Arguments) -> BoundExpr:
    """A timestamp cut off to a unit."""
    unit = _unit(arguments[0], "date_trunc", frozenset(TRUNCATIONS.values()))
    moment = arguments[1]
    if name_of(moment.type) in {"string", "date", "unknown"}:
        moment = coerce(moment, TIMESTAMPTZ)
    if name_of(moment.type) not in TIMESTAMPS:
        raise ArgumentError(f"date_trunc takes a timestamp, not {moment.type}", 1)
    return Call("date_trunc", (moment, unit), moment.type)


def trunc(_: str, arguments: Arguments) -> BoundExpr:
    """A date cut off to a unit."""
    unit = _unit(arguments[1], "trunc", _DATE_TRUNCATIONS)
    return Call("trunc", (date_argument(arguments[0], "trunc"), unit), DATE)


def plus_interval(moment: BoundExpr, amount: str, unit: str, sign: int) -> BoundExpr:
    """A date or timestamp plus (`sign` 1) or minus (-1) an interval of one unit."""
    kind = name_of(moment.type)
    try:
        count = sign * int(amount)
    except ValueError as error:
        raise ArgumentError(f"interval {amount} {unit}: the amount must be a whole number") from error
    if kind == "date" and unit == "microsecond" and count % _INTERVAL_MICROS["day"] == 0:
        count, unit = count // _INTERVAL_MICROS["day"], "day"
    if kind == "date" and unit in _INTERVAL_DAYS:
        return Call("date_add", (moment, _constant(count * _INTERVAL_DAYS[unit], INT)), DATE)
    if kind == "date" and unit in _INTERVAL_MONTHS:
        return Call("add_months", (moment, _constant(count * _INTERVAL_MONTHS[unit], INT)), DATE)
    if kind in TIMESTAMPS and unit in _INTERVAL_MONTHS:
        return Call("timestamp_add_months", (moment, _constant(count * _INTERVAL_MONTHS[unit], INT)), moment.type)
    if kind in TIMESTAMPS and unit in _INTERVAL_MICROS:
        ticks = count * _INTERVAL_MICROS[unit] * (1000 if kind.endswith("_ns") else 1)
        return Call("timestamp_add", (moment, _constant(ticks, LONG)), moment.type)
    raise ArgumentError(f"interval {amount} {unit} cannot be added to a {moment.type} in a filter")


def to_epoch(name: str, arguments: Arguments) -> BoundExpr:
    """unix_seconds and so on of a timestamp."""
    if name_of(arguments[0].type) not in TIMESTAMPS | {"date", "string", "unknown"}:
        raise ArgumentError(f"{name} takes a timestamp, not {arguments[0].type}", 0)
    return Call(name, (coerce(arguments[0], TIMESTAMPTZ),), LONG)


def from_epoch(name: str, arguments: Arguments) -> BoundExpr:
    """timestamp_seconds, timestamp_millis, timestamp_micros of a whole number."""
    if name_of(arguments[0].type) not in {"int", "long", "unknown"}:
        raise ArgumentError(f"{name} takes a whole number, not {arguments[0].type}", 0)
    return Call(name, (coerce(arguments[0], LONG),), TIMESTAMPTZ)


def _constant(value: int, type_: Type) -> BoundExpr:
    return coerce(Literal(*from_python(value)), type_)


def arithmetic(operator: str, arguments: Arguments) -> BoundExpr:
    """+ - * / % div on numbers; `try_` forms give NULL instead of failing."""
    left, right = arguments
    plain = operator.removeprefix("try ")
    for index, argument in enumerate(arguments):
        if not is_numeric(argument.type) and name_of(argument.type) != "unknown":
            if name_of(argument.type) == "string":
                raise ArgumentError(f"{plain} takes numbers; write cast(... as double) or another numeric type", index)
            raise ArgumentError(f"{plain} takes numbers, not {argument.type}", index)
    left, right = (coerce(a, INT) if name_of(a.type) == "unknown" else a for a in (left, right))
    result = arithmetic_type(plain, left.type, right.type)
    kinds = {name_of(left.type), name_of(right.type)}
    if plain == "div" and kinds - INTEGRAL:
        raise ArgumentError("div takes whole numbers in a filter; write cast(a / b as bigint)")
    if "decimal" in kinds and name_of(result) not in FLOATING:
        left, right = (coerce(a, _exact_decimal(a)) for a in (left, right))
        result = arithmetic_type(plain, left.type, right.type)
        _check_decimal_digits(plain, left.type, right.type, result)
    else:
        left, right = coerce(left, result), coerce(right, result)
    return Call(operator, (left, right), result)


def _exact_decimal(argument: BoundExpr) -> Type:
    """The decimal type of an operand; an integer constant has the precision of its digits."""
    if isinstance(argument, Literal) and isinstance(argument.value, int):
        return decimal_type(len(str(abs(argument.value))), 0)
    return decimal_type(*decimal_of(argument.type))


def _check_decimal_digits(operator: str, left: Type, right: Type, result: Type) -> None:
    (p1, s1), (p2, s2) = decimal_of(left), decimal_of(right)
    match operator:
        case "+" | "-" | "%":
            digits = max(p1 - s1, p2 - s2) + max(s1, s2) + 1
        case "*":
            digits = p1 + p2 + 1
        case _:
            digits = p1 - s1 + s2 + max(decimal_of(result)[1] + 1, 4, s1 + p2 - s2 + 1)
    if digits > _MAX_DIGITS:
        raise ArgumentError(
            f"{operator} of {left} and {right} is not supported in a filter: it needs {digits} digits, more than "
            f"{_MAX_DIGITS}; cast to a narrower decimal or to double"
        )


_MAX_DIGITS = 76
"""Of Arrow's widest decimal."""


def same_number(name: str, arguments: Arguments) -> BoundExpr:
    """Unary minus and the absolute value, of the same type."""
    return Call(name, (number(arguments[0], "-" if name == "negative" else name),), arguments[0].type)


def rounded(name: str, arguments: Arguments) -> BoundExpr:
    """Floor and ceil: longs, or decimals without fraction."""
    (argument,) = (number(a, name) for a in arguments)
    if name_of(argument.type) in FLOATING | {"int", "long"}:
        return Call(name, (coerce(argument, DOUBLE if name_of(argument.type) in FLOATING else LONG),), LONG)
    precision, scale = decimal_of(argument.type)
    return Call(name, (argument,), decimal_type(min(38, precision - scale + 1), 0))


MAX_ROUNDED_DIGITS = 15
"""No double is exact to more fraction digits."""


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


def is_nan(name: str, arguments: Arguments) -> BoundExpr:
    """Whether the value is NaN; false for NULL."""
    (argument,) = arguments
    value = argument if name_of(argument.type) in FLOATING else double(argument, name)
    return Call("isnan", (value,), BOOLEAN)


@dataclass(frozen=True, slots=True)
class Function:
    """Between `least` and `most` arguments (None: any number), and the rule that binds them."""

    least: int
    most: int | None
    bind: Rule


def _takes(result: Type, *converters: Callable[[BoundExpr, str, int], BoundExpr]) -> Rule:
    """Each argument is converted by its converter, further ones by the last; the result has one type."""

    def bind(name: str, arguments: Arguments) -> BoundExpr:
        each = chain(converters, repeat(converters[-1]))
        return Call(name, tuple(convert(a, name, i) for i, (a, convert) in enumerate(zip(arguments, each))), result)  # noqa: B905

    return bind


def _takes_constants(result: Type, *converters: Callable[[BoundExpr, str, int], BoundExpr]) -> Rule:
    """As `_takes`; all arguments but the first are constants."""

    def bind(name: str, arguments: Arguments) -> BoundExpr:
        for index, argument in enumerate(arguments[1:], start=1):
            if not isinstance(argument, Literal):
                raise ArgumentError(f"{name} takes constants after its first argument in a filter", index)
        return _takes(result, *converters)(name, arguments)

    return bind


def _alias(target: str, bind: Rule) -> Rule:
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
    (left, right), type_ = same_type(name, arguments)
    _comparable(name, type_)
    return Case(((Comparison("=", left, right), Literal(None, arguments[0].type)),), arguments[0], arguments[0].type)


def _comparable(name: str, type_: Type) -> None:
    if not is_primitive(type_):
        raise ArgumentError(f"{name} cannot compare {type_}")


def _length(_: str, arguments: Arguments) -> BoundExpr:
    if name_of(arguments[0].type) in BYTES:
        return Call("octet_length", (coerce(arguments[0], BINARY),), INT)
    return _takes(INT, string)("length", arguments)


def _cast_call(target: PrimitiveType) -> Rule:
    return lambda _, arguments: cast_to(arguments[0], target)


FUNCTIONS: Mapping[str, Function] = {
    **{
        name: Function(2, 2, _alias(operator, arithmetic))
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
    **dict.fromkeys(("negative", "abs"), Function(1, 1, same_number)),
    "floor": Function(1, 1, rounded),
    **dict.fromkeys(("ceil", "ceiling"), Function(1, 1, _alias("ceil", rounded))),
    **dict.fromkeys(("lower", "lcase"), Function(1, 1, _alias("lower", _takes(STRING, string)))),
    **dict.fromkeys(("upper", "ucase"), Function(1, 1, _alias("upper", _takes(STRING, string)))),
    **dict.fromkeys(("length", "char_length", "character_length", "len"), Function(1, 1, _length)),
    **dict.fromkeys(
        ("substr", "substring"), Function(2, 3, _alias("substr", _takes_constants(STRING, string, integer)))
    ),
    **dict.fromkeys(("left", "right"), Function(2, 2, _takes_constants(STRING, string, integer))),
    **dict.fromkeys(("trim", "ltrim", "rtrim", "reverse"), Function(1, 1, _takes(STRING, string))),
    "replace": Function(2, 3, _takes_constants(STRING, string)),
    **dict.fromkeys(("concat", "||"), Function(1, None, _alias("concat", _takes(STRING, string)))),
    **dict.fromkeys(
        ("startswith", "starts_with"), Function(2, 2, _alias("startswith", _takes_constants(BOOLEAN, string)))
    ),
    **dict.fromkeys(("endswith", "ends_with"), Function(2, 2, _alias("endswith", _takes_constants(BOOLEAN, string)))),
    "contains": Function(2, 2, _takes_constants(BOOLEAN, string)),
    **dict.fromkeys(DATE_PARTS, Function(1, 1, _takes(INT, date_argument))),
    "dayofmonth": Function(1, 1, _alias("day", _takes(INT, date_argument))),
    **dict.fromkeys(TIME_PARTS, Function(1, 1, time_part)),
    "date_trunc": Function(2, 2, date_trunc),
    "trunc": Function(2, 2, trunc),
    **dict.fromkeys(("date_sub", "add_months"), Function(2, 2, _takes(DATE, date_argument, integer))),
    **dict.fromkeys(("date_add", "dateadd"), Function(2, 2, _alias("date_add", _takes(DATE, date_argument, integer)))),
    **dict.fromkeys(("datediff", "date_diff"), Function(2, 2, _alias("datediff", _takes(INT, date_argument)))),
    "unix_date": Function(1, 1, _takes(INT, date_argument)),
    "date_from_unix_date": Function(1, 1, _takes(DATE, integer)),
    **dict.fromkeys(("unix_seconds", "unix_millis", "unix_micros"), Function(1, 1, to_epoch)),
    **dict.fromkeys(("timestamp_seconds", "timestamp_millis", "timestamp_micros"), Function(1, 1, from_epoch)),
    "round": Function(1, 2, rounded_half_up),
    "last_day": Function(1, 1, _takes(DATE, date_argument)),
    **dict.fromkeys(("coalesce", "ifnull", "nvl"), Function(1, None, _coalesce)),
    **dict.fromkeys(("if", "iff"), Function(3, 3, _if)),
    "nvl2": Function(3, 3, _nvl2),
    "nullif": Function(2, 2, _nullif),
    "isnull": Function(1, 1, lambda _, a: IsNull(a[0])),
    "isnotnull": Function(1, 1, lambda _, a: Not(IsNull(a[0]))),
    "isnan": Function(1, 1, is_nan),
    **dict.fromkeys(("size", "cardinality", "array_size"), Function(1, 1, size)),
    **dict.fromkeys(("[]", "get", "element_at", "try_element_at"), Function(2, 2, subscript)),
    **dict.fromkeys(("array_contains", "map_contains_key"), Function(2, 2, contains_element)),
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
