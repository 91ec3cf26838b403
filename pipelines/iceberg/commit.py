"""Commits one Iceberg snapshot per batch: files, schema, partition spec, position and summary in one step.

`retry_conflicts` repeats a commit when another writer was faster, for mirrors and for all other tables. Also determines whether
a commit has happened when the catalog's answer leaves that open. Making snapshots of branches current
is part of publishing (`publish/publish_commit.py`).
"""

import errno
import logging
import re
import sys
import time
import uuid
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cache
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, Self, TypeVar, cast

from nevermore.pipelines import own_version
from nevermore.pipelines.config.tables import AssetConfig
from nevermore.pipelines.errors import (
    CommitConflictError,
    CommitNotWrittenError,
    CommitUnknownError,
    ConfigError,
    SourceError,
)
from nevermore.pipelines.iceberg import storage
from nevermore.pipelines.iceberg.loaded_table import (
    data_location,
    metadata_location,
    open_current,
    refresh,
    storage_of,
)
from nevermore.pipelines.iceberg.manifests import (
    Listed,
    NamedFiles,
    Selection,
    SnapshotManifests,
    manifest_list_bytes,
    name_of,
    with_row_ids,
)
from nevermore.pipelines.iceberg.metadata_swap import Update, can_swap, commit_to_database
from nevermore.pipelines.iceberg.positions import ancestors, summary_properties
from nevermore.pipelines.iceberg.schema_evolution import Clash, evolve, schema_document, without
from nevermore.pipelines.iceberg.table_writer import WriterOptions, WriteTarget
from nevermore.scan_core import ContentFile, DataFile, DeleteFile, NestedField, PartitionSpec, Schema, TableMetadata

if TYPE_CHECKING:
    from pyiceberg.table import Table
    from pyiceberg.table.metadata import TableMetadataV2
    from pyiceberg.table.snapshots import Snapshot

ATTEMPTS = 5
PAUSE_SECONDS = 1.0
"""Pause before the second attempt, doubled before each later one."""
Outcome = Literal["happened", "lost", "pending", "unknown"]
"""Evidence of a commit in the table: it has happened; it can no longer happen; it may still happen; unknown."""

_log = logging.getLogger(__name__)


def commit_until_known(
    table: "Table",
    base_id: int | None,
    snapshot_id: int,
    requirements: Sequence[Update],
    updates: Sequence[Update],
    *,
    is_staged: bool = False,
) -> None:
    """As `commit`, for a snapshot that must not be made twice: ask the catalog until the outcome is known.

    A request whose outcome is unknown is repeated. Each requires that the table's current snapshot is the base, so at most
    one succeeds; and once the table has another snapshot, no request in flight can succeed any more. A conflict
    while the table is still at the base does not mean that an earlier attempt failed: catalogs lock tables, and it may have
    been caused by the lock of that very attempt.

    Args:
        table: table from the catalog; updated to show the snapshot.
        base_id: the snapshot that the commit builds upon.
        snapshot_id: the snapshot that the commit makes.
        requirements: as for `commit`.
        updates: as for `commit`.
        is_staged: whether the snapshot already exists, and the commit makes it the current one.

    Raises:
        CommitConflictError: the commit has not happened and never will.
        CommitNotWrittenError: likewise, as a disk is full or broken.
        CommitUnknownError: the commit may have happened, or may still happen.
    """
    from pyiceberg.exceptions import CommitFailedException

    name = ".".join(table.name())
    last: Exception | None = None
    is_in_flight = False
    for attempt in range(ATTEMPTS):
        if attempt:
            time.sleep(PAUSE_SECONDS * 2 ** (attempt - 1))
        try:
            _request(table, requirements, updates)
        except Exception as error:  # noqa: BLE001 - whatever it was, the table tells what became of the commit
            last = error
        else:
            return
        # The first request found another snapshot, or was never sent: nothing is in flight, so the table need not be loaded.
        if attempt == 0 and isinstance(last, CommitConflictError | CommitNotWrittenError):
            raise last
        outcome = _outcome(table, base_id, snapshot_id, is_staged=is_staged)
        if outcome == "happened":
            _log.warning("%s: the commit has happened, though the answer was: %s", name, last)
            return
        # A conflict proves that this request failed; after any other error the request may still be in progress.
        is_conflict = isinstance(last, (CommitFailedException, CommitConflictError))
        is_in_flight |= not is_conflict
        is_known = isinstance(last, CommitConflictError) or not is_in_flight
        if outcome == "lost" or (outcome == "pending" and is_known):
            raise CommitConflictError(f"another writer changed {name}: {last}") from last
        # Neither a conflict nor a temporary failure: the catalog rejects the request, and would do so again.
        if not is_conflict and not _is_overloaded(last):
            raise last
        _log.warning("%s: whether the commit has happened is not known yet: %s", name, last)
    raise CommitUnknownError(
        f"{name}: it is unknown whether the catalog has committed ({last}); nothing was removed. Run again when it "
        "answers: a commit that has happened is not repeated"
    ) from last


def _outcome(table: "Table", base_id: int | None, snapshot_id: int, *, is_staged: bool) -> Outcome:
    """The evidence of a commit in the table as the catalog has it now."""
    try:
        now = table.catalog.load_table(table.name())
    except Exception as error:  # noqa: BLE001 - a catalog that does not answer tells nothing
        _log.warning("%s cannot be loaded: %s", ".".join(table.name()), error)
        return "unknown"
    line = list(ancestors(now))
    # A staged snapshot is already in the table: what counts is whether it is the current one or its ancestor.
    if snapshot_id in {snapshot.snapshot_id for snapshot in (line if is_staged else now.metadata.snapshots)}:
        table.metadata, table.metadata_location, table.io = now.metadata, now.metadata_location, now.io
        return "happened"
    if now.metadata.current_snapshot_id == base_id:
        return "pending"
    if base_id in {snapshot.parent_snapshot_id for snapshot in line}:
        return "lost"
    return "unknown"  # the path back to the base has expired or was rolled back: the snapshot may have been on it


_PASSING = {
    errno.EAGAIN,
    errno.EBUSY,
    errno.ECONNABORTED,
    errno.ECONNREFUSED,
    errno.ECONNRESET,
    errno.EHOSTUNREACH,
    errno.ENETUNREACH,
    errno.EPIPE,
    errno.ETIMEDOUT,
}
_PASSING_ANSWER = re.compile(
    r"AWS Error (NETWORK_CONNECTION|SLOW_DOWN|SERVICE_UNAVAILABLE|INTERNAL_FAILURE|REQUEST_TIMEOUT|THROTTLING)|HTTP (status )?(429|5\d\d)"
)
"""Errors of object stores, which pyarrow tells by their text alone."""
_PASSING_CLASSES = (
    "EndpointConnectionError",
    "ConnectTimeoutError",
    "ReadTimeoutError",
    "ConnectionClosedError",
    "OperationalError",
)
"""Of botocore, and of psycopg2 while a server restarts."""


def is_transient(error: BaseException) -> bool:
    """Whether the same call may succeed later without any change: a conflict of commits, or a service that is away."""
    if isinstance(error, CommitConflictError):
        return error.may_retry
    if isinstance(error, CommitUnknownError) or (isinstance(error, Exception) and _is_overloaded(error)):
        return True
    if isinstance(error, OSError) and (error.errno in _PASSING or _PASSING_ANSWER.search(str(error))):
        return True
    module, _, _ = type(error).__module__.partition(".")
    is_passing = module in {"botocore", "psycopg2"} and type(error).__name__ in _PASSING_CLASSES
    return is_passing or (error.__cause__ is not None and is_transient(error.__cause__))


def _is_overloaded(error: Exception) -> bool:
    """Whether catalogs, or proxies in front of them, fail this way while they are overloaded or restarting."""
    from pyiceberg.exceptions import CommitStateUnknownException, ServerError, ServiceUnavailableError
    from requests import RequestException

    kinds: tuple[type[BaseException], ...] = (
        CommitStateUnknownException, ServerError, ServiceUnavailableError, RequestException, ConnectionError, TimeoutError
    )  # fmt: skip
    if (alchemy := sys.modules.get("sqlalchemy.exc")) is not None:
        kinds = (*kinds, alchemy.OperationalError)
    return isinstance(error, kinds)


class _Counted(NamedTuple):
    """A file that enters or leaves a table, as PyIceberg counts it."""

    content: int
    record_count: int
    file_size_in_bytes: int

    @classmethod
    def of(cls, file: ContentFile) -> Self:
        """Count a data or delete file."""
        return cls(file.content.value if isinstance(file, DeleteFile) else 0, file.record_count, file.file_size_bytes)


def _operation(added: Sequence[ContentFile], removed: Sequence[ContentFile]) -> "Operation":
    """The operation of a snapshot (rule 24)."""
    if removed or any(isinstance(file, DeleteFile) for file in added):
        return "overwrite" if any(isinstance(file, DataFile) for file in added) else "delete"
    return "append"


def _summarise(
    added: Sequence[ContentFile], removed: Sequence[ContentFile], base: "Snapshot | None", properties: Mapping[str, str]
) -> dict[str, str]:
    """The summary of a snapshot: counts of its files, totals derived from those of its parent, and `properties`."""
    from pyiceberg.table.snapshots import Operation, Summary, UpdateMetrics, update_snapshot_summaries

    counts: Any = UpdateMetrics()
    for file in added:
        counts.add_file(_Counted.of(file))
    for file in removed:
        counts.remove_file(_Counted.of(file))
    # PyIceberg has no totals for `replace`; those of other operations are the same.
    summary = Summary(Operation.OVERWRITE, **counts.to_dict())
    previous = None if base is None else summary_properties(base) or {"": ""}
    named = update_snapshot_summaries(summary, previous).additional_properties
    if partitions := {(f.spec_id, f.partition) for f in (*added, *removed)}:
        named["changed-partition-count"] = str(len(partitions))
    return {**named, "engine-name": "nevermore", "engine-version": _own_version(), **properties}


_own_version = cache(own_version)
Operation = Literal["append", "overwrite", "delete", "replace"]
Result = TypeVar("Result")

MAIN = "main"
_AFTER_SNAPSHOT = "remove-snapshot-ref", "remove-snapshots"
"""Updates that are valid only after the snapshot of the commit was added."""
CONFLICT_ATTEMPTS = 10
FIRST_PAUSE_SECONDS = 0.05
LONGEST_PAUSE_SECONDS = 2.0
"""Pauses are random, up to a bound that doubles each time: several seconds in total, longer than commits take."""


@dataclass(frozen=True, slots=True)
class Committed:
    """A snapshot that was committed to the table."""

    snapshot_id: int
    sequence_number: int
    operation: str
    summary: Mapping[str, str]


def everything(_file: ContentFile) -> bool:
    """Select every live file: a truncate."""
    return True


def partitions_in(spec_id: int, partitions: Collection[tuple[Any, ...]]) -> Selection:
    """Select the files of some partitions, given as `ContentFile.partition`."""
    return lambda file: file.spec_id == spec_id and file.partition in partitions


Rearrange = Callable[[SnapshotManifests, "Snapshot | None"], tuple[Listed, Mapping[str, str]]]
"""Writes other manifests of the files of a snapshot; returns all manifests and entries for the summary."""


class RowDelta:
    """A commit under construction: schema and specs first, then files, then `commit`, once.

    As a context manager, it removes every file that was written through its `storage` if an error keeps it from being committed.

    It is bound to the snapshot that was current at its start; if rows of the table have changed since, `commit` fails, and the
    caller decides whether to start again.
    """

    def __init__(self, table: "Table", options: WriterOptions | None = None) -> None:
        self.table = table
        self.storage = storage_of(table)
        self._facts = open_current(table, is_written=True).metadata
        self.schema: Schema = self._facts.schema
        self.specs: dict[int, PartitionSpec] = {**self._facts.specs}
        self.default_spec: PartitionSpec = self.specs[self._facts.default_spec_id]
        self.base_snapshot_id: int | None = table.metadata.current_snapshot_id
        self._foundations = _foundations(table.metadata)
        self._options = options or WriterOptions()
        self._updates: list[dict[str, Any]] = []
        self._requirements: list[dict[str, Any]] = []
        self._written: list[str] = []
        self._may_have_happened = False

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: object, error: object, trace: object) -> None:
        # after a signal or an error while the catalog is asked, the files may be part of the table
        if isinstance(error, Exception | KeyboardInterrupt) and not self._may_have_happened:
            self.storage.remove(self.storage.created)

    @property
    def target(self) -> WriteTarget:
        """Location and schema for files of this commit."""
        return WriteTarget(self.schema, data_location(self.table), self.storage, self._options)

    @property
    def facts(self) -> TableMetadata:
        """The table with the schema and the specs of this commit."""
        schemas = {**self._facts.schemas, self.schema.schema_id: self.schema}
        return replace(
            self._facts,
            schemas=schemas,
            current_schema_id=self.schema.schema_id,
            specs=self.specs,
            _paths={},
            _partition_types={},
        )

    @property
    def base_columns(self) -> list[str]:
        """Names of the columns that the table had before this commit, without dropped ones."""
        return [f.name for f in self._facts.schema.fields if f.field_id in self.schema]

    @property
    def arranged_by(self) -> set[str]:
        """Columns by which the table was ever partitioned or sorted."""
        metadata = self.table.metadata
        ways: list[Any] = [*metadata.partition_specs, *metadata.sort_orders]
        used = {f.source_id for each in ways for f in each.fields}
        return {self.schema.path(number)[0].name for number in used if number in self.schema}

    def hold(
        self, fields: Sequence[NestedField], replaces: Callable[[str], bool] = lambda _: False
    ) -> tuple[Clash, ...]:
        """Evolve the schema to hold rows of these fields; the columns whose types clash. See `evolve`."""
        last_id = max(self.table.metadata.last_column_id, *self.schema.field_ids)
        evolution = evolve(self.schema, fields, last_id, replaces=replaces)
        if evolution.changed:
            self.evolve(evolution.schema)
        return evolution.clashes

    def drop_columns(self, paths: Collection[str]) -> None:
        """Drop columns with this commit, except those by which the table was ever partitioned or sorted."""
        if (fields := without(self.schema.fields, {*paths} - self.arranged_by)) != self.schema.fields:
            self.evolve(replace(self.schema, fields=fields))

    def evolve(self, schema: Schema) -> None:
        """Make `schema` the table's current one with this commit. Its new fields have ids above all others.

        If called again, only the last schema is committed.
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

    def commit_schema(self) -> None:
        """Commit the schema without a snapshot.

        Raises:
            CommitConflictError: the table has changed in the meantime.
        """
        commit(self.table, self._requirements, self._updates)

    def set_properties(self, properties: Mapping[str, str]) -> None:
        """Set table properties with this commit."""
        self._updates.append({"action": "set-properties", "updates": dict(properties)})

    def unpartitioned_spec(self) -> PartitionSpec:
        """A spec under which deletes are global (rule 4): one of the table, or one added with this commit."""
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
        added: Sequence[ContentFile],
        properties: Mapping[str, str],
        *,
        remove: Selection | None = None,
        operation: Operation | None = None,
        forgets: bool = False,
        branch: str = MAIN,
        after_rewrites: Callable[[], tuple[Sequence[ContentFile], Selection | None]] | None = None,
    ) -> Committed:
        """Write manifests and swap the table's metadata.

        Args:
            added: new files, under specs of this table.
            properties: entries for the snapshot's summary, such as positions.
            remove: selects the live data and delete files to remove from the table.
            operation: operation of the snapshot; None derives it from the files. `replace` changes no row.
            forgets: with `remove`: the manifests name no removed file any more, as partitions and bounds are values of its rows.
            branch: the branch whose head the snapshot becomes. Readers of the table do not see another one; `make_current` in
                `publish/publish_commit.py` makes it visible, and its schema the current one.
            after_rewrites: what to add and to remove instead, now that compaction or conversion has replaced files of the table,
                but changed no row. Without it that is a conflict: a large batch would be written again after each of them, and
                might never be committed.

        Raises:
            CommitConflictError: the table has changed since this commit was started, or a file that `remove` names is not
                live; nothing of it is visible.
            CommitUnknownError: it is unknown whether the commit happened.
        """
        if branch != MAIN:
            later = {"set-current-schema", "set-properties"}
            self._updates = [update for update in self._updates if update["action"] not in later]
        for attempts_left in reversed(range(CONFLICT_ATTEMPTS)):
            with self._removing_written():
                manifests = self._manifests()
                carried = manifests.carried(self._base(), remove, forgets=forgets)
                # A file that is to be replaced and is gone was rewritten by another writer: adding its replacement would double rows.
                if isinstance(remove, NamedFiles) and (gone := remove.names - {*map(name_of, carried.files)}):
                    raise CommitConflictError(
                        f"another writer removed {min(gone)[0]} from {'.'.join(self.table.name())}"
                    )
                snapshot, committed = self._listed(manifests, added, carried, properties, operation)
            try:
                self._make_head(snapshot, branch)
            except CommitConflictError:
                if after_rewrites is None or not attempts_left or not self._follow_rewrites():
                    raise
                self._written.clear()  # removed already; they built upon the older snapshot
                added, remove = after_rewrites()
            else:
                break
        if branch == MAIN:
            storage.reached("after-commit")
        return committed

    def _follow_rewrites(self) -> bool:
        """Build upon the table's current snapshot, if all that came since the base only replaced files."""
        from pyiceberg.exceptions import NoSuchTableError

        try:
            refresh(self.table)
        except NoSuchTableError:
            return False
        metadata = self.table.metadata
        if _foundations(metadata) != self._foundations:
            return False
        for snapshot in ancestors(self.table):
            if snapshot.snapshot_id == self.base_snapshot_id:
                self._facts = open_current(self.table, is_written=True).metadata
                self.base_snapshot_id = metadata.current_snapshot_id
                return True
            if snapshot.summary is None or snapshot.summary.operation.value != "replace":
                break
        return False

    def rearrange(self, arrange: Rearrange, *, is_dry: bool = False) -> Committed | None:
        """Commit the same files in other manifests, as a `replace` snapshot; None for a dry run, or if none is new."""
        with self._removing_written():
            manifests = self._manifests(is_dry=is_dry)
            listed, properties = arrange(manifests, self._base())
            if not self._written:
                return None
            snapshot, committed = self._listed(manifests, [], listed, properties, "replace")
        self._make_head(snapshot)
        storage.reached("after-commit")
        return committed

    @property
    def written(self) -> tuple[str, ...]:
        """Paths of the manifests and manifest lists written for this commit."""
        return tuple(self._written)

    def also(self, updates: Sequence[Mapping[str, Any]], requirements: Sequence[Mapping[str, Any]] = ()) -> None:
        """Add changes to this commit, in the form of the REST catalog specification."""
        self._updates += [dict(update) for update in updates]
        self._requirements += [dict(requirement) for requirement in requirements]

    @contextmanager
    def _removing_written(self) -> Iterator[None]:
        """Leave nothing of the manifests if something fails."""
        try:
            yield
        except (Exception, KeyboardInterrupt):
            self.storage.remove(self._written)
            raise

    def _manifests(self, *, is_dry: bool = False) -> SnapshotManifests:
        storage.reached("after-files")
        metadata = cast("TableMetadataV2", self.table.metadata)
        number = metadata.last_sequence_number + 1
        return SnapshotManifests(
            self.table, self.storage, self.facts, metadata.new_snapshot_id(), number, self._written, is_dry
        )

    def _listed(
        self,
        manifests: SnapshotManifests,
        files: Sequence[ContentFile],
        carried: Listed,
        properties: Mapping[str, str],
        operation: Operation | None,
    ) -> tuple[dict[str, Any], Committed]:
        metadata, base = self.table.metadata, self._base()
        snapshot_id, sequence_number = manifests.snapshot_id, manifests.sequence_number
        records, version = [*manifests.added(files), *carried.records], manifests.facts.format_version
        row_ids = {}
        if version > 2:  # row lineage: ids of new rows continue where the table's last commit ended
            first = getattr(metadata, "next_row_id", None) or 0
            records, following = with_row_ids(records, first)
            row_ids = {"first-row-id": first, "added-rows": following - first}
        named = operation or _operation(files, carried.files)
        summary = _summarise(files, carried.files, base, properties)
        path = manifests.write(
            f"snap-{snapshot_id}-0-{uuid.uuid4()}.avro",
            manifest_list_bytes(records, snapshot_id, self.base_snapshot_id, sequence_number, version),
        )
        storage.reached("after-manifests")
        snapshot = {
            "snapshot-id": snapshot_id,
            **({} if self.base_snapshot_id is None else {"parent-snapshot-id": self.base_snapshot_id}),
            "sequence-number": sequence_number,
            # never before the last commit, also if the clocks of writers differ: time travel searches by this
            "timestamp-ms": max(int(time.time() * 1000), metadata.last_updated_ms + 1),
            "manifest-list": path,
            "summary": {"operation": named, **summary},
            "schema-id": self.schema.schema_id,
            **row_ids,
        }
        return snapshot, Committed(snapshot_id, sequence_number, named, summary)

    def _base(self) -> "Snapshot | None":
        snapshots = reversed(self.table.metadata.snapshots)
        return next((s for s in snapshots if s.snapshot_id == self.base_snapshot_id), None)

    def discard(self, files: Sequence[ContentFile]) -> None:
        """Remove files written for this commit, unless the commit happened or may have happened."""
        if not self._may_have_happened:
            self.storage.remove(f.path for f in files)

    def _make_head(self, snapshot: Mapping[str, Any], branch: str = MAIN) -> None:
        """Make the snapshot the head of a branch, with all other changes of this commit."""
        later = [update for update in self._updates if update["action"] in _AFTER_SNAPSHOT]
        self._may_have_happened = True
        try:
            commit_until_known(
                *(self.table, self.base_snapshot_id, snapshot["snapshot-id"]),
                [
                    {"type": "assert-ref-snapshot-id", "ref": MAIN, "snapshot-id": self.base_snapshot_id},
                    *self._requirements,
                ],
                [
                    *(update for update in self._updates if update not in later),
                    {"action": "add-snapshot", "snapshot": snapshot},
                    head_of(self.table, branch, snapshot["snapshot-id"]),
                    *later,
                ],
            )
        except (CommitConflictError, CommitNotWrittenError):
            self._may_have_happened = False
            self.storage.remove(self._written)
            raise


def _foundations(metadata: Any) -> tuple[object, ...]:
    """What the files of a commit build upon, apart from the rows of the table."""
    return (
        metadata.table_uuid,
        metadata.format_version,
        metadata.location,
        metadata.current_schema_id,
        metadata.default_spec_id,
        len(metadata.partition_specs),
        metadata.default_sort_order_id,
    )


def commit(table: "Table", requirements: Sequence[Update], updates: Sequence[Update]) -> None:
    """Commit to a table that does no harm if it is applied despite an error of the catalog, and update `table`.

    Args:
        table: table from the catalog.
        requirements: what must be true of the table, in the form of the REST catalog specification.
        updates: what changes, likewise.

    Raises:
        CommitConflictError: another writer committed first.
        Exception: the client of the catalog may raise other errors.
    """
    from pyiceberg.exceptions import CommitFailedException

    try:
        _request(table, requirements, updates)
    except CommitFailedException as error:
        raise CommitConflictError(f"another writer changed {'.'.join(table.name())}: {error}") from error


def _request(table: "Table", requirements: Sequence[Update], updates: Sequence[Update]) -> None:
    """Raises `CommitFailedException` where the answer of a catalog does not say that another writer was faster."""
    from pyiceberg.exceptions import BadRequestError
    from pyiceberg.table import CommitTableRequest

    *namespace, name = table.name()
    required = [{"type": "assert-table-uuid", "uuid": str(table.metadata.table_uuid)}, *requirements]
    if can_swap(table.catalog):
        commit_to_database(table, required, updates, storage_of(table), metadata_location(table))
        return
    request = CommitTableRequest.model_validate(
        {"identifier": {"namespace": namespace, "name": name}, "requirements": required, "updates": list(updates)}
    )
    try:
        table._do_commit(request.updates, request.requirements)  # noqa: SLF001 - no public way to commit one
    except (ValueError, BadRequestError) as error:
        if "sequence number" not in str(error):
            raise
        # No requirement covers the last sequence number, which a snapshot on another branch may have taken.
        raise CommitConflictError(f"another writer changed {'.'.join(table.name())}: {error}") from error


def describe(table: "Table", config: AssetConfig) -> None:
    """Set the properties and comments of a config where a table has others, without a snapshot.

    Raises:
        ConfigError: a description of a column that the table does not have.
        CommitConflictError: another writer changed the table at the same time.
    """
    change, schema, texts = table.transaction(), table.schema(), dict[str, str]()
    if changed := dict(config.table_properties.items() - table.properties.items()):
        change.set_properties(changed)
    try:
        for column, text in config.column_descriptions.items():
            if schema.find_field(column).doc != text:
                texts[column] = text
    except ValueError as error:
        raise ConfigError(f"column_descriptions: the table has no column {column}") from error
    if texts:  # this is called after each commit, and copies a schema of a thousand columns in 80 ms
        with change.update_schema() as update:
            for column, text in texts.items():
                update.update_column(column, doc=text)
    both = change._requirements, change._updates  # noqa: SLF001 - PyIceberg itself writes no tables of format version 3
    if both[1]:
        commit(table, *([part.model_dump(by_alias=True) for part in some] for some in both))


def head_of(table: "Table", branch: str, snapshot_id: int) -> Update:
    """The update that makes a snapshot the head of a branch, which keeps its other settings."""
    known = table.metadata.refs.get(branch)
    settings = {"type": "branch"} if known is None else known.model_dump(mode="json", by_alias=True, exclude_none=True)
    return {"action": "set-snapshot-ref", "ref-name": branch, **settings, "snapshot-id": snapshot_id}


def make_current(table: "Table", snapshot_id: int) -> None:
    """Make another snapshot of a table the current one.

    Raises:
        CommitConflictError: another writer committed first.
    """
    required = {"type": "assert-ref-snapshot-id", "ref": MAIN, "snapshot-id": table.metadata.current_snapshot_id}
    commit(table, [required], [head_of(table, MAIN, snapshot_id)])


def upgrade(table: "Table", version: int) -> None:
    """Upgrade a table to a later format version.

    Raises:
        SourceError: PyIceberg cannot upgrade tables of this catalog to this version, or nobody can.
        CommitConflictError: another writer changed the table.
    """
    from pyiceberg.catalog.rest import RestCatalog

    if version not in {2, 3} or version < table.format_version:
        raise SourceError(
            f"table {'.'.join(table.name())} has format version {table.format_version} and cannot get version {version}: "
            "versions go up to 3, and never back"
        )
    if version == 2:  # PyIceberg knows what the metadata of version 1 lacks
        with table.transaction() as change:
            change.upgrade_table_version(2)
    elif can_swap(table.catalog) or isinstance(table.catalog, RestCatalog):
        commit(table, [], [{"action": "upgrade-format-version", "format-version": version}])
    else:
        raise SourceError(
            f"table {'.'.join(table.name())} cannot be upgraded to format version {version}: of its catalog's kinds only SQL "
            "and REST ones can; keep format_version: 2"
        )
    table.refresh()


def retry_conflicts(attempt: Callable[[], Result], attempts: int = CONFLICT_ATTEMPTS) -> Result:
    """Run `attempt`, again after each conflict, with growing pauses.

    Each attempt must load the table again and decide whether its change is still right.
    """
    from tenacity import Retrying, retry_if_exception, stop_after_attempt, wait_random_exponential

    again = Retrying(
        retry=retry_if_exception(lambda error: isinstance(error, CommitConflictError) and error.may_retry),
        stop=stop_after_attempt(attempts),
        wait=wait_random_exponential(multiplier=FIRST_PAUSE_SECONDS, max=LONGEST_PAUSE_SECONDS),
        reraise=True,
    )
    return again(attempt)
