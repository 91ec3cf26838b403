"""Arguments and options shared by several commands, and the scan they describe.

Importing this module is cheap: commands import what they need when they run.
"""

import csv
import logging
import sys
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from nevermore.pipelines.config import DEFAULT_CONFIG, is_identifier
from nevermore.pipelines.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from nevermore.pipelines.config.project import Config
    from nevermore.pipelines.config.tables import IndexConfig
    from nevermore.pipelines.iceberg.catalog import Catalog
    from nevermore.pipelines.iceberg.catalog import Table as CatalogTable
    from nevermore.scan_core import Scan, Table

CONFIG_VARIABLE = "NEVERMORE_CONFIG"
"""Environment variable with the path of the config; `--config` overrides it."""
LOGGERS_OF_PROGRESS = ("nevermore.scan_core.spark.session", "nevermore.pipelines.publish")


TABLE_HELP = "Metadata file, table folder, `catalog.namespace.table`, or `namespace.table` of the config."


def _names(context: typer.Context, incomplete: str) -> list[str]:
    """Mirrors and published tables of the config that begin so, for a shell that completes them."""
    settings = None
    with suppress(Exception):  # a shell has no place for messages
        settings = known_config([CONFIG_VARIABLE], context.params.get("config"))
    known = () if settings is None else (*settings.tables, *settings.published)
    return [name for name in known if name.startswith(incomplete)]


def table_argument(metavar: str, text: str) -> Any:
    """An argument for names of tables, which the shell can complete."""
    return typer.Argument(metavar=metavar, help=text, autocompletion=_names)


TableName = Annotated[str, table_argument("TABLE", TABLE_HELP)]
TableNames = Annotated[list[str], table_argument("TABLE", TABLE_HELP)]
MirrorName = Annotated[str, table_argument("TABLE", "A mirror of the config.")]
MirrorNames = Annotated[list[str] | None, table_argument("[TABLE]...", "Mirrors of the config; default: all.")]
EntryName = Annotated[str, table_argument("TABLE", "A mirror or published table of the config.")]
EntryNames = Annotated[
    list[str] | None, table_argument("[TABLE]...", "Mirrors and published tables of the config; default: all.")
]
Relocate = Annotated[
    list[str] | None,
    typer.Option(
        "--relocate",
        metavar="OLD=NEW",
        help="Read paths that start with OLD from NEW instead. Repeatable.",
    ),
]
OptionalConfig = Annotated[
    Path | None,
    typer.Option("--config", envvar=CONFIG_VARIABLE, help="Config whose catalog contains the table."),
]
ProjectConfig = Annotated[Path, typer.Option("--config", envvar=CONFIG_VARIABLE, help="Config file of the project.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print the result as JSON.")]
SnapshotId = Annotated[int | None, typer.Option("--snapshot", metavar="ID", help="Read this snapshot.")]
AsOf = Annotated[
    str | None,
    typer.Option(
        "--as-of",
        metavar="TIME",
        help="Read the table as of this time: ISO 8601 (UTC unless it has an offset) or epoch milliseconds.",
    ),
]
Ref = Annotated[str | None, typer.Option("--ref", metavar="NAME", help="Read this branch or tag.")]
Columns = Annotated[str | None, typer.Option("--columns", metavar="A,B", help="Columns to return, in this order.")]
Where = Annotated[str | None, typer.Option("--where", metavar="SQL", help="Return only rows that match.")]
Limit = Annotated[int | None, typer.Option("--limit", min=0, help="Maximum number of rows.")]
Format = Annotated[
    Literal["table", "jsonl", "csv", "parquet", "arrow"] | None,
    typer.Option("--format", help="Output format; default: by the suffix of --output, else table."),
]
Output = Annotated[
    Path | None,
    typer.Option("--output", "-o", help="Output file; default: `-`, standard output."),
]
Null = Annotated[
    str | None,
    typer.Option("--null", metavar="TEXT", help="Text for NULL in CSV; default: nothing."),
]
Metrics = Annotated[bool, typer.Option("--metrics", help="Print what was read and skipped to standard error.")]
ScanSettings = Annotated[
    list[str] | None,
    typer.Option(
        "--scan-option",
        metavar="NAME=VALUE",
        help="Set a scan option, such as memory_limit_bytes=64MiB, parallelism=1 or prune_pages=false. Repeatable.",
    ),
]
Master = Annotated[
    str | None,
    typer.Option(
        "--master",
        help="Spark master, as for spark-submit; default: the one in the config, else local[*].",
    ),
]
Remote = Annotated[
    str | None,
    typer.Option("--remote", help="Spark Connect server to use instead: sc://host:15002."),
]


def load(path: Path) -> "Config":
    """The config of a project; imported late, as the module takes time to load."""
    from nevermore.pipelines.config.project import load as read

    return read(path)


def open_existing(settings: "Config") -> "Catalog":
    """The catalog of a project whose tables are changed; imported late."""
    from nevermore.pipelines.iceberg.checked_catalog import open_existing as find

    return find(settings)


def log_progress() -> None:
    """Print the progress of Spark and of publishing to a terminal, which would otherwise show nothing for seconds."""
    if not sys.stderr.isatty():
        return
    handler = logging.StreamHandler()
    handler.setFormatter(logging.Formatter("%(message)s"))
    for name in LOGGERS_OF_PROGRESS:
        logger = logging.getLogger(name)
        logger.setLevel(logging.INFO)
        logger.addHandler(handler)


def open_named_table(
    name: str, relocate: list[str] | None, config: Path | None, scan_options: list[str] | None = None
) -> "Table":
    """Open a table for reading.

    A path or URI is opened directly. A name without a slash is looked up in the catalog of `config`, else of
    `nevermore.yaml` in the working directory, else in PyIceberg's own configuration as `catalog.namespace.table`.
    Scans use the options of that config, overridden by `scan_options`.

    Raises:
        ConfigError: the config does not exist.
        ScanError: there is no such table.
    """
    from nevermore import scan_core

    moves, given = parse_relocations(relocate), parse_scan_options(scan_options)
    if (settings := config_of(name, config)) is not None:
        from nevermore.pipelines.ingest.project import Project

        return Project(settings.with_scan(given)).table(name, relocate=moves)
    try:
        return scan_core.open_table(name, relocate=moves, options=scan_core.ScanOptions.from_settings(given))
    except scan_core.TableNotFoundError as error:
        if "." not in name or not is_identifier(name):
            raise
        raise scan_core.TableNotFoundError(
            f"{error}; there is no {DEFAULT_CONFIG} in this folder to look the name up in: run the command in the project's "
            "folder, or pass its config with --config"
        ) from error


def config_of(name: str, config: Path | None) -> "Config | None":
    """The project's config; None without one, or if `name` is a path, which belongs to no project.

    Raises:
        ConfigError: the config does not exist, or is invalid.
    """
    if not is_identifier(name) or (config is None and not DEFAULT_CONFIG.exists()):
        return None
    return load(config or DEFAULT_CONFIG)


def open_for_change(name: str, config: Path | None) -> "CatalogTable":
    """Open a table for a command that changes it.

    Raises:
        ConfigError: the config does not exist, or the name is a path.
        PipelineError: there is no catalog, or it does not agree with the warehouse.
        ScanError: there is no such table.
    """
    if not is_identifier(name):
        raise ConfigError(
            f"{name} is a path, and only a catalog can make a commit: name the table as `namespace.table`, with the "
            f"config of its catalog ({DEFAULT_CONFIG} or --config), or as `catalog.namespace.table`"
        )
    return _whole_table(name, config, open_existing)


def catalog_state(name: str, config: Path | None) -> tuple[str, int] | None:
    """(uuid, time of the last change) of a table according to its catalog; None for a table given by its path.

    Raises:
        ConfigError: the config does not exist.
        ScanError: there is no such table.
    """
    from nevermore.pipelines.iceberg.catalog import open_catalog

    if not is_identifier(name):
        return None
    table = _whole_table(name, config, open_catalog)
    return str(table.metadata.table_uuid), int(table.metadata.last_updated_ms)


def _whole_table(name: str, config: Path | None, open_with: "Callable[[Config], Catalog]") -> "CatalogTable":
    """A table as PyIceberg loads it, from the catalog of a config or from PyIceberg's own configuration."""
    if (settings := config_of(name, config)) is not None:
        from nevermore.pipelines.ingest.project import catalog_table

        table: CatalogTable = catalog_table(name, settings, open_with)
        return table
    from nevermore.scan_core.io import load_table

    loaded: CatalogTable = load_table(name, {})
    return loaded


def known_config(tables: "Iterable[str]", config: Path | None) -> "Config | None":
    """The project's config with the tables that its patterns have found; None without one, or if all tables are paths."""
    from nevermore.pipelines.iceberg.catalog import expanded

    named = next(filter(is_identifier, tables), None)
    settings = None if named is None else config_of(named, config)
    return None if settings is None else expanded(settings)


def configured_index(name: str, config: Path | None) -> "IndexConfig | None":
    """The indexes that the config has for a mirror or published table; None without a config or an entry."""
    settings = known_config([name], config)
    entry = None if settings is None else settings.tables.get(name) or settings.published.get(name)
    return None if entry is None else entry.index


def parse_relocations(relocate: list[str] | None) -> dict[str, str]:
    """`OLD=NEW` options as a mapping.

    Raises:
        ConfigError: no `=` or nothing before it.
    """
    hint = "OLD=NEW, the prefix in the table's metadata and the actual prefix"
    return dict(_parted("--relocate", text, hint) for text in relocate or [])


def parse_scan_options(given: list[str] | None) -> dict[str, str]:
    """`NAME=VALUE` options as a mapping.

    Raises:
        ConfigError: no `=`, an unknown option, or an invalid value.
    """
    from nevermore.scan_core import OptionError, ScanOptions

    hint = "NAME=VALUE, such as memory_limit_bytes=64MiB"
    settings = dict(_parted("--scan-option", text, hint) for text in given or [])
    try:
        ScanOptions.from_settings(settings)
    except OptionError as error:
        raise ConfigError(f"--scan-option: {error}") from error
    return settings


def _parted(option: str, text: str, hint: str) -> tuple[str, str]:
    name, separator, value = text.partition("=")
    if not separator or not name:
        raise ConfigError(f"{option} {text!r}: write {hint}")
    return name, value


def build_scan(
    table: "Table",
    *,
    columns: str | None = None,
    where: str | None = None,
    snapshot: int | None = None,
    as_of: str | None = None,
    ref: str | None = None,
    limit: int | None = None,
    sample: float | None = None,
    seed: int = 0,
) -> "Scan":
    """Build the scan described by these options.

    Raises:
        ConfigError: more than one of snapshot, as_of and ref; an invalid time.
        ScanError: an unknown column, snapshot or reference, or an invalid predicate.
    """
    chosen = [
        name for name, value in (("--snapshot", snapshot), ("--as-of", as_of), ("--ref", ref)) if value is not None
    ]
    if len(chosen) > 1:
        raise ConfigError(f"{' and '.join(chosen)} are mutually exclusive; give one of them")
    scan = table.scan()
    if snapshot is not None:
        scan = scan.as_of_snapshot(snapshot)
    if as_of is not None:
        scan = scan.as_of_time(parse_time(as_of))
    if ref is not None:
        scan = scan.at_ref(ref)
    if columns is not None:
        if not split_names(columns):
            raise ConfigError("--columns names no column")
        scan = scan.select(*split_names(columns))
    if where is not None:
        scan = scan.where(where)
    if sample is not None:
        scan = scan.sample(sample, seed)
    return scan if limit is None else scan.limit(limit)


def split_names(text: str) -> list[str]:
    """Split comma-separated names; a name that contains a comma is written in double quotes."""
    try:
        return [name for name in next(csv.reader([text], skipinitialspace=True), []) if name]
    except csv.Error as error:
        raise ConfigError(
            f"{text!r} is not a list of names: {error}; write names with special characters in double quotes"
        ) from error


def parse_time(text: str, option: str = "--as-of") -> datetime:
    """Parse the time of an option: ISO text (UTC unless it has an offset) or epoch milliseconds.

    Raises:
        ConfigError: neither of them.
    """
    try:
        if text.lstrip("-").isdigit():
            return datetime.fromtimestamp(int(text) / 1000, tz=UTC)
        moment = datetime.fromisoformat(text)
    except (ValueError, OverflowError, OSError) as error:
        raise ConfigError(
            f"{option} {text!r} is not a time: write 2026-01-31, 2026-01-31T12:00:00+01:00 or epoch milliseconds"
        ) from error
    return moment if moment.tzinfo else moment.replace(tzinfo=UTC)
