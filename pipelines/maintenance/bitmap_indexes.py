"""Maintenance: bitmap indexes of a table's data files, in one Puffin file registered as a snapshot's statistics.

What other engines keep in the statistics file of the snapshot is carried over, and so are indexes that are still of
use. Only files without index are read, a column at a time. Metadata lists other engines' blobs alone: PyIceberg does
not open tables whose metadata names types of blobs that it does not know.
"""

import uuid
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from pipelines.errors import CommitConflictError, SourceError
from pipelines.maintenance.bitmap_builder import MOST_VALUES, BitmapIndexBuilder, EncodedIndex, UnsuitableColumnError
from pipelines.maintenance.indexed_columns import indexed_fields, value_type_of
from pipelines.maintenance.known_blobs import KnownBlobs, find_known
from pipelines.maintenance.puffin_writer import PuffinWriter
from pipelines.maintenance.statistics_target import StatisticsTarget
from pipelines.tables.commit import retry_conflicts
from scan_core.bitmap_index.find import FILE_SUFFIX
from scan_core.bitmap_index.layout import (
    BLOB_TYPE,
    COLUMN_TYPE,
    DATA_FILE,
    DIRECTORY_BYTES,
    FILE_BYTES,
    IS_LIST,
    RECORD_COUNT,
)
from scan_core.bitmap_index.puffin import PuffinBlob
from scan_core.errors import UnsupportedError
from scan_core.options import ScanOptions
from scan_core.read.column_batches import column_batches
from scan_core.schema import ListType, NestedField
from scan_core.snapshot import DataFile, Snapshot
from scan_core.split import FileScanTask, ScanContext
from scan_core.table import Table


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
        self._fields = indexed_fields(self._table.metadata.schema, columns, case_sensitive=options.case_sensitive)
        plan = scan.select().plan()
        self._context: ScanContext = plan.context
        self._tasks = [_without_deletes(task) for task in plan.tasks]
        self._most_values = most_values
        self._skipped: list[Skipped] = []

    def run(self, leftover: list[str]) -> IndexReport:
        """Write what is missing, and register it. `leftover` are files of attempts before, which hold indexes."""
        known = find_known(self._table, self._snapshot, self._tasks, leftover, self._context.io)
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
        value_type = value_type_of(column)
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
            COLUMN_TYPE: str(value_type_of(column)),
            DIRECTORY_BYTES: str(len(encoded.directory)),
            "distinct-values": str(encoded.num_values),
        }
        if isinstance(column.type, ListType):
            properties[IS_LIST] = "true"
        number = self._snapshot.sequence_number
        return PuffinBlob(BLOB_TYPE, (column.field_id,), self._snapshot.snapshot_id, number, 0, 0, None, properties)

    def _entry(self, writer: PuffinWriter, known: KnownBlobs) -> dict[str, Any]:
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


def _without_deletes(task: FileScanTask) -> FileScanTask:
    """Positions are those of the file, so that an index stays right under any later delete."""
    return replace(task, equality_deletes=(), position_deletes=(), deletion_vector=None)
