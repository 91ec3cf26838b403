"""Filters that nest very deeply or list very many values are refused where they are built or read."""

import itertools
import pickle
from collections.abc import Callable
from functools import reduce

import pytest

from scan_core import col
from scan_core.errors import PredicateError
from scan_core.expr.nodes import MAX_DEPTH, MAX_IN_VALUES, Expr
from scan_core.expr.parse import parse

Deeper = Callable[[Expr], Expr]


@pytest.mark.parametrize(
    "deeper",
    [
        lambda e: ~e,
        lambda e: e & (col("id") == 1),
        lambda e: (col("id") == 1) | e,
        lambda e: e + 1,
        lambda e: -e,
        lambda e: e.cast("long"),
        lambda e: e.member("a"),
        lambda e: e[0],
        lambda e: e.is_in([1]),
    ],
    ids=["not", "and", "or", "plus", "minus", "cast", "member", "element", "in"],
)
def test_deep_expressions_are_refused_and_less_deep_ones_can_be_shown(deeper: Deeper) -> None:
    start = col("id") == 1
    deep = reduce(lambda e, _: deeper(e), range(MAX_DEPTH - 1), start)
    assert len(repr(deep)) > MAX_DEPTH
    assert str(pickle.loads(pickle.dumps(deep))) == str(deep)  # noqa: S301  our own bytes
    with pytest.raises(PredicateError, match="nests too deeply"):
        reduce(lambda e, _: deeper(e), range(50_000), deep)


def test_endless_lists_are_refused() -> None:
    with pytest.raises(PredicateError, match="semi_join takes any number"):
        col("id").is_in(itertools.count())
    assert len(str(col("id").is_in(range(1000)))) < 10_000
    assert MAX_IN_VALUES >= 100_000


@pytest.mark.parametrize("sql", ["(" * 20_000 + "id" + ")" * 20_000, "not " * 20_000 + "a", "a + (" * 20_000 + "1"])
def test_deep_sql_is_refused(sql: str) -> None:
    with pytest.raises(PredicateError):
        parse(sql)
