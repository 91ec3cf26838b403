"""Avro object container files that are read in parts: data and delete files, and files of events.

Every length is checked against the bytes that exist. What the blocks hold is decoded by `avro.py`.
"""

from dataclasses import dataclass

import pyarrow as pa

from scan_core.avro.container import SYNC_BYTES, EndsEarlyError, Header, parse_header, read_long

_HEADER_WINDOW_BYTES = 64 * 1024
_MOST_HEADER_BYTES = 64 * 1024**2
"""Far beyond any schema: a damaged length does not make a reader take the whole file for its header."""
_BLOCK_PREFIX_BYTES = 20
"""Two varints of at most ten bytes: record count and length of a block."""
MAX_BLOCK_BYTES = 512 * 1024**2
"""Of a decompressed block; writers use 16 KB to 16 MB."""
_RECORD_BYTES, _FIELD_BYTES = 120, 64
"""Records are Python dicts for a moment."""


@dataclass(frozen=True, slots=True)
class Block:
    """Where the compressed records of a block lie, and how many it claims to hold."""

    offset: int
    num_bytes: int
    num_rows: int

    @property
    def next_offset(self) -> int:
        """Where the next block begins, behind the sync marker."""
        return self.offset + self.num_bytes + SYNC_BYTES


def read_header(source: pa.NativeFile, size: int) -> Header:
    """The header of a file of `size` bytes, of which no more is read than it takes.

    Raises:
        AvroError: not an Avro file, or a damaged one.
    """
    window = _HEADER_WINDOW_BYTES
    while True:
        try:
            return parse_header(source.read_at(min(window, size), 0))
        except EndsEarlyError:
            if window >= min(size, _MOST_HEADER_BYTES):
                raise
        window *= 16


def read_block(source: pa.NativeFile, offset: int, size: int, sync: bytes) -> Block:
    """The block that begins at an offset of a file of `size` bytes; its records are not read.

    Raises:
        ValueError: it ends outside of the file, or without the sync marker.
        IndexError: the file ends inside its lengths.
    """
    prefix = source.read_at(min(_BLOCK_PREFIX_BYTES, size - offset), offset)
    num_rows, used = read_long(prefix, 0)
    num_bytes, used = read_long(prefix, used)
    block = Block(offset + used, num_bytes, num_rows)
    if num_bytes < 0 or block.next_offset > size:
        raise ValueError(f"block at {offset} of {num_bytes} bytes ends outside of the file")
    if source.read_at(SYNC_BYTES, block.offset + num_bytes) != sync:
        raise ValueError(f"block at {offset} does not end with the file's sync marker")
    return block


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
