"""What manifests say about the keys of a table's live files: enough to leave a delete away, never a guess.

An insert needs no delete row where no live file can hold its key (SEMANTICS rule 26).
"""

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from pipelines.tables.loaded_table import open_current
from scan_core.bounded_cache import BoundedCache
from scan_core.manifest_list import DATA_MANIFEST, snapshot_manifests
from scan_core.manifests import read_data_manifests
from scan_core.schema import PrimitiveType, Schema
from scan_core.single_value import decode_bound
from scan_core.snapshot import DataFile

Mask = npt.NDArray[np.bool_]
MOST_FILES = 20_000
"""Above this the bounds are not looked at: reading them would cost more than the delete rows."""
CACHED_RANGES = 100_000
"""A few dozen manifests per table; a range is a few hundred bytes."""


@dataclass(frozen=True, slots=True)
class KeyRange:
    """The values a key column may have in live files: between `lower` and `upper`, or NULL if `may_be_null`."""

    lower: Any
    upper: Any
    may_be_null: bool


@dataclass(frozen=True, slots=True)
class LiveKeys:
    """Facts of the live data files.

    Attributes:
        num_files: how many there are.
        spec_ids: the specs under which they were written.
        ranges: per key column; a missing one means anything.
    """

    num_files: int
    spec_ids: frozenset[int]
    ranges: Mapping[str, KeyRange]

    def may_hold(self, keys: pa.Table) -> Mask:
        """Per key, whether some live file may hold it."""
        if self.num_files == 0:
            return np.zeros(keys.num_rows, np.bool_)
        possible = np.ones(keys.num_rows, np.bool_)
        for name, known in self.ranges.items():
            column = _comparable(keys.column(name))
            inside = pc.and_(pc.greater_equal(column, known.lower), pc.less_equal(column, known.upper))
            possible &= np.asarray(pc.fill_null(inside, known.may_be_null), np.bool_)
        return possible


def live_keys(table: Any, schema: Schema, key: Sequence[str]) -> LiveKeys:
    """The facts of a PyIceberg table at its loaded snapshot; `schema` is its current one."""
    opened = open_current(table)
    metadata, io = opened.metadata, opened.io
    snapshot = metadata.current_snapshot
    if snapshot is None:
        return LiveKeys(0, frozenset(), {})
    manifests = [m for m in snapshot_manifests(snapshot, io) if m.content == DATA_MANIFEST]
    expected = sum(m.live_files or 0 for m in manifests)
    spec_ids = frozenset(m.spec_id for m in manifests if m.spec_id is not None and m.live_files != 0)
    if expected > MOST_FILES:
        return LiveKeys(expected, spec_ids, {})
    files = dict(zip((m.path for m in manifests), read_data_manifests(manifests, metadata, io), strict=True))
    ranges = {}
    for name in key:
        column = schema.find(name)
        if isinstance(column.type, PrimitiveType) and (known := _range(files, column.field_id, column.type)):
            ranges[name] = known
    return LiveKeys(sum(map(len, files.values())), spec_ids, ranges)


def _range(files: Mapping[str, Sequence[DataFile]], field_id: int, kind: PrimitiveType) -> KeyRange | None:
    """The range over all files, given by manifest; None if some file does not tell, or all hold only NULL."""
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
    """The range of a manifest, which never changes."""
    return _RANGES.get((path, field_id, str(kind)), lambda: _range_of(files, field_id, kind), CACHED_RANGES)


def _range_of(files: Sequence[DataFile], field_id: int, kind: PrimitiveType) -> KeyRange | None:
    """The range over some files, without bounds if all values are NULL; None if some file does not tell."""
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
    """Types whose Arrow comparison is that of their bounds."""
    return kind.name not in {"boolean", "fixed", "uuid", "float", "double"}


def _comparable(column: pa.ChunkedArray) -> pa.ChunkedArray:
    """Temporal values as the integers that bounds are."""
    kind = column.type
    if pa.types.is_date32(kind):
        return column.cast(pa.int32())
    if pa.types.is_temporal(kind):
        return column.cast(pa.int64())
    return column
