"""Bytes of data files, delete files and Puffin files for test tables, and the statistics manifests say of them."""

import datetime as dt
import decimal
import json
import math
import struct
import uuid
import zlib
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import fastavro
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from pyarrow import orc
from pyroaring import BitMap

from tests.support.iceberg_json import Column, arrow_schema, arrow_type, avro_field

BOUND_LENGTH = 16
_EPOCH = dt.datetime(1970, 1, 1, tzinfo=dt.UTC)
_ID_KEYS = {"parquet": "PARQUET:field_id", "orc": "iceberg.id", "avro": None}
Rows = Mapping[str, Sequence[Any]] | pa.Table


def to_arrow(rows: Rows, columns: Sequence[Column]) -> pa.Table:
    """Rows given as columns of Python values, in the types of the schema."""
    if isinstance(rows, pa.Table):
        return rows
    return pa.table(
        [_array(rows[c.name], arrow_type(c.type)) for c in columns if c.name in rows],
        names=[c.name for c in columns if c.name in rows],
    )


def _array(values: Sequence[Any], kind: pa.DataType) -> pa.Array:
    if isinstance(values, np.ndarray):
        return pa.array(values, kind)
    return pa.array([v.bytes if isinstance(v, uuid.UUID) else v for v in values], kind)


def write_file(
    path: Path, table: pa.Table, columns: Sequence[Column], file_format: str, *, field_ids: bool, **options: Any
) -> None:
    """Write `table`, whose columns are some of `columns`, with Iceberg field ids at every depth."""
    by_name = {c.name: c for c in columns}
    present = [by_name[name] for name in table.column_names]
    path.parent.mkdir(parents=True, exist_ok=True)
    if file_format == "avro":
        _write_avro(path, table, present, field_ids=field_ids)
        return
    schema = arrow_schema(present, _ID_KEYS[file_format] if field_ids else None)
    if file_format == "orc":
        schema = pa.schema([_orc_field(f) for f in schema])
        orc.write_table(_as(table, schema), path, **options)
        return
    stored = _as(table, schema)
    for i, column in enumerate(present):
        if column.type == "uuid":
            values = pa.ExtensionArray.from_storage(pa.uuid(), stored.column(i).combine_chunks())
            stored = stored.set_column(i, schema.field(i).with_type(pa.uuid()), values)
    pq.write_table(stored, path, **{"store_schema": False, "write_page_index": True} | options)


def _as(table: pa.Table, schema: pa.Schema) -> pa.Table:
    columns = [c.cast(f.type) for c, f in zip(table.columns, schema, strict=True)]
    return pa.Table.from_arrays(columns, schema=schema)


def _orc_field(field: pa.Field) -> pa.Field:
    """ORC has no time and no fixed-size binary: Iceberg stores microseconds and plain bytes, with attributes."""
    if pa.types.is_time(field.type):
        return field.with_type(pa.int64()).with_metadata((field.metadata or {}) | {b"iceberg.long-type": b"TIME"})
    if pa.types.is_fixed_size_binary(field.type):
        length = str(field.type.byte_width).encode()
        attributes = {b"iceberg.binary-type": b"FIXED", b"iceberg.length": length}
        return field.with_type(pa.binary()).with_metadata((field.metadata or {}) | attributes)
    return field


def _write_avro(path: Path, table: pa.Table, columns: Sequence[Column], *, field_ids: bool) -> None:
    fields = [avro_field(c.name, c.id, c.type, str(c.id), required=c.required) for c in columns]
    schema: Any = {"type": "record", "name": "table", "fields": fields}
    if not field_ids:
        schema = _without_ids(schema)
    names = table.column_names
    values = [[_avro_value(v, c.type) for v in table.column(c.name).to_pylist()] for c in columns]
    records = [dict(zip(names, row, strict=True)) for row in zip(*values, strict=True)]
    with path.open("wb") as file:
        fastavro.writer(file, fastavro.parse_schema(schema), records)


def _avro_value(value: Any, kind: Any) -> Any:
    if value is None:
        return None
    if kind == "uuid":
        return value.bytes if isinstance(value, uuid.UUID) else value
    if kind in ("timestamp_ns", "timestamptz_ns"):
        return value.value if hasattr(value, "value") else value
    if kind == "timestamp":  # fastavro would take it as the machine's local time
        return value.replace(tzinfo=dt.UTC)
    if isinstance(kind, dict) and kind["type"] == "map":
        if kind["key"] == "string":
            return {k: _avro_value(v, kind["value"]) for k, v in value}
        return [{"key": _avro_value(k, kind["key"]), "value": _avro_value(v, kind["value"])} for k, v in value]
    if isinstance(kind, dict) and kind["type"] == "list":
        return [_avro_value(v, kind["element"]) for v in value]
    if isinstance(kind, dict):
        return {f["name"]: _avro_value(value[f["name"]], f["type"]) for f in kind["fields"]}
    return value


def _without_ids(schema: Any) -> Any:
    if isinstance(schema, list):
        return [_without_ids(s) for s in schema]
    if isinstance(schema, dict):
        dropped = {"field-id", "element-id", "key-id", "value-id"}
        return {k: _without_ids(v) for k, v in schema.items() if k not in dropped}
    return schema


def statistics(table: pa.Table, columns: Sequence[Column]) -> dict[str, list[dict[str, Any]]]:
    """Counts and bounds of the top-level primitive columns, as a manifest's data_file record holds them."""
    found: dict[str, list[dict[str, Any]]] = {
        name: [] for name in ("value_counts", "null_value_counts", "nan_value_counts", "lower_bounds", "upper_bounds")
    }
    for column in columns:
        if column.name not in table.column_names or isinstance(column.type, dict) or column.type == "unknown":
            continue
        values = table.column(column.name)
        try:
            if pa.types.is_integer(values.type):  # large tables of tests have such
                plain = [v for v in pc.min_max(values).as_py().values() if v is not None]
            else:
                plain = values.drop_null().to_pylist()
        except OverflowError:  # dates and times beyond Python's years: their file has no statistics of the column
            continue
        found["value_counts"].append({"key": column.id, "value": len(values)})
        found["null_value_counts"].append({"key": column.id, "value": values.null_count})
        if column.type in {"float", "double"}:
            found["nan_value_counts"].append({"key": column.id, "value": sum(map(math.isnan, plain))})
            plain = [v for v in plain if not math.isnan(v)]
        if plain:
            lower, upper = _bounds(plain, column.type)
            found["lower_bounds"].append({"key": column.id, "value": lower})
            if upper is not None:
                found["upper_bounds"].append({"key": column.id, "value": upper})
    return found


def _bounds(values: list[Any], kind: str) -> tuple[bytes, bytes | None]:
    order = partial(_order, kind=kind)
    lower, upper = (single_value(choose(values, key=order), kind) for choose in (min, max))
    if kind == "string":
        return lower.decode()[:BOUND_LENGTH].encode(), _truncated_text(upper.decode())
    if kind == "binary":
        return lower[:BOUND_LENGTH], _truncated_bytes(upper)
    return lower, upper


def _order(value: Any, kind: str) -> Any:
    if kind in {"float", "double"}:
        return (value, math.copysign(1, value))
    return single_value(value, kind) if kind in {"string", "uuid"} else value


def _truncated_text(text: str) -> bytes | None:
    if len(text) <= BOUND_LENGTH:
        return text.encode()
    for end in range(BOUND_LENGTH, 0, -1):
        following = ord(text[end - 1]) + 1
        if following <= 0x10FFFF:
            following = 0xE000 if 0xD800 <= following < 0xE000 else following
            return (text[: end - 1] + chr(following)).encode()
    return None


def _truncated_bytes(raw: bytes) -> bytes | None:
    if len(raw) <= BOUND_LENGTH:
        return raw
    for end in range(BOUND_LENGTH, 0, -1):
        if raw[end - 1] < 255:
            return raw[: end - 1] + bytes([raw[end - 1] + 1])
    return None


def single_value(value: Any, kind: str) -> bytes:
    """Iceberg's binary single-value serialisation."""
    packed = {"int": "<i", "long": "<q", "float": "<f", "double": "<d", "boolean": "<?"}
    if kind in packed:
        return struct.pack(packed[kind], value)
    if kind == "date":
        return struct.pack("<i", (value - dt.date(1970, 1, 1)).days)
    if kind == "time":
        midnight = dt.datetime.combine(dt.date(1970, 1, 1), value, tzinfo=dt.UTC)
        return struct.pack("<q", (midnight - _EPOCH) // dt.timedelta(microseconds=1))
    if kind.startswith("timestamp"):
        return struct.pack("<q", _instant(value, nanoseconds=kind.endswith("_ns")))
    if kind == "string":
        return value.encode()
    if kind == "uuid":
        return value.bytes if isinstance(value, uuid.UUID) else value
    if kind.startswith("decimal"):
        exact = decimal.Context(prec=60)
        unscaled = int(value.scaleb(-value.as_tuple().exponent, exact))
        return unscaled.to_bytes((unscaled if unscaled >= 0 else ~unscaled).bit_length() // 8 + 1, "big", signed=True)
    return bytes(value)


def _instant(value: Any, *, nanoseconds: bool) -> int:
    if nanoseconds:
        return int(value.value) if hasattr(value, "value") else int(value)
    aware = value if value.tzinfo else value.replace(tzinfo=dt.UTC)
    return (aware - _EPOCH) // dt.timedelta(microseconds=1)


def vector_blob(positions: Sequence[int]) -> bytes:
    """A deletion-vector-v1 blob: length, magic, 64-bit Roaring bitmap, CRC-32."""
    highs = sorted({p >> 32 for p in positions})
    payload = struct.pack("<q", len(highs))
    for high in highs:
        bitmap = BitMap([p & 0xFFFFFFFF for p in positions if p >> 32 == high])
        payload += struct.pack("<i", high) + bitmap.serialize()
    body = b"\xd1\xd3\x39\x64" + payload
    return struct.pack(">i", len(body)) + body + struct.pack(">I", zlib.crc32(body))


def write_puffin(path: Path, blobs: Sequence[tuple[str, bytes, int]]) -> list[int]:
    """Write blobs of (referenced data file, bytes, cardinality); the offset of each."""
    magic, content, offsets, listed = b"PFA1", b"PFA1", [], []
    for data_file, blob, cardinality in blobs:
        offsets.append(len(content))
        listed.append(
            {
                "type": "deletion-vector-v1",
                "fields": [2147483645],
                "snapshot-id": -1,
                "sequence-number": -1,
                "offset": len(content),
                "length": len(blob),
                "properties": {"referenced-data-file": data_file, "cardinality": str(cardinality)},
            }
        )
        content += blob
    payload = json.dumps({"blobs": listed, "properties": {"created-by": "tests"}}).encode()
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content + magic + payload + struct.pack("<ii", len(payload), 0) + magic)
    return offsets
