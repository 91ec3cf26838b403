"""The mirror of a table: its rows as the change log leaves them, kept with data files and equality deletes.

Changes are applied in order of their ordinals, one snapshot per batch, whose summary tells the last ordinal applied.
What a batch writes is `mirror_batch.py`; which changes there are is the business of `change_log.py`.
"""

from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from pipelines.catalog import create_table, find_table
from pipelines.changes.change_batch import Rejected
from pipelines.changes.change_log import LOADED, Appended, ChangeLog
from pipelines.changes.change_run import BATCH_SHARE, ChangeRun, Changes, sliced
from pipelines.changes.logged_changes import read_changes
from pipelines.config import TableConfig, partition_field
from pipelines.errors import CommitConflictError, PipelineError, PositionLostError, SchemaConflictError
from pipelines.mirrors.mirror_batch import prepare
from pipelines.mirrors.soft_delete import up_to_truncate
from pipelines.quarantine import FEW_CHANGES, check_ratio
from pipelines.tables import positions
from pipelines.tables.commit import Committed, RowDelta, everything, retry_conflicts
from pipelines.tables.file_metrics import FileContent, WrittenFile
from pipelines.tables.loaded_table import check_writable, refresh
from pipelines.tables.schema_evolution import iceberg_fields
from pipelines.tables.table_shape import ADOPTED, ADOPTED_SNAPSHOT, check_shape, shape_properties, with_declared
from pipelines.tables.table_writer import WriterOptions


@dataclass(frozen=True, slots=True)
class Applied:
    """One batch of changes that is now in the mirror.

    Attributes:
        committed: its snapshot.
        files: of it.
        rejected: changes that could not be applied.
        num_changes: applied or rejected.
        last_ordinal: of the change log that is in the mirror now.
        num_missed: deletes, key changes and updates of whole rows that found no row to remove: all of them with `identity:
            full`, otherwise those of which it is known without reading the table.
    """

    committed: Committed
    files: tuple[WrittenFile, ...]
    rejected: Rejected
    num_changes: int
    last_ordinal: int
    num_missed: int

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
        if self.options is None:
            self.options = WriterOptions(bloom_filters=self.config.bloom_filters, sort_by=self.config.sort_by)
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
                f"pipeline, or the snapshot that told it has expired. Keep its rows and apply the log to them: nevermore adopt "
                f"{self.name}. Or make it anew from its log alone, which drops all rows it has now: nevermore resync "
                f"{self.name}"
            )
        return int(text or 0)

    def catch_up(
        self,
        log: ChangeLog,
        appended: Appended | None = None,
        *,
        reject: Callable[[Rejected], None],
        start: int = 0,
    ) -> Iterator[Applied]:
        """Apply every change of the log that is not in the mirror yet, `commit_rows` at a time.

        Args:
            log: the table's change log.
            appended: what this run has just appended: taken from memory if it is all that is missing.
            reject: keeps changes that cannot be applied; called before the commit that leaves them out.
            start: an ordinal up to which the changes lead to nothing, for a mirror that is made anew.
        """
        done = max(self.applied_ordinal, start)
        if done > log.last_ordinal:
            raise PositionLostError(
                f"{self.name} holds changes up to {done}, but {log.name} ends at {log.last_ordinal}: the log was "
                "re-made; rebuild the mirror"
            )
        while done < log.last_ordinal:
            with closing(self._next_changes(log, appended, done)) as changes:
                if changes.num_rows == 0:
                    raise PositionLostError(f"{log.name} lacks the changes after {done}, which {self.name} needs")
                done += changes.num_rows
                if self.table is not None or makes_rows(changes, self.config):
                    yield self._apply(changes, done, log, reject)

    def _next_changes(self, log: ChangeLog, appended: Appended | None, done: int) -> ChangeRun:
        end = log.end_of_batch(done, self.config.commit_rows)
        limit = self.config.memory_limit_bytes // BATCH_SHARE
        if appended is not None and appended.changes is not None and appended.first <= done + 1:
            tables = sliced(appended.changes.tables(), done + 1 - appended.first, end - done)
        else:
            tables = _complete(log, done, end, read_changes(log.table, done, end, limit), self.name)
        return ChangeRun.of(up_to_truncate(tables) if self.config.soft_delete else tables, limit)

    def _apply(self, changes: ChangeRun, reached: int, log: ChangeLog, reject: Callable[[Rejected], None]) -> Applied:
        if not self.key and self.config.identity != "full":
            raise SchemaConflictError(f"{self.name} has no key: declare one (key: [...]), or set identity: full")
        if self.table is None:
            self.table = self._create(changes, log)
        before = self.applied_ordinal
        trusts = self._trusts_inserts(log)
        return retry_conflicts(lambda: self._attempt(changes, log, before, reached, reject, trusts_inserts=trusts))

    def _trusts_inserts(self, log: ChangeLog) -> bool:
        """Whether the key of an insert cannot be in the table: config says so of the source, and rows came from it alone.

        Adopted rows and those of a full load may come once more, as inserts of the feed; with `order_by` inserts are logged
        again behind late events.
        """
        if self.config.inserts != "trusted" or self.table is None:
            return False
        if log.property(LOADED) is not None or log.order_by is not None:
            return False
        properties = self.table.metadata.properties
        return ADOPTED not in properties or properties.get(ADOPTED_SNAPSHOT) == ""

    def reapply(self, changes: ChangeRun, log: ChangeLog, *, reject: Callable[[Rejected], None]) -> Applied:
        """Apply changes that are in the mirror already once more, in one commit; how far it has got stays.

        No insert is trusted: its row is there.
        """
        before = self.applied_ordinal
        return retry_conflicts(lambda: self._attempt(changes, log, before, before, reject, trusts_inserts=False))

    def _create(self, changes: ChangeRun, log: ChangeLog) -> Any:
        after = next(changes.tables()).schema.field("after").type
        types = log.row_types | {f.name: f.type for f in after if not pa.types.is_null(f.type)}
        check_shape(self.name, self.config, self.key, types)
        return create_table(
            self.catalog,
            self.name,
            with_declared(iceberg_fields(pa.schema(list(types.items()))), self.config),
            partition_by=[partition_field(text) for text in self.config.partition_by],
            properties={**self.config.properties, **shape_properties(self.key, self.config)},
        )

    def _attempt(
        self,
        changes: ChangeRun,
        log: ChangeLog,
        before: int,
        reached: int,
        reject: Callable[[Rejected], None],
        *,
        trusts_inserts: bool,
    ) -> Applied:
        table = self.table
        if table is None:
            raise PositionLostError(f"{self.name} has vanished")
        refresh(table)
        if self.applied_ordinal != before:
            raise CommitConflictError(f"another ingester has written {self.name} meanwhile", may_retry=False)
        delta = RowDelta(table, self.options)
        work = prepare(delta, changes, self.key, self.config, trusts_inserts=trusts_inserts)
        properties = {positions.LOG_SNAPSHOT: str(log.snapshot_id), positions.LOG_ORDINAL: str(reached)}
        try:
            if work.rejected.num_rows:
                limit = self.config.max_quarantine_ratio
                check_ratio(self.name, changes.num_rows, work.rejected, limit, tolerated=FEW_CHANGES)
                reject(work.rejected)
            if changed := dict(self.config.properties.items() - table.metadata.properties.items()):
                delta.set_properties(changed)
            committed = delta.commit(work.files, properties, remove=everything if work.replaces_all else None)
        except PipelineError:
            delta.discard(work.files)
            raise
        return Applied(committed, tuple(work.files), work.rejected, changes.num_rows, reached, work.num_missed)


def makes_rows(changes: Changes, config: TableConfig) -> bool:
    """Whether changes to an empty table lead to rows; truncates and deletes do not even tell its columns."""
    removing = pa.array(["t"] if config.soft_delete else ["t", "d"])
    return not all(pc.all(pc.is_in(t.column("op"), value_set=removing)).as_py() for t in changes.tables())


def _complete(log: ChangeLog, after: int, end: int, tables: Iterator[pa.Table], name: str) -> Iterator[pa.Table]:
    """The changes of a log after an ordinal, none of which may be missing.

    Raises:
        PositionLostError: one is.
    """
    found = 0
    for table in tables:
        found += table.num_rows
        yield table
    if found != end - after:
        raise PositionLostError(f"{log.name} lacks changes between {after + 1} and {end}, which {name} needs")
