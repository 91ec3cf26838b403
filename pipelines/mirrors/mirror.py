"""The mirror of a table: its rows as the change log defines them.

Contains the state of a mirror and what one batch of changes writes: data files, delete files and rejected changes.
Folding is in `fold.py` and `multiset.py`.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from pipelines.changes.change_log import LOADED, Appended, ChangeLog, read_changes
from pipelines.changes.change_run import BATCH_SHARE, ChangeRun, Changes, parts_by_key, sliced
from pipelines.changes.quarantine import FEW_CHANGES, check_ratio
from pipelines.config.project import TableConfig, partition_field
from pipelines.decode.batches import Rejected
from pipelines.errors import CommitConflictError, PipelineError, PositionLostError, SchemaConflictError
from pipelines.iceberg import positions
from pipelines.iceberg.catalog import create_table, find_table
from pipelines.iceberg.commit import Committed, RowDelta, everything, retry_conflicts
from pipelines.iceberg.file_metrics import FileContent, WrittenFile
from pipelines.iceberg.loaded_table import check_writable, refresh
from pipelines.iceberg.row_shape import conform, without_extensions
from pipelines.iceberg.schema_evolution import evolve, iceberg_fields
from pipelines.iceberg.table_writer import WriterOptions, check_key, write_deletes, write_rows
from pipelines.mirrors.delete_scope import LiveKeys, live_keys, scope_deletes
from pipelines.mirrors.fold import (
    DELETED,
    FoldResult,
    flagged_rows,
    soften,
    squash,
    up_to_truncate,
    with_deletes_of_moved_rows,
)
from pipelines.mirrors.mirror_lookup import FoundRows, all_rows, complete, find_rows
from pipelines.mirrors.multiset import recount, steps_by_row
from pipelines.mirrors.table_shape import ADOPTED, ADOPTED_SNAPSHOT, check_shape, shape_properties, with_declared

Mask = npt.NDArray[np.bool_]
Rows = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class BatchFiles:
    """What one commit consists of.

    Attributes:
        files: of it.
        rejected: changes that had to be left out.
        replaces_all: the files take the place of all that is there.
        num_missed: removals of rows that are not there, as far as that is known without reading the table for it.
    """

    files: tuple[WrittenFile, ...]
    rejected: Rejected
    replaces_all: bool
    num_missed: int


def prepare(
    delta: RowDelta, changes: ChangeRun, key: Sequence[str], config: TableConfig, *, trusts_inserts: bool
) -> BatchFiles:
    """Write the files that bring the table from the base of `delta` to the state after `changes`.

    Args:
        delta: the commit that will name them; its schema and specs may change.
        changes: rows of the change log in order; with soft deletes a truncate comes alone.
        key: columns that identify a row.
        config: of the table.
        trusts_inserts: the key of an insert is not in the table.

    Raises:
        SchemaConflictError: a column or key that the table cannot take.
        GlobalDeleteError: a delete that config refuses.
    """
    writing = _Writing(delta, config, trusts_inserts=trusts_inserts)
    try:
        if config.identity == "full":
            _recount(writing, changes)
        elif config.soft_delete and next(changes.tables()).column("op")[0].as_py() == "t":
            _flag_all(writing)
        else:
            _fold(writing, changes, key)
        return writing.done()
    except BaseException:
        delta.discard(writing.files)
        raise


class _Writing:
    """Files of a commit in the making: rows as they come, keys to delete when there are enough for a file."""

    def __init__(self, delta: RowDelta, config: TableConfig, *, trusts_inserts: bool) -> None:
        self.delta = delta
        self.config = config
        self.trusts_inserts = trusts_inserts
        self.limit_bytes = config.memory_limit_bytes // BATCH_SHARE
        self.files: list[WrittenFile] = []
        self.rejected: list[Rejected] = []
        self.replaces_all = False
        self.num_missed = 0
        self.key_ids: tuple[int, ...] = ()
        self.live = LiveKeys(0, frozenset(), {})
        self._deletes: list[pa.Table] = []
        self._removes: list[Mask] = []

    def rows(self, rows: pa.Table, *, key_ids: Sequence[int] = ()) -> None:
        """Rows to add."""
        self.files += write_rows(rows, self.delta.target, self.delta.default_spec, key_ids=key_ids)

    def deletes(self, keys: pa.Table, removes: Mask | None = None) -> None:
        """Keys to delete, and which of them changes say to be there; None if all are known to be."""
        self._deletes.append(keys)
        self._removes.append(np.zeros(keys.num_rows, np.bool_) if removes is None else removes)
        if sum(held.nbytes for held in self._deletes) > self.limit_bytes:
            self._write_deletes()

    def done(self) -> BatchFiles:
        """All of it."""
        self._write_deletes()
        return BatchFiles(tuple(self.files), Rejected.concat(self.rejected), self.replaces_all, self.num_missed)

    def _write_deletes(self) -> None:
        if not self._deletes:
            return
        keys, removes = pa.concat_tables(self._deletes), np.concatenate(self._removes)
        self._deletes, self._removes = [], []
        found = scope_deletes(self.delta, keys, self.live, self.config.global_deletes)
        if found.is_there is not None:
            self.num_missed += int((removes & ~found.is_there).sum())
        for scoped in found.deletes:
            self.files += write_deletes(scoped.keys, self.delta.target, scoped.spec, self.key_ids)


def _fold(writing: _Writing, changes: ChangeRun, key: Sequence[str]) -> None:
    delta, is_soft = writing.delta, writing.config.soft_delete
    base = _base_columns(delta)
    is_first = True
    # A soft delete needs the row that it flags, so nothing before it may go.
    shrink = None if is_soft else partial(squash, key=key)
    for part in parts_by_key(changes, key, writing.limit_bytes, shrink):
        rows, ignorable = part.changes, None
        if is_soft:
            rows = with_deletes_of_moved_rows(rows, key)
            ignorable = np.asarray(pc.equal(rows.column("op"), "d"), np.bool_)
            rows = soften(rows, key, base)
        if is_first:
            _evolve(delta, rows.schema.field("after").type)
            writing.key_ids = check_key(delta.schema, key)
            writing.live = live_keys(delta.table, delta.schema, key)
            is_first = False
        folded, rejected, num_ignored = complete(
            delta, rows, key, ignorable=ignorable, after_truncate=part.after_truncate, keeps_moved=is_soft
        )
        writing.rejected.append(rejected)
        writing.num_missed += folded.num_missed + num_ignored
        writing.rows(folded.upserts, key_ids=writing.key_ids)
        if folded.truncated:
            writing.replaces_all = True
        else:
            _delete(writing, folded)


def _delete(writing: _Writing, folded: FoldResult) -> None:
    """The keys that the table may hold before this batch (rule 26)."""
    schema = writing.delta.schema
    key_ids = tuple(schema.find(name).field_id for name in folded.deletes.column_names)
    keys = conform(folded.deletes, schema.select(key_ids))
    wanted = writing.live.may_hold(keys)
    writing.num_missed += int((folded.delete_removes & ~wanted).sum())
    if writing.trusts_inserts:
        wanted &= ~folded.delete_is_insert
    writing.deletes(keys.filter(pa.array(wanted)), folded.delete_removes[wanted])


def _recount(writing: _Writing, changes: ChangeRun) -> None:
    """A table without a key: the whole row identifies it, equal rows are counted."""
    delta = writing.delta
    _evolve(delta, next(changes.tables()).schema.field("after").type)
    columns = list(delta.schema.names)
    writing.key_ids = check_key(delta.schema, columns)
    key_schema = delta.schema.select(writing.key_ids)
    writing.live = live_keys(delta.table, delta.schema, ())
    base = [name for name in _base_columns(delta) if name in columns]

    def find(rows: pa.Table, returned: Sequence[str]) -> tuple[FoundRows, Rows]:
        """Live rows that agree with some of these, and the places of these in `rows`."""
        asked = conform(rows, key_schema).select(rows.column_names)
        # In the rows that are there, a column that comes with this batch is NULL.
        old = np.ones(max(rows.num_rows, 1), np.bool_)
        for name in set(rows.column_names) - set(base):
            old &= np.asarray(asked.column(name).is_null(), np.bool_)
        places = np.flatnonzero(old)
        known = [name for name in base if name in rows.column_names]
        if not known:
            return all_rows(delta.table, tuple(returned), any_at_all=bool(len(places))), places
        return find_rows(delta.table, asked.select(known).take(pa.array(places)), tuple(returned)), places

    def count_live(rows: pa.Table) -> Rows:
        found, places = find(rows, ())
        return np.bincount(places[found.key_row], minlength=rows.num_rows)

    def in_columns(rows: pa.Table) -> pa.Table:
        return without_extensions(conform(rows, key_schema))

    for part in steps_by_row(changes, columns, writing.limit_bytes):
        taken = replace(part, rows=in_columns(part.rows)) if part.is_partial.any() else part
        counted = recount(taken, count_live, lambda rows: in_columns(find(rows, base)[0].rows))
        writing.num_missed += counted.num_missed
        writing.rows(counted.upserts)
        if counted.truncated:
            writing.replaces_all = True
        else:
            writing.deletes(conform(counted.deletes, key_schema))


def _flag_all(writing: _Writing) -> None:
    """A truncate where deletes are soft: every row once more, flagged."""
    _evolve(writing.delta, pa.struct([pa.field(DELETED, pa.bool_())]))
    for rows in flagged_rows(writing.delta.table, writing.config.commit_rows):
        writing.rows(rows)
    writing.replaces_all = True


def _base_columns(delta: RowDelta) -> list[str]:
    """Columns that the table had before this commit."""
    return [f.name for f in delta.table.schema().fields]


def _evolve(delta: RowDelta, row_type: pa.StructType) -> None:
    evolution = evolve(delta.schema, iceberg_fields(row_type), delta.table.metadata.last_column_id)
    if evolution.clashes:
        raise SchemaConflictError(f"{'.'.join(delta.table.name())}: " + "; ".join(str(c) for c in evolution.clashes))
    if evolution.changed:
        delta.evolve(evolution.schema)


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
