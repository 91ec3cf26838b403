"""The codecs of Avro's container files, for manifests, data files and events alike.

Nothing is allocated from a length that compressed bytes claim: what they become is bounded by the caller.
"""

import bz2
import lzma
import zlib
from typing import Any

import pyarrow as pa

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
