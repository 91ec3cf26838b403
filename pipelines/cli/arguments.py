"""The arguments that several commands share: the table, the options for rows and Spark, and the scan request.

Importing this module stays cheap, because commands import what they need when they run.
"""

import csv
import logging
import sys
from datetime import UTC, datetime
from difflib import get_close_matches
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from pipelines.errors import ConfigError

if TYPE_CHECKING:
    from scan_core import Scan, Table


class OutputFormat(StrEnum):
    """How rows are written."""

    TABLE = "table"
    JSONL = "jsonl"
    CSV = "csv"
    PARQUET = "parquet"
    ARROW = "arrow"


LIMIT = typer.Option("--limit", help="At most this many rows.", show_default=False)
FORMAT = typer.Option("--format", help="How to write rows; by the output's suffix, else table.", show_default=False)
OUTPUT = typer.Option("--output", "-o", help="Write here; `-` is standard output, the default.", show_default=False)
METRICS = typer.Option("--metrics", help="Print what was read and skipped, on standard error.")


MASTER = typer.Option(
    "--master",
    help="Where Spark runs, as for spark-submit; default: as the config says, or local[*].",
    show_default=False,
)
PROGRESS = ("scan_core.spark.session", "pipelines.publish")
"""Loggers that say what goes on."""
REMOTE = typer.Option("--remote", help="A Spark Connect server instead, sc://host:15002.", show_default=False)


def tell_progress() -> None:
    """Show on a terminal that Spark starts and what is made: seconds pass in which nothing else is said."""
    if not sys.stderr.isatty():
        return
    handler = logging.StreamHandler()
    handler.setFormatter(logging.Formatter("%(message)s"))
    for name in PROGRESS:
        logger = logging.getLogger(name)
        logger.setLevel(logging.INFO)
        logger.addHandler(handler)


DEFAULT_CONFIG = Path("nevermore.yaml")
CONFIG_VARIABLE = "NEVERMORE_CONFIG"
"""Names the config where `--config` does not."""


def open_named_table(name: str, relocate: list[str] | None, config: Path | None) -> "Table":
    """The table called `name`.

    A path or URI is opened as it stands. A name without slash is looked up in the catalog of `config`, else of
    `nevermore.yaml` in the working directory, else in PyIceberg's own configuration as `catalog.namespace.table`.

    Raises:
        ConfigError: the config does not exist.
        ScanError: there is no such table.
    """
    import scan_core

    moves = parse_relocations(relocate)
    if is_identifier(name) and (config is not None or DEFAULT_CONFIG.exists()):
        return scan_core.open_table(_catalog_table(name, config or DEFAULT_CONFIG, changes=False), relocate=moves)
    try:
        return scan_core.open_table(name, relocate=moves)
    except scan_core.TableNotFoundError as error:
        if "." not in name or "/" in name or "\\" in name:
            raise
        raise scan_core.TableNotFoundError(
            f"{error}; there is no {DEFAULT_CONFIG} here that could know the name: run this in the project's folder, "
            "or name its config with --config"
        ) from error


def changeable_table(name: str, config: Path | None) -> Any:
    """The table called `name` as whoever changes it needs it: a PyIceberg table, or the path of one without catalog.

    Raises:
        ConfigError: the config does not exist.
        ScanError: there is no such table.
    """
    if not is_identifier(name):
        return name
    if config is not None or DEFAULT_CONFIG.exists():
        return _catalog_table(name, config or DEFAULT_CONFIG, changes=True)
    from scan_core.io import load_table

    return load_table(name, {})


def catalog_state(name: str, config: Path | None) -> tuple[str, int] | None:
    """The uuid and the time of the last change that a catalog states of a table; None for a table named by its path.

    Raises:
        ConfigError: the config does not exist.
        ScanError: there is no such table.
    """
    if not is_identifier(name):
        return None
    metadata = changeable_table(name, config).metadata
    return str(metadata.table_uuid), int(metadata.last_updated_ms)


def is_identifier(name: str) -> bool:
    """Whether this names a table of a catalog, not a path."""
    return "/" not in name and "\\" not in name and not Path(name).exists() and not name.endswith(".json")


def _catalog_table(name: str, config: Path, *, changes: bool) -> Any:
    from pipelines.config.project import load
    from pipelines.iceberg.catalog import find_table, has_catalog, open_catalog, open_to_look
    from scan_core import TableNotFoundError

    settings = load(config)
    opened = open_to_look(settings) if not changes else open_catalog(settings) if has_catalog(settings) else None
    found = None if opened is None else find_table(opened, name)
    if found is None:
        near = get_close_matches(name, [*settings.tables, *settings.published], n=3)
        if name in settings.tables or name in settings.published:
            hint = "it is in the config, but nothing has been written to it yet"
        else:
            hint = f"did you mean {', '.join(near)}?" if near else "has it been ingested yet?"
        raise TableNotFoundError(f"no table {name!r} in the catalog of {config}; {hint}")
    return found


def parse_relocations(relocate: list[str] | None) -> dict[str, str]:
    """`OLD=NEW` options as a mapping.

    Raises:
        ConfigError: no `=` or nothing before it.
    """
    moves = {}
    for text in relocate or []:
        old, separator, new = text.partition("=")
        if not separator or not old:
            raise ConfigError(
                f"--relocate {text!r}: write OLD=NEW, the prefix in the table's metadata and the real one"
            )
        moves[old] = new
    return moves


TABLE_HELP = "Metadata file, table folder, `catalog.namespace.table`, or `namespace.table` of the config."
TABLE = typer.Argument(metavar="TABLE", help=TABLE_HELP, show_default=False)
RELOCATE = typer.Option(
    "--relocate",
    metavar="OLD=NEW",
    help="Read paths that start with OLD from NEW instead. Repeatable.",
    show_default=False,
)
CONFIG = typer.Option(
    "--config", envvar=CONFIG_VARIABLE, help="A nevermore.yaml whose catalog has the table.", show_default=False
)
PROJECT_CONFIG = typer.Option("--config", envvar=CONFIG_VARIABLE, help="The project's config.")
SNAPSHOT = typer.Option("--snapshot", metavar="ID", help="Read this snapshot.", show_default=False)
AS_OF = typer.Option(
    "--as-of",
    metavar="TIME",
    help="Read the table as it was: ISO time (UTC unless it has an offset) or epoch milliseconds.",
    show_default=False,
)
REF = typer.Option("--ref", metavar="NAME", help="Read this branch or tag.", show_default=False)
COLUMNS = typer.Option("--columns", metavar="A,B", help="Only these columns, in this order.", show_default=False)
WHERE = typer.Option("--where", metavar="SQL", help="Only rows for which this is true.", show_default=False)


def build_scan(
    table: "Table",
    *,
    columns: str | None,
    where: str | None,
    snapshot: int | None,
    as_of: str | None,
    ref: str | None,
    limit: int | None = None,
    sample: float | None = None,
    seed: int = 0,
) -> "Scan":
    """The scan that these options ask for.

    Raises:
        ConfigError: more than one of snapshot, as_of and ref; a time or limit that is none.
        ScanError: unknown column, snapshot or reference, wrong predicate.
    """
    chosen = [
        name for name, value in (("--snapshot", snapshot), ("--as-of", as_of), ("--ref", ref)) if value is not None
    ]
    if len(chosen) > 1:
        raise ConfigError(f"{' and '.join(chosen)} exclude each other; give one")
    if limit is not None and limit < 0:
        raise ConfigError(f"--limit must not be negative, not {limit}")
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
    """Comma-separated names; one that holds a comma is written in double quotes."""
    try:
        return [name for name in next(csv.reader([text], skipinitialspace=True), []) if name]
    except csv.Error as error:
        raise ConfigError(
            f"{text!r} is no list of names: {error}; write a name with odd characters in double quotes"
        ) from error


def parse_time(text: str) -> datetime:
    """A moment from ISO text (UTC unless it has an offset) or epoch milliseconds.

    Raises:
        ConfigError: neither of them.
    """
    try:
        if text.lstrip("-").isdigit():
            return datetime.fromtimestamp(int(text) / 1000, tz=UTC)
        moment = datetime.fromisoformat(text)
    except (ValueError, OverflowError, OSError) as error:
        raise ConfigError(
            f"--as-of {text!r} is no time: write 2026-01-31, 2026-01-31T12:00:00+01:00 or epoch milliseconds"
        ) from error
    return moment if moment.tzinfo else moment.replace(tzinfo=UTC)
