"""Restriction: one thing that narrows a read, asked level by level what it keeps, from whole row groups to single rows.

Conjuncts, sets of deletes, runtime filters, bitmap indexes and samples are restrictions. Each only removes rows, so any
order gives the same rows; the levels are climbed in `task.py`, rows are judged here, costs are measured in `order.py`.
"""

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from enum import Enum
from time import perf_counter

import numpy as np
import pyarrow as pa

from nevermore.scan_core.columns.conversion import repeat
from nevermore.scan_core.columns.file_reader import RowGroup
from nevermore.scan_core.model.errors import EvaluationError
from nevermore.scan_core.model.metrics import ScanMetrics
from nevermore.scan_core.prune.verdicts import Level, Match
from nevermore.scan_core.read.file_statistics import PageMatches
from nevermore.scan_core.read.lazy import LazyColumns
from nevermore.scan_core.read.order import Adaptivity
from nevermore.scan_core.read.projection import ColumnSource, Constant, FromFile, MetadataSource
from nevermore.scan_core.rows.buffers import Mask
from nevermore.scan_core.rows.selection import (
    All,
    RowSelection,
    intersect,
    refine,
    selected_count,
)

ValueSource = ColumnSource | MetadataSource


class Cause(Enum):
    """Why a row is not in the result, in the order in which removed rows are attributed before any value is read."""

    SAMPLE = 0
    POSITION_DELETES = 1
    RUNTIME_FILTER = 2
    PREDICATE = 3
    EQUALITY_DELETES = 4

    @property
    def is_delete(self) -> bool:
        """Whether the row is deleted rather than filtered out."""
        return self in {Cause.POSITION_DELETES, Cause.EQUALITY_DELETES}

    @property
    def is_first(self) -> bool:
        """Whether such rows are attributed before other restrictions run."""
        return self in {Cause.SAMPLE, Cause.POSITION_DELETES}

    def count(self, metrics: ScanMetrics, num_rows: int) -> None:
        """Add rows removed for this reason."""
        match self:
            case Cause.SAMPLE:
                metrics.rows_removed_by_sampling += num_rows
            case Cause.POSITION_DELETES:
                metrics.rows_removed_by_position_deletes += num_rows
            case Cause.EQUALITY_DELETES:
                metrics.rows_removed_by_equality_deletes += num_rows
            case Cause.RUNTIME_FILTER:
                metrics.rows_removed_by_filter += num_rows
                metrics.rows_removed_by_runtime_filters += num_rows
            case Cause.PREDICATE:
                metrics.rows_removed_by_filter += num_rows


@dataclass(frozen=True, slots=True, eq=False)
class Verdict:
    """The decision of a restriction about the selected rows.

    Attributes:
        keep: whether each stays.
        failed: rows that it could not decide, which stay for now; None without such rows.
        error: the error to raise if such a row survives everything else.
    """

    keep: Mask
    failed: Mask | None = None
    error: EvaluationError | None = None


class Restriction:
    """Methods that are not overridden keep every row: unknown means keep.

    `Match` says of a row group or page which of its rows the restriction keeps: NEVER none, ALWAYS all, MAYBE some.
    """

    __slots__ = ()

    @property
    def cause(self) -> Cause:
        """Why rows are removed."""
        raise NotImplementedError

    @property
    def key(self) -> object:
        """A key that is the same for this restriction in every file."""
        raise NotImplementedError

    @property
    def first_guess(self) -> float:
        """Relative cost of judging rows as long as nothing is measured."""
        return 0.0

    @property
    def collection_id(self) -> int | None:
        """The list or map of the file that is all it reads; None if it reads anything else."""
        return None

    @property
    def file_columns(self) -> Collection[int]:
        """Columns of the file that it reads regardless of the others, as far as these are known."""
        return ()

    def row_group(self, group: RowGroup, level: Level) -> Match:
        """The match of a whole row group at one level; called from the cheapest level on while the answer is MAYBE."""
        del group, level
        return Match.MAYBE

    def positions(self, group: RowGroup) -> RowSelection:
        """The rows that may stay, decided by position without reading a column."""
        return All(group.num_rows)

    def pages(self, group: RowGroup) -> PageMatches:
        """The known facts about the pages of a row group."""
        return PageMatches.unknown(group.num_rows)

    def within(self, rows: RowSelection) -> "Restriction":
        """The same restriction, known to remove only rows of this selection."""
        del rows
        return self

    def judges_rows(self) -> bool:
        """Whether rows must be judged by their values if no coarser level decides."""
        return True

    def rows(self, columns: LazyColumns, selection: RowSelection) -> Verdict:
        """Whether each row of `selection`, in order, stays."""
        del columns
        return Verdict(np.ones(selected_count(selection), np.bool_))

    def record_late(self, rows_in: int, removed: int) -> None:
        """Record the number of rows that it judged by their values, and how many of them it removed."""


class ByPosition(Restriction):
    """Rows known by position: a sample, position deletes, what bitmap indexes answer.

    Args:
        cause: why rows are removed.
        level: level at which it decides on whole row groups.
        find: returns the rows of a row group that stay.
    """

    __slots__ = ("_cause", "_find", "_last", "_level")

    def __init__(self, cause: Cause, level: Level, find: Callable[[RowGroup], RowSelection]) -> None:
        self._cause = cause
        self._level = level
        self._find = find
        self._last: tuple[int, RowSelection] = (-1, All(0))

    @property
    def cause(self) -> Cause:
        """Why rows are removed."""
        return self._cause

    @property
    def key(self) -> object:
        """Why and how it removes rows."""
        return self._cause, self._level

    @property
    def is_of_bitmaps(self) -> bool:
        """Whether the rows come from bitmap indexes."""
        return self._level is Level.BITMAPS

    def row_group(self, group: RowGroup, level: Level) -> Match:
        """Decide by the rows themselves."""
        if level is not self._level:
            return Match.MAYBE
        found = self.positions(group)
        if isinstance(found, All):
            return Match.ALWAYS
        return Match.MAYBE if selected_count(found) else Match.NEVER

    def positions(self, group: RowGroup) -> RowSelection:
        """The rows that stay; those of the last row group are remembered."""
        if self._last[0] != group.index:
            self._last = group.index, self._find(group)
        return self._last[1]

    def judges_rows(self) -> bool:
        """Positions decide about every row."""
        return False


def refine_rows(
    restrictions: Sequence[Restriction],
    columns: LazyColumns,
    selection: RowSelection,
    adaptivity: Adaptivity,
    metrics: ScanMetrics,
) -> RowSelection:
    """The rows of `selection` that every restriction keeps.

    Raises:
        EvaluationError: a conjunct fails on a row that every other restriction keeps.
    """
    failures: list[tuple[RowSelection, EvaluationError]] = []
    alive: Mask = np.ones(selected_count(selection), np.bool_)
    rows_in = len(alive)
    collections: set[int | None] = set()
    for index in adaptivity.order(restrictions):
        if rows_in == 0:
            break
        restriction, started = restrictions[index], perf_counter()
        rereads = restriction.collection_id in collections
        if rows_in < len(alive) and adaptivity.narrows(restriction, rows_in, len(alive), rereads_collection=rereads):
            selection, alive = refine(selection, alive), np.ones(rows_in, np.bool_)
            collections.clear()
        if restriction.collection_id is not None:
            collections.add(restriction.collection_id)
        if restriction.cause is Cause.EQUALITY_DELETES and columns.survivors_expected is not None:
            left = selection if rows_in == len(alive) else refine(selection, alive)
            columns.expect_survivors(left, restriction.file_columns)
        verdict = restriction.rows(columns, selection)
        if verdict.failed is not None and verdict.error is not None:
            failures.append((refine(selection, verdict.failed), verdict.error))
        alive = verdict.keep if rows_in == len(alive) else verdict.keep & alive
        rows_out = int(np.count_nonzero(alive))
        adaptivity.record(restriction, started, rows_in, rows_out)
        restriction.cause.count(metrics, rows_in - rows_out)
        if rows_out < rows_in:
            restriction.record_late(rows_in, rows_in - rows_out)
        rows_in = rows_out
    selection = refine(selection, alive)
    for failed, error in failures:
        if selected_count(intersect(failed, selection)):
            raise error
    return selection


def values_of(source: ValueSource, columns: LazyColumns, selection: RowSelection) -> pa.Array:
    """The values of a column for the rows of `selection`, in the table's type (perhaps dictionary-encoded)."""
    match source:
        case FromFile(index, convert):
            return convert(columns.load([index], selection)[0])
        case Constant(value):
            return repeat(value, selected_count(selection))
        case MetadataSource():
            return source.values(columns, selection)


def file_columns_of(source: ValueSource) -> frozenset[int]:
    """The file's top-level columns that a source reads."""
    match source:
        case FromFile(index):
            return frozenset({index})
        case Constant():
            return frozenset()
        case MetadataSource():
            return source.file_columns
