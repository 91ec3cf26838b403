"""The only reader of Avro object container files: header, blocks, codecs, and checksums.

Manifests, manifest lists, Avro data files and Avro event files all pass through here, so that every limit on decompressed
bytes and every checksum holds for all of them. Records are decoded in `avro_values.py`.
To add a compression, add it to `MAX_EXPANSION` and `decompress`; `pipelines/iceberg/manifests.py` chooses the one of new manifests.
"""

import bz2
import json
import lzma
import zlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple
from zlib import crc32

import pyarrow as pa

from nevermore.scan_core.model.errors import MalformedTableError

MAGIC = b"Obj\x01"
MAX_EXPANSION = {"null": 1, "deflate": 1032, "snappy": 64, "zstandard": 1 << 17, "bzip2": 1 << 17, "xz": 1 << 17}
"""The most bytes that one compressed byte can become, by codec: bounds how many records a block can hold."""
MAX_METADATA_BLOCK_BYTES = 1 << 28
"""Decompressed size of a block of table metadata: writers flush at 64 kB to a few MB."""
MAX_PLAIN_BYTES = 1 << 30
"""Decompressed size of a file of table metadata: writers begin a new manifest at 8 MB."""
MAX_RECORDS = 1 << 22
"""Records of a manifest or manifest list: each becomes objects of some 600 bytes, however few bytes it has itself."""
MAX_JSON_VALUES = 1 << 23
"""Values of a JSON document: each becomes an object of some 100 bytes, but may take only three in the document."""
SYNC_BYTES = 16
_HEADER_WINDOW_BYTES = 64 * 1024
_MAX_HEADER_BYTES = 64 * 1024**2
"""Far beyond any schema: a damaged length must not make a reader take the whole file for its header."""
_BLOCK_PREFIX_BYTES = 20
"""Two varints of at most ten bytes: record count and length of a block."""
_STEP_BYTES = 1 << 20
_MAX_CACHED_HEADERS = 8
_MAX_CACHED_HEADER_BYTES = 1 << 20

_recent: tuple[tuple[bytes, Mapping[str, bytes]], ...] = ()
"""Beginnings of files and their metadata, the latest first."""


class AvroError(ValueError):
    """Bytes that are not valid Avro; the caller names the file."""


DAMAGE = (ValueError, IndexError, RecursionError, pa.ArrowException)
"""What readers raise on bytes that do not fit their schema, and on schemas that are malformed."""


class EndsEarlyError(AvroError):
    """The bytes end inside a value."""


class BlockTooLargeError(ValueError):
    """A block decompresses to more bytes than its reader accepts."""


def malformed_avro(path: str, error: Exception) -> MalformedTableError:
    """The error to raise for a file of table metadata whose decoding failed with `error`."""
    reason = str(error) if isinstance(error, AvroError) else f"damaged ({type(error).__name__}: {error})"
    return MalformedTableError(f"{path}: {reason}")


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

    @property
    def codec(self) -> str:
        """The codec of the blocks; files that name none are not compressed."""
        return self.metadata.get("avro.codec", b"null").decode("ascii", "replace")


class Block(NamedTuple):
    """Where the compressed records of a block are, and how many it claims to hold."""

    offset: int
    num_bytes: int
    num_rows: int


def read_long(buffer: bytes, position: int) -> tuple[int, int]:
    """A zig-zag varint and the position after it; IndexError at the end of the buffer."""
    value = shift = 0
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
    if length < 0:
        raise AvroError(f"a value of {length} bytes")
    return read_fixed(buffer, position, length)


def read_fixed(buffer: bytes, position: int, length: int) -> tuple[bytes, int]:
    """Bytes of a given number, and the position after them."""
    end = position + length
    if end > len(buffer):
        raise EndsEarlyError(f"a value of {length} bytes where {len(buffer) - position} are left")
    return buffer[position:end], end


def read_header(data: bytes) -> Header:
    """The header of a whole file in memory.

    Manifests of one writer are equal up to their sync marker, so recently parsed headers are reused.

    Raises:
        AvroError: not an Avro file, or a damaged one.
    """
    global _recent  # noqa: PLW0603 - replaced as a whole, so that threads see one state or the other
    known = next((k for k in _recent if data.startswith(k[0]) and len(data) >= len(k[0]) + SYNC_BYTES), None)
    if known is None:
        parsed = parse_header(data)
        known = data[: parsed.end - SYNC_BYTES], parsed.metadata
        if len(known[0]) <= _MAX_CACHED_HEADER_BYTES:
            _recent = (known, *_recent[: _MAX_CACHED_HEADERS - 1])
    beginning, metadata = known
    end = len(beginning) + SYNC_BYTES
    return Header(metadata, data[len(beginning) : end], end)


def read_file_header(source: pa.NativeFile, size: int) -> Header:
    """The header of a file of `size` bytes, without reading much more.

    Raises:
        AvroError: not an Avro file, or a damaged one.
    """
    window = _HEADER_WINDOW_BYTES
    while True:
        try:
            return parse_header(source.read_at(min(window, size), 0))
        except EndsEarlyError:
            if window >= min(size, _MAX_HEADER_BYTES):
                raise
        window *= 16


def parse_header(data: bytes) -> Header:
    """The header at the beginning of `data`.

    Raises:
        EndsEarlyError: it does not end within `data`.
        AvroError: not an Avro file, or a damaged one.
    """
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
        sync, end = read_fixed(data, position, SYNC_BYTES)
    except (IndexError, EndsEarlyError) as error:
        raise EndsEarlyError("the header ends early") from error
    except UnicodeDecodeError as error:
        raise AvroError("a metadata key is not UTF-8") from error
    return Header(metadata, sync, end)


def find_blocks(read_at: Callable[[int, int], bytes], header: Header, size: int) -> Iterator[Block]:
    """The blocks of a file, whose records are not read.

    Args:
        read_at: bytes of the file, given their number and where they begin, as `pyarrow.NativeFile.read_at`.
        header: of the file.
        size: of the file in bytes.

    Raises:
        AvroError: an unknown codec, or a block that is damaged or ends outside of the file.
    """
    if header.codec not in MAX_EXPANSION:
        raise AvroError(f"unknown codec {header.codec!r:.40}")
    begin = header.end
    while begin < size:
        prefix = read_at(min(_BLOCK_PREFIX_BYTES, size - begin), begin)
        try:
            num_rows, used = read_long(prefix, 0)
            num_bytes, used = read_long(prefix, used)
        except IndexError as error:
            raise AvroError("a block ends early") from error
        block = Block(begin + used, num_bytes, num_rows)
        end = block.offset + num_bytes
        if num_rows < 0:
            raise AvroError(f"block at {begin} claims {num_rows} records")
        if num_bytes < 0 or end + SYNC_BYTES > size:
            raise AvroError(f"block at {begin} of {num_bytes} bytes ends outside of the file")
        if read_at(SYNC_BYTES, end) != header.sync:
            raise AvroError(f"block at {begin} does not end with the file's sync marker")
        yield block
        begin = end + SYNC_BYTES


def read_blocks(data: bytes, header: Header) -> Iterator[tuple[int, bytes]]:
    """Number of records and decompressed bytes of each block of a file of table metadata.

    Raises:
        AvroError: a truncated or damaged block, or an unknown codec.
    """
    num_records = num_bytes = 0
    for offset, length, count in find_blocks(lambda size, at: data[at : at + size], header, len(data)):
        try:
            block = decompress(data[offset : offset + length], header.codec, MAX_METADATA_BLOCK_BYTES)
        except BlockTooLargeError as error:
            raise AvroError(f"a block is larger than {MAX_METADATA_BLOCK_BYTES} bytes when decompressed") from error
        except ValueError as error:
            raise AvroError(f"a block cannot be decompressed: {error}") from error
        if count > len(block):
            raise AvroError(f"a block of {len(block)} bytes claims {count} records")
        num_records, num_bytes = num_records + count, num_bytes + len(block)
        if num_records > MAX_RECORDS or num_bytes > MAX_PLAIN_BYTES:
            raise AvroError(
                f"it holds more than {MAX_RECORDS} records or {MAX_PLAIN_BYTES} bytes when decompressed, "
                "which is the limit for a file of table metadata"
            )
        yield count, block


def decompress(payload: bytes, codec: str, max_bytes: int) -> bytes:
    """The plain bytes of a block in a codec of `MAX_EXPANSION`, of a file in `gzip`, or of frames in `lz4`.

    Raises:
        BlockTooLargeError: they are more than `max_bytes`.
        ValueError: broken, truncated, or with a checksum that does not match.
    """
    try:
        match codec:
            case "null":
                return payload
            case "deflate":
                return _inflate(zlib.decompressobj(wbits=-15), payload, max_bytes)
            case "gzip":
                return _inflate(zlib.decompressobj(wbits=31), payload, max_bytes)
            case "bzip2":
                return _inflate(bz2.BZ2Decompressor(), payload, max_bytes)
            case "xz":
                return _inflate(lzma.LZMADecompressor(memlimit=max_bytes), payload, max_bytes)
            case "zstandard":
                return _read_stream(payload, "zstd", max_bytes)
            case "lz4":
                return _read_stream(payload, "lz4", max_bytes)
            case "snappy":
                return _decompress_snappy(payload, max_bytes)
            case _:
                raise ValueError(f"unknown codec {codec!r}")
    except (zlib.error, lzma.LZMAError, OSError, EOFError) as error:
        raise ValueError(f"a compressed block is broken: {error}") from error


def _inflate(decompressor: Any, payload: bytes, max_bytes: int) -> bytes:
    plain: bytes = decompressor.decompress(payload, max_bytes + 1)
    _check_size(len(plain), max_bytes)
    if not decompressor.eof:
        raise ValueError("a compressed block ends early")
    return plain


def _read_stream(payload: bytes, codec: str, max_bytes: int) -> bytes:
    parts, total = [], 0
    with pa.CompressedInputStream(pa.BufferReader(payload), codec) as stream:
        while part := stream.read(_STEP_BYTES):
            parts.append(part)
            total += len(part)
            _check_size(total, max_bytes)
    return b"".join(parts)


def _decompress_snappy(payload: bytes, max_bytes: int) -> bytes:
    """Raw snappy, its length first, then the big-endian CRC-32 of the plain bytes."""
    if len(payload) < 5:
        raise ValueError("a snappy block without checksum")
    size = 0
    for index, byte in enumerate(payload[:5]):
        size |= (byte & 127) << (7 * index)
        if byte < 128:
            break
    _check_size(size, max_bytes)
    if size > MAX_EXPANSION["snappy"] * len(payload):
        raise ValueError(f"a snappy block of {len(payload)} bytes claims {size}")
    plain: bytes = pa.Codec("snappy").decompress(payload[:-4], size, asbytes=True)
    if crc32(plain) != int.from_bytes(payload[-4:], "big"):
        raise ValueError("a snappy block fails its checksum")
    return plain


def _check_size(size: int, max_bytes: int) -> None:
    if size > max_bytes:
        raise BlockTooLargeError(f"a block of more than {max_bytes} bytes")


def check_json_size(text: bytes | str) -> None:
    """Refuse a JSON document of very many values before they become objects.

    Raises:
        ValueError: more than `MAX_JSON_VALUES`, counted by their separators and opening brackets.
    """
    if len(text) > MAX_JSON_VALUES:
        signs: Any = (b",", b"[", b"{") if isinstance(text, bytes) else (",", "[", "{")
        if (count := sum(map(text.count, signs))) > MAX_JSON_VALUES:
            raise ValueError(f"the JSON has about {count} values, and at most {MAX_JSON_VALUES} are read")


def parse_avro_schema(text: bytes) -> Any:
    """The JSON of a writer's schema; AvroError if it is not valid."""
    try:
        check_json_size(text)
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        raise AvroError(f"avro.schema is not a JSON document: {error}") from error
