"""Decoding single pages of a column chunk, which pyarrow cannot: it is handed a small Parquet file made of them.

The file is the dictionary page and the wanted pages, copied byte for byte, under a footer that describes just them;
all encodings, versions and checksums stay pyarrow's business. Columns with one leaf only.
"""

from collections.abc import Callable, Mapping
from itertools import pairwise

import numpy as np
import pyarrow as pa

from scan_core.read.footer import DATA_PAGE, DATA_PAGE_V2, MAGIC, Chunk, Leaf
from scan_core.read.page_index import PageLocations, Positions
from scan_core.read.parquet_layout import open_decoder
from scan_core.read.thrift import (
    BINARY,
    I32,
    STRUCT,
    I32Value,
    ListValue,
    RawStruct,
    ThriftError,
    read_struct,
    write_struct,
)

ReadAt = Callable[[int, int], bytes]
"""(offset, length) -> those bytes of the file."""

_BRIDGED_BYTES = 16 * 1024
"""A gap this small is read over rather than around."""
_HEADER_BYTES = 512
"""Longest page header looked at: statistics inside may be long, the counts come first."""


def read_pages(
    read_at: ReadAt, chunk: Chunk, leaf: Leaf, locations: PageLocations, pages: Positions, *, as_dictionary: bool
) -> tuple[pa.Array, int] | None:
    """The values of these pages in order, and how many bytes were read for them.

    Args:
        read_at: reads the file.
        chunk: the column chunk.
        leaf: its leaf column, the only one of its top-level column.
        locations: of all pages of the chunk.
        pages: ascending page numbers.
        as_dictionary: read strings as a dictionary.

    Returns:
        None if the pages do not hold the rows that the index states: the caller reads the whole chunk.
    """
    ranges = _merged(locations.offsets[pages], locations.lengths[pages])
    body = [read_at(offset, length) for offset, length in ranges]
    data = b"".join(body)
    num_values = _count_values(data, locations.lengths[pages], locations.row_counts[pages], leaf)
    if num_values is None:
        return None
    before = int(locations.offsets[0]) - chunk.start
    dictionary = read_at(chunk.start, before) if before else b""
    content = _file(chunk, leaf, (dictionary, data), num_values, int(locations.row_counts[pages].sum()))
    reader = open_decoder(pa.BufferReader(content), None, (0,) if as_dictionary else ())
    column = reader.read_row_group(0, [0], False).column(0)
    if len(column) != locations.row_counts[pages].sum():
        return None
    return column.chunk(0) if column.num_chunks == 1 else column.combine_chunks(), len(data) + len(dictionary)


def pick_rows(
    array: pa.Array, rows: Positions, page_of_row: Positions, pages: Positions, locations: PageLocations
) -> pa.Array:
    """Of the values of `pages`, those of `rows`."""
    counts = locations.row_counts[pages]
    begins = np.cumsum(counts) - counts
    positions = rows - locations.first_rows[page_of_row] + begins[np.searchsorted(pages, page_of_row)]
    if len(positions) == len(array):
        return array
    return array.take(pa.array(positions))


def read_together(read_at: ReadAt, ranges: Mapping[int, tuple[int, int]]) -> dict[int, bytes]:
    """The bytes of ranges of a file by their keys; ranges that lie close together are read as one."""
    found: dict[int, bytes] = {}
    group: list[int] = []
    for key in sorted(ranges, key=lambda k: ranges[k]):
        if group and ranges[key][0] > sum(ranges[group[-1]]) + _BRIDGED_BYTES:
            found.update(_read_group(read_at, ranges, group))
            group = []
        group.append(key)
    if group:
        found.update(_read_group(read_at, ranges, group))
    return found


def _read_group(read_at: ReadAt, ranges: Mapping[int, tuple[int, int]], keys: list[int]) -> dict[int, bytes]:
    start = ranges[keys[0]][0]
    data = read_at(start, max(sum(ranges[key]) for key in keys) - start)
    return {key: data[ranges[key][0] - start : sum(ranges[key]) - start] for key in keys}


def _merged(offsets: Positions, lengths: Positions) -> list[tuple[int, int]]:
    """Touching pages as one range."""
    ends = offsets + lengths
    breaks = np.flatnonzero(offsets[1:] != ends[:-1]) + 1
    edges = [0, *breaks.tolist(), len(offsets)]
    return [(int(offsets[a]), int(ends[b - 1] - offsets[a])) for a, b in pairwise(edges)]


def _count_values(data: bytes, lengths: Positions, row_counts: Positions, leaf: Leaf) -> int | None:
    """Values in the pages by their own headers; None if a header contradicts the index."""
    total = position = 0
    for length, num_rows in zip(lengths.tolist(), row_counts.tolist(), strict=True):
        try:
            header, _ = read_struct(data[position : position + min(length, _HEADER_BYTES)])
        except ThriftError:
            try:
                header, _ = read_struct(data[position : position + length])
            except ThriftError:
                return None
        details = (
            header.get(5) if header.get(1) == DATA_PAGE else header.get(8) if header.get(1) == DATA_PAGE_V2 else None
        )
        if not isinstance(details, dict) or not isinstance(values := details.get(1), int):
            return None
        if leaf.max_repetition_level == 0 and values != num_rows:
            return None
        if leaf.max_repetition_level and header.get(1) == DATA_PAGE_V2 and details.get(3) != num_rows:
            return None
        total += values
        position += length
    return total


def _file(chunk: Chunk, leaf: Leaf, content: tuple[bytes, bytes], num_values: int, num_rows: int) -> bytes:
    """A Parquet file of one column: the dictionary page, which may be absent, and data pages."""
    dictionary, data = content
    size = len(dictionary) + len(data)
    metadata = {
        1: I32Value(leaf.physical_type),
        2: ListValue(I32, [I32Value(e) for e in chunk.metadata[2]]),
        3: ListValue(BINARY, [part.encode() for part in leaf.path]),
        4: I32Value(chunk.metadata[4]),
        5: num_values,
        6: size,
        7: size,
        9: 4 + len(dictionary),
    }
    if dictionary:
        metadata[11] = 4
    footer = write_struct(
        {
            1: I32Value(2),
            2: ListValue(STRUCT, [{4: b"schema", 5: I32Value(1)}, *map(RawStruct, leaf.elements)]),
            3: num_rows,
            4: ListValue(
                STRUCT,
                [{1: ListValue(STRUCT, [{2: 4, 3: metadata}]), 2: size, 3: num_rows}],
            ),
        }
    )
    return b"".join((MAGIC, dictionary, data, footer, len(footer).to_bytes(4, "little"), MAGIC))
