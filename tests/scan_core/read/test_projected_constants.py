"""Columns that a file lacks: partition values, defaults, name mappings."""

import datetime as dt
import decimal
import struct
import uuid
from typing import Any

import pyarrow as pa
import pytest

from nevermore.scan_core.model.errors import MalformedTableError
from nevermore.scan_core.model.schema import arrow_type
from nevermore.scan_core.read.projection import Constant, FromFile
from tests.scan_core.read.builders import arrow_field, identity_spec, schema_of
from tests.scan_core.read.projected_columns import projection_of


def test_rule_16_identity_partition_value_comes_before_name_mapping_and_default() -> None:
    schema = schema_of({"id": 1, "name": "p", "type": "int", "initial-default": 7})
    mapping = ({"field-id": 1, "names": ["p"]},)
    without_ids = pa.schema([arrow_field("p", pa.int32())])
    source = projection_of(
        pa.schema([]), schema, specs=(identity_spec(1),), partition=(42,), name_mapping=mapping
    ).column(schema.fields[0])
    assert source == Constant(pa.scalar(42, pa.int32()))
    mapped = projection_of(without_ids, schema, has_ids=False, name_mapping=mapping).column(schema.fields[0])
    assert isinstance(mapped, FromFile)
    assert mapped.index == 0


def test_rule_16_stored_column_wins_over_partition_value() -> None:
    schema = schema_of({"id": 1, "name": "p", "type": "int"})
    file_schema = pa.schema([arrow_field("p", pa.int32(), 1)])
    source = projection_of(file_schema, schema, specs=(identity_spec(1),), partition=(42,)).column(schema.fields[0])
    assert isinstance(source, FromFile)


def test_rule_16_absent_column_is_default_then_null_then_error() -> None:
    schema = schema_of(
        {"id": 1, "name": "d", "type": "string", "initial-default": "x", "required": True},
        {"id": 2, "name": "n", "type": "string"},
        {"id": 3, "name": "r", "type": "string", "required": True},
    )
    projection = projection_of(pa.schema([arrow_field("other", pa.int32(), 9)]), schema)
    assert projection.column(schema.fields[0]) == Constant(pa.scalar("x"))
    assert projection.column(schema.fields[1]) == Constant(pa.scalar(None, pa.string()))
    with pytest.raises(MalformedTableError, match=r"data.parquet: lacks the required column 'r' \(id 3\)"):
        projection.column(schema.fields[2])


def test_rule_16_columns_of_other_specs_are_no_partition_values() -> None:
    schema = schema_of({"id": 1, "name": "p", "type": "int"})
    other = projection_of(pa.schema([]), schema, specs=(), partition=(42,))
    assert other.column(schema.fields[0]) == Constant(pa.scalar(None, pa.int32()))


@pytest.mark.parametrize(
    ("table_type", "default", "expected"),
    [
        ("decimal(9, 2)", "14.20", decimal.Decimal("14.20")),
        ("date", "2017-11-16", dt.date(2017, 11, 16)),
        ("time", "22:31:08.123456", dt.time(22, 31, 8, 123456)),
        ("timestamp", "2017-11-16T22:31:08.123456", dt.datetime(2017, 11, 16, 22, 31, 8, 123456)),  # noqa: DTZ001
        (
            "timestamptz",
            "2017-11-16T22:31:08.123456+00:00",
            dt.datetime(2017, 11, 16, 22, 31, 8, 123456, tzinfo=dt.UTC),
        ),
        ("uuid", "f79c3e09-677c-4bbd-a479-3f349cb785e7", uuid.UUID("f79c3e09-677c-4bbd-a479-3f349cb785e7").bytes),
        ("binary", "000102ff", b"\x00\x01\x02\xff"),
        ("fixed[2]", "00ff", b"\x00\xff"),
        ("double", 3, 3.0),
        ("boolean", False, False),
        ("long", 2**40, 2**40),
        (
            {"type": "list", "element-id": 9, "element-required": False, "element": "int"},
            [1, None],
            [1, None],
        ),
        (
            {"type": "map", "key-id": 9, "key": "string", "value-id": 10, "value-required": False, "value": "date"},
            {"keys": ["a"], "values": ["2020-01-01"]},
            [("a", dt.date(2020, 1, 1))],
        ),
        (
            {
                "type": "struct",
                "fields": [
                    {"id": 9, "name": "x", "type": "timestamp", "required": False},
                    {"id": 10, "name": "y", "type": "int", "required": False, "initial-default": 5},
                ],
            },
            {"9": "2020-01-01T00:00:00"},
            {"x": dt.datetime(2020, 1, 1), "y": 5},  # noqa: DTZ001
        ),
    ],
)
def test_rule_16_default_values_of_every_type(table_type: Any, default: Any, expected: Any) -> None:
    schema = schema_of({"id": 1, "name": "c", "type": table_type, "initial-default": default})
    source = projection_of(pa.schema([arrow_field("o", pa.int32(), 99)]), schema).column(schema.fields[0])
    assert isinstance(source, Constant)
    assert source.value.as_py() == expected
    assert source.value.type == arrow_type(schema.fields[0].type)


def test_default_that_is_no_value_of_its_type_is_malformed() -> None:
    schema = schema_of({"id": 1, "name": "c", "type": "date", "initial-default": "tomorrow"})
    with pytest.raises(MalformedTableError, match="column 'c': initial-default 'tomorrow'"):
        projection_of(pa.schema([arrow_field("o", pa.int32(), 99)]), schema).column(schema.fields[0])


@pytest.mark.parametrize(
    ("table_type", "canonical", "expected"),
    [
        ("date", 19_000, dt.date(2022, 1, 8)),
        ("timestamptz", 1, dt.datetime(1970, 1, 1, 0, 0, 0, 1, tzinfo=dt.UTC)),
        ("double", struct.unpack("<q", struct.pack("<d", -0.0))[0], -0.0),
        ("float", struct.unpack("<q", struct.pack("<d", 0.5))[0], 0.5),
        ("decimal(5, 2)", decimal.Decimal("1.20"), decimal.Decimal("1.20")),
        ("uuid", b"0123456789abcdef", b"0123456789abcdef"),
        ("string", None, None),
    ],
)
def test_rule_16_partition_values_of_every_type(table_type: str, canonical: Any, expected: Any) -> None:
    schema = schema_of({"id": 1, "name": "p", "type": table_type})
    source = projection_of(pa.schema([]), schema, specs=(identity_spec(1),), partition=(canonical,)).column(
        schema.fields[0]
    )
    assert isinstance(source, Constant)
    assert source.value.as_py() == expected
    assert str(source.value.as_py()) == str(expected)  # tells -0.0 from 0.0


def test_rule_16_name_mapping_reaches_every_depth() -> None:
    mapping = (
        {"field-id": 1, "names": ["s", "old_s"], "fields": ({"field-id": 2, "names": ["x"]},)},
        {"field-id": 3, "names": ["l"], "fields": ({"field-id": 4, "names": ["element"]},)},
        {
            "field-id": 5,
            "names": ["m"],
            "fields": ({"field-id": 6, "names": ["key"]}, {"field-id": 7, "names": ["value"]}),
        },
    )
    schema = schema_of(
        {
            "id": 1,
            "name": "s",
            "type": {"type": "struct", "fields": [{"id": 2, "name": "renamed", "type": "long", "required": False}]},
        },
        {"id": 3, "name": "l", "type": {"type": "list", "element-id": 4, "element": "long", "element-required": False}},
        {
            "id": 5,
            "name": "m",
            "type": {
                "type": "map",
                "key-id": 6,
                "key": "string",
                "value-id": 7,
                "value": "long",
                "value-required": False,
            },
        },
    )
    file_schema = pa.schema(
        [
            pa.field("old_s", pa.struct([("x", pa.int32()), ("unmapped", pa.int32())])),
            pa.field("l", pa.list_(pa.field("item", pa.int32()))),
            pa.field("m", pa.map_(pa.string(), pa.int32())),
            pa.field("unmapped", pa.int32()),
        ]
    )
    projection = projection_of(file_schema, schema, has_ids=False, name_mapping=mapping)
    rows = {"old_s": {"x": 1, "unmapped": 2}, "l": [3], "m": [("a", 4)], "unmapped": 5}
    values = []
    for field in schema.fields:
        source = projection.column(field)
        assert isinstance(source, FromFile)
        name = file_schema.field(source.index).name
        values.append(source.convert(pa.array([rows[name]], file_schema.field(source.index).type)).to_pylist())
    assert values == [[{"renamed": 1}], [[3]], [[("a", 4)]]]


def test_file_without_ids_and_table_without_mapping_is_refused_not_read_as_null() -> None:
    schema = schema_of({"id": 1, "name": "c", "type": "int"})
    projection = projection_of(pa.schema([pa.field("c", pa.int32())]), schema, has_ids=False)
    with pytest.raises(MalformedTableError, match="no field ids and the table no name mapping"):
        projection.column(schema.fields[0])


def test_malformed_name_mapping_and_repeated_ids_are_refused() -> None:
    schema = schema_of({"id": 1, "name": "c", "type": "int"})
    with pytest.raises(MalformedTableError, match="name-mapping"):
        projection_of(pa.schema([pa.field("c", pa.int32())]), schema, has_ids=False, name_mapping=("c",))
    with pytest.raises(MalformedTableError, match="field id 1 is used by two columns"):
        projection_of(pa.schema([arrow_field("a", pa.int32(), 1), arrow_field("b", pa.int32(), 1)]), schema)
