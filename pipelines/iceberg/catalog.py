"""Opens the Iceberg catalog of a config, finds tables in it and creates them.

A loaded table is described in `loaded_table.py`; commits are in `commit.py`.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from pipelines.config.project import Config
from pipelines.errors import CatalogMismatchError, ConfigError, SourceError
from pipelines.iceberg.metadata_swap import current_location
from pipelines.iceberg.schema_evolution import schema_document
from pipelines.iceberg.sqlite_catalog import SqliteCatalog, UnusualError, sqlite_catalog
from scan_core import NestedField, Schema

TABLE_PROPERTIES: Mapping[str, str] = {
    "format-version": "2",
    "write.metadata.delete-after-commit.enabled": "true",
    "write.metadata.previous-versions-max": "100",
    "write.delete.mode": "merge-on-read",
    "write.update.mode": "merge-on-read",
    "write.merge.mode": "merge-on-read",
}
"""Of every table that the pipelines create: metadata files do not pile up, other writers delete as we do."""
OPENING_ATTEMPTS = 4
"""How often a catalog is opened that others create at the same time: it has two tables, each may be theirs."""


def open_catalog(config: Config) -> Any:
    """The PyIceberg catalog of a config; an SQLite catalog and its warehouse folder are created.

    Raises:
        ConfigError: the catalog cannot be opened with these properties.
    """
    if (file := sqlite_file(config)) is not None:
        file.parent.mkdir(parents=True, exist_ok=True)
    from pyiceberg.catalog import load_catalog
    from tenacity import Retrying, retry_if_exception, stop_after_attempt

    again = Retrying(
        retry=retry_if_exception(_others_create_it), stop=stop_after_attempt(OPENING_ATTEMPTS), reraise=True
    )
    try:
        return again(load_catalog, config.catalog.name, **config.catalog.properties)
    except Exception as error:  # of PyIceberg, of a database, of the network: each kind of catalog has its own
        raise ConfigError(f"catalog of type {config.catalog.type} cannot be opened: {error}") from error


def open_to_look(config: Config) -> Any | None:
    """The catalog of a config for whoever changes nothing: an SQLite one without PyIceberg; None if it does not exist yet.

    `find_table`, `table_names`, `all_table_names` and `expanded` take it; tables found in it cannot be written.

    Raises:
        ConfigError: the catalog cannot be opened with these properties.
    """
    if not has_catalog(config):
        return None
    return open_light(config) or open_catalog(config)


def open_light(config: Config) -> "LightCatalog | None":
    """The catalog of a config to look at without PyIceberg; None where only PyIceberg can open it."""
    file = sqlite_file(config)
    plain = None if file is None else sqlite_catalog(config.catalog.name, file, config.catalog.properties)
    if plain is None:
        return None
    try:
        plain.table_names()
    except UnusualError:
        return None  # PyIceberg tells what is wrong with it, or is content
    return LightCatalog(plain, config)


@dataclass(frozen=True)
class LightCatalog:
    """A catalog to look at, and the way to the whole one where something in it is unusual."""

    plain: SqliteCatalog
    config: Config

    @cached_property
    def whole(self) -> Any:
        """The same catalog, opened by PyIceberg."""
        return open_catalog(self.config)


def metadata_location(catalog: Any, name: str) -> str | None:
    """The metadata file that a catalog names for a table; None if it has no such table."""
    if isinstance(catalog, LightCatalog):
        try:
            return catalog.plain.metadata_location(identifier(name))
        except UnusualError:
            return metadata_location(catalog.whole, name)
    if (location := current_location(catalog, identifier(name))) is not None:
        return location
    table = find_table(catalog, name)
    return None if table is None else str(table.metadata_location)


def _others_create_it(error: BaseException) -> bool:
    """Whoever opens a new SQL catalog creates its tables; of several at once all but one are told that these exist."""
    return "already exists" in str(error)


def check_catalog(config: Config) -> None:
    """Refuse a config whose catalog does not exist, which is nearly always a mistyped one.

    Raises:
        SourceError: where it was looked for.
    """
    if not has_catalog(config):
        raise SourceError(
            f"nothing was ingested yet with {config.path}: its catalog {sqlite_file(config)} does not exist. If that is the "
            "right config, ingest first"
        )


def has_catalog(config: Config) -> bool:
    """Whether there is a catalog to open: `open_catalog` makes an SQLite one, which whoever only looks must not do."""
    return (file := sqlite_file(config)) is None or file.exists()


def sqlite_file(config: Config) -> Path | None:
    """The file of an SQLite catalog; None for other catalogs."""
    uri = config.catalog.properties.get("uri", "")
    return Path(uri.removeprefix("sqlite:///")) if uri.startswith("sqlite:////") else None


def find_table(catalog: Any, name: str) -> Any | None:
    """The table called `namespace.table`, or None.

    Raises:
        CatalogMismatchError: the metadata file that the catalog names is missing, or is none.
    """
    if isinstance(catalog, LightCatalog):
        try:
            return catalog.plain.table(identifier(name))
        except UnusualError:
            return find_table(catalog.whole, name)
    from pyiceberg.exceptions import NoSuchNamespaceError, NoSuchTableError
    from pyiceberg.exceptions import ValidationError as MalformedError

    try:
        return catalog.load_table(identifier(name))
    except (NoSuchTableError, NoSuchNamespaceError):
        return None
    except (FileNotFoundError, MalformedError) as error:
        location = current_location(catalog, identifier(name)) or "the metadata file"
        what = "is missing" if isinstance(error, FileNotFoundError) else "is not whole"
        raise CatalogMismatchError(
            f"{name}: the catalog names {location}, which {what}; `nevermore recover` finds the newest metadata that is whole, "
            "also in a project that was moved"
        ) from error


def table_names(catalog: Any, namespace: str) -> list[str]:
    """The tables of a namespace, without it; none if there is no such namespace."""
    if isinstance(catalog, LightCatalog):
        try:
            return [identifier(name)[-1] for name in catalog.plain.table_names(namespace)]
        except UnusualError:
            return table_names(catalog.whole, namespace)
    from pyiceberg.exceptions import NoSuchNamespaceError

    try:
        return sorted(name[-1] for name in catalog.list_tables(identifier(namespace)))
    except NoSuchNamespaceError:
        return []


def all_table_names(catalog: Any) -> list[str]:
    """`namespace.table` of every table."""
    if isinstance(catalog, LightCatalog):
        try:
            return catalog.plain.table_names()
        except UnusualError:
            return all_table_names(catalog.whole)
    return sorted(_names_below(catalog, ()))


def _names_below(catalog: Any, above: tuple[str, ...]) -> Iterator[str]:
    for namespace in catalog.list_namespaces(above):
        yield from (".".join(name) for name in catalog.list_tables(namespace))
        if len(namespace) > len(above):
            yield from _names_below(catalog, namespace)


def create_table(
    catalog: Any,
    name: str,
    fields: Sequence[NestedField],
    *,
    partition_by: Sequence[tuple[str, str]] = (),
    properties: Mapping[str, str] | None = None,
) -> Any:
    """A new, empty table; if another process was faster, its table.

    Args:
        catalog: from `open_catalog`.
        name: `namespace.table`; the namespace is created.
        fields: columns; ids only have to be distinct, the catalog assigns its own.
        partition_by: (transform, column) pairs.
        properties: beside `TABLE_PROPERTIES`.
    """
    from pyiceberg.exceptions import TableAlreadyExistsError
    from pyiceberg.partitioning import PartitionField as CatalogField
    from pyiceberg.partitioning import PartitionSpec as CatalogSpec
    from pyiceberg.schema import Schema as CatalogSchema
    from pyiceberg.transforms import parse_transform

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


def _make_namespace(catalog: Any, namespace: tuple[str, ...]) -> None:
    """Make a namespace, which another thread or process may do at the same time."""
    from pyiceberg.exceptions import NoSuchNamespaceError

    try:
        catalog.load_namespace_properties(namespace)
    except NoSuchNamespaceError:
        try:
            catalog.create_namespace_if_not_exists(namespace)
        except Exception:  # noqa: BLE001 - whatever it was, all is well if the namespace is there now
            # Not every catalog says that it was there already: some pass on what their database says.
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
