"""The page index of a column chunk: where its pages lie, which rows they hold, and what bounds their values have.

An index that contradicts itself or its chunk is treated as absent: it only ever saves work. Which pages are needed is
decided by the caller.
"""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from scan_core.read.file_reader import ColumnStatistics
from scan_core.read.footer import Chunk
from scan_core.read.footer_schema import Leaf
from scan_core.read.parquet_bounds import decode_bounds
from scan_core.read.thrift import STRUCT, Struct, ThriftError, read_list_header, read_struct

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

    def counts_of(self, pages: Positions) -> Positions:
        """Rows of these pages."""
        counts: Positions = self.first_rows[pages + 1] - self.first_rows[pages]
        return counts

    def pages_of(self, rows: Positions) -> tuple[Positions, Positions]:
        """The pages of these ascending row numbers, each page once, and the page of each row."""
        counts = np.diff(np.searchsorted(rows, self.first_rows))  # pages are fewer than rows
        pages = np.flatnonzero(counts)
        return pages, np.repeat(pages, counts[pages])


def page_places(chunk: Chunk, locations: PageLocations) -> list[tuple[int, int]]:
    """Offset and length of every page of a chunk, the dictionary page first, if it has one."""
    pages = list(zip(locations.offsets.tolist(), locations.lengths.tolist(), strict=True))
    before = pages[0][0] - chunk.start
    return [(chunk.start, before), *pages] if before else pages


def parse_offset_index(data: bytes, chunk: Chunk, num_rows: int) -> PageLocations | None:
    """Page locations from the bytes of an offset index; None if they cannot be those of the chunk."""
    try:
        table = _plain_locations(data)
        if table is None:
            document, _ = read_struct(data)
            found = [(page[1], page[2], page[3]) for page in document[1]]
            table = np.array(found, dtype=np.int64).reshape(-1, 3)
    except (ThriftError, KeyError, IndexError, TypeError, ValueError, OverflowError):
        return None
    offsets, lengths, first_rows = table[:, 0], table[:, 1], table[:, 2]
    ends = offsets + lengths
    is_right = (
        len(table) > 0
        and (lengths > 0).all()
        and offsets[0] >= chunk.start
        and ends[-1] <= chunk.start + chunk.num_bytes
        and (offsets[1:] >= ends[:-1]).all()
        and first_rows[0] == 0
        and (np.diff(first_rows) > 0).all()
        and first_rows[-1] < num_rows
    )
    if not is_right:
        return None
    return PageLocations(offsets, lengths, np.append(first_rows, num_rows))


def _plain_locations(data: bytes) -> Positions | None:
    """Offset, length and first row of each page, all decoded at once; None if the bytes are laid out in another way.

    A page location of three fields in order is seven variable-length integers: each field's header is one byte.
    """
    if data[0] != _LIST_AS_FIRST_FIELD:
        return None
    num_pages, kind, position = read_list_header(data, 1)
    raw = np.frombuffer(data, dtype=np.uint8, offset=position)
    ends = np.flatnonzero(raw < 0x80)[: num_pages * len(_LOCATION_HEADERS)]
    if kind != STRUCT or num_pages == 0 or len(ends) < num_pages * len(_LOCATION_HEADERS):
        return None
    starts = np.append(0, ends[:-1] + 1)
    lengths = ends - starts + 1
    if lengths.max() > _LONGEST_INTEGER_BYTES:
        return None
    shifts = (np.arange(ends[-1] + 1) - np.repeat(starts, lengths)) * 7
    parts = (raw[: ends[-1] + 1] & 0x7F).astype(np.uint64) << shifts.astype(np.uint64)
    tokens = np.add.reduceat(parts, starts).reshape(num_pages, len(_LOCATION_HEADERS))
    if any((tokens[:, i] != header).any() for i, header in enumerate(_LOCATION_HEADERS) if header is not None):
        return None
    values = tokens[:, 1::2]
    return (values >> np.uint64(1)).astype(np.int64) ^ -(values & np.uint64(1)).astype(np.int64)


def parse_column_index(
    data: bytes, leaf: Leaf, arrow_type: pa.DataType, locations: PageLocations
) -> list[ColumnStatistics] | None:
    """Statistics of each page from the bytes of a column index; None if they cannot be those of the pages."""
    try:
        document, _ = read_struct(data)
        return _page_statistics(document, leaf, arrow_type, locations)
    except (ThriftError, KeyError, TypeError, ValueError, OverflowError):
        return None


def _page_statistics(
    document: Struct, leaf: Leaf, arrow_type: pa.DataType, locations: PageLocations
) -> list[ColumnStatistics] | None:
    num_pages = locations.num_pages
    null_pages, lowers, uppers = document[1], document[2], document[3]
    null_counts = document.get(5) or [None] * num_pages
    if not len(null_pages) == len(lowers) == len(uppers) == len(null_counts) == num_pages:
        return None
    found = []
    rows = zip(null_pages, lowers, uppers, null_counts, locations.row_counts.tolist(), strict=True)
    for is_null, lower, upper, null_count, num_rows in rows:
        if is_null:
            found.append(ColumnStatistics(None, None, num_rows, 0, num_rows))
            continue
        low, high = decode_bounds(lower, upper, leaf, arrow_type)
        is_known = isinstance(null_count, int) and 0 <= null_count <= num_rows
        found.append(ColumnStatistics(low, high, null_count if is_known else None, None, num_rows))
    return found
