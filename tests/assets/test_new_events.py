"""The sensor that looks for new events: in folders, in topics of a broker, and in the changes of a database."""

from pathlib import Path
from typing import Any

import dagster as dg
import pytest
import yaml

from nevermore.assets import sensors
from nevermore.assets.definitions import project_definitions
from nevermore.assets.jobs import INGEST_JOB
from nevermore.assets.project import change_log_key, mirror_key
from nevermore.pipelines.config.project import load
from nevermore.pipelines.errors import PipelineError
from nevermore.pipelines.ingest.feed_run import run_once
from tests.support.kafka_broker import running_broker
from tests.support.postgres_server import postgres, programs_or_skip
from tests.support.shop_project import ShopProject, event, order


def tick(project: ShopProject, instance: dg.DagsterInstance, cursor: str | None) -> dg.SensorResult | dg.SkipReason:
    return tick_of(project.path, instance, cursor)


def tick_of(config: Path, instance: dg.DagsterInstance, cursor: str | None) -> dg.SensorResult | dg.SkipReason:
    definitions = project_definitions(load(config))
    sensor = definitions.resolve_sensor_def(sensors.SENSOR)
    context = dg.build_sensor_context(
        instance=instance, cursor=cursor, resources=dict(definitions.resources or {}),
        repository_def=definitions.get_repository_def(),
    )  # fmt: skip
    return sensor(context)  # type: ignore[return-value]


def test_new_events_start_an_ingest_of_their_source_alone_and_only_once(
    project: ShopProject, instance: dg.DagsterInstance
) -> None:
    first = tick(project, instance, None)
    assert isinstance(first, dg.SensorResult)
    (request,) = first.run_requests or []
    assert request.tags == {"nevermore/trigger": "new_events", "nevermore/sources": "2"}
    assert len(request.asset_selection or ()) == 6
    run_once(project.config)

    again = tick(project, instance, first.cursor)
    assert isinstance(again, dg.SensorResult)
    assert (again.run_requests, again.cursor) == ([], first.cursor)
    without_cursor = tick(project, instance, None)  # everything was ingested by somebody else
    assert isinstance(without_cursor, dg.SensorResult)
    assert not without_cursor.run_requests

    project.land("orders", "3.jsonl", [event("c", "orders", after=order(8, 80.0, 2))])
    later = tick(project, instance, first.cursor)
    assert isinstance(later, dg.SensorResult)
    (request,) = later.run_requests or []
    assert set(request.asset_selection or ()) == {change_log_key("shop.orders"), mirror_key("shop.orders")}


@pytest.mark.each(3)
@pytest.mark.parametrize(
    ("change", "starts"),
    [(Path.touch, False), (Path.unlink, False), (lambda file: file.write_text(file.read_text() * 2), True)],
    ids=["touched", "gone", "grown"],
)
def test_only_files_with_something_to_read_start_an_ingest(
    project: ShopProject, instance: dg.DagsterInstance, change: Any, starts: Any
) -> None:
    run_once(project.config)
    before = tick(project, instance, None)
    change(next(project.folder.glob("landing/orders/*")))
    after = tick(project, instance, before.cursor if isinstance(before, dg.SensorResult) else None)
    assert isinstance(after, dg.SensorResult)
    assert bool(after.run_requests) == starts


def test_while_an_ingest_runs_the_sensor_waits(project: ShopProject, instance: dg.DagsterInstance) -> None:
    run = dg.DagsterRun(
        job_name=INGEST_JOB, run_id="00000000-0000-0000-0000-000000000001", status=dg.DagsterRunStatus.STARTED
    )
    instance.add_run(run)
    assert "an ingest is running" in str(tick(project, instance, None))


@pytest.mark.each(2)
@pytest.mark.parametrize(
    ("every", "after", "is_late"),
    [
        (None, 299, False),
        (None, 301, True),
        ("1s", 299, False),
        ("1s", 301, True),
        ("2m", 1199, False),
        ("2m", 1201, True),
    ],
)
def test_a_tick_that_waits_long_for_an_ingest_fails_and_one_alert_is_posted(
    every: str | None, after: float, *, is_late: bool, project: ShopProject, instance: dg.DagsterInstance,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    project.configure(alerts={"webhook": "https://example.com/hook"}, **({"ingest_sensor": every} if every else {}))
    run_id = "00000000-0000-0000-0000-000000000001"
    instance.add_run(dg.DagsterRun(job_name=INGEST_JOB, run_id=run_id, status=dg.DagsterRunStatus.STARTED))
    posted = list[dict[str, Any]]()
    monkeypatch.setattr(sensors, "post", lambda _address, message: posted.append(message))
    begun = instance.get_run_records()[0].create_timestamp.timestamp()
    monkeypatch.setattr(sensors.time, "time", lambda: begun + after)
    for _ in range(3):
        if not is_late:
            assert "an ingest is running" in str(tick(project, instance, None))
            continue
        with pytest.raises(PipelineError, match=rf"ingest_job is STARTED since \d+ minutes \(run {run_id}\)"):
            tick(project, instance, None)
    assert [(message["event"], message["run_id"]) for message in posted] == [("ingest_late", run_id)] * is_late


@pytest.mark.parametrize(("every", "status", "interval"), [(None, "STOPPED", 30), ("2m", "RUNNING", 120)])
def test_the_config_says_whether_the_sensor_runs(
    every: str | None, status: str, interval: int, project: ShopProject
) -> None:
    if every is not None:
        project.configure(ingest_sensor=every)
    sensor = project.definitions.resolve_sensor_def(sensors.SENSOR)
    assert (sensor.default_status.name, sensor.minimum_interval_seconds) == (status, interval)


class Watch:
    """Ticks of the sensor of a project, one after the other."""

    def __init__(self, folder: Path, instance: dg.DagsterInstance, source: dict[str, Any], *tables: str) -> None:
        self.path = folder / "nevermore.yaml"
        entries = {table: {"source": source, "key": ["id"]} for table in tables}
        self.path.write_text(yaml.safe_dump({"tables": entries}))
        self._instance = instance
        self._cursor: str | None = None

    def starts(self) -> bool:
        """Whether a tick asks for an ingest."""
        result = tick_of(self.path, self._instance, self._cursor)
        assert isinstance(result, dg.SensorResult), result
        self._cursor = result.cursor
        return bool(result.run_requests)

    def ingest(self) -> None:
        report = run_once(load(self.path))
        assert not [table.error for table in report.tables if table.error]


@pytest.mark.slow  # it waits for a broker that is gone
def test_new_messages_of_a_topic_start_an_ingest_once(tmp_path: Path, instance: dg.DagsterInstance) -> None:
    def sent(key: int) -> tuple[bytes, bytes]:
        return f'{{"id": {key}}}'.encode(), f'{{"op": "c", "before": null, "after": {{"id": {key}}}}}'.encode()

    with running_broker() as broker:
        broker.create_topic("orders", 2)
        source = {"type": "kafka", "brokers": broker.address, "topics": "orders", "format": "debezium-json"}
        watch = Watch(tmp_path, instance, source, "shop.orders")
        assert not watch.starts()  # an empty topic
        broker.produce("orders", [sent(1), sent(2)])
        assert watch.starts()
        assert not watch.starts()  # a run was asked for; it failed, say
        broker.produce("orders", [sent(3)])
        assert watch.starts()
        watch.ingest()
        assert not watch.starts()
        broker.produce("orders", [sent(4)])
        assert watch.starts()
        watch.ingest()
        assert not watch.starts()
    result = tick_of(watch.path, instance, None)  # the broker is gone
    assert isinstance(result, dg.SensorResult)
    assert not result.run_requests
    assert "topic orders" in str(result.skip_reason) or "Kafka" in str(result.skip_reason)


def test_changes_of_published_tables_start_an_ingest_and_others_do_not(
    tmp_path: Path, instance: dg.DagsterInstance
) -> None:
    with postgres(programs_or_skip()) as server:
        connection = server.connect("postgres")

        def sql(*statements: str) -> None:
            with connection.cursor() as cursor:
                for statement in statements:
                    cursor.execute(statement)

        sql(
            "CREATE TABLE orders (id int PRIMARY KEY, name text)",
            "CREATE TABLE elsewhere (id int PRIMARY KEY)",
            "INSERT INTO orders VALUES (1, 'a')",
            "CREATE PUBLICATION pub FOR TABLE orders",
        )
        source = {"type": "postgres", "dsn": server.dsn("postgres"), "slot": "watched", "publication": "pub"}
        watch = Watch(tmp_path, instance, source, "public.orders")
        assert watch.starts()  # nothing is loaded yet
        watch.ingest()
        assert not watch.starts()
        sql("INSERT INTO elsewhere SELECT generate_series(1, 5000)")  # log that is none of its business
        assert not watch.starts()
        sql("UPDATE orders SET name = 'b' WHERE id = 1")
        assert watch.starts()
        assert not watch.starts()
        sql("DELETE FROM orders WHERE id = 1")
        assert watch.starts()
        watch.ingest()
        assert not watch.starts()
        sql("TRUNCATE orders")
        assert watch.starts()
        connection.close()
    result = tick_of(watch.path, instance, None)  # the server is gone
    assert isinstance(result, dg.SensorResult)
    assert not result.run_requests
    assert "PostgreSQL" in str(result.skip_reason) or "connect" in str(result.skip_reason)


def test_a_source_that_cannot_be_asked_does_not_keep_the_others_from_being_ingested(
    project: ShopProject, instance: dg.DagsterInstance
) -> None:
    document = yaml.safe_load(project.path.read_text())
    document["tables"]["shop.orders"]["source"]["path"] = "nowhere/a.jsonl"
    project.path.write_text(yaml.safe_dump(document))
    result = tick(project, instance, None)
    assert isinstance(result, dg.SensorResult)
    (request,) = result.run_requests or []
    assert mirror_key("shop.customers") in (request.asset_selection or ())
    assert mirror_key("shop.orders") not in (request.asset_selection or ())
