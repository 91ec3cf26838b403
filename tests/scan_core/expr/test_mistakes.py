"""What people type that is no filter, or not the one they meant: one clear message that shows the place."""

import datetime as dt

import pytest

from nevermore.scan_core.expr.bind import bind, clock_literal
from nevermore.scan_core.expr.bound import Literal
from nevermore.scan_core.expr.literals import span_amount
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
        ("i !> 3", "this was not expected here", "!"),
        ("i = 1; drop table", "this was not expected here", "table"),
        ("lenght(s) = 3", "lenght() is not supported in a filter; did you mean length", "lenght(s"),
        ("regexp_extract(s, 'a', 0) = 'a'", "regexp_extract() is not supported", "regexp_extract(s, 'a', 0"),
        ("sum(i) > 3", "sum() is not supported in a filter", "sum(i"),
        (
            "ts + interval '1 25:00:00' day to second > ts",
            "'1 25:00:00' is not a valid interval day to second",
            "'1 25:00:00'",
        ),
        ("round(d, i) = 1", "round takes a constant number of digits", "i"),
        ("s & 1 = 1", "& takes ints or longs, not string", "s"),
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
    ("text", "first", "last", "expected"),
    [
        ("1 12:00:00", "day", "second", ("129600000000", "microsecond")),
        ("-1 12:00", "day", "minute", ("-129600000000", "microsecond")),
        ("36:30", "hour", "minute", ("131400000000", "microsecond")),
        ("90:30.5", "minute", "second", ("5430500000", "microsecond")),
        ("1-2", "year", "month", ("14", "month")),
        ("1-12", "year", "month", None),
        ("1 24:00:00", "day", "second", None),
        ("1:60", "hour", "minute", None),
        ("1", "second", "day", None),
    ],
)
def test_intervals_of_several_parts(text: str, first: str, last: str, expected: tuple[str, str] | None) -> None:
    assert span_amount(text, first, last) == expected
