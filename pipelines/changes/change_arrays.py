"""The changes of a batch as arrays, and the sources of columns that a change did not send (rule 26)."""

from collections.abc import Sequence
from functools import partial

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from nevermore.pipelines.changes.keys import check_key_types, encode_keys, same_rows, single_chunk
from nevermore.pipelines.decode.batches import SEND_AGAIN
from nevermore.pipelines.workers import together
from nevermore.scan_core import Mask, Rows

TAKEN_ROWS = 131_072
"""Rows that one thread takes at a time."""


def taken(columns: Sequence[pa.ChunkedArray], rows: Rows) -> list[pa.ChunkedArray]:
    """The same ascending rows of columns of equal chunks. All of them are not copied; others are taken chunk by chunk.

    Batches in which each key occurs once take all rows.
    """
    if not columns:
        return []
    first = columns[0]
    if len(rows) == len(first) and (rows == np.arange(len(rows))).all():
        return list(columns)
    ends = np.cumsum([len(chunk) for chunk in first.chunks], dtype=np.int64)
    tasks = []
    for number, begin, end in zip(range(first.num_chunks), np.r_[0, ends[:-1]], ends, strict=True):
        low, high = np.searchsorted(rows, (begin, end)).tolist()
        for at in range(low, high, TAKEN_ROWS):
            chosen = pa.array(rows[at : min(at + TAKEN_ROWS, high)] - begin)
            tasks += [partial(column.chunk(number).take, chosen) for column in columns]
    done = together(tasks)
    return [pa.chunked_array(done[n :: len(columns)], column.type) for n, column in enumerate(columns)]


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
        self.columns = _members(after)
        old = _members(batch.column("key"))
        self.old_key = [single_chunk(old[name]) for name in self.key]
        self.new_key = [single_chunk(self.columns[name]) for name in self.key]
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


def _members(structs: pa.ChunkedArray) -> dict[str, pa.ChunkedArray]:
    return dict(zip([f.name for f in structs.type], structs.flatten(), strict=True))


def _unsent(unchanged: pa.ChunkedArray) -> dict[str, Mask]:
    """For each column that some change did not send, the mask of these changes."""
    lists = single_chunk(unchanged)
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


NOT_FOUND_REASON = f"column {{}} was not sent and the table has no row with this key to take it from; {SEND_AGAIN}"
UNRESOLVED_REASON = (
    f"column {{}} was not sent and the row was deleted or truncated before, or moved to another key; {SEND_AGAIN}"
)


class UnsentSources:
    """For each change and unsent column, the change that has the value; or the mirror has it, or nothing does."""

    def __init__(
        self, changes: ChangeArrays, alive: Mask, absent: Mask, *, truncated: bool, ends: Mask | None = None
    ) -> None:
        """`ends`: changes that write a row from which later ones take nothing, as it counts as deleted."""
        self._absent = absent
        self._has_moves = bool(changes.moves.any())
        self._truncated = truncated
        puts = changes.puts if ends is None else changes.puts & ~ends
        self._previous = _previous_touch(changes, alive, puts) if changes.unsent else None
        self.source_of: dict[str, Rows] = {}
        self.from_mirror: dict[str, Mask] = {}
        self._lost: dict[str, Rows] = {}
        for name, unsent in changes.unsent.items():
            self._resolve(name, unsent & alive & changes.puts)

    def unresolved(self) -> dict[str, Rows]:
        """Changes whose row was gone when they came, by reason."""
        return self._lost

    def _resolve(self, name: str, unsent: Mask) -> None:
        if not unsent.any() or self._previous is None:
            return
        touch, is_put = self._previous
        base = unsent & (touch < 0)
        gone = unsent & (touch >= 0) & ~is_put
        missing = base & self._absent
        if self._truncated:
            gone, base = gone | base, np.zeros_like(base)
        pointer = np.where(unsent & ~base & ~gone, touch, np.arange(len(unsent)))
        while True:
            jumped = pointer[pointer]
            if (jumped == pointer).all():
                break
            pointer = jumped
        for lost, reason in ((gone, UNRESOLVED_REASON), (missing & ~gone, NOT_FOUND_REASON)):
            if lost.any():
                # Without key changes, changes that depend on a lost change are lost, too; otherwise the next round
                # tells.
                self._lost[reason.format(name)] = np.flatnonzero(lost if self._has_moves else unsent & lost[pointer])
        if gone.any() or missing.any():
            return
        self.source_of[name] = pointer
        self.from_mirror[name] = base


def _previous_touch(changes: ChangeArrays, alive: Mask, puts: Mask) -> tuple[Rows, Mask]:
    """For each change, the latest earlier touch of its old key (-1: none), and whether a row existed after it."""
    rows = np.flatnonzero(alive)
    moving = rows[changes.moves[rows]]
    key = np.concatenate([changes.new_code[rows], changes.old_code[moving]])
    time = np.concatenate([rows, moving])
    put = np.concatenate([puts[rows], np.zeros(len(moving), np.bool_)])
    order = np.lexsort((time, key))
    key, time, put = key[order], time[order], put[order]
    span = np.int64(len(changes) + 1)
    ordered = key * span + time
    wanted = changes.old_code * span + np.arange(len(changes))
    at = np.searchsorted(ordered, wanted, side="left") - 1
    found = at >= 0
    same = found & (key[np.maximum(at, 0)] == changes.old_code) if len(key) else found
    at = np.maximum(at, 0)
    nothing = np.full(len(changes), -1, np.int64)
    if not len(key):
        return nothing, np.zeros(len(changes), np.bool_)
    return np.where(same, time[at], nothing), same & put[at]


def with_sent(table: pa.Table, arrays: ChangeArrays, sources: UnsentSources, kept: Rows, *, chosen: Mask) -> pa.Table:
    """Some changes; in the chosen ones, unsent columns are filled with values of earlier changes.

    Args:
        table: the changes `kept` of `arrays`, in the change schema.
        arrays: all changes.
        sources: sources of their unsent columns.
        kept: indices of the wanted changes.
        chosen: which of these to complete.
    """
    columns = dict(zip(arrays.columns, taken(list(arrays.columns.values()), kept), strict=True))
    unsent = {name: mask[kept] for name, mask in arrays.unsent.items()}
    for name, source_of in sources.source_of.items():
        source = source_of[kept]
        known = unsent[name] & chosen & ~sources.from_mirror[name][source]
        if known.any():
            columns[name] = pc.if_else(
                pa.array(known), single_chunk(arrays.columns[name]).take(pa.array(source)), columns[name]
            )
            unsent[name] = unsent[name] & ~known
    kind = table.schema.field("after").type
    present = pa.array(~arrays.puts[kept])
    after = pa.StructArray.from_arrays([single_chunk(c) for c in columns.values()], fields=list(kind), mask=present)
    replaced = {"after": after, "unchanged": _lists(unsent, table.schema.field("unchanged").type, table.num_rows)}
    for name, column in replaced.items():
        table = table.set_column(table.schema.get_field_index(name), table.schema.field(name), column)
    return table


def _lists(unsent: dict[str, Mask], kind: pa.ListType, count: int) -> pa.ListArray:
    """For each change, the names of the columns that it did not send."""
    marks = np.stack([*unsent.values()], axis=1) if unsent else np.zeros((count, 0), np.bool_)
    offsets = np.r_[0, np.cumsum(marks.sum(axis=1))].astype(np.int32)
    names = pa.array(list(unsent), pa.string()).take(pa.array(np.nonzero(marks)[1]))
    return pa.ListArray.from_arrays(pa.array(offsets), names, type=kind)
