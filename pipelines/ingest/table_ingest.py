"""The part of one table in an ingest run: its change log is written first, then its mirror.

Changes are collected until a commit is due; rejected ones go to quarantine. A change of the table's columns may be refused
(`schema_changes: freeze`). Feeds are read and decoded in `feed_run.py`.
"""

import re
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.compute as pc

from nevermore.pipelines.changes.change_log import (
    SOURCE_TABLE,
    Appended,
    ChangeLog,
    Reload,
    RemoteChanges,
    check_order,
    last_offsets,
    order_text,
)
from nevermore.pipelines.changes.change_run import BATCH_SHARE, ChangeRun, Changes
from nevermore.pipelines.changes.late_changes import with_later_changes
from nevermore.pipelines.changes.quarantine import FEW_CHANGES, check_ratio, quarantine
from nevermore.pipelines.config.project import change_log_name, quarantine_name
from nevermore.pipelines.config.sources import KafkaSource, MysqlSource, PostgresSource
from nevermore.pipelines.config.tables import TableConfig, partition_field
from nevermore.pipelines.decode.batches import BatchEnd, ChangeBatch, Rejected, change_schema, in_row_type
from nevermore.pipelines.decode.column_types import widened
from nevermore.pipelines.decode.feed import ORDER
from nevermore.pipelines.errors import ConfigError, PipelineError, SchemaConflictError
from nevermore.pipelines.iceberg import storage
from nevermore.pipelines.iceberg.catalog import find_table
from nevermore.pipelines.iceberg.commit import describe
from nevermore.pipelines.iceberg.conversion import keep_converted
from nevermore.pipelines.iceberg.index_upkeep import keep_mirror_indexes
from nevermore.pipelines.iceberg.loaded_table import current_schema
from nevermore.pipelines.iceberg.schema_evolution import iceberg_type
from nevermore.pipelines.ingest.report import TableReport, unmet_columns
from nevermore.pipelines.mirrors.fold import DELETED
from nevermore.pipelines.mirrors.mirror import Mirror, makes_rows
from nevermore.pipelines.mirrors.table_shape import ADOPTED, KEY, check_shape, check_unchanged
from nevermore.scan_core import ScanOptions, arrow_type, col

if TYPE_CHECKING:
    from nevermore.pipelines.iceberg.catalog import Catalog
    from nevermore.pipelines.iceberg.catalog import Table as CatalogTable


_NAMING = {"partition_by", "sort_by", "index", "checks", "column_descriptions"}
"""Options that name columns of the mirror."""


class PendingChanges:
    """Changes that are collected until they are committed.

    Attributes:
        run: the changes, with rows of different types until `uniform` is called.
        row_type: columns of the rows; None without changes.
        key: key columns; none without changes.
        counts: number of changes per operation.
    """

    def __init__(self, limit_bytes: int) -> None:
        """`limit_bytes` is the memory limit for one part of the changes."""
        self._limit_bytes = limit_bytes
        self._reset()

    def _reset(self) -> None:
        self.run = ChangeRun(self._limit_bytes)
        self.row_type: pa.StructType | None = None
        self.key: tuple[str, ...] = ()
        self.counts: Counter[str] = Counter()
        self._is_uniform = True
        self._order_reached: str | None = None

    def can_add(self, batch: ChangeBatch) -> bool:
        """Whether a batch can be committed together with these: same key, compatible row types, later in order."""
        if self.row_type is None or batch.num_rows == 0:
            return True
        if self._order_reached is not None and batch.table.column(ORDER)[0].as_py() < self._order_reached:
            return False
        return batch.key == self.key and widened(self.row_type, batch.row_type) is not None

    def add(self, batch: ChangeBatch) -> None:
        """Add a batch for which `can_add` is true. One without changes may tell the columns of a table without rows."""
        if not batch.num_rows and not batch.sent:
            return
        row_type = batch.row_type if self.row_type is None else widened(self.row_type, batch.row_type)
        self._is_uniform &= self.row_type is None or row_type == self.row_type == batch.row_type
        self.row_type, self.key = row_type, batch.key
        if batch.num_rows and ORDER in batch.table.column_names:
            self._order_reached = batch.table.column(ORDER)[-1].as_py()
        self.counts.update(batch.counts)
        self.run.append(batch.table)

    def uniform(self) -> ChangeRun:
        """All changes in order, with rows of one type.

        Raises:
            PipelineError: the disk is full.
        """
        if not self._is_uniform:
            tables = (in_row_type(table, self.row_type, self.key) for table in self.run.tables())
            uniform = ChangeRun.of(tables, self._limit_bytes)
            self.run.close()
            self.run, self._is_uniform = uniform, True
        return self.run

    def clear(self) -> None:
        """Drop all changes."""
        self.run.close()
        self._reset()


Progress = Callable[[TableReport], None]


class TableIngest:
    """The ingest of one table in one run."""

    def __init__(
        self,
        catalog: "Catalog",
        name: str,
        config: TableConfig,
        report: TableReport,
        progress: Progress | None = None,
        *,
        log_only: bool = False,
        replaces_types: bool = False,
    ) -> None:
        """With `log_only`, only the change log is written, and the mirror is left to a later run.

        With `replaces_types`, all rows were removed from the log, and the source decides the types of columns again.
        """
        self._log = ChangeLog(catalog, change_log_name(name), replaces_types=replaces_types)
        self.name = name
        self.config = config
        self.report = report
        self._catalog = catalog
        self._adopted_key: tuple[str, ...] = ()
        self._progress = progress
        self._log_only = log_only
        self._replaces_types = replaces_types
        self._pending = PendingChanges(config.memory_limit_bytes // BATCH_SHARE)
        self._ordered: ChangeRun | None = None
        self._rejected: list[Rejected] = []
        self._reload: Reload | None = None
        self._reached: str | None = None
        self._end = BatchEnd.ANYWHERE
        self._adopted_types: dict[str, pa.DataType] = {}
        self._sent: set[str] = set()
        self.looks_like: str | None = None
        """Format that the last batch with rejected events looks like, if it is not that of the config."""

    @property
    def position(self) -> str | None:
        """The position in the source up to which the change log contains it."""
        return self._log.position

    @property
    def last_ordinal(self) -> int:
        """The last change in the change log."""
        return self._log.last_ordinal

    @property
    def is_reloading(self) -> bool:
        """Whether rows that take the place of all earlier ones are not logged completely, so that the mirror waits for them."""
        return self._log.is_reloading

    @property
    def source_table(self) -> str | None:
        """The table of the feed for which a pattern of the config created this one."""
        return self._log.table_property(SOURCE_TABLE)

    @property
    def key(self) -> tuple[str, ...]:
        """Key columns, if the config or the adopted table states them."""
        return self.config.key or self._adopted_key

    def check(self) -> "CatalogTable | None":
        """Refuse a config that contradicts the change log or the mirror; returns the mirror, if it exists.

        Raises:
            ConfigError: key, partitioning or order of the config differ from those of the existing tables.
        """
        mirror = find_table(self._catalog, self.name)
        if mirror is not None and ADOPTED in mirror.metadata.properties:
            self._adopted_key = tuple(filter(None, mirror.metadata.properties.get(KEY, "").split(",")))
        check_unchanged(self.name, self.config, log_name=self._log.name, logged_key=self._log.key, table=mirror)
        check_order(self.name, self.config, self._log)
        return mirror

    @property
    def has_pending(self) -> bool:
        """Whether changes, or a position, wait for a commit."""
        return self._reached is not None

    @property
    def held_bytes(self) -> int:
        """Bytes of uncommitted changes in memory."""
        return self._pending.run.held_bytes

    @property
    def known_types(self) -> dict[str, pa.DataType]:
        """Arrow type of every column so far, including those of uncommitted changes."""
        types = {} if self._replaces_types else self._adopted_types | self._log.row_types
        return types | {f.name: f.type for f in self._pending.row_type or () if not pa.types.is_null(f.type)}

    @property
    def known_key(self) -> tuple[str, ...]:
        """Key columns of the changes so far."""
        return self._log.key or self._pending.key

    @property
    def schema_version(self) -> int:
        """Schema id of the change log, for the changes decoded against it."""
        schema = self._log.schema
        return 0 if schema is None else schema.schema_id

    def lines_logged(self, files: Sequence[str]) -> dict[str, int]:
        """The number of lines of these source files in the change log."""
        return last_offsets(self._log.table, files)

    def start(self, source_table: str | None = None) -> None:
        """Apply to the mirror what an earlier run has only logged.

        `source_table` is the table of the feed for which a pattern creates this one; it is stored with the change log.

        Raises:
            ConfigError: key or partitioning of the config differ from those of the existing tables.
        """
        if source_table is not None:
            self._log.create({SOURCE_TABLE: source_table})
        mirror = self.check()
        if mirror is not None and ADOPTED in mirror.metadata.properties:
            columns = current_schema(mirror).fields
            self._adopted_types = {f.name: arrow_type(f.type) for f in columns if f.name != DELETED}
        self._catch_up(None)
        self.report.log_snapshot_id = self._log.snapshot_id
        self.report.position = self.position

    def add(self, batch: ChangeBatch, rejected: Rejected, position: str, end: BatchEnd = BatchEnd.ANYWHERE) -> None:
        """Add changes that lead to `position`; commits when there are enough, spills when memory is full.

        Changes that end within a transaction are committed only together with the rest of it.

        Raises:
            PipelineError: a transaction cannot be committed as a whole.
            SchemaConflictError: the changes bring other columns or types, which the config does not allow.
        """
        if self.config.dropped_columns == "drop" and not self._is_within_transaction:
            self._drop_columns(batch)
        if batch.num_rows:
            known = self._adopted_types | self._log.row_types
            check_schema_change(self.name, self.config, known, batch.row_type)
        self._sent |= batch.sent
        can_add, is_within = self._pending.can_add(batch), end is BatchEnd.WITHIN_TRANSACTION
        if self._is_within_transaction and not can_add:
            raise PipelineError(
                f"{self.name}: the key or the types of its columns change within a transaction that is larger than a "
                "batch; let batches be larger (batch_bytes among the options of the source, memory_limit_bytes)"
            )
        if not can_add or (is_within and not self._is_within_transaction):
            self.flush()
        if batch.num_rows or not self.known_key:
            self._pending.add(batch)
        if rejected.num_rows:
            self._rejected.append(rejected)
        self._reached, self._end = position, end
        if self._pending.run.num_rows >= self.config.commit_rows and not is_within:
            self.flush()
        elif self.held_bytes >= self.config.memory_limit_bytes // BATCH_SHARE:
            self.spill()

    def _drop_columns(self, batch: ChangeBatch) -> None:
        """Drop columns that the source has dropped from the log, and thus from the mirror with its next commit.

        Raises:
            ConfigError: events do not state their columns, or the config names one that is dropped.
        """
        if batch.dropped is None:
            if not batch.counts.keys().isdisjoint("rcu"):
                raise ConfigError(
                    f"{self.name}: its events do not state all their columns, so none of them tells that one was dropped: remove "
                    "dropped_columns: drop"
                )
        elif not batch.dropped.isdisjoint(self.known_types):
            self.flush()  # earlier rows have them
            gone = batch.dropped & self._log.row_types.keys()
            if gone and self._is_newest(batch):
                given = str(self.config.model_dump(include=_NAMING, exclude_unset=True))
                if named := [column for column in sorted(gone) if re.search(rf"\b{re.escape(column)}\b", given)]:
                    raise ConfigError(
                        f"{self.name}: the source has dropped the column {named[0]}, and the table's partition_by, sort_by, index, checks or "
                        "column_descriptions name it: change that, or keep the column (dropped_columns: keep)"
                    )
                self._log.drop_columns(gone)

    def _is_newest(self, batch: ChangeBatch) -> bool:
        """Whether nothing that is logged came later than these changes: partitions of a topic have no common order."""
        if not isinstance(self.config.source, KafkaSource):
            return True
        places, times = (batch.table.column(name) for name in ("source_file", "source_ts"))
        scan = self._log.scan().select("source_ts")
        scan = scan.where(col("source_file") != places[0].as_py()) if len(places.unique()) == 1 else scan
        others = scan.to_table().column(0)
        return not len(others) or pc.greater(pc.min(times), pc.max(others)).as_py() is True

    def remove_all(self, position: str) -> None:
        """Log a removal of all rows, and go on at another position of the source. What was not committed is dropped.

        The mirror keeps its rows until `end_reload`.

        Raises:
            PipelineError: the removal cannot be committed.
        """
        self._go_on("t", position, "begins")

    def end_reload(self) -> None:
        """Log that all rows are logged that take the place of removed ones, and let the mirror take them, in one snapshot.

        Raises:
            PipelineError: it cannot be committed.
        """
        self.flush()
        if self.position is not None and self.is_reloading:
            self._log.append(None, self.position, reload="ends")
            self._catch_up(None)

    def move(self, position: str) -> None:
        """Log that the table goes on at another position, up to which it has all changes. What was not committed is dropped.

        Raises:
            PipelineError: it cannot be committed.
        """
        self._go_on("", position, None)

    def changes_of(self, ops: Sequence[str]) -> ChangeBatch:
        """Changes that no source has sent, without keys and rows."""
        key = self.key or self.known_key
        row_type = pa.struct([pa.field(name, kind) for name, kind in self.known_types.items()])
        given = {"unchanged": [], "ingested_at": datetime.now(UTC), "schema_version": self.schema_version}
        table = pa.Table.from_pylist([{"op": op, **given} for op in ops], change_schema(row_type, key))
        return ChangeBatch(table, row_type, key)

    def _go_on(self, ops: Sequence[str], position: str, reload: Reload | None) -> None:
        self._drop_pending()
        self.add(self.changes_of(ops), Rejected.none(), position, BatchEnd.TRANSACTION)
        self._reload = reload
        try:
            self.flush()
        finally:
            self._reload = None

    @property
    def _is_within_transaction(self) -> bool:
        return self._end is BatchEnd.WITHIN_TRANSACTION

    def spill(self) -> None:
        """Write uncommitted changes to disk.

        Raises:
            PipelineError: the disk is full.
        """
        self._pending.run.spill()

    def drop_unfinished(self) -> None:
        """Drop the beginning of an unfinished transaction: it will be read again."""
        if self._is_within_transaction:
            self._drop_pending()

    def _drop_pending(self) -> None:
        self._pending.clear()
        self._rejected, self._reached, self._end = [], None, BatchEnd.ANYWHERE

    def report_unmet_columns(self) -> None:
        """Report configured columns that do not exist, if the run had inserts or loaded rows, which have all columns."""
        if self.report.events["c"] or self.report.events["r"]:
            declared = (partition_field(text)[1] for text in self.config.partition_by)
            self.report.unmet_columns = tuple(unmet_columns(self.config, self._sent, {*self.known_types, *declared}))

    def convert_deletes(self, *, is_continuous: bool = False) -> None:
        """Convert the mirror's equality deletes, if the config says so and, in a continuous run, if some are old enough."""
        if self._log_only or self.config.deletes != "converted":
            return
        table = find_table(self._catalog, self.name)
        if table is None:
            return
        options = ScanOptions(memory_limit_bytes=self.config.memory_limit_bytes)
        age = self.config.convert_after if is_continuous else 0.0
        self.report.conversion = keep_converted(table, max_age_seconds=age, options=options)
        if self.report.conversion is not None and self.report.conversion.snapshot_id is not None:
            self.report.snapshot_id = self.report.conversion.snapshot_id

    def close(self) -> None:
        """Drop uncommitted changes."""
        self._pending.clear()
        if self._ordered is not None:
            self._ordered.close()

    def flush(self) -> None:
        """Commit the changes: rejected ones to the quarantine, then the change log with the position, then the mirror.

        A crash in between loses nothing: changes that are only logged are applied by the next `start`, and quarantined events are
        recognised when they are read again. The beginning of an unfinished transaction is dropped.

        Raises:
            QuarantineLimitError: too much was rejected; nothing of it is committed.
            ConfigError: the mirror cannot be created as the config says; nothing is committed either.
            SchemaConflictError: the same for a key that cannot identify a row.
        """
        self.drop_unfinished()
        if self._reached is None or self._reached == self.position:
            return
        rejected, position = Rejected.concat(self._rejected), self._reached
        num_changes = self._pending.run.num_rows
        self._check_ratio(num_changes, rejected)
        changes: Changes | None = None
        if num_changes:
            changes = self._in_order(self._pending.uniform(), self._pending.key)
        elif self._pending.row_type is not None:
            changes = ChangeBatch.empty(self._pending.row_type, self._pending.key)
        self._commit(changes, self._pending.key, self._pending.counts, rejected, position)
        if isinstance(changes, ChangeRun):
            changes.close()
        self._pending.clear()
        self._acknowledge()

    def add_remote(
        self,
        changes: RemoteChanges | None,
        rejected: Rejected,
        position: str,
        sent: Collection[str],
        *,
        is_atomic: bool,
    ) -> None:
        """Commit changes that tasks hold, as `flush` does it with those in this process.

        Raises:
            PipelineError: as `flush`.
        """
        self._sent |= set(sent)
        self._end = BatchEnd.TRANSACTION if is_atomic else BatchEnd.ANYWHERE
        self._check_ratio(0 if changes is None else changes.num_rows, rejected)
        if changes is None:
            self._commit(None, (), {}, rejected, position)
        else:
            check_schema_change(self.name, self.config, self.known_types, changes.row_type)
            self._adopted_types |= {f.name: f.type for f in changes.row_type if not pa.types.is_null(f.type)}
            if self._has_late(changes):
                self._commit_here(changes, rejected, position)
            else:
                self._commit(changes, changes.key, changes.counts, rejected, position)
        self._acknowledge()

    def _acknowledge(self) -> None:
        storage.reached("before-acknowledgement")
        if self._progress is not None:
            self._progress(self.report)

    def _check_ratio(self, num_changes: int, rejected: Rejected) -> None:
        hint = self.looks_like and (
            f"the events look like {self.looks_like}, but the config says {self.config.source.format}"
        )
        # the format of a database is certain
        few = FEW_CHANGES * isinstance(self.config.source, MysqlSource | PostgresSource)
        limit = self.config.max_quarantine_ratio
        check_ratio(self.name, rejected.num_rows + num_changes, rejected, limit, tolerated=few, hint=hint)

    def _has_late(self, changes: RemoteChanges) -> bool:
        """Whether changes belong before some that are logged already."""
        first, reached = changes.first_place, self._log.order_reached
        return self.config.identity != "full" and first is not None and reached is not None and first < reached

    def _commit_here(self, changes: RemoteChanges, rejected: Rejected, position: str) -> None:
        """Commit changes of tasks in this process, as late ones belong among those that are logged."""
        self.report.why_local = "some events are late: they are put in order with the logged ones"
        run = ChangeRun.of(changes.tables(), self.config.memory_limit_bytes // BATCH_SHARE)
        try:
            ordered = self._in_order(run, changes.key)
            self._commit(ordered, changes.key, changes.counts, rejected, position)
            ordered.close()
        finally:
            run.close()

    def _commit(
        self,
        changes: Changes | RemoteChanges | None,
        key: tuple[str, ...],
        counts: Mapping[str, int],
        rejected: Rejected,
        position: str,
    ) -> None:
        if changes is not None and (not changes.num_rows or makes_rows(changes, self.config)):
            check_shape(self.name, self.config, self.key or key, self.known_types)
        self._keep(rejected)
        appended = self._log.append(
            changes,
            position,
            key_may_grow=self.config.identity == "full",
            is_atomic=self._end is BatchEnd.TRANSACTION,
            order_by=order_text(self.config),
            reload=self._reload,
        )
        self._rejected, self._reached = [], None
        self.report.add_appended(appended, counts)
        self.report.position = position
        if changes is not None:
            self._catch_up(appended)

    def _in_order(self, changes: ChangeRun, key: tuple[str, ...]) -> ChangeRun:
        """The changes in order; late ones together with those that belong after them."""
        # Rows without a key are counted: their order makes no difference, but repeating a change does.
        if self.config.order_by == "position" or self.config.identity == "full" or self._log.order_reached is None:
            return changes
        limit = self.config.memory_limit_bytes // BATCH_SHARE
        tables = with_later_changes(self._log, changes, key, limit, self.report.add_superseded)
        self._ordered = ChangeRun.of(tables, limit)
        return self._ordered

    def _catch_up(self, appended: Appended | None) -> None:
        if self._log_only:
            return
        key = self.key or self._log.key
        mirror = Mirror(self._catalog, self.name, self.config, key)
        before = self.report.mirror_commits
        for applied in mirror.catch_up(self._log, appended, reject=self._keep):
            self.report.add_applied(applied)
        self.report.why_local = mirror.why_local or self.report.why_local
        if mirror.table is None:
            return
        describe(mirror.table, self.config)
        if self._log.table is not None:  # one that was adopted has none before its first change
            known, texts = self._log.row_types, self.config.column_descriptions
            texts = {f"after.{column}": text for column, text in texts.items() if column.partition(".")[0] in known}
            describe(self._log.table, self.config.model_copy(update={"properties": {}, "column_descriptions": texts}))
        self.report.snapshot_id = mirror.table.metadata.current_snapshot_id
        if self.report.mirror_commits > before and (update := keep_mirror_indexes(mirror.table, self.config)):
            self.report.add_indexes(update)

    def _keep(self, rejected: Rejected) -> None:
        self.report.rejected += rejected.num_rows
        self.report.quarantined += quarantine(self._catalog, quarantine_name(self.name), rejected)


def check_schema_change(
    name: str, config: TableConfig, known: Mapping[str, pa.DataType], row_type: pa.StructType
) -> None:
    """Refuse rows that would change the columns of a table, unless the config allows it.

    Args:
        name: the table.
        config: its settings.
        known: columns so far; without any, these are the first rows.
        row_type: columns of the new rows.

    Raises:
        SchemaConflictError: names the columns, and what to do.
    """
    if config.schema_changes == "evolve" or not known:
        return
    if not (seen := changed_columns(known, row_type)):
        return
    raise SchemaConflictError(
        f"{name}: events change its columns: {seen}. schema_changes: freeze stops the table before them, and none of the "
        "batch was applied; leave new columns out with exclude, keep types with types, or allow changes "
        "(schema_changes: evolve)"
    )


def changed_columns(known: Mapping[str, pa.DataType], row_type: pa.StructType) -> str:
    """Columns of rows that are new or wider than known ones, with both types; columns without values so far have none."""
    found = []
    for column in row_type:
        so_far = "new"
        if pa.types.is_null(column.type) or known.get(column.name) == column.type:
            continue
        if column.name in known:
            before = pa.struct([pa.field(column.name, known[column.name])])
            united = widened(before, pa.struct([column]))
            if united is not None and pa.struct(list(united)) == before:
                continue
            so_far = f"so far {_text(known[column.name])}"
        found.append(f"{column.name} {_text(column.type)} ({so_far})")
    return ", ".join(found)


def _text(kind: pa.DataType) -> str:
    return str(iceberg_type(kind))
