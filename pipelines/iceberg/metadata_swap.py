"""Commits to tables of SQL catalogs: what the server of a REST catalog does with requirements and updates.

It edits the JSON of the metadata, so that nothing in it is lost, and swaps the catalog's pointer if it still is the one that
was read.
"""

import gzip
import time
import uuid
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import orjson

from nevermore.pipelines.errors import CommitConflictError, CommitNotWrittenError
from nevermore.pipelines.iceberg.storage import Storage
from nevermore.scan_core.io import BoundedCache
from nevermore.scan_core.metadata import decompress_document, parse_schema

if TYPE_CHECKING:
    from pyiceberg.catalog import Catalog
    from pyiceberg.catalog.sql import SqlCatalog
    from pyiceberg.table import Table


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
        CommitNotWrittenError: the disk of an SQLite catalog is full, or refuses its journal; nothing was changed.
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
        # not SQLITE_IOERR: a log that is written ahead (WAL) may bring the change back
        if getattr(error.orig, "sqlite_errorname", "") in {"SQLITE_FULL", "SQLITE_CANTOPEN"}:
            now = current_location(catalog, identifier)
            if now == old:
                raise CommitNotWrittenError(
                    "nothing was committed: the disk of the catalog is full or broken, or the folder of its file cannot be written: "
                    "free space there, repair it, or change the rights, and run it again"
                ) from error
            if now == new:
                return True
        raise  # at a third location, another writer may have built upon this commit


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

Document = Mapping[str, Any]
"""Metadata of a table, as its JSON."""
Update = Mapping[str, Any]
"""A requirement or an update, in the form of the REST catalog specification."""
WRITTEN_BYTES = 16 * 1024**2
_WRITTEN: BoundedCache[str, bytes] = BoundedCache(len)
"""Metadata files of this process, which the next commit to their table builds upon without asking for them."""
ATTEMPTS = 10
"""How often the pointer may have moved for changes that matter to none of the updates."""


def commit_to_database(
    table: "Table", requirements: Sequence[Update], updates: Sequence[Update], storage: Storage, folder: str
) -> None:
    """Commit to a table of a SQL catalog, and update `table`.

    Args:
        table: the table, with the metadata that the updates build upon.
        requirements: what must be true of the table.
        updates: what changes.
        storage: storage of the table.
        folder: folder for metadata files.

    Raises:
        CommitConflictError: a requirement is not met, or another writer changed what the updates build upon.
        CommitNotWrittenError: a disk is full or broken; nothing was committed.
    """
    from pyiceberg.table.metadata import TableMetadataUtil

    name = ".".join(table.name())
    base: str | None = table.metadata_location
    built_upon: Document | None = None
    for _ in range(ATTEMPTS):
        if base is None:
            raise CommitConflictError(f"another writer changed {name}: it was dropped")
        written = _WRITTEN.find(base) or storage.read(base)
        document: Document = orjson.loads(decompress_document(written, base))
        if built_upon and _foundations(built_upon, updates) != _foundations(document, updates):
            break
        built_upon = document
        _check(requirements, document, name)
        changed = _changed(document, updates, base)
        file, content = metadata_file(f"{next_version(base):05d}-{uuid.uuid4()}", changed)
        location = f"{folder}/{file}"
        storage.write_for_commit(location, content)
        try:
            is_swapped = swap_location(table.catalog, table.name(), base, location)
        except CommitNotWrittenError:
            storage.remove([location])
            raise
        if is_swapped:
            _WRITTEN.put(location, content, WRITTEN_BYTES)
            _remove_old_metadata(document, changed, storage)
            table.metadata = TableMetadataUtil.parse_raw(decompress_document(content, location).decode())
            table.metadata_location = location
            return
        storage.remove([location])
        base = current_location(table.catalog, table.name())
    raise CommitConflictError(f"another writer changed {name}")


def _foundations(document: Mapping[str, Any], updates: Sequence[Update]) -> list[Any]:
    """What must not have changed where the pointer has moved, beside the requirements."""
    names = ["table-uuid", "format-version"]
    actions = {update["action"] for update in updates}
    if "add-snapshot" in actions:
        names += ["location", "current-schema-id", "default-spec-id", "partition-specs", "default-sort-order-id"]
        names += ["current-snapshot-id", "last-sequence-number", "next-row-id"]
    if "set-statistics" in actions:
        names.append("statistics")
    return [document.get(name) for name in names]


_REQUIRED = {"last-assigned-field-id": "last-column-id", "last-assigned-partition-id": "last-partition-id"}
"""Facts that requirements call by another name than the metadata."""


def _check(requirements: Sequence[Update], document: Mapping[str, Any], table: str) -> None:
    for requirement in requirements:
        match requirement:
            case {"type": "assert-ref-snapshot-id", "ref": ref, "snapshot-id": wanted}:
                found = _refs(document).get(ref, {}).get("snapshot-id")
            case {"type": "assert-table-uuid", "uuid": wanted}:
                found = document.get("table-uuid", wanted)  # version 1 may have none
            case _:
                what = requirement["type"].removeprefix("assert-")
                found, wanted = document.get(_REQUIRED.get(what, what)), requirement[what]
        if found != wanted:
            raise CommitConflictError(f"another writer changed {table}: {requirement['type']}: {wanted} is now {found}")


def _refs(document: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """Branches and tags; older writers state only the current snapshot."""
    refs: dict[str, dict[str, Any]] = dict(document.get("refs") or {})
    if "main" not in refs and (current := document.get("current-snapshot-id")) not in {None, -1}:
        refs["main"] = {"type": "branch", "snapshot-id": current}
    return refs


def metadata_file(stem: str, document: Document) -> tuple[str, bytes]:
    """Name and content of a metadata file, compressed if the properties of its table say so."""
    codec = (document.get("properties") or {}).get(COMPRESSION, "none")
    if str(codec).lower() != "gzip":
        return f"{stem}{SUFFIX}", orjson.dumps(document)
    return f"{stem}.gz{SUFFIX}", gzip.compress(orjson.dumps(document))


def _changed(document: Document, updates: Sequence[Update], base: str) -> Document:
    """The metadata after updates; `document` is stored in the file `base`."""
    changed = dict(document)
    made = [update["snapshot"]["timestamp-ms"] for update in updates if update["action"] == "add-snapshot"] or [
        time.time_ns() // 1_000_000
    ]
    # never before the last commit, also if the clocks of writers differ: time travel searches by this
    changed["last-updated-ms"] = max(*made, document["last-updated-ms"] + 1)
    changed["metadata-log"] = _metadata_log(document, base)
    for update in updates:
        _apply(update, changed)
    return changed


def _apply(update: Update, rest: dict[str, Any]) -> None:  # noqa: C901, PLR0912 - one branch per action
    match update:
        case {"action": "add-snapshot", "snapshot": snapshot}:
            added = {**snapshot, "timestamp-ms": rest["last-updated-ms"]}
            rest["snapshots"] = [*(rest.get("snapshots") or []), added]
            rest["last-sequence-number"] = snapshot["sequence-number"]
            if "added-rows" in snapshot:
                rest["next-row-id"] = snapshot["first-row-id"] + snapshot["added-rows"]
        case {"action": "set-snapshot-ref", "ref-name": ref, "snapshot-id": number}:
            facts = {name: fact for name, fact in update.items() if name not in {"action", "ref-name"}}
            rest["refs"] = {**_refs(rest), ref: facts}
            if ref == "main":
                rest["current-snapshot-id"] = number
                entry = {"snapshot-id": number, "timestamp-ms": rest["last-updated-ms"]}
                rest["snapshot-log"] = [*(rest.get("snapshot-log") or []), entry]
        case {"action": "remove-snapshot-ref", "ref-name": ref}:
            rest["refs"] = {name: facts for name, facts in _refs(rest).items() if name != ref}
        case {"action": "remove-snapshots", "snapshot-ids": removed}:
            if named := [ref for ref, facts in _refs(rest).items() if facts["snapshot-id"] in removed]:
                raise CommitConflictError(f"another writer has set {', '.join(named)} to a snapshot that is removed")
            rest["snapshots"] = [s for s in rest.get("snapshots") or [] if s["snapshot-id"] not in removed]
            # A history with a gap would be wrong, so it is kept only after the last removed snapshot.
            history = rest.get("snapshot-log") or []
            last = max((place for place, entry in enumerate(history) if entry["snapshot-id"] in removed), default=-1)
            rest["snapshot-log"] = history[last + 1 :]
        case {"action": "set-properties", "updates": properties}:
            rest["properties"] = {**(rest.get("properties") or {}), **properties}
        case {"action": "add-schema", "schema": schema}:
            rest["schemas"] = [*rest["schemas"], schema]
            rest["last-column-id"] = max([rest["last-column-id"], *parse_schema(schema).field_ids])
        case {"action": "set-current-schema", "schema-id": number}:
            rest["current-schema-id"] = rest["schemas"][-1]["schema-id"] if number == -1 else number
        case {"action": "add-spec", "spec": spec}:
            rest["partition-specs"] = [*rest["partition-specs"], spec]
            taken = [field["field-id"] for field in spec["fields"]]
            rest["last-partition-id"] = max([rest["last-partition-id"], *taken, 999])
        case {"action": "set-default-spec", "spec-id": number}:
            rest["default-spec-id"] = rest["partition-specs"][-1]["spec-id"] if number == -1 else number
        case {"action": "upgrade-format-version", "format-version": version}:
            if version > max(rest["format-version"], 2):
                rest["next-row-id"] = 0
            rest["format-version"] = max(version, rest["format-version"])
        case {"action": "set-statistics", "statistics": entry}:
            rest["statistics"] = [*_others(rest, "statistics", entry["snapshot-id"]), entry]
        case {"action": "remove-statistics" | "remove-partition-statistics" as action, "snapshot-id": number}:
            kind = action.removeprefix("remove-")
            rest[kind] = _others(rest, kind, number)
        case _:
            raise ValueError(f"{update['action']} is not an update of tables in SQL catalogs")


def _others(document: Mapping[str, Any], kind: str, snapshot_id: int) -> list[Any]:
    return [entry for entry in document.get(kind) or [] if entry.get("snapshot-id") != snapshot_id]


def _metadata_log(document: Mapping[str, Any], base: str) -> list[Any]:
    """The metadata log of the version that follows a document stored in the file `base`."""
    properties = document.get("properties") or {}
    kept = max(1, int(properties.get(PREVIOUS_VERSIONS, DEFAULT_PREVIOUS_VERSIONS)))
    newest = {"metadata-file": base, "timestamp-ms": document["last-updated-ms"]}
    return [*(document.get("metadata-log") or []), newest][-kept:]


def _remove_old_metadata(before: Document, after: Document, storage: Storage) -> None:
    if str((after.get("properties") or {}).get(DELETE_OLD_METADATA, "false")).lower() != "true":
        return
    kept = {entry["metadata-file"] for entry in after["metadata-log"]}
    storage.remove(
        entry["metadata-file"] for entry in before.get("metadata-log") or [] if entry["metadata-file"] not in kept
    )


def next_version(location: str) -> int:
    """The number of the metadata file after the one at `location`; 0 if its name has no number, as PyIceberg counts."""
    digits = location.rpartition("/")[2].removeprefix("v").partition("-")[0].partition(".")[0]
    return int(digits) + 1 if digits.isdigit() else 0
