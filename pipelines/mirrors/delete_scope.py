"""Chooses the partition spec and the partition of each equality delete (rule 27).

A delete must reach every copy of its key. It is omitted only if manifests prove that no live file contains the key.
"""

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from nevermore.pipelines.errors import CommitConflictError
from nevermore.pipelines.iceberg.commit import RowDelta
from nevermore.pipelines.iceberg.loaded_table import open_current
from nevermore.pipelines.iceberg.positions import current_snapshot, summary_properties
from nevermore.pipelines.iceberg.row_shape import distinct_rows
from nevermore.pipelines.mirrors.mirror_lookup import SPEC_ID, find_rows
from nevermore.scan_core import (
    ContentFile,
    DataFile,
    DeleteFile,
    Mask,
    PartitionSpec,
    PrimitiveType,
    Schema,
    open_table,
)
from nevermore.scan_core.io import BoundedCache
from nevermore.scan_core.metadata import DATA_MANIFEST, decode_bound, read_data_manifests, snapshot_manifests

if TYPE_CHECKING:
    from nevermore.pipelines.iceberg.catalog import Table as CatalogTable

MAX_FILES = 20_000
"""Maximum files whose bounds are read: for more, that would cost more than the delete rows."""
CACHED_RANGES = 100_000
"""Ranges in memory: there are a few dozen manifests per table, and a range is a few hundred bytes."""


@dataclass(frozen=True, slots=True)
class KeyRange:
    """The values that a key column may have in live files: from `lower` to `upper`, or NULL if `may_be_null`."""

    lower: Any
    upper: Any
    may_be_null: bool


@dataclass(frozen=True, slots=True)
class LiveKeys:
    """Facts about the live data files.

    Attributes:
        num_files: their number.
        spec_ids: the specs under which they were written.
        ranges: range of each key column; a missing one means any value.
    """

    num_files: int
    spec_ids: frozenset[int]
    ranges: Mapping[str, KeyRange]

    def may_hold(self, keys: pa.Table) -> Mask:
        """For each key, whether a live file may contain it."""
        if self.num_files == 0:
            return np.zeros(keys.num_rows, np.bool_)
        possible = np.ones(keys.num_rows, np.bool_)
        for name, known in self.ranges.items():
            column = _comparable(keys.column(name))
            inside = pc.and_(pc.greater_equal(column, known.lower), pc.less_equal(column, known.upper))
            possible &= np.asarray(pc.fill_null(inside, known.may_be_null), np.bool_)
        return possible


def live_keys(table: "CatalogTable", schema: Schema, key: Sequence[str]) -> LiveKeys:
    """Collect the facts about a table at its loaded snapshot; `schema` is its current one."""
    opened = open_current(table)
    metadata, io = opened.metadata, opened.io
    snapshot = metadata.current_snapshot
    if snapshot is None:
        return LiveKeys(0, frozenset(), {})
    manifests = [m for m in snapshot_manifests(snapshot, io) if m.content == DATA_MANIFEST]
    expected = sum(m.live_files or 0 for m in manifests)
    spec_ids = frozenset(m.spec_id for m in manifests if m.spec_id is not None and m.live_files != 0)
    if expected > MAX_FILES:
        return LiveKeys(expected, spec_ids, {})
    files = dict(zip((m.path for m in manifests), read_data_manifests(manifests, metadata, io), strict=True))
    ranges = {}
    for name in key:
        column = schema.find(name)
        if isinstance(column.type, PrimitiveType) and (known := _range(files, column.field_id, column.type)):
            ranges[name] = known
    return LiveKeys(sum(map(len, files.values())), spec_ids, ranges)


def _range(files: Mapping[str, Sequence[DataFile]], field_id: int, kind: PrimitiveType) -> KeyRange | None:
    """The range over all files, given by manifest; None if it is unknown for a file, or all values are NULL."""
    if not _is_ordered(kind):
        return None
    known = [_remembered(path, of_manifest, field_id, kind) for path, of_manifest in files.items()]
    ranges = [r for r in known if r is not None and r.lower is not None]
    if None in known or not ranges:
        return None
    may_be_null = any(r is not None and r.may_be_null for r in known)
    return KeyRange(min(r.lower for r in ranges), max(r.upper for r in ranges), may_be_null)


_RANGES: BoundedCache[tuple[str, int, str], KeyRange | None] = BoundedCache()
os.register_at_fork(after_in_child=_RANGES.forget_threads)


def _remembered(path: str, files: Sequence[DataFile], field_id: int, kind: PrimitiveType) -> KeyRange | None:
    """The range of a manifest, cached because manifests never change."""
    return _RANGES.get((path, field_id, str(kind)), lambda: _range_of(files, field_id, kind), CACHED_RANGES)


def _range_of(files: Sequence[DataFile], field_id: int, kind: PrimitiveType) -> KeyRange | None:
    """The range over some files, without bounds if all values are NULL; None if it is unknown for one of them."""
    lower, upper, may_be_null = None, None, False
    for file in files:
        nulls = file.null_value_counts.get(field_id)
        may_be_null |= nulls is None or nulls > 0
        if nulls is not None and nulls == file.value_counts.get(field_id):
            continue
        low = decode_bound(file.lower_bounds.get(field_id), kind)
        high = decode_bound(file.upper_bounds.get(field_id), kind)
        if low is None or high is None:
            return None
        lower = low if lower is None else min(lower, low)
        upper = high if upper is None else max(upper, high)
    return KeyRange(lower, upper, may_be_null)


def _is_ordered(kind: PrimitiveType) -> bool:
    """Whether Arrow compares values of this type as their bounds compare."""
    return kind.name not in {"boolean", "fixed", "uuid", "float", "double"}


def _comparable(column: pa.ChunkedArray) -> pa.ChunkedArray:
    """Convert temporal values to integers, the form of bounds."""
    kind = column.type
    if pa.types.is_date32(kind):
        return column.cast(pa.int32())
    if pa.types.is_temporal(kind):
        return column.cast(pa.int64())
    return column


AFFORDABLE_ROWS = 5_000_000
"""In tables of up to this many rows, the rows to delete are looked up rather than deleted globally."""
AFFORDABLE_RATIO = 100
"""The same in tables of up to this many rows per key to delete."""


@dataclass(frozen=True, slots=True)
class ScopedDeletes:
    """Keys to delete under one spec, with the source columns of its partition fields."""

    spec: PartitionSpec
    keys: pa.Table


@dataclass(frozen=True, slots=True)
class Scoped:
    """The deletes of a commit by spec, and the keys that are in the table; None if they were not looked up."""

    deletes: list[ScopedDeletes]
    is_there: Mask | None = None


def scope_deletes(delta: RowDelta, keys: pa.Table, live: LiveKeys) -> Scoped:
    """Choose the spec of each delete of a commit.

    Args:
        delta: the commit.
        keys: key columns of the rows to delete.
        live: facts about the table's live files.
    """
    if keys.num_rows == 0:
        return Scoped([])
    if _is_of_key(delta, keys.column_names, live):
        return Scoped([ScopedDeletes(delta.default_spec, keys)])
    return _looked_up(delta, keys)


def scope_without_look(delta: RowDelta, key: Sequence[str], live: LiveKeys) -> PartitionSpec | None:
    """The spec under which any key can be deleted without reading the table; None if reading it is affordable."""
    if _is_of_key(delta, key, live):
        return delta.default_spec
    return None if _is_affordable(delta.table, 0) else delta.unpartitioned_spec()


def check_scopes(delta: RowDelta, files: Sequence[ContentFile], since: int | None) -> None:
    """Refuse deletes that do not reach their rows any more, now that other commits have replaced files of the table.

    Args:
        delta: the commit, with the table as it is now.
        files: what the commit was to add.
        since: the snapshot that `files` were written for.

    Raises:
        CommitConflictError: the deletes are limited to a partition, and rows moved to another partition spec.
    """
    is_limited = any(isinstance(file, DeleteFile) and not delta.specs[file.spec_id].is_unpartitioned for file in files)
    if is_limited and since is not None and _rows_moved(delta, since):
        name = ".".join(delta.table.name())
        raise CommitConflictError(f"another writer moved rows of {name} to another partition spec")


def _rows_moved(delta: RowDelta, since: int) -> bool:
    """Whether data files came or went since a snapshot that have more than one partition spec."""
    opened = open_table(delta.table)
    metadata, io = opened.metadata, opened.io
    now = metadata.current_snapshot
    listed = [
        {m.path: m for m in snapshot_manifests(snapshot, io) if m.content == DATA_MANIFEST}
        for snapshot in (metadata.snapshots[since], now)
        if snapshot is not None
    ]
    common = listed[0].keys() & listed[-1].keys()
    files = [
        {
            (file.path, file.spec_id)
            for part in read_data_manifests([m for m in manifests.values() if m.path not in common], metadata, io)
            for file in part
        }
        for manifests in listed
    ]
    return len({spec_id for _, spec_id in files[0] ^ files[-1]}) > 1


def _is_of_key(delta: RowDelta, key: Sequence[str], live: LiveKeys) -> bool:
    """Whether the partition of every row follows from its key, as in a table without partitions."""
    spec = delta.default_spec
    if spec.is_unpartitioned:
        return True
    is_known = _is_computable(delta, spec) and set(_source_columns(delta, spec)) <= set(key)
    return is_known and live.spec_ids <= {spec.spec_id}


def _source_columns(delta: RowDelta, spec: PartitionSpec) -> tuple[str, ...]:
    return tuple(
        dict.fromkeys(delta.schema.field(f.source_id).name for f in spec.fields if f.source_id in delta.schema)
    )


def _looked_up(delta: RowDelta, keys: pa.Table) -> Scoped:
    names = keys.column_names
    if not _is_affordable(delta.table, keys.num_rows):
        return Scoped([ScopedDeletes(delta.unpartitioned_spec(), keys)])
    specs = [s for s in delta.specs.values() if _is_computable(delta, s)]
    sources = {name for s in specs for name in _source_columns(delta, s)} & set(delta.base_columns)
    found = find_rows(delta.table, keys, (*sorted({*names, *sources}), SPEC_ID))
    spec_of = np.asarray(found.rows.column(SPEC_ID))
    parts = []
    for spec_id in np.unique(spec_of).tolist():
        rows = found.rows.filter(pa.array(spec_of == spec_id)).drop_columns([SPEC_ID])
        spec = delta.specs[spec_id]
        if spec.is_unpartitioned or spec not in specs:
            spec = delta.unpartitioned_spec()
        kept = rows.select(list(names)) if spec.is_unpartitioned else rows
        parts.append(ScopedDeletes(spec, distinct_rows(kept)))
    is_there = np.zeros(keys.num_rows, np.bool_)
    is_there[found.key_row] = True
    return Scoped(parts, is_there)


def _is_computable(delta: RowDelta, spec: PartitionSpec) -> bool:
    """Whether the source column of every partition field still exists."""
    return all(f.source_id in delta.schema for f in spec.fields)


def _is_affordable(table: "CatalogTable", keys: int) -> bool:
    """Whether looking up the rows to delete is affordable for this number of keys."""
    snapshot = current_snapshot(table)
    total = summary_properties(snapshot).get("total-records")
    return total is not None and int(total) <= max(AFFORDABLE_ROWS, AFFORDABLE_RATIO * keys)
