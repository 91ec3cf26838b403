"""Runs the ingest, once or continuously: reads what is new in every source and writes it to change logs and mirrors.

The part of one table is in `table_ingest.py`.
"""

import atexit
import gc
import logging
import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import closing, suppress
from contextvars import copy_context
from dataclasses import KW_ONLY, dataclass, field, replace
from typing import TYPE_CHECKING, Any

from nevermore.pipelines.changes.change_log import ChangeLog
from nevermore.pipelines.changes.change_run import BATCH_SHARE
from nevermore.pipelines.changes.quarantine import check_ratio, quarantine
from nevermore.pipelines.config.project import Config, SparkConfig, change_log_name
from nevermore.pipelines.config.sources import PythonSource
from nevermore.pipelines.config.tables import TableConfig
from nevermore.pipelines.decode.batches import BatchEnd, Rejected, SourceBatch
from nevermore.pipelines.decode.feed import Decided, FeedConfig
from nevermore.pipelines.errors import (
    AnotherIngesterError,
    PipelineError,
    SourceError,
    WideBatchError,
    describe,
    explained,
)
from nevermore.pipelines.formats.registry import DecodedFeed, ScannedFeed, decode, other_format, parts_of, scan
from nevermore.pipelines.iceberg.catalog import expanded
from nevermore.pipelines.iceberg.checked_catalog import open_for_writing
from nevermore.pipelines.iceberg.commit import is_transient
from nevermore.pipelines.ingest.feeds import (
    Feed,
    Readers,
    chosen_names,
    decided_in,
    feeds_of,
    unmatched_patterns,
)
from nevermore.pipelines.ingest.report import FAILED, IngestReport, TableReport
from nevermore.pipelines.ingest.table_ingest import Progress, TableIngest
from nevermore.pipelines.mirrors.moments import record_moment
from nevermore.pipelines.sources.live import LiveBatch, LiveSource
from nevermore.pipelines.sources.table_position import LoadOutdatedError
from nevermore.pipelines.watch import span
from nevermore.pipelines.workers import POOL, num_cores, workers
from nevermore.scan_core import ScanError
from nevermore.scan_core.io import remove_leftovers

if TYPE_CHECKING:
    from nevermore.pipelines.iceberg.catalog import Catalog
    from nevermore.pipelines.ingest.spark_run import SparkBatch

RARELY = 1_000
"""Collections of the middle generation per full one: after some millions of new objects."""


def freeze_imports() -> None:
    """Exclude all objects that exist now from garbage collection; for the owner of a process, after its imports."""
    gc.collect()
    gc.freeze()
    atexit.register(gc.unfreeze)  # extension modules look for leaks when the interpreter ends
    young, middle, _ = gc.get_threshold()
    gc.set_threshold(young, middle, RARELY)


_log = logging.getLogger(__name__)


@dataclass
class FeedRun:
    """One run over all feeds, with its reports by table and its counts."""

    catalog: "Catalog"
    progress: Progress | None
    _: KW_ONLY
    log_only: bool = False
    stopping: Callable[[], bool] = bool
    replaces_types: bool = False
    records_positions: bool = False
    parallel_tables: int = 1
    is_continuous: bool = False
    spark: SparkConfig = field(default_factory=SparkConfig)
    reports: dict[str, TableReport] = field(default_factory=dict)
    skipped: Counter[str] = field(default_factory=Counter)
    unassigned: int = 0
    untaken: set[str] = field(default_factory=set)
    warnings: list[str] = field(default_factory=list)

    def read(self, feed: Feed) -> None:
        """Bring the wanted tables of a feed up to date."""
        if feed.live is not None:
            LiveRound(self, feed, feed.live).run()
            return
        started: list[TableIngest] = []
        for name in feed.wanted:
            if name not in feed.patterns:
                started += self.started(name, feed.tables[name])
        if isinstance(feed.source, PythonSource):  # programs hand over the rows
            return
        feed = feed.remembering(self.catalog, started)
        groups = _by_position(started)
        first = groups.pop(None, [])
        late: list[TableIngest] = []
        for position, together in groups.items():
            feed, found = self._read_from(feed, position, together)
            late += found
        if first or late or (not groups and set(feed.wanted) & set(feed.patterns)):
            self._read_from(feed, None, [*first, *late])

    def started(self, name: str, config: TableConfig, source_table: str | None = None) -> list[TableIngest]:
        """A table with all logged changes applied; none, with a report, if that fails."""
        report = self.reports[name] = TableReport(name)
        try:
            table = TableIngest(
                *(self.catalog, name, config, report, self.progress),
                log_only=self.log_only,
                replaces_types=self.replaces_types,
            )
            table.start(source_table)
        except Exception as error:  # noqa: BLE001 - whatever stops one table must not stop the others
            _fail(report, error)
            return []
        return [table]

    def _read_from(
        self, feed: Feed, position: str | None, tables: Sequence[TableIngest]
    ) -> tuple[Feed, list[TableIngest]]:
        """Read a source from a position to its end into these tables.

        Returns:
            (feed with the tables that were found, those of them that must still be read from its start): their events
            may precede the position, as they were skipped before.
        """
        reading = Reading(feed, position, list(tables), decided_in(position))
        stopped: Exception | None = None
        passed: Counter[str] = Counter()  # by the thread that reads
        try:
            engine = feed.choose_engine(position, [table.report for table in tables])
            if engine == "spark":
                self._read_on_spark(reading)
            else:
                found = feed.batches(
                    position,
                    feed.applied_lines(tables),
                    lambda reason, count: passed.update({reason: count}),
                    self.warnings.append,
                )
                config = reading.config
                with closing(found) as batches:  # type: ignore[type-var] # generators
                    coming = read_ahead(batches, lambda batch: Ahead.begun(batch, config), feed.most_ahead - 1)
                    with closing(coming) as taken:  # type: ignore[type-var]
                        for batch in taken:
                            self._take(reading, batch)
                            del batch  # its memory is for the next
                            if (not reading.running and not feed.patterns) or self.stopping():
                                break
                            config = reading.config
        except Exception as error:  # noqa: BLE001 - this feed stops, others go on
            stopped = error
        self.skipped = passed + self.skipped
        try:
            self.finish(reading.feed, reading.running, stopped)
            if stopped is None and not self.stopping():
                reloaded = [t for t in reading.running if t.is_reloading and t.report.error is None]
                self.survivors(reloaded, TableIngest.end_reload)
        finally:
            for table in (*tables, *reading.running):
                table.close()
        return reading.feed, reading.late

    def _read_on_spark(self, reading: "Reading") -> None:
        """Let tasks of Spark read what is new; each of their batches is one commit of every table."""
        from nevermore.pipelines.ingest.spark_run import SparkReading

        def join(untaken: Collection[str]) -> FeedConfig | None:
            found = reading.feed.found(sorted(untaken))
            if not found:
                return None
            joining = [table for name, entry in found.items() for table in self.started(name, *entry)]
            for table in joining:
                table.report.engine = "spark"
            reading.join(found, joining)
            return reading.config

        applied = reading.feed.applied_lines(list(reading.running))
        source = SparkReading(
            reading.feed,
            self.spark,
            reading.config,
            applied=applied,
            on_skipped=lambda reason, count: self.skipped.update({reason: count}),
            warn=None if reading.feed.is_ordered else self.warnings.append,
            join=join,
        )
        for batch in source.batches(reading.position):
            with closing(batch):
                feed = reading.feed
                for piece in batch.pieces:
                    self.skipped.update(piece.skipped)
                    self.untaken.update(piece.untaken)
                self._keep_unassigned(feed, feed.unassigned(batch.rejected), sum(p.num_read for p in batch.pieces))

                def add(table: TableIngest, batch: "SparkBatch" = batch, feed: Feed = feed) -> None:
                    table.looks_like = next((p.looks_like for p in reversed(batch.pieces) if p.looks_like), None)
                    changes, sent = batch.tables[table.name]
                    rejected = feed.rejected_of(table.name, batch.rejected)
                    table.add_remote(
                        changes, rejected, batch.position, sent, is_atomic=any(p.of_transactions for p in batch.pieces)
                    )

                # One table after the other: each has the whole cluster.
                reading.running = [table for table in reading.running if _survives(table, add, table)]
            if (not reading.running and not reading.feed.patterns) or self.stopping():
                break

    def _take(self, reading: "Reading", whole: "Ahead") -> None:
        """Add the changes of a batch to its tables, in parts if it is too wide to be decoded at once."""
        num_read, waiting = whole.batch.raw.num_read, deque([whole])
        while waiting:
            batch = waiting.popleft()
            try:
                decoded = self._decoded(reading, batch)
            except WideBatchError as error:
                waiting.extendleft(reversed(_parts(batch.batch, reading.config, error)))
            else:
                self._add(reading, batch.batch, self.counted(reading, decoded, num_read))

    def _decoded(self, reading: "Reading", batch: "Ahead") -> DecodedFeed:
        config = reading.config
        scanned = batch.scanned or scan(batch.batch.raw, config)
        # A pattern may find tables in this batch: they must exist before their share of it can be decoded.
        if reading.feed.patterns and (found := reading.feed.found(scanned.untaken(config))):
            joining = [t for name, entry in found.items() for t in self.started(name, *entry)]
            reading.join(found, joining)
            config = reading.config
        return batch.decoded if batch.decoded and batch.is_of(config) else scanned.decode(config)

    def _add(self, reading: "Reading", batch: SourceBatch, decoded: DecodedFeed) -> None:
        decided = decoded.decided
        after = replace(batch.position_after, decided=decided)
        reached = after.to_json()

        def add(table: TableIngest) -> None:
            rejected = reading.feed.rejected_of(table.name, decoded.rejected)
            if not batch.continues:
                table.drop_unfinished()
            if rejected.num_rows:
                table.looks_like = other_format(batch.raw, reading.feed.source.format)
            table.add(decoded.tables[table.name], rejected, reached, batch.end)

        alive = self.survivors(reading.running, add)
        reading.running = within(alive, reading.feed.memory_limit_bytes // BATCH_SHARE)

    def counted(self, reading: "Reading", decoded: DecodedFeed, num_read: int) -> DecodedFeed:
        """Count what is skipped of a batch that was decoded in its turn, and keep what belongs to no table."""
        reading.decided = decoded.decided
        self.skipped.update(decoded.skipped)
        self.untaken.update(decoded.untaken)
        self._keep_unassigned(reading.feed, reading.feed.unassigned(decoded.rejected), num_read)
        return decoded

    def finish(self, feed: Feed, running: Sequence[TableIngest], stopped: Exception | None) -> None:
        """Commit what was collected, and report to every table why its feed stopped."""
        if stopped is not None:
            _warn(f"{feed.source.title} stopped", stopped)
        for table in self.survivors(running, TableIngest.flush):
            table.report_unmet_columns()
            table.convert_deletes(is_continuous=self.is_continuous)
            if stopped is not None:
                _mark(table.report, stopped)
        if stopped is not None and not running:
            self._fail_patterns(feed, stopped)

    def survivors(self, tables: Sequence[TableIngest], step: Callable[[TableIngest], None]) -> list[TableIngest]:
        """The tables for which a step succeeds, several at a time; the others are marked as failed."""
        if self.parallel_tables == 1 or len(tables) == 1:
            return [table for table in tables if _survives(table, step, table)]
        with ThreadPoolExecutor(self.parallel_tables) as pool:
            contexts = [copy_context() for _ in tables]  # of spans and log lines
            alive = pool.map(lambda table, context: context.run(_survives, table, step, table), tables, contexts)
            return [table for table, is_alive in zip(tables, alive, strict=True) if is_alive]

    def _fail_patterns(self, feed: Feed, error: Exception) -> None:
        """Report an error of a source that has no tables yet."""
        for name in feed.wanted:
            if name in feed.patterns:
                _mark(self.reports.setdefault(name, TableReport(name)), error)

    def _keep_unassigned(self, feed: Feed, rejected: Rejected, num_events: int) -> None:
        """Add events that belong to none of several tables to the quarantine of the feed."""
        limit = max(settings.max_quarantine_ratio for settings in feed.settings)
        check_ratio(f"events of {feed.source.title} that belong to no table", num_events, rejected, limit)
        self.unassigned += quarantine(self.catalog, feed.quarantine, rejected)


@dataclass(frozen=True, slots=True)
class Ahead:
    """A batch that was read while earlier ones were applied, with what could be done of it meanwhile.

    What a batch becomes depends on the batches before it: on columns, keys, encodings and tables that they brought. So it is decoded with
    what was known when it was read, and what was decoded is thrown away if the batches in between have changed that. Scanning
    depends only on the format and its options.
    """

    batch: SourceBatch
    scanned: ScannedFeed | None = None
    decoded: DecodedFeed | None = None
    config: FeedConfig | None = None

    @classmethod
    def begun(cls, batch: SourceBatch, config: FeedConfig) -> "Ahead":
        """Scan a batch, and decode it if its columns may be known: the first batch brings those of new tables."""
        scanned = decoded = None
        # A failure under assumptions tells nothing: a real one is raised again by doing the work in turn.
        with suppress(Exception):
            scanned = scan(batch.raw, config)
            if any(table.known_types for table in config.tables):
                decoded = scanned.decode(config)
        return cls(batch, scanned, decoded, config)

    def is_of(self, config: FeedConfig) -> bool:
        """Whether it would be decoded to the same with this config; the order of known columns counts, too."""
        return self.config == config and all(
            list(a.known_types) == list(b.known_types) for a, b in zip(self.config.tables, config.tables, strict=True)
        )


def read_ahead(batches: Iterator[SourceBatch], begin: Callable[[SourceBatch], Ahead], most: int) -> Iterator[Ahead]:
    """Read up to `most` batches in a separate thread, and begin them in the pool, while the caller applies earlier ones.

    Each batch is read when it is asked for if there is no pool, or if memory allows nothing ahead. When this generator is closed, the
    thread has ended and no task is running.

    Raises:
        Exception: what reading raises, after the batches before it.
    """
    pool, context = POOL.get(), copy_context()
    if pool is None or most < 1:
        yield from map(Ahead, batches)
        return
    begun: deque[Future[Ahead]] = deque()

    def read() -> bool:
        for batch in batches:
            begun.append(pool.submit(begin, batch))
            return True
        return False

    with ThreadPoolExecutor(1, "nevermore-reader") as reader:
        coming = deque(reader.submit(context.run, read) for _ in range(most))
        try:
            while coming.popleft().result():
                coming.append(reader.submit(context.run, read))
                yield begun.popleft().result()
        finally:
            reader.shutdown(cancel_futures=True)
            wait([future for future in begun if not future.cancel()])


def _parts(batch: SourceBatch, config: FeedConfig, error: WideBatchError) -> list[Ahead]:
    """The parts of a batch that is too wide, which are committed together."""
    parts = parts_of(batch.raw, config, error)
    ends = [BatchEnd.WITHIN_TRANSACTION] * (len(parts) - 1) + [batch.end]
    return [
        Ahead(replace(batch, raw=raw, end=end, continues=batch.continues or at > 0))
        for at, (raw, end) in enumerate(zip(parts, ends, strict=True))
    ]


@dataclass
class Reading:
    """The state of reading a feed: its tables, and what was decided for decoding so far."""

    feed: Feed
    position: str | None
    running: list[TableIngest]
    decided: Decided
    late: list[TableIngest] = field(default_factory=list)

    @property
    def config(self) -> FeedConfig:
        """The decoder's config of the feed as it is now."""
        return self.feed.config([*self.running, *self.late], self.decided)

    def join(self, found: Mapping[str, tuple[TableConfig, str]], tables: Sequence[TableIngest]) -> None:
        """Add tables that a pattern has found; they are read from the start of the feed."""
        self.feed = self.feed.with_tables(found)
        (self.running if self.position is None else self.late).extend(tables)


_KEPT = ". The table was to be loaded again: its mirror keeps the rows that it had, and the next ingest goes on with the load"
MAX_LOADS = 3
"""How often a run loads a table that is truncated while it is loaded; the next run loads it again."""


class LiveRound:
    """A round of a live source: loads tables that need it, reads the stream, and acknowledges what was committed."""

    def __init__(self, run: FeedRun, feed: Feed, live: LiveSource) -> None:
        self._run = run
        self._feed = feed
        self._live = live
        self._started: list[TableIngest] = []
        self._decided = Decided()
        self._last: LiveBatch | None = None
        """The last batch that ends with a commit: the tables that are read have all changes up to there."""

    def run(self) -> None:
        """Bring the wanted tables up to date. A table that fails does not stop the others."""
        stopped: Exception | None = None
        reading = Reading(self._feed, None, [], self._decided)
        try:
            reading.running = self._begin(reading)
            self._read_loaded(reading)
            for _ in range(MAX_LOADS):
                reading.running = [table for table in reading.running if self._loads(reading, table)]
                if not self._read(reading):
                    break
        except Exception as error:  # noqa: BLE001 - this source stops, others go on
            stopped = error
        stopped = self._end(reading, stopped)
        self._run.finish(reading.feed, reading.running, stopped)
        for table in self._started:
            if stopped is not None and table.report.error is None:
                _mark(table.report, stopped)
            _say_what_is_kept(table)
        has_failed = any(table.report.error is not None for table in self._started)
        try:
            if stopped is None:
                self._acknowledge(reading.feed)
                self._run.warnings += self._live.warnings()
        except Exception as error:  # noqa: BLE001 - what is committed is safe; the next round does it again
            has_failed = True
            _log.warning("%s could not be acknowledged", self._feed.source.title, exc_info=error)
        finally:
            for table in self._started:
                table.close()
            if has_failed or self._run.stopping():
                # What failed must be read again, from the positions of the change logs.
                self._live.interrupt()

    def _end(self, reading: "Reading", stopped: Exception | None) -> Exception | None:
        """Leave all tables at the end of the last batch, also if the stream broke; returns why the source stopped."""
        try:
            self._flush(reading)
        except Exception as error:  # noqa: BLE001 - what is committed is safe
            return stopped or error
        return stopped

    def _begin(self, reading: "Reading") -> list[TableIngest]:
        """Start all tables, those of patterns included, and decide which table of the source each of them takes."""
        for name in self._feed.wanted:
            if name not in self._feed.patterns:
                self._started += self._run.started(name, self._feed.tables[name])
        for table in self._started:
            table.report.why_local = self._feed.why_local(None) if table.config.ingest.engine == "auto" else None
        feed = self._feed.remembering(self._run.catalog, self._started)
        self._live.begin({table.name: table.position for table in self._started})
        source_tables = self._live.tables
        if feed.patterns:
            taken = {*feed.found_for.values(), *feed.claims(source_tables, Decided(), self._started).claims.values()}
            found = feed.found([name for name in source_tables if name not in taken])
            self._started += [t for name, entry in found.items() for t in self._run.started(name, *entry)]
            feed = feed.with_tables(found)
        reading.feed = feed
        reading.decided = feed.claims(source_tables, reading.decided, self._started)
        running = []
        for table in self._started:
            source_table = reading.decided.claims.get(table.name)
            if source_table in source_tables:
                if _survives(table, self._check, source_table, table):
                    running.append(table)
            else:
                wanted = feed.tables[table.name].source_table or table.name
                _fail(
                    table.report,
                    SourceError(
                        f"{wanted} is not in {feed.source.title}, which has {', '.join(source_tables) or 'no tables'}: "
                        f"name the table with source_table, or {self._live.how_to_add(wanted)}"
                    ),
                )
        return running

    def _check(self, source_table: str, table: TableIngest) -> None:
        if table.position is None:
            return
        try:
            moved = self._live.check_table(source_table, table.position)
        except LoadOutdatedError as outdated:
            self._load_again(table, outdated)
        else:
            if moved is not None:
                table.move(moved)

    def _load_again(self, table: TableIngest, outdated: LoadOutdatedError) -> None:
        self._run.warnings.append(str(outdated))
        table.remove_all(outdated.position)

    def _loads(self, reading: "Reading", table: TableIngest) -> bool:
        """Load what existed before the stream; whether the table can go on to the stream."""
        is_loaded = self._live.is_loaded(table.position) or _survives(table, self._load, reading, table)
        return is_loaded and _survives(table, table.end_reload)

    def _load(self, reading: "Reading", table: TableIngest) -> None:
        feed, source = reading.feed, reading.decided.claims[table.name]
        for _ in range(MAX_LOADS):
            settings = feed.config_of(table.name, table, reading.decided)
            try:
                for batch in self._live.load(settings, source, table.position, feed.read_bytes):
                    self._add(reading, table, self._decoded(reading, batch), batch)
                    if table.held_bytes > feed.memory_limit_bytes // BATCH_SHARE:
                        table.spill()
                    if batch.end is not BatchEnd.WITHIN_TRANSACTION:
                        table.flush()
                        if self._run.stopping():
                            break
            except LoadOutdatedError as outdated:
                self._load_again(table, outdated)
                continue
            if not self._live.is_loaded(table.position):
                raise SourceError(f"{table.name}: the load was stopped; the next run continues it")
            return

    def _read_loaded(self, reading: "Reading") -> None:
        """Bring the tables that are loaded up to date before any load, so that they do not wait for loads, however often these end."""
        loaded = [table for table in reading.running if self._live.is_loaded(table.position)]
        if not loaded or len(loaded) == len(reading.running):
            return
        try:
            self._read(reading)
        except PipelineError as error:  # read again after the loads, which must not wait for a stream that fails
            _log.warning("%s", error)
            self._flush(reading)
            self._live.interrupt()

    def _read(self, reading: "Reading") -> bool:
        """Read the stream until now into the tables that are loaded; whether a table must be loaded again."""
        loaded = {t.name: t.position for t in reading.running if self._live.is_loaded(t.position)}
        for batch in self._live.stream(loaded, reading.feed.read_bytes):
            decoded = self._decoded(reading, batch)
            tables = [table for table in reading.running if self._live.is_loaded(table.position)]
            before = [table.position for table in tables]
            alive = self._run.survivors(tables, lambda t, d=decoded, b=batch: self._add(reading, t, d, b))  # type: ignore[misc]
            alive = within(alive, reading.feed.memory_limit_bytes // BATCH_SHARE)
            reading.running = [t for t in reading.running if t in alive or t not in tables]
            if batch.end is not BatchEnd.WITHIN_TRANSACTION:
                self._last = batch
                # One that has enough changes for a commit takes the others along, to the same commit of the source.
                if before != [table.position for table in tables]:
                    self._flush(reading)
            if self._run.stopping():
                break
        self._flush(reading)
        return not all(self._live.is_loaded(table.position) for table in reading.running)

    def _flush(self, reading: "Reading") -> None:
        reading.running = self._run.survivors(reading.running, TableIngest.flush)
        self._record_moment(reading)

    def _decoded(self, reading: "Reading", batch: LiveBatch) -> DecodedFeed:
        return self._run.counted(reading, decode(batch.raw, reading.config), batch.raw.num_read)

    def _add(self, reading: "Reading", table: TableIngest, decoded: DecodedFeed, batch: LiveBatch) -> None:
        """Add the changes of a batch to a table, unless it contains them already."""
        if not batch.continues:
            table.drop_unfinished()
        rejected = reading.feed.rejected_of(table.name, decoded.rejected)
        try:
            changes = batch.new_changes(table.position, decoded.tables[table.name])
        except LoadOutdatedError as outdated:
            self._load_again(table, outdated)
            return
        rejected = batch.new_rejected(table.position, rejected)
        # A table without changes does not commit every new position: the source keeps what follows the last one.
        is_idle = not changes.num_rows and not rejected.num_rows and not table.has_pending
        is_due = self._run.records_positions or batch.is_due(table.position)
        if is_idle and self._live.is_loaded(table.position) and not is_due:
            return
        table.add(changes, rejected, batch.position_after(table.position, decoded.decided), batch.end)

    def _record_moment(self, reading: "Reading") -> None:
        """Record the commit that tables of this round have reached together, for readers of several mirrors.

        Raises:
            PipelineError: it cannot be committed.
        """
        last = self._last
        if last is None:
            return
        alive = (t for t in reading.running if t.report.error is None and t.position is not None)
        reached = {t.name: t.last_ordinal for t in alive if last.is_reached(str(t.position))}
        if len(reached) > 1:
            logs = [change_log_name(name) for name in reading.feed.tables]
            record_moment(self._run.catalog, logs, reached)

    def _acknowledge(self, feed: Feed) -> None:
        """Let the source forget what all change logs of the feed contain, also of tables outside of this run."""
        known = {table.name: table.position for table in self._started}
        for name in feed.tables:
            if name not in known:
                known[name] = ChangeLog(self._run.catalog, change_log_name(name)).position
        # A table that was never read needs nothing from before its load.
        self._live.acknowledge([position for position in known.values() if position is not None])


def within(tables: Sequence[TableIngest], limit_bytes: int) -> list[TableIngest]:
    """Spill the largest tables until all together are within a memory limit; return those that did not fail."""
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
    """Whether a step of this table succeeds; otherwise it is marked as failed."""
    try:
        with span("nevermore.table", table=table.name):
            step(*arguments)
    except Exception as error:  # noqa: BLE001 - whatever stops one table must not stop the others
        _fail(table.report, error)
        return False
    return True


def _say_what_is_kept(table: TableIngest) -> None:
    if table.report.error is not None and table.is_reloading:
        table.report.error += _KEPT


def _fail(report: TableReport, error: Exception) -> None:
    _mark(report, error)
    _warn(f"table {report.table} stopped", error, table=report.table)


def _mark(report: TableReport, error: Exception) -> None:
    report.error = describe(error)
    report.exit_code = error.exit_code if isinstance(error, PipelineError | ScanError) else FAILED
    report.may_retry = is_transient(error)
    report.is_yielded = isinstance(error, AnotherIngesterError)


def _warn(what: str, error: Exception, **facts: str) -> None:
    """Log what stopped: in one line if the error says it, with the place in the code if it is unexpected."""
    _log.warning("%s: %s", what, describe(error), exc_info=None if explained(error) else error, extra=facts)


SHOWN_TABLES = 20
"""A feed may contain thousands of tables that are not in the config."""


def run_once(
    config: Config,
    progress: Progress | None = None,
    tables: Collection[str] | None = None,
    *,
    log_only: bool = False,
    replaces_types: bool = False,
    records_positions: bool = False,
    stopping: Callable[[], bool] = bool,
    readers: Readers | None = None,
    is_continuous: bool = False,
) -> IngestReport:
    """Apply everything that is new, once.

    Args:
        config: which tables, from where.
        progress: called after each commit of a table.
        tables: only these; None for all.
        log_only: write change logs and leave the mirrors to `apply_logs`.
        replaces_types: all rows of these tables were removed, so the source decides the types of their columns again.
        records_positions: also tables of databases in which nothing changed record how far they were read.
        stopping: called between batches; once it is true, what was read is committed and the rest left to the next run.
        readers: those of an earlier run, or of `found_nothing_new`; without them, the run closes its own.
        is_continuous: other runs follow soon, so that deletes need not be converted before they are `convert_after` old.

    Raises:
        ConfigError: an unknown table, format or option, before anything is read.
    """
    began = time.monotonic()
    for feed in feeds_of(config, [*config.tables, *config.patterns]):
        feed.check()
    if not config.patterns:
        chosen_names(config, tables)
    remove_leftovers()
    catalog = open_for_writing(config)
    current = expanded(config, catalog)
    chosen = chosen_names(current, tables)
    own = Readers() if readers is None else readers
    run = FeedRun(
        catalog,
        progress,
        log_only=log_only,
        replaces_types=replaces_types,
        records_positions=records_positions,
        stopping=stopping,
        parallel_tables=_tables_at_a_time(config),
        is_continuous=is_continuous,
        spark=config.spark,
    )
    try:
        with span("nevermore.ingest"), workers(config.threads or num_cores()):
            for feed in feeds_of(current, chosen, own):
                run.read(feed)
    finally:
        if readers is None:
            own.close()
    return _report(run, current, chosen, began)


def _by_position(tables: Sequence[TableIngest]) -> dict[str | None, list[TableIngest]]:
    """Tables by their position in the source: those with the same position are read together."""
    groups: dict[str | None, list[TableIngest]] = {}
    for table in tables:
        groups.setdefault(table.position, []).append(table)
    return groups


def _report(run: FeedRun, config: Config, chosen: Sequence[str], began: float) -> IngestReport:
    """The report of a run; `config` includes the tables that its patterns had found when it began."""
    return IngestReport(
        _in_order(run.reports, config),
        dict(run.skipped),
        time.monotonic() - began,
        run.unassigned,
        tuple(sorted(run.untaken)[:SHOWN_TABLES]),
        unmatched_patterns(run.reports, config, chosen),
        tuple(run.warnings),
    )


def _in_order(reports: Mapping[str, TableReport], config: Config) -> tuple[TableReport, ...]:
    """Reports by table in the order of the config, then those of tables that it does not name."""
    known = [name for name in config.tables if name in reports]
    return tuple(reports[name] for name in dict.fromkeys((*known, *reports)))


def apply_logs(config: Config, tables: Collection[str] | None = None) -> IngestReport:
    """Apply all logged changes to mirrors, without reading any source.

    Raises:
        ConfigError: an unknown table.
    """
    began = time.monotonic()
    catalog = open_for_writing(config)
    current = expanded(config, catalog)
    run = FeedRun(catalog, None)
    for name in chosen_names(current, tables):
        for table in () if name in current.patterns else run.started(name, current.tables[name]):
            table.convert_deletes()
    return IngestReport(tuple(run.reports.values()), {}, time.monotonic() - began)


def _tables_at_a_time(config: Config) -> int:
    """Number of tables to commit at the same time; 1 for SQLite in memory, where each thread would see its own database."""
    catalog = config.catalog
    if catalog.type == "in-memory" or ":memory:" in (catalog.uri or ""):
        return 1
    return config.parallel_tables or max(_MIN_PARALLEL_TABLES, config.threads or num_cores())


_MIN_PARALLEL_TABLES = 2
"""One table is written while the catalog answers for another."""


def sources(config: Config) -> list[tuple[str, ...]]:
    """The tables and patterns of each source, to run sources separately."""
    return [feed.wanted for feed in feeds_of(config, [*config.tables, *config.patterns])]


MAX_PAUSE_SECONDS, MAX_DOUBLINGS = 60.0, 10
"""How long a source of which no table can be read is left alone; from the interval on, it doubles with each round."""
OnReport = Callable[[IngestReport], None]


def run_continuously(
    config: Config,
    stop: threading.Event,
    on_report: OnReport,
    tables: Collection[str] | None = None,
    interval_seconds: float | None = None,
) -> int:
    """Apply what is new until `stop` is set; what was read by then is still committed.

    A table that fails is tried again in the next round of its source.

    Args:
        config: which tables, from where.
        stop: set to end the run.
        on_report: called after each round of a source.
        tables: only these; None for all.
        interval_seconds: instead of the `commit_interval` of the tables; default: the smallest of those that share a source.

    Returns:
        The number of rounds.

    Raises:
        ConfigError: an unknown table, format or option, before anything is read.
    """
    for name in tables or ():
        config.table(name)
    groups = [wanted for group in sources(config) if (wanted := [n for n in group if tables is None or n in tables])]
    due, failures = [0.0] * len(groups), [0] * len(groups)
    rounds = 0
    readers = Readers()
    try:
        while groups and not stop.is_set():
            turn = min(range(len(groups)), key=due.__getitem__)
            if stop.wait(max(0.0, due[turn] - time.monotonic())):
                break
            began = time.monotonic()
            readers.forget_listings()
            report = run_once(config, tables=groups[turn], stopping=stop.is_set, readers=readers, is_continuous=True)
            on_report(report)
            entries = {**config.tables, **config.patterns}
            interval = interval_seconds or min(entries[name].commit_interval for name in groups[turn])
            is_down = bool(report.tables) and all(t.error is not None and not t.is_yielded for t in report.tables)
            failures[turn] = min(failures[turn] + 1, MAX_DOUBLINGS) if is_down else 0
            due[turn] = began + max(interval, min(interval * 2 ** failures[turn], MAX_PAUSE_SECONDS) if is_down else 0)
            gc.collect()  # now, while nothing waits for it
            rounds += 1
    finally:
        readers.close()
    return rounds
