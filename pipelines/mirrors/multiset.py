"""Tables without a key: equal rows are counted, and a batch brings each to its right number (`identity: full`).

An equality delete removes all equal rows, so the ones that stay are written again (SEMANTICS rule 28). Takes the place
of `fold.py` for such tables; how many equal rows there are now is looked up at the commit's base.

An old row may lack columns: the source has dropped them, and the mirror has not. It removes one row that has the values
it does have; of several the first in the order of their columns by name, NULL before all values.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from pipelines.changes.change_run import ChangeRun, hash_codes, num_parts, rows_after, spread
from pipelines.changes.keys import encode_keys
from pipelines.mirrors.partial_removals import Removals

Rows = npt.NDArray[np.int64]
Mask = npt.NDArray[np.bool_]
_SIGN, _LACKING = "\0sign", "\0lacking"
CountLive = Callable[[pa.Table], Rows]
"""How many live rows equal each of these distinct rows."""
FindLive = Callable[[pa.Table], pa.Table]
"""All live rows that agree with one of these distinct rows in all columns that they have."""


@dataclass(frozen=True, slots=True)
class Recount:
    """What a batch writes for a table without a key.

    Attributes:
        upserts: rows to add.
        deletes: rows all of whose copies are removed first.
        truncated: the table is emptied first.
        num_missed: deletes and updates whose old row was not there.
    """

    upserts: pa.Table
    deletes: pa.Table
    truncated: bool
    num_missed: int


@dataclass(frozen=True, slots=True)
class Steps:
    """Every removal (-1) and addition (+1) of a row, in order.

    Attributes:
        rows: what is removed or added.
        signs: which of the two.
        lacking: per row the columns that an old row does not have; list<string>.
        after_truncate: the table is empty before them.
    """

    rows: pa.Table
    signs: Rows
    lacking: pa.Array
    after_truncate: bool

    @property
    def is_partial(self) -> Mask:
        """Which are removals by a row that lacks columns."""
        return np.asarray(pc.list_value_length(self.lacking)) > 0

    def only(self, chosen: Mask) -> "Steps":
        """Some of them."""
        mask = pa.array(chosen)
        return Steps(self.rows.filter(mask), self.signs[chosen], self.lacking.filter(mask), self.after_truncate)


def steps(changes: pa.Table, columns: Sequence[str]) -> Steps:
    """What changes in application order remove and add after their last truncate: an update is one of each."""
    truncates = np.flatnonzero(np.asarray(pc.equal(changes.column("op"), "t")))
    if len(truncates):
        changes = changes.slice(int(truncates[-1]) + 1)
    return _steps(_signed(changes, columns), after_truncate=len(truncates) > 0)


def steps_by_row(run: ChangeRun, columns: Sequence[str], limit_bytes: int) -> Iterator[Steps]:
    """The steps of a run, parted so that rows that may be taken for each other are in one part of about `limit_bytes`."""
    if not run.is_spilled:
        yield from (steps(table, columns) for table in run.tables())
        return
    first = _last_truncate(run)
    shared = _always_there(rows_after(run, first), columns)
    count = num_parts(run, limit_bytes)

    def part_of(rows: pa.Table) -> Rows:
        return hash_codes([_single(rows.column(n)) for n in shared], count) if shared else np.zeros(len(rows), np.int64)

    for part in spread((_signed(table, columns) for table in rows_after(run, first)), part_of, count):
        yield _steps(part, after_truncate=first > 0)
    if first == run.num_rows:
        yield _steps(_signed(next(run.tables()).slice(0, 0), columns), after_truncate=True)


def recount(taken: Steps, count_live: CountLive, find_live: FindLive) -> Recount:
    """Rows added and removed by steps; removing a row that is not there does nothing."""
    partial = taken.is_partial
    if not partial.any():
        return _by_whole_rows(taken, count_live)
    lacking = set(pc.unique(taken.lacking.flatten()).to_pylist())
    shared = [name for name in taken.rows.column_names if name not in lacking]
    # Rows that differ in a column that no old row lacks are never taken for each other.
    group = encode_keys([taken.rows.column(n) for n in shared])[0] if shared else np.zeros(len(partial), np.int64)
    affected = np.isin(group, group[partial])
    _, firsts = np.unique(group[affected], return_index=True)
    asked = taken.rows.filter(pa.array(affected)).select(shared).take(pa.array(firsts))
    live = taken.rows.slice(0, 0) if taken.after_truncate else find_live(asked)
    several = _one_by_one(taken.only(affected), live)
    whole = _by_whole_rows(taken.only(~affected), count_live)
    return Recount(
        pa.concat_tables([several.upserts, whole.upserts], promote_options="permissive"),
        pa.concat_tables([several.deletes, whole.deletes], promote_options="permissive"),
        taken.after_truncate,
        several.num_missed + whole.num_missed,
    )


def _by_whole_rows(taken: Steps, count_live: CountLive) -> Recount:
    rows, signs, truncated = taken.rows, taken.signs, taken.after_truncate
    if rows.num_rows == 0:
        return Recount(rows, rows, truncated, 0)
    codes, _ = encode_keys(rows.columns)
    _, firsts, group = np.unique(codes, return_index=True, return_inverse=True)
    distinct = rows.take(pa.array(firsts))
    total, lowest = _walk(group, signs, len(firsts))
    before = np.zeros(len(firsts), np.int64)
    asked = np.flatnonzero(_has_removal(group, signs, len(firsts)))
    if len(asked) and not truncated:
        before[asked] = count_live(distinct.take(pa.array(asked)))
    after = np.maximum(before + total, total - np.minimum(lowest, 0))
    return _result(distinct, before, after, truncated=truncated, num_missed=int((after - before - total).sum()))


def _one_by_one(taken: Steps, live: pa.Table) -> Recount:
    """As what is left depends on the order, all rows that may be meant are walked through together.

    Args:
        taken: the steps.
        live: all rows of the table that they may remove.
    """
    columns = sorted(taken.rows.column_names)
    partial = taken.is_partial
    known = pa.concat_tables([taken.rows.select(columns), live.select(columns)], promote_options="permissive")
    exact = np.flatnonzero(np.r_[~partial, np.ones(live.num_rows, np.bool_)])
    codes = encode_keys(known.columns)[0]
    _, firsts, number = np.unique(codes[exact], return_index=True, return_inverse=True)
    distinct = known.take(pa.array(exact[firsts]))
    labels = [f"c{i}" for i in range(len(columns))]  # Arrow takes a name that begins with a point for a path
    by_column = [(label, "ascending", "at_start") for label in labels]
    order = np.asarray(pc.sort_indices(distinct.rename_columns(labels), by_column)).astype(np.int64)
    distinct = distinct.take(pa.array(order))
    rank = np.empty(len(order), np.int64)
    rank[order] = np.arange(len(order))
    row_of = np.full(known.num_rows, -1, np.int64)
    row_of[exact] = rank[number]
    before = np.bincount(row_of[len(partial) :], minlength=len(order))
    removals = _removals(known.slice(0, len(partial)), taken, distinct)
    after, num_missed = removals.walk(taken.signs, row_of[: len(partial)], before)
    return _result(distinct, before, after, truncated=taken.after_truncate, num_missed=num_missed)


def _removals(rows: pa.Table, taken: Steps, distinct: pa.Table) -> Removals:
    """Which of the distinct rows each removal by a row that lacks columns may take."""
    partial = np.flatnonzero(taken.is_partial)
    names = pc.unique(taken.lacking.flatten()).to_pylist()
    flat = np.asarray(pc.index_in(taken.lacking.flatten(), value_set=pa.array(names, pa.string()))).astype(np.int64)
    marks = np.zeros((len(taken.signs), len(names)), np.bool_)
    marks[np.asarray(pc.list_parent_indices(taken.lacking)), flat] = True
    sets, set_of = np.unique(marks[partial], axis=0, return_inverse=True)
    found = Removals(np.full(len(taken.signs), -1, np.int64))
    for number, mask in enumerate(sets):
        own = partial[set_of.ravel() == number]
        lacking = {name for name, lacks in zip(names, mask, strict=True) if lacks}
        carried = [name for name in distinct.column_names if name not in lacking]
        both = pa.concat_tables(
            [distinct.select(carried), rows.select(carried).take(pa.array(own))], promote_options="permissive"
        )
        codes = encode_keys(both.columns)[0] if carried else np.zeros(distinct.num_rows + len(own), np.int64)
        found.add(own, codes[distinct.num_rows :], codes[: distinct.num_rows])
    return found


def _result(distinct: pa.Table, before: Rows, after: Rows, *, truncated: bool, num_missed: int) -> Recount:
    shrinks = after < before
    copies = np.where(shrinks, after, np.maximum(after - before, 0))
    return Recount(
        upserts=distinct.take(pa.array(np.repeat(np.arange(len(after)), copies))),
        deletes=distinct.filter(pa.array(shrinks)),
        truncated=truncated,
        num_missed=num_missed,
    )


def _signed(changes: pa.Table, columns: Sequence[str]) -> pa.Table:
    """Rows removed and added, in order, with their signs and the columns that they lack."""
    op = changes.column("op").combine_chunks()
    removes = np.asarray(pc.is_in(op, value_set=pa.array(["u", "d"])))
    adds = np.asarray(pc.is_in(op, value_set=pa.array(["r", "c", "u"])))
    old, new = _members(changes, "key", columns), _members(changes, "after", columns)
    both = pa.concat_tables([old.filter(pa.array(removes)), new.filter(pa.array(adds))], promote_options="permissive")
    order = np.argsort(np.r_[np.flatnonzero(removes) * 2, np.flatnonzero(adds) * 2 + 1], kind="stable")
    signs = np.r_[np.full(int(removes.sum()), -1), np.ones(int(adds.sum()))].astype(np.int64)
    lacking = _known(_single(changes.column("unchanged")).filter(pa.array(removes)), columns)
    lists = pa.concat_arrays([lacking, _empty_lists(int(adds.sum()))])
    both = both.append_column(_SIGN, pa.array(signs)).append_column(_LACKING, lists)
    return both.take(pa.array(order))


def _known(lists: pa.ListArray, columns: Sequence[str]) -> pa.ListArray:
    """The names of each list that are columns; none where there is no list."""
    names = lists.flatten().cast(pa.string())
    kept = np.asarray(pc.is_in(names, value_set=pa.array(list(columns), pa.string())))
    parents = np.asarray(pc.list_parent_indices(lists)).astype(np.int64)[kept]
    offsets = np.r_[0, np.cumsum(np.bincount(parents, minlength=len(lists)))].astype(np.int32)
    return pa.ListArray.from_arrays(pa.array(offsets), names.filter(pa.array(kept)))


def _empty_lists(count: int) -> pa.ListArray:
    return pa.ListArray.from_arrays(pa.array(np.zeros(count + 1, np.int32)), pa.array([], pa.string()))


def _steps(signed: pa.Table, *, after_truncate: bool) -> Steps:
    rows = signed.drop_columns([_SIGN, _LACKING])
    return Steps(rows, np.asarray(signed.column(_SIGN)), _single(signed.column(_LACKING)), after_truncate)


def _always_there(tables: Iterator[pa.Table], columns: Sequence[str]) -> list[str]:
    """The columns that no old row lacks."""
    lacking: set[str] = set()
    for table in tables:
        lacking.update(pc.unique(_single(table.column("unchanged")).flatten()).to_pylist())
    return [name for name in columns if name not in lacking]


def _last_truncate(run: ChangeRun) -> int:
    """How many changes there are up to the last truncate."""
    first = at = 0
    for table in run.tables():
        truncates = np.flatnonzero(np.asarray(pc.equal(table.column("op"), "t")))
        first = at + int(truncates[-1]) + 1 if len(truncates) else first
        at += table.num_rows
    return first


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


def _has_removal(group: Rows, signs: Rows, count: int) -> Mask:
    return np.bincount(group[signs < 0], minlength=count) > 0


def _members(changes: pa.Table, column: str, names: Sequence[str]) -> pa.Table:
    struct = changes.column(column)
    chunk = pa.concat_arrays(struct.chunks) if struct.num_chunks else pa.array([], struct.type)
    given = dict(zip([f.name for f in chunk.type], chunk.flatten(), strict=True))
    return pa.table({name: given.get(name, pa.nulls(len(chunk))) for name in names})
