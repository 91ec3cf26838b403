"""What pyarrow does not tell of an ORC file: its stripes, and the statistics of their columns.

Read from the serialised file tail and the metadata section with a reader of the protobuf wire format of sixty lines;
everything in it is untrusted. (ORC v1 specification, https://orc.apache.org/specification/ORCv1/.)
"""

import math
import struct
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from decimal import Decimal, InvalidOperation
from typing import Any

import pyarrow as pa

from scan_core.read.file_reader import ColumnStatistics

_MAX_SECTION_BYTES = 64 * 1024**2
_VARINT_BYTES = 10
_COMPRESSION_NONE, _COMPRESSION_ZLIB, _COMPRESSION_SNAPPY, _COMPRESSION_ZSTD = 0, 1, 2, 5


@dataclass(frozen=True, slots=True)
class Stripe:
    """Where a stripe lies and how many rows it has; its footer are the last of its bytes."""

    offset: int
    num_bytes: int
    num_rows: int
    footer_bytes: int


@dataclass(frozen=True, slots=True)
class OrcTail:
    """Stripes, and where the metadata section with their statistics lies."""

    stripes: tuple[Stripe, ...]
    num_rows: int
    compression: int
    metadata_offset: int
    metadata_length: int


def parse_tail(tail: bytes, file_size: int) -> OrcTail:
    """From the message `FileTail`.

    Raises:
        ValueError: broken protobuf, stripes outside of the file, row counts that contradict each other.
    """
    message = first_of_each(tail)
    postscript, footer = _message(message, 1), bytes(message.get(2, b""))
    stripes = []
    num_rows = 0
    for number, value in fields_of(footer):
        if number == 3:
            stripes.append(_stripe(first_of_each(value), file_size))
        elif number == 6:
            num_rows = int(value)
    if sum(s.num_rows for s in stripes) != num_rows:
        raise ValueError(f"footer states {num_rows} rows, its stripes {sum(s.num_rows for s in stripes)}")
    metadata_length = int(postscript.get(5, 0))
    end = file_size - 1 - int(message.get(4, 0)) - int(postscript.get(1, 0))
    return OrcTail(tuple(stripes), num_rows, int(postscript.get(2, 0)), max(end - metadata_length, 0), metadata_length)


def parse_stripe_statistics(section: bytes, tail: OrcTail) -> list[list[bytes]] | None:
    """For each stripe the serialised statistics of every column; None if they cannot be decompressed here."""
    plain = decompress_section(section, tail.compression)
    if plain is None:
        return None
    return [[bytes(v) for n, v in fields_of(stripe) if n == 1] for number, stripe in fields_of(plain) if number == 1]


def column_statistics(message: bytes, num_rows: int, kind: pa.DataType) -> ColumnStatistics:
    """Statistics of a top-level column; bounds as Python values of `kind`, None where they are missing or odd."""
    fields = first_of_each(message)
    values = int(fields.get(1, -1))
    null_count = num_rows - values if 0 <= values <= num_rows else None
    if null_count == 0 and fields.get(10, 0):
        null_count = None
    lower, upper = _bounds(fields, kind)
    if lower is None or upper is None:
        lower = upper = None
    return ColumnStatistics(lower, upper, null_count, None, num_rows)


def fields_of(message: bytes | memoryview) -> Iterator[tuple[int, Any]]:
    """Field numbers and raw values: int for varints, bytes for everything else."""
    view = memoryview(message)
    position = 0
    try:
        while position < len(view):
            tag, position = _varint(view, position)
            match tag & 7:
                case 0:
                    value, position = _varint(view, position)
                    yield tag >> 3, value
                case 1 | 5 as wire:
                    width = 8 if wire == 1 else 4
                    yield tag >> 3, view[position : position + width]
                    position += width
                case 2:
                    length, position = _varint(view, position)
                    if position + length > len(view):
                        raise ValueError(f"protobuf field of {length} bytes in {len(view)}")
                    yield tag >> 3, view[position : position + length]
                    position += length
                case wire:
                    raise ValueError(f"protobuf wire type {wire}")
    except IndexError as error:
        raise ValueError("protobuf message ends early") from error


def first_of_each(message: bytes | memoryview) -> dict[int, Any]:
    """The first value of every field number."""
    found: dict[int, Any] = {}
    for number, value in fields_of(message):
        found.setdefault(number, value)
    return found


def decompress_section(section: bytes, compression: int) -> bytes | None:
    """The bytes of a section or stream, which is stored in chunks; None for a codec that is not supported here."""
    if compression == _COMPRESSION_NONE:
        return section
    parts: list[bytes] = []
    for is_original, chunk in _chunks(section):
        if is_original:
            parts.append(chunk)
        elif compression == _COMPRESSION_ZLIB:
            parts.append(_inflate(chunk))
        elif compression in {_COMPRESSION_SNAPPY, _COMPRESSION_ZSTD}:
            codec = "snappy" if compression == _COMPRESSION_SNAPPY else "zstd"
            if codec == "snappy":
                length, _ = _varint(memoryview(chunk), 0)
                if length > _MAX_SECTION_BYTES:
                    return None
                parts.append(pa.Codec(codec).decompress(chunk, length).to_pybytes())
            else:
                with pa.CompressedInputStream(pa.BufferReader(chunk), codec) as stream:
                    parts.append(stream.read(_MAX_SECTION_BYTES))
        else:
            return None
        if sum(map(len, parts)) > _MAX_SECTION_BYTES:
            return None
    return b"".join(parts)


def _bounds(fields: dict[int, Any], kind: pa.DataType) -> tuple[Any, Any]:
    if pa.types.is_boolean(kind):
        return None, None
    if pa.types.is_integer(kind) or pa.types.is_time(kind):
        inner = _message(fields, 2)
        return _zigzag(inner.get(1)), _zigzag(inner.get(2))
    if pa.types.is_floating(kind):
        inner = _message(fields, 3)
        return _double(inner.get(1), -0.0), _double(inner.get(2), 0.0)
    if pa.types.is_string(kind):
        inner = _message(fields, 4)
        return _text(inner.get(1, inner.get(4))), _text(inner.get(2, inner.get(5)))
    if pa.types.is_decimal(kind):
        inner = _message(fields, 6)
        return _decimal(inner.get(1)), _decimal(inner.get(2))
    if pa.types.is_date(kind):
        inner = _message(fields, 7)
        return _zigzag(inner.get(1)), _zigzag(inner.get(2))
    return None, None


def _stripe(fields: dict[int, Any], file_size: int) -> Stripe:
    offset, num_rows = int(fields.get(1, 0)), int(fields.get(5, 0))
    num_bytes = sum(int(fields.get(n, 0)) for n in (2, 3, 4))
    if offset + num_bytes > file_size:
        raise ValueError(f"stripe at {offset}, {num_bytes} bytes, lies outside of the file of {file_size} bytes")
    return Stripe(offset, num_bytes, num_rows, int(fields.get(4, 0)))


def _varint(view: memoryview, position: int) -> tuple[int, int]:
    result = 0
    for index in range(_VARINT_BYTES):
        byte = view[position + index]
        result |= (byte & 0x7F) << (7 * index)
        if byte < 0x80:
            return result & 0xFFFFFFFFFFFFFFFF, position + index + 1
    raise ValueError("protobuf varint of more than ten bytes")


def _message(fields: dict[int, Any], number: int) -> dict[int, Any]:
    value = fields.get(number, b"")
    if isinstance(value, int):
        raise TypeError(f"protobuf field {number} is a number, not a message")
    return first_of_each(value)


def _zigzag(value: Any) -> int | None:
    return (value >> 1) ^ -(value & 1) if isinstance(value, int) else None


def _double(value: Any, zero: float) -> float | None:
    if not isinstance(value, memoryview) or len(value) != 8:
        return None
    number: float = struct.unpack("<d", value)[0]
    if math.isnan(number):
        return None
    return zero if number == 0 else number


def _text(value: Any) -> str | None:
    try:
        return bytes(value).decode() if isinstance(value, memoryview) else None
    except UnicodeDecodeError:
        return None


def _decimal(value: Any) -> Decimal | None:
    try:
        return Decimal(_text(value) or "")
    except InvalidOperation:
        return None


def _inflate(chunk: bytes) -> bytes:
    try:
        return zlib.decompressobj(-15).decompress(chunk, _MAX_SECTION_BYTES)
    except zlib.error as error:
        raise ValueError(f"a compressed section is broken: {error}") from error


def _chunks(section: bytes) -> Sequence[tuple[bool, bytes]]:
    """Compression chunks: three bytes of length and a flag for stored as is, then the bytes."""
    found = []
    position = 0
    while position + 3 <= len(section):
        header = int.from_bytes(section[position : position + 3], "little")
        length = header >> 1
        found.append((bool(header & 1), section[position + 3 : position + 3 + length]))
        position += 3 + length
    return found
