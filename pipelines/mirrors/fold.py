"""Folds many changes to one state per key (rules 26 and 28).

Also reduces the number of changes before they are folded, and implements soft deletes, which keep a deleted row and
set `_deleted`. Tables without a key are in `mirror.py`.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from nevermore.pipelines.changes.change_arrays import ChangeArrays, UnsentSources, lists_of, taken, with_sent
from nevermore.pipelines.changes.keys import KeySet, num_to_truncate
from nevermore.pipelines.decode.batches import count_ops
from nevermore.pipelines.errors import SchemaConflictError
from nevermore.pipelines.iceberg.loaded_table import open_current
from nevermore.pipelines.iceberg.row_shape import members_of, single_array, with_columns, without_extensions
from nevermore.scan_core import Mask, Rows

if TYPE_CHECKING:
    from nevermore.pipelines.iceberg.catalog import Table as CatalogTable


@dataclass(frozen=True)
class FoldResult:
    """The effect of a batch on the table.

    Attributes:
        upserts: one row per key that exists after the batch, in the order of the changes that wrote them.
        deletes: keys that may exist before the batch and must be removed: every touched key, including upserted ones.
        delete_removes: per delete, whether the batch's first change of the key removes its row (a delete, or a key
            change
            from it), rather than writing one.
        num_missed: removals of a row that an earlier change or a truncate in the batch had already removed.
        delete_is_insert: per delete, whether the batch's first change of the key is a create (op c): such a key is new
            if the source never inserts over a live key.
        needs_lookup: upserts with columns that only the mirror knows: `upsert` (row of `upserts`), `key` (struct: the
            key of that row in the mirror before the batch), `unchanged` (list of columns to take); None if there are
            none. Those columns are NULL in `upserts` until filled; a row that is not found goes to quarantine.
        unresolved: changes that cannot be applied: `change` (row of the batch) and `reason`.
        truncated: whether the table is emptied first, so that deletes have nothing to remove.
        counts: changes by op.
    """

    upserts: pa.Table
    deletes: pa.Table
    delete_is_insert: Mask
    delete_removes: Mask
    num_missed: int
    needs_lookup: pa.Table | None
    unresolved: pa.Table
    truncated: bool
    counts: Mapping[str, int]


def fold(
    batch: pa.Table,
    key: Sequence[str],
    lacking: pa.Table | None = None,
    *,
    after_truncate: bool = False,
    flags: Mask | None = None,
) -> FoldResult:
    """Fold changes in the change schema (further columns are ignored), rows in application order.

    Args:
        batch: the changes.
        key: columns that identify a row.
        lacking: keys known to have no row in the mirror: changes that need the row are unresolved and have no effect.
        after_truncate: whether the table is emptied before these changes.
        flags: with soft deletes, which changes flag a row, so that nothing of it survives; a change of a key then leaves the
            row of the old key as it was.

    Raises:
        SchemaConflictError: a key column has a type that keys cannot have.
    """
    counts = count_ops(batch.column("op"))
    first = num_to_truncate(batch)
    truncated = after_truncate or first > 0
    changes = ChangeArrays(batch.slice(first) if first else batch, key)
    absent = None if lacking is None else KeySet(lacking.columns).find(changes.old_key) >= 0
    sources = UnsentSources(changes, truncated=truncated, absent=absent, ends=flags)
    removing = sources.alive & changes.moves & (flags is None)
    return _result(changes, sources, removing=removing, first=first, truncated=truncated, counts=counts)


def _result(
    changes: ChangeArrays,
    sources: UnsentSources,
    *,
    removing: Mask,
    first: int,
    truncated: bool,
    counts: Mapping[str, int],
) -> FoldResult:
    rows = np.flatnonzero(sources.alive)
    last_touch = np.full(changes.limit, -1, np.int64)
    leaves_row = np.zeros(changes.limit, np.bool_)
    moving = np.flatnonzero(removing)
    key = np.concatenate([changes.old_code[moving], changes.new_code[rows]])
    time = np.concatenate([moving, rows])
    puts = np.concatenate([np.zeros(len(moving), np.bool_), changes.puts[rows]])
    order = np.argsort(time, kind="stable")
    key, time, puts = key[order], time[order], puts[order]
    # NumPy assigns in order, so the last of several changes of a key stays.
    last_touch[key] = time
    leaves_row[key] = puts
    first_touch = np.full(changes.limit, -1, np.int64)
    first_touch[key[::-1]] = np.arange(len(key))[::-1]
    written = _ordered(last_touch[leaves_row & (last_touch >= 0)], len(changes))
    opening = _ordered(first_touch[first_touch >= 0], len(key))
    deletes, is_insert = _deletes(changes, key[opening], time[opening])
    removes = ~puts[opening]
    return FoldResult(
        upserts=_upserts(changes, written, sources),
        deletes=deletes,
        delete_is_insert=is_insert,
        delete_removes=removes,
        num_missed=_num_repeated(key, puts) + (int(removes.sum()) if truncated else 0),
        needs_lookup=_lookups(changes, written, sources),
        unresolved=_unresolved(sources.dropped, first),
        truncated=truncated,
        counts=counts,
    )


def _num_repeated(key: Rows, puts: Mask) -> int:
    """Number of removals, in touches of keys in order, that directly follow another removal of the same key."""
    if puts.all():
        return 0
    removed = np.bincount(key[~puts], minlength=int(key.max()) + 1)
    chosen = np.flatnonzero(removed[key] > 1)
    chosen = chosen[np.argsort(key[chosen], kind="stable")]
    same = key[chosen[1:]] == key[chosen[:-1]]
    return int((same & ~puts[chosen[1:]] & ~puts[chosen[:-1]]).sum())


def _ordered(places: Rows, count: int) -> Rows:
    """Distinct places below `count` in order."""
    mask = np.zeros(count, np.bool_)
    mask[places] = True
    return np.flatnonzero(mask)


def _deletes(changes: ChangeArrays, codes: Rows, times: Rows) -> tuple[pa.Table, Mask]:
    """Every touched key once, from the first change of it; and whether that is a create with its own key."""
    by_old = changes.old_code[times] == codes
    mask, rows = pa.array(by_old), pa.array(times)
    both = zip(changes.old_key, changes.new_key, strict=True)
    columns = [
        old.take(rows) if by_old.all() else pc.if_else(mask, old.take(rows), new.take(rows)) for old, new in both
    ]
    return pa.Table.from_arrays(columns, names=list(changes.key)), changes.is_create[times] & by_old


def _upserts(changes: ChangeArrays, written: Rows, sources: UnsentSources) -> pa.Table:
    columns = dict(changes.columns)
    for name, column in changes.columns.items():
        if name in sources.source_of:
            source = sources.source_of[name][written]
            columns[name] = column.take(pa.array(source, mask=sources.from_mirror[name][source]))
        elif len(written) < len(changes):  # with each key once, all rows are written and none is copied
            columns[name] = taken(column, written)
    return pa.table(columns)


def _lookups(changes: ChangeArrays, written: Rows, sources: UnsentSources) -> pa.Table | None:
    """One entry per (upsert, mirror key): all columns to take from the same mirror row."""
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


def squash(changes: pa.Table, key: Sequence[str]) -> pa.Table:
    """Reduce changes without truncates to fewer with the same effect: the first and last of each key.

    All changes are kept for keys that change or need values of dropped rows.

    Args:
        changes: rows of the change log in order.
        key: columns that identify a row.
    """
    arrays = ChangeArrays(changes, key)
    count = len(arrays)
    sources = UnsentSources(arrays, truncated=False)
    whole = np.zeros(arrays.limit, np.bool_)
    for codes in (arrays.old_code, arrays.new_code):
        whole[codes[arrays.moves | ~sources.alive]] = True
    code, places = arrays.new_code, np.arange(count)
    first, last = np.full(arrays.limit, count), np.full(arrays.limit, -1)
    np.minimum.at(first, code, places)
    np.maximum.at(last, code, places)
    ends = (last[code] == places) & ~whole[code]
    kept = np.flatnonzero(whole[code] | whole[arrays.old_code] | (first[code] == places) | ends)
    if len(kept) == count:
        return changes
    return with_sent(changes.take(pa.array(kept)), arrays, sources, kept, chosen=ends[kept])


DELETED = "_deleted"


def up_to_truncate(tables: Iterable[pa.Table]) -> Iterator[pa.Table]:
    """The changes before the first truncate; a leading truncate comes alone, as it flags all rows in its own commit."""
    is_first = True
    for changes in tables:
        truncates = np.flatnonzero(np.asarray(pc.equal(changes.column("op"), "t")))
        if len(truncates) == 0:
            yield changes
        elif truncates[0] or is_first:
            yield changes.slice(0, max(int(truncates[0]), 1))
        if len(truncates):
            return
        is_first = False


def with_deletes_of_moved_rows(changes: pa.Table, key: Sequence[str]) -> tuple[pa.Table, Mask]:
    """Insert a delete of the old key before every change of a key, which still takes values from that row.

    Args:
        changes: rows of the change log in order.
        key: columns that identify a row.

    Returns:
        The changes, and which of them were inserted.
    """
    moves = ChangeArrays(changes, key).moves
    if not moves.any():
        return changes, moves
    times = np.where(moves, 2, 1)
    expanded = changes.take(pa.array(np.repeat(np.arange(len(moves)), times)))
    is_delete = np.zeros(expanded.num_rows, np.bool_)
    is_delete[np.cumsum(times)[moves] - 2] = True
    ops = single_array(expanded.column("op"))
    return with_columns(expanded, {"op": pc.if_else(pa.array(is_delete), pa.scalar("d", ops.type), ops)}), is_delete


def soften(changes: pa.Table, key: Sequence[str], columns: Sequence[str] = ()) -> pa.Table:
    """Turn every delete into an update that sets `_deleted`, and unset it in every other row.

    Args:
        changes: rows of the change log.
        key: columns that identify a row.
        columns: columns of the mirror; the changes may have fewer.

    Raises:
        SchemaConflictError: the source has a column with that name.
    """
    after_type = changes.schema.field("after").type
    if DELETED in {f.name for f in after_type}:
        raise SchemaConflictError(f"the source has a column {DELETED}, which soft_delete needs; rename it")
    after, old_key, unchanged = (single_array(changes.column(n)) for n in ("after", "key", "unchanged"))
    is_delete = pc.equal(single_array(changes.column("op")), "d")
    old, given = members_of(old_key), members_of(after)
    given |= {name: pa.nulls(len(after)) for name in columns if name not in given and name != DELETED}
    given |= {n: pc.if_else(is_delete, old[n].cast(given[n].type), given[n]) for n in key}
    unsent = [n for n in given if n not in key] or [*key[:1]]
    fields = [*(pa.field(n, c.type) for n, c in given.items()), pa.field(DELETED, pa.bool_())]
    softened = pa.StructArray.from_arrays(
        [*given.values(), is_delete], fields=fields, mask=pc.and_(after.is_null(), pc.invert(is_delete))
    )
    replaced = {
        "op": pc.if_else(is_delete, "u", single_array(changes.column("op"))),
        "after": softened,
        "unchanged": pc.if_else(
            is_delete, lists_of(dict.fromkeys(unsent, np.asarray(is_delete)), len(is_delete)), unchanged
        ),
    }
    return with_columns(changes, replaced)


def flagged_rows(table: "CatalogTable", batch_rows: int) -> Iterator[pa.Table]:
    """All live rows of a table with `_deleted` set, in tables of about `batch_rows`."""
    held: list[pa.RecordBatch] = []
    for batch in open_current(table).scan().to_batches():
        held.append(batch)
        if sum(b.num_rows for b in held) >= batch_rows:
            yield _flagged(held)
            held = []
    if held:
        yield _flagged(held)


def _flagged(batches: list[pa.RecordBatch]) -> pa.Table:
    rows = without_extensions(pa.Table.from_batches(batches))
    rows = rows.drop_columns([DELETED]) if DELETED in rows.column_names else rows
    return rows.append_column(DELETED, pa.array(np.ones(rows.num_rows, np.bool_)))
