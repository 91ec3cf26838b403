"""Manifests -> the data and delete files of a snapshot, with inheritance applied.

Sequence numbers (SEMANTICS rule 3) and row ids (rule 21) are inherited here and nowhere else. Partition values are
brought to canonical form (rule 5). Decoded manifests are kept in a bounded cache of the process: they never change.
"""

from collections.abc import Callable, Iterator, Mapping
from functools import lru_cache
from typing import Any, TypeVar

from scan_core.avro.container import AvroError, check_consumed, malformed_avro, read_blocks, read_header
from scan_core.avro.records import Wanted, compile_record
from scan_core.avro.schema import parse_avro_schema
from scan_core.avro.values import Decoder
from scan_core.file_io import fingerprint, read_bytes
from scan_core.manifest_cache import cached
from scan_core.manifest_list import ManifestFile
from scan_core.manifest_spec import spec_of
from scan_core.metadata import TableMetadata
from scan_core.partition_decoder import partition_decoder
from scan_core.schema import Type
from scan_core.snapshot import DataFile, DeleteContent, DeleteFile, FileFormat, PartitionSpec
from scan_core.split import FileIOConfig

F = TypeVar("F", DataFile, DeleteFile)
_EXISTING, _ADDED, _DELETED = 0, 1, 2
_BYTES_PER_ENTRY = 600
"""What a decoded entry holds beside its bytes: a slotted object, a path, five lazy maps."""
_MAX_FIRST_ROW_ID = 2**62
"""Leaves room for the rows of any file below the largest 64-bit number."""
_DELETE_KEYS = {1: DeleteContent.POSITION, 2: DeleteContent.EQUALITY}
_FORMATS = {f.value: f for f in FileFormat}


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
    possible = list(metadata.specs) if manifest.spec_id is None else {manifest.spec_id} & metadata.specs.keys()
    specs = tuple((metadata.specs[i], metadata.partition_types(i)) for i in possible)
    key = (build, manifest, specs, *fingerprint(manifest.path, io))
    return cached(key, lambda: _read_manifest(manifest, metadata, io, build))


def _read_manifest(
    manifest: ManifestFile, metadata: TableMetadata, io: FileIOConfig, build: Callable[[list[Any], "_Inheritance"], F]
) -> tuple[tuple[F, ...], int]:
    data = read_bytes(manifest.path, io)
    try:
        header = read_header(data)
        spec = spec_of(manifest, header, metadata)
        decode = _entry_decoder(header.schema, spec, metadata.partition_types(spec.spec_id))
        files: list[F] = []
        size = 0
        inheritance = _Inheritance(manifest, spec)
        for count, block in read_blocks(data, header):
            size += len(block)
            files.extend(_read_block(block, count, decode, inheritance, build))
    except (AvroError, IndexError, RecursionError, UnicodeDecodeError) as error:
        raise malformed_avro(manifest.path, error) from error
    return tuple(files), size + _BYTES_PER_ENTRY * len(files)


class _Inheritance:
    """What entries of one manifest inherit; row ids advance from entry to entry."""

    __slots__ = ("content", "is_partitioned", "next_row_id", "path", "sequence_number", "spec_id")

    def __init__(self, manifest: ManifestFile, spec: PartitionSpec) -> None:
        self.path = manifest.path
        self.spec_id = spec.spec_id
        self.is_partitioned = bool(spec.fields)
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
        first = explicit
        if first is None and self.next_row_id is not None:
            first = self.next_row_id
            self.next_row_id += record_count
        if first is not None and not 0 <= first <= _MAX_FIRST_ROW_ID:
            raise AvroError(f"first_row_id (142 or 520) is {first}; row ids would leave 64 bits")
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
        if inheritance.is_partitioned and entry[_PARTITION_SLOT] is None:
            raise AvroError(f"partition (102) of {entry[4]} is null under a spec with fields")
        yield build(entry, inheritance)
    check_consumed(block, position)


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


@lru_cache(maxsize=256)
def _entry_decoder(schema: bytes, spec: PartitionSpec, types: tuple[Type, ...]) -> Decoder:
    document = parse_avro_schema(schema)
    custom = {_PARTITION_SLOT: partition_decoder(document, spec, types)}
    return compile_record(document, _ENTRY_FIELDS, _ENTRY_SLOTS, custom)
