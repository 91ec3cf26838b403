"""Tables of a MySQL or MariaDB server reach their mirrors: a load, then changes, statements, large transactions, interruptions."""

import random
import threading
import time
from pathlib import Path
from typing import Any

import pytest
import yaml

from nevermore.pipelines.config.project import load
from nevermore.pipelines.iceberg.catalog import open_catalog
from nevermore.pipelines.iceberg.loaded_table import open_current
from nevermore.pipelines.ingest.feed_run import run_once
from nevermore.pipelines.maintain.replay import resync_from_source
from nevermore.pipelines.sources.mysql import load as mysql_load
from tests.pipelines.mysql.conftest import BOTH, Shop
from tests.support.mysql_servers import mysql_server


@BOTH
def test_load_changes_and_statements(shop: Shop) -> None:
    shop.sql("CREATE TABLE t (id int PRIMARY KEY, v varchar(10))", "INSERT INTO t VALUES (1, 'a'), (2, 'b'), (3, 'c')")
    config = shop.config("t")
    shop.ingest(config)
    assert shop.values(config, "t") == [(1, "a"), (2, "b"), (3, "c")]
    shop.sql("INSERT INTO t VALUES (4, 'd')", "UPDATE t SET v = 'x' WHERE id = 1", "DELETE FROM t WHERE id = 2")
    shop.sql("UPDATE t SET id = 30 WHERE id = 3", "REPLACE INTO t VALUES (4, 'D')")
    shop.together(
        "INSERT INTO t VALUES (5, 'e')",
        "SAVEPOINT s",
        "DELETE FROM t",
        "ROLLBACK TO s",
        "UPDATE t SET v = 'E' WHERE id = 5",
    )
    shop.sql("BEGIN", "DELETE FROM t", "ROLLBACK")
    shop.ingest(config)
    assert shop.values(config, "t") == [(1, "x"), (4, "D"), (5, "E"), (30, "c")]
    shop.sql(
        "ALTER TABLE t ADD COLUMN n int, ADD INDEX (n)",
        "UPDATE t SET n = 7 WHERE id = 1",
        "TRUNCATE t",
        "INSERT INTO t VALUES (9, 'z', 9)",
    )
    shop.ingest(config)
    assert shop.values(config, "t") == [(9, "z", 9)]


STATEMENTS: dict[str, list[str]] = {
    "new column with a default": ["ALTER TABLE t ADD COLUMN n int NOT NULL DEFAULT 7"],
    "converted values": ["ALTER TABLE t MODIFY v varchar(1)", "UPDATE t SET v = 'q' WHERE id = 1"],
    "renamed column": ["ALTER TABLE t RENAME COLUMN v TO w", "INSERT INTO t VALUES (8, 'w')"],
    "dropped and created": [
        "DROP TABLE t",
        "CREATE TABLE t (id int PRIMARY KEY, v varchar(10))",
        "INSERT INTO t VALUES (2, 'new')",
    ],
    "replaced": ["CREATE OR REPLACE TABLE t (id int PRIMARY KEY, v varchar(10))", "INSERT INTO t VALUES (4, 'r')"],
    "swapped": [
        "CREATE TABLE other (id int PRIMARY KEY, v varchar(10))",
        "INSERT INTO other VALUES (6, 'other')",
        "RENAME TABLE t TO gone, other TO t",
        "INSERT INTO t VALUES (7, 'after')",
    ],
    "renamed and back": ["ALTER TABLE t RENAME TO away", "UPDATE away SET v = 'away'", "RENAME TABLE away TO t"],
    "partition": [
        "ALTER TABLE t PARTITION BY RANGE (id) (PARTITION a VALUES LESS THAN (2), PARTITION b VALUES LESS THAN MAXVALUE)",
        "ALTER TABLE t TRUNCATE PARTITION b",
    ],
    "created from a selection": ["CREATE OR REPLACE TABLE t (PRIMARY KEY (id)) SELECT 11 AS id, 'sel' AS v"],
    "comments": ["/* a */ TRUNCATE /* b */ TABLE `t`", "INSERT INTO t VALUES (5, 'c')"],
    "load data": ["INSERT INTO t SELECT seq + 100, 'many' FROM seq_1_to_2000"],
}


@pytest.mark.each(11)
@pytest.mark.parametrize("name", STATEMENTS)
def test_statements_leave_what_the_table_has(shop: Shop, name: str) -> None:
    if not shop.is_mariadb and any("CREATE OR REPLACE TABLE" in statement for statement in STATEMENTS[name]):
        pytest.skip("MySQL has no such statement")
    shop.sql(
        "SET sql_mode = ''",
        "CREATE TABLE t (id int PRIMARY KEY, v varchar(10))",
        "INSERT INTO t VALUES (1, 'ab'), (2, 'cd'), (3, 'ef')",
    )
    config = shop.config("t")
    shop.ingest(config)
    shop.sql(*STATEMENTS[name])
    shop.ingest(config)
    expected = shop.sql("SELECT * FROM t ORDER BY id")
    columns = [str(row[0]) for row in shop.sql("SHOW COLUMNS FROM t")]
    assert [tuple(row[c] for c in columns) for row in shop.rows(config, "t")] == expected


def test_large_transactions_and_logs_of_several_files(shop: Shop, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("nevermore.pipelines.sources.mysql.reader.MAX_EVENTS", 7)
    shop.sql("CREATE TABLE t (id int PRIMARY KEY, v varchar(2000))", "CREATE TABLE u (id int PRIMARY KEY, v int)")
    config = shop.config("t", "u")
    shop.ingest(config)
    shop.together(
        "INSERT INTO t SELECT seq, repeat('x', 1000) FROM seq_1_to_3000",
        "INSERT INTO u VALUES (1, 1)",
        "UPDATE t SET v = concat('y', id) WHERE id % 2 = 0",
        "DELETE FROM t WHERE id % 3 = 0",
    )
    shop.sql("FLUSH BINARY LOGS", "INSERT INTO u VALUES (2, 2)", "FLUSH BINARY LOGS", "UPDATE u SET v = 3")
    shop.ingest(config)
    assert shop.values(config, "u") == [(1, 3), (2, 3)]
    assert shop.values(config, "t") == shop.sql("SELECT id, v FROM t ORDER BY id")


@pytest.mark.parametrize(
    "key",
    [
        "int",
        *(
            pytest.param(key, marks=pytest.mark.slow)
            for key in ("bigint", "int unsigned", "bigint unsigned", "varchar(9)")
        ),
    ],
)
def test_changes_while_a_table_is_loaded_are_neither_lost_nor_doubled(
    shop: Shop, monkeypatch: pytest.MonkeyPatch, key: str
) -> None:
    monkeypatch.setattr(mysql_load, "MAX_CHUNK_ROWS", 100)
    shop.sql(f"CREATE TABLE t (id {key} PRIMARY KEY, v int)", "INSERT INTO t SELECT seq, 0 FROM seq_1_to_600")
    config = shop.config("t")
    stop = threading.Event()
    connection = shop.server.connect(shop.database)

    def write() -> None:
        with connection.cursor() as cursor:
            number = 0
            while not stop.is_set():
                number += 1
                cursor.execute(
                    f"UPDATE t SET v = v + 1 WHERE id BETWEEN {number * 37 % 600} AND {number * 37 % 600 + 5}"
                )
                cursor.execute(f"DELETE FROM t WHERE id = {number * 11 % 600}")
                cursor.execute(f"UPDATE IGNORE t SET id = {600 + number % 100} WHERE id = {number * 17 % 600}")
                cursor.execute(f"INSERT IGNORE INTO t VALUES ({number * 11 % 600}, {number})")
                time.sleep(0.005)

    writer = threading.Thread(target=write)
    writer.start()
    try:
        for _ in range(3):
            shop.ingest(config)
    finally:
        stop.set()
        writer.join()
        connection.close()
    shop.ingest(config)
    rows = {str(row["id"]): row["v"] for row in shop.rows(config, "t")}
    assert rows == {str(number): value for number, value in shop.sql("SELECT id, v FROM t")}


def test_load_continues_after_an_interruption(shop: Shop, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mysql_load, "MAX_CHUNK_ROWS", 100)
    shop.sql("CREATE TABLE t (id int PRIMARY KEY, v int)", "INSERT INTO t SELECT seq, 0 FROM seq_1_to_500")
    config = shop.config("t")
    begun: list[int | None] = []
    begin = mysql_load._Selection.begin

    def interrupted(self: Any, after: int | None, step: int, start: Any) -> tuple[int, int | None]:
        begun.append(after)
        if len(begun) == 4:
            raise ConnectionError("killed")
        return begin(self, after, step, start)

    monkeypatch.setattr(mysql_load._Selection, "begin", interrupted)
    assert "killed" in shop.error(config)
    shop.sql(
        "UPDATE t SET v = 1 WHERE id % 7 = 0",
        "DELETE FROM t WHERE id % 11 = 0",
        "UPDATE t SET id = id + 1000 WHERE id % 13 = 0",
    )
    shop.ingest(config)
    assert begun[4] == begun[3] is not None  # no chunk was read twice
    assert shop.values(config, "t") == shop.sql("SELECT id, v FROM t ORDER BY id")


def test_table_that_is_altered_or_truncated_while_it_is_loaded_is_loaded_again(
    shop: Shop, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(mysql_load, "MAX_CHUNK_ROWS", 100)
    for number, statement in enumerate(
        ("TRUNCATE {0}", "ALTER TABLE {0} ADD COLUMN n int DEFAULT 5", "ALTER TABLE {0} MODIFY v bigint")
    ):
        table = f"t{number}"
        shop.sql(
            f"CREATE TABLE {table} (id int PRIMARY KEY, v int)", f"INSERT INTO {table} SELECT seq, 0 FROM seq_1_to_300"
        )
        calls = 0
        begin = mysql_load._Selection.begin

        def altered(
            self: Any, after: int | None, step: int, start: Any, sql: str = statement.format(table)
        ) -> tuple[int, int | None]:
            nonlocal calls
            calls += 1
            if calls == 3:
                shop.sql(sql)
            return begin(self, after, step, start)  # noqa: B023 - the loop waits for it

        config = shop.config(table)
        with monkeypatch.context() as patch:
            patch.setattr(mysql_load._Selection, "begin", altered)
            run_once(config)
        shop.ingest(config)
        columns = [str(row[0]) for row in shop.sql(f"SHOW COLUMNS FROM {table}")]
        expected = shop.sql(f"SELECT * FROM {table} ORDER BY id")
        assert [tuple(row[c] for c in columns) for row in shop.rows(config, table)] == expected, statement


def test_keys(shop: Shop) -> None:
    shop.sql(
        "CREATE TABLE two (a int, b varchar(5), v int, PRIMARY KEY (b, a))",
        "CREATE TABLE none (a int, v int)",
        "INSERT INTO two VALUES (1, 'x', 1), (1, 'y', 2)",
        "INSERT INTO none VALUES (1, 1), (1, 1), (2, 2)",
    )
    assert "has no primary key" in shop.error(shop.config("none"))
    whole = shop.config("none", identity="full")
    shop.ingest(whole)
    shop.sql("DELETE FROM none LIMIT 1", "UPDATE none SET v = 9 WHERE a = 2")
    shop.ingest(whole)
    assert sorted(shop.values(whole, "none")) == [(1, 1), (2, 9)]
    config = shop.config("two")
    shop.ingest(config)
    shop.sql("UPDATE two SET v = 5 WHERE b = 'x'", "UPDATE two SET b = 'z' WHERE b = 'y'")
    shop.ingest(config)
    assert sorted(shop.values(config, "two")) == [(1, "x", 5), (1, "z", 2)]


CASCADES: dict[str, tuple[str, list[str]]] = {
    "deleted rows": ("ON DELETE CASCADE", ["DELETE FROM parent WHERE id = 1"]),
    "rows set to null": ("ON DELETE SET NULL", ["DELETE FROM parent WHERE id = 1"]),
    "changed keys": ("ON UPDATE CASCADE", ["UPDATE parent SET id = 9 WHERE id = 1"]),
    "replaced": ("ON DELETE CASCADE", ["REPLACE INTO parent VALUES (1, 5)"]),
    "deleted between other changes": (
        "ON DELETE CASCADE",
        ["INSERT INTO child VALUES (10, 1)", "BEGIN", "UPDATE child SET id = 11 WHERE id = 10", "DELETE FROM parent WHERE id = 1",
         "INSERT INTO child VALUES (12, 2)", "COMMIT", "UPDATE child SET id = 13 WHERE id = 12"],
    ),
}  # fmt: skip


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=[pytest.mark.slow] * (name not in {"changed keys", "deleted rows"}))
        for name in CASCADES
    ],
)
def test_rows_that_foreign_keys_change_without_an_event_are_loaded_again(shop: Shop, name: str) -> None:
    action, statements = CASCADES[name]
    shop.sql(
        "CREATE TABLE parent (id int PRIMARY KEY, v int)",
        f"CREATE TABLE child (id int PRIMARY KEY, p int, FOREIGN KEY (p) REFERENCES parent (id) {action})",
        "CREATE TABLE grand (id int PRIMARY KEY, p int, FOREIGN KEY (p) REFERENCES child (id) ON DELETE CASCADE ON UPDATE CASCADE)",
        "INSERT INTO parent VALUES (1, 1), (2, 2)",
        "INSERT INTO child VALUES (1, 1), (2, 2), (3, 1)",
        "INSERT INTO grand VALUES (1, 1), (2, 2), (3, NULL)",
    )
    config = shop.config("child", "grand")  # the parent itself is not read
    shop.ingest(config)
    shop.sql("UPDATE parent SET v = 7", *statements)
    for _ in range(2):
        shop.ingest(config)
    for table in ("child", "grand"):
        assert shop.values(config, table) == shop.sql(f"SELECT * FROM {table} ORDER BY id"), table


def test_changes_of_other_columns_do_not_load_referring_tables_again(shop: Shop) -> None:
    shop.sql(
        "CREATE TABLE parent (id int PRIMARY KEY, v int)",
        "CREATE TABLE child (id int PRIMARY KEY, p int, FOREIGN KEY (p) REFERENCES parent (id) ON DELETE CASCADE ON UPDATE CASCADE)",
        "INSERT INTO parent VALUES (1, 1)",
        "INSERT INTO child VALUES (1, 1)",
    )
    config = shop.config("child")
    shop.ingest(config)
    shop.sql("UPDATE parent SET v = 2", "INSERT INTO parent VALUES (5, 5)", "INSERT INTO child VALUES (2, 5)")
    (report,) = shop.ingest(config).tables
    assert dict(report.events) == {"c": 1}  # no `r`, which is a row of a load


NAMES = ["order", "we`ird", "per%scent", "it's", 'quo"te', "sp ace", "Ünïcode", "x" * 60, "{brace}"]


@pytest.mark.slow
def test_names_need_no_care(shop: Shop) -> None:
    def quoted(name: str) -> str:
        return "`" + name.replace("`", "``") + "`"

    shop.sql(f"DROP DATABASE IF EXISTS {quoted('other `db')}", f"CREATE DATABASE {quoted('other `db')}")
    entries, of = {}, {}
    for at, name in enumerate(NAMES):
        for database in (shop.database, "other `db"):
            table = f"{quoted(database)}.{quoted(name)}"
            shop.sql(
                f"CREATE TABLE {table} (id int PRIMARY KEY, {quoted(name)} int)",
                f"INSERT INTO {table} VALUES (1, {at})",
            )
            mirror = f"{'shop' if database == shop.database else 'other'}.t{at}"
            entries[mirror] = {
                "source": {"type": "mysql", "dsn": shop.server.dsn("")},
                "source_table": f"{database}.{name}",
            }
            of[mirror] = table
    path = shop.folder / "nevermore.yaml"
    path.write_text(yaml.safe_dump({"tables": entries}))
    config = load(path)
    shop.ingest(config)
    for table in of.values():
        shop.sql(f"INSERT INTO {table} VALUES (2, 2), (3, 3)", f"DELETE FROM {table} WHERE id = 1")
    shop.sql(f"TRUNCATE {of['other.t1']}", f"ALTER TABLE {of['shop.t1']} MODIFY {quoted(NAMES[1])} bigint")
    for _ in range(2):
        shop.ingest(config)
    for mirror, table in of.items():
        rows = open_current(open_catalog(config).load_table(mirror)).scan().to_table().to_pylist()
        assert sorted(tuple(row.values()) for row in rows) == shop.sql(f"SELECT * FROM {table} ORDER BY id"), table
    shop.sql(f"DROP DATABASE {quoted('other `db')}")


def test_system_versioned_tables_are_refused(shop: Shop) -> None:
    if not shop.is_mariadb:
        pytest.skip("MySQL has none")
    shop.sql("CREATE TABLE t (id int PRIMARY KEY) WITH SYSTEM VERSIONING")
    assert "DROP SYSTEM VERSIONING" in shop.error(shop.config("t"))


def test_tables_without_transactions_are_refused(shop: Shop) -> None:
    shop.sql("CREATE TABLE t (id int PRIMARY KEY) ENGINE = MyISAM")
    assert "ENGINE = InnoDB" in shop.error(shop.config("t"))


@pytest.mark.parametrize("kind", ["mariadb", pytest.param("mysql", marks=pytest.mark.slow)])
def test_log_goes_on_after_the_server_was_killed(tmp_path: Path, kind: str) -> None:
    with mysql_server(kind) as server:
        shop = Shop(server, tmp_path)
        shop.sql("CREATE TABLE t (id int PRIMARY KEY)", "INSERT INTO t VALUES (1)")
        config = shop.config("t")
        shop.ingest(config)
        for number in (2, 3):
            server.stop(kill=True)
            server.start()
            shop.connection = server.connect(shop.database)
            shop.sql(f"INSERT INTO t VALUES ({number})")
        shop.ingest(config)
        assert shop.values(config, "t") == [(1,), (2,), (3,)]
        shop.close()


REFUSED = {
    "binlog_row_value_options = 'PARTIAL_JSON'": "parts of JSON values",
    "binlog_transaction_compression = ON": "a compressed transaction",
    "binlog_format = 'STATEMENT'": "a statement",
    "binlog_row_image = 'MINIMAL'": "without some of their columns",
    "binlog_row_image = 'NOBLOB'": "without some of their columns",
}
"""What a session may set for itself, and what its changes are called then."""


@pytest.mark.parametrize(
    "setting", [*REFUSED][-2:] + [pytest.param(s, marks=pytest.mark.slow) for s in [*REFUSED][:-2]]
)
def test_what_only_a_session_has_set_is_refused_and_a_load_goes_on(shop: Shop, setting: str) -> None:
    if shop.is_mariadb and "format" not in setting and "image" not in setting:
        pytest.skip("MariaDB has no such setting")
    name = setting.partition(" ")[0]
    if not shop.sql(f"SHOW VARIABLES LIKE '{name}'"):
        pytest.skip("this version has no such setting yet")
    shop.sql(
        "CREATE TABLE t (id int PRIMARY KEY, j json, n text)", "INSERT INTO t VALUES (1, '{\"a\": 1, \"b\": 2}', 'n')"
    )
    config = shop.config("t")
    shop.ingest(config)
    before = shop.values(config, "t")
    shop.sql(f"SET SESSION {setting}", "UPDATE t SET j = json_set(j, '$.a', 5) WHERE id = 1")
    shop.sql(f"SET SESSION {name} = DEFAULT", "INSERT INTO t VALUES (2, '{}', 'n')")
    for _ in range(2):
        error = shop.error(config)
        assert REFUSED[setting] in error
        assert "nevermore resync" in error
        assert shop.values(config, "t") == before
    resync_from_source(open_catalog(config), config, "shop.t")
    assert [row[0] for row in shop.values(config, "t")] == [1, 2]
    assert '"a": 5' in str(shop.values(config, "t")[0][1])
    shop.sql("DELETE FROM t WHERE id = 1")
    shop.ingest(config)
    assert [row[0] for row in shop.values(config, "t")] == [2]


BY_KEY = {
    "varchar": ("k varchar(20)", "CONCAT(ELT(1 + seq % 4, 'b', 'B', 'ä', 'a\\\\'''), seq)"),
    "varchar of another character set": ("k varchar(20) CHARACTER SET latin1 COLLATE latin1_german2_ci", "CONCAT(ELT(1 + seq % 4, 'o', 'Ö', 'z', 'ß%'), seq)"),
    "char by its bytes": ("k char(20) CHARACTER SET utf8mb4 COLLATE utf8mb4_bin", "CONCAT(ELT(1 + seq % 4, 'b', 'B', 'ä', '🐦'), seq)"),
    "varbinary": ("k varbinary(20)", "UNHEX(MD5(seq))"),
    "binary": ("k binary(18)", "UNHEX(MD5(seq))"),
    "decimal": ("k decimal(20, 3)", "(CAST(seq AS SIGNED) * 7919 % 100003 - 50000) / 8"),
    "bigint unsigned": ("k bigint unsigned", "18446744073709551615 - seq * 7919 % 100003"),
    "datetime": ("k datetime(3)", "TIMESTAMPADD(MICROSECOND, seq * 1500000, '2024-01-01')"),
    "timestamp": ("k timestamp(6)", "TIMESTAMPADD(MICROSECOND, seq * 1500001, '2024-01-01')"),
    "composite": ("a date, k varchar(9), b decimal(9, 2)", "DATE_ADD('2024-01-01', INTERVAL seq % 5 DAY), CONCAT(ELT(1 + seq % 2, 'c', 'D'), seq % 50), seq / 4"),
    "composite with a number": ("a int unsigned, k binary(3)", "seq % 3, UNHEX(LPAD(HEX(seq), 6, '0'))"),
}  # fmt: skip


@pytest.mark.parametrize(
    "key", [k if k in {"varchar", "composite"} else pytest.param(k, marks=pytest.mark.slow) for k in BY_KEY]
)
def test_a_load_by_any_key_goes_on_after_each_chunk(shop: Shop, monkeypatch: pytest.MonkeyPatch, key: str) -> None:
    monkeypatch.setattr(mysql_load, "MAX_CHUNK_ROWS", 100)
    columns, values = BY_KEY[key]
    names = [part.split()[0] for part in split(columns)]
    listed = ", ".join(names)
    shop.sql(
        f"CREATE TABLE t (n int UNIQUE, {columns}, v int, PRIMARY KEY ({', '.join(reversed(names))}))",
        f"INSERT INTO t (n, {listed}, v) SELECT seq, {values}, 0 FROM seq_1_to_750",
    )
    config = shop.config("t")
    begin = mysql_load._Selection.begin
    begun: list[object] = []
    dice = random.Random(key)

    def disturb() -> None:
        for _ in range(4):
            new, old = 1000 + dice.randrange(10**5), dice.randrange(1, 750)
            shop.sql(
                f"UPDATE t SET v = v + 1 WHERE n IN ({dice.randrange(750)}, {dice.randrange(750)})",
                f"DELETE FROM t WHERE n = {dice.randrange(750)}",
                f"INSERT IGNORE INTO t (n, {listed}, v) SELECT seq, {values}, 7 FROM (SELECT {new} AS seq) s",
            )
            assignments = [f"{name} = {value}" for name, value in zip(names, split(values), strict=True)]
            moved = ", ".join(a.replace("seq", str(new + 1)) for a in assignments)
            shop.sql(f"UPDATE IGNORE t SET n = {new + 1}, {moved} WHERE n = {old}")

    def killed(self: Any, after: object, step: int, start: Any) -> Any:
        begun.append(after)
        if len(begun) % 2 == 0:
            raise KeyboardInterrupt
        return begin(self, after, step, start)

    def in_source() -> list[str]:
        return sorted(str(tuple(map(str, row))) for row in shop.sql(f"SELECT n, {listed}, v FROM t"))

    def in_mirror() -> list[str]:
        found = [tuple(row[name] for name in ("n", *names, "v")) for row in shop.rows(config, "t")]
        return sorted(str(tuple(str(v).removesuffix("+00:00") for v in row)) for row in found)

    with monkeypatch.context() as patch:
        patch.setattr(mysql_load._Selection, "begin", killed)
        for _ in range(20):
            try:
                shop.ingest(config)
                break
            except KeyboardInterrupt:
                disturb()
    chunks = begun[::2]
    assert len(chunks) >= 7
    assert begun[1::2] == begun[2::2][: len(begun[1::2])]  # each run begins where the last one was killed
    shop.ingest(config)
    assert in_mirror() == in_source()
    disturb()
    shop.ingest(config)
    assert in_mirror() == in_source()


def split(values: str) -> list[str]:
    """Expressions at the top level of a list of them."""
    found, depth = [""], 0
    for letter in values:
        depth += {"(": 1, ")": -1}.get(letter, 0)
        if letter == "," and not depth:
            found.append("")
        else:
            found[-1] += letter
    return [part.strip() for part in found]
