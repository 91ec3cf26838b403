"""Reads tables of an SQLite catalog without PyIceberg, whose import costs more than most commands that only read.

Anything unusual (another layout of the catalog, a locked or damaged file, PyIceberg's own settings, metadata that is
remote, compressed or malformed) raises `UnusualError`, and the caller asks PyIceberg, which reports what is wrong with it.
The classes have the names and members of PyIceberg's, as `interfaces.py` describes them.
"""

import os
import sqlite3
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import Any
from urllib.parse import quote

import orjson

from nevermore.scan_core import ScanError, TableMetadata
from nevermore.scan_core.io import FileIOConfig, cached_property, parse_location, read_bytes
from nevermore.scan_core.metadata import parse_metadata

_COLUMNS = frozenset({"catalog_name", "table_namespace", "table_name", "metadata_location"})
_OWN_SETTINGS = ".pyiceberg.yaml"
_PLAIN = frozenset({"type", "uri", "warehouse"})
_ARROW_IO = "py-io-impl", "pyiceberg.io.pyarrow.PyArrowFileIO"
"""How every place can be opened, and Azure by default."""
_LOCK_SECONDS = 5.0
"""Timeout for locks, as long as PyIceberg's."""


class UnusualError(Exception):
    """Something that requires PyIceberg; never shown to a user."""


class Operation(Enum):
    """The operation of a snapshot."""

    APPEND = "append"
    REPLACE = "replace"
    OVERWRITE = "overwrite"
    DELETE = "delete"


@dataclass(frozen=True, slots=True)
class Summary:
    """The summary of a snapshot, in PyIceberg's shape."""

    operation: Operation
    additional_properties: Mapping[str, str]

    def __getitem__(self, name: str) -> str | None:
        """The value of a property, None if it does not exist."""
        return self.additional_properties.get(name)


@dataclass(frozen=True, slots=True)
class Snapshot:
    """A snapshot, in PyIceberg's shape."""

    snapshot_id: int
    parent_snapshot_id: int | None
    timestamp_ms: int
    summary: Summary | None


@dataclass(frozen=True, slots=True)
class Metadata:
    """The metadata of a table, in PyIceberg's shape; snapshots are in the order of the file."""

    properties: Mapping[str, str]
    snapshots: Sequence[Snapshot]
    current_snapshot_id: int | None


@dataclass(frozen=True, slots=True)
class StoredTable:
    """A table of the catalog, for reading.

    Attributes:
        metadata_location: the metadata file that the catalog names.
        metadata: its content.
        io: FileIO properties.
        facts: the metadata in the form that scans need.
        identifier: namespace and name.
    """

    metadata_location: str
    metadata: Metadata
    io: FileIOConfig
    facts: TableMetadata
    identifier: tuple[str, ...]

    @property
    def format_version(self) -> int:
        """Version of the Iceberg specification."""
        return self.facts.format_version

    def name(self) -> tuple[str, ...]:
        """Namespace and name."""
        return self.identifier

    def location(self) -> str:
        """The folder of the table."""
        return self.facts.location


@dataclass(frozen=True)
class SqliteCatalog:
    """An SQLite catalog, for reading.

    Attributes:
        name: name of the catalog; one file may hold several.
        file: file of the database, which exists.
        properties: properties of the catalog from the config.
    """

    name: str
    file: Path
    properties: Mapping[str, str]

    def table(self, identifier: tuple[str, ...]) -> StoredTable | None:
        """Find a table; None if the catalog does not have it.

        Raises:
            UnusualError: ask PyIceberg.
        """
        location = self.metadata_location(identifier)
        if location is None:
            return None
        place = parse_location(location)
        if not place.is_local or not location.endswith(".metadata.json") or location.endswith(".gz.metadata.json"):
            raise UnusualError
        try:
            text = read_bytes(location, FileIOConfig())  # refuses a FIFO, which would never end
            facts = parse_metadata(text, location)
            metadata = _metadata(orjson.loads(text))
        except (OSError, ScanError, ValueError, KeyError, TypeError, AttributeError) as error:
            raise UnusualError from error
        io = FileIOConfig(properties={**self.properties, **metadata.properties})
        return StoredTable(location, metadata, io, facts, identifier)

    def metadata_location(self, identifier: tuple[str, ...]) -> str | None:
        """The metadata file of a table; None if the catalog does not have it.

        Raises:
            UnusualError: ask PyIceberg.
        """
        if len(identifier) < 2 or not all(identifier):
            raise UnusualError
        rows = self._select(
            "metadata_location", {"table_namespace": ".".join(identifier[:-1]), "table_name": identifier[-1]}
        )
        if not rows:
            return None
        if not rows[0][0]:
            raise UnusualError
        return str(rows[0][0])

    def table_names(self, namespace: str | None = None) -> list[str]:
        """`namespace.table` of every table, or of those of one namespace.

        Raises:
            UnusualError: ask PyIceberg.
        """
        rows = self._select("table_namespace, table_name", {} if namespace is None else {"table_namespace": namespace})
        return sorted(f"{space}.{name}" for space, name in rows)

    def _select(self, columns: str, wanted: Mapping[str, str]) -> list[tuple[Any, ...]]:
        where = {"catalog_name": self.name, **wanted}
        conditions = [f"{column} = ?" for column in where]
        if "iceberg_type" in self._columns:
            conditions.append("(iceberg_type = 'TABLE' OR iceberg_type IS NULL)")
        # column names are those of this module
        statement = f"SELECT {columns} FROM iceberg_tables WHERE {' AND '.join(conditions)}"
        return self._rows(statement, tuple(where.values()))

    @cached_property
    def _columns(self) -> frozenset[str]:
        columns = frozenset(str(row[1]) for row in self._rows("PRAGMA table_info(iceberg_tables)", ()))
        if not columns >= _COLUMNS:
            raise UnusualError
        return columns

    def _rows(self, statement: str, values: tuple[str, ...]) -> list[tuple[Any, ...]]:
        try:
            connection = sqlite3.connect(f"file:{quote(str(self.file))}?mode=ro", _LOCK_SECONDS, uri=True)
            try:
                return connection.execute(statement, values).fetchall()
            finally:
                connection.close()
        except (sqlite3.Error, UnicodeError) as error:
            raise UnusualError from error


def sqlite_catalog(name: str, file: Path, properties: Mapping[str, str]) -> SqliteCatalog | None:
    """Open the catalog in an SQLite file; None if PyIceberg might read another one, or would create it.

    Args:
        name: name of the catalog.
        file: file of the database.
        properties: properties from the config.
    """
    is_plain = properties.get("type") == "sql" and all(
        name in _PLAIN or "." in name or (name, value) == _ARROW_IO for name, value in properties.items()
    )
    if not is_plain or not file.is_file() or _has_own_settings():
        return None
    return SqliteCatalog(name, file, properties)


def _has_own_settings() -> bool:
    """Whether PyIceberg has its own settings, in a file or the environment."""
    folders = filter(None, (os.environ.get("PYICEBERG_HOME"), str(Path.home()), "."))
    return any(name.upper().startswith("PYICEBERG_") for name in os.environ) or any(
        Path(folder, _OWN_SETTINGS).exists() for folder in folders
    )


def _metadata(document: Mapping[str, Any]) -> Metadata:
    current = document.get("current-snapshot-id")
    return Metadata(
        properties=document.get("properties") or {},
        snapshots=[_snapshot(snapshot) for snapshot in document.get("snapshots") or []],
        current_snapshot_id=None if current in {None, -1} else int(current),
    )


def _snapshot(document: Mapping[str, Any]) -> Snapshot:
    given = document.get("summary")
    summary = None
    if given is not None:
        properties = {str(name): str(value) for name, value in given.items() if name != "operation"}
        summary = Summary(Operation(given["operation"]), properties)
    parent = document.get("parent-snapshot-id")
    return Snapshot(
        int(document["snapshot-id"]), None if parent is None else int(parent), int(document["timestamp-ms"]), summary
    )
