"""Chooses the manifests of a new snapshot.

They describe the added files, or are carried over from the parent snapshot; small ones are merged.
"""

import json
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from pipelines.iceberg.file_metrics import FileContent, WrittenFile
from pipelines.iceberg.loaded_table import metadata_location, source_types
from pipelines.iceberg.manifests import (
    EntryStatus,
    ManifestContent,
    ManifestEntry,
    ManifestHeader,
    PartitionLayout,
    Record,
    added_entry,
    manifest_bytes,
    manifest_record,
    read_manifest,
    read_manifest_list,
)
from pipelines.iceberg.row_shape import partition_types
from pipelines.iceberg.schema_evolution import schema_document
from pipelines.iceberg.storage import Storage
from scan_core.model.schema import Schema
from scan_core.model.snapshot import PartitionSpec

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
