"""One page of a column chunk: its header as facts, its checksum, and its bytes out of compression.

What the header states is checked against the bytes that are there. Codecs whose decoder does not tell how much it
wrote are left to pyarrow's own page reader.
"""

from dataclasses import dataclass
from functools import lru_cache
from typing import Any
from zlib import crc32

import pyarrow as pa

from scan_core.read.footer import DATA_PAGE, DATA_PAGE_V2, DICTIONARY_PAGE
from scan_core.read.thrift import Struct, ThriftError, read_struct

_HEADER_BYTES = 512
"""Longest page header looked at first: statistics inside may be long, the counts come before them."""
_UNCOMPRESSED, _SNAPPY, _ZSTD = 0, 1, 6
READABLE_CODECS = frozenset({_UNCOMPRESSED, _SNAPPY, _ZSTD})
_MOST_BYTES = 1 << 30

Raw = bytes | memoryview


@dataclass(frozen=True, slots=True)
class PageBody:
    """A page out of compression: its definition levels, and its values, which begin at `content[values]`."""

    num_values: int
    encoding: int
    levels: bytes
    content: Raw
    values: int


def page_header(data: Raw, position: int, length: int) -> tuple[Struct, int] | None:
    """The header of the page in data[position : position + length], and where its body begins; None if it has none."""
    for size in (_HEADER_BYTES, length):
        try:
            header, end = read_struct(bytes(data[position : position + min(length, size)]))
        except ThriftError:
            continue
        return header, position + end
    return None


def read_data_page(data: Raw, position: int, length: int, codec: int, *, has_levels: bool) -> PageBody | None:
    """A data page of a column that is not repeated; None if its header contradicts its bytes or is of another kind."""
    found = page_header(data, position, length)
    if found is None:
        return None
    header, begin = found
    body = data[begin : position + length]
    if header.get(3) != len(body) or not _is_intact(header, body):
        return None
    if header.get(1) == DATA_PAGE:
        return _version_1(header, body, codec, has_levels=has_levels)
    return _version_2(header, body, codec) if header.get(1) == DATA_PAGE_V2 else None


def read_dictionary_page(data: Raw, codec: int) -> tuple[Raw, int] | None:
    """The plain-encoded values of a dictionary page and their number; None if it is none."""
    found = page_header(data, 0, len(data))
    if found is None or found[0].get(1) != DICTIONARY_PAGE:
        return None
    header, begin = found
    body, details = data[begin : begin + header.get(3, 0)], header.get(7)
    if not isinstance(details, dict) or len(body) != header.get(3) or not _is_intact(header, body):
        return None
    content, count = _decompressed(body, header.get(2), codec), details.get(1)
    return None if content is None or not isinstance(count, int) or count < 0 else (content, count)


def dictionary_size(data: Raw) -> int:
    """How many values a dictionary page holds by its own header."""
    found = page_header(data, 0, len(data))
    details = found[0].get(7) if found is not None else None
    count = details.get(1) if isinstance(details, dict) else None
    return count if isinstance(count, int) else 0


def _version_1(header: Struct, body: Raw, codec: int, *, has_levels: bool) -> PageBody | None:
    details = header.get(5)
    content = _decompressed(body, header.get(2), codec)
    if content is None or not isinstance(details, dict):
        return None
    begin = end = 0
    if has_levels:
        begin, end = 4, 4 + int.from_bytes(content[:4], "little")
    return _page(details.get(1), details.get(2), bytes(content[begin:end]), content, end)


def _version_2(header: Struct, body: Raw, codec: int) -> PageBody | None:
    details, size = header.get(8), header.get(2)
    if not isinstance(details, dict) or not isinstance(size, int):
        return None
    end = details.get(5)
    if not isinstance(end, int) or details.get(6) != 0 or not 0 <= end <= min(len(body), size):
        return None
    content = _decompressed(body[end:], size - end, codec if details.get(7, True) else _UNCOMPRESSED)
    return None if content is None else _page(details.get(1), details.get(4), bytes(body[:end]), content, 0)


def _page(num_values: Any, encoding: Any, levels: bytes, content: Raw, values: int) -> PageBody | None:
    if not isinstance(num_values, int) or not isinstance(encoding, int) or num_values <= 0 or values > len(content):
        return None
    return PageBody(num_values, encoding, levels, content, values)


def _is_intact(header: Struct, body: Raw) -> bool:
    checksum = header.get(4)
    return checksum is None or (isinstance(checksum, int) and crc32(body) == checksum & 0xFFFFFFFF)


def _decompressed(body: Raw, size: Any, codec: int) -> Raw | None:
    if not isinstance(size, int) or not 0 <= size <= _MOST_BYTES:
        return None
    if codec == _UNCOMPRESSED:
        return body if len(body) == size else None
    if size == 0:
        return b""
    if codec == _SNAPPY and _snappy_size(body) != size:
        return None
    try:
        content = _codec("snappy" if codec == _SNAPPY else "zstd").decompress(body, size)
    except (OSError, pa.ArrowException):
        return None
    return memoryview(content)  # of Arrow's memory pool: Python would map and unmap pages of this size each time


@lru_cache(maxsize=4)
def _codec(name: str) -> pa.Codec:
    return pa.Codec(name)


def _snappy_size(body: Raw) -> int:
    """Size out of compression, which begins the body."""
    size = 0
    for index, byte in enumerate(body[:5]):
        size |= (byte & 0x7F) << (7 * index)
        if byte < 0x80:
            return size
    return -1
