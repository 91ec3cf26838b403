"""One data file of a split, opened: which row groups to read, and which of their rows are alive.

The ladder row group -> Bloom filter -> bitmap -> page -> row is climbed once, in `plan_row_group` and `plan_rows`, for
restrictions of every kind.

Deletes are restrictions, too. Row groups and pages are pruned by comparing their statistics with the delete keys; rows are looked up
in the sets. How sets are loaded and indexed is in `deletes/`, which deletes a file has in `plan/delete_index.py`. For `_deleted` rows
are flagged instead of dropped; for `_delete_file` delete files are tried one at a time, in the order in which they apply, which is
for diagnosis and slower.
"""

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, replace
from functools import partial

import numpy as np
import pyarrow as pa

from nevermore.scan_core.columns.conversion import repeat
from nevermore.scan_core.columns.file_reader import (
    DecodingLimits,
    FileReader,
    Habits,
    MemoryBudget,
    ReadCounts,
    RowGroup,
    StatisticsOf,
)
from nevermore.scan_core.deletes.filter import DeleteFilter, EqualityFilter, open_delete_filter
from nevermore.scan_core.model.cached_property import cached_property
from nevermore.scan_core.model.errors import UnsupportedError
from nevermore.scan_core.model.options import ScanMetrics, ScanOptions
from nevermore.scan_core.model.running import check_running
from nevermore.scan_core.model.schema import Type
from nevermore.scan_core.prune.verdicts import Level, Match, drop_unreliable_bounds
from nevermore.scan_core.read.file_statistics import FileStatistics, PageMatches
from nevermore.scan_core.read.projection import (
    ColumnSource,
    Constant,
    DeadRows,
    FileProjection,
    FromFile,
    LazyColumns,
    keeps_dead_rows,
    names_delete_files,
)
from nevermore.scan_core.read.read_ahead import FilesAhead
from nevermore.scan_core.read.restriction import (
    Adaptivity,
    ByPosition,
    Cause,
    Restriction,
    ValueSource,
    Verdict,
    Worth,
    file_columns_of,
    refine_rows,
    values_of,
)
from nevermore.scan_core.rows.buffers import Mask, release_unused
from nevermore.scan_core.rows.selection import (
    All,
    RowSelection,
    from_ranges,
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


_LEVELS = (Level.ROW_GROUPS, Level.BITMAPS, Level.BLOOM_FILTERS)
"""Levels that decide on whole row groups, cheapest first: bounds are in memory, bitmaps are shared by the file's row groups."""


@dataclass(frozen=True, slots=True)
class Skip:
    """No row is wanted: `by` removes all rows that the restrictions in `before` keep, as found at `level`."""

    by: Restriction
    level: Level
    before: tuple[Restriction, ...]


@dataclass(frozen=True, slots=True)
class Scan:
    """Every row is wanted: no restriction is left to evaluate."""


@dataclass(frozen=True, slots=True, eq=False)
class Select:
    """Rows of `selection` may be wanted: `restrictions` still have to judge them."""

    selection: RowSelection
    restrictions: tuple[Restriction, ...]


AccessPlan = Scan | Select


def plan_row_group(stages: Iterable[Sequence[Restriction]], group: RowGroup) -> Skip | Scan | Select:
    """Ask all restrictions of a stage at one level before the next, costlier one: a single NEVER saves the rest.

    Restrictions that keep every row of the row group are not asked again. A later stage, which may be costly to open,
    is only used if earlier ones keep some rows.
    """
    open_: list[Restriction] = []
    for stage in stages:
        left = list(stage)
        for level in _LEVELS:
            asked, left = left, []
            for restriction in asked:
                match restriction.row_group(group, level):
                    case Match.NEVER:
                        return Skip(restriction, level, (*open_, *asked))
                    case Match.MAYBE:
                        left.append(restriction)
                    case Match.ALWAYS:
                        pass
        open_ += left
    return Select(All(group.num_rows), tuple(open_)) if open_ else Scan()


def plan_rows(plan: AccessPlan, group: RowGroup, within: RowSelection, metrics: ScanMetrics) -> AccessPlan:
    """The rows of `within` that positions and pages keep, and the restrictions that must evaluate values.

    Positions come first: they are exact. Rows are counted as removed by the first restriction that excludes them.
    """
    if isinstance(plan, Scan):
        return plan
    selection = within
    ordered = sorted(plan.restrictions, key=lambda r: r.cause.value)
    # all positions before any page: they are exact, and leave fewer rows for pages to exclude
    for restriction in ordered:
        selection = _cut(selection, restriction.positions(group), restriction, metrics)
    left: list[Restriction] = []
    for restriction in ordered:
        if not selected_count(selection):
            break
        pages = restriction.pages(group)
        selection = _cut(selection, pages.rows(Match.MAYBE, Match.ALWAYS), restriction, metrics)
        touched = pages.rows(Match.MAYBE)  # pages that are ALWAYS kept need no evaluation of values
        if restriction.judges_rows() and selected_count(touched):
            left.append(restriction if isinstance(touched, All) else restriction.within(touched))
    return Select(selection, tuple(left))


def count_skipped(skip: Skip, group: RowGroup, mine: RowSelection, metrics: ScanMetrics) -> None:
    """Add the rows `mine` of a row group that is not read: those that a sample or position deletes exclude, and the others."""
    for restriction in skip.before:
        if restriction.cause.is_first and restriction.cause.value < skip.by.cause.value:
            mine = _cut(mine, restriction.positions(group), restriction, metrics)
    skip.by.cause.count(metrics, selected_count(mine))
    metrics.row_groups_pruned_by_bloom_filters += skip.level is Level.BLOOM_FILTERS
    metrics.rows_removed_by_bitmaps += selected_count(mine) * (skip.level is Level.BITMAPS)


def _cut(selection: RowSelection, kept: RowSelection, restriction: Restriction, metrics: ScanMetrics) -> RowSelection:
    if isinstance(kept, All):
        return selection
    left = intersect(selection, kept)
    removed = selected_count(selection) - selected_count(left)
    restriction.cause.count(metrics, removed)
    if isinstance(restriction, ByPosition) and restriction.is_of_bitmaps:
        metrics.rows_removed_by_bitmaps += removed
    return left


OpenRowGroup = tuple[LazyColumns, AccessPlan]


@contextmanager
def open_task(
    task: FileScanTask,
    context: ScanContext,
    metrics: ScanMetrics,
    adaptivity: Adaptivity,
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
    with nullcontext(ahead) if ahead is not None else FilesAhead(context.options) as known:
        reader = known.open(task, context)
        try:
            projection = FileProjection(
                reader.arrow_schema,
                has_field_ids=reader.has_field_ids,
                context=context,
                file=data_file,
                reader=reader,
            )
            metrics.data_files_read += task.start == 0 and task.row_share[0] == 0
            yield TaskReader(task, context, metrics, adaptivity, reader=reader, ahead=known, projection=projection)
        finally:
            reader.close()


class TaskReader:
    """An open data file with its restrictions; delete files and bitmaps are opened when first needed."""

    def __init__(
        self,
        task: FileScanTask,
        context: ScanContext,
        metrics: ScanMetrics,
        adaptivity: Adaptivity,
        *,
        reader: FileReader,
        ahead: FilesAhead,
        projection: FileProjection,
    ) -> None:
        self._task = task
        self._context = context
        self._metrics = metrics
        self._adaptivity = adaptivity
        self._reader = reader
        self._ahead = ahead
        self._statistics = FileStatistics(reader, projection)
        self._wanted: set[int] = set()
        self._payload: set[int] = set()
        self._limits: DecodingLimits | None = None
        self._cut: tuple[int, Sequence[range] | None] | None = None
        self._keeps_dead_rows = keeps_dead_rows(context)
        self.projection = projection

    def plan_to_read(self, file_columns: Collection[int]) -> None:
        """Columns that will be read, so that metrics can state what deletes and filters save."""
        self._payload.update(file_columns)

    def row_groups(self, limits: DecodingLimits | None = None) -> Iterator[OpenRowGroup]:
        """Row groups of the task that may hold rows of the result, and what to read of them.

        On an object store the bytes of one row group are fetched while that before it is read.

        Args:
            limits: by which `pieces` will be cut, where it is called.
        """
        self._limits = limits
        reader = self._reader
        if self._task.row_share != (0, 1) or not self._ahead.may_expect(reader):
            yield from self._open_row_groups()
            return
        waiting: list[OpenRowGroup] = []
        for columns, plan in self._open_row_groups():
            self._ahead.expect_row_group(reader, columns.row_group, partial(self._guess, columns.row_group, plan))
            yield from waiting
            waiting = [(columns, plan)]
        yield from waiting

    def _guess(self, group: RowGroup, plan: AccessPlan) -> Habits:
        """Columns of which most of a row group will probably be read: those of filters, or of deletes and the result."""
        restrictions = () if isinstance(plan, Scan) else plan.restrictions
        filters = [r for r in restrictions if r.cause in {Cause.PREDICATE, Cause.RUNTIME_FILTER}]
        undecided = (
            restriction
            for restriction in filters or restrictions
            if restriction.file_columns
            and 2 * selected_count(restriction.pages(group).rows(Match.MAYBE)) > group.num_rows
        )
        whole = {
            *(() if filters else self._payload),
            *(i for restriction in undecided for i in restriction.file_columns),
        }
        return Habits(self._named(whole), frozenset(), self._named(self._wanted), self._limits)

    def _named(self, columns: Iterable[int]) -> frozenset[tuple[int, str]]:
        return frozenset((i, self._reader.field(i).name) for i in columns)

    def pieces(self, columns: LazyColumns, budget: MemoryBudget) -> Iterator[tuple[LazyColumns, RowSelection]]:
        """The row group as a whole, or split into row ranges that fit the budget."""
        group, wanted = columns.row_group, sorted(self._wanted)
        mine = self._share(group)
        # a file whose pages are larger than memory allows is read in the windows that its reader can decode
        if (windows := self._windows(group, budget)) is not None:
            release_unused()  # of what reading deletes left
            for number, window in enumerate(windows, 1):
                yield columns.undecoded(window), _within(window, group.num_rows)
                release_unused(number, trims=budget.limits.is_tight)
            return
        if not self._reader.reads_ranges(group, wanted):
            yield columns, _within(mine, group.num_rows)
            return
        if budget.fits(group.num_bytes):  # of small files, asking what their columns take costs more than it can save
            yield columns.undecoded(None), _within(mine, group.num_rows)
            return
        # the decoded size is not known before: begin with the stated size, and correct it by what each piece took
        everything = self._reader.compressed_bytes(group, range(len(self._reader.arrow_schema)))
        share = self._reader.compressed_bytes(group, wanted) / max(everything, 1)
        stated = int(group.num_bytes * share)
        pieces = budget.pieces(len(mine), stated * len(mine) // max(group.num_rows, 1))
        for piece in pieces:
            window = range(mine.start + piece.start, mine.start + piece.stop)
            view = columns.undecoded(window if len(pieces) > 1 else None)
            yield view, _within(window, group.num_rows)
            budget.record(stated * len(window) / group.num_rows, view.num_bytes)

    def _windows(self, group: RowGroup, budget: MemoryBudget) -> Sequence[range] | None:
        """See `FileReader.windows`; those of the last row group are remembered."""
        if self._cut is None or self._cut[0] != group.index:
            found = self._reader.windows(group, sorted(self._wanted), self._share(group), budget.limits)
            self._cut = group.index, found
        return self._cut[1]

    def select(self, columns: LazyColumns, plan: AccessPlan, within: RowSelection | None = None) -> AccessPlan:
        """The plan of a row group, narrowed by positions and pages.

        Args:
            columns: of the row group.
            plan: as `row_groups` yields it.
            within: consider only these rows; by default those of the task.
        """
        group = columns.row_group
        if self._keeps_dead_rows:
            columns.dead = find_dead_rows(
                self._task, self._context, columns, self._delete_restrictions, self._restrict_by
            )
        mine = _within(self._share(group), group.num_rows) if within is None else within
        return plan_rows(plan, group, mine, self._metrics)

    def refine(self, columns: LazyColumns, plan: AccessPlan, within: RowSelection) -> RowSelection:
        """The rows of `within` that are in the result; deleted rows are included, flagged, only if the scan requests them.

        Args:
            columns: of one piece of a row group.
            plan: of the row group, as `select` returns it.
            within: the rows of the piece.
        """
        if isinstance(plan, Scan):
            return within
        selection = intersect(plan.selection, within)
        return refine_rows(plan.restrictions, columns, selection, self._adaptivity, self._metrics)

    def removed_by(self, deletes: DeleteFilter, columns: LazyColumns) -> Mask:
        """Which rows of a row group `deletes`, not the task's own, remove."""
        return removed_by(self._restrict_by(deletes), columns)

    @contextmanager
    def counting(self, columns: LazyColumns) -> Iterator[None]:
        """Context manager that counts the bytes of a row group once it was read or its remaining rows are not needed."""
        try:
            yield
        except GeneratorExit:
            self._count_bytes(columns)
            raise
        self._count_bytes(columns)

    def _count_bytes(self, columns: LazyColumns) -> None:
        """Count the bytes read of a row group, and the bytes of planned columns that were skipped."""
        self._reader.release(columns.row_group)
        self._count_bloom_filters()
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
        self._metrics.bytes_spilled += counts.bytes_spilled
        self._metrics.row_groups_over_memory_limit += counts.over_limit
        if self._limits is None or not self._ahead.may_expect(self._reader):
            bounded = frozenset[tuple[int, str]]()
        else:
            bounded = self._named(self._wanted)
        habits = Habits(self._named(counts.whole), self._named(counts.paged), bounded, self._limits)
        self._ahead.record(habits, counts.bytes_ahead, counts.bytes_in_vain)

    def _open_row_groups(self) -> Iterator[OpenRowGroup]:
        first = self._restrictions()
        is_first = self._task.row_share[0] == 0
        for row_group in self._reader.row_groups:
            check_running()
            if not self._task.owns(row_group.byte_offset):
                continue
            mine = self._share(row_group)
            self._metrics.rows_in_files += len(mine)
            if not mine:
                continue
            plan = plan_row_group(self._stages(first), row_group)
            self._count_bloom_filters()
            if isinstance(plan, Skip):
                self._count_skipped(plan, row_group, mine)
                continue
            self._metrics.row_groups_read += is_first
            yield LazyColumns(self._reader, row_group), plan

    def _stages(self, first: Sequence[Restriction]) -> Iterator[Sequence[Restriction]]:
        """Restrictions in stages, deletes last: unless they were loaded ahead, they are only if the others keep some rows."""
        yield first
        if not self._keeps_dead_rows:
            yield self._delete_restrictions

    @cached_property
    def _delete_restrictions(self) -> Sequence[Restriction]:
        return self._restrict_by(self._ahead.deletes(self._task, self._context, self._metrics))

    def _restrict_by(self, deletes: DeleteFilter) -> Sequence[Restriction]:
        found = restrict_by_deletes(deletes, self._context, self.projection, self._statistics, self._metrics)
        return tuple(found)

    def _restrictions(self) -> Sequence[Restriction]:
        """All restrictions except deletes; also adds the columns that they and delete keys need to the wanted ones."""
        task, context = self._task, self._context
        file = task.data_file
        found: list[Restriction] = []
        sources: list[ValueSource] = [self.projection.leaf(i) for i in _delete_keys(task)]
        if (sample := context.sample) is not None:
            found.append(
                ByPosition(
                    Cause.SAMPLE,
                    Level.ROW_GROUPS,
                    lambda g: sample.rows(file.path, file.record_count, g.first_row_position, g.num_rows),
                )
            )
        if context.predicate is not None:
            from nevermore.scan_core.read.predicate import answer_by_bitmaps, open_conjuncts

            conjuncts = open_conjuncts(context, file, self.projection, self._statistics)
            sources += [source for conjunct in conjuncts for source in conjunct.columns.values()]
            if task.bitmap_indexes:
                found += answer_by_bitmaps(conjuncts, task, context, self._metrics)
            else:
                found += conjuncts
        if context.runtime_filters:
            from nevermore.scan_core.read.key_filter import key_sources, open_key_filters

            sources += key_sources(context, self.projection)
            found += open_key_filters(task, context, self.projection, self._statistics, self._metrics)
        self._wanted = self._payload | {index for source in sources for index in file_columns_of(source)}
        return found

    def _count_bloom_filters(self) -> None:
        counts = self._reader.counts
        self._metrics.bloom_filters_read += counts.bloom_filters_read
        self._metrics.bloom_bytes_read += counts.bloom_bytes_read
        counts.bloom_filters_read = counts.bloom_bytes_read = 0

    def _count_skipped(self, skip: Skip, group: RowGroup, mine: range) -> None:
        """Count a row group without result rows; if all its rows are deleted it counts as read, although nothing is."""
        count_skipped(skip, group, _within(mine, group.num_rows), self._metrics)
        is_first = self._task.row_share[0] == 0
        if skip.by.cause.is_delete:
            self._metrics.row_groups_read += is_first
        else:
            self._metrics.row_groups_pruned += is_first
            self._metrics.row_groups_pruned_by_runtime_filters += is_first * (skip.by.cause is Cause.RUNTIME_FILTER)
        if skip.by.cause is not Cause.SAMPLE:
            num_bytes = self._reader.compressed_bytes(group, sorted(self._wanted))
            self._metrics.bytes_skipped += num_bytes * len(mine) // group.num_rows

    def _share(self, row_group: RowGroup) -> range:
        """The task's rows of a row group; if a row group cannot be read in parts, the first task reads all of it."""
        number, of = self._task.row_share
        if of > 1 and not self._reader.reads_apart(row_group, sorted(self._wanted)):
            return range(row_group.num_rows if number == 0 else 0)
        return self._task.rows_of(row_group.num_rows)


def _delete_keys(task: FileScanTask) -> Iterator[int]:
    """Ids of the key columns of all equality deletes that apply to the file."""
    for group in task.equality_deletes:
        if group.max_sequence_number > task.data_file.data_sequence_number:
            yield from group.key_ids


def _within(rows: range, num_rows: int) -> RowSelection:
    return All(num_rows) if len(rows) == num_rows else from_ranges([(rows.start, rows.stop)], num_rows)
