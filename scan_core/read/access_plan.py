"""AccessPlan: what to read of one row group, folded from what every restriction says of it, of its pages and positions.

The ladder from row group to page stands here alone. What a level proves is known to the restrictions; rows that need their
values are judged by `restriction.refine_rows`.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from scan_core.columns.file_reader import RowGroup
from scan_core.model.metrics import ScanMetrics
from scan_core.prune.verdicts import Level, Match
from scan_core.read.restriction import ByPosition, Restriction
from scan_core.rows.selection import All, RowSelection, intersect, selected_count

_LEVELS = (Level.ROW_GROUPS, Level.BITMAPS, Level.BLOOM_FILTERS, Level.DICTIONARIES)
"""Of whole row groups, the cheapest first: bounds are in memory, bitmaps are shared by all row groups of the file."""


@dataclass(frozen=True, slots=True)
class Skip:
    """No row is wanted: `by` removes what the restrictions `before` it leave; `level` is where that was told."""

    by: Restriction
    level: Level
    before: tuple[Restriction, ...]


@dataclass(frozen=True, slots=True)
class Scan:
    """Every row is wanted: nothing is left to ask."""


@dataclass(frozen=True, slots=True, eq=False)
class Select:
    """Rows of `selection` may be wanted: `restrictions` are still to be asked about them."""

    selection: RowSelection
    restrictions: tuple[Restriction, ...]


AccessPlan = Scan | Select


def plan_row_group(stages: Iterable[Sequence[Restriction]], group: RowGroup) -> Skip | Scan | Select:
    """Ask all restrictions of a stage at one level before the next, dearer one: a single NEVER spares what is above.

    Restrictions that keep every row of the row group are not asked again. A later stage, which may cost to open, is
    taken only if those before it leave something.
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
    """The rows of `within` that positions and pages leave, and the restrictions that must look at values.

    Positions come first: they are exact. Rows are counted as removed by the first restriction that excludes them.
    """
    if isinstance(plan, Scan):
        return plan
    selection = within
    ordered = sorted(plan.restrictions, key=lambda r: r.cause.value)
    for restriction in ordered:
        selection = _cut(selection, restriction.positions(group), restriction, metrics)
    left: list[Restriction] = []
    for restriction in ordered:
        if not selected_count(selection):
            break
        pages = restriction.pages(group)
        selection = _cut(selection, pages.rows(Match.MAYBE, Match.ALWAYS), restriction, metrics)
        touched = pages.rows(Match.MAYBE)
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
    metrics.row_groups_pruned_by_dictionaries += skip.level is Level.DICTIONARIES
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
