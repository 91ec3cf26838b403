"""Deletes applied to one data file: position deletes and sets of equality deletes as restrictions, and dead rows flagged.

Row groups and pages are pruned here by comparing their statistics with the delete keys; rows are looked up in the sets. How
sets are loaded and indexed is in `deletes/`, which deletes a file has in `plan/delete_index.py`. For `_deleted` rows are flagged instead of dropped; for `_delete_file`
delete files are tried one at a time, in the order in which they apply, which is for diagnosis and slower.
"""

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import pyarrow as pa

from nevermore.scan_core.columns.conversion import repeat
from nevermore.scan_core.columns.file_reader import RowGroup, StatisticsOf
from nevermore.scan_core.deletes.filter import DeleteFilter, EqualityFilter, open_delete_filter
from nevermore.scan_core.model.metrics import ScanMetrics
from nevermore.scan_core.model.options import ScanOptions
from nevermore.scan_core.model.schema import Type
from nevermore.scan_core.prune.domains import drop_unreliable_bounds
from nevermore.scan_core.prune.verdicts import Level, Match
from nevermore.scan_core.read.file_statistics import FileStatistics, PageMatches
from nevermore.scan_core.read.lazy import DeadRows, LazyColumns
from nevermore.scan_core.read.order import Worth
from nevermore.scan_core.read.projection import ColumnSource, Constant, FileProjection, FromFile, names_delete_files
from nevermore.scan_core.read.restriction import ByPosition, Cause, Restriction, Verdict, values_of
from nevermore.scan_core.rows.buffers import Mask
from nevermore.scan_core.rows.selection import (
    All,
    RowSelection,
    intersect,
    relative,
    select_rows,
    selected_count,
    to_mask,
)
from nevermore.scan_core.split.tasks import FileScanTask, ScanContext

_MAX_COPIED_SHARE = 0.5
"""Above this share of rows, keys are read for all rows: other restrictions or the result may need them."""
_KEPT = {Match.NEVER: Match.ALWAYS, Match.MAYBE: Match.MAYBE, Match.ALWAYS: Match.NEVER}
"""What a restriction keeps, by which rows the delete set removes."""


@dataclass(frozen=True, slots=True, eq=False)
class DeleteSet(Restriction):
    """One set of equality deletes.

    Attributes:
        types: of its key columns that are top-level, by field id.
        touched: the rows of a row group that it may remove, if it is known that it removes no others: keys of those are
            not decoded.
    """

    deletes: EqualityFilter
    sources: Sequence[ColumnSource]
    types: Mapping[int, Type]
    statistics: FileStatistics
    options: ScanOptions
    metrics: ScanMetrics
    worth: Worth
    touched: RowSelection | None = None

    @property
    def cause(self) -> Cause:
        """Why rows are removed."""
        return Cause.EQUALITY_DELETES

    @property
    def key(self) -> object:
        """Its key columns."""
        return ("deletes", self.deletes.key_ids)

    @property
    def first_guess(self) -> float:
        """A cost after those of conjuncts, which usually let fewer rows pass."""
        return 16.0 * len(self.sources)

    @property
    def file_columns(self) -> Collection[int]:
        """The key columns."""
        return {source.index for source in self.sources if isinstance(source, FromFile)}

    def row_group(self, group: RowGroup, level: Level) -> Match:
        """Decide by bounds and, if few keys lie within them, by looking up each key in Bloom filters."""
        if not self.options.switches.prune_deletes:
            return Match.MAYBE
        if level is Level.ROW_GROUPS:
            return self._match(self.statistics.of(group, self.types))
        if level is Level.BLOOM_FILTERS and self.options.switches.use_bloom_filters:
            return Match.ALWAYS if self._is_excluded_by_bloom_filter(group) else Match.MAYBE
        return Match.MAYBE

    def pages(self, group: RowGroup) -> PageMatches:
        """Decide by page bounds."""
        unknown = PageMatches.unknown(group.num_rows)
        options = self.options
        if not options.switches.prune_deletes or not options.switches.prune_pages or not self.worth.is_on(Level.PAGES):
            return unknown
        stretches = self.statistics.stretches(group, self.types)
        if stretches is None:
            return unknown
        found = stretches.match_if_worthwhile(self._match)
        self.worth.record(Level.PAGES, group.num_rows, group.num_rows - selected_count(found.rows(Match.MAYBE)))
        return found

    def within(self, rows: RowSelection) -> Restriction:
        """The same deletes, probed only for these rows of a row group."""
        return replace(self, touched=rows)

    def rows(self, columns: LazyColumns, selection: RowSelection) -> Verdict:
        """A row stays if its key is not deleted."""
        if all(isinstance(source, Constant) for source in self.sources):  # every row of the file has the same key
            keys = [repeat(source.value, 1) for source in self.sources if isinstance(source, Constant)]
            return Verdict(np.full(selected_count(selection), bool(self.deletes.keep(keys)[0])))
        if self.touched is None:
            return Verdict(self.deletes.keep(self.keys_of(columns, selection)))
        probed = intersect(selection, self.touched)
        stays: Mask = np.ones(selected_count(selection), np.bool_)
        if selected_count(probed) == 0:
            return Verdict(stays)
        is_few = selected_count(probed) < _MAX_COPIED_SHARE * selected_count(selection)
        view, cut = (columns.copy(), All(selected_count(probed))) if is_few else (columns, relative(probed, selection))
        keys = self.keys_of(view, probed if is_few else selection)
        read = iter(select_rows([key for key in keys if key is not None], cut))
        stays[to_mask(relative(probed, selection))] = self.deletes.keep(
            [None if key is None else next(read) for key in keys]
        )
        return Verdict(stays)

    def keys_of(self, columns: LazyColumns, selection: RowSelection) -> list[pa.Array | None]:
        """The key columns of the rows of `selection`, all read at once; None where statistics prove the value."""
        proven = self._proven(columns.row_group)
        sources = [source for place, source in enumerate(self.sources) if place not in proven]
        columns.load([source.index for source in sources if isinstance(source, FromFile)], selection)
        found = iter([values_of(source, columns, selection) for source in sources])
        return [None if place in proven else next(found) for place in range(len(self.sources))]

    def _proven(self, group: RowGroup) -> set[int]:
        """Key columns that hold one value in all delete keys, and the same in all rows of a row group."""
        if not self.options.switches.prune_deletes:
            return set()
        statistics_of = self.statistics.of(group, self.types)
        return {
            place
            for place, field_id in enumerate(self.deletes.key_ids)
            if field_id in self.types
            and self.deletes.is_proven(place, drop_unreliable_bounds(statistics_of(field_id), self.types[field_id]))
        }

    def _match(self, statistics_of: StatisticsOf) -> Match:
        return _KEPT[self.deletes.may_touch(statistics_of)]

    def _is_excluded_by_bloom_filter(self, group: RowGroup) -> bool:
        """Whether Bloom filters exclude every value of one key column that lies within the row group's bounds."""
        if not self.worth.is_on(Level.BLOOM_FILTERS):
            return False
        statistics_of = self.statistics.of(group, self.types)
        tests = self.statistics.bloom_filters(group, self.types)
        was_asked = False
        for column, field_id in enumerate(self.deletes.key_ids):
            if field_id not in self.types or not self.statistics.has_bloom_filter(group, field_id):
                continue
            known = drop_unreliable_bounds(statistics_of(field_id), self.types[field_id])
            values = self.deletes.few_values(column, known)
            if values is None or (test := tests(field_id)) is None:
                continue
            was_asked = True
            if all(map(test, values)):
                self.worth.record(Level.BLOOM_FILTERS, 1, 1)
                self.metrics.delete_probes_spared_by_bloom_filters += 1
                return True
        if was_asked:
            self.worth.record(Level.BLOOM_FILTERS, 1, 0)
        return False


def restrict_by_deletes(
    deletes: DeleteFilter,
    context: ScanContext,
    projection: FileProjection,
    statistics: FileStatistics,
    metrics: ScanMetrics,
) -> Iterator[Restriction]:
    """All deletes of one task as restrictions."""
    if deletes.positions:
        yield ByPosition(
            Cause.POSITION_DELETES,
            Level.ROW_GROUPS,
            lambda group: deletes.position_selection(group.first_row_position, group.num_rows),
        )
    paths = context.field_paths
    for found in deletes.equality:
        types = {i: paths[i][0].type for i in found.key_ids if len(paths.get(i, ())) == 1}
        sources = [projection.leaf(i) for i in found.key_ids]
        yield DeleteSet(found, sources, types, statistics, context.options, metrics, Worth.in_file())


def find_dead_rows(
    task: FileScanTask,
    context: ScanContext,
    columns: LazyColumns,
    deletes: Iterable[Restriction],
    restrict: Callable[[DeleteFilter], Iterable[Restriction]],
) -> DeadRows:
    """Rows of a row group that `deletes` remove, and why if the scan requests it: `restrict` opens those of one file."""
    flags = removed_by(deletes, columns)
    if not names_delete_files(context):
        return DeadRows(flags, None)
    paths: list[str] = []
    codes = np.full(len(flags), -1, np.int32)
    for path, single in _one_at_a_time(task):
        hit = removed_by(restrict(open_delete_filter(single, context, ScanMetrics())), columns) & (codes < 0)
        if hit.any():
            codes[hit] = len(paths)
            paths.append(path)
    indices = pa.array(codes, mask=codes < 0)
    return DeadRows(flags, pa.DictionaryArray.from_arrays(indices, pa.array(paths, pa.string())).cast(pa.string()))


def removed_by(deletes: Iterable[Restriction], columns: LazyColumns) -> Mask:
    """Which rows of a row group these deletes remove; keys that bounds, Bloom filters and pages exclude are not read."""
    group = columns.row_group
    dead: Mask = np.zeros(group.num_rows, np.bool_)
    for restriction in deletes:
        verdicts = (restriction.row_group(group, level) for level in (Level.ROW_GROUPS, Level.BLOOM_FILTERS))
        match next((verdict for verdict in verdicts if verdict is not Match.MAYBE), Match.MAYBE):
            case Match.NEVER:
                dead[:] = True
            case Match.MAYBE:
                dead |= ~to_mask(restriction.positions(group))
                dead |= _removed_by_values(restriction, columns)
            case Match.ALWAYS:
                pass
        if dead.all():
            break
    return dead


def _removed_by_values(restriction: Restriction, columns: LazyColumns) -> Mask:
    """Rows that page statistics or key values prove to be removed; values are read only where pages are undecided."""
    group = columns.row_group
    pages = restriction.pages(group)
    touched = pages.rows(Match.MAYBE)
    dead = to_mask(pages.rows(Match.NEVER))
    if restriction.judges_rows() and selected_count(touched):
        probe = restriction if isinstance(touched, All) else restriction.within(touched)
        dead = dead | ~probe.rows(columns, All(group.num_rows)).keep
    return dead


def _one_at_a_time(task: FileScanTask) -> Iterator[tuple[str, FileScanTask]]:
    """The task with a single delete file, for each that may touch it; position deletes first, then by age."""
    if task.deletion_vector is not None:
        yield task.deletion_vector.path, task.with_deletes(vector=task.deletion_vector)
    for file in sorted(task.position_deletes, key=lambda f: f.data_sequence_number):
        yield file.path, task.with_deletes(positions=(file,))
    singles = [(file, group) for group in task.equality_deletes for file in group.files]
    for file, group in sorted(singles, key=lambda pair: pair[0].data_sequence_number):
        yield file.path, task.with_deletes(equality=(replace(group, files=(file,), covered_by=()),))
