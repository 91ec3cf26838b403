"""Rows of files that hold columns, as quarantine keeps them: a JSON object each that knows its schema, and back again."""

import base64
import math
from collections.abc import Sequence
from datetime import timedelta
from decimal import Decimal
from typing import Any

import orjson
import pyarrow as pa

from pipelines.formats.casting import cast_each
from pipelines.formats.documents import from_binary
from pipelines.formats.json_columns import decode
from pipelines.formats.json_scan import scan_objects
from pipelines.formats.plain_types import plain_type
from pipelines.formats.value_type import from_arrow

SCHEMA = "__columns"
"""The member that tells the columns: TEXT, or their Arrow schema in base64."""
TEXT = "text"


def documents_of(rows: pa.Table) -> pa.BinaryArray:
    """Each row as a JSON object, with the schema of its columns."""
    schema = rows.schema.remove_metadata()
    plain = all(field.type == pa.string() and not field.metadata for field in schema)
    mark = TEXT if plain else base64.b64encode(schema.serialize().to_pybytes()).decode()
    documents = [orjson.dumps({**_finite(row), SCHEMA: mark}, default=_plain) for row in rows.to_pylist()]
    return pa.array(documents, pa.binary())


def schema_of(document: bytes | None) -> tuple[str, tuple[str, ...]] | None:
    """What rows of one table have in common; None for a document that is no such row."""
    try:
        row = orjson.loads(document or b"")
    except orjson.JSONDecodeError:
        return None
    if not isinstance(row, dict) or not isinstance(row.get(SCHEMA), str):
        return None
    return row[SCHEMA], tuple(name for name in row if name != SCHEMA)


def rows_of(documents: Sequence[bytes], schema: tuple[str, tuple[str, ...]]) -> pa.Table:
    """The rows of documents of one schema.

    Raises:
        ValueError: a document is not what was written.
    """
    mark, names = schema
    columns = scan_objects(from_binary(pa.array(documents, pa.binary())), names, learn=False)
    given = pa.schema([(name, pa.string()) for name in names]) if mark == TEXT else _read(mark)
    arrays = []
    for field in given:
        # Decimals of more than 38 digits are in no plain type; they were written as text.
        kind = pa.string() if pa.types.is_decimal256(field.type) else plain_type(field.type)
        array, bad = decode(columns.column(field.name), from_arrow(kind))
        array, lost = (array, bad) if array.type == field.type else cast_each(array, field.type)
        if (bad | lost).any():
            raise ValueError(f"column {field.name} of a row in quarantine is no {field.type}")
        arrays.append(array)
    return pa.Table.from_arrays(arrays, schema=given)


def shown(document: bytes) -> bytes:
    """A document as people want to read it: without its schema."""
    if schema_of(document) is None:
        return document
    row = orjson.loads(document)
    del row[SCHEMA]
    return orjson.dumps(row)


def _read(mark: str) -> pa.Schema:
    return pa.ipc.read_schema(pa.py_buffer(base64.b64decode(mark)))


def _finite(value: Any) -> Any:
    """The value with NaN and infinity as text: JSON has none, and orjson writes null."""
    if isinstance(value, float):
        return value if math.isfinite(value) else str(value)
    if isinstance(value, dict):
        return {name: _finite(member) for name, member in value.items()}
    return [_finite(member) for member in value] if isinstance(value, list | tuple) else value


def _plain(value: Any) -> Any:
    if isinstance(value, bytes):
        return base64.b64encode(value).decode()
    if isinstance(value, timedelta):
        return value // timedelta(microseconds=1)
    return format(value, "f") if isinstance(value, Decimal) else str(value)
