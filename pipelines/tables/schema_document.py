"""An Iceberg schema as the JSON document that table metadata holds: the inverse of `scan_core.schema_json.parse_schema`."""

from typing import Any

from scan_core.schema import ListType, MapType, NestedField, PrimitiveType, Schema, StructType, Type


def schema_document(schema: Schema) -> dict[str, Any]:
    """The schema as a JSON object."""
    return {
        "type": "struct",
        "schema-id": schema.schema_id,
        "identifier-field-ids": list(schema.identifier_field_ids),
        "fields": [_field_document(f) for f in schema.fields],
    }


def _field_document(f: NestedField) -> dict[str, Any]:
    document: dict[str, Any] = {
        "id": f.field_id,
        "name": f.name,
        "required": f.required,
        "type": _type_document(f.type),
    }
    if f.doc is not None:
        document["doc"] = f.doc
    if f.initial_default is not None:
        document["initial-default"] = f.initial_default
    return document


def _type_document(kind: Type) -> Any:
    match kind:
        case StructType(members):
            return {"type": "struct", "fields": [_field_document(m) for m in members]}
        case ListType(element):
            return {
                "type": "list",
                "element-id": element.field_id,
                "element": _type_document(element.type),
                "element-required": element.required,
            }
        case MapType(key, value):
            return {
                "type": "map",
                "key-id": key.field_id,
                "key": _type_document(key.type),
                "value-id": value.field_id,
                "value": _type_document(value.type),
                "value-required": value.required,
            }
        case PrimitiveType():
            return str(kind)
