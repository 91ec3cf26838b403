"""ORC files as a FileReader: stripes as row groups, only the columns asked for.

pyarrow decodes; this module adds field ids, bounds of what a stripe becomes, and timestamps outside of the range of
nanoseconds. Where few rows of a stripe are wanted, an ORC file of the row groups that hold them is made in memory, as pyarrow
decodes whole stripes alone.
"""

import math
import struct
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from decimal import Decimal, InvalidOperation
from functools import cache
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.orc as po
import pyarrow.types as pt

from nevermore.scan_core.columns.file_reader import (
    BROKEN_BYTES,
    DecodingLimits,
    FileReader,
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
    LENGTH,
    PRESENT,
    ROW_INDEX,
    SECONDARY,
    SIGNED,
    UNSIGNED,
    WHOLE,
    Encoding,
    OrcBloomFilter,
    OrcTail,
    StreamPart,
    Stripe,
    StripeFooter,
    decode_integers,
    decode_signed,
    decompress,
    integers,
    last_of_each,
    locate_part,
    message_of,
    parse_bloom_filters,
    parse_row_index,
    parse_stripe_footer,
    parse_stripe_statistics,
    parse_tail,
    require_small_footer,
    write_file,
    zigzag,
)
from nevermore.scan_core.io.files import open_source
from nevermore.scan_core.io.location import FileIOConfig
from nevermore.scan_core.io.remote import ByteRanges, ByteSource, RemoteFile
from nevermore.scan_core.model.cached_property import cached_property
from nevermore.scan_core.model.errors import MalformedTableError, MemoryLimitError
from nevermore.scan_core.model.options import DEFAULT_MEMORY_LIMIT_BYTES
from nevermore.scan_core.model.schema import FIELD_ID_KEY, MAX_TYPE_DEPTH
from nevermore.scan_core.model.statistics import ColumnStatistics, text_of
from nevermore.scan_core.rows.selection import (
    All,
    RowSelection,
    from_ranges,
    relative,
    select_rows,
    selected_count,
    to_indices,
)

MAX_STRIPE_ROWS = 1 << 27
_MAX_ROWS_PER_BYTE = 1 << 17
"""A constant column compresses to about 25,000 rows a byte; more is a lie that would only cost memory."""
_MAX_METADATA_BYTES = 64 * 1024**2
_MAX_SHARE = 0.75
"""Where a larger part of a stripe is wanted, all of it is read: what is left out saves less than reading parts costs."""
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

    def __init__(self, path: str, source: ByteSource, *, reads_pages: bool = False) -> None:
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
            self._stored_tail = self._file.reader.serialized_file_tail()
            self._tail = parse_tail(self._stored_tail, size)
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
        fields = [self.arrow_schema.field(i) for i in column_indices]
        if not fields or selected_count(selection) == 0:
            return [pa.array([], type=f.type) for f in fields]
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
        """The selected rows of columns of which it saves something to read single row groups of the stripe; not of others."""
        stride, rows = self._tail.index_stride, row_group.num_rows
        if not self._reads_pages or not self._can_select or not 0 < stride < rows or isinstance(selection, All):
            return {}
        touched, count = np.unique(to_indices(selection) // stride), -(-rows // stride)
        if len(touched) > count * _MAX_SHARE:
            return {}
        content = self._content(row_group.index)
        runs = np.split(touched, np.flatnonzero(np.diff(touched) > 1) + 1)
        spans = [(int(run[0]), int(run[-1]) + 1) for run in runs]
        ranges = [(begin * stride, min(end * stride, rows)) for begin, end in spans]
        try:
            indexes = (content.footer.streams.get((self._column_ids[i], ROW_INDEX)) for i in column_indices)
            with self._source.held([place for place in indexes if place]):
                located = {i: parts for i in column_indices if (parts := self._located(content, i, spans, count))}
            places = [(p.offset, p.num_bytes) for parts in located.values() for of_span in parts for p in of_span]
            num_bytes, whole_bytes = sum(n for _, n in places), sum(self._stored_bytes(content, i) for i in located)
            if num_bytes >= whole_bytes * _MAX_SHARE:
                return {}
            with self._source.held(places):
                stored = {place: self._source.read_at(*place[::-1]) for place in set(places)}
            stripes = [
                (
                    end - begin,
                    [
                        (p.column, p.kind, p.values(stored[p.offset, p.num_bytes], self._tail))
                        for parts in located.values()
                        for p in parts[span]
                    ],
                )
                for span, (begin, end) in enumerate(ranges)
            ]
            file = write_file(self._stored_tail, content.stored_footer, stripes)
            part = OrcFileReader(self.path, ByteRanges(pa.BufferReader(file)))
            part._max_bytes = self._max_bytes
            read = zip(*(part._read_stripe(group, list(located)) for group in part.row_groups), strict=True)
            arrays = [pa.concat_arrays(of_column) for of_column in read]
        except (MalformedTableError, *BROKEN_BYTES):  # nothing is known but that the stripe is not what was expected
            self.counts.fallbacks += 1
            return {}
        self.counts.bytes_left_out += whole_bytes - num_bytes
        self.counts.pages_read += len(touched) * len(located)
        self.counts.pages_left_out += (count - len(touched)) * len(located)
        return dict(zip(located, select_rows(arrays, relative(selection, from_ranges(ranges, rows))), strict=True))

    def _located(
        self, content: "StripeContent", column_index: int, spans: Sequence[tuple[int, int]], count: int
    ) -> list[list[StreamPart]]:
        """For each span of row groups the parts of the streams of a column; none if these can only be read as a whole.

        Raises:
            ValueError: an index that is not one of so many row groups and such streams.
        """
        column, streams = self._column_ids[column_index], content.footer.streams
        forms = _forms(self._stored_schema.field(column_index).type, content.footer.encoding(column))
        if not forms or (column, ROW_INDEX) not in streams:
            return []
        if (column, PRESENT) in streams:
            forms = {PRESENT: BITS} | forms
        positions = np.array([found for found, _ in parse_row_index(content.stream(column, ROW_INDEX))], np.int64)
        widths = [form[0] and form[0] + (self._tail.compression != 0) for form in forms.values()]
        if positions.shape != (count, sum(widths)):
            raise ValueError(f"positions of {positions.shape} instead of {widths} in {count} row groups")
        tables = np.split(positions, np.cumsum(widths)[:-1], axis=1)
        return [
            [
                locate_part((column, kind, form), streams[column, kind], table[begin:], end - begin, self._tail)
                for (kind, form), table in zip(forms.items(), tables, strict=True)
                if (column, kind) in streams  # others are empty: there is no value in the stripe
            ]
            for begin, end in spans
        ]

    def statistics(self, row_group: RowGroup, column_index: int) -> ColumnStatistics | None:
        """Statistics of a top-level primitive column, from those of the stripe."""
        kind = self.arrow_schema.field(column_index).type
        if pt.is_nested(kind) or self._stripe_statistics is None:
            return None
        try:
            message = self._stripe_statistics[row_group.index][self._column_ids[column_index]]
        except IndexError:
            return None
        with refusing_malformed(self.path, f"statistics of stripe {row_group.index}"):
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
        """None: a stripe is decoded as a whole; `read` refuses one that becomes too large."""
        del row_group, column_indices, rows
        self._max_bytes = _DECODED_SHARE * limits.max_bytes
        return None

    def compressed_bytes(self, row_group: RowGroup, column_indices: Sequence[int]) -> int:
        """Stored size of these columns of the stripe; before its footer was read, as if all columns were equally wide."""
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
    def _stripe_statistics(self) -> list[list[bytes]] | None:
        length = self._tail.metadata_length
        if not 0 < length <= _MAX_METADATA_BYTES or length > self._source.size():
            return None
        with refusing_malformed(self.path, "stripe statistics"):
            section = self._source.read_at(length, self._tail.metadata_offset)
            return parse_stripe_statistics(section, self._tail)

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
        types = [(self._stored_schema.field(i).type, self._column_ids[i]) for i in columns]
        with refusing_malformed(self.path, f"stripe {row_group.index}, columns {names}"):
            content = self._content(row_group.index)
            num_bytes = _bound_decoded_bytes(types, content, self._max_bytes)
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
                stored = decompress(self._source.read_at(length, offset), self._tail)
                footer = parse_stripe_footer(stored, found)
            self._contents[stripe] = StripeContent(self._source, self._tail, found, footer, stored)
        return self._contents[stripe]

    @contextmanager
    def _held(self, stripe: int, column_indices: Iterable[int]) -> Iterator[None]:
        """What decoding these columns of a stripe reads, fetched at once: near streams are one request on an object store."""
        if not isinstance(self._source, RemoteFile):
            yield
            return
        content, types = self._content(stripe), self._stored_schema
        chosen = column_indices if self._can_select else range(len(types))
        streams = [place for c in chosen for place in content.footer.data_ranges(self._types_of(c))]
        # the decoder reads the footer again; it lies behind all columns, and would be a bridge to them
        with self._source.held([_footer_range(content.stripe)]), self._source.held(streams):
            yield

    def _indexed(self, row_group: RowGroup, column_index: int) -> PageStatistics | None:
        kind, stride, rows = self.arrow_schema.field(column_index).type, self._tail.index_stride, row_group.num_rows
        if pt.is_nested(kind) or not 0 < stride < rows:
            return None
        content, column = self._content(row_group.index), self._column_ids[column_index]
        if (column, ROW_INDEX) not in content.footer.streams:
            return None
        try:
            entries = parse_row_index(content.stream(column, ROW_INDEX))
        except pa.ArrowNotImplementedError:  # a codec that is not decompressed here
            return None
        edges = np.append(np.arange(0, rows, stride), rows)
        if len(entries) != len(edges) - 1:
            self.counts.fallbacks += 1
            return None
        sizes = np.diff(edges).tolist()
        statistics = [column_statistics(e, size, kind) for (_, e), size in zip(entries, sizes, strict=True)]
        has_filters = (column, BLOOM_FILTER) in content.footer.streams and _has_hashes(kind)
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


def _forms(kind: pa.DataType, encoding: Encoding) -> dict[int, tuple[int, bool]] | None:
    """The streams of a column that have positions in the row index, in their order; None where that is not known."""
    if pt.is_floating(kind):
        return {DATA: BYTES}
    if pt.is_boolean(kind):
        return {DATA: BITS}
    if encoding.version == 1:  # integers as Hive 0.11 wrote them
        return None
    if pt.is_string(kind) or pt.is_binary(kind):
        if encoding.dictionary_size is None:
            return {DATA: BYTES, LENGTH: UNSIGNED}
        return {DATA: UNSIGNED, DICTIONARY: WHOLE, LENGTH: WHOLE}
    if pt.is_decimal(kind):
        return {DATA: BYTES, SECONDARY: SIGNED}
    if pt.is_timestamp(kind):
        return {DATA: SIGNED, SECONDARY: UNSIGNED}
    return {DATA: SIGNED} if pt.is_date(kind) or (pt.is_integer(kind) and kind.bit_width > 8) else None


def _footer_range(stripe: Stripe) -> tuple[int, int]:
    return stripe.offset + stripe.num_bytes - stripe.footer_bytes, stripe.footer_bytes


def _has_hashes(kind: pa.DataType) -> bool:
    """Whether values are hashed unchanged; for other types, writers differ in what they hash."""
    return bool(pt.is_integer(kind) or pt.is_string(kind))


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
        return pa.struct([_with_ids(field, depth) for field in kind])
    if pt.is_list(kind):
        return pa.list_(_with_ids(kind.value_field, depth))
    if pt.is_map(kind):
        return pa.map_(_with_ids(kind.key_field, depth), _with_ids(kind.item_field, depth))
    return kind


def column_statistics(message: bytes, num_rows: int, kind: pa.DataType) -> ColumnStatistics:
    """Statistics of a top-level column; bounds as Python values of `kind`, None where they are missing or not usable."""
    fields = last_of_each(message)
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
    stored_footer: bytes

    def stream(self, column: int, kind: int) -> bytes:
        """A decompressed stream; empty if it is missing."""
        place = self.footer.streams.get((column, kind))
        return b"" if place is None else decompress(self.source.read_at(place[1], place[0]), self.tail)

    def sum_lengths(self, column: int, count: int) -> float:
        """The sum of the first `count` lengths of a column, or of all: those of NULL are not stored."""
        version = self.footer.encoding(column).version
        parts = integers(self.stream(column, LENGTH), count, version=version, signed=False)
        return sum(float(part.view(np.uint64).sum(dtype=np.float64)) for part in parts)


_OFFSET_BYTES = 4
_DICTIONARY_OFFSET_BYTES = 8
"""Of each value in the decoder's dictionary."""


def _bound_decoded_bytes(columns: Sequence[tuple[pa.DataType, int]], content: StripeContent, max_bytes: int) -> float:
    """At least the bytes that columns of a stripe become, or some number above `max_bytes` if they are more.

    Streams are looked at, not statistics, which may lie. What is asked of them is bounded by what was counted before.

    Args:
        columns: types, and the numbers that ORC gives them.
        content: of the stripe.
        max_bytes: beyond which counting ends.
    """
    total = 0.0
    waiting = [(kind, column, content.stripe.num_rows) for kind, column in columns]
    while waiting:
        kind, column, count = waiting.pop()
        is_text = pt.is_string(kind) or pt.is_binary(kind)
        is_repeated = pt.is_list(kind) or pt.is_map(kind)
        if is_text or is_repeated:
            total += _OFFSET_BYTES * count
        elif not pt.is_nested(kind):
            total += count * max(kind.bit_width // 8, 1)
        if total > max_bytes:
            return total
        if is_text:
            total += _bound_text(content, column, count, max_bytes - total)
        elif is_repeated:
            elements = content.sum_lengths(column, count)
            if elements > max_bytes * 8:  # a flag takes a bit at least
                return elements
            count = int(elements)
        below = column + 1
        for child in _children(kind):
            waiting.append((child, below, count))
            below += _type_count(child)
    return total


def _bound_text(content: StripeContent, column: int, count: int, max_bytes: float) -> float:
    """The bytes of texts, without offsets."""
    encoding = content.footer.encoding(column)
    size, version = encoding.dictionary_size, encoding.version
    if size is None:
        return content.sum_lengths(column, count)
    total = float(_DICTIONARY_OFFSET_BYTES * size)
    if total > max_bytes or not size:
        return total
    lengths = decode_integers(content.stream(column, LENGTH), size, version=version, signed=False).view(np.uint64)
    total += float(lengths.sum(dtype=np.float64))
    if total + (most := float(lengths.max()) * count) <= max_bytes:
        return total + most
    for codes in integers(content.stream(column, DATA), count, version=version, signed=False):
        if codes.view(np.uint64).max() >= size:
            raise ValueError(f"a code outside of a dictionary of {size} values")
        total += float(lengths[codes].sum(dtype=np.float64))
    return total


_EPOCH_SECONDS = 1_420_070_400
"""2015-01-01, from which ORC counts."""
_MAX_SECONDS = 2**63 // 10**6 - 1
_UTC = frozenset({"", "UTC", "GMT", "Etc/UTC", "Etc/GMT", "Z"})


def read_timestamps(content: StripeContent, column: int) -> pa.Array:
    """One top-level timestamp column of a stripe, as `timestamp[us]` without zone; `column` as ORC numbers types.

    Raises:
        ValueError: streams that end early or contradict each other.
        pa.ArrowNotImplementedError: a codec, encoding or time zone that is not supported.
    """
    num_rows, zone = content.stripe.num_rows, content.footer.zone
    if zone not in _UTC:
        raise pa.ArrowNotImplementedError(f"timestamps beyond 1678 to 2261 written in the time zone {zone!r:.40}")
    version = content.footer.encoding(column).version
    stored = {kind: data for kind in (PRESENT, DATA) if (data := content.stream(column, kind))}
    seconds = decode_signed(stored, num_rows, version)
    present = seconds.is_valid().to_numpy(zero_copy_only=False)
    num_values = int(present.sum())
    encoded = decode_integers(content.stream(column, SECONDARY), num_values, version=version, signed=False)
    zeros = encoded & 7  # cut off, less one
    nanos = (encoded >> 3) * np.where(zeros, 10 ** (zeros + 1), 1)
    since = seconds.drop_null().to_numpy()
    if (np.abs(nanos) >= 10**9).any() or (np.abs(since) > _MAX_SECONDS - _EPOCH_SECONDS).any():
        raise ValueError("a timestamp that 64 bits of microseconds cannot hold")
    since = since + _EPOCH_SECONDS
    # Java and C++ count seconds before 1970 toward it and nanoseconds away from it; Arrow writes these as negative
    since -= (since < 0) & (nanos > 999_999)
    micros = np.zeros(num_rows, np.int64)
    micros[present] = since * 1_000_000 + nanos // 1000
    kind: Any = pa.timestamp("us")
    return pa.array(micros, mask=~present).view(kind)
