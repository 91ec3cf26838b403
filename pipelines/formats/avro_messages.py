"""Many Avro values of one schema, each of its own length, decoded at once to a table; broken ones are told apart.

All values are joined to one array and decoded by a single call. A mark of eight bytes stands behind each, so a value
that is too short or too long cannot shift its neighbours without being noticed.
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

from pipelines.errors import SourceError
from pipelines.formats.avro_types import field_types, physical
from pipelines.formats.value_type import ValueType
from scan_core.read.avro_container import encode_long
from scan_core.read.avro_schema import parse_record
from scan_core.read.avro_types import AvroField

Mask = NDArray[np.bool_]

_MARK = "mark"
_MARK_BYTES = 8
_CHUNK_ROWS = 2_048
"""Records are Python dicts for a moment: so few at a time stay in the caches, and the collector does not visit them twice."""

_BROKEN = (EOFError, ValueError, IndexError, OverflowError, MemoryError)
"""What fastavro and Arrow raise on bytes that are no value of the schema."""


@dataclass(frozen=True)
class AvroReader:
    """What reads the values of one schema.

    Attributes:
        fields: of the record, with their physical Arrow types.
        types: what each field means.
        schema: an array of records with a mark behind each, as fastavro takes it.
        plain: an array of records.
    """

    fields: tuple[AvroField, ...]
    types: Mapping[str, ValueType]
    schema: Any
    plain: Any


@lru_cache(maxsize=1024)
def reader_of(document: str) -> AvroReader:
    """The reader of an Avro schema in JSON.

    Raises:
        SourceError: no schema of a record, or one that cannot be read.
    """
    try:
        schema = json.loads(document)
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
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
        raise SourceError(f"an Avro schema that cannot be read: {error}; it begins {document[:120]!r}") from error
    for field in fields:
        if _holds_union(field.type.meant):
            raise SourceError(f"Avro field {field.name} is a union of several types, which no column type holds")
    return AvroReader(fields, types, parsed, array)


def read_records(data: bytes, count: int, reader: AvroReader) -> pa.Table | None:
    """The records of a block of a file; None if it does not hold them."""
    if count == 0:
        return _table([], reader) if not data else None
    if count > len(data):
        return None  # records without bytes tell nothing, and their number is bounded by nothing
    stream = BytesIO(encode_long(count) + data + b"\0")
    try:
        records: list[dict[str, Any]] = schemaless_reader(stream, reader.plain, None)
        return None if len(records) != count or stream.read(1) else _table(records, reader)
    except _BROKEN:
        return None


def read_values(values: pa.BinaryArray, reader: AvroReader) -> tuple[pa.Table, Mask]:
    """The values as rows of physical columns, and which are none (NULL in every column)."""
    bad = np.asarray(values.is_null()).copy()
    parts: list[tuple[int, pa.Table]] = []
    pending = [(first, min(first + _CHUNK_ROWS, len(values))) for first in range(0, len(values), _CHUNK_ROWS)][::-1]
    while pending:
        first, last = pending.pop()
        piece = values.slice(first, last - first)
        table = None if piece.null_count else _read(piece, reader)
        if table is not None:
            parts.append((first, table))
        elif last - first > 1:
            middle = (first + last) // 2
            pending += [(middle, last), (first, middle)]
        else:
            bad[first] = True
            parts.append((first, _nothing(reader)))
    schema = pa.schema([pa.field(f.name, f.type.meant) for f in reader.fields])
    tables = [table for _, table in parts]
    return (pa.concat_tables(tables).combine_chunks() if tables else schema.empty_table()), bad


def _read(values: pa.BinaryArray, reader: AvroReader) -> pa.Table | None:
    """All values, or None if any of them is broken."""
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
        return None  # one of them is broken: the caller halves until it is found


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
