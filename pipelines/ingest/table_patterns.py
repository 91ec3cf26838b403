"""The mirrors of an entry `namespace.*` of a config: which a run takes. Those of a feed are found in `decode/feed.py`."""

from collections.abc import Collection, Sequence
from typing import TYPE_CHECKING

from nevermore.pipelines.config.project import Config, change_log_name
from nevermore.pipelines.errors import ConfigError
from nevermore.pipelines.iceberg.catalog import find_table

if TYPE_CHECKING:
    from nevermore.pipelines.iceberg.catalog import Catalog

SOURCE_TABLE = "nevermore.source-table"
"""Table property of a change log: the table of the feed for which a pattern created it."""


def check_tables(config: Config) -> None:
    """Refuse a config without mirrors.

    Raises:
        ConfigError: it has none; says how to declare one.
    """
    if not config.tables and not config.patterns:
        raise ConfigError(
            f"{config.path}: there are no entries under tables, so there is nothing to ingest; add one, such as "
            "shop.orders: {source: {path: landing/orders/*.jsonl, format: debezium-json}, key: [id]}"
        )


def chosen_names(config: Config, tables: Collection[str] | None) -> list[str]:
    """The requested tables and patterns; for a pattern, all its known tables.

    Raises:
        ConfigError: an unknown table.
    """
    entries = [*config.tables, *config.patterns]
    if tables is None:
        return entries
    for name in sorted(set(tables) - set(entries)):
        config.table(name)  # refuses what no pattern covers, and names the nearest
        raise ConfigError(f"no table {name} in {config.path}; it has {', '.join(entries)}")
    asked = {name for name in tables if name in config.patterns}
    return [
        name
        for name in entries
        if name in tables or (config.tables.get(name) in [config.patterns[p] for p in asked] and _covers(asked, name))
    ]


def _covers(patterns: Collection[str], name: str) -> bool:
    return any(name.startswith(pattern.removesuffix("*")) for pattern in patterns)


def unmatched_patterns(reports: Collection[str], config: Config, chosen: Sequence[str]) -> tuple[str, ...]:
    """Patterns without any of the reported tables."""
    return tuple(p for p in chosen if p in config.patterns and not any(_covers([p], name) for name in reports))


def found_source(catalog: "Catalog", name: str) -> str | None:
    """The table of the feed for which a pattern created a mirror, as stored with its change log."""
    log = find_table(catalog, change_log_name(name))
    return None if log is None else log.metadata.properties.get(SOURCE_TABLE)
