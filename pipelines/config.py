"""nevermore.yaml: what to read, into which tables, and how.

The file is validated as a whole before anything is done; every message names the line and, for an unknown key, the
nearest valid one. What may stand in it is in `config_sections.py`.
"""

import os
from pathlib import Path

from pydantic import BaseModel, ValidationError

from pipelines.config_document import ConfigDocument
from pipelines.config_messages import config_messages, unknown_key
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

_SECTIONS: dict[tuple[str, ...], type[BaseModel]] = {
    (): Config,
    ("tables", "*"): TableConfig,
    ("tables", "*", "source"): FilesSource,
    ("published", "*"): PublishedConfig,
    ("published", "*", "options"): PublishedOptions,
    ("spark",): SparkConfig,
}


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
    valid = sorted(name for name, field in Config.model_fields.items() if not field.exclude)
    for name, field in Config.model_fields.items():
        if field.exclude and name in values:
            raise ConfigError(f"{document.where([name])}: {unknown_key(name, valid)[0]}")
    try:
        config = Config.model_validate({**values, "path": Path(path).absolute()})
    except ValidationError as error:
        # not `from error`: a traceback would show the values of the environment, which pydantic repeats
        raise ConfigError("\n".join(config_messages(error, document, _SECTIONS))) from None
    return _resolved(config)


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
