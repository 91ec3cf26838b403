"""Casts on columns with Spark's ANSI meaning."""

from contextlib import suppress
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from nevermore.scan_core.expr.coercion import (
    BYTES,
    FLOATING,
    INTEGRAL,
    TIMESTAMPS,
    decimal_of,
    name_of,
    value_of_text,
)
from nevermore.scan_core.expr.compare import numbers
from nevermore.scan_core.expr.literals import INT_RANGE, LONG_RANGE
from nevermore.scan_core.expr.temporal import DAY_MICROS
from nevermore.scan_core.expr.vectors import (
    OVERFLOW,
    Vector,
    decimal_array,
    null_mask,
    nulls_of,
    outcome,
    rounded_decimal,
    union,
    with_nulls,
)
from nevermore.scan_core.model.schema import Type, arrow_type
from nevermore.scan_core.model.statistics import text_of
from nevermore.scan_core.rows.buffers import Mask

_WIDEST = pa.decimal256(76, 37)
_TOO_LARGE_FOR_DECIMAL, _TOO_SMALL_FOR_DECIMAL = 1e38, 1e-21


def timestamps_to_text(array: pa.Array, source: Type) -> pa.Array:
    """Spark's text of timestamps and times: fractions without trailing zeros."""
    target = arrow_type(source)
    naive = array.cast(pa.timestamp(target.unit)) if pa.types.is_timestamp(target) else array
    text = naive.cast(pa.string())
    text = pc.replace_substring_regex(text, pattern=r"(\.\d*?)0+Z?$", replacement=r"\1")
    return pc.replace_substring_regex(text, pattern=r"\.$", replacement="")


def cast(array: pa.Array, source: Type, target: Type) -> Vector:
    """Every value in the target type; NULL and failed where it has none."""
    names = name_of(source), name_of(target)
    if names[0] == "unknown":
        return Vector(pa.nulls(len(array), arrow_type(target)))
    if names[0] == "string":
        return _from_text(array, target)
    if names[0] in BYTES and names[1] == "string":
        return _text_of_bytes(array.cast(pa.binary()))
    if names[1] == "string":
        return Vector(_to_text(array, source))
    if names[0] in TIMESTAMPS | {"date"}:
        return _from_moment(array, source, target)
    if names[0] in BYTES:
        return Vector(array.cast(arrow_type(target)))
    return _from_number(array, source, target)


def _text_of_bytes(array: pa.Array) -> Vector:
    """Bytes as text; values that are not UTF-8 fail."""
    try:
        return Vector(array.cast(pa.string()))
    except pa.ArrowInvalid as error:
        failed = np.array([value is not None and text_of(value) is None for value in array.to_pylist()])
        return Vector(with_nulls(array, failed).cast(pa.string()), failed, str(error).partition("\n")[0])


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


def uuid_text(array: pa.Array) -> pa.Array:
    """Sixteen-byte values as lower-case text with hyphens, NULL kept."""
    if not len(array):  # it may have no buffer
        return pa.array([], pa.string())
    data = array.buffers()[1][16 * array.offset : 16 * (array.offset + len(array))]
    digits = pa.Array.from_buffers(pa.binary(32), len(array), [None, pa.py_buffer(data.to_pybytes().hex().encode())])
    text = pc.replace_substring_regex(
        digits.cast(pa.binary()).cast(pa.string()), pattern="^(.{8})(.{4})(.{4})(.{4})", replacement=r"\1-\2-\3-\4-"
    )
    return with_nulls(text, null_mask(array))


def _from_text(array: pa.Array, target: Type) -> Vector:
    """Values from text: Arrow reads the usual notation, `value_of_text` every other, once per distinct text."""
    if name_of(target) == "binary":
        return Vector(array.cast(pa.binary()))
    present = np.asarray(array.is_valid())
    usual, values = np.zeros(len(array), np.bool_), pa.nulls(len(array), arrow_type(target))
    if name_of(target) in _USUAL:
        found = np.asarray(pc.fill_null(pc.match_substring_regex(array, pattern=_USUAL[name_of(target)]), False))
        with suppress(pa.ArrowInvalid):  # one of them is no value, such as February 30th
            usual, values = found, _usual_values(with_nulls(array, ~found), target)
    odd = present & ~usual
    if odd.any():
        texts = array.filter(pa.array(odd)).dictionary_encode()
        read = _array_of_values([value_of_text(text, target) for text in texts.dictionary.to_pylist()], target)
        values = pc.replace_with_mask(values, pa.array(odd), read.take(texts.indices))
    failed = present & ~np.asarray(values.is_valid())
    return Vector(values, failed, f"a string is not a valid {target}") if failed.any() else Vector(values)


_NUMBER, _MOMENT = r"^-?\d{1,18}(?:\.\d{1,18})?$", r"^\d{4}-\d\d-\d\d[ T]\d\d:\d\d:\d\d(?:\.\d{1,6})?$"
_USUAL = {
    "int": r"^-?\d{1,9}$",
    "long": r"^-?\d{1,18}$",
    **dict.fromkeys(("float", "double", "decimal"), _NUMBER),
    "date": r"^\d{4}-\d\d-\d\d$",
    **dict.fromkeys(TIMESTAMPS, _MOMENT),
}
"""The notations in which Arrow reads the same values as Spark."""


def _usual_values(text: pa.Array, target: Type) -> pa.Array:
    if name_of(target) == "decimal":
        return rounded_decimal(text.cast(_WIDEST), null_mask(text), target).values
    kind = arrow_type(target)
    if name_of(target) in TIMESTAMPS:
        return text.cast(pa.timestamp(kind.unit)).view(kind)
    return text.cast(kind)


def _array_of_values(values: list[Any], target: Type) -> pa.Array:
    kind = arrow_type(target)
    if not pa.types.is_temporal(kind):
        return pa.array(values, kind)
    return pa.array(values, pa.int32() if kind.bit_width == 32 else pa.int64()).view(kind)


def uuid_values(text: pa.Array, matched: Mask) -> pa.Array:
    """The 16 bytes of uuids in text, with hyphens or without; NULL where the text was not matched."""
    usable = text if matched.all() else pc.if_else(pa.array(matched), text, pa.scalar("0" * 32, text.type))
    digits = pc.replace_substring(usable, pattern="-", replacement="")
    joined = pc.binary_join(pa.ListArray.from_arrays(pa.array([0, len(text)], pa.int32()), digits), "")
    data = pa.py_buffer(bytes.fromhex(joined[0].as_py()))
    return with_nulls(pa.Array.from_buffers(pa.binary(16), len(text), [None, data]), ~matched)
