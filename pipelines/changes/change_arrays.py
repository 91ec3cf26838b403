"""The changes of a batch as arrays, and the sources of columns that a change did not send (rule 26)."""

from collections.abc import Mapping, Sequence
from itertools import pairwise

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from nevermore.pipelines.changes.keys import check_key_types, encode_keys, same_rows
from nevermore.pipelines.decode.batches import SEND_AGAIN
from nevermore.pipelines.iceberg.row_shape import members_of, single_array, with_columns
from nevermore.scan_core import Mask, Rows

COMPLETED = "\0"
"""In the log, before the name of a column that a late change did not send and whose value was taken from the log: a change
that belongs before it, and comes still later, may have another. No column's name has this character."""


def taken(column: pa.ChunkedArray, rows: Rows) -> pa.ChunkedArray:
    """Ascending rows of a column, chunk by chunk: all chunks together may have more bytes of text than one array holds."""
    ends = np.cumsum([0, *map(len, column.chunks)])
    places = pairwise(np.searchsorted(rows, ends).tolist())
    of_chunks = zip(column.chunks, ends[:-1], places, strict=True)
    return pa.chunked_array(
        [c.take(pa.array(rows[low:high] - begin)) for c, begin, (low, high) in of_chunks], column.type
    )


class ChangeArrays:
    """Changes as arrays.

    Attributes:
        key: names of the key columns.
        columns: the members of the new rows by name, in the chunks of the batch.
        puts: mask of changes after which a row exists.
        is_create: mask of inserts.
        old_key: the key of the row that each change replaces or removes.
        new_key: the key of the row that it writes.
        moves: mask of changes of a key.
        old_code: the old key as an integer below `limit`.
        new_code: the new key likewise; for a delete the old one.
        unsent: for each column that some change did not send, the mask of these changes.
    """

    def __init__(self, batch: pa.Table, key: Sequence[str]) -> None:
        self.key = tuple(key)
        after = batch.column("after")
        self.is_create = np.asarray(pc.equal(batch.column("op"), "c"), np.bool_)
        self.puts: Mask = np.asarray(after.is_valid(), np.bool_)
        self.columns = members_of(after)
        old = members_of(batch.column("key"))
        self.old_key = [single_array(old[name]) for name in self.key]
        self.new_key = [single_array(self.columns[name]) for name in self.key]
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
        masks = masks_of(single_array(batch.column("unchanged")))
        self.unsent = {name: mask for name, mask in masks.items() if name in self.columns}

    def __len__(self) -> int:
        return len(self.puts)


def masks_of(lists: pa.ListArray) -> dict[str, Mask]:
    """For each name in some lists, the mask of the lists that have it."""
    rows, encoded = np.asarray(pc.list_parent_indices(lists)), lists.flatten().dictionary_encode()
    codes = np.asarray(encoded.indices)
    result = {}
    for code, name in enumerate(encoded.dictionary.to_pylist()):
        mask = np.zeros(len(lists), np.bool_)
        mask[rows[codes == code]] = True
        result[name] = mask
    return result


def lists_of(masks: Mapping[str, Mask], count: int, kind: pa.ListType | None = None) -> pa.ListArray:
    """The `count` lists of names with these masks."""
    marks = np.stack([*masks.values()], axis=1) if masks else np.zeros((count, 0), np.bool_)
    offsets = np.r_[0, np.cumsum(marks.sum(axis=1))].astype(np.int32)
    names = pa.array(list(masks), pa.string()).take(pa.array(np.nonzero(marks)[1]))
    return pa.ListArray.from_arrays(pa.array(offsets), names, type=kind)


NOT_FOUND_REASON = f"column {{}} was not sent and the table has no row with this key to take it from; {SEND_AGAIN}"
UNRESOLVED_REASON = (
    f"column {{}} was not sent and the row was deleted or truncated before, or moved to another key; {SEND_AGAIN}"
)


class UnsentSources:
    """For each change and unsent column, the change that has the value; or the mirror has it, or nothing does.

    A change whose row was gone when it came has no effect at all, nor have those that depend on it.

    Attributes:
        alive: mask of the changes that have an effect.
        dropped: the other ones, by reason.
        source_of: for each column, the change that has the value of each change.
        from_mirror: for each column, the changes that take it from the mirror.
    """

    def __init__(
        self, changes: ChangeArrays, *, truncated: bool, absent: Mask | None = None, ends: Mask | None = None
    ) -> None:
        """Find them.

        Args:
            changes: the changes.
            truncated: the mirror is empty before them.
            absent: changes whose row is known to be missing in the mirror.
            ends: changes that write a row from which later ones take nothing, as it counts as deleted.
        """
        self.alive = np.ones(len(changes), np.bool_)
        self.dropped: list[tuple[Rows, str]] = []
        self._absent = np.zeros(len(changes), np.bool_) if absent is None else absent
        self._has_moves = bool(changes.moves.any())
        self._truncated = truncated
        puts = changes.puts if ends is None else changes.puts & ~ends
        while lost := self._resolve(changes, puts):
            for reason, rows in lost.items():
                self.dropped.append((rows[self.alive[rows]], reason))
                self.alive[rows] = False

    def _resolve(self, changes: ChangeArrays, puts: Mask) -> dict[str, Rows]:
        """Look for the values; returns changes whose row was gone when they came, by reason."""
        self.source_of: dict[str, Rows] = {}
        self.from_mirror: dict[str, Mask] = {}
        lost: dict[str, Rows] = {}
        if changes.unsent:
            previous = _previous_touch(changes, self.alive, puts)
            for name, mask in changes.unsent.items():
                if (unsent := mask & self.alive & changes.puts).any():
                    lost |= self._resolve_column(name, unsent, *previous)
        return lost

    def _resolve_column(self, name: str, unsent: Mask, touch: Rows, is_put: Mask) -> dict[str, Rows]:
        base = unsent & (touch < 0)
        gone = unsent & (touch >= 0) & ~is_put
        missing = base & self._absent
        if self._truncated:
            gone, base = gone | base, np.zeros_like(base)
        pointer = np.where(unsent & ~base & ~gone, touch, np.arange(len(unsent)))
        while (pointer[pointer] != pointer).any():
            pointer = pointer[pointer]
        self.source_of[name], self.from_mirror[name] = pointer, base
        # Without key changes, changes that depend on a lost change are lost, too; otherwise the next round tells.
        return {
            reason.format(name): np.flatnonzero(rows if self._has_moves else unsent & rows[pointer])
            for rows, reason in ((gone, UNRESOLVED_REASON), (missing & ~gone, NOT_FOUND_REASON))
            if rows.any()
        }


def _previous_touch(changes: ChangeArrays, alive: Mask, puts: Mask) -> tuple[Rows, Mask]:
    """For each change, the latest earlier touch of its old key (-1: none), and whether a row existed after it."""
    rows = np.flatnonzero(alive)
    moving = rows[changes.moves[rows]]
    # ahead of all, a touch of no key: what precedes the first touch of a key is one of another key
    key = np.concatenate([changes.new_code[rows], changes.old_code[moving], [-1]])
    time = np.concatenate([rows, moving, [0]])
    put = np.concatenate([puts[rows], np.zeros(len(moving) + 1, np.bool_)])
    order = np.lexsort((time, key))
    key, time, put = key[order], time[order], put[order]
    span = len(changes) + 1
    at = np.searchsorted(key * span + time, changes.old_code * span + np.arange(len(changes))) - 1
    same = key[at] == changes.old_code
    return np.where(same, time[at], -1), same & put[at]


def with_sent(
    table: pa.Table, arrays: ChangeArrays, sources: UnsentSources, kept: Rows, *, chosen: Mask, mark: str = ""
) -> pa.Table:
    """Some changes; in the chosen ones, unsent columns are filled with values of earlier changes.

    Args:
        table: the changes `kept` of `arrays`, in the change schema.
        arrays: all changes.
        sources: sources of their unsent columns.
        kept: indices of the wanted changes.
        chosen: which of these to complete.
        mark: what then precedes the names of completed columns in `unchanged`; without it they are removed from there.
    """
    columns = {name: taken(column, kept) for name, column in arrays.columns.items()}
    unsent = {name: mask[kept] for name, mask in arrays.unsent.items()}
    for name, source_of in sources.source_of.items():
        source = source_of[kept]
        known = unsent[name] & chosen & ~sources.from_mirror[name][source]
        if known.any():
            columns[name] = pc.if_else(
                pa.array(known), single_array(arrays.columns[name]).take(pa.array(source)), columns[name]
            )
            unsent[name] = unsent[name] & ~known
            if mark:
                unsent[mark + name] = known
    kind = table.schema.field("after").type
    present = pa.array(~arrays.puts[kept])
    after = pa.StructArray.from_arrays([single_array(c) for c in columns.values()], fields=list(kind), mask=present)
    lists = lists_of(unsent, table.num_rows, table.schema.field("unchanged").type)
    return with_columns(table, {"after": after, "unchanged": lists})
