"""Casts between Arrow types that report which values failed instead of failing as a whole.

Values that Arrow would convert wrongly are rejected before the cast. Also converts integers and text to
dates, times and timestamps. Which cast a column needs is decided in `json_columns.py` and `arrow_columns.py`.
"""

import re
from collections.abc import Mapping
from fractions import Fraction

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from nevermore.pipelines.decode.value_types import DATE_STYLES, Encoding, InfiniteDates
from nevermore.scan_core import Mask

MAX_NUMBER_CHARACTERS = 4_096
"""Longer text is not a number: a double's exact digits take 1,100 characters, a decimal's 40."""
_MAX_DIGITS = 38
_INTEGER_DIGITS = 20
"""Of the largest unsigned integer of 64 bits."""
_EXPONENT = 0x65
_LOWER_CASE = 0x20
_MAX_EXPONENT_DIGITS = 7
"""As many digits of an exponent put any number out of range of all types."""
_NUMBER = re.compile(
    r"(?P<sign>[+-]?)(?P<whole>[0-9]*+)\.?(?P<fraction>[0-9]*+)(?:[eE](?P<power>[+-]?)(?P<size>[0-9]++))?"
)
"""Without backtracking: a hostile text of many digits would take long."""


def cast_each(array: pa.Array, arrow: pa.DataType) -> tuple[pa.Array, Mask]:
    """Cast `array` to `arrow`; also return the mask of values that cannot be cast (NULL there).

    The clean case is one cast; otherwise halves are tried, so the cost grows with the number of bad values.
    """
    held = array.type
    if pa.types.is_temporal(held) and pa.types.is_string(arrow):
        return _shown(array)
    if pa.types.is_timestamp(held) and (pa.types.is_date(arrow) or pa.types.is_time(arrow)):
        return _moments(array, arrow)
    if pa.types.is_decimal(arrow) and pa.types.is_integer(held):
        # Arrow casts no integers to decimals with fewer digits than the largest integer of the type, not even NULL.
        array = array.cast(pa.decimal128(_INTEGER_DIGITS, 0))
    if not pa.types.is_decimal(arrow) or not _may_pass_bounds(array, arrow.scale):
        return _cast(array, arrow)
    bounded, refused = _bounded(array.cast(pa.string()), arrow)
    values, bad = _cast(bounded, arrow)
    return values, bad | refused


def _cast(array: pa.Array, arrow: pa.DataType) -> tuple[pa.Array, Mask]:
    bad = np.zeros(len(array), np.bool_)
    parts: list[pa.Array] = []
    pending = [(0, len(array))]
    while pending:
        first, last = pending.pop()
        piece = array.slice(first, last - first)
        try:
            parts.append(piece.cast(arrow))
        except pa.ArrowNotImplementedError:  # no value of one type is a value of the other
            return pa.nulls(len(array), arrow), np.asarray(array.is_valid())
        except pa.ArrowInvalid:
            if last - first == 1:
                bad[first] = piece[0].is_valid  # Arrow may refuse two types whatever the values are
                parts.append(pa.nulls(1, arrow))
            else:
                middle = (first + last) // 2
                pending += [(middle, last), (first, middle)]
    return (parts[0] if len(parts) == 1 else pa.concat_arrays(parts)), bad


def _moments(array: pa.Array, arrow: pa.DataType) -> tuple[pa.Array, Mask]:
    """Days or times of timestamps, computed from microseconds because Arrow's casts wrap around out of range."""
    if array.type.unit not in {"s", "ms"}:
        return _cast(array, arrow)
    micros, none = _cast(array, pa.timestamp("us", array.type.tz))
    values, bad = _cast(micros, arrow)
    return values, bad | none


def _shown(array: pa.Array) -> tuple[pa.Array, Mask]:
    """Temporal values as text; beyond the year 32767 Arrow writes a remark instead, or with a zone another year."""
    values, bad = _cast(array, pa.string())
    kind = array.type
    plain = array.cast(pa.timestamp(kind.unit)).cast(pa.string()) if getattr(kind, "tz", None) else values
    remarks = pc.fill_null(pc.starts_with(plain, "<"), False)
    return pc.if_else(remarks, None, values), bad | np.asarray(remarks)


def _may_pass_bounds(given: pa.Array, scale: int) -> bool:
    """Whether a number may exceed 38 digits before it becomes a decimal of this scale, or has an exponent.

    Always for floats: Arrow rounds them, and only their digits as text tell whether they are a decimal.
    """
    kind = given.type
    if pa.types.is_floating(kind):
        return True
    if pa.types.is_decimal(kind):
        added = scale - kind.scale
        return bool(kind.precision + added > _MAX_DIGITS and _max_digits(given) + added > _MAX_DIGITS)
    if not _is_text(kind) or not len(given):
        return False
    text = given.cast(pa.string())
    if (pc.max(pc.binary_length(text)).as_py() or 0) + scale > _MAX_DIGITS:
        return True
    data = text.buffers()[2]
    return data is not None and bool(((np.frombuffer(data, np.uint8) | _LOWER_CASE) == _EXPONENT).any())


def _max_digits(given: pa.Array) -> int:
    """Digits of the largest value of a decimal type, including its fraction."""
    ends = pc.min_max(given).as_py()
    return max((len(value.as_tuple().digits) for value in ends.values() if value is not None), default=0)


def _is_text(kind: pa.DataType) -> bool:
    held = kind.value_type if pa.types.is_dictionary(kind) else kind
    return bool(pa.types.is_string(held) or pa.types.is_large_string(held) or pa.types.is_string_view(held))


def _bounded(text: pa.StringArray, arrow: pa.DataType) -> tuple[pa.StringArray, Mask]:
    """Rewrite numbers so that Arrow's casts to this decimal accept them; NULL where there is no such number.

    Leading and trailing zeros are stripped, so that the remaining digits and their exponent tell whether the number
    fits; one that fits then exceeds no limit on the way.
    """
    lengths = pc.fill_null(pc.binary_length(text), 0)
    odd = np.asarray(pc.greater(lengths, _MAX_DIGITS - arrow.scale))
    odd |= np.asarray(pc.fill_null(pc.match_substring(text, "e", ignore_case=True), False))
    refused = np.zeros(len(text), np.bool_)
    rows = np.flatnonzero(odd)
    if not len(rows):
        return text, refused
    some = text.take(pa.array(rows))
    written = pa.array([_normal(number, arrow) for number in some.to_pylist()], pa.string())
    refused[rows] = np.asarray(pc.and_(pc.is_null(written), pc.is_valid(some)))
    return pc.replace_with_mask(text, pa.array(odd), written), refused


def _normal(text: str | None, arrow: pa.DataType) -> str | None:
    """A number as its significant digits and an exponent; None if there is none that the type holds."""
    parts = None if text is None or len(text) > MAX_NUMBER_CHARACTERS else _NUMBER.fullmatch(text)
    if parts is None or not parts["whole"] + parts["fraction"]:
        return None
    digits = (parts["whole"] + parts["fraction"]).lstrip("0")
    significant = digits.rstrip("0")
    size = (parts["size"] or "").lstrip("0")[:_MAX_EXPONENT_DIGITS]
    exponent = int(f"{parts['power'] or ''}{size or 0}") - len(parts["fraction"]) + len(digits) - len(significant)
    if not significant:
        return "0"
    is_held = -exponent <= arrow.scale and len(significant) + exponent <= arrow.precision - arrow.scale
    return f"{parts['sign']}{significant}E{exponent}" if is_held else None


_FIRST, _LAST = -(2**63), 2**63 - 1
_DAY_OF_YEAR_1, _DAY_OF_YEAR_10000 = -719_162, 2_932_897
_ALWAYS_INFINITE = {_LAST: True, _FIRST: False}
_OF_POSTGRES = {9_223_372_036_825_200_000: True, -9_223_372_036_832_400_000: False}
_OF_POSTGRES |= {9_223_372_036_825_200: True, -9_223_372_036_832_400: False}
_INFINITE: Mapping[Encoding, Mapping[int, bool]] = {
    Encoding.NATURAL: _ALWAYS_INFINITE | _OF_POSTGRES,
    # The days of both infinities exceed 32 bits, in which they come out as days long before the year 1.
    Encoding.DAYS: _ALWAYS_INFINITE | {-2_147_472_692: True, -2_147_472_691: False},
}
"""Numbers that Debezium writes for PostgreSQL's infinity and -infinity, where the unit alone does not put them there."""

_PER_SECOND = {Encoding.SECONDS: 1, Encoding.MILLIS: 1_000, Encoding.MICROS: 1_000_000, Encoding.NANOS: 1_000_000_000}
_OF_UNIT = {"s": Encoding.SECONDS, "ms": Encoding.MILLIS, "us": Encoding.MICROS, "ns": Encoding.NANOS}
_SECONDS_PER_DAY = 86_400
_POSTGRES_STYLE = "%a %b %d %H:%M:%S %Y"

_MONTHS = ["Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec"]
_TIME = r"(?: (?P<time>\d\d:\d\d:\d\d(?:\.\d+)?))?"
_ZONE = r"(?: ?(?P<zone>[A-Z]{1,5}|[+-]\d\d(?::?\d\d(?::?\d\d)?)?))?$"
_DAY, _MONTH, _YEAR = r"(?P<day>\d\d)", r"(?P<month>\d\d)", r"(?P<year>\d{4})"
_NAMED = r"(?P<month>[A-Z][a-z]{2})"
_CLOCK = r"(?P<time>\d\d:\d\d:\d\d(?:\.\d+)?)"
_STYLES = {
    Encoding.SQL_MDY: (f"^{_MONTH}/{_DAY}/{_YEAR}{_TIME}{_ZONE}",),
    Encoding.SQL_DMY: (f"^{_DAY}/{_MONTH}/{_YEAR}{_TIME}{_ZONE}",),
    Encoding.GERMAN: (rf"^{_DAY}\.{_MONTH}\.{_YEAR}{_TIME}{_ZONE}",),
    # Dates alone are written in digits, timestamps with names of days and months.
    Encoding.POSTGRES_MDY: (
        f"^{_MONTH}-{_DAY}-{_YEAR}{_TIME}{_ZONE}",
        rf"^\w{{3}} {_NAMED} {_DAY} {_CLOCK} {_YEAR}{_ZONE}",
    ),
    Encoding.POSTGRES_DMY: (
        f"^{_DAY}-{_MONTH}-{_YEAR}{_TIME}{_ZONE}",
        rf"^\w{{3}} {_DAY} {_NAMED} {_CLOCK} {_YEAR}{_ZONE}",
    ),
}
"""Patterns of dates and timestamps in PostgreSQL's DateStyles."""


def from_integers(
    values: NDArray[np.int64],
    valid: Mask,
    arrow: pa.DataType,
    encoding: Encoding,
    infinite: InfiniteDates = "quarantine",
) -> tuple[pa.Array, Mask]:
    """Temporal values from integers since the epoch or midnight, and the mask of those that do not fit the type.

    NATURAL is what Debezium sends without a schema: days for dates, microseconds for times of day, and for
    timestamps the unit that puts the value between 1653 and 2286 (milliseconds below 10^13, microseconds below 10^16,
    else nanoseconds); configure the encoding where values close to 1970 matter.
    """
    if encoding in DATE_STYLES:
        return pa.nulls(len(values), arrow), valid
    if pa.types.is_time(arrow):
        unit_in = Encoding.MICROS if encoding is Encoding.NATURAL else encoding
        scaled = rescale(values, _PER_SECOND[unit_in], per_second(arrow))
        bad = valid & ((scaled < 0) | (scaled >= _SECONDS_PER_DAY * per_second(arrow)))
        return _array(scaled, valid & ~bad, arrow), bad
    target = Fraction(1, _SECONDS_PER_DAY) if pa.types.is_date(arrow) else Fraction(per_second(arrow))
    if encoding is Encoding.DAYS or (encoding is Encoding.NATURAL and pa.types.is_date(arrow)):
        scaled = rescale(values, Fraction(1, _SECONDS_PER_DAY), target)
    elif encoding is Encoding.NATURAL:
        scaled = rescale(values, 1_000, target)
        for limit, unit_in in ((10**14, Encoding.MICROS), (10**17, Encoding.NANOS)):
            larger = (values >= limit) | (values <= -limit)
            if larger.any():
                scaled = np.where(larger, rescale(values, _PER_SECOND[unit_in], target), scaled)
    else:
        scaled = rescale(values, _PER_SECOND[encoding], target)
    for value, is_future in _INFINITE.get(encoding, _ALWAYS_INFINITE).items():
        scaled = np.where(values == value, _LAST if is_future else _FIRST, scaled)
    return _within_years(scaled, valid, arrow, infinite)


def _within_years(
    values: NDArray[np.int64], valid: Mask, arrow: pa.DataType, infinite: InfiniteDates
) -> tuple[pa.Array, Mask]:
    """Dates and timestamps of integers in the unit of their type; those outside of the years 1 to 9999 as `infinite` says."""
    per_day = 1 if pa.types.is_date(arrow) else per_second(arrow) * _SECONDS_PER_DAY
    nanos = not pa.types.is_date(arrow) and arrow.unit == "ns"
    first, last = (_FIRST + 1, _LAST - 1) if nanos else (_DAY_OF_YEAR_1 * per_day, _DAY_OF_YEAR_10000 * per_day - 1)
    outside = valid & ((values < first) | (values > last))
    if not outside.any():
        return _array(values, valid, arrow), outside
    if infinite == "clamp":
        return _array(np.clip(values, first, last), valid, arrow), np.zeros_like(outside)
    return _array(np.where(outside, 0, values), valid & ~outside, arrow), outside & (infinite == "quarantine")


def from_times(array: pa.Array, arrow: pa.DataType, infinite: InfiniteDates) -> tuple[pa.Array, Mask]:
    """Dates and timestamps from such; digits below the type's unit are truncated."""
    held = array.type
    days = pa.types.is_date32(held)
    encoding = Encoding.DAYS if days else _OF_UNIT["ms" if pa.types.is_date64(held) else held.unit]
    values = np.asarray(array.view(pa.int32() if days else pa.int64()).fill_null(0)).astype(np.int64)
    return from_integers(values, np.asarray(array.is_valid()), arrow, encoding, infinite)


def from_style(
    text: pa.StringArray, arrow: pa.DataType, style: Encoding, infinite: InfiniteDates
) -> tuple[pa.Array, Mask]:
    """Dates and timestamps from text in a DateStyle of PostgreSQL, and the mask of other text.

    ISO text does not count: a server writes one style, and 12/11 is another day in another style.
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
    if pa.types.is_date(arrow):
        is_day = pc.and_(pc.equal(time, ""), pc.equal(zone, ""))  # what looks like a zone is BC
        values, _ = cast_each(pc.if_else(is_day, days, pa.scalar(None, pa.string())), arrow)
    else:
        values, _ = _from_iso(
            pc.binary_join_element_wise(moments, zone, ""), arrow
        )  # no other names of zones, which are ambiguous
    return _bounded_text(text, values, infinite)


def from_text(
    text: pa.StringArray, arrow: pa.DataType, infinite: InfiniteDates = "quarantine"
) -> tuple[pa.Array, Mask]:
    """Temporal values from ISO 8601 or PostgreSQL's text, and the mask of other text.

    Digits below the type's unit are truncated. Text with a zone for a timestamp without one is converted to UTC.
    """
    if pa.types.is_time(arrow):
        return _time_of_day(text, arrow)
    return _bounded_text(text, _from_iso(text, arrow)[0], infinite)


_REST = r"-\d\d-\d\d(?:[T ][\d:.]+)?(?: ?(?:Z|UTC|GMT|[+-]\d\d(?::?\d\d){0,2}))?$"
_FUTURE = rf"(?i)^\+?infinity$|^\+?\d{{5,9}}{_REST}|^[A-Z\d][\w ./:-]*[./ -]\d{{5,9}}(?: |$)"
_PAST = rf"(?i)^-infinity$|^(?:-\d{{4,9}}|0000){_REST}|^[A-Z\d].*\d.* BC$"
"""Text of dates beyond the year 9999 and before the year 1, also in PostgreSQL's DateStyles."""


def _bounded_text(text: pa.StringArray, values: pa.Array, infinite: InfiniteDates) -> tuple[pa.Array, Mask]:
    """Dates and timestamps that were read from text, including infinite ones, and the mask of what is none."""
    arrow, valid = values.type, np.array(values.is_valid())
    numbers = np.asarray(values.view(pa.int32() if pa.types.is_date(arrow) else pa.int64()).fill_null(0))
    numbers = numbers.astype(np.int64)
    missing = np.asarray(text.is_valid()) & ~valid
    if len(rows := np.flatnonzero(missing)):
        words = pc.utf8_trim_whitespace(text.take(pa.array(rows)))
        for pattern, limit in ((_FUTURE, _LAST), (_PAST, _FIRST)):
            found = rows[np.asarray(pc.match_substring_regex(words, pattern))]
            numbers[found], valid[found], missing[found] = limit, True, False
    array, outside = _within_years(numbers, valid, arrow, infinite)
    return array, outside | missing


_FORMS = (
    (r"^(\d{4}-\d\d-\d\d)-(\d\d)\.(\d\d)\.(\d\d)\b", r"\1T\2:\3:\4"),
    (r"^(\S{10})t(\d\d:)", r"\1T\2"),
    (r"^(\d{4}-\d\d-\d\d)$", r"\1T00:00"),
    (r"(:\d\d),(\d)", r"\1.\2"),
    (r"(Z|[+-]\d\d(?::?\d\d){0,2})\[[\w/+-]+\]$", r"\1"),
    (r"([T ]\d\d:[\d:.]+) ?([+-]\d\d(?::?\d\d){0,2})(?: [A-Z]{3,5})?$", r"\1\2"),
    (r"([T ]\d\d:[\d:.]+) ?(?:Z|z|UTC|GMT)$", r"\1Z"),
    (r"(:\d\d) (?:UTC|GMT) (\d{4})$", r"\1 \2"),
)
"""What other programs write, in the form that Arrow reads: docs/feeds.md names them."""


def _from_iso(text: pa.StringArray, arrow: pa.DataType) -> tuple[pa.Array, Mask]:
    if cast_each(text.drop_null().slice(0, 1), arrow)[1].any():  # then all are likely to be of another form
        text = _rewritten(text)
    parsed, bad = cast_each(text, arrow)
    if not bad.any():
        return parsed, bad
    rows = np.flatnonzero(bad)
    again, still_bad = _from_odd_text(_rewritten(text.take(pa.array(rows))), arrow)
    merged = pc.replace_with_mask(parsed, pa.array(bad), again)
    bad = np.zeros(len(text), np.bool_)
    bad[rows] = still_bad
    return merged, bad


def _rewritten(text: pa.StringArray) -> pa.StringArray:
    text = pc.utf8_trim_whitespace(text)
    for pattern, form in _FORMS:
        text = pc.replace_substring_regex(text, pattern, form)
    return text


_MOMENT = r"^.{10}([T ]\d\d(:?\d\d(:?\d\d(\.\d+)?)?)?)?( ?(Z|UTC|GMT|[+-]\d\d(:?\d\d(:?\d\d)?)?))?$"
"""A day that may be followed by a time of day, and by a zone, as Debezium's IsoDate always is."""
_SECONDS_OF_ZONE = r"(?P<before>[T ]\d\d:.*(?P<sign>[+-])\d\d(?::\d\d:|\d\d))(?P<seconds>[0-5]\d)$"
"""A zone with seconds: local time before there was standard time, which Arrow does not read."""


def _from_odd_text(text: pa.StringArray, arrow: pa.DataType) -> tuple[pa.Array, Mask]:
    digits = 9 if not pa.types.is_date(arrow) and arrow.unit == "ns" else 6
    trimmed = pc.replace_substring_regex(text, rf"(\.\d{{{digits}}})\d+", r"\1")
    if pa.types.is_date(arrow):
        # Anything else behind the day, such as BC, makes it another day.
        is_moment = pc.match_substring_regex(trimmed, _MOMENT)
        days, _ = cast_each(pc.utf8_slice_codeunits(pc.if_else(is_moment, trimmed, None), 0, 10), arrow)
        return days, np.asarray(pc.and_(pc.is_null(days), pc.is_valid(text)))
    zoned = pa.timestamp(arrow.unit, "UTC")
    local = pc.extract_regex(trimmed, _SECONDS_OF_ZONE)
    if local.null_count < len(local):
        return _with_seconds_of_zone(trimmed, local, arrow)
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


def _with_seconds_of_zone(text: pa.StringArray, local: pa.StructArray, arrow: pa.DataType) -> tuple[pa.Array, Mask]:
    """Moments from text of which some has a zone with seconds, whose parts are in `local`."""
    has_seconds = local.is_valid()
    plain = pc.replace_substring_regex(text, r":?\d\d$", "")
    parsed, bad = _from_odd_text(pc.if_else(has_seconds, plain, text), arrow)
    moments = np.asarray(pc.fill_null(parsed.cast(pa.int64()), 0))
    seconds = np.asarray(pc.fill_null(pc.struct_field(local, "seconds").cast(pa.int64()), 0)) * per_second(arrow)
    east = np.asarray(pc.fill_null(pc.equal(pc.struct_field(local, "sign"), "+"), False))
    moved = moments + np.where(east, -seconds, seconds)
    bad = bad | ((moved > moments) & east) | ((moved < moments) & ~east)  # beyond 64 bits
    return _array(moved, np.asarray(parsed.is_valid()) & ~bad, arrow), bad


def _time_of_day(text: pa.StringArray, arrow: pa.DataType) -> tuple[pa.Array, Mask]:
    trimmed = pc.replace_substring_regex(pc.utf8_trim_whitespace(text), r"[.,](\d{1,6})\d*", r".\1")
    local = pc.replace_substring_regex(trimmed, r" ?(Z|[+-]\d\d(:?\d\d(:?[0-5]\d)?)?)$", "")
    moments, bad = cast_each(pc.binary_join_element_wise("1970-01-01T", local, ""), pa.timestamp(arrow.unit))
    return moments.cast(pa.int64()).view(arrow), bad


def per_second(arrow: pa.DataType) -> int:
    """Units of a type of times in a second."""
    return {"s": 1, "ms": 1_000, "us": 1_000_000, "ns": 1_000_000_000}[arrow.unit]


def rescale(values: NDArray[np.int64], source: int | Fraction, target: int | Fraction) -> NDArray[np.int64]:
    """The values in units of which `target` are a second, rounded down, as `source` are now; at most the limits of 64 bits."""
    factor = Fraction(target) / Fraction(source)
    if factor < 1:
        return values // np.int64(1 / factor)
    limit = _LAST // int(factor)
    scaled = values * np.int64(int(factor))
    return np.where(values > limit, _LAST, np.where(values < -limit, _FIRST, scaled))


def _array(values: NDArray[np.int64], valid: Mask, arrow: pa.DataType) -> pa.Array:
    plain = pa.array(values, mask=None if valid.all() else ~valid)
    return plain.cast(pa.int32() if pa.types.is_date32(arrow) else pa.int64()).view(arrow)
