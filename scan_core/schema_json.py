"""Schemas and types from the JSON form that metadata and manifests have."""

import re
from collections.abc import Mapping, Sequence
from typing import Any

from scan_core.errors import MalformedTableError
from scan_core.schema import (
    PRIMITIVES,
    UNSUPPORTED_TYPES,
    ListType,
    MapType,
    NestedField,
    PrimitiveType,
    Schema,
    StructType,
    Type,
)

MAX_TYPE_DEPTH = 64
"""Deeper nesting is refused: no real table has it, and recursion on hostile input must end."""
MAX_FIXED_BYTES = 2**31 - 1
"""What Arrow can hold."""
_DECIMAL = re.compile(r"decimal\(\s*(\d+)\s*,\s*(\d+)\s*\)")
_FIXED = re.compile(r"fixed\[\s*(\d+)\s*\]")


def parse_schema(document: Mapping[str, Any], default_id: int = 0) -> Schema:
    """A schema from its JSON form in metadata or manifests.

    Raises:
        MalformedTableError: a missing member, unknown type, reused id or too deep nesting.
    """
    if not isinstance(document, Mapping) or document.get("type", "struct") != "struct":
        raise MalformedTableError(f"a schema must be a struct, not {document!r:.80}")
    schema_id = document.get("schema-id", default_id)
    if not isinstance(document.get("fields"), Sequence):
        raise MalformedTableError(f"a schema without a list of fields: {document!r:.80}")
    fields = tuple(_parse_field(f, 1) for f in document["fields"])
    return Schema(schema_id, fields, tuple(document.get("identifier-field-ids", ())))


def parse_type(document: Any, depth: int = 0) -> Type:
    """A type from its JSON form: a name, or an object for struct, list and map."""
    if depth > MAX_TYPE_DEPTH:
        raise MalformedTableError(f"schema nests deeper than {MAX_TYPE_DEPTH} levels")
    if isinstance(document, str):
        return _parse_primitive(document)
    if not isinstance(document, Mapping):
        raise MalformedTableError(f"unknown type {document!r:.80} in schema")
    try:
        match document["type"]:
            case "struct":
                return StructType(tuple(_parse_field(f, depth + 1) for f in document["fields"]))
            case "list":
                element = parse_type(document["element"], depth + 1)
                return ListType(
                    NestedField(document["element-id"], "element", element, bool(document.get("element-required")))
                )
            case "map":
                key = NestedField(document["key-id"], "key", parse_type(document["key"], depth + 1), required=True)
                value = parse_type(document["value"], depth + 1)
                return MapType(
                    key, NestedField(document["value-id"], "value", value, bool(document.get("value-required")))
                )
            case other:
                raise MalformedTableError(f"unknown type {other!r:.80} in schema")
    except KeyError as error:
        raise MalformedTableError(f"type {document!r:.80} in schema lacks {error}") from error


def _parse_primitive(text: str) -> PrimitiveType:
    if text in PRIMITIVES:
        return PrimitiveType(text)
    if match := _DECIMAL.fullmatch(text):
        precision, scale = int(match[1]), int(match[2])
        if not 0 < precision <= 38 or scale > precision:
            raise MalformedTableError(f"decimal precision must be 1..38 and scale at most that: {text}")
        return PrimitiveType("decimal", (precision, scale))
    if match := _FIXED.fullmatch(text):
        length = int(match[1])
        if length > MAX_FIXED_BYTES:
            raise MalformedTableError(f"a fixed type has at most {MAX_FIXED_BYTES} bytes: {text:.80}")
        return PrimitiveType("fixed", (length,))
    if (name := re.split(r"[(\[]", text, maxsplit=1)[0]) in UNSUPPORTED_TYPES:
        return PrimitiveType(name)
    raise MalformedTableError(f"unknown type {text!r:.80} in schema")


def _parse_field(document: Mapping[str, Any], depth: int) -> NestedField:
    try:
        return NestedField(
            field_id=int(document["id"]),
            name=document["name"],
            type=parse_type(document["type"], depth),
            required=bool(document.get("required", False)),
            doc=document.get("doc"),
            initial_default=document.get("initial-default"),
        )
    except KeyError as error:
        raise MalformedTableError(f"schema field {document!r:.80} lacks {error}") from error
