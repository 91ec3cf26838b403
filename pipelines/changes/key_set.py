"""Keys to find among other rows: exact, NULL equal to NULL, any number of columns, on whole batches.

Used where few keys meet many rows on the writing side; the scan's own delete sets are in scan_core.
"""

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

Positions = npt.NDArray[np.int64]


class KeySet:
    """The rows of some key columns; `find` tells which of them each row of a batch equals."""

    def __init__(self, columns: Sequence[pa.ChunkedArray | pa.Array]) -> None:
        """`columns` have one length; of equal rows one is found."""
        self._values: list[pa.Array] = []
        codes: Positions = np.zeros(len(columns[0]) if columns else 0, np.int64)
        self._ranks: list[Positions] = []
        for column in columns:
            values = pc.unique(_plain(column))
            own = _codes(_plain(column), values)
            self._values.append(values)
            combined = codes * len(values) + own
            ranks = np.unique(combined)
            self._ranks.append(ranks)
            codes = np.searchsorted(ranks, combined)
        self._rows = np.full(int(codes.max(initial=-1)) + 1, -1, np.int64)
        self._rows[codes[::-1]] = np.arange(len(codes) - 1, -1, -1)

    def find(self, columns: Sequence[pa.ChunkedArray | pa.Array]) -> Positions:
        """For each row of these columns, the first equal row of the set, or -1."""
        count = len(columns[0])
        codes: Positions = np.zeros(count, np.int64)
        alive: npt.NDArray[np.bool_] = np.full(count, len(self._rows) > 0)
        for column, values, ranks in zip(columns, self._values, self._ranks, strict=True):
            own = _codes(_plain(column), values)
            alive &= own >= 0
            combined = codes * max(1, len(values)) + own
            codes = np.searchsorted(ranks, combined)
            codes[codes == len(ranks)] = 0
            alive &= ranks[codes] == combined if len(ranks) else False
        found: Positions = np.full(count, -1, np.int64)
        found[alive] = self._rows[codes[alive]]
        return found


def _plain(column: pa.ChunkedArray | pa.Array) -> pa.Array:
    array = column.combine_chunks() if isinstance(column, pa.ChunkedArray) else column
    if isinstance(array, pa.ChunkedArray):
        array = pa.concat_arrays(array.chunks) if array.num_chunks else pa.array([], array.type)
    if isinstance(array, pa.ExtensionArray):
        array = array.storage
    return array.dictionary_decode() if pa.types.is_dictionary(array.type) else array


def _codes(column: pa.Array, values: pa.Array) -> Positions:
    """Index of each value among `values`, NULL being a value like any other; -1 where it is not."""
    if not column.type.equals(values.type):
        column = column.cast(values.type)
    found = pc.fill_null(pc.index_in(column, value_set=values), -1)
    return np.asarray(found).astype(np.int64)
