"""Puts rows in order that may not fit into memory: by columns one after the other, or along a Z-order curve of several columns.

On a Z-order curve rows that are near each other in every column are near each other, so that filters on any of the columns skip
files and pages; in the usual order only filters on the first column do.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from nevermore.pipelines.changes.change_run import spread
from nevermore.pipelines.errors import ConfigError
from nevermore.pipelines.iceberg.row_shape import in_order, without_extensions
from nevermore.scan_core import Rows

_SAMPLES = 512
"""Rows of each part that determine where sorted parts begin."""
_CURVE_BITS = 62
"""Bits of a place on the curve, divided among the columns."""
_MAX_BITS = 12
"""Bits of one column: more ranges than files and pages have."""
_ZORDER = "zorder("


@dataclass(frozen=True, slots=True)
class Order:
    """An order of rows.

    Attributes:
        columns: the columns; without any, rows keep the order that they have.
        is_curve: whether all columns count alike, on a Z-order curve; otherwise each only for rows that are equal in those before.
    """

    columns: tuple[str, ...] = ()
    is_curve: bool = False

    @classmethod
    def parse(cls, text: str, split: Callable[[str], Sequence[str]]) -> "Order":
        """The order that `A,B` or `zorder(A,B)` describe; `split` splits names.

        Raises:
            ConfigError: no column, or a curve of only one.
        """
        inner = text.strip()
        is_curve = inner.lower().startswith(_ZORDER) and inner.endswith(")")
        names = tuple(split(inner[len(_ZORDER) : -1] if is_curve else text))
        if not names or len(set(names)) < len(names) or (is_curve and len(names) < 2):
            raise ConfigError(
                f"{text!r} is not an order: write A,B, or zorder(A,B) with at least two different columns"
            )
        return cls(names, is_curve)


AS_THEY_ARE = Order()


def sorted_rows(
    batches: Iterator[pa.RecordBatch],
    order: Order,
    limit_bytes: int,
    keys: Callable[[], Iterator[pa.RecordBatch]],
) -> Iterator[pa.Table]:
    """Rows in an order, in tables of about `limit_bytes`; more than that are sorted by parts, through files.

    Args:
        batches: the rows.
        order: the order.
        limit_bytes: Arrow bytes of rows that are sorted at once.
        keys: reads only the columns of the order, of the same rows in the same order.
    """
    held: list[pa.Table] = []
    size = 0
    for batch in batches:
        held.append(pa.Table.from_batches([batch]))
        size += batch.nbytes
        if size > limit_bytes:
            break
    else:
        if held:
            rows = pa.concat_tables(held)
            yield _in_order(rows, order, _Curve(order.columns, rows) if order.is_curve else None)
        return
    row_bytes = max(1, size // sum(table.num_rows for table in held))
    sampled = [sample(rows, order, first, step_of(limit_bytes, row_bytes)) for first, rows in _numbered(keys())]
    parts = Parts.of(pa.concat_tables(sampled), order)
    rest = (pa.Table.from_batches([batch]) for batch in batches)
    seen = 0

    def part_of(rows: pa.Table) -> Rows:
        nonlocal seen
        numbers = np.arange(seen, seen + rows.num_rows)
        seen += rows.num_rows
        return parts.part_of(rows, numbers)

    for part in spread(chain(_drained(held), rest), part_of, parts.count):
        yield parts.in_order(part)


def step_of(limit_bytes: int, row_bytes: int) -> int:
    """Every how many rows one is sampled, so that `Parts` have about `limit_bytes` of rows."""
    return max(1, limit_bytes // row_bytes // _SAMPLES)


def sample(rows: pa.Table, order: Order, first: int, step: int) -> pa.Table:
    """The columns to sort by of every `step`-th row, with the number of the row; that of the first of `rows` is `first`."""
    chosen = np.arange(-first % step, rows.num_rows, step)
    return rows.select(list(order.columns)).take(pa.array(chosen)).append_column(_NUMBER, pa.array(chosen + first))


def _numbered(batches: Iterator[pa.RecordBatch]) -> Iterator[tuple[int, pa.Table]]:
    seen = 0
    for batch in batches:
        yield seen, pa.Table.from_batches([batch])
        seen += batch.num_rows


@dataclass(frozen=True, slots=True)
class Parts:
    """Parts of rows in an order: each can be sorted on its own, and they follow each other.

    Attributes:
        order: the order.
        bounds: what `_keys` gives for the first row of each part but the first.
        curve: the places of rows, if the order is one along a curve.
    """

    order: Order
    bounds: pa.Table
    curve: "_Curve | None"

    @classmethod
    def of(cls, sampled: pa.Table, order: Order) -> "Parts":
        """The parts of rows of which some were sampled."""
        curve = _Curve(order.columns, sampled) if order.is_curve else None
        keys = _sorted(_keys(sampled, order, curve, sampled.column(_NUMBER)))
        return cls(order, keys.take(pa.array(np.arange(_SAMPLES, keys.num_rows, _SAMPLES))), curve)

    @property
    def count(self) -> int:
        """Number of parts."""
        count: int = self.bounds.num_rows + 1
        return count

    def part_of(self, rows: pa.Table, numbers: Rows) -> Rows:
        """The part of each row: the number of bounds that are not above it. Equal rows are told apart by their numbers."""
        own = _keys(rows, self.order, self.curve, pa.chunked_array([numbers]))
        return _parts(pa.concat_tables([self.bounds, own]), self.bounds.num_rows)

    def in_order(self, rows: pa.Table) -> pa.Table:
        """Rows of one part in order."""
        return _in_order(rows, self.order, self.curve)


def _in_order(rows: pa.Table, order: Order, curve: "_Curve | None") -> pa.Table:
    if curve is None:
        return in_order(rows, order.columns)
    return rows.take(pc.sort_indices(pa.array(curve.places(rows))))


def _drained(tables: list[pa.Table]) -> Iterator[pa.Table]:
    """The tables, which are not held longer than needed."""
    tables.reverse()
    while tables:
        yield tables.pop()


_NUMBER = "\0number"


class _Curve:
    """A Z-order curve through rows whose values are divided into ranges of about as many rows each."""

    def __init__(self, columns: Sequence[str], sampled: pa.Table) -> None:
        self._columns = columns
        self._bits = min(_MAX_BITS, _CURVE_BITS // len(columns))
        self._bounds = [self._ranges(column) for column in _plain(sampled, columns)]

    def _ranges(self, column: pa.ChunkedArray) -> pa.ChunkedArray:
        """The values at which ranges begin. Values that are frequent are ranges of their own."""
        ordered = column.take(pc.sort_indices(column)).drop_null()
        count = min(1 << self._bits, max(len(ordered), 1)) - 1
        places = np.unique(np.linspace(0, len(ordered), count + 1, endpoint=False).astype(np.int64)[1:])
        found = pc.unique(ordered.take(pa.array(places)))
        return pa.chunked_array([found])

    def places(self, rows: pa.Table) -> Rows:
        """The place of each row on the curve. NULL comes after all values."""
        place = np.zeros(rows.num_rows, np.int64)
        for number, (column, bounds) in enumerate(zip(_plain(rows, self._columns), self._bounds, strict=True)):
            ranks = _num_below(column, bounds)
            for bit in range(self._bits):
                place |= ((ranks >> bit) & 1) << (bit * len(self._columns) + len(self._columns) - 1 - number)
        return place


def _plain(rows: pa.Table, columns: Sequence[str]) -> list[pa.ChunkedArray]:
    return list(without_extensions(rows.select(list(columns))).columns)


def _num_below(column: pa.ChunkedArray, bounds: pa.ChunkedArray) -> Rows:
    """For each value the number of sorted bounds that are not above it."""
    both = pa.chunked_array([*bounds.chunks, *column.chunks], column.type)
    return _parts(pa.table({"value": both}), len(bounds))


def _parts(bounds_and_rows: pa.Table, num_bounds: int) -> Rows:
    """For each row after sorted bounds, the number of these that are not above it: the sort is stable."""
    order = np.asarray(pc.sort_indices(bounds_and_rows, [(n, "ascending") for n in bounds_and_rows.column_names]))
    parts = np.empty(len(order), np.int64)
    parts[order] = np.cumsum(order < num_bounds)
    return parts[num_bounds:]


def _keys(rows: pa.Table, order: Order, curve: _Curve | None, numbers: pa.ChunkedArray) -> pa.Table:
    """The columns to sort by, which are plain, and the number of the row, so that equal rows are divided among parts, too."""
    keys = _plain(rows, order.columns) if curve is None else [pa.chunked_array([curve.places(rows)])]
    return pa.table([*keys, numbers], names=[*(f"c{i}" for i in range(len(keys))), "number"])


def _sorted(rows: pa.Table) -> pa.Table:
    return rows.take(pc.sort_indices(rows, [(name, "ascending") for name in rows.column_names]))
