"""Which equality-delete sets can remove rows of a row group, and in which of its pages: told before keys are decoded.

What a set holds is asked of `deletes/`; probing it is the business of `row_filter.py`.
"""

from collections.abc import Callable, Mapping, Sequence

from scan_core.metrics import ScanMetrics
from scan_core.options import ScanOptions
from scan_core.prune.domain import believed
from scan_core.prune.match import Match
from scan_core.read.file_reader import ColumnStatistics, ReadCounts, RowGroup
from scan_core.read.file_statistics import FileStatistics
from scan_core.read.page_pruning import Paging, has_gaps
from scan_core.read.predicate_pruning import count_bloom_filters
from scan_core.read.row_filter import DeleteStep, RefineStep
from scan_core.rows.selection import All, RowSelection, intersect, selected_count
from scan_core.schema import Type

_TRIED_ROW_GROUPS = 4
"""Of a file, after which Bloom filters that excluded nothing are not read any more."""


class DeletePruning:
    """The equality deletes of one data file.

    Args:
        steps: one per delete set.
        statistics: of the file.
        types: of key columns by field id.
        options: of the scan.
        metrics: counters to add to.
    """

    def __init__(
        self,
        steps: Sequence[DeleteStep],
        statistics: FileStatistics,
        types: Mapping[int, Type],
        options: ScanOptions,
        metrics: ScanMetrics,
    ) -> None:
        self.steps = steps
        self._statistics = statistics
        self._types = types
        self._options = options
        self._metrics = metrics
        self._paging: dict[object, Paging] = {}
        self._asked: dict[object, tuple[int, int]] = {}

    def statistics_of(self, row_group: RowGroup) -> Callable[[int], ColumnStatistics | None] | None:
        """Of key columns; None where deletes are not to be pruned."""
        return self._statistics.of(row_group, self._types) if self._options.prune_deletes else None

    def that_touch(self, row_group: RowGroup, counts: ReadCounts) -> list[DeleteStep] | None:
        """The delete sets that can remove rows of this row group; None if one removes them all.

        Args:
            row_group: of the file.
            counts: of its reader, which say what was read to tell.
        """
        if not self._options.prune_deletes:
            return list(self.steps)
        found: list[DeleteStep] = []
        statistics_of = self._statistics.of(row_group, self._types)
        for step in self.steps:
            match step.deletes.may_touch(statistics_of):
                case Match.NEVER:
                    continue
                case Match.ALWAYS:
                    return None
                case Match.MAYBE:
                    if not self._is_excluded_by_bloom_filter(step, row_group, counts):
                        found.append(step)
        return found

    def _is_excluded_by_bloom_filter(self, step: DeleteStep, row_group: RowGroup, counts: ReadCounts) -> bool:
        """Whether the values of one key column, few within the row group's bounds, are all in no row of it."""
        tried, excluded = self._asked.get(step.key, (0, 0))
        if not self._options.use_bloom_filters or (tried >= _TRIED_ROW_GROUPS and not excluded):
            return False
        statistics_of = self._statistics.of(row_group, self._types)
        tests = self._statistics.bloom_filters(row_group, self._types)
        found, asked = False, False
        for column, field_id in enumerate(step.deletes.key_ids):
            if field_id not in self._types or not self._statistics.has_bloom_filter(row_group, field_id):
                continue
            known = believed(statistics_of(field_id), self._types[field_id])
            values = step.deletes.few_values(column, known)
            if values is None or (test := tests(field_id)) is None:
                continue
            asked = True
            if all(map(test, values)):
                found = True
                break
        count_bloom_filters(self._metrics, counts)
        if asked:
            self._asked[step.key] = tried + 1, excluded + found
            self._metrics.delete_probes_spared_by_bloom_filters += found
        return found

    def by_page(
        self, row_group: RowGroup, steps: Sequence[DeleteStep], selection: RowSelection
    ) -> tuple[list[RefineStep], RowSelection]:
        """The delete sets cut to the pages that they may touch, and the rows without pages that they cover."""
        if not self._options.prune_deletes:
            return list(steps), selection
        cut: list[RefineStep] = []
        for step in steps:
            paging = self._paging.setdefault(step.key, Paging(self._options.prune_pages))
            types = {i: self._types[i] for i in step.deletes.key_ids if i in self._types}
            known = self._statistics.of(row_group, types)
            is_worthwhile = paging.is_worthwhile and has_gaps(known, types, step.deletes.may_touch)
            stretches = self._statistics.stretches(row_group, types) if is_worthwhile else None
            if stretches is None:
                cut.append(step)
                continue
            verdicts = [step.deletes.may_touch(of_page) for of_page in stretches.known]
            touched = stretches.rows(verdicts, Match.MAYBE)
            left = intersect(selection, stretches.rows(verdicts, Match.MAYBE, Match.NEVER))
            self._metrics.rows_removed_by_equality_deletes += selected_count(selection) - selected_count(left)
            paging.record(row_group.num_rows - selected_count(touched), row_group.num_rows)
            selection = left
            if selected_count(touched):
                cut.append(step if isinstance(touched, All) else step.within(touched))
        return cut, selection
