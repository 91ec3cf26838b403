"""The deletes of one task as the reader applies them: first a selection by position, then filters by key."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from nevermore.scan_core.deletes.indexes import DELETE_CACHE, equality_index, file_key
from nevermore.scan_core.deletes.positions import (
    positions_in,
    read_deletion_vector,
    read_position_deletes,
    union_of,
)
from nevermore.scan_core.keys.columns import BytesColumn
from nevermore.scan_core.keys.equality_index import EqualityIndex, covers_rest, find_deleted, fixed_value, threshold_of
from nevermore.scan_core.keys.lookup import DenseIndex, FactoredIndex, HashedIndex
from nevermore.scan_core.keys.summary import SIGN_BIT, KeySummary
from nevermore.scan_core.model.metrics import ScanMetrics
from nevermore.scan_core.model.snapshot import DeleteFile
from nevermore.scan_core.model.statistics import ColumnStatistics
from nevermore.scan_core.prune.verdicts import Match
from nevermore.scan_core.rows.roaring import RowPositions, surviving
from nevermore.scan_core.rows.selection import All, RowSelection, intersect
from nevermore.scan_core.split.tasks import EqualityDeleteGroup, FileScanTask, ScanContext

MAX_VALUES = 256
"""Maximum number of values: looking up more in a Bloom filter takes longer than probing a row group."""
_MAX_STORED = 4_096
_MAX_SLOTS = 1 << 20


def _of_table(index: DenseIndex, lower: int, upper: int, threshold: int) -> list[Any] | None:
    begin, end = max(lower - index.lower, 0), min(upper - index.lower + 1, len(index.ranks) - 1)
    if end - begin > _MAX_SLOTS:
        return None
    places = np.flatnonzero(index.ranks[begin : max(end, begin)] > threshold)
    return (places + (index.lower + begin)).tolist() if len(places) <= MAX_VALUES else None


def _of_summary(summary: KeySummary, lower: int, upper: int) -> list[Any] | None:
    if summary.buckets is None or summary.shift:
        return None  # a bucket stands for several keys
    low, high = lower + SIGN_BIT - summary.base, upper + SIGN_BIT - summary.base
    if high < 0:
        return []
    begin = np.searchsorted(summary.buckets, np.uint64(max(low, 0)))
    end = np.searchsorted(summary.buckets, np.uint64(high), side="right")
    if end - begin > MAX_VALUES:
        return None
    return [int(bucket) + summary.base - SIGN_BIT for bucket in summary.buckets[begin:end].tolist()]


def _of_strings(column: BytesColumn, kind: pa.DataType, lower: Any, upper: Any) -> list[Any] | None:
    if column.num_rows > _MAX_STORED:
        return None
    if not pa.types.is_string(kind) and not pa.types.is_binary(kind):
        return None
    stored = {bytes(column.data[begin:end]) for begin, end in pairwise(column.offsets.tolist())}
    try:
        values: set[Any] = {v.decode() for v in stored} if pa.types.is_string(kind) else stored
    except UnicodeDecodeError:
        return None
    known = [v for v in values if (lower is None or v >= lower) and (upper is None or v <= upper)]
    return known if len(known) <= MAX_VALUES else None


@dataclass(frozen=True, slots=True)
class EqualityFilter:
    """The equality deletes of one key set and scope, for one data file."""

    key_ids: tuple[int, ...]
    index: EqualityIndex
    threshold: int

    def keep(self, keys: Sequence[pa.Array | None]) -> npt.NDArray[np.bool_]:
        """True for rows that stay.

        Args:
            keys: one array per key id, in the table's current types, of one length; dictionary arrays are allowed. None
                for columns of which `is_proven` is true.
        """
        if not any(key is not None and len(key) for key in keys):
            return np.ones(0, np.bool_)
        return ~find_deleted(self.index, keys, self.threshold)

    def may_touch(self, statistics_of: Callable[[int], ColumnStatistics | None]) -> Match:
        """NEVER: no row within these statistics is deleted; ALWAYS: all are; MAYBE: rows must be probed.

        Args:
            statistics_of: statistics of a key column by field id, with bounds in the table's current types.
        """
        known = [statistics_of(field_id) for field_id in self.key_ids]
        if not all(s.meets(k) for s, k in zip(self.index.summaries, known, strict=True)):
            return Match.NEVER
        return Match.ALWAYS if covers_rest(self.index, known, self.threshold) else Match.MAYBE

    def is_proven(self, column: int, statistics: ColumnStatistics | None) -> bool:
        """Whether all keys have one value in a key column, and rows with these statistics have no other."""
        if not isinstance(self.index, FactoredIndex):
            return False
        value = dict(self.index.constants).get(column)
        return value is not None and fixed_value(statistics) == value

    def few_values(self, column: int, statistics: ColumnStatistics | None) -> list[Any] | None:
        """All values of a key column within the bounds of a row group; None if unknown, too many, or NULL among them.

        Args:
            column: which of the key columns.
            statistics: of the column in the row group, in the table's type.
        """
        index, summary = self.index, self.index.summaries[column]
        if statistics is None or (summary.has_null and statistics.null_count != 0):
            return None
        place: int | None = column
        if isinstance(index, FactoredIndex):
            constants = dict(index.constants)
            place = None if column in constants else column - sum(c < column for c in constants)
            index = index.rest
        lower, upper, kind = statistics.lower, statistics.upper, summary.kind
        is_number = pa.types.is_integer(kind) or pa.types.is_temporal(kind)
        if isinstance(lower, int) and isinstance(upper, int) and is_number:
            if isinstance(index, DenseIndex) and place is not None:
                return _of_table(index, lower, upper, self.threshold)
            return _of_summary(summary, lower, upper)
        if place is None or not isinstance(index, HashedIndex) or not index.columns:
            return None
        if isinstance(found := index.columns[place], BytesColumn):
            return _of_strings(found, kind, lower, upper)
        return None


@dataclass(frozen=True, slots=True)
class DeleteFilter:
    """All deletes of one task: a row is dead if any of the positions or keys removes it."""

    positions: tuple[RowPositions, ...]
    equality: tuple[EqualityFilter, ...]

    @property
    def is_empty(self) -> bool:
        """Whether no row can be deleted."""
        return not self.positions and not self.equality

    def position_selection(self, first_row: int, num_rows: int) -> RowSelection:
        """Rows [first_row, first_row + num_rows) of the file that no position delete removes, numbered from 0."""
        selection: RowSelection = All(num_rows)
        for positions in self.positions:
            selection = intersect(selection, surviving(positions, first_row, num_rows))
        return selection


def open_delete_filter(task: FileScanTask, context: ScanContext, metrics: ScanMetrics) -> DeleteFilter:
    """Load the deletes of the task's delete files, or take keys that are loaded with those of other tasks.

    Raises:
        MalformedTableError: a delete file that breaks a rule; names file and field.
        MissingFileError: a delete file is gone.
    """
    if (vector := task.deletion_vector) is not None:
        by_position: tuple[RowPositions, ...] = (_vector(vector, context, metrics),)
    else:
        by_position = _listed_positions(task, task.position_deletes, context, metrics)
    return DeleteFilter(by_position, _equality_filters(task, task.equality_deletes, context, metrics))


def _equality_filters(
    task: FileScanTask,
    groups: Sequence[EqualityDeleteGroup],
    context: ScanContext,
    metrics: ScanMetrics,
) -> tuple[EqualityFilter, ...]:
    sequence_number = task.data_file.data_sequence_number
    return tuple(
        EqualityFilter(group.key_ids, index, threshold_of(index, sequence_number))
        for group in groups
        if group.max_sequence_number > sequence_number
        for index in (equality_index(group, context, metrics),)
    )


def _vector(vector: DeleteFile, context: ScanContext, metrics: ScanMetrics) -> RowPositions:
    io, options = context.io, context.options
    return DELETE_CACHE.get_or_build(
        ("vector", file_key(vector, io)),
        lambda: read_deletion_vector(vector, io, metrics, options.memory_limit_bytes),
        options.delete_cache_bytes,
        metrics,
    )


def _listed_positions(
    task: FileScanTask, files: Sequence[DeleteFile], context: ScanContext, metrics: ScanMetrics
) -> tuple[RowPositions, ...]:
    """Positions in position-delete files, as one; none if no file names the data file."""
    io, options = context.io, context.options
    parts = []
    for file in files:
        loaded = DELETE_CACHE.get_or_build(
            ("positions", file_key(file, io)),
            partial(read_position_deletes, file, io, metrics, options),
            options.delete_cache_bytes,
            metrics,
        )
        part = positions_in(loaded, file, task.data_file, io, metrics)
        if part is not None:
            parts.append(part)
    return (union_of(parts),) if parts else ()
