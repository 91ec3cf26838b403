"""The log that the server keeps for a slot: it is let go, shown, and warned of."""

import json
import subprocess
import sys
from typing import Any

import pytest

from nevermore.pipelines.cli.watch import Watch
from nevermore.pipelines.config.project import Config
from nevermore.pipelines.ingest.feed_run import run_once
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


@pytest.mark.each(2)
@pytest.mark.parametrize("how", ["made again", "read by another"])
def test_status_tells_of_a_slot_that_lost_changes(how: str, idle: Any) -> None:
    config = idle.config("items")
    idle.ingest(config)
    fine = nevermore(config, "status")
    assert (fine.returncode, fine.stderr) == (0, "")
    idle.sql("INSERT INTO items VALUES (2)")
    if how == "read by another":
        idle.sql(f"SELECT pg_replication_slot_advance('{idle.slot}', pg_current_wal_lsn())")
    else:
        idle.drop_slot()
        idle.sql(f"SELECT pg_create_logical_replication_slot('{idle.slot}', 'pgoutput')")
    shown = nevermore(config, "status")
    assert "by someone else, or dropped and created again, so changes after" in shown.stderr
    assert "nevermore resync TABLE --from-source" in shown.stderr
    (table,) = run_once(config).tables
    assert "by someone else, or dropped and created again" in str(table.error)


@pytest.mark.slow
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


@pytest.mark.slow
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


@pytest.mark.slow
def test_a_slot_that_was_dropped_says_the_same_everywhere(idle: Any) -> None:
    config = idle.config("items")
    idle.ingest(config)
    idle.drop_slot()
    (table,) = run_once(config).tables
    assert "there is no replication slot" in str(table.error)
    assert "nevermore resync" in str(table.error)
    for command in ("status", "doctor"):
        shown = nevermore(config, command)
        text = " ".join((shown.stdout + shown.stderr).split())
        assert "there is no replication slot" in text
        assert "nevermore resync --all --from-source" in text
        assert shown.returncode == (1 if command == "doctor" else 0)


def test_an_outage_is_one_line_without_a_traceback(idle: Any, caplog: pytest.LogCaptureFixture) -> None:
    idle.sql("CREATE TABLE more (id int PRIMARY KEY)", "ALTER PUBLICATION pub ADD TABLE more")
    config = idle.config("items", "more")
    idle.ingest(config)
    idle.dsn = "postgresql://nobody@127.0.0.1:9/none"
    caplog.clear()
    report = run_once(idle.config("items", "more"))
    assert all("cannot connect" in str(table.error) for table in report.tables)
    stopped = [record for record in caplog.records if "stopped" in record.getMessage()]
    assert [record.exc_info for record in stopped] == [None]
    assert "cannot connect to PostgreSQL" in stopped[0].getMessage()


def test_metrics_have_what_the_slot_holds(idle: Any) -> None:
    from opentelemetry.sdk.metrics import MeterProvider
    from opentelemetry.sdk.metrics.export import InMemoryMetricReader

    config = idle.config("items")
    report = idle.ingest(config)
    reader = InMemoryMetricReader()
    watch = Watch(config, "a-run", 1.0)
    watch.instrument(MeterProvider([reader]).get_meter("nevermore"))
    watch.after_round(report)
    data = reader.get_metrics_data()
    assert data is not None
    found = {m.name: m.data.data_points for r in data.resource_metrics for s in r.scope_metrics for m in s.metrics}
    for name in ("nevermore.slot_held_bytes", "nevermore.slot_lag_bytes"):
        (point,) = found[name]
        assert point.attributes == {"slot": idle.slot}
        assert point.value >= 0
