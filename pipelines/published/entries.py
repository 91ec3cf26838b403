"""Entries of `published` by name, their SQL checked: what can be known without Spark and without reading a table."""

from collections.abc import Sequence
from datetime import UTC, datetime
from difflib import get_close_matches
from typing import Any

from pipelines.config import Config, PublishedConfig
from pipelines.errors import ConfigError
from pipelines.published.partition import NULL_KEY
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
    keys = [key for text in partitions for key in (entry.partitioning.keys(text) if entry.partitioning else ())]
    if reason := next(iter(out_of_range(config, name, keys).values()), None):
        raise ConfigError(reason)
    return keys


def out_of_range(config: Config, name: str, keys: Sequence[str]) -> dict[str, str]:
    """Those of some partitions that a table does not have, with the reason: none of its `values`, or none of its time.

    Time begins at `start`; it ends now for SQL that asks for its partition, and never for rows that have dates of their own.
    """
    entry = published_entry(config, name)
    partition = entry.partitioning
    asked = [key for key in keys if key != NULL_KEY]
    if partition is None:
        return {}
    if not partition.is_time:
        strange = [key for key in asked if entry.values and key not in entry.values]
        return {key: _strange_value(name, key, entry.values) for key in strange}
    found: dict[str, str] = {}
    first = None if entry.start is None else partition.period(entry.start).start
    last = datetime.now(UTC) if published_query(config, name).depends_on_partition else None
    for key in asked:
        start = partition.period(key).start
        if first is not None and start < first:
            found[key] = (
                f"published {name}: partition {key} is before start: {entry.start}; begin there, or change start"
            )
        elif last is not None and start > last:
            found[key] = f"published {name}: partition {key} is in the future, and the SQL asks for its partition"
    return found


def _strange_value(name: str, key: str, values: Sequence[str]) -> str:
    near = get_close_matches(key, values, n=1, cutoff=0.4)
    hint = f"did you mean {near[0]}?" if near else f"there are {', '.join(values)}"
    return f"published {name}: no partition {key!r} among its values; {hint}"


def left_out_without_asking(config: Config) -> dict[str, str]:
    """The tables that a run leaves out which names none, with the reason in words."""
    made = made_without_asking(config)
    return {
        name: f"mode: {entry.mode} adds rows to a partition when it is asked for: nevermore publish {name} --partition ..."
        for name, entry in config.published.items()
        if name not in made
    }


def made_without_asking(config: Config) -> list[str]:
    """The tables that a run makes which names none: where all of the result is what the table is to hold.

    What is added to the rows of a partition is added when that partition is asked for.
    """
    return [n for n, entry in config.published.items() if entry.mode == "replace" or entry.partition is None]
