"""Iceberg columns for the result of a Spark query, from the JSON form of Spark's schema; no pyspark needed."""

import itertools
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from pipelines.errors import SchemaConflictError
from scan_core.schema import ListType, MapType, NestedField, PrimitiveType, Schema, StructType, Type, parse_type

_PRIMITIVES: Mapping[str, str] = {
    "boolean": "boolean",
    "byte": "int",
    "short": "int",
    "integer": "int",
    "long": "long",
    "float": "float",
    "double": "double",
    "date": "date",
    "timestamp": "timestamptz",
    "timestamp_ntz": "timestamp",
    "string": "string",
    "binary": "binary",
}
_WIDER: Mapping[str, str] = {"int": "long", "float": "double"}


def iceberg_fields(spark_schema: Mapping[str, Any], first_id: int = 1) -> tuple[NestedField, ...]:
    """Optional columns, one per field of the result, with ids from `first_id` on.

    Args:
        spark_schema: `DataFrame.schema.jsonValue()`.
        first_id: ids below it are taken.

    Raises:
        SchemaConflictError: a column without name twice, or of a type that Iceberg has not.
    """
    ids = itertools.count(first_id)
    names = [f["name"] for f in spark_schema["fields"]]
    if twice := sorted({name for name in names if names.count(name) > 1}):
        raise SchemaConflictError(f"the result has several columns called {', '.join(twice)}: give them aliases")
    top = [(next(ids), f) for f in spark_schema["fields"]]
    return tuple(NestedField(field_id, f["name"], _type(f["type"], f["name"], ids)) for field_id, f in top)


def evolved_schema(table: Schema, result: Sequence[NestedField], last_column_id: int) -> Schema:
    """The table's schema, changed so that rows with the columns `result` fit: new columns last, types wider.

    Columns that the result lacks stay and become NULL.

    Raises:
        SchemaConflictError: a column whose type changed in a way that Iceberg does not allow.
    """
    ids = itertools.count(last_column_id + 1)
    columns = {f.name: f for f in table.fields}
    for wanted in result:
        have = columns.get(wanted.name)
        if have is None:
            field_id = next(ids)
            columns[wanted.name] = NestedField(field_id, wanted.name, _with_ids(wanted.type, ids))
        else:
            columns[wanted.name] = NestedField(
                have.field_id, have.name, _merged(have.type, wanted.type, have.name, ids), have.required, have.doc
            )
    fields = tuple(columns.values())
    return table if fields == table.fields else Schema(table.schema_id, fields, table.identifier_field_ids)


def _type(spark_type: Any, path: str, ids: Iterator[int]) -> Type:
    if isinstance(spark_type, str):
        if spark_type in _PRIMITIVES:
            return PrimitiveType(_PRIMITIVES[spark_type])
        if spark_type.startswith("decimal"):
            return parse_type(spark_type)
        if spark_type == "void":
            raise SchemaConflictError(f"column {path!r} is NULL without a type: write cast(null as ...)")
        raise SchemaConflictError(f"column {path!r}: Iceberg has no type for Spark's {spark_type}; cast it")
    match spark_type["type"]:
        case "struct":
            top = [(next(ids), m) for m in spark_type["fields"]]
            return StructType(
                tuple(NestedField(i, m["name"], _type(m["type"], f"{path}.{m['name']}", ids)) for i, m in top)
            )
        case "array":
            return ListType(NestedField(next(ids), "element", _type(spark_type["elementType"], f"{path}.element", ids)))
        case "map":
            key_id, value_id = next(ids), next(ids)
            key = NestedField(key_id, "key", _type(spark_type["keyType"], f"{path}.key", ids), required=True)
            value = NestedField(value_id, "value", _type(spark_type["valueType"], f"{path}.value", ids))
            return MapType(key, value)
        case other:
            raise SchemaConflictError(f"column {path!r}: Iceberg has no type for Spark's {other}; cast it")


def _merged(have: Type, want: Type, path: str, ids: Iterator[int]) -> Type:
    match have, want:
        case PrimitiveType(), PrimitiveType() if have == want or _WIDER.get(want.name) == have.name:
            return have
        case PrimitiveType(name), PrimitiveType(wider) if _WIDER.get(name) == wider:
            return want
        case PrimitiveType("decimal", (precision, scale)), PrimitiveType("decimal", (wanted, same)) if scale == same:
            return PrimitiveType("decimal", (max(precision, wanted), scale))
        case StructType(members), StructType(wanted_members):
            merged = {m.name: m for m in members}
            for m in wanted_members:
                old = merged.get(m.name)
                if old is None:
                    merged[m.name] = NestedField(next(ids), m.name, _with_ids(m.type, ids))
                else:
                    merged[m.name] = NestedField(
                        old.field_id, old.name, _merged(old.type, m.type, f"{path}.{m.name}", ids), old.required
                    )
            return StructType(tuple(merged.values()))
        case ListType(element), ListType(wanted_element):
            inner = _merged(element.type, wanted_element.type, f"{path}.element", ids)
            return ListType(NestedField(element.field_id, "element", inner, element.required))
        case MapType(key, value), MapType(_, wanted_value):
            inner = _merged(value.type, wanted_value.type, f"{path}.value", ids)
            return MapType(key, NestedField(value.field_id, "value", inner, value.required))
        case _:
            raise SchemaConflictError(
                f"column {path!r} is {have} in the published table and {want} in the result: cast it, rename it, or drop "
                "the table"
            )


def _with_ids(kind: Type, ids: Iterator[int]) -> Type:
    match kind:
        case StructType(members):
            top = [(next(ids), m) for m in members]
            return StructType(tuple(NestedField(i, m.name, _with_ids(m.type, ids), m.required) for i, m in top))
        case ListType(element):
            return ListType(NestedField(next(ids), "element", _with_ids(element.type, ids), element.required))
        case MapType(key, value):
            key_id, value_id = next(ids), next(ids)
            return MapType(
                NestedField(key_id, "key", _with_ids(key.type, ids), required=True),
                NestedField(value_id, "value", _with_ids(value.type, ids), value.required),
            )
        case _:
            return kind
