"""A mirror table: writes folded changes as data files and delete files, with a key or as a multiset of rows."""

import logging
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from pipelines.changes.change_log import LOADED, Appended, ChangeLog, FoldOrder, RemoteChanges, read_changes
from pipelines.changes.change_run import (
    BATCH_SHARE,
    ChangeRun,
    Changes,
    hash_codes,
    num_parts,
    parts_by_key,
    rows_after,
    sliced,
    spread,
)
from pipelines.changes.keys import encode_keys
from pipelines.changes.quarantine import FEW_CHANGES, check_ratio
from pipelines.config.project import TableConfig, partition_field
from pipelines.decode.batches import Rejected
from pipelines.errors import CommitConflictError, PipelineError, PositionLostError, SchemaConflictError
from pipelines.iceberg import positions
from pipelines.iceberg.catalog import create_table, find_table
from pipelines.iceberg.commit import Committed, RowDelta, everything, retry_conflicts
from pipelines.iceberg.conversion import as_vectors
from pipelines.iceberg.file_metrics import FileContent, WrittenFile
from pipelines.iceberg.loaded_table import check_writable, refresh, upgrade
from pipelines.iceberg.manifests import Selection
from pipelines.iceberg.row_shape import conform, single_array, without_extensions
from pipelines.iceberg.schema_evolution import evolve, iceberg_fields
from pipelines.iceberg.table_writer import WriterOptions, check_key, write_deletes, write_rows
from pipelines.mirrors.delete_scope import LiveKeys, live_keys, scope_deletes, scope_without_look
from pipelines.mirrors.fold import (
    DELETED,
    FoldResult,
    flagged_rows,
    soften,
    squash,
    up_to_truncate,
    with_deletes_of_moved_rows,
)
from pipelines.mirrors.mirror_lookup import FoundRows, all_rows, complete, find_rows
from pipelines.mirrors.partial_removals import Removals
from pipelines.mirrors.table_shape import ADOPTED, ADOPTED_SNAPSHOT, check_shape, shape_properties, with_declared
from scan_core import Mask, Rows, ScanError, ScanOptions

if TYPE_CHECKING:
    from pipelines.iceberg.interfaces import Catalog, Table

_log = logging.getLogger(__name__)
_SIGN, _LACKING = "\0sign", "\0lacking"
CountLive = Callable[[pa.Table], Rows]
"""Counts the live rows that equal each of these distinct rows."""
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

    def only(self, chosen: Mask) -> "Steps":
        """The chosen steps."""
        mask = pa.array(chosen)
        return Steps(self.rows.filter(mask), self.signs[chosen], self.lacking.filter(mask), self.after_truncate)


def steps(changes: pa.Table, columns: Sequence[str]) -> Steps:
    """The rows that changes, in application order, remove and add after their last truncate; an update does both."""
    truncates = np.flatnonzero(np.asarray(pc.equal(changes.column("op"), "t")))
    if len(truncates):
        changes = changes.slice(int(truncates[-1]) + 1)
    return _steps(_signed(changes, columns), after_truncate=len(truncates) > 0)


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


def recount(taken: Steps, count_live: CountLive, find_live: FindLive) -> Recount:
    """Compute the rows that steps add and remove; removing a missing row has no effect."""
    partial = taken.is_partial
    if not partial.any():
        return _by_whole_rows(taken, count_live)
    lacking = set(pc.unique(taken.lacking.flatten()).to_pylist())
    shared = [name for name in taken.rows.column_names if name not in lacking]
    # Rows that differ in a column that every old row has never match the same removal.
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
    """Apply steps in order if removals lack columns: the row that each removes depends on earlier steps.

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
    labels = [f"c{i}" for i in range(len(columns))]  # Arrow reads a name that begins with a dot as a path
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
    """The distinct rows that each incomplete removal may remove."""
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
    """Rows removed and added, in order, with their signs and missing columns."""
    op = changes.column("op").combine_chunks()
    removes = np.asarray(pc.is_in(op, value_set=pa.array(["u", "d"])))
    adds = np.asarray(pc.is_in(op, value_set=pa.array(["r", "c", "u"])))
    old, new = _members(changes, "key", columns), _members(changes, "after", columns)
    both = pa.concat_tables([old.filter(pa.array(removes)), new.filter(pa.array(adds))], promote_options="permissive")
    order = np.argsort(np.r_[np.flatnonzero(removes) * 2, np.flatnonzero(adds) * 2 + 1], kind="stable")
    signs = np.r_[np.full(int(removes.sum()), -1), np.ones(int(adds.sum()))].astype(np.int64)
    lacking = _known(single_array(changes.column("unchanged")).filter(pa.array(removes)), columns)
    lists = pa.concat_arrays([lacking, _empty_lists(int(adds.sum()))])
    both = both.append_column(_SIGN, pa.array(signs)).append_column(_LACKING, lists)
    return both.take(pa.array(order))


def _known(lists: pa.ListArray, columns: Sequence[str]) -> pa.ListArray:
    """The names in each list that are columns; empty for NULL."""
    names = lists.flatten().cast(pa.string())
    kept = np.asarray(pc.is_in(names, value_set=pa.array(list(columns), pa.string())))
    parents = np.asarray(pc.list_parent_indices(lists)).astype(np.int64)[kept]
    offsets = np.r_[0, np.cumsum(np.bincount(parents, minlength=len(lists)))].astype(np.int32)
    return pa.ListArray.from_arrays(pa.array(offsets), names.filter(pa.array(kept)))


def _empty_lists(count: int) -> pa.ListArray:
    return pa.ListArray.from_arrays(pa.array(np.zeros(count + 1, np.int32)), pa.array([], pa.string()))


def _steps(signed: pa.Table, *, after_truncate: bool) -> Steps:
    rows = signed.drop_columns([_SIGN, _LACKING])
    return Steps(rows, np.asarray(signed.column(_SIGN)), single_array(signed.column(_LACKING)), after_truncate)


def _always_there(tables: Iterator[pa.Table], columns: Sequence[str]) -> list[str]:
    """The columns that no old row lacks."""
    lacking: set[str] = set()
    for table in tables:
        lacking.update(pc.unique(single_array(table.column("unchanged")).flatten()).to_pylist())
    return [name for name in columns if name not in lacking]


def _last_truncate(run: ChangeRun) -> int:
    """Number of changes up to the last truncate, inclusive."""
    first = at = 0
    for table in run.tables():
        truncates = np.flatnonzero(np.asarray(pc.equal(table.column("op"), "t")))
        first = at + int(truncates[-1]) + 1 if len(truncates) else first
        at += table.num_rows
    return first


def _walk(group: Rows, signs: Rows, count: int) -> tuple[Rows, Rows]:
    """For each group, the sum of its signs and the lowest partial sum."""
    order = np.argsort(group, kind="stable")
    running = np.cumsum(signs[order])
    starts = np.searchsorted(group[order], np.arange(count))
    base = np.r_[0, running][starts]
    ends = np.r_[starts[1:], len(order)] - 1
    return running[ends] - base, np.minimum.reduceat(running, starts) - base


def _has_removal(group: Rows, signs: Rows, count: int) -> Mask:
    return np.bincount(group[signs < 0], minlength=count) > 0


def _members(changes: pa.Table, column: str, names: Sequence[str]) -> pa.Table:
    struct = single_array(changes.column(column))
    given = dict(zip([f.name for f in struct.type], struct.flatten(), strict=True))
    return pa.table({name: given.get(name, pa.nulls(len(struct))) for name in names})


@dataclass(frozen=True, slots=True)
class BatchFiles:
    """The content of one commit.

    Attributes:
        files: new files.
        rejected: changes that cannot be applied.
        replaces_all: whether the files replace all rows of the table.
        num_missed: removals of rows that do not exist, as far as that is known without reading the table.
    """

    files: tuple[WrittenFile, ...]
    rejected: Rejected
    replaces_all: bool
    num_missed: int


def prepare(
    delta: RowDelta, changes: ChangeRun, key: Sequence[str], config: TableConfig, *, trusts_inserts: bool
) -> BatchFiles:
    """Write the files that bring the table from the base of `delta` to the state after `changes`.

    Args:
        delta: the commit for these files; its schema and specs may change.
        changes: rows of the change log in order; with soft deletes a truncate comes alone.
        key: columns that identify a row.
        config: config of the table.
        trusts_inserts: whether the key of an insert is known not to be in the table.

    Raises:
        SchemaConflictError: the table cannot hold a column or key.
        GlobalDeleteError: the config refuses a delete.
    """
    writing = _Writing(delta, config, trusts_inserts=trusts_inserts)
    try:
        if config.identity == "full":
            _recount(writing, changes)
        elif config.soft_delete and next(changes.tables()).column("op")[0].as_py() == "t":
            _flag_all(writing)
        else:
            _fold(writing, changes, key)
        return writing.done()
    except BaseException:
        delta.discard(writing.files)
        raise


def prepare_remotely(
    delta: RowDelta, changes: RemoteChanges, key: tuple[str, ...], *, trusts_inserts: bool
) -> BatchFiles:
    """Let tasks write the files that bring the table to the state after `changes`; see `prepare`."""
    _evolve(delta, changes.row_type)
    check_key(delta.schema, key)
    live = live_keys(delta.table, delta.schema, key)
    spec = scope_without_look(delta, key, live) if live.num_files and not changes.truncates else None
    order = FoldOrder(delta.target, delta.default_spec, spec, live, key, trusts_inserts)
    files, num_missed = changes.write_mirror(order)
    return BatchFiles(tuple(files), Rejected.none(), changes.truncates, num_missed)


def _why_local(table: "Table | None", changes: RemoteChanges, key: Sequence[str], config: TableConfig) -> str | None:
    """Why tasks cannot apply changes to a mirror; None if they can."""
    if changes.why_local is not None or config.identity == "full" or config.soft_delete:
        return changes.why_local or "identity: full and soft_delete need the rows of the mirror"
    if table is None or changes.truncates:
        return None
    delta = RowDelta(table)
    if any(name not in delta.schema.names for name in key):
        return None
    live = live_keys(table, delta.schema, key)
    spec = scope_without_look(delta, key, live) if live.num_files else delta.default_spec
    if spec is None:
        return "the partition of a row does not follow from its key, so rows to delete are looked up"
    is_global = spec.is_unpartitioned and not delta.default_spec.is_unpartitioned
    return "global_deletes: refuse" if is_global and config.global_deletes == "refuse" else None


class _Writing:
    """Writes the files of a commit: rows immediately, keys to delete once there are enough for a file."""

    def __init__(self, delta: RowDelta, config: TableConfig, *, trusts_inserts: bool) -> None:
        self.delta = delta
        self.config = config
        self.trusts_inserts = trusts_inserts
        self.limit_bytes = config.memory_limit_bytes // BATCH_SHARE
        self.files: list[WrittenFile] = []
        self.rejected: list[Rejected] = []
        self.replaces_all = False
        self.num_missed = 0
        self.key_ids: tuple[int, ...] = ()
        self.live = LiveKeys(0, frozenset(), {})
        self._deletes: list[pa.Table] = []
        self._removes: list[Mask] = []

    def rows(self, rows: pa.Table, *, key_ids: Sequence[int] = ()) -> None:
        """Write rows to add."""
        self.files += write_rows(rows, self.delta.target, self.delta.default_spec, key_ids=key_ids)

    def deletes(self, keys: pa.Table, removes: Mask | None = None) -> None:
        """Add keys to delete, and which of them changes assume to be in the table; None if all are known to be."""
        self._deletes.append(keys)
        self._removes.append(np.zeros(keys.num_rows, np.bool_) if removes is None else removes)
        if sum(held.nbytes for held in self._deletes) > self.limit_bytes:
            self._write_deletes()

    def done(self) -> BatchFiles:
        """Write the remaining deletes; return all files."""
        self._write_deletes()
        return BatchFiles(tuple(self.files), Rejected.concat(self.rejected), self.replaces_all, self.num_missed)

    def _write_deletes(self) -> None:
        if not self._deletes:
            return
        keys, removes = pa.concat_tables(self._deletes), np.concatenate(self._removes)
        self._deletes, self._removes = [], []
        found = scope_deletes(self.delta, keys, self.live, self.config.global_deletes)
        if found.is_there is not None:
            self.num_missed += int((removes & ~found.is_there).sum())
        for scoped in found.deletes:
            self.files += write_deletes(scoped.keys, self.delta.target, scoped.spec, self.key_ids)


def _fold(writing: _Writing, changes: ChangeRun, key: Sequence[str]) -> None:
    delta, is_soft = writing.delta, writing.config.soft_delete
    base = delta.base_columns
    is_first = True
    # A soft delete needs the row that it flags, so no change before it may be dropped.
    shrink = None if is_soft else partial(squash, key=key)
    for part in parts_by_key(changes, key, writing.limit_bytes, shrink):
        rows, ignorable, flags = part.changes, None, None
        if is_soft:
            rows, of_moves = with_deletes_of_moved_rows(rows, key)
            ignorable = np.asarray(pc.equal(rows.column("op"), "d"), np.bool_)
            flags = ignorable & ~of_moves
            rows = soften(rows, key, base)
        if is_first:
            _evolve(delta, rows.schema.field("after").type)
            writing.key_ids = check_key(delta.schema, key)
            writing.live = live_keys(delta.table, delta.schema, key)
            is_first = False
        folded, rejected, num_ignored = complete(
            delta, rows, key, ignorable=ignorable, after_truncate=part.after_truncate, flags=flags
        )
        writing.rejected.append(rejected)
        writing.num_missed += folded.num_missed + num_ignored
        writing.rows(folded.upserts, key_ids=writing.key_ids)
        if folded.truncated:
            writing.replaces_all = True
        else:
            _delete(writing, folded)


def _delete(writing: _Writing, folded: FoldResult) -> None:
    """Delete the keys that the table may hold before this batch (rule 26)."""
    schema = writing.delta.schema
    key_ids = tuple(schema.find(name).field_id for name in folded.deletes.column_names)
    keys = conform(folded.deletes, schema.select(key_ids))
    wanted = writing.live.may_hold(keys)
    writing.num_missed += int((folded.delete_removes & ~wanted).sum())
    if writing.trusts_inserts:
        wanted &= ~folded.delete_is_insert
    writing.deletes(keys.filter(pa.array(wanted)), folded.delete_removes[wanted])


def _recount(writing: _Writing, changes: ChangeRun) -> None:
    """Write changes of a table without a key: rows are identified by all their values, equal rows are counted."""
    delta = writing.delta
    _evolve(delta, next(changes.tables()).schema.field("after").type)
    columns = list(delta.schema.names)
    writing.key_ids = check_key(delta.schema, columns)
    key_schema = delta.schema.select(writing.key_ids)
    writing.live = live_keys(delta.table, delta.schema, ())
    base = [name for name in delta.base_columns if name in columns]

    def find(rows: pa.Table, returned: Sequence[str]) -> tuple[FoundRows, Rows]:
        """Live rows that equal some of these, and their indices in `rows`."""
        asked = conform(rows, key_schema).select(rows.column_names)
        # In existing rows, a column that is new in this batch is NULL.
        old = np.ones(max(rows.num_rows, 1), np.bool_)
        for name in set(rows.column_names) - set(base):
            old &= np.asarray(asked.column(name).is_null(), np.bool_)
        places = np.flatnonzero(old)
        known = [name for name in base if name in rows.column_names]
        if not known:
            return all_rows(delta.table, tuple(returned), any_at_all=bool(len(places))), places
        return find_rows(delta.table, asked.select(known).take(pa.array(places)), tuple(returned)), places

    def count_live(rows: pa.Table) -> Rows:
        found, places = find(rows, ())
        return np.bincount(places[found.key_row], minlength=rows.num_rows)

    def in_columns(rows: pa.Table) -> pa.Table:
        return without_extensions(conform(rows, key_schema))

    for part in steps_by_row(changes, columns, writing.limit_bytes):
        taken = replace(part, rows=in_columns(part.rows)) if part.is_partial.any() else part
        counted = recount(taken, count_live, lambda rows: in_columns(find(rows, base)[0].rows))
        writing.num_missed += counted.num_missed
        writing.rows(counted.upserts)
        if counted.truncated:
            writing.replaces_all = True
        else:
            writing.deletes(conform(counted.deletes, key_schema))


def _flag_all(writing: _Writing) -> None:
    """Write a truncate with soft deletes: every row again, flagged."""
    _evolve(writing.delta, pa.struct([pa.field(DELETED, pa.bool_())]))
    for rows in flagged_rows(writing.delta.table, writing.config.commit_rows):
        writing.rows(rows)
    writing.replaces_all = True


def _evolve(delta: RowDelta, row_type: pa.StructType) -> None:
    evolution = evolve(delta.schema, iceberg_fields(row_type), delta.table.metadata.last_column_id)
    if evolution.clashes:
        raise SchemaConflictError(f"{'.'.join(delta.table.name())}: " + "; ".join(str(c) for c in evolution.clashes))
    if evolution.changed:
        delta.evolve(evolution.schema)


@dataclass(frozen=True, slots=True)
class Applied:
    """One batch of changes that was applied to the mirror.

    Attributes:
        committed: the snapshot.
        files: its new files.
        rejected: changes that could not be applied.
        num_changes: changes applied or rejected.
        last_ordinal: last ordinal of the change log that is now in the mirror.
        num_missed: deletes, key changes and updates of whole rows that found no row to remove: all of them with
            `identity:
            full`, otherwise those that are known without reading the table.
    """

    committed: Committed
    files: tuple[WrittenFile, ...]
    rejected: Rejected
    num_changes: int
    last_ordinal: int
    num_missed: int

    @property
    def delete_rows(self) -> int:
        """Number of rows of the equality-delete files."""
        return sum(f.record_count for f in self.files if f.content is FileContent.EQUALITY_DELETES)


@dataclass
class Mirror:
    """One mirror; `table` is reloaded before each commit.

    Attributes:
        catalog: the catalog that contains the table or in which it will be created.
        name: name of the table.
        config: config of the table.
        key: columns that identify a row.
    """

    catalog: "Catalog"
    name: str
    config: TableConfig
    key: tuple[str, ...]
    options: WriterOptions | None = None
    table: "Table | None" = field(init=False)

    def __post_init__(self) -> None:
        if self.options is None:
            bloom = () if self.config.index is None else self.config.index.bloom
            config = self.config
            self.options = WriterOptions(
                bloom_filters=config.bloom_filters, bloom_columns=bloom, sort_by=config.sort_by
            )
        self.table = find_table(self.catalog, self.name)
        if self.table is not None:
            check_writable(self.table)

    @property
    def applied_ordinal(self) -> int:
        """The last ordinal of the change log that is in the mirror; 0 for none.

        Raises:
            PositionLostError: the table has rows, but no snapshot records which changes they contain.
        """
        if self.table is None:
            return 0
        text = positions.newest_property(self.table, positions.LOG_ORDINAL)
        if text is None and self.table.metadata.current_snapshot_id is not None:
            raise PositionLostError(
                f"{self.name} has snapshots but none records which changes of its log it contains; it was not created "
                f"by this pipeline, or that snapshot has expired. Keep its rows and apply the log to them: nevermore adopt "
                f"{self.name}. Or rebuild it from its log alone, which drops all present rows: nevermore resync "
                f"{self.name}"
            )
        return int(text or 0)

    def catch_up(
        self,
        log: ChangeLog,
        appended: Appended | None = None,
        *,
        reject: Callable[[Rejected], None],
        start: int = 0,
    ) -> Iterator[Applied]:
        """Apply all changes of the log that are not yet in the mirror, `commit_rows` at a time.

        Args:
            log: the table's change log.
            appended: changes that this run has just appended, used from memory if no others are missing.
            reject: keeps changes that cannot be applied; called before the commit without them.
            start: ordinal up to which changes have no effect, for a mirror that is being rebuilt.
        """
        done = max(self.applied_ordinal, start)
        if done > log.last_ordinal:
            raise PositionLostError(
                f"{self.name} holds changes up to {done}, but {log.name} ends at {log.last_ordinal}: the log was "
                "re-made; rebuild the mirror"
            )
        if 0 < self.applied_ordinal < log.base.ordinal:
            raise PositionLostError(
                f"{self.name} holds changes up to {self.applied_ordinal}, but {log.name} has only the last change of each key "
                f"up to {log.base.ordinal}; rebuild the mirror: nevermore resync {self.name}"
            )
        if appended is not None and isinstance(appended.changes, RemoteChanges) and appended.first == done + 1:
            given = appended.changes
            reason = _why_local(self.table, given, self.key, self.config)
            if reason is None:
                done = log.last_ordinal
                if self.table is not None or makes_rows(given, self.config):
                    yield self._apply(given, done, log, reject)
            else:
                _log.info("%s: this process applies the changes to the mirror: %s", self.name, reason)
        while done < log.last_ordinal:
            before, end = done, log.end_of_batch(done, self.config.commit_rows)
            with closing(self._next_changes(log, appended, before, end)) as changes:
                if changes.num_rows == 0 and end > log.base.ordinal:
                    raise PositionLostError(f"{log.name} lacks the changes after {before}, which {self.name} needs")
                done = end if before < log.base.ordinal else before + changes.num_rows
                if changes.num_rows and (self.table is not None or makes_rows(changes, self.config)):
                    yield self._apply(changes, done, log, reject)

    def _next_changes(self, log: ChangeLog, appended: Appended | None, done: int, end: int) -> ChangeRun:
        limit = self.config.memory_limit_bytes // BATCH_SHARE
        given = None if appended is None or isinstance(appended.changes, RemoteChanges) else appended.changes
        if appended is not None and given is not None and appended.first <= done + 1:
            tables = sliced(given.tables(), done + 1 - appended.first, end - done)
        else:
            tables = _complete(log, done, end, read_changes(log.table, done, end, limit), self.name)
        return ChangeRun.of(up_to_truncate(tables) if self.config.soft_delete else tables, limit)

    def _apply(
        self, changes: ChangeRun | RemoteChanges, reached: int, log: ChangeLog, reject: Callable[[Rejected], None]
    ) -> Applied:
        if not self.key and self.config.identity != "full":
            raise SchemaConflictError(f"{self.name} has no key: declare one (key: [...]), or set identity: full")
        if self.table is None:
            self.table = self._create(changes, log)
        before = self.applied_ordinal
        trusts = self._trusts_inserts(log)
        return retry_conflicts(lambda: self._attempt(changes, log, before, reached, reject, trusts_inserts=trusts))

    def _trusts_inserts(self, log: ChangeLog) -> bool:
        """Whether the key of an insert cannot be in the table: the config says so, and all rows came from the feed.

        Adopted rows and those of a full load may come again as inserts in the feed; with `order_by` inserts are logged again
        after late events; with `soft_delete` the row of a deleted key stays and must go when the key is inserted again.
        """
        if self.config.inserts != "trusted" or self.config.soft_delete or self.table is None:
            return False
        if log.property(LOADED) is not None or log.order_by is not None:
            return False
        properties = self.table.metadata.properties
        return ADOPTED not in properties or properties.get(ADOPTED_SNAPSHOT) == ""

    def reapply(self, changes: ChangeRun, log: ChangeLog, *, reject: Callable[[Rejected], None]) -> Applied:
        """Apply changes again that the mirror already contains, in one commit; its position does not change.

        No insert is trusted, as its row exists.
        """
        before = self.applied_ordinal
        return retry_conflicts(lambda: self._attempt(changes, log, before, before, reject, trusts_inserts=False))

    def _create(self, changes: ChangeRun | RemoteChanges, log: ChangeLog) -> "Table":
        first = changes if isinstance(changes, RemoteChanges) else next(changes.tables())
        after = first.schema.field("after").type
        types = log.row_types | {f.name: f.type for f in after if not pa.types.is_null(f.type)}
        check_shape(self.name, self.config, self.key, types)
        return create_table(
            self.catalog,
            self.name,
            with_declared(iceberg_fields(pa.schema(list(types.items()))), self.config),
            partition_by=[partition_field(text) for text in self.config.partition_by],
            properties={**self.config.properties, **shape_properties(self.key, self.config)},
        )

    def _attempt(
        self,
        changes: ChangeRun | RemoteChanges,
        log: ChangeLog,
        before: int,
        reached: int,
        reject: Callable[[Rejected], None],
        *,
        trusts_inserts: bool,
    ) -> Applied:
        table = self.table
        if table is None:
            raise PositionLostError(f"{self.name} no longer exists")
        refresh(table)
        if self.applied_ordinal != before:
            raise CommitConflictError(f"another ingester has written {self.name} in the meantime", may_retry=False)
        if table.format_version < self.config.format_version:
            upgrade(table, self.config.format_version)
        delta = RowDelta(table, self.options)
        if isinstance(changes, RemoteChanges):
            work = prepare_remotely(delta, changes, self.key, trusts_inserts=trusts_inserts)
        else:
            work = prepare(delta, changes, self.key, self.config, trusts_inserts=trusts_inserts)
        properties = {positions.LOG_SNAPSHOT: str(log.snapshot_id), positions.LOG_ORDINAL: str(reached)}
        files: Sequence[WrittenFile] = work.files
        removed: Selection | None = everything if work.replaces_all else None
        try:
            if work.rejected.num_rows:
                limit = self.config.max_quarantine_ratio
                check_ratio(self.name, changes.num_rows, work.rejected, limit, tolerated=FEW_CHANGES)
                reject(work.rejected)
            if changed := dict(self.config.properties.items() - table.metadata.properties.items()):
                delta.set_properties(changed)
            if self.config.deletes == "vectors" and not work.replaces_all:
                options = ScanOptions(memory_limit_bytes=self.config.memory_limit_bytes)
                files, removed = as_vectors(delta, work.files, options)
            committed = delta.commit(files, properties, remove=removed)
        except (PipelineError, ScanError):
            delta.discard(files)
            raise
        return Applied(committed, tuple(files), work.rejected, changes.num_rows, reached, work.num_missed)


def makes_rows(changes: Changes | RemoteChanges, config: TableConfig) -> bool:
    """Whether changes to an empty table create rows; truncates and deletes do not even show its columns."""
    if isinstance(changes, RemoteChanges):
        return not set(changes.counts) <= set(removing_ops(config))
    removing = pa.array(removing_ops(config))
    return not all(pc.all(pc.is_in(t.column("op"), value_set=removing)).as_py() for t in changes.tables())


def removing_ops(config: TableConfig) -> tuple[str, ...]:
    """Operations that create no row in an empty table."""
    return ("t",) if config.soft_delete else ("t", "d")


def _complete(log: ChangeLog, after: int, end: int, tables: Iterator[pa.Table], name: str) -> Iterator[pa.Table]:
    """Check that no change of a log after an ordinal is missing.

    Raises:
        PositionLostError: a change is missing.
    """
    found = 0
    for table in tables:
        found += table.num_rows
        yield table
    if found != log.num_required(after, end):
        raise PositionLostError(f"{log.name} lacks changes between {after + 1} and {end}, which {name} needs")
