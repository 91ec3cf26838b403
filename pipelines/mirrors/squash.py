"""Changes of few keys made fewer before they are folded: what folding them leads to stays the same.

Of a key only its first change and its last one count, the last with the columns that earlier ones sent and it did not.
So a key that changes more often than memory takes is folded piece by piece.
"""

from collections.abc import Sequence

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from pipelines.mirrors.change_arrays import ChangeArrays
from pipelines.mirrors.unsent_sources import UnsentSources

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
    return _filled(changes.take(pa.array(kept)), arrays, sources, kept, ends[kept])


def _filled(table: pa.Table, arrays: ChangeArrays, sources: UnsentSources, kept: Rows, ends: Mask) -> pa.Table:
    """The kept changes, the last of each key with what earlier ones sent of the columns that it did not."""
    columns = {name: column.take(pa.array(kept)) for name, column in arrays.columns.items()}
    unsent = {name: mask[kept] for name, mask in arrays.unsent.items()}
    for name, source_of in sources.source_of.items():
        source = source_of[kept]
        known = unsent[name] & ends & ~sources.from_mirror[name][source]
        if known.any():
            columns[name] = pc.if_else(pa.array(known), arrays.columns[name].take(pa.array(source)), columns[name])
            unsent[name] = unsent[name] & ~known
    kind = table.schema.field("after").type
    present = pa.array(~arrays.puts[kept])
    after = pa.StructArray.from_arrays(list(columns.values()), fields=list(kind), mask=present)
    replaced = {"after": after, "unchanged": _lists(unsent, table.schema.field("unchanged").type, table.num_rows)}
    for name, column in replaced.items():
        table = table.set_column(table.schema.get_field_index(name), table.schema.field(name), column)
    return table


def _lists(unsent: dict[str, Mask], kind: pa.ListType, count: int) -> pa.ListArray:
    """Per change the names of the columns that it did not send."""
    marks = np.stack([*unsent.values()], axis=1) if unsent else np.zeros((count, 0), np.bool_)
    offsets = np.r_[0, np.cumsum(marks.sum(axis=1))].astype(np.int32)
    names = pa.array(list(unsent), pa.string()).take(pa.array(np.nonzero(marks)[1]))
    return pa.ListArray.from_arrays(pa.array(offsets), names, type=kind)
