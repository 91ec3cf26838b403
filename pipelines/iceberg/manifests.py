"""Reads, writes, merges and carries over the manifests of a commit; chooses how they are compressed."""

import io
import json
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from decimal import Context, Decimal
from enum import IntEnum
from functools import cache, lru_cache
from itertools import chain
from math import copysign
from typing import TYPE_CHECKING, Any

import orjson

from nevermore.pipelines.iceberg.file_metrics import single_value
from nevermore.pipelines.iceberg.loaded_table import metadata_location
from nevermore.pipelines.iceberg.schema_evolution import schema_document
from nevermore.pipelines.iceberg.storage import Storage
from nevermore.scan_core import (
    ContentFile,
    DataFile,
    DeleteFile,
    PartitionSpec,
    PrimitiveType,
    Schema,
    TableMetadata,
    Type,
)
from nevermore.scan_core.io import require_package
from nevermore.scan_core.metadata import (
    DAMAGE,
    DATA_MANIFEST,
    DELETE_MANIFEST,
    UNCOMMITTED,
    AvroReader,
    ManifestFile,
    malformed_avro,
    parse_record,
    partition_value,
    read_blocks,
    read_data_manifests,
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


def name_of(file: ContentFile) -> FileName:
    """What distinguishes a file in its snapshot."""
    return file.path, file.content_offset if isinstance(file, DeleteFile) else None


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


_OF_VERSION_3 = 142, 144, 145
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


_WIDE = Context(prec=76)


def _physical(values: Sequence[Any], layout: PartitionLayout) -> list[Any]:
    """The values of a partition as manifests hold them, but for decimals: these are unscaled integers."""
    return [
        int(value.scaleb(kind.parameters[1], _WIDE)) if isinstance(value, Decimal) else partition_value(value, kind)
        for value, kind in zip(values, layout.types, strict=True)
    ]


def _partition(values: Sequence[Any], layout: PartitionLayout) -> Record:
    """A partition in the form that fastavro writes."""
    from pyiceberg.utils.decimal import decimal_required_bytes

    encoded = {}
    for f, kind, value in zip(layout.spec.fields, layout.types, _physical(values, layout), strict=True):
        is_decimal = kind.name == "decimal" and value is not None
        size = decimal_required_bytes(kind.parameters[0]) if is_decimal else 0
        encoded[f.name] = value.to_bytes(size, "big", signed=True) if is_decimal else value
    return encoded


def _member(schema: Any, field_id: int) -> Any:
    """The type of a record's field, without null."""
    found = next(f for f in schema["fields"] if f.get("field-id") == field_id)
    kind = found["type"]
    return next(k for k in kind if k != "null") if isinstance(kind, list) else kind


@cache
def _names() -> Mapping[int, str]:
    """Names of fields of manifest lists by id at every depth."""
    found: dict[int, str] = {}

    def note(part: Record) -> None:
        if "field-id" in part:
            found[part["field-id"]] = part["name"]

    json.loads(json.dumps(manifest_list_schema(3)), object_pairs_hook=lambda pairs: note(dict(pairs)))
    return found


class EntryStatus(IntEnum):
    """`status` of a manifest entry."""

    EXISTING = 0
    ADDED = 1
    DELETED = 2


@dataclass(frozen=True, slots=True)
class ManifestEntry:
    """A row of a manifest: a file, and the snapshot that added or removed it."""

    status: EntryStatus
    snapshot_id: int
    file: ContentFile

    def record(self, layout: PartitionLayout) -> Record:
        """As the specification names it. What a new file does not state of its sequence numbers, it inherits from the manifest list.

        Bounds are values of rows. Nothing reads those of removed files, so that a manifest names no row that is gone.
        """
        file = self.file
        is_new = file.data_sequence_number == UNCOMMITTED
        data_file: Record = {
            "content": 0,
            "file_path": file.path,
            "file_format": file.format.name,
            "partition": _partition(file.partition, layout),
            "record_count": file.record_count,
            "file_size_in_bytes": file.file_size_bytes,
            "key_metadata": file.key_metadata,
            "split_offsets": list(file.split_offsets) or None,
            "sort_order_id": file.sort_order_id,
        }
        for name in METRIC_MAPS[: 4 if self.status is EntryStatus.DELETED else None]:
            pairs: Mapping[int, Any] = getattr(file, name)
            data_file[name] = [{"key": k, "value": v} for k, v in sorted(pairs.items())] or None
        if isinstance(file, DeleteFile):
            data_file |= {
                "content": file.content.value,
                "equality_ids": list(file.equality_ids) or None,
                "referenced_data_file": file.referenced_data_file,
                "content_offset": file.content_offset,
                "content_size_in_bytes": file.content_size_bytes,
            }
        elif isinstance(file, DataFile):
            data_file["first_row_id"] = file.first_row_id
        return {
            "status": self.status,
            "snapshot_id": self.snapshot_id,
            "sequence_number": None if is_new else file.data_sequence_number,
            "file_sequence_number": file.file_sequence_number,
            "data_file": data_file,
        }


def manifest_bytes(
    entries: Sequence[ManifestEntry],
    content: int,
    layout: PartitionLayout,
    schema: Schema,
    version: int = 2,
) -> bytes:
    """Encode a manifest file of a table with this schema and format version."""
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
        "content": "data" if content == DATA_MANIFEST else "deletes",
    }
    return write_avro(entry_schema(layout, version), (entry.record(layout) for entry in entries), metadata)


def manifest_record(
    entries: Sequence[ManifestEntry],
    content: int,
    layout: PartitionLayout,
    *,
    path: str,
    length: int,
    snapshot_id: int,
    sequence_number: int,
) -> Record:
    """The manifest-list entry of a manifest that this snapshot wrote."""
    counts = {
        f"{status.name.lower()}_{what}_count": sum(number for e, number in numbers if e.status is status)
        for what, numbers in (
            ("files", [(e, 1) for e in entries]),
            ("rows", [(e, e.file.record_count) for e in entries]),
        )
        for status in EntryStatus
    }
    numbers = [e.file.data_sequence_number for e in entries if e.status is not EntryStatus.DELETED]
    return {
        "manifest_path": path,
        "manifest_length": length,
        "partition_spec_id": layout.spec.spec_id,
        "content": content,
        "sequence_number": sequence_number,
        "min_sequence_number": min((n for n in numbers if n != UNCOMMITTED), default=sequence_number),
        "added_snapshot_id": snapshot_id,
        **counts,
        "partitions": _summaries([_physical(e.file.partition, layout) for e in entries], layout),
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
        if record["content"] == DATA_MANIFEST and record.get("first_row_id") is None:
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
    return [defaults | row for row in read_avro(data, path, is_list=True).rows]


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


def read_avro(data: bytes, path: str, *, is_list: bool = False) -> AvroFile:
    """Decode a manifest or manifest list; the fields of a list get the names of format version 3.

    Raises:
        MalformedTableError: it is damaged, or larger than any file of table metadata.
    """
    try:
        header = read_header(data)
        rows = _reader(header.schema, is_list=is_list).rows(list(read_blocks(data, header))).to_pylist()
        own = {name: value.decode() for name, value in header.metadata.items() if not name.startswith("avro.")}
    except (*DAMAGE, OverflowError) as error:
        raise malformed_avro(path, error) from error
    return AvroFile(orjson.loads(header.schema), own, rows)


@lru_cache(maxsize=64)
def _reader(schema: bytes, *, is_list: bool) -> AvroReader:
    """Reads rows with values of logical types as fastavro writes them: maps as pairs, nanoseconds as numbers."""

    def plain(part: Record) -> Record:
        logical = str(part.get("logicalType"))
        if is_list and "field-id" in part:  # one that is not known must not pass for one that is
            part["name"] = _names().get(part["field-id"], f"field {part['field-id']}")
        return part | {"logicalType": None} if logical == "map" or logical.endswith("-nanos") else part

    return AvroReader.of(parse_record(json.loads(schema, object_hook=plain)))


def _summaries(partitions: Sequence[Sequence[Any]], layout: PartitionLayout) -> list[Record] | None:
    columns = zip(*partitions, strict=True) if partitions else [()] * len(layout.types)
    return list(map(_summary, columns, layout.types)) or None


def _summary(values: Sequence[Any], kind: Type) -> Record:
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


def _listed(manifest: Record) -> ManifestFile:
    facts = ("manifest_path", "partition_spec_id", "content", "sequence_number", "min_sequence_number")
    path, spec_id, content, number, smallest = map(manifest.__getitem__, facts)
    return ManifestFile(path, spec_id, content, number, smallest, None, None, manifest.get("first_row_id"))


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
    groups = of_one_kind(m for m in manifests if m["manifest_length"] < TARGET_BYTES // 2)
    return [chosen for group in groups.values() if (chosen := _chosen(group))]


def of_one_kind(manifests: Iterable[Record]) -> dict[tuple[int, int], list[Record]]:
    """Manifests by content and spec."""
    groups: dict[tuple[int, int], list[Record]] = {}
    for manifest in manifests:
        groups.setdefault((manifest["content"], manifest["partition_spec_id"]), []).append(manifest)
    return groups


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


Selection = Callable[[ContentFile], bool]
"""Selects live files to remove."""


@dataclass(frozen=True, slots=True)
class NamedFiles:
    """Selects live data and delete files by name. A commit that removes them fails if one of them is not live any more."""

    names: frozenset[FileName]

    def __call__(self, file: ContentFile) -> bool:
        """Whether the file is one of them."""
        return name_of(file) in self.names


@dataclass(frozen=True, slots=True)
class Listed:
    """Manifests of a snapshot: manifest-list entries, and added or removed files."""

    records: tuple[Record, ...] = ()
    files: tuple[ContentFile, ...] = ()


@dataclass
class SnapshotManifests:
    """Writes manifests for a snapshot of a table, whose schema and specs may be new in the same commit.

    `written` holds the paths of all files written, which must be removed if the commit does not happen. A dry run writes none.
    """

    table: "Table"
    storage: Storage
    facts: TableMetadata
    snapshot_id: int
    sequence_number: int
    written: list[str] = field(default_factory=list)
    is_dry: bool = False

    def added(self, files: Sequence[ContentFile]) -> list[Record]:
        """Manifests of new files, one per content and spec."""
        groups: dict[tuple[int, int], list[ManifestEntry]] = {}
        for file in files:
            content = DELETE_MANIFEST if isinstance(file, DeleteFile) else DATA_MANIFEST
            entry = ManifestEntry(EntryStatus.ADDED, self.snapshot_id, file)
            groups.setdefault((content, file.spec_id), []).append(entry)
        return [self.write_manifest(entries, *place) for place, entries in groups.items()]

    def carried(self, base: "Snapshot | None", remove: Selection | None, *, forgets: bool = False) -> Listed:
        """Carry over the parent's manifests: unchanged, many small ones merged, or without removed files.

        Removed files stay listed as deleted; with `forgets` none is, of earlier commits neither.
        """
        live = self.live(base)
        if remove is None:
            return Listed(tuple(self._merged(live)))
        kept: list[Record] = []
        removed: list[ContentFile] = []
        rewritten: list[Record] = []
        for manifest, entries in zip(live, self.live_entries(live), strict=True):
            staying, leaving = list[ManifestEntry](), list[ManifestEntry]()
            for entry in entries:
                (leaving if remove(entry.file) else staying).append(entry)
            if not leaving and not (forgets and manifest["deleted_files_count"] != 0):
                kept.append(manifest)
                continue
            removed += (entry.file for entry in leaving)
            if not forgets:
                staying += (ManifestEntry(EntryStatus.DELETED, self.snapshot_id, entry.file) for entry in leaving)
            if staying:
                rewritten.append(self.write_manifest(staying, manifest["content"], manifest["partition_spec_id"]))
        return Listed((*rewritten, *kept), tuple(removed))

    def live(self, base: "Snapshot | None") -> list[Record]:
        """Manifest-list entries of a snapshot that have live files or do not record their number."""
        listed = [] if base is None else read_manifest_list(self.storage.read(base.manifest_list), base.manifest_list)
        return [m for m in listed if any(m[f"{kind}_files_count"] != 0 for kind in ("added", "existing"))]

    def live_entries(self, manifests: Sequence[Record]) -> Iterator[list[ManifestEntry]]:
        """The live entries of each manifest, for other manifests. A few are read together, as decoding them is."""
        for begin in range(0, len(manifests), FAN_IN):
            part = manifests[begin : begin + FAN_IN]
            for manifest, files in zip(
                part, read_data_manifests([*map(_listed, part)], self.facts, self.storage.io), strict=True
            ):
                added_by = manifest["added_snapshot_id"]
                yield [ManifestEntry(EntryStatus.EXISTING, file.snapshot_id or added_by, file) for file in files]

    def write_manifest(self, entries: Sequence[ManifestEntry], content: int, spec_id: int) -> Record:
        """Write a manifest; return its manifest-list entry."""
        layout = self.layout(spec_id)
        data = manifest_bytes(entries, content, layout, self.facts.schema, self.facts.format_version)
        return manifest_record(
            entries,
            content,
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
        """A spec with the types of its fields; of a dropped column, only a void field is left."""
        types = self.facts.partition_types(spec_id)
        known = (t if isinstance(t, PrimitiveType) and t.name != "unknown" else PrimitiveType("string") for t in types)
        return PartitionLayout(self.facts.specs[spec_id], tuple(known))

    def _merged(self, live: list[Record]) -> list[Record]:
        merged, groups = list[Record](), to_merge(live)
        for group in groups:
            entries = [*chain(*self.live_entries(group))]
            merged.append(self.write_manifest(entries, group[0]["content"], group[0]["partition_spec_id"]))
        gone = {manifest["manifest_path"] for group in groups for manifest in group}
        return [*merged, *(m for m in live if m["manifest_path"] not in gone)]
