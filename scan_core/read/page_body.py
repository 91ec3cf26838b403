"""Headers of pages as facts, and dictionary pages out of compression, their checksum compared.

What the header states is checked against the bytes that are there. Codecs whose decoder does not tell how much it
wrote are left to pyarrow's own page reader.
"""

from functools import lru_cache
from typing import Any, NamedTuple
from zlib import crc32

import pyarrow as pa

from scan_core.read.footer import DATA_PAGE, DICTIONARY_PAGE
from scan_core.read.thrift import Struct, ThriftError, read_struct

_HEADER_BYTES = 512
"""Longest page header looked at first: statistics inside may be long, the counts come before them."""
_UNCOMPRESSED, _SNAPPY, _ZSTD = 0, 1, 6
READABLE_CODECS = frozenset({_UNCOMPRESSED, _SNAPPY, _ZSTD})
_MOST_BYTES = 1 << 30
_I32_FIELD = 0x15
"""An i32 that is the next field."""
_DATA_PAGE_AFTER = {3: 0x2C, 4: 0x1C}
"""The header of the fifth field, a struct, after so many."""
_LONGEST_SHIFT = 28

_TRUE, _FALSE, _I32, _I64, _BINARY, _STRUCT = 1, 2, 5, 6, 8, 12
_VALUES_ENCODING = {5: 2, 7: 2, 8: 4}
"""Where the encoding stands among the details of a data page, a dictionary page, and a data page of the second version."""

Raw = bytes | memoryview


class PageFacts(NamedTuple):
    """A page by its header; `body` is where the page itself begins, `offset` its header."""

    kind: int
    plain_bytes: int
    stored_bytes: int
    num_values: int
    encoding: int
    body: int
    offset: int = 0


def page_header(data: Raw, position: int, length: int) -> tuple[Struct, int] | None:
    """The header of the page in data[position : position + length], and where its body begins; None if it has none."""
    for size in (_HEADER_BYTES, length):
        try:
            header, end = read_struct(bytes(data[position : position + min(length, size)]))
        except ThriftError:
            continue
        return header, position + end
    return None


def page_facts(data: bytes, position: int) -> PageFacts | None:
    """What the header at `position` states; None where that is unusual, or goes on behind `data`.

    Ten times as fast as reading all of a header: those of all pages may have to be looked at.
    """
    sizes, details, field, is_of = [0] * 4, [0] * 7, 0, 0
    try:
        while tag := data[position]:
            position, field = position + 1, field + (tag >> 4)
            if tag & 15 == _I32 and field < len(sizes):
                sizes[field], position = _number(data, position)
            elif tag & 15 == _STRUCT and field in _VALUES_ENCODING:
                is_of, number = field, 0
                while tag := data[position]:
                    position, number = position + 1, number + (tag >> 4)
                    if tag & 15 == _I32 and number < len(details):
                        details[number], position = _number(data, position)
                    else:
                        position = _behind(data, position, tag & 15)
                position += 1
            else:
                position = _behind(data, position, tag & 15)
        return PageFacts(sizes[1], sizes[2], sizes[3], details[1], details[_VALUES_ENCODING[is_of]], position + 1)
    except (IndexError, KeyError, ValueError):
        return None


def _number(data: bytes, position: int) -> tuple[int, int]:
    """A number that is not negative, and where it ends."""
    raw = shift = 0
    while (byte := data[position]) & 0x80:
        raw |= (byte & 0x7F) << shift
        position, shift = position + 1, shift + 7
    raw |= byte << shift
    if raw & 1 or shift > _LONGEST_SHIFT:
        raise ValueError("not a size")
    return raw >> 1, position + 1


def _behind(data: bytes, position: int, kind: int) -> int:
    """Where a value of statistics ends."""
    if kind in {_TRUE, _FALSE}:
        return position
    if kind in {_I32, _I64}:
        while data[position] & 0x80:
            position += 1
        return position + 1
    if kind == _BINARY:
        length = shift = 0
        while (byte := data[position]) & 0x80:
            length |= (byte & 0x7F) << shift
            position, shift = position + 1, shift + 7
        position += 1 + (length | byte << shift)
        if position >= len(data):
            raise ValueError("it goes on")
        return position
    if kind == _STRUCT:
        while tag := data[position]:
            position = _behind(data, position + 1, tag & 15)
        return position + 1
    raise ValueError("an unusual header")


def plain_page_facts(page: Raw) -> tuple[int, int] | None:
    """Values and encoding of a data page of the first version whose header has its fields in order; None of others.

    Most pages do, and reading all of a header takes three times as long.
    """
    try:
        if page[0] != _I32_FIELD or page[1] != DATA_PAGE:
            return None
        position, fields = 2, 1
        while page[position] == _I32_FIELD:  # sizes, perhaps the checksum
            position, fields = position + 1, fields + 1
            while page[position] & 0x80:
                position += 1
            position += 1
        if page[position] != _DATA_PAGE_AFTER.get(fields) or page[position + 1] != _I32_FIELD:
            return None
        position, shift, raw = position + 2, 0, 0
        while (byte := page[position]) & 0x80:
            raw |= (byte & 0x7F) << shift
            position, shift = position + 1, shift + 7
        encoding = page[position + 2]
        if page[position + 1] != _I32_FIELD or encoding & 0x81:
            return None
    except IndexError:
        return None
    raw |= byte << shift
    return None if shift > _LONGEST_SHIFT or raw & 1 else (raw >> 1, encoding >> 1)


def read_dictionary_page(data: Raw, codec: int) -> tuple[Raw, int] | None:
    """The plain-encoded values of a dictionary page and their number; None if it is none."""
    found = page_header(data, 0, len(data))
    if found is None or found[0].get(1) != DICTIONARY_PAGE:
        return None
    header, begin = found
    size, details = header.get(3), header.get(7)
    if not isinstance(size, int) or not isinstance(details, dict):
        return None
    body = data[begin : begin + max(size, 0)]
    if len(body) != size or not _is_intact(header, body):
        return None
    content, count = _decompressed(body, header.get(2), codec), details.get(1)
    return None if content is None or not isinstance(count, int) or count < 0 else (content, count)


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
