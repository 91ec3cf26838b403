"""What can happen to a table of a database, and what its mirror must then be."""

from typing import Any

import pytest

from nevermore.pipelines.iceberg.catalog import open_catalog
from nevermore.pipelines.ingest.feed_run import run_once
from nevermore.pipelines.maintain.replay import resync_from_source

BIG = "repeat(md5(random()::text), 500)"
"""A value that PostgreSQL stores outside of the row, so that updates of other columns do not send it."""


def same(shop: Any, config: Any, name: str = "items") -> None:
    """The mirror has the rows of its table, as text."""
    query = f"SELECT * FROM {name} ORDER BY 1"
    assert [tuple(map(str, row)) for row in shop.rows(config, name)] == [tuple(map(str, r)) for r in shop.sql(query)]
    assert shop.reasons(config, name) == []


def created(shop: Any, *more: str, columns: str = "id int PRIMARY KEY, name text, big text") -> Any:
    shop.sql(
        f"CREATE TABLE items ({columns})",
        "ALTER TABLE items ALTER COLUMN big SET STORAGE EXTERNAL",
        *more,
        "CREATE PUBLICATION pub FOR TABLE items",
        f"INSERT INTO items SELECT i, 'n' || i, {BIG} FROM generate_series(1, 20) i",
    )
    config = shop.config("items")
    shop.ingest(config)
    same(shop, config)
    return config


IDENTITIES = {
    "default": (),
    "full": ("ALTER TABLE items REPLICA IDENTITY FULL",),
    "index": ("CREATE UNIQUE INDEX other ON items (id)", "ALTER TABLE items REPLICA IDENTITY USING INDEX other"),
}


@pytest.mark.each(3)
@pytest.mark.parametrize("identity", IDENTITIES)
def test_updates_key_changes_and_truncates(shop: Any, identity: str) -> None:
    config = created(shop, *IDENTITIES[identity])
    shop.sql(
        "UPDATE items SET name = 'x' WHERE id < 5",
        "DELETE FROM items WHERE id = 6",
        f"UPDATE items SET big = {BIG} WHERE id = 7",
    )
    shop.ingest(config)
    same(shop, config)
    shop.sql(
        "UPDATE items SET id = id + 100 WHERE id IN (3, 8)",
        "UPDATE items SET name = 'again' WHERE id = 103",
        "BEGIN; INSERT INTO items VALUES (50, 'a', 'b'); UPDATE items SET id = 51 WHERE id = 50; DELETE FROM items WHERE id = 51; COMMIT",
    )
    shop.ingest(config)
    same(shop, config)
    shop.sql(
        "INSERT INTO items VALUES (300, 'before', NULL)",
        "TRUNCATE items",
        "INSERT INTO items VALUES (301, 'after', NULL)",
    )
    shop.ingest(config)
    same(shop, config)


@pytest.mark.each(5)
@pytest.mark.parametrize("identity", IDENTITIES)
@pytest.mark.parametrize("soft", [False, True], ids=["deletes", "soft deletes"])
def test_keys_that_change_places_keep_their_large_values(shop: Any, identity: str, *, soft: bool) -> None:
    shop.sql(
        "CREATE TABLE items (id int PRIMARY KEY, name text, big text)",
        "ALTER TABLE items ALTER COLUMN big SET STORAGE EXTERNAL",
        *IDENTITIES[identity],
        "CREATE PUBLICATION pub FOR TABLE items",
        f"INSERT INTO items SELECT i, 'n' || i, {BIG} FROM generate_series(1, 5) i",
    )
    config = shop.config("items", soft_delete=soft)
    shop.ingest(config)
    moves = [(1, -1), (2, 1), (-1, 2), (3, 30), (30, 31), (31, 3), (4, 40)]
    updates = "; ".join(f"UPDATE items SET id = {new}, name = 'moved' WHERE id = {old}" for old, new in moves)
    shop.sql(f"BEGIN; {updates}; COMMIT")
    shop.ingest(config)
    assert shop.reasons(config, "items") == []
    rows = shop.rows(config, "items")
    assert [row[:3] for row in rows if len(row) == 3 or not row[3]] == shop.sql("SELECT * FROM items ORDER BY 1")


def test_a_rolled_back_transaction_leaves_nothing(shop: Any) -> None:
    config = created(shop)
    shop.sql(
        "BEGIN; UPDATE items SET name = 'no'; DELETE FROM items WHERE id < 5; ROLLBACK",
        "UPDATE items SET name = 'yes' WHERE id = 9",
    )
    shop.sql(
        "BEGIN; SAVEPOINT a; DELETE FROM items WHERE id < 5; ROLLBACK TO a; DELETE FROM items WHERE id = 10; COMMIT"
    )
    shop.ingest(config)
    same(shop, config)


def test_columns_are_added_widened_renamed_and_dropped(shop: Any) -> None:
    config = created(shop)
    shop.sql(
        "ALTER TABLE items ADD COLUMN price numeric(10,2) DEFAULT 1.5",
        "UPDATE items SET price = 2 WHERE id = 1",
        "INSERT INTO items VALUES (21, 'new', NULL, 3)",
    )
    shop.ingest(config)
    found = {row[0]: row for row in shop.rows(config, "items")}
    assert [str(found[1][3]), str(found[21][3])] == ["2.00", "3.00"]
    shop.sql(
        "ALTER TABLE items DROP COLUMN name",
        "INSERT INTO items VALUES (22, NULL, 4)",
        "UPDATE items SET price = 5 WHERE id = 1",
    )
    shop.ingest(config)
    assert shop.reasons(config, "items") == []
    found = {row[0]: row for row in shop.rows(config, "items")}
    assert found[22][1] is None
    assert str(found[1][3]) == "5.00"
    shop.sql("ALTER TABLE items ALTER COLUMN id TYPE bigint", "INSERT INTO items VALUES (5000000000, NULL, 4)")
    shop.ingest(config)
    assert 5000000000 in {row[0] for row in shop.rows(config, "items")}


def test_a_transaction_larger_than_memory_is_applied_whole(shop: Any) -> None:
    shop.settings = {"memory_limit_bytes": "16MiB"}
    shop.sql("CREATE TABLE items (id int PRIMARY KEY, name text)", "CREATE PUBLICATION pub FOR TABLE items")
    config = shop.config("items")
    shop.ingest(config)
    shop.sql(
        "BEGIN; INSERT INTO items SELECT i, repeat('x', 100) || i FROM generate_series(1, 60000) i; "
        "UPDATE items SET name = 'even' WHERE id % 2 = 0; DELETE FROM items WHERE id % 3 = 0; COMMIT",
        "DELETE FROM items WHERE id = 1",
    )
    shop.ingest(config)
    same(shop, config)
    assert len(shop.rows(config, "items")) == 39_999


def test_a_table_whose_changes_name_no_row_is_refused(shop: Any) -> None:
    shop.sql("CREATE TABLE items (id int, name text)", "CREATE PUBLICATION pub FOR TABLE items")
    (table,) = run_once(shop.config("items")).tables
    assert "no primary key" in str(table.error)
    assert "REPLICA IDENTITY FULL" in str(table.error)


UNREADABLE = {
    "CREATE TABLE items ()": "public.items has no columns that are sent",
    "CREATE TABLE items (a int, id int GENERATED ALWAYS AS (a * 2) STORED PRIMARY KEY)": "public.items is identified by id, which is not sent",
}


@pytest.mark.parametrize("table", UNREADABLE)
def test_a_table_of_which_nothing_useful_is_sent_is_refused(shop: Any, table: str) -> None:
    shop.sql(
        table,
        "CREATE PUBLICATION pub FOR TABLE items",
        "INSERT INTO items DEFAULT VALUES" if "(a" not in table else "INSERT INTO items VALUES (1)",
    )
    (found,) = run_once(shop.config("items")).tables
    assert UNREADABLE[table] in str(found.error)


def test_a_table_without_a_key_counts_equal_rows(shop: Any) -> None:
    shop.sql(
        "CREATE TABLE items (id int, name text)",
        "ALTER TABLE items REPLICA IDENTITY FULL",
        "CREATE PUBLICATION pub FOR TABLE items",
        "INSERT INTO items SELECT i % 3, 'n' FROM generate_series(1, 9) i",
    )
    config = shop.config("items", identity="full")
    shop.ingest(config)
    shop.sql(
        "DELETE FROM items WHERE ctid IN (SELECT ctid FROM items WHERE id = 1 LIMIT 1)",
        "INSERT INTO items VALUES (2, 'n')",
    )
    shop.ingest(config)
    same(shop, config)


def test_partitions_become_one_mirror(shop: Any) -> None:
    shop.sql(
        "CREATE TABLE items (id int, day date, name text, PRIMARY KEY (id, day)) PARTITION BY RANGE (day)",
        "CREATE TABLE items_1 PARTITION OF items FOR VALUES FROM ('2024-01-01') TO ('2024-02-01')",
        "CREATE TABLE items_2 PARTITION OF items FOR VALUES FROM ('2024-02-01') TO ('2024-03-01')",
        "INSERT INTO items SELECT i, DATE '2024-01-01' + i, 'n' FROM generate_series(1, 50) i",
        "CREATE PUBLICATION pub FOR TABLE items WITH (publish_via_partition_root = true)",
    )
    config = shop.config("items")
    shop.ingest(config)
    same(shop, config)
    shop.sql("UPDATE items SET day = '2024-02-20' WHERE id = 3", "INSERT INTO items VALUES (99, '2024-01-05', 'x')")
    shop.ingest(config)
    same(shop, config)


def test_several_tables_share_a_slot_and_a_table_is_added_later(shop: Any) -> None:
    for name in ("items", "orders"):
        shop.sql(
            f"CREATE TABLE {name} (id text PRIMARY KEY, name text)",
            f"INSERT INTO {name} SELECT i::text, 'n' FROM generate_series(1, 9) i",
        )
    shop.sql("CREATE PUBLICATION pub FOR TABLE items")
    config = shop.config("items")
    shop.ingest(config)
    shop.sql(
        "ALTER PUBLICATION pub ADD TABLE orders",
        "INSERT INTO items VALUES ('x', 'y')",
        "INSERT INTO orders VALUES ('x', 'y')",
    )
    config = shop.config("items", "orders")
    shop.ingest(config)
    shop.sql("DELETE FROM orders WHERE id = '3'", "DELETE FROM items WHERE id = '4'")
    shop.ingest(config)
    same(shop, config)
    same(shop, config, "orders")


def test_a_pattern_finds_the_tables_of_the_publication(shop: Any) -> None:
    for name in ("items", "orders"):
        shop.sql(f"CREATE TABLE {name} (id int PRIMARY KEY)", f"INSERT INTO {name} SELECT generate_series(1, 9)")
    shop.sql("CREATE PUBLICATION pub FOR ALL TABLES")
    config = shop.config("*", exclude_tables=["orders"])
    shop.ingest(config)
    same(shop, config)
    shop.ingest(shop.config("*"))
    shop.sql("INSERT INTO orders VALUES (10)")
    shop.ingest(shop.config("*"))
    same(shop, config, "orders")
    same(shop, config)


def test_a_dropped_slot_is_an_error_with_a_way_out(shop: Any) -> None:
    config = created(shop)
    shop.drop_slot()
    shop.sql("UPDATE items SET name = 'lost'")
    (table,) = run_once(config).tables
    assert "no replication slot" in str(table.error)
    assert "nevermore resync" in str(table.error)
    assert shop.sql("SELECT count(*) FROM pg_replication_slots WHERE slot_name = current_database()") == [(0,)]


def test_a_table_is_loaded_again_in_one_snapshot(shop: Any) -> None:
    config = created(shop)
    shop.drop_slot()
    shop.sql("UPDATE items SET name = 'lost'", "DELETE FROM items WHERE id = 3")
    catalog = open_catalog(config)
    before = len(catalog.load_table("shop.items").metadata.snapshots)
    resync_from_source(catalog, config, "shop.items")
    assert len(catalog.load_table("shop.items").metadata.snapshots) == before + 1
    same(shop, config)
    shop.sql("UPDATE items SET name = 'found' WHERE id = 4")
    shop.ingest(config)
    same(shop, config)


def test_changes_that_someone_else_took_are_an_error(shop: Any) -> None:
    config = created(shop)
    shop.sql(
        "UPDATE items SET name = 'lost'", f"SELECT pg_replication_slot_advance('{shop.slot}', pg_current_wal_lsn())"
    )
    (table,) = run_once(config).tables
    assert "by someone else" in str(table.error)


def test_a_missing_publication_is_an_error_with_a_way_out(shop: Any) -> None:
    shop.sql("CREATE TABLE items (id int PRIMARY KEY)")
    (table,) = run_once(shop.config("items")).tables
    assert "CREATE PUBLICATION pub FOR TABLE" in str(table.error)


GAPS = {
    "out of the publication": (
        "ALTER PUBLICATION pub DROP TABLE items",
        "UPDATE items SET name = 'unseen' WHERE id = 1",
        "ALTER PUBLICATION pub ADD TABLE items",
    ),
    "created again": (
        "DROP TABLE items",
        "CREATE TABLE items (id int PRIMARY KEY, name text, big text)",
        "INSERT INTO items VALUES (500, 'unseen', NULL)",
        "ALTER PUBLICATION pub ADD TABLE items",
    ),
    "publication created again": (
        "DROP PUBLICATION pub",
        "UPDATE items SET name = 'unseen' WHERE id = 1",
        "CREATE PUBLICATION pub FOR TABLE items",
    ),
}


@pytest.mark.each(3)
@pytest.mark.parametrize("gap", GAPS)
def test_changes_that_were_not_sent_are_an_error_with_a_way_out(shop: Any, gap: str) -> None:
    config = created(shop)
    shop.sql(*GAPS[gap], "INSERT INTO items VALUES (501, 'seen', NULL)")
    (table,) = run_once(config).tables
    assert "public.items was dropped and created again, or was out of publication pub" in str(table.error)
    resync_from_source(open_catalog(config), config, "shop.items")
    same(shop, config)
    shop.sql("UPDATE items SET name = 'found' WHERE id = 501")
    shop.ingest(config)
    same(shop, config)


def test_other_changes_of_a_publication_are_no_gap(shop: Any) -> None:
    config = created(shop)
    shop.sql(
        "CREATE TABLE orders (id int PRIMARY KEY)",
        "ALTER PUBLICATION pub ADD TABLE orders",
        "ALTER PUBLICATION pub SET TABLE items",
        "ALTER TABLE items RENAME TO things",
        "UPDATE things SET name = 'x' WHERE id = 3",
        "ALTER TABLE things RENAME TO items",
        "VACUUM FULL items",
    )
    shop.ingest(config)
    same(shop, config)


def test_a_name_that_fits_two_tables_is_refused(shop: Any) -> None:
    for schema in ("a", "b"):
        shop.sql(f"CREATE SCHEMA {schema}", f"CREATE TABLE {schema}.items (id int PRIMARY KEY)")
        shop.sql(f"INSERT INTO {schema}.items VALUES (1)")
    shop.sql("CREATE PUBLICATION pub FOR ALL TABLES")
    (table,) = run_once(shop.config("x", source_table="items")).tables
    assert "shop.x fits a.items and b.items" in str(table.error)
    shop.ingest(shop.config("x", source_table="b.items"))


def test_names_that_need_quotes(shop: Any) -> None:
    name = '"Weird Schema"."Order ""x"" é"'
    shop.sql(
        'CREATE SCHEMA "Weird Schema"',
        f'CREATE TABLE {name} ("Id" int PRIMARY KEY, "a b" text, "select" int, "q""uote" text, "x.y" int, "Ünï" text)',
        f"INSERT INTO {name} VALUES (1, 'a', 2, 'q', 3, 'u'), (2, NULL, NULL, NULL, NULL, NULL)",
        "CREATE PUBLICATION pub FOR ALL TABLES",
    )
    config = shop.config("odd", source_table='Weird Schema.Order "x" é')
    shop.ingest(config)
    shop.sql(f"""UPDATE {name} SET "a b" = 'b' WHERE "Id" = 1""", f'UPDATE {name} SET "Id" = 7 WHERE "Id" = 2')
    shop.ingest(config)
    assert shop.rows(config, "odd") == [(1, "b", 2, "q", 3, "u"), (7, None, None, None, None, None)]
