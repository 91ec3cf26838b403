"""ORC and Avro files as Arrow tables, in the types the files hold. Parquet is DuckDB's own business.

Whole files at a time: this is a proof, not a reader.
"""

import decimal
from collections.abc import Mapping
from typing import Any

import pyarrow as pa

from checks.oracle.facts import RefusedError, read_avro

_LOGICAL = {
    "date": pa.date32(),
    "time-micros": pa.time64("us"),
    "time-millis": pa.time32("ms"),
    "timestamp-micros": pa.timestamp("us"),
    "timestamp-millis": pa.timestamp("ms"),
    "timestamp-nanos": pa.timestamp("ns"),
    "local-timestamp-micros": pa.timestamp("us"),
    "local-timestamp-millis": pa.timestamp("ms"),
    "local-timestamp-nanos": pa.timestamp("ns"),
}
_PLAIN = {
    "null": pa.null(),
    "boolean": pa.bool_(),
    "int": pa.int32(),
    "long": pa.int64(),
    "float": pa.float32(),
    "double": pa.float64(),
    "string": pa.string(),
    "enum": pa.string(),
    "bytes": pa.binary(),
    "fixed": pa.binary(),
}


def read_file(path: str, file_format: str) -> pa.Table:
    """All rows and columns of an ORC or Avro file; field ids are in the metadata of the Arrow fields."""
    if file_format == "orc":
        from pyarrow import orc

        return orc.ORCFile(path).read()
    if file_format == "avro":
        return _read_avro_table(path)
    raise RefusedError(f"{path}: format {file_format} is not one of parquet, orc, avro")


def _read_avro_table(path: str) -> pa.Table:
    reader, rows = read_avro(path)
    schema = _spelled_out(reader.writer_schema, {})
    fields = [_field(f["name"], f["type"], f.get("field-id")) for f in schema["fields"]]
    records = list(rows)
    columns = [
        pa.array([_value(r[f["name"]], f["type"]) for r in records], type=field.type)
        for f, field in zip(schema["fields"], fields, strict=True)
    ]
    return pa.Table.from_arrays(columns, schema=pa.schema(fields))


def _spelled_out(schema: Any, named: dict[str, Any]) -> Any:
    """The schema with every reference to a type defined earlier replaced by that type."""
    if isinstance(schema, list):
        return [_spelled_out(branch, named) for branch in schema]
    if isinstance(schema, str):
        return named.get(schema, schema)
    found = dict(schema)
    for inner in ("items", "values"):
        if inner in found:
            found[inner] = _spelled_out(found[inner], named)
    if "fields" in found:
        found["fields"] = [{**f, "type": _spelled_out(f["type"], named)} for f in found["fields"]]
    if "name" in found:
        named[found["name"]] = found
    return found


def _required(schema: Any) -> Any:
    """The schema under an optional union; Iceberg knows no other unions."""
    if isinstance(schema, list):
        schema = next(branch for branch in schema if branch != "null")
    return schema


def _field(name: str, schema: Any, field_id: int | None) -> pa.Field:
    return pa.field(
        name, _type(_required(schema)), metadata=None if field_id is None else {"iceberg.id": str(field_id)}
    )


def _type(schema: Any) -> pa.DataType:
    document: Mapping[str, Any] = schema if isinstance(schema, Mapping) else {"type": schema}
    kind, logical = document["type"], document.get("logicalType")
    if kind == "record":
        return pa.struct([_field(f["name"], f["type"], f.get("field-id")) for f in document["fields"]])
    if kind == "array" and logical == "map":
        key, value = _required(document["items"])["fields"]
        return pa.map_(
            _field("key", key["type"], key.get("field-id")).with_nullable(nullable=False),
            _field("value", value["type"], value.get("field-id")),
        )
    if kind == "array":
        return pa.list_(_field("element", document["items"], document.get("element-id")))
    if kind == "map":
        key_field = _field("key", "string", document.get("key-id")).with_nullable(nullable=False)
        return pa.map_(key_field, _field("value", document["values"], document.get("value-id")))
    if logical == "decimal":
        return pa.decimal128(document["precision"], document.get("scale", 0))
    if logical in _LOGICAL:
        arrow = _LOGICAL[logical]
        return pa.timestamp(arrow.unit, "UTC") if document.get("adjust-to-utc") else arrow
    return _PLAIN[kind]


def _value(value: Any, schema: Any) -> Any:
    """A stored value as `pa.array` takes it: decimals as Decimal, records of a map as pairs."""
    schema = _required(schema)
    if value is None or not isinstance(schema, Mapping):
        return value
    kind, logical = schema["type"], schema.get("logicalType")
    if kind == "record":
        return {f["name"]: _value(value[f["name"]], f["type"]) for f in schema["fields"]}
    if kind == "array" and logical == "map":
        key, item = _required(schema["items"])["fields"]
        return [(_value(e["key"], key["type"]), _value(e["value"], item["type"])) for e in value]
    if kind == "array":
        return [_value(e, schema["items"]) for e in value]
    if kind == "map":
        return [(k, _value(v, schema["values"])) for k, v in value.items()]
    if logical == "decimal":
        unscaled = int.from_bytes(value, "big", signed=True)
        sign, digits = int(unscaled < 0), tuple(map(int, str(abs(unscaled))))
        return decimal.Decimal((sign, digits, -schema.get("scale", 0)))
    return value
