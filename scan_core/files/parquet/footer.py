"""The footer of a Parquet file as checked facts: schema, row groups, column chunks, statistics."""

import math
import struct
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from decimal import Context, Decimal
from functools import partial
from typing import Any, overload

import numpy as np
import pyarrow as pa
import pyarrow.types as pt
from numpy.typing import NDArray

from nevermore.scan_core.files.parquet.thrift import (
    LIST,
    STRUCT,
    I32Value,
    ReadField,
    Struct,
    ThriftError,
    read_list_header,
    read_struct,
    read_value,
    write_struct,
)
from nevermore.scan_core.io.remote import ByteSource
from nevermore.scan_core.model.errors import MalformedTableError, UnsupportedError
from nevermore.scan_core.native.compiled import stored_kernels
from nevermore.scan_core.native.machine_code import Kernels

_REPEATING_FIELDS = (2, 3, 13, 16)
"""Of column metadata: encodings, path, encoding statistics, size statistics."""


def row_groups_reader() -> ReadField:
    """Reads the row groups of one footer."""
    columns: list[ReadField] = []

    def read_columns(data: bytes, position: int, kind: int, depth: int) -> tuple[list[Struct], int]:
        size, position = structs_at(data, position, kind)
        found = []
        for index in range(size):
            if index == len(columns):
                columns.append(_column_reader())
            column, position = columns[index](data, position, STRUCT, depth + 1)
            found.append(column)
        return found, position

    def read_groups(data: bytes, position: int, kind: int, depth: int) -> tuple[list[Struct], int]:
        size, position = structs_at(data, position, kind)
        found = []
        for _ in range(size):
            group, position = read_struct(data, position, depth + 1, {1: read_columns})
            found.append(group)
        return found, position

    return read_groups


def structs_at(data: bytes, position: int, kind: int) -> tuple[int, int]:
    """How many structs the list at `position` has, and where the first one begins.

    Raises:
        ThriftError: it is no list of structs.
    """
    if kind != LIST:
        raise ThriftError(f"a list has the wire type {kind}")
    size, element, position = read_list_header(data, position)
    if size and element != STRUCT:
        raise ThriftError(f"structs have the wire type {element}")
    return size, position


def read_encoded(data: bytes, position: int, kind: int, depth: int) -> tuple[bytes, int]:
    """The bytes of a value, without interpreting it."""
    _, end = read_value(data, position, kind, depth)
    return data[position:end], end


def _column_reader() -> ReadField:
    inside = {field_id: _remembering() for field_id in _REPEATING_FIELDS}

    def read_metadata(data: bytes, position: int, kind: int, depth: int) -> tuple[Any, int]:
        if kind != STRUCT:
            raise ThriftError(f"column metadata has the wire type {kind}")
        return read_struct(data, position, depth + 1, inside)

    readers: dict[int, ReadField] = {3: read_metadata}
    return lambda data, position, _, depth: read_struct(data, position, depth, readers)


def _remembering() -> ReadField:
    """Reads a value and caches it by its bytes: an encoded value is never a prefix of another."""
    raw, value, wire = b"", None, 0

    def read(data: bytes, position: int, kind: int, depth: int) -> tuple[Any, int]:
        nonlocal raw, value, wire
        if wire == kind and data.startswith(raw, position):
            return value, position + len(raw)
        value, end = read_value(data, position, kind, depth)
        raw, wire = data[position:end], kind
        return value, end

    return read


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
    """The leaves of a schema, and the bytes it was read from.

    `physical_types` and `is_flat`, for leaves that are not below a list or map, are those of the leaves as arrays.
    """

    leaves: tuple[Leaf, ...]
    encoded: bytes
    physical_types: NDArray[np.int64] = field(init=False)
    is_flat: NDArray[np.bool_] = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "physical_types", np.array([leaf.physical_type for leaf in self.leaves], np.int64))
        is_flat = np.array([leaf.max_repetition_level == 0 for leaf in self.leaves], np.bool_)
        object.__setattr__(self, "is_flat", is_flat)


_last = FooterSchema((), b"")


def read_schema(data: bytes, position: int, kind: int, depth: int) -> tuple[FooterSchema, int]:
    """The list of schema elements at `position`, and the position behind it.

    Raises:
        ThriftError, KeyError, ValueError, TypeError, AttributeError: it is none.
    """
    global _last  # noqa: PLW0603  a cache of one, replaced as a whole, so that threads need no lock
    known = _last
    if kind == LIST and known.encoded and data.startswith(known.encoded, position):
        return known, position + len(known.encoded)
    elements, end = _read_elements(data, position, kind, depth)
    _last = found = FooterSchema(_leaves(elements), data[position:end])
    return found, end


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


def _read_elements(data: bytes, position: int, kind: int, depth: int) -> tuple[list[tuple[Struct, bytes]], int]:
    """Schema elements, each with the bytes it was read from."""
    size, position = structs_at(data, position, kind)
    found = []
    for _ in range(size):
        element, end = read_struct(data, position, depth + 1)
        found.append((element, data[position:end]))
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


class ChunkMetadata:
    """The ColumnMetaData of a column chunk by field id; parsed when it is first asked for, as most never are."""

    __slots__ = ("_data", "_found", "_path", "_place")

    def __init__(self, data: bytes, place: int, path: str, found: Struct | None = None) -> None:
        """Take the bytes of a footer and the position of the struct in them, or fields parsed before."""
        self._data = data
        self._place = place
        self._path = path
        self._found = found

    @property
    def fields(self) -> Struct:
        """The struct.

        Raises:
            MalformedTableError: the bytes are damaged; names the file.
        """
        if self._found is None:
            try:
                self._found = read_struct(self._data, self._place, 2)[0]
            except ThriftError as error:
                raise MalformedTableError(f"{self._path}: footer: {error}") from error
        return self._found


@dataclass(frozen=True, slots=True, eq=False)
class Chunk:
    """A column chunk: where it and its page index, by (offset, length), are stored."""

    stored: ChunkMetadata
    offset_index: tuple[int, int] | None
    column_index: tuple[int, int] | None
    start: int
    num_bytes: int
    num_values: int
    uncompressed_bytes: int
    data_page_offset: int

    @property
    def metadata(self) -> Struct:
        """Its ColumnMetaData by field id.

        Raises:
            MalformedTableError: the bytes are damaged; names the file.
        """
        return self.stored.fields

    def stating(self, changes: Struct) -> "Chunk":
        """A copy with other metadata in these fields."""
        return replace(self, stored=ChunkMetadata(b"", 0, "", {**self.metadata, **changes}))

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
        encodings = self.metadata.get(2)
        return isinstance(encodings, list) and (PLAIN_DICTIONARY in encodings or RLE_DICTIONARY in encodings)

    @property
    def statistics(self) -> Struct | None:
        """Statistics by field id."""
        found = self.metadata.get(12)
        return found if isinstance(found, dict) else None


@dataclass(frozen=True, slots=True, eq=False)
class RowGroupFacts:
    """A row group: one chunk per leaf of the schema."""

    num_rows: int
    chunks: Sequence[Chunk]
    num_bytes: int


@dataclass(frozen=True, slots=True, eq=False)
class Footer:
    """The facts of one file.

    `file_bytes` is the size of the file; `schema_identity` is equal where schema and key-value metadata are, byte for byte.
    """

    num_rows: int
    leaves: tuple[Leaf, ...]
    row_groups: tuple[RowGroupFacts, ...]
    has_column_orders: bool
    schema_identity: bytes
    file_bytes: int


def read_footer(source: ByteSource, path: str, tail_bytes: int = MIN_TAIL_BYTES) -> tuple[Footer, bytes]:
    """Read and check the footer; returns its bytes as well. `tail_bytes` are requested before its length is known.

    Raises:
        MalformedTableError: not a Parquet file, or a footer that contradicts itself or the file.
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
    data = tail[-8 - length : -8] if length + 8 <= len(tail) else source.read_at(length, size - 8 - length)
    try:
        return parse_footer(bytes(data), size, path), bytes(data)
    except UnsupportedError as error:
        raise UnsupportedError(f"{path}: footer: {error}") from error
    except (ThriftError, KeyError, TypeError, ValueError, AttributeError, struct.error) as error:
        raise MalformedTableError(f"{path}: footer: {_reason(error)}") from error


def parse_footer(data: bytes, size: int, path: str = "") -> Footer:
    """The facts of a footer's bytes, in a file of so many bytes; raises whatever error malformed bytes cause."""
    kernels = stored_kernels()
    schemas: list[FooterSchema] = []

    def read_known_schema(data: bytes, position: int, kind: int, depth: int) -> tuple[FooterSchema, int]:
        found, end = read_schema(data, position, kind, depth)
        schemas.append(found)
        return found, end

    def read_groups(data: bytes, position: int, kind: int, depth: int) -> tuple[tuple[RowGroupFacts, ...], int]:
        (schema,) = schemas or (FooterSchema((), b""),)
        if kernels is not None and schemas:
            walked = _walked_row_groups(data, position, kind, schema, size, path, kernels)
            if walked is not None:
                return walked
        groups, end = row_groups_reader()(data, position, kind, depth)
        facts = [_row_group(group, schema.leaves, size, index) for index, group in enumerate(groups)]
        return tuple(facts), end

    readers = {2: read_known_schema, 4: read_groups, 5: read_encoded, 7: _read_column_orders}
    document, _ = read_struct(data, readers=readers)
    if 8 in document:
        raise UnsupportedError("encrypted Parquet files are not supported")
    schema: FooterSchema = document[2]
    leaves = schema.leaves
    groups: tuple[RowGroupFacts, ...] = document.get(4, ())
    num_rows = document[3]
    if num_rows != sum(g.num_rows for g in groups):
        raise ValueError(f"{num_rows} rows, but its row groups have {sum(g.num_rows for g in groups)}")
    identity = schema.encoded + document.get(5, b"")
    return Footer(num_rows, leaves, groups, document.get(7, 0) == len(leaves), identity, size)


@dataclass(frozen=True, slots=True)
class _ColumnOrders:
    """A list of column orders: how many, and the bytes it was read from."""

    count: int
    encoded: bytes


_last_orders = _ColumnOrders(0, b"")


def _read_column_orders(data: bytes, position: int, kind: int, depth: int) -> tuple[int, int]:
    """How many column orders the list at `position` has, and the position behind it; most files have those of the last."""
    global _last_orders  # noqa: PLW0603  as in `read_schema`
    known = _last_orders
    if kind == LIST and known.encoded and data.startswith(known.encoded, position):
        return known.count, position + len(known.encoded)
    orders, end = read_value(data, position, kind, depth)
    _last_orders = _ColumnOrders(len(orders), data[position:end])
    return _last_orders.count, end


_MISSING = -(1 << 63)
_MAX_NUMBER = (1 << 63) - 1
_PLACE, _TYPE, _VALUES, _UNCOMPRESSED, _COMPRESSED, _DATA_PAGE, _DICTIONARY_PAGE = range(7)
_OFFSET_INDEX, _COLUMN_INDEX, _NUM_NUMBERS = 7, 9, 11
"""The numbers of a column chunk as `walk_row_groups` of the kernels fills them: where its metadata begins, then what they
say, then where its indexes are and how long."""
_STACK_SIZE = 64
_MIN_CHUNK_BYTES = 16
"""An encoded chunk is longer: a list of more of them than there is room for is damaged."""


def _walked_row_groups(  # noqa: PLR0917  the arguments of a reader, and what is known of the file
    data: bytes, position: int, kind: int, schema: FooterSchema, size: int, path: str, kernels: Kernels
) -> tuple[tuple[RowGroupFacts, ...], int] | None:
    """The row groups at `position`, and the position behind them, by one pass of a compiled kernel.

    None if something in them is unusual or wrong: the caller reads them field by field, and says what it is.
    """
    num_groups, first = structs_at(data, position, kind)
    num_leaves = len(schema.leaves)
    if not num_groups or not num_leaves or num_groups * num_leaves * _MIN_CHUNK_BYTES > len(data):
        return None
    raw = np.frombuffer(data, np.uint8)
    rows = np.empty(num_groups, np.int64)
    numbers = np.full((num_groups, num_leaves, _NUM_NUMBERS), _MISSING, np.int64)
    stack = np.empty(_STACK_SIZE, np.uint64)
    end = kernels["walk_row_groups"](raw, len(data), first, num_groups, num_leaves, stack, rows, numbers)
    if not end or not _are_usual(numbers, rows, schema, size):
        return None
    totals = numbers[:, :, _UNCOMPRESSED].sum(axis=1).tolist()
    groups = tuple(
        RowGroupFacts(num_rows, _WalkedChunks(data, numbers[index], size, path), total)
        for index, (num_rows, total) in enumerate(zip(rows.tolist(), totals, strict=True))
    )
    return groups, int(end)


def _are_usual(numbers: NDArray[np.int64], rows: NDArray[np.int64], schema: FooterSchema, size: int) -> bool:
    """Whether all numbers pass the checks of `_chunk`."""
    required = numbers[:, :, _TYPE : _DATA_PAGE + 1]
    starts = _starts(numbers[:, :, _DATA_PAGE], numbers[:, :, _DICTIONARY_PAGE])
    lengths, values = numbers[:, :, _COMPRESSED], numbers[:, :, _VALUES]
    return bool(
        (required >= 0).all()
        and (rows >= 0).all()
        and (numbers[:, :, _UNCOMPRESSED] <= _MAX_NUMBER // numbers.shape[1]).all()
        and (numbers[:, :, _TYPE] == schema.physical_types).all()
        and (starts >= 4).all()
        and (lengths <= size).all()
        and (starts <= size - lengths).all()
        and (values[:, schema.is_flat] == rows[:, None]).all()
    )


def _starts(data_pages: NDArray[np.int64], dictionary_pages: NDArray[np.int64]) -> NDArray[np.int64]:
    """Where chunks begin: at the dictionary page, if it has a place in front of the data pages."""
    has_dictionary = (dictionary_pages >= 4) & (dictionary_pages < data_pages)
    return np.where(has_dictionary, dictionary_pages, data_pages)


class _WalkedChunks(Sequence[Chunk]):
    """The column chunks of a row group, made from their numbers one by one, when they are asked for."""

    __slots__ = ("_data", "_known", "_numbers", "_path", "_size")

    def __init__(self, data: bytes, numbers: NDArray[np.int64], size: int, path: str) -> None:
        self._data = data
        self._numbers = numbers
        self._size = size
        self._path = path
        self._known: dict[int, Chunk] = {}

    def __len__(self) -> int:
        return len(self._numbers)

    @overload
    def __getitem__(self, index: int) -> Chunk: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[Chunk]: ...
    def __getitem__(self, index: int | slice) -> Chunk | Sequence[Chunk]:
        if isinstance(index, slice):
            return [self[i] for i in range(*index.indices(len(self)))]
        if (known := self._known.get(index)) is None:
            known = self._known[index] = self._made(self._numbers[index].tolist())
        return known

    def __iter__(self) -> Iterator[Chunk]:
        return map(self.__getitem__, range(len(self)))

    def _made(self, numbers: list[int]) -> Chunk:
        data_page, dictionary = numbers[_DATA_PAGE], numbers[_DICTIONARY_PAGE]
        place = partial(_index_place, size=self._size)
        return Chunk(
            ChunkMetadata(self._data, numbers[_PLACE], self._path),
            place(*numbers[_OFFSET_INDEX : _OFFSET_INDEX + 2]),
            place(*numbers[_COLUMN_INDEX : _COLUMN_INDEX + 2]),
            dictionary if 4 <= dictionary < data_page else data_page,
            numbers[_COMPRESSED],
            numbers[_VALUES],
            numbers[_UNCOMPRESSED],
            data_page,
        )


def _row_group(group: Struct, leaves: tuple[Leaf, ...], size: int, index: int) -> RowGroupFacts:
    columns, num_rows = group[1], group[3]
    if len(columns) != len(leaves):
        raise ValueError(f"row group {index} has {len(columns)} of {len(leaves)} columns")
    if num_rows < 0:
        raise ValueError(f"row group {index} has {num_rows} rows")
    chunks = tuple(_chunk(column, leaf, size, num_rows, index) for column, leaf in zip(columns, leaves, strict=True))
    return RowGroupFacts(num_rows, chunks, sum(c.uncompressed_bytes for c in chunks))


def _chunk(column: Struct, leaf: Leaf, size: int, num_rows: int, index: int) -> Chunk:
    if 8 in column or 9 in column:
        raise UnsupportedError(f"column {'.'.join(leaf.path)} is encrypted, which is not supported")
    if column.get(1):
        raise UnsupportedError(f"column {'.'.join(leaf.path)} lies in another file, which is not supported")
    metadata = column[3]
    if metadata[1] != leaf.physical_type:
        raise ValueError(f"{_where(leaf, index)} has physical type {metadata[1]}, the schema {leaf.physical_type}")
    data_start, length, num_values = metadata[9], metadata[7], metadata[5]
    dictionary = metadata.get(11)
    start = dictionary if dictionary is not None and 4 <= dictionary < data_start else data_start
    outside = start < 4 or start + length > size
    if length < 0 or metadata[6] < 0 or (outside and num_rows):  # an empty row group has no bytes to point at
        raise ValueError(f"{_where(leaf, index)} at {start}, {length} bytes, lies outside of the file of {size} bytes")
    if num_values < 0 or (leaf.max_repetition_level == 0 and num_values != num_rows):
        raise ValueError(f"{_where(leaf, index)} has {num_values} values in {num_rows} rows")
    stored = ChunkMetadata(b"", 0, "", metadata)
    indexes = _range(column, 4, 5, size), _range(column, 6, 7, size)
    return Chunk(stored, *indexes, start, length, num_values, metadata[6], data_start)


def _range(column: Struct, offset_id: int, length_id: int, size: int) -> tuple[int, int] | None:
    offset, length = column.get(offset_id), column.get(length_id)
    return None if offset is None or length is None else _index_place(offset, length, size=size)


def _index_place(offset: int, length: int, *, size: int) -> tuple[int, int] | None:
    """The place of an index; None if it lies outside of the file: indexes only save work."""
    if offset < 4 or length <= 0 or offset + length > size:
        return None
    return offset, length


def _where(leaf: Leaf, row_group: int) -> str:
    return f"row group {row_group}: column {'.'.join(leaf.path)}"


def _reason(error: Exception) -> Any:
    return f"lacks field {error}" if isinstance(error, KeyError) else error


BOOLEAN, INT32, INT64, INT96, FLOAT, DOUBLE, BYTE_ARRAY, FIXED = range(8)
_FORMATS = {BOOLEAN: "<?", INT32: "<i", INT64: "<q", FLOAT: "<f", DOUBLE: "<d"}
_EXACT = Context(prec=76)
"""The default context would round decimals of more than 28 digits."""


def stored_bounds(statistics: Struct, leaf: Leaf, *, has_column_orders: bool) -> tuple[bytes | None, bytes | None]:
    """Raw minimum and maximum of chunk statistics.

    The deprecated pair was written with signed byte order, so it counts for numbers only; the newer pair means
    something only in a file that states column orders.
    """
    numeric = leaf.physical_type in _FORMATS
    lower, upper = statistics.get(6), statistics.get(5)
    if (lower is not None or upper is not None) and (has_column_orders or numeric):
        return _raw(lower), _raw(upper)
    return (_raw(statistics.get(2)), _raw(statistics.get(1))) if numeric else (None, None)


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
        return _text(raw)
    return (
        raw
        if pt.is_binary(arrow_type) or pt.is_large_binary(arrow_type) or pt.is_fixed_size_binary(arrow_type)
        else None
    )


def _raw(value: Any) -> bytes | None:
    return value if isinstance(value, bytes) else None


def _scaled(unscaled: int, arrow_type: pa.DataType) -> Decimal:
    return Decimal(unscaled).scaleb(-arrow_type.scale, _EXACT)


def _text(raw: bytes) -> str | None:
    try:
        return raw.decode()
    except UnicodeDecodeError:
        return None  # cut inside a character
