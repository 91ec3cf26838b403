"""Keys of another type than their column: the same value, or none; never an error of Arrow."""

from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest

from nevermore.scan_core.joins.key_set import as_column_values
from nevermore.scan_core.model.schema import parse_type

_DAY = 86_400_000


@pytest.mark.parametrize(
    ("keys", "column_type", "expected"),
    [
        (
            pa.array([_DAY, _DAY + 1, -_DAY, None, 2**62], pa.int64()).view(pa.date64()),
            "date",
            [1, None, -1, None, None],
        ),
        (pa.array([Decimal("0." + "1" * 38), Decimal(0)], pa.decimal128(38, 38)), "decimal(38,0)", [None, 0]),
        (pa.array([Decimal(10) ** 37, Decimal(10) ** 35]), "decimal(38,2)", [None, 10**35]),
        (pa.array([1.0, 1.5, None], pa.float16()), "int", [1, None, None]),
        (pa.array([1.5, -0.0], pa.float16()), "double", [1.5, 0.0]),
        (pa.array([5, 2**31, 2**32 - 1], pa.uint32()), "int", [5, None, None]),
        (pa.array([7, 2**63, 2**64 - 1], pa.uint64()), "long", [7, None, None]),
        (pa.array([2**53, 2**53 + 1, 2**62]), "double", [2.0**53, None, 2.0**62]),
        (pa.array([12, 1_000, 10**17]), "decimal(5,2)", [Decimal(12), None, None]),
        (pa.array([Decimal("0.5"), Decimal(0)], pa.decimal128(38, 38)), "int", [None, 0]),
        (pa.array([1e300, float("nan"), -3.0]), "int", [None, None, -3]),
    ],
    ids=[
        "days in milliseconds",
        "digits after the point",
        "digits before it",
        "half to whole",
        "half to double",
        "unsigned",
        "unsigned of 64 bits",
        "whole to double",
        "whole to decimal",
        "decimal to whole",
        "double to whole",
    ],
)
def test_keys_that_no_value_of_the_column_equals_are_null(
    keys: pa.Array, column_type: str, expected: list[Any]
) -> None:
    found = as_column_values(keys, "k", parse_type(column_type))
    if column_type == "date":
        found = found.cast(pa.int32())
    assert found.to_pylist() == expected
