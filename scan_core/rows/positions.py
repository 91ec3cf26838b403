"""Sets of row positions as files store them, deleted rows above all: sorted arrays, and 64-bit Roaring bitmaps.

Both answer for a range of rows at a time, so that a vector over billions of rows is never expanded as a whole. How bitmaps
are stored is told by `roaring.py`.
"""

from dataclasses import dataclass
from typing import assert_never

import numpy as np
import numpy.typing as npt

from scan_core.rows.roaring import BITSET_BYTES, CONTAINER_ROWS, Container, Positions, RoaringPositions, container_mask
from scan_core.rows.selection import All, Mask, Ranges, RowSelection

_FEW_RUNS = 64
"""Below this many gaps a selection is given as ranges, which slice without copying."""


@dataclass(frozen=True, slots=True, eq=False)
class SortedPositions:
    """Ascending, distinct positions."""

    values: Positions

    @property
    def num_bytes(self) -> int:
        """Memory held."""
        return self.values.nbytes


RowPositions = SortedPositions | RoaringPositions


def surviving(positions: RowPositions, first_row: int, num_rows: int) -> RowSelection:
    """The rows [first_row, first_row + num_rows) that are not in `positions`, renumbered from 0."""
    match positions:
        case SortedPositions(values):
            begin, end = np.searchsorted(values, (first_row, first_row + num_rows))
            return _without(values[begin:end] - first_row, num_rows)
        case RoaringPositions():
            return _outside_of_containers(positions, first_row, num_rows)
        case _:
            assert_never(positions)


def mark_rows(positions: RowPositions, first_row: int, mask: npt.NDArray[np.bool_]) -> None:
    """Set the flags of the rows [first_row, first_row + len(mask)) that are in `positions`."""
    match positions:
        case SortedPositions(values):
            begin, end = np.searchsorted(values, (first_row, first_row + len(mask)))
            mask[values[begin:end] - first_row] = True
        case RoaringPositions(containers):
            for container in containers[_within(positions, first_row, len(mask))]:
                offset = container.first - first_row
                part = container_mask(container)[max(-offset, 0) : len(mask) - offset]
                mask[max(offset, 0) : max(offset, 0) + len(part)] |= part
        case _:
            assert_never(positions)


def position_count(positions: RowPositions) -> tuple[int, int]:
    """How many positions there are, and the last one; -1 if there is none."""
    match positions:
        case SortedPositions(values):
            return len(values), int(values[-1]) if len(values) else -1
        case RoaringPositions(containers, _, cardinality):
            if not containers:
                return cardinality, -1
            return cardinality, containers[-1].first + int(np.flatnonzero(container_mask(containers[-1]))[-1])
        case _:
            assert_never(positions)


def positions_in_mask(mask: npt.NDArray[np.bool_]) -> RowPositions:
    """The positions of the flags that are set, in whichever form takes less memory."""
    cardinality = int(np.count_nonzero(mask))
    if 64 * cardinality < len(mask):
        return SortedPositions(np.flatnonzero(mask).astype(np.int64, copy=False))
    bits = np.zeros(-(-len(mask) // CONTAINER_ROWS) * BITSET_BYTES, np.uint8)
    bits[: -(-len(mask) // 8)] = np.packbits(mask, bitorder="little")
    data = memoryview(bits.tobytes())
    firsts = np.arange(0, len(mask), CONTAINER_ROWS, dtype=np.int64)
    containers = tuple(
        Container(int(first), "bitset", data[first // 8 : first // 8 + BITSET_BYTES]) for first in firsts
    )
    return RoaringPositions(containers, firsts, cardinality)


def sorted_positions(values: Positions) -> SortedPositions:
    """From positions in any order, repeats allowed."""
    if len(values) > 1 and not (values[1:] > values[:-1]).all():
        values = np.unique(values)
    return SortedPositions(values)


def _without(deleted: Positions, num_rows: int) -> RowSelection:
    if len(deleted) == 0:
        return All(num_rows)
    if len(deleted) < _FEW_RUNS:
        starts = np.concatenate([[0], deleted + 1])
        ends = np.concatenate([deleted, [num_rows]])
        kept = starts < ends
        return Ranges(starts[kept], ends[kept], num_rows)
    mask = np.ones(num_rows, np.bool_)
    mask[deleted] = False
    return Mask(mask)


def _outside_of_containers(positions: RoaringPositions, first_row: int, num_rows: int) -> RowSelection:
    containers = positions.containers[_within(positions, first_row, num_rows)]
    if not containers:
        return All(num_rows)
    mask = np.ones(num_rows, np.bool_)
    for container in containers:
        offset = container.first - first_row
        part = container_mask(container)[max(-offset, 0) : num_rows - offset]
        mask[max(offset, 0) : max(offset, 0) + len(part)] = ~part
    kept = int(np.count_nonzero(mask))
    if kept == num_rows:
        return All(num_rows)
    if num_rows - kept < _FEW_RUNS:
        return _without(np.flatnonzero(~mask), num_rows)
    return Mask(mask)


def _within(positions: RoaringPositions, first_row: int, num_rows: int) -> slice:
    """The containers that may hold some of these rows."""
    begin = int(np.searchsorted(positions.firsts, first_row - CONTAINER_ROWS, side="right"))
    return slice(begin, int(np.searchsorted(positions.firsts, first_row + num_rows)))
