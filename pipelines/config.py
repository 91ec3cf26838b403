"""nevermore.yaml: what to read, into which tables, and how.

The file is validated as a whole before anything is done; every message names the line and, for an unknown key, the
nearest valid one. What may stand in it is in `config_sections.py`.
"""

import os
from collections.abc import Sequence
from difflib import get_close_matches
from pathlib import Path

from pydantic import BaseModel, ValidationError

from pipelines.config_document import ConfigDocument
from pipelines.config_sections import (
    ALL_TABLES,
    CatalogConfig,
    Config,
    change_log_name,
    quarantine_name,
)
from pipelines.config_template import config_template
from pipelines.errors import ConfigError
from pipelines.published.sections import PublishedConfig, PublishedOptions
from pipelines.spark_section import SHIPPED, SparkConfig
from pipelines.table_section import FilesSource, TableConfig, partition_field

__all__ = [
    "ALL_TABLES",
    "CatalogConfig",
    "Config",
    "FilesSource",
    "PublishedConfig",
    "PublishedOptions",
    "SparkConfig",
    "TableConfig",
    "change_log_name",
    "config_template",
    "load",
    "parse",
    "partition_field",
    "quarantine_name",
]


def load(path: str | Path) -> Config:
    """The config in a file.

    Raises:
        ConfigError: no such file, not YAML, an unset environment variable, or anything invalid in it, with its line.
    """
    file = Path(path)
    try:
        text = file.read_text(encoding="utf-8")
    except FileNotFoundError as error:
        raise ConfigError(f"no config file {file}; `nevermore init` writes one") from error
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"cannot read {file}: {error}") from error
    return parse(text, file)


def parse(text: str, path: str | Path = "nevermore.yaml") -> Config:
    """The config in a text; `path` gives the folder for relative paths and the name for messages."""
    document = ConfigDocument.of(text, path)
    values = document.values()
    for name, field in Config.model_fields.items():
        if field.exclude and name in values:
            raise ConfigError(f"{document.where([name])}: unknown key {name!r}; {_nearest(name, _valid_names([]))}")
    try:
        config = Config.model_validate({**values, "path": Path(path).absolute()})
    except ValidationError as error:
        raise ConfigError("\n".join(_messages(error, document))) from error
    return _resolved(config)


def _messages(error: ValidationError, document: ConfigDocument) -> list[str]:
    messages = []
    for problem in error.errors():
        place = problem["loc"]
        where = ".".join(str(p) for p in place)
        what = str(problem["msg"]).removeprefix("Value error, ")
        if problem["type"] == "extra_forbidden":
            what = f"unknown key {str(place[-1])!r}; {_nearest(str(place[-1]), _valid_names(place[:-1]))}"
        elif problem["type"] == "missing":
            what = f"{str(place[-1])!r} is missing"
        elif where:
            shown = what.startswith("Input should") and isinstance(problem["input"], str | int | float)
            what = f"{where}: {what}, not {problem['input']!r}" if shown else f"{where}: {what}"
        messages.append(f"{document.where(place)}: {what}")
    return messages


def _nearest(name: str, valid: Sequence[str]) -> str:
    near = get_close_matches(name, valid, n=1, cutoff=0.5)
    return f"did you mean {near[0]!r}?" if near else f"valid are {', '.join(valid)}"


def _valid_names(place: Sequence[str | int]) -> list[str]:
    model: type[BaseModel]
    match list(place):
        case []:
            model = Config
        case ["tables", _]:
            model = TableConfig
        case ["tables", _, "source", *_]:
            model = FilesSource
        case ["published", _]:
            model = PublishedConfig
        case ["published", _, "options"]:
            model = PublishedOptions
        case ["spark"]:
            model = SparkConfig
        case _:
            return []
    return sorted(name for name, f in model.model_fields.items() if not f.exclude)


def _resolved(config: Config) -> Config:
    """The config with every relative path made absolute against the folder of its file."""
    folder = config.folder
    catalog = config.catalog
    warehouse = catalog.warehouse if catalog.warehouse is not None else "warehouse" if catalog.type == "sql" else None
    uri = catalog.uri
    if catalog.type == "sql":
        uri = _resolved_sqlite(uri or "sqlite:///warehouse/catalog.db", folder)
    if warehouse is not None and catalog.type in {"sql", "in-memory"} and "://" not in warehouse:
        warehouse = f"file://{_absolute(warehouse, folder)}"
    tables = {
        name: table.model_copy(
            update={
                "source": table.source.model_copy(
                    update={"path": tuple(_absolute(p, folder) for p in table.source.path)}
                )
            }
        )
        for name, table in config.tables.items()
    }
    return config.model_copy(
        update={
            "catalog": catalog.model_copy(update={"uri": uri, "warehouse": warehouse}),
            "tables": {name: table for name, table in tables.items() if not name.endswith(ALL_TABLES)},
            "patterns": {name: table for name, table in tables.items() if name.endswith(ALL_TABLES)},
            "spark": config.spark.model_copy(
                update={
                    "package": config.spark.package
                    if config.spark.package in SHIPPED
                    else _absolute(config.spark.package, folder),
                    "reports": config.spark.reports and _absolute(config.spark.reports, folder),
                }
            ),
        }
    )


def _absolute(path: str, folder: Path) -> str:
    if "://" in path:
        return path
    return os.path.normpath(folder / Path(path).expanduser())


def _resolved_sqlite(uri: str, folder: Path) -> str:
    prefix = "sqlite:///"
    rest = uri.removeprefix(prefix)
    if not uri.startswith(prefix) or rest.startswith((":memory:", "/")) or not rest:
        return uri
    return f"{prefix}{_absolute(rest, folder)}"
