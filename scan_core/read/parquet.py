"""Parquet files as a FileReader: column chunks decoded by pyarrow, strings as dictionaries where that pays.

Columns are found by their place in the file's schema, never by name: names may hold dots and repeat. What the
arrays mean for the table is the business of `projection.py`; reading single pages that of `page_reader.py`.
"""

from collections.abc import Sequence
from time import time_ns
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.types as pt

from scan_core.errors import MalformedTableError
from scan_core.file_io import fingerprint, open_input
from scan_core.read.file_reader import ColumnStatistics, PageStatistics, ReadCounts, RowGroup, refusing_malformed
from scan_core.read.footer import Chunk
from scan_core.read.page_index import PageLocations, Positions, parse_column_index, parse_offset_index
from scan_core.read.page_reader import pick_rows, read_pages, read_together
from scan_core.read.parquet_bounds import decode_bounds, stored_bounds
from scan_core.read.parquet_layout import FOOTERS, ParquetLayout, open_decoder, read_layout
from scan_core.read.struct_members import descended, read_members
from scan_core.rows.algebra import select_rows
from scan_core.rows.selection import RowSelection, selected_count, to_indices
from scan_core.split import FileIOConfig

_DICTIONARY_BYTES_PER_VALUE = 3
"""A chunk that kept its dictionary stores at most about 20 bits a value; one that overflowed at least 4 bytes more."""


_PAGED_SHARE_OF_ROWS = 0.5
_PAGED_SHARE_OF_BYTES = 0.6
"""Above, reading the chunk as a whole is cheaper than choosing among its pages."""
_LEAST_PAGED_BYTES = 64 * 1024
"""A smaller chunk is decoded sooner than its offset index."""
_SETTLED_AFTER_NANOSECONDS = 1_000_000_000
"""A file written later than that may be written again without its time telling so."""


def open_parquet(path: str, io: FileIOConfig, *, reads_pages: bool = True) -> "ParquetFileReader":
    """Open a Parquet file and read its footer, which is remembered: a file is opened once per split.

    Args:
        path: as the manifest writes it.
        io: how to open it.
        reads_pages: decode only the pages that hold selected rows, where the file has a page index.

    Raises:
        MissingFileError: no such file.
        MalformedTableError: truncated, or a footer that contradicts itself.
        UnsupportedError: encrypted.
    """
    content = fingerprint(path, io)
    is_settled = time_ns() - content[1] > _SETTLED_AFTER_NANOSECONDS
    source = open_input(path, io)
    try:
        if is_settled:
            key = (content, tuple(sorted(io.properties.items())))
            layout = FOOTERS.get(key, lambda: read_layout(source, path))
        else:
            layout = read_layout(source, path)
        return ParquetFileReader(path, source, layout, reads_pages=reads_pages)
    except BaseException:
        source.close()
        raise


class ParquetFileReader:
    """An open Parquet file."""

    def __init__(self, path: str, source: pa.NativeFile, layout: ParquetLayout, *, reads_pages: bool = True) -> None:
        self.path = path
        self._source = source
        self._layout = layout
        self._footer = self._layout.footer
        self._leaves = self._layout.leaves
        self._ranges = dict(zip(self._layout.ways, self._leaves, strict=True))
        self._reads_pages = reads_pages
        self._locations: dict[tuple[int, int], PageLocations | None] = {}
        self._page_statistics: dict[tuple[int, int], PageStatistics | None] = {}
        self.counts = ReadCounts()
        self._readers: dict[frozenset[int], Any] = {}
        self.arrow_schema = self._layout.arrow_schema
        self.has_field_ids = self._layout.has_field_ids
        self.row_groups: Sequence[RowGroup] = self._layout.row_groups
        self.num_rows = self._footer.num_rows

    def read(self, row_group: RowGroup, column_indices: Sequence[int], selection: RowSelection) -> list[pa.Array]:
        """Columns and struct members by number, only the selected rows, in file types.

        Low-cardinality strings come dictionary-encoded.

        Raises:
            MalformedTableError: pages that cannot be decoded; names file and column.
        """
        num_selected = selected_count(selection)
        if num_selected == 0:
            return [pa.array([], type=self.field(i).type) for i in column_indices]
        arrays: dict[int, pa.Array] = {}
        if self._reads_pages and num_selected < _PAGED_SHARE_OF_ROWS * row_group.num_rows:
            arrays = self._read_paged(row_group, list(dict.fromkeys(column_indices)), to_indices(selection))
        whole = [i for i in dict.fromkeys(column_indices) if i not in arrays]
        if whole:
            arrays.update(zip(whole, select_rows(self._read_chunks(row_group, whole), selection), strict=True))
        return [arrays[i] for i in column_indices]

    def member(self, way: tuple[int, ...]) -> int | None:
        """The number of a struct member as a column of its own."""
        return self._layout.numbers.get(way)

    def field(self, column_index: int) -> pa.Field:
        """Of a top-level column or member."""
        return self._layout.fields[column_index]

    def statistics(self, row_group: RowGroup, column_index: int) -> ColumnStatistics | None:
        """Of a primitive column from the footer; bounds in the file's type."""
        field_type = self.field(column_index).type
        if pt.is_nested(field_type):
            return None
        chunk, leaf = self._chunk(row_group, column_index), self._footer.leaves[self._leaves[column_index].start]
        if (statistics := chunk.statistics) is None:
            return ColumnStatistics(value_count=chunk.num_values)
        raw = stored_bounds(statistics, leaf, has_column_orders=self._footer.has_column_orders)
        lower, upper = decode_bounds(*raw, leaf, field_type)
        return ColumnStatistics(lower, upper, chunk.null_count, None, chunk.num_values)

    def page_statistics(self, row_group: RowGroup, column_index: int) -> PageStatistics | None:
        """Of the pages of a primitive column; bounds in the file's type."""
        field_type, leaf = self.field(column_index).type, self._leaves[column_index].start
        chunk = self._chunk(row_group, column_index)
        if pt.is_nested(field_type) or chunk.offset_index is None or chunk.column_index is None:
            return None
        if not self._footer.has_column_orders:
            return None
        key = row_group.index, leaf
        if key not in self._page_statistics:
            self._page_statistics[key] = self._read_page_statistics(row_group, leaf, field_type, chunk.column_index)
        return self._page_statistics[key]

    def reads_ranges(self, row_group: RowGroup, column_indices: Sequence[int]) -> bool:
        """Whether all of them can be read by page."""
        return self._reads_pages and all(self._has_pages(row_group, i) for i in column_indices)

    def compressed_bytes(self, row_group: RowGroup, column_indices: Sequence[int]) -> int:
        """Stored size of the chunks of these columns."""
        chunks = self._footer.row_groups[row_group.index].chunks
        return sum(chunks[leaf].num_bytes for i in column_indices for leaf in self._leaves[i])

    def close(self) -> None:
        """Release the file."""
        self._source.close()

    def _reader(self, row_group: RowGroup) -> Any:
        """A decoder that reads the strings of this row group as dictionaries where that pays."""
        dictionaries = frozenset(
            self._leaves[i].start for i in self._layout.string_columns if self._keeps_dictionary(row_group, i)
        )
        if dictionaries not in self._readers:
            self._readers[dictionaries] = open_decoder(self._source, self._layout.metadata, sorted(dictionaries))
        return self._readers[dictionaries]

    def _chunk(self, row_group: RowGroup, column: int) -> Chunk:
        return self._footer.row_groups[row_group.index].chunks[self._leaves[column].start]

    def _read_paged(self, row_group: RowGroup, columns: Sequence[int], rows: Positions) -> dict[int, pa.Array]:
        """Those of the columns that are cheaper read by page, only the rows given."""
        candidates = [i for i in columns if self._may_read_pages(row_group, i)]
        self._load_locations(row_group, [self._leaves[i].start for i in candidates])
        arrays: dict[int, pa.Array] = {}
        for column in candidates:
            chunk, leaf = self._chunk(row_group, column), self._leaves[column].start
            if (locations := self._locations[row_group.index, leaf]) is None:
                continue
            page_of_row = locations.pages_of(rows)
            pages = np.unique(page_of_row)
            if locations.lengths[pages].sum() > _PAGED_SHARE_OF_BYTES * chunk.num_bytes:
                continue
            name = self.field(column).name
            with refusing_malformed(self.path, f"row group {row_group.index}, pages of column {name!r}"):
                found = read_pages(
                    lambda offset, length: self._source.read_at(length, offset),
                    chunk,
                    self._footer.leaves[leaf],
                    locations,
                    pages,
                    as_dictionary=column in self._layout.string_columns and self._keeps_dictionary(row_group, column),
                )
            if found is None:
                self.counts.fallbacks += 1
                continue
            array, num_bytes = found
            array = descended(array, (0,) * (len(self._layout.ways[column]) - 1))
            arrays[column] = self._typed(column, pick_rows(array, rows, page_of_row, pages, locations))
            self.counts.pages_read += len(pages)
            self.counts.pages_left_out += locations.num_pages - len(pages)
            self.counts.bytes_left_out += chunk.num_bytes - num_bytes
        return arrays

    def _may_read_pages(self, row_group: RowGroup, column: int) -> bool:
        if not self._has_pages(row_group, column):
            return False
        return self._chunk(row_group, column).uncompressed_bytes >= _LEAST_PAGED_BYTES

    def _has_pages(self, row_group: RowGroup, column: int) -> bool:
        leaves = self._leaves[column]
        if len(leaves) != 1 or not self._footer.leaves[leaves.start].elements:
            return False
        return self._chunk(row_group, column).offset_index is not None

    def _load_locations(self, row_group: RowGroup, leaves: Sequence[int]) -> None:
        """Read the offset indexes of these leaves, which lie together, at once."""
        chunks = self._footer.row_groups[row_group.index].chunks
        ranges = {
            leaf: found
            for leaf in leaves
            if (row_group.index, leaf) not in self._locations and (found := chunks[leaf].offset_index) is not None
        }
        with refusing_malformed(self.path, "offset index"):
            for leaf, data in read_together(lambda o, n: self._source.read_at(n, o), ranges).items():
                locations = parse_offset_index(data, chunks[leaf], row_group.num_rows)
                self.counts.fallbacks += locations is None
                self._locations[row_group.index, leaf] = locations

    def _read_page_statistics(
        self, row_group: RowGroup, leaf: int, field_type: pa.DataType, place: tuple[int, int]
    ) -> PageStatistics | None:
        self._load_locations(row_group, [leaf])
        if (locations := self._locations[row_group.index, leaf]) is None:
            return None
        with refusing_malformed(self.path, "column index"):
            data = self._source.read_at(place[1], place[0])
        found = parse_column_index(data, self._footer.leaves[leaf], field_type, locations)
        self.counts.fallbacks += found is None
        return None if found is None else PageStatistics(locations.first_rows, found)

    def _typed(self, column: int, array: pa.Array) -> pa.Array:
        """In the type of the file's schema: pages know nothing of the Arrow schema stored beside them."""
        wanted = self.field(column).type
        if array.type == wanted or isinstance(array, pa.DictionaryArray) or pt.is_dictionary(wanted):
            return array
        return array.cast(wanted)

    def _read_chunks(self, row_group: RowGroup, column_indices: Sequence[int]) -> list[pa.Array]:
        columns = sorted(set(column_indices))
        names = ", ".join(repr(self.field(i).name) for i in columns)
        leaves = sorted({leaf for i in columns for leaf in self._leaves[i]})
        with refusing_malformed(self.path, f"row group {row_group.index}, columns {names}"):
            table = self._reader(row_group).read_row_group(row_group.index, leaves, False)
            ways = [self._layout.ways[i] for i in columns]
            tops = sorted({way[0] for way in ways})
            whole = {top: _one_array(column) for top, column in zip(tops, table.columns, strict=True)}
            arrays = dict(zip(columns, read_members(whole, ways, self._ranges, leaves), strict=True))
        for column, array in arrays.items():
            if len(array) != row_group.num_rows:
                raise MalformedTableError(
                    f"{self.path}: row group {row_group.index}: column {self.field(column).name!r} has "
                    f"{len(array)} of {row_group.num_rows} rows"
                )
        return [arrays[i] for i in column_indices]

    def _keeps_dictionary(self, row_group: RowGroup, column: int) -> bool:
        """Whether this chunk of strings is better read as a dictionary.

        The list of encodings does not tell an overflowed dictionary, for the dictionary page itself is PLAIN; the
        stored width of a value does.
        """
        chunk = self._chunk(row_group, column)
        values = chunk.num_values - (chunk.null_count or 0)
        return chunk.has_dictionary and chunk.uncompressed_bytes < _DICTIONARY_BYTES_PER_VALUE * values


def _one_array(column: pa.ChunkedArray) -> pa.Array:
    if column.num_chunks == 1:
        return column.chunk(0)
    if column.nbytes < 2**31:
        return column.combine_chunks()
    wide = {pa.string(): pa.large_string(), pa.binary(): pa.large_binary()}.get(column.type)
    return (column.cast(wide) if wide else column).combine_chunks()
