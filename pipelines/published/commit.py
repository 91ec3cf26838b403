"""How the files of a run become one snapshot of a published table: in the place of what was there, beside it, or over it.

The only way in which published tables are committed. What there is to make is decided before, and the files are written
by whoever is asked for them. No pyspark here.
"""

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import Any, Literal

import pyarrow as pa

from pipelines.catalog import create_table, find_table, identifier
from pipelines.errors import CommitConflictError, ConfigError, SchemaConflictError
from pipelines.mirrors.delete_scope import scope_deletes
from pipelines.mirrors.live_keys import LiveKeys, live_keys
from pipelines.published.abandoned_runs import is_written
from pipelines.published.partition import PublishedPartition
from pipelines.published.task_deletes import TaskDeletes, task_deletes
from pipelines.published.written_keys import written_keys
from pipelines.tables.commit import Committed, RowDelta, everything, partitions_in, retry_conflicts
from pipelines.tables.commit_manifests import Selection
from pipelines.tables.file_metrics import FileContent, WrittenFile
from pipelines.tables.schema_evolution import evolve
from pipelines.tables.table_writer import check_key, write_deletes
from scan_core.schema import NestedField

Mode = Literal["replace", "append", "upsert"]
WriteFiles = Callable[[RowDelta, TaskDeletes | None], Sequence[WrittenFile]]
"""Writes the rows under the schema and default spec of a commit, and the deletes of their keys that are asked for."""

MODE = "nevermore.mode"
"""Of a snapshot's summary: what was done with rows that were there."""


@dataclass(frozen=True, slots=True)
class Published:
    """What one publication led to.

    Attributes:
        committed: the snapshot that made the rows visible.
        files: data files of the rows.
        delete_files: equality deletes of rows that they take the place of.
    """

    committed: Committed
    files: tuple[WrittenFile, ...]
    delete_files: tuple[WrittenFile, ...] = ()


@dataclass(frozen=True, slots=True)
class PublishedTarget:
    """The table that is made.

    Attributes:
        catalog: that has it, or will.
        name: in the catalog.
        columns: of the result.
        partition: None for none.
        mode: what becomes of rows that are there.
        key: columns that identify a row, for `upsert`.
    """

    catalog: Any
    name: str
    columns: tuple[NestedField, ...]
    partition: PublishedPartition | None
    mode: Mode = "replace"
    key: tuple[str, ...] = ()

    def delta(self, found: Any | None) -> RowDelta:
        """A commit on the table as it was found; creates it where it does not exist.

        Args:
            found: the table as the catalog has it now; None if it has none.

        Raises:
            ConfigError: the table has columns, a key or partitions that do not fit.
        """
        by = [] if self.partition is None else [(self.partition.transform, self.partition.column)]
        table = found or create_table(self.catalog, self.name, self.columns, partition_by=by)
        delta = RowDelta(table)
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
        """Leave no empty table of a run that failed, unless others write to it: it would bind the runs after it."""
        table = find_table(self.catalog, self.name)
        if table is not None and not table.metadata.snapshots and not is_written(table):
            self.catalog.drop_table(identifier(self.name))  # not its files: by now others may have begun to write some

    def _require_partition(self, delta: RowDelta, wanted: tuple[str, str] | None) -> None:
        """A partition can be replaced only where the table has it, in all files."""
        spec = delta.default_spec
        fields = [
            (f.transform, delta.schema.field(f.source_id).name) for f in spec.fields if f.source_id in delta.schema
        ]
        if fields != ([] if wanted is None else [wanted]) or len(spec.fields) != len(fields):
            by, not_by = _partitioned_by(fields), _partitioned_by([wanted] if wanted else [])
            raise ConfigError(
                f"published {self.name}: the table is partitioned by {by}, not by {not_by}, "
                "so that no part of it can be replaced: publish to another table, drop this one, or use mode: upsert"
            )
        if others := sorted(live_keys(delta.table, delta.schema, ()).spec_ids - {spec.spec_id}):
            raise ConfigError(
                f"published {self.name}: files of the table lie under earlier partition specs ({others}), so that no "
                "part of it can be replaced: rewrite them under the current one"
            )


@dataclass(slots=True)
class Publication:
    """The rows of one run, written once and committed as often as others are faster.

    Files are written anew only if the table's schema or spec changed between two attempts.

    Attributes:
        target: the table.
        values: of the partition field, whose rows are replaced; None for all. Without meaning in other modes.
        holds: whether the rows are still those to commit, for the table as another writer has left it.
        properties: to set on the table with the commit.
    """

    target: PublishedTarget
    values: Collection[Any] | None
    holds: Callable[[Any], bool]
    properties: Mapping[str, str] = field(default_factory=dict)
    _written_for: tuple[object, ...] | None = None
    _files: tuple[WrittenFile, ...] = ()
    _deleted: TaskDeletes | None = None

    def commit(self, write: WriteFiles, summary: Mapping[str, str]) -> Published:
        """Publish the rows.

        Args:
            write: called when a commit needs the files.
            summary: told by the snapshot.

        Raises:
            ConfigError: the table has not the columns, key or partition that the config says, or not any more.
            CommitConflictError: others were faster too often, or in a way that asks for another plan.
                With either nothing is visible, and the files are removed.
        """
        told = {MODE: self.target.mode, **summary}
        try:
            published = retry_conflicts(lambda: self._attempt(write, told))
        except (CommitConflictError, ConfigError):
            self._discard()
            raise
        if published is None:
            self._discard()
            raise CommitConflictError(f"another writer changed {self.target.name}")
        return published

    def _discard(self) -> None:
        if self._files:
            RowDelta(find_table(self.target.catalog, self.target.name)).discard(self._files)

    def _attempt(self, write: WriteFiles, summary: Mapping[str, str]) -> Published | None:
        """None if the rows are not those to commit any more."""
        found = find_table(self.target.catalog, self.target.name)
        delta = self.target.delta(found)
        if not self.holds(delta.table):
            return None
        live = live_keys(delta.table, delta.schema, self.target.key) if self.target.mode == "upsert" else None
        if not self._fits(delta):
            delta.discard(self._files)
            self._files = ()
            self._deleted = None if live is None else task_deletes(delta, self.target.key, live)
            with ExitStack() as undo:
                if found is None:
                    undo.callback(self.target.drop_unused)
                self._files = tuple(write(delta, self._deleted))
                undo.pop_all()
            self._written_for = (delta.schema.fields, delta.default_spec)
        if self.properties:
            delta.set_properties(self.properties)
        more: tuple[WrittenFile, ...] = ()
        match self.target.mode:
            case "replace":
                remove: Selection = everything
                if self.values is not None:
                    remove = partitions_in(delta.default_spec.spec_id, {(value,) for value in self.values})
                committed = delta.commit(self._files, summary, remove=remove, operation="overwrite")
            case "append":
                committed = delta.commit(self._files, summary, operation="append")
            case "upsert":
                more = () if live is None else tuple(self._other_deletes(delta, live))
                try:
                    committed = delta.commit([*self._files, *more], summary)
                except CommitConflictError:
                    delta.discard(more)
                    raise
        files = (*self._files, *more)
        data = tuple(file for file in files if file.content is FileContent.DATA)
        return Published(committed, data, tuple(file for file in files if file.content is not FileContent.DATA))

    def _fits(self, delta: RowDelta) -> bool:
        """Whether the files that were written can be committed to the table as it is now."""
        if self._written_for != (delta.schema.fields, delta.default_spec):
            return False
        spec = None if self._deleted is None else self._deleted.spec
        return spec is None or spec in delta.specs.values() or spec == delta.unpartitioned_spec()

    def _other_deletes(self, delta: RowDelta, live: LiveKeys) -> Iterator[WrittenFile]:
        """Equality deletes that the tasks have not written: of keys that others brought meanwhile, or of a small table.

        Keys are read back from the files that were written, some at a time.
        """
        key, done = self.target.key, self._deleted
        if done is not None and not done.reach(live):
            done = None
        if live.num_files == 0 or (done is not None and done.cover(live)):
            return
        key_ids = check_key(delta.schema, key)
        paths = [file.path for file in self._files if file.content is FileContent.DATA]
        for keys in written_keys(paths, delta.storage, key):
            wanted = live.may_hold(keys)
            if done is not None:
                wanted &= ~done.live.may_hold(keys)
            for scoped in scope_deletes(delta, keys.filter(pa.array(wanted)), live, "allow").deletes:
                yield from write_deletes(scoped.keys, delta.target, scoped.spec, key_ids)


def _partitioned_by(fields: Sequence[tuple[str, str]]) -> str:
    return (
        ", ".join(column if transform == "identity" else f"{transform}({column})" for transform, column in fields)
        or "nothing"
    )
