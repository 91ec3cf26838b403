"""Parquet files as a FileReader: column chunks decoded by pyarrow, strings as dictionaries where that pays.

Columns are found by their place in the file's schema, never by name: names may hold dots and repeat. What the
arrays mean for the table is the business of `projection.py`; reading single pages that of `page_reader.py`.
"""

from collections.abc import Sequence
from time import time_ns
from typing import Any

import pyarrow as pa
import pyarrow.types as pt

from scan_core.errors import MalformedTableError
from scan_core.file_io import fingerprint, open_input
from scan_core.read.file_reader import ColumnStatistics, RowGroup, refusing_malformed
from scan_core.read.footer import Chunk
from scan_core.read.parquet_bounds import decode_bounds, stored_bounds
from scan_core.read.parquet_layout import FOOTERS, ParquetLayout, open_decoder, read_layout
from scan_core.rows.algebra import select_rows
from scan_core.rows.selection import RowSelection, selected_count
from scan_core.split import FileIOConfig

_DICTIONARY_BYTES_PER_VALUE = 3
"""A chunk that kept its dictionary stores at most about 20 bits a value; one that overflowed at least 4 bytes more."""


_SETTLED_AFTER_NANOSECONDS = 1_000_000_000
"""A file written later than that may be written again without its time telling so."""


def open_parquet(path: str, io: FileIOConfig) -> "ParquetFileReader":
    """Open a Parquet file and read its footer, which is remembered: a file is opened once per split.

    Raises:
        MissingFileError: no such file.
        MalformedTableError: truncated, or a footer that contradicts itself.
        UnsupportedError: encrypted.
    """
    content = fingerprint(path, io)
    is_settled = time_ns() - content[1] > _SETTLED_AFTER_NANOSECONDS
    source = open_input(path, io)
    try:
        if not is_settled:
            return ParquetFileReader(path, source, read_layout(source, path))
        key = (content, tuple(sorted(io.properties.items())))
        return ParquetFileReader(path, source, FOOTERS.get(key, lambda: read_layout(source, path)))
    except BaseException:
        source.close()
        raise


class ParquetFileReader:
    """An open Parquet file."""

    def __init__(self, path: str, source: pa.NativeFile, layout: ParquetLayout) -> None:
        self.path = path
        self._source = source
        self._layout = layout
        self._footer = self._layout.footer
        self._leaves = self._layout.leaves
        self._readers: dict[frozenset[int], Any] = {}
        self.arrow_schema = self._layout.arrow_schema
        self.has_field_ids = self._layout.has_field_ids
        self.row_groups = self._layout.row_groups
        self.num_rows = self._footer.num_rows

    def read(self, row_group: RowGroup, column_indices: Sequence[int], selection: RowSelection) -> list[pa.Array]:
        """Top-level columns by index, only the selected rows, in file types.

        Low-cardinality strings come dictionary-encoded.

        Raises:
            MalformedTableError: pages that cannot be decoded; names file and column.
        """
        if selected_count(selection) == 0:
            return [pa.array([], type=self.arrow_schema.field(i).type) for i in column_indices]
        return select_rows(self._read_chunks(row_group, column_indices), selection)

    def statistics(self, row_group: RowGroup, column_index: int) -> ColumnStatistics | None:
        """Of a top-level primitive column from the footer; bounds in the file's type."""
        field_type = self.arrow_schema.field(column_index).type
        if pt.is_nested(field_type):
            return None
        chunk, leaf = self._chunk(row_group, column_index), self._footer.leaves[self._leaves[column_index].start]
        if (statistics := chunk.statistics) is None:
            return ColumnStatistics(value_count=chunk.num_values)
        raw = stored_bounds(statistics, leaf, has_column_orders=self._footer.has_column_orders)
        lower, upper = decode_bounds(*raw, leaf, field_type)
        return ColumnStatistics(lower, upper, chunk.null_count, None, chunk.num_values)

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

    def _read_chunks(self, row_group: RowGroup, column_indices: Sequence[int]) -> list[pa.Array]:
        columns = sorted(set(column_indices))
        names = ", ".join(repr(self.arrow_schema.field(i).name) for i in columns)
        leaves = [leaf for i in columns for leaf in self._leaves[i]]
        with refusing_malformed(self.path, f"row group {row_group.index}, columns {names}"):
            table = self._reader(row_group).read_row_group(row_group.index, leaves, False)
            arrays = {i: _one_array(column) for i, column in zip(columns, table.columns, strict=True)}
        for column, array in arrays.items():
            if len(array) != row_group.num_rows:
                raise MalformedTableError(
                    f"{self.path}: row group {row_group.index}: column {self.arrow_schema.field(column).name!r} has "
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
