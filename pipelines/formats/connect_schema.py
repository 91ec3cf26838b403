"""Kafka Connect schemas, as JSON in the envelope of an event, to value types.

Covers Connect's own logical types and Debezium's. A name that is not known leaves the physical type in force.
"""

from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any

import orjson
import pyarrow as pa

from pipelines.formats.value_type import Encoding, ValueType

_PHYSICAL: Mapping[str, pa.DataType] = {
    "int8": pa.int32(),
    "int16": pa.int32(),
    "int32": pa.int32(),
    "int64": pa.int64(),
    "float": pa.float32(),
    "float32": pa.float32(),
    "double": pa.float64(),
    "float64": pa.float64(),
    "boolean": pa.bool_(),
    "string": pa.string(),
    "bytes": pa.binary(),
}

_TIMESTAMP = pa.timestamp("us")
_TIMESTAMPTZ = pa.timestamp("us", "UTC")
_TIME = pa.time64("us")

_LOGICAL: Mapping[str, ValueType] = {
    "org.apache.kafka.connect.data.Date": ValueType(pa.date32(), Encoding.DAYS),
    "org.apache.kafka.connect.data.Time": ValueType(_TIME, Encoding.MILLIS),
    "org.apache.kafka.connect.data.Timestamp": ValueType(_TIMESTAMP, Encoding.MILLIS),
    "io.debezium.time.Date": ValueType(pa.date32(), Encoding.DAYS),
    "io.debezium.time.Time": ValueType(_TIME, Encoding.MILLIS),
    "io.debezium.time.MicroTime": ValueType(_TIME, Encoding.MICROS),
    "io.debezium.time.NanoTime": ValueType(_TIME, Encoding.NANOS),
    "io.debezium.time.Timestamp": ValueType(_TIMESTAMP, Encoding.MILLIS),
    "io.debezium.time.MicroTimestamp": ValueType(_TIMESTAMP, Encoding.MICROS),
    "io.debezium.time.NanoTimestamp": ValueType(_TIMESTAMP, Encoding.NANOS),
    "io.debezium.time.ZonedTimestamp": ValueType(_TIMESTAMPTZ),
    "io.debezium.time.IsoDate": ValueType(pa.date32()),
    "io.debezium.time.IsoTime": ValueType(_TIME),
    "io.debezium.time.IsoTimestamp": ValueType(_TIMESTAMP),
    # A time with a zone has no Iceberg type; its text loses nothing.
    "io.debezium.time.ZonedTime": ValueType(pa.string()),
    "io.debezium.time.Interval": ValueType(pa.string()),
    "io.debezium.time.MicroDuration": ValueType(pa.int64()),
    "io.debezium.time.NanoDuration": ValueType(pa.int64()),
    "io.debezium.time.Year": ValueType(pa.int32()),
    "io.debezium.data.Bits": ValueType(pa.binary(), Encoding.BASE64),
    "io.debezium.data.Json": ValueType(pa.string(), Encoding.TEXT),
    "io.debezium.data.Xml": ValueType(pa.string()),
    "io.debezium.data.Enum": ValueType(pa.string()),
    "io.debezium.data.EnumSet": ValueType(pa.string()),
    "io.debezium.data.Uuid": ValueType(pa.binary(16), Encoding.HEX),
    "io.debezium.data.Ltree": ValueType(pa.string()),
    "io.debezium.data.TsVector": ValueType(pa.string()),
}

MAX_DIGITS = 38
"""Of an Iceberg decimal, and its largest scale."""
DEFAULT_VARIABLE_SCALE = 10
"""Scale of a column whose decimals each have their own: what does not fit decimal(38, 10) is rejected, config widens."""


@lru_cache(maxsize=256)
def parse(document: bytes) -> Mapping[str, Any] | None:
    """The schema in a document; None for `null` and for anything that is no schema."""
    try:
        schema = orjson.loads(document)
    except orjson.JSONDecodeError:
        return None
    return schema if isinstance(schema, dict) else None


@lru_cache(maxsize=256)
def row_types(document: bytes, *images: str) -> Mapping[str, ValueType]:
    """Value types by column of the first of these struct fields, or of the schema's own fields if it has none of them.

    A schema document that names no such struct gives an empty mapping.

    Raises:
        ValueError: parts of the document are not what Connect writes.
    """
    schema = parse(document)
    if schema is None:
        return {}
    try:
        return _row_types(schema, images)
    except (AttributeError, KeyError, TypeError, ValueError, RecursionError) as error:
        raise ValueError("a schema that is none of Connect's") from error


def _row_types(schema: Mapping[str, Any], images: Sequence[str]) -> Mapping[str, ValueType]:
    fields = schema.get("fields") or []
    for image in images:
        for field in fields:
            if field.get("field") == image and field.get("fields"):
                return {member["field"]: value_type(member) for member in field["fields"] if "field" in member}
    if images and any(f.get("field") in ("op", "source", *images) for f in fields):
        return {}
    return {member["field"]: value_type(member) for member in fields if "field" in member}


def value_type(schema: Mapping[str, Any]) -> ValueType:
    """The value type of one Connect field schema."""
    named = logical_type(schema.get("name"), schema.get("parameters") or {})
    if named is not None:
        return named
    match schema.get("type"):
        case "struct":
            members = tuple((f["field"], value_type(f)) for f in schema.get("fields") or [])
            if not members:
                return ValueType(pa.string(), Encoding.TEXT)
            return ValueType(pa.struct([pa.field(n, m.arrow) for n, m in members]), members=members)
        case "array":
            element = value_type(schema.get("items") or {})
            return ValueType(pa.list_(pa.field("element", element.arrow)), members=(("element", element),))
        case "map":
            key, value = value_type(schema.get("keys") or {}), value_type(schema.get("values") or {})
            arrow = pa.map_(pa.field("key", key.arrow, nullable=False), pa.field("value", value.arrow))
            return ValueType(arrow, members=(("key", key), ("value", value)))
        case "bytes":
            return ValueType(pa.binary(), Encoding.BASE64)
        case str(physical) if physical in _PHYSICAL:
            return ValueType(_PHYSICAL[physical])
        case _:
            return ValueType(pa.string(), Encoding.TEXT)


def logical_type(name: Any, parameters: Mapping[str, Any]) -> ValueType | None:
    """The value type that a logical name of Connect or Debezium stands for; None if the name is not known."""
    if name == "org.apache.kafka.connect.data.Decimal":
        return _decimal(parameters)
    if name == "io.debezium.data.VariableScaleDecimal":
        return ValueType(pa.decimal128(38, DEFAULT_VARIABLE_SCALE), Encoding.SCALED)
    return _LOGICAL.get(name) if isinstance(name, str) else None


def _decimal(parameters: Mapping[str, Any]) -> ValueType:
    """Connect's Decimal: the scale is given, the precision only sometimes."""
    return decimal_type(int(parameters.get("scale", 0)), int(parameters.get("connect.decimal.precision", 38)))


def decimal_type(scale: int, precision: int) -> ValueType:
    """A decimal of unscaled bytes; Iceberg has at most 38 digits and no negative scale."""
    held = min(max(scale, 0), MAX_DIGITS)
    # The trailing zeros of a negative scale are written out.
    digits = min(max(precision + max(-scale, 0), held, 1), MAX_DIGITS)
    return ValueType(pa.decimal128(digits, held), Encoding.BASE64, scale=None if held == scale else scale)
