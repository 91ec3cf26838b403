"""Manifest lists and manifests -> the data and delete files of a snapshot, with inheritance applied.

Sequence numbers (SEMANTICS rule 3) and row ids (rule 21) are inherited here and nowhere else. Partition values are
brought to canonical form (rule 5). Decoded manifests are kept in a bounded cache of the process: they never change.
"""

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, TypeVar

from scan_core.avro.container import AvroError, Header, read_blocks, read_header
from scan_core.avro.records import Wanted, compile_record
from scan_core.avro.values import Decoder
from scan_core.errors import MalformedTableError, UnsupportedError
from scan_core.file_io import fingerprint, read_bytes
from scan_core.manifest_cache import cached
from scan_core.metadata import TableMetadata
from scan_core.partition import partition_types
from scan_core.partition_decoder import partition_decoder
from scan_core.schema import Type
from scan_core.snapshot import DataFile, DeleteContent, DeleteFile, FileFormat, PartitionSpec, Snapshot
from scan_core.split import FileIOConfig

F = TypeVar("F", DataFile, DeleteFile)
DATA_MANIFEST, DELETE_MANIFEST = 0, 1
_EXISTING, _ADDED, _DELETED = 0, 1, 2
_BYTES_PER_ENTRY = 600
"""What a decoded entry holds beside its bytes: a slotted object, a path, five lazy maps."""
_DELETE_KEYS = {1: DeleteContent.POSITION, 2: DeleteContent.EQUALITY}
_FORMATS = {f.value: f for f in FileFormat}


@dataclass(frozen=True, slots=True)
class PartitionSummary:
    """What the partition values of a manifest's files have in common, for one field of its spec."""

    contains_null: bool
    contains_nan: bool | None
    lower_bound: bytes | None
    upper_bound: bytes | None


@dataclass(frozen=True, slots=True)
class ManifestFile:
    """A manifest as the manifest list states it. `partitions` is None where the list has no summaries.

    `spec_id` is None only for inline manifests of format v1, which must tell it themselves.
    """

    path: str
    spec_id: int | None
    content: int
    sequence_number: int
    min_sequence_number: int
    live_files: int | None
    partitions: tuple[PartitionSummary, ...] | None
    first_row_id: int | None


_LIST_FIELDS = (
    Wanted(500, ("manifest_path",), "text", 0, required=True),
    Wanted(502, ("partition_spec_id",), "integer", 1, required=True),
    Wanted(517, ("content",), "integer", 2),
    Wanted(515, ("sequence_number",), "integer", 3),
    Wanted(516, ("min_sequence_number",), "integer", 4),
    Wanted(504, ("added_files_count", "added_data_files_count"), "integer", 5),
    Wanted(505, ("existing_files_count", "existing_data_files_count"), "integer", 6),
    Wanted(
        507,
        ("partitions",),
        "records",
        7,
        fields=(
            Wanted(509, ("contains_null",), "boolean", 0, required=True),
            Wanted(518, ("contains_nan",), "boolean", 1),
            Wanted(510, ("lower_bound",), "bytes", 2),
            Wanted(511, ("upper_bound",), "bytes", 3),
        ),
    ),
    Wanted(519, ("key_metadata",), "bytes", 8),
    Wanted(520, ("first_row_id",), "integer", 9),
)
_PARTITION_SLOT = 7
_ENTRY_FIELDS = (
    Wanted(0, ("status",), "integer", 0, required=True),
    Wanted(3, ("sequence_number", "data_sequence_number"), "integer", 1),
    Wanted(4, ("file_sequence_number",), "integer", 2),
    Wanted(
        2,
        ("data_file",),
        "record",
        -1,
        required=True,
        fields=(
            Wanted(134, ("content",), "integer", 3),
            Wanted(100, ("file_path",), "text", 4, required=True),
            Wanted(101, ("file_format",), "text", 5, required=True),
            Wanted(102, ("partition",), "any", _PARTITION_SLOT),
            Wanted(103, ("record_count",), "integer", 8, required=True),
            Wanted(104, ("file_size_in_bytes",), "integer", 9, required=True),
            Wanted(109, ("value_counts",), "pairs", 10),
            Wanted(110, ("null_value_counts",), "pairs", 11),
            Wanted(137, ("nan_value_counts",), "pairs", 12),
            Wanted(125, ("lower_bounds",), "pairs", 13),
            Wanted(128, ("upper_bounds",), "pairs", 14),
            Wanted(131, ("key_metadata",), "bytes", 15),
            Wanted(132, ("split_offsets",), "integers", 16),
            Wanted(135, ("equality_ids",), "integers", 17),
            Wanted(142, ("first_row_id",), "integer", 18),
            Wanted(143, ("referenced_data_file",), "text", 19),
            Wanted(144, ("content_offset",), "integer", 20),
            Wanted(145, ("content_size_in_bytes",), "integer", 6),
        ),
    ),
)
_ENTRY_SLOTS = 21
_NOTHING: Mapping[int, Any] = {}


def snapshot_manifests(snapshot: Snapshot, io: FileIOConfig) -> tuple[ManifestFile, ...]:
    """The manifests of a snapshot, in the order of its list; none for a snapshot without manifests."""
    if snapshot.manifest_list is not None:
        return read_manifest_list(snapshot.manifest_list, io)
    return tuple(ManifestFile(path, None, DATA_MANIFEST, 0, 0, None, None, None) for path in snapshot.inline_manifests)


def read_manifest_list(path: str, io: FileIOConfig) -> tuple[ManifestFile, ...]:
    """The manifests that a manifest list names.

    Raises:
        MissingFileError: there is no such file.
        MalformedTableError: it breaks the specification; names file and field.
    """
    return cached(("list", *fingerprint(path, io)), lambda: _read_list(path, io))


def read_data_manifest(manifest: ManifestFile, metadata: TableMetadata, io: FileIOConfig) -> tuple[DataFile, ...]:
    """The live data files of a data manifest.

    Raises:
        MissingFileError: there is no such file.
        MalformedTableError: it breaks the specification; names file and field.
    """
    return _cached_manifest(manifest, metadata, io, _data_file)


def read_delete_manifest(manifest: ManifestFile, metadata: TableMetadata, io: FileIOConfig) -> tuple[DeleteFile, ...]:
    """The live delete files of a delete manifest; raises as `read_data_manifest` does."""
    return _cached_manifest(manifest, metadata, io, _delete_file)


def _cached_manifest(
    manifest: ManifestFile, metadata: TableMetadata, io: FileIOConfig, build: Callable[[list[Any], "_Inheritance"], F]
) -> tuple[F, ...]:
    types = _types_by_spec(metadata)
    key = (build, manifest, *fingerprint(manifest.path, io), types)
    return cached(key, lambda: _read_manifest(manifest, metadata, io, build))


def _types_by_spec(metadata: TableMetadata) -> tuple[tuple[int, tuple[Type, ...]], ...]:
    paths = metadata.field_paths()
    return tuple((spec_id, partition_types(spec, paths)) for spec_id, spec in metadata.specs.items())


def _read_list(path: str, io: FileIOConfig) -> tuple[tuple[ManifestFile, ...], int]:
    data = read_bytes(path, io)
    try:
        header = read_header(data)
        decode = _list_decoder(header.schema)
        rows = _records(data, header, decode)
    except (AvroError, IndexError, RecursionError, UnicodeDecodeError) as error:
        raise _malformed(path, error) from error
    return tuple(_manifest_file(path, row) for row in rows), 4 * len(data)


def _manifest_file(path: str, row: Sequence[Any]) -> ManifestFile:
    location, spec_id, content, sequence, smallest, added, existing, partitions, key, first_row_id = row
    content = content or 0
    if content not in {DATA_MANIFEST, DELETE_MANIFEST}:
        raise MalformedTableError(f"{path}: content (517) of manifest {location}: expected 0 or 1, found {content}")
    if sequence is not None and sequence < 0:
        raise MalformedTableError(f"{path}: sequence_number (515) of manifest {location} is negative: {sequence}")
    if key:
        raise UnsupportedError(f"{path}: manifest {location} is encrypted")
    return ManifestFile(
        path=location,
        spec_id=spec_id,
        content=content,
        sequence_number=sequence or 0,
        min_sequence_number=smallest or 0,
        live_files=None if added is None or existing is None else added + existing,
        partitions=None if partitions is None else tuple(PartitionSummary(*p) for p in partitions),
        first_row_id=first_row_id,
    )


def _read_manifest(
    manifest: ManifestFile, metadata: TableMetadata, io: FileIOConfig, build: Callable[[list[Any], "_Inheritance"], F]
) -> tuple[tuple[F, ...], int]:
    data = read_bytes(manifest.path, io)
    try:
        header = read_header(data)
        spec = _spec_of(manifest, header, metadata)
        decode = _entry_decoder(header.schema, spec, partition_types(spec, metadata.field_paths()))
        files: list[F] = []
        size = 0
        inheritance = _Inheritance(manifest, spec.spec_id)
        for count, block in read_blocks(data, header):
            size += len(block)
            files.extend(_read_block(block, count, decode, inheritance, build))
    except (AvroError, IndexError, RecursionError, UnicodeDecodeError) as error:
        raise _malformed(manifest.path, error) from error
    return tuple(files), size + _BYTES_PER_ENTRY * len(files)


def _spec_of(manifest: ManifestFile, header: Header, metadata: TableMetadata) -> PartitionSpec:
    spec_id = manifest.spec_id
    if spec_id is None:
        stated = header.metadata.get("partition-spec-id", b"").decode("ascii", "replace")
        spec_id = int(stated) if stated.isdecimal() and len(stated) < 10 else metadata.default_spec_id
        if not stated and len(metadata.specs) > 1:
            raise AvroError("it does not tell its partition-spec-id, and the table has several specs")
    if spec_id not in metadata.specs:
        raise AvroError(f"partition_spec_id (502): the table has no partition spec {spec_id}")
    return metadata.specs[spec_id]


def _records(data: bytes, header: Header, decode: Decoder) -> list[Any]:
    rows = []
    for count, block in read_blocks(data, header):
        position = 0
        for _ in range(count):
            row, position = decode(block, position)
            rows.append(row)
        _check_consumed(block, position)
    return rows


class _Inheritance:
    """What entries of one manifest inherit; row ids advance from entry to entry."""

    __slots__ = ("content", "next_row_id", "path", "sequence_number", "spec_id")

    def __init__(self, manifest: ManifestFile, spec_id: int) -> None:
        self.path = manifest.path
        self.spec_id = spec_id
        self.content = manifest.content
        self.sequence_number = manifest.sequence_number
        self.next_row_id = manifest.first_row_id

    def sequence_of(self, status: int, explicit: int | None, name: str) -> int:
        """An entry's sequence number: explicit, or inherited (SEMANTICS rule 3)."""
        if explicit is None:
            if status != _ADDED and self.sequence_number != 0:
                raise AvroError(f"{name} is null in an existing entry of a manifest with number {self.sequence_number}")
            return self.sequence_number
        if explicit < 0:
            raise AvroError(f"{name} is negative: {explicit}")
        return explicit

    def row_id_of(self, explicit: int | None, record_count: int) -> int | None:
        """A data file's first row id: explicit, or the next of the manifest (SEMANTICS rule 21)."""
        if explicit is not None or self.next_row_id is None:
            return explicit
        first = self.next_row_id
        self.next_row_id += record_count
        return first


def _read_block(
    block: bytes,
    count: int,
    decode: Decoder,
    inheritance: _Inheritance,
    build: Callable[[list[Any], _Inheritance], F],
) -> Iterator[F]:
    position = 0
    for _ in range(count):
        entry, position = decode(block, position)
        status = entry[0]
        if status == _DELETED:
            continue
        if status not in {_EXISTING, _ADDED}:
            raise AvroError(f"status (0) of {entry[4]}: expected 0, 1 or 2, found {status}")
        if entry[8] < 0 or entry[9] < 0:
            raise AvroError(f"record_count (103) or file_size_in_bytes (104) of {entry[4]} is negative")
        yield build(entry, inheritance)
    _check_consumed(block, position)


def _data_file(entry: list[Any], inheritance: _Inheritance) -> DataFile:
    if entry[3]:
        raise AvroError(f"content (134) of {entry[4]}: expected 0 in a data manifest, found {entry[3]}")
    status = entry[0]
    return DataFile(
        entry[4],
        _format(entry),
        inheritance.spec_id,
        entry[7] or (),
        entry[8],
        entry[9],
        inheritance.sequence_of(status, entry[1], "sequence_number (3)"),
        _file_sequence(inheritance, status, entry[2]),
        _NOTHING if entry[13] is None else entry[13],
        _NOTHING if entry[14] is None else entry[14],
        _NOTHING if entry[10] is None else entry[10],
        _NOTHING if entry[11] is None else entry[11],
        _NOTHING if entry[12] is None else entry[12],
        tuple(entry[16]) if entry[16] else (),
        bool(entry[15]),
        inheritance.row_id_of(entry[18], entry[8]),
    )


def _delete_file(entry: list[Any], inheritance: _Inheritance) -> DeleteFile:
    content = _DELETE_KEYS.get(entry[3])
    if content is None:
        raise AvroError(f"content (134) of {entry[4]}: expected 1 or 2 in a delete manifest, found {entry[3]}")
    status = entry[0]
    return DeleteFile(
        path=entry[4],
        format=_format(entry),
        spec_id=inheritance.spec_id,
        partition=entry[7] or (),
        record_count=entry[8],
        file_size_bytes=entry[9],
        data_sequence_number=inheritance.sequence_of(status, entry[1], "sequence_number (3)"),
        file_sequence_number=_file_sequence(inheritance, status, entry[2]),
        lower_bounds=_NOTHING if entry[13] is None else entry[13],
        upper_bounds=_NOTHING if entry[14] is None else entry[14],
        value_counts=_NOTHING if entry[10] is None else entry[10],
        null_value_counts=_NOTHING if entry[11] is None else entry[11],
        nan_value_counts=_NOTHING if entry[12] is None else entry[12],
        split_offsets=tuple(entry[16]) if entry[16] else (),
        is_encrypted=bool(entry[15]),
        content=content,
        equality_ids=tuple(entry[17]) if entry[17] else (),
        referenced_data_file=entry[19],
        content_offset=entry[20],
        content_size_bytes=entry[6],
    )


def _file_sequence(inheritance: _Inheritance, status: int, explicit: int | None) -> int | None:
    if explicit is None and status == _ADDED:
        return inheritance.sequence_number
    return explicit


def _format(entry: list[Any]) -> FileFormat:
    found = _FORMATS.get(entry[5]) or _FORMATS.get(entry[5].lower())
    if found is None:
        raise AvroError(f"file_format (101) of {entry[4]}: unknown format {entry[5]!r:.60}")
    return found


def _check_consumed(block: bytes, position: int) -> None:
    if position != len(block):
        raise AvroError(f"a block has {len(block) - position} bytes more than its records")


@lru_cache(maxsize=64)
def _list_decoder(schema: bytes) -> Decoder:
    return compile_record(_parse(schema), _LIST_FIELDS, len(_LIST_FIELDS), {})


@lru_cache(maxsize=256)
def _entry_decoder(schema: bytes, spec: PartitionSpec, types: tuple[Type, ...]) -> Decoder:
    document = _parse(schema)
    custom = {_PARTITION_SLOT: partition_decoder(document, spec, types)}
    return compile_record(document, _ENTRY_FIELDS, _ENTRY_SLOTS, custom)


def _parse(schema: bytes) -> Any:
    try:
        return json.loads(schema)
    except (ValueError, RecursionError) as error:
        raise AvroError(f"avro.schema is not a JSON document: {error}") from error


def _malformed(path: str, error: Exception) -> MalformedTableError:
    reason = str(error) if isinstance(error, AvroError) else f"damaged ({type(error).__name__}: {error})"
    return MalformedTableError(f"{path}: {reason}")
