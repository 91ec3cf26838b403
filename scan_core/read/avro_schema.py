"""Avro schemas as Arrow types: what each field is stored as, and what it means.

The writer's schema is rewritten to one that decodes the same bytes into plain values: no logical types, strings as
bytes, maps as arrays of pairs, names that nobody has to trust. Containers and blocks are read by `avro.py`.
"""

from collections.abc import Mapping
from typing import Any

import pyarrow as pa

from scan_core.read.avro_types import (
    TIMES,
    AvroField,
    AvroType,
    arrow_field,
    finish_list,
    finish_map,
    finish_struct,
    refuse_union,
    timestamp_type,
)
from scan_core.read.avro_values import decimal_from_bytes, uuid_from_text
from scan_core.schema_json import MAX_TYPE_DEPTH

MAX_SCHEMA_NODES = 100_000
"""Named types may refer to each other: a small text must not expand without end."""

_PLAIN: Mapping[str, tuple[pa.DataType, int]] = {
    "boolean": (pa.bool_(), 1),
    "int": (pa.int32(), 1),
    "long": (pa.int64(), 1),
    "float": (pa.float32(), 4),
    "double": (pa.float64(), 8),
    "bytes": (pa.binary(), 1),
}
_UNREADABLE = pa.dense_union([pa.field("value", pa.null())])
"""The type of what has no column type; it converts to nothing, so that only its own column is refused."""


def parse_record(document: Any) -> tuple[tuple[AvroField, ...], Any, int]:
    """The fields of a file's top-level record, its rewritten schema, and the fewest bytes of a row.

    Raises:
        ValueError: no record, a type that does not exist, recursion, or a schema that expands too far.
    """
    parser = _Parser()
    if not isinstance(document, Mapping) or document.get("type") != "record":
        raise ValueError(f"the top-level schema must be a record, not {document!r:.80}")
    fields = parser.fields(document, 0)
    plain = {
        "type": "record",
        "name": parser.new_name(),
        "fields": [{"name": f.key, "type": f.type.plain} for f in fields],
    }
    return fields, plain, sum(f.type.least_bytes for f in fields)


class _Parser:
    def __init__(self) -> None:
        self._named: dict[str, Any] = {}
        self._open: set[str] = set()
        self._nodes = 0
        self._names = 0

    def new_name(self) -> str:
        self._names += 1
        return f"r{self._names}"

    def fields(self, record: Mapping[str, Any], depth: int) -> tuple[AvroField, ...]:
        members = record.get("fields")
        if not isinstance(members, list) or not all(isinstance(m, Mapping) and "type" in m for m in members):
            raise ValueError(f"a record without fields: {record!r:.80}")
        return tuple(
            AvroField(str(m.get("name")), f"f{i}", _field_id(m, "field-id"), self.type(m["type"], depth + 1))
            for i, m in enumerate(members)
        )

    def type(self, schema: Any, depth: int) -> AvroType:
        self._nodes += 1
        if depth > MAX_TYPE_DEPTH or self._nodes > MAX_SCHEMA_NODES:
            raise ValueError(f"the schema nests deeper than {MAX_TYPE_DEPTH} levels or grows without end")
        if isinstance(schema, list):
            return self._union(schema, depth)
        if isinstance(schema, str):
            return self._reference(schema, depth) if schema in self._named else self._primitive(schema, {})
        if not isinstance(schema, Mapping):
            raise TypeError(f"{schema!r:.80} is not an Avro schema")
        kind = schema.get("type")
        if kind in {"record", "enum", "fixed"}:
            return self._definition(schema, depth)
        if kind == "array":
            return self._array(schema, depth)
        if kind == "map":
            return self._map(schema, depth)
        if isinstance(kind, str) and kind not in self._named:
            return self._primitive(kind, schema)
        return self.type(kind, depth + 1)

    def _reference(self, name: str, depth: int) -> AvroType:
        if name in self._open:
            raise ValueError(f"the schema type {name!r} contains itself")
        return self._definition(self._named[name], depth)

    def _definition(self, schema: Mapping[str, Any], depth: int) -> AvroType:
        name = str(schema.get("name"))
        names = {name, name.rpartition(".")[2], f"{schema.get('namespace')}.{name}"}
        for known in names:
            self._named[known] = schema
        self._open |= names
        try:
            match schema["type"]:
                case "record":
                    return self._record(schema, depth)
                case "enum":
                    symbols = schema.get("symbols")
                    plain = {"type": "enum", "name": self.new_name(), "symbols": symbols}
                    return AvroType(plain, pa.string(), pa.string(), None, 1)
                case _:
                    return self._fixed(schema)
        finally:
            self._open -= names

    def _record(self, schema: Mapping[str, Any], depth: int) -> AvroType:
        fields = self.fields(schema, depth)
        plain = {
            "type": "record",
            "name": self.new_name(),
            "fields": [{"name": f.key, "type": f.type.plain} for f in fields],
        }
        stored = pa.struct([pa.field(f.key, f.type.stored) for f in fields])
        meant = pa.struct([f.arrow() for f in fields])
        least = sum(f.type.least_bytes for f in fields)
        return AvroType(plain, stored, meant, lambda array: finish_struct(array, fields, meant), least)

    def _union(self, branches: list[Any], depth: int) -> AvroType:
        values = [b for b in branches if b != "null"]
        if len(values) > 1 or len(branches) - len(values) > 1 or not branches:
            plain = [self.type(b, depth + 1).plain for b in branches]
            return AvroType(plain, _UNREADABLE, _UNREADABLE, refuse_union, 1)
        if not values:
            return AvroType(["null"], pa.null(), pa.null(), None, 1, nullable=True)
        inner = self.type(values[0], depth + 1)
        plain = [inner.plain if b != "null" else "null" for b in branches]
        nullable = len(branches) > 1 or inner.nullable
        return AvroType(plain, inner.stored, inner.meant, inner.finish, 1, nullable)

    def _array(self, schema: Mapping[str, Any], depth: int) -> AvroType:
        if schema.get("logicalType") == "map":
            return self._pairs(schema, depth)
        items = self._items(schema.get("items"), depth)
        meant = pa.list_(arrow_field("element", items, _field_id(schema, "element-id")))
        stored = pa.list_(items.stored)
        return AvroType(
            {"type": "array", "items": items.plain}, stored, meant, lambda array: finish_list(array, items, meant), 1
        )

    def _pairs(self, schema: Mapping[str, Any], depth: int) -> AvroType:
        """A map with keys that are no strings: an array of records of key and value."""
        items = schema.get("items")
        if not isinstance(items, Mapping):
            raise TypeError(f"a map stored as array without key and value: {schema!r:.80}")
        fields = self.fields(items, depth + 1)
        if len(fields) != 2:
            raise ValueError(f"a map stored as array of {len(fields)} fields")
        return self._map_of(fields[0], fields[1])

    def _map(self, schema: Mapping[str, Any], depth: int) -> AvroType:
        """A map takes the same bytes as an array of records of string and value."""
        key = self._primitive("string", {})
        value = self._items(schema.get("values"), depth, least_bytes=key.least_bytes)
        return self._map_of(
            AvroField("key", "f0", _field_id(schema, "key-id"), key),
            AvroField("value", "f1", _field_id(schema, "value-id"), value),
        )

    def _map_of(self, key: AvroField, value: AvroField) -> AvroType:
        if key.type.least_bytes + value.type.least_bytes == 0:
            raise ValueError("a map whose entries take no bytes")
        fields = (key, value)
        plain = {
            "type": "record",
            "name": self.new_name(),
            "fields": [{"name": f.key, "type": f.type.plain} for f in fields],
        }
        stored = pa.list_(pa.struct([pa.field(f.key, f.type.stored) for f in fields]))
        meant = pa.map_(
            pa.field("key", key.type.meant, nullable=False, metadata=key.arrow().metadata),
            arrow_field("value", value.type, value.field_id),
        )
        return AvroType(
            {"type": "array", "items": plain}, stored, meant, lambda array: finish_map(array, key, value, meant), 1
        )

    def _items(self, schema: Any, depth: int, least_bytes: int = 0) -> AvroType:
        items = self.type(schema, depth + 1)
        if items.least_bytes + least_bytes == 0:
            raise ValueError("an array whose elements take no bytes: its length cannot be trusted")
        return items

    def _primitive(self, kind: str, schema: Mapping[str, Any]) -> AvroType:
        logical = schema.get("logicalType")
        if kind == "null":
            return AvroType("null", pa.null(), pa.null(), None, 0, nullable=True)
        if kind == "string":
            if logical == "uuid":
                return AvroType("bytes", pa.binary(), pa.binary(16), uuid_from_text, 1)
            return AvroType("bytes", pa.binary(), pa.string(), lambda array: array.cast(pa.string()), 1)
        if kind not in _PLAIN:
            raise ValueError(f"{kind!r:.80} is not an Avro type")
        stored, least = _PLAIN[kind]
        meant = TIMES.get((kind, str(logical)), stored)
        if kind == "long" and isinstance(logical, str) and "timestamp-" in logical:
            meant = timestamp_type(logical, schema)
        if kind == "bytes" and logical == "decimal":
            return _decimal("bytes", pa.binary(), schema, 1)
        finish = None if meant == stored else lambda array: array.view(meant)
        return AvroType(kind, stored, meant, finish, least)

    def _fixed(self, schema: Mapping[str, Any]) -> AvroType:
        size = schema.get("size")
        if not isinstance(size, int) or not 0 <= size < 2**31:
            raise ValueError(f"a fixed type of size {size!r:.40}")
        plain = {"type": "fixed", "name": self.new_name(), "size": size}
        stored = pa.binary(size)
        if schema.get("logicalType") == "decimal":
            return _decimal(plain, stored, schema, size)
        return AvroType(plain, stored, stored, None, size)


def _decimal(plain: Any, stored: pa.DataType, schema: Mapping[str, Any], least: int) -> AvroType:
    precision, scale = schema.get("precision"), schema.get("scale", 0)
    if not isinstance(precision, int) or not isinstance(scale, int) or not 0 < precision <= 38 or scale < 0:
        raise ValueError(f"decimal of precision {precision!r:.20} and scale {scale!r:.20}")
    meant = pa.decimal128(precision, scale)
    return AvroType(plain, stored, meant, lambda array: decimal_from_bytes(array, meant), least)


def _field_id(schema: Mapping[str, Any], name: str) -> int | None:
    value = schema.get(name)
    if value is None:
        return None
    if not isinstance(value, int) or isinstance(value, bool):
        raise TypeError(f"{name} is {value!r:.40}")
    return value
