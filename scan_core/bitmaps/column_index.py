"""Bitmap indexes of columns: the Puffin files that hold them, and the data files of a scan that have one.

Puffin (https://iceberg.apache.org/puffin-spec) is a container: its footer lists blobs, and every length is checked against
the file before anything is read. One blob holds the index of one column in one data file: a directory of its values, read at
once, and a bitmap of rows for each value, read when it is needed.

An index describes a file, not a snapshot: data files never change, so an entry of any snapshot serves, those of the
snapshot and its ancestors first. Statistics files of other engines are not opened: ours have a name of their own.
"""

import struct
import zlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import islice
from zlib import crc32

import numpy as np
import numpy.typing as npt
import orjson
import pyarrow as pa

from nevermore.scan_core.io.cache import cached
from nevermore.scan_core.io.files import INDEX_SUFFIX, file_size, fingerprint, read_bytes
from nevermore.scan_core.io.location import FileIOConfig
from nevermore.scan_core.io.remote import grouped
from nevermore.scan_core.metadata.avro_container import BlockTooLargeError, decompress
from nevermore.scan_core.metadata.table_json import Document, load_document
from nevermore.scan_core.model.errors import MalformedTableError, MissingFileError
from nevermore.scan_core.model.options import ScanMetrics
from nevermore.scan_core.model.schema import ListType, PrimitiveType, Type, arrow_type, parse_type
from nevermore.scan_core.model.snapshot import DataFile, Snapshot
from nevermore.scan_core.model.table_metadata import TableMetadata
from nevermore.scan_core.rows.buffers import Mask
from nevermore.scan_core.rows.selection import (
    RoaringPositions,
    decode_roaring,
    mark_rows,
    positions_in_mask,
)
from nevermore.scan_core.split.tasks import BitmapIndexBlob, FileScanTask, ScanContext

MAGIC = b"PFA1"
_TAIL = struct.Struct("<iI4s")
"""Payload size, flags and magic: the last bytes of a file."""
_COMPRESSED = 1
_CHECKED = b'"nevermore.checksum":"'
_CHECKED_END = b'"}}'
"""Around the last property of the footers of our writers: the CRC-32 of the JSON before it, in 8 hexadecimal digits.
Puffin itself has no checksum of footers, and a wrong place or path in one would make an index that of other rows."""
_CRC_DIGITS = 8
MAX_FOOTER_BYTES = 1 << 28
"""Largest footer that is read, decompressed or not: that of a million blobs is smaller."""


@dataclass(frozen=True, slots=True)
class PuffinBlob:
    """One blob as the footer states it."""

    type: str
    fields: tuple[int, ...]
    snapshot_id: int
    sequence_number: int
    offset: int
    length: int
    compression: str | None = None
    properties: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class PuffinFooter:
    """The contents of the footer of a Puffin file."""

    blobs: tuple[PuffinBlob, ...]
    properties: Mapping[str, str]
    num_bytes: int
    """Size of the footer, with both magics."""
    is_checked: bool = False
    """Whether the footer has a checksum of its own, which was compared."""


def read_footer(path: str, io: FileIOConfig) -> PuffinFooter:
    """The footer of a Puffin file.

    Raises:
        MissingFileError: no such file.
        MalformedTableError: no Puffin file, or a footer that contradicts the file.
    """
    size = file_size(path, io)
    smallest = 2 * len(MAGIC) + _TAIL.size
    if size < smallest:
        raise MalformedTableError(f"{path}: {size} bytes are too few for a Puffin file")
    payload_size, flags, magic = _TAIL.unpack(read_bytes(path, io, size - _TAIL.size, _TAIL.size))
    if magic != MAGIC or read_bytes(path, io, 0, len(MAGIC)) != MAGIC:
        raise MalformedTableError(f"{path}: not a Puffin file: it does not begin and end with {MAGIC!r}")
    if not 0 <= payload_size <= size - smallest:
        raise MalformedTableError(f"{path}: a footer of {payload_size} bytes in a file of {size}")
    if flags & ~_COMPRESSED:
        raise MalformedTableError(f"{path}: unknown footer flags {flags:#x}")
    begin = size - _TAIL.size - payload_size - len(MAGIC)
    stored = read_bytes(path, io, begin, len(MAGIC) + payload_size, max_bytes=MAX_FOOTER_BYTES)
    if stored[: len(MAGIC)] != MAGIC:
        raise MalformedTableError(f"{path}: the footer does not begin with {MAGIC!r}")
    payload = _decompress(stored[len(MAGIC) :], path) if flags & _COMPRESSED else stored[len(MAGIC) :]
    try:
        content = load_document(payload)
    except (ValueError, RecursionError) as error:
        raise MalformedTableError(f"{path}: the footer is no JSON document that can be read: {error}") from error
    document = Document(path, content)
    is_checked = _has_checksum(payload, path)
    blobs = tuple(_blob(b, begin, path) for b in document.objects("blobs"))
    return PuffinFooter(blobs, document.text_mapping("properties"), size - begin, is_checked)


def footer_bytes(blobs: list[PuffinBlob], properties: Mapping[str, str]) -> bytes:
    """The footer of a file that holds these blobs, with a checksum as its last property."""
    described = [
        {
            "type": blob.type,
            "fields": list(blob.fields),
            "snapshot-id": blob.snapshot_id,
            "sequence-number": blob.sequence_number,
            "offset": blob.offset,
            "length": blob.length,
            **({"compression-codec": blob.compression} if blob.compression else {}),
            **({"properties": dict(blob.properties)} if blob.properties else {}),
        }
        for blob in blobs
    ]
    plain = orjson.dumps({"blobs": described, "properties": dict(properties)})
    head = plain.removesuffix(b"}}") + (b"," if properties else b"")
    payload = head + _CHECKED + f"{crc32(head):0{_CRC_DIGITS}x}".encode() + _CHECKED_END
    return MAGIC + payload + _TAIL.pack(len(payload), 0, MAGIC)


def _has_checksum(payload: bytes, path: str) -> bool:
    """Compare a footer with the checksum at its end; returns whether it has one.

    Raises:
        MalformedTableError: it is wrong, or right behind a damaged key.
    """
    begin = len(payload) - len(_CHECKED) - _CRC_DIGITS - len(_CHECKED_END)
    if begin < 0:
        return False
    checksum = f"{crc32(payload[:begin]):0{_CRC_DIGITS}x}".encode()
    stated = payload[begin + len(_CHECKED) :][:_CRC_DIGITS]
    if payload[begin:] == _CHECKED + checksum + _CHECKED_END:
        return True
    if payload[begin:].startswith(_CHECKED) or stated == checksum:
        raise MalformedTableError(f"{path}: the checksum of the footer is wrong: the bytes are damaged")
    return False


def _blob(document: Document, end_of_blobs: int, path: str) -> PuffinBlob:
    offset, length = document.integer("offset"), document.integer("length")
    if offset < len(MAGIC) or length < 0 or offset + length > end_of_blobs:
        raise MalformedTableError(f"{path}: a blob of {length} bytes at {offset} does not lie before the footer")
    return PuffinBlob(
        document.text("type"),
        document.integers("fields"),
        document.integer("snapshot-id", default=-1),
        document.integer("sequence-number", default=-1),
        offset,
        length,
        document.optional_text("compression-codec"),
        document.text_mapping("properties"),
    )


def _decompress(data: bytes, path: str) -> bytes:
    """LZ4 frames, the only compression of footers, never more than a real footer has."""
    try:
        return decompress(data, "lz4", MAX_FOOTER_BYTES)
    except BlockTooLargeError as error:
        raise MalformedTableError(f"{path}: a footer larger than {MAX_FOOTER_BYTES} bytes when decompressed") from error
    except ValueError as error:
        raise MalformedTableError(f"{path}: the footer cannot be decompressed: {error}") from error


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
        *("boolean", "int", "long", "float", "double", "decimal", "date", "time", "string", "uuid", "binary", "fixed"),
        *("timestamp", "timestamptz", "timestamp_ns", "timestamptz_ns"),
    }
)
"""Types of values. Floating-point numbers are distinguished by their bytes, as functions may do: -0.0, 0.0 and every NaN have
entries of their own, and expressions that treat them as equal are true for all of them."""
FLOATING = frozenset({"float", "double"})
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
        """Offset of an entry's bitmap from the beginning of the blob."""
        return int(self.ends[entry - 1]) if entry else self.num_bytes


def is_indexable(column_type: Type) -> bool:
    """Whether a column of a type can have an index: for a list its elements, which are looked up by their bytes."""
    if isinstance(column_type, ListType):
        element = column_type.element.type
        return (
            is_indexable(element) and not isinstance(element, ListType) and getattr(element, "name", "") not in FLOATING
        )
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
        raise MalformedTableError(f"{source}: {len(data)} bytes are too few for a bitmap index")
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
            raise MalformedTableError(f"{source}: values exceed their {len(raw)} bytes")
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


def decode_bitmap(data: bytes, cardinality: int, num_rows: int, source: str) -> RoaringPositions:
    """A bitmap of rows of a file.

    Raises:
        MalformedTableError: broken, with other than `cardinality` rows, or with rows that the file has not.
    """
    positions = decode_roaring(data, source)
    count = len(positions.bitmap)
    if count != cardinality or positions.last >= num_rows:
        raise MalformedTableError(
            f"{source}: a bitmap of {count} rows up to {positions.last}; expected {cardinality} below {num_rows}"
        )
    return positions


def row_mask(bitmaps: Iterable[RoaringPositions], first_row: int, num_rows: int) -> Mask:
    """Which of the rows [first_row, first_row + num_rows) are in any of the bitmaps."""
    mask = np.zeros(num_rows, np.bool_)
    for positions in bitmaps:
        mark_rows(positions, first_row, mask)
    return mask


_GAP_BYTES = 64 * 1024
"""Bitmaps no further apart are read together: a request costs more than these bytes."""
_MAX_RUN_BYTES = 8 * 1024**2
"""Of bitmaps that are read together."""
_ENTRY_BYTES = 200
"""What Python objects around an entry hold."""
_MAX_BITMAPS = 3
"""More are united once: examining each for every row group costs more."""
_MAX_UNITED_ROWS = 1 << 26
"""Of a file: a union takes a byte for each of its rows while it is made."""


@dataclass(frozen=True, slots=True, eq=False)
class ColumnIndex:
    """An index whose directory is known."""

    blob: BitmapIndexBlob
    directory: Directory
    io: FileIOConfig

    @property
    def source(self) -> str:
        """File and blob, for messages."""
        return _source(self.blob)

    def bitmaps(self, entries: Sequence[int], metrics: ScanMetrics) -> tuple[RoaringPositions, ...]:
        """The rows of directory entries, ascending: a bitmap each, or one for all where they are many.

        Raises:
            MalformedTableError: a bitmap is damaged, or holds other rows than the directory says.
            MissingFileError: the index file is gone.
        """
        wanted = tuple(e for e in entries if self.directory.cardinalities[e])
        if not wanted:
            return ()

        def load() -> tuple[tuple[RoaringPositions, ...], int]:
            read, num_rows = self.read(wanted, metrics), self.directory.num_rows
            is_united = len(wanted) > _MAX_BITMAPS and num_rows <= _MAX_UNITED_ROWS
            found = (positions_in_mask(row_mask(read, 0, num_rows)),) if is_united else tuple(read)
            return found, sum(p.num_bytes + _ENTRY_BYTES for p in found)

        return cached((*_key(self.blob, self.io), wanted), load)

    def read(self, entries: Sequence[int], metrics: ScanMetrics) -> Iterator[RoaringPositions]:
        """The bitmap of each of these directory entries, ascending; raises as `bitmaps`."""
        directory = self.directory
        ranges = [(begin := directory.begin(entry), int(directory.ends[entry]) - begin) for entry in entries]
        for (first, length), members in grouped(ranges, _GAP_BYTES, _MAX_RUN_BYTES):
            data = read_bytes(self.blob.path, self.io, self.blob.offset + first, length)
            metrics.bitmap_bytes_read += len(data)
            metrics.bitmaps_read += len(members)
            for member in members:
                entry, (begin, size) = entries[member], ranges[member]
                part = data[begin - first : begin - first + size]
                if zlib.crc32(part) != directory.checksums[entry]:
                    raise MalformedTableError(f"{self.source}: CRC-32 of bitmap {entry} at byte {begin} does not match")
                yield decode_bitmap(part, int(directory.cardinalities[entry]), directory.num_rows, self.source)


def open_column_index(blob: BitmapIndexBlob, record_count: int, io: FileIOConfig, metrics: ScanMetrics) -> ColumnIndex:
    """The index in a blob, its directory read and checked.

    Raises:
        MalformedTableError: damaged, or of a file with another number of rows.
        MissingFileError: the index file is gone.
    """

    def load() -> tuple[Directory, int]:
        found = read_directory(blob, io)
        metrics.bitmap_bytes_read += found.num_bytes
        return found, 2 * found.num_bytes + _ENTRY_BYTES

    directory = cached((*_key(blob, io), "directory"), load)
    if directory.num_rows != record_count:
        raise MalformedTableError(
            f"{_source(blob)}: indexes a file of {directory.num_rows} rows, but this file has {record_count}"
        )
    if not blob.is_list and int(directory.cardinalities[:-1].sum()) != record_count:
        raise MalformedTableError(f"{_source(blob)}: the row counts of all values do not add up to those of the file")
    return ColumnIndex(blob, directory, io)


def read_directory(blob: BitmapIndexBlob, io: FileIOConfig) -> Directory:
    """The directory of an index; raises as `open_column_index`."""
    column_type = parse_type(blob.column_type)
    if not isinstance(column_type, PrimitiveType):
        raise MalformedTableError(f"{_source(blob)}: values of type {column_type}")
    data = read_bytes(blob.path, io, blob.offset, min(blob.directory_bytes, blob.length))
    return decode_directory(data, column_type, blob.length, _source(blob))


def _key(blob: BitmapIndexBlob, io: FileIOConfig) -> tuple[object, ...]:
    return "bitmap index", fingerprint(blob.path, io), tuple(sorted(io.properties.items())), blob.offset, blob.length


def _source(blob: BitmapIndexBlob) -> str:
    return f"{blob.path}: bitmap index at {blob.offset}"


MAX_STATISTICS_FILES = 32
"""Statistics files looked at for one plan: each run that builds indexes carries all that are of use into its own."""
_BLOB_BYTES = 1_000
"""About what a blob's description holds in memory."""


def with_bitmap_indexes(
    tasks: Sequence[FileScanTask],
    metadata: TableMetadata,
    snapshot: Snapshot | None,
    context: ScanContext,
    metrics: ScanMetrics,
) -> Sequence[FileScanTask]:
    """The tasks, each with the indexes of the columns that predicate and runtime filters read, if its file has any.

    Statistics files that are damaged or gone are counted in `metrics` and ignored.
    """
    field_ids = _field_ids(context)
    if not field_ids or snapshot is None or not context.options.switches.use_bitmap_indexes or not tasks:
        return tasks
    paths = list(islice(statistics_paths(metadata, snapshot), MAX_STATISTICS_FILES))
    if not paths:
        return tasks
    wanted = {task.data_file.path: task.data_file for task in tasks}
    found: dict[str, dict[int, BitmapIndexBlob]] = {}
    for path in paths:
        if len(found) == len(wanted) and all(len(blobs) == len(field_ids) for blobs in found.values()):
            break
        try:
            footer = cached_footer(path, context.io)
        except (MalformedTableError, MissingFileError):
            metrics.bitmap_indexes_refused += 1
            continue
        for blob in footer.blobs:
            if blob.type != BLOB_TYPE or len(blob.fields) != 1 or blob.fields[0] not in field_ids:
                continue
            data_file = wanted.get(blob.properties.get(DATA_FILE, ""))
            if data_file is not None and describes(blob, data_file):
                found.setdefault(data_file.path, {}).setdefault(blob.fields[0], locate_index(blob, path))
    return tuple(
        replace(task, bitmap_indexes=tuple(found[task.data_file.path].values()))
        if task.data_file.path in found
        else task
        for task in tasks
    )


def _field_ids(context: ScanContext) -> frozenset[int]:
    """Columns that conditions on single columns read."""
    of_filters = {f.fields[0].field_id for f in context.runtime_filters if len(f.fields) == 1}
    return frozenset(of_filters if context.predicate is None else of_filters | {*context.predicate.leaf_ids})


def statistics_paths(metadata: TableMetadata, snapshot: Snapshot) -> Iterator[str]:
    """Statistics files with indexes: of the snapshot, its ancestors from new to old, then of all others."""
    by_snapshot: dict[object, list[str]] = {}
    for entry in metadata.statistics:
        path = entry.get("statistics-path")
        if isinstance(path, str) and path.endswith(INDEX_SUFFIX):
            by_snapshot.setdefault(entry.get("snapshot-id"), []).append(path)
    if not by_snapshot:
        return
    for ancestor in metadata.ancestors(snapshot.snapshot_id):
        yield from by_snapshot.pop(ancestor.snapshot_id, [])
    for paths in reversed(by_snapshot.values()):
        yield from paths


def cached_footer(path: str, io: FileIOConfig) -> PuffinFooter:
    """The footer of a Puffin file, remembered.

    Raises:
        MissingFileError: no such file.
        MalformedTableError: no Puffin file.
    """

    def load() -> tuple[PuffinFooter, int]:
        footer = read_footer(path, io)
        return footer, _BLOB_BYTES * (1 + len(footer.blobs))

    return cached(("puffin", fingerprint(path, io), tuple(sorted(io.properties.items()))), load)


def describes(blob: PuffinBlob, data_file: DataFile) -> bool:
    """Was the index built from this file, and has it all properties needed to read it?"""
    properties = blob.properties
    return (
        properties.get(DATA_FILE) == data_file.path
        and properties.get(RECORD_COUNT) == str(data_file.record_count)
        and properties.get(FILE_BYTES) == str(data_file.file_size_bytes)
        and properties.get(DIRECTORY_BYTES, "").isdecimal()
        and COLUMN_TYPE in properties
        and blob.compression is None
    )


def locate_index(blob: PuffinBlob, path: str) -> BitmapIndexBlob:
    """The place of an index, from a footer that states the size of its directory and the type of its values."""
    properties = blob.properties
    return BitmapIndexBlob(
        blob.fields[0],
        path,
        blob.offset,
        blob.length,
        int(properties[DIRECTORY_BYTES][:18]),
        properties[COLUMN_TYPE],
        properties.get(IS_LIST) == "true",
    )
