"""Adds snapshots to the metadata of a table in a SQL catalog, and removes expired ones.

It edits the JSON of the metadata, so the cost hardly grows with the number of snapshots. If another writer was
faster, nothing is changed; retries are in `commit.py`.
"""

import gzip
import threading
import time
import uuid
from collections import OrderedDict
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import orjson

from nevermore.pipelines.errors import CommitNotWrittenError
from nevermore.pipelines.iceberg.storage import Storage
from nevermore.scan_core.metadata import decompress_document

if TYPE_CHECKING:
    from pyiceberg.catalog import Catalog
    from pyiceberg.catalog.sql import SqlCatalog
    from pyiceberg.table import Table
    from pyiceberg.table.metadata import TableMetadata


def current_location(catalog: "Catalog", identifier: tuple[str, ...]) -> str | None:
    """The current metadata file of a table in a SQL catalog; None in other catalogs, and if there is no such table."""
    from pyiceberg.catalog.sql import IcebergTables, SqlCatalog

    if type(catalog) is not SqlCatalog:
        return None
    from sqlalchemy import select

    statement = select(IcebergTables.metadata_location).where(*_row(catalog, identifier))
    with catalog.engine.connect() as connection:
        found = connection.scalar(statement)
    return None if found is None else str(found)


def swap_location(catalog: "Catalog", identifier: tuple[str, ...], old: str, new: str) -> bool | None:
    """Make `new` the current metadata file if `old` still is; False if not, None in catalogs that are not SQL ones.

    Raises:
        CommitNotWrittenError: the disk of an SQLite catalog is full; SQLite has undone the change.
    """
    from pyiceberg.catalog.sql import IcebergTables, SqlCatalog

    if type(catalog) is not SqlCatalog:
        return None
    from sqlalchemy import update
    from sqlalchemy.exc import OperationalError

    statement = (
        update(IcebergTables)
        .where(*_row(catalog, identifier), IcebergTables.metadata_location == old)
        .values(metadata_location=new, previous_metadata_location=old)
    )
    try:
        with catalog.engine.begin() as connection:
            return bool(connection.execute(statement).rowcount == 1)
    except OperationalError as error:
        if getattr(error.orig, "sqlite_errorname", "") != "SQLITE_FULL":
            raise
        raise CommitNotWrittenError("nothing was committed: the disk of the catalog is full") from error


def can_swap(catalog: "Catalog") -> bool:
    """Whether a catalog is a SQL catalog whose database reports how many rows an update matched."""
    from pyiceberg.catalog.sql import SqlCatalog

    return type(catalog) is SqlCatalog and bool(catalog.engine.dialect.supports_sane_rowcount)


def _row(catalog: "SqlCatalog", identifier: tuple[str, ...]) -> tuple[Any, ...]:
    from pyiceberg.catalog.sql import IcebergTables

    return (
        IcebergTables.catalog_name == catalog.name,
        IcebergTables.table_namespace == ".".join(identifier[:-1]),
        IcebergTables.table_name == identifier[-1],
    )


PREVIOUS_VERSIONS = "write.metadata.previous-versions-max"
DEFAULT_PREVIOUS_VERSIONS = 100
DELETE_OLD_METADATA = "write.metadata.delete-after-commit.enabled"
COMPRESSION = "write.metadata.compression-codec"
SUFFIX = ".metadata.json"
CACHED_DOCUMENTS = 64
"""Documents kept in memory: a process writes two tables per mirror, and a thousand snapshots are a megabyte."""


@dataclass(frozen=True, slots=True)
class _Document:
    """Metadata as JSON: snapshots by id as text, everything else as objects."""

    rest: Mapping[str, Any]
    snapshots: Mapping[int, bytes]

    def text(self) -> bytes:
        """The whole document, joined once, since it may be a megabyte."""
        head = orjson.dumps({**self.rest, "snapshots": []}).removesuffix(b"]}")
        return b"".join((head, b",".join(self.snapshots.values()), b"]}"))


_documents: OrderedDict[str, _Document] = OrderedDict()
_lock = threading.Lock()
"""Protects the documents: several threads commit tables."""


def supports(table: "Table") -> bool:
    """Whether `swap_snapshot` can commit to this table."""
    return can_swap(table.catalog)


def swap_snapshot(table: "Table", snapshot: Mapping[str, Any], storage: Storage, folder: str) -> bool:
    """Add a snapshot as the new head of `main` and update `table`; False if another writer committed first.

    Args:
        table: the table, with the metadata that the snapshot builds upon.
        snapshot: the snapshot in the form of the metadata JSON.
        storage: storage of the table.
        folder: folder for metadata files.
    """
    base = str(table.metadata_location)
    document = _document(base, storage)
    changed = _with_snapshot(document, snapshot, base)
    location = _swap(table, document, changed, storage, folder)
    if location is None:
        return False
    table.metadata = _shown(table.metadata, changed, snapshot)
    table.metadata_location = location
    return True


def swap_without(
    table: "Table", expired: Collection[int], storage: Storage, folder: str, *, keeps_indexes: bool = True
) -> bool:
    """Remove snapshots that no branch or tag names and refresh `table`; False if another writer committed first.

    Our indexes that are registered with them stay with `keeps_indexes`: they describe data files, not snapshots.
    """
    base = str(table.metadata_location)
    document = _document(base, storage)
    without = _without(document, frozenset(expired), base, keeps_indexes=keeps_indexes)
    if _swap(table, document, without, storage, folder) is None:
        return False
    table.refresh()
    return True


def _swap(table: "Table", before: _Document, after: _Document, storage: Storage, folder: str) -> str | None:
    """Make a document the table's metadata; return its file, or None if another writer committed first."""
    base = str(table.metadata_location)
    name, content = metadata_file(f"{next_version(base):05d}-{uuid.uuid4()}", after.rest, after.text())
    location = f"{folder}/{name}"
    storage.write_for_commit(location, content)
    try:
        is_swapped = swap_location(table.catalog, table.name(), base, location)
    except CommitNotWrittenError:
        storage.remove([location])
        raise
    if not is_swapped:
        storage.remove([location])
        return None
    _remember(location, after, base)
    _remove_old_metadata(before, after, storage)
    return location


def metadata_file(stem: str, document: Mapping[str, Any], text: bytes) -> tuple[str, bytes]:
    """Name and content of a metadata file, compressed if the properties of its table say so."""
    codec = (document.get("properties") or {}).get(COMPRESSION, "none")
    if str(codec).lower() != "gzip":
        return f"{stem}{SUFFIX}", text
    return f"{stem}.gz{SUFFIX}", gzip.compress(text)


def metadata_json(metadata: "TableMetadata") -> bytes:
    """Metadata as it is stored. PyIceberg itself refuses to write that of format version 3, although it knows all of it."""
    from pyiceberg.typedef import IcebergBaseModel

    return IcebergBaseModel.model_dump_json(metadata).encode()


def swap_changed(base: "Table", changed: "TableMetadata", storage: Storage, folder: str) -> bool:
    """Make changed metadata current; False if another writer committed first. `base` is the table that was changed."""
    document = _parsed(metadata_json(changed))
    return _swap(base, _document(str(base.metadata_location), storage), document, storage, folder) is not None


def swap_format_version(table: "Table", version: int, storage: Storage, folder: str) -> bool:
    """Upgrade a table to a later format version; False if another writer committed first. The caller refreshes the table."""
    base = str(table.metadata_location)
    document = _document(base, storage)
    changes = {
        "format-version": version,
        "last-updated-ms": max(time.time_ns() // 1_000_000, document.rest["last-updated-ms"] + 1),
        "metadata-log": metadata_log(document.rest, base),
        **({"next-row-id": 0} if version > 2 else {}),
    }
    upgraded = _Document({**document.rest, **changes}, document.snapshots)
    return _swap(table, document, upgraded, storage, folder) is not None


def _document(location: str, storage: Storage) -> _Document:
    with _lock:
        known = _documents.get(location)
        if known is not None:
            _documents.move_to_end(location)
            return known
    return _parsed(decompress_document(storage.read(location), location))


def _parsed(text: bytes) -> _Document:
    rest = orjson.loads(text)
    snapshots = {s["snapshot-id"]: orjson.dumps(s) for s in rest.pop("snapshots", None) or []}
    return _Document(rest, snapshots)


def _remember(location: str, document: _Document, base: str) -> None:
    with _lock:
        _documents.pop(base, None)
        _documents[location] = document
        while len(_documents) > CACHED_DOCUMENTS:
            _documents.popitem(last=False)


def _with_snapshot(document: _Document, snapshot: Mapping[str, Any], base: str) -> _Document:
    rest, number, time_ms = document.rest, snapshot["snapshot-id"], snapshot["timestamp-ms"]
    refs = rest.get("refs") or {}
    main = {"type": "branch", **refs.get("main", {}), "snapshot-id": number}
    changes = {
        "last-sequence-number": snapshot["sequence-number"],
        "last-updated-ms": time_ms,
        "current-snapshot-id": number,
        "refs": {**refs, "main": main},
        "snapshot-log": [*(rest.get("snapshot-log") or []), {"snapshot-id": number, "timestamp-ms": time_ms}],
        "metadata-log": metadata_log(rest, base),
    }
    if "added-rows" in snapshot:
        changes["next-row-id"] = snapshot["first-row-id"] + snapshot["added-rows"]
    return _Document({**rest, **changes}, {**document.snapshots, number: orjson.dumps(snapshot)})


def _without(document: _Document, expired: frozenset[int], base: str, *, keeps_indexes: bool) -> _Document:
    from nevermore.scan_core.bitmaps import FILE_SUFFIX

    rest = document.rest
    history = rest.get("snapshot-log") or []
    # A history with a gap would be wrong, so it is kept only after the last expired snapshot.
    last = max((place for place, entry in enumerate(history) if entry["snapshot-id"] in expired), default=-1)
    changes: dict[str, Any] = {
        "last-updated-ms": max(time.time_ns() // 1_000_000, int(rest["last-updated-ms"])),
        "snapshot-log": history[last + 1 :],
        "metadata-log": metadata_log(rest, base),
    }
    for kind in ("statistics", "partition-statistics"):
        if kind in rest:  # the next update of the indexes takes over those that stay
            changes[kind] = [
                entry
                for entry in rest[kind] or []
                if entry.get("snapshot-id") not in expired
                or (keeps_indexes and str(entry.get("statistics-path")).endswith(FILE_SUFFIX))
            ]
    snapshots = {i: text for i, text in document.snapshots.items() if i not in expired}
    return _Document({**rest, **changes}, snapshots)


def metadata_log(document: Mapping[str, Any], base: str) -> list[Any]:
    """The metadata log of the version that follows a document stored in the file `base`."""
    properties = document.get("properties") or {}
    kept = max(1, int(properties.get(PREVIOUS_VERSIONS, DEFAULT_PREVIOUS_VERSIONS)))
    newest = {"metadata-file": base, "timestamp-ms": document["last-updated-ms"]}
    return [*(document.get("metadata-log") or []), newest][-kept:]


def _remove_old_metadata(before: _Document, after: _Document, storage: Storage) -> None:
    if str((after.rest.get("properties") or {}).get(DELETE_OLD_METADATA, "false")).lower() != "true":
        return
    kept = {entry["metadata-file"] for entry in after.rest["metadata-log"]}
    storage.remove(
        entry["metadata-file"] for entry in before.rest.get("metadata-log") or [] if entry["metadata-file"] not in kept
    )


def _shown(metadata: "TableMetadata", document: _Document, snapshot: Mapping[str, Any]) -> "TableMetadata":
    """PyIceberg's form of the new metadata, sharing everything that has not changed."""
    from pyiceberg.table.refs import SnapshotRef
    from pyiceberg.table.snapshots import MetadataLogEntry, Snapshot, SnapshotLogEntry

    rest = document.rest
    added = Snapshot.model_validate(snapshot)
    head = SnapshotRef.model_validate(rest["refs"]["main"])
    newest = MetadataLogEntry.model_validate(rest["metadata-log"][-1])
    return metadata.model_copy(
        update={
            "last_sequence_number": added.sequence_number,
            "last_updated_ms": added.timestamp_ms,
            "current_snapshot_id": added.snapshot_id,
            "refs": {**metadata.refs, "main": head},
            "snapshots": [*metadata.snapshots, added],
            "snapshot_log": [*metadata.snapshot_log, SnapshotLogEntry.model_validate(rest["snapshot-log"][-1])],
            "metadata_log": [*metadata.metadata_log, newest][-len(rest["metadata-log"]) :],
            **({"next_row_id": rest["next-row-id"]} if "next-row-id" in rest else {}),
        }
    )


def next_version(location: str) -> int:
    """The number of the metadata file after the one at `location`; 0 if its name has no number, as PyIceberg counts."""
    digits = location.rpartition("/")[2].removeprefix("v").partition("-")[0].partition(".")[0]
    return int(digits) + 1 if digits.isdigit() else 0
