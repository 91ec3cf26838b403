"""What people type that is no filter, or not the one they meant: one clear message that shows the place."""

import datetime as dt

import pytest

from nevermore.scan_core.expr.bind import bind, clock_literal
from nevermore.scan_core.expr.bound import Literal
from nevermore.scan_core.model.errors import PredicateError
from tests.support.random_predicates import SCHEMA


@pytest.mark.parametrize(
    ("sql", "message", "marked"),
    [
        ("\"s\" = 'a'", "'s' is a string here; to name the column write `s` in backticks", '"s"'),
        ("where i = 3", "write the condition alone, without 'where'", "where"),
        ("select * from t where i = 3", "write the condition alone, without 'select'", "select"),
        ("I = 3", "no column 'I'; did you mean i?", "I"),
        ("i in (select 1)", "in (subquery) is not supported in a filter", "i in (select 1"),
        ("2 in li", "in takes values in parentheses; array_contains(list, value)", "2 in li"),
        ("exists (select 1)", "a subquery is not supported in a filter", "1"),
        ("i >", "something is missing after this", ">"),
        ("i = 1 and (b", "a ) is missing after this", "b"),
        ("coalesce(i, , 1) = 1", "something is missing after this", ","),
        ("coalesce(, i) = 1", "something is missing after this", ","),
        ("coalesce(i,) = 1", "something is missing after this", ","),
        ("replace(s, , 'X') = 'a'", "something is missing after this", ","),
        ("i in (1,)", "something is missing after this", ","),
        ("i in (1,,2)", "something is missing after this", ","),
        ("i !> 3", "this was not expected here", "!"),
        ("i = 1; drop table", "this was not expected here", "table"),
        ("lenght(s) = 3", "lenght() is not supported in a filter; did you mean length", "lenght(s"),
        ("regexp_extract(s, 'a', 0) = 'a'", "regexp_extract() is not supported", "regexp_extract(s, 'a', 0"),
        ("sum(i) > 3", "sum() is not supported in a filter", "sum(i"),
        ("round(d, i) = 1", "round takes a constant number of digits", "i"),
        ("st.z = 1", "no member 'z'; it has a, x", "st.z"),
        ("i", "a filter must be true or false, but this has type int", "i"),
        ("i = 'x'", "'x' is not a valid long", "i = 'x'"),
        ("i = 1; i = 2", "one expression, no ';'", ""),
    ],
)
def test_mistake_is_named_and_shown(sql: str, message: str, marked: str) -> None:
    with pytest.raises(PredicateError) as raised:
        bind(sql, SCHEMA)
    said = str(raised.value).split("\n")
    assert message in said[0]
    if marked:
        shown, carets = said[1], said[2]
        assert shown[carets.index("^") : len(carets)] == marked


def test_functions_of_the_clock_mean_one_moment_in_utc() -> None:
    now = dt.datetime(2026, 3, 1, 23, 59, tzinfo=dt.UTC)
    assert clock_literal("current_date", now) == Literal(20513, SCHEMA.find("dt").type)
    moment = clock_literal("now", now)
    assert moment == clock_literal("current_timestamp", now)
    assert moment is not None
    assert str(moment.type) == "timestamptz"
    assert clock_literal("rand", now) is None
    both = bind("tz < now() or tz < current_timestamp", SCHEMA).conjuncts
    assert len(both) == 1  # one and the same comparison
    assert bind("dt < current_date - 30 and dt < current_date() - interval 30 days", SCHEMA).conjuncts == (
        bind("dt < current_date - 30", SCHEMA).conjuncts
    )


@pytest.mark.parametrize(
    "condition",
    [
        "i & 6 = 2",
        "i | 8 = 8",
        "~i = 1",
        "greatest(i, l) > 1",
        "least(i, l) > 1",
        "nanvl(d, 0) > 1",
        "sqrt(i) > 2",
        "tz > tz - interval '1 12:00:00' day to second",
        "dt > dt + interval '1-2' year to month",
        "substr(s, i) = 'a'",
        "contains(s, lower(s))",
        "1.5 div i = 1",
    ],
)
def test_rare_conditions_of_spark_are_refused_when_they_are_bound(condition: str) -> None:
    with pytest.raises(PredicateError, match=r"in a filter"):
        bind(condition, SCHEMA)
