"""One data file of a split, opened: which of its row groups to read, and which of their rows are alive.

Everything between a task and a final selection is here in order; what is excluded beforehand is told by
`predicate_pruning.py` and `delete_pruning.py`, how single steps narrow is in `row_filter.py`, how survivors become
batches in `output.py`.
"""

from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager

import numpy as np
import numpy.typing as npt

from scan_core.deletes.delete_filter import DeleteFilter, open_delete_filter
from scan_core.errors import UnsupportedError
from scan_core.metrics import ScanMetrics
from scan_core.read.conjunct_order import ConjunctOrder
from scan_core.read.dead_rows import find_dead_rows, removed_by
from scan_core.read.delete_pruning import DeletePruning
from scan_core.read.file_reader import FileReader, Habits, ReadCounts, ReadsAhead, RowGroup
from scan_core.read.file_statistics import FileStatistics
from scan_core.read.lazy import LazyColumns
from scan_core.read.memory_budget import MemoryBudget
from scan_core.read.metadata_columns import keeps_dead_rows
from scan_core.read.predicate_pruning import PredicatePruning
from scan_core.read.projection import FileProjection
from scan_core.read.read_ahead import FilesAhead
from scan_core.read.row_filter import DeleteStep, RefineStep, file_columns_of, refine_rows
from scan_core.read.task_sample import TaskSample
from scan_core.rows.algebra import from_ranges, nothing
from scan_core.rows.selection import All, RowSelection, intersect, selected_count
from scan_core.split import FileScanTask, ScanContext


@contextmanager
def open_task(
    task: FileScanTask,
    context: ScanContext,
    metrics: ScanMetrics,
    order: ConjunctOrder,
    ahead: FilesAhead | None = None,
) -> Iterator["TaskReader"]:
    """Open the file of a task, or take it from those opened ahead, and close it again.

    Raises:
        UnsupportedError: the file is encrypted.
        MalformedTableError: it cannot be read, or lacks a required column.
    """
    data_file = task.data_file
    if data_file.is_encrypted:
        raise UnsupportedError(f"{data_file.path}: encrypted files are not supported")
    ahead = FilesAhead(context.options) if ahead is None else ahead
    reader = ahead.open(task, context)
    try:
        yield TaskReader(task, context, metrics, order, reader=reader, ahead=ahead)
    finally:
        reader.close()


class TaskReader:
    """An open data file and the deletes that may touch it."""

    def __init__(
        self,
        task: FileScanTask,
        context: ScanContext,
        metrics: ScanMetrics,
        order: ConjunctOrder,
        *,
        reader: FileReader,
        ahead: FilesAhead,
    ) -> None:
        self._task = task
        self._context = context
        self._metrics = metrics
        self._order = order
        self._reader = reader
        self._ahead = ahead
        self._payload: set[int] = set()
        self._keeps_dead_rows = keeps_dead_rows(context)
        self.projection = FileProjection(
            reader.arrow_schema,
            has_field_ids=reader.has_field_ids,
            context=context,
            file=task.data_file,
            member=reader.member,
        )
        statistics = FileStatistics(reader, self.projection)
        self._predicate = PredicatePruning(task, context, metrics, self.projection, statistics)
        mine = (group for group in reader.row_groups if task.owns(group.byte_offset))
        is_empty = self._predicate.excludes_all(mine, reader.counts)
        self._deletes = DeleteFilter(None, ()) if is_empty else open_delete_filter(task, context, metrics)
        self._sample = TaskSample(context.sample, task.data_file, metrics)
        self._delete_pruning = DeletePruning(
            [
                DeleteStep(deletes, [self.projection.leaf(i) for i in deletes.key_ids])
                for deletes in self._deletes.equality
            ],
            statistics,
            {i: path[0].type for i, path in context.field_paths.items() if len(path) == 1},
            context.options,
            metrics,
        )
        self._wanted = self._step_columns()
        metrics.data_files_read += task.start == 0 and task.row_share[0] == 0

    def plan_to_read(self, file_columns: Collection[int]) -> None:
        """Columns that will be read, so that what deletes and filters save can be told."""
        self._wanted.update(file_columns)
        self._payload.update(file_columns)

    def row_groups(self) -> Iterator[tuple[LazyColumns, Sequence[RefineStep]]]:
        """Row groups of the task that may hold rows of the result, and the conjuncts that nothing decides beforehand.

        Statistics do for whole row groups, bitmap indexes row by row. On an object store the bytes of one row group are
        fetched while that before it is read.
        """
        is_filtered = self._context.predicate is not None or self._context.runtime_filters
        first_guess = () if is_filtered else self._payload
        waiting: tuple[LazyColumns, Sequence[RefineStep]] | None = None
        for columns, steps in self._open_row_groups():
            if self._task.row_share != (0, 1) or not self._ahead.expect_row_group(
                self._reader, columns.row_group, first_guess
            ):
                yield columns, steps
                continue
            if waiting is not None:
                yield waiting
            waiting = columns, steps
        if waiting is not None:
            yield waiting

    def pieces(self, columns: LazyColumns, budget: MemoryBudget) -> Iterator[tuple[LazyColumns, RowSelection]]:
        """The row group as a whole, or cut into row ranges that the budget can hold."""
        group, wanted = columns.row_group, sorted(self._wanted)
        mine = self._share(group)
        if (windows := self._reader.windows(group, wanted, mine, budget.limits)) is not None:
            for window in windows:
                yield columns.anew(window), _within(window, group.num_rows)
            return
        if not self._context.options.lazy_columns or not self._reader.reads_ranges(group, wanted):
            yield columns, _within(mine, group.num_rows)
            return
        everything = self._reader.compressed_bytes(group, range(len(self._reader.arrow_schema)))
        share = self._reader.compressed_bytes(group, wanted) / max(everything, 1)
        stated = int(group.num_bytes * share)
        pieces = budget.pieces(len(mine), stated * len(mine) // max(group.num_rows, 1))
        for piece in pieces:
            window = range(mine.start + piece.start, mine.start + piece.stop)
            view = columns.anew(window if len(pieces) > 1 else None)
            yield view, _within(window, group.num_rows)
            budget.record(stated * len(window) / group.num_rows, view.num_bytes)

    def refine(
        self, columns: LazyColumns, conjuncts: Sequence[RefineStep], within: RowSelection | None = None
    ) -> RowSelection:
        """The rows that fulfil the predicate and that no delete removes; dead ones too where they are asked for.

        Args:
            columns: of one row group.
            conjuncts: of the predicate, as `row_groups` yields them.
            within: look no further than at these rows.
        """
        num_rows = columns.row_group.num_rows
        within = self._sample.within(columns.row_group, within)
        if self._keeps_dead_rows:
            columns.dead = find_dead_rows(self._task, self._context, self._deletes, self.projection, columns)
            selection = self._predicate.by_bitmaps(columns.row_group, within or All(num_rows))
            return refine_rows(conjuncts, columns, selection, self._order, self._metrics)
        selection = self._deletes.position_selection(columns.row_group.first_row_position, num_rows)
        looked_at = num_rows if within is None else selected_count(within)
        selection = selection if within is None else intersect(selection, within)
        self._metrics.rows_removed_by_position_deletes += looked_at - selected_count(selection)
        selection = self._predicate.by_bitmaps(columns.row_group, selection)
        if not self._context.options.lazy_columns:
            columns.load(sorted(self._wanted), All(num_rows) if within is None else within)
        deletes = self._delete_pruning.that_touch(columns.row_group, self._reader.counts)
        if deletes is None:
            self._metrics.rows_removed_by_equality_deletes += selected_count(selection)
            return nothing(num_rows)
        if conjuncts or self._predicate.looks_at_pages:
            selection = self._predicate.within_pages(columns.row_group, selection)
        steps, selection = self._delete_pruning.by_page(columns.row_group, deletes, selection)
        return refine_rows([*conjuncts, *steps], columns, selection, self._order, self._metrics)

    def removed_by(self, deletes: DeleteFilter, columns: LazyColumns) -> npt.NDArray[np.bool_]:
        """Which rows of a row group `deletes`, not the task's own, remove."""
        statistics_of = self._delete_pruning.statistics_of(columns.row_group)
        return removed_by(deletes, self.projection, columns, statistics_of)

    def count_bytes(self, columns: LazyColumns) -> None:
        """Add what was read of a row group, and what of the planned columns was not."""
        if isinstance(self._reader, ReadsAhead):
            self._reader.release(columns.row_group)
        counts, self._reader.counts = self._reader.counts, ReadCounts()
        group, mine = columns.row_group, self._share(columns.row_group)
        wanted = self._reader.compressed_bytes(group, sorted(self._wanted | columns.reads.keys()))
        wanted = wanted * len(mine) // max(group.num_rows, 1)
        read = (
            self._reader.compressed_bytes(columns.row_group, sorted(columns.reads.elements())) - counts.bytes_left_out
        )
        self._metrics.bytes_read += read
        self._metrics.bytes_skipped += max(wanted - read, 0)
        self._metrics.pages_read += counts.pages_read
        self._metrics.pages_skipped += counts.pages_left_out
        self._metrics.fallbacks += counts.fallbacks
        self._metrics.bytes_read_ahead += counts.bytes_ahead
        self._metrics.bytes_read_in_vain += counts.bytes_in_vain
        names = {i: self._reader.field(i).name for i in counts.whole | counts.paged}
        self._ahead.record(
            Habits(frozenset((i, names[i]) for i in counts.whole), frozenset((i, names[i]) for i in counts.paged))
        )

    def _open_row_groups(self) -> Iterator[tuple[LazyColumns, Sequence[RefineStep]]]:
        is_first = self._task.row_share[0] == 0
        for row_group in self._reader.row_groups:
            if not self._task.owns(row_group.byte_offset):
                continue
            num_rows = len(self._share(row_group))
            self._metrics.rows_in_files += num_rows
            if num_rows == 0 or self._sample.leaves_out(row_group):
                continue
            steps = self._predicate.undecided(row_group, self._reader.counts)
            if steps is None:
                self._metrics.row_groups_pruned += is_first
                self._metrics.rows_removed_by_filter += num_rows
                num_bytes = self._reader.compressed_bytes(row_group, sorted(self._wanted))
                self._metrics.bytes_skipped += num_bytes * num_rows // row_group.num_rows
                continue
            self._metrics.row_groups_read += is_first
            yield LazyColumns(self._reader, row_group), steps

    def _share(self, row_group: RowGroup) -> range:
        """The task's rows of a row group: where they cannot be read apart from the others, the first task has them all."""
        number, of = self._task.row_share
        if of > 1 and not self._reader.reads_apart(row_group, sorted(self._wanted)):
            return range(row_group.num_rows if number == 0 else 0)
        return self._task.rows_of(row_group.num_rows)

    def _step_columns(self) -> set[int]:
        sources = [*self._predicate.sources]
        sources += [source for step in self._delete_pruning.steps for source in step.sources]
        return {index for source in sources for index in file_columns_of(source)}


def _within(rows: range, num_rows: int) -> RowSelection:
    return All(num_rows) if len(rows) == num_rows else from_ranges([(rows.start, rows.stop)], num_rows)
