"""Decides whether a run has nothing to do, by all checks of a run, and without loading decoders or writers.

The checks are those of `table_ingest.py` and of the sources themselves, not copies. Whatever may be something, and every error,
is left to `feed_run.py`, which does it or reports it in its place.
"""

import time
from collections.abc import Collection, Mapping, Sequence
from typing import TYPE_CHECKING

from nevermore.pipelines.config.project import Config
from nevermore.pipelines.errors import ConfigError
from nevermore.pipelines.iceberg.checked_catalog import open_for_comparing
from nevermore.pipelines.ingest.feeds import Feed, Readers, feeds_of
from nevermore.pipelines.ingest.report import IngestReport, TableReport
from nevermore.pipelines.ingest.table_patterns import expanded
from nevermore.pipelines.ingest.table_state import TableState, by_position
from nevermore.scan_core.io import remove_leftovers

if TYPE_CHECKING:
    from nevermore.pipelines.iceberg.catalog import LightCatalog


def found_nothing_new(
    config: Config, tables: Collection[str] | None = None, readers: Readers | None = None
) -> IngestReport | None:
    """Report a run that has nothing to do, after all checks of a run; None if `run_once` is needed.

    Args:
        config: which tables, from where.
        tables: only these; None for all.
        readers: receives the files that were listed.
    """
    began = time.monotonic()
    try:
        for feed in feeds_of(config, [*config.tables, *config.patterns]):
            feed.check()
        catalog = open_for_comparing(config)
        if catalog is None:
            return None
        current = expanded(config, catalog)
        chosen = chosen_names(current, tables)
        reports: dict[str, TableReport] = {}
        if not all(_is_at_rest(feed, catalog, reports) for feed in feeds_of(current, chosen, readers)):
            return None
    except Exception:  # noqa: BLE001 - `run_once` raises it again, and reports it in its place
        return None
    remove_leftovers()
    return IngestReport(
        reports_in_order(reports, current),
        {},
        time.monotonic() - began,
        unmatched_patterns=unmatched_patterns(reports, current, chosen),
    )


def _is_at_rest(feed: Feed, catalog: "LightCatalog", reports: dict[str, TableReport]) -> bool:
    """Whether a run would change and report nothing for a feed; fills the reports of its tables.

    Raises:
        Exception: what a run would report for a table or for the feed.
    """
    if feed.live is not None:
        return False
    states = []
    for name in feed.wanted:
        if name not in feed.patterns:
            state = TableState(catalog, name, feed.tables[name], TableReport(name))
            if not state.is_at_rest():
                return False
            states.append(state)
            reports[name] = state.report
    groups = by_position(states)
    for position, together in groups.items():
        if position is None or feed.may_have_news(position):
            return False
        feed.choose_engine(position, [state.report for state in together])
    return bool(groups)


def check_tables(config: Config) -> None:
    """Refuse a config without mirrors.

    Raises:
        ConfigError: it has none; says how to declare one.
    """
    if not config.tables and not config.patterns:
        raise ConfigError(
            f"{config.path}: there are no entries under tables, so there is nothing to ingest; add one, such as "
            "shop.orders: {source: {path: landing/orders/*.jsonl}, key: [id]}"
        )


def chosen_names(config: Config, tables: Collection[str] | None) -> list[str]:
    """The requested tables and patterns; for a pattern, all its known tables.

    Raises:
        ConfigError: an unknown table.
    """
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


def reports_in_order(reports: Mapping[str, TableReport], config: Config) -> tuple[TableReport, ...]:
    """Reports by table in the order of the config, then those of tables that it does not name."""
    known = [name for name in config.tables if name in reports]
    return tuple(reports[name] for name in dict.fromkeys((*known, *reports)))


def unmatched_patterns(reports: Collection[str], config: Config, chosen: Sequence[str]) -> tuple[str, ...]:
    """Patterns without any of the reported tables."""
    return tuple(p for p in chosen if p in config.patterns and not any(_covers([p], name) for name in reports))
