"""Changes of few keys made fewer before they are folded: what folding them leads to stays the same.

Of a key only its first change and its last one count, the last with the columns that earlier ones sent and it did not.
So a key that changes more often than memory takes is folded piece by piece.
"""

from collections.abc import Sequence

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from pipelines.changes.change_arrays import ChangeArrays
from pipelines.changes.unsent_sources import UnsentSources, with_sent

Mask = NDArray[np.bool_]
Rows = NDArray[np.int64]


def squash(changes: pa.Table, key: Sequence[str]) -> pa.Table:
    """Some changes without truncates, fewer where keys change often; all of keys that change or take from lost rows.

    Args:
        changes: rows of the change log in order.
        key: columns that identify a row.
    """
    arrays = ChangeArrays(changes, key)
    count = len(arrays)
    alive, nothing = np.ones(count, np.bool_), np.zeros(count, np.bool_)
    while lost := (sources := UnsentSources(arrays, alive, nothing, truncated=False)).unresolved():
        for rows in lost.values():
            alive[rows] = False
    whole = np.zeros(arrays.limit, np.bool_)
    for codes in (arrays.old_code, arrays.new_code):
        whole[codes[arrays.moves | ~alive]] = True
    code, places = arrays.new_code, np.arange(count)
    first, last = np.full(arrays.limit, count), np.full(arrays.limit, -1)
    np.minimum.at(first, code, places)
    np.maximum.at(last, code, places)
    ends = (last[code] == places) & ~whole[code]
    kept = np.flatnonzero(whole[code] | whole[arrays.old_code] | (first[code] == places) | ends)
    if len(kept) == count:
        return changes
    return with_sent(changes.take(pa.array(kept)), arrays, sources, kept, chosen=ends[kept])
