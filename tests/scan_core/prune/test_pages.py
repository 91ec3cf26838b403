"""Which rows of a row group a column index leaves over."""

import itertools

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from scan_core.expr.bind import bind
from scan_core.prune.pages import Pages, match_pages
from scan_core.read.file_reader import ColumnStatistics
from scan_core.rows.selection import All, to_mask
from tests.random_predicates import SCHEMA, Sql, predicates, tables
from tests.scan_core.prune.test_soundness import leaf_array, passing, true_statistics


def pages(first_rows: list[int], *bounds: tuple[int, int]) -> Pages:
    return Pages(np.array(first_rows), [ColumnStatistics(low, high, 0, None, None) for low, high in bounds])


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
    ],
)
def test_pages_that_cannot_match_are_left_out(sql: str, rows: list[int]) -> None:
    assert np.flatnonzero(to_mask(match_pages(bind(sql, SCHEMA), INDEX.get, 30))).tolist() == rows


def test_nothing_known_keeps_all() -> None:
    assert match_pages(bind("s = 'a'", SCHEMA), INDEX.get, 30) == All(30)
    assert match_pages(bind("i >= 0", SCHEMA), INDEX.get, 30) == All(30)


@settings(deadline=None, suppress_health_check=list(HealthCheck), max_examples=80)
@given(table=tables(25), condition=predicates(3), data=st.data())
def test_no_row_that_passes_is_lost(table: pa.Table, condition: Sql, data: st.DataObject) -> None:
    predicate = bind(condition.spark, SCHEMA)
    index = {}
    for field_id in (1, 2, 3, 4, 5, 6, 7, 8, 9, 11, 12, 18):
        if data.draw(st.booleans()):
            size = data.draw(st.integers(1, 25))
            first_rows = [*range(0, table.num_rows, size), table.num_rows]
            found = [
                true_statistics(leaf_array(table.slice(a, b - a), field_id), "exact")
                for a, b in itertools.pairwise(first_rows)
            ]
            index[field_id] = Pages(np.array(first_rows), [f for f in found if f is not None])
    rows, _ = passing(predicate, table)
    kept = to_mask(match_pages(predicate, index.get, table.num_rows))
    assert not (rows & ~kept).any()
