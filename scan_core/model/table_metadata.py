"""The facts of a table's metadata, and time travel over its snapshots.

How they are written in a file is in `metadata/table_json.py`; what a snapshot contains is in `metadata/manifests.py`.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, NamedTuple

from nevermore.scan_core.model.errors import MalformedTableError, SnapshotNotFoundError
from nevermore.scan_core.model.schema import NestedField, Schema, Type
from nevermore.scan_core.model.snapshot import PartitionSpec, Snapshot
from nevermore.scan_core.model.transforms import partition_types

_MAX_LISTED = 12
"""Snapshots named in an error message."""


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
    _partition_types: dict[int, tuple[Type, ...]] = field(default_factory=dict, repr=False, compare=False)

    @property
    def schema(self) -> Schema:
        """The table's current schema."""
        return self.schemas[self.current_schema_id]

    @property
    def current_snapshot(self) -> Snapshot | None:
        """The current snapshot; None for a table without snapshots."""
        return None if self.current_snapshot_id is None else self.snapshots[self.current_snapshot_id]

    def field_paths(self) -> Mapping[int, tuple[NestedField, ...]]:
        """For each field id of every schema, the fields from its top-level column down, as the newest schema has it.

        The current schema is the newest, regardless of its number.
        """
        if not self._paths:
            for schema_id in sorted(self.schemas, key=lambda i: (i == self.current_schema_id, i)):
                schema = self.schemas[schema_id]
                self._paths.update({i: schema.path(i) for i in schema.field_ids})
        return self._paths

    def partition_types(self, spec_id: int) -> tuple[Type, ...]:
        """Types of the partition values of a spec, by the newest types of their source columns."""
        if spec_id not in self._partition_types:
            self._partition_types[spec_id] = partition_types(self.specs[spec_id], self.field_paths())
        return self._partition_types[spec_id]

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
        listed = [f"{s.snapshot_id} ({_instant(s.timestamp_ms)})" for s in newest[:_MAX_LISTED]]
        more = [f"and {len(newest) - _MAX_LISTED} older"] if len(newest) > _MAX_LISTED else []
        return ", ".join(listed + more) or "none"


def _instant(timestamp_ms: int) -> str:
    try:
        return datetime.fromtimestamp(timestamp_ms / 1000, UTC).isoformat(timespec="milliseconds")
    except (OverflowError, ValueError, OSError):
        return f"{timestamp_ms} ms"
