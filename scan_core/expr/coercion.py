"""Types and constants: which types can be compared, computed with or cast (Spark's ANSI rules), and constants in these types.

Also constants from Python values and from text, and back to SQL. Dates are days, times microseconds, timestamps micro- or
nanoseconds since the epoch; a uuid is 16 bytes. Zones in text are UTC offsets; the session time zone is UTC.
"""

import datetime as dt
import decimal
import re
import struct
import unicodedata
import uuid
from collections.abc import Mapping
from typing import Any

from nevermore.scan_core.expr.bound import BoundExpr, Cast, Literal
from nevermore.scan_core.model.schema import PrimitiveType, Type

INT_RANGE = (-(2**31), 2**31 - 1)
LONG_RANGE = (-(2**63), 2**63 - 1)
MAX_PRECISION = 38
_MAX_ZONE_SECONDS = 18 * 3600

_DATE_PATTERN = r"(?P<year>[+-]?\d{4,7})(?:-(?P<month>\d{1,2})(?:-(?P<day>\d{1,2}))?)?"
_TIME_PATTERN = r"(?P<hour>\d{1,2})(?::(?P<minute>\d{1,2})(?::(?P<second>\d{1,2})(?:\.(?P<fraction>\d*))?"
"""The groups of minutes and seconds are still open: a zone follows seconds only."""
_ZONE_PATTERN = (
    r"\s*(?:Z|(?:UTC|GMT|UT)?(?:(?P<sign>[+-])(?:(?P<zone_hour>\d{1,2})(?::(?:(?P<zone_minute>\d{2})"
    r"(?::(?P<zone_second>\d{2}))?|(?P<zone_minutes>\d)))?|(?P<zone_hours>\d{2})(?P<zone_of_hours>\d{2})(?P<zone_rest>\d{2})?))?)"
)
_ZONE_PARTS = (
    ("zone_hour", "zone_hours"),
    ("zone_minute", "zone_minutes", "zone_of_hours"),
    ("zone_second", "zone_rest"),
)
"""Groups of hours, minutes and seconds, of which one matches."""
_DATE = re.compile(rf"{_DATE_PATTERN}(?:[ T].*)?", re.ASCII)
_TIME = re.compile(rf"{_TIME_PATTERN})?)?", re.ASCII)
_TIMESTAMP = re.compile(rf"{_DATE_PATTERN.replace('7', '6')}(?:[ T]{_TIME_PATTERN}{_ZONE_PATTERN})?)?)?", re.ASCII)
_TIME_ALONE = re.compile(r"T\d[\d:.]*|\d{1,2}:[\d:.]+", re.ASCII)
_UUID = re.compile(r"[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}", re.IGNORECASE)
_NAMED_ZONE = re.compile(r"T?\d+:\d+:\d.*[+-]|.*:\d{1,2}:\d{1,2}(?:\.\d*)?\s*[A-Za-z]\S*$", re.ASCII)
_EPOCH = dt.datetime(1970, 1, 1, tzinfo=dt.UTC)
_MICROSECOND = dt.timedelta(microseconds=1)


def from_python(value: Any) -> tuple[Any, Type]:  # noqa: C901  # one flat case per type
    """The engine's value and type of a Python constant.

    Raises:
        ValueError: an integer or decimal of more than 38 digits.
    """
    match value:
        case None:
            return None, PrimitiveType("unknown")
        case bool():
            return value, PrimitiveType("boolean")
        case int():
            return _from_int(value)
        case float():
            return value, PrimitiveType("double")
        case str():
            return value, PrimitiveType("string")
        case decimal.Decimal():
            return _from_decimal(value)
        case dt.datetime() if value.tzinfo is None:
            return (value.replace(tzinfo=dt.UTC) - _EPOCH) // _MICROSECOND, PrimitiveType("timestamp")
        case dt.datetime():
            return (value - _EPOCH) // _MICROSECOND, PrimitiveType("timestamptz")
        case dt.date():
            return value.toordinal() - _EPOCH.toordinal(), PrimitiveType("date")
        case dt.time():
            seconds = (value.hour * 60 + value.minute) * 60 + value.second
            return seconds * 1_000_000 + value.microsecond, PrimitiveType("time")
        case uuid.UUID():
            return value.bytes, PrimitiveType("uuid")
        case _:
            return bytes(value), PrimitiveType("binary")


def _from_int(value: int) -> tuple[Any, Type]:
    if INT_RANGE[0] <= value <= INT_RANGE[1]:
        return value, PrimitiveType("int")
    if LONG_RANGE[0] <= value <= LONG_RANGE[1]:
        return value, PrimitiveType("long")
    return _from_decimal(decimal.Decimal(value))


def _from_decimal(value: decimal.Decimal) -> tuple[Any, Type]:
    _, digits, exponent = value.as_tuple()
    if not isinstance(exponent, int):
        raise ValueError(f"{value} is not a number")  # noqa: TRY004  # the value is at fault, not its type
    scale = max(0, -exponent)
    precision = max(len(digits) + max(0, exponent), scale, 1)
    if precision > MAX_PRECISION:
        raise ValueError(f"{value} has more than {MAX_PRECISION} digits")
    return value, PrimitiveType("decimal", (precision, scale))


def parse_number(text: str) -> int | float | decimal.Decimal:
    """A number as Spark reads it: whole numbers are integers, a point makes a decimal, an exponent a double."""
    if "e" in text.lower():
        return float(text)
    return decimal.Decimal(text) if "." in text else int(text)


def parse_text(text: str, type_name: str) -> Any:
    """The value that `text` has as a date, time, timestamp or uuid; None if it has none.

    Raises:
        ValueError: a timestamp with a time zone that is not known here.
    """
    match type_name:
        case "date":
            found = _DATE.fullmatch(text)
            return _days(found.groupdict()) if found else None
        case "timestamp" | "timestamptz" | "timestamp_ns" | "timestamptz_ns":
            if "tz" in type_name and _TIME_ALONE.fullmatch(text):
                text = f"{dt.datetime.now(dt.UTC):%Y-%m-%d}T{text.removeprefix('T')}"
            found = _TIMESTAMP.fullmatch(text)
            if found is None and _NAMED_ZONE.match(text):
                raise ValueError(
                    "a timestamp with a time zone by name, or with a time zone and no date, is not supported in a filter"
                )
            return _timestamp(found.groupdict(), type_name) if found else None
        case "time":
            found = _TIME.fullmatch(text)
            return _time_of_day(found.groupdict(), 6) if found else None
        case "uuid":
            return uuid.UUID(text).bytes if _UUID.fullmatch(text) else None
        case _:
            raise ValueError(f"no literals of type {type_name}")


def _days(parts: Mapping[str, str | None]) -> int | None:
    year, month, day = int(parts["year"] or 0), int(parts["month"] or 1), int(parts["day"] or 1)
    if not 1 <= month <= 12 or not 1 <= day <= 31:
        return None
    cycle, year_in_cycle = divmod(year - 1, 400)  # Python's calendar ends in 9999, Spark's does not
    try:
        ordinal = dt.date(year_in_cycle + 1, month, day).toordinal()
    except ValueError:
        return None
    days = int(ordinal + cycle * 146_097 - _EPOCH.toordinal())
    return days if INT_RANGE[0] <= days <= INT_RANGE[1] else None


def _time_of_day(parts: Mapping[str, str | None], digits: int) -> int | None:
    hour, minute, second = (int(parts[p] or 0) for p in ("hour", "minute", "second"))
    if hour > 23 or minute > 59 or second > 59:
        return None
    fraction = int(((parts["fraction"] or "") + "0" * digits)[:digits])
    return int(((hour * 60 + minute) * 60 + second) * 10**digits + fraction)


def _timestamp(parts: Mapping[str, str | None], type_name: str) -> int | None:
    digits = 9 if type_name.endswith("_ns") else 6
    days, within_day = _days(parts), _time_of_day(parts, digits)
    if days is None or within_day is None:
        return None
    value = days * 86_400 * 10**digits + within_day
    if parts["sign"]:
        hour, minute, second = (sum(int(parts[p] or 0) for p in names) for names in _ZONE_PARTS)
        offset = (hour * 60 + minute) * 60 + second
        if offset > _MAX_ZONE_SECONDS or minute > 59 or second > 59:
            return None
        if "tz" in type_name:
            value -= (offset if parts["sign"] == "+" else -offset) * 10**digits
    return value if LONG_RANGE[0] <= value <= LONG_RANGE[1] else None


def literal_text(value: Any, type_: Type) -> str:  # noqa: C901  # one flat case per type
    """A constant in the engine's representation as SQL."""
    match value, type_.name if isinstance(type_, PrimitiveType) else "":
        case None, _:
            return "null"
        case _, "date":
            return f"date '{_date_text(value)}'"
        case _, "timestamp" | "timestamp_ns":
            return f"timestamp_ntz '{_timestamp_text(value, 9 if str(type_).endswith('_ns') else 6)}'"
        case _, "timestamptz" | "timestamptz_ns":
            return f"timestamp '{_timestamp_text(value, 9 if str(type_).endswith('_ns') else 6)}'"
        case _, "time":
            return f"time '{_timestamp_text(value, 6)[11:]}'"
        case _, "uuid":
            return f"'{uuid.UUID(bytes=value)}'"
        case bool(), _:
            return str(value).lower()
        case str(), _:
            return "'" + value.replace("\\", "\\\\").replace("'", "\\'") + "'"
        case bytes(), _:
            return f"X'{value.hex()}'"
        case float(), _:
            return f"{value!r}D" if value - value == 0 else f"double('{value}')"
        case _:
            return str(value)


def _date_text(days: int) -> str:
    try:
        return str((_EPOCH + dt.timedelta(days=days)).date())
    except OverflowError:
        return f"1970-01-01 + {days} days"


def _timestamp_text(value: int, digits: int) -> str:
    seconds, fraction = divmod(value, 10**digits)
    try:
        moment = _EPOCH + dt.timedelta(seconds=seconds)
    except OverflowError:
        return f"1970-01-01 + {seconds} seconds"
    return f"{moment:%Y-%m-%d %H:%M:%S}" + (f".{fraction:0{digits}}".rstrip("0") if fraction else "")


BOOLEAN = PrimitiveType("boolean")
INT = PrimitiveType("int")
LONG = PrimitiveType("long")
FLOAT = PrimitiveType("float")
DOUBLE = PrimitiveType("double")
STRING = PrimitiveType("string")
BINARY = PrimitiveType("binary")
DATE = PrimitiveType("date")
TIME = PrimitiveType("time")
TIMESTAMP = PrimitiveType("timestamp")
TIMESTAMPTZ = PrimitiveType("timestamptz")
UNKNOWN = PrimitiveType("unknown")

INTEGRAL = frozenset({"int", "long"})
FLOATING = frozenset({"float", "double"})
TIMESTAMPS = frozenset({"timestamp", "timestamptz", "timestamp_ns", "timestamptz_ns"})
BYTES = frozenset({"binary", "fixed"})
MIN_ADJUSTED_SCALE = 6
"""Spark keeps at least this many fraction digits when a decimal result does not fit 38."""

_INTEGER_DIGITS = {"int": 10, "long": 20}


def name_of(type_: Type) -> str:
    """The name of a primitive type; struct, list or map otherwise."""
    return type_.name if isinstance(type_, PrimitiveType) else type(type_).__name__.removesuffix("Type").lower()


def is_numeric(type_: Type) -> bool:
    """Whether the type is int, long, float, double or decimal."""
    return name_of(type_) in INTEGRAL | FLOATING | {"decimal"}


def is_primitive(type_: Type) -> bool:
    """Whether the type holds single values that can be compared."""
    return isinstance(type_, PrimitiveType)


def decimal_of(type_: Type) -> tuple[int, int]:
    """Precision and scale that hold every value of an integral or decimal type."""
    if isinstance(type_, PrimitiveType) and type_.name == "decimal":
        precision, scale = type_.parameters
        return precision, scale
    return _INTEGER_DIGITS[name_of(type_)], 0


def decimal_type(precision: int, scale: int) -> PrimitiveType:
    """A decimal type."""
    return PrimitiveType("decimal", (precision, scale))


def adjusted_decimal(precision: int, scale: int) -> PrimitiveType:
    """Spark's result type of decimal arithmetic: beyond 38 digits the scale is reduced, but not below 6."""
    if precision <= MAX_PRECISION:
        return decimal_type(precision, scale)
    integral = precision - scale
    return decimal_type(MAX_PRECISION, max(MAX_PRECISION - integral, min(scale, MIN_ADJUSTED_SCALE)))


def common_type(left: Type, right: Type) -> Type | None:
    """The common type in which two values are compared or stored in one column; None if they have none.

    Decimals widen to hold both exactly where 38 digits suffice.
    """
    if left == right:
        return left
    names = {name_of(left), name_of(right)}
    if "unknown" in names:
        return right if name_of(left) == "unknown" else left
    if not is_primitive(left) or not is_primitive(right):
        return None
    if is_numeric(left) and is_numeric(right):
        return _common_number(left, right, names)
    if "string" in names:
        return _with_string(right if name_of(left) == "string" else left)
    if names <= TIMESTAMPS | {"date"}:
        zoned = "tz" if any("tz" in n for n in names) else ""
        return PrimitiveType(f"timestamp{zoned}{'_ns' if any(n.endswith('_ns') for n in names) else ''}")
    return BINARY if names <= BYTES else None


def _common_number(left: Type, right: Type, names: set[str]) -> Type:
    if names & FLOATING:
        return FLOAT if names == {"float"} else DOUBLE
    if "decimal" not in names:
        return LONG
    (left_precision, left_scale), (right_precision, right_scale) = decimal_of(left), decimal_of(right)
    scale = max(left_scale, right_scale)
    integral = max(left_precision - left_scale, right_precision - right_scale)
    if integral + scale > MAX_PRECISION:  # integral digits are worth more than fraction digits
        scale = max(0, MAX_PRECISION - integral)
    return decimal_type(min(MAX_PRECISION, integral + scale), scale)


def _with_string(other: Type) -> Type:
    if name_of(other) in INTEGRAL:
        return LONG
    if name_of(other) in FLOATING | {"decimal"}:
        return DOUBLE
    return BINARY if name_of(other) == "fixed" else other


_TRUTH_AND_NUMBERS = INTEGRAL | FLOATING | {"boolean", "decimal"}
_CASTS_FROM: dict[str, frozenset[str]] = {
    **dict.fromkeys(("boolean", *INTEGRAL, "decimal"), _TRUTH_AND_NUMBERS | {"string"}),
    **dict.fromkeys(FLOATING, _TRUTH_AND_NUMBERS),
    "string": _TRUTH_AND_NUMBERS | TIMESTAMPS | {"date", "time", "uuid", "binary"},
    "date": TIMESTAMPS | {"string"},
    **dict.fromkeys(("time", "uuid"), frozenset({"string"})),
    **dict.fromkeys(BYTES, frozenset({"string", "binary"})),
    **dict.fromkeys(TIMESTAMPS, TIMESTAMPS | {"date", "string"}),
}


def can_cast(source: Type, target: Type) -> bool:
    """Whether the engine evaluates this cast (with Spark's ANSI meaning)."""
    if source == target or name_of(source) == "unknown":
        return True
    return name_of(target) in _CASTS_FROM.get(name_of(source), frozenset())


def arithmetic_type(operator: str, left: Type, right: Type) -> Type:
    """The result type of + - * / % on numbers, and of div (always long)."""
    names = {name_of(left), name_of(right)}
    if operator == "div":
        return LONG
    if names & FLOATING:
        return FLOAT if names == {"float"} and operator != "/" else DOUBLE
    if "decimal" not in names:
        return DOUBLE if operator == "/" else (LONG if "long" in names else INT)
    (p1, s1), (p2, s2) = decimal_of(left), decimal_of(right)
    match operator:
        case "+" | "-":
            scale = max(s1, s2)
            return adjusted_decimal(max(p1 - s1, p2 - s2) + scale + 1, scale)
        case "*":
            return adjusted_decimal(p1 + p2 + 1, s1 + s2)
        case "/":
            scale = max(MIN_ADJUSTED_SCALE, s1 + p2 + 1)
            return adjusted_decimal(p1 - s1 + s2 + scale, scale)
        case _:
            scale = max(s1, s2)
            return adjusted_decimal(min(p1 - s1, p2 - s2) + scale, scale)


_INTEGER = re.compile(r"[+-]?\d+", re.ASCII)
_FLOAT = re.compile(
    r"([+-]?(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?)[dDfF]?|[+-]?(?:inf|infinity)|nan", re.ASCII | re.IGNORECASE
)
_DECIMAL = re.compile(r"[+-]?(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?", re.ASCII)
_DIGITS = {c: str(unicodedata.decimal(chr(c))) for c in range(128, 0x10000) if chr(c).isdecimal()}
"""Decimal digits of all scripts, which Java's decimals know, but not its integers."""
_TRUE_TEXTS = frozenset({"t", "true", "y", "yes", "1"})
_FALSE_TEXTS = frozenset({"f", "false", "n", "no", "0"})
_SPACES = "".join(map(chr, range(33))) + "\x7f"
MICROSECONDS_PER_DAY = 86_400_000_000


class ConversionError(ValueError):
    """A constant that has no value in the type it must take."""


def coerce(node: BoundExpr, target: Type) -> BoundExpr:
    """The expression in the target type: constants are converted, everything else is cast.

    Raises:
        ConversionError: a constant without a value in that type, or no such cast.
    """
    if isinstance(node, Literal) and node.type != target:
        return Literal(convert_constant(node.value, node.type, target), target)
    return cast_to(node, target)


def cast_to(node: BoundExpr, target: Type, *, safe: bool = False) -> BoundExpr:
    """A cast of the expression, unless it has the type already.

    Raises:
        ConversionError: the engine has no such cast.
    """
    if node.type == target:
        return node
    if not can_cast(node.type, target):
        raise ConversionError(f"a cast from {node.type} to {target} is not supported in a filter")
    # Spark's text may be any bytes, ours is UTF-8: other bytes fail also in try_cast, which is NULL for none of them
    return Cast(node, target, safe and name_of(node.type) not in BYTES)


def convert_constant(value: Any, source: Type, target: Type) -> Any:
    """A value of one type in another, as a cast would give it.

    Raises:
        ConversionError: there is no such type.
    """
    if value is None or source == target:
        return value
    converted = value_of_text(value, target) if name_of(source) == "string" else _from_value(value, source, target)
    if converted is None:
        raise ConversionError(f"{literal_text(value, source)} is not a valid {target}")
    return converted


def round_to_float(value: float) -> float:
    """The nearest single-precision number."""
    try:
        return float(struct.unpack("f", struct.pack("f", value))[0])
    except OverflowError:
        return float("inf") if value > 0 else float("-inf")


def value_of_text(text: str, target: Type) -> Any:
    """The value that Spark reads from text in a cast; None if it has none."""
    if name_of(target) == "binary":
        return text.encode()
    text = text.strip(_SPACES)
    match name_of(target):
        case "int" | "long" as name:
            low, high = INT_RANGE if name == "int" else LONG_RANGE
            # longer numbers than Python takes are out of range, too
            number = int(text) if _INTEGER.fullmatch(text) and len(text.lstrip("+-0")) < 20 else None
            return number if number is not None and low <= number <= high else None
        case "float" | "double" as name:
            if (found := _FLOAT.fullmatch(text)) is None:
                return None
            exact = float(found[1] or text)
            return round_to_float(exact) if name == "float" else exact
        case "decimal":
            text = text.translate(_DIGITS)
            try:
                return decimal_constant(decimal.Decimal(text), target) if _DECIMAL.fullmatch(text) else None
            except ArithmeticError:  # beyond what decimals hold
                return None
        case "boolean":
            folded = text.lower()
            return True if folded in _TRUE_TEXTS else False if folded in _FALSE_TEXTS else None
        case name:
            return parse_text(text, name)


def _from_value(value: Any, source: Type, target: Type) -> Any:  # one flat case per pair of types
    match name_of(source), name_of(target):
        case ("int" | "long", "int" | "long" as name):
            low, high = INT_RANGE if name == "int" else LONG_RANGE
            return value if low <= value <= high else None
        case ("int" | "long" | "decimal", "decimal"):
            return decimal_constant(decimal.Decimal(value), target)
        case ("int" | "long" | "decimal" | "float" | "double", "double"):
            return float(value)
        case ("int" | "long" | "decimal" | "double", "float"):
            return round_to_float(float(value))
        case "date", name if name in TIMESTAMPS:
            return _in_long(value * MICROSECONDS_PER_DAY * (1000 if name.endswith("_ns") else 1))
        case (one, other) if one in TIMESTAMPS and other in TIMESTAMPS:
            ratio = (1000 if other.endswith("_ns") else 1, 1000 if one.endswith("_ns") else 1)
            return _in_long(value * ratio[0] // ratio[1])
        case (one, other) if one in BYTES and other in BYTES:
            return value
        case _:
            return None


def decimal_constant(value: decimal.Decimal, target: Type) -> decimal.Decimal | None:
    """The value rounded half up to the scale of a decimal type; None if its digits do not fit."""
    precision, scale = decimal_of(target)
    with decimal.localcontext() as context:
        context.prec = 100
        rounded = value.quantize(decimal.Decimal(1).scaleb(-scale), rounding=decimal.ROUND_HALF_UP)
        return rounded if abs(rounded) < decimal.Decimal(10) ** (precision - scale) else None


def _in_long(value: int) -> int | None:
    return value if LONG_RANGE[0] <= value <= LONG_RANGE[1] else None
