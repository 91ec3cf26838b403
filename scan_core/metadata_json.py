"""`metadata.json` of format v1, v2 and v3 -> TableMetadata: what each version calls things, and what must be there.

Reads the JSON itself; the catalog library is not involved. Which file is the newest is `metadata_files.py`.
"""

from collections.abc import Mapping
from typing import Any

import orjson

from scan_core.document import Document
from scan_core.errors import MalformedTableError, UnsupportedError
from scan_core.file_io import read_bytes
from scan_core.metadata import LogEntry, SnapshotRef, TableMetadata
from scan_core.metadata_files import decompress, find_metadata_file
from scan_core.schema import Schema
from scan_core.schema_json import parse_schema
from scan_core.snapshot import PartitionField, PartitionSpec, Snapshot
from scan_core.split import FileIOConfig

NEWEST_FORMAT_VERSION = 3
_NAME_MAPPING = "schema.name-mapping.default"
_DATA_FILES = {b"PAR1": "a Parquet", b"ORC": "an ORC", b"Obj\x01": "an Avro", b"PFA1": "a Puffin"}


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
    for magic, kind in _DATA_FILES.items():
        if data.startswith(magic):
            raise MalformedTableError(f"{file} is {kind} file and no table: name a metadata file or a table's folder")
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
        current_schema_id=_chosen(document, "schemas", "current-schema-id", schemas),
        specs=specs,
        default_spec_id=_chosen(document, "partition-specs", "default-spec-id", specs),
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


def _chosen(document: Document, list_name: str, id_name: str, listed: Mapping[int, Any]) -> int:
    """The id of the schema or spec in force; v1 tables may know only one of them, which has no id to be named by."""
    only = next(iter(listed))
    return document.integer(id_name, default=only) if document.objects(list_name) else only


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
        if "partition-spec" not in document:
            raise document.malformed("partition-specs", "a list of partition specs")
        return {0: PartitionSpec(0, _partition_fields(document.objects("partition-spec")))}
    return {
        spec_id: PartitionSpec(spec_id, _partition_fields(spec.required_objects("fields")))
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
            raise document.malformed("source-id", "a signed 64-bit integer")
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
        key_id=document.optional_text("key-id"),
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
