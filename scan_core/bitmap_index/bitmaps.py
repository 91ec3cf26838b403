"""Sets of rows with a value: from the bytes of a bitmap to masks over the rows of a row group."""

import struct
from collections.abc import Iterable

import numpy as np
import numpy.typing as npt

from scan_core.errors import MalformedTableError
from scan_core.rows.positions import RowPositions, SortedPositions, mark_rows, position_count
from scan_core.rows.roaring import decode_roaring

_HEADER = struct.Struct("<QIII")
"""One part of a 64-bit bitmap, its number, the cookie and the containers of a 32-bit bitmap without runs."""
_COOKIE_WITHOUT_RUNS = 12346
_MAX_ARRAY_VALUES = 4096


def decode_bitmap(data: bytes, cardinality: int, num_rows: int, source: str) -> RowPositions:
    """A bitmap of rows of a file.

    Raises:
        MalformedTableError: broken, with other than `cardinality` rows, or with rows that the file has not.
    """
    positions = _decode_sparse(data) or decode_roaring(data, source)
    count, last = position_count(positions)
    if count != cardinality or last >= num_rows:
        raise MalformedTableError(
            f"{source}: a bitmap of {count} rows up to {last}; expected {cardinality} below {num_rows}"
        )
    return positions


def row_mask(bitmaps: Iterable[RowPositions], first_row: int, num_rows: int) -> npt.NDArray[np.bool_]:
    """Which of the rows [first_row, first_row + num_rows) are in any of the bitmaps."""
    mask = np.zeros(num_rows, np.bool_)
    for positions in bitmaps:
        mark_rows(positions, first_row, mask)
    return mask


def _decode_sparse(data: bytes) -> SortedPositions | None:
    """The rows of a bitmap below 2**32 that has only containers of sorted values; None for all others.

    That is what values of a scattered column have; it takes a tenth of the time that containers one by one take.
    """
    if len(data) < _HEADER.size:
        return None
    parts, key, cookie, count = _HEADER.unpack_from(data)
    begin = _HEADER.size + 8 * count
    if parts != 1 or key != 0 or cookie != _COOKIE_WITHOUT_RUNS or count > 1 << 16 or begin > len(data):
        return None
    header = np.frombuffer(data, "<u2", 2 * count, _HEADER.size).reshape(-1, 2).astype(np.int64)
    sizes = header[:, 1] + 1
    total = int(sizes.sum())
    if (sizes > _MAX_ARRAY_VALUES).any() or begin + 2 * total != len(data):
        return None
    values = np.repeat(header[:, 0] << 16, sizes) + np.frombuffer(data, "<u2", total, begin)
    return SortedPositions(values) if bool((values[1:] > values[:-1]).all()) else None
