"""What one batch of changes writes to a mirror: data files, delete files, and the changes that cannot be applied.

Folds the changes, brings the schema along, completes rows, and decides which keys need a delete and where. Committing
it, once or again after a conflict, is the business of `mirror.py`.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from pipelines.changes.change_batch import Rejected
from pipelines.changes.change_run import BATCH_SHARE, ChangeRun
from pipelines.changes.key_partitions import parts_by_key
from pipelines.config import TableConfig
from pipelines.errors import SchemaConflictError
from pipelines.mirrors.delete_scope import scope_deletes
from pipelines.mirrors.fold import FoldResult
from pipelines.mirrors.live_keys import LiveKeys, live_keys
from pipelines.mirrors.mirror_lookup import FoundRows, all_rows, find_rows
from pipelines.mirrors.multiset import recount, steps_by_row
from pipelines.mirrors.soft_delete import DELETED, flagged_rows, soften, with_deletes_of_moved_rows
from pipelines.mirrors.squash import squash
from pipelines.mirrors.unsent_columns import complete
from pipelines.tables.commit import RowDelta
from pipelines.tables.file_metrics import WrittenFile
from pipelines.tables.row_shape import conform, without_extensions
from pipelines.tables.schema_evolution import evolve, iceberg_fields
from pipelines.tables.table_writer import check_key, write_deletes, write_rows

Mask = npt.NDArray[np.bool_]
Rows = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class BatchFiles:
    """What one commit consists of.

    Attributes:
        files: of it.
        rejected: changes that had to be left out.
        replaces_all: the files take the place of all that is there.
        num_missed: removals of rows that are not there, as far as that is known without reading the table for it.
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
        delta: the commit that will name them; its schema and specs may change.
        changes: rows of the change log in order; with soft deletes a truncate comes alone.
        key: columns that identify a row.
        config: of the table.
        trusts_inserts: the key of an insert is not in the table.

    Raises:
        SchemaConflictError: a column or key that the table cannot take.
        GlobalDeleteError: a delete that config refuses.
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


class _Writing:
    """Files of a commit in the making: rows as they come, keys to delete when there are enough for a file."""

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
        """Rows to add."""
        self.files += write_rows(rows, self.delta.target, self.delta.default_spec, key_ids=key_ids)

    def deletes(self, keys: pa.Table, removes: Mask | None = None) -> None:
        """Keys to delete, and which of them changes say to be there; None if all are known to be."""
        self._deletes.append(keys)
        self._removes.append(np.zeros(keys.num_rows, np.bool_) if removes is None else removes)
        if sum(held.nbytes for held in self._deletes) > self.limit_bytes:
            self._write_deletes()

    def done(self) -> BatchFiles:
        """All of it."""
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
    base = _base_columns(delta)
    is_first = True
    # A soft delete needs the row that it flags, so nothing before it may go.
    shrink = None if is_soft else partial(squash, key=key)
    for part in parts_by_key(changes, key, writing.limit_bytes, shrink):
        rows, ignorable = part.changes, None
        if is_soft:
            rows = with_deletes_of_moved_rows(rows, key)
            ignorable = np.asarray(pc.equal(rows.column("op"), "d"), np.bool_)
            rows = soften(rows, key, base)
        if is_first:
            _evolve(delta, rows.schema.field("after").type)
            writing.key_ids = check_key(delta.schema, key)
            writing.live = live_keys(delta.table, delta.schema, key)
            is_first = False
        folded, rejected, num_ignored = complete(
            delta, rows, key, ignorable=ignorable, after_truncate=part.after_truncate, keeps_moved=is_soft
        )
        writing.rejected.append(rejected)
        writing.num_missed += folded.num_missed + num_ignored
        writing.rows(folded.upserts, key_ids=writing.key_ids)
        if folded.truncated:
            writing.replaces_all = True
        else:
            _delete(writing, folded)


def _delete(writing: _Writing, folded: FoldResult) -> None:
    """The keys that the table may hold before this batch (rule 26)."""
    schema = writing.delta.schema
    key_ids = tuple(schema.find(name).field_id for name in folded.deletes.column_names)
    keys = conform(folded.deletes, schema.select(key_ids))
    wanted = writing.live.may_hold(keys)
    writing.num_missed += int((folded.delete_removes & ~wanted).sum())
    if writing.trusts_inserts:
        wanted &= ~folded.delete_is_insert
    writing.deletes(keys.filter(pa.array(wanted)), folded.delete_removes[wanted])


def _recount(writing: _Writing, changes: ChangeRun) -> None:
    """A table without a key: the whole row identifies it, equal rows are counted."""
    delta = writing.delta
    _evolve(delta, next(changes.tables()).schema.field("after").type)
    columns = list(delta.schema.names)
    writing.key_ids = check_key(delta.schema, columns)
    key_schema = delta.schema.select(writing.key_ids)
    writing.live = live_keys(delta.table, delta.schema, ())
    base = [name for name in _base_columns(delta) if name in columns]

    def find(rows: pa.Table, returned: Sequence[str]) -> tuple[FoundRows, Rows]:
        """Live rows that agree with some of these, and the places of these in `rows`."""
        asked = conform(rows, key_schema).select(rows.column_names)
        # In the rows that are there, a column that comes with this batch is NULL.
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
    """A truncate where deletes are soft: every row once more, flagged."""
    _evolve(writing.delta, pa.struct([pa.field(DELETED, pa.bool_())]))
    for rows in flagged_rows(writing.delta.table, writing.config.commit_rows):
        writing.rows(rows)
    writing.replaces_all = True


def _base_columns(delta: RowDelta) -> list[str]:
    """Columns that the table had before this commit."""
    return [f.name for f in delta.table.schema().fields]


def _evolve(delta: RowDelta, row_type: pa.StructType) -> None:
    evolution = evolve(delta.schema, iceberg_fields(row_type), delta.table.metadata.last_column_id)
    if evolution.clashes:
        raise SchemaConflictError(f"{'.'.join(delta.table.name())}: " + "; ".join(str(c) for c in evolution.clashes))
    if evolution.changed:
        delta.evolve(evolution.schema)
