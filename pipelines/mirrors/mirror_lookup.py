"""Reads rows of a mirror by key, at the snapshot that a commit is based on.

They complete columns that a source did not send (TOAST). If a row does not exist, the change is rejected.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np
import orjson
import pyarrow as pa
import pyarrow.compute as pc

from nevermore.pipelines.changes.change_arrays import masks_of
from nevermore.pipelines.changes.keys import KeySet, Positions
from nevermore.pipelines.decode.batches import REJECTED_SCHEMA, Rejected, key_texts
from nevermore.pipelines.iceberg.commit import RowDelta
from nevermore.pipelines.iceberg.loaded_table import open_current
from nevermore.pipelines.iceberg.row_shape import (
    conform,
    member,
    python_rows,
    single_array,
    with_columns,
    without_extensions,
)
from nevermore.pipelines.mirrors.fold import DELETED, FoldResult, fold
from nevermore.scan_core import ROW_LINEAGE, Mask, Rows

if TYPE_CHECKING:
    from nevermore.pipelines.iceberg.catalog import Table as CatalogTable

SPEC_ID = "_spec_id"
ROW_ID, _ = ROW_LINEAGE


@dataclass(frozen=True, slots=True)
class FoundRows:
    """Live rows with requested keys. `rows[i]` has the key in row `key_row[i]` of the request."""

    rows: pa.Table
    key_row: Positions


def find_rows(table: "CatalogTable", keys: pa.Table, columns: tuple[str, ...]) -> FoundRows:
    """Find every live row of `table` with one of `keys`.

    Args:
        table: read at its loaded snapshot.
        keys: distinct keys, key columns by their names, in the table's types.
        columns: columns to return, possibly with `_spec_id`.
    """
    names = tuple(keys.column_names)
    scan = open_current(table).scan().select(*dict.fromkeys((*names, *columns)))
    if joined := [name for name in names if _is_joined(keys.column(name))]:
        scan = scan.semi_join(joined, keys.select(joined))
    wanted = KeySet([keys.column(n) for n in names])
    kept: list[pa.RecordBatch] = []
    positions: list[Positions] = []
    for batch in scan.to_batches():
        found = wanted.find([batch.column(n) for n in names])
        matching = np.flatnonzero(found >= 0)
        if len(matching):
            kept.append(batch.take(pa.array(matching)))
            positions.append(found[matching])
    rows = without_extensions(pa.Table.from_batches(kept, schema=kept[0].schema if kept else scan.arrow_schema))
    return FoundRows(rows.select(list(columns)), np.concatenate(positions) if positions else np.zeros(0, np.int64))


def with_row_ids(delta: RowDelta, upserts: pa.Table, keys: pa.Table) -> pa.Table:
    """The upserts with the `_row_id` of the rows that they update, NULL for the others; without the column if there are none.

    Args:
        delta: the commit; rows are looked up in its base.
        upserts: one row per key.
        keys: of rows that may exist and are updated, key columns by their names, in the table's types.
    """
    if not keys.num_rows:
        return upserts
    names = keys.column_names
    key_schema = delta.schema.select(tuple(delta.schema.find(name).field_id for name in names))
    found = find_rows(delta.table, keys, (ROW_ID.name,))
    place = KeySet(keys.columns).find(conform(upserts.select(names), key_schema).columns)
    row = np.where(place < 0, -1, _sources(keys, found.key_row)[place])
    row_ids = found.rows.column(ROW_ID.name).take(pa.array(row, mask=row < 0))
    return upserts if row_ids.null_count == len(row_ids) else upserts.append_column(ROW_ID.name, row_ids)


def all_rows(table: "CatalogTable", columns: Sequence[str], *, any_at_all: bool = True) -> pa.Table:
    """Every live row, as for a single key without columns; none unless `any_at_all`."""
    scan = open_current(table).scan().select(*columns)
    return without_extensions(scan.to_table() if any_at_all else pa.Table.from_batches([], schema=scan.arrow_schema))


def _is_joined(column: pa.ChunkedArray) -> bool:
    """Whether a scan finds the rows with these values itself: a semi join finds no NULL."""
    return not column.null_count and not pa.types.is_floating(column.type) and not pa.types.is_nested(column.type)


MAX_SHOWN = 80
"""Maximum characters of a key shown in a reason."""


def complete(
    delta: RowDelta,
    changes: pa.Table,
    key: Sequence[str],
    *,
    ignorable: Mask | None = None,
    after_truncate: bool = False,
    flags: Mask | None = None,
) -> tuple[FoldResult, Rejected, int]:
    """Fold changes and complete their upserts from the mirror at the commit's base.

    A change that cannot be applied has no effect at all: it deletes no row, and changes that depend on it are rejected, too.

    Args:
        delta: the commit.
        changes: rows of the change log in order.
        key: columns that identify a row.
        ignorable: changes that have no effect if their row does not exist: they are ignored, not rejected.
        after_truncate: whether the table is emptied before the changes.
        flags: with soft deletes, which changes flag a row; no value is taken from rows that are flagged, as from deleted ones.

    Returns:
        The folded changes, those that are rejected, and how many were ignored.
    """
    folded = fold(changes, key, after_truncate=after_truncate, flags=flags)
    lacking: list[pa.Table] = []
    while folded.needs_lookup is not None:
        flag = DELETED if flags is not None and DELETED in delta.base_columns else None
        upserts, missing = _filled(delta, folded.upserts, folded.needs_lookup, key, flag)
        if missing.num_rows == 0:
            folded = replace(folded, upserts=upserts)
            break
        lacking.append(missing)
        folded = fold(changes, key, pa.concat_tables(lacking), after_truncate=after_truncate, flags=flags)
    refused = folded.unresolved
    num_ignored = 0
    if ignorable is not None:
        ignored = ignorable[np.asarray(refused.column("change"))]
        refused, num_ignored = refused.filter(pa.array(~ignored)), int(ignored.sum())
    return folded, _rejected(changes, refused, ".".join(delta.table.name())), num_ignored


def _filled(
    delta: RowDelta, upserts: pa.Table, wanted: pa.Table, key: Sequence[str], flag: str | None
) -> tuple[pa.Table, pa.Table]:
    """Fill the unsent columns of upserts from the mirror; also return the keys that have no row there.

    `flag` is the column that is true in rows that count as deleted.
    """
    struct, lists = (single_array(wanted.column(name)) for name in ("key", "unchanged"))
    columns = {name: asked for name, asked in masks_of(lists).items() if name in delta.base_columns}
    key_schema = delta.schema.select(tuple(delta.schema.find(name).field_id for name in key))
    asked_keys = pa.table({name: member(struct, name) for name in key})
    keys = conform(asked_keys, key_schema)
    found = find_rows(delta.table, keys, tuple(columns if flag is None else dict.fromkeys((*columns, flag))))
    source = _sources(keys, found.key_row)
    if flag is not None:
        source[np.isin(source, np.flatnonzero(pc.fill_null(found.rows.column(flag), fill_value=False)))] = -1
    target = np.asarray(wanted.column("upsert"))
    for name, asks in columns.items():
        asked = asks & (source >= 0)
        position = np.full(upserts.num_rows, -1, np.int64)
        position[target[asked]] = source[asked]
        taken = found.rows.column(name).take(pa.array(position, mask=position < 0))
        upserts = _replaced(upserts, name, position >= 0, taken)
    return upserts, asked_keys.filter(pa.array(source < 0))


def _sources(keys: pa.Table, key_row: Rows) -> Rows:
    """For each key, the index of the found row with it, or -1."""
    source = np.full(keys.num_rows, -1, np.int64)
    source[key_row] = np.arange(len(key_row))
    first_equal = KeySet(keys.columns).find(keys.columns)
    return source[first_equal]


def _replaced(upserts: pa.Table, name: str, chosen: Mask, taken: pa.ChunkedArray) -> pa.Table:
    current = upserts.column(name)
    if pa.types.is_null(current.type):
        current = pa.chunked_array([pa.nulls(len(current), taken.type)])
    return with_columns(upserts, {name: pc.if_else(pa.array(chosen), taken.cast(current.type), current)})


def _rejected(changes: pa.Table, refused: pa.Table, name: str) -> Rejected:
    """Rejected changes in the form of the quarantine; the raw bytes are the change as JSON, since it was decoded."""
    if refused.num_rows == 0:
        return Rejected.none()
    rows = changes.take(refused.column("change"))
    wanted = python_rows(rows.select(["op", "key", "after", "unchanged"]))
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
    texts = key_texts(without_extensions(rows.select(["key"])).column("key").combine_chunks())
    return Rejected(pa.table(columns, schema=REJECTED_SCHEMA)).with_keys(texts, rows.column("ingested_at"))
