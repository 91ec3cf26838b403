"""A MariaDB server for all tests of a process, and a database with a project for each of them."""

import itertools
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from pipelines.config.project import Config, load
from pipelines.iceberg.catalog import open_catalog
from pipelines.iceberg.loaded_table import open_current
from pipelines.ingest.feed_run import run_once
from pipelines.ingest.report import IngestReport
from tests.support.mariadb_server import MariaServer, mariadb, programs_or_skip

_NUMBERS = itertools.count()


@pytest.fixture(scope="session")
def server() -> Iterator[MariaServer]:
    with mariadb(programs_or_skip()) as running:
        yield running


class Shop:
    """A database, and a project that reads it."""

    def __init__(self, server: MariaServer, folder: Path) -> None:
        self.server = server
        self.folder = folder
        self.database = f"shop{next(_NUMBERS)}"
        self.connection = server.connect()
        self.sql(f"CREATE DATABASE {self.database}", f"USE {self.database}", "SET time_zone = '+00:00'")
        self.source: dict[str, Any] = {}

    def sql(self, *statements: str) -> list[tuple[Any, ...]]:
        """Run statements, each a transaction; return the rows of the last."""
        with self.connection.cursor() as cursor:
            for statement in statements:
                cursor.execute(statement)
            return list(cursor.fetchall())

    def together(self, *statements: str) -> None:
        """Run statements as one transaction."""
        self.sql("BEGIN", *statements, "COMMIT")

    def config(self, *tables: str, **settings: Any) -> Config:
        """A config with these tables, `shop.NAME` for the table NAME."""
        source = {"type": "mysql", "dsn": self.server.dsn(self.database), **self.source}
        entries = {f"shop.{name}": {"source": source, **settings} for name in tables}
        path = self.folder / "nevermore.yaml"
        path.write_text(yaml.safe_dump({"tables": entries}))
        return load(path)

    def ingest(self, config: Config) -> IngestReport:
        report = run_once(config)
        errors = self.errors(report)
        assert not errors, errors
        return report

    @staticmethod
    def errors(report: IngestReport) -> dict[str, str]:
        return {table.table: table.error for table in report.tables if table.error is not None}

    def error(self, config: Config) -> str:
        """What stops the only table."""
        (text,) = self.errors(run_once(config)).values()
        return text

    def rows(self, config: Config, name: str) -> list[dict[str, Any]]:
        """Rows of a mirror, sorted by their first column."""
        table = open_current(open_catalog(config).load_table(f"shop.{name}"))
        rows: list[dict[str, Any]] = table.scan().to_table().to_pylist()
        return sorted(rows, key=lambda row: str(next(iter(row.values()))).zfill(20))

    def values(self, config: Config, name: str) -> list[tuple[Any, ...]]:
        return [tuple(row.values()) for row in self.rows(config, name)]

    def close(self) -> None:
        self.connection.close()


@pytest.fixture
def shop(server: MariaServer, tmp_path: Path) -> Iterator[Shop]:
    made = Shop(server, tmp_path)
    yield made
    made.close()
