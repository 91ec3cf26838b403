"""The runtime filters of a scan in one open data file: which row groups, pages and rows they exclude.

Everything is decided per row group once, by statistics, then by what costs a read (Bloom filters, dictionaries), and only
as long as it pays (`worth.py`). Rows of row groups in which every value is a key are not looked at.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from scan_core.metrics import ScanMetrics
from scan_core.native.compiled import may_use_numba
from scan_core.prune.match import Match
from scan_core.read.file_reader import ReadCounts, RowGroup
from scan_core.read.file_statistics import FileStatistics
from scan_core.read.page_pruning import Paging, excludes_some
from scan_core.read.predicate_pruning import count_bloom_filters
from scan_core.read.projection import FileProjection
from scan_core.read.row_filter import RefineStep, ValueSource
from scan_core.rows.selection import RowSelection, intersect, selected_count
from scan_core.runtime_filter.filter_bitmaps import open_key_bitmaps
from scan_core.runtime_filter.filter_step import RuntimeFilterStep
from scan_core.runtime_filter.key_ranges import KeyRanges
from scan_core.runtime_filter.key_set import KeyLookup
from scan_core.runtime_filter.request import Level, RuntimeFilter
from scan_core.runtime_filter.row_groups import StatisticsOf, excluded_by_test, match_lookup, match_ranges
from scan_core.runtime_filter.worth import RUNS, Run
from scan_core.split import FileScanTask, ScanContext

if TYPE_CHECKING:
    from scan_core.bitmap_index.filter import BitmapFilter


@dataclass(slots=True, eq=False)
class _Filter:
    """One filter with what it needs in this file; `lookup` is None for ranges, which exclude no single rows."""

    filter: RuntimeFilter
    lookup: KeyLookup | None
    ranges: KeyRanges | None
    sources: Sequence[ValueSource]
    step: RuntimeFilterStep | None
    run: Run
    bitmaps: "BitmapFilter | None"
    paging: Paging

    def match(self, statistics_of: StatisticsOf) -> Match:
        """What statistics say of all rows so described."""
        if self.lookup is not None:
            return match_lookup(self.lookup, statistics_of)
        return Match.MAYBE if self.ranges is None else match_ranges(self.ranges, statistics_of)


class TaskFilters:
    """All runtime filters whose keys are known when the file is opened."""

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
        self._types = {f.field_id: f.type for r in context.runtime_filters for f in r.fields}
        self._verdicts: dict[int, tuple[Match, ...]] = {}
        self._sources = [
            projection.leaf(f.field_id, f.type)
            for filter_ in context.runtime_filters
            if _judges_rows(filter_, context)
            for f in filter_.fields
        ]
        self._filters = [
            found
            for number, filter_ in enumerate(context.runtime_filters)
            if (found := self._open(number, filter_, task, context, projection)) is not None
        ]

    @property
    def sources(self) -> Sequence[ValueSource]:
        """Where the key columns come from that rows are judged by, once their keys are known.

        All tasks that share a row group tell the same, whenever late keys come: by it they part the rows.
        """
        return self._sources

    def exclude_all(self, row_groups: Iterable[RowGroup], counts: ReadCounts) -> bool:
        """Whether no row group holds a row of the result, by one of the filters: then no delete needs to be loaded."""
        return bool(self._filters) and all(self.undecided(group, counts) is None for group in row_groups)

    def undecided(self, row_group: RowGroup, counts: ReadCounts) -> Sequence[RefineStep] | None:
        """The filters that may exclude some row of a row group; None if one of them excludes all."""
        if row_group.index not in self._verdicts:
            self._verdicts[row_group.index] = tuple(self._verdict(f, row_group, counts) for f in self._filters)
        verdicts = self._verdicts[row_group.index]
        if Match.NEVER in verdicts:
            return None
        return [
            f.step
            for f, verdict in zip(self._filters, verdicts, strict=True)
            if verdict is Match.MAYBE and f.step is not None and not self._is_answered(f) and self._wants_rows(f)
        ]

    def by_bitmaps(self, row_group: RowGroup, selection: RowSelection) -> RowSelection:
        """The rows of `selection` that bitmap indexes keep."""
        for f in self._filters:
            if f.bitmaps is not None:
                kept = intersect(selection, f.bitmaps.rows(row_group))
                removed = selected_count(selection) - selected_count(kept)
                self._metrics.rows_removed_by_bitmaps += removed
                self._count_removed(removed)
                selection = kept
        return selection

    def within_pages(self, row_group: RowGroup, selection: RowSelection) -> RowSelection:
        """The rows of `selection` in pages that may hold a key."""
        for number, f in enumerate(self._filters):
            is_open = self._verdicts.get(row_group.index, ())[number : number + 1] == (Match.MAYBE,)
            if not is_open or not self._options.use_runtime_filters or not f.paging.is_worthwhile:
                continue
            if self._is_answered(f) or not f.run.is_on(Level.PAGES, adaptive=self._adapts):
                continue
            selection = self._by_page(f, row_group, selection)
        return selection

    @property
    def _adapts(self) -> bool:
        return self._options.adaptive_runtime_filters

    @staticmethod
    def _is_answered(f: _Filter) -> bool:
        return f.bitmaps is not None

    def _wants_rows(self, f: _Filter) -> bool:
        return f.filter.is_exact or f.run.is_on(Level.ROWS, adaptive=self._adapts)

    def _count_removed(self, removed: int) -> None:
        self._metrics.rows_removed_by_filter += removed
        self._metrics.rows_removed_by_runtime_filters += removed

    def _by_page(self, f: _Filter, row_group: RowGroup, selection: RowSelection) -> RowSelection:
        stretches = self._statistics.stretches(row_group, {k.field_id: k.type for k in f.filter.fields})
        if stretches is None:
            return selection
        kept = selection
        if excludes_some(stretches, lambda known: f.match(known) is Match.NEVER):
            verdicts = [f.match(known) for known in stretches.known]
            kept = intersect(selection, stretches.rows(verdicts, Match.MAYBE, Match.ALWAYS))
        dropped = selected_count(selection) - selected_count(kept)
        f.paging.record(dropped, row_group.num_rows)
        f.run.record(Level.PAGES, row_group.num_rows, dropped, self._metrics)
        self._count_removed(dropped)
        return kept

    def _verdict(self, f: _Filter, row_group: RowGroup, counts: ReadCounts) -> Match:
        options, types = self._options, {k.field_id: self._types[k.field_id] for k in f.filter.fields}
        if f.bitmaps is not None and selected_count(f.bitmaps.rows(row_group)) == 0:
            self._metrics.rows_removed_by_bitmaps += row_group.num_rows
            return Match.NEVER
        if not options.use_runtime_filters or not options.prune_row_groups:
            return Match.MAYBE
        statistics_of = self._statistics.of(row_group, types)
        if f.run.is_on(Level.ROW_GROUPS, adaptive=self._adapts):
            verdict = f.match(statistics_of)
            f.run.record(
                Level.ROW_GROUPS, row_group.num_rows, row_group.num_rows * (verdict is Match.NEVER), self._metrics
            )
            if verdict is not Match.MAYBE:
                return verdict
        if f.lookup is None or f.bitmaps is not None:
            return Match.MAYBE
        if options.use_bloom_filters and f.run.is_on(Level.BLOOM_FILTERS, adaptive=self._adapts):
            tests = self._statistics.bloom_filters(row_group, types)
            excluded = excluded_by_test(f.lookup, statistics_of, tests)
            count_bloom_filters(self._metrics, counts)
            if self._tested(f, Level.BLOOM_FILTERS, row_group, excluded=excluded):
                self._metrics.row_groups_pruned_by_bloom_filters += 1
                return Match.NEVER
        if options.prune_dictionaries and f.run.is_on(Level.DICTIONARIES, adaptive=self._adapts):
            tests = self._statistics.dictionaries(row_group, types)
            excluded = excluded_by_test(f.lookup, statistics_of, tests)
            if self._tested(f, Level.DICTIONARIES, row_group, excluded=excluded):
                self._metrics.row_groups_pruned_by_dictionaries += 1
                return Match.NEVER
        return Match.MAYBE

    def _tested(self, f: _Filter, level: Level, row_group: RowGroup, *, excluded: bool | None) -> bool:
        """Remember what a test said, None if there was none to ask."""
        if excluded is not None:
            f.run.record(level, row_group.num_rows, row_group.num_rows * excluded, self._metrics)
        return excluded is True

    def _open(
        self,
        number: int,
        filter_: RuntimeFilter,
        task: FileScanTask,
        context: ScanContext,
        projection: FileProjection,
    ) -> _Filter | None:
        keys = filter_.newest()
        if keys is None:
            return None
        if not _is_used(filter_, context):
            return None
        run, paging = RUNS.of(filter_.decision), Paging(context.options.prune_pages)
        sources = [projection.leaf(f.field_id, f.type) for f in filter_.fields]
        if isinstance(keys, KeyRanges):
            return _Filter(filter_, None, keys, sources, None, run, None, paging)
        lookup = keys.lookup(context.options)
        step = RuntimeFilterStep(lookup, sources, run, self._metrics, number, may_use_numba(context.options))
        bitmaps = None
        if context.options.use_runtime_filters and run.is_on(Level.BITMAPS, adaptive=False):
            bitmaps = open_key_bitmaps(lookup, sources, task, context, self._metrics)
        return _Filter(filter_, lookup, None, sources, step, run, bitmaps, paging)


def _is_used(filter_: RuntimeFilter, context: ScanContext) -> bool:
    return filter_.is_exact or context.options.use_runtime_filters


def _judges_rows(filter_: RuntimeFilter, context: ScanContext) -> bool:
    """Whether it tells of single rows, now or when its keys arrive: ranges do not."""
    return _is_used(filter_, context) and not isinstance(filter_.keys, KeyRanges)
