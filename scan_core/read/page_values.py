"""Single values picked out of pages, without decoding the others: what a needle needs of a haystack.

A page is taken out of compression; plain values of fixed width are then found by their place, dictionary codes by
walking the headers of their runs. All other encodings are left to `page_reader.py`, and so is everything that looks
wrong: pyarrow then says what it is.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.types as pt

from scan_core.read.footer import PLAIN, PLAIN_DICTIONARY, RLE_DICTIONARY, Chunk, Leaf
from scan_core.read.hybrid_runs import Lookups, expand_flags, walk_runs
from scan_core.read.page_body import (
    READABLE_CODECS,
    PageBody,
    Raw,
    dictionary_size,
    read_data_page,
    read_dictionary_page,
)
from scan_core.read.parquet_bounds import BYTE_ARRAY, DOUBLE, FIXED, FLOAT, INT32, INT64
from scan_core.read.thrift import read_struct

Positions = npt.NDArray[np.int64]
Fixed = npt.NDArray[Any]

_LEAST_VALUES_PER_ROW = 16
"""Where more rows are wanted, decoding all values is cheaper."""
_KINDS: dict[int, np.dtype[Any]] = {
    INT32: np.dtype("<u4"),
    INT64: np.dtype("<u8"),
    FLOAT: np.dtype("<u4"),
    DOUBLE: np.dtype("<u8"),
}
"""Values of fixed width as numbers of it: only their bits count."""
_DICTIONARY = frozenset({PLAIN_DICTIONARY, RLE_DICTIONARY})
_LEVEL_ENCODINGS = 3
"""RLE."""


@dataclass(frozen=True, slots=True)
class WantedPage:
    """A page by its bytes, and which of its rows are wanted, ascending."""

    data: Raw
    num_rows: int
    rows: Positions


@dataclass(frozen=True, slots=True, eq=False)
class Picked:
    """Values that are not NULL, in order, and for each row wanted which of them is its, -1 for NULL.

    `codes` point into the chunk's dictionary; `plain` are encoded values of fixed width. One of the two is None.
    """

    places: Positions
    codes: Positions | None
    plain: Fixed | None

    @property
    def count(self) -> int:
        """Values that are not NULL."""
        return int((self.places >= 0).sum())

    def arranged(self, values: pa.Array) -> pa.Array:
        """The picked values, given as an array, and NULLs in their places."""
        is_null = self.places < 0
        return values.take(pa.array(self.places, mask=is_null)) if is_null.any() else values


def is_pickable(chunk: Chunk, leaf: Leaf, *, keeps_dictionary: bool) -> bool:
    """Whether values of a chunk can be picked, as far as the footer tells."""
    if len(leaf.path) > 1 or leaf.max_repetition_level or chunk.metadata[4] not in READABLE_CODECS:
        return False
    if leaf.physical_type == BYTE_ARRAY:
        return keeps_dictionary
    known = {PLAIN, _LEVEL_ENCODINGS, 4} | _DICTIONARY
    return _kind(leaf) is not None and known.issuperset(chunk.metadata[2])


def is_sparse(num_rows: int, num_values: int) -> bool:
    """Whether so few rows are wanted of so many values that picking them pays."""
    return num_rows * _LEAST_VALUES_PER_ROW <= num_values


def pick(pages: Sequence[WantedPage], dictionary: Raw, chunk: Chunk, leaf: Leaf) -> Picked | None:
    """The wanted values of these pages of a chunk; None if some page is encoded in another way, or wrong."""
    codec, is_optional, kind = chunk.metadata[4], _is_optional(leaf), _kind(leaf)
    places: list[Positions] = []
    parts: list[Fixed | int] = []  # plain values, or how many codes
    lookups = Lookups()
    count = 0
    for page in pages:
        body = read_data_page(page.data, 0, len(page.data), codec, has_levels=is_optional)
        if body is None or body.num_values != page.num_rows:
            return None
        found = _without_nulls(body, page.rows) if is_optional else (page.rows, None)
        if found is None:
            return None
        positions, is_present = found
        if body.encoding in _DICTIONARY:
            if not _ask(lookups, body, positions):
                return None
            parts.append(len(positions))
        elif body.encoding == PLAIN and kind is not None:
            available = (len(body.content) - body.values) // kind.itemsize
            if len(positions) and int(positions[-1]) >= available:
                return None
            parts.append(np.frombuffer(body.content, kind, count=available, offset=body.values)[positions])
        else:
            return None
        place = np.arange(count, count + len(positions))
        if is_present is not None:
            place = np.full(len(page.rows), -1)
            place[is_present] = np.arange(count, count + len(positions))
        places.append(place)
        count += len(positions)
    return _joined(np.concatenate(places), parts, lookups.found(), (dictionary, codec), kind)


def to_array(picked: Picked, kind: pa.DataType, leaf: Leaf) -> pa.Array | None:
    """The picked values in the file's type, where that is how they are stored; None where it is not."""
    if picked.plain is None or not _is_as_stored(kind, leaf.physical_type):
        return None
    return picked.arranged(pa.Array.from_buffers(kind, picked.count, [None, pa.py_buffer(picked.plain)]))


def encode_page(picked: Picked, leaf: Leaf) -> tuple[bytes, int, int]:
    """The picked values as the body of a page of version 2: its bytes, the length of its levels, its encoding."""
    if picked.codes is not None:
        count = len(picked.codes)
        groups = -(-count // 8)
        padded = np.zeros(groups * 8, "<u4")
        padded[:count] = picked.codes
        values, encoding = b"\x20" + _varint(groups << 1 | 1) + padded.tobytes(), RLE_DICTIONARY
    else:
        assert picked.plain is not None  # noqa: S101  one of the two is there
        count = len(picked.plain)
        values, encoding = picked.plain.tobytes(), PLAIN
    levels = _varint(count << 1) + b"\x01" if _is_optional(leaf) else b""
    return levels + values, len(levels), encoding


def _joined(
    places: Positions,
    parts: Sequence[Fixed | int],
    codes: Positions,
    dictionary: tuple[Raw, int],
    kind: np.dtype[Any] | None,
) -> Picked | None:
    """One kind of values: codes if values have no fixed width, else the values that they stand for."""
    if kind is None:
        is_inside = not len(codes) or int(codes.max()) < dictionary_size(dictionary[0])
        return Picked(places, codes, None) if is_inside else None
    if not len(codes):
        plain = [part for part in parts if not isinstance(part, int)]
        return Picked(places, None, np.concatenate(plain or [np.empty(0, kind)]))
    page = read_dictionary_page(*dictionary)
    if page is None or len(page[0]) < page[1] * kind.itemsize or int(codes.max()) >= page[1]:
        return None
    values = np.frombuffer(page[0], kind, count=page[1])[codes]
    found, following = [], 0
    for part in parts:
        if isinstance(part, int):
            found.append(values[following : following + part])
            following += part
        else:
            found.append(part)
    return Picked(places, None, np.concatenate(found))


def _without_nulls(body: PageBody, rows: Positions) -> tuple[Positions, npt.NDArray[np.bool_] | None] | None:
    """The place of each wanted row that is not NULL among the values, and which of the rows those are; None if wrong.

    A page without any NULL says so in a single run.
    """
    if body.levels == _varint(body.num_values << 1) + b"\x01":
        return rows, None
    runs = walk_runs(body.levels, 0, len(body.levels), 1, body.num_values - 1)
    if runs is None:
        return None
    flags = expand_flags(np.frombuffer(body.levels, np.uint8), runs, body.num_values)
    is_present = flags[rows]
    return (np.cumsum(flags, dtype=np.int64) - 1)[rows[is_present]], is_present


def _ask(lookups: Lookups, body: PageBody, positions: Positions) -> bool:
    """Ask for the codes at these positions; False if the page does not hold them, or in too many runs."""
    if len(positions) == 0:
        return True
    content = bytes(body.content[body.values :])
    if not content:
        return False
    runs = walk_runs(content, 1, len(content), content[0], int(positions[-1]))
    if runs is None:
        return False
    lookups.add(content, runs, content[0], positions)
    return True


def _kind(leaf: Leaf) -> np.dtype[Any] | None:
    """How plain values lie in memory; None if their width differs."""
    if leaf.physical_type == FIXED:
        length = read_struct(leaf.elements[-1])[0].get(2)
        return np.dtype(f"V{length}") if isinstance(length, int) and length > 0 else None
    return _KINDS.get(leaf.physical_type)


def _is_optional(leaf: Leaf) -> bool:
    return bool(read_struct(leaf.elements[-1])[0].get(3) == 1)


def _is_as_stored(kind: pa.DataType, physical_type: int) -> bool:
    """Whether Arrow's buffer of the type is the plain encoding of the values."""
    match physical_type:
        case 1:
            return bool(pt.is_int32(kind) or pt.is_date32(kind) or pt.is_time32(kind))
        case 2:
            if pt.is_timestamp(kind):
                return bool(kind.unit != "s")
            return bool(pt.is_int64(kind) or pt.is_time64(kind))
        case 4:
            return bool(pt.is_float32(kind))
        case 5:
            return bool(pt.is_float64(kind))
        case 7:
            return bool(pt.is_fixed_size_binary(kind))
        case _:
            return False


def _varint(value: int) -> bytes:
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)
