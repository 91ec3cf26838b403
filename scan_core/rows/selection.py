"""Which rows of a known range are still alive: All, None of them, sorted ranges, or a mask.

Every step of a scan turns a selection into a subset of it; that is why any order of steps is correct.
"""

from dataclasses import dataclass
from typing import assert_never

import numpy as np
import numpy.typing as npt

_FEW_RANGES = 64
"""So many ranges are handled one by one; more are turned into one flag per row."""
_SPARSE = 16
"""Of fewer than one row in so many, positions cost less than one flag per row."""


@dataclass(frozen=True, slots=True)
class All:
    """Every row of `num_rows`."""

    num_rows: int


@dataclass(frozen=True, slots=True, eq=False)
class Ranges:
    """Half-open row ranges, sorted, disjoint, not touching; `starts` and `ends` are int64 of one length."""

    starts: npt.NDArray[np.int64]
    ends: npt.NDArray[np.int64]
    num_rows: int


@dataclass(frozen=True, slots=True, eq=False)
class Mask:
    """One boolean per row, True for selected."""

    values: npt.NDArray[np.bool_]


RowSelection = All | Ranges | Mask


def row_count(selection: RowSelection) -> int:
    """Rows the selection is defined over."""
    match selection:
        case All(num_rows) | Ranges(num_rows=num_rows):
            return num_rows
        case Mask(values):
            return len(values)
        case _:
            assert_never(selection)


def selected_count(selection: RowSelection) -> int:
    """Rows selected."""
    match selection:
        case All(num_rows):
            return num_rows
        case Ranges(starts, ends):
            return int((ends - starts).sum())
        case Mask(values):
            return int(np.count_nonzero(values))
        case _:
            assert_never(selection)


def to_mask(selection: RowSelection) -> npt.NDArray[np.bool_]:
    """One boolean per row; a fresh array unless the selection is a Mask."""
    match selection:
        case All(num_rows):
            return np.ones(num_rows, dtype=np.bool_)
        case Ranges(starts, ends, num_rows) if len(starts) <= _FEW_RANGES:
            mask = np.zeros(num_rows, dtype=np.bool_)
            for start, end in zip(starts.tolist(), ends.tolist(), strict=True):
                mask[start:end] = True
            return mask
        case Ranges(starts, ends, num_rows):
            edges = np.zeros(num_rows + 1, dtype=np.int8)
            edges[starts] = 1
            edges[ends] -= 1
            return np.cumsum(edges[:-1], dtype=np.int8).astype(np.bool_)
        case Mask(values):
            return values
        case _:
            assert_never(selection)


def to_indices(selection: RowSelection) -> npt.NDArray[np.int64]:
    """Positions of the selected rows, ascending."""
    match selection:
        case All(num_rows):
            return np.arange(num_rows, dtype=np.int64)
        case Ranges(starts, ends):
            lengths = ends - starts
            first = np.cumsum(lengths) - lengths
            indices: npt.NDArray[np.int64] = np.arange(int(lengths.sum()), dtype=np.int64)
            indices += np.repeat(starts - first, lengths)
            return indices
        case Mask():
            return np.flatnonzero(to_mask(selection)).astype(np.int64, copy=False)
        case _:
            assert_never(selection)


def refine(selection: RowSelection, keep: npt.NDArray[np.bool_]) -> RowSelection:
    """The selected rows for which `keep`, one boolean per *selected* row, is True."""
    if len(keep) != selected_count(selection):
        raise ValueError(f"keep has {len(keep)} values for {selected_count(selection)} selected rows")
    if keep.all():
        return selection
    match selection:
        case All():
            return Mask(keep)
        case Ranges(num_rows=num_rows) if len(keep) * _SPARSE < num_rows:
            return _of_indices(to_indices(selection)[keep], num_rows)
        case Ranges() | Mask():
            mask = to_mask(selection).copy()
            mask[mask] = keep
            return Mask(mask)
        case _:
            assert_never(selection)


def intersect(left: RowSelection, right: RowSelection) -> RowSelection:
    """Rows selected by both."""
    if row_count(left) != row_count(right):
        raise ValueError(f"selections over {row_count(left)} and {row_count(right)} rows")
    if isinstance(left, All):
        return right
    if isinstance(right, All):
        return left
    for one, other in ((left, right), (right, left)):
        if isinstance(one, Ranges) and len(one.starts) <= _FEW_RANGES:
            inside, mask = to_mask(other), np.zeros(row_count(left), dtype=np.bool_)
            for start, end in zip(one.starts.tolist(), one.ends.tolist(), strict=True):
                mask[start:end] = inside[start:end]
            return Mask(mask)
    return Mask(to_mask(left) & to_mask(right))


def slice_selection(selection: RowSelection, offset: int, length: int) -> RowSelection:
    """The selection over rows [offset, offset + length), renumbered from 0."""
    match selection:
        case All():
            return All(length)
        case Ranges() | Mask():
            part = to_mask(selection)[offset : offset + length]
            return All(length) if part.all() else Mask(part)
        case _:
            assert_never(selection)


def _of_indices(indices: npt.NDArray[np.int64], num_rows: int) -> RowSelection:
    """Ascending positions: as ranges, where they make few."""
    breaks = np.flatnonzero(np.diff(indices) != 1) + 1
    if len(breaks) >= _FEW_RANGES:
        mask = np.zeros(num_rows, dtype=np.bool_)
        mask[indices] = True
        return Mask(mask)
    edges = np.concatenate(([0], breaks, [len(indices)])) if len(indices) else np.zeros(1, np.int64)
    return Ranges(indices[edges[:-1]], indices[edges[1:] - 1] + 1, num_rows)
