"""Under which spec and partition each delete is written (SEMANTICS rule 27): reach every copy, touch as little as can be.

A delete is scoped to a partition only where that is known to be where the row is: the partition is a function of the
key, or the row was looked up. Otherwise it is global, or refused by config. A before-image does not tell: it is the
source's row, and the mirror's differs where an event came twice, was refused, or is replayed.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from pipelines.errors import GlobalDeleteError
from pipelines.mirrors.live_keys import LiveKeys
from pipelines.mirrors.mirror_lookup import SPEC_ID, find_rows
from pipelines.tables.commit import RowDelta
from pipelines.tables.positions import current_snapshot
from pipelines.tables.row_shape import distinct_rows
from scan_core.snapshot import PartitionSpec

AFFORDABLE_ROWS = 5_000_000
"""A table of so many rows is always looked up rather than burdened with global deletes."""
AFFORDABLE_RATIO = 100
"""So are this many rows per key to delete."""


@dataclass(frozen=True, slots=True)
class ScopedDeletes:
    """Keys to delete under one spec, with the source columns of its partition fields."""

    spec: PartitionSpec
    keys: pa.Table


@dataclass(frozen=True, slots=True)
class Scoped:
    """The deletes of a commit by spec, and which of the keys are in the table; None where that was not looked up."""

    deletes: list[ScopedDeletes]
    is_there: NDArray[np.bool_] | None = None


def scope_deletes(delta: RowDelta, keys: pa.Table, live: LiveKeys, policy: Literal["allow", "refuse"]) -> Scoped:
    """The deletes of a commit by spec.

    Args:
        delta: the commit.
        keys: key columns of the rows to delete.
        live: facts of the table's files.
        policy: whether deletes may be global.

    Raises:
        GlobalDeleteError: a delete must be global and `policy` refuses it.
    """
    if keys.num_rows == 0:
        return Scoped([])
    if _is_of_key(delta, keys.column_names, live):
        return Scoped([ScopedDeletes(delta.default_spec, keys)])
    return _looked_up(delta, keys, policy)


def scope_without_look(delta: RowDelta, key: Sequence[str], live: LiveKeys) -> PartitionSpec | None:
    """The spec under which any key can be deleted without a look at the table; None if it can afford one."""
    if _is_of_key(delta, key, live):
        return delta.default_spec
    return None if _is_affordable(delta.table, 0) else delta.unpartitioned_spec()


def _is_of_key(delta: RowDelta, key: Sequence[str], live: LiveKeys) -> bool:
    """Whether the partition of any row that is there follows from its key; so it does in a table without partitions."""
    spec = delta.default_spec
    if spec.is_unpartitioned:
        return True
    is_known = _is_computable(delta, spec) and set(_source_columns(delta, spec)) <= set(key)
    return is_known and live.spec_ids <= {spec.spec_id}


def _source_columns(delta: RowDelta, spec: PartitionSpec) -> tuple[str, ...]:
    return tuple(
        dict.fromkeys(delta.schema.field(f.source_id).name for f in spec.fields if f.source_id in delta.schema)
    )


def _looked_up(delta: RowDelta, keys: pa.Table, policy: Literal["allow", "refuse"]) -> Scoped:
    names = keys.column_names
    if policy == "allow" and not _is_affordable(delta.table, keys.num_rows):
        return Scoped([ScopedDeletes(delta.unpartitioned_spec(), keys)])
    specs = [s for s in delta.specs.values() if _is_computable(delta, s)]
    sources = {name for s in specs for name in _source_columns(delta, s)} & set(_base_columns(delta))
    found = find_rows(delta.table, keys, (*sorted({*names, *sources}), SPEC_ID))
    spec_of = np.asarray(found.rows.column(SPEC_ID))
    parts = []
    for spec_id in np.unique(spec_of).tolist():
        rows = found.rows.filter(pa.array(spec_of == spec_id)).drop_columns([SPEC_ID])
        spec = delta.specs[spec_id]
        if spec.is_unpartitioned or spec not in specs:
            _refuse(delta, rows.num_rows, policy)
            spec = delta.unpartitioned_spec()
        parts.append(ScopedDeletes(spec, _distinct(rows, spec, names)))
    is_there = np.zeros(keys.num_rows, np.bool_)
    is_there[found.key_row] = True
    return Scoped(parts, is_there)


def _distinct(rows: pa.Table, spec: PartitionSpec, names: Sequence[str]) -> pa.Table:
    kept = rows.select(list(names)) if spec.is_unpartitioned else rows
    return distinct_rows(kept)


def _is_computable(delta: RowDelta, spec: PartitionSpec) -> bool:
    """Whether every partition field's source column is still there."""
    return all(f.source_id in delta.schema for f in spec.fields)


def _base_columns(delta: RowDelta) -> list[str]:
    """Columns that the table had before this commit."""
    return [f.name for f in delta.table.schema().fields]


def _is_affordable(table: Any, keys: int) -> bool:
    snapshot = current_snapshot(table)
    total = snapshot.summary["total-records"] if snapshot is not None and snapshot.summary is not None else None
    return total is not None and int(total) <= max(AFFORDABLE_ROWS, AFFORDABLE_RATIO * keys)


def _refuse(delta: RowDelta, count: int, policy: Literal["allow", "refuse"]) -> None:
    if policy == "refuse":
        raise GlobalDeleteError(
            f"{'.'.join(delta.table.name())}: {count} rows to delete lie in files without a partition that can be "
            "named, so their deletes would reach every partition, which global_deletes: refuse forbids; compact the "
            "table under its current spec, or allow global deletes"
        )
