"""Reads, writes, merges and carries over the manifests of a commit; chooses how they are compressed."""

import io
import json
import uuid
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, date, datetime, time
from decimal import Decimal
from enum import IntEnum
from functools import cache, lru_cache
from math import copysign
from typing import TYPE_CHECKING, Any
from uuid import UUID

import orjson

from nevermore.pipelines.iceberg.file_metrics import FileContent, WrittenFile, single_value
from nevermore.pipelines.iceberg.loaded_table import metadata_location, source_types
from nevermore.pipelines.iceberg.row_shape import partition_types
from nevermore.pipelines.iceberg.schema_evolution import schema_document
from nevermore.pipelines.iceberg.storage import Storage
from nevermore.scan_core import PartitionSpec, PrimitiveType, Schema, Type
from nevermore.scan_core.io import cached_property, require_package
from nevermore.scan_core.metadata import (
    DAMAGE,
    AvroReader,
    malformed_avro,
    parse_record,
    read_blocks,
    read_header,
)

if TYPE_CHECKING:
    from pyiceberg.table import Table
    from pyiceberg.table.snapshots import Snapshot

Record = dict[str, Any]
FileName = tuple[str, int | None]
"""Path of a data or delete file, and the offset of a deletion vector, as several share a file."""


@dataclass(frozen=True, slots=True)
class PartitionLayout:
    """A spec with the result type of each of its fields."""

    spec: PartitionSpec
    types: tuple[PrimitiveType, ...]


METRIC_MAPS = (
    "column_sizes",
    "value_counts",
    "null_value_counts",
    "nan_value_counts",
    "lower_bounds",
    "upper_bounds",
)


@cache
def manifest_list_schema(version: int = 2) -> Any:
    """The Avro schema of manifest lists of a format version."""
    from pyiceberg.manifest import MANIFEST_LIST_FILE_SCHEMAS
    from pyiceberg.utils.schema_conversion import AvroSchemaConversion

    return AvroSchemaConversion().iceberg_to_avro(MANIFEST_LIST_FILE_SCHEMAS[version], "manifest_file")


_OF_VERSION_3 = frozenset({142, 144, 145})
"""Ids of the first row id, and of the place of a deletion vector."""


@lru_cache(maxsize=64)
def entry_schema(layout: PartitionLayout, version: int = 2) -> Record:
    """The schema of manifest entries of a format version, whose partitions have this layout.

    PyIceberg's schema, but for three things: it gives two decimals of one type the same name, writes key field ids as longs, and
    cannot name the data file of position deletes in version 2.
    """
    from pyiceberg.manifest import data_file_with_partition, manifest_entry_schema_with_data_file
    from pyiceberg.types import IcebergType, NestedField, StructType
    from pyiceberg.utils.schema_conversion import AvroSchemaConversion

    fields = zip(layout.spec.fields, layout.types, strict=True)
    partition = StructType(*(NestedField(f.field_id, f.name, IcebergType.model_validate(str(t))) for f, t in fields))
    wanted = manifest_entry_schema_with_data_file(3, data_file_with_partition(partition, 3))
    schema: Record = json.loads(
        json.dumps(AvroSchemaConversion().iceberg_to_avro(wanted, "manifest_entry")),
        object_hook=lambda part: {name: value for name, value in part.items() if name != "doc"},
    )
    file = _member(schema, 2)
    file["fields"] = [f for f in file["fields"] if version > 2 or f["field-id"] not in _OF_VERSION_3]
    _member(file, 135)["items"] = "int"
    for f, written in zip(layout.spec.fields, _member(file, 102)["fields"], strict=True):
        written["name"] = f.name
        if isinstance(kind := written["type"][1], dict) and "name" in kind:
            kind["name"] += f"_{f.field_id}"
    return schema


def _encode_partition(values: Record, layout: PartitionLayout) -> Record:
    """Convert physical values to the form that fastavro writes."""
    from pyiceberg.utils.decimal import decimal_required_bytes

    encoded = dict(values)
    for f, kind in zip(layout.spec.fields, layout.types, strict=True):
        if kind.name == "decimal" and values[f.name] is not None:
            encoded[f.name] = values[f.name].to_bytes(decimal_required_bytes(kind.parameters[0]), "big", signed=True)
    return encoded


_EPOCH = datetime(1970, 1, 1)  # noqa: DTZ001 - wall time without zone


def physical(value: Any) -> Any:
    """Convert a value that fastavro decoded by its logical type to the physical value in manifests."""
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


def _member(schema: Any, field_id: int) -> Any:
    """The type of a record's field, without null."""
    found = next(f for f in schema["fields"] if f.get("field-id") == field_id)
    kind = found["type"]
    return next(k for k in kind if k != "null") if isinstance(kind, list) else kind


Names = tuple[tuple[int, str], ...]


@lru_cache(maxsize=64)
def _names(layout: PartitionLayout | None) -> Names:
    """Names of fields by id at every depth: of manifest entries whose partitions have this layout, or of manifest lists."""
    found: dict[int, str] = {}

    def note(part: Record) -> None:
        if "field-id" in part:
            found[part["field-id"]] = part["name"]

    json.loads(
        json.dumps(manifest_list_schema(3) if layout is None else entry_schema(layout, 3)),
        object_pairs_hook=lambda pairs: note(dict(pairs)),
    )
    return tuple(found.items())


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
    """A row of a manifest. `data_file` is the record of the specification, with its names and physical values."""

    status: EntryStatus
    snapshot_id: int | None
    sequence_number: int | None
    file_sequence_number: int | None
    data_file: Record

    @property
    def path(self) -> str:
        """Path of the data or delete file, as the manifest writes it."""
        return str(self.data_file["file_path"])

    @property
    def name(self) -> "FileName":
        """What distinguishes the file in its snapshot."""
        return self.path, self.data_file.get("content_offset")

    def with_status(self, status: EntryStatus, snapshot_id: int | None) -> "ManifestEntry":
        """The entry for another manifest, with the same sequence numbers.

        Bounds are values of rows. Nothing reads those of removed files, so that a manifest names no row that is gone.
        """
        is_gone = status is EntryStatus.DELETED
        file = {**self.data_file, "lower_bounds": None, "upper_bounds": None} if is_gone else self.data_file
        return replace(self, status=status, snapshot_id=snapshot_id, data_file=file)


def added_entry(file: WrittenFile, snapshot_id: int, layout: PartitionLayout) -> ManifestEntry:
    """The ADDED entry of a new file; what it does not state of its sequence numbers, it inherits from the manifest list."""
    metrics = file.metrics
    record: Record = {
        "content": int(file.content),
        "file_path": file.path,
        "file_format": "PARQUET" if file.vector is None else "PUFFIN",
        "partition": {f.name: v for f, v in zip(layout.spec.fields, file.partition, strict=True)},
        "record_count": file.record_count,
        "file_size_in_bytes": file.file_size_bytes,
        "split_offsets": list(metrics.split_offsets) or None,
        "equality_ids": list(file.equality_ids) or None,
        "sort_order_id": file.sort_order_id,
        "referenced_data_file": file.referenced_data_file,
    }
    if file.vector is not None:
        record["content_offset"], record["content_size_in_bytes"] = file.vector
    for name in METRIC_MAPS:
        pairs: Mapping[int, Any] = getattr(metrics, name)
        record[name] = [{"key": k, "value": v} for k, v in sorted(pairs.items())] or None
    return ManifestEntry(EntryStatus.ADDED, snapshot_id, file.data_sequence_number, None, record)


def manifest_bytes(
    entries: Sequence[ManifestEntry],
    content: ManifestContent,
    layout: PartitionLayout,
    schema: Schema,
    version: int = 2,
) -> bytes:
    """Encode a manifest file of a table with this schema and format version."""
    rows = (
        {
            "status": int(e.status),
            "snapshot_id": e.snapshot_id,
            "sequence_number": e.sequence_number,
            "file_sequence_number": e.file_sequence_number,
            "data_file": {**e.data_file, "partition": _encode_partition(e.data_file["partition"], layout)},
        }
        for e in entries
    )
    spec = [
        {"name": f.name, "transform": f.transform, "source-id": f.source_id, "field-id": f.field_id}
        for f in layout.spec.fields
    ]
    metadata = {
        "schema": json.dumps(schema_document(schema)),
        "schema-id": str(schema.schema_id),
        "partition-spec": json.dumps(spec),
        "partition-spec-id": str(layout.spec.spec_id),
        "format-version": str(version),
        "content": "deletes" if content is ManifestContent.DELETES else "data",
    }
    return write_avro(entry_schema(layout, version), rows, metadata)


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
    records: Sequence[Record], snapshot_id: int, parent_id: int | None, sequence_number: int, version: int = 2
) -> bytes:
    """Encode a manifest list file of a format version."""
    metadata = {
        "snapshot-id": str(snapshot_id),
        "parent-snapshot-id": "null" if parent_id is None else str(parent_id),
        "sequence-number": str(sequence_number),
        "format-version": str(version),
    }
    return write_avro(manifest_list_schema(version), records, metadata)


def with_row_ids(records: Sequence[Record], next_row_id: int) -> tuple[list[Record], int]:
    """Manifest-list entries of format version 3, and the next free row id after them.

    Data manifests that have no first row id yet, new ones and those from before an upgrade, get one each; their data files
    without a row id of their own follow from it.
    """
    numbered = []
    for record in records:
        if record["content"] == ManifestContent.DATA and record.get("first_row_id") is None:
            numbered.append({**record, "first_row_id": next_row_id})
            next_row_id += record["added_rows_count"] + record["existing_rows_count"]
        else:
            numbered.append(record)
    return numbered, next_row_id


def read_manifest_list(data: bytes, path: str) -> list[Record]:
    """Decode a manifest list of any writer to entries with the names of format version 3.

    Raises:
        MalformedTableError: it is damaged, or larger than any manifest list.
    """
    defaults: Record = {"content": 0, "sequence_number": 0, "min_sequence_number": 0, "key_metadata": None}
    return [defaults | row for row in read_avro(data, path, _names(None)).rows]


def read_manifest(data: bytes, manifest: Record, layout: PartitionLayout) -> list[ManifestEntry]:
    """All entries of a manifest by any writer, with sequence numbers and row ids inherited where they were null.

    Raises:
        MalformedTableError: it is damaged, or larger than any manifest.
    """
    inherited = int(manifest["sequence_number"])
    row_id = manifest.get("first_row_id")
    entries = []
    for entry in read_avro(data, manifest["manifest_path"], _names(layout)).rows:
        data_file = {"content": 0, **entry["data_file"]}
        values = data_file.get("partition") or {}  # manifests of unpartitioned tables may have no partitions
        data_file["partition"] = {f.name: physical(values.get(f.name)) for f in layout.spec.fields}
        status = EntryStatus(entry["status"])
        if row_id is not None and status is not EntryStatus.DELETED and data_file.get("first_row_id") is None:
            data_file["first_row_id"] = row_id
            row_id += data_file["record_count"]
        # Only ADDED entries inherit their numbers (rule 3); manifests of format version 1 have number 0 and no others.
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


@dataclass(frozen=True, slots=True)
class AvroFile:
    """A manifest or manifest list before encoding.

    Attributes:
        schema: the writer's schema, as JSON.
        metadata: texts of the header, except Avro's own.
        rows: the records, by the writer's names.
    """

    schema: Any
    metadata: Mapping[str, str]
    rows: list[Record]


def write_avro(schema: Any, rows: Iterable[Record], metadata: Mapping[str, str]) -> bytes:
    """Encode an Avro file in the codec that every engine reads."""
    sink = io.BytesIO()
    fastavro = require_package("fastavro", "writing manifests", "nevermore-iceberg[avro]")
    fastavro.writer(sink, schema, rows, codec="deflate", metadata=dict(metadata))
    return sink.getvalue()


def read_avro(data: bytes, path: str, names: Names = ()) -> AvroFile:
    """Decode a manifest or manifest list; fields with ids get the names that are given for these.

    Raises:
        MalformedTableError: it is damaged, or larger than any file of table metadata.
    """
    try:
        header = read_header(data)
        rows = _reader(header.schema, names).rows(list(read_blocks(data, header))).to_pylist()
        own = {name: value.decode() for name, value in header.metadata.items() if not name.startswith("avro.")}
    except (*DAMAGE, OverflowError) as error:
        raise malformed_avro(path, error) from error
    return AvroFile(orjson.loads(header.schema), own, rows)


@lru_cache(maxsize=64)
def _reader(schema: bytes, names: Names) -> AvroReader:
    """Reads rows with values of logical types as fastavro writes them: maps as pairs, nanoseconds as numbers."""
    known = dict(names)

    def plain(part: Record) -> Record:
        logical = str(part.get("logicalType"))
        if known and "field-id" in part:  # one that is not known must not pass for one that is
            part["name"] = known.get(part["field-id"], f"field {part['field-id']}")
        return part | {"logicalType": None} if logical == "map" or logical.endswith("-nanos") else part

    return AvroReader.of(parse_record(json.loads(schema, object_hook=plain)))


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
        "lower_bound": single_value(min(ordered, key=_with_sign), kind) if ordered else None,
        "upper_bound": single_value(max(ordered, key=_with_sign), kind) if ordered else None,
    }


def _with_sign(value: Any) -> Any:
    """Orders -0.0 before 0.0, as readers do that compare bounds."""
    return (value, copysign(1.0, value)) if isinstance(value, float) else value


FAN_IN = 8
MAX_ENTRIES = 300
"""Maximum of entries in one merge, which takes some tens of milliseconds."""
MAX_MANIFESTS = 100
"""Minimum of manifests to merge, as Iceberg's `commit.manifest.min-count-to-merge`: from there on, readers matter more
than one slow commit.
"""
TARGET_BYTES = 8 * 1024**2
"""Target size, as Iceberg's `commit.manifest.target-size-bytes`: manifests of half of it are not merged."""


def to_merge(manifests: Iterable[Record]) -> list[list[Record]]:
    """Group the manifests to merge, each group of one content and spec; all others are kept unchanged."""
    groups: dict[tuple[int, int], list[Record]] = {}
    for manifest in manifests:
        if manifest["manifest_length"] < TARGET_BYTES // 2:
            groups.setdefault((manifest["content"], manifest["partition_spec_id"]), []).append(manifest)
    return [chosen for group in groups.values() if (chosen := _chosen(group))]


def _chosen(group: Sequence[Record]) -> list[Record]:
    """Choose the manifests of a group to merge: the newest of its lowest full tier.

    Tier n holds manifests of 8**n to 8**(n + 1) entries, so that each entry is rewritten at most once per tier.
    """
    tiers: dict[int, list[Record]] = {}
    for manifest in group:
        tiers.setdefault(_tier(num_entries(manifest)), []).append(manifest)
    for tier in sorted(tiers):
        found = tiers[tier]
        if len(found) >= FAN_IN and sum(map(num_entries, found[-FAN_IN:])) <= MAX_ENTRIES:
            return found[-FAN_IN:]
    return sorted(group, key=num_entries)[:FAN_IN] if len(group) > MAX_MANIFESTS else []


def num_entries(manifest: Record) -> int:
    """Entries of a manifest, live or not; more than are merged if it does not record them."""
    counts = (manifest["added_files_count"], manifest["existing_files_count"], manifest["deleted_files_count"])
    return sum(count or 0 for count in counts) if None not in counts else MAX_ENTRIES


def _tier(entries: int) -> int:
    tier = 0
    while entries >= FAN_IN:
        entries //= FAN_IN
        tier += 1
    return tier


Selection = Callable[[ManifestEntry, PartitionSpec], bool]
"""Selects live files to remove, by manifest entry and spec."""


@dataclass(frozen=True, slots=True)
class NamedFiles:
    """Selects live data and delete files by name. A commit that removes them fails if one of them is not live any more."""

    names: frozenset[FileName]

    def __call__(self, entry: ManifestEntry, _spec: PartitionSpec) -> bool:
        """Whether the file is one of them."""
        return entry.name in self.names


@dataclass(frozen=True, slots=True)
class Listed:
    """Manifests of a snapshot: manifest-list entries, and added or removed files with their spec ids."""

    records: tuple[Record, ...] = ()
    files: tuple[tuple[int, ManifestEntry], ...] = ()


@dataclass
class SnapshotManifests:
    """Writes manifests for a snapshot of a table, whose schema and specs may be new in the same commit.

    `written` holds the paths of all files written, which must be removed if the commit does not happen. A dry run writes none.
    """

    table: "Table"
    storage: Storage
    schema: Schema
    specs: Mapping[int, PartitionSpec]
    snapshot_id: int
    sequence_number: int
    version: int
    written: list[str] = field(default_factory=list)
    is_dry: bool = False

    def added(self, files: Sequence[WrittenFile]) -> Listed:
        """Manifests of new files, one per content and spec."""
        groups: dict[tuple[ManifestContent, int], list[WrittenFile]] = {}
        for file in files:
            content = ManifestContent.DATA if file.content is FileContent.DATA else ManifestContent.DELETES
            groups.setdefault((content, file.spec_id), []).append(file)
        listed = Listed()
        for (content, spec_id), group in groups.items():
            layout = self.layout(spec_id)
            entries = [added_entry(f, self.snapshot_id, layout) for f in group]
            record = self.write_manifest(entries, content, layout)
            listed = Listed((*listed.records, record), (*listed.files, *((spec_id, e) for e in entries)))
        return listed

    def carried(self, base: "Snapshot | None", remove: Selection | None, *, forgets: bool = False) -> Listed:
        """Carry over the parent's manifests: unchanged, many small ones merged, or without removed files.

        Removed files stay listed as deleted; with `forgets` none is, of earlier commits neither.
        """
        live = self.live(base)
        if remove is None:
            return Listed(tuple(self._merged(live)))
        kept: list[Record] = []
        removed: list[tuple[int, ManifestEntry]] = []
        rewritten: list[Record] = []
        for manifest in live:
            layout = self.layout(manifest["partition_spec_id"])
            entries = [
                e.with_status(EntryStatus.DELETED, self.snapshot_id) if remove(e, layout.spec) else e
                for e in self.live_entries(manifest)
            ]
            leaving = [e for e in entries if e.status is EntryStatus.DELETED]
            if not leaving and not (forgets and manifest["deleted_files_count"] != 0):
                kept.append(manifest)
                continue
            removed += [(layout.spec.spec_id, e) for e in leaving]
            if forgets:
                entries = [e for e in entries if e.status is not EntryStatus.DELETED]
            if entries:
                rewritten.append(self.write_manifest(entries, manifest["content"], layout))
        return Listed((*rewritten, *kept), tuple(removed))

    def live(self, base: "Snapshot | None") -> list[Record]:
        """Manifest-list entries of a snapshot that have live files or do not record their number."""
        listed = [] if base is None else read_manifest_list(self.storage.read(base.manifest_list), base.manifest_list)
        return [m for m in listed if any(m[f"{kind}_files_count"] != 0 for kind in ("added", "existing"))]

    def live_entries(self, manifest: Record) -> list[ManifestEntry]:
        """The live entries of a manifest, for another manifest."""
        layout = self.layout(manifest["partition_spec_id"])
        entries = read_manifest(self.storage.read(manifest["manifest_path"]), manifest, layout)
        live = (e for e in entries if e.status is not EntryStatus.DELETED)
        return [e.with_status(EntryStatus.EXISTING, e.snapshot_id) for e in live]

    def write_manifest(self, entries: Sequence[ManifestEntry], content: int, layout: PartitionLayout) -> Record:
        """Write a manifest; return its manifest-list entry."""
        data = manifest_bytes(entries, ManifestContent(content), layout, self.schema, self.version)
        return manifest_record(
            entries,
            ManifestContent(content),
            layout,
            path=self.write(f"{uuid.uuid4()}-m0.avro", data),
            length=len(data),
            snapshot_id=self.snapshot_id,
            sequence_number=self.sequence_number,
        )

    def write(self, name: str, data: bytes) -> str:
        """Write a file to the table's metadata folder; return its path."""
        path = f"{metadata_location(self.table)}/{name}"
        if not self.is_dry:
            self.storage.write(path, data)
            self.written.append(path)
        return path

    def discard(self, records: Iterable[Record]) -> None:
        """Remove manifests that were written and are not listed."""
        paths = {record["manifest_path"] for record in records}
        self.storage.remove(paths)
        self.written[:] = [path for path in self.written if path not in paths]

    def layout(self, spec_id: int) -> PartitionLayout:
        """A spec with the types of its fields."""
        return PartitionLayout(self.specs[spec_id], partition_types(self.specs[spec_id], self._types))

    @cached_property
    def _types(self) -> dict[int, Any]:
        """Type of every field of every schema by id."""
        return source_types(self.table) | {i: self.schema.field(i).type for i in self.schema.field_ids}

    def _merged(self, live: list[Record]) -> list[Record]:
        merged, groups = list[Record](), to_merge(live)
        for group in groups:
            entries = [e for manifest in group for e in self.live_entries(manifest)]
            merged.append(self.write_manifest(entries, group[0]["content"], self.layout(group[0]["partition_spec_id"])))
        gone = {manifest["manifest_path"] for group in groups for manifest in group}
        return [*merged, *(m for m in live if m["manifest_path"] not in gone)]
