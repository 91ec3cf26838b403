"""Reads the metadata, manifests and deletion vectors of a table for the reference.

Written from the specification alone: nothing in this folder imports scan_core, pipelines or PyIceberg.
"""

import gzip
import io
import json
import math
import re
import struct
import zlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import fastavro
import numpy as np
import numpy.typing as npt
import pyarrow as pa
from pyarrow import fs
from pyroaring import BitMap

_STATUS_ADDED, _STATUS_DELETED = 1, 2
_DATA, _DELETES = 0, 1
_SYNC_MARKER_BYTES = 16


class RefusedError(ValueError):
    """The table breaks a rule; the message names the file and what is wrong with it."""


@dataclass(frozen=True, slots=True)
class FileFacts:
    """One live entry of a snapshot's manifests. `content`: 0 data, 1 position deletes, 2 equality deletes."""

    content: int
    path: str
    format: str
    spec_id: int
    partition: tuple[Any, ...]
    record_count: int
    sequence_number: int
    first_row_id: int | None
    equality_ids: tuple[int, ...]
    referenced_data_file: str | None
    content_offset: int | None
    content_size: int | None


@dataclass(frozen=True, slots=True)
class TableFacts:
    """A metadata file, and where its paths lead.

    Attributes:
        path: the metadata file.
        document: its content.
        relocate: old path prefix, new path prefix.
        filesystem: of the object store that has the files; None for local files.
    """

    path: str
    document: Mapping[str, Any]
    relocate: tuple[tuple[str, str], ...]
    filesystem: fs.FileSystem | None = None

    @property
    def schemas(self) -> dict[int, Mapping[str, Any]]:
        """Schemas by id; a v1 table may have just one, without an id."""
        listed = self.document.get("schemas") or [self.document["schema"]]
        return {s.get("schema-id", 0): s for s in listed}

    @property
    def current_schema(self) -> Mapping[str, Any]:
        """The schema in force for the current table and for branches."""
        if not self.document.get("schemas"):
            return dict(self.document["schema"])
        return self.schemas[self.document["current-schema-id"]]

    @property
    def specs(self) -> dict[int, list[Mapping[str, Any]]]:
        """Partition fields by spec id."""
        listed = self.document.get("partition-specs")
        if listed is None:
            return {0: list(self.document.get("partition-spec", []))}
        return {s["spec-id"]: s["fields"] for s in listed}

    @property
    def name_mapping(self) -> list[Mapping[str, Any]] | None:
        """`schema.name-mapping.default`, parsed."""
        text = (self.document.get("properties") or {}).get("schema.name-mapping.default")
        return json.loads(text) if text else None

    def snapshot(self, snapshot_id: int | None, ref: str | None = None) -> tuple[Mapping[str, Any] | None, Any]:
        """The snapshot and the schema in force for it (rule 22); the current one by default."""
        by_id = {s["snapshot-id"]: s for s in self.document.get("snapshots") or []}
        if ref is not None:
            target = self.document["refs"][ref]
            wanted = by_id[target["snapshot-id"]]
            if target["type"] == "branch":
                return wanted, self.current_schema
            return wanted, self._schema_of(wanted)
        if snapshot_id is None:
            current = self.document.get("current-snapshot-id")
            return (None if current in (None, -1) else by_id[current]), self.current_schema
        if snapshot_id not in by_id:
            raise KeyError(f"{self.path}: no snapshot {snapshot_id}")
        return by_id[snapshot_id], self._schema_of(by_id[snapshot_id])

    def _schema_of(self, snapshot: Mapping[str, Any]) -> Mapping[str, Any]:
        schema_id = snapshot.get("schema-id")
        return self.current_schema if schema_id is None else self.schemas[schema_id]

    def local(self, path: str) -> str:
        """The file behind a path as the table writes it, as DuckDB opens it: a local path, or one of `protocol`."""
        for old, new in self.relocate:
            if path.startswith(old):
                path = new + path[len(old) :]
                break
        path = _local(path)
        if self.filesystem is not None and (remote := _REMOTE.match(path)):
            return f"{self.protocol}://{path[remote.end() :]}"
        return path

    @property
    def protocol(self) -> str:
        """A scheme that stands for the file system in paths."""
        return f"nevermore{id(self.filesystem)}"

    def read(self, path: str, offset: int = 0, length: int | None = None) -> bytes:
        """Bytes of a file, by a path as the table writes it."""
        local = self.local(path)
        store = self.filesystem
        if store is None or not local.startswith(self.protocol):
            store = fs.LocalFileSystem()
        with store.open_input_file(local.removeprefix(f"{self.protocol}://")) as file:
            file.seek(offset)
            return bytes(file.read(length))

    def files(self, snapshot: Mapping[str, Any] | None) -> list[FileFacts]:
        """The live data and delete files of a snapshot."""
        if snapshot is None:
            return []
        return [entry for manifest in self._manifests(snapshot) for entry in self._entries(manifest)]

    def _manifests(self, snapshot: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
        if "manifest-list" in snapshot:
            _, rows = read_avro(self.read(snapshot["manifest-list"]))
            yield from rows
        else:
            yield from ({"manifest_path": path} for path in snapshot.get("manifests", []))

    def _entries(self, manifest: Mapping[str, Any]) -> Iterator[FileFacts]:
        path = manifest["manifest_path"]
        reader, rows = read_avro(self.read(path))
        spec_id = manifest.get("partition_spec_id")
        if spec_id is None:
            spec_id = self._spec_of_header(reader.metadata, path)
        order = self._partition_order(reader.writer_schema, spec_id)
        manifest_sequence = manifest.get("sequence_number")
        next_row_id = manifest.get("first_row_id")
        for row in rows:
            if row["status"] == _STATUS_DELETED:
                continue
            file = row["data_file"]
            content = file.get("content") or _DATA
            if bool(content) != bool(manifest.get("content") or _DATA):
                raise RefusedError(f"{path}: entry {file['file_path']} has content {content} in the wrong manifest")
            first_row_id = None
            if next_row_id is not None and content == _DATA:
                first_row_id = file.get("first_row_id")
                if first_row_id is None:
                    first_row_id = next_row_id
                    next_row_id += file["record_count"]
            yield FileFacts(
                content=content,
                path=file["file_path"],
                format=file["file_format"].lower(),
                spec_id=spec_id,
                partition=tuple(_identity((file.get("partition") or {}).get(name), kind) for name, kind in order),
                record_count=file["record_count"],
                sequence_number=_sequence_number(row, manifest_sequence, path),
                first_row_id=first_row_id,
                equality_ids=tuple(file.get("equality_ids") or ()),
                referenced_data_file=file.get("referenced_data_file"),
                content_offset=file.get("content_offset"),
                content_size=file.get("content_size_in_bytes"),
            )

    def _spec_of_header(self, header: Mapping[str, str], path: str) -> int:
        """The spec of a manifest that is in no list: by its id, else by its fields, else the only one."""
        if "partition-spec-id" in header:
            return int(header["partition-spec-id"])
        stated = json.loads(header["partition-spec"]) if "partition-spec" in header else None
        if stated is None and len(self.specs) == 1:
            return min(self.specs)
        fields = stated["fields"] if isinstance(stated, dict) else stated or []
        wanted = [(f["source-id"], f["transform"]) for f in fields]
        for spec_id, spec in self.specs.items():
            if stated is not None and [(f["source-id"], f["transform"]) for f in spec] == wanted:
                return spec_id
        raise RefusedError(f"{path}: its header names no partition spec of the table")

    def _partition_order(self, schema: Mapping[str, Any], spec_id: int) -> list[tuple[str | None, str]]:
        """Names and types of the partition record's members, in the order of the spec's fields; None where one is missing."""
        data_file = next(f for f in schema["fields"] if f["name"] == "data_file")["type"]
        if not self.specs[spec_id]:
            return []
        record = next(f for f in data_file["fields"] if f["name"] == "partition")["type"]
        members = next(b for b in record if b != "null")["fields"] if isinstance(record, list) else record["fields"]
        by_id = {m["field-id"]: m["name"] for m in members if "field-id" in m}
        by_name = {m["name"]: m["name"] for m in members}
        kinds = {m["name"]: json.dumps(m["type"]) for m in members}
        names = [by_id.get(f.get("field-id"), by_name.get(f["name"])) for f in self.specs[spec_id]]
        return [(name, kinds.get(name or "", "")) for name in names]


_REMOTE = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*://")


def _local(path: str) -> str:
    return re.sub(r"^file:/*", "/", path)


def read_table_facts(
    location: str | Path, relocate: Mapping[str, str] | None = None, filesystem: fs.FileSystem | None = None
) -> TableFacts:
    """Facts of the table whose metadata file is `location`, or its directory if it is local.

    Args:
        location: the metadata file or directory.
        relocate: old path prefix -> new path prefix.
        filesystem: of the object store that has the files; its paths are those of the table without the scheme.
    """
    path = _local(str(location))
    if Path(path).is_dir():
        path = str(_newest_metadata(Path(path)))
    pairs = sorted((relocate or {}).items(), key=lambda pair: -len(pair[0]))
    # the location itself is not relocated
    raw = TableFacts(path, {}, (), filesystem).read(path)
    document = json.loads(gzip.decompress(raw) if raw[:2] == b"\x1f\x8b" else raw)
    return TableFacts(path, document, tuple(pairs), filesystem)


def read_avro(content: bytes) -> tuple[Any, Iterator[Any]]:
    """An Avro file's reader, for its header, and its records with logical types left as stored integers and bytes."""
    stream = io.BytesIO(content)
    reader = fastavro.block_reader(stream)
    schema = fastavro.parse_schema(_without_logical_types(reader.writer_schema))
    if reader.codec == "zstandard":
        blocks = _zstandard_blocks(stream)
    else:
        blocks = ((block.num_records, block.bytes_) for block in reader)
    return reader, (fastavro.schemaless_reader(data, schema, None) for count, data in blocks for _ in range(count))


def _zstandard_blocks(stream: io.BytesIO) -> Iterator[tuple[int, io.BytesIO]]:
    """Number of records and their bytes, of each block after the header: fastavro knows the codec, but lacks it."""
    end = len(stream.getbuffer())
    while stream.tell() < end:
        count = fastavro.schemaless_reader(stream, "long", None)
        with pa.CompressedInputStream(
            pa.BufferReader(fastavro.schemaless_reader(stream, "bytes", None)), "zstd"
        ) as data:
            yield count, io.BytesIO(data.read())
        stream.seek(_SYNC_MARKER_BYTES, io.SEEK_CUR)


def _newest_metadata(table: Path) -> Path:
    def version(file: Path) -> tuple[int, float]:
        digits = re.match(r"v?(\d+)", file.name)
        try:
            return int(digits[1]) if digits else -1, file.stat().st_mtime
        except FileNotFoundError:  # expired since the listing
            return -2, 0.0

    return max((table / "metadata").glob("*.metadata.json*"), key=version)


def _without_logical_types(schema: Any) -> Any:
    if isinstance(schema, list):
        return [_without_logical_types(branch) for branch in schema]
    if isinstance(schema, dict):
        dropped = ("logicalType", "__fastavro_parsed__", "__named_schemas")
        return {k: _without_logical_types(v) for k, v in schema.items() if k not in dropped}
    return schema


def _identity(value: Any, kind: str) -> Any:
    """A partition value such that `==` is partition equality (rule 5)."""
    if isinstance(value, bytes) and '"decimal"' in kind:  # the column may have been widened
        number = int.from_bytes(value, "big", signed=True)
        return number.to_bytes(number.bit_length() // 8 + 1, "big", signed=True)
    if isinstance(value, float):
        return struct.pack(">d", math.nan if math.isnan(value) else value)
    return value


def _sequence_number(row: Mapping[str, Any], of_manifest: int | None, path: str) -> int:
    explicit = row.get("sequence_number")
    if explicit is not None:
        return int(explicit)
    if row["status"] == _STATUS_ADDED or not of_manifest:
        return of_manifest or 0
    raise RefusedError(f"{path}: an entry that was not added by this manifest has no sequence number")


_MAGIC = b"\xd1\xd3\x39\x64"


def positions(table: TableFacts, vector: FileFacts) -> npt.NDArray[np.int64]:
    """Deleted positions, ascending."""
    where = f"{vector.path}: deletion vector of {vector.referenced_data_file}"
    if vector.content_offset is None or vector.content_size is None or vector.referenced_data_file is None:
        raise RefusedError(f"{where}: offset, size or data file is missing")
    blob = table.read(vector.path, vector.content_offset, vector.content_size)
    if len(blob) != vector.content_size or len(blob) < 20:
        raise RefusedError(f"{where}: the blob is truncated")
    (length,) = struct.unpack_from(">i", blob, 0)
    if length != len(blob) - 8 or blob[4:8] != _MAGIC:
        raise RefusedError(f"{where}: wrong length {length} or magic {blob[4:8].hex()}")
    (checksum,) = struct.unpack_from(">I", blob, len(blob) - 4)
    if checksum != zlib.crc32(blob[4:-4]):
        raise RefusedError(f"{where}: the checksum is wrong")
    found = _decode(blob[8:-4])
    if len(found) != vector.record_count:
        raise RefusedError(f"{where}: {len(found)} positions, the manifest says {vector.record_count}")
    return found


def _decode(payload: bytes) -> npt.NDArray[np.int64]:
    (count,) = struct.unpack_from("<q", payload, 0)
    offset, parts = 8, []
    for _ in range(count):
        (high,) = struct.unpack_from("<i", payload, offset)
        bitmap = BitMap.deserialize(payload[offset + 4 :])
        parts.append(np.array(bitmap, dtype=np.int64) + (np.int64(high) << 32))
        offset += 4 + len(bitmap.serialize())
    return np.concatenate(parts) if parts else np.empty(0, dtype=np.int64)
