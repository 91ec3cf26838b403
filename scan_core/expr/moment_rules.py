"""How functions on dates and timestamps bind."""

from collections.abc import Mapping

from scan_core.expr.argument_rules import ArgumentError, Arguments, date_argument, integer
from scan_core.expr.bound import BoundExpr, Call, Literal
from scan_core.expr.coercion import DATE, INT, LONG, STRING, TIMESTAMPS, TIMESTAMPTZ, name_of
from scan_core.expr.constants import coerce
from scan_core.expr.literals import from_python
from scan_core.schema import Type

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


def date_part(name: str, arguments: Arguments) -> BoundExpr:
    """year, month and so on, of a date or timestamp."""
    return Call(name, (date_argument(arguments[0], name),), INT)


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


def date_plus(name: str, arguments: Arguments) -> BoundExpr:
    """A date plus or minus days or months."""
    days = integer(arguments[1], name, 1)
    return Call(name, (date_argument(arguments[0], name), days), DATE)


def date_difference(_: str, arguments: Arguments) -> BoundExpr:
    """Days between two dates."""
    return Call("datediff", tuple(date_argument(a, "datediff", i) for i, a in enumerate(arguments)), INT)


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
    """unix_seconds and so on of a timestamp; unix_date of a date."""
    if name == "unix_date":
        return Call(name, (date_argument(arguments[0], name),), INT)
    if name_of(arguments[0].type) not in TIMESTAMPS | {"date", "string", "unknown"}:
        raise ArgumentError(f"{name} takes a timestamp, not {arguments[0].type}", 0)
    return Call(name, (coerce(arguments[0], TIMESTAMPTZ),), LONG)


def from_epoch(name: str, arguments: Arguments) -> BoundExpr:
    """timestamp_seconds, timestamp_millis, timestamp_micros of a whole number; date_from_unix_date of days."""
    if name_of(arguments[0].type) not in {"int", "long", "unknown"}:
        raise ArgumentError(f"{name} takes a whole number, not {arguments[0].type}", 0)
    if name == "date_from_unix_date":
        return Call(name, (integer(arguments[0], name),), DATE)
    return Call(name, (coerce(arguments[0], LONG),), TIMESTAMPTZ)


def _constant(value: int, type_: Type) -> BoundExpr:
    return coerce(Literal(*from_python(value)), type_)
