"""What runs accept, and what happens when they fail: Launchpad, retries, alerts."""

import json
import logging
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import dagster as dg
import pyarrow as pa
import pytest
import yaml
from dagster._core.events import StepMaterializationData

from nevermore.assets import definitions, jobs, published, sensors
from nevermore.assets.jobs import INGEST_JOB
from nevermore.assets.project import change_log_key, mirror_key
from nevermore.pipelines.changes import change_log
from nevermore.pipelines.config.project import load
from nevermore.pipelines.errors import CommitConflictError, ConfigError, PipelineError, SourceError
from nevermore.pipelines.iceberg.catalog import find_table, open_catalog
from nevermore.pipelines.iceberg.commit import RowDelta, is_transient
from nevermore.pipelines.iceberg.table_writer import write_rows
from nevermore.pipelines.ingest.feed_run import run_once
from nevermore.scan_core import open_table
from tests.support.shop_project import ShopProject, event, order


def rows(project: ShopProject) -> list[dict[str, Any]]:
    table = find_table(open_catalog(project.config), "shop.orders")
    return open_table(table).scan().to_table().to_pylist()  # type: ignore[no-any-return]


def test_the_launchpad_replays_a_range_of_a_change_log(project: ShopProject, instance: dg.DagsterInstance) -> None:
    run_once(project.config)
    before = rows(project)
    result = project.definitions.resolve_job_def(INGEST_JOB).execute_in_process(
        instance=instance,
        asset_selection=[mirror_key("shop.orders")],
        run_config={"ops": {"mirror__shop__orders": {"config": {"replay_from": "1", "replay_to": "4"}}}},
    )
    (made,) = result.get_asset_materialization_events()
    assert made.materialization.metadata["replayed"].value == "changes 1 to 4"
    assert sorted(map(str, rows(project))) == sorted(map(str, before))


CONFLICT = CommitConflictError("another writer was first")


@pytest.mark.parametrize(
    ("error", "passes"),
    [
        (CONFLICT, True),
        (CommitConflictError("another ingester", may_retry=False), False),
        (ConnectionResetError("reset"), True),
        (TimeoutError("too long"), True),
        (OSError("When reading: AWS Error SLOW_DOWN during GetObject operation"), True),
        (OSError("When reading: AWS Error ACCESS_DENIED during GetObject operation"), False),
        (FileNotFoundError("no such file"), False),
        (PermissionError("no"), False),
        (SourceError("no such path"), False),
        (ConfigError("line 3"), False),
        (ValueError("a bug"), False),
    ],
)
def test_what_may_pass_by_itself_is_known_also_as_the_cause_of_an_error(error: Exception, *, passes: bool) -> None:
    assert is_transient(error) is passes
    with pytest.raises(PipelineError) as wrapped:
        raise PipelineError("it failed") from error
    assert is_transient(wrapped.value) is passes


@pytest.mark.parametrize(
    ("error", "failures", "attempts", "succeeds"),
    [(CONFLICT, 2, 3, True), (CONFLICT, 99, 4, False), (SourceError("the feed is broken"), 99, 1, False)],
)
def test_a_step_is_tried_again_where_its_error_may_pass(
    error: Exception, failures: int, attempts: int, *, succeeds: bool, project: ShopProject,
    instance: dg.DagsterInstance, monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    tries = []
    real = definitions.apply_logs

    def fail_first(*given: Any, **named: Any) -> Any:
        tries.append(1)
        if len(tries) <= failures:
            raise error
        return real(*given, **named)

    run_once(project.config)
    monkeypatch.setattr(jobs, "FIRST_WAIT_SECONDS", 0.01)
    monkeypatch.setattr(definitions, "apply_logs", fail_first)
    result = project.definitions.resolve_job_def(INGEST_JOB).execute_in_process(
        instance=instance, raise_on_error=False, asset_selection=[mirror_key("shop.orders")]
    )
    assert (result.success, len(tries)) == (succeeds, attempts)
    if not succeeds and attempts == 1:
        run = instance.get_run_by_id(result.run_id)
        assert run is not None
        assert run.tags["dagster/max_retries"] == "0"


@pytest.mark.slow
@pytest.mark.parametrize("where", ["changes.change_log", "mirrors.mirror"])
def test_an_ingest_yields_to_another_one_and_says_so(
    where: str, project: ShopProject, instance: dg.DagsterInstance, monkeypatch: pytest.MonkeyPatch
) -> None:
    run_once(project.config)
    project.land("orders", "3.jsonl", [event("c", "orders", after=order(8, 80.0, 2))])
    real, others = change_log.refresh, [project.config]

    def after_another_ingest(table: Any) -> None:
        if others:
            run_once(others.pop())
        real(table)

    monkeypatch.setattr(f"nevermore.pipelines.{where}.refresh", after_another_ingest)
    key = {"changes.change_log": change_log_key, "mirrors.mirror": mirror_key}[where]("shop.orders")
    result = project.definitions.resolve_job_def(INGEST_JOB).execute_in_process(instance=instance)
    assert (result.success, others, len(rows(project))) == (True, [], 7)
    assert key in {made.asset_key for made in result.get_asset_materialization_events()}
    (warning,) = (log.user_message for log in instance.all_logs(result.run_id) if log.level == logging.WARNING)
    assert "shop.orders: skipped: " in warning
    assert "another ingester has" in warning


@pytest.mark.each(2)
@pytest.mark.parametrize(
    ("job", "assets", "is_followed"),
    [
        (INGEST_JOB, [change_log_key("shop.orders"), mirror_key("shop.orders")], True),
        (INGEST_JOB, [], False),  # nothing was new
        ("__ASSET_JOB", [mirror_key("shop.orders")], True),  # materialized by hand
        ("__ASSET_JOB", [change_log_key("shop.orders")], False),
        ("compact_job", [], False),
    ],
)
def test_published_tables_follow_every_run_that_updates_a_mirror(
    job: str, assets: list[dg.AssetKey], *, is_followed: bool, project: ShopProject, instance: dg.DagsterInstance
) -> None:
    document = yaml.safe_load(project.path.read_text())
    document["published"]["shop.daily"]["incremental"] = True
    project.path.write_text(yaml.safe_dump(document))
    run = dg.DagsterRun(
        job_name=job,
        run_id="00000000-0000-0000-0000-000000000002",
        asset_selection=frozenset([mirror_key("shop.orders")]),
    )
    for asset in assets:
        materialized = StepMaterializationData(dg.AssetMaterialization(asset))
        kind = dg.DagsterEventType.ASSET_MATERIALIZATION.value
        instance.report_dagster_event(dg.DagsterEvent(kind, job, event_specific_data=materialized), run.run_id)
    event = dg.DagsterEvent(dg.DagsterEventType.RUN_SUCCESS.value, job)
    context = dg.build_run_status_sensor_context(
        sensor_name=published.SENSOR, dagster_instance=instance, dagster_run=run, dagster_event=event
    )
    answer = project.definitions.resolve_sensor_def(published.SENSOR)(context)
    assert isinstance(answer, dg.RunRequest) is is_followed
    if isinstance(answer, dg.RunRequest):
        assert answer.tags["nevermore/ingest_run"] == run.run_id


class Webhook:
    """A server on this machine that keeps what is posted; `answers` are the HTTP statuses of the next answers."""

    def __init__(self) -> None:
        self.messages: list[dict[str, Any]] = []
        self.answers: list[int] = []
        webhook = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"]))
                status = webhook.answers.pop(0) if webhook.answers else 200
                if status == 200:
                    webhook.messages.append(json.loads(body))
                self.send_response(status)
                self.end_headers()

            def log_message(self, *given: Any) -> None:
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.thread = threading.Thread(target=self.server.serve_forever)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server.server_port}/hooks/T0P-s3cret"


@pytest.fixture
def webhook() -> Iterator[Webhook]:
    webhook = Webhook()
    webhook.thread.start()
    yield webhook
    webhook.server.shutdown()
    webhook.thread.join()
    webhook.server.server_close()


def send(project: ShopProject, instance: dg.DagsterInstance, result: Any, name: str) -> None:
    """Evaluate a sensor for one run, as the daemon does."""
    defs = project.definitions
    run = instance.get_run_by_id(result.run_id)
    assert run is not None
    kind = dg.DagsterEventType.RUN_FAILURE if not result.success else dg.DagsterEventType.RUN_SUCCESS
    (record,) = instance.all_logs(run.run_id, of_type=kind)
    context = dg.build_run_status_sensor_context(
        sensor_name=name, dagster_instance=instance, dagster_run=run, dagster_event=record.dagster_event,
        resources=dict(defs.resources or {}),
    )  # fmt: skip
    if not result.success:
        context = context.for_run_failure()
    defs.resolve_sensor_def(name)(context)


def test_a_failed_run_is_posted_without_secrets(
    project: ShopProject, instance: dg.DagsterInstance, webhook: Webhook, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SHOP_WEBHOOK", webhook.url)
    monkeypatch.setenv("SHOP_PASSWORD", "correct-horse")
    project.configure(alerts={"webhook": "${SHOP_WEBHOOK}", "ui": "https://dagster.example.com/"})
    project.land("orders", "3.jsonl", ['{"op": broken}'] * 10)
    definitions_ = project.definitions
    result = definitions_.resolve_job_def(INGEST_JOB).execute_in_process(
        instance=instance, raise_on_error=False, asset_selection=[change_log_key("shop.orders")]
    )
    assert not result.success
    webhook.answers = [503]  # a service that is away for a moment is asked again
    send(project, instance, result, sensors.RUN_SENSOR)
    (message,) = webhook.messages
    assert (message["event"], message["job"], message["run_id"]) == ("run_failed", INGEST_JOB, result.run_id)
    assert "shop.orders: 10 of 19 events were rejected" in message["text"]
    assert message["url"] == f"https://dagster.example.com/runs/{result.run_id}"
    assert message["text"].endswith(message["url"])
    assert "T0P-s3cret" not in json.dumps(message)

    webhook.answers = [404]
    with pytest.raises(Exception, match="HTTP status 404") as error:
        send(project, instance, result, sensors.RUN_SENSOR)
    assert "s3cret" not in str(error.value)


def test_failed_checks_are_posted_with_the_run(
    project: ShopProject, instance: dg.DagsterInstance, webhook: Webhook
) -> None:
    project.configure(alerts={"webhook": webhook.url})
    run_once(project.config)
    table = find_table(open_catalog(project.config), "shop.orders")
    delta = RowDelta(table)
    delta.commit(write_rows(pa.table({"id": [99]}), delta.target, delta.default_spec), {})
    job = project.definitions.resolve_job_def(INGEST_JOB)
    failed = job.execute_in_process(
        instance=instance, raise_on_error=False, asset_selection=[mirror_key("shop.orders")]
    )
    assert not failed.success
    send(project, instance, failed, sensors.RUN_SENSOR)
    (message,) = webhook.messages
    assert {(c["asset"], c["severity"]) for c in message["checks"]} >= {("mirror/shop/orders", "ERROR")}
    assert "mirror/shop/orders: mirror_equals_reference: " in message["text"]


def test_failed_checks_of_a_run_that_succeeds_are_posted(
    project: ShopProject, instance: dg.DagsterInstance, webhook: Webhook
) -> None:
    project.configure(alerts={"webhook": webhook.url})
    key = mirror_key("shop.orders")

    @dg.asset_check(asset=key, name="is_small")
    def is_small() -> dg.AssetCheckResult:
        return dg.AssetCheckResult(passed=False, severity=dg.AssetCheckSeverity.WARN, description="6 rows, 5 allowed")

    @dg.asset_check(asset=key, name="is_there")
    def is_there() -> dg.AssetCheckResult:
        return dg.AssetCheckResult(passed=True)

    for checks, posted in (([is_small, is_there], ["is_small"]), ([is_there], [])):
        result = dg.materialize(
            [dg.AssetSpec(key), *checks], instance=instance, selection=dg.AssetSelection.checks(*checks)
        )  # type: ignore[list-item]
        assert result.success
        send(project, instance, result, sensors.CHECK_SENSOR)
        assert [check["check"] for message in webhook.messages for check in message["checks"]] == posted
        assert all("6 rows, 5 allowed" in message["text"] for message in webhook.messages)
        webhook.messages.clear()


@pytest.mark.parametrize("webhook_", ["hooks.example.com/x", "ftp://example.com"])
def test_an_address_that_is_none_is_refused_without_showing_it(webhook_: str, project: ShopProject) -> None:
    project.configure(alerts={"webhook": webhook_})
    with pytest.raises(ConfigError, match=r"alerts.webhook: must be an address") as error:
        load(project.path)
    assert webhook_ not in str(error.value)


def test_without_alerts_there_are_no_sensors_for_them(project: ShopProject) -> None:
    always = {sensors.SENSOR, sensors.OUTSIDE_SENSOR}
    assert {sensor.name for sensor in project.definitions.sensors or []} == always
    project.configure(alerts={"webhook": "https://example.com/x"})
    assert {sensor.name for sensor in project.definitions.sensors or []} == always | {
        sensors.RUN_SENSOR, sensors.CHECK_SENSOR
    }  # fmt: skip
