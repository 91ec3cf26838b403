"""Finds the mirrors that an entry `namespace.*` of a config stands for.

They come from existing change logs and from the tables of a feed.
"""

from collections.abc import Iterable, Mapping
from typing import Any

from pipelines.config.project import Config, TableConfig, change_log_name, is_table_name
from pipelines.decode.feed import matches
from pipelines.errors import SourceError
from pipelines.iceberg.catalog import find_table, table_names

SOURCE_TABLE = "nevermore.source-table"
"""Table property of a change log: the table of the feed that it holds, where a pattern found it."""


def expanded(config: Config, catalog: Any) -> Config:
    """The config with the mirrors of its patterns that have been found so far, after its own tables."""
    if not config.patterns:
        return config
    namespace = change_log_name("").rstrip(".")
    logs = set(table_names(catalog, namespace)) - {_log(name) for name in config.tables}
    found: dict[str, TableConfig] = {}
    for pattern in sorted(config.patterns, key=len, reverse=True):  # of shop.a.* and shop.*, the longer one has it
        prefix = _log(pattern.removesuffix("*"))
        for log in sorted(name for name in logs if name.startswith(prefix)):
            found[pattern.removesuffix("*") + log.removeprefix(prefix)] = config.patterns[pattern]
            logs.discard(log)
    return config.model_copy(update={"tables": {**config.tables, **dict(sorted(found.items()))}})


def discovered(
    source_tables: Iterable[str], patterns: Mapping[str, TableConfig], known: Mapping[str, str | None]
) -> dict[str, tuple[str, str]]:
    """Mirrors for tables of a feed that no mirror takes yet: (pattern, table of the feed) by name.

    Args:
        source_tables: as the feed names them.
        patterns: of the config, for this feed.
        known: the mirrors there are, with the table of the feed that each takes, None if it is not told.

    Raises:
        SourceError: a table of the feed has a name that no mirror can have, or two tables of the feed would become one mirror.
    """
    found: dict[str, tuple[str, str]] = {}
    for source in sorted(source_tables):
        pattern = next((p for p, settings in patterns.items() if _takes(settings, source)), None)
        if not source or pattern is None:
            continue
        name = pattern.removesuffix("*") + source.rpartition(".")[2]
        if not is_table_name(name):
            raise SourceError(
                f"the feed carries {source!r}, and no table can be called {name!r}, which {pattern} would make of it: leave it "
                "out with exclude_tables, or give it an entry with source_table"
            )
        taken = found[name][1] if name in found else known.get(name)
        if name in known or name in found:
            raise SourceError(
                f"the feed carries {source}, which {pattern} would make {name}, and that takes the events of "
                f"{taken or 'another table'}: leave one out with exclude_tables, or give it an entry with source_table"
            )
        found[name] = pattern, source
    return found


def found_source(catalog: Any, name: str) -> str | None:
    """The table of the feed that a mirror was found for by a pattern, as its change log remembers it."""
    log = find_table(catalog, change_log_name(name))
    return None if log is None else log.metadata.properties.get(SOURCE_TABLE)


def _takes(settings: TableConfig, source: str) -> bool:
    if any(matches(source, pattern) for pattern in settings.exclude_tables):
        return False
    return not settings.include_tables or any(matches(source, pattern) for pattern in settings.include_tables)


def _log(name: str) -> str:
    return change_log_name(name).partition(".")[2]
