"""Record batches of the result: decodes and converts the columns of the surviving rows, in batches of limited size.

Which rows survive is decided before. Copies are avoided: untouched row groups and long runs of survivors are sliced.
Where most rows survive, the others are dropped batch by batch, so that memory for one batch is needed at a time.
"""

from collections.abc import Iterator, Sequence
from itertools import pairwise

import pyarrow as pa

from nevermore.scan_core.columns.conversion import repeat
from nevermore.scan_core.columns.file_reader import MemoryBudget, halves
from nevermore.scan_core.model.cached_property import cached_property
from nevermore.scan_core.model.metrics import ScanMetrics
from nevermore.scan_core.model.schema import NestedField
from nevermore.scan_core.model.snapshot import DataFile
from nevermore.scan_core.read.lazy import LazyColumns
from nevermore.scan_core.read.projection import METADATA_IDS, Constant, FileProjection, FromFile, MetadataSource
from nevermore.scan_core.read.restriction import ValueSource, file_columns_of
from nevermore.scan_core.rows.selection import (
    All,
    RowSelection,
    row_count,
    runs,
    select_rows,
    selected_count,
    slice_selection,
    to_indices,
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
            elif columns.is_of_whole_group:
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
