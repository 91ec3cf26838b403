"""Manifests -> the data and delete files of a snapshot, with inheritance applied.

Partition values are brought to canonical form (rule 5); what entries inherit is in `manifest_inheritance.py`, how many
are decoded together in `manifest_columns.py`. Decoded manifests are kept in a bounded cache of the process: they never change.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, TypeAlias, TypeVar

from scan_core.avro.columns import LEAST_RECORDS, Program, compile_columns
from scan_core.avro.container import AvroError, check_consumed, malformed_avro, read_blocks, read_header
from scan_core.avro.records import Wanted, compile_record
from scan_core.avro.schema import parse_avro_schema
from scan_core.avro.values import Decoder
from scan_core.file_io import fingerprint, read_bytes
from scan_core.manifest_cache import cached
from scan_core.manifest_columns import data_files
from scan_core.manifest_inheritance import ADDED, DELETED, EXISTING, Inheritance
from scan_core.manifest_list import ManifestFile
from scan_core.manifest_spec import spec_of
from scan_core.metadata import TableMetadata
from scan_core.native.compiled import kernels_if_worthwhile, measured
from scan_core.partition_decoder import partition_decoder
from scan_core.schema import Type
from scan_core.snapshot import DataFile, DeleteContent, DeleteFile, FileFormat, PartitionSpec
from scan_core.split import FileIOConfig

F = TypeVar("F", DataFile, DeleteFile)
Build: TypeAlias = Callable[[list[Any], Inheritance], F]
_BYTES_PER_ENTRY = 600
"""What a decoded entry holds beside its bytes: a slotted object, a path, five lazy maps."""
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


@dataclass(frozen=True, slots=True, eq=False)
class _Decoders:
    """How entries of one schema are decoded: one by one, their partition, and many together where that is possible."""

    entry: Decoder
    partition: Decoder
    columns: Program | None


def read_data_manifest(
    manifest: ManifestFile, metadata: TableMetadata, io: FileIOConfig, *, use_numba: bool = True
) -> tuple[DataFile, ...]:
    """The live data files of a data manifest; with `use_numba` compiled code may find the facts of many.

    Raises:
        MissingFileError: there is no such file.
        MalformedTableError: it breaks the specification; names file and field.
    """
    return _cached_manifest(manifest, metadata, io, _data_file, use_numba=use_numba)


def read_delete_manifest(manifest: ManifestFile, metadata: TableMetadata, io: FileIOConfig) -> tuple[DeleteFile, ...]:
    """The live delete files of a delete manifest; raises as `read_data_manifest` does."""
    return _cached_manifest(manifest, metadata, io, _delete_file, use_numba=False)


def _cached_manifest(
    manifest: ManifestFile, metadata: TableMetadata, io: FileIOConfig, build: Build[F], *, use_numba: bool
) -> tuple[F, ...]:
    possible = list(metadata.specs) if manifest.spec_id is None else {manifest.spec_id} & metadata.specs.keys()
    specs = tuple((metadata.specs[i], metadata.partition_types(i)) for i in possible)
    key = (build, manifest, specs, *fingerprint(manifest.path, io))
    return cached(key, lambda: _read_manifest(manifest, metadata, io, build, use_numba=use_numba))


def _read_manifest(
    manifest: ManifestFile, metadata: TableMetadata, io: FileIOConfig, build: Build[F], *, use_numba: bool
) -> tuple[tuple[F, ...], int]:
    data = read_bytes(manifest.path, io)
    try:
        header = read_header(data)
        spec = spec_of(manifest, header, metadata)
        decoders = _decoders(header.schema, spec, metadata.partition_types(spec.spec_id))
        blocks = list(read_blocks(data, header))
        files = _read_blocks(blocks, decoders, Inheritance(manifest, spec), build, use_numba=use_numba)
    except (AvroError, IndexError, RecursionError, UnicodeDecodeError) as error:
        raise malformed_avro(manifest.path, error) from error
    return tuple(files), sum(len(block) for _, block in blocks) + _BYTES_PER_ENTRY * len(files)


def _read_blocks(
    blocks: Sequence[tuple[int, bytes]],
    decoders: _Decoders,
    inheritance: Inheritance,
    build: Build[F],
    *,
    use_numba: bool,
) -> list[F]:
    if decoders.columns is None or sum(count for count, _ in blocks) < LEAST_RECORDS:
        return _decode_blocks(blocks, decoders.entry, inheritance, build)
    kernels = kernels_if_worthwhile(use_numba=use_numba)
    if kernels is not None:
        found: list[Any] | None = data_files(blocks, decoders.columns, decoders.partition, inheritance, kernels)
        if found is not None:
            return found
    with measured(kernels):
        return _decode_blocks(blocks, decoders.entry, inheritance, build)


def _decode_blocks(
    blocks: Sequence[tuple[int, bytes]], decode: Decoder, inheritance: Inheritance, build: Build[F]
) -> list[F]:
    return [file for count, block in blocks for file in _decode_block(block, count, decode, inheritance, build)]


def _decode_block(
    block: bytes,
    count: int,
    decode: Decoder,
    inheritance: Inheritance,
    build: Build[F],
) -> list[F]:
    position = 0
    files: list[F] = []
    for _ in range(count):
        entry, position = decode(block, position)
        status = entry[0]
        if status == DELETED:
            continue
        if status not in {EXISTING, ADDED}:
            raise AvroError(f"status (0) of {entry[4]}: expected 0, 1 or 2, found {status}")
        if entry[8] < 0 or entry[9] < 0:
            raise AvroError(f"record_count (103) or file_size_in_bytes (104) of {entry[4]} is negative")
        if inheritance.is_partitioned and entry[_PARTITION_SLOT] is None:
            raise AvroError(f"partition (102) of {entry[4]} is null under a spec with fields")
        files.append(build(entry, inheritance))
    check_consumed(block, position)
    return files


def _data_file(entry: list[Any], inheritance: Inheritance) -> DataFile:
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


def _delete_file(entry: list[Any], inheritance: Inheritance) -> DeleteFile:
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


def _file_sequence(inheritance: Inheritance, status: int, explicit: int | None) -> int | None:
    if explicit is None and status == ADDED:
        return inheritance.sequence_number
    return explicit


def _format(entry: list[Any]) -> FileFormat:
    found = _FORMATS.get(entry[5]) or _FORMATS.get(entry[5].lower())
    if found is None:
        raise AvroError(f"file_format (101) of {entry[4]}: unknown format {entry[5]!r:.60}")
    return found


@lru_cache(maxsize=256)
def _decoders(schema: bytes, spec: PartitionSpec, types: tuple[Type, ...]) -> _Decoders:
    document = parse_avro_schema(schema)
    partition = partition_decoder(document, spec, types)
    entry = compile_record(document, _ENTRY_FIELDS, _ENTRY_SLOTS, {_PARTITION_SLOT: partition})
    return _Decoders(entry, partition, compile_columns(document, _ENTRY_FIELDS, [_PARTITION_SLOT]))
