"""Reads, writes, merges and carries over the manifests of a commit; chooses how they are compressed."""

import io
import json
import pickle
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, date, datetime, time
from decimal import Decimal
from enum import IntEnum
from functools import cache, lru_cache
from itertools import pairwise
from math import ceil, copysign
from typing import TYPE_CHECKING, Any
from uuid import UUID

import numpy as np
import orjson

from nevermore.pipelines.iceberg.file_metrics import FileContent, WrittenFile, single_value
from nevermore.pipelines.iceberg.loaded_table import metadata_location, source_types
from nevermore.pipelines.iceberg.row_shape import partition_types
from nevermore.pipelines.iceberg.schema_evolution import schema_document
from nevermore.pipelines.iceberg.storage import Storage
from nevermore.scan_core import PartitionSpec, PrimitiveType, Schema, Type
from nevermore.scan_core.io import require_package
from nevermore.scan_core.metadata import (
    DAMAGE,
    AvroReader,
    decode_bound,
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


def _names_by_id(written: Any, wanted: Any) -> dict[str, str]:
    """Wanted names by another writer's names; fields with other ids are dropped, those without id keep their names."""
    by_id = {f["field-id"]: f["name"] for f in wanted["fields"]}
    known = set(by_id.values())
    pairs = ((f["name"], by_id.get(f["field-id"]) if "field-id" in f else f["name"]) for f in written["fields"])
    return {old: str(new) for old, new in pairs if new in known}


def _rename(row: Record, names: Mapping[str, str]) -> Record:
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
    read = read_avro(data, path)
    names = _names_by_id(read.schema, manifest_list_schema(3))
    defaults: Record = {"content": 0, "sequence_number": 0, "min_sequence_number": 0, "key_metadata": None}
    return [{**defaults, **_rename(row, names)} for row in read.rows]


def read_manifest(data: bytes, manifest: Record, layout: PartitionLayout) -> list[ManifestEntry]:
    """All entries of a manifest by any writer, with sequence numbers and row ids inherited where they were null.

    Raises:
        MalformedTableError: it is damaged, or larger than any manifest.
    """
    read = read_avro(data, manifest["manifest_path"])
    wanted = entry_schema(layout, 3)
    file_schema = _member(read.schema, 2)
    names, file_names = _names_by_id(read.schema, wanted), _names_by_id(file_schema, _member(wanted, 2))
    partition_names: dict[int, str] = {}  # manifests of unpartitioned tables may have no partitions
    if layout.spec.fields:
        stored = _member(file_schema, 102)["fields"]
        partition_names = {f["field-id"]: f["name"] for f in stored if "field-id" in f}
    inherited = int(manifest["sequence_number"])
    row_id = manifest.get("first_row_id")
    entries = []
    for row in read.rows:
        entry = _rename(row, names)
        data_file = {"content": 0, **_rename(entry["data_file"], file_names)}
        values = data_file.get("partition") or {}
        data_file["partition"] = {
            f.name: physical(values.get(partition_names.get(f.field_id, f.name))) for f in layout.spec.fields
        }
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


def read_avro(data: bytes, path: str) -> AvroFile:
    """Decode a manifest or manifest list.

    Raises:
        MalformedTableError: it is damaged, or larger than any file of table metadata.
    """
    try:
        header = read_header(data)
        rows = _reader(header.schema).rows(list(read_blocks(data, header))).to_pylist()
        own = {name: value.decode() for name, value in header.metadata.items() if not name.startswith("avro.")}
    except (*DAMAGE, OverflowError) as error:
        raise malformed_avro(path, error) from error
    return AvroFile(orjson.loads(header.schema), own, rows)


@lru_cache(maxsize=64)
def _reader(schema: bytes) -> AvroReader:
    """Reads rows with values of logical types as fastavro writes them: maps as pairs, nanoseconds as numbers."""

    def plain(part: Record) -> Record:
        logical = str(part.get("logicalType"))
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
RANGE_SAMPLES = 256
"""Files of each range of partitions that tell where ranges begin."""
MEMORY_PER_BYTE = 12
"""Memory of an entry per byte of its pickle, as measured: 12,800 bytes for a file with bounds of 14 columns."""
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
        tiers.setdefault(_tier(_entries(manifest)), []).append(manifest)
    for tier in sorted(tiers):
        found = tiers[tier]
        if len(found) >= FAN_IN and sum(map(_entries, found[-FAN_IN:])) <= MAX_ENTRIES:
            return found[-FAN_IN:]
    return sorted(group, key=_entries)[:FAN_IN] if len(group) > MAX_MANIFESTS else []


def _entries(manifest: Record) -> int:
    counts = (manifest["added_files_count"], manifest["existing_files_count"], manifest["deleted_files_count"])
    return sum(count or 0 for count in counts) if None not in counts else MAX_ENTRIES


def _tier(entries: int) -> int:
    tier = 0
    while entries >= FAN_IN:
        entries //= FAN_IN
        tier += 1
    return tier


def partition_order(entry: ManifestEntry) -> tuple[Any, ...]:
    """Sorts files by partition, NULL first, then by age."""
    values = entry.data_file["partition"].values()
    return (*(_ranked(v) for v in values), entry.sequence_number or 0, entry.path)


def _ranked(value: Any) -> tuple[Any, ...]:
    """NULL below and NaN above all other values."""
    if value is None:
        return (0,)
    return (1, value) if value == value else (2,)  # noqa: PLR0124 - NaN has no order


def bytes_per_partition(manifests: Sequence[Record], layout: PartitionLayout) -> float:
    """Stored bytes of the manifests that a scan of one partition reads, on average over the files.

    Args:
        manifests: manifest-list entries of one content and spec.
        layout: the spec.
    """
    lengths = np.array([m["manifest_length"] for m in manifests], np.int64)
    ends = []
    for place, kind in enumerate(layout.types):
        ranges = [_range(m["partitions"], place, kind) for m in manifests]
        ranks = {end: rank for rank, end in enumerate(sorted({end for pair in ranges for end in pair}))}
        ends.append(np.array([[ranks[low], ranks[high]] for low, high in ranges]))
    read = np.zeros(len(manifests), np.int64)
    for index in range(len(manifests)):
        overlaps = np.ones(len(manifests), np.bool_)
        for pairs in ends:
            overlaps &= (pairs[:, 0] <= pairs[index, 1]) & (pairs[:, 1] >= pairs[index, 0])
        read[index] = lengths[overlaps].sum()
    return float(np.average(read, weights=[max(_entries(m), 1) for m in manifests]))


def _range(summaries: Sequence[Record] | None, place: int, kind: PrimitiveType) -> tuple[tuple[Any, ...], ...]:
    """The lowest and highest value of a partition field in a manifest; all values if that is not known."""
    if summaries is None or place >= len(summaries):
        return (0,), (2,)
    summary = summaries[place]
    bounds = [decode_bound(summary[f"{end}_bound"], kind) for end in ("lower", "upper")]
    if None in bounds:  # only NULL or NaN, unless the writer left it out
        has_null, has_nan = summary["contains_null"], summary["contains_nan"]
        return (2,) if has_nan and not has_null else (0,), (0,) if has_null and not has_nan else (2,)
    low, high = ((1, bound) for bound in bounds)
    return (0,) if summary["contains_null"] else low, (2,) if summary["contains_nan"] else high


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


@dataclass(frozen=True, slots=True)
class Arranged:
    """Manifests of a snapshot sorted by partition.

    Attributes:
        records: manifest-list entries of all manifests of the snapshot.
        replaced: number of the manifests whose place new ones have taken.
        new: number of these.
        replaced_bytes: stored bytes of the replaced manifests.
        new_bytes: stored bytes of the new ones.
        bytes_before: stored bytes that a scan of one partition read of the replaced manifests.
        bytes_after: the same of the new ones.
    """

    records: tuple[Record, ...] = ()
    replaced: int = 0
    new: int = 0
    replaced_bytes: int = 0
    new_bytes: int = 0
    bytes_before: float = 0.0
    bytes_after: float = 0.0


Pays = Callable[[float, int, float | None], bool]
"""Whether manifests of one content and spec are written again: by the bytes that a scan of one partition reads of them, all
their bytes, and what such a scan will read of the new ones, None before that is known.
"""


@dataclass(slots=True)
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
        types = self._types() if groups else {}
        listed = Listed()
        for (content, spec_id), group in groups.items():
            layout = self._layout(spec_id, types)
            entries = [added_entry(f, self.snapshot_id, layout) for f in group]
            record = self._manifest(entries, content, layout)
            listed = Listed((*listed.records, record), (*listed.files, *((spec_id, e) for e in entries)))
        return listed

    def carried(self, base: "Snapshot | None", remove: Selection | None, *, forgets: bool = False) -> Listed:
        """Carry over the parent's manifests: unchanged, many small ones merged, or without removed files.

        Removed files stay listed as deleted; with `forgets` none is, of earlier commits neither.
        """
        live = self._live(base)
        if remove is None:
            return Listed(tuple(self._merged(live)))
        kept: list[Record] = []
        removed: list[tuple[int, ManifestEntry]] = []
        rewritten: list[Record] = []
        types = self._types()
        for manifest in live:
            layout = self._layout(manifest["partition_spec_id"], types)
            live_entries = self._live_entries(manifest, layout)
            entries = [
                e.with_status(EntryStatus.DELETED, self.snapshot_id) if remove(e, layout.spec) else e
                for e in live_entries
            ]
            leaving = [e for e in entries if e.status is EntryStatus.DELETED]
            if not leaving and not (forgets and manifest["deleted_files_count"] != 0):
                kept.append(manifest)
                continue
            removed += [(layout.spec.spec_id, e) for e in leaving]
            if forgets:
                entries = [e for e in entries if e.status is not EntryStatus.DELETED]
            if entries:
                rewritten.append(self._manifest(entries, ManifestContent(manifest["content"]), layout))
        return Listed((*rewritten, *kept), tuple(removed))

    def arranged(self, base: "Snapshot | None", target_bytes: int, pays: Pays, limit_bytes: int) -> Arranged:
        """Sort the files of a snapshot by partition into manifests of about `target_bytes`, where that pays.

        A manifest ends between two partitions if it can, so that a scan of one partition reads few of them. About
        `limit_bytes` of entries are held in memory.
        """
        groups: dict[tuple[int, int], list[Record]] = {}
        for manifest in self._live(base):
            groups.setdefault((manifest["content"], manifest["partition_spec_id"]), []).append(manifest)
        types = self._types() if groups else {}
        done = Arranged()
        for (content, spec_id), group in groups.items():
            layout = self._layout(spec_id, types)
            total = sum(m["manifest_length"] for m in group)
            before = bytes_per_partition(group, layout)
            new: list[Record] = []
            if len(group) > 1 and pays(before, total, None):
                num_entries = sum(self._num_live(m, layout) for m in group)
                parts = self._by_partition(group, layout, num_entries, limit_bytes)
                most = max(1, target_bytes * num_entries // total)
                new += (self._manifest(part, ManifestContent(content), layout) for part in _parts(parts, most))
                after = bytes_per_partition(new, layout)
                if pays(before, total, after):
                    done = Arranged(
                        (*done.records, *new),
                        done.replaced + len(group),
                        done.new + len(new),
                        done.replaced_bytes + total,
                        done.new_bytes + sum(m["manifest_length"] for m in new),
                        done.bytes_before + before,
                        done.bytes_after + after,
                    )
                    continue
            self.storage.remove(m["manifest_path"] for m in new)
            done = replace(done, records=(*done.records, *group))
        return done

    def _by_partition(
        self, group: Sequence[Record], layout: PartitionLayout, num_entries: int, limit_bytes: int
    ) -> Iterator[ManifestEntry]:
        """The live entries of manifests by partition. If they do not fit into memory, the manifests are read once for each range."""
        size = _entry_bytes(self._live_entries(group[0], layout)) * num_entries
        bounds: list[tuple[Any, ...]] = []
        if size > limit_bytes:
            count = ceil(size / limit_bytes)
            step = max(1, num_entries // (count * RANGE_SAMPLES))
            keys = sorted(partition_order(e) for m in group for e in self._live_entries(m, layout)[::step])
            bounds = [keys[place * len(keys) // count] for place in range(1, count)]
        for low, high in pairwise((None, *bounds, None)):
            entries = []
            for manifest in group:
                for entry in self._live_entries(manifest, layout):
                    key = partition_order(entry) if bounds else ()
                    if (low is None or key >= low) and (high is None or key < high):
                        entries.append(entry)
            entries.sort(key=partition_order)
            yield from entries

    def _live(self, base: "Snapshot | None") -> list[Record]:
        """Manifests that have live files or do not record their number."""
        listed = [] if base is None else read_manifest_list(self.storage.read(base.manifest_list), base.manifest_list)
        return [m for m in listed if any(m[f"{kind}_files_count"] != 0 for kind in ("added", "existing"))]

    def write(self, name: str, data: bytes) -> str:
        """Write a file to the table's metadata folder; return its path."""
        path = f"{metadata_location(self.table)}/{name}"
        if not self.is_dry:
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
            entries = [e for manifest in group for e in self._live_entries(manifest, layout)]
            merged.append(self._manifest(entries, ManifestContent(group[0]["content"]), layout))
        gone = {manifest["manifest_path"] for group in groups for manifest in group}
        return [*merged, *(m for m in live if m["manifest_path"] not in gone)]

    def _num_live(self, manifest: Record, layout: PartitionLayout) -> int:
        counts = manifest["added_files_count"], manifest["existing_files_count"]
        return len(self._live_entries(manifest, layout)) if None in counts else sum(counts)

    def _live_entries(self, manifest: Record, layout: PartitionLayout) -> list[ManifestEntry]:
        """The live entries of a manifest, for another manifest."""
        entries = read_manifest(self.storage.read(manifest["manifest_path"]), manifest, layout)
        live = (e for e in entries if e.status is not EntryStatus.DELETED)
        return [e.with_status(EntryStatus.EXISTING, e.snapshot_id) for e in live]

    def _manifest(self, entries: Sequence[ManifestEntry], content: ManifestContent, layout: PartitionLayout) -> Record:
        data = manifest_bytes(entries, content, layout, self.schema, self.version)
        return manifest_record(
            entries,
            content,
            layout,
            path=self.write(f"{uuid.uuid4()}-m0.avro", data),
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


def _parts(entries: Iterable[ManifestEntry], most: int) -> Iterator[Sequence[ManifestEntry]]:
    """Cut entries that are sorted by partition into parts of at most `most`, between two partitions if they can be."""
    held: list[ManifestEntry] = []
    members: list[ManifestEntry] = []  # of the last partition
    last: tuple[Any, ...] | None = None
    for entry in entries:
        partition = partition_order(entry)[:-2]
        if partition != last:
            held, members, last = held + members, [], partition
        members.append(entry)
        if held and len(held) + len(members) > most:
            yield held
            held = []
        if len(members) > most:
            yield members[:most]
            members = members[most:]
    if held or members:
        yield held + members


def _entry_bytes(entries: Sequence[ManifestEntry]) -> int:
    """Memory that an entry takes, by some of them."""
    some = entries[:: max(1, len(entries) // 64)]
    return max(1, MEMORY_PER_BYTE * len(pickle.dumps(some)) // max(1, len(some)))
