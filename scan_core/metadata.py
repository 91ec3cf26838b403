"""Table metadata: `metadata.json` of format v1, v2 and v3 as facts, and time travel over its snapshots.

Reads the JSON itself; the catalog library is not involved. Which file is the newest is `metadata_files.py`, what a
snapshot holds `manifests.py`.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, NamedTuple

import orjson

from scan_core.document import Document
from scan_core.errors import MalformedTableError, SnapshotNotFoundError, UnsupportedError
from scan_core.file_io import read_bytes
from scan_core.metadata_files import decompress, find_metadata_file
from scan_core.schema import NestedField, Schema, parse_schema
from scan_core.snapshot import PartitionField, PartitionSpec, Snapshot
from scan_core.split import FileIOConfig

NEWEST_FORMAT_VERSION = 3
_NAME_MAPPING = "schema.name-mapping.default"
_MOST_LISTED = 12


class SnapshotRef(NamedTuple):
    """A branch or a tag."""

    snapshot_id: int
    is_branch: bool


class LogEntry(NamedTuple):
    """From `timestamp_ms` on, `snapshot_id` was the table's current snapshot."""

    timestamp_ms: int
    snapshot_id: int


@dataclass(frozen=True)
class TableMetadata:
    """The facts of one metadata file. `statistics` are raw; `refs` always has `main` when there is a snapshot."""

    location: str
    table_uuid: str | None
    format_version: int
    schemas: Mapping[int, Schema]
    current_schema_id: int
    specs: Mapping[int, PartitionSpec]
    default_spec_id: int
    snapshots: Mapping[int, Snapshot]
    current_snapshot_id: int | None
    snapshot_log: tuple[LogEntry, ...]
    refs: Mapping[str, SnapshotRef]
    properties: Mapping[str, str]
    name_mapping: tuple[Any, ...] | None
    statistics: tuple[Mapping[str, Any], ...]
    last_sequence_number: int
    metadata_file: str
    _paths: dict[int, tuple[NestedField, ...]] = field(default_factory=dict, repr=False, compare=False)

    @property
    def schema(self) -> Schema:
        """The table's current schema."""
        return self.schemas[self.current_schema_id]

    @property
    def current_snapshot(self) -> Snapshot | None:
        """None for a table without snapshots."""
        return None if self.current_snapshot_id is None else self.snapshots[self.current_snapshot_id]

    def field_paths(self) -> Mapping[int, tuple[NestedField, ...]]:
        """For each field id of every schema, the fields from its top-level column down, as the newest schema has it.

        The current schema is the newest, whatever its number.
        """
        if not self._paths:
            for schema_id in sorted(self.schemas, key=lambda i: (i == self.current_schema_id, i)):
                schema = self.schemas[schema_id]
                self._paths.update({i: schema.path(i) for i in schema.field_ids})
        return self._paths

    def schema_of(self, snapshot: Snapshot) -> Schema:
        """The schema in force when the snapshot was made; the current one where the snapshot does not say."""
        if snapshot.schema_id is None:
            return self.schema
        if snapshot.schema_id not in self.schemas:
            raise MalformedTableError(
                f"{self.metadata_file}: snapshots: snapshot {snapshot.snapshot_id} names schema {snapshot.schema_id}, "
                "which schemas lacks"
            )
        return self.schemas[snapshot.schema_id]

    def snapshot_for(
        self, snapshot_id: int | None = None, timestamp_ms: int | None = None, ref: str | None = None
    ) -> tuple[Snapshot | None, Schema]:
        """The snapshot asked for (at most one way; the current one if none) and the schema to read it with (rule 22).

        Id, time and tag read with the snapshot's schema; branches and the current table with the current schema.

        Raises:
            SnapshotNotFoundError: the table has no such snapshot or reference; names those it has.
        """
        if ref is not None:
            return self._at_ref(ref)
        if timestamp_ms is not None:
            snapshot_id = self._id_as_of(timestamp_ms)
        if snapshot_id is None:
            return self.current_snapshot, self.schema
        if snapshot_id not in self.snapshots:
            raise SnapshotNotFoundError(f"{self.location} has no snapshot {snapshot_id}; it has {self._known_ids()}")
        snapshot = self.snapshots[snapshot_id]
        return snapshot, self.schema_of(snapshot)

    def ancestors(self, snapshot_id: int) -> list[Snapshot]:
        """The snapshot and those it was made from, newest first, as far as they still exist."""
        found: list[Snapshot] = []
        seen: set[int] = set()
        next_id: int | None = snapshot_id
        while next_id is not None and next_id in self.snapshots and next_id not in seen:
            seen.add(next_id)
            found.append(self.snapshots[next_id])
            next_id = found[-1].parent_id
        return found

    def history(self) -> tuple[LogEntry, ...]:
        """Which snapshot was current from when on, oldest first.

        A table whose writer keeps no snapshot log has the history of its current snapshot's ancestors.
        """
        if self.snapshot_log or self.current_snapshot_id is None:
            return self.snapshot_log
        line = reversed(self.ancestors(self.current_snapshot_id))
        return tuple(LogEntry(s.timestamp_ms, s.snapshot_id) for s in line)

    def _at_ref(self, name: str) -> tuple[Snapshot | None, Schema]:
        found = self.refs.get(name)
        if found is None:
            if name == "main":
                return None, self.schema
            known = ", ".join(sorted(self.refs)) or "none"
            raise SnapshotNotFoundError(f"{self.location} has no branch or tag {name!r}; it has {known}")
        if found.snapshot_id not in self.snapshots:
            raise MalformedTableError(
                f"{self.metadata_file}: refs.{name}: names snapshot {found.snapshot_id}, which snapshots lacks"
            )
        snapshot = self.snapshots[found.snapshot_id]
        return snapshot, self.schema if found.is_branch else self.schema_of(snapshot)

    def _id_as_of(self, timestamp_ms: int) -> int:
        found = [e.snapshot_id for e in self.history() if e.timestamp_ms <= timestamp_ms]
        if not found:
            first = self.history()[:1]
            since = f"its history begins at {_instant(first[0].timestamp_ms)}" if first else "it has no snapshot at all"
            raise SnapshotNotFoundError(f"{self.location} had no snapshot at {_instant(timestamp_ms)}; {since}")
        if found[-1] not in self.snapshots:
            raise SnapshotNotFoundError(
                f"{self.location}: snapshot {found[-1]}, current at {_instant(timestamp_ms)}, has expired; "
                f"the table has {self._known_ids()}"
            )
        return found[-1]

    def _known_ids(self) -> str:
        newest = sorted(self.snapshots.values(), key=lambda s: s.timestamp_ms, reverse=True)
        listed = [f"{s.snapshot_id} ({_instant(s.timestamp_ms)})" for s in newest[:_MOST_LISTED]]
        more = [f"and {len(newest) - _MOST_LISTED} older"] if len(newest) > _MOST_LISTED else []
        return ", ".join(listed + more) or "none"


def read_metadata(location: str, io: FileIOConfig) -> tuple[TableMetadata, str]:
    """The metadata in a file, or the newest of a table's folder, and the path it was read from.

    Raises:
        TableNotFoundError: no metadata there.
        MalformedTableError: it breaks the specification; names file and field.
        UnsupportedError: a format version newer than this reader.
    """
    path = find_metadata_file(location, io)
    return parse_metadata(read_bytes(path, io), path), path


def parse_metadata(data: bytes, file: str) -> TableMetadata:
    """The facts in the bytes of a metadata file, compressed or not; `file` names it in errors."""
    try:
        content = orjson.loads(decompress(data, file))
    except (orjson.JSONDecodeError, RecursionError) as error:
        raise MalformedTableError(f"{file}: not a JSON document: {error}") from error
    document = Document(file, content)
    version = document.integer("format-version")
    if version > NEWEST_FORMAT_VERSION:
        raise UnsupportedError(f"{file}: format version {version} is newer than {NEWEST_FORMAT_VERSION}")
    if version < 1:
        raise document.malformed("format-version", "1, 2 or 3")
    metadata = _parse(document, version, file)
    _check_references(metadata, document)
    return metadata


def _parse(document: Document, version: int, file: str) -> TableMetadata:
    schemas = _schemas(document, file)
    specs = _specs(document)
    current = document.optional_integer("current-snapshot-id")
    snapshots = {s.snapshot_id: s for s in map(_snapshot, document.objects("snapshots"))}
    properties = document.text_mapping("properties")
    current_id = None if current in {None, -1} else current
    log = tuple(LogEntry(e.integer("timestamp-ms"), e.integer("snapshot-id")) for e in document.objects("snapshot-log"))
    return TableMetadata(
        location=document.text("location").rstrip("/"),
        table_uuid=document.optional_text("table-uuid"),
        format_version=version,
        schemas=schemas,
        current_schema_id=document.integer("current-schema-id", default=next(iter(schemas))),
        specs=specs,
        default_spec_id=document.integer("default-spec-id", default=next(iter(specs))),
        snapshots=snapshots,
        current_snapshot_id=current_id,
        snapshot_log=log,
        refs=_refs(document, current_id),
        properties=properties,
        name_mapping=_name_mapping(properties.get(_NAME_MAPPING), file),
        statistics=tuple(s.content for s in document.objects("statistics")),
        last_sequence_number=document.integer("last-sequence-number", default=0),
        metadata_file=file,
    )


def _schemas(document: Document, file: str) -> dict[int, Schema]:
    listed = [d.content for d in document.objects("schemas")]
    if not listed:
        if "schema" not in document:
            raise document.malformed("schemas", "a list of schemas")
        listed = [document.mapping("schema")]
    schemas = {}
    for content in listed:
        try:
            schema = parse_schema(content)
        except (MalformedTableError, TypeError, ValueError, AttributeError) as error:
            raise MalformedTableError(f"{file}: schemas: {error}") from error
        names = [path[-1].name for path in map(schema.path, schema.field_ids)]
        if not all(isinstance(name, str) for name in names) or not isinstance(schema.schema_id, int):
            raise MalformedTableError(f"{file}: schemas: a name that is no string, or an id that is no integer")
        schemas[schema.schema_id] = schema
    return schemas


def _specs(document: Document) -> dict[int, PartitionSpec]:
    listed = document.objects("partition-specs")
    if not listed:
        return {0: PartitionSpec(0, _partition_fields(document.objects("partition-spec")))}
    return {
        spec_id: PartitionSpec(spec_id, _partition_fields(spec.objects("fields")))
        for spec in listed
        for spec_id in [spec.integer("spec-id")]
    }


def _partition_fields(fields: list[Document]) -> tuple[PartitionField, ...]:
    return tuple(_partition_field(f, index) for index, f in enumerate(fields))


def _partition_field(document: Document, index: int) -> PartitionField:
    source_ids = document.integers("source-ids")
    source_id = document.optional_integer("source-id")
    if source_id is None:
        if not source_ids:
            raise document.malformed("source-id", "a 64-bit integer")
        source_id = source_ids[0]
    return PartitionField(
        field_id=document.integer("field-id", default=1000 + index),  # v1 numbers them by position
        source_id=source_id,
        name=document.text("name"),
        transform=document.text("transform"),
        source_ids=source_ids,
    )


def _snapshot(document: Document) -> Snapshot:
    summary = document.text_mapping("summary")
    manifest_list = document.optional_text("manifest-list")
    return Snapshot(
        snapshot_id=document.integer("snapshot-id"),
        parent_id=document.optional_integer("parent-snapshot-id"),
        sequence_number=document.integer("sequence-number", default=0),
        timestamp_ms=document.integer("timestamp-ms"),
        operation=summary.get("operation"),
        summary=summary,
        manifest_list=manifest_list,
        inline_manifests=() if manifest_list else document.texts("manifests"),
        schema_id=document.optional_integer("schema-id"),
        first_row_id=document.optional_integer("first-row-id"),
    )


def _refs(document: Document, current_id: int | None) -> dict[str, SnapshotRef]:
    refs = {}
    for name, ref in document.named_objects("refs").items():
        kind = ref.text("type").lower()
        if kind not in {"branch", "tag"}:
            raise ref.malformed("type", "'branch' or 'tag'")
        refs[name] = SnapshotRef(ref.integer("snapshot-id"), kind == "branch")
    if current_id is not None:
        refs["main"] = SnapshotRef(current_id, is_branch=True)
    return refs


def _name_mapping(text: str | None, file: str) -> tuple[Any, ...] | None:
    if text is None:
        return None
    try:
        content = orjson.loads(text)
    except orjson.JSONDecodeError as error:
        raise MalformedTableError(f"{file}: properties.{_NAME_MAPPING}: not a JSON document: {error}") from error
    if not isinstance(content, list):
        raise MalformedTableError(f"{file}: properties.{_NAME_MAPPING}: expected a list, found {content!r:.60}")
    return tuple(content)


def _check_references(metadata: TableMetadata, document: Document) -> None:
    if metadata.current_schema_id not in metadata.schemas:
        raise document.malformed("current-schema-id", f"one of {sorted(metadata.schemas)}")
    if metadata.default_spec_id not in metadata.specs:
        raise document.malformed("default-spec-id", f"one of {sorted(metadata.specs)}")
    if metadata.current_snapshot_id is not None and metadata.current_snapshot_id not in metadata.snapshots:
        raise document.malformed("current-snapshot-id", "the id of a snapshot")


def _instant(timestamp_ms: int) -> str:
    try:
        return datetime.fromtimestamp(timestamp_ms / 1000, UTC).isoformat(timespec="milliseconds")
    except (OverflowError, ValueError, OSError):
        return f"{timestamp_ms} ms"
