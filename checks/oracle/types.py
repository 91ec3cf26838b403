"""Iceberg types and constants in DuckDB's SQL, and in Arrow as results are compared."""

import re
import struct
from collections.abc import Mapping, Sequence
from typing import Any

import pyarrow as pa

from checks.oracle.facts import RefusedError

_SQL = {
    "boolean": "BOOLEAN",
    "int": "INTEGER",
    "long": "BIGINT",
    "float": "FLOAT",
    "double": "DOUBLE",
    "date": "DATE",
    "time": "TIME",
    "timestamp": "TIMESTAMP",
    "timestamptz": "TIMESTAMPTZ",
    "timestamp_ns": "TIMESTAMP_NS",
    "timestamptz_ns": "TIMESTAMPTZ_NS",
    "string": "VARCHAR",
    "uuid": "UUID",
    "binary": "BLOB",
    "unknown": "INTEGER",
}
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
    "uuid": pa.uuid(),
    "binary": pa.binary(),
    "unknown": pa.null(),
}
_TEMPORAL_LITERALS = {
    "date": "(DATE '1970-01-01' + CAST({} AS INTEGER))",
    "time": "(TIME '00:00:00' + to_microseconds(CAST({} AS BIGINT)))",
    "timestamp": "make_timestamp(CAST({} AS BIGINT))",
    "timestamptz": "CAST(make_timestamp(CAST({} AS BIGINT)) AS TIMESTAMPTZ)",
    "timestamp_ns": "make_timestamp_ns(CAST({} AS BIGINT))",
    "timestamptz_ns": "CAST(make_timestamp_ns(CAST({} AS BIGINT)) AS TIMESTAMPTZ_NS)",
}
_PARAMETERS = re.compile(r"(decimal|fixed)\D+(\d+)(?:\s*,\s*(\d+))?\D*$")


def sql_type(iceberg_type: str) -> str:
    """DuckDB's type for a primitive type."""
    found = _PARAMETERS.match(iceberg_type)
    if found:
        return "BLOB" if found[1] == "fixed" else f"DECIMAL({found[2]}, {found[3]})"
    if iceberg_type not in _SQL:
        raise RefusedError(f"type {iceberg_type} is not supported")
    return _SQL[iceberg_type]


def arrow_type(iceberg_type: Any) -> pa.DataType:
    """Arrow's type for a type in its JSON form."""
    if isinstance(iceberg_type, str):
        found = _PARAMETERS.match(iceberg_type)
        if found:
            return pa.binary(int(found[2])) if found[1] == "fixed" else pa.decimal128(int(found[2]), int(found[3]))
        if iceberg_type not in _ARROW:
            raise RefusedError(f"type {iceberg_type} is not supported")
        return _ARROW[iceberg_type]
    match iceberg_type["type"]:
        case "struct":
            return pa.struct([(f["name"], arrow_type(f["type"])) for f in iceberg_type["fields"]])
        case "list":
            return pa.list_(pa.field("element", arrow_type(iceberg_type["element"])))
        case "map":
            return pa.map_(arrow_type(iceberg_type["key"]), arrow_type(iceberg_type["value"]))
        case other:
            return arrow_type(other)


def partition_literal(value: Any, iceberg_type: str) -> str:
    """SQL for an identity-partition value as the manifest stores it: dates and times as integers, bytes as bytes."""
    if value is None:
        return null(iceberg_type)
    if iceberg_type in _TEMPORAL_LITERALS:
        return _TEMPORAL_LITERALS[iceberg_type].format(value)
    target = sql_type(iceberg_type)
    if iceberg_type in {"float", "double"}:
        (unpacked,) = struct.unpack(">d", value)
        return f"CAST('{unpacked!r}' AS {target})"
    if iceberg_type == "string":
        return _text(value)
    if iceberg_type.startswith("decimal"):
        return f"CAST('{_decimal_text(value, iceberg_type)}' AS {target})"
    if not isinstance(value, bytes):
        return f"CAST('{value}' AS {target})"
    return f"CAST('{value.hex()}' AS UUID)" if iceberg_type == "uuid" else f"unhex('{value.hex()}')"


def _decimal_text(value: bytes, iceberg_type: str) -> str:
    scale = int(re.findall(r"\d+", iceberg_type)[1])
    unscaled = int.from_bytes(value, "big", signed=True)
    digits = str(abs(unscaled)).rjust(scale + 1, "0")
    return f"{'-' if unscaled < 0 else ''}{digits[: len(digits) - scale]}.{digits[len(digits) - scale :]}"


def default_literal(value: Any, iceberg_type: Any) -> str:
    """SQL for an `initial-default`, a JSON single value."""
    if value is None:
        return null(iceberg_type)
    if isinstance(iceberg_type, Mapping):
        match iceberg_type["type"]:
            case "list":
                items = ", ".join(default_literal(v, iceberg_type["element"]) for v in value)
                return f"CAST([{items}] AS {nested_sql_type(iceberg_type)})"
            case "map":
                keys = ", ".join(default_literal(v, iceberg_type["key"]) for v in value["keys"])
                values = ", ".join(default_literal(v, iceberg_type["value"]) for v in value["values"])
                return f"CAST(map([{keys}], [{values}]) AS {nested_sql_type(iceberg_type)})"
        fields = iceberg_type["fields"]
        members = ", ".join(
            f"{name} := {default_literal(value.get(str(f['id']), f.get('initial-default')), f['type'])}"
            for name, f in zip(member_names(fields), fields, strict=True)
        )
        return f"struct_pack({members})"
    if iceberg_type == "string":
        return _text(value)
    if iceberg_type == "binary" or iceberg_type.startswith("fixed"):
        return f"unhex('{value}')"
    return f"CAST('{value}' AS {sql_type(iceberg_type)})"


def nested_sql_type(iceberg_type: Any) -> str:
    """DuckDB's type for any type in its JSON form."""
    if isinstance(iceberg_type, str):
        return sql_type(iceberg_type)
    match iceberg_type["type"]:
        case "struct":
            fields = iceberg_type["fields"]
            members = (
                f"{name} {nested_sql_type(f['type'])}" for name, f in zip(member_names(fields), fields, strict=True)
            )
            return f"STRUCT({', '.join(members)})"
        case "list":
            return nested_sql_type(iceberg_type["element"]) + "[]"
        case _:
            return f"MAP({nested_sql_type(iceberg_type['key'])}, {nested_sql_type(iceberg_type['value'])})"


def null(iceberg_type: Any) -> str:
    """A NULL of a type."""
    return f"CAST(NULL AS {nested_sql_type(iceberg_type)})"


def no_rows(fields: Sequence[Mapping[str, Any]]) -> str:
    """A query for no rows, with columns v0, v1, ... as `fields`."""
    nulls = ", ".join(f"{null(field['type'])} AS v{i}" for i, field in enumerate(fields))
    return f"SELECT {nulls} WHERE false"


def member_names(fields: Sequence[Mapping[str, Any]]) -> list[str]:
    """Names of a struct's members as SQL identifiers; DuckDB knows no case, so `ID` beside `id` gets its place added."""
    names, taken = [], {str(f["name"]).lower() for f in fields}
    seen: set[str] = set()
    for place, field in enumerate(fields, 1):
        name = str(field["name"])
        while name.lower() in seen or (name != field["name"] and name.lower() in taken):
            name = f"{name}_{place}"
        seen.add(name.lower())
        names.append(quoted(name))
    return names


def with_names_of(target: pa.DataType, stored: pa.DataType) -> pa.DataType:
    """The type `stored` with the names that `target` has for the members of structs, which SQL had to change."""
    if pa.types.is_struct(stored) and pa.types.is_struct(target) and stored.num_fields == target.num_fields:
        return pa.struct([(w.name, with_names_of(w.type, s.type)) for w, s in zip(target, stored, strict=True)])
    if pa.types.is_list(stored) and pa.types.is_list(target):
        return pa.list_(stored.value_field.with_type(with_names_of(target.value_type, stored.value_type)))
    if pa.types.is_map(stored) and pa.types.is_map(target):
        key = with_names_of(target.key_type, stored.key_type)
        return pa.map_(key, with_names_of(target.item_type, stored.item_type))
    return stored


def quoted(name: str) -> str:
    """A SQL identifier."""
    return '"' + name.replace('"', '""') + '"'


def _text(value: str) -> str:
    return f"decode(unhex('{value.encode().hex()}'))"
