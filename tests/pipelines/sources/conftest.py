"""The folder that the tests of this package read, and the servers of databases on which they run alike."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.pipelines.mysql.conftest import Shop as MysqlShop
from tests.pipelines.postgres.conftest import Shop as PostgresShop
from tests.pipelines.sources.folder_reader import Reader
from tests.support.mysql_servers import mysql_server
from tests.support.postgres_server import postgres, programs_or_skip

Shop = MysqlShop | PostgresShop


@pytest.fixture
def reader(tmp_path: Path) -> Reader:
    return Reader(tmp_path)


@pytest.fixture(scope="module", params=["mariadb", "postgres", pytest.param("mysql", marks=pytest.mark.slow)])
def server(request: pytest.FixtureRequest) -> Iterator[Any]:
    running = postgres(programs_or_skip()) if request.param == "postgres" else mysql_server(request.param)
    with running as found:
        yield found


@pytest.fixture
def empty_shop(server: Any, tmp_path: Path) -> Iterator[Shop]:
    made = MysqlShop(server, tmp_path) if hasattr(server, "kind") else PostgresShop(server, tmp_path)
    yield made
    made.close()
