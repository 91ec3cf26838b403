"""The changes of a batch as arrays: which key each takes its row from, to which it brings it, what it did not send."""

from collections.abc import Sequence

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from pipelines.changes.key_codes import check_key_types, encode_keys, same_rows

Mask = NDArray[np.bool_]
Rows = NDArray[np.int64]


class ChangeArrays:
    """Changes as arrays.

    Attributes:
        key: names of the key columns.
        after: the new rows; `columns` are their members by name.
        puts: which changes leave a row.
        is_create: which are inserts.
        old_key: the key that each change takes its row from.
        new_key: the key of the row that it leaves.
        moves: which change the key.
        old_code: the old key as an integer below `limit`.
        new_code: the new key; that of a delete is its old one.
        unsent: per column that some change did not send, which changes did not.
    """

    def __init__(self, batch: pa.Table, key: Sequence[str]) -> None:
        self.key = tuple(key)
        self.after = _single(batch.column("after"))
        self.is_create = np.asarray(pc.equal(batch.column("op"), "c"), np.bool_)
        self.puts: Mask = np.asarray(self.after.is_valid(), np.bool_)
        members = dict(zip([f.name for f in batch.schema.field("after").type], self.after.flatten(), strict=True))
        self.columns: dict[str, pa.Array] = members
        old_members = dict(
            zip([f.name for f in batch.schema.field("key").type], _single(batch.column("key")).flatten(), strict=True)
        )
        self.old_key = [old_members[name] for name in self.key]
        self.new_key = [members[name] for name in self.key]
        check_key_types(self.old_key)
        self.moves: Mask = self.puts & ~same_rows(self.old_key, self.new_key)
        count = len(self.puts)
        if self.moves.any():
            both = [pa.chunked_array([old, new]) for old, new in zip(self.old_key, self.new_key, strict=True)]
            codes, self.limit = encode_keys(both)
            self.old_code, self.new_code = codes[:count], np.where(self.puts, codes[count:], codes[:count])
        else:
            self.old_code, self.limit = encode_keys(self.old_key)
            self.new_code = self.old_code
        self.unsent = _unsent(batch.column("unchanged"))

    def __len__(self) -> int:
        return len(self.puts)


def _unsent(unchanged: pa.ChunkedArray) -> dict[str, Mask]:
    """Per column that some change did not send, the changes that did not."""
    lists = _single(unchanged)
    names = lists.flatten()
    if len(names) == 0:
        return {}
    rows = np.asarray(pc.list_parent_indices(lists))
    encoded = names.dictionary_encode()
    codes = np.asarray(encoded.indices)
    result = {}
    for code, name in enumerate(encoded.dictionary.to_pylist()):
        mask = np.zeros(len(lists), np.bool_)
        mask[rows[codes == code]] = True
        result[name] = mask
    return result


def _single(column: pa.ChunkedArray) -> pa.Array:
    if column.num_chunks == 1:
        return column.chunk(0)
    return pa.concat_arrays(column.chunks) if column.num_chunks else pa.array([], column.type)
