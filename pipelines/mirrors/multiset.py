"""Tables without a key as multisets of rows: what changes add and remove, and which of these steps cancel each other.

A removal by an old row that lacks columns removes the first row that agrees in the others. Which one that is depends on the
steps before it, so these removals are applied one by one.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from heapq import heappop, heappush

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from nevermore.pipelines.changes.change_arrays import lists_of, masks_of
from nevermore.pipelines.changes.change_run import ChangeRun, hash_codes, num_parts, rows_after, spread
from nevermore.pipelines.changes.keys import encode_keys, num_to_truncate
from nevermore.pipelines.iceberg.row_shape import distinct_rows, members_of, single_array
from nevermore.scan_core import Mask, Rows

_SIGN, _LACKING = "\0sign", "\0lacking"
FindLive = Callable[[pa.Table], pa.Table]
"""Finds all live rows that equal one of these distinct rows in all columns that it has."""


@dataclass(frozen=True, slots=True)
class Recount:
    """The rows that a batch writes to a table without a key.

    Attributes:
        upserts: rows to add.
        deletes: rows whose copies are all removed first.
        truncated: whether the table is emptied first.
        num_missed: deletes and updates whose old row was not found.
    """

    upserts: pa.Table
    deletes: pa.Table
    truncated: bool
    num_missed: int


@dataclass(frozen=True, slots=True)
class Steps:
    """Every removal (-1) and addition (+1) of a row, in order.

    Attributes:
        rows: the rows that are removed or added.
        signs: -1 or +1 for each.
        lacking: for each row, the columns that are missing in an old row; list<string>.
        after_truncate: whether the table is empty before these steps.
    """

    rows: pa.Table
    signs: Rows
    lacking: pa.Array
    after_truncate: bool

    @property
    def is_partial(self) -> Mask:
        """Steps that remove a row given without some columns."""
        return np.asarray(pc.list_value_length(self.lacking)) > 0


def steps(changes: pa.Table, columns: Sequence[str]) -> Steps:
    """The rows that changes, in application order, remove and add after their last truncate; an update does both."""
    first = num_to_truncate(changes)
    return _steps(_signed(changes.slice(first), columns), after_truncate=first > 0)


def steps_by_row(run: ChangeRun, columns: Sequence[str], limit_bytes: int) -> Iterator[Steps]:
    """The steps of a run in parts of about `limit_bytes`; rows that may match the same removal are in one part."""
    if not run.is_spilled:
        yield from (steps(table, columns) for table in run.tables())
        return
    first = _last_truncate(run)
    shared = _always_there(rows_after(run, first), columns)
    count = num_parts(run, limit_bytes)

    def part_of(rows: pa.Table) -> Rows:
        return (
            hash_codes([single_array(rows.column(n)) for n in shared], count)
            if shared
            else np.zeros(len(rows), np.int64)
        )

    for part in spread((_signed(table, columns) for table in rows_after(run, first)), part_of, count):
        yield _steps(part, after_truncate=first > 0)
    if first == run.num_rows:
        yield _steps(_signed(next(run.tables()).slice(0, 0), columns), after_truncate=True)


def recount(taken: Steps, find_live: FindLive) -> Recount:
    """Compute the rows that steps add and remove, in order; removing a missing row has no effect."""
    removes = taken.signs < 0
    lacking = masks_of(taken.lacking)
    # Rows that differ in a column that every old row has never match the same removal.
    shared = [name for name in taken.rows.column_names if name not in lacking]
    removed = taken.rows.select(shared).filter(pa.array(removes))
    live = taken.rows.slice(0, 0)
    if removes.any() and not taken.after_truncate:
        live = find_live(distinct_rows(removed) if shared else removed.slice(0, 1))
    columns = sorted(taken.rows.column_names)
    partial = taken.is_partial
    known = pa.concat_tables([taken.rows.select(columns), live.select(columns)], promote_options="permissive")
    exact = np.flatnonzero(np.r_[~partial, np.ones(live.num_rows, np.bool_)])
    codes = encode_keys(known.columns)[0]
    _, firsts, number = np.unique(codes[exact], return_index=True, return_inverse=True)
    distinct = known.take(pa.array(exact[firsts]))
    labels = [f"c{i}" for i in range(len(columns))]  # Arrow reads a name that begins with a dot as a path
    by_column = [(label, "ascending", "at_start") for label in labels]
    order = np.asarray(pc.sort_indices(distinct.rename_columns(labels), by_column)).astype(np.int64)
    distinct = distinct.take(pa.array(order))
    rank = np.empty(len(order), np.int64)
    rank[order] = np.arange(len(order))
    row_of = np.full(known.num_rows, -1, np.int64)
    row_of[exact] = rank[number]
    before = np.bincount(row_of[len(partial) :], minlength=len(order))
    classes = _removals(known.slice(0, len(partial)), taken, distinct)
    after, taken_rows = _walk_in_order(taken.signs, row_of[: len(partial)], before, *classes)
    num_missed = int((taken_rows < 0).sum())
    return _result(distinct, before, after, truncated=taken.after_truncate, num_missed=num_missed)


def _walk_in_order(signs: Rows, rows: Rows, counts: Rows, class_of: Rows, members: Sequence[Rows]) -> tuple[Rows, Rows]:
    """Apply additions and removals in order, one by one: old rows that lack columns are rare.

    Args:
        signs: +1 or -1 for each step.
        rows: the row that each step adds or removes; ignored if the old row lacks columns.
        counts: number of copies of each row.
        class_of: class of rows of each removal whose old row lacks columns; it removes the first row of the class.
        members: rows of each class, ascending.

    Returns:
        The numbers of copies afterwards, and the row that each step added or removed; -1 if a removal found none.
    """
    after, found = counts.tolist(), rows.tolist()
    heaps = [own.tolist() for own in members]
    classes: list[list[int]] = [[] for _ in after]
    for number, own_rows in enumerate(heaps):
        for row in own_rows:
            classes[row].append(number)
    for step, (sign, own) in enumerate(zip(signs.tolist(), class_of.tolist(), strict=True)):
        if own >= 0:
            while heaps[own] and not after[heaps[own][0]]:
                heappop(heaps[own])
            found[step] = heaps[own][0] if heaps[own] else -1
        elif sign < 0 and not after[found[step]]:
            found[step] = -1
        row = found[step]
        if row < 0:
            continue
        after[row] += sign
        if sign > 0 and after[row] == 1:
            for number in classes[row]:
                heappush(heaps[number], row)
    return np.array(after, np.int64), np.array(found, np.int64)


def _removals(rows: pa.Table, taken: Steps, distinct: pa.Table) -> tuple[Rows, list[Rows]]:
    """For each step the class of distinct rows that an incomplete removal may remove, -1 for others; and their members."""
    partial = np.flatnonzero(taken.is_partial)
    names = masks_of(taken.lacking)
    marks = np.stack([*names.values(), np.zeros(len(taken.signs), np.bool_)], axis=1)
    sets, set_of = np.unique(marks[partial], axis=0, return_inverse=True)
    class_of, members = np.full(len(taken.signs), -1, np.int64), list[Rows]()
    for number, mask in enumerate(sets):
        own = partial[set_of.ravel() == number]
        lacking = {name for name, lacks in zip(names, mask, strict=False) if lacks}
        carried = [name for name in distinct.column_names if name not in lacking]
        both = pa.concat_tables(
            [distinct.select(carried), rows.select(carried).take(pa.array(own))], promote_options="permissive"
        )
        codes = encode_keys(both.columns)[0] if carried else np.zeros(distinct.num_rows + len(own), np.int64)
        asked, at = np.unique(codes[distinct.num_rows :], return_inverse=True)
        order = np.argsort(codes[: distinct.num_rows], kind="stable")
        ends = (np.searchsorted(codes[order], asked, side=side) for side in ("left", "right"))
        class_of[own] = len(members) + at
        members += [order[first:last] for first, last in zip(*ends, strict=True)]
    return class_of, members


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
    """Rows removed and added, in order, with their signs and missing columns."""
    op = changes.column("op").combine_chunks()
    removes = np.asarray(pc.is_in(op, value_set=pa.array(["u", "d"])))
    adds = np.asarray(pc.is_in(op, value_set=pa.array(["r", "c", "u"])))
    old, new = _members(changes, "key", columns), _members(changes, "after", columns)
    both = pa.concat_tables([old.filter(pa.array(removes)), new.filter(pa.array(adds))], promote_options="permissive")
    order = np.argsort(np.r_[np.flatnonzero(removes) * 2, np.flatnonzero(adds) * 2 + 1], kind="stable")
    signs = np.r_[np.full(int(removes.sum()), -1), np.ones(int(adds.sum()))].astype(np.int64)
    lacking = masks_of(single_array(changes.column("unchanged")).filter(pa.array(removes)))
    added = np.zeros(int(adds.sum()), np.bool_)
    lists = lists_of({name: np.r_[mask, added] for name, mask in lacking.items() if name in columns}, len(signs))
    return both.append_column(_SIGN, pa.array(signs)).append_column(_LACKING, lists).take(pa.array(order))


def _steps(signed: pa.Table, *, after_truncate: bool) -> Steps:
    rows, signs = signed.drop_columns([_SIGN, _LACKING]), np.asarray(signed.column(_SIGN))
    return Steps(rows, signs, single_array(signed.column(_LACKING)), after_truncate)


def _always_there(tables: Iterator[pa.Table], columns: Sequence[str]) -> list[str]:
    """The columns that no old row lacks."""
    lacking: set[str] = set()
    for table in tables:
        lacking.update(masks_of(single_array(table.column("unchanged"))))
    return [name for name in columns if name not in lacking]


def _last_truncate(run: ChangeRun) -> int:
    """Number of changes up to the last truncate, inclusive."""
    first = at = 0
    for table in run.tables():
        first = at + own if (own := num_to_truncate(table)) else first
        at += table.num_rows
    return first


def _members(changes: pa.Table, column: str, names: Sequence[str]) -> pa.Table:
    given = members_of(single_array(changes.column(column)))
    return pa.table({name: given.get(name, pa.nulls(changes.num_rows)) for name in names})
