"""Manifests of a commit: written, merged, and carried over from the snapshot before."""

import io
import json
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, date, datetime, time
from decimal import Decimal
from enum import IntEnum
from typing import Any
from uuid import UUID

import fastavro

from pipelines.iceberg.file_metrics import FileContent, WrittenFile, single_value
from pipelines.iceberg.loaded_table import metadata_location, source_types
from pipelines.iceberg.row_shape import partition_types
from pipelines.iceberg.schema_evolution import schema_document
from pipelines.iceberg.storage import Storage
from scan_core import PartitionField, PartitionSpec, PrimitiveType, Schema, Type
from scan_core.metadata import BLANK_SYNC, AvroError, malformed_avro, read_header, with_checksum

Record = dict[str, Any]


@dataclass(frozen=True, slots=True)
class PartitionLayout:
    """A spec with the result type of each of its fields."""

    spec: PartitionSpec
    types: tuple[PrimitiveType, ...]


def _field(field_id: int, name: str, kind: Any, *, optional: bool = False) -> Record:
    if optional:
        return {"name": name, "type": ["null", kind], "default": None, "field-id": field_id}
    return {"name": name, "type": kind, "field-id": field_id}


def _list(element_id: int, kind: Any) -> Record:
    return {"type": "array", "items": kind, "element-id": element_id}


def _map(key_id: int, value_id: int, kind: str) -> Record:
    pair = {
        "type": "record",
        "name": f"k{key_id}_v{value_id}",
        "fields": [_field(key_id, "key", "int"), _field(value_id, "value", kind)],
    }
    return {"type": "array", "logicalType": "map", "items": pair}


METRIC_MAPS = (
    "column_sizes",
    "value_counts",
    "null_value_counts",
    "nan_value_counts",
    "lower_bounds",
    "upper_bounds",
)

MANIFEST_FILE: Record = {
    "type": "record",
    "name": "manifest_file",
    "fields": [
        _field(500, "manifest_path", "string"),
        _field(501, "manifest_length", "long"),
        _field(502, "partition_spec_id", "int"),
        _field(517, "content", "int"),
        _field(515, "sequence_number", "long"),
        _field(516, "min_sequence_number", "long"),
        _field(503, "added_snapshot_id", "long"),
        _field(504, "added_files_count", "int"),
        _field(505, "existing_files_count", "int"),
        _field(506, "deleted_files_count", "int"),
        _field(512, "added_rows_count", "long"),
        _field(513, "existing_rows_count", "long"),
        _field(514, "deleted_rows_count", "long"),
        _field(
            507,
            "partitions",
            _list(
                508,
                {
                    "type": "record",
                    "name": "r508",
                    "fields": [
                        _field(509, "contains_null", "boolean"),
                        _field(518, "contains_nan", "boolean", optional=True),
                        _field(510, "lower_bound", "bytes", optional=True),
                        _field(511, "upper_bound", "bytes", optional=True),
                    ],
                },
            ),
            optional=True,
        ),
        _field(519, "key_metadata", "bytes", optional=True),
    ],
}


def entry_schema(layout: PartitionLayout) -> Record:
    """The schema of manifest entries whose partitions have this layout."""
    partition = {
        "type": "record",
        "name": "r102",
        "fields": [
            _field(f.field_id, f.name, _avro_type(t, f), optional=True)
            for f, t in zip(layout.spec.fields, layout.types, strict=True)
        ],
    }
    data_file = {
        "type": "record",
        "name": "r2",
        "fields": [
            _field(134, "content", "int"),
            _field(100, "file_path", "string"),
            _field(101, "file_format", "string"),
            _field(102, "partition", partition),
            _field(103, "record_count", "long"),
            _field(104, "file_size_in_bytes", "long"),
            _field(108, "column_sizes", _map(117, 118, "long"), optional=True),
            _field(109, "value_counts", _map(119, 120, "long"), optional=True),
            _field(110, "null_value_counts", _map(121, 122, "long"), optional=True),
            _field(137, "nan_value_counts", _map(138, 139, "long"), optional=True),
            _field(125, "lower_bounds", _map(126, 127, "bytes"), optional=True),
            _field(128, "upper_bounds", _map(129, 130, "bytes"), optional=True),
            _field(131, "key_metadata", "bytes", optional=True),
            _field(132, "split_offsets", _list(133, "long"), optional=True),
            _field(135, "equality_ids", _list(136, "int"), optional=True),
            _field(140, "sort_order_id", "int", optional=True),
            _field(143, "referenced_data_file", "string", optional=True),
        ],
    }
    return {
        "type": "record",
        "name": "manifest_entry",
        "fields": [
            _field(0, "status", "int"),
            _field(1, "snapshot_id", "long", optional=True),
            _field(3, "sequence_number", "long", optional=True),
            _field(4, "file_sequence_number", "long", optional=True),
            _field(2, "data_file", data_file),
        ],
    }


def _avro_type(kind: PrimitiveType, field: PartitionField) -> Any:
    match kind:
        case PrimitiveType("boolean" | "int" | "long" | "float" | "double" | "string"):
            return kind.name
        case PrimitiveType("binary"):
            return "bytes"
        case PrimitiveType("date"):
            return {"type": "int", "logicalType": "date"}
        case PrimitiveType("time"):
            return {"type": "long", "logicalType": "time-micros"}
        case PrimitiveType("timestamp" | "timestamptz"):
            return {
                "type": "long",
                "logicalType": "timestamp-micros",
                "adjust-to-utc": kind.name == "timestamptz",
            }
        case PrimitiveType("fixed", (length,)):
            return {"type": "fixed", "name": f"fixed_{field.field_id}", "size": length}
        case PrimitiveType("uuid"):
            return {"type": "fixed", "name": f"uuid_fixed_{field.field_id}", "size": 16, "logicalType": "uuid"}
        case PrimitiveType("decimal", (precision, scale)):
            return {
                "type": "fixed",
                "name": f"decimal_{field.field_id}",
                "size": decimal_width(precision),
                "logicalType": "decimal",
                "precision": precision,
                "scale": scale,
            }
        case _:
            raise TypeError(f"partition field {field.name}: type {kind} cannot be written")


def decimal_width(precision: int) -> int:
    """Least bytes that hold every unscaled value of this precision."""
    return int(10**precision).bit_length() // 8 + 1


_PARSED: dict[str, Any] = {}


def parsed(schema: Record) -> Any:
    """The schema in fastavro's form, parsed once per process."""
    key = repr(schema)
    if key not in _PARSED:
        _PARSED[key] = fastavro.parse_schema(schema)
    return _PARSED[key]


# -- values ------------------------------------------------------------------------------------------------------


def encoded_partition(values: Record, layout: PartitionLayout) -> Record:
    """Physical values as fastavro writes them."""
    encoded = dict(values)
    for f, kind in zip(layout.spec.fields, layout.types, strict=True):
        if kind.name == "decimal" and values[f.name] is not None:
            encoded[f.name] = values[f.name].to_bytes(decimal_width(kind.parameters[0]), "big", signed=True)
    return encoded


def decoded_partition(values: Record, writer_schema: Any, layout: PartitionLayout) -> Record:
    """Values as fastavro read them, found by field id, in physical form; unpartitioned manifests may have none."""
    if not layout.spec.fields:
        return {}
    written = member(member(writer_schema, 2), 102)
    names = {f["field-id"]: f["name"] for f in written["fields"] if "field-id" in f}
    return {f.name: _physical(values.get(names.get(f.field_id, f.name))) for f in layout.spec.fields}


_EPOCH = datetime(1970, 1, 1)  # noqa: DTZ001 - wall time without zone


def _physical(value: Any) -> Any:
    """A value as fastavro's logical types give it, back as manifests hold it."""
    match value:
        case datetime():
            wall = value.replace(tzinfo=None) if value.tzinfo is None else value.astimezone(UTC).replace(tzinfo=None)
            delta = wall - _EPOCH
            return (delta.days * 86_400 + delta.seconds) * 1_000_000 + delta.microseconds
        case date():
            return value.toordinal() - _EPOCH.toordinal()
        case time():
            return ((value.hour * 60 + value.minute) * 60 + value.second) * 1_000_000 + value.microsecond
        case Decimal():
            sign, digits, _ = value.as_tuple()
            unscaled = int("".join(map(str, digits)) or "0")
            return -unscaled if sign else unscaled
        case UUID():
            return value.bytes
        case _:
            return value


# -- fields of other writers, found by id ----------------------------------------------------------------------------


def member(schema: Any, field_id: int) -> Any:
    """The type of a record's field, without null."""
    found = next(f for f in schema["fields"] if f.get("field-id") == field_id)
    kind = found["type"]
    return next(k for k in kind if k != "null") if isinstance(kind, list) else kind


def names_by_id(written: Any, wanted: Any) -> dict[str, str]:
    """Wanted name by written name; fields of other ids are left out, fields without id go by their name."""
    by_id = {f["field-id"]: f["name"] for f in wanted["fields"]}
    known = set(by_id.values())
    pairs = ((f["name"], by_id.get(f["field-id"]) if "field-id" in f else f["name"]) for f in written["fields"])
    return {old: str(new) for old, new in pairs if new in known}


def renamed(row: Record, names: Mapping[str, str]) -> Record:
    """The row by wanted names."""
    return {new: row[old] for old, new in names.items()}


class EntryStatus(IntEnum):
    """`status` of a manifest entry."""

    EXISTING = 0
    ADDED = 1
    DELETED = 2


class ManifestContent(IntEnum):
    """`content` of a manifest."""

    DATA = 0
    DELETES = 1


@dataclass(frozen=True, slots=True)
class ManifestEntry:
    """A row of a manifest. `data_file` is the record of the specification, by its names, in physical values."""

    status: EntryStatus
    snapshot_id: int | None
    sequence_number: int | None
    file_sequence_number: int | None
    data_file: Record

    @property
    def path(self) -> str:
        """Of the data or delete file, as the manifest writes it."""
        return str(self.data_file["file_path"])

    def with_status(self, status: EntryStatus, snapshot_id: int | None) -> "ManifestEntry":
        """The entry carried into another manifest; its sequence numbers stay."""
        return replace(self, status=status, snapshot_id=snapshot_id)


@dataclass(frozen=True, slots=True)
class ManifestHeader:
    """What a manifest says about itself in its Avro metadata: JSON texts as the table metadata has them."""

    schema_json: str
    schema_id: int
    spec_json: str


def added_entry(file: WrittenFile, snapshot_id: int, layout: PartitionLayout) -> ManifestEntry:
    """The ADDED entry of a new file; its sequence numbers are inherited from the manifest list."""
    metrics = file.metrics
    record: Record = {
        "content": int(file.content),
        "file_path": file.path,
        "file_format": "PARQUET",
        "partition": {f.name: v for f, v in zip(layout.spec.fields, file.partition, strict=True)},
        "record_count": file.record_count,
        "file_size_in_bytes": file.file_size_bytes,
        "split_offsets": list(metrics.split_offsets) or None,
        "equality_ids": list(file.equality_ids) or None,
        "sort_order_id": file.sort_order_id,
    }
    for name in METRIC_MAPS:
        pairs: Mapping[int, Any] = getattr(metrics, name)
        record[name] = [{"key": k, "value": v} for k, v in sorted(pairs.items())] or None
    return ManifestEntry(EntryStatus.ADDED, snapshot_id, None, None, record)


def manifest_bytes(
    entries: Sequence[ManifestEntry], content: ManifestContent, layout: PartitionLayout, header: ManifestHeader
) -> bytes:
    """A manifest file."""
    schema = parsed(entry_schema(layout))
    rows = (
        {
            "status": int(e.status),
            "snapshot_id": e.snapshot_id,
            "sequence_number": e.sequence_number,
            "file_sequence_number": e.file_sequence_number,
            "data_file": {**e.data_file, "partition": encoded_partition(e.data_file["partition"], layout)},
        }
        for e in entries
    )
    metadata = {
        "schema": header.schema_json,
        "schema-id": str(header.schema_id),
        "partition-spec": header.spec_json,
        "partition-spec-id": str(layout.spec.spec_id),
        "format-version": "2",
        "content": "deletes" if content is ManifestContent.DELETES else "data",
    }
    return _avro(schema, rows, metadata)


def manifest_record(
    entries: Sequence[ManifestEntry],
    content: ManifestContent,
    layout: PartitionLayout,
    *,
    path: str,
    length: int,
    snapshot_id: int,
    sequence_number: int,
) -> Record:
    """The manifest-list entry of a manifest that this snapshot wrote."""

    def files(status: EntryStatus) -> int:
        return sum(e.status is status for e in entries)

    def rows(status: EntryStatus) -> int:
        return sum(int(e.data_file["record_count"]) for e in entries if e.status is status)

    live = [e for e in entries if e.status is not EntryStatus.DELETED]
    numbers = [e.sequence_number if e.sequence_number is not None else sequence_number for e in live]
    return {
        "manifest_path": path,
        "manifest_length": length,
        "partition_spec_id": layout.spec.spec_id,
        "content": int(content),
        "sequence_number": sequence_number,
        "min_sequence_number": min(numbers, default=sequence_number),
        "added_snapshot_id": snapshot_id,
        "added_files_count": files(EntryStatus.ADDED),
        "existing_files_count": files(EntryStatus.EXISTING),
        "deleted_files_count": files(EntryStatus.DELETED),
        "added_rows_count": rows(EntryStatus.ADDED),
        "existing_rows_count": rows(EntryStatus.EXISTING),
        "deleted_rows_count": rows(EntryStatus.DELETED),
        "partitions": _summaries([e.data_file["partition"] for e in entries], layout),
        "key_metadata": None,
    }


def manifest_list_bytes(
    records: Sequence[Record], snapshot_id: int, parent_id: int | None, sequence_number: int
) -> bytes:
    """A manifest list file."""
    metadata = {
        "snapshot-id": str(snapshot_id),
        "parent-snapshot-id": "null" if parent_id is None else str(parent_id),
        "sequence-number": str(sequence_number),
        "format-version": "2",
    }
    return _avro(parsed(MANIFEST_FILE), records, metadata)


def read_manifest_list(data: bytes, path: str) -> list[Record]:
    """The entries of a manifest list by any writer, by the names of format version 2.

    Raises:
        MalformedTableError: its checksum is wrong.
    """
    reader = _reader(data, path)
    names = names_by_id(reader.writer_schema, MANIFEST_FILE)
    defaults: Record = {"content": 0, "sequence_number": 0, "min_sequence_number": 0, "key_metadata": None}
    return [{**defaults, **renamed(row, names)} for row in reader]


def read_manifest(data: bytes, manifest: Record, layout: PartitionLayout) -> list[ManifestEntry]:
    """All entries of a manifest by any writer, with sequence numbers inherited where they were null.

    Raises:
        MalformedTableError: its checksum is wrong.
    """
    reader = _reader(data, manifest["manifest_path"])
    wanted = entry_schema(layout)
    names = names_by_id(reader.writer_schema, wanted)
    file_names = names_by_id(member(reader.writer_schema, 2), member(wanted, 2))
    inherited = int(manifest["sequence_number"])
    entries = []
    for row in reader:
        entry = renamed(row, names)
        data_file = {"content": 0, **renamed(entry["data_file"], file_names)}
        data_file["partition"] = decoded_partition(data_file.get("partition") or {}, reader.writer_schema, layout)
        status = EntryStatus(entry["status"])
        inherits = status is EntryStatus.ADDED or inherited == 0
        sequence = entry.get("sequence_number")
        file_sequence = entry.get("file_sequence_number")
        entries.append(
            ManifestEntry(
                status,
                entry.get("snapshot_id") or manifest["added_snapshot_id"],
                inherited if sequence is None and inherits else sequence,
                inherited if file_sequence is None and inherits else file_sequence,
                data_file,
            )
        )
    return entries


def _avro(schema: Any, rows: Iterable[Record], metadata: Mapping[str, str]) -> bytes:
    """An Avro file with a checksum, in the codec that every engine reads."""
    sink = io.BytesIO()
    fastavro.writer(sink, schema, rows, codec="deflate", metadata=dict(metadata), sync_marker=BLANK_SYNC)
    return with_checksum(sink.getvalue())


def _reader(data: bytes, path: str) -> Any:
    """The records of an Avro file, whose checksum is compared first: fastavro knows none."""
    try:
        read_header(data)
    except AvroError as error:
        raise malformed_avro(path, error) from error
    return fastavro.reader(io.BytesIO(data))


def _summaries(partitions: Iterable[Record], layout: PartitionLayout) -> list[Record] | None:
    if not layout.spec.fields:
        return None
    rows = list(partitions)
    return [_summary([r[f.name] for r in rows], t) for f, t in zip(layout.spec.fields, layout.types, strict=True)]


def _summary(values: list[Any], kind: Type) -> Record:
    present = [v for v in values if v is not None]
    ordered = [v for v in present if v == v]  # noqa: PLR0124 - NaN has no order
    return {
        "contains_null": len(present) < len(values),
        "contains_nan": len(ordered) < len(present),
        "lower_bound": single_value(min(ordered), kind) if ordered else None,
        "upper_bound": single_value(max(ordered), kind) if ordered else None,
    }


FAN_IN = 8
MOST_ENTRIES = 300
"""Of one merge: some tens of milliseconds."""
MOST_MANIFESTS = 100
"""Beyond this, as Iceberg's `commit.manifest.min-count-to-merge`, readers matter more than one slow commit."""
TARGET_BYTES = 8 * 1024**2
"""As Iceberg's `commit.manifest.target-size-bytes`: manifests of half of it are left alone."""


def to_merge(manifests: Iterable[Record]) -> list[list[Record]]:
    """Groups of manifests, each of one content and spec, to be merged into one; all others stay."""
    groups: dict[tuple[int, int], list[Record]] = {}
    for manifest in manifests:
        if manifest["manifest_length"] < TARGET_BYTES // 2:
            groups.setdefault((manifest["content"], manifest["partition_spec_id"]), []).append(manifest)
    return [chosen for group in groups.values() if (chosen := _chosen(group))]


def _chosen(group: Sequence[Record]) -> list[Record]:
    """The lowest full tier of a group."""
    tiers: dict[int, list[Record]] = {}
    for manifest in group:
        tiers.setdefault(_tier(_entries(manifest)), []).append(manifest)
    for tier in sorted(tiers):
        found = tiers[tier]
        if len(found) >= FAN_IN and sum(map(_entries, found[-FAN_IN:])) <= MOST_ENTRIES:
            return found[-FAN_IN:]
    return sorted(group, key=_entries)[:FAN_IN] if len(group) > MOST_MANIFESTS else []


def _entries(manifest: Record) -> int:
    counts = (manifest["added_files_count"], manifest["existing_files_count"], manifest["deleted_files_count"])
    return sum(count or 0 for count in counts) if None not in counts else MOST_ENTRIES


def _tier(entries: int) -> int:
    tier = 0
    while entries >= FAN_IN:
        entries //= FAN_IN
        tier += 1
    return tier


Selection = Callable[[ManifestEntry, PartitionSpec], bool]
"""Whether a commit removes a live file, given its manifest entry and spec."""


@dataclass(frozen=True, slots=True)
class Carried:
    """What a snapshot takes over from the one before: manifest-list entries, and removed files with their spec ids."""

    records: tuple[Record, ...] = ()
    removed: tuple[tuple[int, ManifestEntry], ...] = ()


@dataclass(slots=True)
class SnapshotManifests:
    """Writes manifests for a snapshot of a table, whose schema and specs may be those of the same commit.

    `written` are the paths of all files written, to be removed if the commit does not happen.
    """

    table: Any
    storage: Storage
    schema: Schema
    specs: Mapping[int, PartitionSpec]
    snapshot_id: int
    sequence_number: int
    written: list[str] = field(default_factory=list)

    def added(self, files: Sequence[WrittenFile]) -> Iterator[Record]:
        """Manifests of new files, one per content and spec."""
        groups: dict[tuple[ManifestContent, int], list[WrittenFile]] = {}
        for file in files:
            content = ManifestContent.DATA if file.content is FileContent.DATA else ManifestContent.DELETES
            groups.setdefault((content, file.spec_id), []).append(file)
        types = self._types() if groups else {}
        for (content, spec_id), group in groups.items():
            layout = self._layout(spec_id, types)
            yield self._manifest([added_entry(f, self.snapshot_id, layout) for f in group], content, layout)

    def carried(self, base: Any | None, remove: Selection | None) -> Carried:
        """Manifests of a snapshot: as they are, merged where there are many small ones, or without removed files."""
        if base is None:
            return Carried()
        listed = read_manifest_list(self.storage.read(base.manifest_list), base.manifest_list)
        live = [m for m in listed if _has_live_files(m)]
        if remove is None:
            return Carried(tuple(self._merged(live)))
        kept: list[Record] = []
        removed: list[tuple[int, ManifestEntry]] = []
        rewritten: list[Record] = []
        types = self._types()
        for manifest in live:
            layout = self._layout(manifest["partition_spec_id"], types)
            alive = self._live_entries(manifest, layout)
            leaving = [e for e in alive if remove(e, layout.spec)]
            if not leaving:
                kept.append(manifest)
                continue
            gone = {id(e) for e in leaving}
            entries = [
                e.with_status(EntryStatus.DELETED, self.snapshot_id)
                if id(e) in gone
                else e.with_status(EntryStatus.EXISTING, e.snapshot_id)
                for e in alive
            ]
            removed += [(layout.spec.spec_id, e) for e in leaving]
            rewritten.append(self._manifest(entries, ManifestContent(manifest["content"]), layout))
        return Carried((*rewritten, *kept), tuple(removed))

    def write(self, name: str, data: bytes) -> str:
        """Write a file beside the table's metadata; its path."""
        path = f"{metadata_location(self.table)}/{name}"
        self.storage.write(path, data)
        self.written.append(path)
        return path

    def _merged(self, live: list[Record]) -> list[Record]:
        groups = to_merge(live)
        if not groups:
            return live
        types = self._types()
        merged: list[Record] = []
        for group in groups:
            layout = self._layout(group[0]["partition_spec_id"], types)
            entries = [
                e.with_status(EntryStatus.EXISTING, e.snapshot_id)
                for manifest in group
                for e in self._live_entries(manifest, layout)
            ]
            merged.append(self._manifest(entries, ManifestContent(group[0]["content"]), layout))
        gone = {manifest["manifest_path"] for group in groups for manifest in group}
        return [*merged, *(m for m in live if m["manifest_path"] not in gone)]

    def _live_entries(self, manifest: Record, layout: PartitionLayout) -> list[ManifestEntry]:
        entries = read_manifest(self.storage.read(manifest["manifest_path"]), manifest, layout)
        return [e for e in entries if e.status is not EntryStatus.DELETED]

    def _manifest(self, entries: Sequence[ManifestEntry], content: ManifestContent, layout: PartitionLayout) -> Record:
        data = manifest_bytes(entries, content, layout, self._header(layout.spec))
        path = self.write(f"{uuid.uuid4()}-m0.avro", data)
        return manifest_record(
            entries,
            content,
            layout,
            path=path,
            length=len(data),
            snapshot_id=self.snapshot_id,
            sequence_number=self.sequence_number,
        )

    def _layout(self, spec_id: int, types: Mapping[int, Any]) -> PartitionLayout:
        spec = self.specs[spec_id]
        return PartitionLayout(spec, partition_types(spec, types))

    def _types(self) -> dict[int, Any]:
        types = source_types(self.table)
        types.update({i: self.schema.field(i).type for i in self.schema.field_ids})
        return types

    def _header(self, spec: PartitionSpec) -> ManifestHeader:
        fields = [
            {"name": f.name, "transform": f.transform, "source-id": f.source_id, "field-id": f.field_id}
            for f in spec.fields
        ]
        return ManifestHeader(json.dumps(schema_document(self.schema)), self.schema.schema_id, json.dumps(fields))


def _has_live_files(manifest: Record) -> bool:
    return bool(manifest["added_files_count"] is None or manifest["added_files_count"]) or bool(
        manifest["existing_files_count"] is None or manifest["existing_files_count"]
    )
