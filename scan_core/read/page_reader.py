"""Decoding single pages of a column chunk, which pyarrow cannot: it is handed a small Parquet file made of them.

All encodings, versions and checksums stay pyarrow's business; what the file looks like is in `page_file.py`. Columns with
one leaf only.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from scan_core.read.footer import DATA_PAGE, DATA_PAGE_V2, Chunk
from scan_core.read.footer_schema import Leaf
from scan_core.read.page_body import Raw, page_header, plain_page_facts
from scan_core.read.page_file import page_file
from scan_core.read.page_index import PageLocations, Positions
from scan_core.read.parquet_layout import check_codes, open_decoder
from scan_core.rows.buffers import index_array


def decode_pages(
    chunk: Chunk,
    leaf: Leaf,
    content: tuple[Raw, Sequence[Raw]],
    row_counts: Positions,
    encodings: Sequence[int] | None = None,
    *,
    as_dictionary: bool,
    verifies: bool = True,
) -> pa.Array | None:
    """The values of some pages of a chunk, in order.

    Args:
        chunk: the column chunk.
        leaf: its leaf column, the only one of its top-level column.
        content: the dictionary page, which may be empty, and the data pages.
        row_counts: of the data pages.
        encodings: of the data pages, where they are known.
        as_dictionary: read strings as a dictionary.
        verifies: compare checksums where pages have them.

    Returns:
        None if the pages do not hold the rows that the index states: the caller reads the whole chunk.
    """
    num_values = _count_values(content[1], row_counts, encodings, leaf)
    if num_values is None:
        return None
    num_rows = int(row_counts.sum())
    file = page_file(chunk, leaf, content, num_values, num_rows)
    column = _decoded(file, as_dictionary=as_dictionary, verifies=verifies)
    return column if len(column) == num_rows else None


def pick_rows(
    array: pa.Array, rows: Positions, page_of_row: Positions, pages: Positions, locations: PageLocations
) -> pa.Array:
    """Of the values of `pages`, those of `rows`."""
    if len(rows) == len(array):
        return array
    counts = locations.counts_of(pages)
    shifts = np.cumsum(counts) - counts - locations.first_rows[pages]
    return array.take(index_array(rows + shifts[np.searchsorted(pages, page_of_row)]))


def _count_values(
    pages: Sequence[Raw], row_counts: Positions, encodings: Sequence[int] | None, leaf: Leaf
) -> int | None:
    """Values in the pages by their own headers; None if a header contradicts the index or the encodings."""
    total = 0
    expected: Sequence[int | None] = encodings or [None] * len(pages)
    for page, num_rows, encoding in zip(pages, row_counts.tolist(), expected, strict=True):
        found = None if leaf.max_repetition_level else plain_page_facts(page)
        values, stated = found or _stated_facts(page, num_rows, leaf) or (None, None)
        if values is None or (leaf.max_repetition_level == 0 and values != num_rows):
            return None
        if encoding is not None and encoding != stated:
            return None
        total += values
    return total


def _stated_facts(page: Raw, num_rows: int, leaf: Leaf) -> tuple[int, Any] | None:
    """Values and encoding of a page by its header; None if it is no data page, or states other rows."""
    found = page_header(page, 0, len(page))
    if found is None:
        return None
    header, _ = found
    is_v2 = header.get(1) == DATA_PAGE_V2
    details = header.get(8) if is_v2 else header.get(5) if header.get(1) == DATA_PAGE else None
    if not isinstance(details, dict) or not isinstance(values := details.get(1), int):
        return None
    if leaf.max_repetition_level and is_v2 and details.get(3) != num_rows:
        return None
    return values, details.get(4 if is_v2 else 2)


def _decoded(file: bytes, *, as_dictionary: bool, verifies: bool) -> pa.Array:
    reader = open_decoder(pa.BufferReader(file), None, (0,) if as_dictionary else (), verifies=verifies)
    column = reader.read_row_group(0, [0], False).column(0)
    return check_codes(column.chunk(0) if column.num_chunks == 1 else column.combine_chunks())
