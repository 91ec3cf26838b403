"""Opens the Iceberg catalog of a config, finds tables in it and creates them.

SQLite catalogs are read without PyIceberg where that is possible, as importing it costs more than most commands. Loaded
tables are described in `loaded_table.py`; commits are in `commit.py`.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar, overload

import pyarrow as pa

from nevermore.pipelines.config.project import Config
from nevermore.pipelines.errors import (
    CatalogMismatchError,
    ConfigError,
    PipelineError,
    SourceError,
    in_plain_words,
    in_short,
)
from nevermore.pipelines.iceberg.interfaces import ReadableTable
from nevermore.pipelines.iceberg.metadata_swap import current_location
from nevermore.pipelines.iceberg.schema_evolution import schema_document
from nevermore.pipelines.iceberg.sqlite_catalog import SqliteCatalog, UnusualError, sqlite_catalog
from nevermore.pipelines.iceberg.warehouse import local_path, refuse_without_catalog
from nevermore.scan_core import NestedField, Schema
from nevermore.scan_core.io import cached_property, load_catalog

if TYPE_CHECKING:
    from pyiceberg.catalog import Catalog
    from pyiceberg.table import Table

Found = TypeVar("Found")
TABLE_PROPERTIES: Mapping[str, str] = {
    "format-version": "2",
    "write.metadata.delete-after-commit.enabled": "true",
    "write.metadata.previous-versions-max": "100",
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
    """
    if (file := sqlite_file(config)) is not None:
        if file.exists() and not file.is_file():  # SQLite would wait for a FIFO, or say only that it cannot open it
            raise ConfigError(f"{file} is not a regular file: specify the SQLite database in `catalog.uri`")
        file.parent.mkdir(parents=True, exist_ok=True)
    from tenacity import Retrying, retry_if_exception, stop_after_attempt

    again = Retrying(
        retry=retry_if_exception(_others_create_it), stop=stop_after_attempt(OPENING_ATTEMPTS), reraise=True
    )
    try:
        found: Catalog = again(load_catalog, config.catalog.name, config.catalog.properties)
    except Exception as error:  # each kind of catalog has its own, of PyIceberg, a database or the network
        place = "" if file is None else f" {file}"
        reason = in_plain_words(error) or " ".join(str(error).split())
        raise ConfigError(f"catalog{place} of type {config.catalog.type} cannot be opened: {reason}") from error
    return found


def open_to_look(config: Config) -> "Catalog | LightCatalog | None":
    """Open the catalog of a config for reading, an SQLite one without PyIceberg; None if it does not exist yet.

    `find_table`, `table_names`, `all_table_names` and `expanded` accept it; its tables are read-only.

    Raises:
        ConfigError: the catalog cannot be opened with these properties.
        CatalogMismatchError: there is no catalog, but the warehouse has tables of the config.
    """
    if not has_catalog(config):
        refuse_without_catalog(config)
        return None
    return open_light(config) or open_catalog(config)


def open_light(config: Config) -> "LightCatalog | None":
    """Open the catalog of a config for reading without PyIceberg; None if only PyIceberg can open it."""
    file = sqlite_file(config)
    plain = None if file is None else sqlite_catalog(config.catalog.name, file, config.catalog.properties)
    if plain is None:
        return None
    try:
        plain.table_names()
    except UnusualError:
        return None  # PyIceberg reports the error, or accepts the catalog
    return LightCatalog(plain, config)


@dataclass(frozen=True)
class LightCatalog:
    """An SQLite catalog read without PyIceberg; `whole` is the same catalog for unusual cases."""

    plain: SqliteCatalog
    config: Config

    @cached_property
    def whole(self) -> "Catalog":
        """The same catalog opened by PyIceberg."""
        return open_catalog(self.config)


def _ask(
    catalog: "Catalog | LightCatalog", read: Callable[[SqliteCatalog], Found], load: Callable[["Catalog"], Found]
) -> Found:
    """Ask a catalog, without PyIceberg if possible, otherwise by `load`."""
    if isinstance(catalog, LightCatalog):
        try:
            return read(catalog.plain)
        except UnusualError:
            return load(catalog.whole)
    return load(catalog)


def metadata_location(catalog: "Catalog | LightCatalog", name: str) -> str | None:
    """The metadata file that a catalog names for a table; None if it has no such table."""

    def load(whole: "Catalog") -> str | None:
        if (location := current_location(whole, identifier(name))) is not None:
            return location
        table = find_table(whole, name)
        return None if table is None else table.metadata_location

    return _ask(catalog, lambda plain: plain.metadata_location(identifier(name)), load)


def _others_create_it(error: BaseException) -> bool:
    """Whether an SQL catalog could not be opened because another process was creating its tables."""
    return "already exists" in str(error)


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


@overload
def find_table(catalog: "Catalog", name: str) -> "Table | None": ...
@overload
def find_table(catalog: "Catalog | LightCatalog", name: str) -> ReadableTable | None: ...
def find_table(catalog: "Catalog | LightCatalog", name: str) -> ReadableTable | None:
    """Find the table `namespace.table`; None if it does not exist. Tables of a `LightCatalog` are read-only.

    Raises:
        CatalogMismatchError: the metadata file that the catalog names is missing or invalid.
    """
    if not _can_exist(name):
        return None
    return _ask(catalog, lambda plain: plain.table(identifier(name)), lambda whole: _load_table(whole, name))


def _can_exist(name: str) -> bool:
    """Whether a table can have this name: catalogs fail on names without a namespace and on empty parts."""
    parts = identifier(name)
    return len(parts) > 1 and all(part.strip() for part in parts)


def _load_table(catalog: "Catalog", name: str) -> ReadableTable | None:
    from pyiceberg.exceptions import NoSuchNamespaceError, NoSuchTableError
    from pyiceberg.exceptions import ValidationError as MalformedError

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


def table_names(catalog: "Catalog | LightCatalog", namespace: str) -> list[str]:
    """Names of the tables in a namespace, without the namespace; empty if the namespace does not exist."""

    def load(whole: "Catalog") -> list[str]:
        from pyiceberg.exceptions import NoSuchNamespaceError

        try:
            return sorted(name[-1] for name in whole.list_tables(identifier(namespace)))
        except NoSuchNamespaceError:
            return []

    return _ask(catalog, lambda plain: [identifier(name)[-1] for name in plain.table_names(namespace)], load)


def all_table_names(catalog: "Catalog | LightCatalog") -> list[str]:
    """`namespace.table` of every table."""
    return _ask(catalog, SqliteCatalog.table_names, lambda whole: sorted(_names_below(whole, ())))


def _names_below(catalog: "Catalog", above: tuple[str, ...]) -> Iterator[str]:
    for namespace in catalog.list_namespaces(above):
        yield from (".".join(name) for name in catalog.list_tables(namespace))
        if len(namespace) > len(above):
            yield from _names_below(catalog, namespace)


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
        place = catalog.properties.get("warehouse", "its warehouse")
        raise PipelineError(
            f"{name} cannot be created in {place}: {in_short(error)}; check that the bucket or container exists, and the "
            "credentials and rights (read, write, delete, list)"
        ) from error


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
