"""Rows of a mirror by key, at the snapshot a commit is based on: for columns the source did not send, for partitions.

Reads through scan_core, streaming; only rows that match are kept. What is done with them is decided by `mirror.py`.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from pipelines.changes.key_set import KeySet, Positions
from pipelines.tables.loaded_table import open_current
from pipelines.tables.row_shape import without_extensions

SPEC_ID = "_spec_id"
_LISTED_KEYS = 500
"""Up to this many keys are named in the scan's predicate; more become a range."""


@dataclass(frozen=True, slots=True)
class FoundRows:
    """Live rows whose key was asked for. `key_row[i]` is the row of the asked keys that `rows[i]` equals."""

    rows: pa.Table
    key_row: Positions


def find_rows(table: Any, keys: pa.Table, columns: tuple[str, ...]) -> FoundRows:
    """Every live row of `table` with one of `keys`.

    Args:
        table: the PyIceberg table; read at its loaded snapshot.
        keys: distinct keys, key columns by their names, in the table's types.
        columns: what to return of each row, `_spec_id` among them where wanted.
    """
    names = tuple(keys.column_names)
    scan = open_current(table).scan().select(*dict.fromkeys((*names, *columns)))
    for predicate in _predicates(keys):
        scan = scan.where(predicate)
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


def all_rows(table: Any, columns: tuple[str, ...], *, any_at_all: bool = True) -> FoundRows:
    """Every live row, as if one key without columns had been asked for; none unless `any_at_all`."""
    scan = open_current(table).scan().select(*columns)
    rows = without_extensions(scan.to_table() if any_at_all else scan.arrow_schema.empty_table())
    return FoundRows(rows, np.zeros(rows.num_rows, np.int64))


def _predicates(keys: pa.Table) -> list[Any]:
    """What every wanted row fulfils, for pruning: the values or the range of each key column without NULL."""
    from scan_core import col

    predicates = []
    for name in keys.column_names:
        column = keys.column(name)
        if column.null_count or not _is_literal(column.type):
            continue
        values = pc.unique(column)
        if len(values) <= _LISTED_KEYS:
            predicates.append(col(name).is_in(values.to_pylist()))
        else:
            bounds = pc.min_max(column).as_py()
            predicates.append(col(name).between(bounds["min"], bounds["max"]))
    return predicates


def _is_literal(kind: pa.DataType) -> bool:
    types = pa.types
    return bool(types.is_integer(kind) or types.is_string(kind) or types.is_date(kind) or types.is_decimal(kind))
