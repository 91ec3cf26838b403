"""A MariaDB and a MySQL server for all tests of a process, and a database with a project for each of them."""

import itertools
import re
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
import yaml

from nevermore.pipelines.config.project import Config, load
from nevermore.pipelines.iceberg.catalog import open_catalog
from nevermore.pipelines.iceberg.loaded_table import open_current
from nevermore.pipelines.ingest.feed_run import run_once
from nevermore.pipelines.ingest.report import IngestReport
from tests.support.mysql_servers import MysqlServer, mysql_server

ROOT = Path(__file__).parents[3]
_NUMBERS = itertools.count()
_SEQUENCE = re.compile(r"\bseq_1_to_(\d+)")
"""Tables of numbers that MariaDB has."""
_NUMBERS_OF_MYSQL = (
    r"(WITH RECURSIVE s(seq) AS (SELECT 1 UNION ALL SELECT seq + 1 FROM s WHERE seq < \1) SELECT seq FROM s) AS numbers"
)


BOTH = pytest.mark.parametrize("server", ["mariadb", "mysql"], indirect=True)
"""For the tests that are quick enough to run on both servers at every change."""


@pytest.fixture(scope="session")
def running() -> Iterator[Callable[[str], MysqlServer]]:
    """The server of a kind, which runs from when it is first asked for until the process ends."""
    with ExitStack() as stack:
        known: dict[str, MysqlServer] = {}

        def of_kind(kind: str) -> MysqlServer:
            if kind not in known:
                known[kind] = stack.enter_context(mysql_server(kind))
            return known[kind]

        yield of_kind


@pytest.fixture(scope="session", params=["mariadb", pytest.param("mysql", marks=pytest.mark.slow)])
def server(request: pytest.FixtureRequest, running: Callable[[str], MysqlServer]) -> MysqlServer:
    """A server; pytest ends a fixture with parameters whenever the parameter changes, which it does in every file."""
    return running(request.param)


RIGHTS = re.findall(r"^(?:CREATE USER|GRANT) .*;$", (ROOT / "docs" / "mysql.md").read_text(), re.MULTILINE)
"""The user that the page recommends, with whom all tests read."""


class Shop:
    """A database, and a project that reads it."""

    def __init__(self, server: MysqlServer, folder: Path) -> None:
        self.server = server
        self.folder = folder
        self.database = f"shop{next(_NUMBERS)}"
        self.connection = server.connect()
        self.sql(*(right.replace("CREATE USER", "CREATE USER IF NOT EXISTS") for right in RIGHTS))
        self.sql(f"CREATE DATABASE {self.database}", f"USE {self.database}", "SET time_zone = '+00:00'")
        self.source: dict[str, Any] = {}
        if not self.is_mariadb:
            self.sql("SET cte_max_recursion_depth = 10000000")

    @property
    def is_mariadb(self) -> bool:
        return self.server.kind == "mariadb"

    def sql(self, *statements: str) -> list[tuple[Any, ...]]:
        """Run statements, each a transaction; return the rows of the last."""
        with self.connection.cursor() as cursor:
            for statement in statements:
                cursor.execute(statement if self.is_mariadb else _SEQUENCE.sub(_NUMBERS_OF_MYSQL, statement))
            return list(cursor.fetchall())

    def together(self, *statements: str) -> None:
        """Run statements as one transaction."""
        self.sql("BEGIN", *statements, "COMMIT")

    @property
    def dsn(self) -> str:
        """The address of the server, which may have become another one, for the user of the page."""
        return self.server.dsn(self.database).replace("root@", "reader:secret@")

    def config(self, *tables: str, **settings: Any) -> Config:
        """A config with these tables, `shop.NAME` for the table NAME."""
        source = {"type": "mysql", "dsn": self.dsn, **self.source}
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
def shop(server: MysqlServer, tmp_path: Path) -> Iterator[Shop]:
    made = Shop(server, tmp_path)
    yield made
    made.close()
