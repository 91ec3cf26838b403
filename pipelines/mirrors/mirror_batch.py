"""What one batch of changes writes to a mirror: data files, delete files, and the changes that cannot be applied.

Folds the changes, brings the schema along, completes rows, and decides which keys need a delete and where. Committing
it, once or again after a conflict, is the business of `mirror.py`.
"""

from collections.abc import Sequence
from dataclasses import dataclass
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
from pipelines.mirrors.mirror_lookup import find_rows
from pipelines.mirrors.multiset import recount, steps_by_row
from pipelines.mirrors.soft_delete import DELETED, flagged_rows, soften
from pipelines.mirrors.squash import squash
from pipelines.mirrors.unsent_columns import complete
from pipelines.tables.commit import RowDelta
from pipelines.tables.file_metrics import WrittenFile
from pipelines.tables.row_shape import conform
from pipelines.tables.schema_evolution import evolve, iceberg_fields
from pipelines.tables.table_writer import check_key, write_deletes, write_rows

Mask = npt.NDArray[np.bool_]
Rows = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class BatchFiles:
    """The files of one commit, what had to be left out, and whether they take the place of all that is there."""

    files: tuple[WrittenFile, ...]
    rejected: Rejected
    replaces_all: bool


def prepare(delta: RowDelta, changes: ChangeRun, key: Sequence[str], config: TableConfig) -> BatchFiles:
    """Write the files that bring the table from the base of `delta` to the state after `changes`.

    Args:
        delta: the commit that will name them; its schema and specs may change.
        changes: rows of the change log in order; with soft deletes a truncate comes alone.
        key: columns that identify a row.
        config: of the table.

    Raises:
        SchemaConflictError: a column or key that the table cannot take.
        GlobalDeleteError: a delete that config refuses.
    """
    writing = _Writing(delta, config)
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

    def __init__(self, delta: RowDelta, config: TableConfig) -> None:
        self.delta = delta
        self.config = config
        self.limit_bytes = config.memory_limit_bytes // BATCH_SHARE
        self.files: list[WrittenFile] = []
        self.rejected: list[Rejected] = []
        self.replaces_all = False
        self.key_ids: tuple[int, ...] = ()
        self.live = LiveKeys(0, frozenset(), {})
        self._deletes: list[pa.Table] = []

    def rows(self, rows: pa.Table, *, key_ids: Sequence[int] = ()) -> None:
        """Rows to add."""
        self.files += write_rows(rows, self.delta.target, self.delta.default_spec, key_ids=key_ids)

    def deletes(self, keys: pa.Table) -> None:
        """Keys to delete."""
        self._deletes.append(keys)
        if sum(held.nbytes for held in self._deletes) > self.limit_bytes:
            self._write_deletes()

    def done(self) -> BatchFiles:
        """All of it."""
        self._write_deletes()
        return BatchFiles(tuple(self.files), Rejected.concat(self.rejected), self.replaces_all)

    def _write_deletes(self) -> None:
        if not self._deletes:
            return
        keys, self._deletes = pa.concat_tables(self._deletes), []
        for scoped in scope_deletes(self.delta, keys, self.live, self.config.global_deletes):
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
            ignorable = np.asarray(pc.equal(rows.column("op"), "d"), np.bool_)
            rows = soften(rows, key, base)
        if is_first:
            _evolve(delta, rows.schema.field("after").type)
            writing.key_ids = check_key(delta.schema, key)
            writing.live = live_keys(delta.table, delta.schema, key)
            is_first = False
        folded, rejected = complete(delta, rows, key, ignorable=ignorable, after_truncate=part.after_truncate)
        writing.rejected.append(rejected)
        writing.rows(folded.upserts, key_ids=writing.key_ids)
        if folded.truncated:
            writing.replaces_all = True
        else:
            writing.deletes(_needed_deletes(delta, folded, writing.live, writing.config))


def _needed_deletes(delta: RowDelta, folded: FoldResult, live: LiveKeys, config: TableConfig) -> pa.Table:
    """Keys that the table may hold before this batch (rule 26)."""
    key_ids = tuple(delta.schema.find(name).field_id for name in folded.deletes.column_names)
    keys = conform(folded.deletes, delta.schema.select(key_ids))
    wanted = live.may_hold(keys)
    if config.inserts == "trusted":
        wanted &= ~folded.delete_is_insert
    return keys.filter(pa.array(wanted))


def _recount(writing: _Writing, changes: ChangeRun) -> None:
    """A table without a key: the whole row identifies it, equal rows are counted."""
    delta = writing.delta
    _evolve(delta, next(changes.tables()).schema.field("after").type)
    columns = list(delta.schema.names)
    writing.key_ids = check_key(delta.schema, columns)
    key_schema = delta.schema.select(writing.key_ids)
    writing.live = live_keys(delta.table, delta.schema, ())
    base = [name for name in _base_columns(delta) if name in columns]

    def live(rows: pa.Table) -> Rows:
        asked = conform(rows, key_schema)
        # In the rows that are there, a column that comes with this batch is NULL.
        old = np.ones(rows.num_rows, np.bool_)
        for name in set(columns) - set(base):
            old &= np.asarray(asked.column(name).is_null(), np.bool_)
        places = np.flatnonzero(old)
        found = find_rows(delta.table, asked.select(base).take(pa.array(places)), ())
        return np.bincount(places[found.key_row], minlength=rows.num_rows)

    for part in steps_by_row(changes, columns, writing.limit_bytes):
        counted = recount(part, live)
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
