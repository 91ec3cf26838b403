"""Manifest entries decoded one by one -> data and delete files, with inheritance applied: the plain way.

It tells what is wrong with an entry, and takes whatever Avro allows; many entries that are as usual are decoded
together in `manifest_batch.py`.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeAlias, TypeVar

from scan_core.avro.container import AvroError, check_consumed
from scan_core.avro.records import Wanted
from scan_core.avro.values import Decoder
from scan_core.manifest_inheritance import ADDED, DELETED, EXISTING, Inheritance
from scan_core.snapshot import DataFile, DeleteContent, DeleteFile, FileFormat

F = TypeVar("F", DataFile, DeleteFile)
Build: TypeAlias = Callable[[list[Any], Inheritance], F]

PARTITION_SLOT = 7
ENTRY_FIELDS = (
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
            Wanted(102, ("partition",), "any", PARTITION_SLOT),
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
ENTRY_SLOTS = 21
DELETE_CONTENTS = {1: DeleteContent.POSITION, 2: DeleteContent.EQUALITY}
_FORMATS = {f.value: f for f in FileFormat}
_NOTHING: Mapping[int, Any] = {}


def decode_entries(
    blocks: Sequence[tuple[int, bytes]], decode: Decoder, inheritance: Inheritance, build: Build[F]
) -> list[F]:
    """The live files of blocks of so many entries each.

    Raises:
        AvroError: an entry breaks the specification; names file and field.
    """
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
        if None in (entry[4], entry[5], entry[8], entry[9]):
            raise AvroError(
                f"file_path (100), file_format (101), record_count (103) or file_size_in_bytes (104) of {entry[4]} is null"
            )
        if entry[8] < 0 or entry[9] < 0:
            raise AvroError(f"record_count (103) or file_size_in_bytes (104) of {entry[4]} is negative")
        if inheritance.is_partitioned and entry[PARTITION_SLOT] is None:
            raise AvroError(f"partition (102) of {entry[4]} is null under a spec with fields")
        files.append(build(entry, inheritance))
    check_consumed(block, position)
    return files


def data_file_of(entry: list[Any], inheritance: Inheritance) -> DataFile:
    """The data file of a decoded entry."""
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


def delete_file_of(entry: list[Any], inheritance: Inheritance) -> DeleteFile:
    """The delete file of a decoded entry."""
    content = DELETE_CONTENTS.get(entry[3])
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
