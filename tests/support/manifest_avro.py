"""Manifests and manifest lists of test tables, as Avro files, for format versions 1 to 3."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import fastavro

from tests.support.iceberg_json import avro_type


def _optional(name: str, field_id: int, kind: Any) -> dict[str, Any]:
    return {"name": name, "type": ["null", kind], "default": None, "field-id": field_id}


def _required(name: str, field_id: int, kind: Any) -> dict[str, Any]:
    return {"name": name, "type": kind, "field-id": field_id}


def _map(name: str, ids: tuple[int, int, int], value: str) -> dict[str, Any]:
    entry = {
        "type": "record",
        "name": f"k{ids[1]}_v{ids[2]}",
        "fields": [_required("key", ids[1], "int"), _required("value", ids[2], value)],
    }
    return _optional(name, ids[0], {"type": "array", "items": entry, "logicalType": "map"})


def entry_schema(version: int, partition: Sequence[tuple[int, str, Any]], id_type: str = "int") -> dict[str, Any]:
    """A manifest entry; `partition` is (field id, name, Iceberg type) per field of the spec."""
    members = [_optional(name, field_id, avro_type(kind, f"p{field_id}")) for field_id, name, kind in partition]
    fields = [_required("content", 134, "int")] if version > 1 else []
    fields += [
        _required("file_path", 100, "string"),
        _required("file_format", 101, "string"),
        _required("partition", 102, {"type": "record", "name": "r102", "fields": members}),
        _required("record_count", 103, "long"),
        _required("file_size_in_bytes", 104, "long"),
    ]
    if version == 1:
        fields.append(_required("block_size_in_bytes", 105, "long"))
    fields += [
        _map("column_sizes", (108, 117, 118), "long"),
        _map("value_counts", (109, 119, 120), "long"),
        _map("null_value_counts", (110, 121, 122), "long"),
        _map("nan_value_counts", (137, 138, 139), "long"),
        _map("lower_bounds", (125, 126, 127), "bytes"),
        _map("upper_bounds", (128, 129, 130), "bytes"),
        _optional("key_metadata", 131, "bytes"),
        _optional("split_offsets", 132, {"type": "array", "items": "long", "element-id": 133}),
        _optional("equality_ids", 135, {"type": "array", "items": id_type, "element-id": 136}),
        _optional("sort_order_id", 140, "int"),
    ]
    if version > 1:
        fields.append(_optional("referenced_data_file", 143, "string"))
    if version > 2:
        fields += [
            _optional("first_row_id", 142, "long"),
            _optional("content_offset", 144, "long"),
            _optional("content_size_in_bytes", 145, "long"),
        ]
    entry = [_required("status", 0, "int")]
    if version == 1:
        entry.append(_required("snapshot_id", 1, "long"))
    else:
        entry += [
            _optional("snapshot_id", 1, "long"),
            _optional("sequence_number", 3, "long"),
            _optional("file_sequence_number", 4, "long"),
        ]
    entry.append(_required("data_file", 2, {"type": "record", "name": "r2", "fields": fields}))
    return {"type": "record", "name": "manifest_entry", "fields": entry}


def list_schema(version: int) -> dict[str, Any]:
    """A manifest list's record."""
    summary = {
        "type": "record",
        "name": "r508",
        "fields": [
            _required("contains_null", 509, "boolean"),
            _optional("contains_nan", 518, "boolean"),
            _optional("lower_bound", 510, "bytes"),
            _optional("upper_bound", 511, "bytes"),
        ],
    }
    fields = [
        _required("manifest_path", 500, "string"),
        _required("manifest_length", 501, "long"),
        _required("partition_spec_id", 502, "int"),
    ]
    if version > 1:
        fields += [
            _required("content", 517, "int"),
            _required("sequence_number", 515, "long"),
            _required("min_sequence_number", 516, "long"),
        ]
    names = ["added_files_count", "existing_files_count", "deleted_files_count"]
    rows = ["added_rows_count", "existing_rows_count", "deleted_rows_count"]
    fields += [_required("added_snapshot_id", 503, "long")]
    fields += [_optional(n, 504 + i, "int") for i, n in enumerate(names)]
    fields += [_optional("partitions", 507, {"type": "array", "items": summary, "element-id": 508})]
    fields += [_optional(n, 512 + i, "long") for i, n in enumerate(rows)]
    fields += [_optional("key_metadata", 519, "bytes")]
    if version > 2:
        fields.append(_optional("first_row_id", 520, "long"))
    return {"type": "record", "name": "manifest_file", "fields": fields}


def write_avro(
    path: Path, schema: Mapping[str, Any], records: Sequence[Mapping[str, Any]], metadata: Mapping[str, str]
) -> int:
    """Write records with key/value metadata; the size of the file."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("wb") as file:
        fastavro.writer(file, fastavro.parse_schema(dict(schema)), records, codec="deflate", metadata=dict(metadata))
    return path.stat().st_size
