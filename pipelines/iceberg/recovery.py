"""Repairs a catalog that disagrees with its warehouse, which `checked_catalog.py` detects.

`nevermore recover` registers lost tables again and rewrites the paths in the metadata of tables that were moved.
"""

import uuid
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import orjson
import pyarrow as pa
import pyarrow.parquet as pq

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
from nevermore.scan_core import ScanError
from nevermore.scan_core.io import FileIOConfig, read_bytes, whole_file, write_whole
from nevermore.scan_core.metadata import FILE_PATH_ID

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
        SourceError: the warehouse is not local, lacks a table, or some files of a table are missing; no table was changed,
            so that none of a copied project is read from the copy while another is read from the original.
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
    found: dict[str, _Found] = {}
    failures = []
    for name in sorted(names or folders):
        try:
            found[name] = _find(catalog, name, folders[name])
        except SourceError as error:
            failures.append(str(error))
    if failures:
        hint = f"; `nevermore recover {' '.join(found)}` leaves the others out" if found else ""
        raise SourceError(f"{'; '.join(failures)}; no table was changed{hint}")
    return [one.result if is_dry else one.apply(catalog) for one in found.values()]


@dataclass(frozen=True, slots=True)
class _Found:
    """The metadata file that a table can be recovered from."""

    result: Recovered
    document: Mapping[str, Any]
    version: int
    move: "_Move"

    def apply(self, catalog: "Catalog") -> Recovered:
        """Write the metadata of a moved table, and point the catalog to it."""
        result = self.result
        if result.action == "moved here":
            try:
                result = replace(result, metadata=str(self.move.write_copy(self.document, self.version + 1)))
            except BaseException:  # a full disk must get no fuller
                for file in self.move.folder.rglob(f"*{self.move.mark}*"):
                    file.unlink()
                raise
        if result.action != "unchanged":
            _register(catalog, result.table, result.before, f"file://{result.metadata}")
        return result


def _find(catalog: "Catalog", name: str, folder: Path) -> _Found:
    before = metadata_location(catalog, name)
    reasons: list[str] = []
    files = list(metadata_files(folder))
    for stored in files:
        # The last commit may have been interrupted. Going back further would drop commits that readers have seen.
        if stored.version < files[0].version - 1:
            break
        try:
            document = orjson.loads(read_bytes(str(stored.path), FileIOConfig()))
            move = _Move(str(document["location"]), folder)
            move.check_files(document)
        except (orjson.JSONDecodeError, KeyError, TypeError) as error:
            reasons.append(f"{stored.path.name} is incomplete ({type(error).__name__})")
            continue
        except (SourceError, ScanError) as error:
            reasons.append(f"{stored.path.name}: {error}")
            continue
        current = document.get("current-snapshot-id")
        action: Action = "registered" if before is None else "brought forward"
        if local_path(move.location) != folder:
            action = "moved here"
            move.check_movable(name, document)
        elif before is not None and local_path(before) == stored.path:
            action = "unchanged"
        snapshot_id = None if current in (None, -1) else int(current)
        # of a link to the file the catalog's own spelling stays
        target, passed_over = (str(before), ()) if action == "unchanged" else (str(stored.path), tuple(reasons))
        return _Found(Recovered(name, action, target, before, snapshot_id, passed_over), document, stored.version, move)
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
    mark: uuid.UUID = field(default_factory=uuid.uuid4)
    """In the names of all files that it writes, and of no others."""

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

    def check_movable(self, name: str, document: Mapping[str, Any]) -> None:
        """Refuse, before anything is written, a table whose position deletes cannot be written again for this place.

        Raises:
            SourceError: some are Avro or ORC files, whose rows name data files by path.
        """
        lists = {s["manifest-list"] for s in document.get("snapshots", ()) if "manifest-list" in s}
        for path in sorted({m["manifest_path"] for listed in lists for m in self._read(listed).rows}):
            for row in self._read(path).rows:
                file = row["data_file"]
                is_other = file["file_format"].lower() not in {"parquet", "puffin"}
                if file.get("content") == _POSITION_DELETES and is_other and row["status"] != _DELETED:
                    raise SourceError(
                        f"{name}: {path} lists position deletes in {file['file_format']} files, whose rows name data files by "
                        f"path: move the table back to {self.location}, or move it with Spark's rewrite_table_path; "
                        f"`nevermore scan` reads it where it is with --relocate '{self.location}={self.folder}'"
                    )

    def write_copy(self, document: Mapping[str, Any], version: int) -> Path:
        """Write all metadata of a table for its new location; return the new metadata file, of this version."""
        written: dict[str, tuple[str, int]] = {}
        positions: dict[str, Record] = {}
        moved = self._moved(document)
        for snapshot, old in zip(moved.get("snapshots", ()), document.get("snapshots", ()), strict=True):
            if "manifest-list" in old:
                snapshot["manifest-list"] = self._write_list(old["manifest-list"], written, positions)
        target = self.folder / "metadata" / f"{version:05d}-{self.mark}.metadata.json"
        write_whole(target, orjson.dumps(moved))
        return target

    def _write_list(self, path: str, written: dict[str, tuple[str, int]], positions: dict[str, Record]) -> str:
        """Write a manifest list and those of its manifests that are not written yet; return its location."""
        old = self._read(path)
        rows = []
        for row in old.rows:
            if row["manifest_path"] not in written:
                written[row["manifest_path"]] = self._write_manifest(row["manifest_path"], positions)
            moved, length = written[row["manifest_path"]]
            rows.append({**row, "manifest_path": moved, "manifest_length": length})
        return self._write(old, rows)[0]

    def _write_manifest(self, path: str, positions: dict[str, Record]) -> tuple[str, int]:
        old = self._read(path)
        for row in old.rows:
            file, place = row["data_file"], row["data_file"]["file_path"]
            file |= {n: self._moved(file[n]) for n in ("file_path", "referenced_data_file") if file.get(n) is not None}
            is_position_file = file.get("content") == _POSITION_DELETES and file["file_format"].lower() == "parquet"
            if is_position_file and row["status"] != _DELETED:
                if place not in positions:
                    positions[place] = self._write_positions(file)
                file |= positions[place]
        return self._write(old, old.rows)

    def _write_positions(self, file: Record) -> Record:
        """Write a copy of a position-delete file whose rows name the moved data files; return what differs in its entry."""
        source = Path(file["file_path"].removeprefix("file://"))
        rows = pq.read_table(source, partitioning=None)
        number = rows.schema.get_field_index("file_path")
        paths = rows.column(number).cast(pa.string()).combine_chunks().dictionary_encode()
        names = [self._moved(path) for path in paths.dictionary.to_pylist()]
        column = pa.DictionaryArray.from_arrays(paths.indices, pa.array(names, pa.string())).cast(pa.string())
        rows = rows.set_column(number, rows.schema.field(number).with_type(pa.string()), column)
        target = source.with_name(f"{uuid.uuid4()}-{self.mark}-deletes.parquet")
        with whole_file(target, None) as sink:
            pq.write_table(rows, sink, compression="zstd", write_page_index=True, store_schema=False)
        written: Record = {"file_path": f"file://{target}", "file_size_in_bytes": target.stat().st_size}
        for bounds, of in (("lower_bounds", min), ("upper_bounds", max)):
            # whole paths: bounds that other writers cut short would still name the old place
            others = [bound for bound in file.get(bounds) or () if bound["key"] != FILE_PATH_ID]
            written[bounds] = [*others, {"key": FILE_PATH_ID, "value": of(name.encode() for name in names)}]
        return written | dict.fromkeys(("column_sizes", "split_offsets"))

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
        here = str(self._here(path))
        return read_avro(read_bytes(here, FileIOConfig()), here)

    def _write(self, old: AvroFile, rows: list[Record]) -> tuple[str, int]:
        """Write rows to an Avro file with the same schema and header; return its location and size."""
        data = write_avro(old.schema, rows, old.metadata)
        path = self.folder / "metadata" / f"{uuid.uuid4()}-{self.mark}.avro"
        write_whole(path, data)
        return f"file://{path}", len(data)
