"""Many changes to one state per key (SEMANTICS rules 26 and 28): what a commit writes for a batch.

In application order: a key ends as the last change leaves it; a key change is a delete of the old key and an upsert of
the new; a truncate wipes what came before it; a column that a change did not send takes the value of the nearest
earlier change of that row, through key changes, and nothing survives a delete or truncate in between.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from pipelines.change_batch import count_ops
from pipelines.key_codes import check_key_types, encode_keys, same_rows
from pipelines.key_set import KeySet

Mask = NDArray[np.bool_]
Rows = NDArray[np.int64]

NOT_FOUND_REASON = "column {} was not sent and the table has no row with this key to take it from"
UNRESOLVED_REASON = "column {} was not sent and the row was deleted or truncated before, or moved to another key"


@dataclass(frozen=True)
class FoldResult:
    """What a batch does to the table.

    Attributes:
        upserts: one row per key that the batch leaves alive, in the order of the changes that wrote them.
        upsert_change: per upsert, the row of the batch that wrote it.
        deletes: keys that may exist before the batch and must be removed: every key touched, upserted ones included.
        delete_is_insert: per delete, whether the batch's first change of the key is a create (op c): such a key is new
            where the source never inserts over a live key.
        needs_lookup: upserts with columns that only the mirror knows: `upsert` (row of `upserts`), `key` (struct: the
            key of that row in the mirror before the batch), `unchanged` (list of columns to take); None if there are
            none. Those columns are NULL in `upserts` until filled; a row that is not found goes to quarantine.
        unresolved: changes that cannot be applied: `change` (row of the batch) and `reason`.
        truncated: the table is emptied first; then no delete has anything to remove.
        counts: changes by op.
    """

    upserts: pa.Table
    upsert_change: Rows
    deletes: pa.Table
    delete_is_insert: Mask
    needs_lookup: pa.Table | None
    unresolved: pa.Table
    truncated: bool
    counts: Mapping[str, int]


def fold(
    batch: pa.Table, key: Sequence[str], lacking: pa.Table | None = None, *, after_truncate: bool = False
) -> FoldResult:
    """Fold changes in the change schema (further columns are ignored), rows in application order.

    Args:
        batch: the changes.
        key: columns that identify a row.
        lacking: keys of which the mirror is known to have no row: what needs one is unresolved, and does nothing.
        after_truncate: the table is emptied before these changes.

    Raises:
        SchemaConflictError: a key column of a type that no key may have.
    """
    counts = count_ops(batch.column("op"))
    first = _after_last_truncate(batch)
    truncated = after_truncate or first > 0
    changes = _Changes(batch.slice(first) if first else batch, key)
    dropped: list[tuple[Rows, str]] = []
    alive = np.ones(len(changes), np.bool_)
    absent = np.zeros(len(changes), np.bool_)
    if lacking is not None:
        absent = KeySet(lacking.columns).find(changes.old_key) >= 0
    while True:
        sources = _Sources(changes, alive, absent, truncated=truncated)
        lost = sources.unresolved()
        if not lost:
            break
        for reason, rows in lost.items():
            dropped.append((rows[alive[rows]], reason))
            alive[rows] = False
    return _result(changes, alive, sources, dropped, first=first, truncated=truncated, counts=counts)


def _after_last_truncate(batch: pa.Table) -> int:
    truncates = np.flatnonzero(np.asarray(pc.equal(batch.column("op"), "t")))
    return int(truncates[-1]) + 1 if len(truncates) else 0


class _Changes:
    """The changes of a batch as arrays: which key each takes the row from, and to which it brings it."""

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


class _Sources:
    """Per change and unsent column, the change that has the value; or that the mirror has it, or nobody."""

    def __init__(self, changes: _Changes, alive: Mask, absent: Mask, *, truncated: bool) -> None:
        self._absent = absent
        self._has_moves = bool(changes.moves.any())
        self._truncated = truncated
        self._previous = _previous_touch(changes, alive) if changes.unsent else None
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
                # Without key changes the ones that build on a lost change are lost too; else the next round tells.
                self._lost[reason.format(name)] = np.flatnonzero(lost if self._has_moves else unsent & lost[pointer])
        if gone.any() or missing.any():
            return
        self.source_of[name] = pointer
        self.from_mirror[name] = base


def _previous_touch(changes: _Changes, alive: Mask) -> tuple[Rows, Mask]:
    """Per change, the latest earlier touch of the key it takes its row from (-1: none), and whether that left a row."""
    rows = np.flatnonzero(alive)
    moving = rows[changes.moves[rows]]
    key = np.concatenate([changes.new_code[rows], changes.old_code[moving]])
    time = np.concatenate([rows, moving])
    put = np.concatenate([changes.puts[rows], np.zeros(len(moving), np.bool_)])
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


def _result(
    changes: _Changes,
    alive: Mask,
    sources: _Sources,
    dropped: list[tuple[Rows, str]],
    *,
    first: int,
    truncated: bool,
    counts: Mapping[str, int],
) -> FoldResult:
    rows = np.flatnonzero(alive)
    last_touch = np.full(changes.limit, -1, np.int64)
    leaves_row = np.zeros(changes.limit, np.bool_)
    if changes.moves.any():
        moving = rows[changes.moves[rows]]
        key = np.concatenate([changes.old_code[moving], changes.new_code[rows]])
        time = np.concatenate([moving, rows])
        puts = np.concatenate([np.zeros(len(moving), np.bool_), changes.puts[rows]])
        order = np.argsort(time, kind="stable")
        key, time, puts = key[order], time[order], puts[order]
    else:
        key, time, puts = changes.new_code[rows], rows, changes.puts[rows]
    # NumPy assigns in order: of several changes of a key the last one stays.
    last_touch[key] = time
    leaves_row[key] = puts
    first_touch = np.full(changes.limit, -1, np.int64)
    first_touch[key[::-1]] = np.arange(len(key))[::-1]
    written = _ordered(last_touch[leaves_row & (last_touch >= 0)], len(changes))
    opening = _ordered(first_touch[first_touch >= 0], len(key))
    deletes, is_insert = _deletes(changes, key[opening], time[opening])
    return FoldResult(
        upserts=_upserts(changes, written, sources),
        upsert_change=written + first,
        deletes=deletes,
        delete_is_insert=is_insert,
        needs_lookup=_lookups(changes, written, sources),
        unresolved=_unresolved(dropped, first),
        truncated=truncated,
        counts=counts,
    )


def _ordered(places: Rows, count: int) -> Rows:
    """Distinct places below `count` in order."""
    mask = np.zeros(count, np.bool_)
    mask[places] = True
    return np.flatnonzero(mask)


def _deletes(changes: _Changes, codes: Rows, times: Rows) -> tuple[pa.Table, Mask]:
    """Every touched key once, from the change that first touched it; and whether by a create, as its own key."""
    by_old = changes.old_code[times] == codes
    columns = []
    for old, new in zip(changes.old_key, changes.new_key, strict=True):
        taken = old.take(pa.array(times))
        if not by_old.all():
            taken = pc.if_else(pa.array(by_old), taken, new.take(pa.array(times)))
        columns.append(taken)
    return pa.Table.from_arrays(columns, names=list(changes.key)), changes.is_create[times] & by_old


def _upserts(changes: _Changes, written: Rows, sources: _Sources) -> pa.Table:
    places = pa.array(written)
    columns = {}
    for name, column in changes.columns.items():
        if name in sources.source_of:
            from_mirror = sources.from_mirror[name]
            source = sources.source_of[name][written]
            columns[name] = column.take(pa.array(source, mask=from_mirror[source]))
        else:
            columns[name] = column.take(places)
    return pa.table(columns) if columns else pa.table({})


def _lookups(changes: _Changes, written: Rows, sources: _Sources) -> pa.Table | None:
    """One entry per (upsert, mirror key): all columns that the same mirror row must give."""
    upsert, source, column = [], [], []
    names = list(sources.source_of)
    for number, name in enumerate(names):
        origin = sources.source_of[name][written]
        waiting = np.flatnonzero(sources.from_mirror[name][origin])
        upsert.append(waiting)
        source.append(origin[waiting])
        column.append(np.full(len(waiting), number))
    if not any(len(part) for part in upsert):
        return None
    upserts, sources_of, columns = (np.concatenate(part) for part in (upsert, source, column))
    order = np.lexsort((columns, sources_of, upserts))
    upserts, sources_of, columns = upserts[order], sources_of[order], columns[order]
    starts = np.flatnonzero(np.r_[True, (np.diff(upserts) != 0) | (np.diff(sources_of) != 0)])
    offsets = np.r_[starts, len(upserts)].astype(np.int32)
    keys = [old.take(pa.array(sources_of[starts])) for old in changes.old_key]
    return pa.table(
        {
            "upsert": pa.array(upserts[starts]),
            "key": pa.StructArray.from_arrays(keys, names=list(changes.key)),
            "unchanged": pa.ListArray.from_arrays(pa.array(offsets), pa.array(names).take(pa.array(columns))),
        }
    )


def _unresolved(dropped: list[tuple[Rows, str]], first: int) -> pa.Table:
    rows = np.concatenate([rows for rows, _ in dropped]) if dropped else np.zeros(0, np.int64)
    reason_of = np.repeat(np.arange(len(dropped)), [len(rows) for rows, _ in dropped])
    order = np.argsort(rows, kind="stable")
    reasons = pa.array([reason for _, reason in dropped], pa.string())
    return pa.table({"change": pa.array(rows[order] + first), "reason": reasons.take(pa.array(reason_of[order]))})


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
