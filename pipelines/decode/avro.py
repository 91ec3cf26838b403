"""Avro schemas and messages of feeds.

Contains the value types of Avro fields. Values are decoded in `scan_core/metadata/avro_values.py`, and Avro container files
are read in `sources/file_reader.py`.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from nevermore.pipelines.decode.feed_schemas import UNKNOWN_PRECISION, decimal_type, logical_type
from nevermore.pipelines.decode.schema_registry import RegisteredSchema, SchemaKind
from nevermore.pipelines.decode.value_types import Encoding, ValueType, list_of, map_of, struct_of
from nevermore.pipelines.errors import SourceError, WideBatchError
from nevermore.scan_core import Mask
from nevermore.scan_core.metadata import AvroError, AvroType, WideValuesError, parse_record
from nevermore.scan_core.metadata import AvroReader as AvroValues
from nevermore.scan_core.native import is_missed, load_kernels

_UNITS: Mapping[str, Encoding] = {"millis": Encoding.MILLIS, "micros": Encoding.MICROS, "nanos": Encoding.NANOS}
_MAX_DEPTH = 64
_NAMELESS = frozenset(
    ["null", "boolean", "int", "long", "float", "double", "bytes", "string", "enum", "fixed", "array", "map"]
)
"""Types of values that are no rows."""

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


def types_of_file(rows: pa.Table) -> Mapping[str, ValueType]:
    """Value types by column from the schema of an Avro file; empty for other files.

    Raises:
        SourceError: the schema is malformed.
    """
    document = (rows.schema.metadata or {}).get(AVRO_SCHEMA)
    return {} if document is None else reader_of(document.decode()).types


def _value_type(of: AvroType) -> ValueType:
    """The value type of a part of a record, from what it is stored as and what its definition says that this means."""
    meant = logical_type(of.schema.get("connect.name"), of.schema.get("connect.parameters") or of.schema)
    if (meant := meant or _avro_logical(of.schema)) is not None:
        return meant
    parts = [(part.name, _value_type(part.type)) for part in of.parts if (of.kind, part.type.kind) != ("union", "null")]
    match of.kind:
        case "union" if len(parts) < 2:
            return parts[0][1] if parts else ValueType(pa.null())
        case "union" | "record":
            return struct_of(parts)
        case "array":
            return list_of(parts[0][1])
        case "map":
            return map_of(parts[0][1], parts[1][1])
        case _:
            return ValueType(of.meant)


def _avro_logical(schema: Mapping[str, Any]) -> ValueType | None:
    """The value type of an Avro logical type: timestamps are instants unless they say that they are local."""
    logical = schema.get("logicalType")
    if not isinstance(logical, str):
        return None
    kind, _, unit = logical.rpartition("-")
    if logical == "decimal":
        return decimal_type(int(schema.get("scale", 0)), int(schema.get("precision", UNKNOWN_PRECISION)))
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


@lru_cache(maxsize=1024)
def reader_of(document: str) -> "AvroReader":
    """Create the reader of an Avro schema in JSON.

    Raises:
        SourceError: not the schema of a record, or one that cannot be read.
    """
    try:
        if is_missed():
            load_kernels()  # compiled here, as a scan does not compile
        schema = load_schema(document)
        values = AvroValues.of(parse_record(schema, physical=True))
        return AvroReader(values, {field.name: _value_type(field.type) for field in values.fields})
    except (ValueError, TypeError, KeyError, AttributeError, OverflowError) as error:
        raise SourceError(f"an Avro schema that cannot be read: {error}; it begins {document[:120]!r}") from error


@dataclass(frozen=True)
class AvroReader:
    """Reads the values of one record schema as rows of physical columns.

    Attributes:
        values: reads the values.
        types: the value type of each field.
    """

    values: AvroValues
    types: Mapping[str, ValueType]

    def read(self, values: pa.BinaryArray) -> tuple[pa.Table, Mask]:
        """Read values, and the mask of invalid ones, whose columns mean nothing.

        Raises:
            WideBatchError: the columns would take far more memory than the values.
        """
        try:
            return self.values.messages(values)
        except WideValuesError as error:
            raise WideBatchError(str(error)) from error

    def read_blocks(self, blocks: Sequence[tuple[int, bytes]]) -> pa.Table | None:
        """Read blocks with their number of values, which follow each other; None if any does not hold exactly these."""
        if any(count > len(data) for count, data in blocks):
            return None  # records without bytes carry no information, and nothing limits their number
        try:
            return self.values.rows(blocks)
        except WideValuesError as error:
            raise WideBatchError(str(error)) from error
        except AvroError:
            return None


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
    return isinstance(schema, Mapping) and (kind == "record" or kind not in _NAMELESS)
