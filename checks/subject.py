"""The table that a check examines: as the engine reads it, as its own files define it, and as the change log requires.

Tables are given by metadata file or folder, so no catalog is needed.
"""

from collections.abc import Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import Any, cast

import pyarrow as pa
from pyarrow import fs

from nevermore import scan_core
from nevermore.checks.reference.expected_rows import AdoptedRows, Folding, folding
from nevermore.pipelines.config.checks import DEFAULT_MEMORY_BYTES
from nevermore.pipelines.iceberg.positions import LOG_BASE, LOG_ORDINAL
from nevermore.pipelines.mirrors.table_shape import ADOPTED, ADOPTED_ORDINAL, ADOPTED_SNAPSHOT
from nevermore.scan_core import ScanOptions, Snapshot, TableMetadata
from nevermore.scan_core.io import BoundedCache, cached_property, filesystem, parse_location

DELETED_FLAG = "_deleted"
"""Column of a mirror with `soft_delete`: rows where it is true count as deleted."""


def find_recorded(metadata: TableMetadata, snapshot_id: int | None, name: str) -> Snapshot | None:
    """The newest snapshot, from this one back through its ancestors, with an entry `name` in its summary."""
    line = metadata.ancestors(snapshot_id) if snapshot_id is not None else ()
    return next((snapshot for snapshot in line if name in snapshot.summary), None)


_MAX_KEPT_FILE_BYTES = 8 * 1024**2
_MAX_KEPT_BYTES = 64 * 1024**2


class _ReadOnce:
    """What the reference needs of an object store, whose files never change: small ones are read once by all checks of a table."""

    def __init__(self, store: fs.FileSystem) -> None:
        self._store = store
        self._sizes: dict[str, int] = {}
        self._kept: BoundedCache[str, pa.Buffer] = BoundedCache(len)

    def open_input_file(self, path: str) -> pa.NativeFile:
        """Open a file for reading."""
        if (kept := self._kept.find(path)) is None:
            file = self._store.open_input_file(path)
            self._sizes[path] = size = file.size()
            if size > _MAX_KEPT_FILE_BYTES:
                return file
            with file:
                kept = self._kept.put(path, file.read_buffer(), _MAX_KEPT_BYTES)
        return pa.BufferReader(kept)

    def get_file_info(self, path: str) -> fs.FileInfo:
        """Size of a file, and a time that never changes."""
        if path not in self._sizes:
            self.open_input_file(path).close()
        return fs.FileInfo(path, fs.FileType.File, size=self._sizes[path], mtime_ns=0)


@dataclass(frozen=True)
class Subject:
    """A mirror or published table to check.

    Attributes:
        table: metadata file or folder of the table.
        key: columns that identify a row.
        change_log: metadata file or folder of the log that is applied to the table; None if there is none.
        soft_delete: whether deleted rows stay in the table and are flagged.
        up_to_ordinal: the last change that the table must contain; None to read it from the table's snapshots, where
            the writer of mirrors records it.
        relocate: old path prefix -> new path prefix, for both tables.
        options: of scans of the table.
        properties: how object stores are opened, as properties of the catalog.
        memory_bytes: how much memory a comparison with the reference may take, beside that of an idle process.
    """

    table: str
    key: tuple[str, ...]
    change_log: str | None = None
    soft_delete: bool = False
    up_to_ordinal: int | None = None
    relocate: Mapping[str, str] | None = None
    options: ScanOptions = field(default_factory=ScanOptions)
    properties: Mapping[str, str] = field(default_factory=dict)
    memory_bytes: int = DEFAULT_MEMORY_BYTES

    @cached_property
    def filesystem(self) -> fs.FileSystem | None:
        """The object store that has the files; None if they are local."""
        location = parse_location(self.table)
        return None if location.is_local else cast("fs.FileSystem", _ReadOnce(filesystem(location, self.properties)[0]))

    @property
    def store(self) -> dict[str, Any]:
        """Where the paths of its tables lead, as arguments of the reference."""
        return {"relocate": self.relocate, "filesystem": self.filesystem}

    @cached_property
    def opened(self) -> scan_core.Table:
        """The table, opened by the engine."""
        return self.open(self.table)

    def open(self, table: str) -> scan_core.Table:
        """A table of the same catalog, opened by the engine."""
        return scan_core.open_table(
            table, relocate=self.relocate, options=self.options, properties=dict(self.properties)
        )

    def applied_ordinal(self, snapshot_id: int | None) -> int | None:
        """The last change of the log that a snapshot of the table contains; None if no snapshot records it."""
        recorded = find_recorded(self.opened.metadata, snapshot_id, LOG_ORDINAL)
        return None if recorded is None else int(recorded.summary[LOG_ORDINAL])

    @property
    def required_ordinal(self) -> int | None:
        """The last change that the table must contain; None if nothing records it."""
        if self.up_to_ordinal is not None:
            return self.up_to_ordinal
        return self.applied_ordinal(self.opened.metadata.current_snapshot_id)

    @cached_property
    def base_ordinal(self) -> int:
        """The last ordinal up to which the log has only the last change of each key; 0 if it has all changes."""
        if self.change_log is None:
            return 0
        log = self.open(self.change_log).metadata
        recorded = find_recorded(log, log.current_snapshot_id, LOG_BASE)
        return 0 if recorded is None else int(recorded.summary[LOG_BASE].split()[0])

    @property
    def why_not_by_log(self) -> str | None:
        """Why the rows of the table cannot be computed from its log; None if they can."""
        ordinal = self.required_ordinal
        if ordinal is not None and ordinal < self.base_ordinal:
            return f"up to ordinal {self.base_ordinal} the log has only the last change of each key"
        properties = self.opened.metadata.properties
        if ADOPTED not in properties:
            return None
        snapshot_id = properties.get(ADOPTED_SNAPSHOT)
        if snapshot_id is None:
            return "the table was adopted without a record of its rows"
        if snapshot_id and int(snapshot_id) not in self.opened.metadata.snapshots:
            return f"snapshot {snapshot_id}, which was adopted, has expired"
        return None

    @cached_property
    def adopted(self) -> AdoptedRows | None:
        """The rows that an adopted table had before its log; None if the table was not adopted or they have expired."""
        properties = self.opened.metadata.properties
        if ADOPTED not in properties or self.why_not_by_log is not None:
            return None
        snapshot_id = properties[ADOPTED_SNAPSHOT]
        return AdoptedRows(
            self.table,
            int(snapshot_id) if snapshot_id else None,
            int(properties.get(ADOPTED_ORDINAL, 0)),
            DELETED_FLAG if self.soft_delete else None,
        )

    def folding(self) -> AbstractContextManager[Folding]:
        """The rows required by the log and the adopted rows, up to the last change that the table claims to contain.

        Raises:
            ValueError: the subject has no log.
        """
        if self.change_log is None:
            raise ValueError(f"{self.table} has no change log to compare with")
        return folding(
            self.change_log,
            self.key,
            up_to_ordinal=self.required_ordinal,
            adopted=self.adopted,
            **self.store,
        )
