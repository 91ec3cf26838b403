"""The ingest: what is new in every source, decoded once per feed, into change logs and mirrors.

Tables that share a source are read together. A table that fails stops alone, at its last commit; the next run begins
there. What one table does with its changes is `table_ingest.py`.
"""

import logging
import time
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import pyarrow.compute as pc

from pipelines.catalog import open_catalog
from pipelines.change_batch import Rejected
from pipelines.config import Config, FilesSource, TableConfig
from pipelines.errors import ConfigError, PipelineError
from pipelines.formats.feed import FeedConfig, TableFeed
from pipelines.formats.registry import decode, lookup, parse_options
from pipelines.ingest_report import FAILED, IngestReport, TableReport
from pipelines.sources.file_options import FileOptions
from pipelines.sources.file_position import FilePosition
from pipelines.sources.files import FileBatch, discover
from pipelines.table_ingest import Progress, TableIngest
from scan_core.errors import ScanError

_log = logging.getLogger(__name__)
READ_SHARE = 16
"""Raw events of a batch may take this part of the memory limit of the smallest table of their feed."""


def run_once(
    config: Config,
    progress: Progress | None = None,
    tables: Collection[str] | None = None,
    *,
    log_only: bool = False,
) -> IngestReport:
    """Apply everything that is new, once.

    Args:
        config: which tables, from where.
        progress: told after each table's commit.
        tables: only these; None for all.
        log_only: fill change logs and leave the mirrors to `apply_logs`.

    Raises:
        ConfigError: an unknown table, format or option, before anything is read.
    """
    began = time.monotonic()
    chosen = _chosen(config, tables)
    feeds = _feeds(config, chosen)
    for feed in feeds:
        feed.check()
    catalog = open_catalog(config)
    reports: dict[str, TableReport] = {}
    skipped: Counter[str] = Counter()
    for feed in feeds:
        started: list[TableIngest] = []
        for name in feed.wanted:
            table, reports[name] = _start(catalog, name, config.tables[name], progress, log_only=log_only)
            started += [] if table is None else [table]
        for position, together in _by_position(started).items():
            _run(feed, position, together, skipped)
    return IngestReport(tuple(reports[name] for name in chosen), dict(skipped), time.monotonic() - began)


def apply_logs(config: Config, progress: Progress | None = None, tables: Collection[str] | None = None) -> IngestReport:
    """Bring mirrors up to their change logs, without a look at any source.

    Raises:
        ConfigError: an unknown table.
    """
    began = time.monotonic()
    catalog = open_catalog(config)
    reports = []
    for name in _chosen(config, tables):
        table, report = _start(catalog, name, config.tables[name], progress)
        if table is not None and progress is not None and report.mirror_commits:
            progress(report)
        reports.append(report)
    return IngestReport(tuple(reports), {}, time.monotonic() - began)


def sources(config: Config) -> list[tuple[str, ...]]:
    """The tables of each source, for whoever runs sources apart: a source is read once for all of its tables."""
    return [tuple(feed.tables) for feed in _feeds(config, list(config.tables))]


def _chosen(config: Config, tables: Collection[str] | None) -> list[str]:
    if tables is None:
        return list(config.tables)
    if unknown := sorted(set(tables) - set(config.tables)):
        raise ConfigError(f"no table {', '.join(unknown)} in {config.path}; it has {', '.join(config.tables)}")
    return [name for name in config.tables if name in tables]


@dataclass(frozen=True, slots=True)
class _Feed:
    """A source, all tables that the config fills from it, and those that this run is to bring up to date."""

    source: FilesSource
    tables: Mapping[str, TableConfig]
    wanted: tuple[str, ...]

    @property
    def file_options(self) -> FileOptions:
        options, _ = FileOptions.split(self.source.options)
        smallest = min(self.tables[name].memory_limit_bytes for name in self.wanted)
        return replace(options, batch_bytes=min(options.batch_bytes, smallest // READ_SHARE))

    @property
    def format_options(self) -> dict[str, Any]:
        _, options = FileOptions.split(self.source.options)
        return options

    def check(self) -> None:
        """Refuse unknown formats and options before anything is read."""
        options = self.format_options
        if self.source.format is not None:
            parse_options(lookup(self.source.format), options)

    def config(self, running: Sequence[TableIngest]) -> FeedConfig:
        """What the decoder is told: all tables of the feed, so that no table takes the events of another."""
        active = {table.name: table for table in running}
        return FeedConfig(
            format=self.source.format,
            options=self.format_options,
            tables=tuple(_table_feed(name, table, active.get(name)) for name, table in self.tables.items()),
        )


def _feeds(config: Config, chosen: Sequence[str]) -> list[_Feed]:
    sources: list[FilesSource] = []
    for name in chosen:
        if config.tables[name].source not in sources:
            sources.append(config.tables[name].source)
    feeds = []
    for source in sources:
        sharing = {name: table for name, table in config.tables.items() if table.source == source}
        feeds.append(_Feed(source, sharing, tuple(name for name in sharing if name in chosen)))
    return feeds


def _table_feed(name: str, config: TableConfig, table: TableIngest | None) -> TableFeed:
    return TableFeed(
        name=name,
        source_table=config.source_table,
        key=config.key,
        identity_full=config.identity == "full",
        types=config.types,
        encodings=config.encodings,
        known_types={} if table is None else table.known_types,
        order_by=config.order_by,
        include=config.include,
        exclude=config.exclude,
        rename=config.rename,
        cast=config.cast,
        schema_version=0 if table is None else table.schema_version,
    )


def _start(
    catalog: Any, name: str, config: TableConfig, progress: Progress | None, *, log_only: bool = False
) -> tuple[TableIngest | None, TableReport]:
    """The table, brought up to its change log; None if that failed."""
    report = TableReport(name)
    try:
        table = TableIngest(catalog, name, config, report, progress, log_only=log_only)
        table.start()
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


def _run(feed: _Feed, position: str | None, tables: Sequence[TableIngest], skipped: Counter[str]) -> None:
    """Read a source from a position to its end into these tables."""
    running = list(tables)
    stopped: Exception | None = None
    try:
        for batch in _batches(feed, position, tables):
            decoded = decode(batch.raw, feed.config(running))
            skipped.update(decoded.skipped)
            for table in list(running):
                rejected = _rejected_of(table.name, decoded.rejected, alone=len(feed.tables) == 1)
                if not _survives(
                    table, table.add, decoded.tables[table.name], rejected, batch.position_after.to_json()
                ):
                    running.remove(table)
            if not running:
                return
    except Exception as error:  # noqa: BLE001 - this feed stops, others go on
        stopped = error
    for table in running:
        if _survives(table, table.flush) and stopped is not None:
            _fail(table.report, stopped)


def _batches(feed: _Feed, position: str | None, tables: Sequence[TableIngest]) -> Iterator[FileBatch]:
    def applied_lines(files: Sequence[str]) -> dict[str, int]:
        lines: dict[str, int] = {}
        for table in tables:
            for file, last in table.lines_logged(files).items():
                lines[file] = max(last, lines.get(file, 0))
        return lines

    start = None if position is None else FilePosition.from_json(position)
    return discover(feed.source.path, start, feed.file_options, applied_lines=applied_lines)


def _rejected_of(table: str, rejected: Rejected, *, alone: bool) -> Rejected:
    """The rejected events of a table; those of no known table belong to the only one there is."""
    names = rejected.table.column("table_name")
    mine = pc.fill_null(pc.equal(names, table), alone)
    return Rejected(rejected.table.filter(mine))


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
