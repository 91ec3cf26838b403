"""Parquet files as a FileReader: whole column chunks through pyarrow, strings as dictionaries where that pays.

Columns are found by their place in the file's schema, never by name: names may hold dots and repeat. What the
arrays mean for the table is the business of `projection.py`; reading single pages that of `page_reader.py`.
"""

import math
from collections.abc import Sequence
from decimal import Context, Decimal
from functools import cached_property
from typing import Any

import pyarrow as pa
import pyarrow.types as pt
from pyarrow._parquet import ParquetReader

from scan_core.errors import MalformedTableError, UnsupportedError
from scan_core.file_io import open_input
from scan_core.read.file_reader import ColumnStatistics, RowGroup, field_id_of, refusing_malformed
from scan_core.rows.algebra import select_rows
from scan_core.rows.selection import RowSelection, selected_count
from scan_core.split import FileIOConfig

_DICTIONARY_BYTES_PER_VALUE = 3
"""A chunk that kept its dictionary stores at most about 20 bits a value; one that overflowed at least 4 bytes more."""
_ENCRYPTED_MAGIC = b"PARE"
_EXACT = Context(prec=76)
"""The default context would round decimals of more than 28 digits."""


def open_parquet(path: str, io: FileIOConfig) -> "ParquetFileReader":
    """Open a Parquet file and read its footer.

    Raises:
        MissingFileError: no such file.
        MalformedTableError: truncated, or a footer that contradicts itself.
        UnsupportedError: encrypted.
    """
    return ParquetFileReader(path, open_input(path, io))


class ParquetFileReader:
    """An open Parquet file."""

    def __init__(self, path: str, source: pa.NativeFile) -> None:
        self.path = path
        self._source = source
        self._is_local = isinstance(source, pa.MemoryMappedFile | pa.OSFile | pa.BufferReader)
        with refusing_malformed(path, "footer"):
            self._size = source.size()
            self._refuse_encrypted()
            self._plain = self._open_reader(None, ())
            self._metadata = self._plain.metadata
            self.arrow_schema: pa.Schema = self._plain.schema_arrow
            self._leaves = _leaf_ranges(self.arrow_schema)
            if self._metadata.num_columns != (self._leaves[-1].stop if self._leaves else 0):
                raise MalformedTableError(f"{path}: footer: {self._metadata.num_columns} columns do not fit the schema")
            self.row_groups: Sequence[RowGroup] = self._read_row_groups()
        self.num_rows: int = sum(g.num_rows for g in self.row_groups)
        self.has_field_ids = any(field_id_of(f) is not None for f in self.arrow_schema)
        if self.num_rows != self._metadata.num_rows:
            raise MalformedTableError(
                f"{path}: footer: {self._metadata.num_rows} rows, but its row groups have {self.num_rows}"
            )

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
        leaf = self._leaves[column_index].start
        with refusing_malformed(self.path, f"statistics of column {self.arrow_schema.field(column_index).name!r}"):
            chunk = self._metadata.row_group(row_group.index).column(leaf)
            if not chunk.is_stats_set:
                return ColumnStatistics(value_count=chunk.num_values)
            statistics = chunk.statistics
            null_count = statistics.null_count if statistics.has_null_count else None
            lower, upper = (
                _bounds(statistics, self._metadata.schema.column(leaf), field_type)
                if statistics.has_min_max
                else (None, None)
            )
        return ColumnStatistics(lower, upper, null_count, None, chunk.num_values)

    def compressed_bytes(self, row_group: RowGroup, column_indices: Sequence[int]) -> int:
        """Stored size of the chunks of these columns."""
        group = self._metadata.row_group(row_group.index)
        return sum(group.column(leaf).total_compressed_size for i in column_indices for leaf in self._leaves[i])

    def close(self) -> None:
        """Release the file."""
        self._source.close()

    def _refuse_encrypted(self) -> None:
        if self._size >= 4 and self._source.read_at(4, self._size - 4) == _ENCRYPTED_MAGIC:
            raise UnsupportedError(f"{self.path}: encrypted Parquet files are not supported")

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
        return self._open_reader(self._metadata, strings)

    def _read_row_groups(self) -> tuple[RowGroup, ...]:
        groups: list[RowGroup] = []
        position = 0
        for index in range(self._metadata.num_row_groups):
            group = self._metadata.row_group(index)
            offset = 4
            if group.num_columns:
                offset = self._chunk_start(group.column(0))
                self._check_row_count(group, index)
            if group.num_rows < 0 or not 4 <= offset < self._size:
                raise MalformedTableError(
                    f"{self.path}: row group {index} has {group.num_rows} rows at byte {offset} of {self._size}"
                )
            groups.append(RowGroup(index, position, group.num_rows, offset, group.total_byte_size))
            position += group.num_rows
        return tuple(groups)

    def _check_row_count(self, group: Any, index: int) -> None:
        """A flat column has one value per row: a footer that disagrees must not answer a count."""
        for leaf in range(group.num_columns):
            if self._metadata.schema.column(leaf).max_repetition_level == 0:
                if (values := group.column(leaf).num_values) != group.num_rows:
                    raise MalformedTableError(
                        f"{self.path}: row group {index} has {group.num_rows} rows but {values} values in column {leaf}"
                    )
                return

    def _chunk_start(self, chunk: Any) -> int:
        dictionary = chunk.dictionary_page_offset
        start: int = chunk.data_page_offset
        return dictionary if dictionary is not None and 4 <= dictionary < start else start

    def _read_chunks(self, row_group: RowGroup, column_indices: Sequence[int]) -> list[pa.Array]:
        group = self._metadata.row_group(row_group.index)
        encoded = {i for i in column_indices if self._keeps_dictionary(group, i)}
        arrays: dict[int, pa.Array] = {}
        for reader, wanted in (
            (self._plain, sorted(set(column_indices) - encoded)),
            (self._dictionary_reader if encoded else None, sorted(encoded)),
        ):
            if wanted:
                arrays.update(zip(wanted, self._decode(reader, row_group, wanted), strict=True))
        return [arrays[i] for i in column_indices]

    def _decode(self, reader: Any, row_group: RowGroup, columns: Sequence[int]) -> list[pa.Array]:
        names = ", ".join(repr(self.arrow_schema.field(i).name) for i in columns)
        leaves = [leaf for i in columns for leaf in self._leaves[i]]
        with refusing_malformed(self.path, f"row group {row_group.index}, columns {names}"):
            self._check_chunks(row_group, leaves)
            table = reader.read_row_group(row_group.index, leaves, False)
            arrays = [_one_array(column) for column in table.columns]
        for column, array in zip(columns, arrays, strict=True):
            if len(array) != row_group.num_rows:
                raise MalformedTableError(
                    f"{self.path}: row group {row_group.index}: column {self.arrow_schema.field(column).name!r} has "
                    f"{len(array)} of {row_group.num_rows} rows"
                )
        return arrays

    def _check_chunks(self, row_group: RowGroup, leaves: Sequence[int]) -> None:
        """Chunks outside of the file are refused before a buffer of their size is asked for."""
        group = self._metadata.row_group(row_group.index)
        for leaf in leaves:
            chunk = group.column(leaf)
            start, length = self._chunk_start(chunk), chunk.total_compressed_size
            if start < 4 or length < 0 or start + length > self._size:
                raise MalformedTableError(
                    f"{self.path}: row group {row_group.index}: column chunk {leaf} at {start}, {length} bytes, "
                    f"lies outside of the file of {self._size} bytes"
                )

    def _keeps_dictionary(self, group: Any, column: int) -> bool:
        """Whether this chunk of strings is better read as a dictionary.

        The list of encodings does not tell an overflowed dictionary, for the dictionary page itself is PLAIN; the
        stored width of a value does.
        """
        field_type = self.arrow_schema.field(column).type
        if not (pt.is_string(field_type) or pt.is_large_string(field_type)):
            return False
        chunk = group.column(self._leaves[column].start)
        values = chunk.num_values
        if chunk.is_stats_set and chunk.statistics.has_null_count:
            values -= chunk.statistics.null_count
        return bool(chunk.has_dictionary_page and chunk.total_uncompressed_size < _DICTIONARY_BYTES_PER_VALUE * values)


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


def _one_array(column: pa.ChunkedArray) -> pa.Array:
    if column.num_chunks == 1:
        return column.chunk(0)
    if column.nbytes < 2**31:
        return column.combine_chunks()
    wide = {pa.string(): pa.large_string(), pa.binary(): pa.large_binary()}.get(column.type)
    return (column.cast(wide) if wide else column).combine_chunks()


def _bounds(statistics: Any, column: Any, field_type: pa.DataType) -> tuple[Any, Any]:
    """Lower and upper bound as Python values of the file's type, None where their order is not that of the type."""
    lower, upper = statistics.min_raw, statistics.max_raw
    if isinstance(field_type, pa.DictionaryType):
        field_type = field_type.value_type
    match column.physical_type:
        case "INT96":
            return None, None
        case "FLOAT" | "DOUBLE":
            return _float_bounds(lower, upper)
        case "INT32" | "INT64" if pt.is_decimal(field_type):
            return _scaled(lower, field_type.scale), _scaled(upper, field_type.scale)
        case "BYTE_ARRAY" | "FIXED_LEN_BYTE_ARRAY" if pt.is_decimal(field_type):
            low, high = (int.from_bytes(raw, "big", signed=True) for raw in (lower, upper))
            return _scaled(low, field_type.scale), _scaled(high, field_type.scale)
        case "BYTE_ARRAY" if pt.is_string(field_type) or pt.is_large_string(field_type):
            return _text(lower), _text(upper)
        case "FIXED_LEN_BYTE_ARRAY" if not pt.is_fixed_size_binary(field_type):
            return None, None
        case "INT32" | "INT64" if pt.is_unsigned_integer(field_type):
            return None, None
        case _:
            return lower, upper


def _scaled(unscaled: int, scale: int) -> Decimal:
    return Decimal(unscaled).scaleb(-scale, _EXACT)


def _float_bounds(lower: float, upper: float) -> tuple[float | None, float | None]:
    """NaN tells nothing; a bound of zero may stand for either zero."""
    return (
        None if math.isnan(lower) else (-0.0 if lower == 0 else lower),
        None if math.isnan(upper) else (0.0 if upper == 0 else upper),
    )


def _text(raw: bytes) -> str | None:
    try:
        return raw.decode()
    except UnicodeDecodeError:
        return None  # cut inside a character
