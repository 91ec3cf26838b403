"""Every type has exact values, in a load as in the stream."""

import datetime as dt
import uuid
from decimal import Decimal
from typing import Any

import pytest

UTC = dt.UTC
TYPES: dict[str, list[tuple[str, Any]]] = {
    "smallint": [("-32768", -32768), ("32767", 32767)],
    "integer": [("-2147483648", -(2**31)), ("0", 0)],
    "bigint": [("-9223372036854775808", -(2**63)), ("9223372036854775807", 2**63 - 1)],
    "oid": [("4294967295", 2**32 - 1)],
    "numeric(12,3)": [("123456789.125", Decimal("123456789.125")), ("-0.001", Decimal("-0.001"))],
    "numeric(38,0)": [("9" * 38, Decimal("9" * 38))],
    "numeric": [("1.5", Decimal("1.5")), ("-12345678901234567890.0123456789", Decimal("-12345678901234567890.0123456789"))],
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
    "interval": [("1 year 2 mons 3 days 04:05:06.7", "1 year 2 mons 3 days 04:05:06.7")],
    "uuid": [("a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11", uuid.UUID("a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11"))],
    "json": [('{"a": [1, null, "x\\ny"]}', None)],
    "jsonb": [('{"a": [1, null, "x\\ny"]}', None)],
    "inet": [("192.168.0.1/24", "192.168.0.1/24")],
    "cidr": [("10.0.0.0/8", "10.0.0.0/8")],
    "macaddr": [("08:00:2b:01:02:03", "08:00:2b:01:02:03")],
    "bit(5)": [("10101", "10101")],
    "bit varying": [("101", "101")],
    "money": [("12.34", "$12.34")],
    "point": [("(1,2)", "(1,2)")],
    "tsvector": [("a fat cat", "'a' 'cat' 'fat'")],
    "int4range": [("[1,5)", "[1,5)"), ("empty", "empty")],
    "mood": [("happy", "happy")],
    "positive": [("7", 7)],
    "amount": [("7.25", Decimal("7.25"))],
    "pair": [('(1,"a,b")', '(1,"a,b")')],
    "integer[]": [("{1,NULL,-3}", [1, None, -3]), ("{}", [])],
    "text[]": [('{a,"b,c","q\\"uote","back\\\\slash",NULL,"NULL",""}', ["a", "b,c", 'q"uote', "back\\slash", None, "NULL", ""])],
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


def test_every_type_has_exact_values_in_loads_and_streams(shop: Any) -> None:
    columns = {f"c{i}": kind for i, kind in enumerate(TYPES)}
    shop.sql(
        *DEFINITIONS,
        f"CREATE TABLE items (id int PRIMARY KEY, {', '.join(f'{name} {kind}' for name, kind in columns.items())})",
        "CREATE PUBLICATION pub FOR TABLE items",
    )
    rounds = max(map(len, TYPES.values()))

    def insert(first: int) -> None:
        for number in range(rounds + 1):
            values = [cases[number][0] if number < len(cases) else None for cases in TYPES.values()]
            with shop.connection.cursor() as cursor:
                places = ", ".join(f"%s::{kind}" for kind in TYPES)
                cursor.execute(f"INSERT INTO items VALUES (%s, {places})", [first + number, *values])

    insert(0)
    config = shop.config("items")
    shop.ingest(config)
    insert(100)
    shop.ingest(config)
    assert shop.reasons(config, "items") == []
    found = {row[0]: row[1:] for row in shop.rows(config, "items")}
    assert len(found) == 2 * (rounds + 1)
    for first in (0, 100):
        for number in range(rounds + 1):
            for (kind, cases), value in zip(TYPES.items(), found[first + number], strict=True):
                if number >= len(cases):
                    assert value is None, (kind, first)
                    continue
                text, expected = cases[number]
                assert value == (
                    text if expected is None and kind != "jsonb" else expected if expected is not None else value
                ), (kind, first)
    assert str(found[0]) == str(found[100])
