"""How many bytes columns of a Parquet row group become: bounded before anything is decoded, and rows cut to what fits.

A few bytes can decode to very many: a dictionary value that repeats, a run of equal numbers, a page that compresses well.
Sizes are bounded by the footer, by the types, and by the longest value of a dictionary. The footer is compared with the page
headers of what will be decoded, just before. Only where the bound is large are the rows of a column measured one by one, by
decoding their codes alone.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cache
from itertools import islice

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.types as pt

from nevermore.scan_core.columns.file_reader import DecodingLimits, RowGroup, refusing_malformed
from nevermore.scan_core.files.parquet.chunks import BUFFER_BYTES
from nevermore.scan_core.files.parquet.file_layout import (
    ChunkPages,
    PageFacts,
    ParquetLayout,
    Raw,
    is_encoding_stated,
    one_array,
    open_decoder,
    page_facts,
    page_file,
    page_header,
)
from nevermore.scan_core.files.parquet.footer import (
    BYTE_ARRAY,
    DATA_PAGE,
    DATA_PAGE_V2,
    DELTA_BYTE_ARRAY,
    DICTIONARY_PAGE,
    PLAIN,
    PLAIN_DICTIONARY,
    RLE_DICTIONARY,
    Chunk,
    Leaf,
)
from nevermore.scan_core.files.parquet.thrift import I32Value, write_struct
from nevermore.scan_core.io.remote import BLOCK_BYTES, ByteSource, Range, RemoteFile
from nevermore.scan_core.model.errors import MalformedTableError, MemoryLimitError
from nevermore.scan_core.rows.buffers import numbers, validity

_OFFSET_BYTES = 4
_LEVEL_BYTES = 4
"""The two levels of a value in a list or map."""
_TOLERANCE = 4
"""Up to this many times the target a row group is read at once: reading in windows costs more."""
_MIN_ROWS, _MIN_BYTES = 4_096, 2 * 1024**2
"""A window holds no fewer rows and bytes than both, however low the limit is: each has its own cost."""
_USUAL_PAGE_BYTES = 1024**2
_DICTIONARY_COPIES = 4
"""Of the page of a dictionary: its values, where they lie, and how often a decoder of texts finds them."""
_COST_BYTES = 8
_MAX_SPILLED_BYTES = 4 * 1024**3
"""Of a row group, on the disk: a few bytes can decode to very many."""
_MEASURED_ROWS = 65_536
_HEADER_BYTES = 4_096
_HEADER_WINDOWS = (256, 4 * _HEADER_BYTES, 16 * 1024**2)
"""Bytes read for the header of a page: those with long statistics are read again."""
_MAX_EXPANSION = {0: 1, 1: 64, 2: 1032, 5: 256, 7: 256}
"""Most bytes that one compressed byte decompresses to, by codec: none, Snappy, gzip, LZ4."""
_LARGEST_EXPANSION = 1 << 15
"""For zstd, which can write a block of 128 kB as four bytes."""
_BY_DICTIONARY = {PLAIN_DICTIONARY, RLE_DICTIONARY}
_RLE = 3
_DELTA_BINARY_PACKED = 5
_INT32 = 1
_OPTIONAL, _REPEATED = 1, 2


Costs = npt.NDArray[np.int64]


class DecodedSizes:
    """Sizes of the columns of one open file."""

    def __init__(self, path: str, source: ByteSource, layout: ParquetLayout) -> None:
        self._path = path
        self._source = source
        self._layout = layout
        self._types = layout.columns.leaf_types
        self._pages = layout.pages
        self._longest = layout.longest_values
        self._prefixes = layout.longest_prefixes
        self._is_remote = isinstance(source, RemoteFile)

    def check(self, row_group: RowGroup, leaves: Sequence[int], limits: DecodingLimits) -> None:
        """Compare chunks that may hold more than the footer states with their page headers.

        Raises:
            MalformedTableError: more bytes or values than the footer states.
            MemoryLimitError: a page that is too large to be decompressed.
        """
        for leaf in leaves:
            may_be_large = (
                self._layout.is_repeated(leaf)  # a page may have any number of values
                or _max_plain_bytes(self._chunk(row_group, leaf)) > limits.max_bytes
                or self._may_repeat(row_group, leaf, limits, is_stated=False)
            )
            if may_be_large:
                self._check_page(row_group, leaf, self._walked(row_group, leaf).largest_bytes, limits)

    def check_pages(self, row_group: RowGroup, leaf: int, pages: Sequence[PageFacts], limits: DecodingLimits) -> None:
        """Compare some pages of a chunk, by their headers, with what the footer states; raises as `check` does."""
        self._check_page(row_group, leaf, max((page.plain_bytes for page in pages), default=0), limits)
        values = sum(page.num_values for page in pages if page.kind != DICTIONARY_PAGE)
        with refusing_malformed(self._path, lambda: f"row group {row_group.index}, column {self._name(leaf)}"):
            _check_totals(self._chunk(row_group, leaf), sum(page.plain_bytes for page in pages), values)

    def _check_page(self, row_group: RowGroup, leaf: int, num_bytes: int, limits: DecodingLimits) -> None:
        if num_bytes > limits.max_bytes:
            raise MemoryLimitError(
                f"{self._path}: row group {row_group.index}, column {self._name(leaf)}: a page of {num_bytes} bytes, "
                f"and at most {limits.max_bytes} may be decoded at once; raise memory_limit_bytes"
            )

    def windows(
        self, row_group: RowGroup, leaves: Sequence[int], rows: range, limits: DecodingLimits
    ) -> list[range] | None:
        """Windows of rows whose leaf columns fit when decoded; None if the whole row group fits.

        Raises:
            MalformedTableError: pages that contradict the footer.
            MemoryLimitError: a single row or page that is too large.
        """
        plain, repeated = self._bounds(row_group, leaves, limits)
        if plain + sum(repeated.values()) <= _TOLERANCE * limits.target_bytes:
            return None
        per_row = plain / max(row_group.num_rows, 1)
        measured: list[int] = []
        for leaf, size in repeated.items():
            is_text = _width(self._types[leaf]) is None
            if size <= row_group.num_rows * (limits.target_bytes // _MEASURED_ROWS) or not is_text:
                per_row += size / row_group.num_rows  # a bound that is good enough: windows stay large
            else:
                measured.append(leaf)
        if measured:
            if not self._is_remote:
                self.check(row_group, measured, limits)
            return self._cut(row_group, leaves, self._costs(row_group, measured, int(per_row), limits), rows, limits)
        size = max(int(limits.target_bytes / per_row), min(_MIN_ROWS, int(_MIN_BYTES / per_row)), 1)
        if per_row > limits.max_bytes:
            self._refuse(row_group, leaves, rows.start, int(per_row), limits)
        return [range(start, min(start + size, rows.stop)) for start in range(rows.start, rows.stop, size)]

    def _bounds(self, row_group: RowGroup, leaves: Sequence[int], limits: DecodingLimits) -> tuple[int, dict[int, int]]:
        """Bounds of the decoded bytes of leaf columns: of all together, and of values of dictionaries that may be large."""
        plain = sum(self._plain_bytes(self._chunk(row_group, leaf), leaf) for leaf in leaves)
        plain += sum(self._prefix_bytes(row_group, leaf, limits) for leaf in leaves)
        with self._source.held(self.dictionary_ranges(row_group, leaves, limits)):
            return plain, {leaf: size for leaf in leaves if (size := self._repeated_bytes(row_group, leaf, limits))}

    def columns_apart(
        self, row_group: RowGroup, leaves_of: Mapping[int, Sequence[int]], limits: DecodingLimits
    ) -> tuple[frozenset[int], bool]:
        """Columns whose decoders must not be open at the same time, as each holds a page; whether one alone is too much."""
        sizes = {i: sum(self._decoder_bytes(row_group, leaf) for leaf in leaves) for i, leaves in leaves_of.items()}
        open_, room, apart = sum(sizes.values()), _MAX_SPILLED_BYTES, set[int]()
        # a single large column takes as much when it is decoded apart
        if open_ - max(sizes.values(), default=0) > limits.target_bytes:
            for column in sorted(sizes, key=lambda i: -sizes[i]):
                num_bytes = sum(self._most_bytes(row_group, leaf, limits) for leaf in leaves_of[column])
                if num_bytes <= room:
                    apart.add(column)
                    open_, room = open_ - sizes[column], room - num_bytes
                if open_ <= limits.target_bytes:
                    break
        largest = max((sizes[i] for i in apart), default=0)
        return frozenset(apart), max(open_, largest) > limits.worker_bytes

    def _decoder_bytes(self, row_group: RowGroup, leaf: int) -> int:
        """What the decoder of a chunk holds between two windows: a page out of compression and as stored, and a dictionary."""
        chunk = self._chunk(row_group, leaf)
        known = self._pages.get((row_group.index, leaf)) if self._is_remote else self._walked(row_group, leaf)
        page = min(_USUAL_PAGE_BYTES, chunk.uncompressed_bytes) if known is None else known.largest_bytes
        buffered = min(2 * BLOCK_BYTES if self._is_remote else BUFFER_BYTES, chunk.num_bytes)
        is_compressed = chunk.codec > 0
        copies = 1 + is_compressed + _DICTIONARY_COPIES * chunk.has_dictionary
        return page * copies + buffered

    def _most_bytes(self, row_group: RowGroup, leaf: int, limits: DecodingLimits) -> int:
        """A bound of the decoded bytes of a chunk."""
        repeated = self._repeated_bytes(row_group, leaf, limits) + self._prefix_bytes(row_group, leaf, limits)
        return self._plain_bytes(self._chunk(row_group, leaf), leaf) + repeated

    def of_pages(self, row_group: RowGroup, leaf: int, num_rows: int, limits: DecodingLimits) -> int:
        """A bound of what pages of a leaf column with this number of rows become, whichever they are."""
        plain = self._plain_bytes(self._chunk(row_group, leaf), leaf) / max(row_group.num_rows, 1)
        longest = self._repeated(row_group, leaf, limits)[1] + self._prefix(row_group, leaf, limits)
        return int(num_rows * (plain + longest))

    def _cut(
        self, row_group: RowGroup, leaves: Sequence[int], parts: Iterator[Costs], rows: range, limits: DecodingLimits
    ) -> list[range]:
        """Windows as large as the target allows, by the bytes of each row, which are never held for all rows."""
        windows, begin, room, position = [], rows.start, limits.target_bytes, 0
        for part in parts:
            first, position = max(position, rows.start), position + len(part)
            costs = part[max(rows.start - (position - len(part)), 0) : max(rows.stop - (position - len(part)), 0)]
            if not len(costs):
                continue
            if (most := int(costs.max())) > limits.max_bytes:
                self._refuse(row_group, leaves, first + int(costs.argmax()), most, limits)
            ends, used = np.cumsum(costs), 0
            while (fitting := int(np.searchsorted(ends, used + room, "right"))) < len(costs):
                stop = max(first + fitting, begin + 1)  # a row that does not fit is read alone
                windows.append(range(begin, stop))
                begin, room, used = stop, limits.target_bytes, int(ends[stop - first - 1]) if stop > first else 0
            room -= int(ends[-1]) - used
        return [*windows, range(begin, rows.stop)] if begin < rows.stop else windows

    def _refuse(
        self, row_group: RowGroup, leaves: Sequence[int], row: int, num_bytes: int, limits: DecodingLimits
    ) -> None:
        names = ", ".join(map(self._name, leaves[:5]))
        more = f" and {len(leaves) - 5} more" if len(leaves) > 5 else ""
        raise MemoryLimitError(
            f"{self._path}: row {row} of row group {row_group.index} decodes to {num_bytes} bytes (columns {names}{more}), "
            f"and at most {limits.max_bytes} may be decoded at once; raise memory_limit_bytes or select fewer columns"
        )

    def _chunk(self, row_group: RowGroup, leaf: int) -> Chunk:
        return self._layout.footer.row_groups[row_group.index].chunks[leaf]

    def _plain_bytes(self, chunk: Chunk, leaf: int) -> int:
        levels = _LEVEL_BYTES if self._layout.is_repeated(leaf) else 0
        width = _width(self._types[leaf])
        if width is None:
            return chunk.uncompressed_bytes + chunk.num_values * (levels + _OFFSET_BYTES)
        return max(chunk.uncompressed_bytes, chunk.num_values * (levels + width))

    def _may_repeat(self, row_group: RowGroup, leaf: int, limits: DecodingLimits, *, is_stated: bool = True) -> bool:
        """Whether the values of a chunk would be too large if each were as long as the chunk, as large as the footer states or not."""
        chunk = self._chunk(row_group, leaf)
        if self._layout.footer.leaves[leaf].physical_type != BYTE_ARRAY:
            return False  # of fixed size, even if they share values
        plain = max(chunk.uncompressed_bytes, chunk.num_bytes) if is_stated else _max_plain_bytes(chunk)
        return chunk.num_values * plain > limits.target_bytes

    def _repeated_bytes(self, row_group: RowGroup, leaf: int, limits: DecodingLimits) -> int:
        """A bound of the decoded bytes of dictionary-encoded values; 0 if it cannot be large."""
        count, longest = self._repeated(row_group, leaf, limits)
        return count * longest

    def _repeated(self, row_group: RowGroup, leaf: int, limits: DecodingLimits) -> tuple[int, int]:
        """How many values a dictionary encodes, and a bound of the longest; zeros if they cannot be large."""
        chunk, key = self._chunk(row_group, leaf), (row_group.index, leaf)
        if not self._may_repeat(row_group, leaf, limits):
            return 0, 0
        if key not in self._longest:
            has_dictionary = chunk.has_dictionary or self._begins_with_dictionary(row_group, leaf)
            self._longest[key] = self._longest_value(row_group, leaf, limits) if has_dictionary else 0
        count, longest = chunk.num_values, self._longest[key]
        if count * longest > limits.target_bytes and not self._is_remote:  # there each page might be a request
            count = self._walked(row_group, leaf).num_repeated
        return count, longest

    def _begins_with_dictionary(self, row_group: RowGroup, leaf: int) -> bool:
        """Whether the footer of a local file omits a dictionary; on an object store, such pages are refused once fetched."""
        with refusing_malformed(self._path, lambda: f"row group {row_group.index}, column {self._name(leaf)}"):
            pages = () if self._is_remote else page_walk(self._source.read_at, self._chunk(row_group, leaf))
            return any(page.kind == DICTIONARY_PAGE for page in islice(pages, 1))

    def _prefix_bytes(self, row_group: RowGroup, leaf: int, limits: DecodingLimits) -> int:
        """A bound of the bytes that values share with those before them; 0 if it cannot be large."""
        return self._chunk(row_group, leaf).num_values * self._prefix(row_group, leaf, limits)

    def _prefix(self, row_group: RowGroup, leaf: int, limits: DecodingLimits) -> int:
        """A bound of the bytes that a value shares with the one before it; 0 if they cannot be many."""
        chunk, key = self._chunk(row_group, leaf), (row_group.index, leaf)
        if not self._may_repeat(row_group, leaf, limits) or DELTA_BYTE_ARRAY not in chunk.encodings:
            return 0
        if key not in self._prefixes:
            self.check(row_group, [leaf], limits)
            with refusing_malformed(self._path, lambda: f"row group {row_group.index}, column {self._name(leaf)}"):
                self._prefixes[key] = self._longest_prefix(chunk, leaf, self._walked(row_group, leaf).prefixed)
        return self._prefixes[key]

    def _longest_prefix(self, chunk: Chunk, leaf: int, pages: Sequence[PageFacts]) -> int:
        """Length of the longest prefix that a value shares with the one before it, in pages that store prefixes once.

        The lengths stand in front of the values, encoded as numbers are: the pages are decoded as if they held these alone.
        """
        column = self._layout.metadata.schema.column(leaf)
        lists, optional = column.max_repetition_level, column.max_definition_level - column.max_repetition_level
        longest = 0
        for page in pages:
            numbered = _number_leaf(lists, optional), (b"", [self._as_numbers(page)])
            file = page_file(chunk, *numbered, page.num_values, page.num_values)
            found = one_array(
                open_decoder(pa.BufferReader(file), None, (), is_frugal=True).read_row_group(0, [0], False).column(0)
            )
            while pt.is_nested(found.type):
                found = found.flatten() if pt.is_list(found.type) else found.flatten()[0]
            stored, valid = numbers(found), validity(found)
            longest = max(longest, int((stored if valid is None else stored[valid]).max(initial=0)))
        return longest

    def _as_numbers(self, page: PageFacts) -> bytes:
        """A page whose header states that its values are numbers."""
        data = self._source.read_at(page.body + page.stored_bytes - page.offset, page.offset)
        found = page_header(data)
        assert found is not None  # noqa: S101  it was read before
        header, begin = found
        details, encoding = (8, 4) if page.kind == DATA_PAGE_V2 else (5, 2)
        stated = {
            i: v if isinstance(v, bool) else I32Value(v) for i, v in header[details].items() if isinstance(v, int)
        }
        stated[encoding] = I32Value(_DELTA_BINARY_PACKED)
        sizes = {i: I32Value(number) for i, number in ((1, page.kind), (2, header[2]), (3, header[3]))}
        return write_struct(sizes | {details: stated}) + data[begin:]

    def dictionary_ranges(self, row_group: RowGroup, leaves: Sequence[int], limits: DecodingLimits) -> list[Range]:
        """Ranges of the dictionaries that `windows` will read, so that one request fetches several."""
        chunks = [
            chunk
            for leaf in leaves
            if (row_group.index, leaf) not in self._longest
            and self._is_remote
            and (chunk := self._chunk(row_group, leaf)).has_dictionary
            and self._may_repeat(row_group, leaf, limits)
        ]
        return [_dictionary_range(chunk) for chunk in chunks]

    def _longest_value(self, row_group: RowGroup, leaf: int, limits: DecodingLimits) -> int:
        """Bytes of the longest value in the dictionary of a chunk; 0 if it has none."""
        chunk = self._chunk(row_group, leaf)
        with refusing_malformed(self._path, lambda: f"row group {row_group.index}, dictionary of {self._name(leaf)}"):
            start, length = _dictionary_range(chunk)
            data = self._source.read_at(length, start)
            if (page := page_facts(data)) is None:
                raise ValueError("a dictionary page without header, or one without sizes")
            if page.kind != DICTIONARY_PAGE or not page.num_values:
                return 0
            if (end := page.body + page.stored_bytes) > len(data):
                data = self._source.read_at(end, start)
            self._check_page(row_group, leaf, page.plain_bytes, limits)
            _check_totals(chunk, page.plain_bytes, 0)
            values = _as_plain_page(chunk, page.plain_bytes, page.num_values, data[page.body : end])
            return int(_lengths(values).max())

    def _costs(
        self, row_group: RowGroup, leaves: Sequence[int], per_row: int, limits: DecodingLimits
    ) -> Iterator[Costs]:
        """Bytes that these leaf columns take in every row, and `per_row` more, for some rows after the other."""
        together = sum(self._decoder_bytes(row_group, leaf) for leaf in leaves)
        if len(leaves) > 1 and _COST_BYTES * row_group.num_rows < together > limits.target_bytes:
            costs, step = np.full(row_group.num_rows, per_row, np.int64), limits.target_bytes // (8 * _COST_BYTES)
            for leaf in leaves:
                begin = 0
                for part in self._measured(row_group, leaf, max(min(_MEASURED_ROWS, step), 1), is_frugal=True):
                    costs[begin : begin + len(part)] += part
                    begin += len(part)
            yield costs
            return
        values = sum(self._chunk(row_group, leaf).num_values for leaf in leaves) // max(row_group.num_rows, 1)
        num_rows = max(min(_MEASURED_ROWS, limits.target_bytes // max(values * 2 * _OFFSET_BYTES, 1)), 1)
        streams = [self._measured(row_group, leaf, num_rows) for leaf in leaves]
        parts = [np.zeros(0, np.int64) for _ in leaves]
        while True:
            parts = [part if len(part) else next(more, part) for part, more in zip(parts, streams, strict=True)]
            if not (common := min(map(len, parts))):
                return
            yield sum((part[:common] for part in parts), np.full(common, per_row, np.int64))
            parts = [part[common:] for part in parts]

    def _measured(self, row_group: RowGroup, leaf: int, num_rows: int, *, is_frugal: bool = False) -> Iterator[Costs]:
        """Bytes that the values of one leaf column take in every row, by their codes."""
        source, metadata = self._source.for_arrow(), self._layout.metadata
        is_frugal = is_frugal or self._layout.suits_system_memory(row_group.index, [leaf])
        reader = open_decoder(source, metadata, (leaf,), buffer_bytes=BUFFER_BYTES, is_frugal=is_frugal)
        found = 0
        with refusing_malformed(self._path, lambda: f"row group {row_group.index}, column {self._name(leaf)}"):
            for batch in reader.iter_batches(num_rows, [row_group.index], [leaf], False):
                costs = row_bytes(batch.column(0))
                found += len(costs)
                yield costs
        if found != row_group.num_rows:
            raise MalformedTableError(
                f"{self._path}: row group {row_group.index}: column {self._name(leaf)} has {found} of "
                f"{row_group.num_rows} rows"
            )

    def _walked(self, row_group: RowGroup, leaf: int) -> ChunkPages:
        """Facts from the page headers of a chunk, which are compared with the footer."""
        key = row_group.index, leaf
        if (known := self._pages.get(key)) is not None:
            return known
        chunk = self._chunk(row_group, leaf)
        num_bytes = num_values = largest = repeated = 0
        prefixed: list[PageFacts] = []
        with refusing_malformed(self._path, lambda: f"row group {row_group.index}, column {self._name(leaf)}"):
            for page in page_walk(self._source.read_at, chunk):
                plain = page.plain_bytes
                num_bytes += plain
                largest = max(largest, plain)
                if page.kind == DICTIONARY_PAGE:
                    continue
                num_values += page.num_values
                is_known = not self._is_remote and page.encoding in _BY_DICTIONARY
                if not is_known and not is_encoding_stated(chunk, page.encoding):  # sizes were bounded without it
                    raise ValueError(f"the page at {page.offset} has encoding {page.encoding}, which the footer omits")
                if page.encoding in _BY_DICTIONARY:
                    repeated += page.num_values
                elif page.encoding == DELTA_BYTE_ARRAY and page.num_values:
                    prefixed.append(page)
            _check_totals(chunk, num_bytes, num_values)
        return self._pages.setdefault(key, ChunkPages(largest, repeated, tuple(prefixed)))

    def _name(self, leaf: int) -> str:
        return repr(".".join(self._layout.footer.leaves[leaf].path))


def _check_totals(chunk: Chunk, num_bytes: int, num_values: int) -> None:
    """Compare what pages of a chunk hold with what the footer states of all of them."""
    if num_bytes > max(chunk.uncompressed_bytes, chunk.num_bytes):
        raise ValueError(f"its pages hold {num_bytes} bytes, the footer states {chunk.uncompressed_bytes}")
    if num_values > chunk.num_values:
        raise ValueError(f"its pages hold {num_values} values, the footer states {chunk.num_values}")


def _dictionary_range(chunk: Chunk) -> Range:
    """Where the dictionary page of a chunk lies, if it has one."""
    return chunk.start, min(chunk.num_bytes, max(chunk.data_page_offset - chunk.start, _HEADER_BYTES))


def page_walk(read_at: Callable[[int, int], Raw], chunk: Chunk) -> Iterator[PageFacts]:
    """The pages of a chunk by their headers alone, which `read_at` gives by length and offset.

    Raises:
        ValueError: a header that cannot be read.
    """
    position, end, values = chunk.start, chunk.start + chunk.num_bytes, 0
    while position < end and values < chunk.num_values:
        for window in _HEADER_WINDOWS:
            page = page_facts(read_at(min(window, end - position), position))
            if page is not None or window >= end - position:
                break
        if page is None:
            raise ValueError(f"the page at {position} has no header, or one without sizes")
        page = page._replace(body=position + page.body, offset=position)
        yield page
        if page.kind != DICTIONARY_PAGE:
            values += page.num_values
        position = page.body + page.stored_bytes


def _max_plain_bytes(chunk: Chunk) -> int:
    """Upper bound of its decoded pages in bytes, independent of their headers and the footer."""
    return chunk.num_bytes * _MAX_EXPANSION.get(chunk.codec, _LARGEST_EXPANSION)


def row_bytes(array: pa.Array) -> Costs:
    """Bytes that each value of an array takes, those of a dictionary at their length."""
    if isinstance(array, pa.DictionaryArray):
        lengths = _lengths(array.dictionary)
        codes = array.indices.fill_null(len(lengths)).to_numpy()
        found: Costs = np.append(lengths, 0).astype(np.int64)[codes]
        return found
    if pt.is_struct(array.type):
        parts = [row_bytes(child) for child in array.flatten()]
        return sum(parts, np.zeros(len(array), np.int64))
    if pt.is_map(array.type):
        entries = array.keys, array.items
        return _sums(sum((row_bytes(child) for child in entries), np.zeros(len(entries[0]), np.int64)), array.offsets)
    if pt.is_list(array.type) or pt.is_large_list(array.type):
        return _sums(row_bytes(array.values), array.offsets)
    return np.zeros(len(array), np.int64)


def _lengths(array: pa.Array) -> Costs:
    """Bytes of each text or binary value."""
    kind = np.dtype(np.int64 if pt.is_large_string(array.type) or pt.is_large_binary(array.type) else np.int32)
    first = array.offset * kind.itemsize
    return np.diff(np.frombuffer(array.buffers()[1], kind, len(array) + 1, first)).astype(np.int64)


def _sums(values: Costs, offsets: pa.Array) -> Costs:
    edges = np.concatenate([np.zeros(1, np.int64), np.cumsum(values)])
    at = offsets.to_numpy()
    found: Costs = edges[at[1:]] - edges[at[:-1]]
    return found


@cache
def _width(kind: pa.DataType) -> int | None:
    """Bytes of a value; None if values differ."""
    try:
        bits: int = kind.bit_width
    except ValueError:
        return None
    return -(-bits // 8)


@cache
def _number_leaf(lists: int, optional: int) -> Leaf:
    """A leaf column of numbers below so many lists and groups that may be missing."""
    names = (*(f"level{i}" for i in range(lists + optional)), "value")
    repetitions = [_REPEATED] * lists + [_OPTIONAL] * optional
    groups = [
        write_struct({3: I32Value(repetition), 4: name.encode(), 5: I32Value(1)})
        for name, repetition in zip(names, repetitions, strict=False)
    ]
    leaf = write_struct({1: I32Value(_INT32), 3: I32Value(0), 4: b"value"})
    return Leaf(names, _INT32, lists, (*groups, leaf))


def _as_plain_page(chunk: Chunk, plain_bytes: int, count: int, body: bytes) -> pa.Array:
    """The values of a dictionary page, decoded as those of a data page: both are written alike."""
    header = write_struct(
        {
            1: I32Value(DATA_PAGE),
            2: I32Value(plain_bytes),
            3: I32Value(len(body)),
            5: {1: I32Value(count), 2: I32Value(PLAIN), 3: I32Value(_RLE), 4: I32Value(_RLE)},
        }
    )
    element = write_struct({1: I32Value(BYTE_ARRAY), 3: I32Value(0), 4: b"value"})
    leaf = Leaf(("value",), BYTE_ARRAY, 0, (element,))
    file = page_file(chunk, leaf, (b"", [header + body]), count, count)
    return (
        open_decoder(pa.BufferReader(file), None, (), is_frugal=True)
        .read_row_group(0, [0], False)
        .column(0)
        .combine_chunks()
    )
