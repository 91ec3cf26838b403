"""Iceberg's binary single values, both ways."""

import decimal
import struct
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nevermore.scan_core.model.schema import PrimitiveType
from nevermore.scan_core.model.statistics import decimal_of, decode_bound, unscaled_value
from tests.support.bound_bytes import encode_bound

D38 = PrimitiveType("decimal", (38, 10))


@pytest.mark.parametrize(
    ("kind", "value", "data"),
    [
        ("boolean", True, b"\1"),
        ("int", -2, b"\xfe\xff\xff\xff"),
        ("long", 34, b"\x22" + b"\0" * 7),
        ("float", 1.5, struct.pack("<f", 1.5)),
        ("double", -0.5, struct.pack("<d", -0.5)),
        ("date", -1, b"\xff\xff\xff\xff"),
        ("time", 5, struct.pack("<q", 5)),
        ("timestamp", -7, struct.pack("<q", -7)),
        ("timestamptz_ns", 7, struct.pack("<q", 7)),
        ("string", "grün", "grün".encode()),
        ("uuid", bytes(range(16)), bytes(range(16))),
        ("binary", b"", b""),
        ("fixed", b"ab", b"ab"),
    ],
)
def test_values_go_both_ways(kind: str, value: Any, data: bytes) -> None:
    parameters = (2,) if kind == "fixed" else ()
    assert encode_bound(value, PrimitiveType(kind, parameters)) == data
    assert decode_bound(data, PrimitiveType(kind, parameters)) == value


@given(st.integers(-(10**38) + 1, 10**38 - 1))
def test_decimals_of_any_width_are_exact(unscaled: int) -> None:
    value = decimal_of(unscaled, 10)
    assert unscaled_value(value, 10) == unscaled
    assert decode_bound(encode_bound(value, D38), D38) == value


def test_decimals_use_the_fewest_bytes() -> None:
    assert encode_bound(decimal.Decimal("1.28"), PrimitiveType("decimal", (9, 2))) == b"\x00\x80"
    assert encode_bound(decimal.Decimal("-1.28"), PrimitiveType("decimal", (9, 2))) == b"\xff\x80"
    with pytest.raises(ValueError, match="more than 1 digits"):
        unscaled_value(decimal.Decimal("0.11"), 1)


@pytest.mark.parametrize(
    ("data", "kind", "expected"),
    [
        (struct.pack("<i", -3), "long", -3),
        (struct.pack("<f", 0.25), "double", 0.25),
        (struct.pack("<i", 2), "timestamp", 2 * 86_400_000_000),
        (struct.pack("<i", -2), "timestamp_ns", -2 * 86_400_000_000_000),
    ],
)
def test_rule_13_bounds_from_before_a_promotion_are_promoted(data: bytes, kind: str, expected: Any) -> None:
    assert decode_bound(data, PrimitiveType(kind)) == expected


@pytest.mark.parametrize(
    ("data", "kind"),
    [
        (None, "int"),
        (b"\0\0\0", "int"),
        (b"", "long"),
        (b"\xff\xfe", "string"),
        (b"\0" * 15, "uuid"),
        (b"", "decimal"),
        (b"\0" * 40, "decimal"),
        (struct.pack("<d", float("nan")), "double"),
        (b"\1\1", "boolean"),
        (b"", "unknown"),
        (b"x", "variant"),
        (struct.pack("<q", 2**31), "int"),
        (struct.pack("<q", -(2**31) - 1), "date"),
        (struct.pack("<i", 2**31 - 1), "timestamp_ns"),
    ],
)
def test_rule_20_what_does_not_decode_is_unknown(data: bytes | None, kind: str) -> None:
    assert decode_bound(data, PrimitiveType(kind, (9, 2) if kind == "decimal" else ())) is None
