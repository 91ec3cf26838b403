"""A round ends with all that was committed before it, without waiting for the server to write more of its log."""

from collections.abc import Iterator
from contextlib import closing
from typing import Any

import pytest

from nevermore.pipelines.config.sources import PostgresSource
from nevermore.pipelines.ingest.feed_run import run_once
from nevermore.pipelines.sources.postgres.inspection import findings
from nevermore.pipelines.sources.postgres.position import lsn_of
from nevermore.pipelines.sources.postgres.server import Server


@pytest.fixture
def asked(shop: Any) -> Iterator[Server]:
    """The server, with a role that may replicate and read, and no more."""
    name = f"reader_{shop.slot}"
    shop.sql(
        "CREATE TABLE items (id int PRIMARY KEY, name text)",
        "CREATE TABLE other (body text)",
        "CREATE PUBLICATION pub FOR TABLE items",
        f"CREATE ROLE {name} LOGIN REPLICATION",
        f"GRANT SELECT ON items TO {name}",
    )
    shop.dsn = shop.dsn.replace("ingester@", f"{name}@")
    server = Server(PostgresSource(type="postgres", dsn=shop.dsn, slot=shop.slot, publication="pub"))
    yield server
    server.close()
    shop.sql(f"DROP OWNED BY {name}", f"DROP ROLE {name}")


def log_on_disk(shop: Any) -> int:
    return lsn_of(shop.sql("SELECT pg_current_wal_flush_lsn()::text")[0][0])


@pytest.mark.parametrize("begin", [[], ["BEGIN"]], ids=["asynchronous commits", "a transaction that stays open"])
def test_all_log_is_on_disk_up_to_the_end_of_a_round(shop: Any, asked: Server, begin: list[str]) -> None:
    shop.sql("SET synchronous_commit = off")
    for size in (10, 3000, 20_000):
        shop.sql(*begin, f"INSERT INTO other SELECT repeat('x', {size}) FROM generate_series(1, 9)")
        before = asked.inserted
        assert before <= asked.written() <= log_on_disk(shop)
        shop.sql("COMMIT")


def test_changes_are_read_beside_a_transaction_that_stays_open(shop: Any, asked: Server) -> None:
    config = shop.config("items")
    shop.ingest(config)
    writer = shop.server.connect(shop.database)
    writer.autocommit = False
    for number in range(3):
        shop.sql(f"SET synchronous_commit = off; INSERT INTO items VALUES ({number}, 'n')")
        with writer.cursor() as cursor:
            cursor.execute("INSERT INTO other SELECT repeat('x', 9000) FROM generate_series(1, 500)")
        shop.ingest(config)
        assert len(shop.rows(config, "items")) == number + 1
    writer.close()


def test_a_quiet_server_is_not_written_to(shop: Any, asked: Server) -> None:
    shop.sql("CHECKPOINT")
    asked.written()  # takes the log along that is not on disk
    before = asked.inserted
    for _ in range(100):
        asked.written()
    assert asked.inserted - before < 2000  # the server itself writes some, but no message for each


def test_a_role_that_may_not_write_messages_is_told_how(shop: Any, asked: Server) -> None:
    config = shop.config("items")
    shop.ingest(config)
    (function,) = shop.sql(
        "SELECT max(oid::regprocedure::text) FROM pg_proc WHERE proname = 'pg_logical_emit_message' AND proargtypes[2] = 25"
    )[0]
    shop.sql(f"REVOKE EXECUTE ON FUNCTION {function} FROM PUBLIC")
    (found,) = (
        f
        for f in findings(asked.source, lambda names: dict.fromkeys(names, config.tables["shop.items"]), list)
        if f.what == "right to write messages"
    )
    assert found.status == "failed"
    assert f"GRANT EXECUTE ON FUNCTION {function} TO reader_" in found.found
    shop.sql("BEGIN", "INSERT INTO other SELECT repeat('x', 9000) FROM generate_series(1, 500)")
    (table,) = run_once(config).tables
    shop.sql("COMMIT")
    assert "permission denied for function pg_logical_emit_message" in str(table.error)


def test_questions_to_the_catalog_are_not_compiled(shop: Any) -> None:
    shop.sql("CREATE TABLE items (id int PRIMARY KEY)", "CREATE PUBLICATION pub FOR TABLE items")
    server = Server(PostgresSource(type="postgres", dsn=shop.dsn, slot=shop.slot, publication="pub"))
    with closing(server):
        assert server.value("SHOW jit") == "off"
        assert [table.name for table in server.require_publication().tables] == ["public.items"]
