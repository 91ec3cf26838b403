"""Bitmap indexes in the making: the values of one column of one data file, batch by batch, to a Roaring bitmap each.

Knows no files and no tables. The bytes are defined in `scan_core.bitmap_index.layout`.
"""

import struct
from array import array as typed_array
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
from pyroaring import BitMap

from scan_core.bitmap_index.layout import encode_directory
from scan_core.schema import PrimitiveType, arrow_type

MOST_VALUES = 10_000
"""Distinct values of a column in one file: beyond, the directory costs more than most filters save."""
MOST_VALUE_BYTES = 16 * 1024**2
"""Of all distinct values together."""
MOST_ROWS = 2**32
"""Of one file, as 32-bit bitmaps number them."""

Rows = npt.NDArray[np.int64]


class UnsuitableColumnError(Exception):
    """A column that cannot have a bitmap index in this file; the text says why."""


@dataclass(frozen=True, slots=True)
class EncodedIndex:
    """The bytes of an index: its directory, then the bitmaps in that order."""

    directory: bytes
    bitmaps: Sequence[bytes]
    num_values: int

    @property
    def num_bytes(self) -> int:
        """Of the blob."""
        return len(self.directory) + sum(map(len, self.bitmaps))


class BitmapIndexBuilder:
    """Collects the rows of every value.

    Args:
        value_type: of the column, or of the elements of its lists.
        is_list: rows have lists of values.
        most_values: distinct values, beyond which the file is left without index.
        memory_limit_bytes: what the bitmaps may hold.
    """

    def __init__(self, value_type: PrimitiveType, *, is_list: bool, most_values: int, memory_limit_bytes: int) -> None:
        self._type = value_type
        self._is_list = is_list
        self._most_values = most_values
        self._memory_limit_bytes = memory_limit_bytes
        self._values: pa.Array = pa.array([], arrow_type(value_type))
        self._bitmaps: list[BitMap] = []
        self._nulls, self._null_elements = BitMap(), BitMap()

    def add(self, column: pa.Array, rows: Rows) -> None:
        """The values of some rows, in the type of the table, perhaps dictionary-encoded.

        Raises:
            UnsuitableColumnError: too many values, or too many bytes of them or of bitmaps.
        """
        if len(rows) and int(rows[-1]) >= MOST_ROWS:
            raise UnsuitableColumnError(f"more than {MOST_ROWS} rows")
        if not self._is_list:
            self._add_values(column, rows, self._nulls)
            return
        self._nulls |= _bitmap(rows[np.asarray(pc.is_null(column))])
        elements, parents = pc.list_flatten(column), np.asarray(pc.list_parent_indices(column))
        self._add_values(elements, rows[parents], self._null_elements)

    def finish(self, num_rows: int) -> EncodedIndex:
        """The index of a file of `num_rows` rows, all of which were added."""
        order = np.asarray(pc.array_sort_indices(self._values)) if len(self._values) else np.zeros(0, np.int64)
        values = self._values.take(pa.array(order))
        bitmaps = [*(self._bitmaps[i] for i in order), self._nulls, self._null_elements]
        stored = []
        for bitmap in bitmaps:
            bitmap.run_optimize()
            stored.append((len(bitmap), _serialized(bitmap)))
        directory = encode_directory(values, self._type, stored, num_rows)
        return EncodedIndex(directory, [data for _, data in stored], len(values))

    def _add_values(self, column: pa.Array, rows: Rows, nulls: BitMap) -> None:
        encoded = column if isinstance(column, pa.DictionaryArray) else column.dictionary_encode()
        if encoded.dictionary.null_count:
            encoded = encoded.dictionary_decode().dictionary_encode()
        indices = encoded.indices
        if indices.null_count:
            null = np.asarray(indices.is_null())
            nulls |= _bitmap(rows[null])
            rows, indices = rows[~null], indices.drop_null()
        if len(indices) == 0:
            return
        codes = np.asarray(indices)
        used = np.flatnonzero(np.bincount(codes, minlength=len(encoded.dictionary)))
        entry_of_code = np.zeros(len(encoded.dictionary), np.int32)
        entry_of_code[used] = self._entries(encoded.dictionary.take(pa.array(used)))
        entries = entry_of_code[codes].astype(np.uint16 if len(self._values) <= 1 << 16 else np.int32)
        order = np.argsort(entries, kind="stable")
        ordered, sorted_rows = entries[order], rows[order]
        begins = np.flatnonzero(np.concatenate([[True], ordered[1:] != ordered[:-1]]))
        for begin, end in zip(begins.tolist(), [*begins[1:].tolist(), len(ordered)], strict=True):
            self._bitmaps[ordered[begin]] |= _bitmap(sorted_rows[begin:end])
        self._check_memory(int(rows[-1]) + 1)

    def _entries(self, values: pa.Array) -> npt.NDArray[np.int32]:
        """The places of distinct values, which are added if they are new."""
        if values.type != self._values.type:
            values = values.cast(self._values.type)
        new = values.filter(pc.invert(pc.is_in(values, value_set=self._values))).unique()
        if len(new):
            if len(self._values) + len(new) > self._most_values:
                raise UnsuitableColumnError(f"more than {self._most_values} distinct values")
            self._values = pa.concat_arrays([self._values, new])
            if self._values.nbytes > MOST_VALUE_BYTES:
                raise UnsuitableColumnError(f"distinct values of more than {MOST_VALUE_BYTES} bytes")
            self._bitmaps.extend(BitMap() for _ in range(len(new)))
        found: npt.NDArray[np.int32] = np.asarray(pc.index_in(values, value_set=self._values))
        return found

    def _check_memory(self, num_rows: int) -> None:
        """Two bytes a row at most, and what bitmaps of few rows hold for themselves."""
        if 2 * num_rows + 200 * len(self._bitmaps) > self._memory_limit_bytes:
            raise UnsuitableColumnError(f"bitmaps would hold more than {self._memory_limit_bytes} bytes")


def _bitmap(rows: Rows) -> BitMap:
    """Of rows below 2**32. A list may name a row twice."""
    return BitMap(typed_array("I", rows.astype(np.uint32).tobytes()))


def _serialized(bitmap: BitMap) -> bytes:
    """As a 64-bit bitmap; nothing for no rows."""
    return struct.pack("<QI", 1, 0) + bitmap.serialize() if len(bitmap) else b""
