"""Definitions load with and without a config, and hold what the config names."""

import datetime as dt
import os
import subprocess
import sys
from pathlib import Path

import dagster as dg
import pytest
import yaml

from nevermore.assets import definitions
from nevermore.assets.jobs import CHECK_JOB, COMPACT_JOB, DAILY_JOB, INGEST_JOB, PUBLISH_JOB, RETENTION_JOB, last_key
from nevermore.assets.published import SENSOR
from nevermore.pipelines.config.published import Unit
from nevermore.pipelines.errors import ConfigError
from nevermore.pipelines.iceberg.catalog import find_table, open_catalog
from nevermore.pipelines.ingest.feed_run import run_once
from nevermore.pipelines.maintain import compact as compaction
from tests.conftest import REPOSITORY
from tests.support.shop_project import ShopProject, event, order


@pytest.fixture
def project(tmp_path: Path) -> ShopProject:
    return ShopProject(tmp_path)


def test_every_table_and_published_table_has_its_assets_and_checks(project: ShopProject) -> None:
    defs = project.definitions
    keys = {key.to_user_string() for key in defs.resolve_asset_graph().get_all_asset_keys()}
    assert keys == {
        "change_log/shop_orders", "change_log/shop_customers", "change_log/shop_suppliers",
        "mirror/shop/orders", "mirror/shop/customers", "mirror/shop/suppliers", "published/shop/daily",
    }  # fmt: skip
    checks = {f"{k.asset_key.to_user_string()}:{k.name}" for k in defs.resolve_asset_graph().asset_check_keys}
    assert "mirror/shop/orders:no_deleted_row_reappears" in checks
    assert "published/shop/daily:published_rows_are_complete" in checks
    assert "published/shop/daily:published_equals_duckdb" in checks
    assert "published/shop/daily:manifests_match_files" in checks
    assert len(checks) == 3 * 11 + 3


def test_lineage_goes_from_log_to_mirror_to_what_the_sql_reads(project: ShopProject) -> None:
    graph = project.definitions.resolve_asset_graph()
    published = graph.get(dg.AssetKey(["published", "shop", "daily"]))
    assert {key.to_user_string() for key in published.parent_keys} == {"mirror/shop/orders"}
    mirror = graph.get(dg.AssetKey(["mirror", "shop", "orders"]))
    assert {key.to_user_string() for key in mirror.parent_keys} == {"change_log/shop_orders"}


def test_only_published_assets_are_partitioned_by_day_from_their_start_to_today(project: ShopProject) -> None:
    graph = project.definitions.resolve_asset_graph()
    partitioned = {key.to_user_string() for key in graph.get_all_asset_keys() if graph.get(key).is_partitioned}
    assert partitioned == {"published/shop/daily"}
    days = graph.get(dg.AssetKey(["published", "shop", "daily"])).partitions_def
    assert isinstance(days, dg.DailyPartitionsDefinition)
    assert days.get_first_partition_key() == "2026-01-01"


def test_writers_of_one_table_share_a_pool(project: ShopProject) -> None:
    defs = project.definitions
    pools = {op.name: op.pool for a in (defs.resolve_all_asset_specs() and defs.assets) or [] for op in [a.op]}  # type: ignore[union-attr]
    assert pools["mirror__shop__orders"] == "table_shop_orders"


def test_jobs_and_schedules_are_there_and_resolve(project: ShopProject) -> None:
    defs = project.definitions
    dg.Definitions.validate_loadable(defs)
    ingest = defs.resolve_job_def(INGEST_JOB)
    assert {key.to_user_string() for key in ingest.asset_layer.executable_asset_keys} == {
        "change_log/shop_orders", "change_log/shop_customers", "change_log/shop_suppliers",
        "mirror/shop/orders", "mirror/shop/customers", "mirror/shop/suppliers",
    }  # fmt: skip
    assert defs.resolve_job_def(DAILY_JOB).partitions_def is not None
    daily = defs.resolve_schedule_def("daily_schedule")
    assert (daily.cron_schedule, daily.default_status) == ("0 2 * * *", dg.DefaultScheduleStatus.STOPPED)


def test_all_mirrors_are_checked_every_night_and_nothing_is_ingested_for_it(project: ShopProject) -> None:
    run_once(project.config)
    defs = project.definitions
    assert defs.resolve_schedule_def("check_schedule").cron_schedule == "0 4 * * *"
    result = defs.resolve_job_def(CHECK_JOB).execute_in_process()
    assert len(result.get_asset_check_evaluations()) == 3 * 11
    assert not result.get_asset_materialization_events()


def test_a_schedule_that_the_config_names_runs_by_default_and_makes_yesterday(project: ShopProject) -> None:
    document = yaml.safe_load(project.path.read_text())
    document["published"]["shop.daily"]["schedule"] = "30 5 * * *"
    project.path.write_text(yaml.safe_dump(document))
    defs = project.definitions
    daily = defs.resolve_schedule_def("daily_schedule")
    assert (daily.cron_schedule, daily.default_status) == ("30 5 * * *", dg.DefaultScheduleStatus.RUNNING)
    context = dg.build_schedule_context(
        scheduled_execution_time=dt.datetime(2026, 3, 1, 5, 30, tzinfo=dt.UTC),
        repository_def=defs.get_repository_def(),
    )
    (request,) = daily.evaluate_tick(context).run_requests
    assert request.partition_key == "2026-02-28"
    assert request.asset_selection == [dg.AssetKey(["published", "shop", "daily"])]


def test_without_published_tables_there_is_no_daily_job(project: ShopProject) -> None:
    document = yaml.safe_load(project.path.read_text())
    del document["published"]
    project.path.write_text(yaml.safe_dump(document))
    defs = project.definitions
    dg.Definitions.validate_loadable(defs)
    assert DAILY_JOB not in {job.name for job in defs.jobs or []}


def test_the_config_is_found_by_variable_then_here_then_in_the_demo(
    project: ShopProject, tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    elsewhere = tmp_path_factory.mktemp("elsewhere")
    monkeypatch.chdir(elsewhere)
    monkeypatch.delenv(definitions.CONFIG_VARIABLE, raising=False)
    assert definitions.find_config() is None
    (elsewhere / "demo").mkdir()
    (elsewhere / "demo" / "nevermore.yaml").touch()
    assert definitions.find_config() == Path("demo/nevermore.yaml")
    (elsewhere / "nevermore.yaml").touch()
    assert definitions.find_config() == Path("nevermore.yaml")
    monkeypatch.setenv(definitions.CONFIG_VARIABLE, str(project.path))
    assert definitions.find_config() == project.path


def test_without_a_config_definitions_load_and_say_what_to_do(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv(definitions.CONFIG_VARIABLE, raising=False)
    (spec,) = definitions.load_definitions().resolve_all_asset_specs()
    assert spec.key == dg.AssetKey("no_config_found")
    assert "nevermore init" in str(spec.description)


def test_a_wrong_config_is_an_error_with_its_line(project: ShopProject, monkeypatch: pytest.MonkeyPatch) -> None:
    project.path.write_text(project.path.read_text().replace("partition:", "partiton:"))
    monkeypatch.setenv(definitions.CONFIG_VARIABLE, str(project.path))
    with pytest.raises(ConfigError, match=r"nevermore.yaml:18: unknown key 'partiton'; did you mean 'partition'\?"):
        definitions.load_definitions()


@pytest.mark.slow
def test_workspace_names_a_module_that_loads_in_a_process_of_its_own(project: ShopProject) -> None:
    workspace = yaml.safe_load((REPOSITORY / "workspace.yaml").read_text())
    module = {"module_name": "nevermore.assets.definitions", "location_name": "demo"}
    assert workspace == {"load_from": [{"python_module": module}]}
    code = "import nevermore.assets.definitions as d; print(len(list(d.defs().resolve_all_asset_specs())))"
    found = subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, "NEVERMORE_CONFIG": str(project.path), "PYTHONPATH": str(REPOSITORY)},
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
    )
    assert found.returncode == 0, found.stderr
    assert found.stdout.strip() == "7"


@pytest.mark.each(2)
@pytest.mark.parametrize("module", ["definitions", "component"])
@pytest.mark.parametrize("config", ["", "tables: 1"])
def test_an_import_reads_no_config_and_prints_nothing(module: str, config: str, tmp_path: Path) -> None:
    """Every `dg` command of every project imports the component."""
    if config:
        (tmp_path / "nevermore.yaml").write_text(config)
    found = subprocess.run(
        [sys.executable, "-c", f"import nevermore.assets.{module}"],
        cwd=tmp_path,
        env={k: v for k, v in os.environ.items() if k != "NEVERMORE_CONFIG"} | {"PYTHONPATH": str(REPOSITORY)},
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
    )
    assert (found.returncode, found.stdout, found.stderr) == (0, "", "")


_MORE = {
    "shop.hourly": {"partition": "hour(at)", "start": "2026-01-01T05", "sql": "select at, id from shop.orders"},
    "shop.monthly": {"partition": "month(day)", "start": "2025-11", "sql": "select day, id from shop.orders", "incremental": True},
    "shop.yearly": {"partition": "year(day)", "sql": "select day, id from shop.orders"},
    "shop.by_name": {"partition": "value(name)", "values": ["Ada", "Bob"], "sql": "select name, id from shop.customers"},
    "shop.by_id": {"partition": "value(id)", "incremental": "auto", "sql": "select id, name from shop.customers"},
    "shop.whole": {"sql": "select count(*) as n from shop.orders"},
}  # fmt: skip


def _with_more(project: ShopProject) -> dg.Definitions:
    document = yaml.safe_load(project.path.read_text())
    document["published"] |= _MORE
    project.path.write_text(yaml.safe_dump(document))
    return project.definitions


def test_published_tables_have_the_partitions_of_their_config(project: ShopProject) -> None:
    graph = _with_more(project).resolve_asset_graph()
    found = {name: graph.get(dg.AssetKey(["published", "shop", name.split(".")[1]])).partitions_def for name in _MORE}
    firsts = {
        name: definition.get_first_partition_key()
        for name, definition in found.items()
        if isinstance(definition, dg.TimeWindowPartitionsDefinition)
    }
    assert firsts == {"shop.hourly": "2026-01-01T05", "shop.monthly": "2025-11", "shop.yearly": "2024"}
    assert found["shop.by_name"] == dg.StaticPartitionsDefinition(["Ada", "Bob"])
    assert isinstance(found["shop.by_id"], dg.DynamicPartitionsDefinition)
    assert found["shop.whole"] is None


def test_each_unit_of_time_has_its_job_and_schedule_and_one_job_publishes_after_ingests(project: ShopProject) -> None:
    defs = _with_more(project)
    dg.Definitions.validate_loadable(defs)
    names = {job.name for job in defs.jobs or []}
    assert names == {
        INGEST_JOB,
        CHECK_JOB,
        COMPACT_JOB,
        RETENTION_JOB,
        "hourly_job",
        DAILY_JOB,
        "monthly_job",
        "yearly_job",
        PUBLISH_JOB,
    }
    schedules = {s.name: s.cron_schedule for s in defs.schedules or []}
    assert schedules["hourly_schedule"] == "10 * * * *"
    steps = {node.name for node in defs.resolve_job_def(PUBLISH_JOB).nodes}
    assert steps == {"publish_shop_monthly", "publish_shop_by_id", "publish_shop_whole"}
    sensor = defs.resolve_sensor_def(SENSOR)
    assert (sensor.name, sensor.default_status) == (SENSOR, dg.DefaultSensorStatus.RUNNING)


@pytest.mark.parametrize(
    ("unit", "key"), [("hour", "2026-02-28T23"), ("day", "2026-02-28"), ("month", "2026-02"), ("year", "2025")]
)
def test_schedules_make_the_partition_that_is_over(unit: Unit, key: str) -> None:
    assert last_key(unit, dt.datetime(2026, 3, 1, 0, 10, tzinfo=dt.UTC)) == key


def test_bad_sql_of_one_table_is_told_and_leaves_all_other_assets(
    project: ShopProject, caplog: pytest.LogCaptureFixture
) -> None:
    project.path.write_text(project.path.read_text().replace("from shop.orders", "from shop.order"))
    assets = {key.to_user_string() for key in project.definitions.resolve_all_asset_keys()}
    assert {"published/shop/daily", "mirror/shop/orders", "mirror/shop/customers"} <= assets
    told = "shop.daily cannot be made: published shop.daily: no table shop.order; did you mean shop.orders?"
    assert told in caplog.text


@pytest.mark.parametrize(("cron", "status"), [(None, "STOPPED"), ("*/15 * * * *", "RUNNING")])
def test_the_config_says_when_to_ingest(cron: str | None, status: str, project: ShopProject) -> None:
    if cron is not None:
        project.path.write_text(f'ingest_schedule: "{cron}"\n{project.path.read_text()}')
    schedule = project.definitions.resolve_schedule_def("ingest_schedule")
    assert (schedule.cron_schedule, schedule.default_status.name) == (cron or "*/5 * * * *", status)


@pytest.mark.slow
def test_the_compact_job_rewrites_mirrors_that_need_it_and_their_checks_stay_green(
    project: ShopProject, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(compaction, "MIN_AUTO_SECONDS", 0.0)
    document = yaml.safe_load(project.path.read_text())
    document["tables"]["shop.customers"]["maintenance"] = {"compact": "off"}
    project.path.write_text(yaml.safe_dump(document))
    project.land_people()
    for number in range(1, 11):
        rows = [order(i, 10.0 * number + i, 1 + i % 2) for i in range(number, number + 4)]
        project.land("orders", f"{number}.jsonl", [event("u", "orders", before=row, after=row) for row in rows])
        run_once(project.config)
    defs = project.definitions
    compact_schedule = defs.resolve_schedule_def("compact_schedule")
    assert (compact_schedule.cron_schedule, compact_schedule.default_status) == (
        "30 * * * *",
        dg.DefaultScheduleStatus.STOPPED,
    )
    job = defs.resolve_job_def(COMPACT_JOB)
    assert {node.name: node.definition.pool for node in job.nodes}["compact_shop_orders"] == "table_shop_orders"  # type: ignore[attr-defined]
    assert job.execute_in_process().success
    table = find_table(open_catalog(project.config), "shop.orders")
    assert table is not None
    summary = table.current_snapshot().summary  # type: ignore[union-attr]
    assert (summary.operation.value, summary["total-data-files"], summary["total-records"]) == ("replace", "1", "13")  # type: ignore[union-attr, index]
    untouched = find_table(open_catalog(project.config), "shop.customers")
    assert untouched is not None
    assert untouched.current_snapshot().summary.operation.value != "replace"  # type: ignore[union-attr]
    checked = defs.resolve_job_def(CHECK_JOB).execute_in_process()
    assert all(one.passed for one in checked.get_asset_check_evaluations())


@pytest.mark.each(2)
@pytest.mark.parametrize(("cron", "status"), [("15 3 * * *", "RUNNING"), (None, "STOPPED")])
def test_the_retention_job_expires_snapshots_and_deletes_orphans(
    cron: str | None, status: str, project: ShopProject
) -> None:
    document = yaml.safe_load(project.path.read_text())
    document["maintenance"] = {"keep_snapshots": 2, "keep_for": "1ms", "orphan_age": "1ms"}
    if cron is not None:
        document["retention_schedule"] = cron
    project.path.write_text(yaml.safe_dump(document))
    project.land_people()
    for number in range(5):
        project.land("orders", f"{number}.jsonl", [event("u", "orders", after=order(1, 10.0 + number, 1))])
        run_once(project.config)
    found = find_table(open_catalog(project.config), "shop.orders")
    assert found is not None
    left = Path(found.location().removeprefix("file://")) / "data" / "left.parquet"
    left.write_bytes(b"x")
    defs = project.definitions
    schedule = defs.resolve_schedule_def("retention_schedule")
    assert (schedule.cron_schedule, schedule.default_status.name) == (cron or "0 5 * * *", status)
    assert defs.resolve_job_def(RETENTION_JOB).execute_in_process().success
    found.refresh()
    assert len(found.metadata.snapshots) == 2
    assert not left.exists()
    with found.transaction() as change:
        change.set_properties({"gc.enabled": "false"})
    failed = defs.resolve_job_def(RETENTION_JOB).execute_in_process(raise_on_error=False)
    assert "shop.orders: " in str(failed.failure_data_for_node("expire_snapshots_and_delete_orphans"))
