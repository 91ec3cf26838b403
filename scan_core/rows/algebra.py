"""What selections do to other things: building them from positions, cutting them, applying them to arrays.

The sum type and its set operations are in `selection.py`; how positions are stored in files in `positions.py`.
"""

from collections.abc import Sequence
from typing import assert_never

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from scan_core.rows.buffers import boolean_array, index_array
from scan_core.rows.selection import All, Mask, Ranges, RowSelection, row_count, selected_count, to_indices, to_mask

_TAKE_BELOW = 16
"""Below 1 row in 16, `take` with indices beats `filter`, whose cost does not fall with the rows it drops."""


def nothing(num_rows: int) -> RowSelection:
    """No row of `num_rows`."""
    empty = np.zeros(0, dtype=np.int64)
    return Ranges(empty, empty, num_rows)


def from_ranges(ranges: Sequence[tuple[int, int]], num_rows: int) -> RowSelection:
    """Sorted, disjoint half-open ranges; touching ones are merged."""
    merged: list[tuple[int, int]] = []
    for start, end in ranges:
        if merged and start <= merged[-1][1]:
            merged[-1] = (merged[-1][0], max(end, merged[-1][1]))
        elif start < end:
            merged.append((start, end))
    if merged == [(0, num_rows)]:
        return All(num_rows)
    edges = np.array(merged, dtype=np.int64).reshape(-1, 2)
    return Ranges(edges[:, 0].copy(), edges[:, 1].copy(), num_rows)


def without(positions: npt.NDArray[np.int64], num_rows: int) -> RowSelection:
    """All rows but those at `positions`, each in [0, num_rows), in any order, repeats allowed."""
    if len(positions) == 0:
        return All(num_rows)
    mask = np.ones(num_rows, dtype=np.bool_)
    mask[positions] = False
    return Mask(mask)


def runs(selection: RowSelection) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """Starts and ends of the maximal runs of selected rows."""
    match selection:
        case All(num_rows):
            starts = np.zeros(int(num_rows > 0), dtype=np.int64)
            return starts, starts + num_rows
        case Ranges(starts, ends):
            return starts, ends
        case Mask(values):
            edges = np.flatnonzero(np.diff(values, prepend=False, append=False))
            return edges[0::2].astype(np.int64, copy=False), edges[1::2].astype(np.int64, copy=False)
        case _:
            assert_never(selection)


def relative(selection: RowSelection, within: RowSelection) -> RowSelection:
    """`selection`, a subset of `within`, renumbered over the rows that `within` selects."""
    if row_count(selection) != row_count(within):
        raise ValueError(f"selections over {row_count(selection)} and {row_count(within)} rows")
    if isinstance(within, All):
        return selection
    if selection is within or selected_count(selection) == selected_count(within):
        return All(selected_count(within))
    return Mask(to_mask(selection)[to_mask(within)])


def select_rows(arrays: Sequence[pa.Array], selection: RowSelection) -> list[pa.Array]:
    """The selected rows of arrays that cover the selection's rows; All and a single run copy nothing."""
    if isinstance(selection, All) or not arrays:
        return list(arrays)
    count = selected_count(selection)
    if count == row_count(selection):
        return list(arrays)
    if run := _single_run(selection):
        return [array.slice(run[0], run[1] - run[0]) for array in arrays]
    if count * _TAKE_BELOW < row_count(selection):
        indices = index_array(to_indices(selection))
        return [array.take(indices) for array in arrays]
    mask = boolean_array(to_mask(selection))
    if len(arrays) == 1:
        return [arrays[0].filter(mask)]
    columns: list[pa.Array] = pa.RecordBatch.from_arrays(arrays, [""] * len(arrays)).filter(mask).columns
    return columns  # the mask is turned into positions once for all of them: a third of the cost


def _single_run(selection: RowSelection) -> tuple[int, int] | None:
    """Start and end if the selected rows are one run (an empty one included)."""
    if isinstance(selection, Ranges):
        if len(selection.starts) == 0:
            return 0, 0
        if len(selection.starts) == 1:
            return int(selection.starts[0]), int(selection.ends[0])
    elif isinstance(selection, Mask):
        count = int(np.count_nonzero(selection.values))
        if count == 0:
            return 0, 0
        first = int(selection.values.argmax())
        if selection.values[first : first + count].all():
            return first, first + count
    return None
