"""Avro schemas of a feed: the physical schema that its bytes are read by, and the value types that its fields mean.

Logical types are taken out of the physical schema and decided here, by Connect's names first (`connect.name`) and Avro's
own second, so that one value that does not fit is one rejected event. Resolving references is for the registry.
"""

import json
from collections.abc import Mapping
from typing import Any

import pyarrow as pa

from pipelines.errors import SourceError
from pipelines.formats.connect_schema import decimal_type, logical_type
from pipelines.formats.value_type import Encoding, ValueType

_PHYSICAL: Mapping[str, pa.DataType] = {
    "boolean": pa.bool_(),
    "int": pa.int32(),
    "long": pa.int64(),
    "float": pa.float32(),
    "double": pa.float64(),
    "bytes": pa.binary(),
    "string": pa.string(),
    "enum": pa.string(),
    "null": pa.null(),
}
_UNITS: Mapping[str, Encoding] = {"millis": Encoding.MILLIS, "micros": Encoding.MICROS, "nanos": Encoding.NANOS}
_MAX_DEPTH = 64

AVRO_SCHEMA = b"avro.schema"
"""Metadata of tables that were read from Avro: the writer's schema, whose names tell what columns mean."""


def physical(schema: Any) -> Any:
    """The schema without logical types: what the bytes are, not what they mean."""
    if isinstance(schema, list):
        return [physical(branch) for branch in schema]
    if not isinstance(schema, Mapping):
        return schema
    kept = {name: value for name, value in schema.items() if name != "logicalType" or value == "map"}
    for name in ("type", "items", "values"):
        if name in kept:
            kept[name] = physical(kept[name])
    if isinstance(kept.get("fields"), list):
        kept["fields"] = [physical(field) for field in kept["fields"]]
    return kept


def field_types(schema: Mapping[str, Any]) -> dict[str, ValueType]:
    """Value types by field of a record schema.

    Raises:
        ValueError: the schema nests without end, or its parts are not what Avro says.
    """
    named: dict[str, Any] = {}
    _collect(schema, named, 0)
    try:
        return {field["name"]: _value_type(field["type"], named, 0) for field in schema.get("fields", [])}
    except (AttributeError, KeyError, TypeError) as error:
        raise ValueError(f"a schema that is none of Avro's: {error}") from error


def types_of_file(rows: pa.Table) -> dict[str, ValueType]:
    """What the schema of an Avro file says of the columns that were read from it; nothing for other files.

    Raises:
        SourceError: the schema is malformed.
    """
    document = (rows.schema.metadata or {}).get(AVRO_SCHEMA)
    if document is None:
        return {}
    try:
        return field_types(json.loads(document))
    except ValueError as error:
        raise SourceError(f"the schema of the Avro file cannot be used: {error}") from error


def _collect(schema: Any, named: dict[str, Any], depth: int) -> None:
    if depth > _MAX_DEPTH:
        raise ValueError(f"the schema nests deeper than {_MAX_DEPTH} levels")
    if isinstance(schema, list):
        for branch in schema:
            _collect(branch, named, depth + 1)
    elif isinstance(schema, Mapping):
        if "name" in schema and schema.get("type") in ("record", "enum", "fixed"):
            name = str(schema["name"])
            for known in (name, name.rpartition(".")[2], f"{schema.get('namespace')}.{name}"):
                named.setdefault(known, schema)
        for part in (schema.get("type"), schema.get("items"), schema.get("values"), *(schema.get("fields") or ())):
            _collect(part, named, depth + 1)


def _value_type(schema: Any, named: Mapping[str, Any], depth: int) -> ValueType:
    if depth > _MAX_DEPTH:
        raise ValueError(f"the schema nests deeper than {_MAX_DEPTH} levels")
    if isinstance(schema, list):
        values = [branch for branch in schema if branch != "null"]
        return _value_type(values[0], named, depth + 1) if values else ValueType(pa.null())
    if isinstance(schema, str):
        return ValueType(_PHYSICAL[schema]) if schema in _PHYSICAL else _value_type(named[schema], named, depth + 1)
    meant = logical_type(schema.get("connect.name"), schema.get("connect.parameters") or schema)
    meant = meant or _avro_logical(schema)
    if meant is not None:
        return meant
    kind = schema["type"]
    if not isinstance(kind, str) or (kind not in _PHYSICAL and kind not in {"record", "array", "map", "fixed"}):
        return _value_type(kind, named, depth + 1)
    match kind:
        case "record":
            members = tuple((f["name"], _value_type(f["type"], named, depth + 1)) for f in schema["fields"])
            return ValueType(pa.struct([pa.field(n, m.arrow) for n, m in members]), members=members)
        case "array":
            element = _value_type(schema["items"], named, depth + 1)
            return ValueType(pa.list_(pa.field("element", element.arrow)), members=(("element", element),))
        case "map":
            key, value = ValueType(pa.string()), _value_type(schema["values"], named, depth + 1)
            arrow = pa.map_(pa.field("key", pa.string(), nullable=False), pa.field("value", value.arrow))
            return ValueType(arrow, members=(("key", key), ("value", value)))
        case "fixed":
            return ValueType(pa.binary(int(schema["size"])))
        case _:
            return ValueType(_PHYSICAL[kind])


def _avro_logical(schema: Mapping[str, Any]) -> ValueType | None:
    """What an Avro logical type stands for: timestamps are instants unless they say that they are local."""
    logical = schema.get("logicalType")
    if not isinstance(logical, str):
        return None
    kind, _, unit = logical.rpartition("-")
    if logical == "decimal":
        return decimal_type(int(schema.get("scale", 0)), int(schema.get("precision", 38)))
    if logical == "date":
        return ValueType(pa.date32(), Encoding.DAYS)
    if logical == "uuid":
        return ValueType(pa.binary(16), Encoding.HEX)
    if kind == "time":
        return ValueType(pa.time64("us"), _UNITS[unit])
    if kind in {"timestamp", "local-timestamp"}:
        local = kind != "timestamp" or str(schema.get("adjust-to-utc", True)).lower() == "false"
        return ValueType(pa.timestamp("us", None if local else "UTC"), _UNITS[unit])
    return None
