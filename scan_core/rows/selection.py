"""Row selections: which rows of a range are alive (all, none, sorted ranges or a mask), and how they cut other things.

Row positions as files store them are sorted arrays and 64-bit Roaring bitmaps; of a bitmap no more rows are expanded than
are asked for, whatever it holds.

A sample takes rows by data file and row position alone, so before any column is read: the same seed takes the same rows
of a file for any splits, threads and options, and after any later deletes. Every row is taken with the same probability.
Small files are sampled row by row; of large ones whole blocks are left out first, one block of each stretch kept, so
that only some of the pages are read.
"""

import hashlib
import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, assert_never

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from nevermore.scan_core.model.errors import MalformedTableError, OptionError
from nevermore.scan_core.rows.buffers import boolean_array, index_array

_FEW_RANGES = 64
"""So many ranges are handled one by one; more are turned into one flag per row."""
_SPARSE = 16
"""Of fewer than one row in so many, positions cost less than one flag per row."""


Positions = npt.NDArray[np.int64]
Flags = npt.NDArray[np.bool_]


@dataclass(frozen=True, slots=True)
class All:
    """Every row of `num_rows`."""

    num_rows: int


@dataclass(frozen=True, slots=True, eq=False)
class Ranges:
    """Half-open row ranges, sorted, disjoint, not touching; `starts` and `ends` are int64 of one length."""

    starts: Positions
    ends: Positions
    num_rows: int


@dataclass(frozen=True, slots=True, eq=False)
class Mask:
    """One boolean per row, True for selected."""

    values: Flags


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


def to_mask(selection: RowSelection) -> Flags:
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


def to_indices(selection: RowSelection) -> Positions:
    """Positions of the selected rows, ascending."""
    match selection:
        case All(num_rows):
            return np.arange(num_rows, dtype=np.int64)
        case Ranges(starts, ends):
            lengths = ends - starts
            first = np.cumsum(lengths) - lengths
            indices: Positions = np.arange(int(lengths.sum()), dtype=np.int64)
            indices += np.repeat(starts - first, lengths)
            return indices
        case Mask(values):
            return np.flatnonzero(values)
        case _:
            assert_never(selection)


def refine(selection: RowSelection, keep: Flags) -> RowSelection:
    """The selected rows for which `keep`, one boolean per *selected* row, is True."""
    if len(keep) != selected_count(selection):
        raise ValueError(f"keep has {len(keep)} values for {selected_count(selection)} selected rows")
    if keep.all():
        return selection
    match selection:
        case All():
            return Mask(keep)
        case Ranges(num_rows=num_rows) if len(keep) * _SPARSE < num_rows:
            return from_indices(to_indices(selection)[keep], num_rows)
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


def from_indices(indices: Positions, num_rows: int) -> RowSelection:
    """A selection of ascending positions, as ranges if these are few."""
    breaks = np.flatnonzero(np.diff(indices) != 1) + 1
    if len(breaks) >= _FEW_RANGES:
        mask = np.zeros(num_rows, dtype=np.bool_)
        mask[indices] = True
        return Mask(mask)
    edges = np.concatenate(([0], breaks, [len(indices)])) if len(indices) else np.zeros(1, np.int64)
    return Ranges(indices[edges[:-1]], indices[edges[1:] - 1] + 1, num_rows)


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


def without(positions: Positions, num_rows: int) -> RowSelection:
    """All rows but those at `positions`, each in [0, num_rows), in any order, repeats allowed."""
    if len(positions) == 0:
        return All(num_rows)
    mask = np.ones(num_rows, dtype=np.bool_)
    mask[positions] = False
    return Mask(mask)


def runs(selection: RowSelection) -> tuple[Positions, Positions]:
    """Starts and ends of the maximal runs of selected rows."""
    match selection:
        case All(num_rows):
            starts = np.zeros(int(num_rows > 0), dtype=np.int64)
            return starts, starts + num_rows
        case Ranges(starts, ends):
            return starts, ends
        case Mask(values):
            edges = np.flatnonzero(np.diff(values, prepend=False, append=False))
            return edges[0::2], edges[1::2]
        case _:
            assert_never(selection)


def relative(selection: RowSelection, within: RowSelection) -> RowSelection:
    """`selection`, a subset of `within`, numbered over the rows that `within` selects."""
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


def take_rows(batches: Iterable[pa.RecordBatch], num_rows: int | None) -> Iterator[pa.RecordBatch]:
    """The first rows of some batches, all for None; no batch is taken once there are enough."""
    left, remaining = num_rows, iter(batches)
    while left is None or left > 0:
        batch = next(remaining, None)
        if batch is None:
            return
        if left is not None:
            batch = batch.slice(0, min(left, batch.num_rows))
            left -= batch.num_rows
        yield batch


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


BLOCK_ROWS = 16_384
"""About a page: taking single rows of every page would read them all."""
_BLOCKS_FROM_ROWS = 64 * BLOCK_ROWS
"""A smaller file is read sooner than its blocks would be a fair sample of it."""
_MAX_STRIDE = 64
"""A sample of fewer blocks than one in that many would say too much of single places of the table."""
_BITS = 64


@dataclass(frozen=True, slots=True)
class RowSample:
    """Take each row with probability `fraction`.

    Raises:
        OptionError: a fraction outside of 0 to 1, or a seed that is no 64-bit integer.
    """

    fraction: float
    seed: int = 0

    def __post_init__(self) -> None:
        if not 0.0 <= self.fraction <= 1.0:
            raise OptionError(f"a sample takes a fraction between 0 and 1 of the rows, not {self.fraction}")
        if not 0 <= self.seed < 1 << _BITS:
            raise OptionError(f"the seed of a sample must be an integer from 0 to 2**64 - 1, not {self.seed}")

    def rows(self, data_file: str, file_rows: int, first_row: int, num_rows: int) -> RowSelection:
        """Which of the rows [first_row, first_row + num_rows) of a file are taken, numbered from 0.

        Args:
            data_file: its path as the manifest writes it.
            file_rows: of the whole file, as its manifest states.
            first_row: position in the file.
            num_rows: rows to decide on.
        """
        if self.fraction == 1.0:
            return All(num_rows)
        if self.fraction == 0.0 or num_rows == 0:
            return nothing(num_rows)
        stride = int(min(math.sqrt(1.0 / self.fraction), _MAX_STRIDE)) if file_rows >= _BLOCKS_FROM_ROWS else 1
        key = self._key(data_file)
        threshold = np.uint64(min(int(self.fraction * stride * 2.0**_BITS), 2**_BITS - 1))
        mask = np.zeros(num_rows, np.bool_)
        for block in range(first_row // BLOCK_ROWS, (first_row + num_rows - 1) // BLOCK_ROWS + 1):
            if stride > 1 and _draw(key, 1, block // stride, 1)[0] % np.uint64(stride) != block % stride:
                continue
            taken = _draw(key, 0, block, BLOCK_ROWS) < threshold
            begin = block * BLOCK_ROWS - first_row
            part = taken[max(-begin, 0) : num_rows - begin]
            mask[max(begin, 0) : max(begin, 0) + len(part)] = part
        return Mask(mask) if mask.any() else nothing(num_rows)

    def _key(self, data_file: str) -> int:
        digest = hashlib.blake2b(data_file.encode("utf-8", "surrogatepass"), digest_size=8).digest()
        return int.from_bytes(digest, "little") | self.seed << _BITS


def _draw(key: int, purpose: int, block: int, count: int) -> npt.NDArray[np.uint64]:
    """`count` random words that belong to a block: Philox is a function of key and counter."""
    generator = np.random.Philox(key=key, counter=[0, 0, purpose, block])
    return generator.random_raw(count)


_MAX_ROW_POSITION = 1 << 63
_CONTAINER_ROWS = 1 << 16
_CONTAINER_BYTES = 95
"""Around what a container stores; measured: pointers, the tree of keys and the allocator's own bytes."""
_MAX_LISTED = 4096
"""A container of no more rows lists them, 16 bits each; so many take as many bytes as a bit set."""
_DENSE_BYTES = 28 + 8192
"""Of a bitmap that is stored as one bit set, which is at the end."""
_MARKED_AT_ONCE = 1 << 20
"""Rows of which positions, of 8 bytes, are made at a time."""


@dataclass(frozen=True, slots=True, eq=False, weakref_slot=True)
class RoaringPositions:
    """A 64-bit Roaring bitmap (`pyroaring.BitMap64`) that is serialised in so many bytes."""

    bitmap: Any
    stored_bytes: int

    @property
    def last(self) -> int:
        """The last position; -1 without any."""
        return self.bitmap.max() if self.bitmap else -1

    @property
    def num_bytes(self) -> int:
        """About the memory held: what is stored, and what is around each container, which is stored in 10 bytes or more."""
        return self.stored_bytes + _CONTAINER_BYTES * min(self.stored_bytes // 10, (self.last >> 16) + 1)


def decode_roaring(data: bytes, source: str) -> RoaringPositions:
    """A 64-bit Roaring bitmap in portable serialisation.

    Args:
        data: the bitmap.
        source: file and blob, for messages.

    Raises:
        MalformedTableError: lengths, keys or values that contradict each other, or the bitmap ends early.
    """
    from pyroaring import BitMap64  # 9 ms, and few tables have bitmaps

    try:
        bitmap = BitMap64.deserialize(data)
    except (ValueError, IndexError) as error:
        raise MalformedTableError(f"{source}: {error}") from error
    found = RoaringPositions(bitmap, len(data))
    if found.last >= _MAX_ROW_POSITION:
        raise MalformedTableError(f"{source}: a position of {found.last} is beyond 64 bits with a sign")
    return found


def positions_in_mask(mask: Flags) -> RoaringPositions:
    """The positions of the flags that are set."""
    from pyroaring import BitMap64

    bitmap = BitMap64()
    for start in range(0, len(mask), _MARKED_AT_ONCE):
        bitmap.update(np.flatnonzero(mask[start : start + _MARKED_AT_ONCE]) + start)
    bitmap.run_optimize()
    return RoaringPositions(bitmap, len(bitmap.serialize()))


@dataclass(frozen=True, slots=True, eq=False)
class SortedPositions:
    """Ascending, distinct positions."""

    values: Positions

    @property
    def last(self) -> int:
        """The last position; -1 without any."""
        return int(self.values[-1]) if len(self.values) else -1

    @property
    def num_bytes(self) -> int:
        """Memory held."""
        return self.values.nbytes


RowPositions = SortedPositions | RoaringPositions


def positions_within(positions: RowPositions, first_row: int, num_rows: int) -> Positions:
    """Which of the rows [first_row, first_row + num_rows) are in `positions`, ascending, renumbered from 0."""
    if isinstance(positions, SortedPositions):
        begin, end = np.searchsorted(positions.values, (first_row, first_row + num_rows))
        return positions.values[begin:end] - first_row
    inside = positions.bitmap & type(positions.bitmap)(range(first_row, first_row + num_rows))
    return np.asarray(inside.to_array()).view(np.int64) - first_row


def mark_rows(positions: RoaringPositions, first_row: int, mask: Flags) -> None:
    """Set the flags of the rows [first_row, first_row + len(mask)) that are in `positions`."""
    end_row, bitmap = first_row + len(mask), positions.bitmap
    if bitmap.range_cardinality(first_row, end_row) * 16 < len(mask):  # most containers list their rows
        mask[positions_within(positions, first_row, len(mask))] = True
        return
    for start in range(first_row & -_CONTAINER_ROWS, end_row, _CONTAINER_ROWS):
        begin, end = max(start, first_row), min(start + _CONTAINER_ROWS, end_row)
        part = mask[begin - first_row : end - first_row]
        inside = bitmap & type(bitmap)(range(start, start + _CONTAINER_ROWS))
        if len(inside) > _MAX_LISTED and len(stored := inside.serialize()) == _DENSE_BYTES:
            # a bit set: five times as fast as its positions
            flags = np.unpackbits(np.frombuffer(stored[-8192:], np.uint8), bitorder="little")
            part |= flags[begin - start : end - start].view(np.bool_)
        else:
            part[positions_within(positions, begin, end - begin)] = True


def surviving(positions: RowPositions, first_row: int, num_rows: int) -> RowSelection:
    """The rows [first_row, first_row + num_rows) that are not in `positions`, renumbered from 0."""
    if (
        isinstance(positions, RoaringPositions)
        and positions.bitmap.range_cardinality(first_row, first_row + num_rows) >= _FEW_RANGES
    ):
        mask = np.zeros(num_rows, np.bool_)
        mark_rows(positions, first_row, mask)
        return Mask(~mask)
    deleted = positions_within(positions, first_row, num_rows)
    if len(deleted) >= _FEW_RANGES:
        return without(deleted, num_rows)
    return from_ranges([*zip([0, *(deleted + 1).tolist()], [*deleted.tolist(), num_rows], strict=True)], num_rows)


def sorted_positions(values: Positions) -> SortedPositions:
    """Sort positions and remove repeats."""
    if len(values) > 1 and not (values[1:] > values[:-1]).all():
        values = np.unique(values)
    return SortedPositions(values)
