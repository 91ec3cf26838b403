from typing import Any

import pyarrow as pa
import pytest

from checks.expectations import declared_expectations, expectations_of_schema, meets_expectations
from scan_core.model.schema import NestedField, PrimitiveType, Schema

ROWS = pa.table({"id": pa.array([1, 2, 2, None], pa.int64()), "name": ["a", "b", None, "zz"]})


@pytest.mark.parametrize(
    ("declared", "passes", "offending"),
    [
        ({"not_null": ["id"]}, False, [None]),
        ({"not_null": []}, True, []),
        ({"unique": ["id"]}, False, [2, 2]),
        ({"unique": [["id", "name"]]}, True, []),
        ({"between": {"id": [1, 2]}}, True, []),
        ({"between": {"id": [2, None]}}, False, [1]),
        ({"in_set": {"name": ["a", "b", "zz"]}}, True, []),
        ({"matches": {"name": "^.$"}}, False, [None]),
        ({"row_count": [4, 4]}, True, []),
        ({"row_count": [5, None]}, False, []),
        ({"expectations": [{"expect_column_values_to_be_null": {"column": "name"}}]}, False, [1, 2, None]),
        ({"expectations": [{"expect_column_values_to_be_null": {"column": "gone"}}]}, False, []),
    ],
    ids=str,
)
def test_expectation_decides_and_names_offending_keys(
    declared: dict[str, Any],
    offending: list[int | None],
    *,
    passes: bool,
) -> None:
    result = meets_expectations(ROWS, declared_expectations(declared), key=["id"])
    assert result.passed is passes
    assert [row["id"] for row in result.offending_keys] == offending
    assert bool(result.details) is not passes


def test_schema_promises_required_columns_and_the_key() -> None:
    schema = Schema(
        0,
        (
            NestedField(1, "id", PrimitiveType("long"), required=True),
            NestedField(2, "name", PrimitiveType("string")),
        ),
    )
    result = meets_expectations(ROWS, expectations_of_schema(schema, ["id", "name"]), key=["id"])
    assert result.details == ["expect_column_values_to_not_be_null(column='id'): 1 of 4 rows do not"]


def test_unknown_expectation_is_refused_with_the_valid_ones() -> None:
    with pytest.raises(ValueError, match="unknown expectation 'not_nul'; valid expectations are between"):
        declared_expectations({"not_nul": ["id"]})


def test_large_integers_beside_nulls_keep_their_value() -> None:
    rows = pa.table({"id": pa.array([2**53 + 1, 2**53, None], pa.int64())})
    assert meets_expectations(rows, declared_expectations({"unique": ["id"]})).passed
