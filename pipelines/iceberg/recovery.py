"""Detects and repairs a catalog that disagrees with its warehouse.

Every run checks this before it writes. `nevermore recover` registers lost tables again and rewrites the paths in the
metadata of tables that were moved.
"""

import io
import os
import re
import uuid
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import fastavro
import orjson

from pipelines.config.project import Config, change_log_name, quarantine_name
from pipelines.errors import CatalogMismatchError, SourceError
from pipelines.iceberg.catalog import (
    LightCatalog,
    check_catalog,
    identifier,
    metadata_location,
    open_catalog,
    open_light,
    sqlite_file,
)
from pipelines.iceberg.metadata_swap import swap_location
from scan_core.metadata import BLANK_SYNC, with_checksum

_POSITION_DELETES = 1
_REMOVED = 2
"""Status of manifest entries whose files the snapshot does not hold any more."""


def check_files(document: Mapping[str, Any], location: str, folder: Path) -> None:
    """Refuse a metadata file whose current snapshot names files that are not there.

    Args:
        document: the metadata.
        location: of the table, as the metadata says.
        folder: where the table is.

    Raises:
        SourceError: names the first file that is missing.
    """
    current = document.get("current-snapshot-id")
    for snapshot in document.get("snapshots", ()):
        if snapshot["snapshot-id"] == current:
            for path in _files(snapshot, location, folder):
                if not path.is_file():
                    raise SourceError(f"its snapshot {current} needs {path}, which is not there")


def check_movable(document: Mapping[str, Any], location: str, folder: Path) -> None:
    """Refuse a table that other metadata alone does not move, before anything is written.

    Args:
        document: the newest metadata.
        location: of the table, as the metadata says.
        folder: where the table is now.

    Raises:
        SourceError: some snapshot has position-delete files, whose rows name data files by path.
    """
    lists = {s["manifest-list"] for s in document.get("snapshots", ()) if "manifest-list" in s}
    manifests = {m["manifest_path"] for path in lists for m in _read(_here(path, location, folder))}
    for path in sorted(manifests):
        for row in _read(_here(path, location, folder)):
            file = row["data_file"]
            is_position_file = file.get("content") == _POSITION_DELETES and file["file_format"].lower() != "puffin"
            if is_position_file and row["status"] != _REMOVED:
                raise SourceError(
                    f"{path} holds position-delete files, whose rows name data files by path: move the table back to "
                    f"{location}, or move it with Spark's rewrite_table_path; `nevermore scan` reads it where it is with "
                    f"--relocate '{location}={folder}'"
                )


def moved_copy(document: Mapping[str, Any], location: str, folder: Path, version: int) -> Path:
    """Write all metadata of a table for its new place.

    Args:
        document: the newest metadata, of which `check_movable` has nothing to say.
        location: of the table, as the metadata says.
        folder: where the table is now.
        version: number of the new metadata file.

    Returns:
        The new metadata file.
    """
    done: dict[str, tuple[str, int]] = {}
    moved = _moved(document, location, f"file://{folder}")
    for snapshot, old in zip(moved.get("snapshots", ()), document.get("snapshots", ()), strict=True):
        if "manifest-list" in old:
            snapshot["manifest-list"] = _manifest_list(old["manifest-list"], location, folder, done)
    target = folder / "metadata" / f"{version:05d}-{uuid.uuid4()}.metadata.json"
    target.write_bytes(orjson.dumps(moved))
    return target


def _manifest_list(path: str, location: str, folder: Path, done: dict[str, tuple[str, int]]) -> str:
    reader = _read(_here(path, location, folder))
    rows = []
    for row in reader:
        if row["manifest_path"] not in done:
            done[row["manifest_path"]] = _manifest(row["manifest_path"], location, folder)
        moved, length = done[row["manifest_path"]]
        rows.append({**row, "manifest_path": moved, "manifest_length": length})
    return _write(reader, rows, folder)[0]


def _manifest(path: str, location: str, folder: Path) -> tuple[str, int]:
    reader = _read(_here(path, location, folder))
    rows = []
    for row in reader:
        file = dict(row["data_file"])
        for name in ("file_path", "referenced_data_file"):
            if file.get(name) is not None:
                file[name] = _moved(file[name], location, f"file://{folder}")
        rows.append({**row, "data_file": file})
    return _write(reader, rows, folder)


def _files(snapshot: Mapping[str, Any], location: str, folder: Path) -> Iterator[Path]:
    """All files that a snapshot needs, where they are now."""
    if "manifest-list" not in snapshot:
        return
    manifest_list = _here(snapshot["manifest-list"], location, folder)
    yield manifest_list
    for manifest in _read(manifest_list):
        path = _here(manifest["manifest_path"], location, folder)
        yield path
        for entry in _read(path):
            if entry["status"] != _REMOVED:
                yield _here(entry["data_file"]["file_path"], location, folder)


def _here(path: str, location: str, folder: Path) -> Path:
    return Path(_moved(path, location, f"file://{folder}").removeprefix("file://"))


def _moved(value: Any, old: str, new: str) -> Any:
    """A document with every text that names something at the old place naming it at the new one."""
    match value:
        case str():
            is_within = value == old or value.startswith(f"{old.rstrip('/')}/")
            return new + value.removeprefix(old.rstrip("/")) if is_within else value
        case dict():
            return {key: _moved(member, old, new) for key, member in value.items()}
        case list():
            return [_moved(member, old, new) for member in value]
        case _:
            return value


def _read(path: Path) -> Any:
    return fastavro.reader(io.BytesIO(path.read_bytes()))


def _write(reader: Any, rows: list[dict[str, Any]], folder: Path) -> tuple[str, int]:
    """Rows in an Avro file of the same schema and header; its location and size."""
    header = {name: text for name, text in reader.metadata.items() if not name.startswith("avro.")}
    sink = io.BytesIO()
    schema = orjson.loads(reader.metadata["avro.schema"])  # fastavro's own form lacks the field ids of lists
    fastavro.writer(sink, schema, rows, codec="deflate", metadata=header, sync_marker=BLANK_SYNC)
    data = with_checksum(sink.getvalue())
    path = folder / "metadata" / f"{uuid.uuid4()}-moved.avro"
    path.write_bytes(data)
    return f"file://{path}", len(data)


_METADATA_NAME = re.compile(r"(\d{1,18})-[^/]*\.metadata\.json")
_CREATED = 0
"""Version of a table's first metadata file: one that died before the catalog knew it has nothing to lose."""

Action = Literal["unchanged", "registered", "brought forward", "moved here"]


@dataclass(frozen=True, slots=True)
class StoredTable:
    """A table as its folder has it.

    Attributes:
        name: `namespace.table`.
        folder: of the table.
        metadata: its newest metadata file.
        version: the number in that file's name.
    """

    name: str
    folder: Path
    metadata: Path
    version: int


@dataclass(frozen=True, slots=True)
class Recovered:
    """What was done for one table.

    Attributes:
        table: `namespace.table`.
        action: what was done, or would be.
        metadata: the metadata file that the catalog names now.
        before: the one that it named before; None for a table that it did not know.
        snapshot_id: the table's current snapshot; None if it has none.
        passed_over: newer metadata files that cannot be used, with the reason.
    """

    table: str
    action: Action
    metadata: str
    before: str | None
    snapshot_id: int | None
    passed_over: tuple[str, ...] = ()


def open_existing(config: Config) -> Any:
    """The catalog of a config, for whoever changes tables that are there.

    Raises:
        SourceError: there is none.
        ConfigError: it cannot be opened with these properties.
        CatalogMismatchError: see `open_for_writing`.
    """
    check_catalog(config)
    return open_for_writing(config)


def open_for_writing(config: Config) -> Any:
    """The catalog of a config, if it agrees with the warehouse.

    Raises:
        ConfigError: it cannot be opened with these properties.
        CatalogMismatchError: the warehouse has tables that the catalog does not know, or not as they are.
        SourceError: this user may not write to the catalog's file or to the warehouse.
    """
    _check_writable(config)
    catalog = open_catalog(config)
    check_warehouse(config, catalog)
    return catalog


def open_for_comparing(config: Config) -> LightCatalog | None:
    """The same catalog after the same checks, to look at without PyIceberg; None where only PyIceberg can open it.

    Raises:
        CatalogMismatchError: as `open_for_writing`.
        SourceError: as `open_for_writing`.
    """
    _check_writable(config)
    catalog = open_light(config)
    if catalog is not None:
        check_warehouse(config, catalog)
    return catalog


def _check_writable(config: Config) -> None:
    """Refuse before anything is read what would fail, half done, at the first file."""
    warehouse, file = _local_warehouse(config), sqlite_file(config)
    folders = [] if warehouse is None else [warehouse.joinpath(*identifier(name)) for name in _names(config, warehouse)]
    tables = [place for folder in folders for place in (folder, folder / "metadata", folder / "data")]
    catalog = [] if file is None else [file.parent, file]
    for place in (*catalog, *([] if warehouse is None else [warehouse]), *tables):
        if place.exists() and not os.access(place, os.W_OK):
            raise SourceError(
                f"{place} is not writable for this user (uid {os.geteuid()}); nothing was read or written"
            )


def check_warehouse(config: Config, catalog: Any) -> None:
    """Refuse to write where catalog and warehouse do not agree.

    Raises:
        CatalogMismatchError: the warehouse has tables that the catalog does not know or knows in an older state, or the
            catalog names tables of another place; says which, and what to do.
    """
    warehouse = _local_warehouse(config)
    if warehouse is None or not warehouse.is_dir():
        return
    unknown, elsewhere, ahead = [], [], []
    for name in _names(config, warehouse):
        stored = next(_stored(name, warehouse.joinpath(*identifier(name))), None)
        if stored is None or stored.version == _CREATED:
            continue
        location = metadata_location(
            catalog, name
        )  # asked after the listing: what was committed meanwhile is not ahead
        if location is None:
            unknown.append(name)
        elif (path := _local(location)) is not None and not path.is_relative_to(warehouse):
            elsewhere.append((name, path))
        elif path is not None and path.parent == stored.metadata.parent and (lead := _lead(path, stored)) > 0:
            ahead.append((name, lead))
    if any(name.startswith(change_log_name("")) for name in unknown):
        # a mirror that somebody dropped is made anew from its log, a published table from mirrors: no row is lost
        raise CatalogMismatchError(
            f"the warehouse {warehouse} has tables that the catalog does not know: {', '.join(unknown)}; going on would start "
            "them anew. `nevermore recover` registers them; if they are not wanted, move their folders away"
        )
    if elsewhere and config.tables_elsewhere == "refuse":
        name, path = elsewhere[0]
        raise CatalogMismatchError(
            f"{name} of this catalog lies in {path.parent.parent}, but this project's warehouse {warehouse} has files of it, "
            "too: the project was copied or moved. `nevermore recover` makes the catalog name the files in this warehouse; "
            "`tables_elsewhere: allow` in the config goes on with the others"
        )
    lost = {name for name, lead in ahead if lead > 1} | _lost_in_pairs({name for name, _ in ahead})
    if lost:
        raise CatalogMismatchError(
            f"the warehouse {warehouse} has newer metadata than the catalog names: {', '.join(sorted(lost))}; was the catalog "
            "restored from an older copy? `nevermore recover` brings it forward to the newest commit of each table"
        )


def recover(config: Config, catalog: Any, names: Sequence[str] = (), *, is_dry: bool = False) -> list[Recovered]:
    """Make the catalog name the newest whole metadata file of each table in the warehouse.

    Tables whose metadata names another place get new metadata, manifest lists and manifests with the paths of this one.

    Args:
        config: of the project.
        catalog: to register tables in.
        names: only these tables; all of the warehouse if none.
        is_dry: change nothing.

    Raises:
        SourceError: no local warehouse, no such table in it, or one whose files are not all there.
    """
    warehouse = _local_warehouse(config)
    if warehouse is None:
        raise SourceError(
            f"the warehouse {config.catalog.warehouse} is not on a local disk; register tables with the catalog's own tools"
        )
    folders = {
        ".".join(found.parent.relative_to(warehouse).parts): found.parent for found in warehouse.glob("*/**/metadata")
    }
    if missing := sorted(set(names) - set(folders)):
        raise SourceError(
            f"the warehouse {warehouse} has no table {', '.join(missing)}; it has {', '.join(sorted(folders))}"
        )
    return [_recover(catalog, name, folders[name], is_dry=is_dry) for name in sorted(names or folders)]


def _recover(catalog: Any, name: str, folder: Path, *, is_dry: bool) -> Recovered:
    before = metadata_location(catalog, name)
    reasons: list[str] = []
    newest: int | None = None
    for stored in _stored(name, folder):
        newest = stored.version if newest is None else newest
        if stored.version < newest - 1:  # one commit may have died; more are a loss that nobody should meet unasked
            break
        try:
            document = orjson.loads(stored.metadata.read_bytes())
            location = str(document["location"])
            is_moved = _local(location) != folder
            check_files(document, location, folder)
        except (orjson.JSONDecodeError, KeyError, TypeError) as error:
            reasons.append(f"{stored.metadata.name} is not whole ({type(error).__name__})")
            continue
        except SourceError as error:
            reasons.append(f"{stored.metadata.name}: {error}")
            continue
        current = document.get("current-snapshot-id")
        snapshot_id = None if current in {None, -1} else int(current)
        if not is_moved and before is not None and _local(before) == stored.metadata:
            return Recovered(name, "unchanged", before, before, snapshot_id)
        action: Action = "moved here" if is_moved else "registered" if before is None else "brought forward"
        target = stored.metadata
        if is_moved:
            check_movable(document, location, folder)
        if is_moved and not is_dry:
            target = moved_copy(document, location, folder, stored.version + 1)
        if not is_dry:
            _register(catalog, name, before, f"file://{target}")
        return Recovered(name, action, str(target), before, snapshot_id, tuple(reasons))
    raise SourceError(
        f"{name}: no metadata file in {folder / 'metadata'} can be used: {'; '.join(reasons) or 'there is none'}"
    )


def _register(catalog: Any, name: str, before: str | None, location: str) -> None:
    if before is None:
        catalog.create_namespace_if_not_exists(identifier(name)[:-1])
        catalog.register_table(identifier(name), location)
        return
    swapped = swap_location(catalog, identifier(name), before, location)
    if swapped is False:
        raise SourceError(f"{name} was committed to meanwhile; run `nevermore recover` again while nothing else writes")
    if swapped is None:
        raise SourceError(f"{name} is in a catalog that only its own tools can point to {location}")


def _names(config: Config, warehouse: Path) -> Iterator[str]:
    """Tables that runs of this config write."""
    mirrors = [*config.tables]
    for pattern in config.patterns:
        logs = warehouse.joinpath(*identifier(change_log_name(pattern.removesuffix(".*")))[:1])
        prefix = identifier(change_log_name(pattern.removesuffix("*")))[-1]
        yield from (f"{logs.name}.{found.name}" for found in sorted(logs.glob(f"{prefix}*")))
    for name in mirrors:
        yield from (name, change_log_name(name), quarantine_name(name))
    yield from config.published


def _stored(name: str, folder: Path) -> Iterator[StoredTable]:
    """The metadata files of a table, newest first; of one version the one that was written last."""
    try:
        names = [path.name for path in (folder / "metadata").iterdir()]
    except (FileNotFoundError, NotADirectoryError):
        return
    versions: dict[int, list[Path]] = defaultdict(list)
    for file in names:
        if match := _METADATA_NAME.fullmatch(file):
            versions[int(match[1])].append(folder / "metadata" / file)
    for version in sorted(versions, reverse=True):
        paths = versions[version]
        if len(paths) > 1:  # commits that collided; a look at each file would cost more than the listing
            paths.sort(key=lambda path: path.stat().st_mtime_ns, reverse=True)
        for path in paths:
            yield StoredTable(name, folder, path, version)


def _lead(registered: Path, stored: StoredTable) -> int:
    """By how many commits the newest metadata file is ahead of the one that the catalog names."""
    match = _METADATA_NAME.fullmatch(registered.name)
    return 0 if match is None else stored.version - int(match[1])


def _lost_in_pairs(ahead: Iterable[str]) -> set[str]:
    """Mirrors that are ahead by one commit together with their logs.

    A commit that died before the catalog knew of it leaves a metadata file too, one ahead, and the next run makes the
    commit anew. But a mirror is committed after its log: that both died in one run cannot be.
    """
    names = set(ahead)
    return {name for pair in ((n, change_log_name(n)) for n in names) if names.issuperset(pair) for name in pair}


def _local_warehouse(config: Config) -> Path | None:
    return None if config.catalog.warehouse is None else _local(config.catalog.warehouse)


def _local(location: str) -> Path | None:
    """The path of a local file or folder; None for one elsewhere."""
    if location.startswith("file:"):
        return Path(location.removeprefix("file://").removeprefix("file:"))
    return None if "://" in location else Path(location)
