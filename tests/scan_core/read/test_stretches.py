"""Which rows of a row group the statistics of its pages leave over."""

import itertools
from collections.abc import Mapping

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from nevermore.scan_core.columns.file_reader import PageStatistics
from nevermore.scan_core.expr.bind import bind
from nevermore.scan_core.expr.nodes import BoundPredicate
from nevermore.scan_core.model.statistics import ColumnStatistics
from nevermore.scan_core.prune.verdicts import Match, combined, match_conjuncts
from nevermore.scan_core.read.file_statistics import find_stretches
from nevermore.scan_core.rows.selection import to_mask
from tests.scan_core.prune.test_soundness import leaf_array, passing, true_statistics
from tests.support.random_predicates import SCHEMA, Sql, predicates, tables


def pages(edges: list[int], *bounds: tuple[int, int]) -> PageStatistics:
    return PageStatistics(np.array(edges), [ColumnStatistics(low, high, 0, None, None) for low, high in bounds])


def rows_kept(predicate: BoundPredicate, index: Mapping[int, PageStatistics], num_rows: int) -> npt.NDArray[np.bool_]:
    """The rows of a row group of which nothing but pages is known."""
    stretches = find_stretches(index, lambda _: None)
    if stretches is None:
        return np.ones(num_rows, np.bool_)
    pages = stretches.match(lambda known: combined(match_conjuncts(predicate, known)))
    return to_mask(pages.rows(Match.MAYBE, Match.ALWAYS))


INDEX = {1: pages([0, 10, 20, 30], (0, 9), (10, 19), (20, 29)), 2: pages([0, 15, 30], (0, 4), (5, 9))}


@pytest.mark.parametrize(
    ("sql", "rows"),
    [
        ("i > 15", [*range(10, 30)]),
        ("i = 5 or i = 25", [*range(10), *range(20, 30)]),
        ("l >= 5", [*range(15, 30)]),
        ("i < 20 and l >= 5", [*range(15, 20)]),
        ("i < 10 or l >= 5", [*range(10), *range(15, 30)]),
        ("i > 100", []),
        ("i + 1 > 100 or s = 'a'", [*range(30)]),
        ("i / 0 = 1", [*range(30)]),
        ("i >= 0", [*range(30)]),
    ],
)
def test_pages_that_cannot_match_are_left_out(sql: str, rows: list[int]) -> None:
    assert np.flatnonzero(rows_kept(bind(sql, SCHEMA), INDEX, 30)).tolist() == rows


def test_pages_no_shorter_than_the_row_group_tell_nothing() -> None:
    assert find_stretches({1: pages([0, 30], (0, 29))}, lambda _: None) is None
    assert find_stretches({}, lambda _: None) is None


@pytest.mark.parametrize("num_examples", [40, pytest.param(2000, marks=pytest.mark.slow)])
def test_no_row_that_passes_is_lost(num_examples: int) -> None:
    quiet = settings(deadline=None, suppress_health_check=list(HealthCheck), max_examples=num_examples)
    quiet(given(table=tables(25), condition=predicates(3), data=st.data())(check_rows))()


def check_rows(table: pa.Table, condition: Sql, data: st.DataObject) -> None:
    predicate = bind(condition.spark, SCHEMA)
    index = {}
    for field_id in (1, 2, 3, 4, 5, 6, 7, 8, 9, 11, 12, 18):
        if data.draw(st.booleans()):
            size = data.draw(st.integers(1, 25))
            edges = [*range(0, table.num_rows, size), table.num_rows]
            found = [
                true_statistics(leaf_array(table.slice(a, b - a), field_id), "exact")
                for a, b in itertools.pairwise(edges)
            ]
            index[field_id] = PageStatistics(np.array(edges), [f for f in found if f is not None])
    rows, _ = passing(predicate, table)
    assert not (rows & ~rows_kept(predicate, index, table.num_rows)).any()
