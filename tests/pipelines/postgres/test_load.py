"""A load is joined to the stream so that no change is lost or applied twice, whatever happens between its chunks."""

import random
from collections.abc import Callable
from dataclasses import replace
from typing import Any, cast

import numpy as np
import pyarrow as pa
import pytest

from nevermore.pipelines.config.project import Config
from nevermore.pipelines.ingest.feed_run import run_once
from nevermore.pipelines.ingest.report import IngestReport
from nevermore.pipelines.sources.postgres.load import PostgresBatch
from nevermore.pipelines.sources.postgres.position import PostgresPosition, Visibility
from nevermore.pipelines.sources.table_position import Chunk, KeyColumn, Load

ROWS = 60_000


def ingest_with(config: Config, between: Callable[[int], None]) -> IngestReport:
    """Ingest; call `between` with the number of commits after each of them."""
    commits = 0

    def progress(_: object) -> None:
        nonlocal commits
        commits += 1
        between(commits)

    return run_once(config, progress)


def compare(shop: Any, config: Config, name: str = "items") -> None:
    assert shop.reasons(config, name) == []
    found = sorted(tuple(map(str, row)) for row in shop.rows(config, name))
    rows = ((bytes(v) if isinstance(v, memoryview) else v for v in row) for row in shop.sql(f"SELECT * FROM {name}"))
    assert found == sorted(tuple(map(str, row)) for row in rows)


@pytest.fixture
def items(shop: Any) -> Any:
    shop.sql(
        "CREATE TABLE items (id int PRIMARY KEY, name text, big text)",
        "ALTER TABLE items ALTER COLUMN big SET STORAGE EXTERNAL",
        f"INSERT INTO items SELECT i * 10, 'n' || i, CASE WHEN i % 100 = 0 THEN repeat('b', 4000) END FROM generate_series(1, {ROWS}) i",
        "ANALYZE items",
        "CREATE PUBLICATION pub FOR TABLE items",
    )
    shop.source = {"chunk_bytes": "1MiB"}
    return shop


def change(shop: Any, seed: int) -> None:
    """Changes of every kind, also of keys between any two chunks, all over the table."""
    dice = random.Random(seed)

    def key() -> int:
        return dice.randrange(1, ROWS + 1) * 10

    for _ in range(5):
        shop.sql(
            f"UPDATE items SET name = 'u{seed}' WHERE id IN ({key()}, {key()}, {key() // 1000 * 1000})",
            f"DELETE FROM items WHERE id IN ({key()}, {key()})",
            f"INSERT INTO items VALUES ({key() + 1 + seed % 8}, 'new', repeat('c', 3000)) ON CONFLICT DO NOTHING",
            f"UPDATE items SET big = repeat('d', 5000) WHERE id = {key()}",
        )
        old, new = key(), key() + 9
        shop.sql(
            f"DELETE FROM items WHERE id = {new}",
            f"UPDATE items SET id = {new}, big = coalesce(big, '') || 'x' WHERE id = {old}",
        )


def test_changes_between_chunks_are_neither_lost_nor_doubled(items: Any) -> None:
    config = items.config("items")
    report = ingest_with(config, lambda commits: change(items, commits))
    assert report.tables[0].error is None
    assert report.tables[0].log_commits > 3
    change(items, 1000)
    items.ingest(config)
    compare(items, config)


def test_a_load_that_was_killed_continues_after_its_last_chunk(items: Any) -> None:
    config = items.config("items")

    class KilledError(BaseException):
        pass

    def kill(commits: int) -> None:
        change(items, commits)
        if commits == 2:
            raise KilledError

    with pytest.raises(KilledError):
        ingest_with(config, kill)
    change(items, 50)
    report = ingest_with(config, lambda commits: change(items, 100 + commits))
    assert report.tables[0].error is None
    assert 0 < report.tables[0].events["r"] < ROWS - 5_000
    items.ingest(config)
    compare(items, config)


def test_a_truncate_between_chunks_begins_the_load_again(items: Any) -> None:
    config = items.config("items")

    def truncate(commits: int) -> None:
        if commits == 2:
            items.sql("TRUNCATE items", "INSERT INTO items VALUES (5, 'after', NULL), (599995, 'after', NULL)")

    report = ingest_with(config, truncate)
    assert report.tables[0].error is None
    items.ingest(config)
    compare(items, config)


KEYS = {
    "text": ("k text", "(CASE i % 3 WHEN 0 THEN 'b' WHEN 1 THEN 'B' ELSE E'\\\\''%%' END) || i"),
    "text of another order": ('k text COLLATE "und-x-icu"', "(CASE i % 3 WHEN 0 THEN 'a' WHEN 1 THEN 'B' ELSE 'ä' END) || i"),
    "uuid": ("k uuid", "md5(i::text)::uuid"),
    "composite": ("a date, k char(6), b numeric(10,2)", "DATE '2024-01-01' + i % 7, 'c' || i % 100, i / 4.0"),
    "bytea": ("k bytea", "decode(md5(i::text), 'hex')"),
    "enum and time": ("e mood, k timestamptz", "(CASE i % 2 WHEN 0 THEN 'sad' ELSE 'happy' END)::mood, '2024-01-01Z'::timestamptz + i * interval '1.5 s'"),
    "domain": ("k positive", "i"),
}  # fmt: skip


@pytest.mark.parametrize("key", [k if k == "text" else pytest.param(k, marks=pytest.mark.slow) for k in KEYS])
def test_a_load_by_any_key_continues_after_each_chunk(shop: Any, key: str) -> None:
    columns, values = KEYS[key]
    names = ", ".join(column.split()[0] for column in columns.split(", ")) if "(" not in columns else "a, k, b"
    rows = 36_000
    if "icu" in columns and not shop.sql("SELECT FROM pg_collation WHERE collname = 'und-x-icu'"):
        pytest.skip("this PostgreSQL was built without ICU")
    shop.sql(
        "CREATE TYPE mood AS ENUM ('happy', 'sad', 'angry')",
        "CREATE DOMAIN positive AS bigint CHECK (VALUE >= 0)",
        f"CREATE TABLE items (n int, {columns}, name text, big text, PRIMARY KEY ({', '.join(reversed(names.split(', ')))}))",
        "ALTER TABLE items ALTER COLUMN big SET STORAGE EXTERNAL",
        f"INSERT INTO items SELECT i, {values}, repeat('n', 100), CASE WHEN i % 100 = 0 THEN repeat('b', 4000) END FROM generate_series(1, {rows}) i",
        "ANALYZE items",
        "CREATE PUBLICATION pub FOR TABLE items",
    )
    shop.source = {"chunk_bytes": "1MiB"}
    config = shop.config("items")
    dice = random.Random(key)

    def disturb(seed: int) -> None:
        for _ in range(4):
            old, new = dice.randrange(1, rows), rows + dice.randrange(10**6)
            shop.sql(
                f"UPDATE items SET name = 'u{seed}' WHERE n IN ({dice.randrange(rows)}, {dice.randrange(rows) // 100 * 100})",
                f"DELETE FROM items WHERE n = {dice.randrange(rows)}",
                f"INSERT INTO items SELECT i, {values}, 'new', repeat('c', 3000) FROM (VALUES ({new + 1})) v(i) ON CONFLICT DO NOTHING",
                f"DELETE FROM items WHERE n = {new}",
                f"UPDATE items SET (n, {names}) = (SELECT i, {values} FROM (VALUES ({new})) v(i)) WHERE n = {old} "
                f"AND NOT EXISTS (SELECT FROM items WHERE n = {new})",
            )

    class KilledError(BaseException):
        pass

    def kill(commits: int) -> None:
        disturb(commits)
        raise KilledError

    for _ in range(3):
        with pytest.raises(KilledError):
            ingest_with(config, kill)
    report = ingest_with(config, disturb)
    assert report.tables[0].error is None
    assert 0 < report.tables[0].events["r"] < rows - 15_000
    disturb(1000)
    shop.ingest(config)
    compare(shop, config)


@pytest.mark.each(3)
@pytest.mark.parametrize(
    "columns", ["id int, name text", "id text PRIMARY KEY, name text", "id int, k int, name text, PRIMARY KEY (id, k)"]
)
def test_a_table_added_later_is_loaded_once_although_the_slot_has_older_changes(shop: Any, columns: str) -> None:
    shop.sql("CREATE TABLE first (id int PRIMARY KEY)", "CREATE PUBLICATION pub FOR TABLE first")
    shop.ingest(shop.config("first"))
    shop.sql(
        f"CREATE TABLE items ({columns})",
        "ALTER TABLE items REPLICA IDENTITY FULL",
        "ALTER PUBLICATION pub ADD TABLE items",
    )
    values = "i, i, 'n'" if "k int" in columns else "i, 'n'"
    shop.sql(
        f"INSERT INTO items SELECT {values} FROM generate_series(1, 50) i",
        "UPDATE items SET name = 'x' WHERE id::int % 2 = 0",
        "DELETE FROM items WHERE id::int % 3 = 0",
    )
    identity = {} if "KEY" in columns else {"identity": "full"}
    shop.settings = {}
    config = shop.config("first", "items")
    if identity:
        shop.settings = identity
        config = shop.config("items")
    shop.ingest(config)
    compare(shop, config)
    shop.sql("UPDATE items SET name = 'y' WHERE id::int < 9", "DELETE FROM items WHERE id::int = 20")
    shop.ingest(config)
    compare(shop, config)


def test_visibility_of_transactions_across_the_end_of_their_numbers() -> None:
    low = 2**32
    seen = Visibility.parse(f"{low - 3}:{low + 2}:{low - 1},{low}").sees(np.array([2**32 - 4, 2**32 - 1, 0, 1, 2, 3]))
    assert seen.tolist() == [True, False, False, True, False, False]


def test_positions_survive_their_text() -> None:
    key = (KeyColumn("name", "text", "C"), KeyColumn("day", "date"))
    load = Load((Chunk(("a'", "2024-01-01"), "5:7:5,6"), Chunk(None, "7:7:")), None, 17, key)
    claims = {"shop.items": "public.items"}
    position = PostgresPosition(system="7", slot="slot", at=2**40 + 5, load=load, claims=claims)
    assert PostgresPosition.from_json(position.to_json()) == position
    assert position.reaching(2**41, {}).load is None
    assert replace(position, load=replace(load, until=0)).reaching(2**41, {}).load is not None


@pytest.mark.parametrize(
    ("values", "texts"),
    [
        (pa.array([b"\1" * 16, None], pa.binary(16)), ["01" * 16, "00" * 16]),
        (pa.array([b"\1" * 16, None], pa.uuid()), ["01" * 16, "00" * 16]),
        (pa.array([b"\1", b"", None]), [r"\x01", r"\x", r"\x"]),
        (pa.array([b"\1", None], pa.large_binary()), [r"\x01", r"\x"]),
        (pa.array([1, None]), ["1", None]),
    ],
    ids=["fixed", "uuid", "binary", "large", "integer"],
)
def test_keys_without_a_value_are_asked_for_as_any_text_that_the_server_reads(
    values: pa.Array, texts: list[str]
) -> None:
    assert PostgresBatch.texts_of(cast("PostgresBatch", None), values) == texts
