"""The ingest: what is new in every source, decoded once per feed, into change logs and mirrors.

Tables that share a source are read together. A table that fails stops alone, at its last commit; the next run begins
there. What is read together is in `feeds.py`, what one table does with its changes in `table_ingest.py`.
"""

import logging
import time
from collections import Counter
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from pipelines.catalog import open_catalog
from pipelines.change_batch import Rejected
from pipelines.config import Config, TableConfig
from pipelines.errors import ConfigError, PipelineError, QuarantineLimitError
from pipelines.feeds import Feed, claims_in, feeds_of
from pipelines.formats.registry import decode
from pipelines.ingest_report import FAILED, IngestReport, TableReport
from pipelines.quarantine import quarantine
from pipelines.table_ingest import Progress, TableIngest
from scan_core.errors import ScanError

_log = logging.getLogger(__name__)


def run_once(
    config: Config,
    progress: Progress | None = None,
    tables: Collection[str] | None = None,
    *,
    log_only: bool = False,
    stopping: Callable[[], bool] = bool,
) -> IngestReport:
    """Apply everything that is new, once.

    Args:
        config: which tables, from where.
        progress: told after each table's commit.
        tables: only these; None for all.
        log_only: fill change logs and leave the mirrors to `apply_logs`.
        stopping: asked between batches; once it is true what was read is committed and the rest left to the next run.

    Raises:
        ConfigError: an unknown table, format or option, before anything is read.
    """
    began = time.monotonic()
    chosen = _chosen(config, tables)
    feeds = feeds_of(config, chosen)
    for feed in feeds:
        feed.check()
    catalog = open_catalog(config)
    reports: dict[str, TableReport] = {}
    tally = _Tally()
    for feed in feeds:
        started: list[TableIngest] = []
        for name in feed.wanted:
            table, reports[name] = _start(catalog, name, config.tables[name], progress, log_only=log_only)
            started += [] if table is None else [table]
        for position, together in _by_position(started).items():
            _run(catalog, feed, position, together, tally, stopping=stopping)
    ordered = tuple(reports[name] for name in chosen)
    return IngestReport(ordered, dict(tally.skipped), time.monotonic() - began, tally.unassigned)


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
    return [tuple(feed.tables) for feed in feeds_of(config, list(config.tables))]


def _chosen(config: Config, tables: Collection[str] | None) -> list[str]:
    if tables is None:
        return list(config.tables)
    if unknown := sorted(set(tables) - set(config.tables)):
        raise ConfigError(f"no table {', '.join(unknown)} in {config.path}; it has {', '.join(config.tables)}")
    return [name for name in config.tables if name in tables]


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


def _run(
    catalog: Any,
    feed: Feed,
    position: str | None,
    tables: Sequence[TableIngest],
    tally: "_Tally",
    *,
    stopping: Callable[[], bool],
) -> None:
    """Read a source from a position to its end into these tables."""
    running = list(tables)
    stopped: Exception | None = None
    try:
        claims = claims_in(position)
        for batch in feed.batches(position, tables, tally.left_out):
            decoded = decode(batch.raw, feed.config(running, claims))
            claims = decoded.claims
            tally.skipped.update(decoded.skipped)
            tally.unassigned += _keep_unassigned(catalog, feed, feed.unassigned(decoded.rejected), batch.raw.num_events)
            reached = replace(batch.position_after, claims=claims).to_json()
            for table in list(running):
                rejected = feed.rejected_of(table.name, decoded.rejected)
                if not _survives(table, table.add, decoded.tables[table.name], rejected, reached):
                    running.remove(table)
            if not running:
                return
            if stopping():
                break
    except Exception as error:  # noqa: BLE001 - this feed stops, others go on
        stopped = error
    for table in running:
        if _survives(table, table.flush) and stopped is not None:
            _fail(table.report, stopped)


def _keep_unassigned(catalog: Any, feed: Feed, rejected: Rejected, num_events: int) -> int:
    """Events that belong to none of several tables go to a quarantine of the feed; how many were new."""
    limit = max(feed.tables[name].max_quarantine_ratio for name in feed.wanted)
    if rejected.num_rows > limit * num_events:
        first = rejected.table.column("reason")[0].as_py()
        raise QuarantineLimitError(
            f"{rejected.num_rows} of {num_events} events of the feed belong to no table, more than "
            f"max_quarantine_ratio {limit:g} allows: {first}"
        )
    return quarantine(catalog, feed.quarantine, rejected)


@dataclass(slots=True)
class _Tally:
    """What is counted per run, not per table."""

    skipped: Counter[str] = field(default_factory=Counter)
    unassigned: int = 0

    def left_out(self, reason: str) -> None:
        """Count what was not read."""
        self.skipped[reason] += 1


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
