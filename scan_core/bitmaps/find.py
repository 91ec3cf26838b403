"""Which data files of a scan have bitmap indexes: from the statistics entries of a table to blobs.

An index is of a file, not of a snapshot: data files never change, so an entry of any snapshot serves, those of the
snapshot and its ancestors first. Other engines' statistics files are not opened: ours have a name of their own.
"""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import islice

from nevermore.scan_core.bitmaps.column_index import (
    BLOB_TYPE,
    COLUMN_TYPE,
    DATA_FILE,
    DIRECTORY_BYTES,
    FILE_BYTES,
    IS_LIST,
    RECORD_COUNT,
)
from nevermore.scan_core.bitmaps.puffin import PuffinBlob, PuffinFooter, read_footer
from nevermore.scan_core.io.cache import cached
from nevermore.scan_core.io.files import fingerprint
from nevermore.scan_core.io.location import FileIOConfig
from nevermore.scan_core.model.errors import MalformedTableError, MissingFileError
from nevermore.scan_core.model.metrics import ScanMetrics
from nevermore.scan_core.model.snapshot import DataFile, Snapshot
from nevermore.scan_core.model.table_metadata import TableMetadata
from nevermore.scan_core.split.tasks import BitmapIndexBlob, FileScanTask, ScanContext

FILE_SUFFIX = "-index.puffin"
"""At the end of the name of every statistics file of ours."""
MAX_STATISTICS_FILES = 32
"""Statistics files looked at for one plan: each run that builds indexes carries all that are of use into its own."""
_BLOB_BYTES = 1_000
"""About what a blob's description holds in memory."""


def with_bitmap_indexes(
    tasks: Sequence[FileScanTask],
    metadata: TableMetadata,
    snapshot: Snapshot | None,
    context: ScanContext,
    metrics: ScanMetrics,
) -> Sequence[FileScanTask]:
    """The tasks, each with the indexes of the columns that predicate and runtime filters read, if its file has any.

    Statistics files that are damaged or gone are counted in `metrics` and ignored.
    """
    field_ids = _field_ids(context)
    if not field_ids or snapshot is None or not context.options.switches.use_bitmap_indexes or not tasks:
        return tasks
    paths = list(islice(statistics_paths(metadata, snapshot), MAX_STATISTICS_FILES))
    if not paths:
        return tasks
    wanted = {task.data_file.path: task.data_file for task in tasks}
    found: dict[str, dict[int, BitmapIndexBlob]] = {}
    for path in paths:
        if len(found) == len(wanted) and all(len(blobs) == len(field_ids) for blobs in found.values()):
            break
        try:
            footer = cached_footer(path, context.io)
        except (MalformedTableError, MissingFileError):
            metrics.bitmap_indexes_refused += 1
            continue
        for blob in footer.blobs:
            if blob.type != BLOB_TYPE or len(blob.fields) != 1 or blob.fields[0] not in field_ids:
                continue
            data_file = wanted.get(blob.properties.get(DATA_FILE, ""))
            if data_file is not None and describes(blob, data_file):
                found.setdefault(data_file.path, {}).setdefault(blob.fields[0], _located(blob, path))
    return tuple(
        replace(task, bitmap_indexes=tuple(found[task.data_file.path].values()))
        if task.data_file.path in found
        else task
        for task in tasks
    )


def _field_ids(context: ScanContext) -> frozenset[int]:
    """Columns that conditions on single columns read."""
    of_filters = {f.fields[0].field_id for f in context.runtime_filters if len(f.fields) == 1}
    return frozenset(of_filters if context.predicate is None else of_filters | {*context.predicate.leaf_ids})


def statistics_paths(metadata: TableMetadata, snapshot: Snapshot) -> Iterator[str]:
    """Statistics files with indexes: of the snapshot, its ancestors from new to old, then of all others."""
    by_snapshot: dict[object, list[str]] = {}
    for entry in metadata.statistics:
        path = entry.get("statistics-path")
        if isinstance(path, str) and path.endswith(FILE_SUFFIX):
            by_snapshot.setdefault(entry.get("snapshot-id"), []).append(path)
    if not by_snapshot:
        return
    for ancestor in metadata.ancestors(snapshot.snapshot_id):
        yield from by_snapshot.pop(ancestor.snapshot_id, [])
    for paths in reversed(by_snapshot.values()):
        yield from paths


def cached_footer(path: str, io: FileIOConfig) -> PuffinFooter:
    """The footer of a Puffin file, remembered.

    Raises:
        MissingFileError: no such file.
        MalformedTableError: no Puffin file.
    """

    def load() -> tuple[PuffinFooter, int]:
        footer = read_footer(path, io)
        return footer, _BLOB_BYTES * (1 + len(footer.blobs))

    return cached(("puffin", fingerprint(path, io), tuple(sorted(io.properties.items()))), load)


def describes(blob: PuffinBlob, data_file: DataFile) -> bool:
    """Was the index built from this file, and has it all properties needed to read it?"""
    properties = blob.properties
    return (
        properties.get(DATA_FILE) == data_file.path
        and properties.get(RECORD_COUNT) == str(data_file.record_count)
        and properties.get(FILE_BYTES) == str(data_file.file_size_bytes)
        and properties.get(DIRECTORY_BYTES, "").isdecimal()
        and COLUMN_TYPE in properties
        and blob.compression is None
    )


def _located(blob: PuffinBlob, path: str) -> BitmapIndexBlob:
    properties = blob.properties
    return BitmapIndexBlob(
        field_id=blob.fields[0],
        path=path,
        offset=blob.offset,
        length=blob.length,
        directory_bytes=int(properties[DIRECTORY_BYTES][:18]),
        column_type=properties[COLUMN_TYPE],
        is_list=properties.get(IS_LIST) == "true",
    )
