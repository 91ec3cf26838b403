"""Finding one's way in an Avro schema: named types, unions with null, record fields by Iceberg field id."""

import json
from collections.abc import Mapping, Sequence
from typing import Any

from scan_core.avro.container import AvroError

PRIMITIVES = frozenset({"null", "boolean", "int", "long", "float", "double", "bytes", "string"})
INTEGER_TYPES = frozenset({"int", "long"})
MAX_SCHEMA_DEPTH = 32
"""Manifests nest five deep; hostile schemas must not exhaust the stack."""


class NamedTypes(dict[str, Any]):
    """The named types of one schema, and what was compiled of it so far.

    A type used many times is compiled once, or crafted schemas would grow without end; one that contains itself has
    no place in a manifest.
    """

    def __init__(self, schema: Any) -> None:
        super().__init__()
        self.compiled: dict[int, Any] = {}
        self.open: set[int] = set()
        collect_names(schema, self, 0)


def parse_avro_schema(text: bytes) -> Any:
    """The JSON of a writer's schema; AvroError if it is none."""
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        raise AvroError(f"avro.schema is not a JSON document: {error}") from error


def field_schema(schema: Any, field_ids: Sequence[int], names: Sequence[str]) -> Any:
    """The schema of a field of a record, found by the ids and names given from the outside in; None if absent."""
    named = NamedTypes(schema)
    for field_id, name in zip(field_ids, names, strict=True):
        schema = non_null(resolve(schema, named), named)
        found = [f for f in record_fields(schema) if f.get("field-id", field_id) == field_id]
        exact = [f for f in found if "field-id" in f] or [f for f in found if f.get("name") == name]
        if not exact:
            return None
        schema = exact[0]["type"]
    return non_null(resolve(schema, named), named)


def type_name(schema: Any) -> str:
    """The name of a type: `record`, `union`, `long` ..."""
    if isinstance(schema, str):
        return schema
    if isinstance(schema, list):
        return "union"
    if isinstance(schema, Mapping):
        kind = schema.get("type")
        return kind if isinstance(kind, str) else type_name(kind)
    return repr(schema)


def non_null(schema: Any, named: Mapping[str, Any]) -> Any:
    """The value branch of a union with null; anything else as it is."""
    if not isinstance(schema, list):
        return schema
    branches = [s for s in (resolve(b, named) for b in schema) if type_name(s) != "null"]
    return branches[0] if len(branches) == 1 and len(schema) <= 2 else schema


def resolve(schema: Any, named: Mapping[str, Any]) -> Any:
    """The schema that a name stands for; nested `type` objects unwrapped."""
    if isinstance(schema, str) and schema not in PRIMITIVES:
        return named.get(schema, schema)
    if isinstance(schema, Mapping) and isinstance(schema.get("type"), Mapping | list):
        return resolve(schema["type"], named)
    return schema


def record_fields(schema: Any) -> list[Mapping[str, Any]]:
    """The fields of a record schema; AvroError if it is none."""
    if not isinstance(schema, Mapping) or schema.get("type") != "record":
        raise AvroError(f"its schema has {type_name(schema)!r:.60} where a record belongs")
    fields = schema.get("fields")
    if not isinstance(fields, list) or not all(isinstance(f, Mapping) and "type" in f for f in fields):
        raise AvroError("its schema has a record without fields")
    return fields


def part(schema: Any, name: str) -> Any:
    """`items` of an array or `values` of a map; AvroError if the schema lacks it."""
    if name not in schema:
        raise AvroError(f"its schema has a type {type_name(schema)!r} without {name}")
    return schema[name]


def collect_names(schema: Any, named: dict[str, Any], depth: int) -> None:
    """Fill `named` with the named types that a schema defines."""
    if depth > MAX_SCHEMA_DEPTH:
        raise AvroError(f"its schema nests deeper than {MAX_SCHEMA_DEPTH} levels")
    if isinstance(schema, list):
        parts: list[Any] = schema
    elif isinstance(schema, Mapping):
        if schema.get("type") in ("record", "fixed", "enum"):
            named[str(schema.get("name"))] = schema
            named[f"{schema.get('namespace')}.{schema.get('name')}"] = schema
        fields = schema.get("fields")
        inner = [f.get("type") for f in fields if isinstance(f, Mapping)] if isinstance(fields, list) else []
        parts = [schema.get("type"), schema.get("items"), schema.get("values"), *inner]
    else:
        return
    for part in parts:
        collect_names(part, named, depth + 1)
