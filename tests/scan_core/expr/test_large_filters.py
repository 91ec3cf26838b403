"""Filters that nest very deeply or list very many values are refused where they are built or read."""

import itertools
import pickle
from collections.abc import Callable
from functools import reduce
from time import process_time

import pytest

from nevermore.scan_core import col
from nevermore.scan_core.expr.nodes import MAX_DEPTH, MAX_IN_VALUES, Expr
from nevermore.scan_core.expr.parse import parse
from nevermore.scan_core.model.errors import PredicateError

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


MANY = 51_000
HOSTILE = {
    "parentheses": "(" * 20_000 + "id" + ")" * 20_000,
    "not": "not " * 20_000 + "a",
    "plus": "a + (" * 20_000 + "1",
    "and": " and ".join(["a = 1"] * 13_000),
}
MORE_HOSTILE = {
    "or": " or ".join(["a = 1"] * MANY),
    "many not": "not " * MANY + "a",
    "case": "case " + "when a = 1 then 2 " * MANY + "end = 1",
    "cases": "case when a then " * 5_000 + "1" + " end" * 5_000 + " = 1",
    "concatenation": " || ".join(["'a'"] * MANY) + " = 'b'",
    "sum": " + ".join(["1"] * MANY) + " = 1",
    "minus": "- " * MANY + "a = 1",
    "members": "a" + ".b" * MANY + " = 1",
    "elements": "a" + "[0]" * MANY + " = 1",
    "calls": "abs(" * 20_000 + "a" + ")" * 20_000 + " = 1",
    "arguments": "coalesce(" + ",".join(["a"] * MANY) + ") = 1",
    "casts": "a" + "::int" * MANY + " = 1",
    "patterns": "a like any (" + ",".join(["'a%'"] * MANY) + ")",
    "values": "a in (" + ",".join(["1"] * 500_000) + ")",
    "lists": " or ".join(["a in (1)"] * MANY),
    "comments": "/*" * MANY + " a = 1",
    "digits": "a = " + "1" * 1_000_000,
    "quotes": "a = '" + "'' " * MANY,
    "characters": "a = '" + "x" * 5_000_000 + "'",
}
SECONDS = 30
"""A shared machine takes a few; without limits some of these took minutes."""


@pytest.mark.each(4)
@pytest.mark.parametrize("name", HOSTILE)
def test_deep_and_long_sql_is_refused_before_it_is_parsed(name: str) -> None:
    with pytest.raises(PredicateError, match=r"nests too deeply|more than 50000 outside of IN lists"):
        parse(HOSTILE[name])


@pytest.mark.slow
@pytest.mark.parametrize("name", MORE_HOSTILE)
def test_hostile_sql_is_refused_in_bounded_time(name: str) -> None:
    start = process_time()
    with pytest.raises(PredicateError):
        parse(MORE_HOSTILE[name])
    assert process_time() - start < SECONDS


@pytest.mark.slow
def test_long_lists_and_names_are_read() -> None:
    assert str(parse("a in (" + ",".join(map(str, range(100_000))) + ") and " + "b" * 100_000 + " = 1"))
    parse(" or ".join(f"a = {n}" for n in range(10_000)))
