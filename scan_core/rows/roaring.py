"""Row positions as files store them: sorted arrays and 64-bit Roaring bitmaps.

Containers are located and validated before any is expanded, so a damaged bitmap cannot ask for more memory than it
has rows.

"""

import struct
from dataclasses import dataclass
from typing import assert_never

import numpy as np
import numpy.typing as npt

from nevermore.scan_core.model.errors import MalformedTableError
from nevermore.scan_core.rows.selection import All, Mask, Ranges, RowSelection

Positions = npt.NDArray[np.int64]

CONTAINER_ROWS = 1 << 16
BITSET_BYTES = CONTAINER_ROWS // 8
_MAX_ARRAY_VALUES = 4096
_COOKIE_WITHOUT_RUNS = 12346
_COOKIE_WITH_RUNS = 12347
_OFFSETS_FROM_CONTAINERS = 4
_MAX_ROW_POSITION = 1 << 63


@dataclass(frozen=True, slots=True)
class Container:
    """Rows [`first`, `first` + 65,536): bytes of one Roaring container, already checked."""

    first: int
    kind: str
    data: bytes | memoryview


@dataclass(frozen=True, slots=True, eq=False, weakref_slot=True)
class RoaringPositions:
    """A 64-bit Roaring bitmap, containers ascending."""

    containers: tuple[Container, ...]
    firsts: Positions
    cardinality: int

    @property
    def num_bytes(self) -> int:
        """Memory held."""
        return self.firsts.nbytes + sum(len(c.data) for c in self.containers)


def decode_roaring(data: bytes, source: str) -> RoaringPositions:
    """A 64-bit Roaring bitmap in portable serialisation.

    Args:
        data: exactly the bitmap.
        source: file and blob, for messages.

    Raises:
        MalformedTableError: lengths, keys or values that contradict each other or the number of bytes.
    """
    view = memoryview(data)
    try:
        (count,) = struct.unpack_from("<Q", view, 0)
        if count * 8 > len(view):
            raise MalformedTableError(f"{source}: a bitmap of {count} parts in {len(view)} bytes")
        containers: list[Container] = []
        cardinality = 0
        position, last_key = 8, -1
        for _ in range(count):
            (key,) = struct.unpack_from("<I", view, position)
            if key <= last_key or key >= _MAX_ROW_POSITION >> 32:
                raise MalformedTableError(f"{source}: bitmap part {key} follows {last_key}")
            last_key = key
            position, values = _decode_part(view, position + 4, key << 32, containers, source)
            cardinality += values
    except struct.error as error:
        raise MalformedTableError(f"{source}: the bitmap ends early: {error}") from error
    if position != len(view):
        raise MalformedTableError(f"{source}: {len(view) - position} bytes follow the bitmap")
    firsts = np.array([c.first for c in containers], dtype=np.int64)
    return RoaringPositions(tuple(containers), firsts, cardinality)


def container_mask(container: Container) -> npt.NDArray[np.bool_]:
    """A flag for each row of a container."""
    if container.kind == "bitset":
        return np.unpackbits(np.frombuffer(container.data, np.uint8), bitorder="little").view(np.bool_)
    if container.kind == "array":
        mask = np.zeros(CONTAINER_ROWS, np.bool_)
        mask[np.frombuffer(container.data, "<u2")] = True
        return mask
    starts, ends = _runs(container)
    edges = np.zeros(CONTAINER_ROWS + 1, np.int8)
    edges[starts] += 1
    edges[ends] -= 1
    return np.cumsum(edges[:-1], dtype=np.int8).astype(np.bool_)


def _decode_part(
    view: memoryview, position: int, base: int, containers: list[Container], source: str
) -> tuple[int, int]:
    """Append the containers of one 32-bit bitmap; returns where it ends and how many values it has."""
    (cookie,) = struct.unpack_from("<I", view, position)
    position += 4
    run_flags = b""
    if cookie & 0xFFFF == _COOKIE_WITH_RUNS:
        count = (cookie >> 16) + 1
        run_flags = bytes(view[position : position + (count + 7) // 8])
        position += (count + 7) // 8
    elif cookie == _COOKIE_WITHOUT_RUNS:
        (count,) = struct.unpack_from("<I", view, position)
        position += 4
    else:
        raise MalformedTableError(f"{source}: {cookie} is not the cookie of a bitmap")
    if count > CONTAINER_ROWS or position + count * 4 > len(view):
        raise MalformedTableError(f"{source}: {count} containers do not fit {len(view)} bytes")
    header = np.frombuffer(view, "<u2", count=count * 2, offset=position).reshape(-1, 2).astype(np.int64)
    keys, sizes = header[:, 0], header[:, 1] + 1
    if (keys[1:] <= keys[:-1]).any():
        raise MalformedTableError(f"{source}: containers are not in ascending order")
    position += count * 4
    if not run_flags or count >= _OFFSETS_FROM_CONTAINERS:
        position += count * 4  # containers are stored one after the other; the offsets only repeat that
    is_run = np.unpackbits(np.frombuffer(run_flags, np.uint8), bitorder="little") if run_flags else None
    for index in range(count):
        size = int(sizes[index])
        kind, length = "bitset", BITSET_BYTES
        if is_run is not None and is_run[index]:
            (runs,) = struct.unpack_from("<H", view, position)
            position += 2
            kind, length = "runs", runs * 4
        elif size <= _MAX_ARRAY_VALUES:
            kind, length = "array", size * 2
        container = Container(base + (int(keys[index]) << 16), kind, view[position : position + length])
        position += length
        _check_container(container, size, length, source)
        containers.append(container)
    return position, int(sizes.sum())


def _check_container(container: Container, size: int, length: int, source: str) -> None:
    if len(container.data) != length:
        raise MalformedTableError(f"{source}: the bitmap ends inside a container")
    if container.kind == "bitset":
        values = int(np.bitwise_count(np.frombuffer(container.data, np.uint64)).sum())
    elif container.kind == "array":
        numbers = np.frombuffer(container.data, "<u2")
        values = size if bool((numbers[1:] > numbers[:-1]).all()) else -1
    else:
        starts, ends = _runs(container)
        ordered = bool((starts[1:] > ends[:-1]).all()) and bool((ends <= CONTAINER_ROWS).all())
        values = int((ends - starts).sum()) if ordered else -1
    if values != size:
        raise MalformedTableError(f"{source}: a container of {size} values holds others than it states")


def _runs(container: Container) -> tuple[Positions, Positions]:
    pairs = np.frombuffer(container.data, "<u2").reshape(-1, 2).astype(np.int64)
    return pairs[:, 0], pairs[:, 0] + pairs[:, 1] + 1


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
        case RoaringPositions(containers):
            if not containers[_within(positions, first_row, num_rows)]:
                return All(num_rows)
            mask = np.zeros(num_rows, np.bool_)
            mark_rows(positions, first_row, mask)
            is_dense = int(np.count_nonzero(mask)) >= _FEW_RUNS
            return Mask(~mask) if is_dense else _without(np.flatnonzero(mask), num_rows)
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
    """The number of positions, and the last one; -1 without any."""
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
    """Sort positions and remove repeats."""
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


def _within(positions: RoaringPositions, first_row: int, num_rows: int) -> slice:
    """The containers that may hold some of these rows."""
    begin = int(np.searchsorted(positions.firsts, first_row - CONTAINER_ROWS, side="right"))
    return slice(begin, int(np.searchsorted(positions.firsts, first_row + num_rows)))
