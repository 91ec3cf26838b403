"""A project as programs see it: the tables of its config by their names, to be scanned and written to.

The command line opens tables here, too.
"""

import os
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from difflib import get_close_matches
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from nevermore import scan_core
from nevermore.pipelines.config import DEFAULT_CONFIG, is_identifier
from nevermore.pipelines.config.project import Config, adding_table, load, sql_names
from nevermore.pipelines.errors import SourceError
from nevermore.pipelines.iceberg.catalog import all_table_names, expanded, find_table, open_to_look
from nevermore.pipelines.iceberg.warehouse import refuse_copy
from nevermore.scan_core import Expr, Scan, ScanOptions, Table, TableNotFoundError
from nevermore.scan_core.io import require_package, temporary_folder

if TYPE_CHECKING:
    from duckdb import DuckDBPyConnection
    from polars import LazyFrame

    from nevermore.pipelines.iceberg.catalog import Catalog
    from nevermore.pipelines.iceberg.catalog import Table as CatalogTable
    from nevermore.pipelines.ingest.report import TableReport


def open_project(place: str | os.PathLike[str] = DEFAULT_CONFIG) -> "Project":
    """Open a project to read its tables.

    Args:
        place: its config file, or the folder with its `nevermore.yaml`; default: the working directory.

    Raises:
        ConfigError: there is no config, or it is invalid.
    """
    path = Path(place)
    return Project(load(path / DEFAULT_CONFIG if path.is_dir() else path))


def open_table(table: str | os.PathLike[str] | Any, **options: Any) -> Table:
    """Open a table to read: a name of the project in the working directory, or what `scan_core.open_table` opens.

    Args:
        table: `namespace.table` if the working directory has a `nevermore.yaml`; otherwise a path, URI, name or object.
        options: those of `scan_core.open_table`.

    Raises:
        ScanError: there is no such table, or its metadata breaks the specification.
        PipelineError: the config of the working directory or its catalog cannot be used.
    """
    if isinstance(table, str) and "properties" not in options and is_identifier(table) and DEFAULT_CONFIG.exists():
        return open_project().table(table, **options)
    return scan_core.open_table(table, **options)


def upsert(
    table: "CatalogTable | str", data: Any, key: str | Sequence[str], *, keep: Literal["last"] | None = None
) -> int | None:
    """Insert rows into an Iceberg table without a project, or replace those with the same keys, in one commit.

    Version 2 gets equality deletes, version 3 deletion vectors. There is no change log, so nothing proves the rows later.
    Columns and types of the table stay as they are. Example: `upsert(catalog.load_table("shop.orders"), rows, key=["id"])`.

    Args:
        table: as PyIceberg loads it from a catalog, which shows the new snapshot afterwards, or `catalog.namespace.table` of
            PyIceberg's configuration.
        data: as for `Project.upsert`.
        key: columns that identify a row; all rows of the table with a given key are replaced.
        keep: as for `Project.upsert`.

    Returns:
        Id of the current snapshot of the table: the new one, unless `data` has no rows.

    Raises:
        SourceError: rows do not fit the table or lack columns, or it cannot be written to; nothing was written.
        SchemaConflictError: the key cannot identify rows, or a required column is NULL.
        CommitConflictError: other writers kept changing the table.
        TableNotFoundError: there is no such table.
    """
    from nevermore.pipelines.ingest.python_source import write_table

    return write_table(table, data, key, "u", keep)


def delete(table: "CatalogTable | str", keys: Any, key: str | Sequence[str]) -> int | None:
    """Delete the rows with these keys from an Iceberg table without a project, in one commit; see `upsert`.

    Args:
        table: as for `upsert`.
        keys: as `data` of `upsert`; only the key columns are read, and keys without a row are ignored.
        key: as for `upsert`.

    Returns:
        As `upsert`.

    Raises:
        SourceError: as `upsert`.
        SchemaConflictError: as `upsert`.
        CommitConflictError: as `upsert`.
        TableNotFoundError: as `upsert`.
    """
    from nevermore.pipelines.ingest.python_source import write_table

    return write_table(table, keys, key, "d", "last")


@dataclass
class Project:
    """A project; `config` is its config, to which `create` adds tables."""

    config: Config

    @property
    def tables(self) -> list[str]:
        """Names of the mirrors and published tables of the config that exist."""
        return self._names()[0]

    def table(
        self, name: str, *, relocate: Mapping[str, str] | None = None, options: ScanOptions | None = None
    ) -> Table:
        """Open a table of the project's catalog: a mirror, a published table, a change log or any other.

        Args:
            name: `namespace.table`.
            relocate: as for `open_table`.
            options: with which scans of the table start; default: `scan` of the config.

        Raises:
            TableNotFoundError: there is no such table; names the nearest.
            PipelineError: the catalog cannot be opened.
        """
        found = catalog_table(name, self.config, open_to_look)
        return scan_core.open_table(found, relocate=relocate, options=options or self.config.scan_options)

    def scan(self, name: str) -> Scan:
        """A scan of all rows of a table that are not deleted; the errors are those of `table`."""
        return self.table(name).scan()

    def as_of(self, when: datetime | str, names: Collection[str] | None = None) -> dict[str, Scan]:
        """Scans of tables as they were at a time, by name; all mirrors of one database show one of its commits.

        Example: `project.as_of("2026-01-03T12:00")["shop.orders"].to_pandas()`.

        The rows of a mirror whose snapshot has expired are made again from its change log, in files that go when the process ends.

        Args:
            when: a time, or its ISO 8601 text, in UTC without a zone.
            names: these tables; default: all mirrors and published tables of the config.

        Raises:
            TableNotFoundError: there is no such table.
            ScanError: a table has no snapshot of that time, and no change log that reaches back to it.
            SourceError: mirrors of a database have no commit in common that all of them had reached by then, or a log has only the last
                change of each key of that time.
            AdoptedRowsError: a mirror had rows that its change log does not have.
        """
        from nevermore.pipelines.mirrors.moments import scans_at  # imports what writes tables

        tables = {
            name: catalog_table(name, self.config, open_to_look) for name in (self.tables if names is None else names)
        }
        options = self.config.scan_options
        scans = {n: scan_core.open_table(t, options=options).scan().as_of_time(when) for n, t in tables.items()}
        if (catalog := open_to_look(self.config)) is None:
            return scans
        return scans | dict(scans_at(catalog, expanded(self.config, catalog), tables, scans))

    def polars(self, name: str) -> "LazyFrame":
        """A table as a LazyFrame of Polars, which reads only the columns and rows that a query needs.

        Raises:
            MissingPackageError: Polars is not installed.
            TableNotFoundError: there is no such table.
        """
        from nevermore.scan_core.polars import scan_iceberg

        return scan_iceberg(self.scan(name))

    def ibis(self) -> Any:
        """A backend of Ibis with the views of `duckdb`: `project.ibis().table("orders", database="shop")`.

        Raises:
            MissingPackageError: Ibis or DuckDB is not installed.
        """
        ibis = require_package("ibis", "ibis", "ibis-framework[duckdb]")
        return ibis.duckdb.from_connection(self.duckdb())

    def duckdb(
        self, names: Collection[str] | None = None, *, as_of: datetime | int | None = None, ref: str | None = None
    ) -> "DuckDBPyConnection":
        """A connection of DuckDB in which tables of the project are views `namespace.table`.

        A query reads only the columns and rows that it needs. A mirror or published table also has a view without its
        namespace, unless another has the same name. The views show the tables as they are when this is called.

        Args:
            names: these tables; default: all of the config, their change logs and quarantines.
            as_of: show the tables as of this time, as the method of this name does, or a table as of the snapshot with this id.
            ref: show this branch or tag of the tables.

        Raises:
            MissingPackageError: DuckDB is not installed.
            TableNotFoundError: there is no such table.
            ScanError: a table has no snapshot of that time, or no such branch.
        """
        views, connection = self.sql_names, duckdb_connection()
        names = {*views.values()} if names is None else names
        if isinstance(as_of, datetime):
            scans = self.as_of(as_of, names)
        else:
            scans = {name: self.scan(name) if as_of is None else self.scan(name).as_of(as_of) for name in names}
        if ref is not None:
            scans = {name: scan.at_ref(ref) for name, scan in scans.items()}
        add_views(connection, views, scans)
        return connection

    @property
    def sql_names(self) -> dict[str, str]:
        """Existing tables by the names that SQL may use; see `config.project.sql_names`."""
        return sql_names(*self._names())

    def _names(self) -> tuple[list[str], Collection[str]]:
        """(mirrors and published tables that exist, all tables of the catalog)."""
        catalog = open_to_look(self.config)
        if catalog is None:
            return [], ()
        config, existing = expanded(self.config, catalog), set(all_table_names(catalog))
        return [name for name in (*config.tables, *config.published) if name in existing], existing

    def create(self, name: str, schema: Any, *, key: str | Sequence[str] = (), **options: Any) -> None:
        """Create a table that programs fill, without rows, and add it to the config file; nothing if it exists like this.

        Example: `project.create("shop.orders", pa.schema({"id": pa.int64(), "amount": pa.float64()}), key="id")`.

        Args:
            name: `namespace.table`. If the config does not have it, an entry below `tables:` is written to its file.
            schema: columns as a `pyarrow.Schema`, or anything with `__arrow_c_schema__`.
            key: columns that identify a row; without any, rows are only appended (`identity: full`).
            options: of the table, as in the config: `partition_by=["day(created_at)"]`.

        Raises:
            ConfigError: an option is wrong, the table is there with other options, or the file cannot be written.
            SourceError: Iceberg has no type for a column.
            SchemaConflictError: the table is there with other columns, or has none that the key names.
        """
        from nevermore.pipelines.ingest.python_source import create

        columns = [key] if isinstance(key, str) else [*key]
        entry = {"source": {"type": "python"}, **({"key": columns} if columns else {"identity": "full"}), **options}
        with adding_table(self.config, name, entry) as config:
            create(config, name, schema)
        self.config = config

    def upsert(
        self, name: str, data: Any, *, batch_id: str | None = None, keep: Literal["last"] | None = None
    ) -> "TableReport":
        """Insert rows, or replace those with the same keys, in one commit.

        Args:
            name: a table of the config with `source: {type: python}`.
            data: whole rows: a DataFrame of pandas, Polars or Spark, a relation of DuckDB, a list of dicts, or anything with
                `__arrow_c_stream__`, such as an Arrow table or reader.
            batch_id: name of the batch: one of the last 1,000 that were applied is not applied again.
            keep: `last` if only the last of several rows with a key counts; without it, they are refused.

        Returns:
            What was done; its `status` is `nothing new` if the batch was applied before.

        Raises:
            ConfigError: no such table, or one that is filled from another source.
            SourceError: rows that do not fit the table, or lack columns; nothing was written.
            SchemaConflictError: a column changes its type or is new, and the config does not allow it.
        """
        from nevermore.pipelines.ingest.python_source import write

        return write(self.config, name, data, "u", batch_id=batch_id, keep=keep)

    def replace(self, name: str, data: Any, where: "str | Expr", *, batch_id: str | None = None) -> "TableReport":
        """Let the rows that match a condition become exactly these, by key, in one commit.

        Rows that are new or differ are upserted, and those that match and are not given are deleted. Equal rows are not
        written. Example: `project.replace("shop.orders", rows, where="day = date '2026-11-28'")`; `where="true"` replaces all.

        Args:
            name: as for `upsert`.
            data: as for `upsert`; each row matches `where`.
            where: a filter as for scans, on columns that the data has.
            batch_id: as for `upsert`.

        Returns:
            As `upsert`.

        Raises:
            ConfigError: as `upsert`.
            SourceError: as `upsert`, or a row does not match `where`.
            PredicateError: the filter is wrong.
            SchemaConflictError: as `upsert`.
        """
        from nevermore.pipelines.ingest.python_source import write

        return write(self.config, name, data, "u", where=where, batch_id=batch_id)

    def append(self, name: str, data: Any, *, batch_id: str | None = None) -> "TableReport":
        """Add rows to a table without a key (`identity: full`), in one commit; equal rows are kept.

        Args:
            name: as for `upsert`.
            data: as for `upsert`.
            batch_id: as for `upsert`.

        Returns:
            As `upsert`.

        Raises:
            ConfigError: as `upsert`, or the table has a key.
            SourceError: as `upsert`.
            SchemaConflictError: as `upsert`.
        """
        from nevermore.pipelines.ingest.python_source import write

        return write(self.config, name, data, "c", batch_id=batch_id, keep="last")

    def delete(self, name: str, keys: Any, *, batch_id: str | None = None) -> "TableReport":
        """Delete the rows with these keys, in one commit; keys without a row are ignored.

        Args:
            name: as for `upsert`.
            keys: as `data` of `upsert`; only columns of the key and of `order_by` are read.
            batch_id: as for `upsert`.

        Returns:
            As `upsert`.

        Raises:
            ConfigError: as `upsert`.
            SourceError: as `upsert`.
        """
        from nevermore.pipelines.ingest.python_source import write

        return write(self.config, name, keys, "d", batch_id=batch_id, keep="last")

    def writer(self, name: str, *, keep: Literal["last"] | None = None) -> Callable[[Any, int], None]:
        """A function for `foreachBatch` of Spark's Structured Streaming, which upserts each batch once.

        A batch is known by the id of the query, which stays in its checkpoint, and its number; one that is sent again after a
        failure is not applied again.

        Args:
            name: as for `upsert`.
            keep: as for `upsert`.
        """

        def write(rows: Any, number: int) -> None:
            query = rows.sparkSession.sparkContext.getLocalProperty("sql.streaming.queryId")
            if query is None:
                raise SourceError(f"{name}: this writer is for foreachBatch of a streaming query; call upsert instead")
            self.upsert(name, rows, batch_id=f"{query}:{number}", keep=keep)

        return write


def duckdb_connection() -> "DuckDBPyConnection":
    """A connection of DuckDB to a database in memory, for `add_views`.

    Raises:
        MissingPackageError: DuckDB is not installed.
    """
    connection: DuckDBPyConnection = require_package("duckdb", "SQL", "nevermore-iceberg[sql]").connect()
    connection.execute("set timezone = 'UTC'; set autoinstall_known_extensions = false")  # nothing is downloaded
    connection.execute("set temp_directory = ?", [str(temporary_folder())])
    return connection


def add_views(connection: "DuckDBPyConnection", views: Mapping[str, str], scans: Mapping[str, Scan]) -> None:
    """Make views of scans by the names of their tables, replacing earlier ones; `views` has tables by names of views."""
    for name, scan in scans.items():
        rows = scan.to_duckdb(name, connection)
        for schema, _, last in (view.rpartition(".") for view, table in views.items() if table == name):
            quoted = (schema or "main").replace('"', '""')
            connection.execute(f'create schema if not exists "{quoted}"; use "{quoted}"')
            rows.create_view(last, replace=True)
    connection.execute("use main")


def catalog_table(name: str, config: Config, open_with: "Callable[[Config], Catalog | None]") -> Any:
    """A table of the catalog of a config, which `open_with` opens, as PyIceberg loads it.

    Raises:
        TableNotFoundError: there is none; names the nearest.
        CatalogMismatchError: it is a table of another project, from which this one was copied.
    """
    catalog = open_with(config)
    found = None if catalog is None else find_table(catalog, name)
    if found is None:
        known = {*config.tables, *config.published, *(() if catalog is None else all_table_names(catalog))}
        last = name.rpartition(".")[2].strip().casefold()
        same = sorted(table for table in known if table.rpartition(".")[2].casefold() == last)
        near = same or get_close_matches(name, sorted(known), n=3)
        if name in config.tables or name in config.published:
            hint = "it is in the config, but nothing has been written to it yet"
        else:
            hint = f"did you mean {', '.join(near)}?" if near else "has it been ingested yet?"
        raise TableNotFoundError(f"no table {name!r} in the catalog of {config.path}; {hint}")
    refuse_copy(config, name, found.metadata_location)
    return found
