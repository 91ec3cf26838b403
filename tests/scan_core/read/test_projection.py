""""""

import datetime as dt
import decimal
from typing import Any

import pyarrow as pa
import pytest

from nevermore.scan_core.model.errors import MalformedTableError
from nevermore.scan_core.model.schema import arrow_type
from nevermore.scan_core.read.projection import Constant, FromFile
from tests.scan_core.read.builders import arrow_field, schema_of
from tests.scan_core.read.projected_columns import projection_of


def converted(file_field: pa.Field, array: pa.Array, field: dict[str, Any]) -> pa.Array:
    schema = schema_of(field)
    source = projection_of(pa.schema([file_field]), schema).column(schema.fields[0])
    assert isinstance(source, FromFile)
    result = source.convert(array)
    assert result.type == arrow_type(schema.fields[0].type)
    result.validate(full=True)
    return result


def test_rule_14_renamed_and_reordered_columns_are_found_by_id() -> None:
    schema = schema_of({"id": 2, "name": "key", "type": "long"}, {"id": 1, "name": "v", "type": "long"})
    file_schema = pa.schema([arrow_field("key", pa.int64(), 1), arrow_field("old.name", pa.int64(), 2)])
    projection = projection_of(file_schema, schema)
    assert [projection.column(f).index for f in schema.fields] == [1, 0]  # type: ignore[union-attr]
    assert all(projection.column(f).is_identity for f in schema.fields)  # type: ignore[union-attr]


@pytest.mark.parametrize(
    ("stored", "values", "table_type", "expected"),
    [
        (pa.int32(), [1, None, -(2**31)], "long", [1, None, -(2**31)]),
        (pa.float32(), [1.5, None], "double", [1.5, None]),
        (
            pa.decimal128(9, 2),
            [decimal.Decimal("1.25"), None],
            "decimal(38, 2)",
            [decimal.Decimal("1.25"), None],
        ),
        (pa.date32(), [dt.date(2020, 1, 2), None], "timestamp", [dt.datetime(2020, 1, 2), None]),  # noqa: DTZ001
        (pa.null(), [None, None], "string", [None, None]),
        (pa.large_string(), ["a", None], "string", ["a", None]),
        (pa.binary(), [b"a", None], "string", ["a", None]),
        (pa.string(), ["a", None], "binary", [b"a", None]),
        (pa.large_binary(), [b"ab"], "fixed[2]", [b"ab"]),
        (pa.time32("ms"), [dt.time(1, 2, 3)], "time", [dt.time(1, 2, 3)]),
        (pa.timestamp("ms"), [dt.datetime(1969, 1, 1)], "timestamp", [dt.datetime(1969, 1, 1)]),  # noqa: DTZ001
        (
            pa.timestamp("us", "Europe/Berlin"),
            [dt.datetime(2020, 1, 1, tzinfo=dt.UTC)],
            "timestamptz",
            [dt.datetime(2020, 1, 1, tzinfo=dt.UTC)],
        ),
    ],
)
def test_rule_13_promoted_values_are_exact(
    stored: pa.DataType, values: list[Any], table_type: str, expected: list[Any]
) -> None:
    result = converted(
        arrow_field("c", stored, 1), pa.array(values, stored), {"id": 1, "name": "c", "type": table_type}
    )
    assert result.to_pylist() == expected


def test_rule_13_date_promoted_to_nanoseconds_and_far_dates_are_refused_not_null() -> None:
    near = converted(
        arrow_field("c", pa.date32(), 1),
        pa.array([1], pa.date32()),
        {"id": 1, "name": "c", "type": "timestamptz_ns"},
    )
    assert near.cast(pa.int64()).to_pylist() == [86_400_000_000_000]
    with pytest.raises(MalformedTableError, match=r"data.parquet: column 'c' \(id 1\)"):
        converted(
            arrow_field("c", pa.date32(), 1),
            pa.array([10_000_000], pa.date32()),
            {"id": 1, "name": "c", "type": "timestamp_ns"},
        )


def test_rule_13_value_too_wide_for_its_column_is_refused_not_null() -> None:
    with pytest.raises(MalformedTableError, match="does not fit int"):
        converted(arrow_field("c", pa.int64(), 1), pa.array([2**40]), {"id": 1, "name": "c", "type": "int"})


def test_types_without_promotion_are_refused() -> None:
    with pytest.raises(MalformedTableError, match="neither becomes the other"):
        converted(arrow_field("c", pa.string(), 1), pa.array(["1"]), {"id": 1, "name": "c", "type": "long"})


def test_rule_17_nanoseconds_are_cut_towards_the_past() -> None:
    stored = pa.array([-1, 1_999, None], pa.timestamp("ns"))
    result = converted(arrow_field("c", pa.timestamp("ns"), 1), stored, {"id": 1, "name": "c", "type": "timestamp"})
    assert result.cast(pa.int64()).to_pylist() == [-1, 1, None]


def test_struct_members_are_added_dropped_renamed_reordered_and_promoted() -> None:
    file_type = pa.struct(
        [arrow_field("a", pa.int32(), 2), arrow_field("gone", pa.string(), 3), arrow_field("b", pa.string(), 4)]
    )
    table_type = {
        "type": "struct",
        "fields": [
            {"id": 4, "name": "renamed", "type": "string", "required": False},
            {"id": 2, "name": "a", "type": "long", "required": False},
            {"id": 5, "name": "added", "type": "int", "required": False},
            {"id": 6, "name": "filled", "type": "date", "required": False, "initial-default": "2020-01-02"},
        ],
    }
    stored = pa.array(
        [{"a": 1, "gone": "x", "b": "y"}, None, {"a": None, "gone": None, "b": None}, {"a": 7, "gone": "", "b": ""}],
        file_type,
    ).slice(1)
    result = converted(arrow_field("s", file_type, 1), stored, {"id": 1, "name": "s", "type": table_type})
    day = dt.date(2020, 1, 2)
    assert result.to_pylist() == [
        None,
        {"renamed": None, "a": None, "added": None, "filled": day},
        {"renamed": "", "a": 7, "added": None, "filled": day},
    ]


def test_swapped_member_ids_are_not_taken_for_the_same_type() -> None:
    file_type = pa.struct([arrow_field("a", pa.int64(), 3), arrow_field("b", pa.int64(), 2)])
    table_type = {
        "type": "struct",
        "fields": [
            {"id": 2, "name": "a", "type": "long", "required": False},
            {"id": 3, "name": "b", "type": "long", "required": False},
        ],
    }
    result = converted(
        arrow_field("s", file_type, 1),
        pa.array([{"a": 1, "b": 2}], file_type),
        {"id": 1, "name": "s", "type": table_type},
    )
    assert result.to_pylist() == [{"a": 2, "b": 1}]


@pytest.mark.parametrize("wrap", [pa.list_, pa.large_list])
def test_members_of_structs_in_lists_evolve(wrap: Any) -> None:
    element = pa.struct([arrow_field("x", pa.int32(), 3)])
    file_type = wrap(arrow_field("element", element, 2))
    table_type = {
        "type": "list",
        "element-id": 2,
        "element-required": False,
        "element": {
            "type": "struct",
            "fields": [
                {"id": 4, "name": "new", "type": "string", "required": False},
                {"id": 3, "name": "x", "type": "long", "required": False},
            ],
        },
    }
    stored = pa.array([[{"x": 9}], [{"x": 1}, None], None, [], [{"x": 2}]], file_type).slice(1, 4)
    result = converted(arrow_field("l", file_type, 1), stored, {"id": 1, "name": "l", "type": table_type})
    assert result.to_pylist() == [[{"new": None, "x": 1}, None], None, [], [{"new": None, "x": 2}]]


def test_members_of_structs_in_maps_evolve_and_keys_are_promoted() -> None:
    file_type = pa.map_(
        arrow_field("key", pa.int32(), 2, nullable=False),
        arrow_field("value", pa.struct([arrow_field("x", pa.float32(), 4)]), 3),
    )
    table_type = {
        "type": "map",
        "key-id": 2,
        "key": "long",
        "value-id": 3,
        "value-required": False,
        "value": {"type": "struct", "fields": [{"id": 4, "name": "y", "type": "double", "required": False}]},
    }
    stored = pa.array([[(0, None)], [(1, {"x": 0.5}), (2, None)], None, []], file_type).slice(1)
    result = converted(arrow_field("m", file_type, 1), stored, {"id": 1, "name": "m", "type": table_type})
    assert result.to_pylist() == [[(1, {"y": 0.5}), (2, None)], None, []]


def test_unchanged_nested_columns_are_not_touched() -> None:
    element = pa.struct([arrow_field("x", pa.int64(), 3)])
    file_type = pa.list_(arrow_field("element", element, 2))
    table_type = {
        "type": "list",
        "element-id": 2,
        "element-required": False,
        "element": {"type": "struct", "fields": [{"id": 3, "name": "x", "type": "long", "required": False}]},
    }
    schema = schema_of({"id": 1, "name": "l", "type": table_type})
    source = projection_of(pa.schema([arrow_field("l", file_type, 1)]), schema).column(schema.fields[0])
    assert isinstance(source, FromFile)
    assert source.is_identity


def test_rule_11_leaf_of_a_null_struct_is_null_and_of_lists_refused() -> None:
    struct_type = {
        "type": "struct",
        "fields": [
            {"id": 2, "name": "a", "type": "long", "required": False},
            {"id": 5, "name": "new", "type": "long", "required": False, "initial-default": 8},
        ],
    }
    list_type = {"type": "list", "element-id": 4, "element": "long", "element-required": False}
    schema = schema_of({"id": 1, "name": "s", "type": struct_type}, {"id": 3, "name": "l", "type": list_type})
    file_type = pa.struct([arrow_field("other", pa.int32(), 9), arrow_field("a", pa.int32(), 2)])
    projection = projection_of(pa.schema([arrow_field("s", file_type, 1)]), schema)
    stored = pa.array([{"other": 1, "a": 5}, None, {"other": None, "a": None}], file_type)
    leaf, added = projection.leaf(2), projection.leaf(5)
    assert isinstance(leaf, FromFile)
    assert isinstance(added, FromFile)
    assert leaf.convert(stored).to_pylist() == [5, None, None]
    assert leaf.convert(stored).type == pa.int64()
    assert added.convert(stored).to_pylist() == [8, None, 8]
    with pytest.raises(MalformedTableError, match="inside a list or map"):
        projection.leaf(4)
    with pytest.raises(MalformedTableError, match="no schema of the table has the field 77"):
        projection.leaf(77)


def test_rule_14_leaf_of_a_struct_added_later_is_null() -> None:
    struct_type = {"type": "struct", "fields": [{"id": 2, "name": "a", "type": "long", "required": False}]}
    schema = schema_of({"id": 1, "name": "s", "type": struct_type})
    projection = projection_of(pa.schema([arrow_field("o", pa.int32(), 9)]), schema)
    assert projection.leaf(2) == Constant(pa.scalar(None, pa.int64()))
