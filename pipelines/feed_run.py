"""One run over feeds: each is read and decoded once for all of its tables, which take their shares and commit apart.

A table that fails stops alone, at its last commit; the next run begins there. Tables that patterns stand for are
found when the feed carries them, and are read from its start. What one table does with its changes is `table_ingest.py`.
"""

import logging
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import KW_ONLY, dataclass, field, replace
from typing import Any

from pipelines.changes.change_batch import Rejected
from pipelines.changes.change_run import BATCH_SHARE
from pipelines.config import TableConfig
from pipelines.errors import PipelineError, QuarantineLimitError
from pipelines.feeds import Feed, decided_in
from pipelines.formats.feed import Decided
from pipelines.formats.registry import DecodedFeed, decode, other_format
from pipelines.ingest_report import FAILED, TableReport
from pipelines.quarantine import quarantine
from pipelines.sources.files import FileBatch
from pipelines.table_ingest import Progress, TableIngest
from scan_core.errors import ScanError

_log = logging.getLogger(__name__)


@dataclass
class FeedRun:
    """One run over all feeds: reports by table, and what is counted per run."""

    catalog: Any
    progress: Progress | None
    _: KW_ONLY
    log_only: bool
    stopping: Callable[[], bool]
    parallel_tables: int = 1
    reports: dict[str, TableReport] = field(default_factory=dict)
    skipped: Counter[str] = field(default_factory=Counter)
    unassigned: int = 0
    untaken: set[str] = field(default_factory=set)

    def read(self, feed: Feed) -> None:
        """Bring the wanted tables of a feed up to date."""
        started: list[TableIngest] = []
        for name in feed.wanted:
            if name not in feed.patterns:
                started += self._started(name, feed.tables[name])
        feed = feed.remembering(self.catalog, started)
        groups = _by_position(started)
        first = groups.pop(None, [])
        late: list[TableIngest] = []
        for position, together in groups.items():
            feed, found = self._read_from(feed, position, together)
            late += found
        if first or late or (not groups and set(feed.wanted) & set(feed.patterns)):
            self._read_from(feed, None, [*first, *late])

    def _started(self, name: str, config: TableConfig, source_table: str | None = None) -> list[TableIngest]:
        table, self.reports[name] = start_table(
            self.catalog, name, config, self.progress, log_only=self.log_only, source_table=source_table
        )
        return [] if table is None else [table]

    def _read_from(
        self, feed: Feed, position: str | None, tables: Sequence[TableIngest]
    ) -> tuple[Feed, list[TableIngest]]:
        """Read a source from a position to its end into these tables.

        Returns:
            The feed with the tables that were found, and those of them that are still to be read from its start: they
            may have come before the position, when nobody asked for them.
        """
        reading = _Reading(feed, position, list(tables), decided_in(position))
        stopped: Exception | None = None
        try:
            for batch in feed.batches(position, tables, self._left_out, reading.saw_transactions):
                self._take(reading, batch)
                if (not reading.running and not feed.patterns) or self.stopping():
                    break
        except Exception as error:  # noqa: BLE001 - this feed stops, others go on
            stopped = error
        try:
            self._finish(reading.feed, reading.running, stopped)
        finally:
            for table in (*tables, *reading.running):
                table.close()
        return reading.feed, reading.late

    def _take(self, reading: "_Reading", batch: FileBatch) -> None:
        """Hand each table its share of a batch."""
        decoded = reading.decoded(batch)
        if found := reading.feed.found(decoded.untaken):
            joining = [t for name, entry in found.items() for t in self._started(name, *entry)]
            reading.join(found, joining)
            decoded = reading.decoded(batch)
        reading.decided = decoded.decided
        self.skipped.update(decoded.skipped)
        self.untaken.update(decoded.untaken)
        self._keep_unassigned(reading.feed, reading.feed.unassigned(decoded.rejected), batch.raw.num_read)
        decided = decoded.decided
        reached = replace(batch.position_after, claims=decided.claims, encodings=decided.encodings).to_json()

        def add(table: TableIngest) -> None:
            rejected = reading.feed.rejected_of(table.name, decoded.rejected)
            if not batch.goes_on:
                table.forget_open()
            changes, is_atomic = decoded.tables[table.name], reading.is_transactional
            if rejected.num_rows:
                table.looks_like = other_format(batch.raw, reading.feed.source.format)
            table.add(changes, rejected, reached, is_atomic=is_atomic, is_open=batch.is_open)

        alive = self._survivors(reading.running, add)
        reading.running = _within(alive, reading.feed.memory_limit_bytes // BATCH_SHARE)

    def _finish(self, feed: Feed, running: Sequence[TableIngest], stopped: Exception | None) -> None:
        """Commit what is gathered, and tell every table why its feed stopped."""
        for table in self._survivors(running, TableIngest.flush):
            table.tell_unmet_columns()
            if stopped is not None:
                _fail(table.report, stopped)
        if stopped is not None and not running:
            self._fail_patterns(feed, stopped)

    def _survivors(self, tables: Sequence[TableIngest], step: Callable[[TableIngest], None]) -> list[TableIngest]:
        """The tables of which a step succeeds, several at a time; the others are marked as failed."""
        if self.parallel_tables == 1 or len(tables) == 1:
            return [table for table in tables if _survives(table, step, table)]
        with ThreadPoolExecutor(self.parallel_tables) as pool:
            alive = pool.map(lambda table: _survives(table, step, table), tables)
            return [table for table, is_alive in zip(tables, alive, strict=True) if is_alive]

    def _left_out(self, reason: str, count: int) -> None:
        self.skipped[reason] += count

    def _fail_patterns(self, feed: Feed, error: Exception) -> None:
        """A source that cannot be read and has no table yet to say so."""
        for name in feed.wanted:
            if name in feed.patterns:
                _fail(self.reports.setdefault(name, TableReport(name)), error)

    def _keep_unassigned(self, feed: Feed, rejected: Rejected, num_events: int) -> None:
        """Events that belong to none of several tables go to a quarantine of the feed."""
        limit = max(settings.max_quarantine_ratio for settings in feed.settings)
        if rejected.num_rows > limit * num_events:
            first = rejected.table.column("reason")[0].as_py()
            raise QuarantineLimitError(
                f"{rejected.num_rows} of {num_events} events of the feed belong to no table, more than "
                f"max_quarantine_ratio {limit:g} allows: {first}"
            )
        self.unassigned += quarantine(self.catalog, feed.quarantine, rejected)


@dataclass
class _Reading:
    """A feed as far as it is read: who takes part, and what the decoder is to be told next."""

    feed: Feed
    position: str | None
    running: list[TableIngest]
    decided: Decided
    late: list[TableIngest] = field(default_factory=list)
    is_transactional: bool = False

    def decoded(self, batch: FileBatch) -> DecodedFeed:
        """The changes of a batch."""
        return decode(batch.raw, self.feed.config([*self.running, *self.late], self.decided))

    def join(self, found: Mapping[str, tuple[TableConfig, str]], tables: Sequence[TableIngest]) -> None:
        """Let tables take part that a pattern stands for and the feed has shown: from its start on."""
        self.feed = self.feed.with_tables(found)
        (self.running if self.position is None else self.late).extend(tables)

    def saw_transactions(self) -> None:
        """The feed marks its transactions, and every batch ends with one."""
        self.is_transactional = True


def start_table(
    catalog: Any,
    name: str,
    config: TableConfig,
    progress: Progress | None,
    *,
    log_only: bool = False,
    source_table: str | None = None,
) -> tuple[TableIngest | None, TableReport]:
    """The table, brought up to its change log; None if that failed."""
    report = TableReport(name)
    try:
        table = TableIngest(catalog, name, config, report, progress, log_only=log_only)
        table.start(source_table)
    except Exception as error:  # noqa: BLE001 - whatever stops one table must not stop the others
        _fail(report, error)
        return None, report
    return table, report


def _by_position(tables: Sequence[TableIngest]) -> dict[str | None, list[TableIngest]]:
    """Tables that have read their source equally far, and so can be read together."""
    groups: dict[str | None, list[TableIngest]] = {}
    for table in tables:
        groups.setdefault(table.position, []).append(table)
    return groups


def _within(tables: Sequence[TableIngest], limit_bytes: int) -> list[TableIngest]:
    """Those of the tables that survive it when the largest spill until all together hold no more than a limit."""
    alive = list(tables)
    held = {id(table): table.held_bytes for table in alive}
    for table in sorted(tables, key=lambda t: -held[id(t)]):
        if sum(held.values()) <= limit_bytes:
            break
        held[id(table)] = 0
        if not _survives(table, table.spill):
            alive.remove(table)
    return alive


def _survives(table: TableIngest, step: Callable[..., None], *arguments: Any) -> bool:
    """Whether a step of this table succeeds; if not, the table is marked as failed."""
    try:
        step(*arguments)
    except Exception as error:  # noqa: BLE001 - whatever stops one table must not stop the others
        _fail(table.report, error)
        return False
    return True


def _fail(report: TableReport, error: Exception) -> None:
    report.error = str(error) if isinstance(error, PipelineError | ScanError) else f"{type(error).__name__}: {error}"
    report.exit_code = error.exit_code if isinstance(error, PipelineError) else FAILED
    _log.warning("table %s stopped", report.table, exc_info=error)
