"""One data file of a split, opened: which of its row groups to read, and which of their rows are alive.

Everything between a task and a final selection is here in order; how single steps narrow is in `row_filter.py`, how
survivors become batches in `output.py`.
"""

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from scan_core.deletes.delete_filter import DeleteFilter, open_delete_filter
from scan_core.errors import UnsupportedError
from scan_core.metrics import ScanMetrics
from scan_core.prune.match import Match
from scan_core.read.bloom_filter import is_comparable
from scan_core.read.conjunct_order import ConjunctOrder
from scan_core.read.dead_rows import find_dead_rows, removed_by
from scan_core.read.file_reader import ColumnStatistics, FileReader, PageStatistics, ReadCounts, RowGroup
from scan_core.read.lazy import LazyColumns
from scan_core.read.memory_budget import MemoryBudget
from scan_core.read.metadata_columns import keeps_dead_rows
from scan_core.read.open_file import open_file
from scan_core.read.page_pruning import Paging, Stretches, excludes_some, find_stretches, has_gaps
from scan_core.read.projection import FileProjection
from scan_core.read.row_filter import DeleteStep, RefineStep, file_columns_of, refine_rows
from scan_core.read.statistics import table_statistics
from scan_core.read.task_sample import TaskSample
from scan_core.rows.algebra import from_ranges, nothing
from scan_core.rows.selection import All, RowSelection, intersect, selected_count
from scan_core.schema import Type, arrow_type
from scan_core.split import FileScanTask, ScanContext

if TYPE_CHECKING:
    from scan_core.bitmap_index.filter import BitmapFilter
    from scan_core.read.predicate_plan import PredicatePlan


@contextmanager
def open_task(
    task: FileScanTask, context: ScanContext, metrics: ScanMetrics, order: ConjunctOrder
) -> Iterator["TaskReader"]:
    """Open the file of a task, and close it again.

    Raises:
        UnsupportedError: the file is encrypted.
        MalformedTableError: it cannot be read, or lacks a required column.
    """
    data_file = task.data_file
    if data_file.is_encrypted:
        raise UnsupportedError(f"{data_file.path}: encrypted files are not supported")
    reader = open_file(
        data_file.path,
        data_file.format,
        context.io,
        data_file.file_size_bytes,
        reads_pages=context.options.prune_pages,
        picks_values=context.options.pick_values,
    )
    try:
        yield TaskReader(task, context, metrics, order, reader)
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
        reader: FileReader,
    ) -> None:
        self._task = task
        self._context = context
        self._metrics = metrics
        self._order = order
        self._reader = reader
        self._wanted: set[int] = set()
        self._keeps_dead_rows = keeps_dead_rows(context)
        self.projection = FileProjection(
            reader.arrow_schema,
            has_field_ids=reader.has_field_ids,
            context=context,
            file=task.data_file,
            member=reader.member,
        )
        self._deletes: DeleteFilter = open_delete_filter(task, context, metrics)
        self._key_types = {i: path[0].type for i, path in context.field_paths.items() if len(path) == 1}
        self._predicate = _plan_predicate(context, task, self.projection)
        self._bitmaps = _open_bitmaps(context, task, self._predicate, metrics)
        self._sample = TaskSample(context.sample, task.data_file, metrics)
        self._predicate_paging = Paging(context.options.prune_pages)
        self._delete_paging: dict[object, Paging] = {}
        self._delete_steps = [
            DeleteStep(deletes, [self.projection.leaf(i) for i in deletes.key_ids])
            for deletes in self._deletes.equality
        ]
        self.plan_to_read(self._step_columns())
        metrics.data_files_read += task.start == 0

    def plan_to_read(self, file_columns: Collection[int]) -> None:
        """Columns that will be read, so that what deletes and filters save can be told."""
        self._wanted.update(file_columns)

    def row_groups(self) -> Iterator[tuple[LazyColumns, Sequence[RefineStep]]]:
        """Row groups of the task that may hold rows of the result, and the conjuncts that nothing decides beforehand.

        Statistics do for whole row groups, bitmap indexes row by row.
        """
        for row_group in self._reader.row_groups:
            if not self._owns(row_group):
                continue
            self._metrics.rows_in_files += row_group.num_rows
            if row_group.num_rows == 0 or self._sample.leaves_out(row_group):
                continue
            steps = self._undecided(row_group)
            if steps is None:
                self._metrics.row_groups_pruned += 1
                self._metrics.rows_removed_by_filter += row_group.num_rows
                self._metrics.bytes_skipped += self._reader.compressed_bytes(row_group, sorted(self._wanted))
                continue
            self._metrics.row_groups_read += 1
            yield LazyColumns(self._reader, row_group), steps

    def pieces(self, columns: LazyColumns, budget: MemoryBudget) -> Iterator[tuple[LazyColumns, RowSelection]]:
        """The row group as a whole, or cut into row ranges that the budget can hold."""
        group, wanted = columns.row_group, sorted(self._wanted)
        if not self._context.options.lazy_columns or not self._reader.reads_ranges(group, wanted):
            yield columns, All(group.num_rows)
            return
        everything = self._reader.compressed_bytes(group, range(len(self._reader.arrow_schema)))
        share = self._reader.compressed_bytes(group, wanted) / max(everything, 1)
        stated = int(group.num_bytes * share)
        pieces = budget.pieces(group.num_rows, stated)
        for window in pieces:
            view = columns.anew(window if len(pieces) > 1 else None)
            yield view, from_ranges([(window.start, window.stop)], group.num_rows)
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
            selection = self._by_bitmaps(columns.row_group, within or All(num_rows))
            return refine_rows(conjuncts, columns, selection, self._order, self._metrics)
        selection = self._deletes.position_selection(columns.row_group.first_row_position, num_rows)
        looked_at = num_rows if within is None else selected_count(within)
        selection = selection if within is None else intersect(selection, within)
        self._metrics.rows_removed_by_position_deletes += looked_at - selected_count(selection)
        selection = self._by_bitmaps(columns.row_group, selection)
        if not self._context.options.lazy_columns:
            columns.load(sorted(self._wanted), All(num_rows))
        deletes = self._deletes_that_touch(columns.row_group)
        if deletes is None:
            self._metrics.rows_removed_by_equality_deletes += selected_count(selection)
            return nothing(num_rows)
        if conjuncts:
            selection = self._within_pages(columns.row_group, selection)
        steps, selection = self._by_page(columns, deletes, selection)
        return refine_rows([*conjuncts, *steps], columns, selection, self._order, self._metrics)

    def removed_by(self, deletes: DeleteFilter, columns: LazyColumns) -> npt.NDArray[np.bool_]:
        """Which rows of a row group `deletes`, not the task's own, remove."""
        statistics_of = self._statistics_of(columns.row_group, self._key_types)
        prune = self._context.options.prune_deletes
        return removed_by(deletes, self.projection, columns, statistics_of if prune else None)

    def count_bytes(self, columns: LazyColumns) -> None:
        """Add what was read of a row group, and what of the planned columns was not."""
        counts, self._reader.counts = self._reader.counts, ReadCounts()
        wanted = self._reader.compressed_bytes(columns.row_group, sorted(self._wanted | columns.reads.keys()))
        read = (
            self._reader.compressed_bytes(columns.row_group, sorted(columns.reads.elements())) - counts.bytes_left_out
        )
        self._metrics.bytes_read += read
        self._metrics.bytes_skipped += max(wanted - read, 0)
        self._metrics.pages_read += counts.pages_read
        self._metrics.pages_picked += counts.pages_picked
        self._metrics.pages_skipped += counts.pages_left_out
        self._metrics.fallbacks += counts.fallbacks

    def _owns(self, row_group: RowGroup) -> bool:
        """Each row group lies in exactly one task, even where the manifest's file size is wrong."""
        end = self._task.start + self._task.length
        is_last = end >= self._task.data_file.file_size_bytes
        return (self._task.start == 0 or row_group.byte_offset >= self._task.start) and (
            is_last or row_group.byte_offset < end
        )

    def _undecided(self, row_group: RowGroup) -> Sequence[RefineStep] | None:
        """The conjuncts that may be untrue for some row; None if one of them is true for no row."""
        plan, bitmaps = self._predicate, self._bitmaps
        if plan is None:
            return []
        statistics_of = self._statistics_of(row_group, plan.types)
        prune = self._context.options.prune_row_groups
        found = plan.undecided(statistics_of) if prune else (plan.steps, ())
        if found is None:
            return None
        steps = found[0] if bitmaps is None else bitmaps.remaining(found[0])
        if bitmaps is not None and selected_count(bitmaps.rows(row_group)) == 0:
            self._metrics.rows_removed_by_bitmaps += row_group.num_rows
            return None
        by_value = {i for step in steps for i in step.sources}  # bitmaps tell more than filters of single values
        equated = {i: kind for i, kind in plan.equated_types.items() if i in by_value}
        if prune and self._context.options.use_bloom_filters and equated:
            tests = self._excludes_of(row_group, equated, self._reader.exclusion_test)
            excluded = plan.undecided(statistics_of, tests) is None
            self._count_bloom_filters()
            if excluded:
                self._metrics.row_groups_pruned_by_bloom_filters += 1
                return None
        if prune and self._context.options.prune_dictionaries and equated:
            tests = self._excludes_of(row_group, equated, self._reader.dictionary_test)
            if plan.undecided(statistics_of, tests) is None:
                self._metrics.row_groups_pruned_by_dictionaries += 1
                return None
        return steps

    def _excludes_of(
        self,
        row_group: RowGroup,
        types: Mapping[int, Type],
        test_of: Callable[[RowGroup, int], Callable[[Any], bool] | None],
    ) -> Callable[[int], Callable[[Any], bool] | None]:
        """Tests of single values of the table's types, by field id."""

        def excludes_of(field_id: int) -> Callable[[Any], bool] | None:
            index = self.projection.index_of(field_id)
            if index is None or field_id not in types:
                return None
            if not is_comparable(self._reader.field(index).type, arrow_type(types[field_id])):
                return None
            return test_of(row_group, index)

        return excludes_of

    def _count_bloom_filters(self) -> None:
        counts = self._reader.counts
        self._metrics.bloom_filters_read += counts.bloom_filters_read
        self._metrics.bloom_bytes_read += counts.bloom_bytes_read
        counts.bloom_filters_read = counts.bloom_bytes_read = 0

    def _by_bitmaps(self, row_group: RowGroup, selection: RowSelection) -> RowSelection:
        """The rows of `selection` that stage 1 of the filter keeps."""
        if self._bitmaps is None:
            return selection
        kept = intersect(selection, self._bitmaps.rows(row_group))
        removed = selected_count(selection) - selected_count(kept)
        self._metrics.rows_removed_by_bitmaps += removed
        self._metrics.rows_removed_by_filter += removed
        return kept

    def _within_pages(self, row_group: RowGroup, selection: RowSelection) -> RowSelection:
        """The rows of `selection` in pages that may hold a row which fulfils the predicate."""
        plan = self._predicate
        if plan is None or not self._predicate_paging.is_worthwhile:
            return selection
        stretches = self._stretches(row_group, plan.types)
        if stretches is None:
            return selection
        if not excludes_some(stretches, lambda known: plan.undecided(known) is None):
            self._predicate_paging.record(0, row_group.num_rows)
            return selection
        verdicts = [Match.NEVER if plan.undecided(known) is None else Match.MAYBE for known in stretches.known]
        kept = intersect(selection, stretches.rows(verdicts, Match.MAYBE))
        dropped = selected_count(selection) - selected_count(kept)
        self._predicate_paging.record(dropped, row_group.num_rows)
        self._metrics.rows_removed_by_filter += dropped
        return kept

    def _by_page(
        self, columns: LazyColumns, steps: Sequence[DeleteStep], selection: RowSelection
    ) -> tuple[list[RefineStep], RowSelection]:
        """The delete sets cut to the pages that they may touch, and the rows without pages that they cover."""
        if not self._context.options.prune_deletes:
            return list(steps), selection
        cut: list[RefineStep] = []
        for step in steps:
            paging = self._delete_paging.setdefault(step.key, Paging(self._context.options.prune_pages))
            types = {i: self._key_types[i] for i in step.deletes.key_ids if i in self._key_types}
            known = self._statistics_of(columns.row_group, types)
            is_worthwhile = paging.is_worthwhile and has_gaps(known, types, step.deletes.may_touch)
            stretches = self._stretches(columns.row_group, types) if is_worthwhile else None
            if stretches is None:
                cut.append(step)
                continue
            verdicts = [step.deletes.may_touch(of_page) for of_page in stretches.known]
            touched = stretches.rows(verdicts, Match.MAYBE)
            left = intersect(selection, stretches.rows(verdicts, Match.MAYBE, Match.NEVER))
            self._metrics.rows_removed_by_equality_deletes += selected_count(selection) - selected_count(left)
            paging.record(columns.row_group.num_rows - selected_count(touched), columns.row_group.num_rows)
            selection = left
            if selected_count(touched):
                cut.append(step if isinstance(touched, All) else step.within(touched))
        return cut, selection

    def _stretches(self, row_group: RowGroup, types: Mapping[int, Type]) -> Stretches | None:
        """What the page index tells of these columns."""
        pages: dict[int, PageStatistics] = {}
        for field_id, kind in types.items():
            index = self.projection.index_of(field_id)
            if index is None or (found := self._reader.page_statistics(row_group, index)) is None:
                continue
            file_type = self._reader.field(index).type
            statistics = [table_statistics(s, file_type, kind) for s in found.statistics]
            pages[field_id] = PageStatistics(found.edges, statistics)
        return find_stretches(pages, self._statistics_of(row_group, types)) if pages else None

    def _deletes_that_touch(self, row_group: RowGroup) -> list[DeleteStep] | None:
        """The delete sets that can remove rows of this row group; None if one removes them all."""
        if not self._context.options.prune_deletes:
            return list(self._delete_steps)
        steps: list[DeleteStep] = []
        statistics_of = self._statistics_of(row_group, self._key_types)
        for step in self._delete_steps:
            match step.deletes.may_touch(statistics_of):
                case Match.NEVER:
                    continue
                case Match.ALWAYS:
                    return None
                case Match.MAYBE:
                    steps.append(step)
        return steps

    def _statistics_of(
        self, row_group: RowGroup, types: Mapping[int, Type]
    ) -> Callable[[int], ColumnStatistics | None]:
        """Statistics of columns and struct members by field id, bounds in the types given."""

        def statistics_of(field_id: int) -> ColumnStatistics | None:
            index = self.projection.index_of(field_id)
            if index is None or field_id not in types:
                return None
            found = self._reader.statistics(row_group, index)
            return found and table_statistics(found, self._reader.field(index).type, types[field_id])

        return statistics_of

    def _step_columns(self) -> set[int]:
        sources = [
            s for step in (self._predicate.steps if self._predicate is not None else ()) for s in step.sources.values()
        ]
        sources += [s for step in self._delete_steps for s in step.sources]
        return {index for source in sources for index in file_columns_of(source)}


def _plan_predicate(context: ScanContext, task: FileScanTask, projection: FileProjection) -> "PredicatePlan | None":
    if context.predicate is None:
        return None
    from scan_core.read.predicate_plan import PredicatePlan

    return PredicatePlan(context, task.data_file, projection)


def _open_bitmaps(
    context: ScanContext, task: FileScanTask, predicate: "PredicatePlan | None", metrics: ScanMetrics
) -> "BitmapFilter | None":
    if predicate is None or not task.bitmap_indexes:
        return None
    from scan_core.bitmap_index.filter import open_bitmap_filter

    return open_bitmap_filter(predicate.steps, task, context, metrics)
