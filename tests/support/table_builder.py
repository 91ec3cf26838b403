"""Iceberg tables of format v1 to v3 for tests, right ones and broken ones, written without the product's writers.

    table = TableBuilder(tmp_path / "t", [Column(1, "id", "long"), Column(2, "name", "string")])
    table.commit(table.data({"id": [1, 2], "name": ["a", "b"]}))
    table.commit(table.equality_delete({"id": [1]}, ids=[1]))
    scan_core.open_table(table.metadata_path)

Whatever a manifest says of a file may be changed before the commit (`file.record[...] = ...`, `file.sequence_number`,
`file.status`), and the metadata document after it (`table.edit(lambda document: ...)`).
"""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.support.built_files import ADDED, DELETED, EXISTING, BuiltFile, FileBuilder
from tests.support.iceberg_json import Column, Partition, partition_result
from tests.support.manifest_avro import entry_schema, list_schema, write_avro

_FIRST_TIMESTAMP_MS = 1_700_000_000_000


@dataclass
class _Manifest:
    row: dict[str, Any]
    files: list[BuiltFile]


class TableBuilder(FileBuilder):
    """A table under construction; every `commit` leaves a readable metadata file."""

    def __init__(
        self,
        location: Path,
        columns: Sequence[Column],
        *,
        version: int = 2,
        partitions: Sequence[Partition] = (),
        written_location: str | None = None,
        properties: Mapping[str, str] | None = None,
        manifest_metadata: bool = True,
        equality_id_type: str = "int",
    ) -> None:
        """`written_location` is the prefix that paths inside the table have, where it is to be read by relocation."""
        super().__init__(location, columns, written_location)
        self.version = version
        self.properties = dict(properties or {})
        self.manifest_metadata = manifest_metadata
        self.equality_id_type = equality_id_type
        self.specs: list[tuple[Partition, ...]] = [tuple(partitions)]
        self.snapshots: list[dict[str, Any]] = []
        self.snapshot_log: list[dict[str, Any]] = []
        self.refs: dict[str, dict[str, Any]] = {}
        self.last_sequence_number = 0
        self.next_row_id = 0
        self._manifests: dict[int, list[_Manifest]] = {}
        self._partition_ids: dict[tuple[str, int, str], int] = {}
        self._version_number = 0
        self._edits: list[Callable[[dict[str, Any]], None]] = []
        self.write_metadata()

    # Schema, spec, references

    def evolve(self, *columns: Column) -> None:
        """Make these columns the current schema."""
        self.schemas.append(tuple(columns))
        self.schema_id = len(self.schemas) - 1
        self.write_metadata()

    def repartition(self, *partitions: Partition) -> int:
        """Make this the default partition spec; its id."""
        self.specs.append(tuple(partitions))
        self.spec_id = len(self.specs) - 1
        self.write_metadata()
        return self.spec_id

    def ref(self, name: str, snapshot_id: int, kind: str = "branch") -> None:
        """Point a branch, or with kind `tag` a tag, to a snapshot."""
        self.refs[name] = {"snapshot-id": snapshot_id, "type": kind}
        self.write_metadata()

    def rollback(self, snapshot_id: int) -> None:
        """Make an older snapshot the current one."""
        self.refs["main"] = {"snapshot-id": snapshot_id, "type": "branch"}
        self.snapshot_log.append({"snapshot-id": snapshot_id, "timestamp-ms": self._now()})
        self.write_metadata()

    def commit(
        self,
        *files: BuiltFile,
        remove: Sequence[BuiltFile] = (),
        branch: str = "main",
        parent: int | None = None,
        operation: str | None = None,
        inline_manifests: bool = False,
        sequence_number: int | None = None,
        timestamp_ms: int | None = None,
        summary: Mapping[str, str] | None = None,
    ) -> int:
        """One snapshot on `branch` that adds `files` and removes others; its id."""
        base = parent if parent is not None else self.refs.get(branch, {}).get("snapshot-id")
        if self.version > 1:
            self.last_sequence_number = sequence_number or self.last_sequence_number + 1
        snapshot_id = 1000 + len(self.snapshots) + 1
        first_row_id = self.next_row_id
        manifests = [self._without(m, remove, snapshot_id) for m in self._manifests.get(base or 0, [])]
        groups: dict[tuple[bool, int], list[BuiltFile]] = {}
        for file in files:
            groups.setdefault((file.is_delete, file.spec_id), []).append(file)
        manifests = [
            self._manifest([(f, f.status) for f in group], snapshot_id) for group in groups.values()
        ] + manifests
        for file in files:
            explicit = file.sequence_number
            file.committed_sequence = self.last_sequence_number if explicit is None else explicit
        self._manifests[snapshot_id] = [m for m in manifests if m.files]
        snapshot = {
            "snapshot-id": snapshot_id,
            "timestamp-ms": timestamp_ms or self._now(),
            "summary": {"operation": operation or _operation(files), **(summary or {})},
            "schema-id": self.schema_id,
        }
        if base is not None:
            snapshot["parent-snapshot-id"] = base
        if self.version > 1:
            snapshot["sequence-number"] = self.last_sequence_number
        if self.version > 2:
            snapshot |= {"first-row-id": first_row_id, "added-rows": self.next_row_id - first_row_id}
        rows = [m.row for m in manifests]
        if inline_manifests:
            snapshot["manifests"] = [r["manifest_path"] for r in rows]
        else:
            path = self.location / "metadata" / f"snap-{snapshot_id}.avro"
            write_avro(path, list_schema(self.version), rows, {"format-version": str(self.version)})
            snapshot["manifest-list"] = self._written(path)
        self.snapshots.append(snapshot)
        self.refs[branch] = {"snapshot-id": snapshot_id, "type": "branch"}
        if branch == "main":
            self.snapshot_log.append({"snapshot-id": snapshot_id, "timestamp-ms": snapshot["timestamp-ms"]})
        self.write_metadata()
        return snapshot_id

    def _without(self, manifest: _Manifest, removed: Sequence[BuiltFile], snapshot_id: int) -> _Manifest:
        """The manifest itself, or one rewritten with the removed files as DELETED and the others as EXISTING."""
        if not any(f in removed for f in manifest.files):
            return manifest
        entries = [(f, DELETED if f in removed else EXISTING) for f in manifest.files]
        rewritten = self._manifest(entries, snapshot_id, rewritten=manifest.row)
        return _Manifest(rewritten.row, [f for f in manifest.files if f not in removed])

    def _manifest(
        self, entries: Sequence[tuple[BuiltFile, int]], snapshot_id: int, rewritten: Mapping[str, Any] | None = None
    ) -> _Manifest:
        files = [f for f, _ in entries]
        spec_id, is_delete = files[0].spec_id, files[0].is_delete
        row: dict[str, Any] = {
            "partition_spec_id": spec_id,
            "content": int(is_delete),
            "sequence_number": self.last_sequence_number,
            "min_sequence_number": 0,
            "added_snapshot_id": snapshot_id,
        }
        if self.version > 2 and not is_delete:
            row["first_row_id"] = self.next_row_id
            if rewritten is None:
                for file in files:
                    file.first_row_id = self.next_row_id
                    self.next_row_id += file.record["record_count"]
        for status, name in ((ADDED, "added"), (EXISTING, "existing"), (DELETED, "deleted")):
            of_status = [f for f, s in entries if s == status]
            row[f"{name}_files_count"] = len(of_status)
            row[f"{name}_rows_count"] = sum(f.record["record_count"] for f in of_status)
        path = self.location / "metadata" / f"{next(self._numbers):05d}-manifest.avro"
        row["manifest_path"] = self._written(path)
        row["manifest_length"] = write_avro(
            path,
            entry_schema(self.version, self._partition_types(spec_id), self.equality_id_type),
            [self._entry(f, s, snapshot_id, explicit=rewritten is not None) for f, s in entries],
            self._manifest_header(spec_id, is_delete=is_delete) if self.manifest_metadata else {},
        )
        return _Manifest(row, files)

    def _entry(self, file: BuiltFile, status: int, snapshot_id: int, *, explicit: bool) -> dict[str, Any]:
        number = file.committed_sequence if explicit else file.sequence_number
        record = dict(file.record)
        if explicit:
            record["first_row_id"] = file.first_row_id
        return {
            "status": status,
            "snapshot_id": snapshot_id,
            "sequence_number": number,
            "file_sequence_number": number,
            "data_file": record,
        }

    def _manifest_header(self, spec_id: int, *, is_delete: bool) -> dict[str, str]:
        return {
            "schema": json.dumps(self._schema_json(self.schema_id)),
            "schema-id": str(self.schema_id),
            "partition-spec": json.dumps(self._spec_json(spec_id)),
            "partition-spec-id": str(spec_id),
            "format-version": str(self.version),
            "content": "deletes" if is_delete else "data",
        }

    # Metadata

    @property
    def metadata_path(self) -> Path:
        """The newest metadata file."""
        return self.location / "metadata" / f"v{self._version_number}.metadata.json"

    @property
    def current_snapshot_id(self) -> int | None:
        return self.refs.get("main", {}).get("snapshot-id")

    def edit(self, change: Callable[[dict[str, Any]], None]) -> None:
        """Change the metadata document in place, now and in every later version."""
        self._edits.append(change)
        self.write_metadata()

    def write_metadata(self) -> Path:
        """Write the next metadata file."""
        self._version_number += 1
        path = self.metadata_path
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(self.document()))
        (path.parent / "version-hint.text").write_text(str(self._version_number))
        return path

    def document(self) -> dict[str, Any]:
        """The metadata document as it stands."""
        document: dict[str, Any] = {
            "format-version": self.version,
            "table-uuid": "6f6e6c79-0000-4000-8000-666f72746573",
            "location": self.written_location,
            "last-updated-ms": self._now(),
            "last-column-id": 1000,
            "schemas": [self._schema_json(i) for i in range(len(self.schemas))],
            "current-schema-id": self.schema_id,
            "partition-specs": [{"spec-id": i, "fields": self._spec_json(i)} for i in range(len(self.specs))],
            "default-spec-id": self.spec_id,
            "last-partition-id": 1000 + len(self._partition_ids),
            "properties": self.properties,
            "current-snapshot-id": self.current_snapshot_id if self.current_snapshot_id is not None else -1,
            "snapshots": self.snapshots,
            "snapshot-log": self.snapshot_log,
            "metadata-log": [],
            "sort-orders": [{"order-id": 0, "fields": []}],
            "default-sort-order-id": 0,
            "refs": self.refs,
        }
        if self.version == 1:
            document |= {"schema": self._schema_json(self.schema_id), "partition-spec": self._spec_json(self.spec_id)}
        else:
            document["last-sequence-number"] = self.last_sequence_number
        if self.version > 2:
            document["next-row-id"] = self.next_row_id
        for change in self._edits:
            change(document)
        return document

    def _schema_json(self, schema_id: int) -> dict[str, Any]:
        fields = [c.json() for c in self.schemas[schema_id]]
        return {"type": "struct", "schema-id": schema_id, "fields": fields}

    def _spec_json(self, spec_id: int) -> list[dict[str, Any]]:
        return [
            {"name": p.name, "transform": p.transform, "source-id": p.source, "field-id": self._partition_id(p)}
            for p in self.specs[spec_id]
        ]

    def _partition_id(self, partition: Partition) -> int:
        key = (partition.name, partition.source, partition.transform)
        return self._partition_ids.setdefault(key, 1000 + len(self._partition_ids))

    def _partition_types(self, spec_id: int) -> list[tuple[int, str, Any]]:
        sources = {i: kind for schema in self.schemas for c in schema for i, kind in _leaves(c.json())}
        return [
            (self._partition_id(p), p.name, partition_result(p, sources.get(p.source, "string")))
            for p in self.specs[spec_id]
        ]

    def _now(self) -> int:
        return _FIRST_TIMESTAMP_MS + 1000 * (len(self.snapshots) + len(self.snapshot_log) + 1)


def _leaves(column: Mapping[str, Any]) -> list[tuple[int, Any]]:
    """Ids and types of a column and the struct members in it."""
    kind = column["type"]
    members = kind["fields"] if isinstance(kind, dict) and kind["type"] == "struct" else []
    return [(column["id"], kind), *(leaf for m in members for leaf in _leaves(m))]


def _operation(files: Sequence[BuiltFile]) -> str:
    deletes = any(f.is_delete for f in files)
    return "append" if not deletes else "delete" if all(f.is_delete for f in files) else "overwrite"
