"""What predicate and runtime filters exclude before values are looked at: row groups, rows that bitmaps drop, pages.

What bounds prove is the business of `prune/` and `runtime_filter/`; what stays open is judged row by row, conjuncts in
`predicate_step.py`.
"""

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from scan_core.metrics import ScanMetrics
from scan_core.prune.match import Match
from scan_core.read.file_reader import ReadCounts, RowGroup
from scan_core.read.file_statistics import FileStatistics
from scan_core.read.page_pruning import Paging, excludes_some
from scan_core.read.projection import FileProjection
from scan_core.read.row_filter import RefineStep, ValueSource
from scan_core.rows.selection import RowSelection, intersect, selected_count
from scan_core.split import FileScanTask, ScanContext

if TYPE_CHECKING:
    from scan_core.bitmap_index.filter import BitmapFilter
    from scan_core.read.predicate_plan import PredicatePlan
    from scan_core.runtime_filter.task_filters import TaskFilters


class PredicatePruning:
    """The predicate of a scan in one data file; without a predicate nothing is excluded."""

    def __init__(
        self,
        task: FileScanTask,
        context: ScanContext,
        metrics: ScanMetrics,
        projection: FileProjection,
        statistics: FileStatistics,
    ) -> None:
        self._options = context.options
        self._metrics = metrics
        self._statistics = statistics
        self._plan = _plan_predicate(context, task, projection)
        self._bitmaps = _open_bitmaps(context, task, self._plan, metrics)
        self._paging = Paging(context.options.prune_pages)
        self._filters = _open_filters(context, task, projection, statistics, metrics)

    @property
    def sources(self) -> Sequence[ValueSource]:
        """Where the columns of all conjuncts and runtime filters come from."""
        of_plan = () if self._plan is None else [s for step in self._plan.steps for s in step.sources.values()]
        return of_plan if self._filters is None else [*of_plan, *self._filters.sources]

    @property
    def looks_at_pages(self) -> bool:
        """Whether pages may be excluded even where no conjunct is open."""
        return self._filters is not None

    def excludes_all(self, row_groups: Iterable[RowGroup], counts: ReadCounts) -> bool:
        """Whether runtime filters exclude all of these row groups: then no delete matters."""
        return self._filters is not None and self._filters.exclude_all(row_groups, counts)

    def undecided(self, row_group: RowGroup, counts: ReadCounts) -> Sequence[RefineStep] | None:
        """The conjuncts and runtime filters that may drop some row of a row group; None if one of them drops all.

        Args:
            row_group: of the file.
            counts: of its reader, which say what was read to tell.
        """
        found = self._undecided_conjuncts(row_group, counts)
        if found is None or self._filters is None:
            return found
        more = self._filters.undecided(row_group, counts)
        if more is None:
            self._metrics.row_groups_pruned_by_runtime_filters += 1
            self._metrics.rows_removed_by_runtime_filters += row_group.num_rows
        return None if more is None else [*found, *more]

    def _undecided_conjuncts(self, row_group: RowGroup, counts: ReadCounts) -> Sequence[RefineStep] | None:
        plan, bitmaps, options = self._plan, self._bitmaps, self._options
        if plan is None:
            return []
        statistics_of = self._statistics.of(row_group, plan.types)
        found = plan.undecided(statistics_of) if options.prune_row_groups else (plan.steps, ())
        if found is None:
            return None
        steps = found[0] if bitmaps is None else bitmaps.remaining(found[0])
        if bitmaps is not None and selected_count(bitmaps.rows(row_group)) == 0:
            self._metrics.rows_removed_by_bitmaps += row_group.num_rows
            return None
        by_value = {i for step in steps for i in step.sources}  # bitmaps tell more than filters of single values
        equated = {i: kind for i, kind in plan.equated_types.items() if i in by_value}
        if options.prune_row_groups and options.use_bloom_filters and equated:
            excluded = plan.undecided(statistics_of, self._statistics.bloom_filters(row_group, equated)) is None
            count_bloom_filters(self._metrics, counts)
            if excluded:
                self._metrics.row_groups_pruned_by_bloom_filters += 1
                return None
        if options.prune_row_groups and options.prune_dictionaries and equated:
            excluded = plan.undecided(statistics_of, self._statistics.dictionaries(row_group, equated)) is None
            self._metrics.row_groups_pruned_by_dictionaries += excluded
            if excluded:
                return None
        return steps

    def by_bitmaps(self, row_group: RowGroup, selection: RowSelection) -> RowSelection:
        """The rows of `selection` that stage 1 of the filter keeps, and bitmaps that answer runtime filters."""
        if self._filters is not None:
            selection = self._filters.by_bitmaps(row_group, selection)
        if self._bitmaps is None:
            return selection
        kept = intersect(selection, self._bitmaps.rows(row_group))
        removed = selected_count(selection) - selected_count(kept)
        self._metrics.rows_removed_by_bitmaps += removed
        self._metrics.rows_removed_by_filter += removed
        return kept

    def within_pages(self, row_group: RowGroup, selection: RowSelection) -> RowSelection:
        """The rows of `selection` in pages that may hold a row which fulfils predicate and runtime filters."""
        if self._filters is not None:
            selection = self._filters.within_pages(row_group, selection)
        plan = self._plan
        if plan is None or not self._paging.is_worthwhile:
            return selection
        stretches = self._statistics.stretches(row_group, plan.types)
        if stretches is None:
            return selection
        if not excludes_some(stretches, lambda known: plan.undecided(known) is None):
            self._paging.record(0, row_group.num_rows)
            return selection
        verdicts = [Match.NEVER if plan.undecided(known) is None else Match.MAYBE for known in stretches.known]
        kept = intersect(selection, stretches.rows(verdicts, Match.MAYBE))
        dropped = selected_count(selection) - selected_count(kept)
        self._paging.record(dropped, row_group.num_rows)
        self._metrics.rows_removed_by_filter += dropped
        return kept


def count_bloom_filters(metrics: ScanMetrics, counts: ReadCounts) -> None:
    """Add what was read of Bloom filters."""
    metrics.bloom_filters_read += counts.bloom_filters_read
    metrics.bloom_bytes_read += counts.bloom_bytes_read
    counts.bloom_filters_read = counts.bloom_bytes_read = 0


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


def _open_filters(
    context: ScanContext,
    task: FileScanTask,
    projection: FileProjection,
    statistics: FileStatistics,
    metrics: ScanMetrics,
) -> "TaskFilters | None":
    if not context.runtime_filters:
        return None
    from scan_core.runtime_filter.task_filters import TaskFilters

    return TaskFilters(task, context, metrics, projection, statistics)
