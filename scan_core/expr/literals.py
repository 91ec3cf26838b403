"""Constants: Python values and text to the engine's values and back to SQL.

Dates are days, times microseconds, timestamps micro- or nanoseconds since the epoch; a uuid is 16 bytes. Zones in
text are UTC offsets; the session time zone is UTC.
"""

import datetime as dt
import decimal
import re
import uuid
from collections.abc import Mapping
from typing import Any

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
