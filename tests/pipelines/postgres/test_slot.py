"""The log that the server keeps for a slot: it is let go, shown, and warned of."""

import json
import subprocess
import sys
from typing import Any

import pytest

from nevermore.pipelines.config.project import Config
from nevermore.pipelines.maintain.status import slot_status

MIB = 1024**2


def nevermore(config: Config, *arguments: str) -> subprocess.CompletedProcess[str]:
    program = [sys.executable, "-c", "from nevermore.pipelines.cli.main import main; main()"]
    command = [*program, *arguments, "--config", str(config.path)]
    return subprocess.run(command, capture_output=True, text=True, check=False)


@pytest.fixture
def idle(shop: Any) -> Any:
    """A table that never changes, in a database that others are busy in."""
    shop.sql(
        "CREATE TABLE items (id int PRIMARY KEY)",
        "INSERT INTO items VALUES (1)",
        "CREATE TABLE other (body text)",
        "CREATE PUBLICATION pub FOR TABLE items",
    )
    shop.source = {"max_held_bytes": "1MiB"}
    return shop


def write_log(shop: Any, mib: int) -> None:
    shop.sql(f"INSERT INTO other SELECT repeat('x', 8000) FROM generate_series(1, {mib * 130}) i")
    shop.sql("CHECKPOINT")


def test_the_slot_of_an_idle_table_follows_a_busy_database(idle: Any) -> None:
    config = idle.config("items")
    idle.ingest(config)
    idle.sql("ALTER TABLE other ALTER COLUMN body SET STORAGE EXTERNAL")
    write_log(idle, 20)
    (before,) = slot_status(config)
    assert before.lag_bytes is not None
    assert before.lag_bytes > 20 * MIB
    idle.ingest(config)
    (after,) = slot_status(config)
    assert after.lag_bytes is not None
    assert after.lag_bytes < MIB


def test_log_that_is_held_is_warned_of_everywhere(idle: Any) -> None:
    config = idle.config("items")
    (none,) = slot_status(config)
    assert "the first nevermore ingest creates it" in str(none.warning)
    report = idle.ingest(config)
    assert report.warnings == ()
    idle.sql("ALTER TABLE other ALTER COLUMN body SET STORAGE EXTERNAL")
    write_log(idle, 4)
    report = idle.ingest(config)  # too little to record the position of an idle table, more than the config allows
    assert "more than max_held_bytes: 1,048,576" in report.warnings[0]
    shown = nevermore(config, "status")
    assert shown.returncode == 0
    assert f"slot {idle.slot}: reserved" in shown.stdout
    assert "max_held_bytes" in shown.stderr
    documents = json.loads(nevermore(config, "status", "--json").stdout)
    (slot,) = [document for document in documents if document["kind"] == "slot"]
    assert slot["held_bytes"] > 4 * MIB
    checked = nevermore(config, "check")
    assert checked.returncode == 0
    assert "WARNING  shop.items  slot_holds_little_log" in checked.stdout


def test_a_server_that_cannot_be_asked_is_a_warning(idle: Any) -> None:
    config = idle.config("items")
    idle.ingest(config)
    text = config.path.read_text().replace(idle.dsn, "postgresql://nobody:hunter2@127.0.0.1:9/none")
    config.path.write_text(text)
    shown = nevermore(config, "status")
    assert shown.returncode == 0
    assert "cannot connect to PostgreSQL" in shown.stderr
    assert "hunter2" not in shown.stdout + shown.stderr
    checked = nevermore(config, "check")
    assert "WARNING  shop.items  slot_holds_little_log" in checked.stdout
    assert checked.returncode == 0
