"""A table that becomes another one while its changes are read: another key or type stops it, before rows are mixed up or missing."""

import pytest

from nevermore.pipelines.iceberg.catalog import open_catalog
from nevermore.pipelines.ingest.feed_run import run_once
from nevermore.pipelines.maintain.replay import resync_from_source
from tests.pipelines.mysql.conftest import BOTH, Shop

TABLE = "CREATE TABLE t (id int PRIMARY KEY, v varchar(10), n int)"
ROWS = "INSERT INTO t VALUES (1, 'a', 5), (2, 'b', 6), (3, 'c', 7), (4, 'd', NULL)"


def recreated(columns: str, *rows: str) -> list[str]:
    return ["DROP TABLE t", f"CREATE TABLE t ({columns})", *(f"INSERT INTO t VALUES ({row})" for row in rows)]


def swapped(columns: str, *rows: str) -> list[str]:
    filled = [f"INSERT INTO other VALUES ({row})" for row in rows[:-1]]
    return [f"CREATE TABLE other ({columns})", *filled, "RENAME TABLE t TO gone, other TO t", f"INSERT INTO t VALUES ({rows[-1]})"]  # fmt: skip


OTHER_KEY = {
    "another column": recreated("id int, v varchar(10) PRIMARY KEY, n int", "1, 'x', 1", "1, 'y', 1"),
    "another name": recreated("k int PRIMARY KEY, v varchar(10), n int", "1, 'x', 1", "2, 'y', 1"),
    "one more column": recreated("id int, v varchar(10), n int, PRIMARY KEY (id, v)", "1, 'x', 1", "1, 'y', 1"),
    "none": recreated("id int, v varchar(10), n int", "1, 'x', 1", "1, 'y', 1"),
    "altered": ["ALTER TABLE t DROP PRIMARY KEY, ADD PRIMARY KEY (v)", "UPDATE t SET id = 3 WHERE v = 'b'"],
    "altered, one more column": ["ALTER TABLE t DROP PRIMARY KEY, ADD PRIMARY KEY (id, v)", "INSERT INTO t VALUES (1, 'twice', 1)"],
    "altered, none": ["ALTER TABLE t DROP PRIMARY KEY", "INSERT INTO t VALUES (1, 'twice', 1)"],
    "altered, another name": ["ALTER TABLE t RENAME COLUMN id TO k", "INSERT INTO t VALUES (9, 'z', 9)"],
    "swapped": swapped("id int, v varchar(10) PRIMARY KEY, n int", "1, 'x', 1", "1, 'y', 1", "1, 'z', 1"),
}  # fmt: skip
OTHER_TYPE = {
    "of the key": recreated("id varchar(9) PRIMARY KEY, v varchar(10), n int", "'a', 'x', 1"),
    "of the key, altered": ["ALTER TABLE t MODIFY id varchar(9)", "INSERT INTO t VALUES ('x', 'z', 1)"],
    "of the key, swapped": swapped("id varchar(9) PRIMARY KEY, v varchar(10), n int", "'a', 'x', 1", "'b', 'y', 1"),
    "created again": recreated("id int PRIMARY KEY, v varchar(10), n varchar(9)", "1, 'x', NULL", "2, 'y', 'q'", "3, 'z', NULL"),
    "added again": ["ALTER TABLE t DROP n", "ALTER TABLE t ADD n varchar(9)", "UPDATE t SET n = 'q' WHERE id = 1"],
    "added again at once": ["ALTER TABLE t DROP n, ADD n varchar(9)", "UPDATE t SET n = 'q' WHERE id = 1"],
    "modified": ["ALTER TABLE t MODIFY n varchar(9)", "UPDATE t SET n = 'q' WHERE id = 1"],
    "swapped": swapped("id int PRIMARY KEY, v varchar(10), n varchar(9)", "1, 'x', 'q'", "3, 'z', NULL"),
}  # fmt: skip
SAME = {
    "wider key": recreated("id bigint PRIMARY KEY, v varchar(10), n int", "10000000000, 'x', 1"),
    "added again": ["ALTER TABLE t DROP n", "ALTER TABLE t ADD n int", "UPDATE t SET n = 8 WHERE id = 1"],
    "other order": recreated("n int, v varchar(10), id int PRIMARY KEY", "1, 'x', 7", "2, 'y', 8"),
    "other order, altered": ["ALTER TABLE t MODIFY n int FIRST", "INSERT INTO t VALUES (9, 9, 'z')"],
    "other order of the key": ["ALTER TABLE t MODIFY id int AFTER n", "INSERT INTO t VALUES ('z', 9, 9)"],
    "swapped": swapped("n int, v varchar(20), id int PRIMARY KEY", "1, 'x', 7", "2, 'y', 8"),
}
QUICK = {"another column", "altered, none", "of the key", "added again", "other order"}
"""Those of the tests that run at every change."""


def cases(of: dict[str, list[str]]) -> list[object]:
    return [name if name in QUICK else pytest.param(name, marks=pytest.mark.slow) for name in of]


def in_source(shop: Shop) -> list[str]:
    return sorted(map(str, shop.sql("SELECT * FROM t")))


def in_mirror(shop: Shop, config: object) -> list[str]:
    columns = [str(row[0]) for row in shop.sql("SHOW COLUMNS FROM t")]
    return sorted(str(tuple(row.get(c) for c in columns)) for row in shop.rows(config, "t"))  # type: ignore[arg-type]


@pytest.mark.each(8)
@pytest.mark.parametrize("rounds", [1, 2])
@pytest.mark.parametrize("declared", [[], ["id"]])
@pytest.mark.parametrize("name", cases(OTHER_KEY))
def test_rows_that_another_key_identifies_are_not_mixed_up(
    shop: Shop, name: str, declared: list[str], rounds: int
) -> None:
    shop.sql(TABLE, ROWS)
    config = shop.config("t", **({"key": declared} if declared else {}))
    shop.ingest(config)
    *first, last = OTHER_KEY[name]
    shop.sql(*first)
    if rounds == 2:
        run_once(config)
    shop.sql(last)
    run_once(config)
    stopped = shop.rows(config, "t")
    (table,) = run_once(config).tables
    assert "its primary key is another one" in str(table.error)
    assert "nevermore resync TABLE --from-source" in str(table.error)
    assert shop.rows(config, "t") == stopped
    assert table.quarantined == 0


@pytest.mark.each(4)
@pytest.mark.parametrize("rounds", [1, 2])
@pytest.mark.parametrize("name", cases(OTHER_TYPE))
def test_rows_of_another_type_stop_the_table_and_are_not_left_out(shop: Shop, name: str, rounds: int) -> None:
    shop.sql(TABLE, ROWS)
    config = shop.config("t", max_quarantine_ratio=1.0)
    shop.ingest(config)
    *first, last = OTHER_TYPE[name]
    shop.sql(*first)
    if rounds == 2:
        run_once(config)
    shop.sql(last)
    for _ in range(2):
        (table,) = run_once(config).tables
        assert "which no promotion covers" in str(table.error)
        assert "nevermore resync TABLE --from-source" in str(table.error)
        assert table.quarantined == 0
    if "of the key" in name:
        with pytest.raises(Exception, match="drop the mirror and this log from the catalog"):
            resync_from_source(open_catalog(config), config, "shop.t")
        return
    resync_from_source(open_catalog(config), config, "shop.t")
    assert in_mirror(shop, config) == in_source(shop)
    shop.sql("DELETE FROM t WHERE id = 1")
    shop.ingest(config)
    assert in_mirror(shop, config) == in_source(shop)


@pytest.mark.each(4)
@pytest.mark.parametrize("rounds", [1, 2])
@pytest.mark.parametrize("name", cases(SAME))
def test_a_table_of_the_same_key_and_wider_types_goes_on(shop: Shop, name: str, rounds: int) -> None:
    shop.sql("SET sql_mode = ''", TABLE, ROWS)
    config = shop.config("t")
    shop.ingest(config)
    *first, last = SAME[name]
    shop.sql(*first)
    if rounds == 2:
        shop.ingest(config)
    shop.sql(last)
    shop.ingest(config)
    assert in_mirror(shop, config) == in_source(shop)


@pytest.mark.each(4)
@BOTH
@pytest.mark.parametrize("identity", [{"key": ["v"]}, {"identity": "full"}])
def test_a_unique_column_in_place_of_a_key_is_no_other_key(shop: Shop, identity: dict[str, object]) -> None:
    shop.sql("CREATE TABLE t (id int, v int NOT NULL UNIQUE)", "INSERT INTO t VALUES (1, 1)")
    config = shop.config("t", **identity)
    shop.ingest(config)
    shop.sql("INSERT INTO t VALUES (2, 2)", "UPDATE t SET id = 9 WHERE v = 1")
    shop.ingest(config)
    shop.sql("ALTER TABLE t ADD PRIMARY KEY (id)", "INSERT INTO t VALUES (3, 3)")
    shop.ingest(config)
    assert in_mirror(shop, config) == in_source(shop)


def test_events_that_a_load_contains_do_not_stop_the_table(shop: Shop) -> None:
    shop.sql(TABLE, ROWS, "CREATE TABLE u (id int PRIMARY KEY)")
    config = shop.config("t", "u")
    shop.ingest(config)
    shop.sql("ALTER TABLE t DROP n", "ALTER TABLE t ADD n varchar(9)", "UPDATE t SET n = 'q' WHERE id = 1")
    shop.sql("DROP TABLE t", TABLE, "INSERT INTO t VALUES (1, 'z', 1)", "INSERT INTO u VALUES (1)")
    shop.ingest(config)
    assert in_mirror(shop, config) == in_source(shop)
    shop.sql("INSERT INTO t VALUES (2, 'y', 2)", "INSERT INTO u VALUES (2)")
    (table, _) = shop.ingest(config).tables
    assert table.quarantined == 0
    assert in_mirror(shop, config) == in_source(shop)


def test_a_table_that_is_missing_says_what_to_do(shop: Shop) -> None:
    shop.sql(TABLE, "CREATE TABLE u (id int PRIMARY KEY)")
    error = shop.error(shop.config("missing", source_table="shop.missing"))
    assert "shop.missing is not in MySQL at" in error
    assert "PostgreSQL" not in error
    assert "source_table" in error
