"""Thrift's compact protocol as far as Parquet uses it, reading and writing."""

import struct
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

TRUE, FALSE, BYTE, I16, I32, I64, DOUBLE, BINARY, LIST, SET, MAP, STRUCT = 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12
MAX_DEPTH = 32
"""Parquet's own structures nest 6 deep."""

Struct = dict[int, Any]


class ThriftError(ValueError):
    """The bytes are not a struct in the compact protocol."""


def read_struct(  # noqa: C901, PLR0912  the wire types that footers are full of are read in place: calls cost most
    data: bytes, position: int = 0, depth: int = 0
) -> tuple[Struct, int]:
    """The struct that begins at `position`, by field id, and the position behind it.

    Integers are int, binaries bytes, booleans bool, lists and sets list, maps list of pairs, structs dict.

    Args:
        data: what holds it.
        position: where it begins.
        depth: of nesting.

    Raises:
        ThriftError: the bytes end early, or hold an unknown type, a repeated field or too deep nesting.
    """
    if depth > MAX_DEPTH:
        raise ThriftError(f"structs nest deeper than {MAX_DEPTH}")
    fields: Struct = {}
    field_id = 0
    try:
        while True:
            header = data[position]
            position += 1
            if header == 0:
                return fields, position
            kind = header & 0x0F
            if delta := header >> 4:
                field_id += delta
            else:
                raw, position = _varint(data, position)
                field_id = (raw >> 1) ^ -(raw & 1)
            if field_id in fields:
                raise ThriftError(f"field {field_id} appears twice")
            if 4 <= kind <= 6:
                raw = data[position]
                position += 1
                if raw & 0x80:
                    raw, position = _varint(data, position - 1)
                fields[field_id] = (raw >> 1) ^ -(raw & 1)
            elif kind == BINARY:
                length, position = _varint(data, position)
                end = position + length
                if end > len(data):
                    raise ThriftError(f"{length} bytes at {position} of {len(data)}")
                fields[field_id] = data[position:end]
                position = end
            elif kind == STRUCT:
                fields[field_id], position = read_struct(data, position, depth + 1)
            else:
                fields[field_id], position = read_value(data, position, kind, depth)
    except IndexError as error:
        raise ThriftError("the bytes end inside a struct") from error


def read_value(  # noqa: C901  one case per wire type
    data: bytes, position: int, kind: int, depth: int, *, in_container: bool = False
) -> tuple[Any, int]:
    """A value of the wire type `kind`, and the position behind it."""
    match kind:
        case 1 | 2 if in_container:  # elements are a byte each
            return data[position] == TRUE, position + 1
        case 1 | 2:
            return kind == TRUE, position
        case 3:
            return int.from_bytes(data[position : position + 1], "little", signed=True), position + 1
        case 4 | 5 | 6:
            raw, position = _varint(data, position)
            return (raw >> 1) ^ -(raw & 1), position
        case 7:
            if position + 8 > len(data):
                raise ThriftError("the bytes end inside a double")
            return struct.unpack_from("<d", data, position)[0], position + 8
        case 8:
            length, position = _varint(data, position)
            if position + length > len(data):
                raise ThriftError(f"{length} bytes at {position} of {len(data)}")
            return data[position : position + length], position + length
        case 9 | 10:
            return _list(data, position, depth)
        case 11:
            return _map(data, position, depth)
        case 12:
            return read_struct(data, position, depth + 1)
        case _:
            raise ThriftError(f"unknown type {kind}")


def read_list_header(data: bytes, position: int) -> tuple[int, int, int]:
    """Number and wire type of a list's elements, and the position of the first."""
    header = data[position]
    size, kind, position = header >> 4, header & 0x0F, position + 1
    if size == 15:
        size, position = _varint(data, position)
    if size > len(data) - position:
        raise ThriftError(f"a list of {size} elements in {len(data) - position} bytes")
    return size, kind, position


def _list(data: bytes, position: int, depth: int) -> tuple[list[Any], int]:
    size, kind, position = read_list_header(data, position)
    values = []
    if kind == STRUCT:
        for _ in range(size):
            value, position = read_struct(data, position, depth + 1)
            values.append(value)
        return values, position
    if depth > MAX_DEPTH:
        raise ThriftError(f"lists nest deeper than {MAX_DEPTH}")
    for _ in range(size):
        value, position = read_value(data, position, kind, depth + 1, in_container=True)
        values.append(value)
    return values, position


def _map(data: bytes, position: int, depth: int) -> tuple[list[tuple[Any, Any]], int]:
    size, position = _varint(data, position)
    if size == 0:
        return [], position
    if size > len(data) - position or depth > MAX_DEPTH:
        raise ThriftError(f"a map of {size} entries in {len(data) - position} bytes")
    kinds = data[position]
    position += 1
    entries = []
    for _ in range(size):
        key, position = read_value(data, position, kinds >> 4, depth + 1, in_container=True)
        value, position = read_value(data, position, kinds & 0x0F, depth + 1, in_container=True)
        entries.append((key, value))
    return entries, position


def _varint(data: bytes, position: int) -> tuple[int, int]:
    result = shift = 0
    while True:
        byte = data[position]
        position += 1
        result |= (byte & 0x7F) << shift
        if byte < 0x80:
            return result, position
        shift += 7
        if shift > 63:
            raise ThriftError("an integer of more than 64 bits")


@dataclass(frozen=True, slots=True)
class I32Value:
    """An integer to be written as i32; plain ints are written as i64."""

    value: int


@dataclass(frozen=True, slots=True)
class ListValue:
    """A list to be written, with the type of its elements."""

    kind: int
    values: list[Any]


@dataclass(frozen=True, slots=True)
class RawStruct:
    """A struct to be written as the bytes it was read from, its end included."""

    data: bytes


def write_struct(fields: Mapping[int, Any]) -> bytes:
    """The struct with these fields by id.

    Values are int (written as i64), I32Value, bool, bytes, ListValue, RawStruct, or a mapping for a struct.
    """
    out = bytearray()
    _write_struct(out, fields)
    return bytes(out)


def _write_struct(out: bytearray, fields: Mapping[int, Any]) -> None:
    previous = 0
    for field_id in sorted(fields):
        value = fields[field_id]
        kind = _kind_of(value)
        delta = field_id - previous
        if 0 < delta <= 15:
            out.append(delta << 4 | kind)
        else:
            out.append(kind)
            _write_varint(out, _zigzag(field_id))
        previous = field_id
        if not isinstance(value, bool):
            _write_value(out, value)
    out.append(0)


def _kind_of(value: Any) -> int:
    match value:
        case bool():
            return TRUE if value else FALSE
        case int():
            return I64
        case I32Value():
            return I32
        case bytes():
            return BINARY
        case ListValue():
            return LIST
        case Mapping() | RawStruct():
            return STRUCT
        case _:
            raise TypeError(f"{type(value).__name__} cannot be written")


def _write_value(out: bytearray, value: Any) -> None:
    match value:
        case int():
            _write_varint(out, _zigzag(value))
        case I32Value(number):
            _write_varint(out, _zigzag(number))
        case bytes():
            _write_varint(out, len(value))
            out += value
        case ListValue(kind, values):
            if len(values) < 15:
                out.append(len(values) << 4 | kind)
            else:
                out.append(0xF0 | kind)
                _write_varint(out, len(values))
            for element in values:
                _write_value(out, element)
        case RawStruct(data):
            out += data
        case Mapping():
            _write_struct(out, value)


def _zigzag(value: int) -> int:
    return (value << 1) ^ (value >> 63)


def _write_varint(out: bytearray, value: int) -> None:
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
