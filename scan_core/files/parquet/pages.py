"""Pages of column chunks: headers, bodies, the page index, and the small Parquet file that chosen pages are decoded from."""

from collections.abc import Sequence
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
    I32,
    STRUCT,
    I32Value,
    ListValue,
    RawStruct,
    Struct,
    ThriftError,
    read_struct,
    write_struct,
)
from nevermore.scan_core.model.statistics import ColumnStatistics

_HEADER_BYTES = 512
"""Longest page header looked at first: statistics inside may be long, the counts come before them."""

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
        return DELTA_BYTE_ARRAY in chunk.encodings
    return encoding not in {PLAIN_DICTIONARY, RLE_DICTIONARY} or chunk.has_dictionary


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
    """Page locations of chunks of a row group from the bytes of their offset indexes, None where they cannot be those.

    Chunks whose pages hold the same rows share an array of first rows.
    """
    known: dict[bytes, Positions] = {}
    return [_locations(data, chunk, num_rows, known) for data, chunk in zip(stored, chunks, strict=True)]


def _locations(data: bytes, chunk: Chunk, num_rows: int, known: dict[bytes, Positions]) -> PageLocations | None:
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
        edges = np.append(first_rows, num_rows)
        return PageLocations(offsets, lengths, known.setdefault(edges.tobytes(), edges))
    except (ThriftError, KeyError, IndexError, TypeError, ValueError, OverflowError):
        return None


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
            2: ListValue(I32, [I32Value(encoding) for encoding in chunk.encodings]),
            3: ListValue(BINARY, [part.encode() for part in leaf.path]),
            4: I32Value(chunk.codec),
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
