"""Verdicts from statistics: what is decided, and what must not be."""

from collections.abc import Callable
from decimal import Decimal
from typing import Any

import pytest

from nevermore.scan_core.expr.bind import bind
from nevermore.scan_core.model.statistics import ColumnStatistics as Stats
from nevermore.scan_core.prune.verdicts import Match, combined, match_conjuncts, prefix_end
from tests.support.random_predicates import SCHEMA

DAY = 86_400_000_000
STATISTICS: dict[int, Stats] = {
    1: Stats(5, 10, 0, None, 100),  # i
    2: Stats(None, None, 100, None, 100),  # l: all NULL
    3: Stats(1.0, 2.0, 0, 0, 100),  # f
    4: Stats(1.0, 2.0, 1, None, 100),  # d: NULLs, NaN unknown
    5: Stats(Decimal("1.00"), Decimal("2.00"), 0, None, 100),  # dec
    6: Stats("abc", "abd", 0, None, 100),  # s
    7: Stats(18_262, 18_300, 0, None, 100),  # dt: 2020-01-01 to 2020-02-08
    8: Stats(0, 365 * DAY - 1, 0, None, 100),  # ts: 1970
    9: Stats(True, True, 0, None, 100),  # b
    11: Stats(1, 3, 5, None, 100),  # st.a
    18: Stats("a" * 16, "b" * 16, 0, None, 100),  # s2: may be truncated
}


def verdict(sql: str, statistics: dict[int, Stats] = STATISTICS) -> str:
    return combined(match_conjuncts(bind(sql, SCHEMA), statistics.get)).name


@pytest.mark.parametrize(
    ("sql", "expected"),
    [
        ("i > 10", "NEVER"),
        ("i >= 5", "ALWAYS"),
        ("i = 7", "MAYBE"),
        ("i <> 4", "ALWAYS"),
        ("i between 11 and 20", "NEVER"),
        ("i between 5 and 10", "ALWAYS"),
        ("i in (1, 2, 11)", "NEVER"),
        ("i in (1, 7)", "MAYBE"),
        ("i not in (1, 2)", "ALWAYS"),
        ("i not in (1, null)", "NEVER"),
        ("i is null", "NEVER"),
        ("i is not null", "ALWAYS"),
        ("i <=> null", "NEVER"),
        ("l is null", "ALWAYS"),
        ("l > 5", "NEVER"),
        ("not l > 5", "NEVER"),
        ("l > 5 or i > 0", "ALWAYS"),
        ("coalesce(l, i) > 4", "ALWAYS"),
        ("f > 2", "NEVER"),
        ("f >= 1", "ALWAYS"),
        ("d > 2", "MAYBE"),  # NaN is larger than everything
        ("d < 1", "NEVER"),
        ("d >= 1", "MAYBE"),  # NULLs
        ("not d < 1", "MAYBE"),
        ("isnan(f)", "NEVER"),
        ("dec < 1", "NEVER"),
        ("dec * 2 between 2 and 4", "ALWAYS"),
        ("s like 'ab%'", "ALWAYS"),
        ("s not like 'ab%'", "NEVER"),
        ("s like 'b%'", "NEVER"),
        ("s like 'abd%'", "MAYBE"),
        ("s like 'ab%x'", "MAYBE"),
        ("s like 'b%x'", "NEVER"),
        ("s like 'zz'", "NEVER"),
        ("s like '%'", "ALWAYS"),
        ("s like '%x'", "MAYBE"),
        ("s ilike 'z%'", "MAYBE"),
        ("startswith(s, 'z')", "NEVER"),
        ("left(s, 2) = 'ab'", "ALWAYS"),
        ("substr(s, 1, 2) = 'zz'", "NEVER"),
        ("lower(s) = 'zz'", "MAYBE"),
        ("s2 = 'bbbbbbbbbbbbbbbbzzz'", "MAYBE"),  # the upper bound may have been cut off
        ("s2 > 'c'", "NEVER"),
        ("dt >= date '2020-01-01'", "ALWAYS"),
        ("year(dt) = 2020", "ALWAYS"),
        ("year(dt) = 2021", "NEVER"),
        ("trunc(dt, 'month') = date '2020-03-01'", "NEVER"),
        ("dt + 30 < date '2020-01-31'", "NEVER"),
        ("datediff(dt, date '2020-01-01') <= 38", "ALWAYS"),
        ("dt > timestamp '2020-02-08 10:00:00'", "NEVER"),
        ("cast(ts as date) = date '1971-01-01'", "NEVER"),
        ("date_trunc('year', ts) = date '1970-01-01'", "ALWAYS"),
        ("b", "ALWAYS"),
        ("not b", "NEVER"),
        ("b = false or i > 10", "NEVER"),
        ("i + 1 > 11", "NEVER"),
        ("-i < 0", "ALWAYS"),
        ("i * i >= 25", "ALWAYS"),
        ("i - 20 between -15 and -10", "ALWAYS"),
        ("cast(i as string) = 'x'", "MAYBE"),
        ("case when i > 3 then 1 else 2 end = 3", "MAYBE"),
        ("st.a > 3", "NEVER"),
        ("st.a > 0", "MAYBE"),
        ("st.x = 'a'", "MAYBE"),
        ("m['k'] = 1", "MAYBE"),
        # what can fail must reach the rows
        ("i / 0 = 1", "MAYBE"),
        ("10 / i > 3", "NEVER"),
        ("10 / (i - 5) > 100", "MAYBE"),
        ("i + 2147483640 < 0", "MAYBE"),
        ("cast(s as int) > 5", "MAYBE"),
        ("i / 0 = 1 and i > 10", "NEVER"),
        ("try_divide(i, 0) is null", "MAYBE"),
    ],
)
def test_verdict(sql: str, expected: str) -> None:
    assert verdict(sql) == expected


@pytest.mark.parametrize(
    "statistics",
    [None, Stats(), Stats(5, None), Stats(None, 5), Stats(9, 5, 0), Stats(5, 10), Stats(None, None, 100, 0, None)],
)
def test_rule_20_half_or_inverted_bounds_prove_nothing(statistics: Stats | None) -> None:
    found: dict[int, Any] = {1: statistics}
    assert verdict("i = 7", found) == "MAYBE"
    assert verdict("i > 3", found) == "MAYBE"
    assert verdict("i is null", found) == ("NEVER" if statistics and statistics.null_count == 0 else "MAYBE")


def test_verdicts_per_conjunct_tell_what_need_not_be_evaluated() -> None:
    found = match_conjuncts(bind("i > 1 and f = 1.5 and s > 'a'", SCHEMA), STATISTICS.get)
    assert found == (Match.ALWAYS, Match.MAYBE, Match.ALWAYS)
    assert combined(match_conjuncts(bind("true", SCHEMA), STATISTICS.get)) is Match.ALWAYS


def test_a_column_of_many_ranges_is_looked_up_once() -> None:
    asked: list[int] = []

    def statistics_of(field_id: int) -> Stats | None:
        asked.append(field_id)
        return STATISTICS.get(field_id)

    ranges = " or ".join(f"(i >= {n} and i < {n + 3})" for n in range(1000, 1200, 10))
    assert match_conjuncts(bind(f"({ranges}) and i is not null", SCHEMA), statistics_of)[0] is Match.NEVER
    assert len(asked) == 1


def test_the_end_of_a_prefix() -> None:
    assert prefix_end("ab") == "ac"
    assert prefix_end("a\U0010ffff") == "b"
    assert prefix_end("\U0010ffff") is None
    assert prefix_end("a\ud7ff") == "a\ue000"
    assert prefix_end(b"a\xff") == b"b"
    assert prefix_end(b"\xff") is None


def test_excluded_values_decide_equalities_and_lists_on_demand() -> None:
    asked: list[int] = []

    def excludes_of(field_id: int) -> Callable[[Any], bool] | None:
        asked.append(field_id)
        return {1: lambda value: value != 7, 6: None}.get(field_id)

    def found(sql: str) -> str:
        return combined(match_conjuncts(bind(sql, SCHEMA), STATISTICS.get, excludes_of)).name

    assert found("i = 8") == "NEVER"
    assert found("i = 7") == "MAYBE"
    assert found("i in (6, 8, 20)") == "NEVER"
    assert found("i in (6, 7)") == "MAYBE"
    assert found("i = 8 or s = 'abcd'") == "MAYBE"
    assert set(asked) == {1, 6}
    asked.clear()
    assert found("i = 20 or i > 30 or i is null or i + 1 = 50") == "NEVER"
    assert found("i <> 8") == "ALWAYS"
    assert found("i <=> 8") == "NEVER"
    assert asked == [1, 1]
