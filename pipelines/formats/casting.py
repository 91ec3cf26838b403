"""Arrow casts that tell which values failed instead of failing as a whole.

Arrow reads numbers beyond the bounds of its tables: it wraps around, gives another number, or ends the process
(`1e-999999999` as a decimal). So whatever may pass those bounds is brought within them, or refused, before it is cast.
"""

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

Mask = NDArray[np.bool_]

MAX_NUMBER_CHARACTERS = 4_096
"""Longer text is no number: a double's exact digits take 1,100 characters, and a decimal's 40."""
_MOST_DIGITS = 38
_EXPONENT = 0x65
_LOWER_CASE = 0x20
_MOST_EXPONENT_DIGITS = 6
"""Exponents of more digits move any digits of a number out of all types."""
_NUMBER = (
    r"^(?P<sign>[+-]?)(?P<whole>[0-9]*)\.?(?P<fraction>[0-9]*)"
    r"(?:[eE](?P<power_sign>[+-]?)0*(?P<power>[0-9]*)(?P<power_end>[0-9]))?$"
)


def cast_each(array: pa.Array, arrow: pa.DataType) -> tuple[pa.Array, Mask]:
    """`array` as `arrow`, NULL where a value cannot be one, and the mask of those.

    The clean case is one cast; otherwise halves are tried, so the cost grows with the number of bad values.
    """
    held = array.type
    if pa.types.is_temporal(held) and pa.types.is_string(arrow):
        return _shown(array)
    if pa.types.is_timestamp(held) and (pa.types.is_date(arrow) or pa.types.is_time(arrow)):
        return _moments(array, arrow)
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
        except pa.ArrowNotImplementedError:  # no value of the one type is one of the other
            return pa.nulls(len(array), arrow), np.asarray(array.is_valid())
        except pa.ArrowInvalid:
            if last - first == 1:
                bad[first] = True
                parts.append(pa.nulls(1, arrow))
            else:
                middle = (first + last) // 2
                pending += [(middle, last), (first, middle)]
    return (parts[0] if len(parts) == 1 else pa.concat_arrays(parts)), bad


def _moments(array: pa.Array, arrow: pa.DataType) -> tuple[pa.Array, Mask]:
    """The days or times of timestamps: from microseconds, as Arrow's wrap around where those do not hold a timestamp."""
    if array.type.unit not in {"s", "ms"}:
        return _cast(array, arrow)
    micros, none = _cast(array, pa.timestamp("us", array.type.tz))
    values, bad = _cast(micros, arrow)
    return values, bad | none


def _shown(array: pa.Array) -> tuple[pa.Array, Mask]:
    """Temporal values as text; Arrow writes a remark in place of those beyond the year 32767."""
    values, bad = _cast(array, pa.string())
    remarks = np.asarray(pc.fill_null(pc.starts_with(values, "<"), False))
    return pc.if_else(pa.array(remarks), pa.scalar(None, pa.string()), values), bad | remarks


def _may_pass_bounds(given: pa.Array, scale: int) -> bool:
    """Whether a number may have more than 38 digits on the way to a decimal of this scale, or an exponent.

    Floats always: Arrow rounds them, and the digits that they are written with tell whether they are a decimal.
    """
    kind = given.type
    if pa.types.is_floating(kind):
        return True
    if pa.types.is_decimal(kind):
        added = scale - kind.scale
        return bool(kind.precision + added > _MOST_DIGITS and _most_digits(given) + added > _MOST_DIGITS)
    if pa.types.is_integer(kind):
        return scale + 20 > _MOST_DIGITS
    if not _is_text(kind) or not len(given):
        return False
    text = given.cast(pa.string())
    if (pc.max(pc.binary_length(text)).as_py() or 0) + scale > _MOST_DIGITS:
        return True
    data = text.buffers()[2]
    return data is not None and bool(((np.frombuffer(data, np.uint8) | _LOWER_CASE) == _EXPONENT).any())


def _most_digits(given: pa.Array) -> int:
    """Digits of the largest decimal, those of its fraction included."""
    ends = pc.min_max(given).as_py()
    return max((len(value.as_tuple().digits) for value in ends.values() if value is not None), default=0)


def _is_text(kind: pa.DataType) -> bool:
    held = kind.value_type if pa.types.is_dictionary(kind) else kind
    return bool(pa.types.is_string(held) or pa.types.is_large_string(held) or pa.types.is_string_view(held))


def _bounded(text: pa.StringArray, arrow: pa.DataType) -> tuple[pa.StringArray, Mask]:
    """The numbers with exponents and lengths that Arrow's casts to this decimal bear, NULL where there is no such number.

    Digits are written without the zeros around them, so that those which remain and their exponent tell whether the
    number fits: one that does passes no bound on its way.
    """
    lengths = pc.fill_null(pc.binary_length(text), 0)
    odd = np.asarray(pc.greater(lengths, _MOST_DIGITS - arrow.scale))
    odd |= np.asarray(pc.fill_null(pc.match_substring(text, "e", ignore_case=True), False))
    refused = np.zeros(len(text), np.bool_)
    rows = np.flatnonzero(odd)
    if not len(rows):
        return text, refused
    written, none = _normal(text.take(pa.array(rows)), arrow)
    refused[rows] = none
    return pc.replace_with_mask(text, pa.array(odd), written), refused


def _normal(text: pa.StringArray, arrow: pa.DataType) -> tuple[pa.StringArray, Mask]:
    usable = pc.if_else(pc.less_equal(pc.binary_length(text), MAX_NUMBER_CHARACTERS), text, "")
    parts = pc.extract_regex(usable, _NUMBER)
    sign, whole, fraction, power_sign, power, power_end = (
        pc.fill_null(pc.struct_field(parts, name), "")
        for name in ("sign", "whole", "fraction", "power_sign", "power", "power_end")
    )
    digits = pc.binary_join_element_wise(whole, fraction, "")
    significant = pc.ascii_ltrim(digits, "0")
    point = _lengths(whole) - (_lengths(digits) - _lengths(significant)) + _powers(power_sign, power, power_end)
    significant = pc.ascii_rtrim(significant, "0")
    count = _lengths(significant)
    is_zero = count == 0
    fits = is_zero | ((count - point <= arrow.scale) & (point <= arrow.precision - arrow.scale))
    fits &= _lengths(digits) > 0
    exponent = pa.array(np.where(is_zero | ~fits, 0, point - count)).cast(pa.string())
    significant = pc.if_else(pa.array(is_zero), "0", significant)
    written = pc.binary_join_element_wise(pc.binary_join_element_wise(sign, significant, ""), exponent, "E")
    return pc.if_else(pa.array(fits), written, pa.scalar(None, pa.string())), ~fits & np.asarray(text.is_valid())


def _powers(sign: pa.StringArray, head: pa.StringArray, last: pa.StringArray) -> NDArray[np.int64]:
    """Exponents of ten; beyond a million one that is as good."""
    digits = pc.binary_join_element_wise(head, last, "")
    digits = pc.if_else(
        pc.greater(pc.binary_length(digits), _MOST_EXPONENT_DIGITS), "9" * _MOST_EXPONENT_DIGITS, digits
    )
    size = np.asarray(pc.if_else(pc.equal(digits, ""), "0", digits).cast(pa.int64()))
    return np.where(np.asarray(pc.equal(sign, "-")), -size, size)


def _lengths(text: pa.StringArray) -> NDArray[np.int64]:
    return np.asarray(pc.binary_length(text)).astype(np.int64)
