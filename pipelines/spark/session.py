"""Creates the Spark session of a config, registers mirrors as views in a session, and runs SQL over tables of a config.

This module imports pyspark. The code for the workers is packed in `package.py`.
"""

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from typing import Any

from pyspark.sql import DataFrame, SparkSession

from nevermore.pipelines.config.project import LOCAL_MASTER, Config, SparkConfig, sql_names, view_names
from nevermore.pipelines.errors import ConfigError
from nevermore.pipelines.iceberg.catalog import all_table_names, expanded, find_table, open_catalog
from nevermore.scan_core import OptionError, Table, open_table
from nevermore.scan_core.spark import (
    NativeLimits,
    Reader,
    ReaderChoice,
    check_package,
    choice_of,
    compares_case,
    dataframe,
    is_local,
    parse_sql,
    require_session,
    spark_session,
    sql,
)


def project_session(spark: SparkConfig) -> Any:
    """Create a session for the settings `spark`, or return the one that is already running.

    Raises:
        ConfigError: an archive is missing or of other code, or a session of another kind is running.
        MissingRuntimeError: no Java.
    """
    try:
        return spark_session(
            master=spark.master or LOCAL_MASTER,
            config=_settings(spark),
            remote=spark.remote,
            py_files=_archives(spark),
        )
    except OptionError as error:
        raise ConfigError(str(error)) from error


def _settings(spark: SparkConfig) -> dict[str, str]:
    """The settings of a config; workers on this machine, which have our code from the start, are forked with it imported."""
    if spark.remote is not None or not is_local(spark.master or LOCAL_MASTER):
        return spark.conf
    return {"spark.python.daemon.module": "nevermore.pipelines.spark.daemon"} | spark.conf


def _archives(spark: SparkConfig) -> list[str] | None:
    match spark.package:
        case "installed":
            return []
        case "auto":
            return None
        case path:
            check_package(path)
            return [path]


@dataclass(frozen=True, slots=True)
class MirrorView:
    """A mirror as a view.

    Attributes:
        table: its name in the config.
        view: its name in the session.
        snapshot_id: the snapshot that it shows; None for a mirror without snapshots.
        frame: the same rows as a DataFrame; pass it to `reports_of` to see what was read.
        choice: the reader, and why it was chosen.
    """

    table: str
    view: str
    snapshot_id: int | None
    frame: DataFrame
    choice: ReaderChoice


def register_views(
    spark: SparkSession,
    config: Config,
    tables: Collection[str] | None = None,
    *,
    reader: Reader = "auto",
    limits: NativeLimits | None = None,
) -> dict[str, MirrorView]:
    """Make a temporary view of each mirror that exists, replacing views of these names.

    The conditions of queries over views do not reach the scans: `query_tables` pushes them down.

    Args:
        spark: a session, classic or Connect.
        config: the project.
        tables: names of some of its tables; None for all.
        reader: see `dataframe`.
        limits: see `dataframe`.

    Returns:
        The views, by the name of the table. A table that was never ingested has none.

    Raises:
        ConfigError: no config, or an unknown name of a table.
        OptionError: "native" was requested for a table that Spark's reader would read differently.
    """
    require_session(spark)
    if not isinstance(config, Config):
        raise ConfigError(
            f"register_views takes a config, not {type(config).__name__}: read one by "
            "nevermore.pipelines.config.project.load('nevermore.yaml')"
        )
    if isinstance(tables, str):
        raise ConfigError(f"tables must be a sequence of names, not a single text: [{tables!r}]")
    config = expanded(config, catalog := open_catalog(config))
    wanted = tuple(config.tables if tables is None else tables)
    for name in wanted:
        if name not in config.tables:
            near = get_close_matches(name, sorted(config.tables), n=1, cutoff=0.0)
            raise ConfigError(f"no table {name!r} in the config; did you mean {near[0]!r}?")
    names = view_names(config.tables)
    views = {}
    for name in wanted:
        mirror = find_table(catalog, name)
        if mirror is None:
            continue
        scan = open_table(mirror, options=config.scan_options).scan()
        snapshot_id = None if scan.snapshot is None else scan.snapshot.snapshot_id
        frame = dataframe(spark, scan, reader, limits=limits)
        frame.createOrReplaceTempView(names[name])
        views[name] = MirrorView(name, names[name], snapshot_id, frame, choice_of(frame))
    return views


def query_tables(
    spark: SparkSession, config: Config, text: str, *, args: Mapping[str, Any] | None = None, reader: Reader = "auto"
) -> DataFrame:
    """Run a query over mirrors and published tables, whose conditions and joins reach their scans: see `nevermore.scan_core.spark.sql`.

    Args:
        spark: a session, classic or Connect.
        config: the project.
        text: a query that uses the names of tables in the config, or of their views, in any letter case unless
            `spark.sql.caseSensitive` is set.
        args: values of its parameters.
        reader: see `dataframe`.

    Raises:
        ConfigError: a table of the query does not exist yet.
        OptionError: not a single query.
    """
    config = expanded(config, catalog := open_catalog(config))
    known = (*config.tables, *config.published)
    named = sql_names(known, {*known, *all_table_names(catalog)})
    tables: dict[str, Table] = {}
    for name in parse_sql(text, known=named, case_sensitive=compares_case(spark)).tables:
        if (table := named.get(name)) is not None:
            found = find_table(catalog, table)
            if found is None:
                made = "ingest" if table in config.tables else "publish"
                raise ConfigError(f"table {table} does not exist yet: nevermore {made} creates it")
            tables[name] = open_table(found, options=config.scan_options)
    return sql(spark, text, tables, args=args, reader=reader)
