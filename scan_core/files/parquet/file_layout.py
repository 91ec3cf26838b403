"""What a Parquet file states about itself, and how chosen pages of it are decoded.

The facts of the footer and the page index are cached across the splits and scans of a process. Chosen pages are copied into
a small Parquet file of their own, which pyarrow decodes: pyarrow itself reads whole column chunks only.
"""

import os
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.types as pt
from pyarrow._parquet import ParquetReader

from nevermore.scan_core.columns.conversion import Way, descended, leaf_ranges, members_of, type_of_leaves
from nevermore.scan_core.columns.file_reader import OnDemand, RowGroup, field_id_of, refusing_malformed
from nevermore.scan_core.files.parquet.footer import (
    DATA_PAGE,
    DATA_PAGE_V2,
    DELTA_BYTE_ARRAY,
    INT32,
    INT64,
    MAGIC,
    MIN_TAIL_BYTES,
    PLAIN_DICTIONARY,
    RLE_DICTIONARY,
    Chunk,
    Footer,
    Leaf,
    decode_bounds,
    read_footer,
)
from nevermore.scan_core.files.parquet.thrift import (
    BINARY,
    I32,
    STRUCT,
    I32Value,
    ListValue,
    RawStruct,
    Struct,
    ThriftError,
    read_struct,
    write_struct,
)
from nevermore.scan_core.io.cache import BoundedCache, SharedBuilds
from nevermore.scan_core.io.remote import ByteSource
from nevermore.scan_core.model.running import ProcessLock
from nevermore.scan_core.model.statistics import ColumnStatistics
from nevermore.scan_core.rows.buffers import numbers, validity

_HEADER_BYTES = 512
"""Longest page header looked at first: statistics inside may be long, the counts come before them."""

Raw = bytes | memoryview


class PageFacts(NamedTuple):
    """A page by its header; `body` is where the page itself begins. Only pages of the second version state rows."""

    kind: int
    plain_bytes: int
    stored_bytes: int
    num_values: int
    encoding: int
    num_rows: int | None
    body: int
    offset: int = 0
    checksum: object = None


def page_header(data: Raw) -> tuple[Struct, int] | None:
    """The header of the page that begins with `data`, and where its body begins; None if it is not valid."""
    for size in (_HEADER_BYTES, len(data)):
        try:
            return read_struct(bytes(data[:size]))
        except ThriftError:
            continue
    return None


def page_facts(data: Raw) -> PageFacts | None:
    """What the header of a page states; None where it states no sizes, or goes on behind `data`."""
    if (found := page_header(data)) is None:
        return None
    header, body = found
    kind: Any = header.get(1)
    details = header.get({DATA_PAGE: 5, DATA_PAGE_V2: 8}.get(kind, 7), {})
    if not isinstance(details, dict):
        return None
    rows, count = details.get(3), details.get(1, 0)
    plain: Any = header.get(2)
    stored: Any = header.get(3)
    if not all(isinstance(number, int) and number >= 0 for number in (kind, plain, stored, count)):
        return None
    encoding = details.get(4 if kind == DATA_PAGE_V2 else 2)
    encoding = encoding if isinstance(encoding, int) else -1
    return PageFacts(
        kind, plain, stored, count, encoding, rows if kind == DATA_PAGE_V2 else None, body, checksum=header.get(4)
    )


def is_encoding_stated(chunk: Chunk, encoding: int) -> bool:
    """Whether the footer states an encoding with which a few bytes can decode to many; other encodings need not be stated."""
    if encoding == DELTA_BYTE_ARRAY:
        return DELTA_BYTE_ARRAY in chunk.encodings
    return encoding not in {PLAIN_DICTIONARY, RLE_DICTIONARY} or chunk.has_dictionary


Positions = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True, eq=False)
class PageLocations:
    """Pages of a chunk in order; page k holds rows [first_rows[k], first_rows[k + 1])."""

    offsets: Positions
    lengths: Positions
    first_rows: Positions

    @property
    def num_pages(self) -> int:
        """Data pages of the chunk."""
        return len(self.offsets)

    @property
    def row_counts(self) -> Positions:
        """Rows of each page."""
        return np.diff(self.first_rows)

    def pages_of(self, rows: Positions) -> tuple[Positions, Positions, Positions]:
        """The pages of these ascending row numbers, each page once, how many rows it holds, and the places of `rows` in them."""
        counts = np.diff(np.searchsorted(rows, self.first_rows))  # pages are fewer than rows
        pages = np.flatnonzero(counts)
        begins = self.first_rows[pages]
        sizes = self.first_rows[pages + 1] - begins
        return pages, sizes, rows + np.repeat(np.cumsum(sizes) - sizes - begins, counts[pages])


def parse_offset_indexes(stored: Sequence[bytes], chunks: Sequence[Chunk], num_rows: int) -> list[PageLocations | None]:
    """Page locations of chunks of a row group from the bytes of their offset indexes, None where they cannot be those.

    Chunks whose pages hold the same rows share an array of first rows.
    """
    known: dict[bytes, Positions] = {}
    return [_locations(data, chunk, num_rows, known) for data, chunk in zip(stored, chunks, strict=True)]


def _locations(data: bytes, chunk: Chunk, num_rows: int, known: dict[bytes, Positions]) -> PageLocations | None:
    try:
        found = [(page[1], page[2], page[3]) for page in read_struct(data)[0][1]]
        end, row = chunk.start, -1
        for offset, length, first_row in found:
            if length <= 0 or offset < end or first_row <= row or not -1 < first_row < num_rows:
                return None
            end, row = offset + length, first_row
        if not found or found[0][2] != 0 or end > chunk.start + chunk.num_bytes:
            return None
        offsets, lengths, first_rows = (np.array(column, np.int64) for column in zip(*found, strict=True))
        edges = np.append(first_rows, num_rows)
        return PageLocations(offsets, lengths, known.setdefault(edges.tobytes(), edges))
    except (ThriftError, KeyError, IndexError, TypeError, ValueError, OverflowError):
        return None


def parse_column_index(
    data: bytes, leaf: Leaf, arrow_type: pa.DataType, locations: PageLocations
) -> Sequence[ColumnStatistics] | None:
    """Statistics of each page from the bytes of a column index; None if they cannot be those of the pages."""
    num_pages = locations.num_pages
    try:
        document, _ = read_struct(data)
        null_pages, lowers, uppers = document[1], document[2], document[3]
        null_counts = document.get(5) or [None] * num_pages
        if not len(null_pages) == len(lowers) == len(uppers) == len(null_counts) == num_pages:
            return None
        if not all(isinstance(bound, bytes) for bounds in (lowers, uppers) for bound in bounds):
            return None
    except (ThriftError, KeyError, TypeError, ValueError, OverflowError):
        return None
    row_counts = locations.row_counts.tolist()

    def of_page(page: int) -> ColumnStatistics:
        num_rows, null_count = row_counts[page], null_counts[page]
        if null_pages[page]:
            return ColumnStatistics(None, None, num_rows, 0, num_rows)
        low, high = decode_bounds(lowers[page], uppers[page], leaf, arrow_type)
        is_known = isinstance(null_count, int) and 0 <= null_count <= num_rows
        return ColumnStatistics(low, high, null_count if is_known else None, None, num_rows)

    return OnDemand(num_pages, of_page)


class StoredPages(NamedTuple):
    """Pages of a chunk, in order: how many values they hold, and the bytes of the dictionary page, if any, and of all."""

    chunk: Chunk
    num_values: int
    dictionary_bytes: int
    num_bytes: int


def page_file(chunk: Chunk, leaf: Leaf, content: tuple[Raw, Sequence[Raw]], num_values: int, num_rows: int) -> bytes:
    """A Parquet file of one column and one row group.

    Args:
        chunk: that the pages are from.
        leaf: its leaf column, the only one of its top-level column.
        content: the bytes of the dictionary page, possibly none, and of the data pages.
        num_values: in the data pages.
        num_rows: in the data pages.
    """
    dictionary, pages = content
    stored = StoredPages(chunk, num_values, len(dictionary), len(dictionary) + sum(map(len, pages)))
    return joined_file((leaf,), num_rows, [stored], [dictionary, *pages])


def joined_file(leaves: Sequence[Leaf], num_rows: int, columns: Sequence[StoredPages], content: Sequence[Raw]) -> bytes:
    """A Parquet file of some pages of one file, of several columns and one row group.

    Args:
        leaves: each the only leaf column of its top-level column.
        num_rows: in the data pages of each.
        columns: the pages of each.
        content: the bytes of all pages, in the same order.
    """
    position, chunks = len(MAGIC), list[Struct]()
    for leaf, (chunk, num_values, before, num_bytes) in zip(leaves, columns, strict=True):
        metadata: Struct = {
            1: I32Value(leaf.physical_type),
            2: ListValue(I32, [I32Value(encoding) for encoding in chunk.encodings]),
            3: ListValue(BINARY, [part.encode() for part in leaf.path]),
            4: I32Value(chunk.codec),
            5: num_values,
            6: num_bytes,
            7: num_bytes,
            9: position + before,
        }
        if before:
            metadata[11] = position
        chunks.append({2: 0, 3: metadata})
        position += num_bytes
    elements = [RawStruct(element) for leaf in leaves for element in leaf.elements]
    group = {1: ListValue(STRUCT, chunks), 2: position - len(MAGIC), 3: num_rows}
    encoded = write_struct(
        {
            1: I32Value(2),
            2: ListValue(STRUCT, [{4: b"schema", 5: I32Value(len(leaves))}, *elements]),
            3: num_rows,
            4: ListValue(STRUCT, [group]),
        }
    )
    return b"".join((MAGIC, *content, encoded, len(encoded).to_bytes(4, "little"), MAGIC))


_REMEMBERED_SCHEMAS = 64


@dataclass(frozen=True, slots=True, eq=False)
class FileColumns:
    """The columns of one schema.

    Attributes:
        arrow_schema: with field ids as metadata.
        ways: the way to each column: top-level ones first, then struct members, which are columns of their own, then
            parts of these, as they are asked for: columns of which only some leaf columns are read.
        numbers: of columns, by their ways.
        fields: of each column.
        leaves: for each column the indices of its leaf columns.
        ranges: the same by the ways.
        string_columns: top-level columns of strings, which may be worth reading as dictionaries.
        has_field_ids: some field at some depth has an id.
        leaf_types: of all leaf columns.
    """

    arrow_schema: pa.Schema
    ways: list[Way]
    numbers: Mapping[Way, int]
    fields: list[pa.Field]
    leaves: list[Sequence[int]]
    ranges: Mapping[Way, range]
    string_columns: tuple[int, ...]
    has_field_ids: bool
    leaf_types: tuple[pa.DataType, ...]
    parts: dict[tuple[int, ...], int] = field(default_factory=dict)
    lock: ProcessLock = field(default_factory=ProcessLock)

    def part(self, column: int, leaves: AbstractSet[int]) -> int | None:
        """The number of a column of which only these leaf columns are read; None where Arrow may not read it so."""
        if len(leaves) == len(self.leaves[column]):
            return column
        key = (column, *sorted(leaves))
        with self.lock:
            if key not in self.parts:
                of = self.fields[column]
                if (kind := type_of_leaves(of.type, leaves, self.leaves[column][0])) is None:
                    return None
                number = len(self.fields)
                # in place of what a thread had begun to add when this process was forked from another
                self.ways[number:] = [self.ways[column]]
                self.leaves[number:] = [key[1:]]
                self.fields.append(of.with_type(kind))
                self.parts[key] = number
            return self.parts[key]

    def is_part(self, column: int) -> bool:
        """Whether only some leaf columns of it are read."""
        return column >= len(self.numbers)


def file_columns(schema: pa.Schema) -> FileColumns:
    """The columns of a schema.

    Raises:
        MalformedTableError: a field id that is no number.
    """
    leaves = leaf_ranges(schema)
    members = members_of(schema, leaves)
    ways = [*((i,) for i in range(len(schema))), *(way for way, _, _ in members)]
    all_leaves: list[Sequence[int]] = [*leaves, *(found for _, _, found in members)]
    return FileColumns(
        schema,
        ways,
        {way: number for number, way in enumerate(ways)},
        [*schema, *(field for _, field, _ in members)],
        all_leaves,
        {**{(i,): found for i, found in enumerate(leaves)}, **{way: found for way, _, found in members}},
        tuple(i for i, f in enumerate(schema) if pt.is_string(f.type) or pt.is_large_string(f.type)),
        any(_has_id(field) for field in schema),
        tuple(found for field in schema for found in _leaves_of(field.type)),
    )


def _leaves_of(kind: pa.DataType) -> Iterator[pa.DataType]:
    if not pt.is_nested(kind):
        yield kind
        return
    if pt.is_map(kind):
        children = [kind.key_type, kind.item_type]
    else:
        children = [kind.field(i).type for i in range(kind.num_fields)]
    for child in children:
        yield from _leaves_of(child)


COLUMNS: BoundedCache[Hashable, FileColumns] = BoundedCache()
"""Of the schemas seen last, by what the footer says of them."""
os.register_at_fork(after_in_child=COLUMNS.forget_threads)


def known_columns(identity: Hashable, read_schema: Callable[[], pa.Schema]) -> FileColumns:
    """The columns of the schema with this identity, found if they are not known; two threads may both find them."""
    known = COLUMNS.find(identity)
    return COLUMNS.put(identity, file_columns(read_schema()), _REMEMBERED_SCHEMAS) if known is None else known


def _has_id(field: pa.Field) -> bool:
    if field_id_of(field) is not None:
        return True
    return pt.is_nested(field.type) and any(_has_id(field.type.field(i)) for i in range(field.type.num_fields))


_FIRST_BYTE = 4
_DICTIONARY_BYTES_PER_VALUE = 3
"""A chunk that kept its dictionary stores at most about 20 bits a value; one that overflowed at least 4 bytes more."""
_MAX_TAIL_BYTES = 8 * 1024**2
LARGE_PAGE_BYTES = 2 * 1024**2
"""Above, Arrow's allocator takes a block from the system alone, and gives it back at once."""
_REMEMBERED_CHUNKS = 100_000
"""Column chunks whose facts are kept: some 100 MB at most."""


class ChunkPages(NamedTuple):
    """Facts from the page headers of a column chunk that bound what it decodes to.

    Attributes:
        largest_bytes: of the largest page when decompressed.
        num_repeated: values stored as codes of the dictionary.
        prefixed: pages in which values share a prefix with the value before (DELTA_BYTE_ARRAY).
    """

    largest_bytes: int
    num_repeated: int
    prefixed: tuple[PageFacts, ...]


@dataclass(frozen=True, slots=True, eq=False)
class ParquetLayout:
    """The facts of one file.

    Attributes:
        footer: checked.
        metadata: the same footer as parsed by pyarrow, so that pyarrow need not parse it again.
        columns: of its schema.
        row_groups: in file order.
        footer_bytes: as stored.
        pages: facts from page headers, for the chunks whose headers were read, by row group and leaf.
        longest_values: bytes of the longest value in the dictionaries of chunks.
        longest_prefixes: bytes of the longest prefix that a value of a chunk shares with the value before.
        verifies: compare checksums of pages where the file has them.
        version: of the object in its store, where that is known.
    """

    footer: Footer
    metadata: Any
    columns: FileColumns
    row_groups: tuple[RowGroup, ...]
    footer_bytes: int
    pages: dict[tuple[int, int], ChunkPages] = field(default_factory=dict)
    longest_values: dict[tuple[int, int], int] = field(default_factory=dict)
    longest_prefixes: dict[tuple[int, int], int] = field(default_factory=dict)
    verifies: bool = True
    version: str | None = None

    def chunk(self, row_group: int, column: int) -> Chunk:
        """The column chunk of a primitive column; of a nested one the first."""
        return self.footer.row_groups[row_group].chunks[self.columns.leaves[column][0]]

    def is_repeated(self, leaf: int) -> bool:
        """Whether a row has any number of its values: it is below a list or map."""
        return self.footer.leaves[leaf].max_repetition_level > 0

    def suits_system_memory(self, row_group: int, leaves: Iterable[int], *, is_tight: bool = False) -> bool:
        """Whether a frugal decoder of these leaf columns takes memory from the system: of small buffers, of any if `is_tight`."""
        large = ((found := self.pages.get((row_group, i))) and found.largest_bytes > LARGE_PAGE_BYTES for i in leaves)
        return (is_tight or any(map(self.is_repeated, leaves))) and not any(large)

    def keeps_dictionary(self, row_group: int, column: int) -> bool:
        """Whether this chunk holds strings that are better read as a dictionary.

        The list of encodings does not show whether a dictionary overflowed, because the dictionary page itself is PLAIN;
        the stored width of a value does, or the headers of the pages where they were read: a few long values become very many.
        """
        if column not in self.columns.string_columns:
            return False
        chunk = self.chunk(row_group, column)
        known = self.pages.get((row_group, self.columns.leaves[column][0]))
        if known is not None and known.num_repeated == chunk.num_values:
            return True
        values = chunk.num_values - (chunk.null_count or 0)
        return chunk.has_dictionary and chunk.uncompressed_bytes < _DICTIONARY_BYTES_PER_VALUE * values


def _num_chunks(layout: ParquetLayout) -> int:
    return 1 + len(layout.footer.leaves) * len(layout.row_groups)


class FooterCache:
    """Layouts of recently opened files, bounded by the number of their column chunks.

    `tail_bytes` are read at once from the end of the next file: more than the largest footer so far.
    """

    def __init__(self) -> None:
        self._layouts: BoundedCache[Hashable, ParquetLayout] = BoundedCache(_num_chunks)
        self._reading: SharedBuilds[Hashable, ParquetLayout] = SharedBuilds()
        self.tail_bytes = MIN_TAIL_BYTES

    def get(self, key: Hashable, read: Callable[[], ParquetLayout]) -> ParquetLayout:
        """The layout under `key`; if it is not known, one thread reads it while others that want it wait.

        Parts of one file are opened at the same time, and on an object store a footer costs a request.
        """

        def read_and_keep() -> ParquetLayout:
            layout = read()
            self.tail_bytes = min(max(self.tail_bytes, layout.footer_bytes * 5 // 4), _MAX_TAIL_BYTES)
            return self._layouts.put(key, layout, _REMEMBERED_CHUNKS)

        return self._reading.get(key, lambda: self._layouts.find(key), read_and_keep)[0]

    def forget(self, key: Hashable) -> None:
        """The file under `key` was replaced."""
        self._layouts.drop(key)

    def forget_threads(self) -> None:
        """See `BoundedCache`."""
        self._layouts.forget_threads()
        self._reading.forget_threads()

    def clear(self) -> None:
        """Forget everything."""
        self._layouts.clear()
        self.tail_bytes = MIN_TAIL_BYTES


FOOTERS = FooterCache()
os.register_at_fork(after_in_child=FOOTERS.forget_threads)


def read_layout(source: ByteSource, path: str, tail_bytes: int = MIN_TAIL_BYTES) -> ParquetLayout:
    """Read and check the footer of an open file, from its last bytes, as many as are given, if it fits in there.

    Raises:
        MalformedTableError: truncated, or a footer that contradicts itself.
        UnsupportedError: encrypted.
    """
    with refusing_malformed(path, "footer"):
        encoded = read_footer(source, path, tail_bytes)
        ending = b"".join((MAGIC, encoded, len(encoded).to_bytes(4, "little"), MAGIC))
        reader = open_decoder(pa.BufferReader(ending), None, ())
        footer = Footer(encoded, path, source.size(), reader.metadata)
        columns = known_columns(footer.schema_identity, lambda: reader.schema_arrow)
        groups = _row_groups(footer)
        return ParquetLayout(footer, reader.metadata, columns, groups, len(encoded), version=source.version)


def open_decoder(
    source: pa.NativeFile,
    metadata: Any,
    dictionary_leaves: Sequence[int],
    *,
    buffer_bytes: int = 0,
    verifies: bool = True,
    is_frugal: bool = False,
) -> Any:
    """A decoder of the file, reading these leaf columns as dictionaries.

    With `buffer_bytes`, chunks are fetched this many bytes at a time, not as a whole. `verifies`: pages that have a
    checksum are compared with it. `is_frugal`: memory is given back as soon as it is free, which is slower: of the many
    buffers of lists and maps Arrow's own allocator keeps some 30 MB for itself, more than a window of rows under a tight
    limit. The C library, once a large block was freed, keeps blocks of that size between others, where they hold memory
    that no call gives back: pages of more than `LARGE_PAGE_BYTES` are left to Arrow's allocator, which returns each block.
    """
    reader = ParquetReader(memory_pool=pa.system_memory_pool() if is_frugal else None)
    reader.open(
        source,
        metadata=metadata,
        read_dictionary=list(dictionary_leaves),
        buffer_size=buffer_bytes,
        pre_buffer=False,
        coerce_int96_timestamp_unit="us",  # nanoseconds would wrap outside of 1677..2262
        page_checksum_verification=verifies,
    )
    return reader


def _row_groups(footer: Footer) -> tuple[RowGroup, ...]:
    groups: list[RowGroup] = []
    position = 0
    for index, facts in enumerate(footer.row_groups):
        offset = max(facts.chunks[0].start, _FIRST_BYTE) if facts.chunks else _FIRST_BYTE
        groups.append(RowGroup(index, position, facts.num_rows, offset, facts.num_bytes))
        position += facts.num_rows
    return tuple(groups)


def check_codes(array: pa.Array) -> pa.Array:
    """The array, if all codes of a dictionary point into it: pyarrow does not look.

    Raises:
        ValueError: one does not.
    """
    if isinstance(array, pa.DictionaryArray) and len(array):
        codes = numbers(array.indices)
        if (valid := validity(array.indices)) is not None:
            codes = codes[valid]
        low, high = int(codes.min(initial=0)), int(codes.max(initial=0))
        if len(codes) and not 0 <= low <= high < len(array.dictionary):
            raise ValueError(f"code {high if low >= 0 else low} in a dictionary of {len(array.dictionary)} values")
    return array


def one_array(column: pa.ChunkedArray) -> pa.Array:
    """A column in one piece."""
    if column.num_chunks == 1:
        return column.chunk(0)
    if column.nbytes < 2**31:
        return column.combine_chunks()
    wide = {pa.string(): pa.large_string(), pa.binary(): pa.large_binary()}.get(column.type)
    return (column.cast(wide) if wide else column).combine_chunks()


def has_wide_differences(layout: ParquetLayout, row_group: int, column: int) -> bool:
    """Whether a chunk may hold 32-bit numbers as differences of more than 32 bits, which pyarrow refuses.

    The format wants differences that wrap around; DuckDB writes them in 64 bits. Whoever decodes with as many and keeps
    the lower half, as parquet-java does, reads both.
    """
    leaves = layout.columns.leaves[column]
    if len(leaves) != 1 or (kind := layout.columns.leaf_types[leaves[0]]) not in _WIDE_TYPES:
        return False
    if pt.is_date32(kind) and pt.is_nested(layout.columns.fields[column].type):
        return False
    leaf, chunk = layout.footer.leaves[leaves[0]], layout.footer.row_groups[row_group].chunks[leaves[0]]
    if not leaf.elements or leaf.physical_type != INT32 or chunk.num_values > _MOST_WIDE:
        return False
    encodings = chunk.encodings
    if _DELTA not in encodings or any(e not in _OF_LEVELS for e in encodings):
        return False
    bounds = layout.footer.bounds(chunk, leaf)
    lower, upper = (None if raw is None else int.from_bytes(raw, "little", signed=True) for raw in bounds)
    return lower is None or upper is None or not 0 <= upper - lower < 2**31


def read_wide_differences(
    path: str, source: ByteSource, layout: ParquetLayout, row_group: RowGroup, column: int
) -> pa.Array:
    """All rows of a column that `has_wide_differences`, in the type of the file.

    Raises:
        MalformedTableError: pages that cannot be decoded, or hold fewer rows; names file and column.
    """
    (number,), field = layout.columns.leaves[column], layout.columns.fields[column]
    leaf, chunk = layout.footer.leaves[number], layout.footer.row_groups[row_group.index].chunks[number]
    with refusing_malformed(path, lambda: f"row group {row_group.index}, column {field.name!r}"):
        stated = read_struct(leaf.elements[-1], 0)[0]
        repetition = {3: I32Value(stated[3])} if 3 in stated else {}
        element = write_struct({1: I32Value(INT64), **repetition, 4: stated[4]})
        pages = source.read_at(chunk.num_bytes, chunk.start)
        as_64_bits = replace(leaf, physical_type=INT64, elements=(*leaf.elements[:-1], element))
        file = page_file(chunk, as_64_bits, (b"", [pages]), chunk.num_values, row_group.num_rows)
        decoder = open_decoder(pa.BufferReader(file), None, (), verifies=layout.verifies)
        found = one_array(decoder.read_row_group(0, [0], False).column(0))
        found = descended(found, (0,) * (len(layout.columns.ways[column]) - 1))
        if len(found) != row_group.num_rows:
            raise ValueError(f"{len(found)} of {row_group.num_rows} rows")
        # an unsafe cast keeps the lower half
        return found.cast(pa.int32() if pt.is_date32(field.type) else field.type, safe=False).cast(field.type)


_WIDE_TYPES = frozenset({pa.int32(), pa.uint32(), pa.date32()})
_DELTA = 5
_OF_LEVELS = (_DELTA, 3, 4)
"""Numbers as differences, and how levels are stored beside them: by RLE, or packed."""
_MOST_WIDE = 4 * 1024**2
"""Values of a chunk, which is decoded as a whole; DuckDB's row groups have 122,880 rows."""
