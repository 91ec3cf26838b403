"""A replica takes over: the position is found in its log by the global transaction identifiers, or the table says what is missing."""

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.pipelines.mysql.conftest import Shop
from tests.support.mysql_servers import MysqlServer, mysql_server


class Pair:
    """A primary with its replica, and a shop on the primary."""

    def __init__(self, primary: MysqlServer, replica: MysqlServer, folder: Path) -> None:
        self.primary, self.replica = primary, replica
        self.shop = Shop(primary, folder)
        self.on_replica = replica.connect()
        self.run("STOP SLAVE", *self._source())
        self.shop.sql(
            "CREATE TABLE t (id int PRIMARY KEY, name varchar(50))", "INSERT INTO t VALUES (1, 'a'), (2, 'b')"
        )

    def _source(self) -> list[str]:
        mode = "MASTER_USE_GTID = slave_pos" if self.shop.is_mariadb else "MASTER_AUTO_POSITION = 1"
        where = f"MASTER_HOST = '127.0.0.1', MASTER_PORT = {self.primary.port}, MASTER_USER = 'root', MASTER_CONNECT_RETRY = 1"
        return [f"CHANGE MASTER TO {where}, {mode}", "START SLAVE"]

    def run(self, *statements: str) -> list[tuple[Any, ...]]:
        """Run statements on the replica."""
        with self.on_replica.cursor() as cursor:
            for statement in statements:
                cursor.execute(statement)
            return list(cursor.fetchall())

    def follow(self) -> None:
        """Wait until the replica has all of the primary."""
        if self.shop.is_mariadb:
            ((position,),) = self.shop.sql("SELECT @@gtid_binlog_pos")
            assert self.run(f"SELECT MASTER_GTID_WAIT('{position}', 60)") == [(0,)]
        else:
            ((executed,),) = self.shop.sql("SELECT @@gtid_executed")
            assert self.run(f"SELECT WAIT_FOR_EXECUTED_GTID_SET('{executed}', 60)") == [(0,)]

    def switch(self) -> None:
        """The primary dies, and the replica takes its place."""
        self.primary.stop(kill=True)
        self.run("STOP SLAVE", "RESET SLAVE ALL", f"USE {self.shop.database}")
        self.shop.connection.close()
        self.shop.connection, self.shop.server = self.on_replica, self.replica


@pytest.fixture(params=["mariadb", "mysql"])
def pair(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Pair]:
    settings = {"server-id": "2", "log-slave-updates": "ON", "skip-slave-start": "ON"}
    with mysql_server(request.param) as primary, mysql_server(request.param, settings) as replica:
        made = Pair(primary, replica, tmp_path)
        yield made
        made.shop.close()


def same(shop: Shop, config: Any) -> None:
    assert shop.values(config, "t") == shop.sql("SELECT * FROM t ORDER BY id")


@pytest.mark.slow
def test_a_replica_that_takes_over_is_read_from_where_the_primary_was_left(pair: Pair) -> None:
    shop = pair.shop
    config = shop.config("t")
    shop.ingest(config)
    shop.sql("UPDATE t SET name = 'c' WHERE id = 1", "INSERT INTO t VALUES (3, 'c')")
    shop.ingest(config)
    shop.sql("FLUSH LOGS", "DELETE FROM t WHERE id = 2", "UPDATE t SET name = 'unread' WHERE id = 3")
    pair.follow()
    pair.run("FLUSH LOGS", "FLUSH LOGS")
    pair.switch()
    shop.sql("INSERT INTO t VALUES (4, 'd')", "UPDATE t SET id = 30 WHERE id = 3", "FLUSH LOGS")
    config = shop.config("t")
    report = shop.ingest(config)
    assert report.tables[0].events == {"d": 1, "u": 2, "c": 1}
    same(shop, config)
    shop.sql("INSERT INTO t VALUES (5, 'e')")
    shop.ingest(config)
    same(shop, config)
    assert not shop.ingest(config).tables[0].events


@pytest.mark.slow
def test_a_load_that_another_server_began_begins_again(pair: Pair) -> None:
    shop = pair.shop
    config = shop.config("t")
    shop.ingest(config)  # the load is not known to be over: nothing was read after it
    pair.follow()
    pair.switch()
    shop.sql("INSERT INTO t VALUES (4, 'd')", "DELETE FROM t WHERE id = 1")
    config = shop.config("t")
    shop.ingest(config)
    same(shop, config)
    shop.sql("UPDATE t SET name = 'x'")
    shop.ingest(config)
    same(shop, config)


@pytest.mark.slow
def test_a_replica_that_is_behind_is_an_error_until_it_has_what_was_read(pair: Pair) -> None:
    shop = pair.shop
    pair.follow()
    config = shop.config("t")
    shop.ingest(config)
    pair.run("STOP SLAVE")
    shop.sql("INSERT INTO t VALUES (3, 'read')")
    shop.ingest(config)
    former, shop.server = shop.server, pair.replica
    config = shop.config("t")
    assert "If it is a replica that is behind, wait for it" in shop.error(config)
    shop.server = former
    pair.run("START SLAVE")
    pair.follow()
    pair.switch()
    shop.sql("INSERT INTO t VALUES (4, 'after')")
    config = shop.config("t")
    shop.ingest(config)
    same(shop, config)


@pytest.mark.slow
def test_what_the_replica_does_not_have_in_its_log_is_an_error_with_a_way_out(pair: Pair) -> None:
    shop = pair.shop
    config = shop.config("t")
    shop.ingest(config)
    shop.sql("INSERT INTO t VALUES (3, 'c')")
    shop.ingest(config)
    shop.sql("INSERT INTO t VALUES (4, 'unread')")
    pair.follow()
    pair.switch()
    shop.sql("FLUSH LOGS", "INSERT INTO t VALUES (5, 'e')")
    last = str(shop.sql("SHOW BINARY LOGS")[-1][0])
    for _ in range(200):  # MariaDB keeps a file until what it has is flushed
        shop.sql(f"PURGE BINARY LOGS TO '{last}'")
        if shop.sql("SHOW BINARY LOGS")[0][0] == last:
            break
        time.sleep(0.1)
    config = shop.config("t")
    text = shop.error(config)
    # MariaDB has nothing that tells a server from its replica
    assert (
        "the server has removed binlog.0" if shop.is_mariadb else "no place with exactly these transactions"
    ) in text
    assert "nevermore resync TABLE --from-source" in text
