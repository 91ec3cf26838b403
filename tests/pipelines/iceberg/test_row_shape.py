import itertools
import uuid
from typing import Any

import pyarrow as pa
import pytest

from nevermore.pipelines.errors import SchemaConflictError
from nevermore.pipelines.iceberg.row_shape import (
    conform,
    encode_rows,
    parquet_schema,
    split_by_partition,
    without_extensions,
)
from nevermore.scan_core import PartitionField, PartitionSpec
from nevermore.scan_core.model.schema import NestedField, PrimitiveType, Schema, parse_type

NESTED = Schema(
    0,
    (
        NestedField(
            1,
            "s",
            parse_type(
                {
                    "type": "struct",
                    "fields": [
                        {"id": 2, "name": "a", "type": "long"},
                        {"id": 3, "name": "l", "type": {"type": "list", "element-id": 4, "element": "string"}},
                    ],
                }
            ),
        ),
        NestedField(
            5, "m", parse_type({"type": "map", "key-id": 6, "key": "string", "value-id": 7, "value": "double"})
        ),
    ),
)


def test_members_are_found_by_name_widened_and_filled_with_null() -> None:
    rows = pa.table(
        {
            "m": pa.array([[("k", 1.5)], None], pa.map_(pa.string(), pa.float32())),
            "s": pa.array(
                [{"l": ["x", None], "a": 1}, None], pa.struct([("l", pa.list_(pa.string())), ("a", pa.int32())])
            ),
        }
    )
    shaped = conform(rows, NESTED)
    assert shaped.schema.equals(parquet_schema(NESTED), check_metadata=True)
    assert shaped.to_pylist() == [{"s": {"a": 1, "l": ["x", None]}, "m": [("k", 1.5)]}, {"s": None, "m": None}]


def test_slices_with_null_lists_keep_their_values() -> None:
    lists = pa.array([["a"], None, [], ["b", "c"], None, ["d"]], pa.list_(pa.string()))
    structs = pa.StructArray.from_arrays([lists], names=["l"]).slice(1, 4)
    shaped = conform(pa.table({"s": structs}), NESTED)
    assert shaped.column("s").to_pylist() == [{"a": None, "l": v} for v in (None, [], ["b", "c"], None)]


def test_sliced_maps_keep_their_values() -> None:
    maps = pa.array([[("a", 1.0)], None, [("b", 2.0), ("c", None)], []], pa.map_(pa.string(), pa.float32())).slice(1, 3)
    shaped = conform(pa.table({"m": maps}), NESTED)
    assert shaped.column("m").to_pylist() == [None, [("b", 2.0), ("c", None)], []]


MAPS_OF_LISTS = Schema(
    0,
    (
        NestedField(
            1,
            "m",
            parse_type(
                {
                    "type": "map",
                    "key-id": 2,
                    "key": "string",
                    "value-id": 3,
                    "value": {
                        "type": "list",
                        "element-id": 4,
                        "element": {"type": "map", "key-id": 5, "key": "string", "value-id": 6, "value": "double"},
                    },
                }
            ),
        ),
    ),
)


@pytest.mark.parametrize("key_type", [pa.string(), pa.large_string()])
@pytest.mark.parametrize("offset", range(7))
def test_every_slice_of_nested_maps_keeps_its_entries(offset: int, key_type: pa.DataType) -> None:
    """With and without a change of types, as these go through different conversions."""
    inner = pa.map_(key_type, pa.float64())
    values = [[("a", [[("x", 1.0)], None, []])], None, [], [("b", None), ("c", [])], None, [("d", [[], [("y", 2.0)]])]]
    maps = pa.array(values, pa.map_(key_type, pa.list_(inner)))
    for length in range(len(values) - offset + 1):
        shaped = conform(pa.table({"m": maps.slice(offset, length)}), MAPS_OF_LISTS)
        shaped.validate(full=True)
        assert shaped.column("m").to_pylist() == values[offset : offset + length]


@pytest.mark.parametrize("start", [0, 1])
def test_entries_under_null_maps_are_omitted(start: int) -> None:
    maps = pa.MapArray.from_arrays(
        pa.array([0, 1, 2, 3], pa.int32()),
        pa.array(["a", "b", "c"]),
        pa.array([1.0, 2.0, 3.0]),
        mask=pa.array([False, True, False]),
    )
    shaped = conform(pa.table({"m": maps.slice(start)}), NESTED)
    assert shaped.column("m").to_pylist() == [[("a", 1.0)], None, [("c", 3.0)]][start:]


def test_maps_of_uuids_become_their_logical_type() -> None:
    kind = {"type": "map", "key-id": 2, "key": "uuid", "value-id": 3, "value": "uuid"}
    schema = Schema(0, (NestedField(1, "m", parse_type(kind)),))
    values = [[(bytes(16), None)], None, [(bytes(range(16)), bytes(16))]]
    maps = pa.array(values, pa.map_(pa.binary(16), pa.binary(16)))
    for start in range(4):
        shaped = conform(pa.table({"m": maps.slice(start)}), schema)
        assert shaped.schema.field("m").type.key_type == pa.uuid()
        assert without_extensions(shaped).column("m").to_pylist() == values[start:]


def test_uuid_becomes_the_logical_type() -> None:
    schema = Schema(0, (NestedField(1, "u", PrimitiveType("uuid")),))
    value = uuid.uuid4()
    for given in (pa.array([value.bytes], pa.binary(16)), pa.array([value.bytes], pa.uuid())):
        shaped = conform(pa.table({"u": given}), schema)
        assert shaped.schema.field("u").type == pa.uuid()
        assert shaped.column("u").to_pylist() == [value]


def test_value_that_does_not_fit_is_refused_with_its_column() -> None:
    schema = Schema(0, (NestedField(1, "n", PrimitiveType("int")),))
    with pytest.raises(SchemaConflictError, match="'n'"):
        conform(pa.table({"n": [2**40]}), schema)


def test_null_in_a_required_column_is_refused() -> None:
    schema = Schema(0, (NestedField(1, "n", PrimitiveType("int"), required=True),))
    with pytest.raises(SchemaConflictError, match="required"):
        conform(pa.table({"n": pa.array([None], pa.int32())}), schema)
    assert conform(pa.table({"n": [1]}), schema).num_rows == 1


def test_no_rows_keep_the_shape() -> None:
    assert conform(parquet_schema(NESTED).empty_table(), NESTED).num_rows == 0


HOURS = [0, 1, 3_599_999_999, 3_600_000_000, -1, -3_600_000_000, -3_600_000_001, None, 86_400_000_000 * 366]


@pytest.mark.each(24)
@pytest.mark.parametrize("transform", ["hour", "day", "month", "year", "identity", "bucket[4]", "void"])
@pytest.mark.parametrize("values", [*itertools.product(HOURS, repeat=2)])
def test_rows_are_in_the_partition_that_each_has_alone(transform: str, values: tuple[int | None, ...]) -> None:
    schema = Schema(0, (NestedField(1, "at", PrimitiveType("timestamptz")),))
    spec = PartitionSpec(1, (PartitionField(1000, 1, "p", transform),))
    rows = pa.table({"at": pa.chunked_array([[v] for v in values], pa.timestamp("us", "UTC"))})
    wanted: dict[Any, list[Any]] = {}
    for place in range(len(values)):
        (alone,) = split_by_partition(rows.slice(place, 1), schema, spec)
        wanted.setdefault((alone.values, alone.folder), []).append(alone.rows["at"][0].as_py())
    found = {(p.values, p.folder): p.rows["at"].to_pylist() for p in split_by_partition(rows, schema, spec)}
    assert found == wanted


def test_rows_are_partitioned_by_members_of_structs_and_not_by_void_fields_of_dropped_columns() -> None:
    rows = pa.table({"s": pa.array([{"a": 1}, None, {"a": None}, {"a": 1}, {"a": 2}], pa.struct([("a", pa.int64())]))})
    fields = (PartitionField(1000, 2, "s.a", "identity"), PartitionField(1001, 9, "gone", "void"))
    found = [
        (part.values, part.folder, part.rows["s"].to_pylist())
        for part in split_by_partition(rows, NESTED, PartitionSpec(1, fields))
    ]
    assert found == [
        ((1, None), "s.a=1/gone=null", [{"a": 1}, {"a": 1}]),
        ((None, None), "s.a=null/gone=null", [None, {"a": None}]),
        ((2, None), "s.a=2/gone=null", [{"a": 2}]),
    ]


def test_rows_are_not_partitioned_by_a_dropped_column() -> None:
    spec = PartitionSpec(1, (PartitionField(1000, 9, "day", "day"),))
    with pytest.raises(SchemaConflictError, match="rows cannot be partitioned by 'day', as its column was dropped"):
        list(split_by_partition(pa.table({"s": [None]}), NESTED, spec))


@pytest.mark.parametrize("kind", [pa.date32(), pa.decimal128(9, 2), pa.string(), pa.binary(16), pa.timestamp("us")])
def test_no_rows_have_no_codes(kind: pa.DataType) -> None:
    codes, limit = encode_rows([pa.chunked_array([], kind)])
    assert (len(codes), limit) == (0, 1)
