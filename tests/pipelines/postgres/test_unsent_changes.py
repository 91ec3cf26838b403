"""Commands that change rows without sending them: the table is loaded again by itself, or says what to do."""

from typing import Any

import pytest

from nevermore.pipelines.errors import SourceError
from nevermore.pipelines.iceberg.catalog import open_catalog
from nevermore.pipelines.ingest.feed_run import run_once
from nevermore.pipelines.maintain.replay import resync, resync_from_source
from nevermore.pipelines.sources.postgres.inspection import findings
from nevermore.pipelines.sources.postgres.position import Shape, UnsentError
from nevermore.scan_core import open_table
from tests.pipelines.postgres.conftest import Shop

TABLE = "CREATE TABLE items (id int PRIMARY KEY, a text, b text, n int)"
PARTITIONED = (
    "CREATE TABLE items (id int PRIMARY KEY, a text, b text, n int) PARTITION BY RANGE (id)",
    "CREATE TABLE low PARTITION OF items FOR VALUES FROM (0) TO (10)",
    "CREATE TABLE high PARTITION OF items FOR VALUES FROM (10) TO (20) PARTITION BY RANGE (id)",
    "CREATE TABLE higher PARTITION OF high FOR VALUES FROM (10) TO (20)",
)
OTHER = "CREATE TABLE other (id int PRIMARY KEY, a text, b text, n int); INSERT INTO other VALUES (25, 'o', 'p', 5);"

COMMANDS = {
    "a default": ["ALTER TABLE items ADD c int DEFAULT 9"],
    "a default that is gone": ["ALTER TABLE items ADD c int DEFAULT 9", "ALTER TABLE items ALTER c DROP DEFAULT"],
    "a sequence": ["ALTER TABLE items ADD c serial", "ALTER TABLE items ALTER c DROP DEFAULT"],
    "swapped names": [
        "ALTER TABLE items RENAME a TO c",
        "ALTER TABLE items RENAME b TO a",
        "ALTER TABLE items RENAME c TO b",
    ],
    "the name of a dropped one": ["ALTER TABLE items DROP a", "ALTER TABLE items ADD a text"],
    "other values of a type": ["ALTER TABLE items ALTER n TYPE int USING n * 2"],
    "a wider type": ["ALTER TABLE items ALTER n TYPE bigint USING n * 2"],
}
PARTITIONS = {
    "a dropped partition": ["DROP TABLE low"],
    "a detached partition": ["ALTER TABLE items DETACH PARTITION low"],
    "a truncated partition": ["TRUNCATE higher"],
    "an attached table": [OTHER, "ALTER TABLE items ATTACH PARTITION other FOR VALUES FROM (20) TO (30)"],
}


def same(shop: Shop, config: Any) -> None:
    """The mirror has the rows of the table; columns that were dropped are left out."""
    query = "SELECT to_jsonb(items) FROM items"
    names = {name for (row,) in shop.sql(query) for name in row}
    table = shop.mirror(config, "items").to_pylist()
    found = [{name: value for name, value in row.items() if name in names} for row in table]
    assert sorted(map(str, found)) == sorted(str({name: row[name] for name in found[0]}) for (row,) in shop.sql(query))


def loaded(shop: Shop, *statements: str, **options: Any) -> Any:
    shop.sql(
        *statements,
        "CREATE PUBLICATION pub FOR TABLE items WITH (publish_via_partition_root = true)",
        "INSERT INTO items SELECT i, 'a' || i, 'b' || i, i FROM generate_series(1, 19) i",
    )
    config = shop.config("items", **options)
    shop.ingest(config)
    return config


QUICK = ("a default", "swapped names", "a truncated partition")


@pytest.mark.parametrize("change", ["insert", pytest.param("none", marks=pytest.mark.slow)])
@pytest.mark.parametrize(
    "command", [c if c in QUICK else pytest.param(c, marks=pytest.mark.slow) for c in (*COMMANDS, *PARTITIONS)]
)
def test_the_table_is_loaded_again(shop: Shop, command: str, change: str) -> None:
    config = loaded(shop, *((TABLE,) if command in COMMANDS else PARTITIONED))
    shop.sql("INSERT INTO items VALUES (0, 'before', 'it', 7)")
    shop.sql(*{**COMMANDS, **PARTITIONS}[command])
    if change == "insert":
        shop.sql(
            "INSERT INTO items (id) VALUES (15)"
            if "truncated" in command
            else "UPDATE items SET a = 'after' WHERE id = 15"
        )
    report = shop.ingest(config)
    assert report.tables[0].events["r"] > 5
    same(shop, config)
    report = shop.ingest(config)
    assert report.tables[0].events["r"] == 0
    same(shop, config)


@pytest.mark.slow
def test_a_name_of_a_column_that_was_dropped_long_ago(shop: Shop) -> None:
    config = loaded(shop, TABLE)
    shop.sql("ALTER TABLE items DROP a", "INSERT INTO items VALUES (100, 'b', 1)")
    assert shop.ingest(config).tables[0].events["r"] == 0
    shop.sql("ALTER TABLE items ADD c text", "INSERT INTO items VALUES (101, 'b', 1, 'c')")
    assert shop.ingest(config).tables[0].events["r"] == 0
    shop.sql("ALTER TABLE items ADD a text", "INSERT INTO items VALUES (102, 'b', 1, 'c', 'a')")
    assert shop.ingest(config).tables[0].events["r"] > 0
    same(shop, config)


@pytest.mark.parametrize("kind", ["table", pytest.param("partitioned", marks=pytest.mark.slow)])
def test_what_sends_all_it_changes_loads_nothing(shop: Shop, kind: str) -> None:
    config = loaded(shop, *((TABLE,) if kind == "table" else PARTITIONED))
    shop.sql("ALTER TABLE items ADD c int", "ALTER TABLE items DROP b", "ALTER TABLE items ALTER a SET STATISTICS 7")
    shop.sql("UPDATE items SET c = 1 WHERE id = 3", "ALTER TABLE items ALTER n SET DEFAULT 7", "ANALYZE items")
    if kind == "partitioned":
        shop.sql("CREATE TABLE more PARTITION OF items FOR VALUES FROM (20) TO (30)")
    shop.sql(
        "INSERT INTO items (id, a) VALUES (25, 'new')" if kind == "partitioned" else "DELETE FROM items WHERE id = 3"
    )
    assert shop.ingest(config).tables[0].events["r"] == 0
    same(shop, config)
    shop.sql(
        "DROP TABLE more" if kind == "partitioned" else "TRUNCATE items", "INSERT INTO items (id, a) VALUES (0, 'x')"
    )
    report = shop.ingest(config)
    assert (report.tables[0].events["r"] > 0) == (kind == "partitioned")
    same(shop, config)


def test_another_type_leaves_the_mirror_and_says_what_to_do(shop: Shop) -> None:
    config = loaded(shop, TABLE)
    before = shop.rows(config, "items")
    shop.sql("ALTER TABLE items ALTER n TYPE text USING 'n' || n", "UPDATE items SET n = 'x' WHERE id = 3")
    (table,) = run_once(config).tables
    assert "public.items: a column has another type" in str(table.error)
    assert "nevermore resync" in str(table.error)
    assert shop.rows(config, "items") == before


@pytest.mark.each(4)
@pytest.mark.parametrize(
    "change",
    ["text USING 'n' || n", "numeric(12,3) USING n / 8.0", "int[] USING ARRAY[n]", "date USING DATE '2024-01-01' + n"],
)
def test_a_resync_from_the_source_takes_any_type(shop: Shop, change: str) -> None:
    config = loaded(shop, TABLE)
    first = open_catalog(config).load_table("shop.items").metadata.current_snapshot_id
    shop.sql(f"ALTER TABLE items ALTER n TYPE {change}", "DELETE FROM items WHERE id = 3")
    done = resync_from_source(open_catalog(config), config, "shop.items")
    assert (done.num_rows, done.quarantined) == (18, 0)
    wanted = "SELECT id, a, b, n FROM items ORDER BY id"
    assert shop.rows(config, "items") == shop.sql(wanted)
    shop.sql(
        "UPDATE items SET b = 'new' WHERE id = 4",
        "UPDATE items SET n = NULL WHERE id = 5",
        "INSERT INTO items VALUES (30)",
    )
    shop.ingest(config)
    assert shop.rows(config, "items") == shop.sql(wanted)
    scan = open_table(open_catalog(config).load_table("shop.items").metadata_location).scan().as_of_snapshot(first)
    assert scan.to_table().sort_by("id").column("n").to_pylist() == list(range(1, 20))  # as it was
    resync(open_catalog(config), config, "shop.items")
    assert shop.rows(config, "items") == shop.sql(wanted)


@pytest.mark.parametrize(
    ("options", "column", "reason"),
    [
        ({"schema_changes": "freeze"}, "n", "column n changes from int to string"),
        ({"soft_delete": True}, "n", "n"),
        ({}, "id", "id"),
    ],
)
def test_a_resync_from_the_source_that_fails_leaves_the_mirror(
    shop: Shop, options: dict[str, Any], column: str, reason: str
) -> None:
    config = loaded(shop, TABLE, **options)
    before = shop.rows(config, "items")
    shop.sql(f"ALTER TABLE items ALTER {column} TYPE text USING 'n' || {column}")
    with pytest.raises(SourceError, match=reason):
        resync_from_source(open_catalog(config), config, "shop.items")
    run_once(config)
    assert shop.rows(config, "items") == before


def test_numbers_with_more_digits_are_wider_and_others_are_not() -> None:
    def shape(modifier: int, file: int) -> Shape:
        return Shape.parse(f"{file};abcdef=1700.{modifier}:9;;;;")

    def modifier(digits: int, scale: int) -> int:
        return digits * 65_536 + scale + 4

    with pytest.raises(UnsentError) as found:
        shape(modifier(10, 2), 1).check(shape(modifier(12, 2), 2))
    assert not found.value.is_another_type
    for other in (modifier(12, 1), modifier(8, 2), -1):
        with pytest.raises(UnsentError) as found:
            shape(modifier(10, 2), 1).check(shape(other, 2))
        assert found.value.is_another_type


OWN_TYPES = (
    "CREATE TYPE mood AS ENUM ('sad', 'ok')",
    "CREATE DOMAIN feeling AS mood",
    "CREATE TYPE pair AS (x mood, y int)",
    "CREATE TYPE span AS RANGE (SUBTYPE = mood)",
)
USED = {
    "mood": "sad",
    "mood[]": "{sad,ok}",
    "feeling": "sad",
    "feeling[]": "{sad}",
    "pair": "(sad,1)",
    "pair[]": '{"(sad,1)"}',
    "span": "[sad,ok]",
}


def texts(shop: Shop, config: Any) -> None:
    """The mirror has the values of column `m` as the table has them."""
    kind = shop.mirror(config, "items").schema.field("m").type
    found = {row[0]: row[-1] for row in shop.rows(config, "items")}
    wanted = dict(
        shop.sql("SELECT id, m::text[] FROM items" if "list" in str(kind) else "SELECT id, m::text FROM items")
    )
    assert found == wanted


@pytest.mark.parametrize(
    "kind", [k if k in {"mood", "pair"} else pytest.param(k, marks=pytest.mark.slow) for k in USED]
)
def test_values_of_own_types_that_are_written_in_another_way_are_loaded_again(shop: Shop, kind: str) -> None:
    column = f"m {kind} DEFAULT '{USED[kind]}'"
    config = loaded(shop, *OWN_TYPES, f"CREATE TABLE items (id int PRIMARY KEY, a text, b text, n int, {column})")
    texts(shop, config)
    shop.sql("ALTER TYPE mood ADD VALUE 'glad' BEFORE 'ok'", "UPDATE items SET a = 'x' WHERE id = 5")
    assert shop.ingest(config).tables[0].events["r"] == 0
    shop.sql("INSERT INTO items (id) VALUES (20)", "ALTER TYPE mood RENAME VALUE 'sad' TO 'glum'")
    assert shop.ingest(config).tables[0].events["r"] == 20
    texts(shop, config)
    assert shop.ingest(config).tables[0].events["r"] == 0
    for change in ("ADD ATTRIBUTE z text", "RENAME ATTRIBUTE z TO zz", "DROP ATTRIBUTE y") if kind == "pair" else ():
        shop.sql(f"ALTER TYPE pair {change}")
        assert (shop.ingest(config).tables[0].events["r"] == 20) == ("RENAME" not in change)
        texts(shop, config)


@pytest.mark.slow
def test_a_load_by_an_enum_goes_on_after_its_values_were_renamed(shop: Shop) -> None:
    config = loaded(
        shop,
        OWN_TYPES[0],
        "CREATE TABLE items (id int, a text, b text, n int, m mood DEFAULT 'sad', PRIMARY KEY (m, id))",
    )
    shop.sql("ALTER TYPE mood RENAME VALUE 'sad' TO 'glum'", "UPDATE items SET a = 'new' WHERE id = 3")
    shop.ingest(config)
    assert shop.rows(config, "items") == shop.sql("SELECT id, a, b, n, m::text FROM items ORDER BY id")


def test_a_key_that_is_checked_at_the_end_of_transactions_is_none(shop: Shop) -> None:
    shop.sql("CREATE TABLE items (id int PRIMARY KEY DEFERRABLE)", "CREATE PUBLICATION pub FOR TABLE items")
    (table,) = run_once(shop.config("items")).tables
    assert "public.items has no primary key" in str(table.error)


def test_rows_that_a_policy_hides_are_an_error(shop: Shop) -> None:
    reader = f"reader_{shop.slot}"
    shop.sql(
        TABLE,
        "INSERT INTO items VALUES (1), (2)",
        "CREATE PUBLICATION pub FOR TABLE items",
        "ALTER TABLE items ENABLE ROW LEVEL SECURITY",
        f"CREATE ROLE {reader} LOGIN REPLICATION",
        f"GRANT SELECT ON items TO {reader}",
        f"CREATE POLICY seen ON items TO {reader} USING (id > 1)",
    )
    try:
        shop.dsn = shop.dsn.replace("ingester@", f"{reader}@")
        config = shop.config("items")
        (table,) = run_once(config).tables
        assert 'row-level security policy for table "items"' in str(table.error)
        (found,) = (
            f
            for f in findings(
                config.tables["shop.items"].source,
                lambda names: dict.fromkeys(names, config.tables["shop.items"]),
                list,
            )
            if f.what == "table public.items"
        )
        assert found.status == "failed"
        assert f"ALTER ROLE {reader} BYPASSRLS" in found.found
    finally:
        shop.sql(f"DROP OWNED BY {reader}", f"DROP ROLE {reader}")


UNSEEN = {
    "a partition that was a table for some time": [
        "ALTER TABLE items DETACH PARTITION low",
        "UPDATE low SET a = 'unseen' WHERE id = 5",
        "ALTER TABLE items ATTACH PARTITION low FOR VALUES FROM (0) TO (10)",
    ],
    "operations that were not sent": [
        "ALTER PUBLICATION pub SET (publish = 'insert')",
        "UPDATE items SET a = 'unseen' WHERE id = 5",
        "DELETE FROM items WHERE id = 6",
        "ALTER PUBLICATION pub SET (publish = 'insert, update, delete, truncate')",
    ],
    "partitions that were sent by their own names": [
        "ALTER PUBLICATION pub SET (publish_via_partition_root = false)",
        "UPDATE items SET a = 'unseen' WHERE id = 5",
        "ALTER PUBLICATION pub SET (publish_via_partition_root = true)",
    ],
}


@pytest.mark.parametrize("what", UNSEEN)
def test_a_table_is_loaded_again_after_what_was_not_sent_for_some_time(shop: Shop, what: str) -> None:
    config = loaded(shop, *PARTITIONED)
    shop.sql(*UNSEEN[what])
    shop.ingest(config)
    same(shop, config)
    assert shop.ingest(config).tables[0].events["r"] == 0


def test_what_only_moves_or_empties_the_file_of_rows_loads_nothing(shop: Shop) -> None:
    shop.sql(
        TABLE, "INSERT INTO items VALUES (1, 'a', 'b', 1), (2, 'a', 'b', 1)", "CREATE PUBLICATION pub FOR ALL TABLES"
    )
    config = shop.config("items")
    shop.ingest(config)
    for statement in ("VACUUM FULL items", "TRUNCATE items"):
        shop.sql(statement, "INSERT INTO items VALUES (5, 'n', 'n', 1) ON CONFLICT DO NOTHING")
        assert shop.ingest(config).tables[0].events["r"] == 0
        same(shop, config)


def test_a_column_that_is_no_longer_generated_is_loaded(shop: Shop) -> None:
    shop.sql(
        "CREATE TABLE items (id int PRIMARY KEY, n int, g int GENERATED ALWAYS AS (n * 2) STORED)",
        "INSERT INTO items (id, n) SELECT i, i FROM generate_series(1, 5) i",
        "CREATE PUBLICATION pub FOR TABLE items",
    )
    config = shop.config("items")
    shop.ingest(config)
    shop.sql("ALTER TABLE items ALTER g DROP EXPRESSION", "UPDATE items SET g = 99 WHERE id = 2")
    shop.ingest(config)
    same(shop, config)


@pytest.mark.parametrize("rounds", [1, 2])
def test_a_column_that_comes_back_with_another_type_says_what_to_do(shop: Shop, rounds: int) -> None:
    config = loaded(shop, TABLE)
    shop.sql("ALTER TABLE items DROP n", "UPDATE items SET a = 'x' WHERE id = 2")
    if rounds == 2:
        shop.ingest(config)
    shop.sql("ALTER TABLE items ADD n text", "UPDATE items SET n = 'q' WHERE id = 3")
    for _ in range(2):
        (table,) = run_once(config).tables
        assert "public.items: a column has another type" in str(table.error)
    assert shop.reasons(config, "items") == []
    resync_from_source(open_catalog(config), config, "shop.items")
    assert shop.rows(config, "items") == shop.sql("SELECT id, a, b, n FROM items ORDER BY id")


KEYS = {
    "none": ["ALTER TABLE items DROP CONSTRAINT items_pkey", "INSERT INTO items VALUES (3, 'twice')"],
    "none, whole rows": [
        "ALTER TABLE items DROP CONSTRAINT items_pkey",
        "ALTER TABLE items REPLICA IDENTITY FULL",
        "INSERT INTO items VALUES (3, 'twice')",
        "DELETE FROM items WHERE a = 'a3'",
    ],
    "one more column": [
        "ALTER TABLE items DROP CONSTRAINT items_pkey, ADD PRIMARY KEY (id, a)",
        "INSERT INTO items VALUES (3, 'twice')",
    ],
    "another column": [
        "ALTER TABLE items DROP CONSTRAINT items_pkey, ADD PRIMARY KEY (a)",
        "UPDATE items SET id = 3 WHERE id = 4",
    ],
    "another index": [
        "ALTER TABLE items ALTER a SET NOT NULL",
        "CREATE UNIQUE INDEX u ON items (a)",
        "ALTER TABLE items REPLICA IDENTITY USING INDEX u",
        "UPDATE items SET id = 300 WHERE id = 4",
    ],
    "another name": ["ALTER TABLE items RENAME id TO k", "UPDATE items SET a = 'x' WHERE k = 3"],
}


@pytest.mark.each(9)
@pytest.mark.parametrize("declared", [[], ["id"]])
@pytest.mark.parametrize("key", KEYS)
def test_rows_that_are_identified_in_another_way_are_not_mixed_up(shop: Shop, key: str, declared: list[str]) -> None:
    config = loaded(shop, TABLE, **({"key": declared} if declared else {}))
    before = shop.rows(config, "items")
    shop.sql(*KEYS[key])
    for _ in range(2):
        (table,) = run_once(config).tables
        assert "identify its rows" in str(table.error)
        assert "nevermore resync" in str(table.error)
        assert shop.rows(config, "items") == before


def test_rows_of_tables_that_inherit_are_those_of_other_tables(shop: Shop) -> None:
    shop.sql(
        TABLE,
        "CREATE TABLE child (extra int, PRIMARY KEY (id)) INHERITS (items)",
        "INSERT INTO items VALUES (1, 'own', 'b', 1)",
        "INSERT INTO child VALUES (50, 'k', 'k', 1, 2)",
        "CREATE PUBLICATION pub FOR TABLE items",
    )
    config = shop.config("items", "child")
    shop.ingest(config)
    shop.sql("UPDATE items SET a = 'x' WHERE id = 50", "INSERT INTO child VALUES (51, 'l', 'l', 1, 2)")
    shop.ingest(config)
    assert shop.rows(config, "items") == [(1, "own", "b", 1)]
    assert shop.rows(config, "child") == [(50, "x", "k", 1, 2), (51, "l", "l", 1, 2)]
