"""The data that evaluation works on: Arrow arrays as NumPy views, truth masks, failed rows, and how kernels return results."""

import decimal
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from nevermore.scan_core.expr.coercion import BOOLEAN, decimal_of
from nevermore.scan_core.model.schema import Type, arrow_type
from nevermore.scan_core.rows.buffers import Mask, bits, validity

Operand: TypeAlias = pa.Array | pa.Scalar


@dataclass(frozen=True, slots=True, eq=False)
class Vector:
    """Values, one per row or one scalar for all. Rows in `failed` hold NULL; `reason` says why the first one failed."""

    values: Operand
    failed: Mask | None = None
    reason: str = ""


@dataclass(frozen=True, slots=True, eq=False)
class Truth:
    """Truth values: `true`, `unknown` (NULL) and `failed` are disjoint; all other rows are false.

    `unknown` is None where the caller does not need to distinguish NULL from false.
    """

    true: Mask
    unknown: Mask | None = None
    failed: Mask | None = None
    reason: str = ""


def union(left: Mask | None, right: Mask | None) -> Mask | None:
    """Rows in either mask."""
    if left is None:
        return right
    return left if right is None else left | right


def minus(mask: Mask | None, removed: Mask | None) -> Mask | None:
    """Rows of `mask` that are not in `removed`."""
    return mask if mask is None or removed is None else mask & ~removed


def null_mask(array: pa.Array) -> Mask | None:
    """Mask of NULL rows; None if no row is NULL."""
    valid = validity(array)
    return None if valid is None else ~valid


def fixed_values(array: pa.Array) -> npt.NDArray[np.generic]:
    """The values of an array of fixed width as a view; values of NULL rows are arbitrary."""
    dtype = _VIEW_DTYPES[array.type.bit_width] if pa.types.is_temporal(array.type) else array.type.to_pandas_dtype()
    buffer = array.buffers()[1]
    if buffer is None:
        return np.zeros(len(array), dtype=dtype)
    return np.frombuffer(buffer, dtype=dtype)[array.offset : array.offset + len(array)]


_VIEW_DTYPES = {32: np.int32, 64: np.int64}


def short_decimal_values(array: pa.Array) -> npt.NDArray[np.int64]:
    """The unscaled values of a decimal128 of at most 18 digits: the low words of its 16 bytes."""
    buffer = array.buffers()[1]
    if buffer is None:
        return np.zeros(len(array), dtype=np.int64)
    words = np.frombuffer(buffer, dtype=np.int64)
    return words[2 * array.offset : 2 * (array.offset + len(array)) : 2]


def boolean_values(array: pa.Array) -> Mask:
    """The values of a boolean array; values of NULL rows are arbitrary."""
    buffer = array.buffers()[1]
    return np.zeros(len(array), dtype=np.bool_) if buffer is None else bits(buffer, array.offset, len(array))


def array_of(values: npt.NDArray[np.generic], null: Mask | None, type_: Type) -> pa.Array:
    """An array of a primitive type of fixed width from values in its representation."""
    target = arrow_type(type_)
    if pa.types.is_boolean(target):
        data = np.packbits(values.astype(np.bool_, copy=False), bitorder="little")
    else:
        dtype = _VIEW_DTYPES[target.bit_width] if pa.types.is_temporal(target) else target.to_pandas_dtype()
        data = np.ascontiguousarray(values, dtype=dtype)
    bitmap = None if null is None or not null.any() else pa.py_buffer(np.packbits(~null, bitorder="little"))
    return pa.Array.from_buffers(target, len(values), [bitmap, pa.py_buffer(data)])


def with_nulls(array: pa.Array, null: Mask | None) -> pa.Array:
    """The array with NULL also in the rows of `null`."""
    if null is None or not null.any():
        return array
    return pc.if_else(pa.array(null), pa.scalar(None, array.type), array)


def array_from(operand: Operand, num_rows: int) -> pa.Array:
    """The operand as an array, one value per row."""
    return operand if isinstance(operand, pa.Array) else pa.repeat(operand, num_rows)


def is_null_scalar(operand: Operand) -> bool:
    """Whether the vector is a constant NULL."""
    return isinstance(operand, pa.Scalar) and not operand.is_valid


def failures(vectors: Sequence[Vector]) -> tuple[Mask | None, str]:
    """Rows in which any of the vectors failed, and why."""
    failed, reason = None, ""
    for vector in vectors:
        failed, reason = union(failed, vector.failed), reason or vector.reason
    return failed, reason


def truth_of_array(array: pa.Array) -> Truth:
    """A boolean array as truth values."""
    values, null = boolean_values(array), null_mask(array)
    return Truth(values if null is None else values & ~null, null)


def array_of_truth(truth: Truth) -> pa.Array:
    """Truth values as a boolean array; NULL where unknown or failed."""
    return array_of(truth.true, union(truth.unknown, truth.failed), BOOLEAN)


SHORT_DECIMAL_DIGITS = 18
"""Decimals up to here fit 64 bits."""


OVERFLOW = "overflow"

Kernel = Callable[[tuple[Operand, ...], tuple[Type, ...], Type], Vector]
"""Evaluated arguments, their types, the result type -> the result. At least one argument is an array."""


def nulls_of(*operands: Operand) -> Mask | None:
    """Rows in which an argument is NULL."""
    result = None
    for operand in operands:
        if isinstance(operand, pa.Array):
            result = union(result, null_mask(operand))
    return result


def outcome(values: npt.NDArray[Any], null: Mask | None, failed: Mask | None, type_: Type, reason: str) -> Vector:
    """Values of fixed width; rows that failed hold NULL, NULL rows do not fail."""
    if failed is not None:
        failed = failed & ~null if null is not None else failed
        if not failed.any():
            failed = None
    return Vector(array_of(values, union(null, failed), type_), failed, reason if failed is not None else "")


def rounded_decimal(exact: pa.Array, null: Mask | None, result: Type) -> Vector:
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


def decimal_array(unscaled: npt.NDArray[np.int64], null: Mask | None, scale: int) -> pa.Array:
    """64-bit unscaled values as decimal128(18, scale)."""
    words = np.empty((len(unscaled), 2), dtype=np.int64)
    words[:, 0] = unscaled
    words[:, 1] = unscaled >> 63
    bitmap = None if null is None else pa.py_buffer(np.packbits(~null, bitorder="little"))
    buffers = [bitmap, pa.py_buffer(words.reshape(-1))]
    return pa.Array.from_buffers(pa.decimal128(SHORT_DECIMAL_DIGITS, scale), len(unscaled), buffers)
