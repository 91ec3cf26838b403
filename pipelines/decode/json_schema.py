"""JSON Schemas of messages, in the form of Kafka Connect's own schemas, from which `feed_schemas.py` takes value types.

Connect's converter writes what it knows of a type into `title`, `connect.type` and `connect.parameters`; schemas of others have
`format` and `contentEncoding`.
"""

import json
from collections.abc import Mapping
from functools import lru_cache
from typing import Any

from pipelines.decode.schema_registry import RegisteredSchema
from pipelines.errors import SourceError

_MAX_DEPTH = 64
_TYPES: Mapping[str, str] = {"integer": "int64", "number": "float64", "boolean": "boolean", "string": "string"}
_FORMATS: Mapping[str, str] = {
    "date-time": "io.debezium.time.ZonedTimestamp",
    "date": "io.debezium.time.IsoDate",
    "uuid": "io.debezium.data.Uuid",
}
_ANY: Mapping[str, Any] = {"type": "any"}
"""A value of any kind, which becomes its own JSON text."""


@lru_cache(maxsize=1024)
def connect_schema(schema: RegisteredSchema) -> bytes:
    """A JSON Schema as a schema of Kafka Connect in JSON.

    Raises:
        SourceError: not a JSON Schema, one that contains itself, or one that refers to what it does not have.
    """
    try:
        documents = {name: json.loads(text) for name, text in (("", schema.text), *schema.references)}
        return json.dumps(_converted(documents[""], "", documents, 0)).encode()
    except (AttributeError, KeyError, TypeError, ValueError, RecursionError) as error:
        raise SourceError(f"a JSON Schema that cannot be used: {error}; it begins {schema.text[:120]!r}") from error


def _converted(node: Any, of: str, documents: Mapping[str, Any], depth: int) -> Mapping[str, Any]:
    """A part of the document `of` as a schema of Connect."""
    if depth > _MAX_DEPTH:
        raise SourceError(f"a JSON Schema that is nested deeper than {_MAX_DEPTH} levels, or contains itself")
    if not isinstance(node, Mapping):
        return _ANY
    if "$ref" in node:
        target, document = _referenced(str(node["$ref"]), of, documents)
        return _converted(target, document, documents, depth + 1)
    for word in ("oneOf", "anyOf", "allOf"):
        if word in node:
            kept = [branch for branch in node[word] if branch != {"type": "null"}]
            return _converted(kept[0], of, documents, depth + 1) if len(kept) == 1 else _ANY
    kind = node.get("type")
    if isinstance(kind, list):
        kinds = [one for one in kind if one != "null"]
        kind = kinds[0] if len(kinds) == 1 else None
    found = _of_kind(node, kind, of, documents, depth)
    name = node.get("title") or (_FORMATS.get(str(node.get("format"))) if kind == "string" else None)
    return {**found, "name": name, "parameters": node.get("connect.parameters") or {}}


def _of_kind(
    node: Mapping[str, Any], kind: str | None, of: str, documents: Mapping[str, Any], depth: int
) -> Mapping[str, Any]:
    match kind:
        case "object" if node.get("properties"):
            members = sorted(node["properties"].items(), key=lambda member: member[1].get("connect.index", 0))
            fields = [{**_converted(part, of, documents, depth + 1), "field": name} for name, part in members]
            return {"type": "struct", "fields": fields}
        case "object" if isinstance(node.get("additionalProperties"), Mapping):
            values = _converted(node["additionalProperties"], of, documents, depth + 1)
            return {"type": "map", "keys": {"type": "string"}, "values": values}
        case "array" if isinstance(node.get("items"), Mapping):
            return {"type": "array", "items": _converted(node["items"], of, documents, depth + 1)}
        case "string" if node.get("contentEncoding") == "base64":
            return {"type": "bytes"}
        case str() if kind in _TYPES:
            return {"type": node.get("connect.type", _TYPES[kind])}
        case _:
            return _ANY


def _referenced(reference: str, of: str, documents: Mapping[str, Any]) -> tuple[Any, str]:
    """(what a reference leads to, the document that it is in)."""
    name, _, path = reference.partition("#")
    document = name or of
    if document not in documents:
        raise KeyError(f"it refers to {document}, which the registry does not give with it")
    node = documents[document]
    for step in path.strip("/").split("/") if path.strip("/") else ():
        node = node[step.replace("~1", "/").replace("~0", "~")]
    return node, document
