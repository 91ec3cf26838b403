"""ORC files as a FileReader: stripes as row groups, only the columns asked for.

pyarrow decodes; this module also reads what pyarrow does not expose: stripe statistics, and timestamps outside of the
range of nanoseconds.

"""

import math
import struct
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from decimal import Decimal, InvalidOperation
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.orc as po

from scan_core.columns.file_reader import FIELD_ID_KEY, ReadCounts, RowGroup, refusing_malformed
from scan_core.files.whole_columns import WholeColumns
from scan_core.io.files import open_input
from scan_core.io.location import FileIOConfig
from scan_core.model.schema import MAX_TYPE_DEPTH
from scan_core.model.statistics import ColumnStatistics
from scan_core.rows.selection import RowSelection, select_rows, selected_count

Integers = npt.NDArray[np.int64]
_WIDTHS = (*range(1, 25), 26, 28, 30, 32, 40, 48, 56, 64)
"""Bits a value, by their five-bit code."""


def decode_booleans(data: bytes, count: int) -> npt.NDArray[np.bool_]:
    """The first `count` booleans of a stream, most significant bit first.

    Raises:
        ValueError: the stream ends before.
    """
    parts: list[bytes] = []
    position, left = 0, -(-count // 8)
    while left > 0 and position < len(data):
        control = data[position]
        if control < 0x80:
            part = data[position + 1 : position + 2] * (control + 3)
            position += 2
        else:
            part = data[position + 1 : position + 257 - control]
            position += 257 - control
        parts.append(part)
        left -= len(part)
    bits = np.unpackbits(np.frombuffer(b"".join(parts), np.uint8))
    if len(bits) < count:
        raise ValueError(f"a stream of booleans ends after {len(bits)} of {count}")
    return bits[:count].astype(np.bool_)


def decode_integers(data: bytes, count: int, *, version: int, signed: bool) -> Integers:
    """The first `count` integers of a stream in run-length encoding 1 or 2; unsigned ones are below 2**63.

    Raises:
        ValueError: the stream ends before, or a run contradicts itself.
    """
    runs: list[Integers] = []
    cursor, left = _Cursor(data), count
    try:
        while left > 0:
            run = _run_v1(cursor, signed) if version == 1 else _run_v2(cursor, signed)
            runs.append(run)
            left -= len(run)
    except IndexError as error:
        raise ValueError(f"a stream of integers ends after {count - left} of {count}") from error
    return np.concatenate([np.zeros(0, np.int64), *runs])[:count]


class _Cursor:
    """Bytes, and how many of them were read."""

    __slots__ = ("_data", "_position")

    def __init__(self, data: bytes) -> None:
        self._data = data
        self._position = 0

    def byte(self) -> int:
        self._position += 1
        return self._data[self._position - 1]

    def take(self, count: int) -> bytes:
        taken = self._data[self._position : self._position + count]
        if len(taken) < count:
            raise IndexError
        self._position += count
        return taken

    def varint(self, *, signed: bool) -> int:
        value = 0
        for index in range(10):
            byte = self.byte()
            value |= (byte & 0x7F) << (7 * index)
            if byte < 0x80:
                return (value >> 1) ^ -(value & 1) if signed else value
        raise ValueError("an integer of more than ten bytes")

    def packed(self, count: int, width: int) -> npt.NDArray[np.uint64]:
        """`count` values of `width` bits each, padded to whole bytes."""
        if width == 0:
            return np.zeros(count, np.uint64)
        bits = np.unpackbits(np.frombuffer(self.take((count * width + 7) // 8), np.uint8))
        values = np.zeros(count, np.uint64)
        for column in bits[: count * width].reshape(count, width).T:
            values = (values << np.uint64(1)) | column
        return values


def _run_v1(cursor: _Cursor, signed: bool) -> Integers:  # noqa: FBT001  private
    control = cursor.byte()
    if control >= 0x80:
        return _array([cursor.varint(signed=signed) for _ in range(256 - control)])
    step = int.from_bytes(cursor.take(1), signed=True)
    return _array([cursor.varint(signed=signed)]) + step * np.arange(control + 3, dtype=np.int64)


def _run_v2(cursor: _Cursor, signed: bool) -> Integers:  # noqa: FBT001  private
    first = cursor.byte()
    if first >> 6 == 0:
        value = int.from_bytes(cursor.take(((first >> 3) & 7) + 1), "big")
        return np.repeat(_array([(value >> 1) ^ -(value & 1) if signed else value]), (first & 7) + 3)
    code = (first >> 1) & 31
    length = ((first & 1) << 8 | cursor.byte()) + 1
    match first >> 6:
        case 1:
            values = cursor.packed(length, _WIDTHS[code])
            return _unzigzag(values) if signed else values.astype(np.int64)
        case 2:
            return _patched_base(cursor, length, _WIDTHS[code])
        case _:
            return _delta(cursor, length, _WIDTHS[code] if code else 0, signed=signed)


def _patched_base(cursor: _Cursor, length: int, width: int) -> Integers:
    third, fourth = cursor.byte(), cursor.byte()
    base_bytes, patch_width = (third >> 5) + 1, _WIDTHS[third & 31]
    gap_width, num_patches = (fourth >> 5) + 1, fourth & 31
    base = int.from_bytes(cursor.take(base_bytes), "big")
    sign = 1 << (8 * base_bytes - 1)
    base = -(base & ~sign) if base & sign else base
    values = cursor.packed(length, width)
    entry_width = next(w for w in _WIDTHS if w >= min(gap_width + patch_width, 64))
    patches = cursor.packed(num_patches, entry_width)
    at = 0
    for patch in patches.tolist():
        at += patch >> patch_width
        if at >= length or width >= 64:
            raise ValueError("a patch lies outside of its run")
        values[at] |= np.uint64(((patch & ((1 << patch_width) - 1)) << width) & (2**64 - 1))
    return values.astype(np.int64) + _array([base])


def _delta(cursor: _Cursor, length: int, width: int, *, signed: bool) -> Integers:
    base, step = cursor.varint(signed=signed), cursor.varint(signed=True)
    steps = np.full(max(length - 1, 0), _array([step])[0])
    if width and length > 2:
        packed = cursor.packed(length - 2, width).astype(np.int64)
        steps[1:] = packed if step >= 0 else -packed
    values: Integers = _array([base]) + np.concatenate([np.zeros(1, np.int64), np.cumsum(steps)])
    return values


def _unzigzag(values: npt.NDArray[np.uint64]) -> Integers:
    halves: Integers = (values >> np.uint64(1)).astype(np.int64)
    return halves ^ -(values & np.uint64(1)).astype(np.int64)


def _array(values: list[int]) -> Integers:
    try:
        return np.array(values, np.int64)
    except OverflowError as error:
        raise ValueError("an integer of more than 64 bits") from error


_MAX_SECTION_BYTES = 64 * 1024**2
_VARINT_BYTES = 10
_COMPRESSION_NONE, _COMPRESSION_ZLIB, _COMPRESSION_SNAPPY, _COMPRESSION_ZSTD = 0, 1, 2, 5


@dataclass(frozen=True, slots=True)
class Stripe:
    """Where a stripe lies and how many rows it has; its footer are the last of its bytes."""

    offset: int
    num_bytes: int
    num_rows: int
    footer_bytes: int


@dataclass(frozen=True, slots=True)
class OrcTail:
    """Stripes, and where the metadata section with their statistics lies."""

    stripes: tuple[Stripe, ...]
    num_rows: int
    compression: int
    metadata_offset: int
    metadata_length: int


def parse_tail(tail: bytes, file_size: int) -> OrcTail:
    """From the message `FileTail`.

    Raises:
        ValueError: broken protobuf, stripes outside of the file, row counts that contradict each other.
    """
    message = first_of_each(tail)
    postscript, footer = _message(message, 1), bytes(message.get(2, b""))
    stripes = []
    num_rows = 0
    for number, value in fields_of(footer):
        if number == 3:
            stripes.append(_stripe(first_of_each(value), file_size))
        elif number == 6:
            num_rows = int(value)
    if sum(s.num_rows for s in stripes) != num_rows:
        raise ValueError(f"footer states {num_rows} rows, its stripes {sum(s.num_rows for s in stripes)}")
    metadata_length = int(postscript.get(5, 0))
    end = file_size - 1 - int(message.get(4, 0)) - int(postscript.get(1, 0))
    return OrcTail(tuple(stripes), num_rows, int(postscript.get(2, 0)), max(end - metadata_length, 0), metadata_length)


def parse_stripe_statistics(section: bytes, tail: OrcTail) -> list[list[bytes]] | None:
    """For each stripe the serialised statistics of every column; None if they cannot be decompressed here."""
    plain = decompress_section(section, tail.compression)
    if plain is None:
        return None
    return [[bytes(v) for n, v in fields_of(stripe) if n == 1] for number, stripe in fields_of(plain) if number == 1]


def column_statistics(message: bytes, num_rows: int, kind: pa.DataType) -> ColumnStatistics:
    """Statistics of a top-level column; bounds as Python values of `kind`, None where they are missing or odd."""
    fields = first_of_each(message)
    values = int(fields.get(1, -1))
    null_count = num_rows - values if 0 <= values <= num_rows else None
    if null_count == 0 and fields.get(10, 0):
        null_count = None
    lower, upper = _bounds(fields, kind)
    if lower is None or upper is None:
        lower = upper = None
    return ColumnStatistics(lower, upper, null_count, None, num_rows)


def fields_of(message: bytes | memoryview) -> Iterator[tuple[int, Any]]:
    """Field numbers and raw values: int for varints, bytes for everything else."""
    view = memoryview(message)
    position = 0
    try:
        while position < len(view):
            tag, position = _varint(view, position)
            match tag & 7:
                case 0:
                    value, position = _varint(view, position)
                    yield tag >> 3, value
                case 1 | 5 as wire:
                    width = 8 if wire == 1 else 4
                    yield tag >> 3, view[position : position + width]
                    position += width
                case 2:
                    length, position = _varint(view, position)
                    if position + length > len(view):
                        raise ValueError(f"protobuf field of {length} bytes in {len(view)}")
                    yield tag >> 3, view[position : position + length]
                    position += length
                case wire:
                    raise ValueError(f"protobuf wire type {wire}")
    except IndexError as error:
        raise ValueError("protobuf message ends early") from error


def first_of_each(message: bytes | memoryview) -> dict[int, Any]:
    """The first value of every field number."""
    found: dict[int, Any] = {}
    for number, value in fields_of(message):
        found.setdefault(number, value)
    return found


def decompress_section(section: bytes, compression: int) -> bytes | None:
    """The bytes of a section or stream, which is stored in chunks; None for a codec that is not supported here."""
    if compression == _COMPRESSION_NONE:
        return section
    parts: list[bytes] = []
    for is_original, chunk in _chunks(section):
        if is_original:
            parts.append(chunk)
        elif compression == _COMPRESSION_ZLIB:
            parts.append(_inflate(chunk))
        elif compression in {_COMPRESSION_SNAPPY, _COMPRESSION_ZSTD}:
            codec = "snappy" if compression == _COMPRESSION_SNAPPY else "zstd"
            if codec == "snappy":
                length, _ = _varint(memoryview(chunk), 0)
                if length > _MAX_SECTION_BYTES:
                    return None
                parts.append(pa.Codec(codec).decompress(chunk, length).to_pybytes())
            else:
                with pa.CompressedInputStream(pa.BufferReader(chunk), codec) as stream:
                    parts.append(stream.read(_MAX_SECTION_BYTES))
        else:
            return None
        if sum(map(len, parts)) > _MAX_SECTION_BYTES:
            return None
    return b"".join(parts)


def _bounds(fields: dict[int, Any], kind: pa.DataType) -> tuple[Any, Any]:
    if pa.types.is_boolean(kind):
        return None, None
    if pa.types.is_integer(kind) or pa.types.is_time(kind):
        inner = _message(fields, 2)
        return _zigzag(inner.get(1)), _zigzag(inner.get(2))
    if pa.types.is_floating(kind):
        inner = _message(fields, 3)
        return _double(inner.get(1), -0.0), _double(inner.get(2), 0.0)
    if pa.types.is_string(kind):
        inner = _message(fields, 4)
        return _text(inner.get(1, inner.get(4))), _text(inner.get(2, inner.get(5)))
    if pa.types.is_decimal(kind):
        inner = _message(fields, 6)
        return _decimal(inner.get(1)), _decimal(inner.get(2))
    if pa.types.is_date(kind):
        inner = _message(fields, 7)
        return _zigzag(inner.get(1)), _zigzag(inner.get(2))
    return None, None


def _stripe(fields: dict[int, Any], file_size: int) -> Stripe:
    offset, num_rows = int(fields.get(1, 0)), int(fields.get(5, 0))
    num_bytes = sum(int(fields.get(n, 0)) for n in (2, 3, 4))
    if offset + num_bytes > file_size:
        raise ValueError(f"stripe at {offset}, {num_bytes} bytes, lies outside of the file of {file_size} bytes")
    return Stripe(offset, num_bytes, num_rows, int(fields.get(4, 0)))


def _varint(view: memoryview, position: int) -> tuple[int, int]:
    result = 0
    for index in range(_VARINT_BYTES):
        byte = view[position + index]
        result |= (byte & 0x7F) << (7 * index)
        if byte < 0x80:
            return result & 0xFFFFFFFFFFFFFFFF, position + index + 1
    raise ValueError("protobuf varint of more than ten bytes")


def _message(fields: dict[int, Any], number: int) -> dict[int, Any]:
    value = fields.get(number, b"")
    if isinstance(value, int):
        raise TypeError(f"protobuf field {number} is a number, not a message")
    return first_of_each(value)


def _zigzag(value: Any) -> int | None:
    return (value >> 1) ^ -(value & 1) if isinstance(value, int) else None


def _double(value: Any, zero: float) -> float | None:
    if not isinstance(value, memoryview) or len(value) != 8:
        return None
    number: float = struct.unpack("<d", value)[0]
    if math.isnan(number):
        return None
    return zero if number == 0 else number


def _text(value: Any) -> str | None:
    try:
        return bytes(value).decode() if isinstance(value, memoryview) else None
    except UnicodeDecodeError:
        return None


def _decimal(value: Any) -> Decimal | None:
    try:
        return Decimal(_text(value) or "")
    except InvalidOperation:
        return None


def _inflate(chunk: bytes) -> bytes:
    try:
        return zlib.decompressobj(-15).decompress(chunk, _MAX_SECTION_BYTES)
    except zlib.error as error:
        raise ValueError(f"a compressed section is broken: {error}") from error


def _chunks(section: bytes) -> Sequence[tuple[bool, bytes]]:
    """Compression chunks: three bytes of length and a flag for stored as is, then the bytes."""
    found = []
    position = 0
    while position + 3 <= len(section):
        header = int.from_bytes(section[position : position + 3], "little")
        length = header >> 1
        found.append((bool(header & 1), section[position + 3 : position + 3 + length]))
        position += 3 + length
    return found


MAX_STRIPE_ROWS = 1 << 27
_MAX_ROWS_PER_BYTE = 1 << 17
"""A constant column compresses to about 25,000 rows a byte; more is a lie that would only cost memory."""
_MAX_METADATA_BYTES = 64 * 1024**2
_TOO_FAR = "nanosecond resolution"
"""What the decoder says of timestamps before 1678 or after 2261: it knows no other unit."""


def open_orc(path: str, io: FileIOConfig) -> "OrcFileReader":
    """Open an ORC file and read its tail.

    Raises:
        MissingFileError: no such file.
        MalformedTableError: truncated, or a tail that contradicts itself.
    """
    return OrcFileReader(path, open_input(path, io))


class OrcFileReader(WholeColumns):
    """An open ORC file."""

    def __init__(self, path: str, source: pa.NativeFile) -> None:
        self.path = path
        self.counts = ReadCounts()
        self._source = source
        with refusing_malformed(path, "file tail"):
            self._file = po.ORCFile(source)
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
        with refusing_malformed(self.path, f"stripe {row_group.index}, columns {names}"):
            arrays = self._decode(row_group.index, column_indices)
            for array in arrays:
                if len(array) != row_group.num_rows:
                    raise ValueError(f"{len(array)} of {row_group.num_rows} rows")
                array.validate(full=True)  # the decoder does not check that strings are UTF-8
            typed = [_typed(a, f.type) for a, f in zip(arrays, fields, strict=True)]
        return select_rows(typed, selection)

    def statistics(self, row_group: RowGroup, column_index: int) -> ColumnStatistics | None:
        """Of a top-level primitive column, from the statistics of the stripe."""
        kind = self.arrow_schema.field(column_index).type
        if pa.types.is_nested(kind) or self._stripe_statistics is None:
            return None
        try:
            message = self._stripe_statistics[row_group.index][self._column_ids[column_index]]
        except IndexError:
            return None
        with refusing_malformed(self.path, f"statistics of stripe {row_group.index}"):
            return column_statistics(message, row_group.num_rows, kind)

    def compressed_bytes(self, row_group: RowGroup, column_indices: Sequence[int]) -> int:
        """Stored size of the stripe's part for these columns, as if all were equally wide."""
        return row_group.num_bytes * len(column_indices) // max(len(self.arrow_schema), 1)

    def close(self) -> None:
        """Release the file."""
        self._source.close()

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
        """Columns are selected by name; where names are not paths to one column each, all are read."""
        names = self._stored_schema.names
        if any("." in name for name in names) or len(set(names)) < len(names):
            batch = self._file.reader.read_stripe(stripe)
            return {i: batch.column(i) for i in columns}
        batch = self._file.reader.read_stripe(stripe, [names[i] for i in columns])
        return {i: batch.column(names[i]) for i in columns}

    def _decode_alone(self, stripe: int, column: int) -> pa.Array:
        """A column of which some value may be out of reach of nanoseconds: those come in microseconds."""
        try:
            return self._decode_together(stripe, [column])[column]
        except pa.ArrowInvalid as error:
            if _TOO_FAR not in str(error):
                raise
            field = self._stored_schema.field(column)
            if not pa.types.is_timestamp(field.type):
                raise pa.ArrowNotImplementedError(f"column {field.name!r}: {error}") from error

            return read_timestamps(self._source, self._tail, stripe, self._column_ids[column])


def _typed(array: pa.Array, kind: pa.DataType) -> pa.Array:
    if array.type == kind or pa.types.is_timestamp(kind):
        return array
    return array.view(kind)


def _type_count(kind: pa.DataType) -> int:
    """ORC types of a column: a map has no type of its own for its entries."""
    if pa.types.is_map(kind):
        return 1 + _type_count(kind.key_type) + _type_count(kind.item_type)
    if pa.types.is_nested(kind):
        return 1 + sum(_type_count(kind.field(i).type) for i in range(kind.num_fields))
    return 1


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


_EPOCH_SECONDS = 1_420_070_400
"""2015-01-01, from which ORC counts."""
_PRESENT, _DATA, _SECONDARY = 0, 1, 5
_VERSION_OF_ENCODING = {0: 1, 2: 2}
_MOST_SECONDS = 2**63 // 10**6 - 1
_UTC = frozenset({"", "UTC", "GMT", "Etc/UTC", "Etc/GMT", "Z"})


def read_timestamps(source: pa.NativeFile, tail: OrcTail, stripe_index: int, column_id: int) -> pa.Array:
    """One top-level timestamp column of a stripe, as `timestamp[us]` without zone.

    Args:
        source: the file.
        tail: of the file.
        stripe_index: which stripe.
        column_id: as ORC numbers the types of the schema.

    Raises:
        ValueError: streams that end early or contradict each other.
        pa.ArrowNotImplementedError: a codec, encoding or time zone that is not supported.
    """
    stripe = tail.stripes[stripe_index]
    footer_at = stripe.offset + stripe.num_bytes - stripe.footer_bytes
    footer = _plain(source.read_at(stripe.footer_bytes, footer_at), tail)
    zone = bytes(first_of_each(footer).get(3, b"")).decode("ascii", "replace")
    if zone not in _UTC:
        raise pa.ArrowNotImplementedError(f"timestamps beyond 1678 to 2261 written in the time zone {zone!r:.40}")
    encodings = [first_of_each(value).get(1, 0) for number, value in fields_of(footer) if number == 2]
    version = _VERSION_OF_ENCODING.get(encodings[column_id]) if column_id < len(encodings) else None
    if version is None:
        raise pa.ArrowNotImplementedError("an encoding of timestamps that is not known")
    streams = _streams(footer, stripe, column_id)
    data = {kind: _plain(source.read_at(length, at), tail) for kind, (at, length) in streams.items()}
    present = decode_booleans(data[_PRESENT], stripe.num_rows) if _PRESENT in data else None
    num_values = stripe.num_rows if present is None else int(present.sum())
    seconds = decode_integers(data.get(_DATA, b""), num_values, version=version, signed=True)
    nanos = _nanoseconds(decode_integers(data.get(_SECONDARY, b""), num_values, version=version, signed=False))
    return _with_nulls(_microseconds(seconds, nanos), present)


def _streams(footer: bytes, stripe: Stripe, column_id: int) -> dict[int, tuple[int, int]]:
    """Where the streams of a column lie, by kind."""
    found: dict[int, tuple[int, int]] = {}
    offset, end = stripe.offset, stripe.offset + stripe.num_bytes
    for number, value in fields_of(footer):
        if number != 1:
            continue
        stream = first_of_each(value)
        kind, column, length = (int(stream.get(i, 0)) for i in (1, 2, 3))
        if offset + length > end:
            raise ValueError(f"a stream of {length} bytes at {offset} ends outside of its stripe")
        if column == column_id and kind in {_PRESENT, _DATA, _SECONDARY}:
            found[kind] = (offset, length)
        offset += length
    return found


def _plain(data: bytes, tail: OrcTail) -> bytes:
    plain = decompress_section(data, tail.compression)
    if plain is None:
        raise pa.ArrowNotImplementedError(f"compression {tail.compression} of timestamps beyond 1678 to 2261")
    return plain


def _nanoseconds(encoded: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    """The last three bits tell how many zeros, less one, were cut off."""
    zeros = encoded & 7
    return (encoded >> 3) * np.where(zeros, 10 ** (zeros + 1), 1)


def _microseconds(seconds: npt.NDArray[np.int64], nanos: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    if (np.abs(nanos) >= 10**9).any() or (np.abs(seconds) > _MOST_SECONDS - _EPOCH_SECONDS).any():
        raise ValueError("a timestamp that 64 bits of microseconds cannot hold")
    seconds = seconds + _EPOCH_SECONDS
    # Java and C++ count seconds before 1970 toward it and nanoseconds away from it; Arrow writes these as negative
    seconds -= (seconds < 0) & (nanos > 999_999)
    micros: npt.NDArray[np.int64] = seconds * 1_000_000 + nanos // 1000
    return micros


def _with_nulls(values: npt.NDArray[np.int64], present: npt.NDArray[np.bool_] | None) -> pa.Array:
    kind: Any = pa.timestamp("us")
    if present is None:
        return pa.array(values).view(kind)
    all_rows = np.zeros(len(present), np.int64)
    all_rows[present] = values
    return pa.array(all_rows, mask=~present).view(kind)
