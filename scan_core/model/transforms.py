"""Partition transforms on whole columns, and the canonical form of partition tuples.

Identity, bucket (Murmur3), truncate, year to hour and void are computed here; other transforms are kept as unknown.
Pruning by partition values is in `prune/partitions.py`.

"""

import re
import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from nevermore.scan_core.model.errors import UnsupportedError
from nevermore.scan_core.model.schema import NestedField, PrimitiveType, Type, arrow_type
from nevermore.scan_core.model.snapshot import PartitionSpec

UInt32s = npt.NDArray[np.uint32]
Int64s = npt.NDArray[np.int64]
Bytes = npt.NDArray[np.uint8]

_C1 = np.uint32(0xCC9E2D51)
_C2 = np.uint32(0x1B873593)
_FIVE = np.uint32(5)
_ADD = np.uint32(0xE6546B64)


def hash_longs(values: Int64s) -> UInt32s:
    """Hash of each value's eight little-endian bytes."""
    words = values.view(np.uint64)
    low = (words & np.uint64(0xFFFFFFFF)).astype(np.uint32)
    high = (words >> np.uint64(32)).astype(np.uint32)
    state = _mix(np.zeros(len(values), np.uint32), low)
    return _finish(_mix(state, high), np.full(len(values), 8, np.uint32))


def hash_bytes(data: Bytes, starts: Int64s, lengths: Int64s) -> UInt32s:
    """Hash of the byte strings data[start : start + length], in passes of four bytes over those still long enough."""
    state = np.zeros(len(starts), np.uint32)
    blocks = lengths >> 2
    rows = np.flatnonzero(blocks > 0)
    block = 0
    while len(rows):
        at = starts[rows] + 4 * block
        word = np.zeros(len(rows), np.uint32)
        for byte in range(4):
            word |= data[at + byte].astype(np.uint32) << np.uint32(8 * byte)
        state[rows] = _mix(state[rows], word)
        block += 1
        rows = rows[blocks[rows] > block]
    return _finish(_mix_tail(state, data, starts + (blocks << 2), lengths & 3), lengths.astype(np.uint32))


def _mix_tail(state: UInt32s, data: Bytes, starts: Int64s, lengths: Int64s) -> UInt32s:
    word = np.zeros(len(state), np.uint32)
    for byte in range(3):
        rows = np.flatnonzero(lengths > byte)
        word[rows] |= data[starts[rows] + byte].astype(np.uint32) << np.uint32(8 * byte)
    return state ^ _scramble(word)


def _scramble(word: UInt32s) -> UInt32s:
    return _rotate(word * _C1, 15) * _C2


def _mix(state: UInt32s, word: UInt32s) -> UInt32s:
    return _rotate(state ^ _scramble(word), 13) * _FIVE + _ADD


def _rotate(word: UInt32s, bits: int) -> UInt32s:
    return (word << np.uint32(bits)) | (word >> np.uint32(32 - bits))


def _finish(state: UInt32s, lengths: UInt32s) -> UInt32s:
    state = state ^ lengths
    state = (state ^ (state >> np.uint32(16))) * np.uint32(0x85EBCA6B)
    state = (state ^ (state >> np.uint32(13))) * np.uint32(0xC2B2AE35)
    return state ^ (state >> np.uint32(16))


_PARAMETRISED = re.compile(r"(bucket|truncate)\[\s*(\d+)\s*\]")
_SIMPLE = frozenset({"identity", "year", "month", "day", "hour", "void"})
_INT = PrimitiveType("int")
_DATE = PrimitiveType("date")
_UNKNOWN = PrimitiveType("unknown")
_TICKS_PER_SECOND = {
    "timestamp": 10**6,
    "timestamptz": 10**6,
    "timestamp_ns": 10**9,
    "timestamptz_ns": 10**9,
}
_NUMPY_UNIT = {10**6: "us", 10**9: "ns"}
_MAX_PARAMETER = 2**31 - 1


@dataclass(frozen=True, slots=True)
class Transform:
    """A transform: `kind` is its name without parameter, `unknown` for one this reader does not know.

    Attributes:
        kind: identity, bucket, truncate, year, month, day, hour, void or unknown.
        parameter: buckets or width; 0 for others.
        text: as the metadata has it.
    """

    kind: str
    parameter: int
    text: str

    def __str__(self) -> str:
        return self.text

    def result_type(self, source: Type) -> Type:
        """Type of the transformed value of a column of type `source`."""
        match self.kind:
            case "bucket" | "year" | "month" | "hour":
                return _INT
            case "day":
                return _DATE
            case "unknown":
                return _UNKNOWN
            case _:
                return source

    def apply(self, array: pa.Array, source: Type) -> pa.Array:
        """The transformed values, NULL for NULL, in the Arrow type of `result_type(source)`.

        Raises:
            UnsupportedError: an unknown transform, or one that is not defined for this type.
        """
        if isinstance(array, pa.ChunkedArray):
            array = array.combine_chunks()
        if isinstance(array, pa.DictionaryArray):
            array = array.dictionary_decode()
        match self.kind:
            case "identity":
                return array
            case "void":
                return pa.nulls(len(array), arrow_type(source))
            case "bucket":
                hashes = _hash(array, source, self)
                return _with_nulls((hashes & np.uint32(0x7FFFFFFF)).astype(np.int64) % self.parameter, array, _INT)
            case "truncate":
                return _truncate(array, source, self)
            case "year" | "month" | "day" | "hour":
                return _with_nulls(_time_part(array, source, self), array, self.result_type(source))
            case _:
                raise UnsupportedError(f"partition transform {self.text!r} is unknown")


@lru_cache(maxsize=1024)
def parse_transform(text: str) -> Transform:
    """The transform that a partition field's text names; kind `unknown` if this reader does not know it."""
    lowered = text.strip().lower()
    if lowered in _SIMPLE:
        return Transform(lowered, 0, text)
    match = _PARAMETRISED.fullmatch(lowered)
    if match and 0 < int(match[2]) <= _MAX_PARAMETER:
        return Transform(match[1], int(match[2]), text)
    return Transform("unknown", 0, text)


def _undefined(transform: Transform, source: Type) -> UnsupportedError:
    return UnsupportedError(f"partition transform {transform} is not defined for type {source}")


def _hash(array: pa.Array, source: Type, transform: Transform) -> UInt32s:
    name = source.name if isinstance(source, PrimitiveType) else ""
    match name:
        case "int" | "long" | "date" | "time" | "timestamp" | "timestamptz":
            return hash_longs(_integers(array))
        case "timestamp_ns" | "timestamptz_ns":
            return hash_longs(_integers(array) // 1000)  # hashed as microseconds, so that promotion keeps buckets
        case "string" | "binary":
            return _hash_variable(array)
        case "uuid" | "fixed":
            width = array.type.byte_width
            data = np.frombuffer(array.buffers()[1] or b"", np.uint8)
            starts = (np.arange(len(array), dtype=np.int64) + array.offset) * width
            return hash_bytes(data, starts, np.full(len(array), width, np.int64))
        case "decimal":
            return _hash_decimals(array)
        case _:
            raise _undefined(transform, source)


def _hash_variable(array: pa.Array) -> UInt32s:
    array = array.cast(pa.large_binary()).fill_null(b"")
    _, offset_buffer, data_buffer = array.buffers()
    offsets = np.frombuffer(offset_buffer, np.int64)[array.offset : array.offset + len(array) + 1]
    data = np.frombuffer(data_buffer or b"", np.uint8)
    return hash_bytes(data, offsets[:-1], np.diff(offsets))


def _hash_decimals(array: pa.Array) -> UInt32s:
    big_endian = np.ascontiguousarray(_decimal_bytes(array)[:, ::-1])
    negative = big_endian[:, 0] >= 0x80
    filler = np.where(negative, 0xFF, 0).astype(np.uint8)
    is_filler = big_endian == filler[:, None]
    first = np.where(is_filler.all(axis=1), 15, np.argmin(is_filler, axis=1))
    sign_lost = (np.take_along_axis(big_endian, first[:, None], axis=1)[:, 0] >= 0x80) != negative
    first = first - sign_lost
    starts = np.arange(len(array), dtype=np.int64) * 16 + first
    return hash_bytes(big_endian.reshape(-1), starts, 16 - first)


def _truncate(array: pa.Array, source: Type, transform: Transform) -> pa.Array:
    import pyarrow.compute as pc

    width = transform.parameter
    match source:
        case PrimitiveType("int" | "long"):
            values = np.asarray(array.fill_null(0))
            return _with_nulls(values - np.mod(values, values.dtype.type(width)), array, source)
        case PrimitiveType("string"):
            return pc.utf8_slice_codeunits(array, 0, width)
        case PrimitiveType("binary"):
            return pc.binary_slice(array, 0, width)
        case PrimitiveType("decimal"):
            return _truncate_decimals(array, width)
        case _:
            raise _undefined(transform, source)


def _truncate_decimals(array: pa.Array, width: int) -> pa.Array:
    """Subtract the non-negative remainder of the 128-bit unscaled value, limb by limb."""
    import pyarrow.compute as pc

    limbs = np.ascontiguousarray(_decimal_bytes(array)).view(np.uint32)
    divisor = np.uint64(width)
    remainder = np.zeros(len(array), np.uint64)
    for limb in (3, 2, 1, 0):
        remainder = ((remainder << np.uint64(32)) | limbs[:, limb]) % divisor
    negative = limbs[:, 3] >= 0x80000000
    wrapped = np.uint64((1 << 128) % width)  # a negative value was read as value + 2**128
    remainder = np.where(negative, (remainder + divisor - wrapped) % divisor, remainder)
    words = limbs.view(np.uint64).copy()
    borrow = words[:, 0] < remainder
    words[:, 0] -= remainder
    words[:, 1] -= borrow.astype(np.uint64)
    result = pa.Array.from_buffers(array.type, len(array), [None, pa.py_buffer(words)])
    return pc.if_else(array.is_valid(), result, pa.scalar(None, array.type))


def _time_part(array: pa.Array, source: Type, transform: Transform) -> Int64s:
    name = source.name if isinstance(source, PrimitiveType) else ""
    values = _integers(array) if name == "date" or name in _TICKS_PER_SECOND else None
    if values is None or (name == "date" and transform.kind == "hour"):
        raise _undefined(transform, source)
    if name == "date":
        moments: npt.NDArray[Any] = values.view("datetime64[D]")
        ticks_per_hour = 0
    else:
        moments = values.view(f"datetime64[{_NUMPY_UNIT[_TICKS_PER_SECOND[name]]}]")
        ticks_per_hour = _TICKS_PER_SECOND[name] * 3600
    match transform.kind:
        case "year":
            return moments.astype("datetime64[Y]").astype(np.int64)
        case "month":
            return moments.astype("datetime64[M]").astype(np.int64)
        case "day":
            return values // (ticks_per_hour * 24) if ticks_per_hour else values
        case _:
            return values // ticks_per_hour


def _integers(array: pa.Array) -> Int64s:
    bits = array.type.bit_width
    integers = array.cast(pa.int32()).cast(pa.int64()) if bits == 32 else array.cast(pa.int64())
    return np.asarray(integers.fill_null(0))


def _decimal_bytes(array: pa.Array) -> Bytes:
    """(rows, 16) little-endian two's complement; bytes under a NULL are arbitrary."""
    if array.type.id != pa.decimal128(1, 0).id:
        array = array.cast(pa.decimal128(array.type.precision, array.type.scale))
    data = np.frombuffer(array.buffers()[1] or b"", np.uint8)
    return data[array.offset * 16 : (array.offset + len(array)) * 16].reshape(-1, 16)


def _with_nulls(values: npt.NDArray[Any], array: pa.Array, result: Type) -> pa.Array:
    target = arrow_type(result)
    integers = pa.array(values, mask=np.asarray(array.is_null()))
    return integers.cast(pa.int32()).cast(target) if target == pa.date32() else integers.cast(target)


_FLOATS = frozenset({"float", "double"})
_NAN = float("nan")
UNKNOWN = PrimitiveType("unknown")


def partition_types(spec: PartitionSpec, field_paths: Mapping[int, Sequence[NestedField]]) -> tuple[Type, ...]:
    """Type of each partition value of a spec; unknown where transform or source column is not known."""
    return tuple(
        parse_transform(f.transform).result_type(field_paths[f.source_id][-1].type)
        if f.source_id in field_paths
        else UNKNOWN
        for f in spec.fields
    )


def normalise_value(value: Any, iceberg_type: Type) -> Any:
    """One value in canonical form. A float of an unknown type is canonical too: an unknown transform may make one."""
    if isinstance(value, float) or (
        value is not None and isinstance(iceberg_type, PrimitiveType) and iceberg_type.name in _FLOATS
    ):
        number = float(value)
        canonical = _NAN if number != number else number  # noqa: PLR0124 - NaN is the value that differs from itself
        return struct.unpack("<q", struct.pack("<d", canonical))[0]
    if isinstance(value, bytearray | memoryview):
        return bytes(value)
    return value


def partition_value(canonical: Any, iceberg_type: Type) -> Any:
    """The value that `normalise_value` was given, NaN in its canonical form."""
    if canonical is not None and isinstance(iceberg_type, PrimitiveType) and iceberg_type.name in _FLOATS:
        return struct.unpack("<d", struct.pack("<q", canonical))[0]
    return canonical
