"""Avro object container files in memory: header, codecs, blocks, and navigation in their schemas."""

import bz2
import json
import lzma
import zlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from zlib import crc32

import pyarrow as pa

from scan_core.model.errors import MalformedTableError

MAX_EXPANSION = {"null": 1, "deflate": 1032, "snappy": 64, "zstandard": 1 << 17, "bzip2": 1 << 17, "xz": 1 << 17}
"""The most bytes that one compressed byte can become, by codec: bounds how many records a block can hold."""
_STEP_BYTES = 1 << 20


class BlockTooLargeError(ValueError):
    """A block becomes more bytes than its reader takes."""


def decompress(payload: bytes, codec: str, most_bytes: int) -> bytes:
    """The plain bytes of a block, in a codec of `MAX_EXPANSION`.

    Raises:
        BlockTooLargeError: they are more than `most_bytes`.
        ValueError: broken, truncated, or with a checksum that does not match.
    """
    match codec:
        case "null":
            return payload
        case "deflate":
            return _decompressed(zlib.decompressobj(wbits=-15), payload, most_bytes)
        case "bzip2":
            return _decompressed(bz2.BZ2Decompressor(), payload, most_bytes)
        case "xz":
            return _decompressed(lzma.LZMADecompressor(memlimit=most_bytes), payload, most_bytes)
        case "zstandard":
            return _zstandard(payload, most_bytes)
        case "snappy":
            return _snappy(payload, most_bytes)
        case _:
            raise ValueError(f"unknown codec {codec!r}")


def _decompressed(decompressor: Any, payload: bytes, most_bytes: int) -> bytes:
    try:
        plain: bytes = decompressor.decompress(payload, most_bytes + 1)
    except (zlib.error, lzma.LZMAError, OSError, EOFError) as error:
        raise ValueError(f"a compressed block is broken: {error}") from error
    _check_size(len(plain), most_bytes)
    if not decompressor.eof:
        raise ValueError("a compressed block ends early")
    return plain


def _zstandard(payload: bytes, most_bytes: int) -> bytes:
    parts, total = [], 0
    try:
        with pa.CompressedInputStream(pa.BufferReader(payload), "zstd") as stream:
            while part := stream.read(_STEP_BYTES):
                parts.append(part)
                total += len(part)
                _check_size(total, most_bytes)
    except OSError as error:
        raise ValueError(f"a compressed block is broken: {error}") from error
    return b"".join(parts)


def _snappy(payload: bytes, most_bytes: int) -> bytes:
    """Raw snappy, its length first, then the big-endian CRC-32 of the plain bytes."""
    if len(payload) < 5:
        raise ValueError("a snappy block without checksum")
    size = 0
    for index, byte in enumerate(payload[:5]):
        size |= (byte & 127) << (7 * index)
        if byte < 128:
            break
    _check_size(size, most_bytes)
    if size > MAX_EXPANSION["snappy"] * len(payload):
        raise ValueError(f"a snappy block of {len(payload)} bytes claims {size}")
    try:
        plain: bytes = pa.Codec("snappy").decompress(payload[:-4], size, asbytes=True)
    except OSError as error:
        raise ValueError(f"a compressed block is broken: {error}") from error
    if zlib.crc32(plain) != int.from_bytes(payload[-4:], "big"):
        raise ValueError("a snappy block fails its checksum")
    return plain


def _check_size(size: int, most_bytes: int) -> None:
    if size > most_bytes:
        raise BlockTooLargeError(f"a block of more than {most_bytes} bytes")


MAGIC = b"Obj\x01"
MAX_BLOCK_BYTES = 1 << 28
"""Of one decompressed block: writers flush at 64 kB to a few MB."""
MAX_PLAIN_BYTES = 1 << 30
"""Of all blocks of a file of table metadata together: writers begin a new manifest at 8 MB."""
MAX_RECORDS = 1 << 22
"""Of one manifest or manifest list: each becomes objects of some 600 bytes, however few bytes it has itself."""
MAX_JSON_VALUES = 1 << 23
"""Of one JSON document: each becomes an object of some 100 bytes, where it takes as few as three itself."""
SYNC_BYTES = 16
CHECKED_SYNC = b"NEVRMORE"
"""How the sync markers of files of our writers begin. Any 16 bytes will do for a marker, so these end in the CRC-32 of
the file, taken with zeros in their place, and its size: Avro has checksums at most in blocks, in a codec that not every
engine reads."""
BLANK_SYNC = CHECKED_SYNC.ljust(SYNC_BYTES, b"\0")
_REMEMBERED_HEADERS = 8
_MOST_REMEMBERED_BYTES = 1 << 20

_recent: tuple[tuple[bytes, Mapping[str, bytes], int], ...] = ()
"""Beginnings of files, their metadata and CRC-32, the latest first."""


class AvroError(ValueError):
    """Bytes that are no Avro; the caller names the file."""


class EndsEarlyError(AvroError):
    """What has begun goes on behind the bytes that were given."""


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
        """What compresses the blocks; without a word nothing does."""
        return self.metadata.get("avro.codec", b"null").decode("ascii", "replace")


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
    if length < 0:
        raise AvroError(f"a value of {length} bytes")
    if end > len(buffer):
        raise EndsEarlyError(f"a value of {length} bytes where {len(buffer) - position} are left")
    return buffer[position:end], end


def read_header(data: bytes) -> Header:
    """The header of a container file, all of whose bytes are compared with their checksum, if it has one.

    Manifests of one writer begin alike up to their sync marker: what was parsed lately is recognised.

    Raises:
        AvroError: not an Avro file, or a damaged one.
    """
    global _recent  # noqa: PLW0603 - replaced as a whole, so that threads see one state or the other
    known = next((k for k in _recent if data.startswith(k[0]) and len(data) >= len(k[0]) + SYNC_BYTES), None)
    if known is None:
        parsed = parse_header(data)
        known = data[: parsed.end - SYNC_BYTES], parsed.metadata, crc32(data[: parsed.end - SYNC_BYTES])
        if len(known[0]) <= _MOST_REMEMBERED_BYTES:
            _recent = (known, *_recent[: _REMEMBERED_HEADERS - 1])
    beginning, metadata, checksum = known
    end = len(beginning) + SYNC_BYTES
    header = Header(metadata, data[len(beginning) : end], end)
    if header.sync.startswith(CHECKED_SYNC) and header.sync != _sync(
        data[len(beginning) :].replace(header.sync, BLANK_SYNC), checksum, len(data)
    ):
        raise AvroError("the checksum is wrong: the bytes are damaged")
    return header


def with_checksum(data: bytes) -> bytes:
    """A container file written with `BLANK_SYNC`, with the checksum in its sync markers."""
    return data.replace(BLANK_SYNC, _sync(data, 0, len(data)))


def _sync(data: bytes, checksum: int, size: int) -> bytes:
    """The sync marker of a file of so many bytes that goes on with `data` behind bytes of this CRC-32."""
    return CHECKED_SYNC + crc32(data, checksum).to_bytes(4, "little") + (size & 0xFFFFFFFF).to_bytes(4, "little")


def check_checksum(header: Header, parts: Iterable[bytes], size: int) -> None:
    """Compare the checksum in the sync marker of a file of our writers with its bytes, given from front to back.

    Raises:
        AvroError: it is wrong.
    """
    checksum, rest = 0, b""
    for part in parts:
        held = (rest + part).replace(header.sync, BLANK_SYNC)
        keep = max(len(held) - SYNC_BYTES + 1, 0)  # a marker may go on in the next part
        checksum, rest = crc32(held[:keep], checksum), held[keep:]
    if header.sync != _sync(rest, checksum, size):
        raise AvroError("the checksum is wrong: the bytes are damaged")


def parse_header(data: bytes) -> Header:
    """The header at the beginning of `data`, none of which is remembered.

    Raises:
        EndsEarlyError: it goes on behind `data`.
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
    except IndexError as error:
        raise EndsEarlyError("the header ends early") from error
    except UnicodeDecodeError as error:
        raise AvroError("a metadata key is not UTF-8") from error
    end = position + SYNC_BYTES
    if end > len(data):
        raise EndsEarlyError("the header ends early")
    return Header(metadata, data[position:end], end)


def read_blocks(data: bytes, header: Header) -> Iterator[tuple[int, bytes]]:
    """Number of records and decompressed bytes of each block.

    Raises:
        AvroError: a truncated or damaged block, or an unknown codec.
    """
    codec = header.codec
    if codec not in MAX_EXPANSION:
        raise AvroError(f"unknown codec {codec!r}")
    position, num_records, num_bytes = header.end, 0, 0
    while position < len(data):
        try:
            count, position = read_long(data, position)
            payload, position = read_slice(data, position)
        except IndexError as error:
            raise AvroError("a block ends early") from error
        if data[position : position + SYNC_BYTES] != header.sync:
            raise AvroError(f"no sync marker at byte {position}")
        position += SYNC_BYTES
        try:
            block = decompress(payload, codec, MAX_BLOCK_BYTES)
        except BlockTooLargeError as error:
            raise AvroError(f"a block is larger than {MAX_BLOCK_BYTES} bytes when decompressed") from error
        except ValueError as error:
            raise AvroError(f"a block cannot be decompressed: {error}") from error
        if count < 0 or count > len(block):
            raise AvroError(f"a block of {len(block)} bytes claims {count} records")
        num_records, num_bytes = num_records + count, num_bytes + len(block)
        if num_records > MAX_RECORDS or num_bytes > MAX_PLAIN_BYTES:
            raise AvroError(
                f"it holds more than {MAX_RECORDS} records or {MAX_PLAIN_BYTES} bytes when decompressed, "
                "and no more are read of a file of table metadata"
            )
        yield count, block


def check_consumed(block: bytes, position: int) -> None:
    """AvroError unless a block ends where its records do."""
    if position != len(block):
        raise AvroError(f"a block has {len(block) - position} bytes more than its records")


def malformed_avro(path: str, error: Exception) -> MalformedTableError:
    """The error to raise for a file of table metadata whose decoding failed with `error`."""
    reason = str(error) if isinstance(error, AvroError) else f"damaged ({type(error).__name__}: {error})"
    return MalformedTableError(f"{path}: {reason}")


PRIMITIVES = frozenset({"null", "boolean", "int", "long", "float", "double", "bytes", "string"})
INTEGER_TYPES = frozenset({"int", "long"})
MAX_SCHEMA_DEPTH = 32
"""Manifests nest five deep; hostile schemas must not exhaust the stack."""


class NamedTypes(dict[str, Any]):
    """The named types of one schema, and what was compiled of it so far.

    A type used many times is compiled once, or crafted schemas would grow without end; one that contains itself has
    no place in a manifest.
    """

    def __init__(self, schema: Any) -> None:
        super().__init__()
        self.compiled: dict[int, Any] = {}
        self.open: set[int] = set()
        collect_names(schema, self, 0)


def check_json_size(text: bytes | str) -> None:
    """Refuse a JSON document of very many values before they become objects.

    Raises:
        ValueError: more than `MAX_JSON_VALUES`, counted by what separates and opens them.
    """
    if len(text) > MAX_JSON_VALUES:
        signs: Any = (b",", b"[", b"{") if isinstance(text, bytes) else (",", "[", "{")
        if (count := sum(map(text.count, signs))) > MAX_JSON_VALUES:
            raise ValueError(f"about {count} values, and at most {MAX_JSON_VALUES} are read")


def parse_avro_schema(text: bytes) -> Any:
    """The JSON of a writer's schema; AvroError if it is none."""
    try:
        check_json_size(text)
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        raise AvroError(f"avro.schema is not a JSON document: {error}") from error


def field_schema(schema: Any, field_ids: Sequence[int], names: Sequence[str]) -> Any:
    """The schema of a field of a record, found by the ids and names given from the outside in; None if absent."""
    named = NamedTypes(schema)
    for field_id, name in zip(field_ids, names, strict=True):
        schema = non_null(resolve(schema, named), named)
        found = [f for f in record_fields(schema) if f.get("field-id", field_id) == field_id]
        exact = [f for f in found if "field-id" in f] or [f for f in found if f.get("name") == name]
        if not exact:
            return None
        schema = exact[0]["type"]
    return non_null(resolve(schema, named), named)


def type_name(schema: Any) -> str:
    """The name of a type: `record`, `union`, `long` ..."""
    if isinstance(schema, str):
        return schema
    if isinstance(schema, list):
        return "union"
    if isinstance(schema, Mapping):
        kind = schema.get("type")
        return kind if isinstance(kind, str) else type_name(kind)
    return repr(schema)


def non_null(schema: Any, named: Mapping[str, Any]) -> Any:
    """The value branch of a union with null; anything else as it is."""
    if not isinstance(schema, list):
        return schema
    branches = [s for s in (resolve(b, named) for b in schema) if type_name(s) != "null"]
    return branches[0] if len(branches) == 1 and len(schema) <= 2 else schema


def resolve(schema: Any, named: Mapping[str, Any]) -> Any:
    """The schema that a name stands for; nested `type` objects unwrapped."""
    if isinstance(schema, str) and schema not in PRIMITIVES:
        return named.get(schema, schema)
    if isinstance(schema, Mapping) and isinstance(schema.get("type"), Mapping | list):
        return resolve(schema["type"], named)
    return schema


def record_fields(schema: Any) -> list[Mapping[str, Any]]:
    """The fields of a record schema; AvroError if it is none."""
    if not isinstance(schema, Mapping) or schema.get("type") != "record":
        raise AvroError(f"its schema has {type_name(schema)!r:.60} where a record belongs")
    fields = schema.get("fields")
    if not isinstance(fields, list) or not all(isinstance(f, Mapping) and "type" in f for f in fields):
        raise AvroError("its schema has a record without fields")
    return fields


def part(schema: Any, name: str) -> Any:
    """`items` of an array or `values` of a map; AvroError if the schema lacks it."""
    if name not in schema:
        raise AvroError(f"its schema has a type {type_name(schema)!r} without {name}")
    return schema[name]


def collect_names(schema: Any, named: dict[str, Any], depth: int) -> None:
    """Fill `named` with the named types that a schema defines."""
    if depth > MAX_SCHEMA_DEPTH:
        raise AvroError(f"its schema nests deeper than {MAX_SCHEMA_DEPTH} levels")
    if isinstance(schema, list):
        parts: list[Any] = schema
    elif isinstance(schema, Mapping):
        if schema.get("type") in ("record", "fixed", "enum"):
            named[str(schema.get("name"))] = schema
            named[f"{schema.get('namespace')}.{schema.get('name')}"] = schema
        fields = schema.get("fields")
        inner = [f.get("type") for f in fields if isinstance(f, Mapping)] if isinstance(fields, list) else []
        parts = [schema.get("type"), schema.get("items"), schema.get("values"), *inner]
    else:
        return
    for part in parts:
        collect_names(part, named, depth + 1)
