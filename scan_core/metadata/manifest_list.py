"""Manifest lists -> the manifests of a snapshot, with the facts that are known before they are opened."""

from collections.abc import Sequence
from functools import lru_cache
from typing import Any, NamedTuple

from nevermore.scan_core.io.cache import cached
from nevermore.scan_core.io.files import fingerprint, read_bytes, read_twice
from nevermore.scan_core.io.location import FileIOConfig
from nevermore.scan_core.metadata.avro_container import (
    AvroError,
    malformed_avro,
    parse_avro_schema,
    read_blocks,
    read_header,
)
from nevermore.scan_core.metadata.avro_decoders import DAMAGE, Decoder, Wanted, compile_record, decode_records
from nevermore.scan_core.model.errors import MalformedTableError, UnsupportedError
from nevermore.scan_core.model.snapshot import Snapshot

DATA_MANIFEST, DELETE_MANIFEST = 0, 1
_PARTITIONS = 7
"""Slot of the summaries of partitions."""
_MAX_SUMMARIES = 1 << 23
_BYTES_PER_BYTE = 4
"""Objects made of a manifest list, by its stored size."""


class PartitionSummary(NamedTuple):
    """Bounds and flags of the partition values of all files of a manifest, for one field of its spec."""

    contains_null: bool
    contains_nan: bool | None
    lower_bound: bytes | None
    upper_bound: bytes | None


class ManifestFile(NamedTuple):
    """A manifest as the manifest list describes it. `partitions` is None where the list has no summaries.

    `spec_id` is None only for inline manifests of format v1, which must state it themselves.
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


def snapshot_manifests(snapshot: Snapshot, io: FileIOConfig) -> tuple[ManifestFile, ...]:
    """The manifests of a snapshot, in the order of its list; none for a snapshot without manifests.

    Raises:
        MissingFileError: there is no such manifest list.
        MalformedTableError: it breaks the specification; names file and field.
        UnsupportedError: it is encrypted.
    """
    if snapshot.key_id is not None:
        raise UnsupportedError(
            f"snapshot {snapshot.snapshot_id}: its manifest list is encrypted (key-id {snapshot.key_id!r:.60}); "
            "encrypted tables are not supported"
        )
    if snapshot.manifest_list is not None:
        return read_manifest_list(snapshot.manifest_list, io)
    return tuple(ManifestFile(path, None, DATA_MANIFEST, 0, 0, None, None, None) for path in snapshot.inline_manifests)


def read_manifest_list(path: str, io: FileIOConfig) -> tuple[ManifestFile, ...]:
    """The manifests that a manifest list names.

    Raises:
        MissingFileError: there is no such file.
        MalformedTableError: it breaks the specification; names file and field.
    """
    return cached(("list", *fingerprint(path, io)), lambda: read_twice(path, io, lambda: _read_list(path, io)))


def _read_list(path: str, io: FileIOConfig) -> tuple[tuple[ManifestFile, ...], int]:
    data = read_bytes(path, io)
    try:
        header = read_header(data)
        rows, num_summaries = [], 0
        for row in decode_records(read_blocks(data, header), _list_decoder(header.schema)):
            rows.append(row)
            num_summaries += len(row[_PARTITIONS] or ())
            if num_summaries > _MAX_SUMMARIES:
                raise AvroError(f"its manifests have more than {_MAX_SUMMARIES} summaries of partitions")
    except DAMAGE as error:
        raise malformed_avro(path, error) from error
    return tuple(_manifest_file(path, row) for row in rows), _BYTES_PER_BYTE * len(data)


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
        location,
        spec_id,
        content,
        sequence or 0,
        smallest or 0,
        None if added is None or existing is None else added + existing,
        tuple([PartitionSummary(*p) for p in partitions]) if partitions else None if partitions is None else (),
        first_row_id,
    )


@lru_cache(maxsize=64)
def _list_decoder(schema: bytes) -> Decoder:
    return compile_record(parse_avro_schema(schema), _LIST_FIELDS, len(_LIST_FIELDS))
