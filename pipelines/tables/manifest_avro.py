"""Avro of manifests and manifest lists: schemas by the specification, values in physical form, fields found by id.

Format version 2. Where engines are strict the schema is to the letter: `equality_ids` is a list of int, every field
carries its id, maps with integer keys are arrays of key-value records.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, date, datetime, time
from decimal import Decimal
from typing import Any
from uuid import UUID

import fastavro

from scan_core.schema import PrimitiveType
from scan_core.snapshot import PartitionField, PartitionSpec

Record = dict[str, Any]


@dataclass(frozen=True, slots=True)
class PartitionLayout:
    """A spec with the result type of each of its fields."""

    spec: PartitionSpec
    types: tuple[PrimitiveType, ...]


def _field(field_id: int, name: str, kind: Any, *, optional: bool = False) -> Record:
    if optional:
        return {"name": name, "type": ["null", kind], "default": None, "field-id": field_id}
    return {"name": name, "type": kind, "field-id": field_id}


def _list(element_id: int, kind: Any) -> Record:
    return {"type": "array", "items": kind, "element-id": element_id}


def _map(key_id: int, value_id: int, kind: str) -> Record:
    pair = {
        "type": "record",
        "name": f"k{key_id}_v{value_id}",
        "fields": [_field(key_id, "key", "int"), _field(value_id, "value", kind)],
    }
    return {"type": "array", "logicalType": "map", "items": pair}


METRIC_MAPS = (
    "column_sizes",
    "value_counts",
    "null_value_counts",
    "nan_value_counts",
    "lower_bounds",
    "upper_bounds",
)

MANIFEST_FILE: Record = {
    "type": "record",
    "name": "manifest_file",
    "fields": [
        _field(500, "manifest_path", "string"),
        _field(501, "manifest_length", "long"),
        _field(502, "partition_spec_id", "int"),
        _field(517, "content", "int"),
        _field(515, "sequence_number", "long"),
        _field(516, "min_sequence_number", "long"),
        _field(503, "added_snapshot_id", "long"),
        _field(504, "added_files_count", "int"),
        _field(505, "existing_files_count", "int"),
        _field(506, "deleted_files_count", "int"),
        _field(512, "added_rows_count", "long"),
        _field(513, "existing_rows_count", "long"),
        _field(514, "deleted_rows_count", "long"),
        _field(
            507,
            "partitions",
            _list(
                508,
                {
                    "type": "record",
                    "name": "r508",
                    "fields": [
                        _field(509, "contains_null", "boolean"),
                        _field(518, "contains_nan", "boolean", optional=True),
                        _field(510, "lower_bound", "bytes", optional=True),
                        _field(511, "upper_bound", "bytes", optional=True),
                    ],
                },
            ),
            optional=True,
        ),
        _field(519, "key_metadata", "bytes", optional=True),
    ],
}


def entry_schema(layout: PartitionLayout) -> Record:
    """The schema of manifest entries whose partitions have this layout."""
    partition = {
        "type": "record",
        "name": "r102",
        "fields": [
            _field(f.field_id, f.name, _avro_type(t, f), optional=True)
            for f, t in zip(layout.spec.fields, layout.types, strict=True)
        ],
    }
    data_file = {
        "type": "record",
        "name": "r2",
        "fields": [
            _field(134, "content", "int"),
            _field(100, "file_path", "string"),
            _field(101, "file_format", "string"),
            _field(102, "partition", partition),
            _field(103, "record_count", "long"),
            _field(104, "file_size_in_bytes", "long"),
            _field(108, "column_sizes", _map(117, 118, "long"), optional=True),
            _field(109, "value_counts", _map(119, 120, "long"), optional=True),
            _field(110, "null_value_counts", _map(121, 122, "long"), optional=True),
            _field(137, "nan_value_counts", _map(138, 139, "long"), optional=True),
            _field(125, "lower_bounds", _map(126, 127, "bytes"), optional=True),
            _field(128, "upper_bounds", _map(129, 130, "bytes"), optional=True),
            _field(131, "key_metadata", "bytes", optional=True),
            _field(132, "split_offsets", _list(133, "long"), optional=True),
            _field(135, "equality_ids", _list(136, "int"), optional=True),
            _field(140, "sort_order_id", "int", optional=True),
            _field(143, "referenced_data_file", "string", optional=True),
        ],
    }
    return {
        "type": "record",
        "name": "manifest_entry",
        "fields": [
            _field(0, "status", "int"),
            _field(1, "snapshot_id", "long", optional=True),
            _field(3, "sequence_number", "long", optional=True),
            _field(4, "file_sequence_number", "long", optional=True),
            _field(2, "data_file", data_file),
        ],
    }


def _avro_type(kind: PrimitiveType, field: PartitionField) -> Any:
    match kind:
        case PrimitiveType("boolean" | "int" | "long" | "float" | "double" | "string"):
            return kind.name
        case PrimitiveType("binary"):
            return "bytes"
        case PrimitiveType("date"):
            return {"type": "int", "logicalType": "date"}
        case PrimitiveType("time"):
            return {"type": "long", "logicalType": "time-micros"}
        case PrimitiveType("timestamp" | "timestamptz"):
            return {
                "type": "long",
                "logicalType": "timestamp-micros",
                "adjust-to-utc": kind.name == "timestamptz",
            }
        case PrimitiveType("fixed", (length,)):
            return {"type": "fixed", "name": f"fixed_{field.field_id}", "size": length}
        case PrimitiveType("uuid"):
            return {"type": "fixed", "name": f"uuid_fixed_{field.field_id}", "size": 16, "logicalType": "uuid"}
        case PrimitiveType("decimal", (precision, scale)):
            return {
                "type": "fixed",
                "name": f"decimal_{field.field_id}",
                "size": decimal_width(precision),
                "logicalType": "decimal",
                "precision": precision,
                "scale": scale,
            }
        case _:
            raise TypeError(f"partition field {field.name}: type {kind} cannot be written")


def decimal_width(precision: int) -> int:
    """Least bytes that hold every unscaled value of this precision."""
    return int(10**precision).bit_length() // 8 + 1


_PARSED: dict[str, Any] = {}


def parsed(schema: Record) -> Any:
    """The schema in fastavro's form, parsed once per process."""
    key = repr(schema)
    if key not in _PARSED:
        _PARSED[key] = fastavro.parse_schema(schema)
    return _PARSED[key]


# -- values ------------------------------------------------------------------------------------------------------


def encoded_partition(values: Record, layout: PartitionLayout) -> Record:
    """Physical values as fastavro writes them."""
    encoded = dict(values)
    for f, kind in zip(layout.spec.fields, layout.types, strict=True):
        if kind.name == "decimal" and values[f.name] is not None:
            encoded[f.name] = values[f.name].to_bytes(decimal_width(kind.parameters[0]), "big", signed=True)
    return encoded


def decoded_partition(values: Record, writer_schema: Any, layout: PartitionLayout) -> Record:
    """Values as fastavro read them, found by field id, in physical form; unpartitioned manifests may have none."""
    if not layout.spec.fields:
        return {}
    written = member(member(writer_schema, 2), 102)
    names = {f["field-id"]: f["name"] for f in written["fields"] if "field-id" in f}
    return {f.name: _physical(values.get(names.get(f.field_id, f.name))) for f in layout.spec.fields}


_EPOCH = datetime(1970, 1, 1)  # noqa: DTZ001 - wall time without zone


def _physical(value: Any) -> Any:
    """A value as fastavro's logical types give it, back as manifests hold it."""
    match value:
        case datetime():
            wall = value.replace(tzinfo=None) if value.tzinfo is None else value.astimezone(UTC).replace(tzinfo=None)
            delta = wall - _EPOCH
            return (delta.days * 86_400 + delta.seconds) * 1_000_000 + delta.microseconds
        case date():
            return value.toordinal() - _EPOCH.toordinal()
        case time():
            return ((value.hour * 60 + value.minute) * 60 + value.second) * 1_000_000 + value.microsecond
        case Decimal():
            sign, digits, _ = value.as_tuple()
            unscaled = int("".join(map(str, digits)) or "0")
            return -unscaled if sign else unscaled
        case UUID():
            return value.bytes
        case _:
            return value


# -- fields of other writers, found by id ----------------------------------------------------------------------------


def member(schema: Any, field_id: int) -> Any:
    """The type of a record's field, without null."""
    found = next(f for f in schema["fields"] if f.get("field-id") == field_id)
    kind = found["type"]
    return next(k for k in kind if k != "null") if isinstance(kind, list) else kind


def names_by_id(written: Any, wanted: Any) -> dict[str, str]:
    """Wanted name by written name; fields of other ids are left out, fields without id go by their name."""
    by_id = {f["field-id"]: f["name"] for f in wanted["fields"]}
    known = set(by_id.values())
    pairs = ((f["name"], by_id.get(f["field-id"]) if "field-id" in f else f["name"]) for f in written["fields"])
    return {old: str(new) for old, new in pairs if new in known}


def renamed(row: Record, names: Mapping[str, str]) -> Record:
    """The row by wanted names."""
    return {new: row[old] for old, new in names.items()}
