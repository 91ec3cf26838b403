"""Scalar columns from spans: text, booleans, integers, doubles, dates and times."""

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from pipelines.formats import double_kernels, row_kernels, temporal, text_kernels
from pipelines.formats import json_kernels as kernels
from pipelines.formats.casting import cast_each
from pipelines.formats.json_spans import SpanColumn
from pipelines.formats.span_text import NUMBER_KINDS, TEXT_KINDS, Decoded, Mask, inverse, text, true_mask
from pipelines.formats.value_type import DATE_STYLES, ValueType

SAFE_DIGITS = 15
"""Integers of so many characters are doubles exactly."""
SHORTEST_UNDERFLOW = 5
"""No number of so few characters is other than zero and becomes zero: 1e-400 has six."""


def integers(column: SpanColumn) -> tuple[NDArray[np.int64], Mask]:
    """Integers, also in text, and where there is one: for positions and times, where anything else counts as none."""
    values, valid, _ = whole_numbers(column)
    return values, valid


def strings(column: SpanColumn, wanted: ValueType) -> Decoded:
    """Text; objects and lists as their JSON text; numbers and booleans only where config asks for a string."""
    if column.kinds[[*NUMBER_KINDS, kernels.TRUE, kernels.FALSE]].any() and not wanted.explicit:
        usable = column.of_kind(*TEXT_KINDS, kernels.OBJECT, kernels.ARRAY)
    else:
        usable = column.has_value
    values, bad = text(column, usable)
    return values, bad | (column.has_value & ~usable)


def booleans(column: SpanColumn, _wanted: ValueType) -> Decoded:
    """Booleans, also as 0 and 1 and in the words that databases write."""
    known = column.of_kind(kernels.TRUE, kernels.FALSE)
    values = column.kind == kernels.TRUE
    others = column.has_value & ~known
    if not others.any():
        return pa.array(values, mask=inverse(known)), others
    words, _ = text(column, others)
    folded = pc.ascii_lower(words)
    true = true_mask(pc.is_in(folded, pa.array(["1", "true", "t", "y", "yes"])))
    false = true_mask(pc.is_in(folded, pa.array(["0", "false", "f", "n", "no"])))
    return pa.array(values | true, mask=inverse(known | true | false)), others & ~true & ~false


def typed_integers(column: SpanColumn, wanted: ValueType) -> Decoded:
    """Integers of the wanted width; an int that widens becomes a long where a value needs it."""
    values, valid, bad = whole_numbers(column, truth=wanted.arrow.bit_width <= 32)
    if wanted.arrow.bit_width < 64:
        limits = np.iinfo(wanted.arrow.to_pandas_dtype())
        outside = valid & ((values < limits.min) | (values > limits.max))
        if wanted.widens and outside.any():
            return pa.array(values, mask=inverse(valid)), bad
        bad, valid = bad | outside, valid & ~outside
    array = pa.array(values, mask=inverse(valid))
    return (array if wanted.arrow == pa.int64() else array.cast(wanted.arrow, safe=False)), bad


def whole_numbers(column: SpanColumn, *, truth: bool = False) -> tuple[NDArray[np.int64], Mask, Mask]:
    """(values, where there is one, where it is none): integers, whole numbers written otherwise, text of integers."""
    usable = column.of_kind(kernels.INT, *TEXT_KINDS)
    ready = column.ready
    if ready is not None and ready.what == row_kernels.INTEGER:
        values, bad = ready.integers, ready.bad.copy()
    else:
        values = np.empty(len(column), np.int64)
        bad = np.zeros(len(column), np.bool_)
        text_kernels.parse_integers(column.data, column.start, column.end, usable, values, bad)
    if truth and column.kinds[[kernels.TRUE, kernels.FALSE]].any():
        logical = column.of_kind(kernels.TRUE, kernels.FALSE)
        values[logical] = column.kind[logical] == kernels.TRUE
        usable = usable | logical
    odd = bad | (column.has_value & ~usable)
    if odd.any():
        whole, is_whole = _odd_whole_numbers(column, odd & column.of_kind(*NUMBER_KINDS))
        values = np.where(is_whole, whole, values)
        odd &= ~is_whole
        usable = usable | is_whole
    return values, usable & ~odd, odd


def _odd_whole_numbers(column: SpanColumn, candidates: Mask) -> tuple[NDArray[np.int64], Mask]:
    """Numbers such as 5.0 and 1e3 that are integers all the same."""
    values = np.zeros(len(column), np.int64)
    found = np.zeros(len(column), np.bool_)
    rows = np.flatnonzero(candidates)
    if len(rows):
        words, _ = text(column.take(rows), np.ones(len(rows), np.bool_))
        exact, bad = cast_each(words, pa.decimal128(38, 0))
        integers, too_large = cast_each(exact, pa.int64())
        fits = ~bad & ~too_large
        values[rows[fits]] = np.asarray(integers.filter(pa.array(fits)))
        found[rows[fits]] = True
    return values, found


def floats(column: SpanColumn, wanted: ValueType) -> Decoded:
    """Doubles and floats to the nearest value, also from text (NaN, Infinity); none where that is another number.

    Fractions are rounded as doubles always are. Integers that no double holds, and numbers that would become infinite
    or zero, are other numbers.
    """
    usable = column.of_kind(*NUMBER_KINDS, *TEXT_KINDS)
    ready = column.ready
    if ready is not None and ready.what == row_kernels.DOUBLE:
        values, slow = ready.doubles, ready.bad.copy()
    else:
        values = np.empty(len(column), np.float64)
        slow = np.zeros(len(column), np.bool_)
        double_kernels.parse_doubles(column.data, column.start, column.end, usable, values.view(np.uint64), slow)
    bad = column.has_value & ~usable
    if slow.any():
        rows = np.flatnonzero(slow)
        words, _ = text(column.take(rows), np.ones(len(rows), np.bool_))
        parsed, wrong = cast_each(words, pa.float64())
        values[rows] = np.asarray(parsed.fill_null(0.0))
        bad[rows[wrong]] = True
    if wanted.arrow == pa.float32():
        with np.errstate(over="ignore"):
            bad |= usable & np.isfinite(values) & ~np.isfinite(values.astype(np.float32))
    bad |= _other_numbers(column, values, usable & ~bad)
    usable = usable & ~bad
    array = pa.array(values, mask=inverse(usable))
    return (array if wanted.arrow == pa.float64() else array.cast(wanted.arrow, safe=False)), bad


def _other_numbers(column: SpanColumn, values: NDArray[np.float64], usable: Mask) -> Mask:
    """Where the nearest double is another number than the digits say."""
    strange: Mask = np.isinf(values) | (values == 0)
    large = column.of_kind(kernels.INT)
    if not strange.any() and not large.any():
        return strange
    lengths = column.end - column.start
    large &= usable & (lengths > SAFE_DIGITS)
    strange &= usable & (np.isinf(values) | (lengths > SHORTEST_UNDERFLOW))
    result: Mask = large | strange
    rows = np.flatnonzero(result)
    if not len(rows):
        return result
    words, _ = text(column.take(rows), np.ones(len(rows), np.bool_))
    nearest = pa.array(values[rows])
    said = pc.match_substring_regex(words, r"(?i)^[+-]?inf|^[+-]?[0.]+(e|$)")
    # Writers print whole doubles by their shortest digits: those are right too, though their value differs a little.
    digits, unknown = cast_each(words, pa.decimal128(38, 0))
    shown, _ = cast_each(nearest.cast(pa.string()), pa.decimal128(38, 0))
    same = true_mask(pc.equal(digits, shown)) & ~unknown
    exact, too_large = cast_each(digits, pa.int64())
    as_double = np.asarray(exact.fill_null(0)).astype(np.float64)
    whole = np.abs(as_double) < 2.0**63
    back = np.where(whole, as_double, 0.0).astype(np.int64)
    same |= whole & ~too_large & ~unknown & (back == np.asarray(exact.fill_null(0)))
    result[rows] = np.where(strange[rows], ~true_mask(said), ~same)
    return result


def temporals(column: SpanColumn, wanted: ValueType) -> Decoded:
    """Dates, times and timestamps from text or integers."""
    is_text = column.of_kind(*TEXT_KINDS)
    if is_text.any():
        words, _ = text(column, is_text)
        styled = wanted.encoding in DATE_STYLES
        read = (
            temporal.from_style(words, wanted.arrow, wanted.encoding)
            if styled
            else temporal.from_text(words, wanted.arrow)
        )
        from_text, bad = read
        numbers = column.has_value & ~is_text
        if not numbers.any():
            return from_text, bad
        from_number, wrong = temporals(only(column, numbers), wanted)
        return pc.coalesce(from_text, from_number), bad | wrong
    values, valid, none = whole_numbers(column)
    array, outside = temporal.from_integers(values, valid, wanted.arrow, wanted.encoding)
    return array, none | outside


def only(column: SpanColumn, mask: Mask) -> SpanColumn:
    """The column with null wherever `mask` is false."""
    return SpanColumn(column.data, column.start, column.end, np.where(mask, column.kind, np.int8(kernels.NULL)))
