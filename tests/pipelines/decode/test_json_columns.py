"""Values of every type and encoding: what they become, and which are refused."""

import json
from base64 import b64encode
from datetime import UTC, date, datetime, time
from decimal import Decimal
from typing import Any
from uuid import UUID

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from nevermore.pipelines.decode.feed_schemas import mysql_type, postgres_type, value_type
from nevermore.pipelines.decode.json_columns import decode
from nevermore.pipelines.decode.value_types import Encoding, ValueType, from_arrow, with_plain_decimals
from nevermore.pipelines.jsonscan.members import scan_objects
from nevermore.pipelines.jsonscan.spans import from_binary

TZ = pa.timestamp("us", "UTC")
BAD = "<bad>"


def decoded(wanted: ValueType, *values: Any) -> list[Any]:
    """The decoded values of JSON values (or JSON texts as bytes), BAD where refused."""
    documents = [b'{"a":' + (v if isinstance(v, bytes) else json.dumps(v).encode()) + b"}" for v in values]
    column = scan_objects(from_binary(pa.array(documents, pa.binary()))).column("a")
    array, bad = decode(column, wanted)
    assert array.type == wanted.arrow
    array.validate(full=True)
    return [BAD if is_bad else value for value, is_bad in zip(array.to_pylist(), bad, strict=True)]


def logical(name: str, physical: str, **parameters: str) -> ValueType:
    return value_type({"type": physical, "name": name, "parameters": parameters})


CONNECT, DEBEZIUM = "org.apache.kafka.connect.data.", "io.debezium."
NAIVE = datetime.fromisoformat("2020-07-17T18:00:22.123456")


@pytest.mark.parametrize(
    ("wanted", "value", "result"),
    [
        (logical(CONNECT + "Date", "int32"), -719162, date(1, 1, 1)),
        (logical(CONNECT + "Time", "int32"), 64_822_000, time(18, 0, 22)),
        (logical(CONNECT + "Timestamp", "int64"), 1595008822123, NAIVE.replace(microsecond=123000)),
        (logical(CONNECT + "Decimal", "bytes", scale="4"), "EtaH", Decimal("123.4567")),
        (logical(CONNECT + "Decimal", "bytes", scale="2"), "7Q==", Decimal("-0.19")),
        (logical(CONNECT + "Decimal", "bytes", scale="-2"), b"12300", Decimal(12300)),
        (logical(DEBEZIUM + "time.Date", "int32"), 18460, date(2020, 7, 17)),
        (logical(DEBEZIUM + "time.Time", "int32"), 1000, time(0, 0, 1)),
        (logical(DEBEZIUM + "time.MicroTime", "int64"), 64_822_000_001, time(18, 0, 22, 1)),
        (logical(DEBEZIUM + "time.NanoTime", "int64"), 64_822_000_001_999, time(18, 0, 22, 1)),
        (logical(DEBEZIUM + "time.Timestamp", "int64"), -1, datetime.fromisoformat("1969-12-31T23:59:59.999")),
        (logical(DEBEZIUM + "time.MicroTimestamp", "int64"), 1595008822123456, NAIVE),
        (logical(DEBEZIUM + "time.NanoTimestamp", "int64"), 1595008822123456789, NAIVE),
        (
            logical(DEBEZIUM + "time.ZonedTimestamp", "string"),
            "2020-07-17T20:00:22.123456+02:00",
            NAIVE.replace(tzinfo=UTC),
        ),
        (
            logical(DEBEZIUM + "time.ZonedTimestamp", "string"),
            "2020-07-17T18:00:22.123456789Z",
            NAIVE.replace(tzinfo=UTC),
        ),
        (logical(DEBEZIUM + "time.Interval", "string"), "P0Y0M3DT0H0M0S", "P0Y0M3DT0H0M0S"),
        (logical(DEBEZIUM + "time.Year", "int32"), 2021, 2021),
        (logical(DEBEZIUM + "data.Bits", "bytes", length="64"), "BAQE", b"\4\4\4"),
        (logical(DEBEZIUM + "data.Json", "string"), '{"a": 1.50}', '{"a": 1.50}'),
        (logical(DEBEZIUM + "data.Enum", "string", allowed="red,blue"), "red", "red"),
        (logical(DEBEZIUM + "data.EnumSet", "string"), "a,b", "a,b"),
        (
            logical(DEBEZIUM + "data.Uuid", "string"),
            "00000000-0000-0001-0000-000000000002",
            UUID(int=1 << 64 | 2).bytes,
        ),
        (
            logical(DEBEZIUM + "data.VariableScaleDecimal", "struct"),
            {"scale": 2, "value": "EtaH"},
            "12345.67",
        ),
        (value_type({"type": "bytes"}), "EA==", b"\x10"),
        (value_type({"type": "array", "items": {"type": "int32"}}), [1, None], [1, None]),
        (value_type({"type": "map", "keys": {"type": "string"}, "values": {"type": "int64"}}), {"x": 1}, [("x", 1)]),
        (value_type({"type": "map", "keys": {"type": "int32"}, "values": {"type": "int64"}}), [[7, 1]], [(7, 1)]),
        (
            value_type(
                {
                    "type": "struct",
                    "name": DEBEZIUM + "data.geometry.Point",
                    "fields": [{"field": "x", "type": "double"}, {"field": "wkb", "type": "bytes"}],
                }
            ),
            {"x": 1, "wkb": "AQ==", "unknown": 1},
            {"x": 1.0, "wkb": b"\1"},
        ),
    ],
)
def test_connect_and_debezium_types_decode(wanted: ValueType, value: Any, result: Any) -> None:
    assert decoded(wanted, value, None) == [result, None]


@pytest.mark.each(2)
@pytest.mark.parametrize(
    ("wanted", "value", "result"),
    [
        (ValueType(pa.int64()), b"1.0", 1),
        (ValueType(pa.int64()), b"1e3", 1000),
        (ValueType(pa.int64()), "12", 12),
        (ValueType(pa.int64()), b"1.5", BAD),
        (ValueType(pa.int64()), "x", BAD),
        (ValueType(pa.int64()), b"9223372036854775808", BAD),
        (ValueType(pa.int64()), {"a": 1}, BAD),
        (ValueType(pa.int32()), 2**31, BAD),
        (ValueType(pa.int32()), True, 1),
        (ValueType(pa.float64()), "NaN", pytest.approx(float("nan"), nan_ok=True)),
        (ValueType(pa.float64()), "Infinity", float("inf")),
        (ValueType(pa.float64()), b"NaN", pytest.approx(float("nan"), nan_ok=True)),
        (ValueType(pa.float64()), "abc", BAD),
        (ValueType(pa.float64()), True, BAD),
        (ValueType(pa.string()), 5, BAD),
        (ValueType(pa.string(), explicit=True), b"5.50", "5.50"),
        (ValueType(pa.string()), [1, {"b": None}], '[1, {"b": null}]'),
        (ValueType(pa.bool_()), 1, True),
        (ValueType(pa.bool_()), "false", False),
        (ValueType(pa.bool_()), 2, BAD),
        (ValueType(pa.decimal128(10, 2)), b"1234567890123456789.12", BAD),
        (
            ValueType(pa.decimal128(38, 6)),
            b"12345678901234567890123456.789012",
            Decimal("12345678901234567890123456.789012"),
        ),
        (ValueType(pa.decimal128(10, 2)), b"1.005", BAD),
        (ValueType(pa.decimal128(10, 2)), "1.50", Decimal("1.50")),
        (ValueType(pa.decimal128(10, 2)), "!", BAD),
        (ValueType(pa.decimal128(20, 0), Encoding.BASE64), "AP//////////", Decimal(2**64 - 1)),
        (ValueType(pa.decimal128(10, 0), Encoding.BASE64), "AP//////////", BAD),
        (ValueType(pa.date32()), "2020-02-30", BAD),
        (ValueType(pa.date32()), "2020-02-29", date(2020, 2, 29)),
        (ValueType(pa.time64("us")), "23:59:59.999999", time(23, 59, 59, 999999)),
        (ValueType(pa.time64("us")), 86_400_000_000, BAD),
        (ValueType(pa.timestamp("us")), "2020-07-17 18:00:22.123456", NAIVE),
        (ValueType(pa.timestamp("us")), "Fri Jul 17 18:00:22 2020", NAIVE.replace(microsecond=0)),
        (ValueType(pa.timestamp("us")), "yesterday", BAD),
        (ValueType(pa.timestamp("us")), 1595008822123, NAIVE.replace(microsecond=123000)),
        (ValueType(pa.timestamp("us")), 1595008822123456, NAIVE),
        (ValueType(pa.timestamp("us"), Encoding.MICROS), 5, datetime.fromisoformat("1970-01-01T00:00:00.000005")),
        (ValueType(TZ), "2022-06-01 00:00:00+00", datetime(2022, 6, 1, tzinfo=UTC)),
        (ValueType(pa.binary()), "EA==", b"\x10"),
        (ValueType(pa.binary()), "E", BAD),
        (ValueType(pa.binary(), Encoding.HEX), "\\xdeadbeef", b"\xde\xad\xbe\xef"),
        (ValueType(pa.binary(), Encoding.LATIN1), "aé\x00", b"a\xe9\0"),
        (ValueType(pa.binary(), Encoding.LATIN1), "€", BAD),
        (ValueType(pa.binary(2)), "AQI=", b"\1\2"),
        (ValueType(pa.binary(2)), "AQ==", BAD),
        (from_arrow(pa.list_(pa.int64())), [1, "x"], BAD),
        (from_arrow(pa.struct([("x", pa.int64())])), {"x": "y"}, BAD),
        (from_arrow(pa.struct([("x", pa.int64())])), 5, BAD),
        (from_arrow(pa.map_(pa.string(), pa.int64())), {"k": "v"}, BAD),
    ],
)
def test_values_decode_or_are_refused(wanted: ValueType, value: Any, result: Any) -> None:
    good = None
    assert decoded(wanted, value, good) == [result, None]


def test_refused_values_leave_their_neighbours_alone() -> None:
    assert decoded(ValueType(pa.decimal128(5, 2)), b"1.25", b"1.255", None, b"2.5") == [
        Decimal("1.25"),
        BAD,
        None,
        Decimal("2.50"),
    ]
    assert decoded(ValueType(pa.timestamp("us")), "2020-01-01", "x", None, 0)[1:3] == [BAD, None]
    assert decoded(from_arrow(pa.map_(pa.string(), pa.int64())), {"k": 1}, {"k": "v"}, {"l": 2}) == [
        [("k", 1)],
        BAD,
        [("l", 2)],
    ]


def test_a_map_may_have_any_number_of_keys_but_none_of_them_twice() -> None:
    wanted = from_arrow(pa.map_(pa.string(), pa.int64()))
    rows = [{f"key {n}": n, 'q"\\é😀': 1} for n in range(3_000)]
    assert decoded(wanted, *rows) == [list(row.items()) for row in rows]
    many = {f"key {n}": n for n in range(5_000)}
    assert decoded(wanted, many, None, {}) == [list(many.items()), None, []]
    for twice in (b'{"a":1,"a":2}', b'{"a":1,"\\u0061":2}', [["a", 1], ["a", 2]]):
        assert decoded(wanted, {"a": 1}, twice, {"a": 3}) == [[("a", 1)], BAD, [("a", 3)]]


@given(st.lists(st.integers(-(10**37), 10**37), min_size=1))
def test_decimals_decode_exactly_in_all_three_modes(unscaled: list[int]) -> None:
    wanted = [Decimal(f"{n}e-3") for n in unscaled]
    precise = [
        b64encode(n.to_bytes((n + (n < 0)).bit_length() // 8 + 1, "big", signed=True)).decode() for n in unscaled
    ]
    as_declared = logical(CONNECT + "Decimal", "bytes", scale="3")
    assert decoded(as_declared, *precise) == wanted
    plain = ValueType(pa.decimal128(38, 3))
    assert decoded(plain, *[str(v) for v in wanted]) == wanted
    assert decoded(plain, *[str(v).encode() for v in wanted]) == wanted


UNDECIDED = [
    "10.50",
    "oops",
    "7",
    "1234",
    "AQ==",
    "AeJA",
    "NaN",
    "null",
    "-1.5",
    "1e2",
    "12345678",
    "+123",
    "EtaH",
    "none",
]


@pytest.mark.parametrize("others", [[], ["AQ=="], ["10.50"], ["oops", "12"], UNDECIDED])
def test_text_tells_by_itself_that_it_is_a_number_or_is_refused_whatever_stands_beside_it(others: list[str]) -> None:
    plain = ValueType(pa.decimal128(10, 2))
    expected = {"10.50": Decimal("10.50"), "7": Decimal(7), "-1.5": Decimal("-1.5"), "1e2": Decimal(100)}
    for text in UNDECIDED:
        assert decoded(plain, *others, text)[-1] == expected.get(text, BAD), text
        assert decoded(plain, text, *others)[0] == expected.get(text, BAD), text


@pytest.mark.parametrize("others", [[], ["AQ=="], ["10.50"], ["1234", "5678"]])
def test_encoding_that_is_known_reads_the_same_text_the_same_whatever_stands_beside_it(others: list[str]) -> None:
    base64, plain = (ValueType(pa.decimal128(10, 2), encoding) for encoding in (Encoding.BASE64, Encoding.PLAIN))
    assert decoded(base64, "1234", *others)[0] == Decimal("-26588.24")
    assert decoded(plain, "1234", *others)[0] == Decimal(1234)


@pytest.mark.parametrize("others", [[], ["AAECAwQFBgcICQoLDA0ODw=="], ["00010203-0405-0607-0809-0a0b0c0d0e0f"]])
def test_uuid_in_text_or_in_base64_tells_by_itself(others: list[str]) -> None:
    for text in ("AAECAwQFBgcICQoLDA0ODw==", "00010203-0405-0607-0809-0a0b0c0d0e0f"):
        assert decoded(ValueType(pa.binary(16)), text, *others)[0] == bytes(range(16))


def test_decimals_of_feeds_that_write_numbers_are_never_base64() -> None:
    plain = with_plain_decimals(ValueType(pa.decimal128(10, 2)))
    assert decoded(plain, "AQ==", "AeJA", "1200") == [BAD, BAD, Decimal(1200)]


@given(st.lists(st.binary(), min_size=1))
def test_bytes_decode_from_base64_and_hex(values: list[bytes]) -> None:
    assert decoded(ValueType(pa.binary(), Encoding.BASE64), *[b64encode(v).decode() for v in values]) == values
    assert decoded(ValueType(pa.binary(), Encoding.HEX), *[v.hex() for v in values]) == values


@pytest.mark.parametrize(
    ("name", "arrow"),
    [
        ("INT", pa.int32()),
        ("INTEGER", pa.int32()),
        ("int(11) unsigned", pa.int64()),
        ("bigint(20) unsigned zerofill", pa.decimal128(20, 0)),
        ("BIGINT UNSIGNED", pa.decimal128(20, 0)),
        ("NUMERIC(8,3)", pa.decimal128(8, 3)),
        ("NUMERIC(8, 3)", pa.decimal128(8, 3)),
        ("decimal(65,30)", pa.string()),
        ("decimal(38,30)", pa.decimal128(38, 30)),
        ("DECIMAL", pa.decimal128(10, 0)),
        ("VARCHAR(255)", pa.string()),
        ("enum('a','b')", pa.string()),
        ("VARBINARY(10)", pa.binary()),
        ("FLOAT", pa.float64()),
        ("datetime(6)", pa.timestamp("us")),
        ("bit(1)", pa.bool_()),
        ("bit(8)", pa.int64()),
    ],
)
def test_mysql_types(name: str, arrow: pa.DataType) -> None:
    assert mysql_type(name).arrow == arrow


@pytest.mark.parametrize(
    ("name", "arrow"),
    [
        ("integer", pa.int32()),
        ("bigint", pa.int64()),
        ("numeric(5,2)", pa.decimal128(5, 2)),
        ("numeric", pa.string()),
        ("timestamp with time zone", TZ),
        ("timestamp(3) without time zone", pa.timestamp("us")),
        ("timestamp(3) with time zone", TZ),
        ("time with time zone", pa.string()),
        ("time without time zone", pa.time64("us")),
        ("double precision", pa.float64()),
        ("character varying(30)", pa.string()),
        ("integer[]", pa.string()),
        ("_int4", pa.string()),
        ("uuid", pa.binary(16)),
        ("bytea", pa.binary()),
        ('"my enum"', pa.string()),
    ],
)
def test_postgres_types(name: str, arrow: pa.DataType) -> None:
    assert postgres_type(name).arrow == arrow
