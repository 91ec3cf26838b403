"""Texts of a batch, by begin and end over shared bytes: nothing is copied."""

from dataclasses import dataclass

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

Bytes = NDArray[np.uint8]
Places = NDArray[np.int32]
Mask = NDArray[np.bool_]


@dataclass(frozen=True)
class Documents:
    """Texts by begin and end in shared bytes; a begin of -1 means there is none."""

    data: Bytes
    start: Places
    end: Places

    def __len__(self) -> int:
        return len(self.start)

    @property
    def present(self) -> Mask:
        """Rows that have a document."""
        present: Mask = self.start >= 0
        return present

    def where(self, mask: Mask) -> "Documents":
        """The same rows, without documents where `mask` is false."""
        return Documents(self.data, np.where(mask, self.start, np.int32(-1)), self.end)

    def take(self, rows: NDArray[np.int64]) -> "Documents":
        """The documents of these rows."""
        return Documents(self.data, self.start[rows], self.end[rows])


def no_documents(count: int) -> Documents:
    """`count` rows without a document."""
    return Documents(np.zeros(0, np.uint8), np.full(count, -1, np.int32), np.zeros(count, np.int32))


def from_binary(array: pa.Array) -> Documents:
    """The documents of a binary or string array, without a copy; NULL has none."""
    if len(array) == 0:
        return no_documents(0)
    _, offsets_buffer, data_buffer = array.buffers()
    offsets = np.frombuffer(offsets_buffer, np.int32)[array.offset : array.offset + len(array) + 1]
    data = np.zeros(0, np.uint8) if data_buffer is None else np.frombuffer(data_buffer, np.uint8)
    start, end = offsets[:-1], offsets[1:]
    if array.null_count:
        start = np.where(np.asarray(array.is_valid()), start, np.int32(-1))
    return Documents(data, start, end)
