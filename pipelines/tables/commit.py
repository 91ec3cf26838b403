"""One Iceberg snapshot per batch: data and delete files, schema and spec changes, and the position, all at once.

Manifests are our own (`manifest_writer.py`); the catalog, through PyIceberg, swaps the metadata if nobody else did.
What belongs into a snapshot is decided by change log, mirror and maintenance.
"""

import time
import uuid
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal, TypeVar

from pipelines import crash_points
from pipelines.errors import CommitConflictError
from pipelines.tables.commit_manifests import Selection, SnapshotManifests
from pipelines.tables.commit_outcome import settle
from pipelines.tables.file_metrics import WrittenFile
from pipelines.tables.loaded_table import current_schema, data_location, metadata_location, specs_of, storage_of
from pipelines.tables.manifest_writer import ManifestEntry, manifest_list_bytes
from pipelines.tables.metadata_swap import supports, swap_snapshot
from pipelines.tables.schema_document import schema_document
from pipelines.tables.snapshot_summary import Change, summarise
from pipelines.tables.table_writer import WriterOptions, WriteTarget
from scan_core.schema import Schema
from scan_core.snapshot import PartitionSpec

Operation = Literal["append", "overwrite", "delete", "replace"]
Result = TypeVar("Result")

MAIN = "main"
_AFTER_SNAPSHOT = frozenset({"remove-snapshot-ref", "remove-snapshots"})
"""Updates that make sense once the snapshot of a commit is there."""
CONFLICT_ATTEMPTS = 10
FIRST_PAUSE_SECONDS = 0.05
LONGEST_PAUSE_SECONDS = 2.0
"""Each pause is random, its bound doubled with each attempt: several seconds in all, longer than commits take."""


@dataclass(frozen=True, slots=True)
class Committed:
    """A snapshot that is now the table's."""

    snapshot_id: int
    sequence_number: int
    operation: str
    summary: Mapping[str, str]


def everything(_entry: ManifestEntry, _spec: PartitionSpec) -> bool:
    """Select every live file: a truncate."""
    return True


def partitions_in(spec_id: int, partitions: Collection[tuple[Any, ...]]) -> Selection:
    """Select the files of some partitions, given as they stand in manifests."""
    wanted = frozenset(partitions)

    def selects(entry: ManifestEntry, spec: PartitionSpec) -> bool:
        if spec.spec_id != spec_id:
            return False
        return tuple(entry.data_file["partition"][f.name] for f in spec.fields) in wanted

    return selects


class RowDelta:
    """A commit in the making: schema and specs first, then files, then `commit`, once.

    It is bound to the snapshot that was current when it began; if the table has moved on, `commit` fails and whoever
    began it decides whether to begin again.
    """

    def __init__(self, table: Any, options: WriterOptions | None = None) -> None:
        self.table = table
        self.storage = storage_of(table)
        self.schema: Schema = current_schema(table)
        self.specs: dict[int, PartitionSpec] = specs_of(table)
        self.default_spec: PartitionSpec = self.specs[table.spec().spec_id]
        self.base_snapshot_id: int | None = table.metadata.current_snapshot_id
        self._options = options or WriterOptions()
        self._updates: list[dict[str, Any]] = []
        self._requirements: list[dict[str, Any]] = []
        self._written: list[str] = []
        self._may_be_there = False

    @property
    def target(self) -> WriteTarget:
        """Where files of this commit go, in the schema of this commit."""
        return WriteTarget(self.schema, data_location(self.table), self.storage, self._options)

    def evolve(self, schema: Schema) -> None:
        """Make `schema` the table's current one, in this commit. Its new fields have ids above all others.

        Of several schemas of one commit only the last one is committed.
        """
        metadata = self.table.metadata
        self.schema = Schema(max(s.schema_id for s in metadata.schemas) + 1, schema.fields, schema.identifier_field_ids)
        self._updates = [u for u in self._updates if u["action"] not in {"add-schema", "set-current-schema"}]
        self._updates += [
            {"action": "add-schema", "schema": schema_document(self.schema)},
            {"action": "set-current-schema", "schema-id": -1},
        ]
        schema_of = {"assert-current-schema-id", "assert-last-assigned-field-id"}
        self._requirements = [r for r in self._requirements if r["type"] not in schema_of]
        self._requirements += [
            {"type": "assert-current-schema-id", "current-schema-id": metadata.current_schema_id},
            {"type": "assert-last-assigned-field-id", "last-assigned-field-id": metadata.last_column_id},
        ]

    def set_properties(self, properties: Mapping[str, str]) -> None:
        """Set properties of the table, in this commit."""
        self._updates.append({"action": "set-properties", "updates": dict(properties)})

    def unpartitioned_spec(self) -> PartitionSpec:
        """A spec under which deletes are global (rule 4): the table's own, or one added with this commit."""
        found = next((s for s in self.specs.values() if s.is_unpartitioned), None)
        if found is not None:
            return found
        spec = PartitionSpec(max(self.specs) + 1, ())
        self.specs[spec.spec_id] = spec
        self._updates.append({"action": "add-spec", "spec": {"spec-id": spec.spec_id, "fields": []}})
        last = self.table.metadata.last_partition_id
        self._requirements.append({"type": "assert-last-assigned-partition-id", "last-assigned-partition-id": last})
        return spec

    def commit(
        self,
        added: Sequence[WrittenFile],
        properties: Mapping[str, str],
        *,
        remove: Selection | None = None,
        operation: Operation | None = None,
    ) -> Committed:
        """Write manifests and swap the table's metadata.

        Args:
            added: new files, under specs of this table.
            properties: for the snapshot's summary: positions.
            remove: which live files leave the table.
            operation: what the snapshot calls itself; None derives it.

        Raises:
            CommitConflictError: the table has changed since this commit began; nothing of it is visible.
            CommitUnknownError: the catalog does not tell whether it happened.
        """
        snapshot, committed = self._snapshot(added, properties, remove, operation)
        self._swap(snapshot)
        crash_points.reached("after-commit")
        return committed

    def stage(
        self,
        added: Sequence[WrittenFile],
        properties: Mapping[str, str],
        *,
        branch: str,
        remove: Selection | None = None,
        operation: Operation | None = None,
    ) -> Committed:
        """As `commit`, but the snapshot becomes the head of a branch, and whoever reads the table sees nothing of it.

        `make_current` in `staged_commit.py` lets readers see it. Its schema is not the current one until then.

        Args:
            added: as for `commit`.
            properties: as for `commit`.
            branch: moved if it is there.
            remove: as for `commit`.
            operation: as for `commit`.

        Raises:
            CommitConflictError: as for `commit`.
            CommitUnknownError: as for `commit`.
        """
        snapshot, committed = self._snapshot(added, properties, remove, operation)
        later = {"set-current-schema", "set-properties"}
        self._updates = [update for update in self._updates if update["action"] not in later]
        self._settle(snapshot, partial(self._ask_catalog, snapshot, branch))
        return committed

    @property
    def written(self) -> tuple[str, ...]:
        """Paths of manifests and manifest lists that were written for this commit."""
        return tuple(self._written)

    def also(self, updates: Sequence[Mapping[str, Any]], requirements: Sequence[Mapping[str, Any]] = ()) -> None:
        """Change more of the table in this commit, in the words of the REST catalog specification."""
        self._updates += [dict(update) for update in updates]
        self._requirements += [dict(requirement) for requirement in requirements]

    def _snapshot(
        self,
        added: Sequence[WrittenFile],
        properties: Mapping[str, str],
        remove: Selection | None,
        operation: Operation | None,
    ) -> tuple[dict[str, Any], Committed]:
        """Write manifests; the snapshot as metadata has it."""
        crash_points.reached("after-files")
        metadata = self.table.metadata
        snapshot_id = metadata.new_snapshot_id()
        sequence_number = metadata.last_sequence_number + 1
        base = next((s for s in reversed(metadata.snapshots) if s.snapshot_id == self.base_snapshot_id), None)
        manifests = SnapshotManifests(
            self.table, self.storage, self.schema, self.specs, snapshot_id, sequence_number, self._written
        )
        carried = manifests.carried(base, remove)
        records = [*manifests.added(added), *carried.records]
        change = Change.of(added, carried.removed)
        named = operation or change.operation
        summary = summarise(change, base.summary if base is not None else None, properties)
        path = manifests.write(
            f"snap-{snapshot_id}-0-{uuid.uuid4()}.avro",
            manifest_list_bytes(records, snapshot_id, self.base_snapshot_id, sequence_number),
        )
        crash_points.reached("after-manifests")
        snapshot = {
            "snapshot-id": snapshot_id,
            **({} if self.base_snapshot_id is None else {"parent-snapshot-id": self.base_snapshot_id}),
            "sequence-number": sequence_number,
            "timestamp-ms": max(int(time.time() * 1000), metadata.last_updated_ms + 1),
            "manifest-list": path,
            "summary": {"operation": named, **summary},
            "schema-id": self.schema.schema_id,
        }
        return snapshot, Committed(snapshot_id, sequence_number, named, summary)

    def discard(self, files: Sequence[WrittenFile]) -> None:
        """Remove files written for this commit, unless it happened, or may have happened."""
        if not self._may_be_there:
            self.storage.remove(f.path for f in files)

    # -- the swap --------------------------------------------------------------------------------------------------

    def _swap(self, snapshot: dict[str, Any]) -> None:
        """Make the snapshot the table's current one, with all other changes of this commit.

        SQL catalogs take a new metadata file and swap a pointer; others, and changes of schema or specs, go through
        PyIceberg in the words of the REST catalog specification.
        """
        is_plain = not self._updates and self.table.metadata.current_snapshot_id == self.base_snapshot_id
        swap = self._swap_pointer if is_plain and supports(self.table) else self._ask_catalog
        self._settle(snapshot, partial(swap, snapshot))

    def _settle(self, snapshot: Mapping[str, Any], request: Callable[[], None]) -> None:
        self._may_be_there = True
        try:
            settle(self.table, self.base_snapshot_id, snapshot["snapshot-id"], request)
        except CommitConflictError:
            self._may_be_there = False
            self.storage.remove(self._written)
            raise

    def _swap_pointer(self, snapshot: dict[str, Any]) -> None:
        if not swap_snapshot(self.table, snapshot, self.storage, metadata_location(self.table)):
            raise CommitConflictError(f"another writer changed {'.'.join(self.table.name())}")

    def _ask_catalog(self, snapshot: dict[str, Any], branch: str = MAIN) -> None:
        reference = {"type": "branch", "ref-name": branch, "snapshot-id": snapshot["snapshot-id"]}
        request_commit(
            self.table,
            [
                {"type": "assert-ref-snapshot-id", "ref": MAIN, "snapshot-id": self.base_snapshot_id},
                *self._requirements,
            ],
            [
                *(update for update in self._updates if update["action"] not in _AFTER_SNAPSHOT),
                {"action": "add-snapshot", "snapshot": snapshot},
                {"action": "set-snapshot-ref", **reference},
                *(update for update in self._updates if update["action"] in _AFTER_SNAPSHOT),
            ],
        )


def request_commit(table: Any, requirements: Sequence[Mapping[str, Any]], updates: Sequence[Mapping[str, Any]]) -> None:
    """Ask the catalog for a commit, in the words of the REST catalog specification; `table` shows it afterwards.

    Raises:
        CommitConflictError: another snapshot was added meanwhile, be it on another branch.
        CommitFailedException: a requirement is not met; whatever else the client of the catalog raises.
    """
    from pyiceberg.exceptions import BadRequestError
    from pyiceberg.table import CommitTableRequest

    *namespace, name = table.name()
    request = CommitTableRequest.model_validate(
        {
            "identifier": {"namespace": namespace, "name": name},
            "requirements": [
                {"type": "assert-table-uuid", "uuid": str(table.metadata.table_uuid)},
                *requirements,
            ],
            "updates": list(updates),
        }
    )
    try:
        table._do_commit(request.updates, request.requirements)  # noqa: SLF001 - no public way to commit one
    except (ValueError, BadRequestError) as error:
        if "sequence number" not in str(error):
            raise
        # no requirement asks for the last sequence number, which snapshots of other branches take, too
        raise CommitConflictError(f"another writer changed {'.'.join(table.name())}: {error}") from error


def request_or_conflict(
    table: Any, requirements: Sequence[Mapping[str, Any]], updates: Sequence[Mapping[str, Any]]
) -> None:
    """As `request_commit`, for changes that do no harm if they happened in spite of the answer.

    Raises:
        CommitConflictError: another writer was faster.
    """
    from pyiceberg.exceptions import CommitFailedException

    try:
        request_commit(table, requirements, updates)
    except CommitFailedException as error:
        raise CommitConflictError(f"another writer changed {'.'.join(table.name())}: {error}") from error


def retry_conflicts(attempt: Callable[[], Result], attempts: int = CONFLICT_ATTEMPTS) -> Result:
    """The result of `attempt`, tried again after a conflict, with a growing pause.

    Each attempt looks at the table afresh and decides whether what it wants is still right.
    """
    from tenacity import Retrying, retry_if_exception, stop_after_attempt, wait_random_exponential

    again = Retrying(
        retry=retry_if_exception(lambda error: isinstance(error, CommitConflictError) and error.may_retry),
        stop=stop_after_attempt(attempts),
        wait=wait_random_exponential(multiplier=FIRST_PAUSE_SECONDS, max=LONGEST_PAUSE_SECONDS),
        reraise=True,
    )
    return again(attempt)
