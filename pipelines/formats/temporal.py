"""Dates, times and timestamps from integers in some unit and from text in the forms that databases write."""

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from pipelines.formats.casting import cast_each
from pipelines.formats.value_type import DATE_STYLES, Encoding

_PER_SECOND = {Encoding.SECONDS: 1, Encoding.MILLIS: 1_000, Encoding.MICROS: 1_000_000, Encoding.NANOS: 1_000_000_000}
_SECONDS_PER_DAY = 86_400
_POSTGRES_STYLE = "%a %b %d %H:%M:%S %Y"

_MONTHS = ["Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec"]
_TIME = r"(?: (?P<time>\d\d:\d\d:\d\d(?:\.\d+)?))?"
_ZONE = r"(?: ?(?P<zone>[A-Z]{1,5}|[+-]\d\d(?::?\d\d)?))?$"
_DAY, _MONTH, _YEAR = r"(?P<day>\d\d)", r"(?P<month>\d\d)", r"(?P<year>\d{4})"
_NAMED = r"(?P<month>[A-Z][a-z]{2})"
_CLOCK = r"(?P<time>\d\d:\d\d:\d\d(?:\.\d+)?)"
_STYLES = {
    Encoding.SQL_MDY: (f"^{_MONTH}/{_DAY}/{_YEAR}{_TIME}{_ZONE}",),
    Encoding.SQL_DMY: (f"^{_DAY}/{_MONTH}/{_YEAR}{_TIME}{_ZONE}",),
    Encoding.GERMAN: (rf"^{_DAY}\.{_MONTH}\.{_YEAR}{_TIME}{_ZONE}",),
    # Dates alone are written in numbers, timestamps with the names of day and month.
    Encoding.POSTGRES_MDY: (
        f"^{_MONTH}-{_DAY}-{_YEAR}{_TIME}{_ZONE}",
        rf"^\w{{3}} {_NAMED} {_DAY} {_CLOCK} {_YEAR}{_ZONE}",
    ),
    Encoding.POSTGRES_DMY: (
        f"^{_DAY}-{_MONTH}-{_YEAR}{_TIME}{_ZONE}",
        rf"^\w{{3}} {_DAY} {_NAMED} {_CLOCK} {_YEAR}{_ZONE}",
    ),
}
"""How dates and timestamps are written in the DateStyles of PostgreSQL."""

Mask = NDArray[np.bool_]


def from_integers(
    values: NDArray[np.int64], valid: Mask, arrow: pa.DataType, encoding: Encoding
) -> tuple[pa.Array, Mask]:
    """Temporal values from integers since the epoch or midnight, and where they do not fit the type.

    NATURAL means what Debezium sends without a schema: days for dates, microseconds for times of day, and for
    timestamps the unit that puts the value between 1653 and 2286 (milliseconds below 10^13, microseconds below 10^16,
    else nanoseconds); state the encoding where values close to 1970 matter.
    """
    if encoding in DATE_STYLES:
        return pa.nulls(len(values), arrow), valid
    if pa.types.is_date(arrow):
        days = values if encoding in (Encoding.NATURAL, Encoding.DAYS) else _floor(values, encoding, _SECONDS_PER_DAY)
        bad = valid & ((days > 2**31 - 1) | (days < -(2**31)))
        return _array(days.astype(np.int32), valid & ~bad, arrow), bad
    if encoding is Encoding.DAYS:
        unit = np.int64(_per_second(arrow) * _SECONDS_PER_DAY)
        scaled, bad = _times(values, unit)
    elif pa.types.is_time(arrow):
        unit_in = Encoding.MICROS if encoding is Encoding.NATURAL else encoding
        scaled, bad = _rescale(values, _PER_SECOND[unit_in], _per_second(arrow))
        bad = bad | (scaled < 0) | (scaled >= _SECONDS_PER_DAY * _per_second(arrow))
    elif encoding is Encoding.NATURAL:
        size = np.abs(values)
        scaled, bad = _rescale(values, 1_000, _per_second(arrow))
        for limit, unit_in in ((10**14, Encoding.MICROS), (10**17, Encoding.NANOS)):
            larger = size >= limit
            if larger.any():
                other, other_bad = _rescale(values, _PER_SECOND[unit_in], _per_second(arrow))
                scaled, bad = np.where(larger, other, scaled), np.where(larger, other_bad, bad)
    else:
        scaled, bad = _rescale(values, _PER_SECOND[encoding], _per_second(arrow))
    bad = valid & bad
    return _array(scaled, valid & ~bad, arrow), bad


def from_style(text: pa.StringArray, arrow: pa.DataType, style: Encoding) -> tuple[pa.Array, Mask]:
    """Dates and timestamps from text in a DateStyle of PostgreSQL, and where there is none.

    Text in ISO is none: a server writes one style, and 12/11 is another day in another.
    """
    months = pa.array(_MONTHS)
    found = [pc.extract_regex(pc.utf8_trim_whitespace(text), pattern) for pattern in _STYLES[style]]
    year, month, day, time, zone = (
        pc.coalesce(*(pc.struct_field(parts, name) for parts in found))
        for name in ("year", "month", "day", "time", "zone")
    )
    known = pc.index_in(month, months)
    number = pc.if_else(pc.is_valid(known), pc.cast(pc.add(known, 1), pa.string()), month)
    number, day = pc.utf8_lpad(number, 2, "0"), pc.utf8_lpad(day, 2, "0")
    days = pc.binary_join_element_wise(year, number, day, "-")
    moments = pc.binary_join_element_wise(days, pc.if_else(pc.equal(time, ""), "00:00:00", time), "T")
    in_utc = pc.is_in(zone, pa.array(["UTC", "GMT", "Z"]))
    zone = pc.if_else(in_utc, "Z", zone)
    # Other names of zones, such as IST, stand for several.
    written = pc.if_else(pc.match_substring_regex(zone, "^[A-Z]{2}"), pa.scalar(None, pa.string()), moments)
    if pa.types.is_date(arrow):
        values, _ = cast_each(pc.if_else(pc.equal(time, ""), days, pa.scalar(None, pa.string())), arrow)
    else:
        values, _ = from_text(pc.binary_join_element_wise(written, zone, ""), arrow)
    return values, np.asarray(pc.and_(pc.is_null(values), pc.is_valid(text)))


def from_text(text: pa.StringArray, arrow: pa.DataType) -> tuple[pa.Array, Mask]:
    """Temporal values from ISO 8601 or PostgreSQL's text, and where there is none.

    Digits below the type's unit are cut. Text with a zone for a timestamp without one is converted to UTC.
    """
    if pa.types.is_time(arrow):
        return _time_of_day(text, arrow)
    parsed, bad = cast_each(text, arrow)
    if not bad.any():
        return parsed, bad
    rows = np.flatnonzero(bad)
    again, still_bad = _from_odd_text(text.take(pa.array(rows)), arrow)
    merged = pc.replace_with_mask(parsed, pa.array(bad), again)
    bad = np.zeros(len(text), np.bool_)
    bad[rows] = still_bad
    return merged, bad


def _from_odd_text(text: pa.StringArray, arrow: pa.DataType) -> tuple[pa.Array, Mask]:
    trimmed = pc.utf8_trim_whitespace(text)
    digits = 9 if not pa.types.is_date(arrow) and arrow.unit == "ns" else 6
    trimmed = pc.replace_substring_regex(trimmed, rf"(\.\d{{{digits}}})\d+", r"\1")
    if pa.types.is_date(arrow):
        return cast_each(pc.utf8_slice_codeunits(trimmed, 0, 10), arrow)
    zoned = pa.timestamp(arrow.unit, "UTC")
    has_zone = pc.match_substring_regex(trimmed, r"\d[T ]\d\d:.*(Z|[+-]\d\d(:?\d\d)?)$")
    with_zone = pc.if_else(has_zone, trimmed, pc.binary_join_element_wise(trimmed, "Z", ""))
    parsed, bad = cast_each(with_zone, zoned)
    if bad.any():
        moments = pc.strptime(trimmed, format=_POSTGRES_STYLE, unit="s", error_is_null=True)
        styled, _ = cast_each(moments, pa.timestamp(arrow.unit))
        styled = styled.view(pa.int64()).view(zoned)
        parsed = pc.coalesce(parsed, styled)
        bad = np.asarray(pc.and_(pc.is_null(parsed), pc.is_valid(text)))
    if arrow.tz is None:
        parsed = parsed.cast(pa.int64()).cast(arrow)
    return parsed, bad


def _time_of_day(text: pa.StringArray, arrow: pa.DataType) -> tuple[pa.Array, Mask]:
    trimmed = pc.replace_substring_regex(pc.utf8_trim_whitespace(text), r"(\.\d{6})\d+", r"\1")
    local = pc.replace_substring_regex(trimmed, r"(Z|[+-]\d\d(:?\d\d)?)$", "")
    moments, bad = cast_each(pc.binary_join_element_wise("1970-01-01T", local, ""), pa.timestamp(arrow.unit))
    return moments.cast(pa.int64()).view(arrow), bad


def _per_second(arrow: pa.DataType) -> int:
    return {"s": 1, "ms": 1_000, "us": 1_000_000, "ns": 1_000_000_000}[arrow.unit]


def _times(values: NDArray[np.int64], factor: np.int64) -> tuple[NDArray[np.int64], Mask]:
    limit = np.int64(2**63 - 1) // factor
    overflow = (values > limit) | (values < -limit)
    return np.where(overflow, np.int64(0), values) * factor, overflow


def _rescale(values: NDArray[np.int64], source: int, target: int) -> tuple[NDArray[np.int64], Mask]:
    if target >= source:
        return _times(values, np.int64(target // source))
    return values // np.int64(source // target), np.zeros(len(values), np.bool_)


def _floor(values: NDArray[np.int64], encoding: Encoding, seconds: int) -> NDArray[np.int64]:
    return values // np.int64(_PER_SECOND[encoding] * seconds)


def _array(values: NDArray[np.int32] | NDArray[np.int64], valid: Mask, arrow: pa.DataType) -> pa.Array:
    plain = pa.array(values, mask=None if valid.all() else ~valid)
    return plain.cast(pa.int32() if pa.types.is_date32(arrow) else pa.int64()).view(arrow)
