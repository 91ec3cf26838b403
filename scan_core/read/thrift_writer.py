"""Thrift's compact protocol, the writing half: dictionaries by field id to structs. Reading is `thrift.py`."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from scan_core.read.thrift import BINARY, FALSE, I32, I64, LIST, STRUCT, TRUE


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
