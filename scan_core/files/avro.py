"""Avro data files as a FileReader: runs of blocks as row groups, decoded in bulk by fastavro."""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from io import BytesIO
from operator import itemgetter
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from nevermore.scan_core.columns.file_reader import (
    FIELD_ID_KEY,
    DecodingLimits,
    FileReader,
    ReadCounts,
    RowGroup,
    refusing_malformed,
)
from nevermore.scan_core.io.files import open_input
from nevermore.scan_core.io.location import FileIOConfig
from nevermore.scan_core.metadata.avro_container import (
    MAX_EXPANSION,
    Block,
    BlockTooLargeError,
    Header,
    decompress,
    find_blocks,
    read_file_header,
)
from nevermore.scan_core.model.errors import MemoryLimitError, UnsupportedError, require_package
from nevermore.scan_core.model.schema import MAX_TYPE_DEPTH
from nevermore.scan_core.rows.selection import RowSelection, select_rows, selected_count

Finish = Callable[[pa.Array], pa.Array]


def _fastavro() -> Any:
    return require_package("fastavro", "an Avro data file", "nevermore-iceberg[avro]")


TIMES: Mapping[tuple[str, str], pa.DataType] = {
    ("int", "date"): pa.date32(),
    ("int", "time-millis"): pa.time32("ms"),
    ("long", "time-micros"): pa.time64("us"),
    ("long", "time-nanos"): pa.time64("ns"),
}
"""By type as stored and logical type."""
_TIMESTAMP_UNITS = {"millis": "ms", "micros": "us", "nanos": "ns"}


@dataclass(frozen=True, slots=True)
class AvroType:
    """One type of a schema.

    Attributes:
        plain: the rewritten Avro schema.
        stored: the Arrow type of the plain values.
        meant: the Arrow type they stand for, with field ids.
        finish: from `stored` to `meant`; None if they are the same.
        min_bytes: the fewest bytes a value can take.
        nullable: whether it is a union with null.
    """

    plain: Any
    stored: pa.DataType
    meant: pa.DataType
    finish: Finish | None
    min_bytes: int
    nullable: bool = False


@dataclass(frozen=True, slots=True)
class AvroField:
    """A field of a record under its name in the file; `key` is its name in the rewritten schema."""

    name: str
    key: str
    field_id: int | None
    type: AvroType

    def arrow(self) -> pa.Field:
        """The field in the file's Arrow schema."""
        return arrow_field(self.name, self.type, self.field_id)


def arrow_field(name: str, kind: AvroType, field_id: int | None) -> pa.Field:
    """A field of the meant type, with its id as metadata."""
    metadata = None if field_id is None else {FIELD_ID_KEY: str(field_id)}
    return pa.field(name, kind.meant, kind.nullable, metadata)


def finish_struct(array: pa.StructArray, fields: tuple[AvroField, ...], meant: pa.DataType) -> pa.Array:
    """A struct whose members have been converted to the types of their columns."""
    if not fields:
        return array
    children = [_finished(array.field(i), f.type) for i, f in enumerate(fields)]
    return pa.StructArray.from_arrays(children, fields=list(meant), mask=_mask(array))


def finish_list(array: pa.ListArray, items: AvroType, meant: pa.DataType) -> pa.Array:
    """A list of finished elements."""
    values = _finished(array.values, items)
    return pa.ListArray.from_arrays(array.offsets, values, type=meant, mask=_mask(array))


def finish_map(array: pa.ListArray, key: AvroField, value: AvroField, meant: pa.DataType) -> pa.Array:
    """A map of finished keys and values, which are stored as a list of pairs."""
    entries = array.values
    keys, values = _finished(entries.field(0), key.type), _finished(entries.field(1), value.type)
    return pa.MapArray.from_arrays(array.offsets, keys, values, type=meant, mask=_mask(array))


def refuse_union(array: pa.Array) -> pa.Array:
    """Refuse a column that has no column type, when it is requested."""
    raise pa.ArrowNotImplementedError(f"a union of several types is not supported ({len(array)} values)")


def _finished(array: pa.Array, kind: AvroType) -> pa.Array:
    return array if kind.finish is None else kind.finish(array)


def _mask(array: pa.Array) -> pa.Array | None:
    return array.is_null() if array.null_count else None


def timestamp_type(logical: str, schema: Mapping[str, Any]) -> pa.DataType:
    """The Arrow type of a logical type; int64 for an unknown unit."""
    unit = _TIMESTAMP_UNITS.get(logical.rpartition("-")[2])
    if unit is None:
        return pa.int64()
    adjusted = schema.get("adjust-to-utc") in {True, "true"} and not logical.startswith("local-")
    return pa.timestamp(unit, "UTC" if adjusted else None)


def uuid_from_text(array: pa.Array) -> pa.Array:
    """The 16 bytes of UUIDs written as text."""
    digits = pc.replace_substring(array.cast(pa.string()), "-", "")
    if not pc.all(pc.equal(pc.binary_length(digits), 32), min_count=0).as_py():
        raise ValueError("a UUID that has not 32 hexadecimal digits")
    raw = bytes.fromhex("".join(digits.fill_null("0" * 32).to_pylist()))
    validity = None if not array.null_count else pc.is_valid(array).buffers()[1]
    return pa.Array.from_buffers(pa.binary(16), len(array), [validity, pa.py_buffer(raw)])


def decimal_from_bytes(array: pa.Array, meant: pa.DataType) -> pa.Array:
    """Big-endian two's complement of any length, sign-extended to the 16 bytes of Arrow."""
    num_rows = len(array)
    if pa.types.is_fixed_size_binary(array.type):
        width = array.type.byte_width
        starts = np.arange(num_rows, dtype=np.int64) * width
        lengths = np.full(num_rows, width, np.int64)
        data_buffer = array.buffers()[1]
    else:
        offsets = np.frombuffer(array.buffers()[1], np.int32, count=num_rows + 1).astype(np.int64)
        starts, lengths, data_buffer = offsets[:-1], np.diff(offsets), array.buffers()[2]
    data = np.zeros(1, np.uint8) if data_buffer is None else np.frombuffer(data_buffer, np.uint8)
    if array.null_count:
        lengths = np.where(array.is_valid().to_numpy(zero_copy_only=False), lengths, 0)
    longest = int(lengths.max(initial=0))
    if longest > 16:
        raise ValueError(f"a decimal of {longest} bytes")
    result = np.zeros((num_rows, 16), np.uint8)
    first = data[np.minimum(starts, len(data) - 1)] if num_rows else np.zeros(0, np.uint8)
    result[(lengths > 0) & (first >= 0x80)] = 0xFF
    for place in range(longest):
        rows = np.flatnonzero(lengths > place)
        result[rows, place] = data[starts[rows] + lengths[rows] - 1 - place]
    validity = None if not array.null_count else pc.is_valid(array).buffers()[1]
    decimals = pa.Array.from_buffers(meant, num_rows, [validity, pa.py_buffer(result)])
    decimals.validate(full=True)
    return decimals


MAX_SCHEMA_NODES = 100_000
"""Named types may refer to each other: a small text must not expand without end."""

_PLAIN: Mapping[str, tuple[pa.DataType, int]] = {
    "boolean": (pa.bool_(), 1),
    "int": (pa.int32(), 1),
    "long": (pa.int64(), 1),
    "float": (pa.float32(), 4),
    "double": (pa.float64(), 8),
    "bytes": (pa.binary(), 1),
}
_UNREADABLE = pa.dense_union([pa.field("value", pa.null())])
"""The type of what has no column type; it converts to nothing, so that only its own column is refused."""


def parse_record(document: Any, *, unions_as_structs: bool = False) -> tuple[tuple[AvroField, ...], Any, int]:
    """The fields of a file's top-level record, its rewritten schema, and the fewest bytes of a row.

    A union of several types has no column type, or is a struct of `union_members`.

    Raises:
        ValueError: no record, a type that does not exist, recursion, or a schema that expands too far.
    """
    parser = _Parser(unions_as_structs=unions_as_structs)
    if not isinstance(document, Mapping) or document.get("type") != "record":
        raise ValueError(f"the top-level schema must be a record, not {document!r:.80}")
    fields = parser.fields(document, 0)
    return fields, parser.plain_record(fields), sum(f.type.min_bytes for f in fields)


def union_members(branches: Sequence[Any]) -> list[tuple[str, Any]]:
    """The types of a union other than null, under their names as Kafka Connect gives them: that of the type alone.

    Where two have the same name, they have their full names.
    """
    values = [branch for branch in branches if branch != "null"]
    names = [_branch_name(branch) for branch in values]
    short = [name.rpartition(".")[2] for name in names]
    return list(zip(short if len(set(short)) == len(short) else names, values, strict=True))


def _branch_name(branch: Any) -> str:
    while isinstance(branch, Mapping):
        if branch.get("type") in {"record", "enum", "fixed"}:
            name, namespace = str(branch.get("name")), branch.get("namespace")
            return f"{namespace}.{name}" if namespace and "." not in name else name
        branch = branch.get("type")
    return str(branch)


class _Parser:
    def __init__(self, *, unions_as_structs: bool) -> None:
        self._unions_as_structs = unions_as_structs
        self._named: dict[str, Any] = {}
        self._open: set[str] = set()
        self._nodes = 0
        self._names = 0

    def new_name(self) -> str:
        self._names += 1
        return f"r{self._names}"

    def plain_record(self, fields: Sequence[AvroField]) -> dict[str, Any]:
        return {
            "type": "record",
            "name": self.new_name(),
            "fields": [{"name": f.key, "type": f.type.plain} for f in fields],
        }

    def fields(self, record: Mapping[str, Any], depth: int) -> tuple[AvroField, ...]:
        members = record.get("fields")
        if not isinstance(members, list) or not all(isinstance(m, Mapping) and "type" in m for m in members):
            raise ValueError(f"a record without fields: {record!r:.80}")
        return tuple(
            AvroField(str(m.get("name")), f"f{i}", _field_id(m, "field-id"), self.type(m["type"], depth + 1))
            for i, m in enumerate(members)
        )

    def type(self, schema: Any, depth: int) -> AvroType:
        self._nodes += 1
        if depth > MAX_TYPE_DEPTH or self._nodes > MAX_SCHEMA_NODES:
            raise ValueError(f"the schema nests deeper than {MAX_TYPE_DEPTH} levels or grows without end")
        if isinstance(schema, list):
            return self._union(schema, depth)
        if isinstance(schema, str):
            return self._reference(schema, depth) if schema in self._named else self._primitive(schema, {})
        if not isinstance(schema, Mapping):
            raise TypeError(f"{schema!r:.80} is not an Avro schema")
        kind = schema.get("type")
        if kind in {"record", "enum", "fixed"}:
            return self._definition(schema, depth)
        if kind == "array":
            return self._array(schema, depth)
        if kind == "map":
            return self._map(schema, depth)
        if isinstance(kind, str) and kind not in self._named:
            return self._primitive(kind, schema)
        return self.type(kind, depth + 1)

    def _reference(self, name: str, depth: int) -> AvroType:
        if name in self._open:
            raise ValueError(f"the schema type {name!r} contains itself")
        return self._definition(self._named[name], depth)

    def _definition(self, schema: Mapping[str, Any], depth: int) -> AvroType:
        name = str(schema.get("name"))
        names = {name, name.rpartition(".")[2], f"{schema.get('namespace')}.{name}"}
        for known in names:
            self._named[known] = schema
        self._open |= names
        try:
            match schema["type"]:
                case "record":
                    return self._record(schema, depth)
                case "enum":
                    symbols = schema.get("symbols")
                    plain = {"type": "enum", "name": self.new_name(), "symbols": symbols}
                    return AvroType(plain, pa.string(), pa.string(), None, 1)
                case _:
                    return self._fixed(schema)
        finally:
            self._open -= names

    def _record(self, schema: Mapping[str, Any], depth: int) -> AvroType:
        fields = self.fields(schema, depth)
        plain = self.plain_record(fields)
        stored = pa.struct([pa.field(f.key, f.type.stored) for f in fields])
        meant = pa.struct([f.arrow() for f in fields])
        least = sum(f.type.min_bytes for f in fields)
        return AvroType(plain, stored, meant, lambda array: finish_struct(array, fields, meant), least)

    def _union(self, branches: list[Any], depth: int) -> AvroType:
        values = [b for b in branches if b != "null"]
        if len(values) > 1 or len(branches) - len(values) > 1 or not branches:
            types = [self.type(b, depth + 1) for b in branches]
            meant = _UNREADABLE
            if self._unions_as_structs and values:
                known = [kind for kind, branch in zip(types, branches, strict=True) if branch != "null"]
                names = [name for name, _ in union_members(branches)]
                meant = pa.struct([pa.field(name, kind.meant) for name, kind in zip(names, known, strict=True)])
            return AvroType([t.plain for t in types], _UNREADABLE, meant, refuse_union, 1, "null" in branches)
        if not values:
            return AvroType(["null"], pa.null(), pa.null(), None, 1, nullable=True)
        inner = self.type(values[0], depth + 1)
        plain = [inner.plain if b != "null" else "null" for b in branches]
        nullable = len(branches) > 1 or inner.nullable
        return AvroType(plain, inner.stored, inner.meant, inner.finish, 1, nullable)

    def _array(self, schema: Mapping[str, Any], depth: int) -> AvroType:
        if schema.get("logicalType") == "map":
            return self._pairs(schema, depth)
        items = self._items(schema.get("items"), depth)
        meant = pa.list_(arrow_field("element", items, _field_id(schema, "element-id")))
        stored = pa.list_(items.stored)
        return AvroType(
            {"type": "array", "items": items.plain}, stored, meant, lambda array: finish_list(array, items, meant), 1
        )

    def _pairs(self, schema: Mapping[str, Any], depth: int) -> AvroType:
        """A map with keys other than strings: an array of records of key and value."""
        items = schema.get("items")
        if not isinstance(items, Mapping):
            raise TypeError(f"a map stored as array without key and value: {schema!r:.80}")
        fields = self.fields(items, depth + 1)
        if len(fields) != 2:
            raise ValueError(f"a map stored as array of {len(fields)} fields")
        return self._map_of(fields[0], fields[1])

    def _map(self, schema: Mapping[str, Any], depth: int) -> AvroType:
        """A map takes the same bytes as an array of records of string and value."""
        key = self._primitive("string", {})
        value = self._items(schema.get("values"), depth, min_bytes=key.min_bytes)
        return self._map_of(
            AvroField("key", "f0", _field_id(schema, "key-id"), key),
            AvroField("value", "f1", _field_id(schema, "value-id"), value),
        )

    def _map_of(self, key: AvroField, value: AvroField) -> AvroType:
        if key.type.min_bytes + value.type.min_bytes == 0:
            raise ValueError("a map whose entries take no bytes")
        fields = (key, value)
        plain = self.plain_record(fields)
        stored = pa.list_(pa.struct([pa.field(f.key, f.type.stored) for f in fields]))
        meant = pa.map_(
            pa.field("key", key.type.meant, nullable=False, metadata=key.arrow().metadata),
            arrow_field("value", value.type, value.field_id),
        )
        return AvroType(
            {"type": "array", "items": plain}, stored, meant, lambda array: finish_map(array, key, value, meant), 1
        )

    def _items(self, schema: Any, depth: int, min_bytes: int = 0) -> AvroType:
        items = self.type(schema, depth + 1)
        if items.min_bytes + min_bytes == 0:
            raise ValueError("an array whose elements take no bytes: its length cannot be trusted")
        return items

    def _primitive(self, kind: str, schema: Mapping[str, Any]) -> AvroType:
        logical = schema.get("logicalType")
        if kind == "null":
            return AvroType("null", pa.null(), pa.null(), None, 0, nullable=True)
        if kind == "string":
            if logical == "uuid":
                return AvroType("bytes", pa.binary(), pa.binary(16), uuid_from_text, 1)
            return AvroType("bytes", pa.binary(), pa.string(), lambda array: array.cast(pa.string()), 1)
        if kind not in _PLAIN:
            raise ValueError(f"{kind!r:.80} is not an Avro type")
        stored, least = _PLAIN[kind]
        meant = TIMES.get((kind, str(logical)), stored)
        if kind == "long" and isinstance(logical, str) and "timestamp-" in logical:
            meant = timestamp_type(logical, schema)
        if kind == "bytes" and logical == "decimal":
            return _decimal("bytes", pa.binary(), schema, 1)
        finish = None if meant == stored else lambda array: array.view(meant)
        return AvroType(kind, stored, meant, finish, least)

    def _fixed(self, schema: Mapping[str, Any]) -> AvroType:
        size = schema.get("size")
        if not isinstance(size, int) or not 0 <= size < 2**31:
            raise ValueError(f"a fixed type of size {size!r:.40}")
        plain = {"type": "fixed", "name": self.new_name(), "size": size}
        stored = pa.binary(size)
        if schema.get("logicalType") == "decimal":
            return _decimal(plain, stored, schema, size)
        return AvroType(plain, stored, stored, None, size)


def _decimal(plain: Any, stored: pa.DataType, schema: Mapping[str, Any], least: int) -> AvroType:
    precision, scale = schema.get("precision"), schema.get("scale", 0)
    if not isinstance(precision, int) or not isinstance(scale, int) or not 0 < precision <= 38 or scale < 0:
        raise ValueError(f"decimal of precision {precision!r:.20} and scale {scale!r:.20}")
    meant = pa.decimal128(precision, scale)
    return AvroType(plain, stored, meant, lambda array: decimal_from_bytes(array, meant), least)


def _field_id(schema: Mapping[str, Any], name: str) -> int | None:
    value = schema.get(name)
    if value is None:
        return None
    if not isinstance(value, int) or isinstance(value, bool):
        raise TypeError(f"{name} is {value!r:.40}")
    return value


MAX_BLOCK_BYTES = 512 * 1024**2
"""Of a decompressed block; writers use 16 KB to 16 MB."""
_RECORD_BYTES, _FIELD_BYTES = 120, 64
"""Records are Python dicts for a moment."""


def encode_long(number: int) -> bytes:
    """Zigzag encoding of a number that is not negative."""
    encoded = bytearray()
    number <<= 1
    while number >= 0x80:
        encoded.append(number & 0x7F | 0x80)
        number >>= 7
    encoded.append(number)
    return bytes(encoded)


def record_bytes(num_rows: int, num_fields: int) -> int:
    """About how much the records of a block take while they are decoded."""
    return num_rows * (_RECORD_BYTES + _FIELD_BYTES * num_fields)


_GROUP_ROWS = 32_768
_GROUP_BYTES = 4 * 1024**2
_MAX_EMPTY_RECORDS = 1 << 24
_DECODED_SHARE = 2
"""Maximum memory for the records of a block, in addition to its bytes: half of the memory limit."""


def open_avro(path: str, io: FileIOConfig) -> "AvroFileReader":
    """Open an Avro file, read its header and find its blocks.

    Raises:
        MissingFileError: no such file.
        MalformedTableError: truncated, or a header or block that contradicts itself.
        UnsupportedError: a codec that is not supported.
    """
    return AvroFileReader(path, open_input(path, io))


class AvroFileReader(FileReader):
    """An open Avro file."""

    def __init__(self, path: str, source: pa.NativeFile) -> None:
        self.path = path
        self.counts = ReadCounts()
        self._source = source
        self._max_bytes = MAX_BLOCK_BYTES
        with refusing_malformed(path, "header"):
            self._size = source.size()
            header = read_file_header(source, self._size)
            self._codec = header.codec
            if self._codec not in MAX_EXPANSION:
                raise UnsupportedError(f"{path}: Avro codec {self._codec!r:.40} is not supported")
            self._fields, plain, self._min_bytes = parse_record(json.loads(header.schema))
            self._schema = _fastavro().parse_schema({"type": "array", "items": plain})
            self.arrow_schema: pa.Schema = pa.schema([f.arrow() for f in self._fields])
        with refusing_malformed(path, "blocks"):
            blocks = self._find_blocks(header)
        self.has_field_ids = any(f.field_id is not None for f in self._fields)
        self.num_rows = sum(b.num_rows for b in blocks)
        self._groups = _group(blocks)
        self.row_groups: Sequence[RowGroup] = _row_groups(self._groups)
        self._decoded: tuple[int, list[list[dict[str, Any]]]] | None = None

    def read(
        self,
        row_group: RowGroup,
        column_indices: Sequence[int],
        selection: RowSelection,
        window: range | None = None,
    ) -> list[pa.Array]:
        """Top-level columns by index, only the selected rows.

        Raises:
            MalformedTableError: a block that cannot be decoded; names file and column.
        """
        del window
        if not column_indices or selected_count(selection) == 0:
            return [pa.array([], type=self.arrow_schema.field(i).type) for i in column_indices]
        blocks = self._decode(row_group.index)
        return select_rows([self._column(blocks, i) for i in column_indices], selection)

    def windows(
        self, row_group: RowGroup, column_indices: Sequence[int], rows: range, limits: DecodingLimits
    ) -> list[range] | None:
        """None: a block is decoded as a whole.

        Raises:
            MemoryLimitError: a block is too large to be decoded as a whole.
        """
        del column_indices, rows
        self._max_bytes = min(limits.max_bytes, MAX_BLOCK_BYTES)
        for block in self._groups[row_group.index]:
            taken = max(record_bytes(block.num_rows, len(self._fields)), block.num_bytes)
            if taken > _DECODED_SHARE * limits.max_bytes:
                raise MemoryLimitError(
                    f"{self.path}: the block at {block.offset} claims {block.num_rows} records in {block.num_bytes} bytes, "
                    f"which take about {taken} bytes to decode; raise memory_limit_bytes"
                )
        return None

    def compressed_bytes(self, row_group: RowGroup, column_indices: Sequence[int]) -> int:
        """All bytes, for any columns: rows are stored as a whole."""
        return row_group.num_bytes if column_indices else 0

    def close(self) -> None:
        """Release the file and the rows last decoded."""
        self._decoded = None
        self._source.close()

    def _find_blocks(self, header: Header) -> list[Block]:
        blocks: list[Block] = []
        for block in find_blocks(self._source.read_at, header, self._size):
            most = _MAX_EMPTY_RECORDS
            if self._min_bytes:
                most = min(block.num_bytes * MAX_EXPANSION[self._codec], MAX_BLOCK_BYTES) // self._min_bytes
            if block.num_rows > most:
                raise ValueError(f"block at {block.offset} claims {block.num_rows} records in {block.num_bytes} bytes")
            blocks.append(block)
        return blocks

    def _decode(self, group: int) -> list[list[dict[str, Any]]]:
        """The records of every block of a row group; kept until another group is asked for."""
        if self._decoded is None or self._decoded[0] != group:
            self._decoded = None
            with refusing_malformed(self.path, f"blocks of row group {group}"):
                self._decoded = (group, [self._decode_block(b) for b in self._groups[group]])
        return self._decoded[1]

    def _decode_block(self, block: Block) -> list[dict[str, Any]]:
        if block.num_rows == 0:
            return []
        try:
            data = decompress(self._source.read_at(block.num_bytes, block.offset), self._codec, self._max_bytes)
        except BlockTooLargeError as error:
            raise MemoryLimitError(
                f"{self.path}: the block at {block.offset} becomes more than {self._max_bytes} bytes; raise "
                "memory_limit_bytes"
            ) from error
        stream = BytesIO(encode_long(block.num_rows) + data + b"\0")
        try:
            records: list[dict[str, Any]] = _fastavro().schemaless_reader(stream, self._schema, None)
        except (EOFError, RecursionError) as error:
            raise ValueError(f"block at {block.offset}: {error}") from error
        if stream.read(1) or len(records) != block.num_rows:
            raise ValueError(f"block at {block.offset} holds more than its {block.num_rows} records")
        return records

    def _column(self, blocks: Sequence[list[dict[str, Any]]], index: int) -> pa.Array:
        field = self._fields[index]
        with refusing_malformed(self.path, f"column {field.name!r}"):
            get = itemgetter(field.key)
            arrays = [pa.array(list(map(get, records)), type=field.type.stored) for records in blocks]
            if field.type.finish is not None:
                arrays = [field.type.finish(a) for a in arrays]
            return arrays[0] if len(arrays) == 1 else pa.concat_arrays(arrays)


def _group(blocks: Sequence[Block]) -> list[list[Block]]:
    """Neighbouring blocks, so that a group has some tens of thousands of rows or some megabytes."""
    groups: list[list[Block]] = []
    rows = stored = 0
    for block in blocks:
        if not groups or rows >= _GROUP_ROWS or stored >= _GROUP_BYTES:
            groups.append([])
            rows = stored = 0
        groups[-1].append(block)
        rows += block.num_rows
        stored += block.num_bytes
    return groups


def _row_groups(groups: Sequence[Sequence[Block]]) -> tuple[RowGroup, ...]:
    result: list[RowGroup] = []
    position = 0
    for index, blocks in enumerate(groups):
        num_rows = sum(b.num_rows for b in blocks)
        result.append(RowGroup(index, position, num_rows, blocks[0].offset, sum(b.num_bytes for b in blocks)))
        position += num_rows
    return tuple(result)
