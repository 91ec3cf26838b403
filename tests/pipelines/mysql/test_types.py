"""Every type has the same exact values whether its rows were loaded or came from the binary log, old rows included."""

# ruff: noqa: DTZ001 - a datetime of MySQL has no time zone

import json
import struct
from datetime import UTC, date, datetime
from decimal import Decimal
from random import Random
from typing import Any

import pytest

from nevermore.checks.source_equality import mirror_equals_source
from nevermore.pipelines.sources.mysql.reader import MysqlReader
from tests.pipelines.mysql.conftest import BOTH, Shop

LATIN = "".join(map(chr, range(0xA0, 0x100)))
VALUES: dict[str, list[tuple[str, Any]]] = {
    "tinyint": [("-128", -128), ("127", 127), ("0", 0)],
    "tinyint unsigned": [("255", 255)],
    "smallint": [("-32768", -32768)],
    "smallint unsigned": [("65535", 65535)],
    "mediumint": [("-8388608", -8388608), ("-1", -1)],
    "mediumint unsigned": [("16777215", 16777215)],
    "int": [("-2147483648", -(2**31)), ("2147483647", 2**31 - 1)],
    "int unsigned zerofill": [("4294967295", 2**32 - 1), ("7", 7)],
    "bigint": [("-9223372036854775808", -(2**63)), ("9223372036854775807", 2**63 - 1)],
    "bigint unsigned": [("18446744073709551615", Decimal(2**64 - 1)), ("0", Decimal(0))],
    "bool": [("true", 1)],
    "decimal(10,2)": [("-12345678.90", Decimal("-12345678.90")), ("0.01", Decimal("0.01")), ("-0.01", Decimal("-0.01"))],
    "decimal(38,0)": [("9" * 38, Decimal("9" * 38)), ("-1", Decimal(-1))],
    "decimal(38,38)": [(f"-0.{'1' * 38}", Decimal(f"-0.{'1' * 38}"))],
    "decimal(19,10)": [("100000000.0000000001", Decimal("100000000.0000000001")), ("0", Decimal(0))],
    "decimal(65,30)": [(f"-{'9' * 35}.{'8' * 30}", f"-{'9' * 35}.{'8' * 30}"), ("1.5", f"1.5{'0' * 29}")],
    "float": [("0.1", 0.10000000149011612), ("-3.4028234e38", -3.4028234663852886e38), ("16777217", 16777216.0)],
    "double": [("0.1", 0.1), ("1.7976931348623157e308", 1.7976931348623157e308), ("-5e-324", -5e-324), ("1e20", 1e20)],
    "bit(1)": [("b'1'", True), ("b'0'", False)],
    "bit(9)": [("b'100000001'", 257)],
    "bit(64)": [("0xFFFFFFFFFFFFFFFF", Decimal(2**64 - 1))],
    "year": [("2024", 2024), ("1901", 1901), ("0", 0)],
    "date": [("'1000-01-01'", date(1000, 1, 1)), ("'9999-12-31'", date(9999, 12, 31)), ("'2024-02-29'", date(2024, 2, 29)),
             ("'0000-00-00'", None), ("'2024-00-10'", None)],
    "datetime": [("'1999-12-31 23:59:59'", datetime(1999, 12, 31, 23, 59, 59)), ("'0000-00-00 00:00:00'", None)],
    "datetime(1)": [("'2024-02-29 00:00:00.9'", datetime(2024, 2, 29, 0, 0, 0, 900_000))],
    "datetime(3)": [("'1000-01-01 00:00:00.001'", datetime(1000, 1, 1, 0, 0, 0, 1000))],
    "datetime(6)": [("'9999-12-31 23:59:59.999999'", datetime(9999, 12, 31, 23, 59, 59, 999_999))],
    "timestamp null": [("'2024-02-29 12:34:56'", datetime(2024, 2, 29, 12, 34, 56, tzinfo=UTC)), ("'0000-00-00 00:00:00'", None)],
    "timestamp(2) null": [("'1970-01-01 00:00:01.50'", datetime(1970, 1, 1, 0, 0, 1, 500_000, tzinfo=UTC))],
    "timestamp(6) null": [("'2038-01-19 03:14:07.999999'", datetime(2038, 1, 19, 3, 14, 7, 999_999, tzinfo=UTC)),
                          ("'2000-03-01 00:00:00.000001'", datetime(2000, 3, 1, 0, 0, 0, 1, tzinfo=UTC))],
    "time": [("'-838:59:59'", "-838:59:59"), ("'838:59:59'", "838:59:59"), ("'00:00:00'", "00:00:00")],
    "time(1)": [("'-00:00:00.1'", "-00:00:00.1")],
    "time(2)": [("'-12:30:00.50'", "-12:30:00.50"), ("'-00:00:01.00'", "-00:00:01.00")],
    "time(4)": [("'-00:00:00.0001'", "-00:00:00.0001"), ("'12:00:00.1234'", "12:00:00.1234")],
    "time(6)": [("'-100:00:00.000001'", "-100:00:00.000001"), ("'00:00:00.999999'", "00:00:00.999999")],
    "char(5)": [("'ab  '", "ab"), ("''", ""), ("'äöüß€'", "äöüß€")],
    "char(200) character set utf8mb4": [("'x'", "x"), (f"'{'🐦' * 200}'", "🐦" * 200)],
    "varchar(20)": [("'a\\\\b''c\\t\\n'", "a\\b'c\t\n"), ("'\\0'", "\0")],
    "varchar(300) character set latin1": [(f"'{LATIN}€'", f"{LATIN}€"), ("''", "")],
    "varchar(20) character set koi8r": [("'Ворон'", "Ворон")],
    "varchar(20) character set utf8mb3": [("'été €'", "été €")],
    "tinytext": [("'t'", "t")],
    "text": [("repeat('é', 30000)", "é" * 30000)],
    "mediumtext": [("repeat('m', 70000)", "m" * 70000)],
    "longtext": [("'l'", "l")],
    "json": [('\'{"a": [1, "ä", null]}\'', '{"a": [1, "ä", null]}')],
    "binary(4)": [("0x01020000", b"\x01\x02\0\0"), ("''", b"\0\0\0\0"), ("0xFFFFFFFF", b"\xff" * 4)],
    "binary(255)": [("0x01", b"\x01" + b"\0" * 254)],
    "varbinary(10)": [("0x00FF00", b"\0\xff\0"), ("''", b"")],
    "tinyblob": [("0x00", b"\0")],
    "blob": [("repeat(0xFE, 60000)", b"\xfe" * 60000)],
    "longblob": [("0xDEADBEEF", b"\xde\xad\xbe\xef")],
    "enum('a','b''c','ä,')": [("'a'", "a"), ("'b''c'", "b'c"), ("3", "ä,"), ("'no such'", "")],
    "enum('é') character set latin1": [("'é'", "é")],
    "set('x','y','ü')": [("'x,ü'", "x,ü"), ("''", ""), ("'y'", "y")],
    "int as (id * 2) virtual": [],
    "int as (id * 3) stored": [],
}  # fmt: skip
OF_MARIADB = {"decimal(38,38)"}


NOT_HASHED = {"float", "double", "decimal(38,38)"}


@pytest.mark.each(4)
@BOTH
@pytest.mark.parametrize("are_hashed", [False, True])
def test_values_are_exact_and_the_same_from_the_load_and_from_the_log(
    shop: Shop,
    monkeypatch: pytest.MonkeyPatch,
    are_hashed: bool,  # noqa: FBT001
) -> None:
    of_both = {kind: values for kind, values in VALUES.items() if shop.is_mariadb or kind not in OF_MARIADB}
    of_both = {kind: values for kind, values in of_both.items() if not (are_hashed and kind in NOT_HASHED)}
    names = {kind: f"c{at}" for at, kind in enumerate(of_both)}
    columns = ", ".join(f"{name} {kind}" for kind, name in names.items())
    given = {kind: values for kind, values in of_both.items() if values}
    shop.sql("SET sql_mode = ''", f"CREATE TABLE t (id int PRIMARY KEY, {columns}) ROW_FORMAT = DYNAMIC")
    depth = max(len(values) for values in given.values())
    listed = ", ".join(names[kind] for kind in given)

    def insert(first: int) -> None:
        for row in range(depth):
            literals = ", ".join(values[row][0] if row < len(values) else "NULL" for values in given.values())
            shop.sql(f"INSERT INTO t (id, {listed}) VALUES ({first + row}, {literals})")
        shop.sql(f"INSERT INTO t (id) VALUES ({first + depth})")

    insert(0)
    config = shop.config("t")
    shop.ingest(config)
    insert(100)
    insert(200)
    shop.sql("UPDATE t SET id = id + 100 WHERE id >= 200")  # new rows and old rows of updates
    shop.sql("INSERT INTO t (id) VALUES (999)")
    shop.ingest(config)
    rows = {row["id"]: row for row in shop.rows(config, "t")}
    assert len(rows) == 3 * (depth + 1) + 1
    if are_hashed:  # no row is read to be decoded
        monkeypatch.setattr(MysqlReader, "load", None)
    compared = mirror_equals_source(config, "shop.t")
    assert (compared.passed, compared.details) == (True, [])
    for first in (0, 100, 300):
        for row in range(depth + 1):
            found = rows[first + row]
            assert found[names["int as (id * 2) virtual"]] == 2 * (first + row)
            assert found[names["int as (id * 3) stored"]] == 3 * (first + row)
            for kind, values in given.items():
                expected = values[row][1] if row < len(values) else None
                assert found[names[kind]] == expected, (first, kind, row)
                assert type(found[names[kind]]) is type(expected), (first, kind, row)


@pytest.mark.each(6)
@pytest.mark.parametrize(
    ("kind", "said"),
    [
        ("point", "of type point"),
        ("uuid", "of type uuid"),
        ("inet6", "of type inet6"),
        ("varchar(5) character set gbk", "varchar in gbk"),
        ("enum('a') character set ucs2", "enum in ucs2"),
        ("varchar(50) compressed", "varchar compressed"),
    ],
)
def test_columns_that_cannot_be_read_are_refused_unless_excluded(shop: Shop, kind: str, said: str) -> None:
    if kind in {"uuid", "inet6", "varchar(50) compressed"} and not shop.is_mariadb:
        pytest.skip("MySQL has no such type")
    shop.sql(f"CREATE TABLE t (id int PRIMARY KEY, v int, c {kind})", "INSERT INTO t (id, v) VALUES (1, 1)")
    text = shop.error(shop.config("t"))
    assert said in text
    assert "exclude: [c]" in text
    config = shop.config("t", exclude=["c"])
    shop.ingest(config)
    if "compressed" in kind:  # in front of another column, which begins where it ends
        shop.sql("INSERT INTO t (c, id, v) VALUES (repeat('x', 40), 5, 5)", "DELETE FROM t WHERE id = 5")
    shop.sql("INSERT INTO t (id, v) VALUES (2, 2)", "UPDATE t SET v = 3 WHERE id = 1")
    shop.ingest(config)
    assert shop.values(config, "t") == [(1, 3), (2, 2)]


def test_time_of_day_can_be_asked_for(shop: Shop) -> None:
    shop.sql("CREATE TABLE t (id int PRIMARY KEY, v time)", "INSERT INTO t VALUES (1, '12:30:00')")
    config = shop.config("t", types={"v": "time"})
    shop.ingest(config)
    shop.sql("INSERT INTO t VALUES (2, '00:00:01')")
    shop.ingest(config)
    assert [str(row["v"]) for row in shop.rows(config, "t")] == ["12:30:00", "00:00:01"]


def test_dates_of_a_key_without_a_day_are_not_one_row(shop: Shop) -> None:
    shop.sql("SET sql_mode = ''", "CREATE TABLE t (id date PRIMARY KEY, n int)")
    shop.sql("INSERT INTO t VALUES ('0000-00-00', 1), ('2024-01-01', 2), ('2024-01-02', 2), ('2024-01-03', 3)")
    config = shop.config("t", max_quarantine_ratio=1)
    report = shop.ingest(config)
    assert (report.tables[0].rejected, len(shop.rows(config, "t"))) == (1, 3)
    shop.sql("INSERT INTO t VALUES ('2024-00-10', 5)", "UPDATE t SET n = 9 WHERE id = '0000-00-00'")
    shop.sql("UPDATE t SET n = 7 WHERE id = '2024-01-01'", "DELETE FROM t WHERE id = '2024-00-10'")
    report = shop.ingest(config)
    assert report.tables[0].rejected == 3
    assert [row["n"] for row in shop.rows(config, "t")] == [7, 2, 3]


@pytest.mark.each(2)
@BOTH
def test_signs_of_numbers_in_the_log_are_those_of_their_own_columns(shop: Shop) -> None:
    columns = "y year, a int unsigned, b int, c tinyint unsigned, f float, d decimal(5, 2) unsigned, e bigint, g double, h smallint unsigned"
    shop.sql(f"CREATE TABLE t (id int PRIMARY KEY, {columns}, i int)")
    config = shop.config("t")
    shop.ingest(config)
    shop.sql("INSERT INTO t VALUES (1, 2024, 4294967295, -1, 255, -1.5, 9.75, -5, -1.5, 65535, -7)")
    shop.ingest(config)
    assert shop.values(config, "t") == [(1, 2024, 2**32 - 1, -1, 255, -1.5, Decimal("9.75"), -5, -1.5, 65535, -7)]


DOCUMENTS = [
    "null", "true", "[]", "{}", "0", "-1", "-32768", "32767", "32768", "65535", "65536", "-32769", "2147483648", "-2147483649",
    "4294967296", "9223372036854775807", "-9223372036854775808", "18446744073709551615", "1.0", "100000.0", "1e15", "1e16", "1e20",
    "-0.0", "0.1", "1e-15", "1e-16", "1.5e-20", "5e-324", "1.7976931348623157e308", "123456.789", "-12345678901234567890.5",
    '""', '"a\\"b\\\\c\\n\\t\\b\\f\\r\\u0000\\u001f/é🐦"', '{"": 1, "bb": 2, "a": {"c": [1, [2, {"d": null}]]}}', "[1.5, [[], [{}]], false]",
]  # fmt: skip
EXPRESSIONS = [
    "JSON_ARRAY(CAST('2024-01-02 03:04:05.6' AS DATETIME(6)), CAST('-837:59:59.5' AS TIME(6)), CAST('2024-02-29' AS DATE))",
    "JSON_ARRAY(12345678901234567890123456789012345.123456789, CAST(-0.10 AS DECIMAL(10, 4)), -1.5, 0.0)",
    "JSON_ARRAY(b'101', 0xFF00, REPEAT(0xAB, 200), UNHEX(''))",
    "JSON_OBJECT('k', JSON_ARRAY(REPEAT('long', 40000)), 'l', 70000, 'm', -70000, 'n', 3000000000)",
    "JSON_ARRAY((SELECT JSON_ARRAYAGG(seq) FROM seq_1_to_20000))",
]


@pytest.mark.parametrize("server", [pytest.param("mysql")], indirect=True)
def test_json_of_mysql_has_the_text_that_the_server_writes(shop: Shop) -> None:
    random = Random(5)

    def value(depth: int) -> Any:
        kind = random.randrange(9 if depth else 7)
        if kind < 2:
            return random.choice([random.randrange(-(2**63), 2**64), random.randrange(-70000, 70000), 0])
        if kind == 2:
            return struct.unpack("<d", random.randbytes(7) + bytes([random.randrange(0x3E, 0x42)]))[0]
        if kind == 3:
            return random.choice([1, -1]) * random.random() * 10.0 ** random.randrange(-20, 22)
        if kind == 4:
            return random.choice([None, True, False])
        if kind < 7:
            return "".join(random.choices('ab"\\\n\x01é🐦', k=random.randrange(150)))
        if kind == 7:
            return [value(depth - 1) for _ in range(random.randrange(6))]
        return {random.choice("abc") * random.randrange(9): value(depth - 1) for _ in range(random.randrange(6))}

    def insert(first: int) -> None:
        texts = [*DOCUMENTS, *(json.dumps(value(4), ensure_ascii=False) for _ in range(300))]
        with shop.connection.cursor() as cursor:
            cursor.executemany("INSERT INTO t VALUES (%s, %s)", [(first + at, text) for at, text in enumerate(texts)])
        for at, expression in enumerate(EXPRESSIONS):
            shop.sql(f"INSERT INTO t VALUES ({first + len(texts) + at}, {expression})")
        shop.sql(f"INSERT INTO t VALUES ({first + 900}, NULL)")

    shop.sql("CREATE TABLE t (id int PRIMARY KEY, v json)")
    insert(0)
    config = shop.config("t")
    shop.ingest(config)
    insert(1000)
    insert(2000)
    shop.sql("UPDATE t SET id = id + 1000 WHERE id >= 2000", "UPDATE t SET v = JSON_SET(v, '$.a', 1) WHERE id > 3100")
    shop.ingest(config)
    assert shop.values(config, "t") == shop.sql("SELECT id, v FROM t ORDER BY id")


def test_floats_as_text_are_the_same_in_the_load_and_in_the_log(shop: Shop) -> None:
    values = ("1.1, 0.1", "16777217, 1e300", "1e-30, -0.0", "3.4e38, 123456789.123456789", "0.333333333333, 1e22", "1e15, 1e16", "NULL, 3", "2.5, NULL")  # fmt: skip
    shop.sql("CREATE TABLE t (id int PRIMARY KEY, a float, b double)")
    config = shop.config("t", types={"a": "string", "b": "string"})
    for first in (0, 100):
        for number, row in enumerate(values):
            shop.sql(f"INSERT INTO t VALUES ({first + number}, {row})")
        shop.ingest(config)
    found = {row[0]: row[1:] for row in shop.values(config, "t")}
    assert found[0] == ("1.1", "0.1")
    assert [found[n] for n in range(len(values))] == [found[100 + n] for n in range(len(values))]
