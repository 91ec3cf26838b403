"""Columns that a source did not send (TOAST): taken from the mirror's row, or the change is rejected.

What earlier changes of the same batch can give is already taken by `fold.py`. A placeholder never reaches the table.
"""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import numpy.typing as npt
import orjson
import pyarrow as pa
import pyarrow.compute as pc

from pipelines.changes.change_batch import REJECTED_SCHEMA, Rejected
from pipelines.changes.key_set import KeySet
from pipelines.mirrors.fold import FoldResult, fold
from pipelines.mirrors.mirror_lookup import find_rows
from pipelines.tables.commit import RowDelta
from pipelines.tables.row_shape import conform, member

MAX_SHOWN = 80
"""Characters of a key that a reason shows."""

Rows = npt.NDArray[np.int64]
Mask = npt.NDArray[np.bool_]


def complete(
    delta: RowDelta,
    changes: pa.Table,
    key: Sequence[str],
    *,
    ignorable: Mask | None = None,
    after_truncate: bool = False,
    keeps_moved: bool = False,
) -> tuple[FoldResult, Rejected, int]:
    """The changes folded, with upserts completed from the mirror at the commit's base, and those that cannot be applied.

    And how many were left out, because they mean nothing.

    What cannot be applied has no effect at all: it deletes no row either, and what builds on it is refused too.
    `ignorable` marks changes that mean nothing where the row does not exist: they are left out, not rejected.
    `after_truncate`: the table is emptied before them. `keeps_moved`: a change of a key leaves the row of the old key.
    """
    folded = fold(changes, key, after_truncate=after_truncate, keeps_moved=keeps_moved)
    lacking: list[pa.Table] = []
    while folded.needs_lookup is not None:
        upserts, missing = _filled(delta, folded.upserts, folded.needs_lookup, key)
        if missing.num_rows == 0:
            folded = replace(folded, upserts=upserts)
            break
        lacking.append(missing)
        folded = fold(changes, key, pa.concat_tables(lacking), after_truncate=after_truncate, keeps_moved=keeps_moved)
    refused = folded.unresolved
    num_ignored = 0
    if ignorable is not None:
        ignored = ignorable[np.asarray(refused.column("change"))]
        refused, num_ignored = refused.filter(pa.array(~ignored)), int(ignored.sum())
    return folded, _rejected(changes, refused, ".".join(delta.table.name())), num_ignored


def _filled(delta: RowDelta, upserts: pa.Table, wanted: pa.Table, key: Sequence[str]) -> tuple[pa.Table, pa.Table]:
    """The upserts with unsent columns from the mirror, and the keys of which it has no row."""
    struct, lists = (_single(wanted.column(name)) for name in ("key", "unchanged"))
    known = {f.name for f in delta.table.schema().fields}
    columns = tuple(n for n in pc.unique(lists.flatten()).to_pylist() if n in known)
    key_schema = delta.schema.select(tuple(delta.schema.find(name).field_id for name in key))
    asked_keys = pa.table({name: member(struct, name) for name in key})
    keys = conform(asked_keys, key_schema)
    found = find_rows(delta.table, keys, columns)
    source = _sources(keys, found.key_row)
    target = np.asarray(wanted.column("upsert"))
    for name in columns:
        asked = _contains(lists, name) & (source >= 0)
        position = np.full(upserts.num_rows, -1, np.int64)
        position[target[asked]] = source[asked]
        taken = found.rows.column(name).take(pa.array(position, mask=position < 0))
        upserts = _replaced(upserts, name, position >= 0, taken)
    return upserts, asked_keys.filter(pa.array(source < 0))


def _sources(keys: pa.Table, key_row: Rows) -> Rows:
    """Per key the found row that has it, or -1."""
    source = np.full(keys.num_rows, -1, np.int64)
    source[key_row] = np.arange(len(key_row))
    first_equal = KeySet(keys.columns).find(keys.columns)
    return source[first_equal]


def _replaced(upserts: pa.Table, name: str, chosen: Mask, taken: pa.ChunkedArray) -> pa.Table:
    index = upserts.schema.get_field_index(name)
    current = upserts.column(index)
    if pa.types.is_null(current.type):
        current = pa.chunked_array([pa.nulls(len(current), taken.type)])
    merged = pc.if_else(pa.array(chosen), taken.cast(current.type), current)
    return upserts.set_column(index, name, merged)


def _single(column: pa.ChunkedArray) -> pa.Array:
    return pa.concat_arrays(column.chunks) if column.num_chunks else pa.array([], column.type)


def _contains(lists: pa.ListArray, name: str) -> Mask:
    """Per list, whether it holds `name`."""
    mask = np.zeros(len(lists), np.bool_)
    rows = np.asarray(pc.list_parent_indices(lists))
    mask[rows[np.asarray(pc.equal(lists.flatten(), name))]] = True
    return mask


def _rejected(changes: pa.Table, refused: pa.Table, name: str) -> Rejected:
    """Refused changes as quarantine holds them; the raw bytes are the change as JSON, since it was decoded already."""
    if refused.num_rows == 0:
        return Rejected.none()
    rows = changes.take(refused.column("change"))
    wanted = rows.select(["op", "key", "after", "unchanged"]).to_pylist()
    documents = [orjson.dumps(row, default=str) for row in wanted]
    keys = [orjson.dumps(row["key"], default=str).decode()[:MAX_SHOWN] for row in wanted]
    reasons = pc.binary_join_element_wise(
        refused.column("reason").cast(pa.string()), pa.array(keys, pa.string()), ": key "
    )
    columns = [
        rows.column("source_file").cast(pa.string()),
        rows.column("source_offset"),
        reasons,
        pa.array(documents, pa.binary()),
        pa.array([name] * rows.num_rows, pa.string()),
    ]
    return Rejected(pa.table(columns, schema=REJECTED_SCHEMA))
