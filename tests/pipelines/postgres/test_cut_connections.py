"""Connections that end at any place of what the server sends: nothing is lost, nothing is applied twice."""

from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from nevermore.pipelines.iceberg.catalog import open_catalog
from nevermore.pipelines.iceberg.loaded_table import open_current
from nevermore.pipelines.ingest.feed_run import run_once
from tests.pipelines.postgres.conftest import Shop
from tests.support.cut_proxy import CutProxy, cut_proxy

pytestmark = pytest.mark.slow
TABLES = ("items", "texts")


@pytest.fixture
def proxied(shop: Shop) -> Iterator[tuple[Shop, CutProxy]]:
    with cut_proxy(shop.server.port) as proxy:
        shop.dsn = shop.dsn.replace(str(shop.server.port), str(proxy.port))
        shop.sql(
            "CREATE TABLE items (id int PRIMARY KEY, n int, body text)",
            "CREATE TABLE texts (id text PRIMARY KEY, n int, body text)",
            *(f"ALTER TABLE {name} ALTER body SET STORAGE EXTERNAL" for name in TABLES),
            "CREATE PUBLICATION pub FOR TABLE items, texts",
        )
        yield shop, proxy


def fill(shop: Shop, first: int) -> None:
    """Rows for several chunks of a load."""
    shop.sql(
        *(
            f"INSERT INTO {name} SELECT i, 0, repeat('b', 40) FROM generate_series({first}, {first + 2499}) i"
            for name in TABLES
        )
    )


def change(shop: Shop, first: int) -> None:
    """Small transactions, one that is streamed, and one that is rolled back."""
    for name in TABLES:
        shop.sql(
            f"UPDATE {name} SET n = n + 1 WHERE id IN ('{first}', '{first + 1}')",
            f"UPDATE {name} SET id = '{first + 100_000}' WHERE id = '{first + 2}'",
            f"DELETE FROM {name} WHERE id = '{first + 3}'",
        )
    shop.connection.autocommit = False
    shop.sql(*(f"UPDATE {name} SET n = n + 10, body = 'long' || n WHERE id::int >= {first}" for name in TABLES))
    shop.connection.commit()
    shop.sql("DELETE FROM items")
    shop.connection.rollback()
    shop.connection.autocommit = True


def same(shop: Shop, config: Any) -> None:
    """The mirrors have the rows of the tables, and the change logs have each change once."""
    for name in TABLES:
        assert sorted(shop.rows(config, name)) == sorted(shop.sql(f"SELECT id, n, body FROM {name}")), name
        log = open_current(open_catalog(config).load_table(f"change_log.shop_{name}")).scan().to_table()
        places = Counter(zip(*(log.column(c).to_pylist() for c in ("source_file", "source_offset", "op")), strict=True))
        assert max((n for (_, _, op), n in places.items() if op != "r"), default=1) == 1


def ends(shop: Shop, proxy: CutProxy, how: str) -> Callable[[], bool]:
    """What ends the connections."""

    def by_server() -> bool:
        admin = shop.server.connect("postgres")
        admin.cursor().execute(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name = 'nevermore'"
        )
        admin.close()
        return False

    return {"cut": lambda: True, "terminated": by_server}[how]


def cut_run(config: Any, proxy: CutProxy, piece: int, action: Callable[[], bool]) -> bool:
    """Run while connections end at a place; return whether it was reached."""
    proxy.cut_at(piece, action)
    for table in run_once(config).tables:
        assert table.error is None or "PostgreSQL" in table.error or "slot" in table.error or "load" in table.error
    reached = proxy.pieces >= piece
    proxy.cut_at(None)
    return reached


@pytest.mark.parametrize("how", ["cut", "terminated"])
def test_a_load_may_be_cut_anywhere(proxied: tuple[Shop, CutProxy], how: str) -> None:
    shop, proxy = proxied
    fill(shop, 0)
    config = shop.config(*TABLES)
    piece, cuts = 1, 0
    while cut_run(config, proxy, piece, ends(shop, proxy, how)):
        change(shop, 10 * cuts)
        piece += 1 + piece // 3
        cuts += 1
    assert cuts > 10
    shop.ingest(config)
    same(shop, config)


@pytest.mark.parametrize("how", ["cut", "terminated"])
@pytest.mark.parametrize("step", [9, 1])
def test_a_stream_may_be_cut_anywhere(proxied: tuple[Shop, CutProxy], how: str, step: int) -> None:
    shop, proxy = proxied
    shop.sql(
        "INSERT INTO items SELECT i, 0 FROM generate_series(1, 200) i",
        "INSERT INTO texts SELECT i, 0 FROM generate_series(1, 200) i",
    )
    config = shop.config(*TABLES)
    shop.ingest(config)
    piece = 1
    change(shop, 1)
    while cut_run(config, proxy, piece, ends(shop, proxy, how)):
        change(shop, piece)
        if piece % 2:  # every other time the next round is cut as well
            shop.ingest(config)
            same(shop, config)
        piece += step
    assert piece > 20
    shop.ingest(config)
    same(shop, config)
