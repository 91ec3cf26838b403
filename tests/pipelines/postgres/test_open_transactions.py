"""Large transactions that are open for some rounds: committed, rolled back, in parts, beside others, and killed."""

from collections.abc import Iterator
from typing import Any

import pytest

from nevermore.pipelines.ingest.feed_run import run_once
from nevermore.pipelines.ingest.feeds import Readers


@pytest.fixture
def busy(shop: Any) -> Any:
    """A server that keeps 64 kB of a transaction in memory, and its tables."""
    shop.sql(
        f"ALTER DATABASE {shop.database} SET logical_decoding_work_mem = '64kB'",
        "CREATE TABLE items (id int PRIMARY KEY, name text)",
        "CREATE TABLE other (id int PRIMARY KEY, name text)",
        "CREATE PUBLICATION pub FOR ALL TABLES",
        "INSERT INTO items SELECT i, 'first' FROM generate_series(1, 100) i",
    )
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


@pytest.mark.each(2)
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
