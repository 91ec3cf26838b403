"""Commits the files of a run as one snapshot of a published table.

The rows replace partitions, are appended or are upserted. They can be staged on a branch, and then made current in
one step or dropped. Commits of mirrors and change logs are in `iceberg/commit.py`.
"""

import json
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any, Literal
from uuid import uuid4

import pyarrow as pa

from nevermore.pipelines.config.published import PublishedPartition
from nevermore.pipelines.errors import CommitConflictError, ConfigError, SchemaConflictError
from nevermore.pipelines.iceberg import storage
from nevermore.pipelines.iceberg.catalog import create_table, find_table, identifier
from nevermore.pipelines.iceberg.commit import (
    MAIN,
    Committed,
    RowDelta,
    commit,
    commit_until_known,
    everything,
    head_of,
    partitions_in,
    retry_conflicts,
)
from nevermore.pipelines.iceberg.loaded_table import refresh, storage_of
from nevermore.pipelines.iceberg.metadata_swap import Update
from nevermore.pipelines.iceberg.positions import ancestors, summary_properties
from nevermore.pipelines.iceberg.schema_evolution import evolve
from nevermore.pipelines.iceberg.table_writer import check_key, write_deletes
from nevermore.pipelines.mirrors.delete_scope import LiveKeys, live_keys, scope_deletes
from nevermore.pipelines.publish.task import written_keys
from nevermore.scan_core import ContentFile, DataFile, NestedField

if TYPE_CHECKING:
    from nevermore.pipelines.iceberg.catalog import Catalog, Table

STAGED_PREFIX = "nevermore-staged-"
"""Prefix of the names of branches with rows that are not published yet, or never were."""
STAGED_KEPT_SECONDS = 7 * 24 * 3600.0
"""Age from which a commit drops the branches of earlier runs: of rows that failed a check, or of runs that were killed."""


def outdated_branches(table: "Table") -> list[str]:
    """Branches of runs that ended long ago without publishing their rows."""
    limit = (time.time() - STAGED_KEPT_SECONDS) * 1000
    heads = {snapshot.snapshot_id for snapshot in table.metadata.snapshots if snapshot.timestamp_ms < limit}
    refs = table.metadata.refs.items()
    return [name for name, ref in refs if name.startswith(STAGED_PREFIX) and ref.snapshot_id in heads]


@dataclass(frozen=True, slots=True)
class StagedSnapshot:
    """A snapshot on a branch.

    Attributes:
        table: the table after the snapshot was added.
        branch: the branch whose head it is.
        base_id: the current snapshot that it builds upon.
        committed: the snapshot itself.
        files: files that it adds.
        written: its own manifests and manifest list.
    """

    table: "Table"
    branch: str
    base_id: int | None
    committed: Committed
    files: tuple[ContentFile, ...]
    written: tuple[str, ...]


def make_current(table: "Table", staged: StagedSnapshot, properties: Mapping[str, str]) -> None:
    """Make a staged snapshot visible to readers, and drop its branch and outdated ones, in one step.

    Args:
        table: the table, whose current snapshot is the one that `staged` builds upon.
        staged: the snapshot to make current.
        properties: table properties to set.

    Raises:
        CommitConflictError: the table has changed since it was loaded; nothing is visible.
        CommitUnknownError: it is unknown whether the catalog has committed.
    """
    metadata = table.metadata
    number = staged.committed.snapshot_id
    schema_id = next(s.schema_id for s in metadata.snapshots if s.snapshot_id == number)
    updates: list[Update] = []
    # The catalog checks these in one step with the updates. They fail if another writer has committed since `table` was
    # loaded, so the audited snapshot directly follows the one that it was staged upon.
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
        head_of(table, MAIN, number),
        {"action": "remove-snapshot-ref", "ref-name": staged.branch},
        *dropped(table, outdated_branches(table)),
    ]
    commit_until_known(table, staged.base_id, number, requirements, updates, is_staged=True)
    storage.reached("after-commit")


def dropped(table: "Table", branches: Collection[str]) -> list[Update]:
    """Updates that drop branches of a table and the snapshots at their heads, where they exist."""
    refs = table.metadata.refs
    found = [name for name in branches if name in refs and name != MAIN]
    heads = sorted({refs[name].snapshot_id for name in found} - _kept_heads(table, found))
    updates: list[Update] = [{"action": "remove-snapshot-ref", "ref-name": name} for name in found]
    return [*updates, {"action": "remove-snapshots", "snapshot-ids": heads}] if heads else updates


def drop_branches(table: "Table", branches: Collection[str]) -> None:
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
            commit(table, required, updates)

    retry_conflicts(attempt)


def _kept_heads(table: "Table", without: Collection[str]) -> set[int]:
    """Heads of the other branches and tags."""
    return {ref.snapshot_id for name, ref in table.metadata.refs.items() if name not in without}


Mode = Literal["replace", "append", "upsert"]
WriteFiles = Callable[[RowDelta], Sequence[ContentFile]]
"""Writes the rows under the schema and default spec of a commit."""

MODE = "nevermore.mode"
"""Key in a snapshot's summary: what was done with existing rows."""
PARTITIONS = "nevermore.partitions"
"""Key in a snapshot's summary: keys of partitions that were made alone, as JSON."""


@dataclass(frozen=True, slots=True)
class Published:
    """Result of one publication.

    Attributes:
        committed: the snapshot that made the rows visible.
        files: data files of the rows.
        delete_files: equality deletes of the rows that they replace.
    """

    committed: Committed
    files: tuple[ContentFile, ...]
    delete_files: tuple[ContentFile, ...] = ()


@dataclass(frozen=True, slots=True)
class PublishedTarget:
    """The table to publish.

    Attributes:
        catalog: the catalog that has it or will have it.
        name: its name in the catalog.
        columns: columns of the result.
        partition: its partition; None if it is not partitioned.
        mode: what happens to existing rows.
        key: columns that identify a row, for `upsert`.
        properties: table properties from the config.
    """

    catalog: "Catalog"
    name: str
    columns: tuple[NestedField, ...]
    partition: PublishedPartition | None
    mode: Mode = "replace"
    key: tuple[str, ...] = ()
    properties: Mapping[str, str] = field(default_factory=dict)

    def delta(self, found: "Table | None") -> RowDelta:
        """Prepare a commit on the table as it was found; create the table if it does not exist.

        Args:
            found: the table in the catalog; None if it does not exist.

        Raises:
            ConfigError: the table has columns, a key or partitions that do not fit.
        """
        by = [] if self.partition is None else [(self.partition.transform, self.partition.column)]
        table = found or create_table(
            self.catalog, self.name, self.columns, partition_by=by, properties=self.properties
        )
        delta = RowDelta(table)
        if changed := dict(self.properties.items() - table.metadata.properties.items()):
            delta.set_properties(changed)
        evolution = evolve(delta.schema, self.columns, table.metadata.last_column_id)
        if evolution.clashes:
            clash = evolution.clashes[0]
            raise ConfigError(
                f"published {self.name}: column {clash.column!r} is {clash.table_type} in the table and "
                f"{clash.feed_type} in the result: cast it, rename it, or drop the table"
            )
        if evolution.changed:
            delta.evolve(evolution.schema)
        if self.mode == "replace":
            self._require_partition(delta, by[0] if by else None)
        if self.mode == "upsert":
            try:
                check_key(delta.schema, self.key)
            except SchemaConflictError as error:
                raise ConfigError(f"published {self.name}: {error}") from error
        return delta

    def drop_unused(self) -> None:
        """Drop an empty table that a failed run created: its columns and partitions would bind later runs."""
        table = find_table(self.catalog, self.name)
        if table is not None and not table.metadata.snapshots:
            self.catalog.drop_table(identifier(self.name))
            unused = storage_of(table)
            with suppress(OSError):  # a file that stays hides no reason why the run failed
                unused.remove([table.metadata_location])  # no other: those of a commit made meanwhile can be recovered
                unused.remove_empty_folders(table.location())

    def _require_partition(self, delta: RowDelta, wanted: tuple[str, str] | None) -> None:
        """Check that the partition can be replaced: all files of the table must be partitioned by it."""
        spec = delta.default_spec
        fields = [
            (f.transform, delta.schema.field(f.source_id).name) for f in spec.fields if f.source_id in delta.schema
        ]
        if fields != ([] if wanted is None else [wanted]) or len(spec.fields) != len(fields):
            by, not_by = _partitioned_by(fields), _partitioned_by([wanted] if wanted else [])
            raise ConfigError(
                f"published {self.name}: the table is partitioned by {by}, not by {not_by}, "
                "so no part of it can be replaced: publish to another table, drop this one, or use mode: upsert"
            )
        if others := sorted(live_keys(delta.table, delta.schema, ()).spec_ids - {spec.spec_id}):
            raise ConfigError(
                f"published {self.name}: files of the table have earlier partition specs ({others}), so no part of it "
                f"can be replaced: rewrite them under the current one (nevermore compact {self.name} --all)"
            )


@dataclass(slots=True)
class Publication:
    """The rows of one run, written once and committed again each time that another writer commits first.

    Files are rewritten only if the table's schema or spec changed between two attempts.

    Attributes:
        target: the table.
        values: partition field values whose rows are replaced; None for all. Ignored in other modes.
        holds: whether the rows are still the right ones to commit, given the table that another writer has left.
        properties: table properties to set with the commit.
        audit: receives the snapshot on its branch, and raises `CheckFailedError` to keep it from becoming current; None
            commits without a branch.
    """

    target: PublishedTarget
    values: Collection[Any] | None
    holds: Callable[["Table"], bool]
    properties: Mapping[str, str] = field(default_factory=dict)
    audit: Callable[[StagedSnapshot], None] | None = None
    _branch: str = field(default_factory=lambda: STAGED_PREFIX + uuid4().hex[:12])
    _written_for: tuple[object, ...] | None = None
    _files: tuple[ContentFile, ...] = ()

    def commit(self, write: WriteFiles, summary: Mapping[str, str]) -> Published:
        """Publish the rows.

        Args:
            write: called when a commit needs the files.
            summary: entries of the snapshot's summary.

        Raises:
            ConfigError: the table does not have, or no longer has, the columns, key or partition of the config.
            CommitConflictError: others committed first too often, or in a way that requires a new plan.
                With either nothing is visible, and the files are removed.
            CheckFailedError: the audit found the rows wrong. They are visible only on the branch, which stays.
        """
        summary = {MODE: self.target.mode, **summary}
        try:
            if self.audit is None:
                published = retry_conflicts(lambda: self._attempt(write, summary))
            else:
                published = self._audited(write, summary, self.audit)
        except (CommitConflictError, ConfigError):
            self._discard()
            raise
        if published is None:
            self._discard()
            raise CommitConflictError(f"another writer changed {self.target.name}")
        return published

    def _audited(
        self, write: WriteFiles, summary: Mapping[str, str], audit: Callable[[StagedSnapshot], None]
    ) -> Published | None:
        """Write, audit, publish; None if the rows are no longer the right ones to commit."""
        staged = retry_conflicts(lambda: self._staged(write, summary))
        while staged is not None:
            audit(staged)
            done = retry_conflicts(partial(self._made_current, staged, write, summary))
            if not isinstance(done, StagedSnapshot):
                return done
            staged = done  # others wrote to these partitions meanwhile
        return None

    def _staged(
        self, write: WriteFiles, summary: Mapping[str, str], before: StagedSnapshot | None = None
    ) -> StagedSnapshot | None:
        """Stage the snapshot on its branch, upon the current one, in place of the one staged before."""
        if (prepared := self._prepared(write)) is None:
            return None
        delta, live = prepared
        if before is not None:
            number = before.committed.snapshot_id
            delta.also([{"action": "remove-snapshots", "snapshot-ids": [number]}], [self._is_staged(before)])
        files, committed = self._committed(delta, live, summary, partial(delta.commit, branch=self._branch))
        if before is not None:
            delta.storage.remove(before.written)
        return StagedSnapshot(delta.table, self._branch, delta.base_snapshot_id, committed, files, delta.written)

    def _made_current(
        self, staged: StagedSnapshot, write: WriteFiles, summary: Mapping[str, str]
    ) -> Published | StagedSnapshot | None:
        """Make the snapshot current, or stage it again for another audit; None if its rows are no longer the right ones."""
        found = find_table(self.target.catalog, self.target.name)
        if found is None or not self.holds(found):
            return None
        if found.metadata.current_snapshot_id == staged.base_id:  # readers get exactly what was audited
            make_current(found, staged, self.properties)
            return _published(staged.files, staged.committed)
        # the audit has not seen these rows together with those of the other writer
        if self._is_touched(found, staged.base_id):
            return self._staged(write, summary, staged)
        # others wrote to other partitions only: the audited files are committed upon their snapshot without another
        # audit
        if (prepared := self._prepared(write)) is None:
            return None
        delta, live = prepared
        delta.also(dropped(delta.table, [self._branch, *outdated_branches(delta.table)]), [self._is_staged(staged)])
        files, committed = self._committed(delta, live, summary, delta.commit)
        delta.storage.remove(staged.written)  # only the snapshot that went with the branch named them
        return _published(files, committed)

    def _is_staged(self, staged: StagedSnapshot) -> Mapping[str, Any]:
        """The requirement that a snapshot is still the head of the branch."""
        return {"type": "assert-ref-snapshot-id", "ref": self._branch, "snapshot-id": staged.committed.snapshot_id}

    def _is_touched(self, table: "Table", base_id: int | None) -> bool:
        """Whether others may have written, since the base, to the partitions that are written here."""
        partition = self.target.partition
        # rows of any partition matter to a whole table, and to rows that are appended or looked up by key
        if self.values is None or partition is None or self.target.mode != "replace":
            return True
        kind = next(column.type for column in self.target.columns if column.name == partition.column)
        for snapshot in ancestors(table):
            if snapshot.snapshot_id == base_id:
                return False
            made = json.loads(summary_properties(snapshot).get(PARTITIONS, "null"))
            if made is None or any(partition.physical(key, kind) in self.values for key in made):
                return True
        return base_id is not None

    def _discard(self) -> None:
        table = find_table(self.target.catalog, self.target.name)
        if table is not None and self._branch in table.metadata.refs:
            drop_branches(table, [self._branch])
        if table is not None and self._files:
            RowDelta(table).discard(self._files)

    def _attempt(self, write: WriteFiles, summary: Mapping[str, str]) -> Published | None:
        """Try once; None if the rows are no longer the right ones to commit."""
        if (prepared := self._prepared(write)) is None:
            return None
        delta, live = prepared
        delta.also(dropped(delta.table, outdated_branches(delta.table)))
        return _published(*self._committed(delta, live, summary, delta.commit))

    def _prepared(self, write: WriteFiles) -> tuple[RowDelta, LiveKeys | None] | None:
        """A commit on the table as it is now, with the files that it needs written."""
        found = find_table(self.target.catalog, self.target.name)
        delta = self.target.delta(found)
        if not self.holds(delta.table):
            return None
        live = live_keys(delta.table, delta.schema, self.target.key) if self.target.mode == "upsert" else None
        # the first attempt, or another writer has changed the schema or the spec
        if self._written_for != (delta.schema.fields, delta.default_spec):
            delta.discard(self._files)
            self._files = ()
            with ExitStack() as undo:
                if found is None:  # this commit has created the table
                    undo.callback(self.target.drop_unused)
                self._files = tuple(write(delta))
                undo.pop_all()
            self._written_for = (delta.schema.fields, delta.default_spec)
        if self.properties:
            delta.set_properties(self.properties)
        return delta, live

    def _committed(
        self, delta: RowDelta, live: LiveKeys | None, summary: Mapping[str, str], commit: Callable[..., Committed]
    ) -> tuple[tuple[ContentFile, ...], Committed]:
        """Add the snapshot as the mode requires; return its files."""
        more: list[ContentFile] = []
        options: dict[str, Any] = {}
        try:
            match self.target.mode:
                case "replace":
                    options = {"remove": everything, "operation": "overwrite"}
                    if self.values is not None:
                        options["remove"] = partitions_in(delta.default_spec.spec_id, {(v,) for v in self.values})
                case "append":
                    options = {"operation": "append"}
                case "upsert":
                    for file in () if live is None else self._deletes(delta, live):
                        more.append(file)  # noqa: PERF402 - those before an error are removed
            return (*self._files, *more), commit([*self._files, *more], summary, **options)
        except (CommitConflictError, OSError) as error:
            # after a conflict the files are committed again; a disk that is full or broken must not get fuller
            delta.discard(more if isinstance(error, CommitConflictError) else [*self._files, *more])
            raise

    def _deletes(self, delta: RowDelta, live: LiveKeys) -> Iterator[ContentFile]:
        """Equality deletes of the rows that the new ones replace.

        Keys are read back from the written files, a limited number at a time.
        """
        key_ids = check_key(delta.schema, self.target.key)
        paths = [file.path for file in self._files if live.num_files and isinstance(file, DataFile)]
        for keys in written_keys(paths, delta.storage, self.target.key):
            wanted = keys.filter(pa.array(live.may_hold(keys)))
            for scoped in scope_deletes(delta, wanted, live).deletes:
                yield from write_deletes(scoped.keys, delta.target, scoped.spec, key_ids)


def _published(files: Sequence[ContentFile], committed: Committed) -> Published:
    data = tuple(file for file in files if isinstance(file, DataFile))
    return Published(committed, data, tuple(file for file in files if not isinstance(file, DataFile)))


def _partitioned_by(fields: Sequence[tuple[str, str]]) -> str:
    return (
        ", ".join(column if transform == "identity" else f"{transform}({column})" for transform, column in fields)
        or "nothing"
    )
