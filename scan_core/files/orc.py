"""ORC files as a FileReader: stripes as row groups, only the columns asked for.

pyarrow decodes; this module adds field ids, bounds of what a stripe becomes, and timestamps outside of the range of
nanoseconds. pyarrow decodes whole stripes alone: where few rows of one are wanted, the row groups that hold them are decoded here.
"""

import math
import struct
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from decimal import Decimal, InvalidOperation
from functools import cache
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.orc as po
import pyarrow.types as pt

from nevermore.scan_core.columns.file_reader import (
    BROKEN_BYTES,
    DecodingLimits,
    FileReader,
    OnDemand,
    PageStatistics,
    ReadCounts,
    RowGroup,
    refusing_malformed,
)
from nevermore.scan_core.files.orc_streams import (
    BITS,
    BLOOM_FILTER,
    BYTES,
    DATA,
    DICTIONARY,
    INTEGERS,
    LENGTH,
    MAX_FIELDS,
    PRESENT,
    ROW_INDEX,
    SECONDARY,
    Encoding,
    Form,
    OrcBloomFilter,
    OrcTail,
    Position,
    StreamPart,
    Stripe,
    StripeFooter,
    blocks_of,
    bound_sum,
    decompress,
    exact_sum,
    first_of_each,
    items_of,
    message_of,
    parse_bloom_filters,
    parse_stripe_footer,
    parse_stripe_statistics,
    parse_tail,
    position_at,
    positions_of,
    require_small_footer,
    zigzag,
)
from nevermore.scan_core.io.files import open_source
from nevermore.scan_core.io.location import FileIOConfig
from nevermore.scan_core.io.remote import ByteSource
from nevermore.scan_core.model.cached_property import cached_property
from nevermore.scan_core.model.errors import MemoryLimitError
from nevermore.scan_core.model.options import DEFAULT_MEMORY_LIMIT_BYTES
from nevermore.scan_core.model.schema import FIELD_ID_KEY, MAX_TYPE_DEPTH
from nevermore.scan_core.model.statistics import ColumnStatistics, text_of
from nevermore.scan_core.rows.buffers import validity_bitmap
from nevermore.scan_core.rows.selection import RowSelection, select_rows, selected_count, to_mask

MAX_STRIPE_ROWS = 1 << 27
_MAX_ROWS_PER_BYTE = 1 << 17
"""A constant column compresses to about 25,000 rows a byte; more is a lie that would only cost memory."""
_MAX_METADATA_BYTES = 64 * 1024**2
_MIN_BYTES_LEFT_OUT = 64
"""For each row that is decoded here, as this takes longer than in pyarrow."""
_MAX_BYTES_PER_ROW = 256
"""What decoding here holds for a row that is a run of its own."""
_COPIES = 4
"""That decoding row groups holds of their texts."""
_DECODED_SHARE = 2
"""What the columns of a stripe may take: half of the memory limit."""
_DEFAULT_MAX_BYTES = DEFAULT_MEMORY_LIMIT_BYTES // 2
"""Where nobody has stated a limit."""
_TOO_FAR = "nanosecond resolution"
"""What the decoder says of timestamps before 1678 or after 2261: it knows no other unit."""


def open_orc(path: str, io: FileIOConfig, *, reads_pages: bool = True) -> "OrcFileReader":
    """Open an ORC file and read its tail; `reads_pages` as in `open_file`, of the row groups inside stripes.

    Raises:
        MissingFileError: no such file.
        MalformedTableError: truncated, or a tail that contradicts itself.
    """
    return OrcFileReader(path, open_source(path, io), reads_pages=reads_pages)


class OrcFileReader(FileReader):
    """An open ORC file."""

    def __init__(self, path: str, source: ByteSource, *, reads_pages: bool) -> None:
        self.path = path
        self.counts = ReadCounts()
        self._source = source
        self._max_bytes = _DEFAULT_MAX_BYTES
        self._reads_pages = reads_pages
        self._contents: dict[int, StripeContent] = {}
        self._pages: dict[tuple[int, int], PageStatistics | None] = {}
        with refusing_malformed(path, "file tail"):
            require_small_footer(source)
            self._file = po.ORCFile(source.for_arrow())
            size = source.size()
            self._tail = parse_tail(self._file.reader.serialized_file_tail(), size)
            self._stored_schema: pa.Schema = self._file.schema
            self.arrow_schema: pa.Schema = pa.schema([_with_ids(f, 0) for f in self._stored_schema])
            if len(self._tail.stripes) != self._file.nstripes:
                raise ValueError(f"{len(self._tail.stripes)} stripes, but {self._file.nstripes} can be read")
            self.row_groups: Sequence[RowGroup] = self._row_groups()
        self.num_rows: int = self._tail.num_rows
        self.has_field_ids = any((f.metadata or {}).get(FIELD_ID_KEY) for f in self.arrow_schema)

    def read(
        self,
        row_group: RowGroup,
        column_indices: Sequence[int],
        selection: RowSelection,
        window: range | None = None,
    ) -> list[pa.Array]:
        """Top-level columns by index, only the selected rows, in file types.

        Raises:
            MalformedTableError: a stripe that cannot be decoded; names file and columns.
        """
        del window
        if not column_indices or not selected_count(selection):
            return [pa.array([], self.arrow_schema.field(i).type) for i in column_indices]
        found = self._read_row_groups(row_group, column_indices, selection)
        if whole := [i for i in column_indices if i not in found]:
            found |= zip(whole, select_rows(self._read_stripe(row_group, whole), selection), strict=True)
        return [found[i] for i in column_indices]

    def _read_stripe(self, row_group: RowGroup, column_indices: Sequence[int]) -> list[pa.Array]:
        fields = [self.arrow_schema.field(i) for i in column_indices]
        names = ", ".join(repr(f.name) for f in fields)
        with (
            refusing_malformed(self.path, f"stripe {row_group.index}, columns {names}"),
            self._held(row_group.index, column_indices),
        ):
            self._require_fit(row_group, column_indices)
            arrays = self._decode(row_group.index, column_indices)
            for array in arrays:
                if len(array) != row_group.num_rows:
                    raise ValueError(f"{len(array)} of {row_group.num_rows} rows")
                array.validate(full=True)  # the decoder does not check that strings are UTF-8
            return [_typed(a, f.type) for a, f in zip(arrays, fields, strict=True)]

    def _read_row_groups(
        self, row_group: RowGroup, column_indices: Sequence[int], selection: RowSelection
    ) -> dict[int, pa.Array]:
        """The selected rows of the columns for which decoding only the span of row groups with such rows saves enough."""
        found, count = dict[int, pa.Array](), self._num_groups(row_group)
        if not self._reads_pages or not count:
            return found
        wanted, stride, content = to_mask(selection), self._tail.index_stride, self._content(row_group.index)
        groups = range(int(wanted.argmax()) // stride, -(-(len(wanted) - int(wanted[::-1].argmax())) // stride))
        wanted, left = wanted[groups.start * stride : groups.stop * stride], self._max_bytes
        if len(wanted) * _MAX_BYTES_PER_ROW > left:
            return found
        sizes = {i: self._stored_bytes(content, i) for i in column_indices}
        chosen = [i for i, n in sizes.items() if n * (1 - len(groups) / count) >= _MIN_BYTES_LEFT_OUT * len(wanted)]
        located = dict[int, dict[int, StreamPart]]()
        with self._source.held([place for i in chosen if (place := content.place(self._column_ids[i], ROW_INDEX))[1]]):
            for i in chosen:
                with self._counting_fallback():
                    located[i] = self._locate(content, i, groups, count)
        with self._source.held([part.place for streams in located.values() for part in streams.values()]):
            for i in [*located]:
                with self._counting_fallback():
                    if streams := located.pop(i):  # what is out of compression is held for one column at a time
                        kind, column = self._stored_schema.field(i).type, self._column_ids[i]
                        array = _decode_rows(content, column, kind, streams, wanted, left // _COPIES)
                        array.validate(full=True)
                        left -= array.nbytes * _COPIES
                        found[i] = _typed(array, self.arrow_schema.field(i).type)
                        self.counts.bytes_left_out += sizes[i] - sum(part.place[1] for part in streams.values())
                        self.counts.pages_read += len(groups)
                        self.counts.pages_left_out += count - len(groups)
        return found

    @contextmanager
    def _counting_fallback(self) -> Iterator[None]:
        """What is not as expected, or takes too much, is decoded with the stripe, which is refused where that is so, too."""
        try:
            yield
        except BROKEN_BYTES:
            self.counts.fallbacks += 1

    def _num_groups(self, row_group: RowGroup) -> int:
        """Number of the row groups of a stripe; 0 if it has no index of them."""
        stride, rows = self._tail.index_stride, row_group.num_rows
        return -(-rows // stride) if 0 < stride < rows <= stride * MAX_FIELDS else 0

    def _locate(self, content: "StripeContent", column_index: int, groups: range, count: int) -> dict[int, StreamPart]:
        """The streams of a column, by kind, in some of its row groups; none if it can only be read as a whole.

        Raises:
            LookupError, ValueError: an index that is not one of so many row groups and such streams.
        """
        column, streams = self._column_ids[column_index], content.footer.streams
        forms = _forms(self._stored_schema.field(column_index).type, content.footer.encoding(column))
        if not forms or (column, ROW_INDEX) not in streams or (0, PRESENT) in streams:
            return {}
        if (column, PRESENT) in streams:
            forms = {PRESENT: BITS} | forms
        entries = items_of(content.stream(column, ROW_INDEX))
        if len(entries) != count:
            raise ValueError(f"{len(entries)} entries for {count} row groups")
        ends = [content.end(column, kind) for kind in forms]
        at: Sequence[Sequence[Position]] = OnDemand(
            count + 1, lambda group: positions_of(entries[group], forms.values(), self._tail) if group < count else ends
        )
        located = {}
        for number, kind in enumerate(forms):
            (offset, length), begin, end = (
                content.place(column, kind),
                at[groups.start][number],
                at[groups.stop][number],
            )
            stop = end[0]
            if any(end[1:]):  # a block, or a run, goes on behind the end, and ends before another block of a row group
                later = (at[group][number][0] for group in range(groups.stop + 1, count))
                stop = next((block for block in later if block > stop), length)
            # flags of NULL are counted from a whole byte on
            if not begin[0] <= stop <= length or (
                kind == PRESENT and ((begin[2] or 0) - groups.start * self._tail.index_stride) % 8
            ):
                raise ValueError(f"row groups from byte {begin[0]} to {stop} of a stream of {length} bytes")
            located[kind] = content.part(column, kind, begin, end)
            located[kind].place = offset + begin[0], stop - begin[0]
        for kind in () if content.footer.encoding(column).dictionary_size is None else (LENGTH, DICTIONARY):
            located[kind] = content.part(column, kind, end=content.end(column, kind))
            located[kind].place = content.place(column, kind)
        return located

    def statistics(self, row_group: RowGroup, column_index: int) -> ColumnStatistics | None:
        """Statistics of a top-level primitive column, from those of the stripe."""
        kind = self.arrow_schema.field(column_index).type
        if pt.is_nested(kind) or self._stripe_statistics is None:
            return None
        with refusing_malformed(self.path, f"statistics of stripe {row_group.index}"):
            try:
                message = self._stripe_statistics[row_group.index][self._column_ids[column_index]]
            except IndexError:
                return None
            return column_statistics(message, row_group.num_rows, kind)

    def page_statistics(self, row_group: RowGroup, column_index: int) -> PageStatistics | None:
        """Statistics of the row groups inside the stripe, from its row index and Bloom filters; None if it has no usable index."""
        key = row_group.index, column_index
        if key not in self._pages:
            with refusing_malformed(self.path, f"row index of stripe {row_group.index}"):
                self._pages[key] = self._indexed(row_group, column_index)
        return self._pages[key]

    def windows(
        self, row_group: RowGroup, column_indices: Sequence[int], rows: range, limits: DecodingLimits
    ) -> list[range] | None:
        """None: a stripe is not decoded in windows, and `read` refuses what becomes too large."""
        del row_group, column_indices, rows
        self._max_bytes = _DECODED_SHARE * limits.max_bytes
        return None

    def compressed_bytes(self, row_group: RowGroup, column_indices: Sequence[int]) -> int:
        """Stored size of these columns of the stripe; until its footer was read, as if all columns were equally wide."""
        if (content := self._contents.get(row_group.index)) is not None:
            return sum(self._stored_bytes(content, i) for i in column_indices)
        return row_group.num_bytes * len(column_indices) // max(len(self.arrow_schema), 1)

    def close(self) -> None:
        """Release the file."""
        self._source.close()

    def _stored_bytes(self, content: "StripeContent", column_index: int) -> int:
        return sum(length for _, length in content.footer.data_ranges(self._types_of(column_index)))

    def _types_of(self, column_index: int) -> range:
        """The numbers of a column and of all below it."""
        first = self._column_ids[column_index]
        return range(first, first + _type_count(self._stored_schema.field(column_index).type))

    @cached_property
    def _stripe_statistics(self) -> Sequence[list[bytes]] | None:
        length = self._tail.metadata_length
        if not 0 < length <= _MAX_METADATA_BYTES or length > self._source.size():
            return None
        with refusing_malformed(self.path, "stripe statistics"):
            section = self._source.read_at(length, self._tail.metadata_offset)
            if (found := parse_stripe_statistics(section, self._tail)) is None:
                return None
        return OnDemand(len(found), lambda stripe: list(map(bytes, items_of(found[stripe]))))

    @cached_property
    def _column_ids(self) -> list[int]:
        """ORC numbers all types of the schema in pre-order; 0 is the root."""
        ids, following = [], 1
        for field in self._stored_schema:
            ids.append(following)
            following += _type_count(field.type)
        return ids

    def _row_groups(self) -> tuple[RowGroup, ...]:
        groups: list[RowGroup] = []
        position = 0
        for index, stripe in enumerate(self._tail.stripes):
            if stripe.num_rows > min(MAX_STRIPE_ROWS, _MAX_ROWS_PER_BYTE * stripe.num_bytes):
                raise ValueError(f"stripe {index} claims {stripe.num_rows} rows in {stripe.num_bytes} bytes")
            groups.append(RowGroup(index, position, stripe.num_rows, stripe.offset, stripe.num_bytes))
            position += stripe.num_rows
        return tuple(groups)

    def _require_fit(self, row_group: RowGroup, column_indices: Sequence[int]) -> None:
        """Refuse a stripe before it is decoded: a few bytes may stand for one long text in each of millions of rows."""
        columns = set(column_indices if self._can_select else range(len(self._stored_schema)))
        names = ", ".join(repr(self._stored_schema.names[i]) for i in sorted(columns)[:5])
        names += f" and {len(columns) - 5} more" if len(columns) > 5 else ""
        types = [(self._stored_schema.field(i).type, self._column_ids[i]) for i in columns]
        content = self._content(row_group.index)
        # run headers bound most stripes well enough; decoding the lengths of all values costs ten times as much
        num_bytes = _bound_decoded_bytes(types, content, self._max_bytes)
        if num_bytes > self._max_bytes:
            num_bytes = _bound_decoded_bytes(types, content, self._max_bytes, exact_sum)
        if num_bytes > self._max_bytes:
            raise MemoryLimitError(
                f"{self.path}: stripe {row_group.index} decodes to more than {self._max_bytes} bytes (columns {names}), and "
                "a stripe is decoded at once; raise memory_limit_bytes or select fewer columns"
            )

    def _content(self, stripe: int) -> "StripeContent":
        if stripe not in self._contents:
            found = self._tail.stripes[stripe]
            length, offset = _footer_range(found)[::-1]
            with refusing_malformed(self.path, f"footer of stripe {stripe}"):
                footer = parse_stripe_footer(decompress(self._source.read_at(length, offset), self._tail), found)
            self._contents[stripe] = StripeContent(self._source, self._tail, found, footer)
        return self._contents[stripe]

    @contextmanager
    def _held(self, stripe: int, column_indices: Iterable[int]) -> Iterator[None]:
        """What decoding these columns of a stripe reads, fetched at once: near streams are one request on an object store."""
        content, types = self._content(stripe), self._stored_schema
        chosen = column_indices if self._can_select else range(len(types))
        streams = [place for c in chosen for place in content.footer.data_ranges(self._types_of(c))]
        # the decoder reads the footer again; it lies behind all columns, and would be a bridge to them
        with self._source.held([_footer_range(content.stripe)]), self._source.held(streams):
            yield

    def _indexed(self, row_group: RowGroup, column_index: int) -> PageStatistics | None:
        kind, count = self.arrow_schema.field(column_index).type, self._num_groups(row_group)
        content, column = self._content(row_group.index), self._column_ids[column_index]
        if pt.is_nested(kind) or not count or (column, ROW_INDEX) not in content.footer.streams:
            return None
        try:
            entries = items_of(content.stream(column, ROW_INDEX))
        except pa.ArrowNotImplementedError:  # a codec that is not decompressed here
            return None
        if len(entries) != count:
            self.counts.fallbacks += 1
            return None
        edges = np.append(np.arange(count) * self._tail.index_stride, row_group.num_rows)
        found = zip(entries, np.diff(edges).tolist(), strict=True)
        statistics = [column_statistics(bytes(first_of_each(entry).get(2, b"")), size, kind) for entry, size in found]
        # values of other types are not hashed unchanged, and writers differ in what they hash
        has_filters = (column, BLOOM_FILTER) in content.footer.streams and (pt.is_integer(kind) or pt.is_string(kind))
        return PageStatistics(edges, statistics, self._filters(content, column, len(entries)) if has_filters else None)

    def _filters(
        self, content: "StripeContent", column: int, count: int
    ) -> Callable[[int], Callable[[Any], bool] | None]:
        """The Bloom filters of the row groups of a column, which are read when the first is asked for."""

        @cache
        def filters() -> list[OrcBloomFilter | None]:
            with refusing_malformed(self.path, f"Bloom filters of type {column}"):
                stored = content.stream(column, BLOOM_FILTER)
                self.counts.bloom_filters_read += 1
                self.counts.bloom_bytes_read += len(stored)
                found = parse_bloom_filters(stored)
            if len(found) != count:
                self.counts.fallbacks += 1
                return [None] * count
            return found

        def test(page: int) -> Callable[[Any], bool] | None:
            found = filters()[page]
            return None if found is None else found.excludes

        return test

    @cached_property
    def _can_select(self) -> bool:
        """Whether names are paths to one column each: pyarrow selects columns by name."""
        names = self._stored_schema.names
        return not any("." in name for name in names) and len(set(names)) == len(names)

    def _decode(self, stripe: int, column_indices: Sequence[int]) -> list[pa.Array]:
        """Columns of a stripe; those with timestamps that nanoseconds cannot hold in microseconds."""
        names = self._stored_schema.names
        columns = {i: names[i] if self._can_select else i for i in column_indices}
        try:
            batch = self._file.reader.read_stripe(stripe, list(columns.values()) if self._can_select else None)
            return [batch.column(columns[i]) for i in column_indices]
        except pa.ArrowInvalid as error:
            if _TOO_FAR not in str(error):
                raise
            if len(columns) > 1:
                return [array for i in column_indices for array in self._decode(stripe, [i])]
            field = self._stored_schema.field(column_indices[0])
            if not pt.is_timestamp(field.type):
                raise pa.ArrowNotImplementedError(f"column {field.name!r}: {error}") from error
            return [read_timestamps(self._content(stripe), self._column_ids[column_indices[0]])]


def _forms(kind: pa.DataType, encoding: Encoding) -> dict[int, Form]:
    """The streams of a column with positions in the row index, in their order; none of columns that are not decoded here."""
    if _is_text(kind):
        return {DATA: BYTES, LENGTH: INTEGERS} if encoding.dictionary_size is None else {DATA: INTEGERS}
    if pt.is_floating(kind):
        return {DATA: BYTES}
    if pt.is_timestamp(kind):
        return {DATA: INTEGERS, SECONDARY: INTEGERS}
    return {DATA: INTEGERS} if pt.is_date(kind) or (pt.is_integer(kind) and kind.bit_width > 8) else {}


def _footer_range(stripe: Stripe) -> tuple[int, int]:
    return stripe.offset + stripe.num_bytes - stripe.footer_bytes, stripe.footer_bytes


def _typed(array: pa.Array, kind: pa.DataType) -> pa.Array:
    if array.type == kind or pt.is_timestamp(kind):
        return array
    return array.view(kind)


def _children(kind: pa.DataType) -> list[pa.DataType]:
    """The types below one as ORC has them: a map has no type of its own for its entries."""
    if pt.is_map(kind):
        return [kind.key_type, kind.item_type]
    return [kind.field(i).type for i in range(kind.num_fields)] if pt.is_nested(kind) else []


def _type_count(kind: pa.DataType) -> int:
    return 1 + sum(map(_type_count, _children(kind)))


def _with_ids(field: pa.Field, depth: int) -> pa.Field:
    """The field with its id where readers expect it, and with the Iceberg type that its attributes name."""
    if depth > MAX_TYPE_DEPTH:
        raise ValueError(f"schema nests deeper than {MAX_TYPE_DEPTH} levels")
    attributes = field.metadata or {}
    field_id = attributes.get(b"iceberg.id")
    if field_id is not None and not field_id.isdigit():
        raise ValueError(f"column {field.name!r}: attribute iceberg.id is {field_id!r:.40}")
    kind = _with_ids_below(field.type, depth + 1)
    if kind == pa.int64() and attributes.get(b"iceberg.long-type") == b"TIME":
        kind = pa.time64("us")
    metadata = None if field_id is None else {FIELD_ID_KEY: field_id}
    return pa.field(field.name, kind, field.nullable, metadata)


def _with_ids_below(kind: pa.DataType, depth: int) -> pa.DataType:
    if pt.is_struct(kind):
        return pa.struct([_with_ids(kind.field(i), depth) for i in range(kind.num_fields)])
    if pt.is_list(kind):
        return pa.list_(_with_ids(kind.value_field, depth))
    if pt.is_map(kind):
        return pa.map_(_with_ids(kind.key_field, depth), _with_ids(kind.item_field, depth))
    return kind


def column_statistics(message: bytes, num_rows: int, kind: pa.DataType) -> ColumnStatistics:
    """Statistics of a top-level column; bounds as Python values of `kind`, None where they are missing or not usable."""
    fields = first_of_each(message)
    lacking = num_rows - int(fields.get(1, -1))
    # a writer without indexes counts no values and says that none is NULL; older ones do not say it
    is_known = 0 <= lacking <= num_rows and bool(lacking) == bool(fields.get(10, 0 < lacking < num_rows))
    lower, upper = _bounds(fields, kind)
    if None in (lower, upper):
        lower = upper = None
    return ColumnStatistics(lower, upper, lacking if is_known else None, None, num_rows)


def _bounds(fields: dict[int, Any], kind: pa.DataType) -> tuple[Any, Any]:
    cases = (
        (pt.is_integer, 2, zigzag),
        (pt.is_time, 2, zigzag),
        (pt.is_floating, 3, _double),
        (pt.is_string, 4, _text),
        (pt.is_decimal, 6, _decimal),
        (pt.is_date, 7, zigzag),
    )
    for is_kind, number, read in cases:
        if is_kind(kind):
            inner = message_of(fields, number)  # long text has bounds in place of its least and greatest value
            lower, upper = read(inner.get(1, inner.get(4))), read(inner.get(2, inner.get(5)))
            # a zero stands for either
            return (-0.0, upper) if is_kind is pt.is_floating and lower == 0 else (lower, upper)
    return None, None


def _double(value: Any) -> float | None:
    if not isinstance(value, memoryview) or len(value) != 8:
        return None
    number: float = struct.unpack("<d", value)[0]
    return None if math.isnan(number) else number + 0.0


def _text(value: Any) -> str | None:
    return text_of(bytes(value)) if isinstance(value, memoryview) else None


def _decimal(value: Any) -> Decimal | None:
    try:
        return Decimal(_text(value) or "")
    except InvalidOperation:
        return None


class StripeContent(NamedTuple):
    """The streams of a stripe, read one by one."""

    source: ByteSource
    tail: OrcTail
    stripe: Stripe
    footer: StripeFooter

    def stream(self, column: int, kind: int) -> bytes:
        """A decompressed stream; empty if it is missing."""
        offset, length = self.place(column, kind)
        return decompress(self.source.read_at(length, offset), self.tail) if length else b""

    def place(self, column: int, kind: int) -> tuple[int, int]:
        """Offset and length of a stream; of one that is missing, none."""
        return self.footer.streams.get((column, kind), (0, 0))

    def end(self, column: int, kind: int) -> Position:
        """The position behind all values of a stream."""
        return *position_at(self.place(column, kind)[1], self.tail), None

    def part(self, column: int, kind: int, begin: Position = (0, 0, 0), end: Position | None = None) -> StreamPart:
        """The values of a stream between two positions; none if it is missing."""
        offset, length = self.place(column, kind)
        blocks = blocks_of(
            lambda size, at: self.source.read_at(size, offset + at),
            begin[0],
            length,
            self.tail,
            are_full=end is not None,
        )
        return StreamPart(blocks, begin, end)


_OFFSET_BYTES = 4
_DICTIONARY_OFFSET_BYTES = 8
"""Of each value in the decoder's dictionary."""


def _bound_decoded_bytes(
    columns: Sequence[tuple[pa.DataType, int]],
    content: StripeContent,
    max_bytes: int,
    sum_lengths: Callable[[StreamPart, int, int], float] = bound_sum,
) -> float:
    """At least the bytes that columns of a stripe become, or some number above `max_bytes` if they are more.

    Streams are looked at, not statistics, which may lie. What is asked of them is bounded by what was counted before.

    Args:
        columns: types, and the numbers that ORC gives them.
        content: of the stripe.
        max_bytes: beyond which counting ends.
        sum_lengths: (stream, number of values, version) -> their sum, or a bound of it.
    """
    total = 0.0
    waiting = [(kind, column, content.stripe.num_rows) for kind, column in columns]
    while waiting:
        kind, column, count = waiting.pop()
        is_text = _is_text(kind)
        is_repeated = pt.is_list(kind) or pt.is_map(kind)
        if is_text or is_repeated:
            total += _OFFSET_BYTES * count
        elif not pt.is_nested(kind):
            total += count * max(kind.bit_width // 8, 1)
        if total > max_bytes:
            return total
        if is_text:
            total += _bound_text(content, column, count, max_bytes - total, sum_lengths)
        elif is_repeated:
            version = content.footer.encoding(column).version
            elements = sum_lengths(content.part(column, LENGTH), count, version)
            if elements > max_bytes * 8:  # a flag takes a bit at least
                return elements
            count = int(elements)
        below = column + 1
        for child in _children(kind):
            waiting.append((child, below, count))
            below += _type_count(child)
    return total


def _bound_text(
    content: StripeContent,
    column: int,
    count: int,
    max_bytes: float,
    sum_lengths: Callable[[StreamPart, int, int], float],
) -> float:
    """The bytes of texts, without offsets."""
    encoding = content.footer.encoding(column)
    if encoding.dictionary_size is None:
        return sum_lengths(content.part(column, LENGTH), count, encoding.version)
    total = float(_DICTIONARY_OFFSET_BYTES * encoding.dictionary_size)
    if total > max_bytes or not encoding.dictionary_size:
        return total
    lengths = content.part(column, LENGTH).integers(encoding.dictionary_size, encoding.version, signed=False)
    if (lengths < 0).any():
        raise ValueError("a length of more than 63 bits")
    total += float(lengths.sum(dtype=np.float64))
    if sum_lengths is bound_sum:
        return total + float(lengths.max()) * count
    if total > max_bytes:
        return total
    return total + exact_sum(content.part(column, DATA), count, encoding.version, lengths)


_EPOCH_SECONDS = 1_420_070_400
"""2015-01-01, from which ORC counts."""
_MAX_TEXT_BYTES = 2**31 - 1
"""Limit of an Arrow array of texts: its offsets have 32 bits."""
_UTC = frozenset({"", "UTC", "GMT", "Etc/UTC", "Etc/GMT", "Z"})


def read_timestamps(content: StripeContent, column: int) -> pa.Array:
    """One top-level timestamp column of a stripe, as `timestamp[us]` without zone; `column` as ORC numbers types.

    Raises:
        LookupError, ValueError: streams that end early or contradict each other.
        pa.ArrowNotImplementedError: a codec, encoding or time zone that is not supported.
    """
    kinds = (PRESENT, DATA, SECONDARY)
    streams = {kind: content.part(column, kind) for kind in kinds if (column, kind) in content.footer.streams}
    wanted = np.ones(content.stripe.num_rows, np.bool_)
    return _decode_rows(content, column, pa.timestamp("us"), streams, wanted, 0)


def _decode_rows(  # noqa: PLR0917  private
    content: StripeContent,
    column: int,
    kind: pa.DataType,
    streams: Mapping[int, StreamPart],
    wanted: npt.NDArray[np.bool_],
    max_bytes: int,
) -> pa.Array:
    """The wanted rows of a part of a top-level column.

    Args:
        content: of the stripe.
        column: as ORC numbers types.
        kind: of the column.
        streams: parts that hold the rows, by their kind.
        wanted: one flag per row.
        max_bytes: that texts may take.

    Raises:
        LookupError, ValueError: streams that contradict themselves, or the positions of the parts.
        OverflowError: texts of more bytes.
        pa.ArrowNotImplementedError: a codec, encoding or time zone that is not supported.
    """
    present = streams[PRESENT].booleans(len(wanted)) if PRESENT in streams else np.ones(len(wanted), np.bool_)
    count, encoding = int(np.count_nonzero(present)), content.footer.encoding(column)
    places = _array(pa.int64(), (np.cumsum(present) - 1)[wanted], present[wanted])

    def numbers(stream: int, *, signed: bool = False) -> npt.NDArray[np.int64]:
        return streams[stream].integers(count, encoding.version, signed=signed)

    if _is_text(kind):
        if (size := encoding.dictionary_size) is None:
            return _texts(kind, numbers(LENGTH), streams[DATA], max_bytes).take(places)
        if size * _MAX_BYTES_PER_ROW > max_bytes:
            raise OverflowError("a dictionary of more values than the memory limit allows")
        lengths = streams[LENGTH].integers(size, encoding.version, signed=False)
        dictionary = _texts(kind, lengths, streams[DICTIONARY], max_bytes)
        codes = _array(pa.int64(), numbers(DATA)).take(places)
        if (pc.sum(pc.binary_length(dictionary).take(codes)).as_py() or 0) > max_bytes:
            raise OverflowError("texts of more bytes than the memory limit allows")
        return dictionary.take(codes)
    width = kind.bit_width // 8
    if pt.is_floating(kind):
        values = streams[DATA].raw(count * width).view(f"f{width}")
    elif not pt.is_timestamp(kind):
        values = numbers(DATA, signed=True).astype(f"i{width}")
    elif kind.tz or content.footer.zone in _UTC:
        values = _since_1970(numbers(DATA, signed=True), numbers(SECONDARY), 10**9 if kind.unit == "ns" else 10**6)
    else:
        raise pa.ArrowNotImplementedError(f"timestamps written in the time zone {content.footer.zone!r:.40}")
    return _array(kind, values).take(places)


def _array(kind: pa.DataType, values: npt.NDArray[Any], valid: npt.NDArray[np.bool_] | None = None) -> pa.Array:
    """The values as an Arrow array over the same memory."""
    return pa.Array.from_buffers(kind, len(values), [validity_bitmap(valid), pa.py_buffer(values)])


def _texts(kind: pa.DataType, lengths: npt.NDArray[np.int64], data: StreamPart, max_bytes: int) -> pa.Array:
    if (lengths < 0).any() or lengths.sum(dtype=np.float64) > min(max_bytes, _MAX_TEXT_BYTES):
        raise OverflowError("texts of more bytes than the memory limit allows")
    offsets = np.append(0, np.cumsum(lengths)).astype(np.int32)
    buffers = [None, pa.py_buffer(offsets), pa.py_buffer(data.raw(int(offsets[-1])))]
    return pa.Array.from_buffers(kind, len(lengths), buffers)


def _is_text(kind: pa.DataType) -> bool:
    return bool(pt.is_string(kind) or pt.is_binary(kind))


def _since_1970(
    seconds: npt.NDArray[np.int64], encoded: npt.NDArray[np.int64], per_second: int
) -> npt.NDArray[np.int64]:
    """Parts of a second since 1970; the last three bits of nanoseconds are the number of zeros cut off, less one."""
    zeros = encoded & 7
    nanos = (encoded >> 3) * np.where(zeros, 10 ** (zeros + 1), 1)
    most = 2**63 // per_second - 1 - _EPOCH_SECONDS
    if not ((nanos > -(10**9)) & (nanos < 10**9) & (-most <= seconds) & (seconds <= most)).all():
        raise ValueError(f"a time that 64 bits of {per_second} parts of a second cannot hold")
    seconds = seconds + _EPOCH_SECONDS
    # Java and C++ count seconds before 1970 toward it and nanoseconds away from it; Arrow writes these as negative
    seconds -= (seconds < 0) & (nanos > 999_999)
    found: npt.NDArray[np.int64] = seconds * per_second + nanos // (10**9 // per_second)
    return found
