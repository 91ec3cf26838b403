"""Indexes of dead rows: which rows of a data file are known to be deleted, and by which deletes.

An index is a deletion vector per data file, in a Puffin file that the table lists as statistics, together with a list of the
delete files that were applied. It therefore serves later snapshots too: what it includes is skipped by position, and only
the keys of newer deletes are looked up. It does not serve a snapshot in which one of its deletes does not exist.
"""

import hashlib
import zlib
from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any

import numpy as np
import numpy.typing as npt
import orjson

from nevermore.scan_core.bitmaps.column_index import DATA_FILE, FILE_BYTES, RECORD_COUNT
from nevermore.scan_core.bitmaps.find import MAX_STATISTICS_FILES, cached_footer, statistics_paths
from nevermore.scan_core.bitmaps.puffin import PuffinBlob
from nevermore.scan_core.io.cache import cached
from nevermore.scan_core.io.files import fingerprint, read_bytes
from nevermore.scan_core.io.location import FileIOConfig
from nevermore.scan_core.model.errors import MalformedTableError, MissingFileError
from nevermore.scan_core.model.metrics import ScanMetrics
from nevermore.scan_core.model.snapshot import DataFile, DeleteContent, DeleteFile, FileFormat, Snapshot
from nevermore.scan_core.model.table_metadata import TableMetadata
from nevermore.scan_core.split.tasks import DeadRowBits, FileScanTask, ScanContext

DEAD_ROWS_TYPE = "nevermore-dead-rows-v1"
"""One data file: a bitmap framed like the blob of a deletion vector."""
DELETES_TYPE = "nevermore-dead-rows-deletes-v1"
"""The deletes that the bitmaps of a Puffin file include."""
SEQUENCE_NUMBER, NUM_DEAD, DELETE_SET = "sequence-number", "dead-rows", "delete-set"
_CHECKSUM = "crc32"
_MAX_LIST_BYTES = 1 << 26
"""Of the list of deletes, decompressed: that of 300,000 delete files is smaller."""
_DELETE_BYTES = 400
"""Approximate memory of one entry of that list."""

DeleteName = tuple[str, int, int]
"""Path, data sequence number, and offset of the blob: what identifies a delete file or a deletion vector."""


def delete_name(file: DeleteFile) -> DeleteName:
    """The name that identifies a delete file in every snapshot."""
    return file.path, file.data_sequence_number, file.content_offset or 0


def deletes_of(task: FileScanTask) -> Iterator[DeleteFile]:
    """The delete files that may touch the data file of a task and are newer than it."""
    for group in task.equality_deletes:
        yield from (f for f in group.files if f.data_sequence_number > task.data_file.data_sequence_number)
    yield from task.position_deletes
    if task.deletion_vector is not None:
        yield task.deletion_vector


@dataclass(frozen=True, slots=True)
class AppliedDeletes:
    """The deletes that one Puffin file's bitmaps include.

    Attributes:
        numbers: number of each delete file.
        sequence_numbers: by that number.
        sets: sets of these numbers, each as the ascending edges of its ranges: begin, end, begin, end and so on.
        reading: digest of what else decides which rows a delete removes.
    """

    numbers: Mapping[DeleteName, int]
    sequence_numbers: npt.NDArray[np.int64]
    sets: tuple[npt.NDArray[np.int64], ...]
    reading: str


def encode_deletes(deletes: Sequence[DeleteName], sets: Sequence[Sequence[int]], reading: str) -> tuple[bytes, str]:
    """The content of a `DELETES_TYPE` blob, and its checksum.

    Args:
        deletes: every delete file, numbered from 0.
        sets: ascending numbers of the delete files that a data file's bitmap includes, for each distinct such set.
        reading: as `reading_digest` gives it.
    """
    edges = [_edges(np.asarray(numbers, np.int64)).tolist() for numbers in sets]
    plain = orjson.dumps({"deletes": [list(name) for name in deletes], "sets": edges, "reading": reading})
    data = zlib.compress(plain, 1)
    return data, f"{zlib.crc32(data):08x}"


def _edges(numbers: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    if not len(numbers):
        return numbers
    breaks = np.flatnonzero(np.diff(numbers) != 1)
    begins = numbers[np.concatenate([[0], breaks + 1])]
    ends = numbers[np.concatenate([breaks, [len(numbers) - 1]])] + 1
    return np.stack([begins, ends], axis=1).reshape(-1)


def reading_digest(context: ScanContext) -> str:
    """Digest of everything besides data and delete files that decides which rows a key matches: the columns of files without field ids."""
    return hashlib.sha256(repr(context.name_mapping).encode()).hexdigest()[:16]


def find_dead_row_bits(
    paths: Iterable[str],
    task_at: Callable[[int], FileScanTask],
    live: Iterable[DeleteFile],
    newer_than: Callable[[Container[DeleteName]], Sequence[FileScanTask]],
    *,
    metadata: TableMetadata,
    snapshot: Snapshot,
    context: ScanContext,
    metrics: ScanMetrics,
) -> dict[int, DeadRowBits]:
    """Indexes that serve the data files of a plan, by number of the file; the newest that does for each.

    Puffin files that are damaged or gone are counted in `metrics` and ignored.

    Args:
        paths: of the data files.
        task_at: the task of a data file, by its number.
        live: the delete files of the snapshot, as far as they may touch one of the data files.
        newer_than: tasks of all data files with those deletes alone that are not among the given ones.
        metadata: of the table.
        snapshot: that is read.
        context: of the scan.
        metrics: counters to add to.
    """
    found: dict[int, DeadRowBits] = {}
    numbers: dict[str, int] | None = None
    live_names: Container[DeleteName] | None = None
    for path in islice(statistics_paths(metadata, snapshot), MAX_STATISTICS_FILES):
        try:
            blobs = _dead_row_blobs(path, context.io)
            if not blobs:
                continue
            applied = _cached_deletes(path, blobs[DELETES_TYPE], context.io)
        except (MalformedTableError, MissingFileError):
            metrics.dead_row_bits_refused += 1
            continue
        if applied.reading != reading_digest(context):
            continue
        numbers = {p: n for n, p in enumerate(paths)} if numbers is None else numbers
        live_names = {*map(delete_name, live)} if live_names is None else live_names
        gone = np.array([n for name, n in applied.numbers.items() if name not in live_names], np.int64)
        newer = newer_than(applied.numbers)
        for blob_path, blob in blobs.items():
            number = numbers.get(blob_path)
            if number is None or number in found or blob.type != DEAD_ROWS_TYPE:
                continue
            task, later = task_at(number), newer[number]
            vector = _vector(blob, path, task.data_file)
            if vector is None or not task.has_deletes or later.deletion_vector is not None:
                continue
            if not _includes_any(gone, blob, applied, task.data_file):
                # a deletion vector excludes position-delete files, whether it is among the known deletes or not (rule 6)
                positions = () if task.deletion_vector is not None else later.position_deletes
                found[number] = DeadRowBits(vector, later.equality_deletes, positions)
        if len(found) == len(numbers):
            break
    return found


def _includes_any(gone: npt.NDArray[np.int64], blob: PuffinBlob, applied: AppliedDeletes, data_file: DataFile) -> bool:
    """Whether a bitmap includes one of the deletes that no longer exist: the rows it removed are alive again."""
    if not len(gone):
        return False
    number = blob.properties.get(DELETE_SET, "")
    if not number.isdecimal() or int(number[:9]) >= len(applied.sets):
        return True
    is_included = np.searchsorted(applied.sets[int(number[:9])], gone, side="right") % 2 == 1
    return bool((is_included & (applied.sequence_numbers[gone] >= data_file.data_sequence_number)).any())


def _vector(blob: PuffinBlob, path: str, file: DataFile) -> DeleteFile | None:
    """The bitmap as a deletion vector; None if it was not made from this data file."""
    properties = blob.properties
    stated = (file.path, str(file.record_count), str(file.file_size_bytes), str(file.data_sequence_number))
    if tuple(properties.get(x) for x in (DATA_FILE, RECORD_COUNT, FILE_BYTES, SEQUENCE_NUMBER)) != stated:
        return None
    num_dead = properties.get(NUM_DEAD, "")
    if blob.compression is not None or not num_dead.isdecimal() or int(num_dead[:19]) > file.record_count:
        return None
    return DeleteFile(
        path=path,
        format=FileFormat.PUFFIN,
        spec_id=file.spec_id,
        partition=file.partition,
        record_count=int(num_dead[:19]),
        file_size_bytes=blob.offset + blob.length,
        data_sequence_number=blob.sequence_number,
        content=DeleteContent.POSITION,
        referenced_data_file=file.path,
        content_offset=blob.offset,
        content_size_bytes=blob.length,
    )


def _dead_row_blobs(path: str, io: FileIOConfig) -> Mapping[str, PuffinBlob]:
    """The blobs of an index by path of their data file, and the list of deletes under its type; empty without one.

    Raises:
        MissingFileError: no such file.
        MalformedTableError: no Puffin file, or one whose footer has no checksum or no single list of deletes.
    """

    def load() -> tuple[Mapping[str, PuffinBlob], int]:
        footer = cached_footer(path, io)
        lists = [blob for blob in footer.blobs if blob.type == DELETES_TYPE]
        blobs = {b.properties.get(DATA_FILE, ""): b for b in footer.blobs if b.type == DEAD_ROWS_TYPE}
        if not blobs:
            return {}, 100
        if len(lists) != 1 or not footer.is_checked:
            raise MalformedTableError(f"{path}: an index of dead rows needs one list of deletes and a checked footer")
        return blobs | {DELETES_TYPE: lists[0]}, 100 * (1 + len(blobs))

    return cached(("dead-row-blobs", fingerprint(path, io), tuple(sorted(io.properties.items()))), load)


def _cached_deletes(path: str, blob: PuffinBlob, io: FileIOConfig) -> AppliedDeletes:
    def load() -> tuple[AppliedDeletes, int]:
        applied = _read_deletes(path, blob, io)
        return applied, _DELETE_BYTES * (1 + len(applied.numbers)) + sum(s.nbytes for s in applied.sets)

    return cached(("dead-row-deletes", fingerprint(path, io), tuple(sorted(io.properties.items()))), load)


def _read_deletes(path: str, blob: PuffinBlob, io: FileIOConfig) -> AppliedDeletes:
    source = f"{path}: the list of deletes at {blob.offset}"
    if blob.length > _MAX_LIST_BYTES:
        raise MalformedTableError(f"{source}: {blob.length} bytes, more than {_MAX_LIST_BYTES}")
    data = read_bytes(path, io, blob.offset, blob.length)
    if f"{zlib.crc32(data):08x}" != blob.properties.get(_CHECKSUM):
        raise MalformedTableError(f"{source}: the checksum is wrong")
    try:
        content: dict[str, Any] = orjson.loads(zlib.decompressobj().decompress(data, _MAX_LIST_BYTES))
        numbers = {(path, int(number), int(offset)): n for n, (path, number, offset) in enumerate(content["deletes"])}
        sets = tuple(np.asarray(edges, np.int64) for edges in content["sets"])
        reading = str(content["reading"])
    except (zlib.error, ValueError, TypeError, KeyError, OverflowError) as error:
        raise MalformedTableError(f"{source}: cannot be read: {error}") from error
    of_number = np.fromiter((number for _, number, _ in numbers), np.int64, len(numbers))
    return AppliedDeletes(numbers, of_number, sets, reading)


def list_properties(checksum: str) -> dict[str, str]:
    """Properties of a `DELETES_TYPE` blob."""
    return {_CHECKSUM: checksum}
