"""Opens the Iceberg catalog of a config, finds tables in it and creates them.

Loaded tables are described in `loaded_table.py`; commits are in `commit.py`.
"""

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa

from nevermore.pipelines.config.project import Config, change_log_name
from nevermore.pipelines.config.tables import TableConfig
from nevermore.pipelines.errors import (
    CatalogMismatchError,
    ConfigError,
    PipelineError,
    SourceError,
    describe,
    in_plain_words,
    in_short,
)
from nevermore.pipelines.iceberg.metadata_swap import current_location
from nevermore.pipelines.iceberg.schema_evolution import schema_document
from nevermore.pipelines.iceberg.warehouse import local_path, refuse_copy, refuse_without_catalog
from nevermore.scan_core import NestedField, Schema
from nevermore.scan_core.io import load_catalog, require_package

if TYPE_CHECKING:
    # names for other packages, too, which do not import PyIceberg
    from pyiceberg.catalog import Catalog as Catalog  # noqa: PLC0414 - exported
    from pyiceberg.table import Table as Table  # noqa: PLC0414 - exported
    from pyiceberg.table.snapshots import Snapshot as Snapshot  # noqa: PLC0414 - exported

TABLE_PROPERTIES: Mapping[str, str] = {
    "format-version": "2",
    "write.metadata.delete-after-commit.enabled": "true",
    "write.metadata.previous-versions-max": "20",
    "write.delete.mode": "merge-on-read",
    "write.update.mode": "merge-on-read",
    "write.merge.mode": "merge-on-read",
}
"""Properties of every table that the pipelines create: obsolete metadata files are deleted, and other writers use
merge-on-read.
"""
OPENING_ATTEMPTS = 4
"""Attempts to open a catalog while other processes create its two tables."""


def open_catalog(config: Config) -> "Catalog":
    """The PyIceberg catalog of a config; an SQLite catalog and its warehouse folder are created.

    Raises:
        ConfigError: the catalog cannot be opened with these properties, or its SQLite database is not a regular file.
        CatalogMismatchError: see `refuse_copy`.
    """
    if (file := sqlite_file(config)) is not None:
        if file.exists() and not file.is_file():  # SQLite would wait for a FIFO, or say only that it cannot open it
            raise ConfigError(f"{file} is not a regular file: specify the SQLite database in `catalog.uri`")
        file.parent.mkdir(parents=True, exist_ok=True)
    require_package("pyiceberg", "a project", "nevermore-iceberg[ingest]")
    from tenacity import Retrying, retry_if_exception, stop_after_attempt

    again = Retrying(
        retry=retry_if_exception(lambda error: "already exists" in str(error)),
        stop=stop_after_attempt(OPENING_ATTEMPTS),
        reraise=True,
    )
    try:
        found: Catalog = again(load_catalog, config.catalog.name, config.catalog.properties)
        # a copy has all tables, so one of them tells; the others are checked one by one when they are read or written
        located = ((name, at) for name in config.tables if (at := current_location(found, identifier(name))))
        first = next(located, None)
    except Exception as error:  # each kind of catalog has its own, of PyIceberg, a database or the network
        place = "" if file is None else f" {file}"
        reason = in_plain_words(error) or in_short(error)
        raise ConfigError(f"catalog{place} of type {config.catalog.type} cannot be opened: {reason}") from error
    if first is not None:
        refuse_copy(config, *first)
    return found


def open_to_look(config: Config) -> "Catalog | None":
    """Open the catalog of a config for reading; None if it does not exist yet.

    Raises:
        ConfigError: the catalog cannot be opened with these properties.
        CatalogMismatchError: there is no catalog, but the warehouse has tables of the config.
    """
    if not has_catalog(config):
        refuse_without_catalog(config)
        return None
    return open_catalog(config)


def metadata_location(catalog: "Catalog", name: str) -> str | None:
    """The metadata file that a catalog names for a table; None if it has no such table."""
    if (location := current_location(catalog, identifier(name))) is not None:
        return location
    table = find_table(catalog, name)
    return None if table is None else table.metadata_location


def check_catalog(config: Config) -> None:
    """Refuse a config whose catalog does not exist, which usually means that it is the wrong config.

    Raises:
        SourceError: the catalog does not exist; names the expected file.
        CatalogMismatchError: it does not exist, but tables of the config do.
    """
    if not has_catalog(config):
        refuse_without_catalog(config)
        raise SourceError(
            f"nothing was ingested yet with {config.path}: its catalog {sqlite_file(config)} does not exist. If that is the "
            "right config, ingest first"
        )


def has_catalog(config: Config) -> bool:
    """Whether there is a catalog to open: `open_catalog` would create an SQLite one, which readers must not do."""
    return (file := sqlite_file(config)) is None or file.exists()


def sqlite_file(config: Config) -> Path | None:
    """The file of an SQLite catalog; None for other catalogs."""
    uri = config.catalog.properties.get("uri", "")
    return Path(uri.removeprefix("sqlite:///")) if uri.startswith("sqlite:////") else None


def find_table(catalog: "Catalog", name: str) -> "Table | None":
    """Find the table `namespace.table`; None if it does not exist.

    Raises:
        CatalogMismatchError: the metadata file that the catalog names is missing or invalid.
    """
    from pyiceberg.exceptions import NoSuchNamespaceError, NoSuchTableError
    from pyiceberg.exceptions import ValidationError as MalformedError

    if not _can_exist(name):
        return None
    location = current_location(catalog, identifier(name))
    place = None if location is None else local_path(location)
    if place is not None and place.exists() and not place.is_file():  # PyIceberg would wait for a FIFO for ever
        raise CatalogMismatchError(
            f"{name}: the catalog names {location}, which is not a regular file; `nevermore recover` finds the newest "
            "metadata that is whole"
        )
    try:
        return catalog.load_table(identifier(name))
    except (NoSuchTableError, NoSuchNamespaceError):
        return None
    except (FileNotFoundError, MalformedError) as error:
        what = "is missing" if isinstance(error, FileNotFoundError) else "is incomplete"
        raise CatalogMismatchError(
            f"{name}: the catalog names {location or 'a metadata file'}, which {what}; `nevermore recover` finds the newest metadata that is whole, "
            "also in a project that was moved"
        ) from error


def _can_exist(name: str) -> bool:
    """Whether a table can have this name: catalogs fail on names without a namespace and on empty parts."""
    parts = identifier(name)
    return len(parts) > 1 and all(part.strip() for part in parts)


def table_names(catalog: "Catalog", namespace: str) -> list[str]:
    """Names of the tables in a namespace, without the namespace; empty if the namespace does not exist."""
    from pyiceberg.exceptions import NoSuchNamespaceError

    try:
        return sorted(name[-1] for name in catalog.list_tables(identifier(namespace)))
    except NoSuchNamespaceError:
        return []


def all_table_names(catalog: "Catalog") -> list[str]:
    """`namespace.table` of every table."""
    return sorted(_names_below(catalog, ()))


def _names_below(catalog: "Catalog", above: tuple[str, ...]) -> Iterator[str]:
    for namespace in catalog.list_namespaces(above):
        yield from (".".join(name) for name in catalog.list_tables(namespace))
        if len(namespace) > len(above):
            yield from _names_below(catalog, namespace)


def expanded(config: Config, catalog: "Catalog | None" = None) -> Config:
    """The config with the mirrors that its patterns have found so far, after its own tables.

    Without `catalog`, the config's own is opened if it exists.
    """
    if not config.patterns or (catalog := catalog or open_to_look(config)) is None:
        return config
    namespace = change_log_name("")
    logs = {namespace + log for log in table_names(catalog, namespace.rstrip("."))} - set(
        map(change_log_name, config.tables)
    )
    found = dict[str, TableConfig]()
    for pattern in sorted(config.patterns, key=len, reverse=True):  # the longer of shop.a.* and shop.* takes precedence
        name = pattern.removesuffix("*")
        prefix = change_log_name(name)
        for log in sorted(log for log in logs if log.startswith(prefix)):
            found[name + log.removeprefix(prefix)] = config.patterns[pattern]
            logs.discard(log)
    return config.model_copy(update={"tables": config.tables | dict(sorted(found.items()))})


def create_table(
    catalog: "Catalog",
    name: str,
    fields: Sequence[NestedField],
    *,
    partition_by: Sequence[tuple[str, str]] = (),
    properties: Mapping[str, str] | None = None,
) -> "Table":
    """Create an empty table, or return the table that another process has created in the meantime.

    Args:
        catalog: from `open_catalog`.
        name: `namespace.table`; the namespace is created.
        fields: columns; ids only have to be distinct, the catalog assigns its own.
        partition_by: (transform, column) pairs.
        properties: in addition to `TABLE_PROPERTIES`.

    Raises:
        PipelineError: the warehouse cannot be written.
    """
    from pyiceberg.exceptions import TableAlreadyExistsError
    from pyiceberg.partitioning import PartitionField as CatalogField
    from pyiceberg.partitioning import PartitionSpec as CatalogSpec
    from pyiceberg.schema import Schema as CatalogSchema
    from pyiceberg.transforms import parse_transform
    from requests import RequestException

    schema = Schema(0, tuple(fields))
    spec = CatalogSpec(
        *(
            CatalogField(
                source_id=schema.find(column).field_id,
                field_id=1000 + position,
                transform=parse_transform(transform),
                name=partition_name(transform, column),
            )
            for position, (transform, column) in enumerate(partition_by)
        )
    )
    _make_namespace(catalog, identifier(name)[:-1])
    try:
        return catalog.create_table(
            identifier(name),
            schema=CatalogSchema.model_validate(schema_document(schema)),
            partition_spec=spec,
            properties={**TABLE_PROPERTIES, **(properties or {})},
        )
    except TableAlreadyExistsError:
        return catalog.load_table(identifier(name))
    except RequestException:
        raise  # of a catalog server: it may pass by itself
    except (OSError, pa.ArrowException) as error:
        warehouse = catalog.properties.get("warehouse")
        is_remote = warehouse is None or local_path(warehouse) is None
        do = "check that the bucket or container exists, and the credentials and rights (read, write, delete, list)"
        said = f"{in_short(error)}; {do}" if is_remote else describe(error)
        raise PipelineError(f"{name} cannot be created in {warehouse or 'its warehouse'}: {said}") from error


def _make_namespace(catalog: "Catalog", namespace: tuple[str, ...]) -> None:
    """Create a namespace, unless it exists or another thread or process creates it at the same time."""
    from pyiceberg.exceptions import NoSuchNamespaceError

    try:
        catalog.load_namespace_properties(namespace)
    except NoSuchNamespaceError:
        try:
            catalog.create_namespace_if_not_exists(namespace)
        except Exception:  # noqa: BLE001 - some catalogs pass on the error of their database: what counts is that it exists
            catalog.load_namespace_properties(namespace)


def identifier(name: str) -> tuple[str, ...]:
    """The parts of `namespace.table`."""
    return tuple(name.split("."))


def partition_name(transform: str, column: str) -> str:
    """The name that Iceberg engines give a partition field by default."""
    if transform == "identity":
        return column
    kind = transform.partition("[")[0]
    return f"{column}_{'trunc' if kind == 'truncate' else kind}"
