"""Which bitmap indexes of a snapshot exist already, and what other engines keep in the same statistics file."""

from collections.abc import Sequence
from dataclasses import dataclass, field

from scan_core.bitmap_index.find import FILE_SUFFIX, cached_footer, describes, statistics_paths
from scan_core.bitmap_index.layout import BLOB_TYPE, DATA_FILE
from scan_core.bitmap_index.puffin import PuffinBlob, read_footer
from scan_core.errors import MalformedTableError, MissingFileError
from scan_core.file_io import exists
from scan_core.snapshot import Snapshot
from scan_core.split import FileIOConfig, FileScanTask
from scan_core.table import Table

Place = tuple[str, int]
"""Path of a data file and id of a column."""


@dataclass(slots=True)
class KnownBlobs:
    """Blobs that exist: ours by data file and column, others of the snapshot's statistics file."""

    indexes: dict[Place, tuple[str, PuffinBlob]] = field(default_factory=dict)
    others: list[tuple[str, PuffinBlob]] = field(default_factory=list)
    own_path: str | None = None


def find_known(
    table: Table, snapshot: Snapshot, tasks: Sequence[FileScanTask], leftover: Sequence[str], io: FileIOConfig
) -> KnownBlobs:
    """The blobs that need not be made.

    Args:
        table: as loaded.
        snapshot: to index.
        tasks: its data files.
        leftover: files of attempts before, which hold indexes and are named nowhere.
        io: of the table.
    """
    metadata = table.metadata
    entry = next((s for s in metadata.statistics if s.get("snapshot-id") == snapshot.snapshot_id), None)
    known = KnownBlobs(own_path=None if entry is None else str(entry.get("statistics-path")))
    data_files = {task.data_file.path: task.data_file for task in tasks}
    paths = [*leftover, *statistics_paths(metadata, snapshot)]
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
