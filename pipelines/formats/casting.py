"""Arrow casts that tell which values failed instead of failing as a whole."""

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray


def cast_each(array: pa.Array, arrow: pa.DataType) -> tuple[pa.Array, NDArray[np.bool_]]:
    """`array` as `arrow`, NULL where a value cannot be one, and the mask of those.

    The clean case is one cast; otherwise halves are tried, so the cost grows with the number of bad values.
    """
    bad = np.zeros(len(array), np.bool_)
    parts: list[pa.Array] = []
    pending = [(0, len(array))]
    while pending:
        first, last = pending.pop()
        piece = array.slice(first, last - first)
        try:
            parts.append(piece.cast(arrow))
        except pa.ArrowInvalid:
            if last - first == 1:
                bad[first] = True
                parts.append(pa.nulls(1, arrow))
            else:
                middle = (first + last) // 2
                pending += [(middle, last), (first, middle)]
    return (parts[0] if len(parts) == 1 else pa.concat_arrays(parts)), bad
