"""Rows of a row group that pages' statistics do not exclude: a column index against a predicate.

Pages of different columns begin at different rows: conjuncts are decided between each two page starts of the columns
they read. Where the index lies and how it is decoded is the business of `read/`.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from scan_core.expr.bound import BoundExpr
from scan_core.expr.nodes import BoundPredicate, leaf_ids
from scan_core.prune.bounds import match_facts
from scan_core.prune.domain import Domain, of_statistics, unknown
from scan_core.prune.match import Match
from scan_core.read.file_reader import ColumnStatistics
from scan_core.rows.selection import All, Ranges, RowSelection
from scan_core.schema import Type

MAX_STRETCHES = 20_000
"""Deciding more stretches of rows than this takes longer than reading them."""


@dataclass(frozen=True, slots=True, eq=False)
class Pages:
    """The pages of one column in a row group.

    Attributes:
        first_rows: where each page begins, and at the end the number of rows.
        statistics: of each page, bounds in the table's type.
    """

    first_rows: npt.NDArray[np.int64]
    statistics: Sequence[ColumnStatistics]


def match_pages(predicate: BoundPredicate, pages_of: Callable[[int], Pages | None], num_rows: int) -> RowSelection:
    """The rows of a row group that may fulfil the predicate.

    Args:
        predicate: bound to the schema in force.
        pages_of: pages of a column or struct member by field id; None where no column index is known.
        num_rows: rows of the row group.
    """
    alive = np.array([[0, num_rows]], dtype=np.int64)
    for conjunct in predicate.conjuncts:
        kept = _stretches(conjunct, pages_of, num_rows)
        if kept is not None:
            alive = _intersection(alive, kept)
    if len(alive) == 1 and alive[0, 0] == 0 and alive[0, 1] == num_rows:
        return All(num_rows)
    return Ranges(np.ascontiguousarray(alive[:, 0]), np.ascontiguousarray(alive[:, 1]), num_rows)


def _stretches(
    conjunct: BoundExpr, pages_of: Callable[[int], Pages | None], num_rows: int
) -> npt.NDArray[np.int64] | None:
    """Starts and ends of the stretches that one conjunct may keep; None if it says nothing."""
    known = {field_id: pages for field_id in leaf_ids(conjunct) if (pages := pages_of(field_id)) is not None}
    if not known:
        return None
    starts = np.unique(np.concatenate([p.first_rows[:-1] for p in known.values()]))
    if len(starts) > MAX_STRETCHES:
        return None
    places = {i: np.searchsorted(p.first_rows, starts, side="right") - 1 for i, p in known.items()}
    keep = np.array([_may_match(conjunct, known, places, k) for k in range(len(starts))], dtype=np.bool_)
    edges = np.flatnonzero(np.diff(np.concatenate(([False], keep, [False])).astype(np.int8)))
    limits = np.append(starts, num_rows)
    return limits[edges].reshape(-1, 2)


def _may_match(
    conjunct: BoundExpr, known: dict[int, Pages], places: dict[int, npt.NDArray[np.intp]], stretch: int
) -> bool:
    def facts(field_id: int, type_: Type) -> Domain:
        pages = known.get(field_id)
        return unknown(type_) if pages is None else of_statistics(pages.statistics[places[field_id][stretch]], type_)

    return match_facts(conjunct, facts) is not Match.NEVER


def _intersection(left: npt.NDArray[np.int64], right: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    """Rows in both of two lists of sorted, disjoint stretches."""
    points = np.unique(np.concatenate((left.ravel(), right.ravel())))
    if len(points) < 2:
        return np.empty((0, 2), dtype=np.int64)
    inside = np.ones(len(points) - 1, dtype=np.bool_)
    for side in (left, right):
        place = np.searchsorted(side[:, 0], points[:-1], side="right") - 1
        ends = side[place, 1] if len(side) else points[:-1]
        inside &= (place >= 0) & (points[:-1] < ends)
    edges = np.flatnonzero(np.diff(np.concatenate(([False], inside, [False])).astype(np.int8)))
    return points[edges].reshape(-1, 2)
