"""Builds the index of a table's dead rows and commits it as statistics.

Deletes are resolved once, and every later scan skips the rows by position instead of looking up their keys. A run looks up
only the keys of deletes that are newer than the index; the rest is copied.
"""

import struct
import uuid
import zlib
from array import array as typed_array
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
from pyroaring import BitMap64

from nevermore.pipelines.errors import SourceError
from nevermore.pipelines.iceberg.bitmap_indexes import (
    DELETION_VECTOR,
    NO_INDEX_TYPE,
    PuffinWriter,
    StatisticsTarget,
    entry_of,
    statistics_entry,
    superseded_files,
    write_statistics,
)
from nevermore.scan_core import (
    DeleteFile,
    FileScanTask,
    MalformedTableError,
    MemoryLimitError,
    MissingFileError,
    ScanContext,
    ScanMetrics,
    ScanOptions,
    Snapshot,
    Split,
    Table,
    read_deletion_vector,
    resolve_deletes,
    run_splits,
)
from nevermore.scan_core.bitmaps import (
    BLOB_TYPE,
    DATA_FILE,
    DEAD_ROWS_TYPE,
    DELETE_SET,
    DELETES_TYPE,
    FILE_BYTES,
    FILE_SUFFIX,
    NUM_DEAD,
    RECORD_COUNT,
    SEQUENCE_NUMBER,
    DeleteName,
    PuffinBlob,
    delete_name,
    deletes_of,
    encode_deletes,
    list_properties,
    read_footer,
    reading_digest,
)
from nevermore.scan_core.io import FileIOConfig, exists, read_bytes

_VECTOR_MAGIC = b"\xd1\xd3\x39\x64"


@dataclass(frozen=True, slots=True)
class DeadRowReport:
    """Report of a run. `path` is None if there was nothing to do.

    Attributes:
        snapshot_id: the snapshot that was indexed.
        data_files: data files with deletes.
        resolved: those whose deletes were resolved.
        kept: those whose dead rows were known.
        dead_rows: dead rows of all of them.
        path: the new Puffin file.
        size_bytes: its size.
    """

    snapshot_id: int
    data_files: int
    resolved: int
    kept: int
    dead_rows: int
    path: str | None
    size_bytes: int


def index_dead_rows(target: StatisticsTarget, *, options: ScanOptions | None = None) -> DeadRowReport:
    """Record which rows of the current snapshot are dead, where this is not recorded yet.

    Args:
        target: the table.
        options: limits of the scan that resolves the deletes.

    Raises:
        SourceError: the table has no snapshot.
        CommitConflictError: other writers kept changing the table.
        MalformedTableError: a data or delete file breaks its specification.
        MissingFileError: a file is gone.
    """
    return write_statistics(target, lambda leftover: _index(target, options or ScanOptions(), leftover))


def _index(target: StatisticsTarget, options: ScanOptions, leftover: list[str]) -> DeadRowReport:
    table = target.load()
    plan = table.scan().with_options(options).select().plan()
    if plan.snapshot is None:
        raise SourceError(f"{table.location} has no snapshot to index")
    snapshot, context = plan.snapshot, plan.context
    touched = [task for task in plan.tasks if task.has_deletes]
    known = [(task, vector) for task in touched if (vector := _known_dead_rows(task, context)) is not None]
    of_known = {task.data_file.path for task, _ in known}
    stale = [task for task in touched if task.data_file.path not in of_known]
    num_dead = sum(vector.record_count for _, vector in known)
    if not stale:
        return DeadRowReport(snapshot.snapshot_id, len(touched), 0, len(known), num_dead, None, 0)
    path = f"{target.folder}/{uuid.uuid4()}{FILE_SUFFIX}"
    deletes = _DeleteSets()
    with PuffinWriter(path, target.storage) as writer:
        listed = _copy_others(writer, table, snapshot, context.io)
        for task, vector in known:
            blob = read_bytes(vector.path, context.io, vector.content_offset or 0, vector.content_size_bytes or 0)
            writer.write_blob(_described(task, vector.record_count, deletes.number_of(task), snapshot), [blob])
        for task, dead in zip(stale, dead_rows(stale, context), strict=True):
            writer.write_blob(_described(task, len(dead), deletes.number_of(task), snapshot), [framed(dead)])
            num_dead += len(dead)
        data, checksum = encode_deletes([*deletes.numbers], deletes.sets, reading_digest(context))
        writer.write_blob(_blob(DELETES_TYPE, snapshot, list_properties(checksum)), [data])
        writer.close({"created-by": "nevermore"})
    leftover.append(path)
    live = {task.data_file.path for task in plan.tasks}
    superseded = superseded_files(table, snapshot, live, writer.blobs, context.io)
    target.set_statistics(table, statistics_entry(writer, snapshot, listed), superseded=superseded)
    target.storage.remove(superseded)
    return DeadRowReport(snapshot.snapshot_id, len(touched), len(stale), len(known), num_dead, path, writer.size_bytes)


def _known_dead_rows(task: FileScanTask, context: ScanContext) -> DeleteFile | None:
    """The bitmap of a data file to which no delete has been added; None if there is none, or it is damaged."""
    bits = task.dead_row_bits
    if bits is None or bits.equality_deletes or bits.position_deletes:
        return None
    try:
        read_deletion_vector(bits.vector, context.io, ScanMetrics(), context.options.memory_limit_bytes)
    except (MalformedTableError, MissingFileError, MemoryLimitError):
        return None
    return bits.vector


def dead_rows(tasks: Sequence[FileScanTask], context: ScanContext) -> Iterator[BitMap64]:
    """The positions of the dead rows of whole data files, one bitmap for each, found on several threads.

    Raises:
        MalformedTableError: a data or delete file breaks its specification.
        MissingFileError: a file is gone.
    """
    splits = [Split(context, (task,)) for task in tasks]
    return run_splits(splits, _resolve, ScanMetrics(), context.options.parallelism)


def _resolve(split: Split, metrics: ScanMetrics) -> Iterator[BitMap64]:
    (task,) = split.tasks
    dead, first = BitMap64(), 0
    for flags in resolve_deletes(task, split.context, metrics):
        dead |= BitMap64(typed_array("Q", (np.flatnonzero(flags) + first).astype(np.uint64).tobytes()))
        first += len(flags)
    if first != task.data_file.record_count:
        raise MalformedTableError(
            f"{task.data_file.path} has {first} rows, but its manifest states {task.data_file.record_count}"
        )
    dead.run_optimize()
    yield dead


def framed(dead: BitMap64) -> bytes:
    """A bitmap as the specification frames a `deletion-vector-v1` blob: length, magic, bitmap, CRC-32."""
    content = _VECTOR_MAGIC + dead.serialize()
    return struct.pack(">I", len(content)) + content + struct.pack(">I", zlib.crc32(content))


@dataclass(slots=True)
class _DeleteSets:
    """The deletes of all data files, numbered, and the distinct sets of them that touch a data file."""

    numbers: dict[DeleteName, int] = field(default_factory=dict)
    sets: list[Sequence[int]] = field(default_factory=list)
    _known: dict[tuple[int, ...], int] = field(default_factory=dict)

    def number_of(self, task: FileScanTask) -> int:
        """The number of the set that touches a data file."""
        numbers = {self.numbers.setdefault(delete_name(file), len(self.numbers)) for file in deletes_of(task)}
        key = tuple(sorted(numbers))
        if key not in self._known:
            self._known[key] = len(self.sets)
            self.sets.append(key)
        return self._known[key]


def _described(task: FileScanTask, num_dead: int, delete_set: int, snapshot: Snapshot) -> PuffinBlob:
    file = task.data_file
    properties = {
        DATA_FILE: file.path,
        RECORD_COUNT: str(file.record_count),
        FILE_BYTES: str(file.file_size_bytes),
        SEQUENCE_NUMBER: str(file.data_sequence_number),
        NUM_DEAD: str(num_dead),
        DELETE_SET: str(delete_set),
    }
    return _blob(DEAD_ROWS_TYPE, snapshot, properties)


def _blob(kind: str, snapshot: Snapshot, properties: Mapping[str, str]) -> PuffinBlob:
    return PuffinBlob(kind, (), snapshot.snapshot_id, snapshot.sequence_number, 0, 0, None, properties)


def _copy_others(writer: PuffinWriter, table: Table, snapshot: Snapshot, io: FileIOConfig) -> list[PuffinBlob]:
    """Copy what else is in the statistics file that will be replaced; the blobs of other engines among it."""
    entry = entry_of(table, snapshot.snapshot_id)
    path = "" if entry is None else str(entry.get("statistics-path"))
    if not path or not exists(path, io):
        return []
    try:
        blobs = read_footer(path, io).blobs
    except MalformedTableError:
        if path.endswith(FILE_SUFFIX):
            return []  # indexes are rebuilt
        raise
    others = [blob for blob in blobs if blob.type not in {DEAD_ROWS_TYPE, DELETES_TYPE, DELETION_VECTOR}]
    for blob in others:
        writer.copy_blob(blob, path, io)
    return [blob for blob in others if blob.type not in {BLOB_TYPE, NO_INDEX_TYPE}]
