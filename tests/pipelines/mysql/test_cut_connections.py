"""Connections that end at any place of what the server sends: nothing is lost, nothing is applied twice."""

from collections.abc import Iterator
from typing import Any

import pytest

from nevermore.pipelines.ingest.feed_run import run_once
from tests.pipelines.mysql.conftest import BOTH, Shop
from tests.support.cut_proxy import CutProxy, cut_proxy

pytestmark = pytest.mark.slow
TABLES = ("items", "texts")


@pytest.fixture
def proxied(shop: Shop) -> Iterator[tuple[Shop, CutProxy]]:
    with cut_proxy(shop.server.port) as proxy:
        dsn = shop.server.dsn(shop.database).replace(str(shop.server.port), str(proxy.port))
        shop.source = {"dsn": dsn, "chunk_bytes": 1024**2}
        shop.sql(
            "CREATE TABLE items (id int PRIMARY KEY, n int, body longtext)",
            "CREATE TABLE texts (id varchar(20) PRIMARY KEY, n int, body longtext)",
        )
        yield shop, proxy


def change(shop: Shop, first: int) -> None:
    for name in TABLES:
        shop.sql(
            f"UPDATE {name} SET n = n + 1 WHERE id IN ('{first}', '{first + 1}')",
            f"UPDATE {name} SET id = '{first + 100_000}' WHERE id = '{first + 2}'",
            f"DELETE FROM {name} WHERE id = '{first + 3}'",
        )
    shop.together(*(f"UPDATE {name} SET n = n + 10, body = CONCAT('long', n)" for name in TABLES))
    shop.sql("BEGIN", "DELETE FROM items", "ROLLBACK")


def cut_run(config: Any, proxy: CutProxy, piece: int) -> bool:
    """Run while a connection is cut at a place; return whether it was reached."""
    proxy.cut_at(piece)
    for table in run_once(config).tables:
        assert table.error is None or any(word in table.error for word in ("MySQL", "log", "load"))
    reached = proxy.pieces >= piece > 0
    proxy.cut_at(None)
    return reached


def same(shop: Shop, config: Any) -> None:
    for name in TABLES:
        wanted = sorted((str(row[0]), *row[1:]) for row in shop.sql(f"SELECT id, n, body FROM {name}"))
        assert sorted((str(row[0]), *row[1:]) for row in shop.values(config, name)) == wanted, name


@BOTH
def test_a_load_may_be_cut_anywhere(proxied: tuple[Shop, CutProxy]) -> None:
    shop, proxy = proxied
    shop.sql(*(f"INSERT INTO {name} SELECT seq, 0, REPEAT('b', 60) FROM seq_1_to_2500" for name in TABLES))
    config = shop.config(*TABLES)
    piece, cuts = 1, 0
    while cut_run(config, proxy, piece):
        change(shop, 10 * cuts)
        piece += 1 + piece // 3
        cuts += 1
    assert cuts > 10
    shop.ingest(config)
    same(shop, config)


@pytest.mark.parametrize("step", [11, 1])
def test_a_stream_may_be_cut_anywhere(proxied: tuple[Shop, CutProxy], step: int) -> None:
    shop, proxy = proxied
    shop.sql(*(f"INSERT INTO {name} SELECT seq, 0, NULL FROM seq_1_to_200" for name in TABLES))
    config = shop.config(*TABLES)
    shop.ingest(config)
    piece = 1
    change(shop, 1)
    while cut_run(config, proxy, piece):
        change(shop, piece)
        if piece % 2:
            shop.ingest(config)
            same(shop, config)
        piece += step
    assert piece > 20
    shop.ingest(config)
    same(shop, config)


@BOTH
def test_a_row_of_several_packets_may_be_cut(proxied: tuple[Shop, CutProxy]) -> None:
    shop, proxy = proxied
    ((before,),) = shop.sql("SELECT @@global.max_allowed_packet")
    shop.sql(f"SET GLOBAL max_allowed_packet = {64 * 1024**2}")
    try:
        writer = shop.server.connect(shop.database)
        for name in TABLES:
            writer.cursor().execute(f"INSERT INTO {name} VALUES (1, 1, REPEAT('x', 25000000))")
        writer.close()
        assert not cut_run(shop.config("items"), proxy, -1)
        config, late = shop.config("texts"), proxy.pieces * 2 // 5 * 2  # in the second packet
        assert all(cut_run(config, proxy, piece) for piece in (late, late + 1, 400, 401))
        shop.ingest(config)
        assert [len(row["body"]) for row in shop.rows(config, "texts")] == [25_000_000]
    finally:
        # A log with larger rows than this allows has no positions for the server.
        shop.sql(f"SET GLOBAL max_allowed_packet = {before}", "FLUSH BINARY LOGS")
