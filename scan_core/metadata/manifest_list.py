"""Manifest lists -> the manifests of a snapshot, with the facts that are known before they are opened."""

from collections.abc import Sequence
from itertools import islice
from typing import NamedTuple

import pyarrow as pa

from nevermore.scan_core.io.cache import cached
from nevermore.scan_core.io.files import fingerprint, read_bytes, read_twice
from nevermore.scan_core.io.location import FileIOConfig
from nevermore.scan_core.metadata.avro_container import DAMAGE, AvroError, malformed_avro
from nevermore.scan_core.metadata.avro_values import AvroField, Wanted, read_metadata_rows, value_type
from nevermore.scan_core.model.errors import MalformedTableError, UnsupportedError
from nevermore.scan_core.model.snapshot import Snapshot

DATA_MANIFEST, DELETE_MANIFEST = 0, 1
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


_TEXT, _LONG = pa.string(), pa.int64()
_COLUMNS = (
    Wanted(500, ("manifest_path",), _TEXT, required=True),
    Wanted(502, ("partition_spec_id",), _LONG, required=True),
    Wanted(517, ("content",), _LONG),
    Wanted(515, ("sequence_number",), _LONG),
    Wanted(516, ("min_sequence_number",), _LONG),
    Wanted(504, ("added_files_count", "added_data_files_count"), _LONG),
    Wanted(505, ("existing_files_count", "existing_data_files_count"), _LONG),
    Wanted(519, ("key_metadata",), pa.binary()),
    Wanted(520, ("first_row_id",), _LONG),
)
_PARTITIONS = Wanted(507, ("partitions",))
_SUMMARY = (
    Wanted(509, ("contains_null",), pa.bool_(), required=True),
    Wanted(518, ("contains_nan",), pa.bool_()),
    Wanted(510, ("lower_bound",), pa.binary()),
    Wanted(511, ("upper_bound",), pa.binary()),
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
        fields, rows = read_metadata_rows(data)
        count = len(rows)
        columns = [wanted.of(fields, rows.columns, count).to_pylist() for wanted in _COLUMNS]
        summaries = _summaries(fields, rows)
    except DAMAGE as error:
        raise malformed_avro(path, error) from error
    listed = zip(*columns, summaries, strict=True)
    return tuple(_manifest_file(path, *row) for row in listed), _BYTES_PER_BYTE * len(data)


def _summaries(fields: Sequence[AvroField], rows: pa.Table) -> list[tuple[PartitionSummary, ...] | None]:
    """The summaries of partitions of each manifest."""
    place = _PARTITIONS.find(fields)
    if place is None:
        return [None] * len(rows)
    kind, lists = value_type(fields[place].type), rows.column(place).combine_chunks()
    if kind.kind != "array" or kind.parts[0].type.kind != "record":
        raise AvroError(f"partitions (507): expected summaries, its schema says {kind.meant}")
    each = lists.flatten()
    if len(each) > _MAX_SUMMARIES:
        raise AvroError(f"its manifests have more than {_MAX_SUMMARIES} summaries of partitions")
    columns = [w.of(kind.parts[0].type.parts, each.flatten(), len(each)).to_pylist() for w in _SUMMARY]
    made = map(PartitionSummary, *columns)
    counts = lists.value_lengths().to_pylist()
    return [None if count is None else tuple(islice(made, count)) for count in counts]


def _manifest_file(  # noqa: PLR0917 - the columns of the list
    path: str, location: str, spec_id: int, content: int | None, sequence: int | None, smallest: int | None,
    added: int | None, existing: int | None, key: bytes | None, first_row_id: int | None,
    partitions: tuple[PartitionSummary, ...] | None,
) -> ManifestFile:  # fmt: skip
    content = content or 0
    if content not in {DATA_MANIFEST, DELETE_MANIFEST}:
        raise MalformedTableError(f"{path}: content (517) of manifest {location}: expected 0 or 1, found {content}")
    if sequence is not None and sequence < 0:
        raise MalformedTableError(f"{path}: sequence_number (515) of manifest {location} is negative: {sequence}")
    if key:
        raise UnsupportedError(f"{path}: manifest {location} is encrypted")
    live = None if added is None or existing is None else added + existing
    return ManifestFile(location, spec_id, content, sequence or 0, smallest or 0, live, partitions, first_row_id)
