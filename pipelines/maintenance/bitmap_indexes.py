"""Maintenance: bitmap indexes of a table's data files, in one Puffin file registered as a snapshot's statistics.

What other engines keep in the statistics file of the snapshot is carried over, and so are indexes that are still of
use. Only files without index are read, a column at a time. Metadata lists other engines' blobs alone: PyIceberg does
not open tables whose metadata names types of blobs that it does not know.
"""

import uuid
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from pipelines.errors import CommitConflictError, ConfigError, SourceError
from pipelines.maintenance.bitmap_builder import MOST_VALUES, BitmapIndexBuilder, EncodedIndex, UnsuitableColumnError
from pipelines.maintenance.puffin_writer import PuffinWriter
from pipelines.maintenance.statistics_target import StatisticsTarget
from pipelines.tables.commit import retry_conflicts
from scan_core.bitmap_index.find import FILE_SUFFIX, cached_footer, describes, statistics_paths
from scan_core.bitmap_index.layout import (
    BLOB_TYPE,
    COLUMN_TYPE,
    DATA_FILE,
    DIRECTORY_BYTES,
    FILE_BYTES,
    IS_LIST,
    RECORD_COUNT,
    is_indexable,
)
from scan_core.bitmap_index.puffin import PuffinBlob, read_footer
from scan_core.errors import MalformedTableError, MissingFileError, UnsupportedError
from scan_core.file_io import exists
from scan_core.options import ScanOptions
from scan_core.read.column_batches import column_batches
from scan_core.schema import ListType, NestedField, PrimitiveType, Schema, StructType
from scan_core.snapshot import DataFile, Snapshot
from scan_core.split import FileIOConfig, FileScanTask, ScanContext
from scan_core.table import Table

Place = tuple[str, int]
"""Path of a data file and id of a column."""


@dataclass(frozen=True, slots=True)
class Skipped:
    """A column that has no index in one data file, and why."""

    data_file: str
    column: str
    reason: str


@dataclass(frozen=True, slots=True)
class IndexReport:
    """What a run did. `path` is None where there was nothing to do."""

    snapshot_id: int
    columns: tuple[str, ...]
    data_files: int
    path: str | None
    built: int
    kept: int
    skipped: tuple[Skipped, ...]
    size_bytes: int


@dataclass(slots=True)
class _Known:
    """Blobs that exist: ours by data file and column, others of the snapshot's statistics file."""

    indexes: dict[Place, tuple[str, PuffinBlob]] = field(default_factory=dict)
    others: list[tuple[str, PuffinBlob]] = field(default_factory=list)
    own_path: str | None = None


def build_indexes(
    target: StatisticsTarget,
    columns: Sequence[str],
    *,
    snapshot_id: int | None = None,
    most_values: int = MOST_VALUES,
    options: ScanOptions | None = None,
) -> IndexReport:
    """Give every data file of a snapshot a bitmap index on each of the columns, where it has none.

    Args:
        target: the table.
        columns: names; members of structs as `struct.member`.
        snapshot_id: None is the current snapshot.
        most_values: distinct values of a column in a file, beyond which that file is left without.
        options: limits; the cap of memory is that of one column of one file.

    Raises:
        ConfigError: a column whose type cannot be indexed, or no column.
        SourceError: the table has no snapshot.
        CommitConflictError: other writers changed the statistics again and again.
    """
    leftover: list[str] = []

    def attempt() -> IndexReport:
        return _Run(target, columns, snapshot_id, most_values, options or ScanOptions()).run(leftover)

    try:
        report = retry_conflicts(attempt)
    except CommitConflictError:
        target.storage.remove(leftover)
        raise
    target.storage.remove(path for path in leftover if path != report.path)
    return report


class _Run:
    """One attempt, at the table as it is now."""

    def __init__(
        self,
        target: StatisticsTarget,
        columns: Sequence[str],
        snapshot_id: int | None,
        most_values: int,
        options: ScanOptions,
    ) -> None:
        self._target = target
        self._table: Table = target.load()
        scan = self._table.scan().with_options(replace(options, parallelism=1))
        scan = scan if snapshot_id is None else scan.as_of_snapshot(snapshot_id)
        if scan.snapshot is None:
            raise SourceError(f"{self._table.location} has no snapshot to index")
        self._snapshot: Snapshot = scan.snapshot
        self._fields = _fields(self._table.metadata.schema, columns, case_sensitive=options.case_sensitive)
        plan = scan.select().plan()
        self._context: ScanContext = plan.context
        self._tasks = [_without_deletes(task) for task in plan.tasks]
        self._most_values = most_values
        self._skipped: list[Skipped] = []

    def run(self, leftover: list[str]) -> IndexReport:
        """Write what is missing, and register it. `leftover` are files of attempts before, which hold indexes."""
        known = self._known(leftover)
        missing = [
            (task, name, column)
            for task in self._tasks
            for name, column in self._fields.items()
            if (task.data_file.path, column.field_id) not in known.indexes
        ]
        elsewhere = [path for path, _ in known.indexes.values() if path != known.own_path]
        encoded_any = False
        path = f"{self._target.folder}/{uuid.uuid4()}{FILE_SUFFIX}"
        with PuffinWriter(path, self._target.storage) as writer:
            for source, blob in [*known.others, *known.indexes.values()]:
                writer.copy_blob(blob, source, self._context.io)
            for task, name, column in missing:
                encoded_any |= self._write(writer, task, name, column)
            if not encoded_any and not elsewhere:
                return self._report(None, 0, len(known.indexes), 0)
            writer.close({"created-by": "nevermore"})
        leftover.append(path)
        built = len(writer.blobs) - len(known.others) - len(known.indexes)
        self._target.set_statistics(self._table, self._entry(writer, known))
        return self._report(path, built, len(known.indexes), writer.size_bytes)

    def _known(self, leftover: Sequence[str]) -> _Known:
        metadata, io = self._table.metadata, self._context.io
        entry = next((s for s in metadata.statistics if s.get("snapshot-id") == self._snapshot.snapshot_id), None)
        known = _Known(own_path=None if entry is None else str(entry.get("statistics-path")))
        data_files = {task.data_file.path: task.data_file for task in self._tasks}
        paths = [*leftover, *statistics_paths(metadata, self._snapshot)]
        for path in paths:
            try:
                blobs = cached_footer(path, io).blobs
            except (MalformedTableError, MissingFileError):
                continue  # damaged or gone: built anew
            for blob in blobs:
                data_file = data_files.get(blob.properties.get(DATA_FILE, ""))
                if blob.type == BLOB_TYPE and data_file is not None and describes(blob, data_file):
                    known.indexes.setdefault((data_file.path, blob.fields[0]), (path, blob))
        if known.own_path is not None and exists(known.own_path, io):
            known.others = [(known.own_path, blob) for blob in _foreign_blobs(known.own_path, io)]
        return known

    def _write(self, writer: PuffinWriter, task: FileScanTask, name: str, column: NestedField) -> bool:
        data_file = task.data_file
        try:
            encoded = self._encode(task, column)
        except (UnsuitableColumnError, UnsupportedError) as error:
            self._skipped.append(Skipped(data_file.path, name, str(error)))
            return False
        if encoded is None:
            self._skipped.append(Skipped(data_file.path, name, "the file does not have the column"))
            return False
        writer.write_blob(self._described(data_file, column, encoded), [encoded.directory, *encoded.bitmaps])
        return True

    def _encode(self, task: FileScanTask, column: NestedField) -> EncodedIndex | None:
        value_type = _value_type(column)
        builder = BitmapIndexBuilder(
            value_type,
            is_list=isinstance(column.type, ListType),
            most_values=self._most_values,
            memory_limit_bytes=self._context.options.memory_limit_bytes,
        )
        num_rows = 0
        batches = column_batches(task, column, self._context)
        if batches is None:
            return None
        for array, rows in batches:
            builder.add(array, rows)
            num_rows += len(rows)
        if num_rows != task.data_file.record_count:
            stated = task.data_file.record_count
            raise UnsuitableColumnError(f"the file has {num_rows} rows, but its manifest states {stated}")
        return builder.finish(num_rows)

    def _described(self, data_file: DataFile, column: NestedField, encoded: EncodedIndex) -> PuffinBlob:
        properties = {
            DATA_FILE: data_file.path,
            RECORD_COUNT: str(data_file.record_count),
            FILE_BYTES: str(data_file.file_size_bytes),
            COLUMN_TYPE: str(_value_type(column)),
            DIRECTORY_BYTES: str(len(encoded.directory)),
            "distinct-values": str(encoded.num_values),
        }
        if isinstance(column.type, ListType):
            properties[IS_LIST] = "true"
        number = self._snapshot.sequence_number
        return PuffinBlob(BLOB_TYPE, (column.field_id,), self._snapshot.snapshot_id, number, 0, 0, None, properties)

    def _entry(self, writer: PuffinWriter, known: _Known) -> dict[str, Any]:
        listed = [
            {
                "type": blob.type,
                "snapshot-id": blob.snapshot_id,
                "sequence-number": blob.sequence_number,
                "fields": list(blob.fields),
                **({"properties": dict(blob.properties)} if blob.properties else {}),
            }
            for _, blob in known.others
        ]
        return {
            "snapshot-id": self._snapshot.snapshot_id,
            "statistics-path": writer.path,
            "file-size-in-bytes": writer.size_bytes,
            "file-footer-size-in-bytes": writer.footer_size_bytes,
            "blob-metadata": listed,
        }

    def _report(self, path: str | None, built: int, kept: int, size_bytes: int) -> IndexReport:
        names = tuple(self._fields)
        skipped = tuple(self._skipped)
        return IndexReport(self._snapshot.snapshot_id, names, len(self._tasks), path, built, kept, skipped, size_bytes)


def _foreign_blobs(path: str, io: FileIOConfig) -> list[PuffinBlob]:
    """What other engines keep in a statistics file; a damaged file of ours holds nothing worth keeping.

    Raises:
        MalformedTableError: the file is another engine's and cannot be carried over.
    """
    try:
        footer = read_footer(path, io)
    except MalformedTableError:
        if path.endswith(FILE_SUFFIX):
            return []
        raise
    return [blob for blob in footer.blobs if blob.type != BLOB_TYPE]


def _fields(schema: Schema, columns: Sequence[str], *, case_sensitive: bool) -> dict[str, NestedField]:
    if not columns:
        raise ConfigError("name the columns to index with --columns")
    found: dict[str, NestedField] = {}
    for name in columns:
        column = schema.find(name, case_sensitive=case_sensitive)
        path = schema.path(column.field_id)
        if not all(isinstance(f.type, StructType) for f in path[:-1]):
            raise ConfigError(f"column {name!r} lies inside a list or map: index the list itself")
        element = column.type.element.type if isinstance(column.type, ListType) else column.type
        if not is_indexable(element):
            raise ConfigError(
                f"column {name!r} of type {column.type} cannot have a bitmap index; "
                "strings, integers, booleans, dates, times, uuids, bytes and lists of them can"
            )
        found[name] = column
    return found


def _value_type(column: NestedField) -> PrimitiveType:
    found = column.type.element.type if isinstance(column.type, ListType) else column.type
    assert isinstance(found, PrimitiveType)  # noqa: S101 - checked before anything was read
    return found


def _without_deletes(task: FileScanTask) -> FileScanTask:
    """Positions are those of the file, so that an index stays right under any later delete."""
    return replace(task, equality_deletes=(), position_deletes=(), deletion_vector=None)
