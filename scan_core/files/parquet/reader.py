"""Parquet files as a FileReader: column chunks decoded by pyarrow, strings as dictionaries where that pays.

Columns are found by their place in the file's schema, never by name: names may hold dots and repeat. What the
arrays mean for the table is decided in `read/projection.py`; single pages are read in `chunks.py`.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from functools import partial
from time import time_ns
from typing import Any

import pyarrow as pa
import pyarrow.types as pt

from nevermore.scan_core.columns.file_reader import (
    DecodingLimits,
    Habits,
    LeafNeeds,
    PageStatistics,
    ReadCounts,
    RowGroup,
)
from nevermore.scan_core.files.parquet.bloom import AbsenceTests
from nevermore.scan_core.files.parquet.chunks import ChunkStreams, InWindows, PagedChunks, PageLimits, WholeChunks
from nevermore.scan_core.files.parquet.decoded_size import DecodedSizes
from nevermore.scan_core.files.parquet.file_layout import (
    FOOTERS,
    PageFacts,
    ParquetLayout,
    has_wide_differences,
    read_layout,
    read_wide_differences,
)
from nevermore.scan_core.files.parquet.footer import decode_bounds
from nevermore.scan_core.io.files import fingerprint, open_source, read_small
from nevermore.scan_core.io.location import FileIOConfig
from nevermore.scan_core.io.remote import ByteRanges, ByteSource, RemoteFile
from nevermore.scan_core.model.statistics import ColumnStatistics
from nevermore.scan_core.rows.selection import RowSelection, select_rows, selected_count, slice_selection, to_indices

_PAGED_SHARE_OF_ROWS = 0.5
"""Above this share, reading whole chunks is cheaper than reading selected pages."""
_SMALL_FILE_BYTES = 256 * 1024
"""Up to this size, one read of the whole file costs less than several reads of its parts."""
_SETTLED_AFTER_NANOSECONDS = 1_000_000_000
"""A file younger than that may be rewritten without a change of its modification time, so it is not cached."""


def open_parquet(
    path: str,
    io: FileIOConfig,
    *,
    reads_pages: bool = True,
    parallelism: int = 1,
    whole: bool = False,
    verifies: bool = True,
) -> "ParquetFileReader":
    """Open a Parquet file and read its footer, which is remembered: a file is opened once per split.

    Args:
        path: as the manifest writes it.
        io: how to open it.
        reads_pages: decode only the pages that hold selected rows, where the file has a page index.
        parallelism: threads that may decode columns of a window of rows at a time.
        whole: most of the file will be wanted: read a small one at once.
        verifies: compare the checksums of pages where the file has them.

    Raises:
        MissingFileError: no such file.
        MalformedTableError: truncated, or a footer that contradicts itself.
        UnsupportedError: encrypted.
    """
    source: ByteSource
    if whole and (small := read_small(path, io, _SMALL_FILE_BYTES)) is not None:
        source, content = ByteRanges(pa.BufferReader(small[0])), small[1]
    else:
        content = fingerprint(path, io)
        source = open_source(path, io)
    is_settled = time_ns() - content[1] > _SETTLED_AFTER_NANOSECONDS
    try:
        if is_settled:
            key = (content, tuple(sorted(io.properties.items())))
            layout = FOOTERS.get(key, lambda: read_layout(source, path, FOOTERS.tail_bytes))
            if isinstance(source, RemoteFile):
                source.expect(layout.footer.file_bytes, layout.version, partial(FOOTERS.forget, key))
        else:
            layout = read_layout(source, path)
        layout = layout if verifies else replace(layout, verifies=False)
        return ParquetFileReader(path, source, layout, reads_pages=reads_pages, parallelism=parallelism)
    except BaseException:
        source.close()
        raise


class ParquetFileReader:
    """An open Parquet file."""

    def __init__(
        self,
        path: str,
        source: ByteSource,
        layout: ParquetLayout,
        *,
        reads_pages: bool = True,
        parallelism: int = 1,
    ) -> None:
        self.path = path
        self._source = source
        self._remote = source if isinstance(source, RemoteFile) else None
        self._layout = layout
        self._footer = self._layout.footer
        self._leaves = self._layout.columns.leaves
        self._reads_pages = reads_pages
        self._chunks = WholeChunks(path, source, layout)
        self._pages = PagedChunks(path, source, layout)
        self._streams = ChunkStreams(path, source, layout, parallelism)
        self._tests = AbsenceTests(path, source, layout)
        self._sizes = DecodedSizes(path, source, layout)
        self._windows: dict[int, InWindows] = {}
        self._limits: DecodingLimits | None = None
        self._in_64_bits: tuple[int, dict[int, pa.Array | None]] = -1, {}
        self.counts = ReadCounts()
        self.arrow_schema = self._layout.columns.arrow_schema
        self.has_field_ids = self._layout.columns.has_field_ids
        self.row_groups: Sequence[RowGroup] = self._layout.row_groups
        self.num_rows = self._footer.num_rows

    def read(
        self,
        row_group: RowGroup,
        column_indices: Sequence[int],
        selection: RowSelection,
        window: range | None = None,
    ) -> list[pa.Array]:
        """Columns and struct members by number, only the selected rows, in file types.

        Low-cardinality strings come dictionary-encoded.

        Raises:
            MalformedTableError: pages that cannot be decoded; names file and column.
        """
        num_selected = selected_count(selection)
        if num_selected == 0:
            return [pa.array([], type=self.field(i).type) for i in column_indices]
        arrays = self._wide(row_group, column_indices, selection)
        others = [i for i in dict.fromkeys(column_indices) if i not in arrays]
        if window is not None:
            arrays |= self._read_on(row_group, others, selection, window)
        if self._reads_pages and num_selected < _PAGED_SHARE_OF_ROWS * row_group.num_rows:
            columns = [i for i in dict.fromkeys(column_indices) if i not in arrays]
            check = partial(self._check_pages, row_group)
            arrays.update(self._pages.read(row_group, columns, to_indices(selection), self.counts, check=check))
        whole = [i for i in dict.fromkeys(column_indices) if i not in arrays]
        if whole:
            found = self._chunks.read(row_group, whole, self.counts, partial(self._check, row_group))
            arrays.update(zip(whole, select_rows(found, selection), strict=True))
        return [arrays[i] for i in column_indices]

    def windows(
        self, row_group: RowGroup, column_indices: Sequence[int], rows: range, limits: DecodingLimits
    ) -> list[range] | None:
        """Rows of a row group cut so that each part fits when decoded; None if all of it does.

        A row group that was cut is read from top to bottom. `read` raises the same errors, for pages that were not looked at before.

        Raises:
            MemoryLimitError: a single row or page is too large.
            MalformedTableError: pages hold more than the footer states.
        """
        leaves = sorted({leaf for i in column_indices for leaf in self._leaves[i]})
        self._limits = limits
        found = self._sizes.windows(row_group, leaves, rows, limits)
        if found:
            # the last window holds what is left: it may be far smaller than any batch has to be
            num_rows = min(map(len, found[:-1]), default=len(found[0]))
            self._windows[row_group.index] = InWindows(num_rows, limits.is_tight)
        return found

    def member(self, way: tuple[int, ...]) -> int | None:
        """The number of a struct member as a column of its own."""
        return self._layout.columns.numbers.get(way)

    def part(self, column_index: int, needs: LeafNeeds) -> tuple[int, frozenset[int]] | None:
        """The number of a column of which only some leaf columns are read, the smallest that suffice."""
        leaves = self._leaves[column_index]
        kept = {leaves[i] for i in needs.all_of}
        for choice in needs.any_of:
            if kept.isdisjoint(found := [leaves[i] for i in choice]):
                kept.add(min(found, key=self._leaf_bytes))
        number = self._layout.columns.part(column_index, kept)
        return None if number is None else (number, frozenset(leaf - leaves[0] for leaf in kept))

    def field(self, column_index: int) -> pa.Field:
        """The Arrow field of a top-level column or member."""
        return self._layout.columns.fields[column_index]

    def statistics(self, row_group: RowGroup, column_index: int) -> ColumnStatistics | None:
        """Statistics of a primitive column from the footer; bounds in the file's type."""
        field_type = self.field(column_index).type
        if pt.is_nested(field_type):
            return None
        chunk = self._layout.chunk(row_group.index, column_index)
        leaf = self._footer.leaves[self._leaves[column_index][0]]
        lower, upper = decode_bounds(*self._footer.bounds(chunk, leaf), leaf, field_type)
        return ColumnStatistics(lower, upper, chunk.null_count, None, chunk.num_values)

    def page_statistics(self, row_group: RowGroup, column_index: int) -> PageStatistics | None:
        """Statistics of the pages of a primitive column; bounds in the file's type."""
        return self._pages.statistics(row_group, column_index, self.counts)

    def has_exclusion_test(self, row_group: RowGroup, column_index: int) -> bool:
        """Whether the footer names a Bloom filter of the column chunk."""
        return self._layout.chunk(row_group.index, column_index).bloom_filter is not None

    def exclusion_test(self, row_group: RowGroup, column_index: int) -> Callable[[Any], bool] | None:
        """See `AbsenceTests.by_bloom_filter`."""
        return self._tests.by_bloom_filter(row_group, column_index, self.counts)

    def reads_ranges(self, row_group: RowGroup, column_indices: Sequence[int]) -> bool:
        """Whether all of them can be read by page, or from top to bottom."""
        return self._reads_pages and all(
            self._pages.has_pages(row_group, i) or len(self._layout.columns.ways[i]) == 1 for i in column_indices
        )

    def reads_apart(self, row_group: RowGroup, column_indices: Sequence[int]) -> bool:
        """Whether all of them can be read by page."""
        return self._reads_pages and all(self._pages.has_pages(row_group, i) for i in column_indices)

    def compressed_bytes(self, row_group: RowGroup, column_indices: Sequence[int]) -> int:
        """Stored size of the chunks of these columns."""
        chunks = self._footer.row_groups[row_group.index].chunks
        return sum(chunks[leaf].num_bytes for i in column_indices for leaf in self._leaves[i])

    @property
    def is_remote(self) -> bool:
        """Whether fetching bytes ahead pays: the file is on an object store."""
        return self._remote is not None

    @property
    def num_bytes_ahead(self) -> int:
        """Bytes that were fetched ahead, or are on their way, and were not read yet."""
        return 0 if self._remote is None else self._remote.num_bytes_ahead

    def expect(self, row_group: RowGroup, habits: Habits, max_bytes: int) -> None:
        """Start to fetch what the habits expect of a row group, up to `max_bytes`."""
        if self._remote is None:
            return
        chunks = self._footer.row_groups[row_group.index].chunks
        known = {(i, f.name): i for i, f in enumerate(self._layout.columns.fields)}
        whole, paged, bounded = (
            sorted({leaf for key in keys if key in known for leaf in self._leaves[known[key]]})
            for keys in (habits.whole, habits.paged, habits.bounded)
        )
        indexes = [place for leaf in paged for place in (chunks[leaf].offset_index,) if place is not None]
        dictionaries = [] if habits.limits is None else self._sizes.dictionary_ranges(row_group, bounded, habits.limits)
        ranges = [*indexes, *dictionaries, *((chunks[leaf].start, chunks[leaf].num_bytes) for leaf in whole)]
        self.counts.bytes_ahead += self._remote.fetch_ahead(ranges, row_group.index, max_bytes)

    def release(self, row_group: RowGroup) -> None:
        """Drop what was fetched of a row group and not read."""
        if self._remote is not None:
            self.counts.bytes_in_vain += self._remote.forget_ahead(row_group.index)

    def close(self) -> None:
        """Release the file."""
        self._streams.close()
        self._chunks.close()
        self._source.close()

    def _wide(self, row_group: RowGroup, column_indices: Sequence[int], selection: RowSelection) -> dict[int, pa.Array]:
        """The columns that have to be decoded with more bits; all of their rows are kept while windows are read."""
        if self._in_64_bits[0] != row_group.index:
            self._in_64_bits = row_group.index, {}
        known = self._in_64_bits[1]
        for i in column_indices:
            if i not in known:
                is_wide = has_wide_differences(self._layout, row_group.index, i)
                if is_wide:
                    self._check(row_group, self._leaves[i])
                read = read_wide_differences
                known[i] = read(self.path, self._source, self._layout, row_group, i) if is_wide else None
        found = {i: array for i in column_indices if (array := known[i]) is not None}
        self.counts.whole.update(found)
        return dict(zip(found, select_rows(list(found.values()), selection), strict=True))

    def _leaf_bytes(self, leaf: int) -> int:
        return sum(group.chunks[leaf].num_bytes for group in self._footer.row_groups)

    def _check(self, row_group: RowGroup, leaves: Iterable[int]) -> None:
        """Compare the pages of chunks that will be decoded with the footer, by which windows were cut."""
        if self._limits is not None:
            self._sizes.check(row_group, [*leaves], self._limits)

    def _check_pages(self, row_group: RowGroup, leaf: int, pages: Sequence[PageFacts]) -> None:
        if self._limits is not None:
            self._sizes.check_pages(row_group, leaf, pages, self._limits)

    def _stream_window(
        self, row_group: RowGroup, columns: Sequence[int], window: range, how: InWindows | None = None
    ) -> dict[int, pa.Array]:
        if self._remote is None:  # there each page might be a request
            self._check(row_group, {leaf for i in columns for leaf in self._leaves[i]})
        return self._streams.read(row_group, columns, window, self.counts, how)

    def _read_on(
        self, row_group: RowGroup, column_indices: Sequence[int], selection: RowSelection, window: range
    ) -> dict[int, pa.Array]:
        """The columns that continue where the last window ended: most rows are selected, or there are no pages."""
        within, num_selected = slice_selection(selection, window.start, len(window)), selected_count(selection)
        if selected_count(within) < num_selected:  # a diagnosis looks at all rows
            return {}
        is_most = num_selected >= _PAGED_SHARE_OF_ROWS * len(window)
        if row_group.index in self._windows:
            wanted = list(dict.fromkeys(column_indices))
            apart = {} if is_most or not self._reads_pages else self._read_apart(row_group, wanted, selection, window)
            return apart | self._stream(row_group, [i for i in wanted if i not in apart], within, window)
        columns = [
            i
            for i in dict.fromkeys(column_indices)
            if len(self._layout.columns.ways[i]) == 1
            and (
                not self._pages.has_pages(row_group, i) or (is_most and self._streams.may_skip_to(row_group, i, window))
            )
        ]
        found = self._stream_window(row_group, columns, window)
        self._count_skipped(row_group, columns, window)
        return dict(zip(found, select_rows(list(found.values()), within), strict=True))

    def _stream(
        self, row_group: RowGroup, columns: Sequence[int], within: RowSelection, window: range
    ) -> dict[int, pa.Array]:
        """The selected rows of columns in a window, which may be as large as several that fit into memory."""
        parts: dict[int, list[pa.Array]] = {i: [] for i in columns}
        how = self._how(row_group, columns)
        for start in range(window.start, window.stop, how.rows) if columns else ():
            part = range(start, min(start + how.rows, window.stop))
            selection = slice_selection(within, start - window.start, len(part))
            if selected_count(selection):
                found = self._stream_window(row_group, columns, part, how)
                for i, array in zip(found, select_rows(list(found.values()), selection), strict=True):
                    parts[i].append(array)
        self._count_skipped(row_group, columns, window)
        return {
            i: found[0] if len(found) == 1 else pa.chunked_array(found).combine_chunks() for i, found in parts.items()
        }

    def _how(self, row_group: RowGroup, columns: Sequence[int]) -> InWindows:
        """How columns are read in windows beside those that were read before."""
        how = self._windows[row_group.index]
        if not how.streamed.issuperset(columns):
            streamed = how.streamed.union(columns)
            limits = self._limits
            assert limits is not None  # noqa: S101  set by `windows`
            apart, over_limit = self._sizes.columns_apart(row_group, {i: self._leaves[i] for i in streamed}, limits)
            how = self._windows[row_group.index] = InWindows(how.rows, how.is_tight, apart, streamed)
            self.counts.over_limit |= over_limit
        return how

    def _read_apart(
        self, row_group: RowGroup, columns: Sequence[int], selection: RowSelection, window: range
    ) -> dict[int, pa.Array]:
        """The columns of a row group read in windows that are cheaper to read by page, if their pages fit."""
        limits = self._limits
        assert limits is not None  # noqa: S101  set by `windows`
        return self._pages.read(
            row_group,
            columns,
            to_indices(selection),
            self.counts,
            check=partial(self._check_pages, row_group),
            within=PageLimits(
                len(window) / max(row_group.num_rows, 1),
                lambda leaf, num_rows: self._sizes.of_pages(row_group, leaf, num_rows, limits),
                limits.target_bytes,
            ),
        )

    def _count_skipped(self, row_group: RowGroup, columns: Sequence[int], window: range) -> None:
        """Count the bytes of column chunks outside of a window."""
        read = self.compressed_bytes(row_group, columns)
        self.counts.bytes_left_out += read - read * len(window) // max(row_group.num_rows, 1)
