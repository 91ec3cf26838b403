"""Entries of `published` by name, their SQL checked: what can be known without Spark and without reading a table."""

from collections.abc import Sequence
from difflib import get_close_matches
from typing import Any

from pipelines.config import Config, PublishedConfig
from pipelines.errors import ConfigError
from pipelines.published.query import PublishedQuery, parse_query


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
    return parse_query(name, entry.sql, column, config.tables, entry.parameters, published=config.published)


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


def requested_partitions(config: Config, name: str, partitions: Sequence[str], *, is_full: bool) -> list[str]:
    """The keys of the partitions that a run of `publish` was asked for; none for whatever there is to make.

    Raises:
        ConfigError: no such entry or partition, or a request that makes no sense.
    """
    entry = published_entry(config, name)
    if isinstance(partitions, str):
        raise ConfigError(f"partitions are a sequence, not one text: [{partitions!r}]")
    if is_full and entry.mode == "append":
        raise ConfigError(
            f"published {name} has mode: append, so that --full would add rows that are there: leave it out"
        )
    if partitions and entry.partitioning is None:
        raise ConfigError(f"published {name} has no partitions: leave out --partition")
    if partitions and is_full:
        raise ConfigError("--full makes all partitions; leave out --partition")
    return [key for text in partitions for key in (entry.partitioning.keys(text) if entry.partitioning else ())]


def made_without_asking(config: Config) -> list[str]:
    """The tables that a run makes which names none: where all of the result is what the table is to hold.

    What is added to the rows of a partition is added when that partition is asked for.
    """
    return [n for n, entry in config.published.items() if entry.mode == "replace" or entry.partition is None]
