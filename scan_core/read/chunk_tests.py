"""Tests whether a column chunk certainly lacks a value: by its Bloom filter, by its dictionary page."""

from collections.abc import Callable
from typing import Any

import pyarrow.types as pt

from scan_core.read.bloom_filter import BloomFilter, BloomTest, read_bloom_filter
from scan_core.read.byte_ranges import ByteSource
from scan_core.read.checksums import BLOOM_FILTER, check_part
from scan_core.read.dictionary_test import dictionary_range, dictionary_test
from scan_core.read.file_reader import ReadCounts, RowGroup, refusing_malformed
from scan_core.read.parquet_layout import ParquetLayout


class ChunkTests:
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
        if pt.is_nested(field_type) or (place := dictionary_range(chunk)) is None:
            return None
        with refusing_malformed(self._path, "dictionary page"):
            page = self._source.read_at(place[1], place[0])
        found = dictionary_test(page, chunk, field_type, self._layout.footer.leaves[leaf].physical_type)
        counts.fallbacks += found is None
        return found
