"""Every type has exact values, in a load as in the stream."""

import datetime as dt
import subprocess
import uuid
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

from nevermore.checks.mirror_checks import run_checks
from nevermore.checks.source_equality import mirror_equals_source
from nevermore.pipelines.iceberg.catalog import open_catalog
from nevermore.pipelines.maintain.replay import resync_from_source
from nevermore.pipelines.sources.postgres.reader import PostgresReader
from tests.pipelines.postgres.conftest import Shop
from tests.support.postgres_server import installed, postgres, programs_or_skip

UTC = dt.UTC
TYPES: dict[str, list[tuple[str, Any]]] = {
    "smallint": [("-32768", -32768), ("32767", 32767)],
    "integer": [("-2147483648", -(2**31)), ("0", 0)],
    "bigint": [("-9223372036854775808", -(2**63)), ("9223372036854775807", 2**63 - 1)],
    "oid": [("4294967295", 2**32 - 1)],
    "numeric(12,3)": [("123456789.125", Decimal("123456789.125")), ("-0.001", Decimal("-0.001"))],
    "numeric(38,0)": [("9" * 38, Decimal("9" * 38))],
    "numeric(80,40)": [("1.5", f"1.5{'0' * 39}"), (f"-{'9' * 40}.{'8' * 40}", f"-{'9' * 40}.{'8' * 40}"), ("NaN", "NaN")],
    "numeric": [("1.5", "1.5"), ("-12345678901234567890.0123456789", "-12345678901234567890.0123456789"), ("NaN", "NaN"),
                ("-Infinity", "-Infinity"), ("0.000000000001", "0.000000000001"), ("9" * 50, "9" * 50)],
    "real": [("1.5", 1.5), ("-Infinity", float("-inf")), ("1e-30", pytest.approx(1e-30, rel=1e-6))],
    "double precision": [("0.1", 0.1), ("1.7976931348623157e308", 1.7976931348623157e308), ("Infinity", float("inf")), ("-0.0", -0.0)],
    "boolean": [("true", True), ("false", False)],
    "text": [("tab\there\nline\\back 'quote' \"double\"", None), ("", ""), ("naïve 𝛑 日本", None), ("\\N", "\\N"), ("\b\f\r\v", "\b\f\r\v")],
    "varchar(10)": [("ten chars.", "ten chars.")],
    "char(4)": [("ab", "ab  ")],
    "bytea": [("\\x00ff10", b"\x00\xff\x10"), ("", b"")],
    "date": [("2024-02-29", dt.date(2024, 2, 29)), ("0001-01-01", dt.date(1, 1, 1))],
    "time": [("23:59:59.999999", dt.time(23, 59, 59, 999999)), ("00:00:00", dt.time(0))],
    "timetz": [("12:30:00+02", "12:30:00+02")],
    "timestamp": [("2024-01-01 12:00:00.123456", dt.datetime(2024, 1, 1, 12, 0, 0, 123456))],  # noqa: DTZ001
    "timestamptz": [
        ("2024-01-01 12:00:00.5+02", dt.datetime(2024, 1, 1, 10, 0, 0, 500000, UTC)),
        ("1883-11-18 12:00:00+00", dt.datetime(1883, 11, 18, 12, tzinfo=UTC)),
    ],
    "interval": [("1 year 2 mons 3 days 04:05:06.7", "1 year 2 mons 3 days 04:05:06.7"), ("-1 day +02:00", "-1 days +02:00:00")],
    "timetz[]": [("{12:30:00+02,NULL}", ["12:30:00+02", None])],
    "uuid": [("a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11", uuid.UUID("a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11"))],
    "json": [('{"a": [1, null, "x\\ny"]}', None)],
    "jsonb": [('{"a": [1, null, "x\\ny"]}', None)],
    "inet": [("192.168.0.1/24", "192.168.0.1/24")],
    "cidr": [("10.0.0.0/8", "10.0.0.0/8")],
    "macaddr": [("08:00:2b:01:02:03", "08:00:2b:01:02:03")],
    "bit(5)": [("10101", "10101")],
    "bit varying": [("101", "101")],
    "money": [("12.34", "$12.34")],
    "macaddr8": [("08:00:2b:01:02:03:04:05", "08:00:2b:01:02:03:04:05")],
    "pg_lsn": [("16/B374D848", "16/B374D848")],
    '"char"': [("x", "x")],
    "point": [("(1,2)", "(1,2)")],
    "line": [("{1,2,3}", "{1,2,3}")],
    "lseg": [("[(1,2),(3,4)]", "[(1,2),(3,4)]")],
    "box": [("(3,4),(1,2)", "(3,4),(1,2)")],
    "box[]": [("{(1,1),(0,0);(2,2),(1,1)}", "{(1,1),(0,0);(2,2),(1,1)}")],
    "path": [("((1,2),(3,4))", "((1,2),(3,4))")],
    "polygon": [("((1,2),(3,4))", "((1,2),(3,4))")],
    "circle": [("<(1,2),3>", "<(1,2),3>")],
    "tsquery": [("fat & !cat", "'fat' & !'cat'")],
    "tsvector": [("a fat cat", "'a' 'cat' 'fat'")],
    "int4range": [("[1,5)", "[1,5)"), ("empty", "empty")],
    "numrange": [("(,1.50]", "(,1.50]")],
    "tstzrange": [("[2024-01-01 00:00:00+00,)", '["2024-01-01 00:00:00+00",)')],
    "daterange[]": [('{"[2024-01-01,2024-01-03)"}', ["[2024-01-01,2024-01-03)"])],
    "int4multirange": [("{[1,3),[5,9)}", "{[1,3),[5,9)}"), ("{}", "{}")],
    "mood": [("happy", "happy")],
    "positive": [("7", 7)],
    "amount": [("7.25", Decimal("7.25"))],
    "pair": [('(1,"a,b")', '(1,"a,b")')],
    "integer[]": [("{1,NULL,-3}", [1, None, -3]), ("{}", []), ("[0:1]={5,6}", [5, 6])],
    "pair[]": [('{"(1,\\"a,b\\")",NULL}', ['(1,"a,b")', None])],
    "jsonb[]": [('{"{\\"a\\": 1}"}', ['{"a": 1}'])],
    "text[]": [('{a,"b,c","q\\"uote","back\\\\slash",NULL,"NULL",""}', ["a", "b,c", 'q"uote', "back\\slash", None, "NULL", ""])],
    "numeric(80,40)[]": [(f"{{{'9' * 40}.{'8' * 40}}}", [f"{'9' * 40}.{'8' * 40}"])],
    "numeric(10,2)[]": [("{1.50,NULL}", [Decimal("1.50"), None])],
    "timestamptz[]": [('{"2024-01-01 12:00:00+00"}', [dt.datetime(2024, 1, 1, 12, tzinfo=UTC)])],
    "uuid[]": [("{a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11}", [uuid.UUID("a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11")])],
    "boolean[]": [("{t,f,NULL}", [True, False, None])],
    "double precision[]": [("{1.5,NaN,Infinity}", [1.5, pytest.approx(float("nan"), nan_ok=True), float("inf")])],
    "bytea[]": [('{"\\\\x00ff"}', [b"\x00\xff"])],
    "mood[]": [("{happy,sad}", ["happy", "sad"])],
}  # fmt: skip
DEFINITIONS = (
    "CREATE TYPE mood AS ENUM ('sad', 'happy')",
    "CREATE DOMAIN positive AS integer CHECK (VALUE > 0)",
    "CREATE DOMAIN exact AS numeric(8,2)",
    "CREATE DOMAIN amount AS exact",
    "CREATE TYPE pair AS (a integer, b text)",
)


@pytest.mark.parametrize("are_hashed", [False, True])
def test_every_type_has_exact_values_in_loads_and_streams(
    shop: Any,
    monkeypatch: pytest.MonkeyPatch,
    are_hashed: bool,  # noqa: FBT001
) -> None:
    types = {kind: cases for kind, cases in TYPES.items() if not (are_hashed and kind.endswith("[]"))}
    columns = {f"c{i}": kind for i, kind in enumerate(types)}
    shop.sql(
        *DEFINITIONS,
        f"CREATE TABLE items (id int PRIMARY KEY, {', '.join(f'{name} {kind}' for name, kind in columns.items())})",
        "CREATE PUBLICATION pub FOR TABLE items",
    )
    rounds = max(map(len, types.values()))

    def insert(first: int) -> None:
        for number in range(rounds + 1):
            values = [cases[number][0] if number < len(cases) else None for cases in types.values()]
            with shop.connection.cursor() as cursor:
                places = ", ".join(f"%s::{kind}" for kind in types)
                cursor.execute(f"INSERT INTO items VALUES (%s, {places})", [first + number, *values])

    insert(0)
    config = shop.config("items")
    shop.ingest(config)
    insert(100)
    shop.ingest(config)
    assert shop.reasons(config, "items") == []
    found = {row[0]: row[1:] for row in shop.rows(config, "items")}
    assert len(found) == 2 * (rounds + 1)
    if are_hashed:  # no row is read to be decoded
        monkeypatch.setattr(PostgresReader, "load", None)
    compared = mirror_equals_source(config, "shop.items")
    assert (compared.passed, compared.details) == (True, [])
    for first in (0, 100):
        for number in range(rounds + 1):
            for (kind, cases), value in zip(types.items(), found[first + number], strict=True):
                if number >= len(cases):
                    assert value is None, (kind, first)
                    continue
                text, expected = cases[number]
                assert value == (
                    text if expected is None and kind != "jsonb" else expected if expected is not None else value
                ), (kind, first)
    assert str(found[0]) == str(found[100])


OUTSIDE: dict[str, list[str]] = {
    "numeric(10,2)": ["NaN"],
    "date": ["infinity", "-infinity", "0044-03-15 BC", "10000-01-01"],
    "timestamp": ["infinity", "-infinity", "0044-03-15 12:00:00 BC", "294276-12-31 00:00:00"],
    "timestamptz": ["infinity", "0044-03-15 12:00:00+00 BC", "10000-01-01 00:00:00+00"],
    "time": ["24:00:00"],
    "integer[]": ["{{1,2},{3,NULL}}"],
    "text[]": ['{{a,"b c"},{NULL,"NULL"}}'],
    "numeric(9,2)[]": ["{NaN,1.00}"],
    "date[]": ["{infinity}", '{"0044-03-15 BC"}'],
}
"""Values that the type of the column cannot hold: another value in their place would be wrong."""
AS_JSON = {
    "{{1,2},{3,NULL}}": '[["1","2"],["3",null]]',
    '{{a,"b c"},{NULL,"NULL"}}': '[["a","b c"],[null,"NULL"]]',
    "{NaN,1.00}": '["NaN","1.00"]',
    "{infinity}": '["infinity"]',
    '{"0044-03-15 BC"}': '["0044-03-15 BC"]',
}


def test_values_outside_of_a_type_go_to_quarantine_and_are_exact_as_text(shop: Any) -> None:
    cases = [(kind, text) for kind, texts in OUTSIDE.items() for text in texts]
    columns = ", ".join(f"c{number} {kind}" for number, (kind, _) in enumerate(cases))
    for table in ("typed", "texts"):
        shop.sql(f"CREATE TABLE {table} (id int PRIMARY KEY, {columns})")
    shop.sql("CREATE PUBLICATION pub FOR ALL TABLES")

    def insert(first: int) -> None:
        for table in ("typed", "texts"):
            shop.sql(f"INSERT INTO {table} VALUES ({first + 99})")
            for number, (kind, text) in enumerate(cases):
                shop.sql(f"INSERT INTO {table} (id, c{number}) VALUES ({first + number}, '{text}'::{kind})")

    def ingest() -> Any:
        typed = shop.config("typed", max_quarantine_ratio=1.0)
        shop.ingest(typed)
        shop.source = {"slot": f"{shop.slot}_texts"}
        texts = shop.config("texts", types={f"c{number}": "string" for number in range(len(cases))})
        shop.ingest(texts)
        shop.source = {}
        return typed

    insert(0)
    ingest()
    insert(100)
    config = ingest()
    assert [row[0] for row in shop.rows(config, "typed")] == [99, 199]
    reasons = shop.reasons(config, "typed")
    assert len(reasons) == 2 * len(cases)
    found = {row[0]: row[1:] for row in shop.rows(config, "texts")}
    for first in (0, 100):
        for number, (kind, text) in enumerate(cases):
            assert any(reason.startswith(f"column c{number}: ") for reason in reasons), kind
            expected = [AS_JSON.get(text, text) if place == number else None for place in range(len(cases))]
            assert list(found[first + number]) == expected, (kind, text)


@pytest.mark.parametrize("rule", [None, "clamp"], ids=["null", "clamp"])
def test_infinite_dates_are_null_or_clamped(shop: Any, rule: str | None) -> None:
    kinds = ("date", "timestamp", "timestamptz", "date[]")
    shop.sql(f"CREATE TABLE typed (id int PRIMARY KEY, {', '.join(f'c{n} {kind}' for n, kind in enumerate(kinds))})")
    shop.sql("CREATE PUBLICATION pub FOR ALL TABLES")
    config = shop.config("typed", infinite_dates=rule)
    for first in (0, 100):
        for number, text in enumerate(("infinity", "-infinity", "0044-03-15 BC", "10000-01-01")):
            values = ", ".join(f"'{{{text}}}'" if kind.endswith("[]") else f"'{text}'" for kind in kinds)
            shop.sql(f"INSERT INTO typed VALUES ({first + number}, {values})")
        shop.ingest(config)
    assert shop.reasons(config, "typed") == []
    moments = dt.datetime(9999, 12, 31, 23, 59, 59, 999_999, UTC), dt.datetime(1, 1, 1, tzinfo=UTC)
    ends = [(m.date(), m.replace(tzinfo=None), m, [m.date()]) for m in moments]
    clamped = [ends[0], ends[1], ends[1], ends[0]]
    found = [tuple(row[1:]) for row in shop.rows(config, "typed")]
    assert found == 2 * (clamped if rule else [(None, None, None, [None])] * 4)


EXTENSIONS: dict[str, dict[str, list[tuple[str, Any]]]] = {
    "xml2": {"xml": [('<a b="c">&lt;\n</a>', '<a b="c">&lt;\n</a>')]},
    "hstore": {
        "hstore": [
            ('a=>1, "b c"=>NULL, "q\\"=>"=>"x,y"', [("a", "1"), ('q"=>', "x,y"), ("b c", None)]),
            ("", []),
            ('"NULL"=>"NULL"', [("NULL", "NULL")]),
        ],
    },
    "vector": {
        "vector(3)": [("[1,-2.5,1e-7]", [1.0, -2.5, pytest.approx(1e-7)])],
        "halfvec(2)": [("[0.5,2]", [0.5, 2.0])],
        "sparsevec(4)": [("{1:1.5,3:2}/4", "{1:1.5,3:2}/4")],
    },
}


@pytest.mark.slow
@pytest.mark.parametrize("extension", EXTENSIONS)
def test_types_of_extensions(extension: str, tmp_path: Path) -> None:
    programs_or_skip()
    having = [p for p in installed().values() if (folder_of_extensions(p) / f"{extension}.control").exists()]
    if not having:
        pytest.skip(f"no PostgreSQL here has {extension}")
    types = EXTENSIONS[extension]
    with postgres(having[0]) as server:
        shop = Shop(server, tmp_path)
        shop.sql("CREATE SCHEMA extra", f"CREATE EXTENSION {extension} SCHEMA extra", "SET search_path = public, extra")
        columns = ", ".join(f"c{number} {kind}" for number, kind in enumerate(types))
        shop.sql(f"CREATE TABLE items (id int PRIMARY KEY, {columns})", "CREATE PUBLICATION pub FOR TABLE items")
        rounds = max(map(len, types.values()))

        def insert(first: int) -> None:
            for number in range(rounds + 1):
                values = [cases[number][0] if number < len(cases) else None for cases in types.values()]
                with shop.connection.cursor() as cursor:
                    cursor.execute(f"INSERT INTO items VALUES (%s{', %s' * len(types)})", [first + number, *values])

        insert(0)
        config = shop.config("items")
        shop.ingest(config)
        insert(100)
        shop.ingest(config)
        assert shop.reasons(config, "items") == []
        found = {row[0]: row[1:] for row in shop.rows(config, "items")}
        for first in (0, 100):
            for number in range(rounds + 1):
                for (kind, cases), value in zip(types.items(), found[first + number], strict=True):
                    expected = cases[number][1] if number < len(cases) else None
                    assert (sorted(value) if kind == "hstore" and value else value) == (
                        sorted(expected) if kind == "hstore" and expected else expected
                    ), kind
        shop.connection.close()


def folder_of_extensions(programs: Path) -> Path:
    """Where a server has its extensions."""
    done = subprocess.run([programs / "pg_config", "--sharedir"], capture_output=True, text=True, check=True)
    return Path(done.stdout.strip()) / "extension"


def test_a_value_that_is_not_held_is_a_stale_key_until_its_row_is_right(shop: Any) -> None:
    shop.sql(
        "CREATE TABLE items (id int PRIMARY KEY, n numeric(10, 2))",
        "INSERT INTO items VALUES (1, 1), (2, 2), (3, 'NaN')",
    )
    shop.sql("CREATE PUBLICATION pub FOR TABLE items")
    config = shop.config("items", max_quarantine_ratio=1.0)

    def stale() -> list[str]:
        (result,) = run_checks(config, "shop.items", ["no_key_is_stale"])
        assert result.passed == (not result.details)
        return [number for number in "123" if f"id = {number}" in str(result.details)]

    shop.ingest(config)
    assert stale() == ["3"]
    shop.sql("UPDATE items SET n = 'NaN' WHERE id = 1", "UPDATE items SET n = 7 WHERE id = 3")
    shop.ingest(config)
    assert stale() == ["1"]
    resync_from_source(open_catalog(config), config, "shop.items")
    assert stale() == ["1"]
    resync_from_source(open_catalog(config), config, "shop.items")
    assert stale() == ["1"]
    shop.sql("DELETE FROM items WHERE id = 1")
    shop.ingest(config)
    assert stale() == []
