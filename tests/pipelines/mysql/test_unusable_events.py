"""What the log has in place of rows stops only the tables that it touches, and foreign keys are known with the documented rights."""

import pytest

from nevermore.pipelines.ingest.feed_run import run_once
from nevermore.pipelines.sources.mysql.load import _Selection
from tests.pipelines.mysql.conftest import BOTH, Shop
from tests.pipelines.mysql.test_inspection import run

TABLES = [
    "CREATE TABLE parent (id int PRIMARY KEY, v int)",
    "CREATE TABLE t (id int PRIMARY KEY, v int, c varchar(9), p int, FOREIGN KEY (p) REFERENCES parent (id) ON DELETE CASCADE)",
    "CREATE TABLE u (id int PRIMARY KEY, v int)",
    "CREATE TABLE other (id int PRIMARY KEY, v int)",
    "CREATE VIEW seen AS SELECT id, v FROM t",
    "INSERT INTO parent VALUES (1, 1), (2, 2)",
    "INSERT INTO t VALUES (1, 1, 'a', 1), (2, 2, 'b', 2), (3, 3, NULL, NULL)",
    "INSERT INTO u VALUES (1, 1)",
    "INSERT INTO other VALUES (1, 1), (2, 2)",
]
IMAGE, FORMAT = "binlog_row_image = 'MINIMAL'", "binlog_format = 'STATEMENT'"
CASES: dict[str, tuple[str, list[str], set[str]]] = {
    "part of a row": (IMAGE, ["UPDATE t SET v = 9 WHERE id = 1"], {"t"}),
    "part of a deleted row": (IMAGE, ["DELETE FROM t WHERE id = 1"], {"t"}),
    "part of a row elsewhere": (IMAGE, ["UPDATE other SET v = 9 WHERE id = 1"], set()),
    "part of a parent's changed row": (IMAGE, ["UPDATE parent SET v = 9 WHERE id = 1"], set()),
    "update": (FORMAT, ["UPDATE t SET v = 9"], {"t"}),
    "update in other letters": (FORMAT, ["UPDATE `t` AS x JOIN other USING (id) SET x.v = 9"], {"t"}),
    "update elsewhere": (FORMAT, ["UPDATE other SET v = v + 1", "DELETE FROM other"], set()),
    "insert from a table": (FORMAT, ["INSERT INTO u SELECT id + 10, v FROM other"], {"u"}),
    "update of a view": (FORMAT, ["UPDATE seen SET v = 9 WHERE id = 2"], {"t", "u"}),
    "delete of a parent": (FORMAT, ["DELETE FROM parent WHERE id = 1"], {"t"}),
    "function": (FORMAT, ["DO f()"], {"t", "u"}),
    "created from a selection": (FORMAT, ["DROP TABLE u", "CREATE TABLE u (id int PRIMARY KEY) SELECT id, v FROM other"], {"u"}),
    "prepared": ("autocommit = 1", ["XA START 'x'", "UPDATE t SET v = 9", "XA END 'x'", "XA PREPARE 'x'", "XA COMMIT 'x'"], {"t"}),
    "prepared and rolled back": ("autocommit = 1", ["XA START 'x'", "UPDATE t SET v = 9", "XA END 'x'", "XA PREPARE 'x'", "XA ROLLBACK 'x'"], {"t"}),
    "prepared elsewhere": ("autocommit = 1", ["XA START 'x'", "UPDATE other SET v = 9", "XA END 'x'", "XA PREPARE 'x'", "XA COMMIT 'x'"], set()),
    "in one phase": ("autocommit = 1", ["XA START 'x'", "UPDATE u SET v = 8", "XA END 'x'", "XA COMMIT 'x' ONE PHASE"], set()),
}  # fmt: skip
"""What a session sets, what it does, and which of the mirrored tables t and u stop."""


def assert_equal(shop: Shop, config: object, *names: str) -> None:
    for name in names:
        assert shop.values(config, name) == shop.sql(f"SELECT * FROM {name} ORDER BY id"), name  # type: ignore[arg-type]


@pytest.mark.each(16)
@pytest.mark.parametrize("name", CASES)
def test_only_the_tables_that_are_touched_stop_and_the_others_go_on(shop: Shop, name: str) -> None:
    setting, statements, stopped = CASES[name]
    shop.sql(*TABLES)
    if name in {"function", "created from a selection"} and not shop.is_mariadb:
        pytest.skip("MySQL refuses it with global transaction identifiers, or asks for more rights")
    if name == "function":
        shop.sql(
            "CREATE FUNCTION f() RETURNS int DETERMINISTIC MODIFIES SQL DATA BEGIN UPDATE u SET v = 7; RETURN 1; END"
        )
    config = shop.config("t", "u")
    shop.ingest(config)
    shop.sql(f"SET SESSION {setting}", *statements, f"SET SESSION {setting.split(' ')[0]} = DEFAULT")
    shop.sql("INSERT INTO t VALUES (20, 1, 'z', NULL)", "INSERT INTO u (id, v) VALUES (20, 1)")
    for _ in range(2):
        errors = shop.errors(run_once(config))
        assert errors.keys() == {f"shop.{table}" for table in stopped}
        for table, error in errors.items():
            assert f"{shop.database}.{table.removeprefix('shop.')}: the binary log has" in error
            assert "nevermore resync TABLE --from-source" in error
        assert_equal(shop, config, *({"t", "u"} - stopped))
    if len(stopped) == 2:
        assert run("resync", "--all", "--from-source", "--config", str(config.path)) == 0
    elif stopped:
        assert run("resync", *errors, "--from-source", "--config", str(config.path)) == 0
    shop.sql("UPDATE t SET v = 5 WHERE id = 20")
    shop.ingest(config)
    assert_equal(shop, config, "t", "u")


@pytest.mark.each(2)
@BOTH
def test_several_tables_are_loaded_again_by_one_command(shop: Shop, capsys: pytest.CaptureFixture[str]) -> None:
    shop.sql(*TABLES)
    config = shop.config("t", "u", "other")
    shop.ingest(config)
    shop.sql("SET sql_log_bin = 0", "DELETE FROM t", "DELETE FROM u", "DELETE FROM other", "SET sql_log_bin = 1")
    arguments = ["--from-source", "--config", str(config.path)]
    assert run("resync", "shop.t", "shop.u", *arguments) == 0
    assert shop.values(config, "t") == shop.values(config, "u") == []
    assert len(shop.values(config, "other")) == 2
    assert run("resync", "shop.t", "--all", *arguments) == 2
    assert run("resync", *arguments) == 2
    assert run("resync", "shop.t", "shop.u", "--snapshot-source", "x.csv", "--config", str(config.path)) == 2
    capsys.readouterr()
    assert run("resync", "--all", *arguments) == 0
    assert capsys.readouterr().out.count("0 rows") == 3
    assert shop.values(config, "other") == []


@BOTH
def test_a_cascade_before_its_foreign_key_was_dropped_is_seen(shop: Shop) -> None:
    shop.sql(*TABLES)
    key = "fk" if shop.is_mariadb else "t_ibfk_1"
    shop.sql(
        "ALTER TABLE t DROP FOREIGN KEY t_ibfk_1",
        f"ALTER TABLE t ADD CONSTRAINT {key} FOREIGN KEY (p) REFERENCES parent (id) ON UPDATE CASCADE",
    )
    config = shop.config("t", "u")
    shop.ingest(config)
    shop.sql("UPDATE parent SET id = 7 WHERE id = 1", f"ALTER TABLE t DROP FOREIGN KEY {key}")
    shop.ingest(config)
    assert_equal(shop, config, "t")


@BOTH
def test_a_parent_that_the_user_may_not_see_is_refused_before_rows_are_missed(
    shop: Shop, capsys: pytest.CaptureFixture[str]
) -> None:
    shop.sql(*TABLES, "DROP USER IF EXISTS part", "CREATE USER part IDENTIFIED BY 'secret'")
    shop.sql("GRANT LOCK TABLES, REPLICATION SLAVE, REPLICATION CLIENT ON *.* TO part")
    try:
        for table in ("t", "u"):
            shop.sql(f"GRANT SELECT ON {shop.database}.{table} TO part")
        shop.source = {"dsn": shop.dsn.replace("reader:", "part:")}
        config = shop.config("t", "u")
        what = f"GRANT SELECT ON {shop.database}.parent"
        assert run("doctor", "--config", str(config.path)) == 1
        assert what in "".join(capsys.readouterr().out.split("\n"))
        errors = shop.errors(run_once(config))
        assert errors.keys() == {"shop.t"}
        assert what in errors["shop.t"]
        shop.sql(f"{what} TO part")
        shop.ingest(config)
        shop.sql("DELETE FROM parent WHERE id = 1")
        shop.ingest(config)
        assert_equal(shop, config, "t", "u")
    finally:
        shop.sql("DROP USER part")


@pytest.mark.parametrize("server", ["mariadb"], indirect=True)
def test_a_load_waits_for_transactions_that_are_prepared(shop: Shop, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("nevermore.pipelines.sources.mysql.load.LOCK_TRIES", 1)
    monkeypatch.setattr("nevermore.pipelines.sources.mysql.load.LOCK_SECONDS", 0)
    shop.sql(*TABLES, "XA START 'x'", "INSERT INTO t VALUES (9, 9, 'x', NULL)", "XA END 'x'", "XA PREPARE 'x'")
    config = shop.config("t")
    assert "XA RECOVER" in shop.error(config)
    shop.sql("XA COMMIT 'x'")
    with monkeypatch.context() as patch:
        patch.setattr(_Selection, "_visible", lambda _: 0)  # before what the log has, which tables show a moment later
        assert "cannot be seen in tables yet: run it again" in shop.error(config)
    shop.ingest(config)
    assert_equal(shop, config, "t")
