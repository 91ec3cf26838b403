"""Decoding single pages of a column chunk, which pyarrow cannot: it is handed a small Parquet file made of them.

The file is the dictionary page and the wanted pages, copied byte for byte, under a footer that describes just them;
all encodings, versions and checksums stay pyarrow's business. Columns with one leaf only.
"""

from collections.abc import Sequence

import numpy as np
import pyarrow as pa

from scan_core.read.footer import DATA_PAGE, DATA_PAGE_V2, MAGIC, Chunk
from scan_core.read.footer_schema import Leaf
from scan_core.read.page_body import Raw, page_header
from scan_core.read.page_index import PageLocations, Positions
from scan_core.read.parquet_layout import check_codes, open_decoder
from scan_core.read.thrift import (
    BINARY,
    I32,
    STRUCT,
    I32Value,
    ListValue,
    RawStruct,
    write_struct,
)


def decode_pages(
    chunk: Chunk, leaf: Leaf, content: tuple[Raw, Sequence[Raw]], row_counts: Positions, *, as_dictionary: bool
) -> pa.Array | None:
    """The values of some pages of a chunk, in order.

    Args:
        chunk: the column chunk.
        leaf: its leaf column, the only one of its top-level column.
        content: the dictionary page, which may be empty, and the data pages.
        row_counts: of the data pages.
        as_dictionary: read strings as a dictionary.

    Returns:
        None if the pages do not hold the rows that the index states: the caller reads the whole chunk.
    """
    num_values = _count_values(content[1], row_counts, leaf)
    if num_values is None:
        return None
    num_rows = int(row_counts.sum())
    column = _decoded(chunk, leaf, content, (num_values, num_rows), as_dictionary=as_dictionary)
    return column if len(column) == num_rows else None


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


def _count_values(pages: Sequence[Raw], row_counts: Positions, leaf: Leaf) -> int | None:
    """Values in the pages by their own headers; None if a header contradicts the index."""
    total = 0
    for page, num_rows in zip(pages, row_counts.tolist(), strict=True):
        found = page_header(page, 0, len(page))
        if found is None:
            return None
        header, _ = found
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
    return total


def _decoded(
    chunk: Chunk, leaf: Leaf, content: tuple[Raw, Sequence[Raw]], counts: tuple[int, int], *, as_dictionary: bool
) -> pa.Array:
    reader = open_decoder(pa.BufferReader(_file(chunk, leaf, content, *counts)), None, (0,) if as_dictionary else ())
    column = reader.read_row_group(0, [0], False).column(0)
    return check_codes(column.chunk(0) if column.num_chunks == 1 else column.combine_chunks())


def _file(chunk: Chunk, leaf: Leaf, content: tuple[Raw, Sequence[Raw]], num_values: int, num_rows: int) -> bytes:
    """A Parquet file of one column: the dictionary page, which may be absent, and data pages."""
    dictionary, pages = content
    size = len(dictionary) + sum(len(page) for page in pages)
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
    return b"".join((MAGIC, dictionary, *pages, footer, len(footer).to_bytes(4, "little"), MAGIC))
