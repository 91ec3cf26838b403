"""Tables without a key: equal rows are counted, and a batch brings each to its right number (`identity: full`).

An equality delete removes all equal rows, so the ones that stay are written again (SEMANTICS rule 28). Takes the place
of `fold.py` for such tables; how many equal rows there are now is looked up at the commit's base.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from pipelines.changes.change_run import ChangeRun
from pipelines.changes.key_codes import encode_keys
from pipelines.changes.key_partitions import hash_codes, num_parts, rows_after, spread

Rows = npt.NDArray[np.int64]
_SIGN = "\0sign"
CountLive = Callable[[pa.Table], Rows]
"""How many live rows equal each of these distinct rows."""


@dataclass(frozen=True, slots=True)
class Recount:
    """What a batch writes for a table without a key: rows to add, and rows all of whose copies are removed first."""

    upserts: pa.Table
    deletes: pa.Table
    truncated: bool


@dataclass(frozen=True, slots=True)
class Steps:
    """Every removal (-1) and addition (+1) of a row, in order; `after_truncate`: the table is empty before them."""

    rows: pa.Table
    signs: Rows
    after_truncate: bool


def steps(changes: pa.Table, columns: Sequence[str]) -> Steps:
    """What changes in application order remove and add after their last truncate: an update is one of each."""
    truncates = np.flatnonzero(np.asarray(pc.equal(changes.column("op"), "t")))
    if len(truncates):
        changes = changes.slice(int(truncates[-1]) + 1)
    return Steps(*_signed(changes, columns), after_truncate=len(truncates) > 0)


def steps_by_row(run: ChangeRun, columns: Sequence[str], limit_bytes: int) -> Iterator[Steps]:
    """The steps of a run, parted so that equal rows are in one part, each of about `limit_bytes`."""
    if not run.is_spilled:
        yield from (steps(table, columns) for table in run.tables())
        return
    first = _last_truncate(run)
    tables = (_with_sign(*_signed(table, columns)) for table in rows_after(run, first))
    count = num_parts(run, limit_bytes)
    for part in spread(tables, lambda t: hash_codes([_single(t.column(n)) for n in columns], count), count):
        yield Steps(part.drop_columns([_SIGN]), np.asarray(part.column(_SIGN)), after_truncate=first > 0)
    if first == run.num_rows:
        yield Steps(*_signed(next(run.tables()).slice(0, 0), columns), after_truncate=True)


def recount(taken: Steps, live: CountLive) -> Recount:
    """Rows added and removed by steps; removing a row that is not there does nothing."""
    rows, signs, truncated = taken.rows, taken.signs, taken.after_truncate
    if rows.num_rows == 0:
        return Recount(rows, rows, truncated)
    codes, _ = encode_keys(rows.columns)
    _, firsts, group = np.unique(codes, return_index=True, return_inverse=True)
    distinct = rows.take(pa.array(firsts))
    total, lowest = _walk(group, signs, len(firsts))
    before = np.zeros(len(firsts), np.int64)
    asked = np.flatnonzero(_has_removal(group, signs, len(firsts)))
    if len(asked) and not truncated:
        before[asked] = live(distinct.take(pa.array(asked)))
    after = np.maximum(before + total, total - np.minimum(lowest, 0))
    shrinks = after < before
    copies = np.where(shrinks, after, np.maximum(after - before, 0))
    return Recount(
        upserts=distinct.take(pa.array(np.repeat(np.arange(len(firsts)), copies))),
        deletes=distinct.filter(pa.array(shrinks)),
        truncated=truncated,
    )


def _signed(changes: pa.Table, columns: Sequence[str]) -> tuple[pa.Table, Rows]:
    op = changes.column("op").combine_chunks()
    removes = np.asarray(pc.is_in(op, value_set=pa.array(["u", "d"])))
    adds = np.asarray(pc.is_in(op, value_set=pa.array(["r", "c", "u"])))
    old, new = _members(changes, "key", columns), _members(changes, "after", columns)
    new = _with_unsent(new, old, changes.column("unchanged"))
    both = pa.concat_tables([old.filter(pa.array(removes)), new.filter(pa.array(adds))], promote_options="permissive")
    order = np.argsort(np.r_[np.flatnonzero(removes) * 2, np.flatnonzero(adds) * 2 + 1], kind="stable")
    signs = np.r_[np.full(int(removes.sum()), -1), np.ones(int(adds.sum()))].astype(np.int64)
    return both.take(pa.array(order)), signs[order]


def _last_truncate(run: ChangeRun) -> int:
    """How many changes there are up to the last truncate."""
    first = at = 0
    for table in run.tables():
        truncates = np.flatnonzero(np.asarray(pc.equal(table.column("op"), "t")))
        first = at + int(truncates[-1]) + 1 if len(truncates) else first
        at += table.num_rows
    return first


def _with_sign(rows: pa.Table, signs: Rows) -> pa.Table:
    return rows.append_column(_SIGN, pa.array(signs))


def _single(column: pa.ChunkedArray) -> pa.Array:
    return pa.concat_arrays(column.chunks) if column.num_chunks else pa.array([], column.type)


def _walk(group: Rows, signs: Rows, count: int) -> tuple[Rows, Rows]:
    """Per group the sum of its signs and the lowest partial sum on the way."""
    order = np.argsort(group, kind="stable")
    running = np.cumsum(signs[order])
    starts = np.searchsorted(group[order], np.arange(count))
    base = np.r_[0, running][starts]
    ends = np.r_[starts[1:], len(order)] - 1
    return running[ends] - base, np.minimum.reduceat(running, starts) - base


def _has_removal(group: Rows, signs: Rows, count: int) -> npt.NDArray[np.bool_]:
    return np.bincount(group[signs < 0], minlength=count) > 0


def _members(changes: pa.Table, column: str, names: Sequence[str]) -> pa.Table:
    struct = changes.column(column)
    chunk = pa.concat_arrays(struct.chunks) if struct.num_chunks else pa.array([], struct.type)
    given = dict(zip([f.name for f in chunk.type], chunk.flatten(), strict=True))
    return pa.table({name: given.get(name, pa.nulls(len(chunk))) for name in names})


def _with_unsent(new: pa.Table, old: pa.Table, unchanged: pa.ChunkedArray) -> pa.Table:
    """Columns that were not sent, from the old row: the identity is the whole of it."""
    lists = pa.concat_arrays(unchanged.chunks) if unchanged.num_chunks else pa.array([], unchanged.type)
    names = lists.flatten()
    parents = np.asarray(pc.list_parent_indices(lists))
    for name in pc.unique(names).to_pylist():
        mask = np.zeros(new.num_rows, np.bool_)
        mask[parents[np.asarray(pc.equal(names, name))]] = True
        merged = pc.if_else(pa.array(mask), old.column(name), new.column(name))
        new = new.set_column(new.schema.get_field_index(name), name, merged)
    return new
