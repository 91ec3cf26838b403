"""Strings to other types: the notations Spark accepts. Each value is what Spark 4.3 gives."""

import datetime as dt
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest

from nevermore.scan_core.expr import kernels
from nevermore.scan_core.expr.bind import bind
from nevermore.scan_core.expr.bound import children
from nevermore.scan_core.expr.casts import cast
from nevermore.scan_core.expr.coercion import STRING
from nevermore.scan_core.model.schema import PrimitiveType, arrow_type, parse_schema, parse_type

FAILS = object()


def utc(*parts: int) -> dt.datetime:
    return dt.datetime(*parts, tzinfo=dt.UTC)  # type: ignore[misc,arg-type]


@pytest.mark.parametrize(
    ("target", "expected"),
    [
        (
            "int",
            {"1": 1, "-1": -1, "+1": 1, " 1 ": 1, "\t1\n": 1, "1\0": 1, "0" * 50 + "12": 12, "2147483647": 2**31 - 1}
            | dict.fromkeys(["", "1.5", "1e3", "--1", "1 2", "1L", "\uff19", "2147483648", "\u00a01"], FAILS),
        ),
        ("long", {"9223372036854775807": 2**63 - 1, "9223372036854775808": FAILS, "9" * 45: FAILS}),
        (
            "double",
            {"1.5": 1.5, "1.": 1.0, ".5": 0.5, "1E-3": 1e-3, "-1e-3": -1e-3, "inf": float("inf"), "1d": 1.0, "1F": 1.0}
            | {"-Infinity": float("-inf"), "1e400": float("inf")}
            | dict.fromkeys([".", "1,000", "1e", "e1", "", "Infinityd", "x"], FAILS),
        ),
        (
            "decimal(38, 10)",
            {
                "1.5": Decimal("1.5"),
                "1e3": Decimal(1000),
                "-1e-3": Decimal("-0.001"),
                "12345678901234567890123456789": FAILS,
            }
            | {
                "0.00000000000000000000000000000000000001": Decimal(0),
                "0.00000000005": Decimal("0.0000000001"),
                "inf": FAILS,
            },
        ),
        (
            "decimal(5, 2)",
            {"1.005": Decimal("1.01"), "-1.005": Decimal("-1.01"), "999.994": Decimal("999.99"), "999.995": FAILS},
        ),
        (
            "boolean",
            {"true": True, "T": True, "yes": True, "Y": True, "1": True, "0": False, "n": False, " False ": False}
            | dict.fromkeys(["on", "off", "2", ""], FAILS),
        ),
        (
            "date",
            {"2020": dt.date(2020, 1, 1), "2020-2": dt.date(2020, 2, 1), "2020-2-3": dt.date(2020, 2, 3)}
            | {
                "2020-01-01 x": dt.date(2020, 1, 1),
                "2020-01-01T10": dt.date(2020, 1, 1),
                "2024-02-29": dt.date(2024, 2, 29),
            }
            | dict.fromkeys(["2020-02-30", "2020-13-01", "202-01-01", "2020-001-01", "2020-01-01xyz", "1e3"], FAILS),
        ),
        (
            "timestamptz",
            {
                "2020-01-01": utc(2020, 1, 1),
                "2020-01-01 10": utc(2020, 1, 1, 10),
                "2020-1-1 1:2:3": utc(2020, 1, 1, 1, 2, 3),
            }
            | {"2020-01-01 10:05:06.1234567": utc(2020, 1, 1, 10, 5, 6, 123_456), "2020": utc(2020, 1, 1)}
            | {
                "2020-01-01 10:05:06+1:30": utc(2020, 1, 1, 8, 35, 6),
                "2020-01-01T10:05:06 UTC": utc(2020, 1, 1, 10, 5, 6),
            }
            | {
                "2020-01-01 10:05:06 GMT+1": utc(2020, 1, 1, 9, 5, 6),
                "2020-01-01 10:05:06-18:00": utc(2020, 1, 2, 4, 5, 6),
            }
            | {"2020-01-01 10:05:06-01:02:03": utc(2020, 1, 1, 11, 7, 9)}
            | dict.fromkeys(["2020-01-01T", "2020-01-01 24:00:00", "2020-01-01 10:60:00", "2020-01-01  10:05"], FAILS)
            | dict.fromkeys(["2020-01-01 10:05:06-19:00", "10", "2020-01-01 10:05Z"], FAILS),
        ),
        (
            "timestamp",
            {"2020-01-01 10:05:06+01:30": dt.datetime(2020, 1, 1, 10, 5, 6)},  # noqa: DTZ001  # the zone is ignored
        ),
        ("timestamp_ns", {"1970-01-01 00:00:00.000000999": 999}),
        ("time", {"10:30": dt.time(10, 30), "23:59:59.5": dt.time(23, 59, 59, 500_000), "24:00": FAILS}),
        ("uuid", {"00000000-0000-0000-0000-0000000000FF": bytes(15) + b"\xff", "ff": FAILS}),
        ("binary", {" ä": " ä".encode()}),
    ],
)
def test_strings_are_read_as_spark_reads_them(target: str, expected: dict[str, Any]) -> None:
    type_ = parse_type(target)
    result = cast(pa.array([*expected, None]), STRING, type_)
    failed = [False] * (len(expected) + 1) if result.failed is None else result.failed.tolist()
    values = result.values.cast(pa.int64()) if target == "timestamp_ns" else result.values
    got = {
        text: FAILS if bad else value for text, value, bad in zip(expected, values.to_pylist(), failed, strict=False)
    }
    assert got == expected
    assert values[-1].as_py() is None
    assert not failed[-1]


def test_numbers_that_do_not_fit_fail_alone() -> None:
    doubles = pa.array([1.9, -1.9, 2147483648.0, float("nan"), float("inf"), None])
    result = cast(doubles, PrimitiveType("double"), PrimitiveType("int"))
    assert result.values.to_pylist() == [1, -1, None, None, None, None]
    assert result.failed is not None
    assert result.failed.tolist() == [False, False, True, True, True, False]


def test_nan_becomes_null_in_decimals_as_in_spark() -> None:
    result = cast(pa.array([float("nan"), 1e300, 1.255]), PrimitiveType("double"), parse_type("decimal(10, 2)"))
    assert result.values.to_pylist() == [None, None, Decimal("1.26")]
    assert result.failed is not None
    assert result.failed.tolist() == [False, True, False]


def test_decimals_become_the_nearest_double() -> None:
    exact = pa.array([Decimal("0.1"), Decimal("12345678901234567.89")], pa.decimal128(30, 13))
    result = cast(exact, parse_type("decimal(30, 13)"), PrimitiveType("double"))
    assert result.values.to_pylist() == [0.1, 12345678901234567.89]


def test_timestamps_of_one_unit_beyond_the_other_fail() -> None:
    far = pa.array([dt.datetime(9999, 1, 1), dt.datetime(2000, 1, 1)], pa.timestamp("us"))  # noqa: DTZ001
    result = cast(far, PrimitiveType("timestamp"), PrimitiveType("timestamp_ns"))
    assert result.failed is not None
    assert result.failed.tolist() == [True, False]


@pytest.mark.parametrize(
    ("kind", "value", "expected"),
    [
        ("date", 2_932_897, "+10000-01-01"),
        ("date", 2_932_896, "9999-12-31"),
        ("timestamp", 253_402_300_800_000_000, "+10000-01-01 00:00:00"),
        ("timestamptz", 253_402_300_800_000_001, "+10000-01-01 00:00:00.000001"),
        ("long", 2**62, "4611686018427387904"),
        (
            "uuid",
            b"\x12\x34\x56\x78\x12\x34\x12\x34\x12\x34\x12\x34\x56\x78\x90\x12",
            "12345678-1234-1234-1234-123456789012",
        ),
    ],
    ids=repr,
)
def test_years_of_more_than_four_digits_have_a_sign(kind: str, value: object, expected: str) -> None:
    array = pa.array([value], pa.int32() if kind == "date" else None)
    held = arrow_type(PrimitiveType(kind))
    array = array.cast(pa.binary(16)) if kind == "uuid" else array.view(held)
    assert cast(array, PrimitiveType(kind), PrimitiveType("string")).values.to_pylist() == [expected]


@pytest.mark.parametrize(
    ("call", "kind", "good", "bad", "expected"),
    [
        ("cast(c as string) = 'ok'", "binary", b"ok", b"\xff", "ok"),
        ("-c < 0", "int", 7, -(2**31), -7),
        ("-c < 0", "long", 7, -(2**63), -7),
        ("abs(c) > 0", "long", -7, -(2**63), 7),
    ],
)
def test_many_values_without_a_result_fail_in_one_pass_over_the_column(
    call: str, kind: str, good: Any, bad: Any, expected: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    schema = parse_schema({"type": "struct", "fields": [{"id": 1, "name": "c", "type": kind}]})
    node = next(iter(children(bind(call, schema).conjuncts[0])))
    values = [good, bad, None] * 1_000
    passes = []
    monkeypatch.setattr(kernels, "_computed", lambda *a, real=kernels._computed: passes.append(1) or real(*a))
    found = kernels.vector_of(node, kernels.Frame({1: pa.array(values, arrow_type(parse_type(kind)))}, len(values)))
    assert found.values.to_pylist() == [expected, None, None] * 1_000
    assert found.failed is not None
    assert found.failed.tolist() == [False, True, False] * 1_000
    assert found.reason
    assert len(passes) <= 3
