"""Finds the mirrors of an entry `namespace.*` of a config in a feed. Those that exist are found in `iceberg/catalog.py`."""

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING

from nevermore.pipelines.config.project import Config, change_log_name, is_table_name
from nevermore.pipelines.config.tables import TableConfig
from nevermore.pipelines.decode.feed import matches
from nevermore.pipelines.errors import ConfigError, SourceError
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


def discovered(
    source_tables: Iterable[str], patterns: Mapping[str, TableConfig], known: Mapping[str, str | None]
) -> dict[str, tuple[str, str]]:
    """New mirrors for tables of a feed: (pattern, table of the feed) by name.

    Args:
        source_tables: tables without a mirror, as the feed names them.
        patterns: of the config, for this feed.
        known: the existing mirrors with their tables of the feed, None if unknown.

    Raises:
        SourceError: a table of the feed has a name that is invalid for a mirror, or two of them would become one mirror.
    """
    found: dict[str, tuple[str, str]] = {}
    for source in sorted(source_tables):
        pattern = next((p for p, settings in patterns.items() if _takes(settings, source)), None)
        if not source or pattern is None:
            continue
        name = pattern.removesuffix("*") + source.rpartition(".")[2]
        if not is_table_name(name):
            raise SourceError(
                f"the feed contains {source!r}, for which {pattern} would create {name!r}, an invalid table name: exclude it "
                "with exclude_tables, or add an entry with source_table for it"
            )
        taken = found[name][1] if name in found else known.get(name)
        if name in known or name in found:
            raise SourceError(
                f"the feed contains {source}, for which {pattern} would create {name}, but that mirror contains the events of "
                f"{taken or 'another table'}: exclude one with exclude_tables, or add an entry with source_table for it"
            )
        found[name] = pattern, source
    return found


def found_source(catalog: "Catalog", name: str) -> str | None:
    """The table of the feed for which a pattern created a mirror, as stored with its change log."""
    log = find_table(catalog, change_log_name(name))
    return None if log is None else log.metadata.properties.get(SOURCE_TABLE)


def _takes(settings: TableConfig, source: str) -> bool:
    if any(matches(source, pattern) for pattern in settings.exclude_tables):
        return False
    return not settings.include_tables or any(matches(source, pattern) for pattern in settings.include_tables)
