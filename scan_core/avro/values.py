"""Decoders and skippers of Avro values in a byte buffer, composed once per schema from closures.

A decoder takes buffer and position and returns value and next position. IndexError means that the buffer ended.
"""

import struct
from collections.abc import Callable, Mapping
from typing import Any

from scan_core.avro.container import AvroError, read_long, read_slice
from scan_core.avro.schema import MAX_SCHEMA_DEPTH, NamedTypes, part, record_fields, resolve, type_name

Decoder = Callable[[bytes, int], tuple[Any, int]]
Skipper = Callable[[bytes, int], int]


def any_decoder(schema: Any, named: NamedTypes, depth: int) -> Decoder:
    """A decoder of values of this type; records become tuples."""
    if depth > MAX_SCHEMA_DEPTH:
        raise AvroError(f"its schema nests deeper than {MAX_SCHEMA_DEPTH} levels")
    schema = resolve(schema, named)
    if isinstance(schema, str):
        return _compile(schema, named, depth)
    key = id(schema)
    if key in named.open:
        raise AvroError("its schema has a type that contains itself")
    if key not in named.compiled:
        named.open.add(key)
        named.compiled[key] = _compile(schema, named, depth)
        named.open.discard(key)
    found: Decoder = named.compiled[key]
    return found


def _compile(schema: Any, named: NamedTypes, depth: int) -> Decoder:
    if isinstance(schema, list):
        return union_decoder([any_decoder(s, named, depth + 1) for s in schema])
    kind = type_name(schema)
    if kind in _PRIMITIVE_DECODERS:
        return _PRIMITIVE_DECODERS[kind]
    match kind:
        case "enum":
            return read_long
        case "fixed":
            return _fixed_decoder(_fixed_size(schema))
        case "array":
            return array_decoder(any_decoder(part(schema, "items"), named, depth + 1))
        case "map":
            return array_decoder(pair_decoder(any_decoder(part(schema, "values"), named, depth + 1), read_slice))
        case "record":
            return _tuple_decoder([any_decoder(f["type"], named, depth + 1) for f in record_fields(schema)])
        case _:
            raise AvroError(f"its schema has the unknown type {kind!r:.60}")


def nullable_long(null_branch: int, value_branch: int) -> Decoder:
    """A decoder of a union of null and an integer, whose branches are these bytes."""

    def read(buffer: bytes, position: int) -> tuple[int | None, int]:
        branch = buffer[position]
        if branch == null_branch:
            return None, position + 1
        if branch != value_branch:
            raise AvroError(f"union branch {branch} of 2")
        byte = buffer[position + 1]
        if byte < 128:
            return (byte >> 1) ^ -(byte & 1), position + 2
        return read_long(buffer, position + 1)

    return read


def skip_long(buffer: bytes, position: int) -> int:
    """The position after a varint."""
    while buffer[position] > 127:
        position += 1
    return position + 1


def skip_slice(buffer: bytes, position: int) -> int:
    """The position after length-prefixed bytes."""
    length, position = read_long(buffer, position)
    if not 0 <= length <= len(buffer) - position:
        raise AvroError(f"a value of {length} bytes where {len(buffer) - position} are left")
    return position + length


def union_skipper(branches: list[Skipper]) -> Skipper:
    """A skipper of a union of two types."""

    def skip(buffer: bytes, position: int) -> int:
        branch = buffer[position]
        if branch == 0:
            return branches[0](buffer, position + 1)
        if branch == 2:
            return branches[1](buffer, position + 1)
        raise AvroError(f"union branch {branch >> 1} of 2")

    return skip


def array_skipper(skip_item: Skipper) -> Skipper:
    """A skipper of arrays; blocks that state their size are jumped over."""

    def skip(buffer: bytes, position: int) -> int:
        while True:
            count, position = read_long(buffer, position)
            if count == 0:
                return position
            if count < 0:
                position = skip_slice(buffer, position)
                continue
            _check_count(buffer, position, count)
            for _ in range(count):
                position = skip_item(buffer, position)

    return skip


def array_decoder(item: Decoder) -> Decoder:
    """A decoder of arrays to lists."""

    def read(buffer: bytes, position: int) -> tuple[list[Any], int]:
        values: list[Any] = []
        while True:
            count, position = read_long(buffer, position)
            if count == 0:
                return values, position
            if count < 0:
                count = -count
                _, position = read_long(buffer, position)
            _check_count(buffer, position, count)
            for _ in range(count):
                value, position = item(buffer, position)
                values.append(value)

    return read


def _check_count(buffer: bytes, position: int, count: int) -> None:
    if count > len(buffer) - position:
        raise AvroError(f"an array of {count} items where {len(buffer) - position} bytes are left")


def pair_decoder(value: Decoder, key: Decoder = read_long) -> Decoder:
    """A decoder of a key followed by a value."""

    def read(buffer: bytes, position: int) -> tuple[tuple[Any, Any], int]:
        left, position = key(buffer, position)
        right, position = value(buffer, position)
        return (left, right), position

    return read


def _tuple_decoder(items: list[Decoder]) -> Decoder:
    def read(buffer: bytes, position: int) -> tuple[tuple[Any, ...], int]:
        values = []
        for item in items:
            value, position = item(buffer, position)
            values.append(value)
        return tuple(values), position

    return read


def union_decoder(branches: list[Decoder]) -> Decoder:
    """A decoder of a union."""

    def read(buffer: bytes, position: int) -> tuple[Any, int]:
        branch, position = read_long(buffer, position)
        if not 0 <= branch < len(branches):
            raise AvroError(f"union branch {branch} of {len(branches)}")
        return branches[branch](buffer, position)

    return read


def _fixed_decoder(size: int) -> Decoder:
    def read(buffer: bytes, position: int) -> tuple[bytes, int]:
        end = position + size
        if end > len(buffer):
            raise AvroError(f"a value of {size} bytes where {len(buffer) - position} are left")
        return buffer[position:end], end

    return read


def _fixed_size(schema: Mapping[str, Any]) -> int:
    size = schema.get("size")
    if not isinstance(size, int) or not 0 <= size < 1 << 31:
        raise AvroError(f"its schema has a fixed type of size {size!r:.60}")
    return size


def _read_null(buffer: bytes, position: int) -> tuple[None, int]:  # noqa: ARG001 - one signature for all types
    return None, position


def read_boolean(buffer: bytes, position: int) -> tuple[bool, int]:
    """A boolean and the position after it."""
    return buffer[position] != 0, position + 1


def read_text(buffer: bytes, position: int) -> tuple[str, int]:
    """A string and the position after it."""
    length, position = read_long(buffer, position)
    end = position + length
    if length < 0 or end > len(buffer):
        raise AvroError(f"a value of {length} bytes where {len(buffer) - position} are left")
    return buffer[position:end].decode(), end


def _read_packed(layout: str) -> Decoder:
    unpack = struct.Struct(layout).unpack_from
    size = struct.calcsize(layout)
    return lambda buffer, position: (unpack(buffer, position)[0], position + size)


_PRIMITIVE_DECODERS: dict[str, Decoder] = {
    "null": _read_null,
    "boolean": read_boolean,
    "int": read_long,
    "long": read_long,
    "float": _read_packed("<f"),
    "double": _read_packed("<d"),
    "bytes": read_slice,
    "string": read_text,
}
