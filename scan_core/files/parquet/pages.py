"""Pages of column chunks: headers, bodies, the page index, and the small Parquet file that chosen pages are decoded from."""

import re
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from nevermore.scan_core.columns.file_reader import OnDemand
from nevermore.scan_core.files.parquet.footer import (
    DATA_PAGE,
    DATA_PAGE_V2,
    DELTA_BYTE_ARRAY,
    MAGIC,
    PLAIN_DICTIONARY,
    RLE_DICTIONARY,
    Chunk,
    Leaf,
    decode_bounds,
)
from nevermore.scan_core.files.parquet.thrift import (
    BINARY,
    FALSE,
    I32,
    I64,
    STRUCT,
    TRUE,
    I32Value,
    ListValue,
    RawStruct,
    Struct,
    ThriftError,
    read_list_header,
    read_struct,
    write_struct,
)
from nevermore.scan_core.model.statistics import ColumnStatistics

_HEADER_BYTES = 512
"""Longest page header looked at first: statistics inside may be long, the counts come before them."""
_NUMBER = rb"([\x80-\xff]{0,4}[\x00-\x7f])"
_HEADER = re.compile(
    # kind and sizes, perhaps a checksum, and the details: values, encoding and what more a page of this kind has
    rb"\x15([\x00\x04\x06])\x15N\x15N(?:\x15N)?([\x1c-\x5c])\x15N\x15N(?:\x15N\x15N(?:\x15N\x15N)?)?[\x11\x12]?".replace(
        b"N", _NUMBER
    ),
    re.DOTALL,
)
"""The header of a page up to its statistics, as all writers lay it out."""
_DETAILS_AFTER_SIZES = {0x00: 0x2C, 0x04: 0x4C, 0x06: 0x5C}
"""The header of the struct of details, two to five fields after the sizes, by kind."""
_STATISTICS = frozenset({0x1C, 0x2C})
"""A struct as the next field but none, or one, of the details."""

Raw = bytes | memoryview


class PageFacts(NamedTuple):
    """A page by its header; `body` is where the page itself begins. Only pages of the second version state rows."""

    kind: int
    plain_bytes: int
    stored_bytes: int
    num_values: int
    encoding: int
    num_rows: int | None
    body: int
    offset: int = 0


def page_header(data: Raw, position: int, length: int) -> tuple[Struct, int] | None:
    """The header of the page in data[position : position + length], and where its body begins; None if it is not valid."""
    for size in (_HEADER_BYTES, length):
        try:
            header, end = read_struct(bytes(data[position : position + min(length, size)]))
        except ThriftError:
            continue
        return header, position + end
    return None


def page_facts(data: Raw, position: int = 0) -> PageFacts | None:
    """What the header at `position` states; None where it states no sizes, or goes on behind `data`."""
    return _plain_page_facts(data, position) or _unusual_page_facts(data, position)


def _plain_page_facts(data: Raw, position: int) -> PageFacts | None:
    """Ten times as fast as reading all of a header: those of all pages may have to be looked at."""
    if (found := _HEADER.match(data, position)) is None:
        return None
    kind, plain, stored, checksum, details, values, second, rows, fourth, *_ = found.groups()
    if details[0] != _DETAILS_AFTER_SIZES[kind[0]] - (0 if checksum is None else 0x10):
        return None
    try:
        end = found.end()
        if data[end] in _STATISTICS:
            end = _skip(data, end + 1, STRUCT)
        if data[end] or data[end + 1]:  # the ends of the details and of the header
            return None
        is_second = kind == b"\x06"
        return PageFacts(
            kind[0] >> 1,
            _size(plain),
            _size(stored),
            _size(values),
            _size(fourth if is_second else second),
            _size(rows) if is_second else None,
            end + 2,
        )
    except (IndexError, TypeError, ValueError):
        return None


def _unusual_page_facts(data: Raw, position: int) -> PageFacts | None:
    if (found := page_header(data, position, len(data) - position)) is None:
        return None
    header, body = found
    kind: Any = header.get(1)
    details = header.get({DATA_PAGE: 5, DATA_PAGE_V2: 8}.get(kind, 7), {})
    if not isinstance(details, dict):
        return None
    rows, count = details.get(3), details.get(1, 0)
    plain: Any = header.get(2)
    stored: Any = header.get(3)
    if not all(isinstance(number, int) and number >= 0 for number in (kind, plain, stored, count)):
        return None
    encoding = details.get(4 if kind == DATA_PAGE_V2 else 2)
    encoding = encoding if isinstance(encoding, int) else -1
    return PageFacts(kind, plain, stored, count, encoding, rows if kind == DATA_PAGE_V2 else None, body)


def is_encoding_stated(chunk: Chunk, encoding: int) -> bool:
    """Whether the footer states an encoding with which a few bytes can decode to many; other encodings need not be stated."""
    if encoding == DELTA_BYTE_ARRAY:
        return DELTA_BYTE_ARRAY in chunk.metadata[2]
    return encoding not in {PLAIN_DICTIONARY, RLE_DICTIONARY} or chunk.has_dictionary


def _size(raw: bytes) -> int:
    """A number that is not negative."""
    number = 0
    for index, byte in enumerate(raw):
        number |= (byte & 0x7F) << (7 * index)
    if number & 1 or number >> 33:
        raise ValueError("not a size")
    return number >> 1


def _skip(data: Raw, position: int, kind: int) -> int:
    """The position after a value of statistics."""
    if kind in {TRUE, FALSE}:
        return position
    if kind in {I32, I64, BINARY}:
        number = shift = 0
        while (byte := data[position]) & 0x80:
            number |= (byte & 0x7F) << shift
            position, shift = position + 1, shift + 7
        return position + 1 + ((number | byte << shift) if kind == BINARY else 0)
    if kind == STRUCT:
        while tag := data[position]:
            position = _skip(data, position + 1, tag & 15)
        return position + 1
    raise ValueError("an unusual header")


_LIST_AS_FIRST_FIELD = 0x19
_LOCATION_HEADERS = (0x16, None, 0x15, None, 0x16, None, 0x00)
"""An i64, an i32 and an i64, each the next field, and the end of the struct."""
_LONGEST_INTEGER_BYTES = 9
"""Of 63 bits."""

Positions = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True, eq=False)
class PageLocations:
    """Pages of a chunk in order; page k holds rows [first_rows[k], first_rows[k + 1])."""

    offsets: Positions
    lengths: Positions
    first_rows: Positions

    @property
    def num_pages(self) -> int:
        """Data pages of the chunk."""
        return len(self.offsets)

    @property
    def row_counts(self) -> Positions:
        """Rows of each page."""
        return np.diff(self.first_rows)

    def pages_of(self, rows: Positions) -> tuple[Positions, Positions, Positions]:
        """The pages of these ascending row numbers, each page once, how many rows it holds, and the places of `rows` in them."""
        counts = np.diff(np.searchsorted(rows, self.first_rows))  # pages are fewer than rows
        pages = np.flatnonzero(counts)
        begins = self.first_rows[pages]
        sizes = self.first_rows[pages + 1] - begins
        return pages, sizes, rows + np.repeat(np.cumsum(sizes) - sizes - begins, counts[pages])


def parse_offset_indexes(stored: Sequence[bytes], chunks: Sequence[Chunk], num_rows: int) -> list[PageLocations | None]:
    """Page locations from the bytes of offset indexes of chunks of a row group; None for one that cannot be those of its chunk.

    Chunks whose pages hold the same rows share an array of first rows.
    """
    with suppress(ThriftError, IndexError, ValueError):
        # of a few pages, integers of Python are parsed and compared in less time than arrays are made
        is_many = all(_num_pages(data) > _FEW_PAGES for data in stored)
        if is_many and (plain := _plain_locations(stored, chunks, num_rows)) is not None:
            return [*plain]
    return [_few_locations(data, chunk, num_rows) for data, chunk in zip(stored, chunks, strict=True)]


_FEW_PAGES = 14
"""Their number is in the header of the list."""


def _num_pages(data: bytes) -> int:
    """Number of pages in an offset index if it is small; otherwise 15 or more."""
    return data[1] >> 4 if data[0] == _LIST_AS_FIRST_FIELD else _FEW_PAGES + 2


def _few_locations(data: bytes, chunk: Chunk, num_rows: int) -> PageLocations | None:
    """The page locations of one chunk, parsed and compared one by one."""
    try:
        found = [(page[1], page[2], page[3]) for page in read_struct(data)[0][1]]
        end, row = chunk.start, -1
        for offset, length, first_row in found:
            if length <= 0 or offset < end or first_row <= row or not -1 < first_row < num_rows:
                return None
            end, row = offset + length, first_row
        if not found or found[0][2] != 0 or end > chunk.start + chunk.num_bytes:
            return None
        offsets, lengths, first_rows = (np.array(column, np.int64) for column in zip(*found, strict=True))
        return PageLocations(offsets, lengths, np.append(first_rows, num_rows))
    except (ThriftError, KeyError, IndexError, TypeError, ValueError, OverflowError):
        return None


def _plain_locations(stored: Sequence[bytes], chunks: Sequence[Chunk], num_rows: int) -> list[PageLocations] | None:
    """The page locations of some chunks, all decoded at once; None if one is laid out in another way, or may be wrong.

    A page location of three fields in order is seven variable-length integers: each field's header is one byte.
    """
    headers = [read_list_header(data, 1) for data in stored]
    is_plain = all(data[0] == _LIST_AS_FIRST_FIELD and data[-1] < 0x80 for data in stored)
    if not is_plain or not headers or any(kind != STRUCT or not count for count, kind, _ in headers):
        return None
    counts, sizes = [count for count, _, _ in headers], np.cumsum([len(data) for data in stored])
    begins = [position + size - len(data) for (_, _, position), size, data in zip(headers, sizes, stored, strict=True)]
    raw = np.frombuffer(b"".join(stored), np.uint8)
    ends = np.flatnonzero(raw < 0x80)
    starts = np.concatenate([[0], ends[:-1] + 1])
    edges = np.concatenate([[0], np.cumsum(counts)])  # of the pages of each chunk among all
    width = len(_LOCATION_HEADERS)
    places = np.arange(edges[-1] * width) + np.repeat(
        np.searchsorted(starts, begins) - edges[:-1] * width, np.array(counts) * width
    )
    if (places[edges[1:] * width - 1] >= np.searchsorted(ends, sizes)).any():
        return None
    lengths = ends - starts + 1
    if lengths[places].max() > _LONGEST_INTEGER_BYTES:
        return None
    shifts = (np.arange(len(raw)) - np.repeat(starts, lengths)) * 7
    parts = (raw & 0x7F).astype(np.uint64) << shifts.astype(np.uint64)
    tokens = np.add.reduceat(parts, starts)[places].reshape(-1, width)
    if any((tokens[:, i] != header).any() for i, header in enumerate(_LOCATION_HEADERS) if header is not None):
        return None
    values = tokens[:, 1::2]
    table = (values >> np.uint64(1)).astype(np.int64) ^ -(values & np.uint64(1)).astype(np.int64)
    offsets, lengths = table[:, 0], table[:, 1]
    first_rows = np.insert(table[:, 2], edges[1:], num_rows)
    firsts, stops = edges[:-1] + np.arange(len(counts)), edges[1:] + np.arange(len(counts))  # with the rows of the end
    page_ends, is_next = offsets + lengths, np.ones(len(offsets), np.bool_)
    is_next[edges[:-1]] = False
    rises = np.diff(first_rows)
    rises[stops[:-1]] = 1
    is_right = (
        (lengths > 0).all()
        and (offsets[edges[:-1]] >= [chunk.start for chunk in chunks]).all()
        and (page_ends[edges[1:] - 1] <= [chunk.start + chunk.num_bytes for chunk in chunks]).all()
        and (offsets[1:] >= page_ends[:-1])[is_next[1:]].all()
        and (first_rows[firsts] == 0).all()
        and (rises > 0).all()
    )
    if not is_right:
        return None
    found = list[PageLocations]()
    for chunk in range(len(counts)):
        rows, pages = first_rows[firsts[chunk] : stops[chunk] + 1], slice(edges[chunk], edges[chunk + 1])
        if found and np.array_equal(rows, found[-1].first_rows):
            rows = found[-1].first_rows
        found.append(PageLocations(offsets[pages], lengths[pages], rows))
    return found


def parse_column_index(
    data: bytes, leaf: Leaf, arrow_type: pa.DataType, locations: PageLocations
) -> Sequence[ColumnStatistics] | None:
    """Statistics of each page from the bytes of a column index; None if they cannot be those of the pages."""
    num_pages = locations.num_pages
    try:
        document, _ = read_struct(data)
        null_pages, lowers, uppers = document[1], document[2], document[3]
        null_counts = document.get(5) or [None] * num_pages
        if not len(null_pages) == len(lowers) == len(uppers) == len(null_counts) == num_pages:
            return None
        if not all(isinstance(bound, bytes) for bounds in (lowers, uppers) for bound in bounds):
            return None
    except (ThriftError, KeyError, TypeError, ValueError, OverflowError):
        return None
    row_counts = locations.row_counts.tolist()

    def of_page(page: int) -> ColumnStatistics:
        num_rows, null_count = row_counts[page], null_counts[page]
        if null_pages[page]:
            return ColumnStatistics(None, None, num_rows, 0, num_rows)
        low, high = decode_bounds(lowers[page], uppers[page], leaf, arrow_type)
        is_known = isinstance(null_count, int) and 0 <= null_count <= num_rows
        return ColumnStatistics(low, high, null_count if is_known else None, None, num_rows)

    return OnDemand(num_pages, of_page)


class StoredPages(NamedTuple):
    """Pages of a chunk, in order: how many values they hold, and the bytes of the dictionary page, if any, and of all."""

    chunk: Chunk
    num_values: int
    dictionary_bytes: int
    num_bytes: int


def page_file(chunk: Chunk, leaf: Leaf, content: tuple[Raw, Sequence[Raw]], num_values: int, num_rows: int) -> bytes:
    """A Parquet file of one column and one row group.

    Args:
        chunk: that the pages are from.
        leaf: its leaf column, the only one of its top-level column.
        content: the bytes of the dictionary page, possibly none, and of the data pages.
        num_values: in the data pages.
        num_rows: in the data pages.
    """
    dictionary, pages = content
    stored = StoredPages(chunk, num_values, len(dictionary), len(dictionary) + sum(map(len, pages)))
    return joined_file((leaf,), num_rows, [stored], [dictionary, *pages])


def joined_file(leaves: Sequence[Leaf], num_rows: int, columns: Sequence[StoredPages], content: Sequence[Raw]) -> bytes:
    """A Parquet file of some pages of one file, of several columns and one row group.

    Args:
        leaves: each the only leaf column of its top-level column.
        num_rows: in the data pages of each.
        columns: the pages of each.
        content: the bytes of all pages, in the same order.
    """
    position, chunks = len(MAGIC), list[Struct]()
    for leaf, (chunk, num_values, before, num_bytes) in zip(leaves, columns, strict=True):
        metadata: Struct = {
            1: I32Value(leaf.physical_type),
            2: ListValue(I32, [I32Value(encoding) for encoding in chunk.metadata[2]]),
            3: ListValue(BINARY, [part.encode() for part in leaf.path]),
            4: I32Value(chunk.metadata[4]),
            5: num_values,
            6: num_bytes,
            7: num_bytes,
            9: position + before,
        }
        if before:
            metadata[11] = position
        chunks.append({2: 0, 3: metadata})
        position += num_bytes
    elements = [RawStruct(element) for leaf in leaves for element in leaf.elements]
    group = {1: ListValue(STRUCT, chunks), 2: position - len(MAGIC), 3: num_rows}
    encoded = write_struct(
        {
            1: I32Value(2),
            2: ListValue(STRUCT, [{4: b"schema", 5: I32Value(len(leaves))}, *elements]),
            3: num_rows,
            4: ListValue(STRUCT, [group]),
        }
    )
    return b"".join((MAGIC, *content, encoded, len(encoded).to_bytes(4, "little"), MAGIC))
