"""Parquet's hybrid of run-length and bit-packed encoding: single values looked up, not all of them decoded.

Dictionary codes and definition levels are stored like this. Only the headers of the runs are walked, up to the last
value wanted; a stretch of very many short runs is better decoded by pyarrow, so it is given up.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

Positions = npt.NDArray[np.int64]
Bytes = npt.NDArray[np.uint8]

MOST_RUNS = 2_048
"""Of one page: more of them take longer to walk than to decode."""
_MOST_BITS = 32
_PADDING = bytes(8)
"""Behind the last run, so that its bits can be fetched by whole words."""


@dataclass(frozen=True, slots=True)
class Runs:
    """Runs of one page: run k begins at value `starts[k]`.

    A bit-packed run has `values[k]` -1 and its bits at byte `offsets[k]`; the others repeat their value.
    """

    starts: Sequence[int]
    offsets: Sequence[int]
    values: Sequence[int]


def walk_runs(data: bytes, begin: int, end: int, width: int, last: int) -> Runs | None:
    """The runs of data[begin:end] up to the value number `last`; None if they end before it, or are too many."""
    if not 0 <= width <= _MOST_BITS:
        return None
    starts: list[int] = []
    offsets: list[int] = []
    values: list[int] = []
    position, value_bytes, following = begin, (width + 7) // 8, 0
    while following <= last:
        if position >= end or len(starts) >= MOST_RUNS:
            return None
        header = data[position]
        position += 1
        if header & 0x80:
            header, shift = header & 0x7F, 7
            while True:
                if position >= end or shift > 35:
                    return None
                byte = data[position]
                position += 1
                header |= (byte & 0x7F) << shift
                if byte < 0x80:
                    break
                shift += 7
        starts.append(following)
        offsets.append(position)
        if header & 1:
            values.append(-1)
            position += (header >> 1) * width
            following += (header >> 1) * 8
        else:
            values.append(int.from_bytes(data[position : position + value_bytes], "little"))
            position += value_bytes
            following += header >> 1
        if header >> 1 == 0 or position > end:
            return None
    return Runs(starts, offsets, values)


@dataclass(slots=True)
class Lookups:
    """Values wanted of several pages, found together: most of the cost of a look-up is that there is one."""

    _contents: list[bytes] = field(default_factory=list)
    _runs: list[tuple[int, int, int, int]] = field(default_factory=list)
    _positions: list[Positions] = field(default_factory=list)
    _num_bytes: int = 0
    _num_values: int = 0

    def add(self, content: bytes, runs: Runs, width: int, positions: Positions) -> None:
        """Ask for the values at `positions` of runs that lie in `content`, each `width` bits wide."""
        first_byte, first_value = self._num_bytes, self._num_values
        self._runs += [
            (first_value + start, first_byte + offset, value, width)
            for start, offset, value in zip(runs.starts, runs.offsets, runs.values, strict=True)
        ]
        self._contents.append(content)
        self._positions.append(positions + first_value)
        self._num_bytes += len(content)
        self._num_values += int(positions[-1]) + 1

    def found(self) -> Positions:
        """The values asked for, in order."""
        if not self._runs:
            return np.empty(0, np.int64)
        raw = np.frombuffer(b"".join((*self._contents, _PADDING)), np.uint8)
        starts, offsets, values, widths = np.array(self._runs, np.int64).T
        positions = np.concatenate(self._positions)
        run = np.searchsorted(starts, positions, side="right") - 1
        found: Positions = values[run]
        packed = np.flatnonzero(found < 0)
        if len(packed) == 0:
            return found
        inside = run[packed]
        width = widths[inside]
        bits = (positions[packed] - starts[inside]) * width
        first = offsets[inside] + (bits >> 3)
        words = np.zeros(len(packed), np.uint64)
        for index in range((int(width.max()) + 14) // 8):
            words |= raw[first + index].astype(np.uint64) << np.uint64(8 * index)
        masks = (np.uint64(1) << width.astype(np.uint64)) - np.uint64(1)
        found[packed] = ((words >> (bits & 7).astype(np.uint64)) & masks).astype(np.int64)
        return found


def expand_flags(raw: Bytes, runs: Runs, count: int) -> npt.NDArray[np.bool_]:
    """The first `count` values of runs one bit wide."""
    flags = np.zeros(count, np.bool_)
    ends = [*runs.starts[1:], count]
    for start, end, offset, value in zip(runs.starts, ends, runs.offsets, runs.values, strict=True):
        stop = min(end, count)
        if value < 0:
            flags[start:stop] = np.unpackbits(raw[offset : offset + (stop - start + 7) // 8], bitorder="little")[
                : stop - start
            ]
        elif value:
            flags[start:stop] = True
    return flags
