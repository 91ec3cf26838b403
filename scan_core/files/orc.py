"""ORC files as a FileReader: stripes as row groups, only the columns asked for.

pyarrow decodes; this module adds field ids, bounds of what a stripe becomes, and timestamps outside of the range of
nanoseconds. A stripe is decoded as a whole, as pyarrow offers nothing smaller.
"""

import math
import struct
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from decimal import Decimal, InvalidOperation
from functools import cache
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.orc as po

from nevermore.scan_core.columns.file_reader import (
    DecodingLimits,
    FileReader,
    OnDemand,
    PageStatistics,
    ReadCounts,
    RowGroup,
    refusing_malformed,
)
from nevermore.scan_core.files.orc_streams import (
    BLOOM_FILTER,
    DATA,
    LENGTH,
    PRESENT,
    ROW_INDEX,
    SECONDARY,
    OrcBloomFilter,
    OrcTail,
    Stripe,
    StripeFooter,
    bound_sum,
    decode_booleans,
    decode_integers,
    decompress,
    exact_sum,
    fields_of,
    first_of_each,
    message_of,
    parse_bloom_filters,
    parse_row_index,
    parse_stripe_footer,
    parse_stripe_statistics,
    parse_tail,
    require_small_footer,
    sum_of_codes,
    zigzag,
)
from nevermore.scan_core.io.files import open_source
from nevermore.scan_core.io.location import FileIOConfig
from nevermore.scan_core.io.remote import ByteSource, RemoteFile
from nevermore.scan_core.model.cached_property import cached_property
from nevermore.scan_core.model.errors import MemoryLimitError
from nevermore.scan_core.model.options import DEFAULT_MEMORY_LIMIT_BYTES
from nevermore.scan_core.model.schema import FIELD_ID_KEY, MAX_TYPE_DEPTH
from nevermore.scan_core.model.statistics import ColumnStatistics, text_of
from nevermore.scan_core.rows.selection import RowSelection, select_rows, selected_count

MAX_STRIPE_ROWS = 1 << 27
_MAX_ROWS_PER_BYTE = 1 << 17
"""A constant column compresses to about 25,000 rows a byte; more is a lie that would only cost memory."""
_MAX_METADATA_BYTES = 64 * 1024**2
_DECODED_SHARE = 2
"""What the columns of a stripe may take: half of the memory limit."""
_DEFAULT_MAX_BYTES = DEFAULT_MEMORY_LIMIT_BYTES // 2
"""Where nobody has stated a limit."""
_TOO_FAR = "nanosecond resolution"
"""What the decoder says of timestamps before 1678 or after 2261: it knows no other unit."""


def open_orc(path: str, io: FileIOConfig) -> "OrcFileReader":
    """Open an ORC file and read its tail.

    Raises:
        MissingFileError: no such file.
        MalformedTableError: truncated, or a tail that contradicts itself.
    """
    return OrcFileReader(path, open_source(path, io))


class OrcFileReader(FileReader):
    """An open ORC file."""

    def __init__(self, path: str, source: ByteSource) -> None:
        self.path = path
        self.counts = ReadCounts()
        self._source = source
        self._max_bytes = _DEFAULT_MAX_BYTES
        self._fitting: dict[int, set[int]] = {}
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
        fields = [self.arrow_schema.field(i) for i in column_indices]
        if not fields or selected_count(selection) == 0:
            return [pa.array([], type=f.type) for f in fields]
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
            typed = [_typed(a, f.type) for a, f in zip(arrays, fields, strict=True)]
        return select_rows(typed, selection)

    def statistics(self, row_group: RowGroup, column_index: int) -> ColumnStatistics | None:
        """Statistics of a top-level primitive column, from those of the stripe."""
        kind = self.arrow_schema.field(column_index).type
        if pa.types.is_nested(kind) or self._stripe_statistics is None:
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
        """None: a stripe is decoded as a whole.

        Raises:
            MemoryLimitError: these columns of the stripe become too large.
            MalformedTableError: streams that contradict themselves.
        """
        del rows
        self._max_bytes = _DECODED_SHARE * limits.max_bytes
        self._require_fit(row_group, column_indices)
        return None

    def compressed_bytes(self, row_group: RowGroup, column_indices: Sequence[int]) -> int:
        """Stored size of the stripe's part for these columns, as if all were equally wide."""
        return row_group.num_bytes * len(column_indices) // max(len(self.arrow_schema), 1)

    def close(self) -> None:
        """Release the file."""
        self._source.close()

    @cached_property
    def _stripe_statistics(self) -> Sequence[list[bytes]] | None:
        length = self._tail.metadata_length
        if not 0 < length <= _MAX_METADATA_BYTES or length > self._source.size():
            return None
        with refusing_malformed(self.path, "stripe statistics"):
            section = self._source.read_at(length, self._tail.metadata_offset)
            if (found := parse_stripe_statistics(section, self._tail)) is None:
                return None
        return OnDemand(len(found), lambda stripe: [bytes(v) for n, v in fields_of(found[stripe]) if n == 1])

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
        if columns <= self._fitting.get(row_group.index, set()):
            return
        names = ", ".join(repr(self._stored_schema.names[i]) for i in sorted(columns)[:5])
        names += f" and {len(columns) - 5} more" if len(columns) > 5 else ""
        types = [(self._stored_schema.field(i).type, self._column_ids[i]) for i in columns]
        with refusing_malformed(self.path, f"stripe {row_group.index}, columns {names}"):
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
        self._fitting.setdefault(row_group.index, set()).update(columns)

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
        if not isinstance(self._source, RemoteFile):
            yield
            return
        content, types = self._content(stripe), self._stored_schema
        chosen = column_indices if self._can_select else range(len(types))
        below = [range(i := self._column_ids[c], i + _type_count(types.field(c).type)) for c in chosen]
        streams = [place for columns in below for place in content.footer.data_ranges(columns)]
        # the decoder reads the footer again; it lies behind all columns, and would be a bridge to them
        with self._source.held([_footer_range(content.stripe)]), self._source.held(streams):
            yield

    def _indexed(self, row_group: RowGroup, column_index: int) -> PageStatistics | None:
        kind, stride, rows = self.arrow_schema.field(column_index).type, self._tail.index_stride, row_group.num_rows
        if pa.types.is_nested(kind) or not 0 < stride < rows:
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
        statistics = [column_statistics(e, size, kind) for e, size in zip(entries, sizes, strict=True)]
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
        columns = sorted(set(column_indices))
        try:
            arrays = self._decode_together(stripe, columns)
        except pa.ArrowInvalid as error:
            if _TOO_FAR not in str(error):
                raise
            arrays = {i: self._decode_alone(stripe, i) for i in columns}
        return [arrays[i] for i in column_indices]

    def _decode_together(self, stripe: int, columns: Sequence[int]) -> dict[int, pa.Array]:
        names = self._stored_schema.names
        if not self._can_select:
            batch = self._file.reader.read_stripe(stripe)
            return {i: batch.column(i) for i in columns}
        batch = self._file.reader.read_stripe(stripe, [names[i] for i in columns])
        return {i: batch.column(names[i]) for i in columns}

    def _decode_alone(self, stripe: int, column: int) -> pa.Array:
        """A column with values that nanoseconds cannot hold is returned in microseconds."""
        try:
            return self._decode_together(stripe, [column])[column]
        except pa.ArrowInvalid as error:
            if _TOO_FAR not in str(error):
                raise
            field = self._stored_schema.field(column)
            if not pa.types.is_timestamp(field.type):
                raise pa.ArrowNotImplementedError(f"column {field.name!r}: {error}") from error
            content = self._content(stripe)
            return read_timestamps(content, self._column_ids[column])


def _footer_range(stripe: Stripe) -> tuple[int, int]:
    return stripe.offset + stripe.num_bytes - stripe.footer_bytes, stripe.footer_bytes


def _has_hashes(kind: pa.DataType) -> bool:
    """Whether values are hashed unchanged; for other types, writers differ in what they hash."""
    return bool(pa.types.is_integer(kind) or pa.types.is_string(kind))


def _typed(array: pa.Array, kind: pa.DataType) -> pa.Array:
    if array.type == kind or pa.types.is_timestamp(kind):
        return array
    return array.view(kind)


def _children(kind: pa.DataType) -> list[pa.DataType]:
    """The types below one as ORC has them: a map has no type of its own for its entries."""
    if pa.types.is_map(kind):
        return [kind.key_type, kind.item_type]
    return [kind.field(i).type for i in range(kind.num_fields)] if pa.types.is_nested(kind) else []


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
    if pa.types.is_struct(kind):
        return pa.struct([_with_ids(kind.field(i), depth) for i in range(kind.num_fields)])
    if pa.types.is_list(kind):
        return pa.list_(_with_ids(kind.value_field, depth))
    if pa.types.is_map(kind):
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
    if pa.types.is_boolean(kind):
        return None, None
    if pa.types.is_integer(kind) or pa.types.is_time(kind):
        inner = message_of(fields, 2)
        return zigzag(inner.get(1)), zigzag(inner.get(2))
    if pa.types.is_floating(kind):
        inner = message_of(fields, 3)
        return _double(inner.get(1), -0.0), _double(inner.get(2), 0.0)
    if pa.types.is_string(kind):
        inner = message_of(fields, 4)
        return _text(inner.get(1, inner.get(4))), _text(inner.get(2, inner.get(5)))
    if pa.types.is_decimal(kind):
        inner = message_of(fields, 6)
        return _decimal(inner.get(1)), _decimal(inner.get(2))
    if pa.types.is_date(kind):
        inner = message_of(fields, 7)
        return zigzag(inner.get(1)), zigzag(inner.get(2))
    return None, None


def _double(value: Any, zero: float) -> float | None:
    if not isinstance(value, memoryview) or len(value) != 8:
        return None
    number: float = struct.unpack("<d", value)[0]
    if math.isnan(number):
        return None
    return zero if number == 0 else number


def _text(value: Any) -> str | None:
    return text_of(bytes(value)) if isinstance(value, memoryview) else None


def _decimal(value: Any) -> Decimal | None:
    try:
        return Decimal(_text(value) or "")
    except InvalidOperation:
        return None


@dataclass(frozen=True, slots=True)
class StripeContent:
    """The streams of a stripe, read one by one."""

    source: ByteSource
    tail: OrcTail
    stripe: Stripe
    footer: StripeFooter

    def stream(self, column: int, kind: int) -> bytes:
        """A decompressed stream; empty if it is missing."""
        place = self.footer.streams.get((column, kind))
        return b"" if place is None else decompress(self.source.read_at(place[1], place[0]), self.tail)


_OFFSET_BYTES = 4
_DICTIONARY_OFFSET_BYTES = 8
"""Of each value in the decoder's dictionary."""


def _bound_decoded_bytes(
    columns: Sequence[tuple[pa.DataType, int]],
    content: StripeContent,
    max_bytes: int,
    sum_lengths: Callable[[bytes, int, int], float] = bound_sum,
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
        is_text = pa.types.is_string(kind) or pa.types.is_binary(kind)
        is_repeated = pa.types.is_list(kind) or pa.types.is_map(kind)
        if is_text or is_repeated:
            total += _OFFSET_BYTES * count
        elif not pa.types.is_nested(kind):
            total += count * max(kind.bit_width // 8, 1)
        if total > max_bytes:
            return total
        if is_text:
            total += _bound_text(content, column, count, max_bytes - total, sum_lengths)
        elif is_repeated:
            version = content.footer.encoding(column).version
            elements = sum_lengths(content.stream(column, LENGTH), count, version)
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
    sum_lengths: Callable[[bytes, int, int], float],
) -> float:
    """The bytes of texts, without offsets."""
    encoding = content.footer.encoding(column)
    if encoding.dictionary_size is None:
        return sum_lengths(content.stream(column, LENGTH), count, encoding.version)
    total = float(_DICTIONARY_OFFSET_BYTES * encoding.dictionary_size)
    if total > max_bytes or not encoding.dictionary_size:
        return total
    lengths = decode_integers(
        content.stream(column, LENGTH), encoding.dictionary_size, version=encoding.version, signed=False
    )
    if (lengths < 0).any():
        raise ValueError("a length of more than 63 bits")
    total += float(lengths.sum(dtype=np.float64))
    if sum_lengths is bound_sum:
        return total + float(lengths.max()) * count
    if total > max_bytes:
        return total
    return total + sum_of_codes(content.stream(column, DATA), count, encoding.version, lengths)


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
    present = decode_booleans(bits, num_rows) if (bits := content.stream(column, PRESENT)) else None
    num_values = num_rows if present is None else int(present.sum())
    seconds = decode_integers(content.stream(column, DATA), num_values, version=version, signed=True)
    encoded = decode_integers(content.stream(column, SECONDARY), num_values, version=version, signed=False)
    micros = _microseconds(seconds, _nanoseconds(encoded))
    kind: Any = pa.timestamp("us")
    if present is None:
        return pa.array(micros).view(kind)
    all_rows = np.zeros(num_rows, np.int64)
    all_rows[present] = micros
    return pa.array(all_rows, mask=~present).view(kind)


def _nanoseconds(encoded: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    """The last three bits are the number of zeros cut off, less one."""
    zeros = encoded & 7
    return (encoded >> 3) * np.where(zeros, 10 ** (zeros + 1), 1)


def _microseconds(seconds: npt.NDArray[np.int64], nanos: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    most = _MAX_SECONDS - _EPOCH_SECONDS
    if not ((nanos > -(10**9)) & (nanos < 10**9) & (-most < seconds) & (seconds < most)).all():
        raise ValueError("a timestamp that 64 bits of microseconds cannot hold")
    seconds = seconds + _EPOCH_SECONDS
    # Java and C++ count seconds before 1970 toward it and nanoseconds away from it; Arrow writes these as negative
    seconds -= (seconds < 0) & (nanos > 999_999)
    micros: npt.NDArray[np.int64] = seconds * 1_000_000 + nanos // 1000
    return micros
