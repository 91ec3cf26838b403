"""One table's way through a run: changes gathered, rejected ones to quarantine, the log first, then the mirror.

Whatever fails here stops this table and no other. Reading and decoding is done once per feed, in `ingest.py`.
"""

from collections.abc import Callable, Sequence
from typing import Any

import pyarrow as pa

from pipelines import crash_points
from pipelines.catalog import current_schema, find_table
from pipelines.change_batch import ChangeBatch, Rejected
from pipelines.change_log import Appended, ChangeLog
from pipelines.config import TableConfig, change_log_name, quarantine_name
from pipelines.ingest_report import TableReport
from pipelines.mirror import Mirror, makes_rows
from pipelines.quarantine import check_ratio, quarantine
from pipelines.soft_delete import DELETED
from pipelines.table_patterns import SOURCE_TABLE
from pipelines.table_shape import ADOPTED, check_shape, check_unchanged
from scan_core.schema import arrow_type

FLUSH_SHARE = 8
"""Decoded changes may take this part of the memory limit: fold, files and sort need several times as much."""

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
        self._log = ChangeLog(catalog, change_log_name(name))
        self._pending: list[ChangeBatch] = []
        self._rejected: list[Rejected] = []
        self._reached: str | None = None
        self._adopted_types: dict[str, pa.DataType] = {}

    @property
    def position(self) -> str | None:
        """How far the change log holds the source."""
        return self._log.position

    @property
    def source_table(self) -> str | None:
        """The table of the feed that it takes, where a pattern of the config found it."""
        return self._log.property(SOURCE_TABLE)

    @property
    def pending_bytes(self) -> int:
        """Memory that changes not yet committed take."""
        return sum(batch.table.nbytes for batch in self._pending)

    @property
    def known_types(self) -> dict[str, pa.DataType]:
        """Arrow type of every column so far, those of changes not yet committed included."""
        types = self._adopted_types | self._log.row_types
        for batch in self._pending:
            types |= {f.name: f.type for f in batch.row_type if not pa.types.is_null(f.type)}
        return types

    @property
    def schema_version(self) -> int:
        """Schema id of the change log, for the changes decoded against it."""
        schema = self._log.schema
        return 0 if schema is None else schema.schema_id

    def lines_logged(self, files: Sequence[str]) -> dict[str, int]:
        """How many lines of these source files are in the change log."""
        return self._log.last_offsets(files)

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
        check_unchanged(self.name, self.config, log_name=self._log.name, logged_key=self._log.key, table=mirror)
        self._catch_up(None)
        self.report.log_snapshot_id = self._log.snapshot_id
        self.report.position = self.position

    def add(self, batch: ChangeBatch, rejected: Rejected, position: str) -> None:
        """Take changes that lead to `position`; commit when enough are gathered."""
        if batch.num_rows and self._pending and self._pending[-1].row_type != batch.row_type:
            self.flush()
        if batch.num_rows:
            self._pending.append(batch)
        if rejected.num_rows:
            self._rejected.append(rejected)
        self._reached = position
        num_rows = sum(b.num_rows for b in self._pending)
        if num_rows >= self.config.commit_rows or self.pending_bytes >= self.config.memory_limit_bytes // FLUSH_SHARE:
            self.flush()

    def flush(self) -> None:
        """Commit what was gathered: quarantine, then change log with the position, then mirror.

        Raises:
            QuarantineLimitError: too much was rejected; nothing of it is committed.
            ConfigError: the mirror cannot be made as config asks; nothing is committed either.
            SchemaConflictError: so is a key that cannot identify a row.
        """
        if self._reached is None or self._reached == self.position:
            return
        batch, rejected, position = self._gathered(), Rejected.concat(self._rejected), self._reached
        events = rejected.num_rows + (0 if batch is None else batch.num_rows)
        check_ratio(self.name, events, rejected, self.config.max_quarantine_ratio)
        if batch is not None and makes_rows(batch.table, self.config):
            check_shape(self.name, self.config, self.config.key or batch.key, self.known_types)
        self._keep(rejected)
        appended = self._log.append(batch, position, key_may_grow=self.config.identity == "full")
        self._pending, self._rejected, self._reached = [], [], None
        self.report.add_appended(appended, {} if batch is None else batch.counts)
        self.report.position = position
        if batch is not None:
            self._catch_up(appended)
        crash_points.reached("before-acknowledgement")
        if self._progress is not None:
            self._progress(self.report)

    def _gathered(self) -> ChangeBatch | None:
        if not self._pending:
            return None
        first = self._pending[0]
        if len(self._pending) == 1:
            return first
        return ChangeBatch(pa.concat_tables([b.table for b in self._pending]), first.row_type, first.key)

    def _catch_up(self, appended: Appended | None) -> None:
        if self._log_only:
            return
        key = self.config.key or self._log.key
        mirror = Mirror(self._catalog, self.name, self.config, key)
        for applied in mirror.catch_up(self._log, appended, reject=self._keep):
            self.report.add_applied(applied)
        if mirror.table is not None:
            self.report.snapshot_id = mirror.table.metadata.current_snapshot_id

    def _keep(self, rejected: Rejected) -> None:
        self.report.rejected += rejected.num_rows
        self.report.quarantined += quarantine(self._catalog, quarantine_name(self.name), rejected)
