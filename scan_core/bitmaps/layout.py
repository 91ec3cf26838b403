"""The bytes of a bitmap index, a blob per data file and column: a directory of values, then one bitmap for each.

    header    magic "NBI1", number of values, bytes of values, rows of the file, CRC-32 of the directory without it
    directory for each value, for NULL and for "a list with a NULL element": rows, bytes of its bitmap, their CRC-32;
              ends of the values where they have no fixed width; the values, ascending
    bitmaps   64-bit Roaring, portable serialisation, in the order of the directory; nothing for no rows

Everything is little-endian. Strings are UTF-8, numbers, dates and times as wide as in Arrow, booleans one byte.
A row of a list counts for each of its elements. Positions are those of the file's rows: deletes are not applied.
"""

import struct
import zlib
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from scan_core.model.errors import MalformedTableError
from scan_core.model.schema import PrimitiveType, Type, arrow_type

BLOB_TYPE = "nevermore-bitmap-index-v1"
DATA_FILE, RECORD_COUNT, FILE_BYTES = "data-file", "record-count", "data-file-bytes"
COLUMN_TYPE, DIRECTORY_BYTES, IS_LIST = "value-type", "directory-bytes", "is-list"
"""Properties of a blob in the footer of its Puffin file."""

_HEADER = struct.Struct("<4sIIQI")
_MAGIC = b"NBI1"
_EXTRA = 2
"""Bitmaps behind those of the values: NULL, and lists with a NULL element."""

INDEXABLE = frozenset(
    {
        *("boolean", "int", "long", "date", "time", "string", "uuid", "binary", "fixed"),
        *("timestamp", "timestamptz", "timestamp_ns", "timestamptz_ns"),
    }
)
"""Types of values: whose equality is that of their bytes."""
_VARIABLE = frozenset({"string", "binary"})

Counts = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True, eq=False)
class Directory:
    """What an index holds: entry k < len(values) is a value, then come NULL and lists with a NULL element.

    Attributes:
        values: distinct, in the type of the column when the index was written.
        cardinalities: rows of each entry.
        ends: where the bitmap of each entry ends, from the begin of the blob; it begins where the one before ends.
        checksums: CRC-32 of each bitmap.
        num_rows: of the data file.
        num_bytes: of header and directory, where the first bitmap begins.
    """

    values: pa.Array
    cardinalities: Counts
    ends: Counts
    checksums: Counts
    num_rows: int
    num_bytes: int

    @property
    def null_entry(self) -> int:
        """Rows where the column is NULL."""
        return len(self.values)

    @property
    def null_element_entry(self) -> int:
        """Rows whose list has a NULL element."""
        return len(self.values) + 1

    def begin(self, entry: int) -> int:
        """Where the bitmap of an entry begins, from the begin of the blob."""
        return int(self.ends[entry - 1]) if entry else self.num_bytes


def is_indexable(column_type: Type) -> bool:
    """Whether values of a type, or the elements of a list, can stand in a directory."""
    return isinstance(column_type, PrimitiveType) and column_type.name in INDEXABLE


def encode_directory(
    values: pa.Array, column_type: PrimitiveType, bitmaps: list[tuple[int, bytes]], num_rows: int
) -> bytes:
    """Header and directory of an index.

    Args:
        values: distinct values, ascending.
        column_type: theirs.
        bitmaps: rows and serialised bitmap for each value, for NULL and for lists with a NULL element.
        num_rows: of the data file.
    """
    counts = np.array([rows for rows, _ in bitmaps], "<u8")
    lengths = np.array([len(data) for _, data in bitmaps], "<u4")
    checksums = np.array([zlib.crc32(data) for _, data in bitmaps], "<u4")
    ends, raw = _raw_values(values, column_type)
    body = counts.tobytes() + lengths.tobytes() + checksums.tobytes() + ends + raw
    begin = _HEADER.pack(_MAGIC, len(values), len(raw), num_rows, 0)[:-4]
    return begin + struct.pack("<I", zlib.crc32(body, zlib.crc32(begin))) + body


def decode_directory(data: bytes, column_type: PrimitiveType, blob_bytes: int, source: str) -> Directory:
    """The directory at the begin of a blob.

    Args:
        data: header and directory, exactly.
        column_type: of the values.
        blob_bytes: length of the whole blob.
        source: file and blob, for messages.

    Raises:
        MalformedTableError: lengths, checksum or values that contradict each other or the number of bytes.
    """
    if len(data) < _HEADER.size:
        raise MalformedTableError(f"{source}: {len(data)} bytes hold no bitmap index")
    magic, count, value_bytes, num_rows, checksum = _HEADER.unpack_from(data)
    if magic != _MAGIC:
        raise MalformedTableError(f"{source}: magic is {magic!r}, not {_MAGIC!r}")
    entries = count + _EXTRA
    ends_bytes = 4 * count if column_type.name in _VARIABLE else 0
    if _HEADER.size + 16 * entries + ends_bytes + value_bytes != len(data):
        raise MalformedTableError(f"{source}: {count} values of {value_bytes} bytes do not fill {len(data)} bytes")
    body = memoryview(data)[_HEADER.size :]
    if zlib.crc32(body, zlib.crc32(data[: _HEADER.size - 4])) != checksum:
        raise MalformedTableError(f"{source}: CRC-32 of the directory does not match")
    counts = np.frombuffer(body, "<u8", entries)
    lengths = np.frombuffer(body, "<u4", entries, 8 * entries).astype(np.int64)
    checksums = np.frombuffer(body, "<u4", entries, 12 * entries).astype(np.int64)
    if len(data) + int(lengths.sum()) != blob_bytes or (counts > num_rows).any() or num_rows >= 1 << 62:
        raise MalformedTableError(f"{source}: bitmaps of {int(lengths.sum())} bytes and {num_rows} rows do not fit")
    raw = body[16 * entries + ends_bytes :]
    value_ends = (
        np.frombuffer(body, "<u4", count, 16 * entries) if ends_bytes or column_type.name in _VARIABLE else None
    )
    values = _values(bytes(raw), value_ends, column_type, count, source)
    return Directory(values, counts.astype(np.int64), len(data) + np.cumsum(lengths), checksums, num_rows, len(data))


def _raw_values(values: pa.Array, column_type: PrimitiveType) -> tuple[bytes, bytes]:
    """Ends of values without fixed width, and the bytes of all values."""
    if column_type.name == "boolean":
        return b"", np.asarray(values.cast(pa.int8())).tobytes()
    buffers = values.buffers()
    if column_type.name not in _VARIABLE:
        width = values.type.byte_width
        return b"", bytes(buffers[1])[values.offset * width : (values.offset + len(values)) * width]
    if len(values) == 0:
        return b"", b""
    offsets = np.frombuffer(buffers[1], np.int32)[values.offset : values.offset + len(values) + 1]
    raw = bytes(buffers[2])[offsets[0] : offsets[-1]] if buffers[2] is not None else b""
    return (offsets[1:] - offsets[0]).astype("<u4").tobytes(), raw


def _values(
    raw: bytes, ends: npt.NDArray[np.uint32] | None, column_type: PrimitiveType, count: int, source: str
) -> pa.Array:
    target = arrow_type(column_type)
    if ends is not None:
        offsets = np.concatenate([[0], ends.astype(np.int64)])
        if (np.diff(offsets) < 0).any() or offsets[-1] != len(raw) or len(raw) >= 1 << 31:
            raise MalformedTableError(f"{source}: values that do not lie in their {len(raw)} bytes")
        buffers = [None, pa.py_buffer(offsets.astype(np.int32).tobytes()), pa.py_buffer(raw)]
    elif column_type.name == "boolean":
        if len(raw) != count:
            raise MalformedTableError(f"{source}: {count} booleans in {len(raw)} bytes")
        return pa.array(np.frombuffer(raw, np.int8) != 0)
    else:
        if len(raw) != count * target.byte_width:
            raise MalformedTableError(f"{source}: {count} values of type {column_type} in {len(raw)} bytes")
        buffers = [None, pa.py_buffer(raw)]
    array = pa.Array.from_buffers(target, count, buffers)
    try:
        array.validate(full=True)
    except pa.ArrowInvalid as error:
        raise MalformedTableError(f"{source}: {error}") from error
    return array
