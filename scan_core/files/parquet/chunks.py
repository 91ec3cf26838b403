"""Column chunks decoded whole, by window of rows, or by single pages."""

import os
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pyarrow.types as pt

from nevermore.scan_core.columns.conversion import descended, read_members
from nevermore.scan_core.columns.file_reader import (
    BROKEN_BYTES,
    PageStatistics,
    ReadCounts,
    RowGroup,
    refusing_malformed,
)
from nevermore.scan_core.files.parquet.file_layout import (
    PageFacts,
    PageLocations,
    ParquetLayout,
    Positions,
    Raw,
    StoredPages,
    check_codes,
    is_encoding_stated,
    joined_file,
    one_array,
    open_decoder,
    page_facts,
    parse_column_index,
    parse_offset_indexes,
)
from nevermore.scan_core.files.parquet.footer import DATA_PAGE, DATA_PAGE_V2, DICTIONARY_PAGE, Chunk, Leaf
from nevermore.scan_core.io.private_files import spill_folder
from nevermore.scan_core.io.remote import ByteSource, Range, RemoteFile
from nevermore.scan_core.model.errors import MalformedTableError, MemoryLimitError
from nevermore.scan_core.model.running import check_running, current
from nevermore.scan_core.rows.buffers import index_array, release_unused


def _facts_of(item: "_Wanted", pages: Sequence[Raw]) -> list[PageFacts] | None:
    """The headers of data pages; None if one contradicts the index or the encodings of the chunk."""
    found = list[PageFacts]()
    for page, num_rows in zip(pages, item.row_counts.tolist(), strict=True):
        facts = page_facts(page)
        if facts is None or facts.kind not in {DATA_PAGE, DATA_PAGE_V2}:
            return None
        rows = facts.num_rows if item.leaf.max_repetition_level else facts.num_values
        if rows not in {None, num_rows}:
            return None
        if not is_encoding_stated(item.chunk, facts.encoding):  # sizes were bounded without it
            return None
        found.append(facts)
    return found


_PAGED_SHARE_OF_BYTES = 0.6
"""Above this share, reading the whole chunk is cheaper than reading selected pages."""
_TOGETHER_BYTES = 8 * 1024**2
"""Limit of the decoded pages of columns that are read together: more would leave the processor's cache before their rows are picked."""
_STEP_BYTES = 32 * 1024**2
"""Of plain pages, decoded without looking whether the scan was cancelled."""
_MIN_PAGED_BYTES = 64 * 1024
_MIN_PAGED_VALUES = 100_000
"""A chunk with less of both is decoded sooner than its offset index."""


@dataclass(frozen=True, slots=True, eq=False)
class _Wanted:
    """The pages of one column that hold the rows wanted, see `PageLocations.pages_of`, and a bound of what they become."""

    column: int
    chunk: Chunk
    leaf: Leaf
    locations: PageLocations
    pages: Positions
    row_counts: Positions
    places: Positions
    keeps_dictionary: bool
    decoded_bytes: int

    @property
    def dictionary(self) -> Range | None:
        """The range of the dictionary page, which precedes the data pages."""
        before = int(self.locations.offsets[0]) - self.chunk.start
        return (self.chunk.start, before) if before else None

    @property
    def ranges(self) -> list[Range]:
        """The ranges of the dictionary page, if there is one, and of the data pages."""
        offsets, lengths = self.locations.offsets[self.pages].tolist(), self.locations.lengths[self.pages].tolist()
        pages = list(zip(offsets, lengths, strict=True))
        return pages if self.dictionary is None else [self.dictionary, *pages]


_Places = tuple[Positions, Positions, Positions]
PageCheck = Callable[[int, Sequence[PageFacts]], None]
_Content = tuple[Raw, Sequence[Raw], int]
"""The dictionary page, which may be empty, the data pages, and their bytes."""
_Fetched = tuple[_Wanted, _Content]


@dataclass(frozen=True, slots=True)
class PageLimits:
    """What pages of a row group may take that is too large for memory.

    Attributes:
        share: of the row group that would be read otherwise.
        decoded_bytes: a bound of what pages of a leaf column with this number of rows become.
        max_bytes: of a column's decoded pages, and of stored pages that are held at the same time.
    """

    share: float
    decoded_bytes: Callable[[int, int], int]
    max_bytes: int


class PagedChunks:
    """The pages of an open file."""

    def __init__(self, path: str, source: ByteSource, layout: ParquetLayout) -> None:
        self._path = path
        self._ranges = source
        self._layout = layout
        self._locations: dict[tuple[int, int], PageLocations | None] = {}
        self._statistics: dict[tuple[int, int], PageStatistics | None] = {}

    def has_pages(self, row_group: RowGroup, column: int) -> bool:
        """Whether the column can be read by page: it has one leaf, and an offset index."""
        leaves = self._layout.columns.leaves[column]
        if len(leaves) != 1 or not self._layout.footer.leaves[leaves[0]].elements:
            return False
        return self._chunk(row_group, leaves[0]).offset_index is not None

    def read(
        self,
        row_group: RowGroup,
        columns: Sequence[int],
        rows: Positions,
        counts: ReadCounts,
        *,
        check: PageCheck,
        within: PageLimits | None = None,
    ) -> dict[int, pa.Array]:
        """The columns that are cheaper to read by page, only the rows given, in the types of the file.

        Args:
            row_group: what is read of.
            columns: top-level columns and struct members by number.
            rows: ascending row numbers.
            counts: counters to add to.
            check: raises if pages of a leaf column, by their headers, may not be decoded.
            within: what the pages may take, in a row group that is too large for memory.

        Raises:
            MalformedTableError: pages that cannot be decoded; names file and column.
        """
        wanted = self._all_wanted(row_group, columns, rows, counts, within)
        arrays: dict[int, pa.Array] = {}
        for items in self._fetched(wanted, within):
            found = self._read_together(row_group, items, check)
            for (item, (_, _, num_bytes)), array in zip(items, found, strict=True):
                if array is None:
                    counts.fallbacks += 1
                    continue
                arrays[item.column] = array
                counts.paged.add(item.column)
                counts.pages_read += len(item.pages)
                counts.pages_left_out += item.locations.num_pages - len(item.pages)
                counts.bytes_left_out += item.chunk.num_bytes - num_bytes
        return arrays

    def statistics(self, row_group: RowGroup, column: int, counts: ReadCounts) -> PageStatistics | None:
        """Statistics of the pages of a primitive column; bounds in the file's type."""
        field_type, leaf = self._layout.columns.fields[column].type, self._layout.columns.leaves[column][0]
        chunk = self._chunk(row_group, leaf)
        if pt.is_nested(field_type) or chunk.offset_index is None or chunk.column_index is None:
            return None
        if not self._layout.footer.has_column_orders:
            return None
        key = row_group.index, leaf
        if key not in self._statistics:
            self._statistics[key] = self._read_statistics(row_group, leaf, field_type, counts)
        return self._statistics[key]

    def _chunk(self, row_group: RowGroup, leaf: int) -> Chunk:
        return self._layout.footer.row_groups[row_group.index].chunks[leaf]

    def _is_large(self, row_group: RowGroup, column: int) -> bool:
        leaves = self._layout.columns.leaves[column]
        if len(leaves) != 1:
            return False
        chunk = self._chunk(row_group, leaves[0])
        return chunk.uncompressed_bytes >= _MIN_PAGED_BYTES or chunk.num_values >= _MIN_PAGED_VALUES

    def _all_wanted(
        self,
        row_group: RowGroup,
        columns: Sequence[int],
        rows: Positions,
        counts: ReadCounts,
        within: PageLimits | None,
    ) -> list[_Wanted]:
        candidates = [i for i in columns if self._is_large(row_group, i) and self.has_pages(row_group, i)]
        self._load_locations(row_group, [self._layout.columns.leaves[i][0] for i in candidates], counts)
        known: dict[int, _Places] = {}  # most columns share the first rows of their pages
        return [w for i in candidates if (w := self._wanted(row_group, i, rows, within, known)) is not None]

    def _wanted(
        self, row_group: RowGroup, column: int, rows: Positions, within: PageLimits | None, known: dict[int, _Places]
    ) -> _Wanted | None:
        """The pages to read; None where reading on is cheaper, or they do not fit."""
        leaf = self._layout.columns.leaves[column][0]
        chunk, facts = self._chunk(row_group, leaf), self._layout.footer.leaves[leaf]
        if (locations := self._locations[row_group.index, leaf]) is None:
            return None
        if (found := known.get(id(locations.first_rows))) is None:
            found = known[id(locations.first_rows)] = locations.pages_of(rows)
        share = 1.0 if within is None else within.share
        if locations.lengths[found[0]].sum() > _PAGED_SHARE_OF_BYTES * share * chunk.num_bytes:
            return None
        num_rows = int(found[1].sum())
        if within is None:
            size = chunk.uncompressed_bytes * num_rows // row_group.num_rows
        elif (size := within.decoded_bytes(leaf, num_rows)) > within.max_bytes:
            return None
        keeps_dictionary = self._layout.keeps_dictionary(row_group.index, column)
        return _Wanted(column, chunk, facts, locations, *found, keeps_dictionary, size)

    def _fetched(self, wanted: Sequence[_Wanted], within: PageLimits | None) -> Iterator[list[_Fetched]]:
        """The columns with their pages, fetched as many at a time as memory allows: those that are decoded together."""
        batches, num_bytes = [list[_Wanted]()], 0
        for item in wanted:
            size = int(item.locations.lengths[item.pages].sum()) + (item.dictionary or (0, 0))[1]
            if batches[-1] and within is not None and num_bytes + size > within.max_bytes:
                batches.append([])
                num_bytes = 0
            batches[-1].append(item)
            num_bytes += size
        for batch in batches:
            together, room = list[_Fetched](), 0
            for fetched in zip(batch, self._fetch(batch), strict=True):
                item = fetched[0]
                if together and (item.places is not together[0][0].places or item.decoded_bytes > room):
                    yield together
                    together = []
                room = (room if together else _TOGETHER_BYTES) - item.decoded_bytes
                together.append(fetched)
            if together:
                yield together

    def _fetch(self, wanted: Sequence[_Wanted]) -> list[_Content]:
        """The dictionary page of each column, if it has one, its data pages, and their total bytes."""
        ranges = [place for item in wanted for place in item.ranges]
        with refusing_malformed(self._path, "pages"):
            found = iter(self._ranges.read(ranges))
        parts = list[_Content]()
        for item in wanted:
            dictionary = b"" if item.dictionary is None else next(found)
            pages = [next(found) for _ in item.pages]
            parts.append((dictionary, pages, len(dictionary) + sum(map(len, pages))))
        return parts

    def _read_together(
        self, row_group: RowGroup, items: Sequence[_Fetched], check: PageCheck
    ) -> Sequence[pa.Array | None]:
        """The rows of columns; None for one whose pages do not hold the rows that the index states."""
        if len(items) > 1:
            try:
                if (found := self._decode(items, check)) is not None:
                    return found
            except BROKEN_BYTES:  # decoded alone, the column at fault is named
                pass
            return [array for item in items for array in self._read_together(row_group, [item], check)]
        name = self._layout.columns.fields[items[0][0].column].name
        with refusing_malformed(self._path, f"row group {row_group.index}, pages of column {name!r}"):
            return self._decode(items, check) or [None]

    def _decode(self, items: Sequence[_Fetched], check: PageCheck) -> list[pa.Array] | None:
        """The rows of columns, whose pages hold the same rows; None if they do not hold those that the index states."""
        stored, content = list[StoredPages](), list[Raw]()
        for item, (dictionary, pages, num_bytes) in items:
            if (facts := _facts_of(item, pages)) is None:
                return None
            values = sum(page.num_values for page in facts)
            if dictionary:
                if (first_page := page_facts(dictionary)) is None or first_page.kind != DICTIONARY_PAGE:
                    return None
                facts.append(first_page)
            check(self._layout.columns.leaves[item.column][0], facts)
            stored.append(StoredPages(item.chunk, values, len(dictionary), num_bytes))
            content += (dictionary, *pages)
        first, num_rows = items[0][0], int(items[0][0].row_counts.sum())
        file = joined_file([item.leaf for item, _ in items], num_rows, stored, content)
        dictionaries = [place for place, (item, _) in enumerate(items) if item.keeps_dictionary]
        reader = open_decoder(pa.BufferReader(file), None, dictionaries, verifies=self._layout.verifies)
        table = reader.read_row_group(0, range(len(items)), False)
        if table.num_rows != num_rows:
            return None
        places = None if len(first.places) == num_rows else index_array(first.places)
        return [self._picked(item.column, array, places) for (item, _), array in zip(items, table.columns, strict=True)]

    def _picked(self, column: int, values: pa.ChunkedArray, places: pa.Array | None) -> pa.Array:
        """The values at these places in the type of the file's schema: pages alone do not carry the Arrow schema of the file."""
        array = descended(one_array(values), (0,) * (len(self._layout.columns.ways[column]) - 1))
        array = check_codes(array if places is None else array.take(places))
        wanted = self._layout.columns.fields[column].type
        if array.type == wanted or isinstance(array, pa.DictionaryArray) or pt.is_dictionary(wanted):
            return array
        return array.cast(wanted)

    def _load_locations(self, row_group: RowGroup, leaves: Sequence[int], counts: ReadCounts) -> None:
        """Read the offset indexes of these leaves, which lie together, at once."""
        chunks = self._layout.footer.row_groups[row_group.index].chunks
        places = {
            leaf: found
            for leaf in leaves
            if (row_group.index, leaf) not in self._locations and (found := chunks[leaf].offset_index) is not None
        }
        with refusing_malformed(self._path, "offset index"):
            stored = self._ranges.read(list(places.values()))
            parsed = parse_offset_indexes([*map(bytes, stored)], [chunks[leaf] for leaf in places], row_group.num_rows)
        for leaf, locations in zip(places, parsed, strict=True):
            counts.fallbacks += locations is None
            self._locations[row_group.index, leaf] = locations

    def _read_statistics(
        self, row_group: RowGroup, leaf: int, field_type: pa.DataType, counts: ReadCounts
    ) -> PageStatistics | None:
        self._load_locations(row_group, [leaf], counts)
        place = self._chunk(row_group, leaf).column_index
        if (locations := self._locations[row_group.index, leaf]) is None or place is None:
            return None
        with refusing_malformed(self._path, "column index"):
            data = bytes(self._ranges.read([place])[0])
        found = parse_column_index(data, self._layout.footer.leaves[leaf], field_type, locations)
        counts.fallbacks += found is None
        return None if found is None else PageStatistics(locations.first_rows, found)


BUFFER_BYTES = 256 * 1024
"""Bytes of each column that pyarrow reads at a time."""
_MAX_SKIPPED_WINDOWS = 2
"""Beyond, decoding rows only to skip them costs more than finding their pages."""


@dataclass(frozen=True, slots=True)
class InWindows:
    """How a row group that is too large for memory is read.

    Attributes:
        rows: of a column that are decoded at a time.
        is_tight: memory is given back after each column, not after each window: what the allocator keeps for itself, some
            20 MB, is much beside the limit. Under a limit of 128 MiB this costs a tenth of the CPU time.
        apart: columns that are decoded one after the other into a file, from which their windows are read: a decoder holds
            the page that it has reached, and those of all columns together would be too much.
        streamed: columns that were read so far, among which `apart` was chosen.
    """

    rows: int
    is_tight: bool
    apart: frozenset[int] = frozenset()
    streamed: frozenset[int] = frozenset()


class ChunkStreams:
    """The streams of an open file, one for each column of the row group being read."""

    def __init__(self, path: str, source: ByteSource, layout: ParquetLayout, parallelism: int = 1) -> None:
        self._path = path
        self._source = source
        self._layout = layout
        self._parallelism = parallelism
        self._pool: ThreadPoolExecutor | None = None
        self._row_group = -1
        self._streams: dict[int, _Stream] = {}
        self._spill: _Spill | None = None

    def may_skip_to(self, row_group: RowGroup, column: int, window: range) -> bool:
        """Whether a window is near enough to the position of a column's stream to continue with it."""
        stream = self._streams.get(column) if self._row_group == row_group.index else None
        position = stream.position if stream is not None else 0
        return position <= window.start <= position + _MAX_SKIPPED_WINDOWS * len(window)

    def read(
        self,
        row_group: RowGroup,
        columns: Sequence[int],
        window: range,
        counts: ReadCounts,
        how: InWindows | None = None,
    ) -> dict[int, pa.Array]:
        """Columns and struct members in the rows of a window, in the types of the file.

        As many rows of a column are decoded at a time as `how` tells, those of the first window without it.

        Raises:
            MalformedTableError: pages that cannot be decoded, or hold fewer rows; names file and column.
            MemoryLimitError: no room on the disk for the columns that are decoded apart.
        """
        if self._row_group != row_group.index:
            self._forget()
            self._row_group = row_group.index
        if how is not None:  # one by one, as each takes as much memory as there is
            for column in columns:
                stream = self._streams.get(column)
                if column in how.apart and (stream is None or stream.position > window.start):
                    self._streams[column] = self._decode_apart(row_group, column, window.start, how.rows, counts)
        if self._parallelism == 1 or len(columns) < 2:
            found = {}
            for column in columns:
                check_running()
                found[column] = self._read_one(row_group, column, window, how)
            return found
        if self._pool is None:
            self._pool = ThreadPoolExecutor(self._parallelism, "scan-column")
        widest_first, running = sorted(columns, key=lambda i: -self._num_bytes(row_group, i)), current()

        def read_one(column: int) -> pa.Array:
            if running is not None:
                running.check()
            return self._read_one(row_group, column, window, how)

        arrays = self._pool.map(read_one, widest_first)
        return dict(zip(widest_first, arrays, strict=True))

    def close(self) -> None:
        """Release data held for later windows."""
        if self._pool is not None:
            self._pool.shutdown(wait=True, cancel_futures=True)
        self._forget()

    def _forget(self) -> None:
        self._streams.clear()
        if self._spill is not None:
            self._spill.close()
            self._spill = None

    def _decode_apart(
        self, row_group: RowGroup, column: int, start: int, num_rows: int, counts: ReadCounts
    ) -> "_Stream":
        """The column from row `start` on, decoded into a file."""
        if self._spill is None:
            self._spill = _Spill(self._path)
        name, spill = self._layout.columns.fields[column].name, self._spill
        places: list[Range] = []
        kind: pa.Schema | None = None
        with refusing_malformed(self._path, f"row group {row_group.index}, column {name!r}"):
            decoder = self._open(row_group, column, num_rows, is_frugal=True, keeps_dictionary=False)
            stream = _Stream(decoder)
            while stream.position < start:
                stream.read(range(stream.position, min(stream.position + num_rows, start)))
            while stream.position < row_group.num_rows:
                check_running()
                window = range(stream.position, min(stream.position + num_rows, row_group.num_rows))
                batch = pa.record_batch([stream.read(window)], ["value"])
                places.append(spill.add(batch))
                kind = batch.schema
                release_unused(len(places))
        del decoder, stream  # so that what they hold is given back before the next column is decoded
        release_unused()
        counts.bytes_spilled += sum(length for _, length in places)
        return _Stream((spill.read(place, kind) for place in places), start)

    def _num_bytes(self, row_group: RowGroup, column: int) -> int:
        chunks = self._layout.footer.row_groups[row_group.index].chunks
        return sum(chunks[leaf].uncompressed_bytes for leaf in self._layout.columns.leaves[column])

    def _read_one(self, row_group: RowGroup, column: int, window: range, how: InWindows | None) -> pa.Array:
        name = self._layout.columns.fields[column].name
        with refusing_malformed(self._path, f"row group {row_group.index}, column {name!r}"):
            stream = self._streams.get(column)
            if stream is None or stream.position > window.start:
                stream = self._streams[column] = _Stream(
                    self._open(
                        row_group,
                        column,
                        len(window) if how is None else how.rows,
                        keeps_dictionary=how is None
                        or how.rows > 1,  # else it takes as much as the one value, beside it
                        is_frugal=how is not None
                        and self._layout.suits_system_memory(
                            row_group.index, self._layout.columns.leaves[column], is_tight=how.is_tight
                        ),
                    )
                )
            steps = (0,) * (len(self._layout.columns.ways[column]) - 1)  # nothing but the member was read
            found = check_codes(descended(stream.read(window), steps))
            if window.stop == row_group.num_rows:
                del self._streams[column]
            if how is not None and how.is_tight:
                release_unused(trims=False)
            return found

    def _open(
        self, row_group: RowGroup, column: int, num_rows: int, *, is_frugal: bool, keeps_dictionary: bool = True
    ) -> Iterator[pa.RecordBatch]:
        leaves = self._layout.columns.leaves[column]
        keeps_dictionary = keeps_dictionary and self._layout.keeps_dictionary(row_group.index, column)
        dictionary = (leaves[0],) if keeps_dictionary else ()
        chunks = self._layout.footer.row_groups[row_group.index].chunks
        reader = open_decoder(
            self._source.streamed([(chunks[leaf].start, chunks[leaf].num_bytes) for leaf in leaves]),
            self._layout.metadata,
            dictionary,
            buffer_bytes=BUFFER_BYTES,
            verifies=self._layout.verifies,
            is_frugal=is_frugal,
        )
        batches: Iterator[pa.RecordBatch] = reader.iter_batches(num_rows, [row_group.index], list(leaves), False)
        return batches


class _Stream:
    """One column from its top on; `position` is the first row that was not handed out."""

    def __init__(self, batches: Iterator[pa.RecordBatch], position: int = 0) -> None:
        self._batches = batches
        self._left: pa.Array | None = None
        self.position = position

    def read(self, window: range) -> pa.Array:
        """The rows of a window at or behind the position; rows in front of it are skipped."""
        while self.position < window.start:
            self._next(window.start - self.position)
        parts = []
        while self.position < window.stop:
            parts.append(self._next(window.stop - self.position))
        return parts[0] if len(parts) == 1 else pa.chunked_array(parts).combine_chunks()

    def _next(self, most_rows: int) -> pa.Array:
        """The next rows, at most `most_rows`."""
        while self._left is None:
            batch = next(self._batches, None)
            if batch is None:
                raise ValueError(f"the pages end after {self.position} rows")
            self._left = batch.column(0) if batch.num_rows else None
        part = self._left.slice(0, most_rows)
        self._left = self._left.slice(most_rows) if len(part) < len(self._left) else None  # else it would be kept
        self.position += len(part)
        return part


class _Spill:
    """Batches in a file without a name, one after the other; for one thread that adds, and any that read."""

    def __init__(self, path: str) -> None:
        self._path = path
        self._size = 0
        with self._explained():
            self._file = spill_folder().unnamed()

    def add(self, batch: pa.RecordBatch) -> Range:
        """Where a batch without dictionaries lies."""
        data = memoryview(batch.serialize(memory_pool=pa.system_memory_pool()))
        start, length = self._size, len(data)
        with self._explained():
            while data:
                written = os.pwrite(self._file.fileno(), data, self._size)
                data, self._size = data[written:], self._size + written
        return start, length

    def read(self, place: Range, schema: pa.Schema) -> pa.RecordBatch:
        """A batch that was added."""
        start, length = place
        data = pa.allocate_buffer(length, pa.system_memory_pool())
        view, found = memoryview(data), 0
        with self._explained():
            while found < length:
                if not (count := os.preadv(self._file.fileno(), [view[found:]], start + found)):
                    raise OSError("the file has become shorter")
                found += count
        return pa.ipc.read_record_batch(data, schema)

    def close(self) -> None:
        """Give up the file."""
        self._file.close()

    @contextmanager
    def _explained(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            raise MemoryLimitError(
                f"{self._path}: its columns do not fit into memory_limit_bytes together, and cannot be kept on the disk: "
                f"{error}; make room in the folder of temporary files (TMPDIR), raise memory_limit_bytes or select fewer columns"
            ) from error


class WholeChunks:
    """The column chunks of an open file."""

    def __init__(self, path: str, source: ByteSource, layout: ParquetLayout) -> None:
        self._path = path
        self._source = source
        self._layout = layout
        self._readers: dict[tuple[int, ...], Any] = {}

    def read(
        self,
        row_group: RowGroup,
        column_indices: Sequence[int],
        counts: ReadCounts,
        check: Callable[[Sequence[int]], None] | None = None,
    ) -> list[pa.Array]:
        """All rows of columns and struct members, in file types; `check` looks at their leaves once they are fetched.

        Raises:
            MalformedTableError: pages that cannot be decoded, or hold fewer rows; names file and column.
        """
        wanted = sorted(set(column_indices))
        arrays: dict[int, pa.Array] = {}
        for together in self._without_common_leaves(wanted):
            for part in self._in_steps(row_group, together):
                check_running()
                arrays |= self._read_together(row_group, part, counts, check)
        return [arrays[i] for i in column_indices]

    def _in_steps(self, row_group: RowGroup, columns: Sequence[int]) -> list[list[int]]:
        """Columns that are decoded in one call, in some 50 ms; on an object store all, so that they are fetched together."""
        if isinstance(self._source, RemoteFile):
            return [list(columns)]
        chunks = self._layout.footer.row_groups[row_group.index].chunks
        steps: list[list[int]] = []
        room = 0
        for column in columns:
            size = sum(chunks[leaf].uncompressed_bytes for leaf in self._layout.columns.leaves[column])
            if size > room:
                steps.append([])
                room = _STEP_BYTES
            steps[-1].append(column)
            room -= size
        return steps

    def _without_common_leaves(self, wanted: Sequence[int]) -> list[list[int]]:
        """Columns that can be decoded together: of a part of a column nothing else is decoded at the same time."""
        columns, groups = self._layout.columns, [list[int]()]
        for column in wanted:  # parts come last
            top = columns.ways[column][0]
            of = (g for g in groups if not columns.is_part(column) or all(columns.ways[i][0] != top for i in g))
            if (group := next(of, None)) is None:
                groups.append([column])
            else:
                group.append(column)
        return groups

    def _read_together(
        self,
        row_group: RowGroup,
        wanted: Sequence[int],
        counts: ReadCounts,
        check: Callable[[Sequence[int]], None] | None,
    ) -> dict[int, pa.Array]:
        columns = self._layout.columns
        leaves = sorted({leaf for i in wanted for leaf in columns.leaves[i]})
        counts.whole.update(wanted)
        chunks = self._layout.footer.row_groups[row_group.index].chunks
        names = ", ".join(repr(columns.fields[i].name) for i in wanted)
        with (
            refusing_malformed(self._path, f"row group {row_group.index}, columns {names}"),
            self._source.held([(chunks[leaf].start, chunks[leaf].num_bytes) for leaf in leaves]),
        ):
            if check is not None:
                check(leaves)
            table = self._reader(row_group).read_row_group(row_group.index, leaves, False)
            ways = [columns.ways[i] for i in wanted]
            tops = sorted({way[0] for way in ways})
            whole = {top: check_codes(one_array(column)) for top, column in zip(tops, table.columns, strict=True)}
            arrays = dict(zip(wanted, read_members(whole, ways, columns.ranges, leaves), strict=True))
        for column, array in arrays.items():
            if len(array) != row_group.num_rows:
                raise MalformedTableError(
                    f"{self._path}: row group {row_group.index}: column {columns.fields[column].name!r} has "
                    f"{len(array)} of {row_group.num_rows} rows"
                )
        return arrays

    def close(self) -> None:
        """Release the decoders."""
        self._readers.clear()

    def _reader(self, row_group: RowGroup) -> Any:
        """A decoder that reads the strings of this row group as dictionaries where that pays."""
        columns = self._layout.columns
        dictionaries = tuple(
            columns.leaves[i][0] for i in columns.string_columns if self._layout.keeps_dictionary(row_group.index, i)
        )
        if dictionaries not in self._readers:
            source = self._source.for_arrow()
            self._readers[dictionaries] = open_decoder(
                source, self._layout.metadata, sorted(dictionaries), verifies=self._layout.verifies
            )
        return self._readers[dictionaries]
