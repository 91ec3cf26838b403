"""SQL text to expressions: what is understood, and what is refused by name and place."""

import pytest

from nevermore.scan_core.expr.nodes import call, col, lit
from nevermore.scan_core.expr.parse import parse
from nevermore.scan_core.model.errors import PredicateError


@pytest.mark.parametrize(
    ("sql", "printed"),
    [
        ("a.b.c > 5", "a.b.c > 5"),
        ("`a b` = 1 AND not x", "`a b` = 1 and not x"),
        ("a <> 1 or b != 2 or c == 3", "a <> 1 or b <> 2 or c = 3"),
        ("a is distinct from b", "not a <=> b"),
        ("a is not distinct from b", "a <=> b"),
        ("a is not null", "not a is null"),
        ("a is true", "a <=> true"),
        ("a not between 1 and 2", "not a between 1 and 2"),
        ("a in (1, -2, null)", "a in (1, -2, null)"),
        ("x like 'a%' escape '!'", "x like 'a%' escape '!'"),
        ("x not ilike 'a'", "not x ilike 'a'"),
        ("x not like all ('a', 'b')", "not x like 'a' and not x like 'b'"),
        ("x not rlike 'a'", "not x rlike 'a'"),
        ("x like any ('a', 'b')", "x like 'a' or x like 'b'"),
        ("x rlike '^a'", "x rlike '^a'"),
        ("(a + b) * -c % 2 > 1", "(a + b) * -c % 2 > 1"),
        ("a div 2 = 1", "a div 2 = 1"),
        ("a || 'b' = 'it''s'", "a || 'b' = 'it\\'s'"),
        ("cast(a as decimal(10,2)) > try_cast(b as int)", "cast(a as decimal(10, 2)) > try_cast(b as int)"),
        ("a::double = 1e3", "cast(a as double) = 1000.0D"),
        ("5L = a", "cast(5 as long) = a"),
        ("(s || a) + 1 = 12", "s || a + 1 = 12"),
        ("s || (a + 1) = '12'", "s || (a + 1) = '12'"),
        ("a = -9223372036854775808L", "a = cast(-9223372036854775808 as long)"),
        ("day >= date '2026-01-02'", "day >= date '2026-01-02'"),
        ("t > timestamp '2026-01-02 03:04:05.5'", "t > timestamp '2026-01-02 03:04:05.5'"),
        ("t > timestamp_ntz '2026-01-02'", "t > timestamp_ntz '2026-01-02 00:00:00'"),
        ("case when a then 1 else 2 end = 1", "case when a then 1 else 2 end = 1"),
        ("case a when 1 then 'x' end = 'x'", "case when a = 1 then 'x' else null end = 'x'"),
        ("if(a, b, c)", "if(a, b, c)"),
        ("features[3] = 4 and m['x'].y[0] is null", "features[3] = 4 and m['x'].y[0] is null"),
        ("element_at(m, 'x').y = 1", "element_at(m, 'x').y = 1"),
        ("YEAR(d) = 2026", "year(d) = 2026"),
        ("x = X'ff0'", "x = X'0ff0'"),
        ("x = 'a' 'b'", "x = 'ab'"),
        ('x = "quoted"', "x = 'quoted'"),
    ],
)
def test_text_is_understood(sql: str, printed: str) -> None:
    assert str(parse(sql)) == printed
    assert str(parse(str(parse(printed)))) == str(parse(printed))


@pytest.mark.parametrize(
    ("sql", "grouped"),
    [
        ("s || a + 1 = '12'", "((s || a) + 1) = '12'"),
    ],
)
def test_operators_bind_as_in_spark(sql: str, grouped: str) -> None:
    assert str(parse(sql)) == str(parse(grouped))


@pytest.mark.parametrize(
    ("sql", "complaint", "place"),
    [
        ("a >", "something is missing", "  a >\n    ^"),
        ("a = 'x", "cannot read", "^"),
        ("a = b < c", "put parentheses around", "      ^^^^^"),
        ("select 1", "write the condition alone", "^^^^^^"),
        ("a in (select 1)", "in (subquery) is not supported", "^^^^"),
        ("a = 1; b = 2", "one expression", "a = 1; b = 2"),
        ("", "empty", ""),
        ("sum(a) over () > 1", "is not supported", "^^^^^"),
        ("transform(a, x -> x) is null", "is not supported", "             ^"),
        ("a b", "the alias 'b' is not supported", "^^^"),
        ("cast(a as smallint) = 1", "cast to smallint is not supported", "^"),
        ("d = date '2026-13-01'", "'2026-13-01' is not a valid date", "         ^^^^^^^^^^^^"),
        ("a = 9" + "9" * 40, "more than 38 digits", "^^^"),
        ("count(*) > 1", "'*' is not supported", "^"),
        ("a and\n (b or", "something is missing", "   (b or\n      ^^"),
    ],
)
def test_other_text_is_refused_with_its_place(sql: str, complaint: str, place: str) -> None:
    with pytest.raises(PredicateError) as caught:
        parse(sql)
    assert complaint in str(caught.value)
    assert place in str(caught.value)


def test_long_chains_parse_and_deep_nesting_is_refused() -> None:
    assert str(parse(" or ".join(f"a = {i}" for i in range(1500)))).count(" or ") == 1499
    with pytest.raises(PredicateError, match="nests too deeply"):
        parse("(" * 5000 + "a" + ")" * 5000)


def test_objects_print_as_the_same_text() -> None:
    built = (col("qty") > 5) & ~(col("name").like("A%") | col("name").is_null()) & (call("year", col("d")) == 2026)
    assert str(built) == "qty > 5 and not (name like 'A%' or name is null) and year(d) = 2026"
    other = (lit(3) - col("a") * 2).null_safe_eq(col("m")["k"]) | col("s").member("x").is_in([1, None])
    assert str(other) == "3 - a * 2 <=> m['k'] or s.x in (1, null)"
    assert str(col("a").cast("int").between(-1, 2)) == "cast(a as int) between -1 and 2"


def test_an_expression_is_no_python_condition() -> None:
    with pytest.raises(TypeError, match=r"&, \| and ~"):
        bool(col("a") > 1)
    with pytest.raises(TypeError, match="cannot be used in a filter"):
        col("a") == object()  # noqa: B015
