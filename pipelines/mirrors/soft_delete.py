"""Soft deletes: a deleted row stays, with `_deleted` true, as the last change left it.

A delete becomes an update here, before folding, that sends nothing but its key and the flag: all else is taken from the
row itself like any column that was not sent. So a delete of a row that does not exist makes none. A change of the key is
a delete of the row under its old key, too: it stays, flagged, and the new key has a row of its own.
"""

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from pipelines.changes.change_arrays import ChangeArrays
from pipelines.errors import SchemaConflictError
from pipelines.tables.loaded_table import open_current
from pipelines.tables.row_shape import without_extensions

DELETED = "_deleted"


def up_to_truncate(tables: Iterable[pa.Table]) -> Iterator[pa.Table]:
    """The first changes, up to a truncate or, if one is first, that alone: it flags all rows in a commit of its own."""
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


def with_deletes_of_moved_rows(changes: pa.Table, key: Sequence[str]) -> pa.Table:
    """The changes with a delete of the old key before every change of a key.

    Args:
        changes: rows of the change log in order.
        key: columns that identify a row.
    """
    moves = ChangeArrays(changes, key).moves
    if not moves.any():
        return changes
    times = np.where(moves, 2, 1)
    expanded = changes.take(pa.array(np.repeat(np.arange(len(moves)), times)))
    is_delete = np.zeros(expanded.num_rows, np.bool_)
    is_delete[np.cumsum(times)[moves] - 2] = True
    ops = _single(expanded.column("op"))
    ops = pc.if_else(pa.array(is_delete), pa.scalar("d", ops.type), ops)
    return expanded.set_column(expanded.schema.get_field_index("op"), expanded.schema.field("op"), ops)


def soften(changes: pa.Table, key: Sequence[str], columns: Sequence[str] = ()) -> pa.Table:
    """The changes with every delete as an update that sets `_deleted`, and every other row with it unset.

    Args:
        changes: rows of the change log.
        key: columns that identify a row.
        columns: of the mirror; the changes may know fewer.

    Raises:
        SchemaConflictError: the source has a column of that name.
    """
    after_type = changes.schema.field("after").type
    if DELETED in {f.name for f in after_type}:
        raise SchemaConflictError(f"the source has a column {DELETED}, which soft_delete needs; rename it")
    after, old_key, unchanged = (_single(changes.column(n)) for n in ("after", "key", "unchanged"))
    is_delete = pc.equal(_single(changes.column("op")), "d")
    old = dict(zip([f.name for f in old_key.type], old_key.flatten(), strict=True))
    given = dict(zip([f.name for f in after_type], after.flatten(), strict=True))
    given |= {name: pa.nulls(len(after)) for name in columns if name not in given and name != DELETED}
    given |= {n: pc.if_else(is_delete, old[n].cast(given[n].type), given[n]) for n in key}
    unsent = [n for n in given if n not in key] or [*key[:1]]
    fields = [*(pa.field(n, c.type) for n, c in given.items()), pa.field(DELETED, pa.bool_())]
    softened = pa.StructArray.from_arrays([*given.values(), is_delete], fields=fields, mask=_is_empty(after, is_delete))
    replaced = {
        "op": pc.if_else(is_delete, "u", _single(changes.column("op"))),
        "after": softened,
        "unchanged": pc.if_else(is_delete, _where(np.asarray(is_delete), unsent), unchanged),
    }
    for name, column in replaced.items():
        index = changes.schema.get_field_index(name)
        changes = changes.set_column(index, pa.field(name, column.type), column)
    return changes


def flagged_rows(table: Any, batch_rows: int) -> Iterator[pa.Table]:
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


def _is_empty(after: pa.StructArray, is_delete: pa.BooleanArray) -> pa.BooleanArray:
    return pc.and_(after.is_null(), pc.invert(is_delete))


def _where(chosen: npt.NDArray[np.bool_], names: Sequence[str]) -> pa.ListArray:
    """Per row these names if it is chosen, else none."""
    codes = np.tile(np.arange(len(names)), int(chosen.sum()))
    offsets = np.r_[0, np.cumsum(chosen * len(names))].astype(np.int32)
    return pa.ListArray.from_arrays(pa.array(offsets), pa.array(list(names), pa.string()).take(pa.array(codes)))


def _single(column: pa.ChunkedArray) -> pa.Array:
    return pa.concat_arrays(column.chunks) if column.num_chunks else pa.array([], column.type)
