"""Restriction: one thing that narrows a read, asked level by level what it keeps, from whole row groups to single rows.

Conjuncts, sets of deletes, runtime filters, bitmap indexes and samples are restrictions. Each only removes rows, so any
order gives the same rows. `task.py` climbs the levels; rows are judged here, in the order that `Adaptivity` chooses: the restriction
with the lowest measured cost per rejected row runs first. `Worth` switches one off at a level where it excludes too little, and
tries it again now and then because data drifts.
"""

import os
from collections.abc import Callable, Collection, Hashable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import Enum
from time import perf_counter

import numpy as np
import pyarrow as pa

from nevermore.scan_core.columns.conversion import repeat
from nevermore.scan_core.columns.file_reader import RowGroup
from nevermore.scan_core.io.cache import BoundedCache
from nevermore.scan_core.model.errors import EvaluationError
from nevermore.scan_core.model.options import ScanMetrics
from nevermore.scan_core.prune.verdicts import Level, Match
from nevermore.scan_core.read.file_statistics import PageMatches
from nevermore.scan_core.read.projection import ColumnSource, Constant, FromFile, LazyColumns, MetadataSource
from nevermore.scan_core.rows.buffers import Mask
from nevermore.scan_core.rows.selection import (
    All,
    RowSelection,
    intersect,
    refine,
    selected_count,
)
from nevermore.scan_core.split.tasks import ScanContext

_FORGET = 0.5
"""Weight of earlier row groups against the newest one: data drifts along a file."""
_NARROW_BELOW = 0.5
"""Below this share of remaining rows, reading columns may skip pages."""
_COPY_COST = 24.0
"""Cost of filtering a column, per remaining row, in the units of `first_guess`."""
_COPY_COLLECTION_COST = 150.0
"""Cost of filtering a list or map: its elements are copied too, which is slower than searching the child arrays."""
_MIN_ROWS = 256
"""Measurements over fewer rows only show the precision of the clock."""

TRIED_ROWS = 500_000
"""Rows after which a level has shown what it is worth."""
MIN_SHARE = {
    Level.ROW_GROUPS: 0.0,  # statistics are in memory already
    Level.BLOOM_FILTERS: 0.02,
    Level.BITMAPS: 0.0,  # they decide by their own cost
    Level.PAGES: 0.02,
    Level.ROWS: 0.05,
}
"""Minimum share of rows a level must exclude to stay on; asking costs about this share of reading them."""
_TRIED_OF_FILE = {Level.PAGES: 2_000_000, Level.BLOOM_FILTERS: 4}
"""Amount tried before a level is switched off for the rest of a file: rows for pages, row groups for Bloom filters of deletes."""
_TRIED_AGAIN = 16
"""A level that is off is tried again once in this many requests."""
_MAX_REMEMBERED_RUNS = 64


@dataclass(slots=True)
class _Measured:
    seconds: float = 0.0
    rows_in: float = 0.0
    rows_out: float = 0.0

    @property
    def cost(self) -> float:
        """Seconds per row, scaled by the share of rows that it lets through: time / (rows in / rows out)."""
        return self.seconds / self.rows_in * ((self.rows_out + 1) / (self.rows_in + 1))


_MAX_REMEMBERED_FILTERS = 256
HINTS: BoundedCache[Hashable, Mapping[object, _Measured]] = BoundedCache()
"""Measurements of earlier splits of the same table and filter in this process; the last split to finish wins."""
os.register_at_fork(after_in_child=HINTS.forget_threads)


def _copy(measured: Mapping[object, _Measured]) -> dict[object, _Measured]:
    return {step: replace(found) for step, found in measured.items()}


class Adaptivity:
    """Measures steps over the row groups of one split and orders them for the next one.

    Args:
        adaptive: False keeps the first guess.
        hint_key: key under which measurements are kept for the next split; None keeps none.
    """

    def __init__(self, *, adaptive: bool, hint_key: Hashable = None) -> None:
        self._adaptive = adaptive
        self._hint_key = hint_key if adaptive else None
        hint = None if self._hint_key is None else HINTS.find(self._hint_key)
        self._measured = _copy(hint or {})

    @classmethod
    def of(cls, context: ScanContext) -> "Adaptivity":
        """The order for a split of this scan."""
        text = "" if context.predicate is None else context.predicate.sql
        return cls(adaptive=True, hint_key=(context.table, hash(text)))

    def order(self, steps: "Sequence[Restriction]") -> list[int]:
        """Indices of `steps`, in the order to run them.

        If some steps are measured, the others saw too few rows to matter and run last.
        """

        def rank(index: int) -> tuple[bool, float]:
            measured = self._measured.get(steps[index].key)
            if measured is None:
                return True, steps[index].first_guess
            return False, measured.cost

        return sorted(range(len(steps)), key=rank)

    def narrows(self, step: "Restriction", rows_left: int, num_rows: int, *, rereads_collection: bool = False) -> bool:
        """Whether filtering columns to the remaining rows is cheaper than running the step on all `num_rows` rows.

        Rows that are dead already may be judged again: what a step says of them is not asked for. With
        `rereads_collection` the step needs nothing but a list or map that is there for all `num_rows` rows: conjuncts on
        it run over the same child arrays as long as cutting those costs more.
        """
        if self._adaptive and rereads_collection:
            return rows_left * _COPY_COLLECTION_COST < (num_rows - rows_left) * step.first_guess
        if not self._adaptive or rows_left < _NARROW_BELOW * num_rows:
            return True
        return rows_left * _COPY_COST < (num_rows - rows_left) * step.first_guess

    def record(self, step: "Restriction", started: float, rows_in: int, rows_out: int) -> None:
        """Remember what a step cost since `started`, a reading of `perf_counter`, and how many rows it let through."""
        if not self._adaptive or rows_in < _MIN_ROWS:
            return
        seconds = perf_counter() - started
        measured = self._measured.setdefault(step.key, _Measured())
        measured.seconds = measured.seconds * _FORGET + seconds
        measured.rows_in = measured.rows_in * _FORGET + rows_in
        measured.rows_out = measured.rows_out * _FORGET + rows_out
        if self._hint_key is not None:
            HINTS.put(self._hint_key, _copy(self._measured), _MAX_REMEMBERED_FILTERS)


@dataclass(slots=True)
class Tally:
    """Amount that one restriction excluded at one level, in rows or the other unit of that level."""

    tried: float = 0.0
    excluded: float = 0.0
    is_off: bool = False
    passed_over: int = 0
    switched_off: int = 0


@dataclass(slots=True)
class Worth:
    """What one restriction has excluded so far, by level; `tried` overrides `TRIED_ROWS`."""

    tried: Mapping[Level, int] = field(default_factory=dict)
    tallies: dict[Level, Tally] = field(default_factory=dict)

    @classmethod
    def in_file(cls) -> "Worth":
        """A tally for a conjunct or delete set in one file; the next file may be sorted differently."""
        return cls(_TRIED_OF_FILE)

    def is_on(self, level: Level) -> bool:
        """Whether to ask at a level now."""
        tally = self.tallies.get(level)
        if tally is None or not tally.is_off:
            return True
        tally.passed_over += 1
        return tally.passed_over % _TRIED_AGAIN == 0

    def record(self, level: Level, tried: int, excluded: int) -> bool:
        """Record what was excluded; True if that switches the level off."""
        tally = self.tallies.setdefault(level, Tally())
        tally.tried += tried
        tally.excluded += excluded
        if tally.tried < self.tried.get(level, TRIED_ROWS):
            return False
        was_off, tally.is_off = tally.is_off, tally.excluded < MIN_SHARE[level] * tally.tried
        is_new = tally.is_off and not was_off
        tally.switched_off += is_new
        tally.tried, tally.excluded = tally.tried * _FORGET, tally.excluded * _FORGET
        return is_new


RUNS: BoundedCache[str, Worth] = BoundedCache()
"""The worth of runtime filters over all splits of one run in this process."""
os.register_at_fork(after_in_child=RUNS.forget_threads)


def worth_in_run(name: str) -> Worth:
    """The measurements shared by the run with this name; a run without a name shares nothing."""
    return RUNS.get(name, Worth, _MAX_REMEMBERED_RUNS) if name else Worth()


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
