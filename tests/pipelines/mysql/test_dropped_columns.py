"""Columns that are dropped in MySQL or MariaDB leave the mirror with `dropped_columns: drop`."""

import pytest

from tests.pipelines.mysql.conftest import BOTH, Shop


@pytest.mark.each(4)
@BOTH
@pytest.mark.parametrize("together", [False, True], ids=["rounds", "one-round"])
def test_dropped_columns(shop: Shop, *, together: bool) -> None:
    shop.sql(
        "CREATE TABLE t (id int PRIMARY KEY, a varchar(9), c int)", "INSERT INTO t VALUES (1, 'x', 5), (2, 'y', 6)"
    )
    config = shop.config("t", dropped_columns="drop")
    shop.ingest(config)
    for statements in (
        ["UPDATE t SET c = 7 WHERE id = 1", "ALTER TABLE t DROP COLUMN c", "INSERT INTO t VALUES (3, 'z')"],
        ["ALTER TABLE t ADD COLUMN c varchar(9)", "UPDATE t SET c = 'new' WHERE id = 2", "DELETE FROM t WHERE id = 3"],
    ):
        shop.sql(*statements)
        if not together:
            shop.ingest(config)
            assert list(shop.rows(config, "t")[0]) == [name for name, *_ in shop.sql("SHOW COLUMNS FROM t")]
    shop.ingest(config)
    assert shop.values(config, "t") == [(1, "x", None), (2, "y", "new")]
