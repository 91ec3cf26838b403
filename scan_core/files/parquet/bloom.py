"""Whether a column chunk certainly lacks a value: Parquet's Bloom filters."""

import struct
from collections.abc import Callable
from dataclasses import dataclass
from decimal import Decimal
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.types as pt
from xxhash import xxh64_intdigest

from nevermore.scan_core.columns.file_reader import ReadCounts, RowGroup, refusing_malformed
from nevermore.scan_core.files.parquet.file_layout import ParquetLayout
from nevermore.scan_core.files.parquet.thrift import ThriftError, read_struct
from nevermore.scan_core.io.remote import ByteSource
from nevermore.scan_core.model.statistics import unscaled_value

MAX_BITSET_BYTES = 128 * 1024**2
"""The specification's own limit."""

_LONGEST_HEADER_BYTES = 64
"""Four small fields; 17 bytes as writers encode them."""
_INT32, _INT64, _FLOAT, _DOUBLE, _BYTE_ARRAY, _FIXED = 1, 2, 4, 5, 6, 7
_SALT = np.array(
    [0x47B6137B, 0x44974D91, 0x8824AD5B, 0xA2B7289D, 0x705495C7, 0x2DF1424B, 0x9EFC4947, 0x5C6BFB31], dtype=np.uint32
)


@dataclass(frozen=True, slots=True, eq=False)
class BloomFilter:
    """A split-block Bloom filter: one row of eight 32-bit words per block."""

    blocks: npt.NDArray[np.uint32]

    def may_contain(self, value: bytes) -> bool:
        """False if the plain-encoded value is certainly not in the column chunk."""
        key = xxh64_intdigest(value)
        block = self.blocks[((key >> 32) * len(self.blocks)) >> 32]
        masks = np.uint32(1) << ((np.uint32(key & 0xFFFFFFFF) * _SALT) >> np.uint32(27))
        return bool(((block & masks) == masks).all())


def block_bits(hashes: npt.NDArray[np.uint64], num_blocks: int) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.uint32]]:
    """The block of each hash in a filter of so many, and its bit in each of the block's eight words."""
    places = ((hashes >> np.uint64(32)) * np.uint64(num_blocks)) >> np.uint64(32)
    low = (hashes & np.uint64(0xFFFFFFFF)).astype(np.uint32)
    return places.astype(np.int64), np.uint32(1) << ((low[:, None] * _SALT) >> np.uint32(27))


def parse_bloom_filter(data: bytes) -> BloomFilter | None:
    """The filter from its bytes, header first; None if they are not a Bloom filter, or one of an unknown kind."""
    try:
        header, start = read_struct(data)
        num_bytes, kinds = header[1], [header[field] for field in (2, 3, 4)]
    except (ThriftError, KeyError):
        return None
    known = all(isinstance(kind, dict) and 1 in kind for kind in kinds)
    if not known or not isinstance(num_bytes, int) or not 0 < num_bytes <= min(MAX_BITSET_BYTES, len(data) - start):
        return None
    if num_bytes % 32:
        return None
    words = np.frombuffer(data, dtype="<u4", count=num_bytes // 4, offset=start)
    return BloomFilter(words.reshape(-1, 8))


def read_bloom_filter(
    read_at: Callable[[int, int], bytes], place: tuple[int, int | None], max_bytes: int
) -> tuple[BloomFilter, int] | None:
    """The filter at a place of a file, and how many bytes were read for it; None if there is none, or it is too large.

    Args:
        read_at: (offset, length) -> those bytes of the file, fewer where it ends.
        place: offset, and length if it is known.
        max_bytes: a larger one is not read.
    """
    offset, length = place
    if length is None:
        try:
            header, start = read_struct(read_at(offset, _LONGEST_HEADER_BYTES))
        except ThriftError:
            return None
        num_bytes = header.get(1)
        if not isinstance(num_bytes, int) or num_bytes <= 0:
            return None
        length = start + num_bytes
    if length > min(max_bytes, MAX_BITSET_BYTES + _LONGEST_HEADER_BYTES):
        return None
    found = parse_bloom_filter(read_at(offset, length))
    return None if found is None else (found, length)


def is_comparable(file_type: pa.DataType, table_type: pa.DataType) -> bool:
    """Whether a value of the table's type is encoded in the file as if it were of the file's type.

    Promotions keep integers, decimals and floats what they are, but turn dates into timestamps and change units.
    """
    if pt.is_temporal(table_type) or pt.is_temporal(file_type):
        if pt.is_date32(table_type):
            return bool(pt.is_date32(file_type))
        is_kind = pt.is_timestamp if pt.is_timestamp(table_type) else pt.is_time
        return bool(is_kind(file_type) and is_kind(table_type) and table_type.unit == "us")
    if pt.is_floating(table_type) or pt.is_integer(table_type):
        return bool(pt.is_floating(file_type) == pt.is_floating(table_type))
    return True


@dataclass(frozen=True, slots=True, eq=False)
class BloomTest:
    """A test whether a value of the table is certainly not in a chunk.

    Attributes:
        filter_: the Bloom filter of the chunk.
        file_type: the column's Arrow type in the file.
        physical_type: Parquet's number of the type that values are stored in.
    """

    filter_: BloomFilter
    file_type: pa.DataType
    physical_type: int

    def __call__(self, value: Any) -> bool:
        """True if a value, as `ColumnStatistics` represents it in the table's type, is not there."""
        encoded = plain_encoded(value, self.file_type, self.physical_type)
        if encoded is None:
            return False
        return not any(self.filter_.may_contain(e) for e in encoded)


def plain_encoded(value: Any, file_type: pa.DataType, physical_type: int) -> tuple[bytes, ...] | None:
    """The encodings of a value of the table in the file; none if the file cannot hold it, None if unknown."""
    if isinstance(value, bool) or pt.is_boolean(file_type):
        return None
    match value:
        case str() if physical_type == _BYTE_ARRAY:
            return (value.encode(),)
        case bytes() if physical_type in {_BYTE_ARRAY, _FIXED}:
            return (value,)
        case Decimal() if pt.is_decimal(file_type):
            return _encoded_decimal(value, file_type, physical_type)
        case int() if physical_type in {_INT32, _INT64}:
            return _encoded_integer(value, file_type, physical_type)
        case float() if physical_type in {_FLOAT, _DOUBLE}:
            return _encoded_float(value, physical_type)
        case _:
            return None


def _integer_bytes(value: int, physical_type: int) -> tuple[bytes, ...]:
    size = 4 if physical_type == _INT32 else 8
    limit = 1 << (8 * size - 1)
    return (value.to_bytes(size, "little", signed=True),) if -limit <= value < limit else ()


def _encoded_integer(value: int, file_type: pa.DataType, physical_type: int) -> tuple[bytes, ...] | None:
    if pt.is_timestamp(file_type) or pt.is_time(file_type):
        if file_type.unit == "us":
            return _integer_bytes(value, physical_type)
        if file_type.unit == "ms":
            return _integer_bytes(value // 1000, physical_type) if value % 1000 == 0 else ()
        return None
    if pt.is_signed_integer(file_type) or pt.is_date32(file_type):
        return _integer_bytes(value, physical_type)
    return None


def _encoded_float(value: float, physical_type: int) -> tuple[bytes, ...] | None:
    if value != value:  # noqa: PLR0124  # NaN has many encodings
        return None
    values = (0.0, -0.0) if value == 0 else (value,)
    if physical_type == _DOUBLE:
        return tuple(struct.pack("<d", v) for v in values)
    try:
        packed = tuple(struct.pack("<f", v) for v in values)
    except OverflowError:
        return ()
    return packed if struct.unpack("<f", packed[0])[0] == value else ()


def _encoded_decimal(value: Decimal, file_type: pa.DataType, physical_type: int) -> tuple[bytes, ...] | None:
    if physical_type not in {_INT32, _INT64}:
        return None  # byte arrays: writers differ in their length
    try:
        return _integer_bytes(unscaled_value(value, file_type.scale), physical_type)
    except ValueError:
        return ()


class AbsenceTests:
    """The absence tests of one open Parquet file; each filter is read once."""

    def __init__(self, path: str, source: ByteSource, layout: ParquetLayout) -> None:
        self._path = path
        self._source = source
        self._layout = layout
        self._bloom_filters: dict[tuple[int, int], BloomFilter | None] = {}

    def by_bloom_filter(
        self, row_group: RowGroup, column_index: int, counts: ReadCounts
    ) -> Callable[[Any], bool] | None:
        """The test by the Bloom filter of a column chunk; None if there is none, or it is larger than what it may save."""
        columns, chunk = self._layout.columns, self._layout.chunk(row_group.index, column_index)
        field_type, leaf = columns.fields[column_index].type, columns.leaves[column_index][0]
        if pt.is_nested(field_type) or (place := chunk.bloom_filter) is None:
            return None
        key = row_group.index, leaf
        if key not in self._bloom_filters:
            with refusing_malformed(self._path, "Bloom filter"):
                found = read_bloom_filter(
                    lambda offset, length: self._source.read_at(length, offset), place, row_group.num_bytes
                )
            counts.bloom_filters_read += 1
            counts.bloom_bytes_read += 0 if found is None else found[1]
            counts.fallbacks += found is None
            self._bloom_filters[key] = None if found is None else found[0]
        filter_ = self._bloom_filters[key]
        if filter_ is None:
            return None
        return BloomTest(filter_, field_type, self._layout.footer.leaves[leaf].physical_type)
