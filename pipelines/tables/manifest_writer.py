"""Manifests and manifest lists, written and re-written by fastavro, in format version 2.

Which entries go into a commit is the business of `commit.py`; reading for scans that of scan_core. Schemas and values
are in `manifest_avro.py`.
"""

import io
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import IntEnum
from typing import Any

import fastavro

from pipelines.tables.column_bounds import single_value
from pipelines.tables.file_metrics import WrittenFile
from pipelines.tables.manifest_avro import (
    MANIFEST_FILE,
    METRIC_MAPS,
    PartitionLayout,
    Record,
    decoded_partition,
    encoded_partition,
    entry_schema,
    member,
    names_by_id,
    parsed,
    renamed,
)
from scan_core.avro.container import BLANK_SYNC, AvroError, malformed_avro, read_header, with_checksum
from scan_core.schema import Type


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
