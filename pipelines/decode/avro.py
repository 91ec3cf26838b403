"""Avro schemas and messages of feeds.

Contains the value types of Avro fields and decoding of many messages in one call. Avro container files are read in
`sources/file_reader.py`.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from io import BytesIO
from operator import itemgetter
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from fastavro import parse_schema, schemaless_reader
from numpy.typing import NDArray

from pipelines.decode.feed_schemas import decimal_type, logical_type
from pipelines.decode.schema_registry import RegisteredSchema, SchemaKind
from pipelines.decode.value_types import Encoding, ValueType
from pipelines.errors import SourceError
from scan_core import Mask
from scan_core.files import AvroField, encode_long, parse_record

_PHYSICAL: Mapping[str, pa.DataType] = {
    "boolean": pa.bool_(),
    "int": pa.int32(),
    "long": pa.int64(),
    "float": pa.float32(),
    "double": pa.float64(),
    "bytes": pa.binary(),
    "string": pa.string(),
    "enum": pa.string(),
    "null": pa.null(),
}
_UNITS: Mapping[str, Encoding] = {"millis": Encoding.MILLIS, "micros": Encoding.MICROS, "nanos": Encoding.NANOS}
_MAX_DEPTH = 64

AVRO_SCHEMA = b"avro.schema"
"""Metadata key of tables that were read from Avro: the writer's schema, whose names tell what columns mean."""


def load_schema(document: str) -> Any:
    """Parse a schema from JSON text.

    Raises:
        SourceError: it nests too deeply.
        ValueError: not JSON.
    """
    try:
        return json.loads(document)
    except RecursionError as error:
        raise SourceError(f"an Avro schema that is nested too deeply: more than {_MAX_DEPTH} levels") from error


def physical(schema: Any) -> Any:
    """The schema without logical types: how the bytes are stored, not what they mean."""
    if isinstance(schema, list):
        return [physical(branch) for branch in schema]
    if not isinstance(schema, Mapping):
        return schema
    kept = {name: value for name, value in schema.items() if name != "logicalType" or value == "map"}
    for name in ("type", "items", "values"):
        if name in kept:
            kept[name] = physical(kept[name])
    if isinstance(kept.get("fields"), list):
        kept["fields"] = [physical(field) for field in kept["fields"]]
    return kept


def field_types(schema: Mapping[str, Any]) -> dict[str, ValueType]:
    """Value types by field of a record schema.

    Raises:
        ValueError: the schema is recursive, or not a valid Avro schema.
    """
    named: dict[str, Any] = {}
    _collect(schema, named, 0)
    try:
        return {field["name"]: _value_type(field["type"], named, 0) for field in schema.get("fields", [])}
    except (AttributeError, KeyError, TypeError) as error:
        raise ValueError(f"not an Avro schema: {error}") from error


def types_of_file(rows: pa.Table) -> dict[str, ValueType]:
    """Value types by column from the schema of an Avro file; empty for other files.

    Raises:
        SourceError: the schema is malformed.
    """
    document = (rows.schema.metadata or {}).get(AVRO_SCHEMA)
    if document is None:
        return {}
    try:
        return field_types(json.loads(document))
    except ValueError as error:
        raise SourceError(f"the schema of the Avro file cannot be used: {error}") from error


def _collect(schema: Any, named: dict[str, Any], depth: int) -> None:
    if depth > _MAX_DEPTH:
        raise ValueError(f"the schema nests deeper than {_MAX_DEPTH} levels")
    if isinstance(schema, list):
        for branch in schema:
            _collect(branch, named, depth + 1)
    elif isinstance(schema, Mapping):
        if "name" in schema and schema.get("type") in ("record", "enum", "fixed"):
            name = str(schema["name"])
            for known in (name, name.rpartition(".")[2], f"{schema.get('namespace')}.{name}"):
                named.setdefault(known, schema)
        for part in (schema.get("type"), schema.get("items"), schema.get("values"), *(schema.get("fields") or ())):
            _collect(part, named, depth + 1)


def _value_type(schema: Any, named: Mapping[str, Any], depth: int) -> ValueType:
    if depth > _MAX_DEPTH:
        raise ValueError(f"the schema nests deeper than {_MAX_DEPTH} levels")
    if isinstance(schema, list):
        values = [branch for branch in schema if branch != "null"]
        return _value_type(values[0], named, depth + 1) if values else ValueType(pa.null())
    if isinstance(schema, str):
        return ValueType(_PHYSICAL[schema]) if schema in _PHYSICAL else _value_type(named[schema], named, depth + 1)
    meant = logical_type(schema.get("connect.name"), schema.get("connect.parameters") or schema)
    meant = meant or _avro_logical(schema)
    if meant is not None:
        return meant
    kind = schema["type"]
    if not isinstance(kind, str) or (kind not in _PHYSICAL and kind not in {"record", "array", "map", "fixed"}):
        return _value_type(kind, named, depth + 1)
    match kind:
        case "record":
            members = tuple((f["name"], _value_type(f["type"], named, depth + 1)) for f in schema["fields"])
            return ValueType(pa.struct([pa.field(n, m.arrow) for n, m in members]), members=members)
        case "array":
            element = _value_type(schema["items"], named, depth + 1)
            return ValueType(pa.list_(pa.field("element", element.arrow)), members=(("element", element),))
        case "map":
            key, value = ValueType(pa.string()), _value_type(schema["values"], named, depth + 1)
            arrow = pa.map_(pa.field("key", pa.string(), nullable=False), pa.field("value", value.arrow))
            return ValueType(arrow, members=(("key", key), ("value", value)))
        case "fixed":
            return ValueType(pa.binary(int(schema["size"])))
        case _:
            return ValueType(_PHYSICAL[kind])


def _avro_logical(schema: Mapping[str, Any]) -> ValueType | None:
    """The value type of an Avro logical type: timestamps are instants unless they say that they are local."""
    logical = schema.get("logicalType")
    if not isinstance(logical, str):
        return None
    kind, _, unit = logical.rpartition("-")
    if logical == "decimal":
        return decimal_type(int(schema.get("scale", 0)), int(schema.get("precision", 38)))
    if logical == "date":
        return ValueType(pa.date32(), Encoding.DAYS)
    if logical == "uuid":
        return ValueType(pa.binary(16), Encoding.HEX)
    if kind == "time":
        return ValueType(pa.time64("us"), _UNITS[unit])
    if kind in {"timestamp", "local-timestamp"}:
        local = kind != "timestamp" or str(schema.get("adjust-to-utc", True)).lower() == "false"
        return ValueType(pa.timestamp("us", None if local else "UTC"), _UNITS[unit])
    return None


_MARK = "mark"
_MARK_BYTES = 8
_CHUNK_ROWS = 2_048
"""Records are Python dicts for a moment: this many at a time stay in the caches and are garbage collected only once."""

_BROKEN = (EOFError, ValueError, IndexError, OverflowError, MemoryError)
"""What fastavro and Arrow raise on bytes that are not a value of the schema."""


class AvroMessages:
    """How messages in Avro are framed: the value follows the id of its schema."""

    kind = SchemaKind.AVRO

    @staticmethod
    def prefix_lengths(messages: pa.BinaryArray, header: int) -> NDArray[np.int64]:
        """Bytes in front of each value; 0 where they are broken."""
        sizes = pc.fill_null(pc.binary_length(messages), 0).to_numpy()
        return np.where(sizes >= header, header, 0).astype(np.int64)

    @staticmethod
    def reader(schema: RegisteredSchema, _: bytes, *, is_key: bool) -> "AvroReader | None":
        """The reader of a schema; None for keys that are a plain value, which name no column.

        Raises:
            SourceError: not the schema of a record, or one that cannot be read.
        """
        document = complete_document(schema)
        return None if is_key and not is_record(document) else reader_of(document)


@dataclass(frozen=True)
class AvroReader:
    """Reads the values of one schema.

    Attributes:
        fields: fields of the record, with their physical Arrow types.
        types: value type of each field.
        schema: an array of records, each followed by a marker, in fastavro's form.
        plain: an array of records.
    """

    fields: tuple[AvroField, ...]
    types: Mapping[str, ValueType]
    schema: Any
    plain: Any

    def read(self, values: pa.BinaryArray) -> tuple[pa.Table, Mask]:
        """Read the values as rows of physical columns, and the mask of invalid ones (NULL in every column)."""
        bad = np.asarray(values.is_null()).copy()
        parts: list[tuple[int, pa.Table]] = []
        pending = [(first, min(first + _CHUNK_ROWS, len(values))) for first in range(0, len(values), _CHUNK_ROWS)][::-1]
        while pending:
            first, last = pending.pop()
            piece = values.slice(first, last - first)
            table = None if piece.null_count else _read(piece, self)
            if table is not None:
                parts.append((first, table))
            elif last - first > 1:
                middle = (first + last) // 2
                pending += [(middle, last), (first, middle)]
            else:
                bad[first] = True
                parts.append((first, _nothing(self)))
        schema = pa.schema([pa.field(f.name, f.type.meant) for f in self.fields])
        tables = [table for _, table in parts]
        return (pa.concat_tables(tables).combine_chunks() if tables else pa.Table.from_batches([], schema=schema)), bad


@lru_cache(maxsize=1024)
def reader_of(document: str) -> AvroReader:
    """Create the reader of an Avro schema in JSON.

    Raises:
        SourceError: not the schema of a record, or one that cannot be read.
    """
    try:
        schema = load_schema(document)
        fields, plain, _ = parse_record(physical(schema))
        types = field_types(schema)
        marked = {
            "type": "record",
            "name": "marked",
            "fields": [
                {"name": "value", "type": plain},
                {"name": _MARK, "type": {"type": "fixed", "name": "mark", "size": _MARK_BYTES}},
            ],
        }
        parsed = parse_schema({"type": "array", "items": marked})
        array = parse_schema({"type": "array", "items": plain})
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise SourceError(f"an Avro schema that cannot be read: {error}; it begins {document[:120]!r}") from error
    for field in fields:
        if _holds_union(field.type.meant):
            raise SourceError(f"Avro field {field.name} is a union of several types, which no column type can hold")
    return AvroReader(fields, types, parsed, array)


@lru_cache(maxsize=1024)
def complete_document(schema: RegisteredSchema) -> str:
    """The text of a schema with each type that it references in place of the first mention of its name.

    Raises:
        SourceError: one of the schemas nests too deeply, or is not JSON.
    """
    if not schema.references:
        return schema.text
    try:
        referenced = {name: load_schema(text) for name, text in schema.references}
        return json.dumps(_completed(load_schema(schema.text), referenced))
    except ValueError as error:
        raise SourceError(f"an Avro schema that cannot be read: {error}; it begins {schema.text[:120]!r}") from error


def _completed(schema: Any, referenced: dict[str, Any]) -> Any:
    if isinstance(schema, str):
        own = referenced.pop(schema, None)
        return schema if own is None else _completed(own, referenced)
    if isinstance(schema, list):
        return [_completed(branch, referenced) for branch in schema]
    if isinstance(schema, dict):
        parts = {n: _completed(schema[n], referenced) for n in ("type", "items", "values") if n in schema}
        if "fields" in schema:
            parts["fields"] = [_completed(field, referenced) for field in schema["fields"]]
        return {**schema, **parts}
    return schema


def is_record(document: str) -> bool:
    """Whether a schema is of a record, or is broken so that reading it says why; keys may be of a plain type."""
    try:
        schema = load_schema(document)
    except ValueError:
        return True
    kind = schema.get("type") if isinstance(schema, Mapping) else schema
    return isinstance(schema, Mapping) and (kind == "record" or kind not in {*_PHYSICAL, "fixed", "array", "map"})


def read_records(data: bytes, count: int, reader: AvroReader) -> pa.Table | None:
    """Read the records of a block of a file; None if it does not hold them."""
    if count == 0:
        return _table([], reader) if not data else None
    if count > len(data):
        return None  # records without bytes carry no information, and nothing limits their number
    stream = BytesIO(encode_long(count) + data + b"\0")
    try:
        records: list[dict[str, Any]] = schemaless_reader(stream, reader.plain, None)
        return None if len(records) != count or stream.read(1) else _table(records, reader)
    except _BROKEN:
        return None


def _read(values: pa.BinaryArray, reader: AvroReader) -> pa.Table | None:
    """Read all values; None if any of them is broken."""
    count = len(values)
    marks = np.arange(1, count + 1, dtype=np.int64) * np.int64(0x5851F42D4C957F2D)
    offsets = np.arange(count + 1, dtype=np.int32) * _MARK_BYTES
    ends = pa.Array.from_buffers(pa.binary(), count, [None, pa.py_buffer(offsets), pa.py_buffer(marks)])
    joined = pc.binary_join_element_wise(values, ends, pa.scalar(b"", pa.binary()))
    _, places, data = joined.buffers()
    begin, end = np.frombuffer(places, np.int32)[[0, count]].tolist()
    stream = BytesIO(encode_long(count) + data.slice(begin, end - begin).to_pybytes() + b"\0")
    try:
        records: list[dict[str, Any]] = schemaless_reader(stream, reader.schema, None)
        if len(records) != count or stream.read(1):
            return None
        if b"".join(map(itemgetter(_MARK), records)) != marks.tobytes():
            return None
        return _table(list(map(itemgetter("value"), records)), reader)
    except _BROKEN:
        return None  # one of them is broken: the caller bisects until it is found


def _table(rows: list[dict[str, Any]], reader: AvroReader) -> pa.Table:
    schema = pa.schema([pa.field(f.name, f.type.meant) for f in reader.fields])
    return pa.Table.from_arrays([_column(rows, field) for field in reader.fields], schema=schema)


def _column(rows: list[dict[str, Any]], field: AvroField) -> pa.Array:
    array = pa.array(list(map(itemgetter(field.key), rows)), type=field.type.stored)
    return array if field.type.finish is None else field.type.finish(array)


def _nothing(reader: AvroReader) -> pa.Table:
    schema = pa.schema([pa.field(f.name, f.type.meant) for f in reader.fields])
    return pa.Table.from_arrays([pa.nulls(1, field.type) for field in schema], schema=schema)


def _holds_union(arrow: pa.DataType) -> bool:
    if pa.types.is_union(arrow):
        return True
    return any(_holds_union(arrow.field(i).type) for i in range(arrow.num_fields))
