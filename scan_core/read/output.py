"""Results from the surviving rows of a row group: record batches of limited size, or aggregates.

Which rows survive is decided before. Batches avoid copies: untouched row groups and long runs of survivors are sliced.
Where most rows survive, the others are dropped batch by batch, so that memory for one batch is needed at a time.

Aggregates are min, max, sum and count of single columns, computed without making the rows: dense selections are applied as masks
inside the kernels, a cache-sized block at a time, and sparse ones are decoded alone. Partial results combine in the order of the row
groups of a split, and then of the splits, so the number of threads does not change a float sum.
"""

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from decimal import Decimal
from itertools import pairwise
from typing import Any, Literal, TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.types as pt

from nevermore.scan_core.columns.conversion import repeat
from nevermore.scan_core.columns.file_reader import MemoryBudget, halves
from nevermore.scan_core.model.cached_property import cached_property
from nevermore.scan_core.model.options import ScanMetrics
from nevermore.scan_core.model.schema import NestedField
from nevermore.scan_core.model.snapshot import DataFile
from nevermore.scan_core.read.projection import (
    METADATA_IDS,
    Constant,
    FileProjection,
    FromFile,
    LazyColumns,
    MetadataSource,
)
from nevermore.scan_core.read.restriction import ValueSource, file_columns_of, values_of
from nevermore.scan_core.rows.buffers import Mask, boolean_array, index_array, numbers, validity
from nevermore.scan_core.rows.selection import (
    All,
    RowSelection,
    row_count,
    runs,
    select_rows,
    selected_count,
    slice_selection,
    to_indices,
    to_mask,
)
from nevermore.scan_core.split.tasks import ScanContext

_LONG_RUN_ROWS = 16_384
"""Minimum average length of runs to slice: a batch this long costs less than copying its rows."""


class OutputColumns:
    """Produces the result's columns from one data file; `fields` is empty if rows are only counted."""

    def __init__(
        self, projection: FileProjection, context: ScanContext, data_file: DataFile, fields: Sequence[NestedField]
    ) -> None:
        """Resolve every column; MalformedTableError if a required one is missing."""
        self._projection = context.projection
        self._batch_rows = context.options.batch_rows
        self.sources: list[ValueSource] = [
            MetadataSource(field, data_file, projection, context.specs)
            if field.field_id in METADATA_IDS
            else projection.part(context.parts[field.field_id])
            if field.field_id in context.parts
            else projection.column(field)
            if len(context.field_paths[field.field_id]) == 1
            else projection.leaf(field.field_id, field.type)
            for field in fields
        ]
        self._indices = tuple(dict.fromkeys(s.index for s in self.sources if isinstance(s, FromFile)))
        self.file_columns = frozenset(i for s in self.sources for i in file_columns_of(s))

    @cached_property
    def _schema(self) -> pa.Schema:
        return self._projection.arrow_schema()

    def batches(
        self, columns: LazyColumns, selection: RowSelection, budget: MemoryBudget, metrics: ScanMetrics
    ) -> Iterator[pa.RecordBatch]:
        """The selected rows of a row group, in order, in batches of at most `batch_rows` rows.

        If the decoded columns exceed the budget, they are discarded and the row group is read again in halves.
        """
        count = selected_count(selection)
        if count == 0:
            return
        self._batch_rows = budget.batch_rows()
        is_most = 2 * count >= row_count(selection)  # with fewer, only the pages that hold them are read
        base: RowSelection = selection
        bounds, is_whole = self._pieces(0, count), True
        if is_most and columns.is_untouched(self._indices):
            # these columns were not narrowed yet, so they can be loaded whole: long runs of survivors are sliced from them,
            # and other survivors are copied batch by batch, which keeps one batch in memory instead of a second row group
            if (long_runs := self._long_runs(selection)) is not None:
                base, bounds = All(row_count(selection)), long_runs
            elif columns.window is None:
                base, bounds, is_whole = All(row_count(selection)), self._stretches(selection), False
        stored = dict(zip(self._indices, columns.load(self._indices, base), strict=True))
        if budget.is_exceeded(sum(array.nbytes for array in stored.values())) and (parts := halves(selection)):
            # the columns are larger than their compressed sizes suggested: discard them, and read each half separately
            metrics.retries += 1
            stored.clear()
            for part, window in parts:
                yield from self.batches(columns.undecoded(window), part, budget, metrics)
            return
        made = [s.values(columns, base) if isinstance(s, MetadataSource) else None for s in self.sources]
        for start, end in bounds:
            wanted = All(end - start) if is_whole else slice_selection(selection, start, end - start)
            rows = selected_count(wanted)
            found = dict(zip(stored, _rows([*stored.values()], wanted, start, end), strict=True))
            arrays = [
                self._values(source, found, None if whole is None else _rows([whole], wanted, start, end)[0], rows)
                for source, whole in zip(self.sources, made, strict=True)
            ]
            if arrays:
                batch = pa.RecordBatch.from_arrays(arrays, schema=self._schema)
                budget.record_batch(batch.num_rows, batch.nbytes)
                yield batch
            else:
                yield _columnless(rows)

    @staticmethod
    def _values(source: ValueSource, found: dict[int, pa.Array], made: pa.Array | None, num_rows: int) -> pa.Array:
        match source:
            case FromFile(index, convert):
                values = convert(found[index])
                return values.dictionary_decode() if isinstance(values, pa.DictionaryArray) else values
            case Constant(value):
                return repeat(value, num_rows)
            case MetadataSource():
                assert made is not None  # noqa: S101  computed above for every metadata column
                return made

    def _pieces(self, start: int, end: int) -> list[tuple[int, int]]:
        size = self._batch_rows
        return [(i, min(i + size, end)) for i in range(start, end, size)]

    def _stretches(self, selection: RowSelection) -> list[tuple[int, int]]:
        """Start and end of each batch in the row group, including the rows to drop in between."""
        rows = to_indices(selection)
        edges = [*rows[:: self._batch_rows].tolist(), int(rows[-1]) + 1]
        return list(pairwise(edges))

    def _long_runs(self, selection: RowSelection) -> list[tuple[int, int]] | None:
        """Runs of selected rows, split at the batch size, if they are long enough to be sliced."""
        starts, ends = runs(selection)
        if len(starts) * _LONG_RUN_ROWS > int((ends - starts).sum()) and len(starts) > 1:
            return None
        return [
            piece
            for start, end in zip(starts.tolist(), ends.tolist(), strict=True)
            for piece in self._pieces(start, end)
        ]


def _rows(arrays: list[pa.Array], wanted: RowSelection, start: int, end: int) -> list[pa.Array]:
    """The wanted rows of each array between `start` and `end`."""
    return select_rows([array.slice(start, end - start) for array in arrays], wanted)


def _columnless(num_rows: int) -> pa.RecordBatch:
    """A batch with a number of rows but no columns."""
    return pa.RecordBatch.from_struct_array(pa.Array.from_buffers(pa.struct([]), num_rows, [None], children=[]))


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
    mask: Mask | None = None
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


def _one(function: Function, array: pa.Array, mask: Mask | None) -> Partial:
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


def _sum(array: pa.Array, mask: Mask | None) -> Partial:
    if pt.is_decimal(array.type):
        total = _chosen(array, mask).cast(pa.decimal256(76, array.type.scale)).sum().as_py()
        return total if isinstance(total, Decimal) else None
    values = numbers(array)
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
    values = numbers(array)
    if function == "max":
        return pa.scalar(float(np.max(values)), array.type)  # a NaN wins
    return pa.scalar(float(np.fmin.reduce(values)), array.type)  # NaN only if all are


def _used_values(array: pa.DictionaryArray, mask: Mask | None) -> pa.Array:
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


def _chosen(array: pa.Array, mask: Mask | None) -> pa.Array:
    return array if mask is None else array.filter(boolean_array(mask))
