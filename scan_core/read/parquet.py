"""Parquet files as a FileReader: column chunks decoded by pyarrow, strings as dictionaries where that pays.

Columns are found by their place in the file's schema, never by name: names may hold dots and repeat. What the
arrays mean for the table is the business of `projection.py`; reading single pages that of `page_reader.py`.
"""

from collections.abc import Sequence
from functools import cached_property
from typing import Any

import pyarrow as pa
import pyarrow.types as pt
from pyarrow._parquet import ParquetReader

from scan_core.errors import MalformedTableError
from scan_core.file_io import open_input
from scan_core.read.file_reader import ColumnStatistics, RowGroup, field_id_of, refusing_malformed
from scan_core.read.footer import Chunk, read_footer
from scan_core.read.parquet_bounds import decode_bounds, stored_bounds
from scan_core.rows.algebra import select_rows
from scan_core.rows.selection import RowSelection, selected_count
from scan_core.split import FileIOConfig

_DICTIONARY_BYTES_PER_VALUE = 3
"""A chunk that kept its dictionary stores at most about 20 bits a value; one that overflowed at least 4 bytes more."""
_FIRST_BYTE = 4


def open_parquet(path: str, io: FileIOConfig) -> "ParquetFileReader":
    """Open a Parquet file and read its footer.

    Raises:
        MissingFileError: no such file.
        MalformedTableError: truncated, or a footer that contradicts itself.
        UnsupportedError: encrypted.
    """
    source = open_input(path, io)
    try:
        return ParquetFileReader(path, source)
    except BaseException:
        source.close()
        raise


class ParquetFileReader:
    """An open Parquet file."""

    def __init__(self, path: str, source: pa.NativeFile) -> None:
        self.path = path
        self._source = source
        self._is_local = isinstance(source, pa.MemoryMappedFile | pa.OSFile | pa.BufferReader)
        with refusing_malformed(path, "footer"):
            self._footer = read_footer(source, path)
            self._plain = self._open_reader(None, ())
            self.arrow_schema: pa.Schema = self._plain.schema_arrow
            self._leaves = _leaf_ranges(self.arrow_schema)
        if len(self._footer.leaves) != (self._leaves[-1].stop if self._leaves else 0):
            raise MalformedTableError(f"{path}: footer: {len(self._footer.leaves)} columns do not fit the schema")
        self.num_rows = self._footer.num_rows
        self.row_groups: Sequence[RowGroup] = self._row_groups()
        self.has_field_ids = any(_has_id(field) for field in self.arrow_schema)

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

    def _open_reader(self, metadata: Any, dictionary_leaves: Sequence[int]) -> Any:
        reader = ParquetReader()
        reader.open(
            self._source,
            metadata=metadata,
            read_dictionary=list(dictionary_leaves),
            pre_buffer=not self._is_local,
            coerce_int96_timestamp_unit="us",  # nanoseconds would wrap outside of 1677..2262
            page_checksum_verification=True,
        )
        return reader

    @cached_property
    def _dictionary_reader(self) -> Any:
        strings = [
            leaves.start
            for leaves, field in zip(self._leaves, self.arrow_schema, strict=True)
            if pt.is_string(field.type) or pt.is_large_string(field.type)
        ]
        return self._open_reader(self._plain.metadata, strings)

    def _row_groups(self) -> tuple[RowGroup, ...]:
        groups: list[RowGroup] = []
        position = 0
        for index, facts in enumerate(self._footer.row_groups):
            offset = max(facts.chunks[0].start, _FIRST_BYTE) if facts.chunks else _FIRST_BYTE
            groups.append(RowGroup(index, position, facts.num_rows, offset, facts.num_bytes))
            position += facts.num_rows
        return tuple(groups)

    def _chunk(self, row_group: RowGroup, column: int) -> Chunk:
        return self._footer.row_groups[row_group.index].chunks[self._leaves[column].start]

    def _read_chunks(self, row_group: RowGroup, column_indices: Sequence[int]) -> list[pa.Array]:
        encoded = {i for i in column_indices if self._keeps_dictionary(row_group, i)}
        arrays: dict[int, pa.Array] = {}
        if plain := sorted(set(column_indices) - encoded):
            arrays.update(zip(plain, self._decode(self._plain, row_group, plain), strict=True))
        if encoded:
            columns = sorted(encoded)
            arrays.update(zip(columns, self._decode(self._dictionary_reader, row_group, columns), strict=True))
        return [arrays[i] for i in column_indices]

    def _decode(self, reader: Any, row_group: RowGroup, columns: Sequence[int]) -> list[pa.Array]:
        names = ", ".join(repr(self.arrow_schema.field(i).name) for i in columns)
        leaves = [leaf for i in columns for leaf in self._leaves[i]]
        with refusing_malformed(self.path, f"row group {row_group.index}, columns {names}"):
            table = reader.read_row_group(row_group.index, leaves, False)
            arrays = [_one_array(column) for column in table.columns]
        for column, array in zip(columns, arrays, strict=True):
            if len(array) != row_group.num_rows:
                raise MalformedTableError(
                    f"{self.path}: row group {row_group.index}: column {self.arrow_schema.field(column).name!r} has "
                    f"{len(array)} of {row_group.num_rows} rows"
                )
        return arrays

    def _keeps_dictionary(self, row_group: RowGroup, column: int) -> bool:
        """Whether this chunk of strings is better read as a dictionary.

        The list of encodings does not tell an overflowed dictionary, for the dictionary page itself is PLAIN; the
        stored width of a value does.
        """
        field_type = self.arrow_schema.field(column).type
        if not (pt.is_string(field_type) or pt.is_large_string(field_type)):
            return False
        chunk = self._chunk(row_group, column)
        values = chunk.num_values - (chunk.null_count or 0)
        return chunk.has_dictionary and chunk.uncompressed_bytes < _DICTIONARY_BYTES_PER_VALUE * values


def _leaf_ranges(schema: pa.Schema) -> list[range]:
    """For each top-level field the indices of its leaf columns."""
    ranges: list[range] = []
    start = 0
    for field in schema:
        stop = start + _leaf_count(field.type)
        ranges.append(range(start, stop))
        start = stop
    return ranges


def _leaf_count(data_type: pa.DataType) -> int:
    if isinstance(data_type, pa.BaseExtensionType):
        return _leaf_count(data_type.storage_type)
    if pt.is_nested(data_type):
        return sum(_leaf_count(data_type.field(i).type) for i in range(data_type.num_fields))
    return 1


def _has_id(field: pa.Field) -> bool:
    if field_id_of(field) is not None:
        return True
    return pt.is_nested(field.type) and any(_has_id(field.type.field(i)) for i in range(field.type.num_fields))


def _one_array(column: pa.ChunkedArray) -> pa.Array:
    if column.num_chunks == 1:
        return column.chunk(0)
    if column.nbytes < 2**31:
        return column.combine_chunks()
    wide = {pa.string(): pa.large_string(), pa.binary(): pa.large_binary()}.get(column.type)
    return (column.cast(wide) if wide else column).combine_chunks()
