"""A config for a server that was looked into runs as written; encryption, logs that were removed, and news of a server."""

import json
import time
from contextlib import closing
from pathlib import Path

import pytest

from nevermore.pipelines.cli.main import main
from nevermore.pipelines.config.project import load
from nevermore.pipelines.config.sources import MysqlSource
from nevermore.pipelines.iceberg.catalog import open_catalog
from nevermore.pipelines.iceberg.loaded_table import open_current
from nevermore.pipelines.ingest.feed_run import run_once
from nevermore.pipelines.maintain.replay import resync_from_source
from nevermore.pipelines.maintain.status import status
from nevermore.pipelines.sources.mysql.reader import MysqlReader
from tests.pipelines.mysql.conftest import BOTH, Shop


def run(*arguments: str) -> int:
    with pytest.raises(SystemExit) as ended:
        main(list(arguments))
    return int(ended.value.code or 0)


@BOTH
def test_the_config_of_a_server_runs_as_written(
    shop: Shop, capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shop.sql(
        "CREATE TABLE orders (id bigint PRIMARY KEY, v decimal(10, 2), place point)",
        "CREATE TABLE notes (text varchar(20))",
        "CREATE TABLE old (id int PRIMARY KEY) ENGINE = MyISAM",
        "INSERT INTO orders (id, v) VALUES (1, 1.5), (2, NULL)",
        "INSERT INTO notes VALUES ('a'), ('a')",
        "DROP USER IF EXISTS looker",
        "CREATE USER looker IDENTIFIED BY 'top-secret'",
        "GRANT ALL PRIVILEGES ON *.* TO looker",
    )
    address = shop.server.dsn(shop.database).replace("root@", "looker:top-secret@")
    assert run("init", "--from", address, "--dir", str(tmp_path), "--json") == 0
    told = json.loads(capsys.readouterr().out)
    text = (tmp_path / "nevermore.yaml").read_text()
    assert "top-secret" not in text + json.dumps(told)
    ready = {table["name"]: table["key"] for table in told["tables"] if table["ready"]}
    assert ready == {f"{shop.database}.notes": [], f"{shop.database}.orders": ["id"]}
    assert "ENGINE = InnoDB" in text
    assert "place (point)" in text
    monkeypatch.setenv("MYSQL_PWD", "top-secret")
    config = load(tmp_path / "nevermore.yaml")
    shop.ingest(config)
    position = status(open_catalog(config), config, [f"{shop.database}.orders"])[0].position
    with closing(MysqlReader(MysqlSource(type="mysql", dsn=address))) as reader:
        assert reader.news([None]) is not None
        assert reader.news([position]) is None
        shop.sql("UPDATE orders SET v = 3 WHERE id = 2")
        first = reader.news([position])
        assert first is not None
        assert reader.news([position]) == first
        shop.sql("DROP USER looker")
        assert reader.news([position]) != first


def test_addresses_that_are_none_are_one_message(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run("init", "--from", "mysql://127.0.0.1:1/x?tls=on", "--dir", str(tmp_path)) != 0
    assert "unknown option tls" in capsys.readouterr().err
    assert run("init", "--from", "mysql://root@127.0.0.1:1/x", "--dir", str(tmp_path)) != 0
    assert "cannot connect to MySQL at 127.0.0.1:1" in capsys.readouterr().err
    assert not list(tmp_path.iterdir())


def test_what_the_user_does_not_see_is_seen_before(shop: Shop, capsys: pytest.CaptureFixture[str]) -> None:
    shop.sql(
        "CREATE TABLE t (id int PRIMARY KEY, v int)",
        "INSERT INTO t VALUES (1, 5)",
        "CREATE TABLE hidden (id int PRIMARY KEY)",
        "DROP USER IF EXISTS part",
        "CREATE USER part IDENTIFIED BY 'top-secret'",
        f"GRANT SELECT (id) ON {shop.database}.t TO part",
        "GRANT REPLICATION SLAVE, REPLICATION CLIENT ON *.* TO part",
        "GRANT LOCK TABLES ON *.* TO part",
    )
    try:
        shop.source = {"dsn": shop.server.dsn(shop.database).replace("root@", "part:top-secret@")}
        config = shop.config("t", "hidden")
        assert run("doctor", "--config", str(config.path), "--json") == 1
        found = {f["what"]: f["found"] for f in map(json.loads, capsys.readouterr().out.splitlines())}
        assert "SELECT command denied" in found[f"table {shop.database}.t"]
        assert "sees no such table" in found["table shop.hidden"]
        assert "SELECT command denied" in shop.error(shop.config("t"))
        shop.sql(f"GRANT SELECT ON {shop.database}.t TO part")
        config = shop.config("t")
        shop.ingest(config)
        assert shop.values(config, "t") == [(1, 5)]
    finally:
        shop.sql("DROP USER part")


@pytest.mark.parametrize("server", ["mysql"], indirect=True)
def test_connections_can_be_encrypted(shop: Shop) -> None:
    """MySQL makes a certificate for itself, which is not for this address."""
    shop.sql(
        "DROP USER IF EXISTS safe", "CREATE USER safe IDENTIFIED BY 'secret' REQUIRE SSL", "GRANT ALL ON *.* TO safe"
    )
    shop.sql("CREATE TABLE t (id int PRIMARY KEY)", "INSERT INTO t VALUES (1)")
    address = shop.server.dsn(shop.database).replace("root@", "safe:secret@")
    shop.source = {"dsn": f"{address}?ssl_ca={shop.server.folder / 'data' / 'ca.pem'}"}
    assert "certificate" in shop.error(shop.config("t"))
    shop.source = {"dsn": f"{address}?ssl=true"}
    config = shop.config("t")
    shop.ingest(config)
    shop.sql("INSERT INTO t VALUES (2)")
    shop.ingest(config)
    assert shop.values(config, "t") == [(1,), (2,)]
    shop.sql("DROP USER safe")


@pytest.mark.slow
def test_log_that_was_removed_is_an_error_with_a_way_out(shop: Shop) -> None:
    shop.sql("CREATE TABLE t (id int PRIMARY KEY, v int)", "INSERT INTO t VALUES (1, 1), (2, 2)")
    config = shop.config("t")
    shop.ingest(config)
    shop.sql("UPDATE t SET v = 5", "DELETE FROM t WHERE id = 1", "FLUSH BINARY LOGS", "FLUSH BINARY LOGS")
    last = str(shop.sql("SHOW BINARY LOGS")[-1][0])
    for _ in range(200):  # MariaDB keeps a file until what it has is flushed
        shop.sql(f"PURGE BINARY LOGS TO '{last}'")
        if shop.sql("SHOW BINARY LOGS")[0][0] == last:
            break
        time.sleep(0.1)
    text = shop.error(config)
    assert "the server has removed binlog." in text
    assert "nevermore resync TABLE --from-source" in text
    assert shop.values(config, "t") == [(1, 1), (2, 2)]
    resync_from_source(open_catalog(config), config, "shop.t")
    shop.sql("INSERT INTO t VALUES (3, 3)")
    shop.ingest(config)
    assert shop.values(config, "t") == [(2, 5), (3, 3)]


def test_init_and_doctor_agree_with_the_ingest(
    shop: Shop, capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shop.sql(
        "CREATE TABLE whole (a float, b double, s varchar(9))",
        "INSERT INTO whole VALUES (1.1, 0.1, 'x'), (1.1, 0.1, 'x'), (NULL, -0.0, 'y')",
        "CREATE TABLE floats (a double PRIMARY KEY, _file int)",
        "INSERT INTO floats VALUES (0.1, 1), (1e300, 2)",
        "CREATE TABLE T (id int PRIMARY KEY, place point, v int)",
        "CREATE TABLE t (id int PRIMARY KEY, V int)",
        "INSERT INTO T (id, v) VALUES (1, 1)",
        "INSERT INTO t VALUES (2, 2)",
    )
    monkeypatch.setenv("MYSQL_PWD", "secret")
    config = shop.config("whole", "floats", "T")
    assert run("doctor", "--config", str(config.path), "--json") == 1
    found = {f["what"]: f["found"] for f in map(json.loads, capsys.readouterr().out.splitlines())}
    assert "no primary key" in found[f"table {shop.database}.whole"]
    assert 'add types: {"a": "string"}' in found[f"table {shop.database}.floats"]
    config = shop.config("T", "t")
    assert run("doctor", "--config", str(config.path), "--json") == 1
    alike = {f["what"]: f["found"] for f in map(json.loads, capsys.readouterr().out.splitlines())}
    assert "shop.T, shop.t differ by case only" in alike["names of tables"]
    config = shop.config("whole", "floats", "T")
    assert "must be excluded: place (point)" in found[f"table {shop.database}.T"]
    assert len(shop.errors(run_once(config))) == 3
    made = tmp_path / "made"
    made.mkdir()
    assert run("init", "--from", shop.dsn, "--dir", str(made)) == 0
    capsys.readouterr()
    config = load(made / "nevermore.yaml")
    assert run("doctor", "--config", str(config.path)) == 0
    assert "WARNING" not in capsys.readouterr().out
    shop.ingest(config)
    shop.sql(
        "DELETE FROM whole LIMIT 1", "UPDATE floats SET _file = 9 WHERE a = 0.1", "DELETE FROM T", "UPDATE t SET V = 5"
    )
    shop.ingest(config)
    rows = {
        n: open_current(open_catalog(config).load_table(f"{shop.database}.{n}")).scan().to_table().to_pylist()
        for n in ("whole", "floats", "T", "t_2")  # other engines do not tell T from t
    }
    assert [len(rows[name]) for name in rows] == [2, 2, 0, 1]
    assert sorted(row["_file_"] for row in rows["floats"]) == [2, 9]
