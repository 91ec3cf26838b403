"""min, max, sum and count of single columns over the selected rows of a row group, without making those rows.

Dense selections are applied as masks inside the kernels, a cache-sized block at a time; sparse ones are decoded alone.
Partial results combine in the order of the row groups of a split, and then of the splits, so the number of threads does
not change a float sum.
"""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from decimal import Decimal
from typing import Any, Literal, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.types as pt

from nevermore.scan_core.read.lazy import LazyColumns
from nevermore.scan_core.read.restriction import ValueSource, file_columns_of, values_of
from nevermore.scan_core.rows.buffers import boolean_array, index_array, numbers, validity
from nevermore.scan_core.rows.selection import All, RowSelection, selected_count, to_mask

Function = Literal["count", "min", "max", "sum"]
Number: TypeAlias = int | float | Decimal
Partial: TypeAlias = Number | pa.Scalar | None
"""A number for sums and counts, an Arrow scalar for minima and maxima, None if there was no value."""

_BLOCK_ROWS = 32_768
_SAFE_ADDEND = 2**47
"""A block of such integers cannot overflow 64 bits."""
_MASKED_SHARE = 0.25
"""Below this share of survivors, copying them costs less than visiting every row."""


@dataclass(frozen=True, slots=True)
class Call:
    """One aggregate; `column` is its place in the projection, None for `count(*)`."""

    function: Function
    column: int | None


def aggregate_group(
    calls: Sequence[Call],
    sources: Sequence[ValueSource],
    columns: LazyColumns,
    selection: RowSelection,
) -> tuple[Partial, ...]:
    """Evaluate the calls over the selected rows of one row group.

    Args:
        calls: what to compute.
        sources: of the columns of the projection.
        columns: of the row group.
        selection: the rows that count.
    """
    count = selected_count(selection)
    if count == 0:
        return tuple(0 if call.function == "count" else None for call in calls)
    used = [sources[i] for i in dict.fromkeys(call.column for call in calls) if i is not None]
    indices = sorted({i for source in used for i in file_columns_of(source)})
    mask: npt.NDArray[np.bool_] | None = None
    is_masked = count < columns.row_group.num_rows and count >= _MASKED_SHARE * columns.row_group.num_rows
    if is_masked and columns.is_untouched(indices):
        mask, selection = to_mask(selection), All(columns.row_group.num_rows)
    columns.load(indices, selection)  # all at once: one call of the decoder
    results: list[Partial] = []
    for call in calls:
        if call.column is None:
            results.append(count)
            continue
        array = values_of(sources[call.column], columns, selection)
        results.append(_one(call.function, array, mask))
    return tuple(results)


def combine_all(calls: Sequence[Call], found: Iterable[Sequence[Partial]]) -> tuple[Partial, ...]:
    """Combine partial results as they come: those of a row group may be long texts, and are not kept."""
    answers: tuple[Partial, ...] = tuple(0 if call.function == "count" else None for call in calls)
    for more in found:
        answers = tuple(combine(call.function, a, b) for call, a, b in zip(calls, answers, more, strict=True))
    return answers


def combine(function: Function, left: Any, right: Any) -> Any:
    """Combine two partial results; NaN counts as larger than every number."""
    if left is None or right is None:
        return right if left is None else left
    if function in ("sum", "count"):
        return left + right
    first, second = _key(left), _key(right)
    is_left = first <= second if function == "min" else first >= second
    return left if is_left else right


def _key(scalar: Any) -> Any:
    value = scalar.value if hasattr(scalar, "value") and not pt.is_decimal(scalar.type) else scalar.as_py()
    return (math.isnan(value), value) if isinstance(value, float) else value


def _one(function: Function, array: pa.Array, mask: npt.NDArray[np.bool_] | None) -> Partial:
    valid = validity(array)
    if isinstance(array, pa.DictionaryArray) and array.dictionary.null_count:
        valid = np.asarray(array.is_valid())
    if valid is not None:
        mask = valid if mask is None else mask & valid
    if function == "count":
        return len(array) if mask is None else int(np.count_nonzero(mask))
    if mask is not None and not mask.any():
        return None
    if isinstance(array, pa.DictionaryArray):
        return _extreme(function, _used_values(array, mask))
    return _sum(array, mask) if function == "sum" else _extreme(function, _chosen(array, mask))


def _sum(array: pa.Array, mask: npt.NDArray[np.bool_] | None) -> Partial:
    if pt.is_decimal(array.type):
        total = _chosen(array, mask).cast(pa.decimal256(76, array.type.scale)).sum().as_py()
        return total if isinstance(total, Decimal) else None
    values = numbers(array, _stored(array.type))
    integer, floating = 0, 0.0
    for begin in range(0, len(values), _BLOCK_ROWS):
        block = values[begin : begin + _BLOCK_ROWS]
        if mask is not None:
            block = np.where(mask[begin : begin + _BLOCK_ROWS], block, block.dtype.type(0))
        if values.dtype.kind == "f":
            floating += float(block.sum(dtype=np.float64))
        elif block.min() >= -_SAFE_ADDEND and block.max() <= _SAFE_ADDEND:
            integer += int(block.sum(dtype=np.int64))
        else:
            integer += (int((block >> 32).sum()) << 32) + int((block & 0xFFFFFFFF).sum())
    return floating if values.dtype.kind == "f" else integer


def _extreme(function: Function, array: pa.Array) -> Partial:
    if not pt.is_floating(array.type):
        import pyarrow.compute as pc

        found: pa.Scalar = pc.min_max(array)[function]
        return found
    values = numbers(array, _stored(array.type))
    if function == "max":
        return pa.scalar(float(np.max(values)), array.type)  # a NaN wins
    return pa.scalar(float(np.fmin.reduce(values)), array.type)  # NaN only if all are


def _used_values(array: pa.DictionaryArray, mask: npt.NDArray[np.bool_] | None) -> pa.Array:
    """Dictionary values that occur in selected rows."""
    unused = len(array.dictionary)
    used = np.zeros(unused + 1, np.bool_)
    codes = numbers(array.indices.fill_null(0) if array.indices.null_count else array.indices)
    for begin in range(0, len(codes), _BLOCK_ROWS):
        block = codes[begin : begin + _BLOCK_ROWS]
        used[block if mask is None else np.where(mask[begin : begin + _BLOCK_ROWS], block, unused)] = True
        if used[:unused].all():
            break
    return array.dictionary.take(index_array(np.flatnonzero(used[:unused]))).drop_null()


def _chosen(array: pa.Array, mask: npt.NDArray[np.bool_] | None) -> pa.Array:
    return array if mask is None else array.filter(boolean_array(mask))


def _stored(kind: pa.DataType) -> str:
    """The NumPy type of values of an Arrow type."""
    return f"{'f' if pt.is_floating(kind) else 'i'}{kind.bit_width // 8}"
