"""The mirror of a table: its rows as the change log leaves them, kept with data files and equality deletes.

Changes are applied in order of their ordinals, one snapshot per batch, whose summary tells the last ordinal applied.
Folding is `fold.py`, where deletes go is `delete_scope.py`, files and commits are `table_writer.py` and `commit.py`.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa

from pipelines import positions
from pipelines.catalog import check_writable, create_table, find_table
from pipelines.change_batch import Rejected
from pipelines.change_log import ORDINAL, Appended, ChangeLog
from pipelines.commit import Committed, RowDelta, everything, retry_conflicts
from pipelines.config import TableConfig, partition_field
from pipelines.delete_scope import DeleteKeys, scope_deletes
from pipelines.errors import CommitConflictError, PositionLostError, SchemaConflictError
from pipelines.file_metrics import FileContent, WrittenFile
from pipelines.fold import FoldResult, fold
from pipelines.live_keys import live_keys
from pipelines.row_shape import conform
from pipelines.schema_evolution import evolve, iceberg_fields
from pipelines.table_writer import WriterOptions, check_key, write_deletes, write_rows
from pipelines.unsent_columns import complete


@dataclass(frozen=True, slots=True)
class Applied:
    """One batch of changes that is now in the mirror."""

    committed: Committed
    files: tuple[WrittenFile, ...]
    rejected: Rejected
    num_changes: int
    last_ordinal: int

    @property
    def delete_rows(self) -> int:
        """Rows of equality-delete files written."""
        return sum(f.record_count for f in self.files if f.content is FileContent.EQUALITY_DELETES)


@dataclass
class Mirror:
    """One mirror. Mutable only in that it follows its table's commits.

    Attributes:
        name: of the table.
        config: how changes become rows.
        key: columns that identify a row.
    """

    catalog: Any
    name: str
    config: TableConfig
    key: tuple[str, ...]
    options: WriterOptions | None = None
    table: Any | None = field(init=False)

    def __post_init__(self) -> None:
        self.table = find_table(self.catalog, self.name)
        if self.table is not None:
            check_writable(self.table)

    @property
    def applied_ordinal(self) -> int:
        """The last ordinal of the change log that is in the mirror; 0 for none.

        Raises:
            PositionLostError: the table has rows, and no snapshot of it tells what they are from.
        """
        if self.table is None:
            return 0
        text = positions.newest_property(self.table, positions.LOG_ORDINAL)
        if text is None and self.table.metadata.current_snapshot_id is not None:
            raise PositionLostError(
                f"{self.name} has snapshots but none tells which changes of its log are in it; it was not made by this "
                "pipeline, or the snapshot that told it has expired. Rebuild it from its change log, or adopt it"
            )
        return int(text or 0)

    def catch_up(
        self, log: ChangeLog, appended: Appended | None = None, *, reject: Callable[[Rejected], None]
    ) -> Iterator[Applied]:
        """Apply every change of the log that is not in the mirror yet, `commit_rows` at a time.

        Args:
            log: the table's change log.
            appended: what this run has just appended: taken from memory if it is all that is missing.
            reject: keeps changes that cannot be applied; called before the commit that leaves them out.
        """
        done = self.applied_ordinal
        if done > log.last_ordinal:
            raise PositionLostError(
                f"{self.name} holds changes up to {done}, but {log.name} ends at {log.last_ordinal}: the log was "
                "re-made; rebuild the mirror"
            )
        while done < log.last_ordinal:
            changes = self._next_changes(log, appended, done)
            if changes.num_rows == 0:
                raise PositionLostError(f"{log.name} lacks the changes after {done}, which {self.name} needs")
            yield self._apply(changes, log, reject)
            done = int(changes.column(ORDINAL)[-1].as_py())

    def _next_changes(self, log: ChangeLog, appended: Appended | None, done: int) -> pa.Table:
        if appended is not None and appended.changes.num_rows:
            first = int(appended.changes.column(ORDINAL)[0].as_py())
            if first <= done + 1:
                return appended.changes.slice(done + 1 - first, self.config.commit_rows)
        return log.read_after(done, self.config.commit_rows)

    def _apply(self, changes: pa.Table, log: ChangeLog, reject: Callable[[Rejected], None]) -> Applied:
        if not self.key:
            raise SchemaConflictError(f"{self.name} has no key: declare one (key: [...]), or set identity: full")
        if self.table is None:
            self.table = self._create(changes)
        before = self.applied_ordinal
        return retry_conflicts(lambda: self._attempt(changes, log, before, reject))

    def _create(self, changes: pa.Table) -> Any:
        return create_table(
            self.catalog,
            self.name,
            iceberg_fields(changes.schema.field("after").type),
            partition_by=[partition_field(text) for text in self.config.partition_by],
            properties={"nevermore.key": ",".join(self.key)},
        )

    def _attempt(self, changes: pa.Table, log: ChangeLog, before: int, reject: Callable[[Rejected], None]) -> Applied:
        table = self.table
        if table is None:
            raise PositionLostError(f"{self.name} has vanished")
        table.refresh()
        if self.applied_ordinal != before:
            raise CommitConflictError(f"another ingester has written {self.name} meanwhile", may_retry=False)
        delta = RowDelta(table, self.options)
        self._evolve(delta, changes)
        key_ids = check_key(delta.schema, self.key)
        folded, rejected = complete(delta, changes, fold(changes, self.key), self.key)
        files = write_rows(folded.upserts, delta.target, delta.default_spec, key_ids=key_ids)
        if not folded.truncated:
            deletes, live = self._deletes(delta, changes, folded, key_ids)
            for scoped in scope_deletes(delta, deletes, live, self.config.global_deletes):
                files += write_deletes(scoped.keys, delta.target, scoped.spec, key_ids)
        if rejected.num_rows:
            reject(rejected)
        last = int(changes.column(ORDINAL)[-1].as_py())
        properties = {positions.LOG_SNAPSHOT: str(log.snapshot_id), positions.LOG_ORDINAL: str(last)}
        try:
            committed = delta.commit(files, properties, remove=everything if folded.truncated else None)
        except CommitConflictError:
            delta.discard(files)
            raise
        return Applied(committed, tuple(files), rejected, changes.num_rows, last)

    def _evolve(self, delta: RowDelta, changes: pa.Table) -> None:
        fields = iceberg_fields(changes.schema.field("after").type)
        evolution = evolve(delta.schema, fields, delta.table.metadata.last_column_id)
        if evolution.clashes:
            raise SchemaConflictError(f"{self.name}: " + "; ".join(str(c) for c in evolution.clashes))
        if evolution.changed:
            delta.evolve(evolution.schema)

    def _deletes(
        self, delta: RowDelta, changes: pa.Table, folded: FoldResult, key_ids: tuple[int, ...]
    ) -> tuple[DeleteKeys, Any]:
        """Keys that the table may hold before this batch (rule 26), with what before-images tell of their rows."""
        keys = conform(folded.deletes, delta.schema.select(key_ids))
        live = live_keys(delta.table, delta.schema, self.key)
        wanted = live.may_hold(keys)
        if self.config.inserts == "trusted":
            wanted &= ~folded.delete_is_insert
        rows = pa.array(folded.delete_change, mask=folded.delete_change < 0)
        before = changes.column("before").combine_chunks().take(rows)
        return DeleteKeys(keys, _members(before)).take(wanted), live


def _members(struct: pa.StructArray) -> pa.Table:
    """The members as columns, NULL where the struct is."""
    names = [f.name for f in struct.type]
    return pa.Table.from_arrays(struct.flatten(), names=names) if names else pa.table({})
