"""A server or a slot that is no longer the one that was read: an error with a way out, never a gap."""

import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from nevermore.pipelines.iceberg.catalog import open_catalog
from nevermore.pipelines.ingest.feed_run import run_once
from nevermore.pipelines.maintain.replay import resync_from_source
from tests.pipelines.postgres.conftest import Shop
from tests.support.postgres_server import PostgresServer, postgres, programs_or_skip


def filled(shop: Any) -> None:
    shop.sql(
        "CREATE TABLE items (id int PRIMARY KEY, name text)",
        "CREATE PUBLICATION pub FOR ALL TABLES",
        "INSERT INTO items SELECT i, 'first' FROM generate_series(1, 20) i",
    )


def created(shop: Any) -> Any:
    filled(shop)
    config = shop.config("items")
    shop.ingest(config)
    return config


def error_of(config: Any) -> str:
    (table,) = run_once(config).tables
    return str(table.error)


def loads_again(shop: Any, config: Any) -> None:
    """The way out that the message names leads out."""
    resync_from_source(open_catalog(config), config, "shop.items")
    assert shop.rows(config, "items") == shop.sql("SELECT * FROM items ORDER BY id")
    shop.sql("INSERT INTO items VALUES (100000, 'later')")
    shop.ingest(config)
    assert shop.rows(config, "items") == shop.sql("SELECT * FROM items ORDER BY id")


@pytest.fixture
def own(tmp_path: Path) -> Iterator[tuple[PostgresServer, Any]]:
    with postgres(programs_or_skip()) as server:
        shop = Shop(server, tmp_path)
        yield server, shop
        shop.connection.close()


def restarted(server: PostgresServer, shop: Any, change: Callable[[Path], None]) -> None:
    """Stop the server, change its folder, start it."""
    shop.connection.close()
    server.stop()
    change(server.folder / "data")
    server.start()
    shop.connection = server.connect(shop.database)


def copied(data: Path) -> None:
    """The standby is this far."""
    shutil.copytree(data, data.parent / "copy")
    owner = data.stat()
    for path in (data.parent / "copy", *(data.parent / "copy").rglob("*")):
        shutil.chown(path, owner.st_uid, owner.st_gid)


def with_copy(data: Path) -> None:
    shutil.rmtree(data)
    (data.parent / "copy").rename(data)


def as_standby(data: Path) -> None:
    (data / "standby.signal").touch()
    shutil.chown(data / "standby.signal", data.stat().st_uid)


def promoted(shop: Any) -> None:
    assert shop.sql("SELECT pg_promote()") == [(True,)]


@pytest.mark.slow
def test_a_standby_that_lacks_what_was_read(own: tuple[PostgresServer, Any]) -> None:
    server, shop = own
    config = created(shop)
    restarted(server, shop, copied)
    shop.sql("UPDATE items SET name = 'never replicated' WHERE id < 5")
    shop.ingest(config)
    restarted(server, shop, lambda data: (with_copy(data), as_standby(data))[0])
    assert "is a standby" in error_of(config)
    promoted(shop)
    shop.sql("INSERT INTO items SELECT i, 'of the new primary' FROM generate_series(100, 3000) i")
    assert "the server was replaced by a standby" in error_of(config)
    assert "nevermore resync TABLE --from-source" in error_of(config)
    loads_again(shop, config)


@pytest.mark.slow
def test_a_standby_that_has_all_goes_on(own: tuple[PostgresServer, Any]) -> None:
    server, shop = own
    config = created(shop)
    restarted(server, shop, copied)
    restarted(server, shop, as_standby)
    promoted(shop)
    shop.sql("UPDATE items SET name = 'of the new primary' WHERE id < 5")
    shop.ingest(config)
    assert shop.rows(config, "items") == shop.sql("SELECT * FROM items ORDER BY id")
    shop.sql("DELETE FROM items WHERE id = 7")
    shop.ingest(config)
    assert shop.rows(config, "items") == shop.sql("SELECT * FROM items ORDER BY id")
    restarted(server, shop, with_copy)  # a copy of the former primary, before the switch
    shop.sql("INSERT INTO items SELECT i, 'of the copy' FROM generate_series(100, 9000) i")
    assert "the server was replaced by a standby, or restored, which does not have its log" in error_of(config)
    loads_again(shop, config)


@pytest.mark.slow
def test_a_server_that_was_restored_from_a_copy(own: tuple[PostgresServer, Any]) -> None:
    server, shop = own
    config = created(shop)
    restarted(server, shop, copied)
    shop.sql("INSERT INTO items SELECT i, 'gone' FROM generate_series(100, 3000) i")
    shop.ingest(config)
    restarted(server, shop, with_copy)
    assert "restored from a copy" in error_of(config)
    loads_again(shop, config)


@pytest.mark.slow
def test_another_cluster(own: tuple[PostgresServer, Any], shop: Any) -> None:
    created(shop)
    _, other = own
    filled(other)
    other.slot = shop.slot
    config = other.config("items")  # in the same folder
    assert "another database cluster" in error_of(config)
    loads_again(other, config)


@pytest.mark.slow
def test_log_that_the_server_has_removed(own: tuple[PostgresServer, Any]) -> None:
    _, shop = own
    config = created(shop)
    shop.sql(
        "ALTER SYSTEM SET max_slot_wal_keep_size = '1MB'", "SELECT pg_reload_conf()", "UPDATE items SET name = 'x'"
    )
    for _ in range(5):
        shop.sql("CREATE TABLE filler AS SELECT repeat('x', 1000) FROM generate_series(1, 20000)", "DROP TABLE filler")
        shop.sql("SELECT pg_switch_wal()", "CHECKPOINT")
    assert shop.sql("SELECT wal_status FROM pg_replication_slots") == [("lost",)]
    assert "the server has removed log" in error_of(config)
    assert "nevermore resync TABLE --from-source" in error_of(config)
    loads_again(shop, config)


def test_a_slot_that_was_dropped_and_made_again(shop: Any) -> None:
    config = created(shop)
    shop.drop_slot()
    shop.sql(
        "UPDATE items SET name = 'unseen' WHERE id = 3",
        f"SELECT pg_create_logical_replication_slot('{shop.slot}', 'pgoutput')",
        "UPDATE items SET name = 'seen' WHERE id = 4",
    )
    assert "was read up to" in error_of(config)
    loads_again(shop, config)


def test_a_slot_that_is_replaced_during_a_load(shop: Any) -> None:
    config = created(shop)
    shop.sql("CREATE TABLE other (id int PRIMARY KEY)", "INSERT INTO other VALUES (1)")

    def replace_slot(_: object) -> None:
        shop.drop_slot()
        shop.sql(
            "UPDATE items SET name = 'unseen' WHERE id = 3",
            f"SELECT pg_create_logical_replication_slot('{shop.slot}', 'pgoutput')",
        )

    report = run_once(shop.config("items", "other"), replace_slot)
    assert all("was read up to" in str(table.error) for table in report.tables)
    loads_again(shop, config)


def test_a_slot_of_another_plugin(shop: Any) -> None:
    if not list(shop.server.programs.parent.rglob("test_decoding.so")):
        pytest.skip("this PostgreSQL has no other plugin")
    shop.sql(f"SELECT pg_create_logical_replication_slot('{shop.slot}', 'test_decoding')")
    shop.sql("CREATE TABLE items (id int PRIMARY KEY)", "CREATE PUBLICATION pub FOR ALL TABLES")
    assert "is a slot of test_decoding, not of pgoutput; choose another name" in error_of(shop.config("items"))
