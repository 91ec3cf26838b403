"""What only the catalog library (PyIceberg) can do: find a table by its catalog name, open remote file systems.

The only import of PyIceberg in scan_core, and a lazy one: local tables never load it.
"""

import os
import re
import threading
from collections.abc import Mapping
from functools import partial
from importlib.util import find_spec
from typing import Any
from urllib.parse import urlsplit

from nevermore.scan_core.io.location import Location, parse_location
from nevermore.scan_core.model.errors import MissingFileError, TableNotFoundError, require_package

_AZURE = frozenset({"abfs", "abfss", "wasb", "wasbs"})
ANSWER_SECONDS = 60.0
"""How long a REST catalog may say nothing; PyIceberg itself waits for ever."""
CONNECT_SECONDS = 15
"""How long a database may take to accept a connection, unless the address of the catalog says otherwise; libpq waits for ever."""
_LIBPQ = re.compile(r"postgresql(\+psycopg2?)?://(?!.*[?&]connect_timeout=)")
_filesystems: dict[tuple[Any, ...], Any] = {}
_lock = threading.Lock()


def _unlock() -> None:
    """In a forked process the thread that held the lock does not exist, and would never release it."""
    global _lock  # noqa: PLW0603 - the lock belongs to the file systems of the process
    _lock = threading.Lock()


os.register_at_fork(after_in_child=_unlock)


def filesystem(location: Location, properties: Mapping[str, str]) -> tuple[Any, str]:
    """The pyarrow file system of a remote location, and the path inside it.

    Raises:
        MissingFileError: no installed FileIO opens this scheme.
    """
    key = (location.scheme, location.authority, tuple(sorted(properties.items())))
    with _lock:
        found = _filesystems.get(key)
    if found is None:
        found = _open_filesystem(location, properties)
        with _lock:
            found = _filesystems.setdefault(key, found)
    if location.scheme in {"hdfs", "viewfs"}:
        return found, location.path
    if location.scheme in _AZURE and getattr(found, "type_name", "") == "abfs":
        return found, location.authority.partition("@")[0] + location.path
    return found, location.authority + location.path


def with_file_io(place: str, properties: Mapping[str, str]) -> dict[str, str]:
    """The properties with which PyIceberg opens a place: Azure through pyarrow, unless adlfs is installed or they say otherwise.

    PyIceberg itself takes adlfs for Azure whether it is installed or not.
    """
    location = parse_location(place)
    if location.scheme not in _AZURE or "py-io-impl" in properties or find_spec("adlfs") is not None:
        return dict(properties)
    container, at, host = location.authority.partition("@")
    account = {"adls.account-name": host.partition(".")[0]} if container and at else {}
    return {**account, **properties, "py-io-impl": "pyiceberg.io.pyarrow.PyArrowFileIO"}


def load_catalog(name: str | None, properties: Mapping[str, str]) -> Any:
    """The catalog of PyIceberg with these properties; one that does not answer is an error.

    Raises:
        Exception: it cannot be opened; each kind of catalog has errors of its own.
    """
    from pyiceberg import catalog as library

    library.AVAILABLE_CATALOGS[library.CatalogType.REST] = _load_rest
    library.AVAILABLE_CATALOGS[library.CatalogType.SQL] = _load_sql
    uri = properties.get("uri", "")
    if _LIBPQ.match(uri):
        properties = {**properties, "uri": f"{uri}{'&' if '?' in uri else '?'}connect_timeout={CONNECT_SECONDS}"}
    return library.load_catalog(name, **properties)


def _load_sql(name: str, properties: Mapping[str, str]) -> Any:
    """PyIceberg's SQL catalog, which closes connections to an SQLite file after use.

    SQLAlchemy's pool would leave them to the garbage collector, also if the catalog cannot be opened: Python 3.13 warns of
    that, and whatever keeps the warning's object keeps the file locked. A database in memory lives in its connection.
    """
    import sqlalchemy
    from pyiceberg.catalog import sql

    def create_engine(uri: str, **options: Any) -> sqlalchemy.Engine:
        is_file = uri.startswith("sqlite:") and sqlalchemy.make_url(uri).database not in {None, "", ":memory:"}
        return sqlalchemy.create_engine(uri, **options, poolclass=sqlalchemy.NullPool if is_file else None)

    setattr(sql, "create_engine", create_engine)  # noqa: B010 - its constructor, which connects, has no option for this
    return sql.SqlCatalog(name, **properties)


def _load_rest(name: str, properties: Mapping[str, str]) -> Any:
    from pyiceberg.catalog.rest import RestCatalog

    class Rest(RestCatalog):
        def _config_headers(self, session: Any) -> None:  # of each session, before its first request
            session.request = partial(session.request, timeout=ANSWER_SECONDS)
            super()._config_headers(session)

    return Rest(name, **properties)


def load_table(identifier: str, properties: Mapping[str, str]) -> Any:
    """The PyIceberg table called `catalog.namespace.table`, or `namespace.table` in the default catalog.

    Raises:
        TableNotFoundError: no such catalog or table, or the catalog cannot be asked.
        MissingPackageError: PyIceberg is not installed.
    """
    require_package(
        "pyiceberg", f"{identifier!r} is no file or folder here; a table of a catalog", "nevermore-iceberg[catalogs]"
    )
    from pyiceberg.exceptions import (
        NoSuchIdentifierError,
        NoSuchNamespaceError,
        NoSuchTableError,
    )

    parts = identifier.split(".")
    catalog_name, name = (parts[0], parts[1:]) if len(parts) > 2 else (None, parts)
    try:
        catalog = load_catalog(catalog_name, properties)
    except Exception as error:  # of PyIceberg, a database or the network: each kind of catalog has its own
        raise TableNotFoundError(
            f"{identifier!r} is no file or folder, and PyIceberg cannot open a catalog "
            f"{catalog_name or 'default'!r}: {_reason(error)}"
        ) from error
    try:
        return catalog.load_table(tuple(name))
    except (NoSuchTableError, NoSuchNamespaceError, NoSuchIdentifierError) as error:
        raise TableNotFoundError(f"catalog {catalog.name!r} has no table {'.'.join(name)!r}") from error
    except Exception as error:  # the same
        raise TableNotFoundError(
            f"catalog {catalog.name!r} cannot load the table {'.'.join(name)!r}: {_reason(error)}"
        ) from error


def _reason(error: Exception) -> str:
    first = str(error).strip().partition("\n")[0]
    return first if isinstance(error, ValueError) and first else f"{type(error).__name__}: {first}"


def table_facts(table: Any) -> tuple[str, dict[str, str]] | None:
    """Metadata location and FileIO properties of a PyIceberg table; None for any other object."""
    location = getattr(table, "metadata_location", None)
    file_io: Any = getattr(table, "io", None)
    if not isinstance(location, str) or not hasattr(file_io, "properties"):
        return None
    return location, {str(k): str(v) for k, v in file_io.properties.items()}


def _with_single_puts(found: Any) -> Any:
    """The same store, to which a small file is written by one request: Arrow begins, fills and completes an upload otherwise."""
    from pyarrow import fs

    if not isinstance(found, fs.S3FileSystem):
        return found
    rebuild, (options,) = found.__reduce__()
    return rebuild({**options, "allow_delayed_open": True})


def _open_filesystem(location: Location, properties: Mapping[str, str]) -> Any:
    from pyarrow import fs
    from pyiceberg.io import PY_IO_IMPL, SCHEMA_TO_FILE_IO, load_file_io

    handler: Any = fs.FSSpecHandler
    schemes = {*SCHEMA_TO_FILE_IO, "gcs"}  # PyArrow knows the second name of gs, too
    if location.scheme not in schemes and PY_IO_IMPL not in properties:
        known = ", ".join(f"{scheme}://" for scheme in sorted(schemes))
        raise MissingFileError(f"cannot open {location}: no file system for {location.scheme}://; known are {known}")
    try:
        file_io: Any = load_file_io(with_file_io(str(location), properties), str(location))
        if hasattr(file_io, "fs_by_scheme"):
            return _with_single_puts(file_io.fs_by_scheme(location.scheme, location.authority))
        return fs.PyFileSystem(handler(file_io.get_fs(location.scheme, location.authority)))
    except (ValueError, TypeError, ImportError, AttributeError, UserWarning) as error:
        scheme = urlsplit(str(location)).scheme
        lacks_account = location.scheme in _AZURE and isinstance(error, TypeError)
        reason = "state the storage account: adls.account-name" if lacks_account else error
        raise MissingFileError(f"cannot open {location}: no file system for {scheme}:// ({reason})") from error
