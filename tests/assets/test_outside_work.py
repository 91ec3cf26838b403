"""What commands do outside of Dagster is shown there: by a sensor that is on, once, and not while a step works on the table."""

from collections import Counter
from itertools import count
from types import SimpleNamespace
from typing import Any

import dagster as dg
import pytest

from nevermore.assets import sensors
from nevermore.assets.jobs import INGEST_JOB
from nevermore.assets.project import change_log_key, mirror_key, table_pool
from nevermore.checks.expectations import MUST
from nevermore.checks.mirror_checks import all_checks_of, run_changed_checks, run_checks
from nevermore.pipelines.ingest.feed_run import run_once
from tests.support.shop_project import ShopProject, event, order

TABLES = ("shop.orders", "shop.customers", "shop.suppliers")
KEYS = {key(table) for key in (change_log_key, mirror_key) for table in TABLES}


class Watcher:
    """Ticks of the sensor, whose events are reported to the instance as the daemon does."""

    def __init__(self, project: ShopProject, instance: dg.DagsterInstance) -> None:
        self._definitions, self._instance = project.definitions, instance
        self._cursor: str | None = None

    def tick(self) -> list[Any]:
        """The events of a tick."""
        sensor = self._definitions.resolve_sensor_def(sensors.OUTSIDE_SENSOR)
        assert sensor.default_status is dg.DefaultSensorStatus.RUNNING
        context = dg.build_sensor_context(
            instance=self._instance, cursor=self._cursor, resources=dict(self._definitions.resources or {}),
            repository_def=self._definitions.get_repository_def(),
        )  # fmt: skip
        result = sensor(context)
        if isinstance(result, dg.SkipReason):
            return []
        self._cursor = result.cursor  # type: ignore[union-attr]
        events = list(result.asset_events)  # type: ignore[union-attr]
        for found in events:
            self._instance.report_runless_asset_event(found)
        return events

    def statuses(self, table: str) -> Counter[str]:
        """The checks of a mirror by the status that Dagster shows."""
        keys = [dg.AssetCheckKey(mirror_key(table), name) for name in all_checks_of(self._project_config, table)]
        found = self._instance.event_log_storage.get_latest_asset_check_execution_by_key(keys)
        return Counter(found[key].status.name if key in found else "NONE" for key in keys)

    _project_config: Any = None


@pytest.fixture
def watcher(project: ShopProject, instance: dg.DagsterInstance) -> Watcher:
    watcher = Watcher(project, instance)
    watcher._project_config = project.config
    return watcher


def materialized(events: list[Any]) -> Counter[dg.AssetKey]:
    return Counter(made.asset_key for made in events if isinstance(made, dg.AssetMaterialization))


def test_what_an_ingest_committed_is_materialized_once(
    project: ShopProject, instance: dg.DagsterInstance, watcher: Watcher
) -> None:
    assert watcher.tick() == []
    run_once(project.config)
    assert materialized(watcher.tick()) == dict.fromkeys(KEYS, 1)
    assert watcher.tick() == []
    made = instance.get_latest_materialization_event(mirror_key("shop.orders"))
    assert made is not None
    assert made.asset_materialization is not None
    assert made.asset_materialization.metadata["dagster/row_count"].value == 6
    # a run finds nothing new, and what a run commits is not told again
    job = project.definitions.resolve_job_def(INGEST_JOB)
    assert job.execute_in_process(instance=instance).get_asset_materialization_events() == []
    assert watcher.tick() == []
    project.land("orders", "3.jsonl", [event("c", "orders", after=order(8, 80.0, 2))])
    assert len(job.execute_in_process(instance=instance).get_asset_materialization_events()) == 2
    assert watcher.tick() == []


@pytest.mark.slow
@pytest.mark.parametrize("command", [run_checks, run_changed_checks])
def test_results_of_checks_are_shown_with_the_health_of_the_table(
    command: Any, project: ShopProject, watcher: Watcher
) -> None:
    run_once(project.config)
    watcher.tick()
    names = all_checks_of(project.config, "shop.orders")
    assert watcher.statuses("shop.orders") == {"NONE": len(names)}
    list(command(project.config, "shop.orders", *([names] if command is run_checks else [])))
    watcher.tick()
    assert watcher.statuses("shop.orders") == {"SUCCEEDED": len(names)}
    assert watcher.tick() == []


@pytest.mark.slow
def test_a_check_that_failed_outside_fails_in_dagster(project: ShopProject, watcher: Watcher) -> None:
    from tests.assets.test_assets import _write_behind_the_log

    run_once(project.config)
    _write_behind_the_log(project, [{"id": 1, "amount": 10.0, "day": None}])
    found = [*run_checks(project.config, "shop.orders", all_checks_of(project.config, "shop.orders"))]
    told = {e.check_name: e for e in watcher.tick() if isinstance(e, dg.AssetCheckEvaluation)}
    assert {name for name, evaluation in told.items() if not evaluation.passed} == {r.name for r in found if r.blocks}
    assert told["no_deleted_row_reappears"].metadata["offending keys"].value == [{"id": 1}]
    assert watcher.tick() == []


@pytest.mark.slow
@pytest.mark.parametrize("is_met", [True, False])
def test_expectations_that_a_command_compared_are_shown_once(
    project: ShopProject,
    watcher: Watcher,
    is_met: bool,  # noqa: FBT001
) -> None:
    column = "id" if is_met else "name"
    text = project.path.read_text()
    checks = f"    checks: {{expectations: [{{expect_column_values_to_not_be_null: {{column: {column}}}}}]}}\n"
    project.path.write_text(text.replace("  shop.customers:\n", f"  shop.customers:\n{checks}", 1))
    watcher = Watcher(project, watcher._instance)
    run_once(project.config)
    watcher.tick()
    names = all_checks_of(project.config, "shop.customers")
    list(run_checks(project.config, "shop.customers", names))
    told = {e.check_name: e.passed for e in watcher.tick() if isinstance(e, dg.AssetCheckEvaluation)}
    assert told == dict.fromkeys(names, True) | {MUST: is_met}
    assert watcher.tick() == []


def test_a_table_that_a_step_works_on_waits(
    project: ShopProject, instance: dg.DagsterInstance, watcher: Watcher
) -> None:
    run_once(project.config)
    storage = instance.event_log_storage
    storage.set_concurrency_slots(table_pool("shop.customers"), 1)
    storage.claim_concurrency_slot(table_pool("shop.customers"), "run", "step")
    customers = {change_log_key("shop.customers"), mirror_key("shop.customers")}
    assert set(materialized(watcher.tick())) == KEYS - customers
    storage.free_concurrency_slot_for_step("run", "step")
    assert set(materialized(watcher.tick())) == customers


def test_a_look_that_takes_long_is_continued(
    project: ShopProject, watcher: Watcher, monkeypatch: pytest.MonkeyPatch
) -> None:
    run_once(project.config)
    monkeypatch.setattr(sensors, "MAX_LOOK_SECONDS", 2)
    monkeypatch.setattr(sensors, "time", SimpleNamespace(monotonic=count().__next__))
    ticks = [set(materialized(watcher.tick())) for _ in range(4)]
    assert set().union(*ticks) == KEYS
    assert [len(tick) for tick in ticks] == [2, 2, 2, 0]  # one table at a time, and one that is not published yet
