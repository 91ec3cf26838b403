"""Checksums of the parts of a Parquet file for which Parquet has none, in files of our writers.

Parquet has a CRC-32 of each page's body, but none of the footer, the page index, Bloom filters and page headers: one
flipped bit there moves rows or prunes them. Two entries of the footer's key-value metadata, which other readers
ignore, hold them:

    nevermore.footer   8 hexadecimal digits, the CRC-32 of the footer with zeros in their place, then 16 of the file's size
    nevermore.parts    per column chunk, in the order of the file, base64 of four little-endian CRC-32: offset index,
                       column index, Bloom filter, and the first bytes of each page, dictionary page first; 0 for none

A program that rewrites files may copy these entries. The file size in the first entry shows that: entries with another size
are ignored, unless the footer's checksum is right: then it is our footer, and the bytes before it are not those that we wrote.
"""

from base64 import b64decode, b64encode
from collections.abc import Callable
from typing import Any
from zlib import crc32

import numpy as np
import numpy.typing as npt

FOOTER_KEY, PARTS_KEY = "nevermore.footer", "nevermore.parts"
OFFSET_INDEX, COLUMN_INDEX, BLOOM_FILTER, PAGE_HEADERS = range(4)
NUM_PARTS = 4
HEADER_BYTES = 48
"""Of each page. Headers take some 30 bytes where the page index, not they, has statistics; checking a few bytes behind does no harm."""
_CRC_DIGITS, _SIZE_DIGITS = 8, 16
_STRING = 0x18
"""The header of a string that is the next field."""

Checksums = npt.NDArray[np.uint32]
"""Of parts: row groups x leaves x `NUM_PARTS`."""


def blank_entries(num_chunks: int) -> dict[str, str]:
    """Entries of the right length for a file of so many column chunks, for `sealed` to fill in."""
    return {
        FOOTER_KEY: "0" * (_CRC_DIGITS + _SIZE_DIGITS),
        PARTS_KEY: _text(np.zeros(num_chunks * NUM_PARTS, np.uint32)),
    }


def sealed(footer: bytes, checksums: Checksums, file_size: int) -> bytes:
    """The bytes of a footer with blank entries, with the entries filled in."""
    parts, entry = _value(footer, PARTS_KEY), _value(footer, FOOTER_KEY)
    assert parts is not None and entry is not None  # noqa: S101, PT018  blank entries are in it
    filled = bytearray(footer)
    filled[parts] = _text(checksums).encode()
    filled[entry] = f"{0:0{_CRC_DIGITS}x}{file_size:0{_SIZE_DIGITS}x}".encode()
    filled[entry.start : entry.start + _CRC_DIGITS] = f"{crc32(filled):0{_CRC_DIGITS}x}".encode()
    return bytes(filled)


def verified_parts(footer: bytes, file_size: int) -> Callable[[int, int], Checksums] | None:
    """The checksums of the parts, given numbers of row groups and leaves; None if the file has none of its own.

    Raises:
        ValueError: the footer's checksum is wrong, or the entries are not what they should be.
    """
    entry = _value(footer, FOOTER_KEY)
    if entry is None or len(text := footer[entry]) != _CRC_DIGITS + _SIZE_DIGITS:
        return None
    try:
        checksum, size = int(text[:_CRC_DIGITS], 16), int(text[_CRC_DIGITS:], 16)
    except ValueError:
        return None
    begin = entry.start
    blank = b"0" * _CRC_DIGITS
    is_right = crc32(footer[begin + _CRC_DIGITS :], crc32(blank, crc32(footer[:begin]))) == checksum
    if size != file_size:
        if is_right:  # a program that copies the entries writes another footer around them
            raise ValueError(
                f"it was written for a file of {size} bytes, and this one has {file_size}: bytes were lost or added"
            )
        return None
    if not is_right:
        raise ValueError("the checksum is wrong: the bytes are damaged")
    parts = _value(footer, PARTS_KEY)
    if parts is None:
        raise ValueError(f"{FOOTER_KEY} without {PARTS_KEY}")
    found = np.frombuffer(b64decode(footer[parts], validate=True), "<u4")

    def shaped(num_row_groups: int, num_leaves: int) -> Checksums:
        return found.reshape(num_row_groups, num_leaves, NUM_PARTS)

    return shaped


def damaged_entry(footer: bytes, file_size: int) -> str | None:
    """What is wrong with the entries of a footer for which `verified_parts` finds no checksums; None if nothing is.

    Readers take a damaged entry for none, or for one that was copied from another file. An entry whose checksum is right
    once the size in it is corrected is of this file.
    """
    parts, entry = _value(footer, PARTS_KEY), _value(footer, FOOTER_KEY)
    if entry is None or len(text := footer[entry]) != _CRC_DIGITS + _SIZE_DIGITS:
        return None if parts is None else f"the entry {FOOTER_KEY} is damaged or gone, but {PARTS_KEY} is there"
    corrected = bytearray(footer)
    corrected[entry] = b"0" * _CRC_DIGITS + f"{file_size:0{_SIZE_DIGITS}x}".encode()
    try:
        stated = int(text[:_CRC_DIGITS], 16)
        int(text[_CRC_DIGITS:], 16)
    except ValueError:
        return f"the entry {FOOTER_KEY} holds {text!r}, which is no number"
    return f"the entry {FOOTER_KEY} states another size than the file has" if crc32(corrected) == stated else None


def check_part(checksums: Checksums | None, row_group: int, leaf: int, part: int, data: Any) -> None:
    """Compare bytes with the checksum of a part, if there is one.

    Raises:
        ValueError: the checksum is wrong.
    """
    if checksums is None:
        return
    wanted = int(checksums[row_group, leaf, part])
    if wanted and crc32(data) != wanted:
        raise ValueError("the checksum is wrong: the bytes are damaged")


def without_entries(metadata: bytes) -> bytes:
    """Encoded key-value metadata without what differs from file to file: the values of the two entries."""
    for key in (FOOTER_KEY, PARTS_KEY):
        if (found := _value(metadata, key)) is not None:
            metadata = metadata[: found.start] + metadata[found.stop :]
    return metadata


def _text(checksums: Checksums) -> str:
    return b64encode(checksums.astype("<u4").tobytes()).decode()


def _value(footer: bytes, key: str) -> slice | None:
    """The position of a key's value in the key-value metadata: after the key and the value's length."""
    at = footer.rfind(key.encode())
    position = at + len(key)
    if at < 0 or footer[position : position + 1] != bytes([_STRING]):
        return None
    length = shift = 0
    for byte in footer[position + 1 : position + 6]:
        position += 1
        length |= (byte & 0x7F) << shift
        shift += 7
        if byte < 0x80:
            break
    begin = position + 1
    return slice(begin, begin + length) if begin + length <= len(footer) else None
