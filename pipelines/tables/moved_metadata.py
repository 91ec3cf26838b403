"""Metadata of a table whose folder was moved or copied, written anew with the paths of the new place.

Metadata, manifest lists and manifests hold absolute paths; data files and equality-delete files hold none. The files that
are there stay as they are: the new ones lie beside them under names of their own.
"""

import io
import uuid
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import fastavro
import orjson

from pipelines.errors import SourceError
from scan_core.avro.container import BLANK_SYNC, with_checksum

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
