"""Avro object container files that are in memory as a whole: header and blocks, for manifests and manifest lists.

Those that are read in parts are read by `read/avro_container.py`; what the records of a block say is decoded by
`records.py`. No length found in a file is trusted: nothing is allocated before it was compared with what is left.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from zlib import crc32

from scan_core.avro.codecs import MAX_EXPANSION, BlockTooLargeError, decompress
from scan_core.errors import MalformedTableError

MAGIC = b"Obj\x01"
MAX_BLOCK_BYTES = 1 << 28
"""Of one decompressed block: writers flush at 64 kB to a few MB."""
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
    position = header.end
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
        yield count, block


def check_consumed(block: bytes, position: int) -> None:
    """AvroError unless a block ends where its records do."""
    if position != len(block):
        raise AvroError(f"a block has {len(block) - position} bytes more than its records")


def malformed_avro(path: str, error: Exception) -> MalformedTableError:
    """The error to raise for a file of table metadata whose decoding failed with `error`."""
    reason = str(error) if isinstance(error, AvroError) else f"damaged ({type(error).__name__}: {error})"
    return MalformedTableError(f"{path}: {reason}")
