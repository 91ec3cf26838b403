"""Registers the statistics file of a snapshot in the metadata of its table."""

import os
import re
import time
import uuid
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Protocol

import orjson

import scan_core
from pipelines.errors import CommitConflictError, SourceError
from pipelines.iceberg.loaded_table import metadata_location, storage_of
from pipelines.iceberg.metadata_swap import (
    DEFAULT_PREVIOUS_VERSIONS,
    PREVIOUS_VERSIONS,
    SUFFIX,
    supports,
    swap_location,
)
from pipelines.iceberg.storage import Storage
from scan_core.bitmaps.find import FILE_SUFFIX
from scan_core.io.location import parse_location
from scan_core.scan import Table

_VERSIONED = re.compile(r"v(\d+)\.metadata\.json")
_HINT = "version-hint.text"


class StatisticsTarget(Protocol):
    """A table whose statistics entries can be changed."""

    storage: Storage

    @property
    def folder(self) -> str:
        """For metadata files, statistics files among them."""
        ...

    def load(self) -> Table:
        """The table as it is now."""
        ...

    def set_statistics(self, base: Table, entry: Mapping[str, Any]) -> None:
        """Make `entry` the statistics entry of its snapshot, in place of the one that `base` has.

        Raises:
            CommitConflictError: the table is no longer as in `base`.
        """
        ...


def statistics_target(table: Any) -> StatisticsTarget:
    """The target of a PyIceberg table, or of a path without catalog."""
    return PathTarget(table) if isinstance(table, str) else CatalogTarget(table)


class CatalogTarget:
    """A table of a catalog."""

    def __init__(self, table: Any) -> None:
        self._table = table
        self.storage = storage_of(table)

    @property
    def folder(self) -> str:
        """The catalog's folder for the table's metadata."""
        return metadata_location(self._table)

    def load(self) -> Table:
        """The table as the catalog has it now."""
        self._table.refresh()
        return scan_core.open_table(self._table)

    def set_statistics(self, base: Table, entry: Mapping[str, Any]) -> None:
        """By a swap of the catalog's pointer, or by a request to the catalog."""
        if supports(self._table):
            document = with_statistics(orjson.loads(self.storage.read(base.metadata_path)), entry, base.metadata_path)
            path = f"{self.folder}/{_next_version(base.metadata_path):05d}-{uuid.uuid4()}{SUFFIX}"
            self.storage.write(path, orjson.dumps(document))
            if not swap_location(self._table.catalog, self._table.name(), base.metadata_path, path):
                self.storage.remove([path])
                raise CommitConflictError(f"another writer changed {'.'.join(self._table.name())}")
            return
        self._ask_catalog(base, entry)

    def _ask_catalog(self, base: Table, entry: Mapping[str, Any]) -> None:
        """No requirement of the REST catalog specification covers statistics: looked at just before."""
        from pyiceberg.exceptions import CommitFailedException
        from pyiceberg.table.statistics import StatisticsFile

        snapshot_id = entry["snapshot-id"]
        if _entry_of(self.load(), snapshot_id) != _entry_of(base, snapshot_id):
            raise CommitConflictError(f"another writer changed the statistics of {'.'.join(self._table.name())}")
        try:
            with self._table.update_statistics() as update:
                update.set_statistics(StatisticsFile.model_validate(entry))
        except CommitFailedException as error:
            now = _entry_of(self.load(), snapshot_id)
            if now is not None and now["statistics-path"] == entry["statistics-path"]:
                return  # a proxy has repeated a request that was done
            raise CommitConflictError(f"another writer changed {'.'.join(self._table.name())}: {error}") from error


class PathTarget:
    """A table without catalog: whoever creates the next `vN.metadata.json` has committed (the Hadoop catalog's way)."""

    def __init__(self, location: str) -> None:
        self._location = location
        self.storage = Storage()

    @property
    def folder(self) -> str:
        """Where the newest metadata file is."""
        return self.load().metadata_path.rpartition("/")[0]

    def load(self) -> Table:
        """The newest metadata in the folder.

        Raises:
            SourceError: a catalog decides which metadata file is the table's, or it is on an object store.
        """
        table = scan_core.open_table(self._location)
        path = table.metadata_path
        if not parse_location(path).is_local:
            raise SourceError(f"{path}: tables on object stores are changed through their catalog: name it there")
        if not _VERSIONED.fullmatch(path.rpartition("/")[2]):
            raise SourceError(
                f"{path} is the metadata of a table in a catalog, which decides what is current: name the table as "
                "`namespace.table` with --config, or as `catalog.namespace.table`"
            )
        return table

    def set_statistics(self, base: Table, entry: Mapping[str, Any]) -> None:
        """By creating the next version, which fails if another writer has."""
        base_path = Path(parse_location(base.metadata_path).path)
        document = with_statistics(orjson.loads(base_path.read_bytes()), entry, base.metadata_path)
        version = _next_version(base.metadata_path)
        path = base_path.with_name(f"v{version}{SUFFIX}")
        scratch = base_path.with_name(f"{uuid.uuid4()}.tmp")
        scratch.write_bytes(orjson.dumps(document))
        try:
            os.link(scratch, path)
        except FileExistsError as error:
            raise CommitConflictError(f"another writer created {path}") from error
        finally:
            scratch.unlink()
        hint = base_path.with_name(_HINT)
        scratch.write_text(str(version))
        scratch.replace(hint)


def with_statistics(document: dict[str, Any], entry: Mapping[str, Any], base: str) -> dict[str, Any]:
    """A metadata document with `entry` as the only statistics entry of its snapshot, as the version after `base`.

    Indexes registered for snapshots that have expired since go: `entry` has carried over what is of use.
    """
    now = max(time.time_ns() // 1_000_000, int(document["last-updated-ms"]))
    kept = max(1, int((document.get("properties") or {}).get(PREVIOUS_VERSIONS, DEFAULT_PREVIOUS_VERSIONS)))
    files = [
        *(document.get("metadata-log") or []),
        {"metadata-file": base, "timestamp-ms": document["last-updated-ms"]},
    ]
    snapshots = {snapshot["snapshot-id"] for snapshot in document.get("snapshots") or []}
    others = [
        other
        for other in document.get("statistics") or []
        if other.get("snapshot-id") != entry["snapshot-id"]
        and (other.get("snapshot-id") in snapshots or not str(other.get("statistics-path")).endswith(FILE_SUFFIX))
    ]
    return {**document, "statistics": [*others, dict(entry)], "last-updated-ms": now, "metadata-log": files[-kept:]}


def _entry_of(table: Table, snapshot_id: int) -> Mapping[str, Any] | None:
    return next((s for s in table.metadata.statistics if s.get("snapshot-id") == snapshot_id), None)


def _next_version(path: str) -> int:
    digits = path.rpartition("/")[2].removeprefix("v").partition("-")[0].partition(".")[0]
    return int(digits) + 1 if digits.isdigit() else 0
