"""The footer of a Parquet file as checked facts: schema, row groups, column chunks, statistics.

pyarrow tells of the file as a whole. What it tells of columns is not used: of a damaged footer it ends the process.
"""

import math
import struct
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from decimal import Context, Decimal
from functools import partial
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.types as pt

from nevermore.scan_core.columns.file_reader import OnDemand
from nevermore.scan_core.files.parquet.thrift import (
    LIST,
    STRUCT,
    I32Value,
    Struct,
    ThriftError,
    read_list_header,
    read_struct,
    read_value,
    write_struct,
)
from nevermore.scan_core.io.remote import ByteSource
from nevermore.scan_core.model.cached_property import cached_property
from nevermore.scan_core.model.errors import MalformedTableError, UnsupportedError
from nevermore.scan_core.model.statistics import text_of
from nevermore.scan_core.native.compiled import stored_kernels

_REPEATED = 2


@dataclass(frozen=True, slots=True)
class Leaf:
    """A leaf column of the schema.

    `elements` are the encoded schema elements from its top-level column down to it, structs with this one child; none
    if a list or map of several children is among them, so that they make no schema by themselves.
    """

    path: tuple[str, ...]
    physical_type: int
    max_repetition_level: int
    elements: tuple[bytes, ...]


@dataclass(frozen=True, slots=True, eq=False)
class FooterSchema:
    """The leaves of a schema, and the bytes it was read from."""

    leaves: tuple[Leaf, ...]
    encoded: bytes


_last = FooterSchema((), b"")


def _schema_of(footer: bytes) -> tuple[FooterSchema, int]:
    """The list of schema elements, field 2, which follows the version; and the position behind it."""
    global _last  # noqa: PLW0603  a cache of one, replaced as a whole, so that threads need no lock
    _, position = read_value(footer, 1, footer[0] & 0x0F, 0)
    if footer[0] >> 4 != 1 or footer[position] != 1 << 4 | LIST:
        raise KeyError(2)
    position += 1
    known = _last
    if not (known.encoded and footer.startswith(known.encoded, position)):
        elements, end = _read_elements(footer, position)
        known = _last = FooterSchema(_leaves(elements), footer[position:end])
    return known, position + len(known.encoded)


@dataclass(slots=True)
class _Group:
    """A schema element whose children are being read."""

    children_left: int
    path: tuple[str, ...]
    repetitions: int
    elements: tuple[bytes, ...]


def _leaves(elements: Sequence[tuple[Struct, bytes]]) -> tuple[Leaf, ...]:
    """Walk the flattened tree of schema elements."""
    leaves: list[Leaf] = []
    groups = [_Group(elements[0][0].get(5, 0), (), 0, ())]
    for element, raw in elements[1:]:
        while groups and groups[-1].children_left == 0:
            groups.pop()
        if not groups:
            raise ValueError("schema elements outside of the schema")
        above = groups[-1]
        above.children_left -= 1
        path = (*above.path, element[4].decode())
        repetitions = above.repetitions + (element.get(3) == _REPEATED)
        is_chain = len(groups) == 1 or above.elements != ()
        num_children = element.get(5, 0)
        is_chain = is_chain and (num_children <= 1 or element.get(3) != _REPEATED)
        raw_path = (*above.elements, raw if num_children <= 1 else _with_one_child(element)) if is_chain else ()
        if num_children:
            groups.append(_Group(num_children, path, repetitions, raw_path))
        elif 1 in element:
            leaves.append(Leaf(path, element[1], repetitions, raw_path))
    while groups and groups[-1].children_left == 0:
        groups.pop()
    if groups:
        raise ValueError("the schema lacks elements")
    return tuple(leaves)


def _with_one_child(group: Struct) -> bytes:
    """A group of the schema as if all but one of its children were not there."""
    fields: dict[int, Any] = {3: I32Value(group.get(3, 0)), 4: group[4], 5: I32Value(1)}
    if isinstance(field_id := group.get(9), int):
        fields[9] = I32Value(field_id)
    return write_struct(fields)


def _read_elements(data: bytes, position: int) -> tuple[list[tuple[Struct, bytes]], int]:
    """Schema elements, each with the bytes it was read from."""
    size, element, position = read_list_header(data, position)
    if element != STRUCT:
        raise ThriftError(f"schema elements have the wire type {element}")
    found = []
    for _ in range(size):
        fields, end = read_struct(data, position, 1)
        found.append((fields, data[position:end]))
        position = end
    return found, position


MAGIC = b"PAR1"
ENCRYPTED_MAGIC = b"PARE"
MAX_FOOTER_BYTES = 512 * 1024**2
"""The largest footers seen are some 100 MB."""
MIN_TAIL_BYTES = 64 * 1024
"""Read at once from the end of a file: most footers fit."""

PLAIN, PLAIN_DICTIONARY, DELTA_BYTE_ARRAY, RLE_DICTIONARY = 0, 2, 7, 8
DATA_PAGE, DICTIONARY_PAGE, DATA_PAGE_V2 = 0, 2, 3


@dataclass(frozen=True, slots=True, eq=False)
class Chunk:
    """A column chunk: its ColumnMetaData by field id, and where its page index, by (offset, length), is stored."""

    metadata: Struct
    offset_index: tuple[int, int] | None
    column_index: tuple[int, int] | None
    start: int
    num_bytes: int
    num_values: int
    uncompressed_bytes: int
    data_page_offset: int
    codec: int

    @property
    def encodings(self) -> Sequence[int]:
        """Numbers of the encodings of its pages."""
        found = self.metadata.get(2)
        return found if isinstance(found, list) else ()

    @property
    def dictionary_page_offset(self) -> int | None:
        """Where its dictionary page begins, if it has one."""
        return None if self.start == self.data_page_offset else self.start

    @property
    def bloom_filter(self) -> tuple[int, int | None] | None:
        """Offset of its Bloom filter, and the length if the footer states one."""
        offset, length = self.metadata.get(14), self.metadata.get(15)
        if not isinstance(offset, int) or offset <= 0:
            return None
        return offset, length if isinstance(length, int) and length > 0 else None

    @property
    def null_count(self) -> int | None:
        """NULLs according to its statistics; None if they are missing or impossible."""
        found = (self.statistics or {}).get(3)
        return found if isinstance(found, int) and 0 <= found <= self.num_values else None

    @property
    def has_dictionary(self) -> bool:
        """True if some page is dictionary-encoded."""
        return PLAIN_DICTIONARY in self.encodings or RLE_DICTIONARY in self.encodings

    @property
    def statistics(self) -> Struct | None:
        """Statistics by field id."""
        found = self.metadata.get(12)
        return found if isinstance(found, dict) else None


@dataclass(frozen=True, slots=True, eq=False)
class RowGroupFacts:
    """A row group: one chunk per leaf of the schema, parsed and checked when it is first asked for."""

    num_rows: int
    chunks: Sequence[Chunk]
    num_bytes: int


class Footer:
    """The facts of one file.

    `file_bytes` is the size of the file; `schema_identity` is equal where schema and key-value metadata are, byte for byte.
    """

    def __init__(self, encoded: bytes, path: str, size: int, metadata: Any) -> None:
        """Take the bytes of a footer, and the same as parsed by pyarrow: it tells of the file as a whole.

        Raises:
            MalformedTableError: it contradicts itself.
        """
        self._encoded = encoded
        self._path = path
        self._end = 0
        self.file_bytes = size
        self.num_rows: int = metadata.num_rows
        with self._described():
            schema, position = _schema_of(encoded)
            self.leaves = schema.leaves
            self.schema_identity = schema.encoded, tuple((metadata.metadata or {}).items())
            groups, columns = self._found(position) or self._parsed()
            self.row_groups = tuple(
                RowGroupFacts(num_rows, OnDemand(len(own), partial(self._chunk, own, index, num_rows)), num_bytes)
                for index, ((num_bytes, num_rows), own) in enumerate(zip(groups, columns, strict=True))
            )
            if self.num_rows != (total := sum(g.num_rows for g in self.row_groups)):
                raise ValueError(f"{self.num_rows} rows, but its row groups have {total}")

    def bounds(self, chunk: Chunk, leaf: Leaf) -> tuple[bytes | None, bytes | None]:
        """Raw minimum and maximum of chunk statistics.

        The deprecated pair was written with signed byte order, so it counts for numbers only; the newer pair means
        something only in a file that states column orders.
        """
        statistics, is_number = chunk.statistics or {}, leaf.physical_type in _FORMATS
        newer = _raw(statistics.get(6)), _raw(statistics.get(5))
        if newer != (None, None) and (is_number or self.has_column_orders):
            return newer
        return (_raw(statistics.get(2)), _raw(statistics.get(1))) if is_number else (None, None)

    @cached_property
    def has_column_orders(self) -> bool:
        """Whether the file states how bounds of its columns are ordered, in field 7."""
        with self._described():
            if not self._end:
                return len(self._document.get(7, ())) == len(self.leaves)
            # numbers of fields count on from that of the row groups
            return len(read_struct(self._encoded, self._end)[0].get(3, ())) == len(self.leaves)

    @cached_property
    def _document(self) -> Struct:
        with self._described():
            return read_struct(self._encoded)[0]

    def _found(self, position: int) -> "_Groups | None":
        """Bytes and rows of the row groups, and where their columns are described, by a compiled kernel.

        None if there is none, or something is unusual: then all of the footer is parsed, which takes longer.
        """
        data, num_leaves = self._encoded, len(self.leaves)
        _, position = read_value(data, position + 1, data[position] & 0x0F, 0)  # the number of rows
        if (kernels := stored_kernels()) is None or data[position] != 1 << 4 | LIST or not num_leaves:
            return None
        num_groups, _, first = read_list_header(data, position + 1)
        if num_groups * num_leaves > len(data):
            return None
        groups, places = np.empty((num_groups, 2), np.int64), np.empty((num_groups, num_leaves), np.int64)
        sizes = len(data), first, num_groups, num_leaves
        stack = np.empty(_STACK_SIZE, np.int64)
        self._end = kernels["find_column_chunks"](np.frombuffer(data, np.uint8), *sizes, stack, groups, places)
        return (groups.tolist(), places.tolist()) if self._end and (groups >= 0).all() else None

    def _parsed(self) -> "_Groups":
        """The same field by field, with what describes each column."""
        if 8 in self._document:
            raise UnsupportedError("encrypted Parquet files are not supported")
        groups: list[Struct] = self._document.get(4, [])
        for index, group in enumerate(groups):
            if len(group[1]) != len(self.leaves) or group[3] < 0:
                raise ValueError(f"row group {index} has {len(group[1])} columns and {group[3]} rows")
        return [(max(g.get(2, 0), 0), g[3]) for g in groups], [g[1] for g in groups]

    def _chunk(self, columns: Sequence[Struct | int], index: int, num_rows: int, number: int) -> Chunk:
        with self._described():
            column, leaf = columns[number], self.leaves[number]
            if isinstance(column, int):
                column = read_struct(self._encoded, column, 2)[0]
            where = f"row group {index}: column {'.'.join(leaf.path)}"
            if 8 in column or 9 in column:
                raise UnsupportedError(f"{where} is encrypted, which is not supported")
            if column.get(1):
                raise UnsupportedError(f"{where} lies in another file, which is not supported")
            metadata = column[3]
            if metadata[1] != leaf.physical_type:
                raise ValueError(f"{where} has physical type {metadata[1]}, the schema {leaf.physical_type}")
            data_start, length, num_values = metadata[9], metadata[7], metadata[5]
            dictionary = metadata.get(11)
            start = dictionary if dictionary is not None and 4 <= dictionary < data_start else data_start
            outside = start < 4 or start + length > self.file_bytes
            # an empty row group has no bytes to point at
            if length < 0 or metadata[6] < 0 or (outside and num_rows):
                raise ValueError(
                    f"{where} at {start}, {length} bytes, lies outside of the file of {self.file_bytes} bytes"
                )
            if num_values < 0 or (leaf.max_repetition_level == 0 and num_values != num_rows):
                raise ValueError(f"{where} has {num_values} values in {num_rows} rows")
            indexes = self._range(column, 4, 5), self._range(column, 6, 7)
            return Chunk(metadata, *indexes, start, length, num_values, metadata[6], data_start, metadata[4])

    def _range(self, column: Struct, offset_id: int, length_id: int) -> tuple[int, int] | None:
        """The place of an index; None if it lies outside of the file: indexes only save work."""
        offset, length = column.get(offset_id, 0), column.get(length_id, 0)
        return (offset, length) if offset >= 4 and length > 0 and offset + length <= self.file_bytes else None

    @contextmanager
    def _described(self) -> Iterator[None]:
        try:
            yield
        except UnsupportedError as error:
            raise UnsupportedError(f"{self._path}: footer: {error}") from error
        except _BROKEN as error:
            reason = f"lacks field {error}" if isinstance(error, KeyError) else error
            raise MalformedTableError(f"{self._path}: footer: {reason}") from error


_STACK_SIZE = 64
_Groups = tuple[Sequence[Sequence[int]], Sequence[Sequence[Struct | int]]]
_BROKEN = (ThriftError, IndexError, KeyError, TypeError, ValueError, AttributeError, struct.error)
"""What parsing of malformed bytes raises."""


def read_footer(source: ByteSource, path: str, tail_bytes: int = MIN_TAIL_BYTES) -> bytes:
    """The bytes of a file's footer. `tail_bytes` are requested before its length is known.

    Raises:
        MalformedTableError: not a Parquet file.
        UnsupportedError: encrypted.
    """
    tail = source.read_tail(tail_bytes)  # of an object, the size comes with it
    size = source.size()
    if size < 12:
        raise MalformedTableError(f"{path}: footer: {size} bytes are no Parquet file")
    if tail[-4:] == ENCRYPTED_MAGIC:
        raise UnsupportedError(f"{path}: encrypted Parquet files are not supported")
    length = int.from_bytes(tail[-8:-4], "little")
    if tail[-4:] != MAGIC or not 0 < length <= min(size - 12, MAX_FOOTER_BYTES):
        raise MalformedTableError(f"{path}: footer: no Parquet file, or a truncated one")
    return bytes(tail[-8 - length : -8] if length + 8 <= len(tail) else source.read_at(length, size - 8 - length))


BOOLEAN, INT32, INT64, INT96, FLOAT, DOUBLE, BYTE_ARRAY, FIXED = range(8)
_FORMATS = {BOOLEAN: "<?", INT32: "<i", INT64: "<q", FLOAT: "<f", DOUBLE: "<d"}
_EXACT = Context(prec=76)
"""The default context would round decimals of more than 28 digits."""


def decode_bounds(lower: bytes | None, upper: bytes | None, leaf: Leaf, arrow_type: pa.DataType) -> tuple[Any, Any]:
    """Bounds as `ColumnStatistics` holds them, in the file's type; None where they are unusable.

    NaN is no bound, and a bound of zero may stand for either zero.
    """
    low, high = decode_value(lower, leaf, arrow_type), decode_value(upper, leaf, arrow_type)
    if leaf.physical_type in {FLOAT, DOUBLE}:
        low = None if low is None or math.isnan(low) else (-0.0 if low == 0 else low)
        high = None if high is None or math.isnan(high) else (0.0 if high == 0 else high)
    return low, high


def decode_value(raw: bytes | None, leaf: Leaf, arrow_type: pa.DataType) -> Any:
    """One plain-encoded value; None if its order is unknown, or it is not of the type."""
    if raw is None:
        return None
    if pt.is_dictionary(arrow_type):
        arrow_type = arrow_type.value_type
    if pt.is_unsigned_integer(arrow_type) or pt.is_float16(arrow_type):
        return None
    if (form := _FORMATS.get(leaf.physical_type)) is not None:
        if len(raw) != struct.calcsize(form):
            return None
        value = struct.unpack(form, raw)[0]
        return _scaled(value, arrow_type) if pt.is_decimal(arrow_type) else value
    if leaf.physical_type == INT96:
        return None
    if pt.is_decimal(arrow_type):
        return _scaled(int.from_bytes(raw, "big", signed=True), arrow_type) if len(raw) <= 32 else None
    if pt.is_string(arrow_type) or pt.is_large_string(arrow_type):
        return text_of(raw)
    return (
        raw
        if pt.is_binary(arrow_type) or pt.is_large_binary(arrow_type) or pt.is_fixed_size_binary(arrow_type)
        else None
    )


def _raw(value: Any) -> bytes | None:
    return value if isinstance(value, bytes) else None


def _scaled(unscaled: int, arrow_type: pa.DataType) -> Decimal:
    return Decimal(unscaled).scaleb(-arrow_type.scale, _EXACT)
