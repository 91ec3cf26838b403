"""Puffin files: the blobs that a footer lists (https://iceberg.apache.org/puffin-spec).

The content of a blob is decoded by the module that knows its type. Every length is checked against the file before
anything is read.
"""

import struct
from collections.abc import Mapping
from dataclasses import dataclass, field
from zlib import crc32

import orjson

from nevermore.scan_core.io.files import file_size, read_bytes
from nevermore.scan_core.io.location import FileIOConfig
from nevermore.scan_core.metadata.avro_container import BlockTooLargeError, decompress
from nevermore.scan_core.metadata.table_json import Document, load_document
from nevermore.scan_core.model.errors import MalformedTableError

MAGIC = b"PFA1"
_TAIL = struct.Struct("<iI4s")
"""Payload size, flags and magic: the last bytes of a file."""
_COMPRESSED = 1
_CHECKED = b'"nevermore.checksum":"'
_CHECKED_END = b'"}}'
"""Around the last property of the footers of our writers: the CRC-32 of the JSON before it, in 8 hexadecimal digits.
Puffin itself has no checksum of footers, and a wrong place or path in one would make an index that of other rows."""
_CRC_DIGITS = 8
MAX_FOOTER_BYTES = 1 << 28
"""Of a footer, decompressed or not: that of a million blobs is smaller."""


@dataclass(frozen=True, slots=True)
class PuffinBlob:
    """One blob as the footer states it."""

    type: str
    fields: tuple[int, ...]
    snapshot_id: int
    sequence_number: int
    offset: int
    length: int
    compression: str | None = None
    properties: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class PuffinFooter:
    """The contents of the footer of a Puffin file."""

    blobs: tuple[PuffinBlob, ...]
    properties: Mapping[str, str]
    num_bytes: int
    """Of the footer, with both magics."""
    is_checked: bool = False
    """Whether the footer has a checksum of its own, which was compared."""


def read_footer(path: str, io: FileIOConfig) -> PuffinFooter:
    """The footer of a Puffin file.

    Raises:
        MissingFileError: no such file.
        MalformedTableError: no Puffin file, or a footer that contradicts the file.
    """
    size = file_size(path, io)
    smallest = 2 * len(MAGIC) + _TAIL.size
    if size < smallest:
        raise MalformedTableError(f"{path}: {size} bytes are too few for a Puffin file")
    payload_size, flags, magic = _TAIL.unpack(read_bytes(path, io, size - _TAIL.size, _TAIL.size))
    if magic != MAGIC or read_bytes(path, io, 0, len(MAGIC)) != MAGIC:
        raise MalformedTableError(f"{path}: not a Puffin file: it does not begin and end with {MAGIC!r}")
    if not 0 <= payload_size <= size - smallest:
        raise MalformedTableError(f"{path}: a footer of {payload_size} bytes in a file of {size}")
    if flags & ~_COMPRESSED:
        raise MalformedTableError(f"{path}: unknown footer flags {flags:#x}")
    begin = size - _TAIL.size - payload_size - len(MAGIC)
    stored = read_bytes(path, io, begin, len(MAGIC) + payload_size, max_bytes=MAX_FOOTER_BYTES)
    if stored[: len(MAGIC)] != MAGIC:
        raise MalformedTableError(f"{path}: the footer does not begin with {MAGIC!r}")
    payload = _decompress(stored[len(MAGIC) :], path) if flags & _COMPRESSED else stored[len(MAGIC) :]
    try:
        content = load_document(payload)
    except (ValueError, RecursionError) as error:
        raise MalformedTableError(f"{path}: the footer is no JSON document that can be read: {error}") from error
    document = Document(path, content)
    is_checked = _has_checksum(payload, path)
    blobs = tuple(_blob(b, begin, path) for b in document.objects("blobs"))
    return PuffinFooter(blobs, document.text_mapping("properties"), size - begin, is_checked)


def footer_bytes(blobs: list[PuffinBlob], properties: Mapping[str, str]) -> bytes:
    """The footer of a file that holds these blobs, with a checksum as its last property."""
    described = [
        {
            "type": blob.type,
            "fields": list(blob.fields),
            "snapshot-id": blob.snapshot_id,
            "sequence-number": blob.sequence_number,
            "offset": blob.offset,
            "length": blob.length,
            **({"compression-codec": blob.compression} if blob.compression else {}),
            **({"properties": dict(blob.properties)} if blob.properties else {}),
        }
        for blob in blobs
    ]
    plain = orjson.dumps({"blobs": described, "properties": dict(properties)})
    head = plain.removesuffix(b"}}") + (b"," if properties else b"")
    payload = head + _CHECKED + f"{crc32(head):0{_CRC_DIGITS}x}".encode() + _CHECKED_END
    return MAGIC + payload + _TAIL.pack(len(payload), 0, MAGIC)


def _has_checksum(payload: bytes, path: str) -> bool:
    """Compare a footer with the checksum at its end; returns whether it has one.

    Raises:
        MalformedTableError: it is wrong, or right behind a damaged key.
    """
    begin = len(payload) - len(_CHECKED) - _CRC_DIGITS - len(_CHECKED_END)
    if begin < 0:
        return False
    checksum = f"{crc32(payload[:begin]):0{_CRC_DIGITS}x}".encode()
    stated = payload[begin + len(_CHECKED) :][:_CRC_DIGITS]
    if payload[begin:] == _CHECKED + checksum + _CHECKED_END:
        return True
    if payload[begin:].startswith(_CHECKED) or stated == checksum:
        raise MalformedTableError(f"{path}: the checksum of the footer is wrong: the bytes are damaged")
    return False


def _blob(document: Document, end_of_blobs: int, path: str) -> PuffinBlob:
    offset, length = document.integer("offset"), document.integer("length")
    if offset < len(MAGIC) or length < 0 or offset + length > end_of_blobs:
        raise MalformedTableError(f"{path}: a blob of {length} bytes at {offset} does not lie before the footer")
    return PuffinBlob(
        type=document.text("type"),
        fields=document.integers("fields"),
        snapshot_id=document.integer("snapshot-id", default=-1),
        sequence_number=document.integer("sequence-number", default=-1),
        offset=offset,
        length=length,
        compression=document.optional_text("compression-codec"),
        properties=document.text_mapping("properties"),
    )


def _decompress(data: bytes, path: str) -> bytes:
    """LZ4 frames, the only compression of footers, never more than a real footer has."""
    try:
        return decompress(data, "lz4", MAX_FOOTER_BYTES)
    except BlockTooLargeError as error:
        raise MalformedTableError(f"{path}: a footer larger than {MAX_FOOTER_BYTES} bytes when decompressed") from error
    except ValueError as error:
        raise MalformedTableError(f"{path}: the footer cannot be decompressed: {error}") from error
