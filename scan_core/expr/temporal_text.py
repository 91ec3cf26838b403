"""Dates, times and timestamps from text in Spark's notations, and back to it, a column at a time."""

from collections.abc import Callable

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from scan_core.expr.coercion import name_of
from scan_core.expr.literals import DATE_TEXT, INT_RANGE, LONG_RANGE, MAX_ZONE_SECONDS, TIME_TEXT, TIMESTAMP_TEXT
from scan_core.expr.temporal import DAY_MICROS, Days, first_day
from scan_core.expr.vectors import BoolMask, array_of
from scan_core.schema import Type, arrow_type


def dates_from_text(text: pa.Array, target: Type) -> tuple[pa.Array, BoolMask]:
    """Dates in Spark's notations, and which strings are one."""
    matched, number, _ = _parts(text, DATE_TEXT)
    days, legal = _days_of(number)
    matched &= legal & (days >= INT_RANGE[0]) & (days <= INT_RANGE[1])
    return array_of(np.where(matched, days, 0), ~matched, target), matched


def timestamps_from_text(text: pa.Array, target: Type) -> tuple[pa.Array, BoolMask]:
    """Timestamps in Spark's notations with UTC offsets, and which strings are one."""
    digits = 9 if name_of(target).endswith("_ns") else 6
    matched, number, found = _parts(text, TIMESTAMP_TEXT)
    days, legal_day = _days_of(number)
    ticks, legal_time = _time_of(number, found, digits)
    matched &= legal_day & legal_time
    limit = LONG_RANGE[1] // (DAY_MICROS * (1000 if digits == 9 else 1)) - 1
    matched &= (days <= limit) & (days >= -limit)
    values = np.where(matched, days, 0) * (86_400 * 10**digits) + ticks
    minute, second = number("zone_minute", 0), number("zone_second", 0)
    zone = (number("zone_hour", 0) * 60 + minute) * 60 + second
    matched &= (zone <= MAX_ZONE_SECONDS) & (minute <= 59) & (second <= 59)
    if "tz" in name_of(target):
        offset = zone * 10**digits
        negative = np.asarray(pc.fill_null(pc.equal(pc.struct_field(found, "sign"), "-"), False))
        values = np.where(negative, values + offset, values - offset)
    return array_of(values, ~matched, target), matched


def times_from_text(text: pa.Array, target: Type) -> tuple[pa.Array, BoolMask]:
    """Times of day, and which strings are one."""
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


def _parts(text: pa.Array, pattern: str) -> tuple[BoolMask, Callable[[str, int], npt.NDArray[np.int64]], pa.Array]:
    found = pc.extract_regex(text, pattern=pattern)
    matched = np.asarray(found.is_valid())

    def number(name: str, default: int) -> npt.NDArray[np.int64]:
        part = pc.struct_field(found, name)
        part = pc.if_else(pc.equal(part, ""), None, part)
        part = pc.replace_substring_regex(part, pattern=r"^\+", replacement="")
        return np.asarray(pc.fill_null(part.cast(pa.int64()), default))

    return matched, number, found


def _days_of(number: Callable[[str, int], npt.NDArray[np.int64]]) -> tuple[Days, BoolMask]:
    year, month, day = number("year", 1970), number("month", 1), number("day", 1)
    legal = (month >= 1) & (month <= 12) & (day >= 1)
    months = (year - 1970) * 12 + np.where(legal, month, 1) - 1
    start = first_day(months)
    legal &= day <= first_day(months + 1) - start
    return start + day - 1, legal


def _time_of(
    number: Callable[[str, int], npt.NDArray[np.int64]], found: pa.Array, digits: int
) -> tuple[npt.NDArray[np.int64], BoolMask]:
    hour, minute, second = number("hour", 0), number("minute", 0), number("second", 0)
    text = pc.fill_null(pc.struct_field(found, "fraction"), "")
    fraction = pc.utf8_slice_codeunits(pc.utf8_rpad(text, width=digits, padding="0"), 0, digits)
    legal = (hour <= 23) & (minute <= 59) & (second <= 59)
    ticks = ((hour * 60 + minute) * 60 + second) * 10**digits + np.asarray(fraction.cast(pa.int64()))
    return ticks, legal
