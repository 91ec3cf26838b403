"""A PostgreSQL server for all tests of a process, and a database with a project for each of them."""

import itertools
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
import yaml

from nevermore.pipelines.config.project import Config, load
from nevermore.pipelines.iceberg.catalog import open_catalog
from nevermore.pipelines.iceberg.loaded_table import open_current
from nevermore.pipelines.ingest.feed_run import run_once
from nevermore.pipelines.ingest.report import IngestReport
from tests.support.postgres_server import PostgresServer, installed, postgres, programs_or_skip

_NUMBERS = itertools.count()
_PAGE = Path(__file__).parents[3] / "docs" / "postgresql.md"
ROLE = next(line for line in _PAGE.read_text().splitlines() if line.startswith("CREATE ROLE"))
"""The user that the page recommends, with whom all tests read."""


VERSIONS = pytest.mark.parametrize("server", ["newest", "oldest"], indirect=True)
"""For the tests of what versions do differently: on the newest server that is installed, and on the oldest one."""


@pytest.fixture(scope="session")
def running() -> Iterator[Callable[[Path], PostgresServer]]:
    """The server of these programs, which runs from when it is first asked for until the process ends."""
    with ExitStack() as stack:
        known: dict[Path, PostgresServer] = {}

        def of(programs: Path) -> PostgresServer:
            if programs not in known:
                known[programs] = stack.enter_context(postgres(programs))
            return known[programs]

        yield of


@pytest.fixture(scope="session", params=["newest", pytest.param("oldest", marks=pytest.mark.slow)])
def server(request: pytest.FixtureRequest, running: Callable[[Path], PostgresServer]) -> PostgresServer:
    programs = programs_or_skip()
    if request.param == "oldest":
        if len(installed()) == 1:
            pytest.skip("there is only one version of PostgreSQL")
        programs = list(installed().values())[-1]
    return running(programs)


class Shop:
    """A database, and a project that reads it."""

    def __init__(self, server: PostgresServer, folder: Path) -> None:
        self.server = server
        self.folder = folder
        self.database = f"shop{next(_NUMBERS)}"
        admin = server.connect("postgres")
        admin.cursor().execute(f"CREATE DATABASE {self.database}")
        admin.cursor().execute(f"DO $$ BEGIN {ROLE} EXCEPTION WHEN duplicate_object THEN NULL; END $$")
        admin.close()
        self.dsn = server.dsn(self.database).replace("postgres@", "ingester@")
        self.slot = self.database
        self.connection = server.connect(self.database)
        for what in ("SELECT ON TABLES", "USAGE ON SCHEMAS"):
            self.sql(f"ALTER DEFAULT PRIVILEGES GRANT {what} TO ingester")
        self.settings: dict[str, Any] = {}
        self.source: dict[str, Any] = {}
        self.top: dict[str, Any] = {}

    def sql(self, *statements: str) -> list[tuple[Any, ...]]:
        """Run statements, each a transaction; return the rows of the last."""
        with self.connection.cursor() as cursor:
            for statement in statements:
                cursor.execute(statement)
            return list(cursor.fetchall()) if cursor.description else []

    def drop_slot(self) -> None:
        """Drop the slot, once the server has noticed that its reader has gone."""
        while self.sql("SELECT active FROM pg_replication_slots WHERE slot_name = current_database()") == [(True,)]:
            time.sleep(0.05)
        self.sql(f"SELECT pg_drop_replication_slot('{self.slot}')")

    def config(self, *tables: str, **settings: Any) -> Config:
        """A config with these tables, `shop.NAME` for `public.NAME`."""
        source = {"type": "postgres", "dsn": self.dsn, "slot": self.slot, "publication": "pub", **self.source}
        entries = {f"shop.{name}": {"source": source, **self.settings, **settings} for name in tables}
        path = self.folder / "nevermore.yaml"
        path.write_text(yaml.safe_dump({"tables": entries, **self.top}))
        return load(path)

    def ingest(self, config: Config) -> IngestReport:
        report = run_once(config)
        errors = {table.table: table.error for table in report.tables if table.error is not None}
        assert not errors, errors
        return report

    def mirror(self, config: Config, name: str, snapshot: int | None = None) -> pa.Table:
        """A mirror."""
        table = open_current(open_catalog(config).load_table(f"shop.{name}"))
        scan = table.scan() if snapshot is None else table.scan().as_of_snapshot(snapshot)
        return scan.to_table()

    def rows(self, config: Config, name: str, snapshot: int | None = None) -> list[tuple[Any, ...]]:
        """Rows of a mirror, sorted by their first column."""
        rows = self.mirror(config, name, snapshot).to_pylist()
        return sorted((tuple(row.values()) for row in rows), key=lambda row: str(row[0]).zfill(20))

    def reasons(self, config: Config, name: str) -> list[str]:
        """Why events of a mirror are in quarantine."""
        catalog = open_catalog(config)
        if not catalog.table_exists(f"quarantine.shop_{name}"):
            return []
        rows = open_current(catalog.load_table(f"quarantine.shop_{name}")).scan().to_table()
        return rows.column("reason").to_pylist()

    def close(self) -> None:
        self.connection.close()
        admin = self.server.connect("postgres")
        with admin.cursor() as cursor:
            cursor.execute(
                "SELECT pg_terminate_backend(active_pid) FROM pg_replication_slots WHERE database = %s AND active",
                [self.database],
            )
            for _ in range(100):
                cursor.execute(
                    "SELECT slot_name FROM pg_replication_slots WHERE database = %s AND NOT active", [self.database]
                )
                for (slot,) in cursor.fetchall():
                    cursor.execute("SELECT pg_drop_replication_slot(%s)", [slot])
                cursor.execute("SELECT count(*) FROM pg_replication_slots WHERE database = %s", [self.database])
                if cursor.fetchone()[0] == 0:
                    break
            cursor.execute(f"DROP DATABASE {self.database} WITH (FORCE)")
        admin.close()


@pytest.fixture
def shop(server: PostgresServer, tmp_path: Path) -> Iterator[Shop]:
    made = Shop(server, tmp_path)
    yield made
    made.close()
