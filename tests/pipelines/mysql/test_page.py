"""What docs/mysql.md says, done in an empty folder: settings and rights by its SQL, its config, one table."""

import re
from pathlib import Path
from typing import Any

from nevermore.pipelines.config.project import load
from nevermore.pipelines.ingest.doctor import examine
from nevermore.pipelines.ingest.feed_run import run_once
from tests.pipelines.mysql.conftest import Shop

PAGE = (Path(__file__).parents[3] / "docs" / "mysql.md").read_text(encoding="utf-8")


def block(language: str) -> str:
    found = re.search(rf"^```{language}\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL)
    assert found is not None
    return found[1]


def test_settings_and_config_of_the_page_reach_the_rows(shop: Shop, monkeypatch: Any) -> None:
    shop.sql("DROP USER IF EXISTS reader", *filter(str.strip, block("sql").split(";")))
    shop.sql("CREATE TABLE orders (id int PRIMARY KEY, v int)", "INSERT INTO orders VALUES (1, 2)")
    address = f"@127.0.0.1:{shop.server.port}/{shop.database}"
    path = shop.folder / "nevermore.yaml"
    path.write_text(block("yaml").replace("@localhost:3306/shop", address))
    monkeypatch.setenv("MYSQL_PWD", "wrong")
    config = load(path)
    found = {(e.subject, e.finding.what): e.finding for e in examine(config)}
    failed = next(f for (_, what), f in found.items() if what == "connection")
    assert failed.status == "failed"
    assert "Access denied" in failed.found
    monkeypatch.setenv("MYSQL_PWD", "secret")
    statuses = {e.finding.what: e.finding.status for e in examine(config)}
    assert set(statuses.values()) == {"ok"}, statuses
    assert f"table {shop.database}.orders" in statuses
    shop.errors(run_once(config))
    shop.sql("UPDATE orders SET v = 3")
    assert not shop.errors(run_once(config))
    assert shop.values(config, "orders") == [(1, 3)]
    shop.sql("DROP USER reader")
