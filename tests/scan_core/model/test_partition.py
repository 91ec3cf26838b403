"""Partition tuples: canonical form, and back."""

import math
import struct
from typing import Any

import pytest

from nevermore.scan_core.model.schema import NestedField, PrimitiveType
from nevermore.scan_core.model.snapshot import PartitionField, PartitionSpec
from nevermore.scan_core.model.transforms import normalise_value, partition_types, partition_value

DOUBLE = PrimitiveType("double")
OTHER_NAN = struct.unpack("<d", struct.pack("<q", 0x7FF8000000000001))[0]


def test_rule_05_null_equals_null() -> None:
    assert normalise_value(None, DOUBLE) is None


def test_rule_05_floats_are_equal_by_bits_with_nan_normalised() -> None:
    def bits_of(value: float) -> Any:
        return normalise_value(value, DOUBLE)

    assert bits_of(math.nan) == bits_of(OTHER_NAN) == bits_of(-math.nan)
    assert bits_of(0.0) != bits_of(-0.0)
    assert bits_of(1.5) == normalise_value(1.5, PrimitiveType("float"))
    assert bits_of(1) == bits_of(1.0)


@pytest.mark.parametrize("value", [1.5, -0.0, math.inf, None])
def test_canonical_values_give_back_what_they_were(value: float | None) -> None:
    found = partition_value(normalise_value(value, DOUBLE), DOUBLE)
    assert found == value
    if value is not None:
        assert math.copysign(1, found) == math.copysign(1, value)


def test_types_follow_transform_and_newest_source_type() -> None:
    def field(number: int, source: int, transform: str) -> PartitionField:
        return PartitionField(1000 + number, source, f"p{number}", transform)

    paths = {
        1: (NestedField(1, "a", PrimitiveType("long")),),
        2: (NestedField(2, "b", PrimitiveType("timestamp")),),
    }
    spec = PartitionSpec(
        0,
        (
            field(0, 1, "identity"),
            field(1, 1, "bucket[4]"),
            field(2, 2, "day"),
            field(3, 2, "zorder"),
            field(4, 9, "identity"),
        ),
    )
    assert [str(t) for t in partition_types(spec, paths)] == ["long", "int", "date", "unknown", "unknown"]
