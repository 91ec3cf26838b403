"""A mirror table: writes folded changes as data files and delete files, with a key or as a multiset of rows."""

import logging
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from nevermore.pipelines.changes.change_log import (
    LOADED,
    ORDINAL,
    Appended,
    ChangeLog,
    FoldOrder,
    RemoteChanges,
    last_truncate,
    read_changes,
)
from nevermore.pipelines.changes.change_run import (
    BATCH_SHARE,
    ChangeRun,
    Changes,
    parts_by_key,
    sliced,
)
from nevermore.pipelines.changes.quarantine import FEW_CHANGES, check_ratio
from nevermore.pipelines.config.tables import TableConfig, partition_field
from nevermore.pipelines.decode.batches import Rejected
from nevermore.pipelines.errors import AdoptedRowsError, AnotherIngesterError, PositionLostError, SchemaConflictError
from nevermore.pipelines.iceberg import positions
from nevermore.pipelines.iceberg.catalog import create_table, find_table
from nevermore.pipelines.iceberg.commit import Committed, RowDelta, everything, retry_conflicts, upgrade
from nevermore.pipelines.iceberg.conversion import ResolvedKeys
from nevermore.pipelines.iceberg.loaded_table import check_writable, refresh
from nevermore.pipelines.iceberg.manifests import Selection
from nevermore.pipelines.iceberg.row_shape import conform, without_extensions
from nevermore.pipelines.iceberg.schema_evolution import iceberg_fields
from nevermore.pipelines.iceberg.table_writer import WriterOptions, check_key, write_deletes, write_rows
from nevermore.pipelines.mirrors.delete_scope import (
    LiveKeys,
    check_scopes,
    live_keys,
    scope_deletes,
    scope_without_look,
)
from nevermore.pipelines.mirrors.fold import (
    DELETED,
    FoldResult,
    flagged_rows,
    soften,
    squash,
    up_to_truncate,
    with_deletes_of_moved_rows,
)
from nevermore.pipelines.mirrors.mirror_lookup import ROW_ID, all_rows, complete, find_rows, with_row_ids
from nevermore.pipelines.mirrors.multiset import recount, steps_by_row
from nevermore.pipelines.mirrors.table_shape import (
    ADOPTED,
    ADOPTED_ORDINAL,
    ADOPTED_SNAPSHOT,
    check_shape,
    shape_properties,
    with_declared,
)
from nevermore.scan_core import ContentFile, DataFile, DeleteContent, DeleteFile, Mask, ScanOptions, Schema

if TYPE_CHECKING:
    from nevermore.pipelines.iceberg.catalog import Catalog, Table

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class BatchFiles:
    """The content of one commit.

    Attributes:
        files: new files.
        rejected: changes that cannot be applied.
        replaces_all: whether the files replace all rows of the table.
        num_missed: removals of rows that do not exist, as far as that is known without reading the table.
    """

    files: tuple[ContentFile, ...]
    rejected: Rejected
    replaces_all: bool
    num_missed: int


def prepare(
    delta: RowDelta, changes: ChangeRun, key: Sequence[str], config: TableConfig, *, trusts_inserts: bool
) -> BatchFiles:
    """Write the files that bring the table from the base of `delta` to the state after `changes`.

    Args:
        delta: the commit for these files; its schema and specs may change.
        changes: rows of the change log in order; with soft deletes a truncate comes alone.
        key: columns that identify a row.
        config: config of the table.
        trusts_inserts: whether the key of an insert is known not to be in the table.

    Raises:
        SchemaConflictError: the table cannot hold a column or key.
    """
    writing = _Writing(delta, config, trusts_inserts=trusts_inserts)
    if config.identity == "full":
        _recount(writing, changes)
    elif config.soft_delete and next(changes.tables()).column("op")[0].as_py() == "t":
        _flag_all(writing)
    else:
        _fold(writing, changes, key)
    return writing.done()


def prepare_remotely(
    delta: RowDelta, changes: RemoteChanges, key: tuple[str, ...], *, trusts_inserts: bool
) -> BatchFiles:
    """Let tasks write the files that bring the table to the state after `changes`; see `prepare`."""
    _evolve(delta, changes.row_type)
    check_key(delta.schema, key)
    live = live_keys(delta.table, delta.schema, key)
    spec = scope_without_look(delta, key, live) if live.num_files and not changes.truncates else None
    order = FoldOrder(delta.target, delta.default_spec, spec, live, key, trusts_inserts)
    files, num_missed = changes.write_mirror(order)
    delta.storage.created.extend(file.path for file in files)
    return BatchFiles(tuple(files), Rejected.none(), changes.truncates, num_missed)


def _why_local(table: "Table | None", changes: RemoteChanges, key: Sequence[str], config: TableConfig) -> str | None:
    """Why tasks cannot apply changes to a mirror; None if they can."""
    if changes.why_local is not None or config.identity == "full" or config.soft_delete:
        return changes.why_local or "identity: full and soft_delete need the rows of the mirror"
    if table is None or changes.truncates:
        return None
    delta = RowDelta(table)
    if any(name not in delta.schema.names for name in key):
        return None
    live = live_keys(table, delta.schema, key)
    spec = scope_without_look(delta, key, live) if live.num_files else delta.default_spec
    if spec is None:
        return "the partition of a row does not follow from its key, so rows to delete are looked up"
    return None


class _Writing:
    """Writes the files of a commit: rows immediately, keys to delete once there are enough for a file."""

    def __init__(self, delta: RowDelta, config: TableConfig, *, trusts_inserts: bool) -> None:
        self.delta = delta
        self.config = config
        self.trusts_inserts = trusts_inserts
        self.limit_bytes = config.memory_limit_bytes // BATCH_SHARE
        self.files: list[ContentFile] = []
        self.rejected: list[Rejected] = []
        self.replaces_all = False
        self.num_missed = 0
        self.key_ids: tuple[int, ...] = ()
        self.live = LiveKeys(0, frozenset(), {})
        self._deletes: list[pa.Table] = []
        self._removes: list[Mask] = []

    def rows(self, rows: pa.Table, *, key_ids: Sequence[int] = ()) -> None:
        """Write rows to add, possibly with their ids."""
        target = self.delta.target
        if ROW_ID.name in rows.column_names:
            target = replace(target, schema=target.schema.with_fields(ROW_ID))
        self.files += write_rows(rows, target, self.delta.default_spec, key_ids=key_ids)

    def deletes(self, keys: pa.Table, removes: Mask | None = None) -> None:
        """Add keys to delete, and which of them changes assume to be in the table; None if all are known to be."""
        self._deletes.append(keys)
        self._removes.append(np.zeros(keys.num_rows, np.bool_) if removes is None else removes)
        if sum(held.nbytes for held in self._deletes) > self.limit_bytes:
            self._write_deletes()

    def done(self) -> BatchFiles:
        """Write the remaining deletes; return all files."""
        self._write_deletes()
        return BatchFiles(tuple(self.files), Rejected.concat(self.rejected), self.replaces_all, self.num_missed)

    def _write_deletes(self) -> None:
        if not self._deletes:
            return
        keys, removes = pa.concat_tables(self._deletes), np.concatenate(self._removes)
        self._deletes, self._removes = [], []
        found = scope_deletes(self.delta, keys, self.live)
        if found.is_there is not None:
            self.num_missed += int((removes & ~found.is_there).sum())
        for scoped in found.deletes:
            self.files += write_deletes(scoped.keys, self.delta.target, scoped.spec, self.key_ids)


def _fold(writing: _Writing, changes: ChangeRun, key: Sequence[str]) -> None:
    delta, is_soft = writing.delta, writing.config.soft_delete
    base = delta.base_columns
    is_first = True
    # A soft delete needs the row that it flags, so no change before it may be dropped.
    shrink = None if is_soft else partial(squash, key=key)
    for part in parts_by_key(changes, key, writing.limit_bytes, shrink):
        rows, ignorable, flags = part.changes, None, None
        if is_soft:
            rows, of_moves = with_deletes_of_moved_rows(rows, key)
            ignorable = np.asarray(pc.equal(rows.column("op"), "d"), np.bool_)
            flags = ignorable & ~of_moves
            rows = soften(rows, key, base)
        if is_first:
            _evolve(delta, rows.schema.field("after").type)
            writing.key_ids = check_key(delta.schema, key)
            writing.live = live_keys(delta.table, delta.schema, key)
            is_first = False
        folded, rejected, num_ignored = complete(
            delta, rows, key, ignorable=ignorable, after_truncate=part.after_truncate, flags=flags
        )
        writing.rejected.append(rejected)
        writing.num_missed += folded.num_missed + num_ignored
        upserts = folded.upserts
        if folded.truncated:
            writing.replaces_all = True
        else:
            upserts = _delete(writing, folded)
        writing.rows(upserts, key_ids=writing.key_ids)


def _delete(writing: _Writing, folded: FoldResult) -> pa.Table:
    """Delete the keys that the table may hold before this batch (rule 26); the upserts, with the ids of rows that they update."""
    schema = writing.delta.schema
    key_ids = tuple(schema.find(name).field_id for name in folded.deletes.column_names)
    keys = conform(folded.deletes, schema.select(key_ids))
    wanted = writing.live.may_hold(keys)
    writing.num_missed += int((folded.delete_removes & ~wanted).sum())
    if writing.trusts_inserts:
        wanted &= ~folded.delete_is_insert
    writing.deletes(keys.filter(pa.array(wanted)), folded.delete_removes[wanted])
    if writing.config.deletes != "vectors":  # a key that is not looked up does not tell the id of its row
        return folded.upserts
    updated = wanted & ~folded.delete_is_insert & ~folded.delete_removes
    return with_row_ids(writing.delta, folded.upserts, keys.filter(pa.array(updated)))


def _recount(writing: _Writing, changes: ChangeRun) -> None:
    """Write changes of a table without a key: rows are identified by all their values, equal rows are counted."""
    delta = writing.delta
    _evolve(delta, next(changes.tables()).schema.field("after").type)
    columns = list(delta.schema.names)
    writing.key_ids = check_key(delta.schema, columns)
    key_schema = delta.schema.select(writing.key_ids)
    writing.live = live_keys(delta.table, delta.schema, ())
    base = [name for name in delta.base_columns if name in columns]

    def in_columns(rows: pa.Table) -> pa.Table:
        return without_extensions(conform(rows, key_schema))

    def find_live(rows: pa.Table) -> pa.Table:
        """Live rows that equal one of these in all columns that these have."""
        asked = conform(rows, key_schema).select(rows.column_names)
        # In existing rows, a column that is new in this batch is NULL.
        old = np.ones(max(rows.num_rows, 1), np.bool_)
        for name in set(rows.column_names) - set(base):
            old &= np.asarray(asked.column(name).is_null(), np.bool_)
        places = pa.array(np.flatnonzero(old))
        known = [name for name in base if name in rows.column_names]
        if not known:
            return in_columns(all_rows(delta.table, base, any_at_all=bool(len(places))))
        return in_columns(find_rows(delta.table, asked.select(known).take(places), tuple(base)).rows)

    for part in steps_by_row(changes, columns, writing.limit_bytes):
        counted = recount(replace(part, rows=in_columns(part.rows)), find_live)
        writing.num_missed += counted.num_missed
        writing.rows(counted.upserts)
        if counted.truncated:
            writing.replaces_all = True
        else:
            writing.deletes(conform(counted.deletes, key_schema))


def _flag_all(writing: _Writing) -> None:
    """Write a truncate with soft deletes: every row again, flagged."""
    _evolve(writing.delta, pa.struct([pa.field(DELETED, pa.bool_())]))
    for rows in flagged_rows(writing.delta.table, writing.config.commit_rows):
        writing.rows(rows)
    writing.replaces_all = True


def _evolve(delta: RowDelta, row_type: pa.StructType) -> None:
    if clashes := delta.hold(iceberg_fields(row_type)):
        raise SchemaConflictError(f"{'.'.join(delta.table.name())}: " + "; ".join(map(str, clashes)))


@dataclass(frozen=True, slots=True)
class Applied:
    """One batch of changes that was applied to the mirror.

    Attributes:
        committed: the snapshot.
        files: its new files.
        rejected: changes that could not be applied.
        num_changes: changes applied or rejected.
        last_ordinal: last ordinal of the change log that is now in the mirror.
        num_missed: deletes, key changes and updates of whole rows that found no row to remove: all of them with
            `identity:
            full`, otherwise those that are known without reading the table.
    """

    committed: Committed
    files: tuple[ContentFile, ...]
    rejected: Rejected
    num_changes: int
    last_ordinal: int
    num_missed: int

    @property
    def delete_rows(self) -> int:
        """Number of rows of the equality-delete files."""
        deletes = (file for file in self.files if isinstance(file, DeleteFile))
        return sum(file.record_count for file in deletes if file.content is DeleteContent.EQUALITY)


@dataclass
class Mirror:
    """One mirror; `table` is reloaded before each commit.

    Attributes:
        catalog: the catalog that contains the table or in which it will be created.
        name: name of the table.
        config: config of the table.
        key: columns that identify a row.
        why_local: why `catch_up` applied in this process what tasks could have applied; None if it did not.
    """

    catalog: "Catalog"
    name: str
    config: TableConfig
    key: tuple[str, ...]
    options: WriterOptions | None = None
    table: "Table | None" = field(init=False)
    why_local: str | None = field(init=False, default=None)

    def __post_init__(self) -> None:
        if self.options is None:
            bloom = () if self.config.index is None else self.config.index.bloom
            config = self.config
            self.options = WriterOptions(
                bloom_filters=config.bloom_filters, bloom_columns=bloom, sort_by=config.sort_by
            )
        self.table = find_table(self.catalog, self.name)
        if self.table is not None:
            check_writable(self.table)

    @property
    def applied_ordinal(self) -> int:
        """The last ordinal of the change log that is in the mirror; 0 for none.

        Raises:
            PositionLostError: the table has rows, but no snapshot records which changes they contain.
        """
        return positions.applied_ordinal(self.name, self.table)

    def catch_up(
        self,
        log: ChangeLog,
        appended: Appended | None = None,
        *,
        reject: Callable[[Rejected], None],
        start: int = 0,
        end: int | None = None,
    ) -> Iterator[Applied]:
        """Apply all changes of the log that are not yet in the mirror, `commit_rows` at a time.

        Args:
            log: the table's change log.
            appended: changes that this run has just appended, used from memory if no others are missing.
            reject: keeps changes that cannot be applied; called before the commit without them.
            start: ordinal up to which changes have no effect, for a mirror that is being rebuilt.
            end: last ordinal to apply, which is not within a base; default: the last that a mirror may have.
        """
        done, end_of_log = max(self.applied_ordinal, start), log.ready_ordinal if end is None else end
        has_rows = self.table is not None
        log.check_reached(self.name, self.applied_ordinal)
        if (
            appended is not None
            and isinstance(appended.changes, RemoteChanges)
            and done + 1 == appended.first <= end_of_log
        ):
            given = appended.changes
            reason = _why_local(self.table, given, self.key, self.config)
            if reason is None:
                done = end_of_log
                if self.table is not None or makes_rows(given, self.config):
                    yield self._apply(given, done, log, reject)
            else:
                self.why_local = reason
                _log.info("%s: this process applies the changes to the mirror: %s", self.name, reason)
        while done < end_of_log:
            # a mirror without rows has none to show until a load is complete
            last = min(end_of_log, log.end_of_batch(done, self.config.commit_rows, whole_reloads=has_rows))
            with closing(self._next_changes(log, appended, done, last)) as changes:
                if changes.num_rows == 0 and last > log.base.ordinal:
                    raise PositionLostError(f"{log.name} lacks the changes after {done}, which {self.name} needs")
                done = self._reached(log, changes, done, last)
                if changes.num_rows and (self.table is not None or makes_rows(changes, self.config)):
                    # within a base there is no place to go on from: killed here, all of it is applied again
                    yield self._apply(changes, done if done >= log.base.ordinal else 0, log, reject)
        if self.table is None and log.last_ordinal == 0 and log.key:  # an empty load has declared the columns
            self.create(log)

    def rebuild(self, log: ChangeLog, end: int, reject: Callable[[Rejected], None]) -> "Table":
        """Apply the changes of a log up to an ordinal to a mirror that has none; the table, also without rows."""
        for _ in self.catch_up(log, reject=reject, start=effective_from(log, self.config, end), end=end):
            pass
        return self.table or self.create(log)

    def _reached(self, log: ChangeLog, changes: ChangeRun, after: int, end: int) -> int:
        """The last ordinal of a batch of the changes in (after, end]."""
        if after >= log.base.ordinal:
            return after + changes.num_rows
        if self.config.soft_delete and 0 < changes.num_rows < log.num_required(after, end):
            *_, last = changes.tables()  # a truncate follows, or is all of it
            return int(last.column(ORDINAL)[-1].as_py())
        return end

    def _next_changes(self, log: ChangeLog, appended: Appended | None, done: int, end: int) -> ChangeRun:
        limit = self.config.memory_limit_bytes // BATCH_SHARE
        given = None if appended is None or isinstance(appended.changes, RemoteChanges) else appended.changes
        if appended is not None and given is not None and appended.first <= done + 1:
            tables = sliced(given.tables(), done + 1 - appended.first, end - done)
        else:
            tables = _complete(log, done, end, read_changes(log.table, done, end, limit), self.name)
        return ChangeRun.of(up_to_truncate(tables) if self.config.soft_delete else tables, limit)

    def _apply(
        self, changes: ChangeRun | RemoteChanges, reached: int, log: ChangeLog, reject: Callable[[Rejected], None]
    ) -> Applied:
        if not self.key and self.config.identity != "full":
            raise SchemaConflictError(f"{self.name} has no key: declare one (key: [...]), or set identity: full")
        if self.table is None:
            self.create(log)
        before = self.applied_ordinal
        trusts = self._trusts_inserts(log)
        return retry_conflicts(lambda: self._attempt(changes, log, before, reached, reject, trusts_inserts=trusts))

    def _trusts_inserts(self, log: ChangeLog) -> bool:
        """Whether the key of an insert cannot be in the table: the config says so, and all rows came from the feed.

        Adopted rows and those of a full load may come again as inserts in the feed; with `order_by` inserts are logged again
        after late events; with `soft_delete` the row of a deleted key stays and must go when the key is inserted again.
        """
        if self.config.inserts != "trusted" or self.config.soft_delete or self.table is None:
            return False
        if log.table_property(LOADED) is not None or log.order_by is not None:
            return False
        properties = self.table.metadata.properties
        return ADOPTED not in properties or properties.get(ADOPTED_SNAPSHOT) == ""

    def reapply(self, changes: ChangeRun, log: ChangeLog, *, reject: Callable[[Rejected], None]) -> Applied:
        """Apply changes again that the mirror already contains, in one commit; its position does not change.

        No insert is trusted, as its row exists.
        """
        before = self.applied_ordinal
        return retry_conflicts(lambda: self._attempt(changes, log, before, before, reject, trusts_inserts=False))

    def create(self, log: ChangeLog) -> "Table":
        """Make the table, with the columns of a log."""
        types = log.row_types
        check_shape(self.name, self.config, self.key, types)
        self.table = create_table(
            self.catalog,
            self.name,
            with_declared(iceberg_fields(pa.schema(list(types.items()))), self.config),
            partition_by=[partition_field(text) for text in self.config.partition_by],
            properties={**self.config.table_properties, **shape_properties(self.key, self.config)},
        )
        return self.table

    def _attempt(
        self,
        changes: ChangeRun | RemoteChanges,
        log: ChangeLog,
        before: int,
        reached: int,
        reject: Callable[[Rejected], None],
        *,
        trusts_inserts: bool,
    ) -> Applied:
        table = self.table
        if table is None:
            raise PositionLostError(f"{self.name} no longer exists")
        refresh(table)
        if self.applied_ordinal != before:
            raise AnotherIngesterError(f"another ingester has written {self.name} in the meantime")
        if table.format_version < self.config.format_version:
            upgrade(table, self.config.format_version)
        with ExitStack() as stack:
            delta = stack.enter_context(RowDelta(table, self.options))
            delta.drop_columns(log.dropped_columns(table))
            if isinstance(changes, RemoteChanges):
                work = prepare_remotely(delta, changes, self.key, trusts_inserts=trusts_inserts)
            else:
                work = prepare(delta, changes, self.key, self.config, trusts_inserts=trusts_inserts)
            content = stack.enter_context(closing(_Content(delta, work, self.config)))
            if work.rejected.num_rows:
                limit = self.config.max_quarantine_ratio
                check_ratio(self.name, changes.num_rows, work.rejected, limit, tolerated=FEW_CHANGES)
                reject(work.rejected)
            properties = {positions.LOG_SNAPSHOT: str(log.snapshot_id), positions.LOG_ORDINAL: str(reached)}
            added, removed = content.of_base()
            committed = delta.commit(added, properties, remove=removed, after_rewrites=content.of_base)
        return Applied(committed, content.files, work.rejected, changes.num_rows, reached, work.num_missed)


class _RowsOnly(RowDelta):
    """A commit that keeps the schema: required columns, which a mirror makes optional, stay required."""

    def evolve(self, schema: Schema) -> None:
        """Nothing: changes have the columns of the table."""


def apply_changes(table: "Table", changes: ChangeRun, key: Sequence[str], config: TableConfig) -> int:
    """Commit changes to a table without a change log; the id of the snapshot.

    Raises:
        CommitConflictError: another writer changed its rows in the meantime.
    """
    with _RowsOnly(table) as delta:
        work = prepare(delta, changes, key, config, trusts_inserts=False)
        with closing(_Content(delta, work, config)) as content:
            added, removed = content.of_base()
            return delta.commit(added, {}, remove=removed, after_rewrites=content.of_base).snapshot_id


class _Content:
    """What a commit adds and removes: as prepared, or as it has to be after other commits have replaced files."""

    def __init__(self, delta: RowDelta, work: BatchFiles, config: TableConfig) -> None:
        self._delta = delta
        self._work = work
        self._since = delta.base_snapshot_id
        self._keys: ResolvedKeys | None = None
        self.files = work.files
        if config.deletes == "vectors" and not work.replaces_all:
            options = ScanOptions(memory_limit_bytes=config.memory_limit_bytes)
            keys = [file for file in work.files if isinstance(file, DeleteFile)]
            self._keys = ResolvedKeys(delta, keys, options)

    def of_base(self) -> tuple[Sequence[ContentFile], Selection | None]:
        """The files to add to the snapshot that the commit builds upon, and those to remove."""
        if self._keys is not None:
            vectors, replaced = self._keys.resolve()
            rows = (file for file in self._work.files if isinstance(file, DataFile))
            self.files = (*rows, *vectors)
            return self.files, replaced
        if self._since != self._delta.base_snapshot_id:
            check_scopes(self._delta, self.files, self._since)
            self._since = self._delta.base_snapshot_id
        return self.files, everything if self._work.replaces_all else None

    def close(self) -> None:
        """Remove the files that are no part of the commit, whatever became of it."""
        if self._keys is not None:
            self._keys.close()


def effective_from(log: ChangeLog, config: TableConfig, ordinal: int) -> int:
    """The ordinal before which changes have no effect on the rows at another one: before the last truncate, unless it keeps flagged rows."""
    return 0 if config.soft_delete else max(0, last_truncate(log.table, ordinal) - 1)


def check_whole(mirror: "Table | None", log: ChangeLog, ordinal: int) -> None:
    """Refuse to drop adopted rows, unless the source was truncated or fully loaded later, up to an ordinal.

    Raises:
        AdoptedRowsError: the mirror still has adopted rows.
    """
    if mirror is None:
        return
    properties = mirror.metadata.properties
    if ADOPTED not in properties or properties.get(ADOPTED_SNAPSHOT) == "":
        return
    if last_truncate(log.table, ordinal) <= int(properties.get(ADOPTED_ORDINAL, 0)):
        name = ".".join(mirror.name())
        raise AdoptedRowsError(
            f"{name} was adopted with rows that {log.name} does not have, so rebuilding it from the log alone would lose them; take "
            f"a full load of the source: nevermore resync {name} --snapshot-source PATH"
        )


def makes_rows(changes: Changes | RemoteChanges, config: TableConfig) -> bool:
    """Whether changes to an empty table create rows; truncates and deletes do not even show its columns."""
    if isinstance(changes, RemoteChanges):
        return not set(changes.counts) <= set(removing_ops(config))
    removing = pa.array(removing_ops(config))
    return not all(pc.all(pc.is_in(t.column("op"), value_set=removing)).as_py() for t in changes.tables())


def removing_ops(config: TableConfig) -> tuple[str, ...]:
    """Operations that create no row in an empty table."""
    return ("t",) if config.soft_delete else ("t", "d")


def _complete(log: ChangeLog, after: int, end: int, tables: Iterator[pa.Table], name: str) -> Iterator[pa.Table]:
    """Check that no change of a log after an ordinal is missing.

    Raises:
        PositionLostError: a change is missing.
    """
    found = 0
    for table in tables:
        found += table.num_rows
        yield table
    if found != log.num_required(after, end):
        raise PositionLostError(f"{log.name} lacks changes between {after + 1} and {end}, which {name} needs")
