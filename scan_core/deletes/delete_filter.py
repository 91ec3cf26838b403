"""The deletes of one task as the reader applies them: first a selection by position, then filters by key.

Loading and indexing happen on the first use in a process and are shared between tasks through the cache.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from scan_core.deletes.cache import DELETE_CACHE
from scan_core.deletes.dense_index import DenseIndex
from scan_core.deletes.equality import (
    EqualityIndex,
    find_deleted,
    threshold_of,
)
from scan_core.deletes.few_keys import few_values
from scan_core.deletes.index_source import equality_index, file_key
from scan_core.deletes.positions import (
    PositionDeleteFile,
    combined,
    positions_in,
    read_deletion_vector,
    read_position_deletes,
)
from scan_core.metrics import ScanMetrics
from scan_core.native.compiled import may_use_numba
from scan_core.prune.match import Match
from scan_core.read.file_reader import ColumnStatistics
from scan_core.rows.positions import RowPositions, surviving
from scan_core.rows.selection import All, RowSelection
from scan_core.snapshot import DeleteFile
from scan_core.split import FileScanTask, ScanContext


@dataclass(frozen=True, slots=True)
class EqualityFilter:
    """The equality deletes of one key set and scope, for one data file."""

    key_ids: tuple[int, ...]
    index: EqualityIndex
    threshold: int
    use_numba: bool = True

    def keep(self, keys: Sequence[pa.Array]) -> npt.NDArray[np.bool_]:
        """True for rows that stay.

        Args:
            keys: one array per key id, in the table's current types, of one length; dictionary arrays are allowed.
        """
        if not len(keys[0]):
            return np.ones(0, np.bool_)
        return ~find_deleted(self.index, keys, self.threshold, use_numba=self.use_numba)

    def may_touch(self, statistics_of: Callable[[int], ColumnStatistics | None]) -> Match:
        """NEVER: no row so described is deleted; ALWAYS: all are; MAYBE: probe.

        Args:
            statistics_of: what is known of a key column by field id, bounds in the table's current types.
        """
        known = [statistics_of(field_id) for field_id in self.key_ids]
        if not all(s.meets(k) for s, k in zip(self.index.summaries, known, strict=True)):
            return Match.NEVER
        if isinstance(self.index, DenseIndex) and (only := known[0]) is not None and only.null_count == 0:
            lower, upper = only.lower, only.upper
            if isinstance(lower, int) and isinstance(upper, int) and self.index.covers(lower, upper, self.threshold):
                return Match.ALWAYS
        return Match.MAYBE

    def few_values(self, column: int, statistics: ColumnStatistics | None) -> list[Any] | None:
        """All values of a key column that lie within the statistics of a row group; None unless they are few and known."""
        return few_values(self.index, column, self.threshold, statistics)


@dataclass(frozen=True, slots=True)
class DeleteFilter:
    """All deletes of one task."""

    positions: RowPositions | None
    equality: tuple[EqualityFilter, ...]

    @property
    def is_empty(self) -> bool:
        """Nothing can be deleted."""
        return self.positions is None and not self.equality

    def position_selection(self, first_row: int, num_rows: int) -> RowSelection:
        """Rows [first_row, first_row + num_rows) of the file that no position delete removes, renumbered from 0."""
        return All(num_rows) if self.positions is None else surviving(self.positions, first_row, num_rows)


def open_delete_filter(task: FileScanTask, context: ScanContext, metrics: ScanMetrics) -> DeleteFilter:
    """Load what the task's delete files say.

    Raises:
        MalformedTableError: a delete file that breaks a rule; names file and field.
        MissingFileError: a delete file is gone.
    """
    sequence_number = task.data_file.data_sequence_number
    filters = [
        EqualityFilter(group.key_ids, index, threshold_of(index, sequence_number), may_use_numba(context.options))
        for group in task.equality_deletes
        if group.max_sequence_number > sequence_number
        for index in (equality_index(group, context, metrics),)
    ]
    return DeleteFilter(_positions(task, context, metrics), tuple(filters))


def _positions(task: FileScanTask, context: ScanContext, metrics: ScanMetrics) -> RowPositions | None:
    limit = context.options.delete_cache_bytes
    if (vector := task.deletion_vector) is not None:
        key = ("vector", file_key(vector, context.io))
        found: RowPositions = DELETE_CACHE.get_or_build(
            key, lambda: read_deletion_vector(vector, context.io, metrics), limit, metrics
        )
        return found
    parts = []
    for file in task.position_deletes:
        loaded = _load_position_deletes(file, context, metrics)
        part = positions_in(loaded, file, task.data_file, context.io, metrics)
        if part is not None:
            parts.append(part)
    return combined(parts)


def _load_position_deletes(file: DeleteFile, context: ScanContext, metrics: ScanMetrics) -> PositionDeleteFile:
    key = ("positions", file_key(file, context.io))
    limit = context.options.delete_cache_bytes
    loaded: PositionDeleteFile = DELETE_CACHE.get_or_build(
        key, lambda: read_position_deletes(file, context.io, metrics, context.options), limit, metrics
    )
    return loaded
