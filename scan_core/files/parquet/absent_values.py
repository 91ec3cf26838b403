"""Whether a value is certainly absent from a column chunk: by its Bloom filter, or by its dictionary page.

A dictionary tells where every page of the chunk is encoded by it. Its page is searched for the value's encoding as bytes:
what is found may be part of others, what is not found is not there.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pyarrow.types as pt

from scan_core.columns.file_reader import ReadCounts, RowGroup, refusing_malformed
from scan_core.files.parquet.bloom import BloomFilter, BloomTest, plain_encoded, read_bloom_filter
from scan_core.files.parquet.checksums import BLOOM_FILTER, check_part
from scan_core.files.parquet.file_layout import ParquetLayout
from scan_core.files.parquet.footer import (
    BYTE_ARRAY,
    DATA_PAGE,
    DATA_PAGE_V2,
    INT32,
    INT64,
    PLAIN_DICTIONARY,
    RLE_DICTIONARY,
    Chunk,
)
from scan_core.files.parquet.pages import READABLE_CODECS, Raw, read_dictionary_page
from scan_core.io.remote import ByteSource

MOST_DICTIONARY_BYTES = 1024**2
"""Writers give up larger dictionaries; searching one takes as long as decoding a column."""
_LEAST_SAVED = 4
"""The chunk is so many times as large as its dictionary, or reading that spares nothing."""


@dataclass(frozen=True, slots=True, eq=False)
class DictionaryTest:
    """A test whether a value of the file's type is certainly not in a chunk, by the bytes of its dictionary page."""

    content: bytes
    file_type: pa.DataType
    physical_type: int

    def __call__(self, value: Any) -> bool:
        """True if a value, as `ColumnStatistics` represents it, is not there."""
        encoded = plain_encoded(value, self.file_type, self.physical_type)
        if encoded is None:
            return False
        if self.physical_type == BYTE_ARRAY:
            encoded = tuple(len(e).to_bytes(4, "little") + e for e in encoded)
        return not any(e in self.content for e in encoded)

    def integers(self, table_type: pa.DataType) -> pa.Array | None:
        """All values of the dictionary as integers of the table's type; None if it holds anything else."""
        stored = {INT32: pa.int32(), INT64: pa.int64()}.get(self.physical_type)
        if (
            stored is None
            or not pa.types.is_signed_integer(table_type)
            or not pa.types.is_signed_integer(self.file_type)
        ):
            return None
        count = len(self.content) // (stored.bit_width // 8)
        values = pa.Array.from_buffers(stored, count, [None, pa.py_buffer(self.content)])
        return values.cast(table_type) if stored.bit_width <= table_type.bit_width else None


class AbsenceTests:
    """Of one open Parquet file; a filter is read once."""

    def __init__(self, path: str, source: ByteSource, layout: ParquetLayout) -> None:
        self._path = path
        self._source = source
        self._layout = layout
        self._bloom_filters: dict[tuple[int, int], BloomFilter | None] = {}

    def by_bloom_filter(
        self, row_group: RowGroup, column_index: int, counts: ReadCounts
    ) -> Callable[[Any], bool] | None:
        """By the Bloom filter of a column chunk, if it has one that is no larger than what it may spare."""
        columns, chunk = self._layout.columns, self._layout.chunk(row_group.index, column_index)
        field_type, leaf = columns.fields[column_index].type, columns.leaves[column_index].start
        if pt.is_nested(field_type) or (place := chunk.bloom_filter) is None:
            return None
        key = row_group.index, leaf
        if key not in self._bloom_filters:
            with refusing_malformed(self._path, "Bloom filter"):
                found = read_bloom_filter(
                    lambda offset, length: self._read_filter(key, offset, length), place, row_group.num_bytes
                )
            counts.bloom_filters_read += 1
            counts.bloom_bytes_read += 0 if found is None else found[1]
            counts.fallbacks += found is None
            self._bloom_filters[key] = None if found is None else found[0]
        filter_ = self._bloom_filters[key]
        if filter_ is None:
            return None
        return BloomTest(filter_, field_type, self._layout.footer.leaves[leaf].physical_type)

    def _read_filter(self, key: tuple[int, int], offset: int, length: int) -> bytes:
        data = self._source.read_at(length, offset)
        check_part(self._layout.footer.checksums, *key, BLOOM_FILTER, data)
        return data

    def by_dictionary(self, row_group: RowGroup, column_index: int, counts: ReadCounts) -> Callable[[Any], bool] | None:
        """By the dictionary page of a column chunk in which every page is encoded by it."""
        columns, chunk = self._layout.columns, self._layout.chunk(row_group.index, column_index)
        field_type, leaf = columns.fields[column_index].type, columns.leaves[column_index].start
        if pt.is_nested(field_type) or (place := _dictionary_range(chunk)) is None:
            return None
        with refusing_malformed(self._path, "dictionary page"):
            page = self._source.read_at(place[1], place[0])
        found = _dictionary_test(page, chunk, field_type, self._layout.footer.leaves[leaf].physical_type)
        counts.fallbacks += found is None
        return found


def _dictionary_range(chunk: Chunk) -> tuple[int, int] | None:
    """Offset and length of the dictionary page; None if it does not hold every value, or is not worth reading."""
    length = chunk.metadata[9] - chunk.start
    pages = chunk.metadata.get(13)
    if not 0 < length <= min(MOST_DICTIONARY_BYTES, chunk.num_bytes // _LEAST_SAVED):
        return None
    if chunk.metadata[4] not in READABLE_CODECS or not isinstance(pages, list):
        return None
    encodings = {page.get(2) for page in pages if page.get(1) in {DATA_PAGE, DATA_PAGE_V2}}
    return (chunk.start, length) if encodings and encodings <= {PLAIN_DICTIONARY, RLE_DICTIONARY} else None


def _dictionary_test(
    page: Raw, chunk: Chunk, file_type: pa.DataType, physical_type: int
) -> Callable[[Any], bool] | None:
    """A test whether a value of the file's type is certainly not in the chunk; None if the page cannot be read.

    Args:
        page: the bytes that `_dictionary_range` names.
        chunk: of the column.
        file_type: the column's Arrow type in the file.
        physical_type: Parquet's number of the type that values are stored in.
    """
    found = read_dictionary_page(page, chunk.metadata[4])
    if found is None:
        return None
    return DictionaryTest(bytes(found[0]), file_type, physical_type)
