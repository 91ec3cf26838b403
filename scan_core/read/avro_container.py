"""The container of Avro files: header, numbers, compressed blocks (Avro 1.12 specification, Object Container Files).

Every length is checked against the bytes that exist. What the blocks hold is decoded by `avro.py`.
"""

import bz2
import lzma
import zlib
from typing import Any

import pyarrow as pa

_MAGIC = b"Obj\x01"
SYNC_BYTES = 16
_HEADER_WINDOW_BYTES = 64 * 1024
MAX_BLOCK_BYTES = 512 * 1024**2
"""Of a decompressed block; writers use 16 KB to 16 MB."""
MAX_EXPANSION = {"null": 1, "deflate": 1032, "snappy": 64, "zstandard": 1 << 17, "bzip2": 1 << 17, "xz": 1 << 17}
"""The most bytes that one compressed byte can become, by codec: bounds how many records a block can hold."""


def read_header(source: pa.NativeFile, size: int) -> tuple[dict[str, bytes], bytes, int]:
    """Metadata, sync marker and offset of the first block."""
    window = _HEADER_WINDOW_BYTES
    while True:
        data = source.read_at(min(window, size), 0)
        if data[:4] != _MAGIC:
            raise ValueError("not an Avro file: the magic is missing")
        try:
            metadata, position = _metadata(data, 4)
        except (IndexError, EOFError) as error:
            if window >= size:
                raise ValueError("the file ends inside its header") from error
        else:
            if position + SYNC_BYTES <= len(data):
                return metadata, data[position : position + SYNC_BYTES], position + SYNC_BYTES
            if window >= size:
                raise ValueError("the file ends inside its header")
        window *= 16


def _metadata(data: bytes, position: int) -> tuple[dict[str, bytes], int]:
    found: dict[str, bytes] = {}
    while True:
        count, position = read_long(data, position)
        if count == 0:
            return found, position
        if count < 0:
            _, position = read_long(data, position)
        for _ in range(min(abs(count), len(data))):
            key, position = _bytes(data, position)
            value, position = _bytes(data, position)
            found[key.decode()] = value


def _bytes(data: bytes, position: int) -> tuple[bytes, int]:
    length, position = read_long(data, position)
    if length < 0:
        raise ValueError(f"negative length {length} in the header")
    if position + length > len(data):
        raise EOFError("header")
    return data[position : position + length], position + length


def read_long(data: bytes, position: int) -> tuple[int, int]:
    """A zigzag number and where it ends; IndexError if the bytes end first."""
    result = 0
    for index in range(10):
        byte = data[position + index]
        result |= (byte & 0x7F) << (7 * index)
        if byte < 0x80:
            return (result >> 1) ^ -(result & 1), position + index + 1
    raise ValueError("a number of more than ten bytes")


def encode_long(number: int) -> bytes:
    """Zigzag encoding of a number that is not negative."""
    encoded = bytearray()
    number <<= 1
    while number >= 0x80:
        encoded.append(number & 0x7F | 0x80)
        number >>= 7
    encoded.append(number)
    return bytes(encoded)


def decompress(data: bytes, codec: str) -> bytes:
    """A block's plain bytes, at most MAX_BLOCK_BYTES; nothing is allocated from a length that the data claims.

    Raises:
        ValueError: broken, truncated, too large, or with a checksum that does not match.
    """
    match codec:
        case "null":
            return data
        case "deflate":
            return _bounded(zlib.decompressobj(-15), data)
        case "bzip2":
            return _bounded(bz2.BZ2Decompressor(), data)
        case "xz":
            return _bounded(lzma.LZMADecompressor(memlimit=MAX_BLOCK_BYTES), data)
        case "zstandard":
            with pa.CompressedInputStream(pa.BufferReader(data), "zstd") as stream:
                return _checked(stream.read(MAX_BLOCK_BYTES + 1))
        case _:
            return _snappy(data)


def _bounded(decompressor: Any, data: bytes) -> bytes:
    try:
        plain = _checked(decompressor.decompress(data, MAX_BLOCK_BYTES + 1))
    except (zlib.error, lzma.LZMAError) as error:
        raise ValueError(f"a compressed block is broken: {error}") from error
    if not decompressor.eof:
        raise ValueError("the compressed block ends early")
    return plain


def _checked(plain: bytes) -> bytes:
    if len(plain) > MAX_BLOCK_BYTES:
        raise ValueError(f"a block of more than {MAX_BLOCK_BYTES} bytes")
    return plain


def _snappy(data: bytes) -> bytes:
    """Raw snappy (its length first), then the big-endian CRC-32 of the plain bytes."""
    if len(data) < 5:
        raise ValueError("a snappy block without checksum")
    length = 0
    for index, byte in enumerate(data[:5]):
        length |= (byte & 0x7F) << (7 * index)
        if byte < 0x80:
            break
    if length > min(len(data) * MAX_EXPANSION["snappy"], MAX_BLOCK_BYTES):
        raise ValueError(f"a snappy block of {len(data)} bytes claims {length}")
    plain: bytes = pa.Codec("snappy").decompress(data[:-4], length, asbytes=True)
    if zlib.crc32(plain) != int.from_bytes(data[-4:], "big"):
        raise ValueError("the CRC-32 of a snappy block does not match")
    return plain
