"""What a kernel is, and how it gives its result: values with NULL where a row failed, and which rows did."""

import decimal
from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from scan_core.expr.coercion import decimal_of
from scan_core.expr.compare import SHORT_DECIMAL_DIGITS
from scan_core.expr.vectors import BoolMask, Operand, Vector, array_of, null_mask, union, with_nulls
from scan_core.schema import Type, arrow_type

OVERFLOW = "overflow"

Kernel = Callable[[tuple[Operand, ...], tuple[Type, ...], Type], Vector]
"""Evaluated arguments, their types, the result type -> the result. At least one argument is an array."""


def nulls_of(*operands: Operand) -> BoolMask | None:
    """Rows in which an argument is NULL."""
    result = None
    for operand in operands:
        if isinstance(operand, pa.Array):
            result = union(result, null_mask(operand))
    return result


def outcome(
    values: npt.NDArray[Any], null: BoolMask | None, failed: BoolMask | None, type_: Type, reason: str
) -> Vector:
    """Values of fixed width; rows that failed hold NULL, NULL rows do not fail."""
    if failed is not None:
        failed = failed & ~null if null is not None else failed
        if not failed.any():
            failed = None
    return Vector(array_of(values, union(null, failed), type_), failed, reason if failed is not None else "")


def rounded_decimal(exact: pa.Array, null: BoolMask | None, result: Type) -> Vector:
    """Exact values rounded half up to a decimal type; what does not fit fails."""
    precision, scale = decimal_of(result)
    if exact.type.scale > scale:
        wide = exact.cast(pa.decimal256(76, exact.type.scale))
        exact = pc.round(wide, ndigits=scale, round_mode="half_towards_infinity")
    rounded = exact.cast(pa.decimal256(76, scale))
    limit = pa.scalar(decimal.Decimal(10) ** (precision - scale), rounded.type)
    failed = np.asarray(pc.fill_null(pc.greater_equal(pc.abs(rounded), limit), False))
    if null is not None:
        failed = failed & ~null
        rounded = with_nulls(rounded, null)
    if failed.any():
        return Vector(with_nulls(rounded, failed).cast(arrow_type(result)), failed, f"{OVERFLOW} of {result}")
    return Vector(rounded.cast(arrow_type(result)))


def decimal_array(unscaled: npt.NDArray[np.int64], null: BoolMask | None, scale: int) -> pa.Array:
    """64-bit unscaled values as decimal128(18, scale)."""
    words = np.empty((len(unscaled), 2), dtype=np.int64)
    words[:, 0] = unscaled
    words[:, 1] = unscaled >> 63
    validity = None if null is None else pa.py_buffer(np.packbits(~null, bitorder="little"))
    buffers = [validity, pa.py_buffer(words.reshape(-1))]
    return pa.Array.from_buffers(pa.decimal128(SHORT_DECIMAL_DIGITS, scale), len(unscaled), buffers)
