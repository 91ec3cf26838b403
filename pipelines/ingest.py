"""The ingest: what is new in every source, decoded once per feed, into change logs and mirrors.

Which tables a run is for is decided here; reading a feed into its tables is `feed_run.py`.
"""

import time
from collections.abc import Callable, Collection

from pipelines.config import Config
from pipelines.errors import ConfigError
from pipelines.feed_run import FeedRun, start_table
from pipelines.feeds import feeds_of
from pipelines.ingest_report import IngestReport
from pipelines.recovery import open_for_writing
from pipelines.table_ingest import Progress
from pipelines.table_patterns import expanded
from scan_core.private_files import remove_leftovers

SHOWN_TABLES = 20
"""A feed may carry thousands of tables that nobody asked for."""


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
    for feed in feeds_of(config, [*config.tables, *config.patterns]):
        feed.check()
    if not config.patterns:
        _chosen(config, tables)
    remove_leftovers()
    catalog = open_for_writing(config)
    current = expanded(config, catalog)
    chosen = _chosen(current, tables)
    run = FeedRun(catalog, progress, log_only=log_only, stopping=stopping, parallel_tables=_threads(config))
    for feed in feeds_of(current, chosen):
        run.read(feed)
    known = [name for name in current.tables if name in run.reports]
    ordered = tuple(run.reports[name] for name in dict.fromkeys((*known, *run.reports)))
    return IngestReport(
        ordered,
        dict(run.skipped),
        time.monotonic() - began,
        run.unassigned,
        tuple(sorted(run.untaken)[:SHOWN_TABLES]),
        tuple(p for p in chosen if p in config.patterns and not any(_covers([p], name) for name in run.reports)),
    )


def apply_logs(config: Config, progress: Progress | None = None, tables: Collection[str] | None = None) -> IngestReport:
    """Bring mirrors up to their change logs, without a look at any source.

    Raises:
        ConfigError: an unknown table.
    """
    began = time.monotonic()
    catalog = open_for_writing(config)
    current = expanded(config, catalog)
    reports = []
    for name in _chosen(current, tables):
        if name in current.patterns:
            continue
        table, report = start_table(catalog, name, current.tables[name], progress)
        if table is not None and progress is not None and report.mirror_commits:
            progress(report)
        reports.append(report)
    return IngestReport(tuple(reports), {}, time.monotonic() - began)


def _threads(config: Config) -> int:
    """How many tables may be committed at a time: each thread would see an SQLite database in memory of its own."""
    catalog = config.catalog
    return 1 if catalog.type == "in-memory" or ":memory:" in (catalog.uri or "") else config.parallel_tables


def check_tables(config: Config) -> None:
    """Refuse to ingest into no table at all.

    Raises:
        ConfigError: what to declare.
    """
    if not config.tables and not config.patterns:
        raise ConfigError(
            f"{config.path}: no table stands under tables, so there is nothing to ingest; declare one, such as "
            "shop.orders: {source: {path: landing/orders/*.jsonl}, key: [id]}"
        )


def sources(config: Config) -> list[tuple[str, ...]]:
    """The tables and patterns of each source, for whoever runs sources apart: a source is read once for all of them."""
    return [feed.wanted for feed in feeds_of(config, [*config.tables, *config.patterns])]


def _chosen(config: Config, tables: Collection[str] | None) -> list[str]:
    """The tables and patterns asked for; of a pattern all tables that are known."""
    entries = [*config.tables, *config.patterns]
    if tables is None:
        return entries
    if unknown := sorted(set(tables) - set(entries)):
        raise ConfigError(f"no table {', '.join(unknown)} in {config.path}; it has {', '.join(entries)}")
    asked = {name for name in tables if name in config.patterns}
    return [
        name
        for name in entries
        if name in tables or (config.tables.get(name) in [config.patterns[p] for p in asked] and _covers(asked, name))
    ]


def _covers(patterns: Collection[str], name: str) -> bool:
    return any(name.startswith(pattern.removesuffix("*")) for pattern in patterns)
