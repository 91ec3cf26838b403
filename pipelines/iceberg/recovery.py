"""Repairs a catalog that disagrees with its warehouse, which `checked_catalog.py` detects.

`nevermore recover` registers lost tables again and rewrites the paths in the metadata of tables that were moved.
"""

import uuid
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import orjson

from nevermore.pipelines.config.project import Config
from nevermore.pipelines.errors import SourceError
from nevermore.pipelines.iceberg.catalog import (
    identifier,
    metadata_location,
)
from nevermore.pipelines.iceberg.manifests import AvroFile, Record, read_avro, write_avro
from nevermore.pipelines.iceberg.metadata_swap import swap_location
from nevermore.pipelines.iceberg.warehouse import (
    local_path,
    local_warehouse,
    metadata_files,
)
from nevermore.scan_core import MalformedTableError, MissingFileError
from nevermore.scan_core.io import FileIOConfig, read_bytes

if TYPE_CHECKING:
    from pyiceberg.catalog import Catalog

_POSITION_DELETES = 1
_DELETED = 2
"""Status of manifest entries."""

Action = Literal["unchanged", "registered", "brought forward", "moved here"]


@dataclass(frozen=True, slots=True)
class Recovered:
    """Result for one table.

    Attributes:
        table: `namespace.table`.
        action: what was done, or would be done.
        metadata: the metadata file that the catalog names now.
        before: the metadata file that it named before; None for a table that it did not have.
        snapshot_id: the table's current snapshot; None if it has none.
        passed_over: newer metadata files that are unusable, with the reason.
    """

    table: str
    action: Action
    metadata: str
    before: str | None
    snapshot_id: int | None
    passed_over: tuple[str, ...] = ()


def recover(config: Config, catalog: "Catalog", names: Sequence[str] = (), *, is_dry: bool = False) -> list[Recovered]:
    """Point the catalog to the newest usable metadata file of each table in the warehouse.

    Tables whose metadata names another location get new metadata, manifest lists and manifests with the paths of this one.

    Args:
        config: config of the project.
        catalog: catalog in which to register tables.
        names: only these tables; all of the warehouse if none.
        is_dry: change nothing.

    Raises:
        SourceError: the warehouse is not local, lacks a table, or some files of a table are missing; all other tables were
            recovered.
    """
    warehouse = local_warehouse(config)
    if warehouse is None:
        raise SourceError(
            f"the warehouse {config.catalog.warehouse} is not on a local disk; register tables with the catalog's own tools"
        )
    folders = {
        ".".join(found.parent.relative_to(warehouse).parts): found.parent
        for found in warehouse.glob("*/**/metadata")
        if found.is_dir() and any(found.iterdir())  # dropped tables, such as those of a resync, leave empty folders
    }
    if missing := sorted(set(names) - set(folders)):
        raise SourceError(
            f"the warehouse {warehouse} has no table {', '.join(missing)}; it has {', '.join(sorted(folders))}"
        )
    done, failures = [], []
    for name in sorted(names or folders):
        try:
            done.append(_recover(catalog, name, folders[name], is_dry=is_dry))
        except SourceError as error:
            failures.append(str(error))
    if failures:
        others = (
            f"; the other {'table' if len(done) == 1 else 'tables'} ({', '.join(t.table for t in done)}) "
            if done
            else ""
        )
        state = "" if not done else "can be recovered" if is_dry else "can be used"
        raise SourceError(f"{'; '.join(failures)}{others}{state}")
    return done


def _recover(catalog: "Catalog", name: str, folder: Path, *, is_dry: bool) -> Recovered:
    before = metadata_location(catalog, name)
    reasons: list[str] = []
    newest: int | None = None
    for stored in metadata_files(folder):
        newest = stored.version if newest is None else newest
        # The last commit may have been interrupted. Going back further would drop commits that readers have seen.
        if stored.version < newest - 1:
            break
        try:
            document = orjson.loads(read_bytes(str(stored.path), FileIOConfig()))
            location = str(document["location"])
            move = _Move(location, folder)
            move.check_files(document)
        except (orjson.JSONDecodeError, KeyError, TypeError) as error:
            reasons.append(f"{stored.path.name} is incomplete ({type(error).__name__})")
            continue
        except (SourceError, MalformedTableError, MissingFileError) as error:
            reasons.append(f"{stored.path.name}: {error}")
            continue
        current = document.get("current-snapshot-id")
        snapshot_id = None if current in {None, -1} else int(current)
        is_moved = local_path(location) != folder
        if not is_moved and before is not None and local_path(before) == stored.path:
            return Recovered(name, "unchanged", before, before, snapshot_id)
        action: Action = "moved here" if is_moved else "registered" if before is None else "brought forward"
        target = stored.path
        if is_moved:
            move.check_movable(document)
        if is_moved and not is_dry:
            target = move.write_copy(document, stored.version + 1)
        if not is_dry:
            _register(catalog, name, before, f"file://{target}")
        return Recovered(name, action, str(target), before, snapshot_id, tuple(reasons))
    raise SourceError(
        f"{name}: no metadata file in {folder / 'metadata'} can be used: {'; '.join(reasons) or 'there is none'}"
    )


def _register(catalog: "Catalog", name: str, before: str | None, location: str) -> None:
    if before is None:
        catalog.create_namespace_if_not_exists(identifier(name)[:-1])
        catalog.register_table(identifier(name), location)
        return
    swapped = swap_location(catalog, identifier(name), before, location)
    if swapped is False:
        raise SourceError(
            f"{name} was changed in the meantime; run `nevermore recover` again while nothing else writes"
        )
    if swapped is None:
        raise SourceError(f"{name} is in a catalog that only its own tools can change to {location}")


@dataclass(frozen=True, slots=True)
class _Move:
    """The move of a table from the location in its metadata to a local folder, which may be the same."""

    location: str
    folder: Path

    def check_files(self, document: Mapping[str, Any]) -> None:
        """Refuse a metadata file whose current snapshot names missing files.

        Raises:
            SourceError: names the first file that is missing.
        """
        current = document.get("current-snapshot-id")
        for snapshot in document.get("snapshots", ()):
            if snapshot["snapshot-id"] == current:
                for path in self._files(snapshot):
                    if not path.is_file():
                        raise SourceError(f"its snapshot {current} needs {path}, which is not there")

    def check_movable(self, document: Mapping[str, Any]) -> None:
        """Refuse, before anything is written, a table that cannot be moved by new metadata alone.

        Raises:
            SourceError: some snapshot has position-delete files, whose rows name data files by path.
        """
        lists = {s["manifest-list"] for s in document.get("snapshots", ()) if "manifest-list" in s}
        for path in sorted({m["manifest_path"] for listed in lists for m in self._read(listed).rows}):
            for row in self._read(path).rows:
                file = row["data_file"]
                is_position_file = file.get("content") == _POSITION_DELETES and file["file_format"].lower() != "puffin"
                if is_position_file and row["status"] != _DELETED:
                    raise SourceError(
                        f"{path} holds position-delete files, whose rows name data files by path: move the "
                        f"table back to {self.location}, or move it with Spark's rewrite_table_path; `nevermore scan` reads "
                        f"it where it is with --relocate '{self.location}={self.folder}'"
                    )

    def write_copy(self, document: Mapping[str, Any], version: int) -> Path:
        """Write all metadata of a table for its new location; return the new metadata file, of this version."""
        written: dict[str, tuple[str, int]] = {}
        moved = self._moved(document)
        for snapshot, old in zip(moved.get("snapshots", ()), document.get("snapshots", ()), strict=True):
            if "manifest-list" in old:
                snapshot["manifest-list"] = self._write_list(old["manifest-list"], written)
        target = self.folder / "metadata" / f"{version:05d}-{uuid.uuid4()}.metadata.json"
        target.write_bytes(orjson.dumps(moved))
        return target

    def _write_list(self, path: str, written: dict[str, tuple[str, int]]) -> str:
        """Write a manifest list and those of its manifests that are not written yet; return its location."""
        old = self._read(path)
        rows = []
        for row in old.rows:
            if row["manifest_path"] not in written:
                written[row["manifest_path"]] = self._write_manifest(row["manifest_path"])
            moved, length = written[row["manifest_path"]]
            rows.append({**row, "manifest_path": moved, "manifest_length": length})
        return self._write(old, rows)[0]

    def _write_manifest(self, path: str) -> tuple[str, int]:
        old = self._read(path)
        for row in old.rows:
            file = row["data_file"]
            file |= {n: self._moved(file[n]) for n in ("file_path", "referenced_data_file") if file.get(n) is not None}
        return self._write(old, old.rows)

    def _files(self, snapshot: Mapping[str, Any]) -> Iterator[Path]:
        """All files that a snapshot needs, at their present location; each is read only after it was yielded."""
        if "manifest-list" not in snapshot:
            return
        yield self._here(snapshot["manifest-list"])
        for manifest in self._read(snapshot["manifest-list"]).rows:
            yield self._here(manifest["manifest_path"])
            for entry in self._read(manifest["manifest_path"]).rows:
                if entry["status"] != _DELETED:
                    yield self._here(entry["data_file"]["file_path"])

    def _here(self, path: str) -> Path:
        return Path(self._moved(path).removeprefix("file://"))

    def _moved(self, value: Any) -> Any:
        """Rewrite every text in a value that is a path at the old location to the new location."""
        match value:
            case str():
                old = self.location.rstrip("/")
                is_within = value == self.location or value.startswith(f"{old}/")
                return f"file://{self.folder}{value.removeprefix(old)}" if is_within else value
            case dict():
                return {key: self._moved(member) for key, member in value.items()}
            case list():
                return [self._moved(member) for member in value]
            case _:
                return value

    def _read(self, path: str) -> AvroFile:
        here = self._here(path)
        return read_avro(read_bytes(str(here), FileIOConfig()), str(here))

    def _write(self, old: AvroFile, rows: list[Record]) -> tuple[str, int]:
        """Write rows to an Avro file with the same schema and header; return its location and size."""
        data = write_avro(old.schema, rows, old.metadata)
        path = self.folder / "metadata" / f"{uuid.uuid4()}-moved.avro"
        path.write_bytes(data)
        return f"file://{path}", len(data)
