"""The part of one table in an ingest run: its change log is written first, then its mirror.

Changes are collected until a commit is due; rejected ones go to quarantine. Feeds are read and decoded in
`feed_run.py`.
"""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import pyarrow as pa

from pipelines.changes.change_log import Appended, ChangeLog, last_offsets
from pipelines.changes.change_run import BATCH_SHARE, ChangeRun
from pipelines.changes.late_changes import check_order, followed, order_text
from pipelines.changes.quarantine import check_ratio, quarantine
from pipelines.config.project import TableConfig, change_log_name, partition_field, quarantine_name
from pipelines.decode.batches import ORDER, ChangeBatch, Rejected
from pipelines.decode.column_types import widened
from pipelines.errors import PipelineError
from pipelines.iceberg import storage
from pipelines.iceberg.catalog import find_table
from pipelines.iceberg.loaded_table import current_schema
from pipelines.iceberg.parquet_output import WriterOptions
from pipelines.ingest.report import TableReport, unmet_columns
from pipelines.ingest.table_patterns import SOURCE_TABLE
from pipelines.mirrors.fold import DELETED
from pipelines.mirrors.mirror import Mirror, makes_rows
from pipelines.mirrors.table_shape import ADOPTED, KEY, check_shape, check_unchanged
from scan_core import arrow_type


class PendingChanges:
    """Mutable: grows batch by batch until it is committed and cleared."""

    def __init__(self, limit_bytes: int) -> None:
        """`limit_bytes` is what a part of it may hold in memory."""
        self._limit_bytes = limit_bytes
        self._run = ChangeRun(limit_bytes)
        self._is_uniform = True
        self._row_type: pa.StructType | None = None
        self._key: tuple[str, ...] = ()
        self._counts: Counter[str] = Counter()
        self._order_reached: str | None = None

    @property
    def num_rows(self) -> int:
        """Number of changes."""
        return self._run.num_rows

    @property
    def held_bytes(self) -> int:
        """What it holds in memory."""
        return self._run.held_bytes

    @property
    def nbytes(self) -> int:
        """Of all changes, those on the disk included."""
        return self._run.nbytes

    @property
    def counts(self) -> Mapping[str, int]:
        """Number of changes per operation."""
        return self._counts

    @property
    def row_type(self) -> pa.StructType | None:
        """Columns of the rows, None without changes."""
        return self._row_type

    @property
    def key(self) -> tuple[str, ...]:
        """Key columns; none without changes."""
        return self._key

    def takes(self, batch: ChangeBatch) -> bool:
        """Whether a batch may be committed together with what there is: of one key, with rows of one type, in order."""
        if self._row_type is None or batch.num_rows == 0:
            return True
        if self._order_reached is not None and batch.table.column(ORDER)[0].as_py() < self._order_reached:
            return False
        return batch.key == self._key and _united(self._row_type, batch.row_type) is not None

    def add(self, batch: ChangeBatch) -> None:
        """Take a batch, of which `takes` was true."""
        if batch.num_rows == 0:
            return
        known = batch.row_type if self._row_type is None else _united(self._row_type, batch.row_type)
        self._is_uniform &= self._row_type is None or known == self._row_type == batch.row_type
        self._row_type, self._key = known, batch.key
        if ORDER in batch.table.column_names:
            self._order_reached = batch.table.column(ORDER)[-1].as_py()
        self._counts.update(batch.counts)
        self._run.append(batch.table)

    def spill(self) -> None:
        """Write what is in memory to the disk.

        Raises:
            PipelineError: it has no room.
        """
        self._run.spill()

    def run(self) -> ChangeRun:
        """All changes in order, with rows of one type."""
        if self._is_uniform:
            return self._run
        tables = (self._conformed(table) for table in self._run.tables())
        uniform = ChangeRun.of(tables, self._limit_bytes)
        self._run.close()
        self._run, self._is_uniform = uniform, True
        return uniform

    def _conformed(self, table: pa.Table) -> pa.Table:
        own = table.schema.field("after").type
        return ChangeBatch(table, own, self._key).in_row_type(self._row_type).table

    def clear(self) -> None:
        """Forget everything."""
        self._run.close()
        self._run = ChangeRun(self._limit_bytes)
        self._is_uniform, self._row_type, self._key, self._counts = True, None, (), Counter()
        self._order_reached = None


def _united(first: pa.StructType, second: pa.StructType) -> pa.StructType | None:
    """Columns of both, in types that hold the values of both; None if there is no such type."""
    if first == second:
        return first
    united = widened(first, second)
    return None if united is None else pa.struct(list(united))


Progress = Callable[[TableReport], None]


class TableIngest:
    """The ingest of one table in one run."""

    def __init__(
        self,
        catalog: Any,
        name: str,
        config: TableConfig,
        report: TableReport,
        progress: Progress | None = None,
        *,
        log_only: bool = False,
    ) -> None:
        """`log_only` leaves the mirror to a later run."""
        self.name = name
        self.config = config
        self.report = report
        self._catalog = catalog
        self._progress = progress
        self._log_only = log_only
        self._log = ChangeLog(catalog, change_log_name(name), WriterOptions(encode_numbers=config.compact_log))
        self._pending = PendingChanges(config.memory_limit_bytes // BATCH_SHARE)
        self._ordered: ChangeRun | None = None
        self._rejected: list[Rejected] = []
        self._reached: str | None = None
        self._is_atomic = self._is_open = False
        self._adopted_types: dict[str, pa.DataType] = {}
        self._adopted_key: tuple[str, ...] = ()
        self._sent: set[str] = set()
        self.looks_like: str | None = None
        """Another format than the config's, which the last batch with rejected events looks like."""

    @property
    def position(self) -> str | None:
        """How far the change log holds the source."""
        return self._log.position

    @property
    def source_table(self) -> str | None:
        """The table of the feed that it takes, where a pattern of the config found it."""
        return self._log.property(SOURCE_TABLE)

    @property
    def held_bytes(self) -> int:
        """Memory that changes not yet committed take."""
        return self._pending.held_bytes

    @property
    def known_types(self) -> dict[str, pa.DataType]:
        """Arrow type of every column so far, those of changes not yet committed included."""
        types = self._adopted_types | self._log.row_types
        return types | {f.name: f.type for f in self._pending.row_type or () if not pa.types.is_null(f.type)}

    @property
    def key(self) -> tuple[str, ...]:
        """Key columns, where config or the adopted table tells them."""
        return self.config.key or self._adopted_key

    @property
    def known_key(self) -> tuple[str, ...]:
        """Key columns of what is logged or gathered so far."""
        return self._log.key or self._pending.key

    @property
    def schema_version(self) -> int:
        """Schema id of the change log, for the changes decoded against it."""
        schema = self._log.schema
        return 0 if schema is None else schema.schema_id

    def lines_logged(self, files: Sequence[str]) -> dict[str, int]:
        """How many lines of these source files are in the change log."""
        return last_offsets(self._log.table, files)

    def is_applied(self) -> bool:
        """Whether all that is logged is in the mirror, so that `start` changes nothing.

        Raises:
            PositionLostError: the mirror does not tell.
        """
        mirror = Mirror(self._catalog, self.name, self.config, self.key or self._log.key)
        return self.position is not None and mirror.applied_ordinal == self._log.last_ordinal

    def start(self, source_table: str | None = None) -> None:
        """Apply what an earlier run logged and did not get into the mirror.

        `source_table` is the table of the feed, where a pattern has just found it: the change log remembers it.

        Raises:
            ConfigError: config has another key or partitioning than what is there.
        """
        if source_table is not None:
            self._log.create({SOURCE_TABLE: source_table})
        mirror = find_table(self._catalog, self.name)
        if mirror is not None and ADOPTED in mirror.metadata.properties:
            columns = current_schema(mirror).fields
            self._adopted_types = {f.name: arrow_type(f.type) for f in columns if f.name != DELETED}
            self._adopted_key = tuple(filter(None, mirror.metadata.properties.get(KEY, "").split(",")))
        check_unchanged(self.name, self.config, log_name=self._log.name, logged_key=self._log.key, table=mirror)
        check_order(self.name, self.config, self._log)
        self._catch_up(None)
        self.report.log_snapshot_id = self._log.snapshot_id
        self.report.position = self.position

    def add(
        self, batch: ChangeBatch, rejected: Rejected, position: str, *, is_atomic: bool = False, is_open: bool = False
    ) -> None:
        """Take changes that lead to `position`; commit when enough are gathered, spill when memory takes no more.

        They are committed together, and with `is_atomic` applied together as well: they end with a transaction. With
        `is_open` they do not end it: they are committed with what follows, and never without.

        Raises:
            PipelineError: a transaction that cannot be committed as one.
        """
        self._sent |= batch.sent
        takes = self._pending.takes(batch)
        if self._is_open and not takes:
            raise PipelineError(
                f"{self.name}: the key or the types of its columns change within a transaction that is larger than a "
                "batch; let batches be larger (batch_bytes among the options of the source, memory_limit_bytes)"
            )
        if not takes or (is_open and not self._is_open):
            self.flush()
        self._pending.add(batch)
        if rejected.num_rows:
            self._rejected.append(rejected)
        self._reached, self._is_atomic, self._is_open = position, is_atomic, is_open
        if self._pending.num_rows >= self.config.commit_rows and not is_open:
            self.flush()
        elif self._pending.held_bytes >= self.config.memory_limit_bytes // BATCH_SHARE:
            self.spill()

    def spill(self) -> None:
        """Write what was gathered to the disk, to be committed later.

        Raises:
            PipelineError: it has no room.
        """
        self._pending.spill()

    def forget_open(self) -> None:
        """Forget the begin of a transaction whose end did not come: it will be read again."""
        if self._is_open:
            self._pending.clear()
            self._rejected, self._reached, self._is_open = [], None, False

    def tell_unmet_columns(self) -> None:
        """Report columns that config names and nothing has, where whole rows came that would show them."""
        if self.report.events["c"] or self.report.events["r"]:
            declared = (partition_field(text)[1] for text in self.config.partition_by)
            self.report.unmet_columns = tuple(unmet_columns(self.config, self._sent, {*self.known_types, *declared}))

    def close(self) -> None:
        """Forget what was gathered and not committed."""
        self._pending.clear()
        if self._ordered is not None:
            self._ordered.close()

    def flush(self) -> None:
        """Commit what was gathered: quarantine, then change log with the position, then mirror.

        The begin of a transaction whose end has not come is forgotten.

        Raises:
            QuarantineLimitError: too much was rejected; nothing of it is committed.
            ConfigError: the mirror cannot be made as config asks; nothing is committed either.
            SchemaConflictError: so is a key that cannot identify a row.
        """
        self.forget_open()
        if self._reached is None or self._reached == self.position:
            return
        rejected, position = Rejected.concat(self._rejected), self._reached
        named = self.config.source.format
        hint = f"the files look like {self.looks_like}, and the config says {named}" if self.looks_like else ""
        num_events = rejected.num_rows + self._pending.num_rows
        check_ratio(self.name, num_events, rejected, self.config.max_quarantine_ratio, hint=hint)
        changes = self._in_order(self._pending.run()) if self._pending.num_rows else None
        if changes is not None and makes_rows(changes, self.config):
            check_shape(self.name, self.config, self.key or self._pending.key, self.known_types)
        self._keep(rejected)
        appended = self._log.append(
            changes,
            position,
            key_may_grow=self.config.identity == "full",
            is_atomic=self._is_atomic,
            order_by=order_text(self.config),
        )
        self._rejected, self._reached = [], None
        self.report.add_appended(appended, self._pending.counts)
        self.report.position = position
        if changes is not None:
            self._catch_up(appended)
        if changes is not None:
            changes.close()
        self._pending.clear()
        storage.reached("before-acknowledgement")
        if self._progress is not None:
            self._progress(self.report)

    def _in_order(self, changes: ChangeRun) -> ChangeRun:
        """The changes, late ones followed by what belongs after them."""
        # Rows without a key are counted: what comes first makes no difference, what comes twice does.
        if self.config.order_by == "position" or self.config.identity == "full" or self._log.order_reached is None:
            return changes
        limit = self.config.memory_limit_bytes // BATCH_SHARE
        tables = followed(self._log, changes, self._pending.key, limit, self.report.add_superseded)
        self._ordered = ChangeRun.of(tables, limit)
        return self._ordered

    def _catch_up(self, appended: Appended | None) -> None:
        if self._log_only:
            return
        key = self.key or self._log.key
        mirror = Mirror(self._catalog, self.name, self.config, key)
        for applied in mirror.catch_up(self._log, appended, reject=self._keep):
            self.report.add_applied(applied)
        if mirror.table is not None:
            self.report.snapshot_id = mirror.table.metadata.current_snapshot_id

    def _keep(self, rejected: Rejected) -> None:
        self.report.rejected += rejected.num_rows
        self.report.quarantined += quarantine(self._catalog, quarantine_name(self.name), rejected)
