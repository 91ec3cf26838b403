"""The order in which a table's changes apply where its config names what orders them (`order_by`).

Every change carries its place as text that compares as the values do, across batches, runs and types: it is made of its
own value alone, exactly, whatever else a batch holds. What is read at once is sorted by it. What comes later and belongs before is the business of `late_changes.py`.
"""

from collections.abc import Sequence
from decimal import Decimal

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from pipelines.errors import ConfigError
from pipelines.formats import json_kernels as kernels
from pipelines.formats import text_kernels
from pipelines.formats.casting import cast_each
from pipelines.formats.events import Events, Placed
from pipelines.formats.json_spans import SpanColumn
from pipelines.formats.reasons import with_value
from pipelines.formats.span_text import TEXT_KINDS, text

Rows = NDArray[np.int64]

_MISSING, _NUMBER, _TEXT = "0", "1", "2"
"""What begins a value, in order: events without one, as those of snapshots, come first."""
_END = "\x01"
"""Ends a value of several; below all characters that may go on."""
_LARGE, _LARGE_NEGATIVE = "g", "-"
"""Begin numbers beyond 64 bits; above and below all hexadecimal digits."""
_BEHIND_DIGITS = "~"
"""Ends digits that count downwards, so that fewer of them are more."""
_WIDEST = pa.decimal256(75, 0)
_WITH_FRACTION = pa.decimal256(75, 37)
"""What JSON numbers with a fraction or an exponent must fit; others have no place."""
_ALL_DIGITS = pa.decimal256(76, 0)
_ONE = pa.decimal256(1, 0)
_IN_DIGITS = r"^-?[0-9]{1,75}$"
_DECIMAL = r"^[+-]?([0-9]{1,38}\.[0-9]{0,37}|\.[0-9]{1,37})$"
_MOMENT = (
    r"^(?P<day>[0-9]{4}-[0-9]{2}-[0-9]{2})[T ](?P<time>[0-9]{2}:[0-9]{2}:[0-9]{2})"
    r"(?:\.(?P<fraction>[0-9]+))?(?P<zone>Z|[+-][0-9]{2}:[0-9]{2})?$"
)
_LSN = r"^(?P<high>[0-7]?[0-9A-Fa-f]{1,7})/(?P<low>[0-9A-Fa-f]{1,8})$"
_DIGITS = np.frombuffer(b"0123456789abcdef", np.uint8)


def places(events: Events, order_by: Sequence[str]) -> Placed:
    """The place of each change, as text: the values of these paths; NULL where one has none, and then why.

    Raises:
        ConfigError: the events have nothing of the name that is to order them.
    """
    parts, reasons = [], []
    for path in order_by:
        try:
            of_path, why = events.order(path)
        except KeyError as error:
            raise ConfigError(f"order_by: events of this format have no {path}") from error
        parts.append(of_path)
        reasons += [] if why is None else [why]
    # NULL in one part is NULL in the whole.
    joined = parts[0] if len(parts) == 1 else pc.binary_join_element_wise(*parts, _END)
    return joined, pc.coalesce(*reasons) if reasons else None


def in_order(rows: Rows, order: pa.StringArray) -> Rows:
    """`rows` by their places; those of one place stay as they came."""
    return rows[np.asarray(pc.sort_indices(order.take(pa.array(rows)))).astype(np.int64)]


def of_columns(path: str, values: pa.Array) -> pa.StringArray:
    """The places of the values of a column.

    Raises:
        ConfigError: a column of this type orders nothing.
    """
    if not _has_order(values.type):
        raise ConfigError(f"order_by: {path} is {values.type}; only numbers, times and text order events")
    return _comparable(values)


def of_json(path: str, column: SpanColumn) -> Placed:
    """The places of JSON values, each by itself; objects, lists and numbers of too many digits have none."""
    count = len(column)
    found = pa.repeat(_MISSING, count).cast(pa.string())
    bad = column.of_kind(kernels.OBJECT, kernels.ARRAY)
    whole = column.of_kind(kernels.INT)
    values, too_large = np.zeros(count, np.int64), np.zeros(count, np.bool_)
    text_kernels.parse_integers(column.data, column.start, column.end, whole, values, too_large)
    truth = column.of_kind(kernels.TRUE, kernels.FALSE)
    values[truth] = column.kind[truth] == kernels.TRUE
    small = (whole & ~too_large) | truth
    if small.any():
        found = pc.if_else(pa.array(small), _numbers(np.where(small, values, 0)), found)
    for mask, arrow in ((whole & too_large, _WIDEST), (column.of_kind(kernels.FLOAT), _WITH_FRACTION)):
        rows = np.flatnonzero(mask)
        if len(rows):
            words, _ = text(column.take(rows), np.ones(len(rows), np.bool_))
            exact, none = cast_each(words, arrow)
            bad[rows[none]] = True
            made = _decimals(pc.fill_null(exact, pa.scalar(Decimal(0), arrow)))
            found = pc.replace_with_mask(found, pa.array(mask), made)
    words_given = column.of_kind(*TEXT_KINDS)
    if words_given.any():
        words, broken = text(column, words_given)
        bad |= broken
        found = pc.if_else(pa.array(words_given), _texts(pc.fill_null(words, "")), found)
    if not bad.any():
        return found, None
    reason = f"order_by: {path} is neither text nor a number of at most 38 digits before and 37 behind the point"
    return pc.if_else(pa.array(bad), pa.scalar(None, pa.string()), found), with_value(reason, column, bad)


def _has_order(kind: pa.DataType) -> bool:
    if pa.types.is_decimal(kind):
        return bool(kind.precision <= _WIDEST.precision)
    is_bytes = any(of(kind) for of in (pa.types.is_binary, pa.types.is_large_binary, pa.types.is_fixed_size_binary))
    return not is_bytes and not pa.types.is_nested(kind)


def _comparable(values: pa.Array) -> pa.StringArray:
    """Values as text that orders them: NULL, then numbers, then all else as it is written."""
    if isinstance(values, pa.ChunkedArray):
        values = pa.concat_arrays(values.chunks) if values.num_chunks else pa.array([], values.type)
    kind = values.type
    if pa.types.is_null(kind):
        return pa.repeat(_MISSING, len(values)).cast(pa.string())
    if kind == pa.uint64():
        values = values.cast(pa.decimal128(20, 0))
    elif pa.types.is_timestamp(kind):
        values = _micros(values)
    elif pa.types.is_temporal(kind) or pa.types.is_boolean(kind):
        values = values.cast(pa.int32()) if getattr(kind, "bit_width", 64) == 32 else values.cast(pa.int64())
    if pa.types.is_decimal(values.type):
        text = _decimals(pc.fill_null(values, pa.scalar(Decimal(0), values.type)))
    elif pa.types.is_integer(values.type):
        text = _numbers(np.asarray(pc.fill_null(values, 0)).astype(np.int64))
    elif pa.types.is_floating(values.type):
        text = _fractions(np.nan_to_num(np.asarray(pc.fill_null(values, 0)).astype(np.float64)))
    else:
        text = _texts(pc.fill_null(values.cast(pa.string()), ""))
    return pc.if_else(values.is_null(), _MISSING, text)


def _micros(values: pa.Array) -> pa.Array:
    """Timestamps in microseconds; those that 64 bits do not hold are the first or the last of all."""
    counts = np.asarray(pc.fill_null(values.view(pa.int64()), 0))
    if values.type.unit == "ns":
        return pa.array(counts // 1_000, mask=np.asarray(values.is_null()))
    factor = np.int64({"s": 1_000_000, "ms": 1_000, "us": 1}[values.type.unit])
    limit = np.int64(2**63 - 1) // factor
    return pa.array(np.clip(counts, -limit, limit) * factor, mask=np.asarray(values.is_null()))


def _texts(values: pa.StringArray) -> pa.StringArray:
    """As written, but numbers and log sequence numbers of PostgreSQL as the numbers that they are, and times in UTC."""
    text = pc.binary_join_element_wise(_TEXT, values, "")
    is_number = pc.match_substring_regex(values, _IN_DIGITS)
    if pc.any(is_number).as_py():
        numbers = pc.if_else(is_number, values, "0").cast(pa.decimal256(_WIDEST.precision, 0))
        text = pc.if_else(is_number, _decimals(numbers), text)
    is_decimal = pc.match_substring_regex(values, _DECIMAL)
    if pc.any(is_decimal).as_py():
        exact, none = cast_each(pc.if_else(is_decimal, pc.utf8_ltrim(values, "+"), "0"), _WITH_FRACTION)
        is_decimal = pc.and_(is_decimal, pa.array(~none))
        text = pc.if_else(is_decimal, _decimals(pc.fill_null(exact, pa.scalar(Decimal(0), _WITH_FRACTION))), text)
    is_moment = pc.match_substring_regex(values, _MOMENT)
    if pc.any(is_moment).as_py():
        text = pc.coalesce(_moments(values), text)
    is_lsn = pc.match_substring_regex(values, _LSN)
    if pc.any(is_lsn).as_py():
        parts = pc.extract_regex(values, _LSN)
        high, low = (pc.utf8_lpad(pc.struct_field(parts, name), 8, "0") for name in ("high", "low"))
        digits = pc.utf8_lower(pc.binary_join_element_wise(high, low, ""))
        first = pc.index_in(pc.utf8_slice_codeunits(digits, 0, 1), pa.array(list("01234567")))
        positive = pa.array(list("89abcdef")).take(first)  # as `_numbers` writes what is not negative
        number = pc.binary_join_element_wise(_NUMBER, positive, pc.utf8_slice_codeunits(digits, 1), "")
        text = pc.if_else(is_lsn, number, text)
    return text


def _moments(values: pa.StringArray) -> pa.StringArray:
    """Dates with times in UTC, without zeros at the end of a fraction; without a zone they are taken for UTC. NULL for others."""
    parts = pc.extract_regex(values, _MOMENT)
    day, time, fraction, zone = (pc.struct_field(parts, name) for name in ("day", "time", "fraction", "zone"))
    zone = pc.if_else(pc.equal(zone, ""), "Z", zone)
    seconds = cast_each(pc.binary_join_element_wise(day, "T", time, zone, ""), pa.timestamp("s", "UTC"))[0]
    digits = pc.utf8_rtrim(fraction, "0")
    told = pc.binary_join_element_wise(_TEXT, seconds.cast(pa.timestamp("s")).cast(pa.string()), "")
    return pc.if_else(pc.equal(digits, ""), told, pc.binary_join_element_wise(told, digits, "."))


def _numbers(values: NDArray[np.int64]) -> pa.StringArray:
    """Sixteen hexadecimal digits each, after the mark of a number."""
    unsigned = values.view(np.uint64) ^ np.uint64(1 << 63)
    shifts = np.arange(60, -4, -4, dtype=np.uint64)
    digits = _DIGITS[((unsigned[:, None] >> shifts) & np.uint64(15)).astype(np.intp)]
    marked = np.concatenate([np.full((len(values), 1), ord(_NUMBER), np.uint8), digits], axis=1)
    offsets = np.arange(len(values) + 1, dtype=np.int32) * marked.shape[1]
    return pa.StringArray.from_buffers(len(values), pa.py_buffer(offsets), pa.py_buffer(np.ascontiguousarray(marked)))


def _decimals(values: pa.Array) -> pa.StringArray:
    """As integers and fractions are written; beyond 64 bits the number of digits, then these.

    All by digits: Arrow rounds decimals of 256 bits down to wrong numbers. Behind the bits of a fraction stand its digits,
    which tell apart what has the same nearest double.
    """
    scale = max(values.type.scale, 0)
    wide = values.cast(pa.decimal256(_WIDEST.precision, scale))
    units = pa.Array.from_buffers(_ALL_DIGITS, len(wide), wide.buffers(), offset=wide.offset).cast(pa.string())
    negative = pc.starts_with(units, "-")
    digits = pc.utf8_lpad(pc.utf8_ltrim(units, "-"), scale + 1, "0")
    rest = pc.utf8_slice_codeunits(digits, -scale, 2**31 - 1) if scale else pa.repeat("", len(wide)).cast(pa.string())
    is_whole = pc.equal(pc.utf8_rtrim(rest, "0"), "")
    whole = (pc.utf8_slice_codeunits(digits, 0, -scale) if scale else digits).cast(_WIDEST)
    below = pc.and_(negative, pc.invert(is_whole))  # -0.25 is 0.75 above -1
    size = pc.add(whole, pc.if_else(below, pa.scalar(Decimal(1), _ONE), pa.scalar(Decimal(0), _ONE))).cast(_WIDEST)
    large = pc.greater(
        size, pc.if_else(negative, pa.scalar(Decimal(2**63), _WIDEST), pa.scalar(Decimal(2**63 - 1), _WIDEST))
    )
    within = pc.if_else(large, pa.scalar(Decimal(0), _WIDEST), size)
    text = _numbers(np.asarray(pc.if_else(negative, pc.negate(within), within).cast(pa.int64())))
    if pc.any(large).as_py():
        shown = size.cast(pa.string())
        counted = pc.binary_join_element_wise(pc.utf8_lpad(pc.utf8_length(shown).cast(pa.string()), 2, "0"), shown, "")
        upwards = pc.binary_join_element_wise(_NUMBER + _LARGE, counted, "")
        downwards = pc.binary_join_element_wise(_NUMBER + _LARGE_NEGATIVE, _complement(counted), "")
        text = pc.if_else(large, pc.if_else(negative, downwards, upwards), text)
    if pc.all(is_whole).as_py():
        return text
    nearest = np.asarray(pc.binary_join_element_wise("0.", rest, "").cast(pa.float64()))
    bits = _numbers(np.where(np.asarray(negative), 1 - nearest, nearest).view(np.int64))
    falling = pc.binary_join_element_wise(pc.utf8_rtrim(_complement(rest), "9"), _BEHIND_DIGITS, "")
    exact = pc.if_else(negative, falling, pc.utf8_rtrim(rest, "0"))
    return pc.if_else(is_whole, text, pc.binary_join_element_wise(text, bits, exact, "."))


def _complement(digits: pa.StringArray) -> pa.StringArray:
    """Nine less each digit: orders texts of one length the other way round."""
    digits = pa.concat_arrays([digits])
    _, offsets, data = digits.buffers()
    turned = np.uint8(2 * ord("0") + 9) - np.frombuffer(data, np.uint8)
    return pa.StringArray.from_buffers(len(digits), offsets, pa.py_buffer(turned), offset=digits.offset)


def _fractions(values: NDArray[np.float64]) -> pa.StringArray:
    """The digits of the whole part, then those of what is left: a whole number is written as integers are."""
    whole = np.clip(np.floor(values), -(2.0**63), 2.0**63 - 1024)
    left = (values - whole).clip(0, 1).view(np.int64)
    text = _numbers(whole.astype(np.int64))
    return pc.if_else(pa.array(left == 0), text, pc.binary_join_element_wise(text, _numbers(left), "."))
