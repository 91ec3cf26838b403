"""Random tables and random filters over them, as Spark SQL and as DuckDB SQL with the same meaning."""

import datetime as dt
from dataclasses import dataclass
from decimal import Decimal
from typing import Any

import pyarrow as pa
from hypothesis import strategies as st

from nevermore.scan_core.model.schema import Schema, arrow_type, parse_schema

FIELDS: list[dict[str, Any]] = [
    {"id": 1, "name": "i", "type": "int"},
    {"id": 2, "name": "l", "type": "long"},
    {"id": 3, "name": "f", "type": "float"},
    {"id": 4, "name": "d", "type": "double"},
    {"id": 5, "name": "dec", "type": "decimal(9, 2)"},
    {"id": 6, "name": "s", "type": "string"},
    {"id": 7, "name": "dt", "type": "date"},
    {"id": 8, "name": "ts", "type": "timestamp"},
    {"id": 9, "name": "b", "type": "boolean"},
    {
        "id": 10,
        "name": "st",
        "type": {
            "type": "struct",
            "fields": [{"id": 11, "name": "a", "type": "int"}, {"id": 12, "name": "x", "type": "string"}],
        },
    },
    {"id": 13, "name": "li", "type": {"type": "list", "element-id": 14, "element": "int"}},
    {
        "id": 15,
        "name": "m",
        "type": {"type": "map", "key-id": 16, "key": "string", "value-id": 17, "value": "int"},
    },
    {"id": 18, "name": "s2", "type": "string"},
    {"id": 19, "name": "tz", "type": "timestamptz"},
    {"id": 20, "name": "bin", "type": "binary"},
    {"id": 21, "name": "big", "type": "decimal(30, 4)"},
    {
        "id": 22,
        "name": "ms",
        "type": {
            "type": "map",
            "key-id": 23,
            "key": "int",
            "value-id": 24,
            "value": {
                "type": "struct",
                "fields": [
                    {"id": 25, "name": "a", "type": "int"},
                    {
                        "id": 26,
                        "name": "in",
                        "type": {"type": "struct", "fields": [{"id": 27, "name": "x", "type": "string"}]},
                    },
                ],
            },
        },
    },
    {
        "id": 28,
        "name": "ls",
        "type": {
            "type": "list",
            "element-id": 29,
            "element": {
                "type": "struct",
                "fields": [
                    {"id": 30, "name": "a", "type": "int"},
                    {
                        "id": 31,
                        "name": "li",
                        "type": {"type": "list", "element-id": 32, "element": "int"},
                    },
                ],
            },
        },
    },
]
SCHEMA: Schema = parse_schema({"type": "struct", "fields": FIELDS})

TEXTS = ["", "a", "ab", "abc", "b", "bä", "ß", "A%", "a_c", "zz", "a" * 20, "a" * 19 + "b"]
NUMBERS = [-7, -1, 0, 1, 2, 3, 5, 100]
FLOATS = [-1.5, -0.0, 0.0, 0.1, 1.0, 2.5, float("nan"), float("inf"), float("-inf")]
DECIMALS = [Decimal("-1.50"), Decimal("0.00"), Decimal("0.01"), Decimal("2.50"), Decimal("99.99")]
DATES = [dt.date(1969, 12, 31), dt.date(1970, 1, 1), dt.date(2020, 2, 29), dt.date(2020, 12, 31), dt.date(2024, 6, 1)]
MOMENTS = [dt.datetime(d.year, d.month, d.day, h, 30, 1, 5) for d in DATES for h in (0, 23)]  # noqa: DTZ001

VALUES: dict[str, list[Any]] = {
    "i": NUMBERS,
    "l": [*NUMBERS, 2**40],
    "f": FLOATS,
    "d": FLOATS,
    "dec": DECIMALS,
    "s": TEXTS,
    "dt": DATES,
    "ts": MOMENTS,
    "b": [True, False],
    "st": [{"a": 1, "x": "a"}, {"a": None, "x": "b"}, {"a": 3, "x": None}],
    "li": [[], [1], [2, None], [1, 2, 3]],
    "m": [[], [("k", 1)], [("k", None), ("q", 2)], [("q", 1), ("k", 2)]],
    "s2": TEXTS,
    "tz": [moment.replace(tzinfo=dt.UTC) for moment in MOMENTS],
    "bin": [text.encode() for text in TEXTS] + [b"\x00", b"\xff\xfe"],
    "big": [Decimal("-1.5000"), Decimal("0.0000"), Decimal("2.5000"), Decimal(10) ** 25],
    "ms": [
        [],
        [(1, {"a": 1, "in": {"x": "a"}}), (2, {"a": 2, "in": None})],
        [(1, None), (3, {"a": 5, "in": {"x": None}})],
        [(3, {"a": None, "in": {"x": "ab"}}), (1, {"a": 3, "in": {"x": "b"}})],
    ],
    "ls": [[], [{"a": 1, "li": [1, 2]}], [None, {"a": None, "li": []}], [{"a": 2, "li": None}, {"a": 3, "li": [5]}]],
}


@st.composite
def tables(draw: st.DrawFn, max_rows: int = 30, *, nullable: bool = True) -> pa.Table:
    """A table of SCHEMA; each column takes few of its possible values, so that bounds mean something."""
    count = draw(st.integers(1, max_rows))
    columns = []
    for field in SCHEMA.fields:
        pool = draw(st.lists(st.sampled_from(VALUES[field.name]), min_size=1, max_size=4))
        if nullable and draw(st.booleans()):
            pool = [*pool, None]
        seed = draw(st.integers(0, 2**32))
        rows = [pool[(seed >> (k % 29)) % len(pool)] for k in range(count)]
        columns.append(pa.array(rows, arrow_type(field.type)))
    return pa.table(columns, schema=SCHEMA.arrow_schema())


AS_WRITTEN = "pragma disable_optimizer"
"""Makes DuckDB evaluate a condition as written: its optimizer makes of `-d >= 'nan'` the condition `d <= -'nan'` (2.0.0)."""


@dataclass(frozen=True)
class Sql:
    """The same expression in both dialects."""

    spark: str
    duck: str


def same(text: str) -> Sql:
    """Text that both understand alike."""
    return Sql(text, text)


def join(template: str, *parts: Sql) -> Sql:
    """A template with {} for each part."""
    return Sql(template.format(*(p.spark for p in parts)), template.format(*(p.duck for p in parts)))


def _upper(text: Sql) -> Sql:
    """In upper case: Spark makes two letters of "ß", DuckDB one."""
    return Sql(f"upper({text.spark})", f"replace(upper({text.duck}), 'ẞ', 'SS')")


def literal(value: Any) -> Sql:
    """A constant in both dialects."""
    match value:
        case bool():
            return same(str(value).lower())
        case float() if value != value:  # noqa: PLR0124
            return Sql("double('NaN')", "'nan'::double")
        case float() if value in {float("inf"), float("-inf")}:
            return Sql(f"double('{value}')", f"'{value}'::double")
        case float():
            return Sql(f"{value}D", f"({value})::double")
        case dt.datetime() if value.tzinfo is not None:
            text = f"{value.replace(tzinfo=None)}+00:00"
            return Sql(f"timestamp '{text}'", f"timestamptz '{text}'")
        case dt.datetime():
            return Sql(f"timestamp_ntz '{value}'", f"timestamp '{value}'")
        case dt.date():
            return same(f"date '{value}'")
        case str():
            return same(f"'{value}'")
        case bytes():
            return Sql(f"X'{value.hex()}'", f"unhex('{value.hex()}')")
        case _:
            return same(str(value))


_FAMILIES = {
    "number": ["i", "l", "f", "d", "dec", "big"],
    "text": ["s", "s2"],
    "date": ["dt"],
    "moment": ["ts"],
    "instant": ["tz"],
    "bytes": ["bin"],
    "flag": ["b"],
}
_CONSTANTS: dict[str, list[Any]] = {
    "number": [*NUMBERS, *FLOATS, Decimal("2.50"), Decimal("0.015"), 2**40, 3_000_000_000],
    "text": TEXTS,
    "date": DATES,
    "moment": MOMENTS,
    "instant": VALUES["tz"],
    "bytes": VALUES["bin"],
    "flag": [True, False],
}


@st.composite
def scalars(draw: st.DrawFn, family: str, depth: int = 2) -> Sql:
    """A value expression of a family of types."""
    if depth == 0 or draw(st.integers(0, 2)) == 0:
        if draw(st.integers(0, 3)) == 0:
            return literal(draw(st.sampled_from(_CONSTANTS[family])))
        return same(draw(st.sampled_from(_FAMILIES[family])))
    again = scalars(family, depth - 1)
    options: list[Any] = [
        lambda: join("coalesce({}, {})", draw(again), draw(again)),
        lambda: join("case when {} then {} else {} end", draw(predicates(depth - 1)), draw(again), draw(again)),
        lambda: join("nullif({}, {})", draw(again), draw(again)),
    ]
    match family:
        case "number":
            small = st.sampled_from(["i", "st.a", "3", "-2"]).map(same)
            options += [
                lambda: join("({} + {})", draw(small), draw(small)),
                lambda: join("({} * {})", draw(small), draw(small)),
                lambda: join("-{}", same(draw(st.sampled_from(["i", "d", "dec"])))),
                lambda: join("length({})", draw(scalars("text", depth - 1))),
                lambda: join("year({})", draw(scalars(draw(st.sampled_from(["date", "moment"])), depth - 1))),
                lambda: join("month({})", draw(scalars("date", depth - 1))),
                lambda: join("cast({} as bigint)", same(draw(st.sampled_from(["i", "b", "st.a"])))),
                lambda: join("cast({} as double)", same(draw(st.sampled_from(["i", "l", "f"])))),
                lambda: Sql("element_at(m, 'k')", "m['k']"),
                lambda: Sql("try_element_at(li, 2)", "li[2]"),
                lambda: Sql("size(li)", "len(li)"),
                lambda: same("st.a"),
                lambda: same("ms[1].a"),
                lambda: Sql("element_at(ms, 3).a", "ms[3].a"),
                lambda: Sql("try_element_at(ls, 2).a", "ls[2].a"),
                lambda: Sql("get(try_element_at(ls, 1).li, 1)", "ls[1].li[2]"),
                lambda: Sql("cardinality(ms)", "cardinality(ms)"),
                lambda: join("({} % 3)", draw(small)),
                lambda: join("abs({})", same(draw(st.sampled_from(["i", "d", "dec", "big"])))),
                lambda: join("day({})", draw(scalars("date", depth - 1))),
                lambda: Sql("datediff(dt, date '2020-01-01')", "cast(dt - date '2020-01-01' as int)"),
                lambda: Sql("try_divide(i, i - 1)", "cast(i as double) / nullif(i - 1, 0)"),
                lambda: Sql("try_cast(s as int)", "try_cast(nullif(s, '') as int)"),
                lambda: same("dec * 2"),
            ]
        case "text":
            options += [
                lambda: join("lower({})", draw(again)),
                lambda: join("({} || 'x')", draw(again)),
                lambda: join("substr({}, 1, 2)", draw(again)),
                lambda: join("trim({})", draw(again)),
                lambda: join("left({}, 1)", draw(again)),
                lambda: same("st.x"),
                lambda: same("ms[1].in.x"),
                lambda: _upper(draw(again)),
                lambda: join("replace({}, 'b', 'xx')", draw(again)),
                lambda: Sql("cast(i as string)", "cast(i as varchar)"),
            ]
        case "date":
            options += [
                lambda: join("cast({} as date)", draw(scalars("moment", depth - 1))),
                lambda: Sql("date_add(dt, 3)", "cast(dt + 3 as date)"),
                lambda: same("last_day(dt)"),
            ]
        case "moment":
            unit = draw(st.sampled_from(["year", "month", "day", "hour"]))
            options += [lambda: join(f"date_trunc('{unit}', {{}})", draw(again))]
    return draw(st.sampled_from(options))()


@st.composite
def leaves(draw: st.DrawFn, depth: int) -> Sql:
    """A condition without and, or, not."""
    family = draw(st.sampled_from(list(_FAMILIES)))
    value = scalars(family, min(depth, 2))
    constants = st.sampled_from(_CONSTANTS[family]).map(literal)
    sign = draw(st.sampled_from(["=", "<>", "<", "<=", ">", ">="]))
    options: list[Any] = [
        lambda: join(f"{{}} {sign} {{}}", draw(value), draw(constants)),
        lambda: join(f"{{}} {sign} {{}}", draw(value), draw(value)),
        lambda: join("{} is null", draw(value)),
        lambda: join("{} is not distinct from {}", draw(value), draw(value)),
        lambda: join("{} is distinct from {}", draw(value), draw(constants)),
        lambda: join("{} between {} and {}", draw(value), draw(constants), draw(constants)),
        lambda: _in_list(draw, draw(value), constants),
    ]
    if family == "text":
        pattern = draw(st.sampled_from(["a%", "%b", "%b%", "_b%", "ab", "%", "a%c", "", "A%", "aaaaaaaaaaaaaaaaaaaa%"]))
        options += [
            lambda: join(f"{{}} like '{pattern}'", draw(value)),
            lambda: join(f"{{}} not like '{pattern}'", draw(value)),
            lambda: join(f"{{}} ilike '{pattern}'", draw(value)),
            lambda: Sql("startswith(s, 'a')", "starts_with(s, 'a')"),
            lambda: join("contains({}, 'b')", draw(value)),
            lambda: join("{} like 'a!_%' escape '!'", draw(value)),
            lambda: join("{} like 'A!%' escape '!'", draw(value)),
            lambda: Sql("s rlike '^a.?b'", "regexp_matches(s, '^a.?b')"),
            lambda: Sql(
                "array_contains(li, 2)",
                "case when not list_contains(li, 2) and list_contains(list_transform(li, lambda x: x is null), true) then null else list_contains(li, 2) end",
            ),
        ]
    if family == "flag":
        options += [lambda: same("b")]
    return draw(st.sampled_from(options))()


def _in_list(draw: st.DrawFn, value: Sql, constants: st.SearchStrategy[Sql]) -> Sql:
    listed = draw(st.lists(constants, min_size=1, max_size=6))
    if draw(st.integers(0, 4)) == 0:
        listed.append(same("null"))
    holes = ", ".join("{}" for _ in listed)
    return join(f"{{}} in ({holes})", value, *listed)


@st.composite
def predicates(draw: st.DrawFn, depth: int = 3) -> Sql:
    """A condition with and, or, not to some depth."""
    if depth <= 0:
        return join("({})", draw(leaves(0)))
    kind = draw(st.sampled_from(["leaf", "leaf", "and", "or", "not"]))
    below = predicates(depth - 1)
    if kind == "leaf":
        return join("({})", draw(leaves(depth)))
    if kind == "not":
        return join("(not {})", draw(below))
    parts = draw(st.lists(below, min_size=2, max_size=3))
    return join("(" + f" {kind} ".join("{}" for _ in parts) + ")", *parts)


@st.composite
def risky_predicates(draw: st.DrawFn) -> str:
    """A condition in Spark's dialect whose parts fail on some rows: division by zero, bad casts, overflow, subscripts."""
    failing = st.sampled_from(
        [
            "10 / i > 1",
            "i % (i - 1) = 0",
            "cast(s as int) > 0",
            "cast(s as date) is null",
            "li[1] = 2",
            "element_at(li, -1) = 1",
            "ls[0].a = 1",
            "l * 9000000000000 > 0",
            "i + 2147483640 > 0",
            "cast(d as int) = 1",
            "cast(l as int) = 1",
            "dec / (i - 2) > 1",
            "coalesce(i, 1 / 0) > 1",
            "case when i > 1 then 10 div (i - 2) else 1 end = 5",
        ]
    )
    parts = []
    for _ in range(draw(st.integers(1, 3))):
        part = draw(st.one_of(failing, predicates(2).map(lambda c: c.spark)))
        parts.append(f"not ({part})" if draw(st.integers(0, 3)) == 0 else f"({part})")
    kind = draw(st.sampled_from([" and ", " and ", " or "]))
    return kind.join(parts)
