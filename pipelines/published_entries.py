"""Entries of `published` by name, their SQL checked: what can be known without Spark and without reading a table."""

from difflib import get_close_matches
from typing import Any

from pipelines.config import Config, PublishedConfig
from pipelines.errors import ConfigError
from pipelines.published_query import PublishedQuery, parse_query


def tables_read(config: Config, name: str) -> tuple[str, ...]:
    """The mirrors that the SQL of a published table names.

    Raises:
        ConfigError: an unknown name, or SQL that cannot run.
    """
    return published_query(config, name).tables


def published_query(config: Config, name: str) -> PublishedQuery:
    """The checked query of a published table.

    Raises:
        ConfigError: an unknown name, or SQL that cannot run.
    """
    entry = published_entry(config, name)
    column = None if entry.partitioning is None else entry.partitioning.column
    return parse_query(name, entry.sql, column, config.tables, entry.parameters)


def arguments(query: PublishedQuery, entry: PublishedConfig, key: str | None) -> dict[str, Any]:
    """What Spark binds to the parameters of the query, for one partition."""
    given: dict[str, Any] = dict(entry.parameters)
    if key is not None and entry.partitioning is not None and query.depends_on_partition:
        given |= entry.partitioning.parameters(key)
    return {name: value for name, value in given.items() if name in query.parameters}


def published_entry(config: Config, name: str) -> PublishedConfig:
    """The config of a published table.

    Raises:
        ConfigError: no such entry; names the nearest.
    """
    if name in config.published:
        return config.published[name]
    near = get_close_matches(name, sorted(config.published), n=1, cutoff=0.0)
    hint = f"did you mean {near[0]}?" if near else "the config publishes nothing"
    raise ConfigError(f"no published table {name!r}; {hint}")
