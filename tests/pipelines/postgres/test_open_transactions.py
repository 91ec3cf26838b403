"""Transactions that the server sends while they are in progress: committed, rolled back, in parts, beside others, and killed."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from nevermore.pipelines.ingest.feed_run import run_once
from nevermore.pipelines.ingest.feeds import Readers
from nevermore.pipelines.sources.postgres.reader import OpenTransactions


@pytest.fixture(
    params=[pytest.param(True, id="streaming"), pytest.param(False, id="after the commit", marks=pytest.mark.slow)]
)
def busy(request: pytest.FixtureRequest, shop: Any) -> Any:
    """A server that sends what is more than 64 kB of a transaction, and a mirror that keeps little in memory."""
    shop.sql(
        f"ALTER DATABASE {shop.database} SET logical_decoding_work_mem = '64kB'",
        "CREATE TABLE items (id int PRIMARY KEY, name text)",
        "CREATE TABLE other (id int PRIMARY KEY, name text)",
        "CREATE PUBLICATION pub FOR ALL TABLES",
        "INSERT INTO items SELECT i, 'first' FROM generate_series(1, 100) i",
    )
    shop.source = {"streaming": request.param}
    return shop


def same(shop: Any, config: Any, *names: str) -> None:
    for name in names or ("items", "other"):
        assert shop.rows(config, name) == sorted(shop.sql(f"SELECT * FROM {name}"), key=lambda r: str(r[0]).zfill(20))
        assert shop.reasons(config, name) == []


@pytest.fixture
def second(busy: Any) -> Iterator[Any]:
    """Another connection, whose transaction stays open."""
    connection = busy.server.connect(busy.database)
    connection.autocommit = False
    with connection.cursor() as cursor:
        yield cursor
    connection.rollback()
    connection.close()


def fill(first: int, count: int, name: str = "'n' || i", table: str = "items") -> str:
    return f"INSERT INTO {table} SELECT i, {name} FROM generate_series({first}, {first + count - 1}) i"


def test_it_appears_with_its_commit_beside_small_ones(busy: Any, second: Any) -> None:
    config = busy.config("items", "other")
    busy.ingest(config)
    readers = Readers()
    second.execute(fill(1000, 5000))
    second.execute("UPDATE items SET name = 'u' WHERE id % 2 = 0")
    for number in range(3):
        busy.sql(f"INSERT INTO other VALUES ({number}, 'small')")
        report = run_once(config, readers=readers)
        assert not any(t.error for t in report.tables)
        same(busy, config)
        second.execute(fill(10_000 * (number + 1), 3000))
    second.execute(fill(100, 3000, table="other"))
    second.connection.commit()
    assert not any(t.error for t in run_once(config, readers=readers).tables)
    readers.close()
    same(busy, config)
    assert len(busy.rows(config, "items")) == 100 + 5000 + 9000
    sent = busy.sql(f"SELECT stream_txns > 0 FROM pg_stat_replication_slots WHERE slot_name = '{busy.slot}'")
    assert sent == [(busy.source["streaming"],)]


@pytest.mark.slow
def test_what_is_rolled_back_leaves_nothing(busy: Any, second: Any) -> None:
    config = busy.config("items", "other")
    busy.ingest(config)
    readers = Readers()
    second.execute(fill(1000, 5000))
    run_once(config, readers=readers)
    second.connection.rollback()
    busy.sql("INSERT INTO other VALUES (1, 'small')")
    run_once(config, readers=readers)
    same(busy, config)
    second.execute(fill(1000, 2000, "'kept'"))
    second.execute("SAVEPOINT a")
    second.execute(fill(5000, 3000))
    second.execute("DELETE FROM items WHERE id < 50")
    run_once(config, readers=readers)
    second.execute("SAVEPOINT b")
    second.execute(fill(9000, 3000))
    run_once(config, readers=readers)
    second.execute("ROLLBACK TO a")
    second.execute("SAVEPOINT c")
    second.execute(fill(20_000, 3000))
    second.execute("RELEASE c")
    second.execute("UPDATE items SET name = 'late' WHERE id = 60")
    run_once(config, readers=readers)
    second.connection.commit()
    assert not any(t.error for t in run_once(config, readers=readers).tables)
    readers.close()
    same(busy, config)
    assert len(busy.rows(config, "items")) == 100 + 2000 + 3000


@pytest.mark.slow
def test_columns_that_change_within_it(busy: Any, second: Any) -> None:
    config = busy.config("items", "other")
    busy.ingest(config)
    readers = Readers()
    second.execute(fill(1000, 3000))
    run_once(config, readers=readers)
    second.execute("ALTER TABLE items ADD COLUMN price int")
    second.execute("INSERT INTO items SELECT i, 'n', 8 FROM generate_series(5000, 8000) i")
    second.execute("SAVEPOINT a")
    second.execute("ALTER TABLE other ADD COLUMN gone int")
    second.execute("INSERT INTO other SELECT i, 'n', 8 FROM generate_series(5000, 8000) i")
    second.execute("ROLLBACK TO a")
    second.connection.commit()
    busy.sql("INSERT INTO other VALUES (1, 'small')", "ALTER TABLE other ADD COLUMN kept text")
    second.execute("INSERT INTO other SELECT i, 'n', 'k' FROM generate_series(5000, 8000) i")
    busy.sql("UPDATE items SET price = 9 WHERE id = 5000", "INSERT INTO items VALUES (9999, 'x', 3)")
    run_once(config, readers=readers)
    second.connection.commit()
    assert not any(t.error for t in run_once(config, readers=readers).tables)
    readers.close()
    same(busy, config, "other")
    # rows of a column that is added later have no value until they change
    found = {row[0]: row for row in busy.rows(config, "items")}
    assert [found[5000], found[8000], found[9999], found[1000][:2]] == [
        (5000, "n", 9),
        (8000, "n", 8),
        (9999, "x", 3),
        (1000, "n1000"),
    ]


@pytest.mark.slow
def test_two_of_them_at_once_and_a_truncate(busy: Any, second: Any) -> None:
    config = busy.config("items", "other")
    busy.ingest(config)
    readers = Readers()
    third = busy.server.connect(busy.database)
    third.autocommit = False
    with third.cursor() as cursor:
        for part in range(3):
            second.execute(fill(1000 + 5000 * part, 2000))
            cursor.execute(fill(3000 + 5000 * part, 2000, "'third'"))
            run_once(config, readers=readers)
        cursor.execute("TRUNCATE other")
        cursor.execute(fill(1, 3000, table="other"))
    third.commit()
    run_once(config, readers=readers)
    same(busy, config)
    third.close()
    second.connection.commit()
    assert not any(t.error for t in run_once(config, readers=readers).tables)
    readers.close()
    same(busy, config)


@pytest.mark.slow
@pytest.mark.parametrize("when", ["open", "committed"])
def test_a_connection_that_breaks_loses_and_doubles_nothing(busy: Any, second: Any, when: str) -> None:
    busy.sql("ALTER TABLE items REPLICA IDENTITY FULL", "ALTER TABLE other REPLICA IDENTITY FULL")
    config = busy.config("items", "other", identity="full")
    busy.ingest(config)
    readers = Readers()
    second.execute(fill(1000, 5000))
    run_once(config, readers=readers)
    if when == "committed":
        second.connection.commit()
    busy.sql("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name = 'nevermore'")
    for number in range(4):
        busy.sql(f"INSERT INTO other VALUES ({number}, 'small')")
        run_once(config, readers=readers)
    second.execute("UPDATE items SET name = 'after' WHERE id < 2000")
    second.connection.commit()
    assert not any(t.error for t in run_once(config, readers=readers).tables)
    readers.close()
    same(busy, config)


class KilledError(BaseException):
    """Instead of a kill: nothing of the run gets to its end."""


@pytest.mark.parametrize("at", [1, 2])
def test_a_kill_between_the_commits_of_its_tables(busy: Any, at: int) -> None:
    busy.sql("ALTER TABLE items REPLICA IDENTITY FULL", "ALTER TABLE other REPLICA IDENTITY FULL")
    config = busy.config("items", "other", identity="full", memory_limit_bytes="16MiB")
    busy.ingest(config)
    busy.sql(
        f"BEGIN; {fill(1000, 20000)}; {fill(1000, 20000, table='other')}; UPDATE items SET name = 'x' WHERE id % 3 = 0; COMMIT"
    )
    commits = 0

    def kill(_: object) -> None:
        nonlocal commits
        commits += 1
        if commits == at:
            raise KilledError

    with pytest.raises(KilledError):
        run_once(config, kill)
    busy.ingest(config)
    same(busy, config)
    busy.ingest(config)
    same(busy, config)


def blocks(transaction: int, parts: dict[int, int]) -> Iterator[bytes]:
    """Messages of a transaction: so many of each part."""
    yield b"S" + transaction.to_bytes(4, "big") + b"\1"
    for part, count in parts.items():
        for number in range(count):
            yield b"I" + part.to_bytes(4, "big") + number.to_bytes(4, "big")
    yield b"E"


def test_memory_is_bounded_and_files_go_away(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    opened = OpenTransactions()

    def files() -> list[Path]:
        return list(tmp_path.rglob("*.arrow"))

    def send(messages: Iterator[bytes]) -> list[bytes]:
        return [out for message in messages for out in opened.committed(message, 10_000)]

    assert send(blocks(7, {7: 500, 8: 300})) == []
    assert send(blocks(9, {9: 10})) == []
    assert send(blocks(7, {7: 5})) == []
    assert len(opened) == 2
    assert files()
    assert send(iter([b"A" + (7).to_bytes(4, "big") + (8).to_bytes(4, "big")])) == []
    end = b"\0" + bytes(range(24))
    out = send(iter([b"c" + (7).to_bytes(4, "big") + end]))
    assert out[0] == b"B" + end[1:9] + end[17:25] + (7).to_bytes(4, "big")
    assert out[-1] == b"C" + end
    assert out[1:-1] == [b"I" + n.to_bytes(4, "big") for n in [*range(500), *range(5)]]
    assert len(opened) == 1
    send(iter([b"A" + (9).to_bytes(4, "big") * 2]))
    assert len(opened) == 0
    assert files() == []
    send(blocks(11, {11: 500}))
    opened.close()
    assert files() == []
