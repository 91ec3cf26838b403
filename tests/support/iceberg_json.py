"""Columns and partition fields as tests write them, and their forms in JSON, Arrow and Avro.

Written for tests from the Iceberg specification; shares nothing with the packages.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

_ARROW = {
    "boolean": pa.bool_(),
    "int": pa.int32(),
    "long": pa.int64(),
    "float": pa.float32(),
    "double": pa.float64(),
    "date": pa.date32(),
    "time": pa.time64("us"),
    "timestamp": pa.timestamp("us"),
    "timestamptz": pa.timestamp("us", "UTC"),
    "timestamp_ns": pa.timestamp("ns"),
    "timestamptz_ns": pa.timestamp("ns", "UTC"),
    "string": pa.string(),
    "uuid": pa.binary(16),
    "binary": pa.binary(),
    "unknown": pa.null(),
}
_AVRO = {
    "boolean": "boolean",
    "int": "int",
    "long": "long",
    "float": "float",
    "double": "double",
    "date": {"type": "int", "logicalType": "date"},
    "time": {"type": "long", "logicalType": "time-micros"},
    "timestamp": {"type": "long", "logicalType": "timestamp-micros", "adjust-to-utc": False},
    "timestamptz": {"type": "long", "logicalType": "timestamp-micros", "adjust-to-utc": True},
    "timestamp_ns": {"type": "long", "logicalType": "timestamp-nanos", "adjust-to-utc": False},
    "timestamptz_ns": {"type": "long", "logicalType": "timestamp-nanos", "adjust-to-utc": True},
    "string": "string",
    "binary": "bytes",
    "unknown": "null",
}


@dataclass(frozen=True, slots=True)
class Column:
    """A column; `type` is Iceberg's JSON: a name such as `decimal(9,2)`, or the dict of a nested type."""

    id: int
    name: str
    type: Any
    required: bool = False
    initial_default: Any = None

    def json(self) -> dict[str, Any]:
        field = {"id": self.id, "name": self.name, "type": self.type, "required": self.required}
        return field if self.initial_default is None else field | {"initial-default": self.initial_default}


@dataclass(frozen=True, slots=True)
class Partition:
    """A partition field over the column with id `source`. `result` is its type where the transform is unknown."""

    name: str
    source: int
    transform: str = "identity"
    result: str | None = None


def struct(*members: Column) -> dict[str, Any]:
    return {"type": "struct", "fields": [m.json() for m in members]}


def list_of(element_id: int, element: Any, *, required: bool = False) -> dict[str, Any]:
    return {"type": "list", "element-id": element_id, "element": element, "element-required": required}


def map_of(key_id: int, key: Any, value_id: int, value: Any, *, required: bool = False) -> dict[str, Any]:
    return {
        "type": "map",
        "key-id": key_id,
        "key": key,
        "value-id": value_id,
        "value": value,
        "value-required": required,
    }


def arrow_type(kind: Any, id_key: str | None = None) -> pa.DataType:
    """Arrow's type; `id_key` is the metadata key of nested field ids, None leaves them out."""
    if isinstance(kind, str):
        return _primitive(kind)
    match kind["type"]:
        case "struct":
            return pa.struct([arrow_field(f, id_key) for f in kind["fields"]])
        case "list":
            return pa.list_(_nested_field("element", kind["element-id"], kind["element"], id_key))
        case _:
            key = _nested_field("key", kind["key-id"], kind["key"], id_key).with_nullable(nullable=False)
            return pa.map_(key, _nested_field("value", kind["value-id"], kind["value"], id_key))


def arrow_field(field: dict[str, Any], id_key: str | None = None) -> pa.Field:
    inner = _nested_field(field["name"], field["id"], field["type"], id_key)
    return inner.with_nullable(nullable=not field.get("required"))


def arrow_schema(columns: Sequence[Column], id_key: str | None = None) -> pa.Schema:
    return pa.schema([arrow_field(c.json(), id_key) for c in columns])


def _nested_field(name: str, field_id: int, kind: Any, id_key: str | None) -> pa.Field:
    return pa.field(name, arrow_type(kind, id_key), metadata=None if id_key is None else {id_key: str(field_id)})


def _primitive(kind: str) -> pa.DataType:
    numbers = [int(n) for n in re.findall(r"\d+", kind)]
    if kind.startswith("decimal"):
        return pa.decimal128(*numbers)
    return pa.binary(numbers[0]) if kind.startswith("fixed") else _ARROW[kind]


def avro_type(kind: Any, name: str) -> Any:
    """Avro's type; records and fixed types are named after `name`, which must be unique in the file."""
    if isinstance(kind, dict):
        return _avro_nested(kind, name)
    numbers = [int(n) for n in re.findall(r"\d+", kind)]
    if kind.startswith("decimal"):
        precision, scale = numbers
        size = next(n for n in range(1, 17) if 2 ** (8 * n - 1) > 10**precision)
        fixed = {"type": "fixed", "name": f"decimal_{name}", "size": size}
        return fixed | {"logicalType": "decimal", "precision": precision, "scale": scale}
    if kind.startswith("fixed"):
        return {"type": "fixed", "name": f"fixed_{name}", "size": numbers[0]}
    if kind == "uuid":
        return {"type": "fixed", "name": f"uuid_{name}", "size": 16}
    return _AVRO[kind]


def avro_field(name: str, field_id: int | None, kind: Any, path: str, *, required: bool = False) -> dict[str, Any]:
    inner = avro_type(kind, path)
    field: dict[str, Any] = {"name": name, "type": inner if required or inner == "null" else ["null", inner]}
    return field if field_id is None else field | {"field-id": field_id}


def _avro_nested(kind: dict[str, Any], name: str) -> Any:
    match kind["type"]:
        case "struct":
            members = [
                avro_field(f["name"], f["id"], f["type"], f"{name}_{f['id']}", required=f.get("required", False))
                for f in kind["fields"]
            ]
            return {"type": "record", "name": f"r_{name}", "fields": members}
        case "list":
            element = avro_type(kind["element"], f"{name}_{kind['element-id']}")
            return {"type": "array", "items": ["null", element], "element-id": kind["element-id"]}
        case _:
            value = ["null", avro_type(kind["value"], f"{name}_{kind['value-id']}")]
            if kind["key"] == "string":
                return {"type": "map", "values": value, "key-id": kind["key-id"], "value-id": kind["value-id"]}
            key = avro_type(kind["key"], f"{name}_{kind['key-id']}")
            entry = [
                {"name": "key", "type": key, "field-id": kind["key-id"]},
                {"name": "value", "type": value, "field-id": kind["value-id"]},
            ]
            record = {"type": "record", "name": f"k{kind['key-id']}_v{kind['value-id']}", "fields": entry}
            return {"type": "array", "logicalType": "map", "items": record}


def partition_result(partition: Partition, source_type: Any) -> Any:
    """The type of a partition field's values."""
    if partition.result is not None:
        return partition.result
    if partition.transform.startswith("bucket") or partition.transform in {"year", "month", "hour"}:
        return "int"
    return "date" if partition.transform == "day" else source_type
