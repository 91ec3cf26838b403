"""Arrow casts that tell which values failed instead of failing as a whole."""

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

_EXPONENT = 0x65
_LOWER_CASE = 0x20
_MOST_DIGITS = 38
_CLOSE = 1e-6
"""A decimal that wrapped around is another number by far more."""


def cast_each(array: pa.Array, arrow: pa.DataType) -> tuple[pa.Array, NDArray[np.bool_]]:
    """`array` as `arrow`, NULL where a value cannot be one, and the mask of those.

    The clean case is one cast; otherwise halves are tried, so the cost grows with the number of bad values.
    """
    bad = np.zeros(len(array), np.bool_)
    parts: list[pa.Array] = []
    pending = [(0, len(array))]
    while pending:
        first, last = pending.pop()
        piece = array.slice(first, last - first)
        try:
            parts.append(piece.cast(arrow))
        except pa.ArrowInvalid:
            if last - first == 1:
                bad[first] = True
                parts.append(pa.nulls(1, arrow))
            else:
                middle = (first + last) // 2
                pending += [(middle, last), (first, middle)]
    values = parts[0] if len(parts) == 1 else pa.concat_arrays(parts)
    wrapped = _wrapped(array, values)
    if not wrapped.any():
        return values, bad
    return pc.if_else(pa.array(wrapped), pa.scalar(None, arrow), values), bad | wrapped


def _wrapped(given: pa.Array, values: pa.Array) -> NDArray[np.bool_]:
    """Which numbers became other ones: Arrow's casts to decimals wrap around silently beyond 38 digits."""
    wrapped = np.zeros(len(given), np.bool_)
    if not pa.types.is_decimal128(values.type) or not _may_wrap(given, values.type.scale):
        return wrapped
    rows = np.flatnonzero(np.asarray(values.is_valid()))
    chosen = given.take(pa.array(rows))
    if _is_text(chosen.type):
        text = pc.utf8_ltrim(chosen.cast(pa.string()), "+")
        expected = np.asarray(text.cast(pa.float64()))
        vanished = (expected == 0) & np.asarray(pc.match_substring_regex(text, "^[^eE]*[1-9]"), np.bool_)
    else:
        expected = np.asarray(chosen.cast(pa.float64()))
        vanished = np.zeros(len(rows), np.bool_)
    found = np.asarray(values.take(pa.array(rows)).cast(pa.float64()))
    with np.errstate(invalid="ignore"):
        close = np.abs(expected - found) <= _CLOSE * np.abs(found)
    wrapped[rows] = ~close | vanished
    return wrapped


def _may_wrap(given: pa.Array, scale: int) -> bool:
    """Whether a number may have more than 38 digits on the way to a decimal of this scale."""
    kind = given.type
    if pa.types.is_decimal(kind):
        return bool(kind.precision + scale - kind.scale > _MOST_DIGITS)
    if pa.types.is_integer(kind):
        return scale + 20 > _MOST_DIGITS
    if not _is_text(kind) or not len(given):
        return False
    text = given.cast(pa.string())
    longest = pc.max(pc.binary_length(text)).as_py() or 0
    if longest + max(scale, 0) > _MOST_DIGITS:
        return True
    data = text.buffers()[2]
    return data is not None and bool(((np.frombuffer(data, np.uint8) | _LOWER_CASE) == _EXPONENT).any())


def _is_text(kind: pa.DataType) -> bool:
    held = kind.value_type if pa.types.is_dictionary(kind) else kind
    return bool(pa.types.is_string(held) or pa.types.is_large_string(held) or pa.types.is_string_view(held))
