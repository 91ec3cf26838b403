"""Manifests of unusual entries, put into a table's current snapshot: DELETED alone, EXISTING alone, none at all."""

import json
from pathlib import Path
from typing import Any, Literal

import fastavro

State = Literal["deleted", "existing", "empty"]
STATES: tuple[State, ...] = ("deleted", "existing", "empty")
ENTRIES = 20
"""Of a manifest of DELETED entries: enough for entries to be decoded together."""
_EXISTING, _DELETED = 0, 2


def restate(metadata: Path, content: int, state: State, *, alone: bool) -> None:
    """Change the manifests of one content in the current snapshot of the table.

    Args:
        metadata: the table's newest metadata file; the manifest list is changed in its place.
        content: 0 for data, 1 for deletes.
        state: "existing" makes every entry EXISTING with the numbers that it had; "deleted" adds a manifest that has
            DELETED entries alone, of files that are not there; "empty" one without entries.
        alone: leave no other manifest of this content in the list.
    """
    document = json.loads(metadata.read_text())
    (snapshot,) = [s for s in document["snapshots"] if s["snapshot-id"] == document["current-snapshot-id"]]
    path = _local(snapshot["manifest-list"])
    rows, schema, header = _read(path)
    same = [row for row in rows if row["content"] == content]
    others = [row for row in rows if row["content"] != content]
    if state == "existing":
        changed = [_existing(row, number) for number, row in enumerate(same)]
    else:
        changed = [_lifeless(same[0], ENTRIES if state == "deleted" else 0, snapshot["snapshot-id"])]
        changed += [] if alone else same
    _write(path, [*changed, *others], schema, header)


def _existing(row: dict[str, Any], number: int) -> dict[str, Any]:
    entries, schema, header = _read(_local(row["manifest_path"]))
    for entry in entries:
        for name in ("sequence_number", "file_sequence_number"):
            entry[name] = row["sequence_number"] if entry[name] is None else entry[name]
        entry["snapshot_id"] = entry["snapshot_id"] or row["added_snapshot_id"]
        entry["status"] = _EXISTING
    path = _sibling(row["manifest_path"], f"existing-{row['content']}-{number}")
    length = _write(_local(path), entries, schema, header)
    return row | {
        "manifest_path": path,
        "manifest_length": length,
        "added_files_count": 0,
        "added_rows_count": 0,
        "existing_files_count": len(entries),
        "existing_rows_count": sum(entry["data_file"]["record_count"] for entry in entries),
    }


def _lifeless(row: dict[str, Any], count: int, snapshot_id: int) -> dict[str, Any]:
    (entry, *_), schema, header = _read(_local(row["manifest_path"]))
    numbers = dict.fromkeys(("sequence_number", "file_sequence_number"), row["sequence_number"])
    entries = [
        {**entry, **numbers, "status": _DELETED, "snapshot_id": snapshot_id, "data_file": {**entry["data_file"]}}
        for _ in range(count)
    ]
    for number, gone in enumerate(entries):
        gone["data_file"]["file_path"] = _sibling(gone["data_file"]["file_path"], f"gone-{number}.parquet")
    path = _sibling(row["manifest_path"], f"lifeless-{row['content']}-{count}")
    none = {name: 0 for name in row if name.startswith(("added_", "existing_")) and name.endswith("_count")}
    of_none = {
        "manifest_path": path,
        "manifest_length": _write(_local(path), entries, schema, header),
        "deleted_files_count": count,
        "deleted_rows_count": sum(gone["data_file"]["record_count"] for gone in entries),
        "partitions": row["partitions"] if count else None,
    }
    return row | none | of_none


def _sibling(path: str, name: str) -> str:
    return f"{path.rpartition('/')[0]}/{name}"


def _local(path: str) -> Path:
    return Path(path.removeprefix("file://"))


def _read(path: Path) -> tuple[list[Any], Any, dict[str, str]]:
    with path.open("rb") as file:
        reader = fastavro.reader(file)
        rows = list(reader)
        header = {k: v for k, v in reader.metadata.items() if not k.startswith("avro.")}
        return rows, json.loads(reader.metadata["avro.schema"]), header


def _write(path: Path, rows: list[Any], schema: Any, header: dict[str, str]) -> int:
    with path.open("wb") as file:
        fastavro.writer(file, schema, rows, codec="deflate", metadata=header)
    return path.stat().st_size
