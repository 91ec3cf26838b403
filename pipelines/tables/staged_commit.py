"""Snapshots on branches that nobody reads by default: made current in one step, or dropped with their files.

`RowDelta.stage` makes them. A branch expires by itself, as any Iceberg engine that expires snapshots understands it.
"""

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

from pipelines import crash_points
from pipelines.config_values import KEEP_SNAPSHOTS
from pipelines.tables.commit import MAIN, Committed, request_commit, request_or_conflict, retry_conflicts
from pipelines.tables.commit_outcome import settle
from pipelines.tables.file_metrics import WrittenFile
from pipelines.tables.loaded_table import refresh, source_types, specs_of, storage_of
from pipelines.tables.manifest_avro import PartitionLayout, Record
from pipelines.tables.manifest_writer import EntryStatus, ManifestEntry, read_manifest, read_manifest_list
from pipelines.tables.partitioning import partition_types

Update = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class StagedSnapshot:
    """A snapshot on a branch.

    Attributes:
        table: as it was after the snapshot was added.
        branch: whose head it is.
        base_id: the current snapshot that it builds upon.
        committed: the snapshot.
        files: that it adds.
        written: manifests and manifest list, of this snapshot alone.
    """

    table: Any
    branch: str
    base_id: int | None
    committed: Committed
    files: tuple[WrittenFile, ...]
    written: tuple[str, ...]


def make_current(
    table: Any, staged: StagedSnapshot, properties: Mapping[str, str], obsolete: Collection[str] = ()
) -> None:
    """Let readers see a staged snapshot, and drop its branch, in one step.

    Args:
        table: whose current snapshot is the one that `staged` builds upon.
        staged: to become the current one.
        properties: to set on the table.
        obsolete: branches to drop with their snapshots.

    Raises:
        CommitConflictError: the table has changed since it was loaded; nothing is visible.
        CommitUnknownError: the catalog does not tell whether it happened.
    """
    metadata = table.metadata
    number = staged.committed.snapshot_id
    schema_id = next(s.schema_id for s in metadata.snapshots if s.snapshot_id == number)
    updates: list[Update] = []
    requirements: list[Update] = [
        {"type": "assert-ref-snapshot-id", "ref": MAIN, "snapshot-id": staged.base_id},
        {"type": "assert-ref-snapshot-id", "ref": staged.branch, "snapshot-id": number},
        {"type": "assert-current-schema-id", "current-schema-id": metadata.current_schema_id},
    ]
    if schema_id != metadata.current_schema_id:
        updates.append({"action": "set-current-schema", "schema-id": schema_id})
    if properties:
        updates.append({"action": "set-properties", "updates": dict(properties)})
    updates += [
        {"action": "set-snapshot-ref", "type": "branch", "ref-name": MAIN, "snapshot-id": number},
        {"action": "remove-snapshot-ref", "ref-name": staged.branch},
        *dropped(table, obsolete),
    ]
    expired = _expired(table, staged, obsolete)
    if expired:
        updates.append({"action": "remove-snapshots", "snapshot-ids": sorted(expired)})
    settle(table, staged.base_id, number, partial(request_commit, table, requirements, updates), is_staged=True)
    crash_points.reached("after-commit")
    storage_of(table).remove(s.manifest_list for s in metadata.snapshots if s.snapshot_id in expired)


def dropped(table: Any, branches: Collection[str]) -> list[Update]:
    """Updates that drop branches of a table and the snapshots at their heads, as far as they are there."""
    refs = table.metadata.refs
    found = [name for name in branches if name in refs and name != MAIN]
    heads = sorted({refs[name].snapshot_id for name in found} - _kept_heads(table, found))
    updates: list[Update] = [{"action": "remove-snapshot-ref", "ref-name": name} for name in found]
    return [*updates, {"action": "remove-snapshots", "snapshot-ids": heads}] if heads else updates


def drop_branches(table: Any, branches: Collection[str]) -> None:
    """Drop branches and the snapshots at their heads; files stay.

    Raises:
        CommitConflictError: others kept changing the table.
    """

    def attempt() -> None:
        refresh(table)
        updates = dropped(table, branches)
        if updates:
            heads = {name: table.metadata.refs[name].snapshot_id for name in branches if name in table.metadata.refs}
            required = [{"type": "assert-ref-snapshot-id", "ref": n, "snapshot-id": i} for n, i in heads.items()]
            request_or_conflict(table, required, updates)

    retry_conflicts(attempt)


def changed_files(table: Any, base_id: int | None) -> Iterator[tuple[int, ManifestEntry]]:
    """Files that are live in only one of two snapshots, the base and the current one, with the ids of their specs.

    Args:
        table: from the catalog.
        base_id: of a snapshot of it; None for an empty table.
    """
    snapshots = {s.snapshot_id: s for s in table.metadata.snapshots}
    storage, types, specs = storage_of(table), source_types(table), specs_of(table)
    both: list[dict[str, Record]] = []
    for snapshot_id in (base_id, table.metadata.current_snapshot_id):
        path = None if snapshot_id is None else snapshots[snapshot_id].manifest_list
        listed = [] if path is None else read_manifest_list(storage.read(path), path)
        both.append({manifest["manifest_path"]: manifest for manifest in listed})
    live: list[dict[str, tuple[int, ManifestEntry]]] = []
    for own, other in (both, reversed(both)):
        found: dict[str, tuple[int, ManifestEntry]] = {}
        for path, manifest in own.items():
            if path in other:
                continue
            spec = specs[manifest["partition_spec_id"]]
            layout = PartitionLayout(spec, partition_types(spec, types))
            for entry in read_manifest(storage.read(path), manifest, layout):
                if entry.status is not EntryStatus.DELETED:
                    found[entry.path] = (spec.spec_id, entry)
        live.append(found)
    for path in live[0].keys() ^ live[1].keys():
        yield live[0].get(path) or live[1][path]


def _kept_heads(table: Any, without: Collection[str]) -> set[int]:
    """Snapshots that other branches and tags stand at."""
    return {ref.snapshot_id for name, ref in table.metadata.refs.items() if name not in without}


def _expired(table: Any, staged: StagedSnapshot, obsolete: Collection[str]) -> set[int]:
    """The oldest snapshots beyond the number that the table keeps."""
    wanted = table.metadata.properties.get(KEEP_SNAPSHOTS)
    if wanted is None:
        return set()
    gone = {table.metadata.refs[name].snapshot_id for name in obsolete if name in table.metadata.refs}
    held = _kept_heads(table, [MAIN]) | {staged.committed.snapshot_id}
    left = [s.snapshot_id for s in table.metadata.snapshots if s.snapshot_id not in gone]
    excess = len(left) - max(1, int(wanted))
    return set([i for i in left if i not in held][: max(0, excess)])
