"""Casts on columns with Spark's ANSI meaning, and dates and timestamps from text and to text."""

import datetime as dt
import re
import unicodedata
from collections.abc import Callable
from decimal import Decimal
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from nevermore.scan_core.expr.coercion import (
    BYTES,
    FALSE_TEXTS,
    FLOAT_TEXT,
    FLOATING,
    INTEGRAL,
    TIMESTAMPS,
    TRUE_TEXTS,
    decimal_constant,
    decimal_of,
    name_of,
)
from nevermore.scan_core.expr.compare import numbers
from nevermore.scan_core.expr.literals import (
    DATE_TEXT,
    INT_RANGE,
    LONG_RANGE,
    MAX_ZONE_SECONDS,
    TIME_TEXT,
    TIMESTAMP_TEXT,
    ZONE_PARTS,
)
from nevermore.scan_core.expr.strings import with_special
from nevermore.scan_core.expr.temporal import DAY_MICROS, Days, first_day
from nevermore.scan_core.expr.vectors import (
    OVERFLOW,
    Vector,
    array_of,
    decimal_array,
    null_mask,
    nulls_of,
    outcome,
    rounded_decimal,
    union,
    with_nulls,
)
from nevermore.scan_core.model.schema import Type, arrow_type
from nevermore.scan_core.rows.buffers import Mask, validity


def dates_from_text(text: pa.Array, target: Type) -> tuple[pa.Array, Mask]:
    """Dates in Spark's notations, and which strings are one."""
    matched, number, _ = _parts(text, DATE_TEXT)
    days, legal = _days_of(number)
    matched &= legal & (days >= INT_RANGE[0]) & (days <= INT_RANGE[1])
    return array_of(np.where(matched, days, 0), ~matched, target), matched


def timestamps_from_text(text: pa.Array, target: Type) -> tuple[pa.Array, Mask]:
    """Timestamps from text in Spark's notations with UTC offsets, and a mask of the strings that are valid."""
    digits = 9 if name_of(target).endswith("_ns") else 6
    if "tz" in name_of(target):  # a time alone is one of today
        today = f"{dt.datetime.now(dt.UTC):%Y-%m-%d}T"
        text = pc.replace_substring_regex(
            text, pattern=r"^(?:T(\d[\d:.]*)|(\d{1,2}:[\d:.]+))$", replacement=rf"{today}\1\2"
        )
    matched, number, found = _parts(text, TIMESTAMP_TEXT)
    if (_matches(text, r"^T?\d+:\d+:\d.*[+-]|:\d{1,2}:\d{1,2}(?:\.\d*)?\s*[A-Za-z]\S*$") & ~matched).any():
        raise ValueError(
            "a timestamp with a time zone by name, or with a time zone and no date, is not supported in a filter"
        )
    days, legal_day = _days_of(number)
    ticks, legal_time = _time_of(number, found, digits)
    matched &= legal_day & legal_time
    limit = LONG_RANGE[1] // (DAY_MICROS * (1000 if digits == 9 else 1)) - 1
    matched &= (days <= limit) & (days >= -limit)
    values = np.where(matched, days, 0) * (86_400 * 10**digits) + ticks
    hour, minute, second = (sum(number(part, 0) for part in names) for names in ZONE_PARTS)
    zone = (hour * 60 + minute) * 60 + second
    matched &= (zone <= MAX_ZONE_SECONDS) & (minute <= 59) & (second <= 59)
    if "tz" in name_of(target):
        offset = zone * 10**digits
        negative = np.asarray(pc.fill_null(pc.equal(pc.struct_field(found, "sign"), "-"), False))
        values = np.where(negative, values + offset, values - offset)
    return array_of(values, ~matched, target), matched


def times_from_text(text: pa.Array, target: Type) -> tuple[pa.Array, Mask]:
    """Times of day from text, and a mask of the strings that are valid."""
    matched, number, found = _parts(text, TIME_TEXT)
    ticks, legal = _time_of(number, found, 6)
    matched &= legal
    return array_of(ticks, ~matched, target), matched


def timestamps_to_text(array: pa.Array, source: Type) -> pa.Array:
    """Spark's text of timestamps and times: fractions without trailing zeros."""
    target = arrow_type(source)
    naive = array.cast(pa.timestamp(target.unit)) if pa.types.is_timestamp(target) else array
    text = naive.cast(pa.string())
    text = pc.replace_substring_regex(text, pattern=r"(\.\d*?)0+Z?$", replacement=r"\1")
    return pc.replace_substring_regex(text, pattern=r"\.$", replacement="")


def _parts(text: pa.Array, pattern: str) -> tuple[Mask, Callable[[str, int], npt.NDArray[np.int64]], pa.Array]:
    found = pc.extract_regex(text, pattern=pattern)
    matched = np.asarray(found.is_valid())

    def number(name: str, default: int) -> npt.NDArray[np.int64]:
        part = pc.struct_field(found, name)
        part = pc.if_else(pc.equal(part, ""), None, part)
        part = pc.replace_substring_regex(part, pattern=r"^\+", replacement="")
        return np.asarray(pc.fill_null(part.cast(pa.int64()), default))

    return matched, number, found


def _days_of(number: Callable[[str, int], npt.NDArray[np.int64]]) -> tuple[Days, Mask]:
    year, month, day = number("year", 1970), number("month", 1), number("day", 1)
    legal = (month >= 1) & (month <= 12) & (day >= 1)
    months = (year - 1970) * 12 + np.where(legal, month, 1) - 1
    start = first_day(months)
    legal &= day <= first_day(months + 1) - start
    return start + day - 1, legal


def _time_of(
    number: Callable[[str, int], npt.NDArray[np.int64]], found: pa.Array, digits: int
) -> tuple[npt.NDArray[np.int64], Mask]:
    hour, minute, second = number("hour", 0), number("minute", 0), number("second", 0)
    text = pc.fill_null(pc.struct_field(found, "fraction"), "")
    fraction = pc.utf8_slice_codeunits(pc.utf8_rpad(text, width=digits, padding="0"), 0, digits)
    legal = (hour <= 23) & (minute <= 59) & (second <= 59)
    ticks = ((hour * 60 + minute) * 60 + second) * 10**digits + np.asarray(fraction.cast(pa.int64()))
    return ticks, legal


_SPACES = "".join(map(chr, range(33))) + "\x7f"
_DECIMAL_TEXT = r"^[+-]?(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?$"
_DECIMAL_WIDTH = r"^[+-]?0*(?:\d{0,38}(?:\.\d{0,37})?|\d{0,18}(?:\.\d{0,18})?[eE][+-]?(?:1[0-8]|\d))$"
"""What certainly fits 39 digits before and 37 after the point; longer numbers fail."""
_WIDEST = pa.decimal256(76, 37)
_TOO_LARGE_FOR_DECIMAL, _TOO_SMALL_FOR_DECIMAL = 1e38, 1e-21
_INTEGER_TEXT_TRIMMED = r"^[+-]?\d+$"


def cast(array: pa.Array, source: Type, target: Type) -> Vector:
    """Every value in the target type; NULL and failed where it has none."""
    names = name_of(source), name_of(target)
    if names[0] == "unknown":
        return Vector(pa.nulls(len(array), arrow_type(target)))
    if names[0] == "string":
        return _from_text(array, target)
    if names[0] in BYTES and names[1] == "string":
        return _decoded(array.cast(pa.binary()))
    if names[1] == "string":
        return Vector(_to_text(array, source))
    if names[0] in TIMESTAMPS | {"date"}:
        return _from_moment(array, source, target)
    if names[0] in BYTES:
        return Vector(array.cast(arrow_type(target)))
    return _from_number(array, source, target)


def _from_number(array: pa.Array, source: Type, target: Type) -> Vector:
    null = null_mask(array)
    if name_of(target) == "decimal":
        return _number_to_decimal(array, source, target, null)
    if name_of(source) == "decimal":
        return _decimal_to_number(array, source, target)
    values: Any = numbers(array, source)
    if name_of(target) == "boolean":
        return outcome(values != 0, null, None, target, "")
    if name_of(target) in FLOATING:
        with np.errstate(over="ignore"):
            return outcome(
                values.astype(np.float32 if name_of(target) == "float" else np.float64), null, None, target, ""
            )
    low, high = INT_RANGE if name_of(target) == "int" else LONG_RANGE
    if name_of(source) in FLOATING:
        with np.errstate(invalid="ignore"):
            whole = np.trunc(values.astype(np.float64))
            failed = ~((whole >= float(low)) & (whole < float(high + 1)))
            values = np.where(failed, 0, whole).astype(np.int64)
    else:
        values = values.astype(np.int64)
        failed = (values < low) | (values > high)
    return outcome(values, null, failed, target, f"{OVERFLOW}: a {source} does not fit {target}")


def _number_to_decimal(array: pa.Array, source: Type, target: Type, null: Mask | None) -> Vector:
    if name_of(source) in {"decimal"} | INTEGRAL:
        exact = array.cast(pa.decimal128(*decimal_of(source)))
        return rounded_decimal(exact.cast(pa.decimal256(*decimal_of(source))), null, target)
    if name_of(source) == "boolean":
        ones = numbers(array, source).astype(np.int64)
        return rounded_decimal(decimal_array(ones, null, 0).cast(pa.decimal256(18, 0)), null, target)
    values = numbers(array, source)
    null = union(null, ~np.isfinite(values))  # Spark makes NaN and infinity NULL here
    too_large = np.isfinite(values) & (np.abs(values) >= _TOO_LARGE_FOR_DECIMAL)
    usable = np.where(np.isfinite(values) & ~too_large, values, 0).astype(np.float64)
    usable[np.abs(usable) < _TOO_SMALL_FOR_DECIMAL] = 0.0
    # Spark takes the digits of the shortest text of the double
    vector = rounded_decimal(pa.array(usable).cast(pa.string()).cast(_WIDEST), null, target)
    if not too_large.any():
        return vector
    return Vector(with_nulls(vector.values, too_large), union(vector.failed, too_large), f"{OVERFLOW} of {target}")


def _decimal_to_number(array: pa.Array, source: Type, target: Type) -> Vector:
    if name_of(target) in FLOATING:
        values = array.cast(pa.string()).cast(arrow_type(target))  # Arrow's direct cast is off by an ulp
        return Vector(values)
    if name_of(target) == "boolean":
        zero = pc.equal(array, pa.scalar(0, array.type))
        return Vector(pc.invert(zero))
    scale = decimal_of(source)[1]
    whole = pc.round(array.cast(pa.decimal256(76, scale)), ndigits=0, round_mode="towards_zero")
    whole = whole.cast(pa.decimal256(76, 0))
    low, high = INT_RANGE if name_of(target) == "int" else LONG_RANGE
    wide = pa.decimal256(76, 0)
    outside = pc.or_(pc.less(whole, pa.scalar(low, wide)), pc.greater(whole, pa.scalar(high, wide)))
    failed = np.asarray(pc.fill_null(outside, False))
    if failed.any():
        whole = with_nulls(whole, failed)
    values = whole.cast(arrow_type(target))
    return Vector(values, failed if failed.any() else None, f"{OVERFLOW}: a {source} does not fit {target}")


def _from_moment(array: pa.Array, source: Type, target: Type) -> Vector:
    null, values = nulls_of(array), numbers(array, source).astype(np.int64)
    ticks = 1000 if name_of(source).endswith("_ns") else 1
    if name_of(target) == "date":
        return outcome(values // (DAY_MICROS * ticks), null, None, target, "")
    target_ticks = 1000 if name_of(target).endswith("_ns") else 1
    factor = DAY_MICROS * target_ticks if name_of(source) == "date" else max(1, target_ticks // ticks)
    failed = (values > LONG_RANGE[1] // factor) | (values < -(LONG_RANGE[1] // factor)) if factor > 1 else None
    with np.errstate(over="ignore"):
        moved = values * factor if ticks <= target_ticks else values // ticks
    return outcome(moved, null, failed, target, f"{OVERFLOW} of {target}")


def _to_text(array: pa.Array, source: Type) -> pa.Array:
    match name_of(source):
        case "timestamp" | "timestamptz" | "timestamp_ns" | "timestamptz_ns" | "time":
            return timestamps_to_text(array, source)
        case "uuid":
            return uuid_text(array)
        case _:
            return array.cast(pa.string())


_UTF8 = (
    r"^(?:[\x00-\x7f]|[\xc2-\xdf][\x80-\xbf]|\xe0[\xa0-\xbf][\x80-\xbf]|\xed[\x80-\x9f][\x80-\xbf]|[\xe1-\xec\xee\xef][\x80-\xbf]{2}"
    r"|\xf0[\x90-\xbf][\x80-\xbf]{2}|[\xf1-\xf3][\x80-\xbf]{3}|\xf4[\x80-\x8f][\x80-\xbf]{2})*$"
)


def _decoded(array: pa.Array) -> Vector:
    valid = _matches(array, _UTF8)
    failed = ~valid if (present := validity(array)) is None else ~valid & present
    if failed.any():
        return Vector(with_nulls(array, failed).cast(pa.string()), failed, "bytes that are not UTF-8")
    return Vector(array.cast(pa.string()))


def uuid_text(array: pa.Array) -> pa.Array:
    """Sixteen-byte values as lower-case text with hyphens, NULL kept."""
    if not len(array):  # it may have no buffer
        return pa.array([], pa.string())
    data = np.frombuffer(array.buffers()[1], dtype=np.uint8).reshape(-1, 16)[array.offset : array.offset + len(array)]
    text = np.full((len(array), 36), ord("-"), dtype=np.uint8)
    text[:, [i for i in range(36) if i not in {8, 13, 18, 23}]] = np.frombuffer(
        data.tobytes().hex().encode(), dtype=np.uint8
    ).reshape(-1, 32)
    flat = pa.Array.from_buffers(pa.binary(36), len(array), [None, pa.py_buffer(text.reshape(-1))])
    return with_nulls(flat.cast(pa.binary()).cast(pa.string()), null_mask(array))


def _from_text(array: pa.Array, target: Type) -> Vector:
    if name_of(target) == "binary":
        return Vector(array.cast(pa.binary()))
    valid = validity(array)
    values, matched = _TEXT_PARSERS[name_of(target)](pc.utf8_trim(array, characters=_SPACES), target)
    values = with_nulls(values, ~matched)
    failed = ~matched if valid is None else ~matched & valid
    return Vector(values, failed, f"a string is not a valid {target}") if failed.any() else Vector(values)


def _matches(text: pa.Array, pattern: str) -> Mask:
    return np.asarray(pc.fill_null(pc.match_substring_regex(text, pattern=pattern), False))


def _only(text: pa.Array, matched: Mask, otherwise: str) -> pa.Array:
    return text if matched.all() else pc.if_else(pa.array(matched), text, pa.scalar(otherwise, text.type))


def _parse_integers(text: pa.Array, target: Type) -> tuple[pa.Array, Mask]:
    text = pc.replace_substring_regex(text, pattern=r"^([+-]?)0+(\d)", replacement=r"\1\2")
    matched = _matches(text, _INTEGER_TEXT_TRIMMED) & (np.asarray(pc.fill_null(pc.utf8_length(text), 0)) <= 37)
    wide = pc.replace_substring_regex(_only(text, matched, "0"), pattern=r"^\+", replacement="").cast(
        pa.decimal128(38, 0)
    )
    low, high = INT_RANGE if name_of(target) == "int" else LONG_RANGE
    bounds = [pa.scalar(b, pa.decimal128(38, 0)) for b in (low, high)]
    inside = pc.and_(pc.greater_equal(wide, bounds[0]), pc.less_equal(wide, bounds[1]))
    matched &= np.asarray(pc.fill_null(inside, False))
    return with_nulls(wide, ~matched).cast(arrow_type(target)), matched


def _parse_floats(text: pa.Array, target: Type) -> tuple[pa.Array, Mask]:
    matched = _matches(text, FLOAT_TEXT)
    plain = pc.utf8_lower(_only(text, matched, "0"))
    plain = pc.replace_substring_regex(plain, pattern=r"([\d.])[df]$", replacement=r"\1")
    plain = pc.replace_substring_regex(plain, pattern=r"^\+", replacement="")
    return plain.cast(arrow_type(target)), matched


_DIGITS = {c: str(unicodedata.decimal(chr(c))) for c in range(128, 0x10000) if chr(c).isdecimal()}
"""Decimal digits of all scripts, which Java's decimals know, but not its integers."""
_UNUSUAL_DECIMAL = r"[^\x00-\x7f]|[eE][+-]?\d{2}|\d{19}"
"""Digits of other scripts, large exponents, long numbers: read one by one, as Arrow fails for some of them."""


def _parse_decimals(text: pa.Array, target: Type) -> tuple[pa.Array, Mask]:
    def plain(value: str) -> str:
        value = value.translate(_DIGITS)
        try:
            exact = decimal_constant(Decimal(value), target) if re.match(_DECIMAL_TEXT, value, re.ASCII) else None
        except ArithmeticError:  # beyond what decimals hold
            return ""
        return value if exact is None else f"{exact:f}"

    text = with_special(text, text, _UNUSUAL_DECIMAL, plain)
    matched = _matches(text, _DECIMAL_TEXT) & _matches(text, _DECIMAL_WIDTH)
    exact = pc.replace_substring_regex(_only(text, matched, "0"), pattern=r"^\+", replacement="").cast(_WIDEST)
    vector = rounded_decimal(exact, null_mask(text), target)
    return vector.values, matched if vector.failed is None else matched & ~vector.failed


def _parse_booleans(text: pa.Array, target: Type) -> tuple[pa.Array, Mask]:  # one signature
    lower = pc.utf8_lower(text)
    true = np.asarray(pc.is_in(lower, value_set=pa.array(sorted(TRUE_TEXTS), text.type)))
    false = np.asarray(pc.is_in(lower, value_set=pa.array(sorted(FALSE_TEXTS), text.type)))
    return array_of(true, ~(true | false), target), true | false


def _parse_uuids(text: pa.Array, target: Type) -> tuple[pa.Array, Mask]:  # noqa: ARG001
    matched = _matches(text, r"^[0-9a-fA-F]{8}-[0-9a-fA-F]{4}-[0-9a-fA-F]{4}-[0-9a-fA-F]{4}-[0-9a-fA-F]{12}$")
    return uuid_values(text, matched), matched


def uuid_values(text: pa.Array, matched: Mask) -> pa.Array:
    """The 16 bytes of uuids in text, with hyphens or without; NULL where the text was not matched."""
    digits = pc.replace_substring(_only(text, matched, "0" * 32), pattern="-", replacement="")
    joined = pc.binary_join(pa.ListArray.from_arrays(pa.array([0, len(text)], pa.int32()), digits), "")
    data = pa.py_buffer(bytes.fromhex(joined[0].as_py()))
    return with_nulls(pa.Array.from_buffers(pa.binary(16), len(text), [None, data]), ~matched)


_TEXT_PARSERS: dict[str, Callable[[pa.Array, Type], tuple[pa.Array, Mask]]] = {
    **dict.fromkeys(INTEGRAL, _parse_integers),
    **dict.fromkeys(FLOATING, _parse_floats),
    "decimal": _parse_decimals,
    "boolean": _parse_booleans,
    "uuid": _parse_uuids,
    "date": dates_from_text,
    "time": times_from_text,
    **dict.fromkeys(TIMESTAMPS, timestamps_from_text),
}
