"""What one batch of changes writes to a mirror: data files, delete files, and the changes that cannot be applied.

Folds the changes, brings the schema along, completes rows, and decides which keys need a delete and where. Committing
it, once or again after a conflict, is the business of `mirror.py`.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from pipelines.change_batch import Rejected
from pipelines.commit import RowDelta
from pipelines.config import TableConfig
from pipelines.delete_scope import scope_deletes
from pipelines.errors import SchemaConflictError
from pipelines.file_metrics import WrittenFile
from pipelines.fold import FoldResult
from pipelines.live_keys import LiveKeys, live_keys
from pipelines.mirror_lookup import find_rows
from pipelines.multiset import recount
from pipelines.row_shape import conform
from pipelines.schema_evolution import evolve, iceberg_fields
from pipelines.soft_delete import DELETED, flagged_rows, soften
from pipelines.table_writer import check_key, write_deletes, write_rows
from pipelines.unsent_columns import complete

Mask = npt.NDArray[np.bool_]
Rows = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class BatchFiles:
    """The files of one commit, what had to be left out, and whether they take the place of all that is there."""

    files: tuple[WrittenFile, ...]
    rejected: Rejected
    replaces_all: bool


def prepare(delta: RowDelta, changes: pa.Table, key: Sequence[str], config: TableConfig) -> BatchFiles:
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
    if config.identity == "full":
        return _recounted(delta, changes, config)
    if not config.soft_delete:
        return _folded(delta, changes, key, config)
    if changes.column("op")[0].as_py() == "t":
        return _all_flagged(delta, config)
    deletes = np.asarray(pc.equal(changes.column("op"), "d"), np.bool_)
    return _folded(delta, soften(changes, key, _base_columns(delta)), key, config, ignorable=deletes)


def _folded(
    delta: RowDelta, changes: pa.Table, key: Sequence[str], config: TableConfig, *, ignorable: Mask | None = None
) -> BatchFiles:
    _evolve(delta, changes.schema.field("after").type)
    key_ids = check_key(delta.schema, key)
    folded, rejected = complete(delta, changes, key, ignorable=ignorable)
    files = write_rows(folded.upserts, delta.target, delta.default_spec, key_ids=key_ids)
    if not folded.truncated:
        live = live_keys(delta.table, delta.schema, key)
        deletes = _needed_deletes(delta, folded, live, config)
        files += _delete_files(delta, deletes, live, key_ids, config)
    return BatchFiles(tuple(files), rejected, replaces_all=folded.truncated)


def _needed_deletes(delta: RowDelta, folded: FoldResult, live: LiveKeys, config: TableConfig) -> pa.Table:
    """Keys that the table may hold before this batch (rule 26)."""
    key_ids = tuple(delta.schema.find(name).field_id for name in folded.deletes.column_names)
    keys = conform(folded.deletes, delta.schema.select(key_ids))
    wanted = live.may_hold(keys)
    if config.inserts == "trusted":
        wanted &= ~folded.delete_is_insert
    return keys.filter(pa.array(wanted))


def _recounted(delta: RowDelta, changes: pa.Table, config: TableConfig) -> BatchFiles:
    """A table without a key: the whole row identifies it, equal rows are counted."""
    row_type = changes.schema.field("after").type
    _evolve(delta, row_type)
    columns = list(delta.schema.names)
    key_ids = check_key(delta.schema, columns)
    key_schema = delta.schema.select(key_ids)

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

    counted = recount(changes, columns, live)
    files = write_rows(counted.upserts, delta.target, delta.default_spec)
    if not counted.truncated:
        removed = conform(counted.deletes, key_schema)
        files += _delete_files(delta, removed, live_keys(delta.table, delta.schema, ()), key_ids, config)
    return BatchFiles(tuple(files), Rejected.none(), replaces_all=counted.truncated)


def _all_flagged(delta: RowDelta, config: TableConfig) -> BatchFiles:
    """A truncate where deletes are soft: every row once more, flagged."""
    _evolve(delta, pa.struct([pa.field(DELETED, pa.bool_())]))
    files: list[WrittenFile] = []
    for rows in flagged_rows(delta.table, config.commit_rows):
        files += write_rows(rows, delta.target, delta.default_spec)
    return BatchFiles(tuple(files), Rejected.none(), replaces_all=True)


def _base_columns(delta: RowDelta) -> list[str]:
    """Columns that the table had before this commit."""
    return [f.name for f in delta.table.schema().fields]


def _evolve(delta: RowDelta, row_type: pa.StructType) -> None:
    evolution = evolve(delta.schema, iceberg_fields(row_type), delta.table.metadata.last_column_id)
    if evolution.clashes:
        raise SchemaConflictError(f"{'.'.join(delta.table.name())}: " + "; ".join(str(c) for c in evolution.clashes))
    if evolution.changed:
        delta.evolve(evolution.schema)


def _delete_files(
    delta: RowDelta, deletes: pa.Table, live: LiveKeys, key_ids: tuple[int, ...], config: TableConfig
) -> list[WrittenFile]:
    files: list[WrittenFile] = []
    for scoped in scope_deletes(delta, deletes, live, config.global_deletes):
        files += write_deletes(scoped.keys, delta.target, scoped.spec, key_ids)
    return files
