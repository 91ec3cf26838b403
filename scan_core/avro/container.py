"""Avro object container files: header, blocks and codecs, for manifests and manifest lists.

Data and delete files in Avro are read elsewhere (`read/avro.py`); what the records of a block say is decoded by
`avro_records.py`. No length found in a file is trusted: nothing is allocated before it was compared with what is left.
"""

import bz2
import lzma
import zlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from scan_core.errors import MalformedTableError

MAGIC = b"Obj\x01"
MAX_BLOCK_BYTES = 1 << 28
"""Of one decompressed block: writers flush at 64 kB to a few MB."""
_SYNC_BYTES = 16
_REMEMBERED_HEADERS = 8
_MOST_REMEMBERED_BYTES = 1 << 20

_recent: tuple[tuple[bytes, Mapping[str, bytes]], ...] = ()
"""Beginnings of files and their metadata, the latest first."""


class AvroError(Exception):
    """Bytes that are no Avro; the caller names the file."""


@dataclass(frozen=True, slots=True)
class Header:
    """Metadata of a container file, its sync marker, and where the first block begins."""

    metadata: Mapping[str, bytes]
    sync: bytes
    end: int

    @property
    def schema(self) -> bytes:
        """The writer's schema as JSON text."""
        if "avro.schema" not in self.metadata:
            raise AvroError("the header has no avro.schema")
        return self.metadata["avro.schema"]


def read_long(buffer: bytes, position: int) -> tuple[int, int]:
    """A zig-zag varint and the position after it; IndexError at the end of the buffer."""
    byte = buffer[position]
    position += 1
    if byte < 128:
        return (byte >> 1) ^ -(byte & 1), position
    value = byte & 127
    shift = 7
    while True:
        byte = buffer[position]
        position += 1
        value |= (byte & 127) << shift
        if byte < 128:
            break
        shift += 7
        if shift > 63:
            raise AvroError("an integer of more than ten bytes")
    if value >> 64:
        raise AvroError("an integer of more than 64 bits")
    return (value >> 1) ^ -(value & 1), position


def read_slice(buffer: bytes, position: int) -> tuple[bytes, int]:
    """Length-prefixed bytes and the position after them."""
    length, position = read_long(buffer, position)
    end = position + length
    if length < 0 or end > len(buffer):
        raise AvroError(f"a value of {length} bytes where {len(buffer) - position} are left")
    return buffer[position:end], end


def read_header(data: bytes) -> Header:
    """The header of a container file.

    Manifests of one writer begin alike up to their sync marker: what was parsed lately is recognised.

    Raises:
        AvroError: not an Avro file, or a damaged one.
    """
    global _recent  # noqa: PLW0603 - replaced as a whole, so that threads see one state or the other
    for beginning, metadata in _recent:
        if data.startswith(beginning) and len(data) >= len(beginning) + _SYNC_BYTES:
            end = len(beginning) + _SYNC_BYTES
            return Header(metadata, data[len(beginning) : end], end)
    metadata, position = _parse_header(data)
    end = position + _SYNC_BYTES
    if end > len(data):
        raise AvroError("the header ends early")
    if position <= _MOST_REMEMBERED_BYTES:
        _recent = ((data[:position], metadata), *_recent[: _REMEMBERED_HEADERS - 1])
    return Header(metadata, data[position:end], end)


def _parse_header(data: bytes) -> tuple[Mapping[str, bytes], int]:
    """Metadata, and where the sync marker begins."""
    if not data.startswith(MAGIC):
        raise AvroError("it does not begin as an Avro file does")
    try:
        metadata: dict[str, bytes] = {}
        position = len(MAGIC)
        while True:
            count, position = read_long(data, position)
            if count == 0:
                break
            if count < 0:
                _, position = read_long(data, position)
            for _ in range(min(abs(count), len(data))):
                key, position = read_slice(data, position)
                metadata[key.decode()], position = read_slice(data, position)
    except IndexError as error:
        raise AvroError("the header ends early") from error
    except UnicodeDecodeError as error:
        raise AvroError("a metadata key is not UTF-8") from error
    return metadata, position


def read_blocks(data: bytes, header: Header) -> Iterator[tuple[int, bytes]]:
    """Number of records and decompressed bytes of each block.

    Raises:
        AvroError: a truncated or damaged block, or an unknown codec.
    """
    codec = header.metadata.get("avro.codec", b"null").decode("ascii", "replace")
    if codec not in _CODECS:
        raise AvroError(f"unknown codec {codec!r}")
    decompress = _CODECS[codec]
    position = header.end
    while position < len(data):
        try:
            count, position = read_long(data, position)
            payload, position = read_slice(data, position)
        except IndexError as error:
            raise AvroError("a block ends early") from error
        if data[position : position + _SYNC_BYTES] != header.sync:
            raise AvroError(f"no sync marker at byte {position}")
        position += _SYNC_BYTES
        try:
            block = decompress(payload)
        except (zlib.error, OSError, lzma.LZMAError, ValueError, EOFError) as error:
            raise AvroError(f"a block cannot be decompressed: {error}") from error
        if count < 0 or count > len(block):
            raise AvroError(f"a block of {len(block)} bytes claims {count} records")
        yield count, block


def check_consumed(block: bytes, position: int) -> None:
    """AvroError unless a block ends where its records do."""
    if position != len(block):
        raise AvroError(f"a block has {len(block) - position} bytes more than its records")


def malformed_avro(path: str, error: Exception) -> MalformedTableError:
    """The error to raise for a file of table metadata whose decoding failed with `error`."""
    reason = str(error) if isinstance(error, AvroError) else f"damaged ({type(error).__name__}: {error})"
    return MalformedTableError(f"{path}: {reason}")


def _check_size(size: int) -> None:
    if size > MAX_BLOCK_BYTES:
        raise AvroError(f"a block is larger than {MAX_BLOCK_BYTES} bytes when decompressed")


def _decompressed(decompressor: Any, payload: bytes) -> bytes:
    block: bytes = decompressor.decompress(payload, MAX_BLOCK_BYTES + 1)
    _check_size(len(block))
    if not decompressor.eof:
        raise AvroError("a compressed block ends early")
    return block


def _deflate(payload: bytes) -> bytes:
    return _decompressed(zlib.decompressobj(wbits=-15), payload)


def _bzip2(payload: bytes) -> bytes:
    return _decompressed(bz2.BZ2Decompressor(), payload)


def _xz(payload: bytes) -> bytes:
    return _decompressed(lzma.LZMADecompressor(memlimit=MAX_BLOCK_BYTES), payload)


def _zstandard(payload: bytes) -> bytes:
    parts, total = [], 0
    with pa.CompressedInputStream(pa.BufferReader(payload), "zstd") as stream:
        while part := stream.read(1 << 20):
            parts.append(part)
            total += len(part)
            _check_size(total)
    return b"".join(parts)


def _snappy(payload: bytes) -> bytes:
    if len(payload) < 5:
        raise AvroError("a snappy block without checksum")
    size = shift = 0
    for byte in payload[:5]:
        size |= (byte & 127) << shift
        shift += 7
        if byte < 128:
            break
    _check_size(size)
    if size > 64 * len(payload):  # a copy of 64 bytes takes two, so no honest block grows so much
        raise AvroError(f"a snappy block of {len(payload)} bytes claims {size}")
    block: bytes = pa.Codec("snappy").decompress(payload[:-4], size, asbytes=True)
    if zlib.crc32(block) != int.from_bytes(payload[-4:], "big"):
        raise AvroError("a snappy block fails its checksum")
    return block


def _null(payload: bytes) -> bytes:
    return payload


_CODECS: dict[str, Callable[[bytes], bytes]] = {
    "null": _null,
    "deflate": _deflate,
    "bzip2": _bzip2,
    "xz": _xz,
    "zstandard": _zstandard,
    "snappy": _snappy,
}
