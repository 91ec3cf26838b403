"""The job that publishes after ingests: what it makes appears on the assets, partition by partition."""

from pathlib import Path
from typing import Any

import dagster as dg
import pytest
import yaml
from pyspark.sql import SparkSession

from nevermore.assets.jobs import PUBLISH_JOB
from nevermore.assets.project import published_key
from nevermore.assets.published import ROW_CHECKS, published_asset
from nevermore.checks.published_equality import ProjectAuditor
from nevermore.pipelines.ingest.feed_run import run_once
from nevermore.pipelines.publish.refresh import publish
from tests.assets.test_outside_work import Watcher
from tests.support.shop_project import ShopProject, event, order
from tests.support.spark_session import SPARK_TEST

pytestmark = [*SPARK_TEST, pytest.mark.slow]


@pytest.fixture
def project(tmp_path: Path, spark: SparkSession) -> ShopProject:
    project = ShopProject(tmp_path)
    document = yaml.safe_load(project.path.read_text())
    document["published"]["shop.daily"]["incremental"] = True
    document["published"]["shop.whole"] = {"sql": "select count(*) as n from shop.orders"}
    project.path.write_text(yaml.safe_dump(document))
    project.land_orders()
    project.land_people()
    run_once(project.config)
    return project


def _run(project: ShopProject, instance: dg.DagsterInstance) -> dict[dg.AssetKey, list[str | None]]:
    result = project.definitions.resolve_job_def(PUBLISH_JOB).execute_in_process(instance=instance)
    assert result.success
    made: dict[dg.AssetKey, list[str | None]] = {}
    for found in result.all_events:
        if found.event_type_value == "ASSET_MATERIALIZATION":
            made.setdefault(found.asset_key, []).append(found.partition)  # type: ignore[arg-type]
    return made


def test_changed_partitions_and_whole_tables_are_made_after_an_ingest_and_nothing_without_changes(
    project: ShopProject,
) -> None:
    with dg.DagsterInstance.ephemeral() as instance:
        assert _run(project, instance) == {
            published_key("shop.daily"): ["2026-01-01", "2026-01-02"], published_key("shop.whole"): [None]
        }  # fmt: skip
        assert _run(project, instance) == {}
        project.land("orders", "3.jsonl", [event("c", "orders", after=order(8, 80.0, 2))])
        run_once(project.config)
        made = _run(project, instance)
        assert made == {published_key("shop.daily"): ["2026-01-02"], published_key("shop.whole"): [None]}
        assert instance.get_materialized_partitions(published_key("shop.daily")) == {"2026-01-01", "2026-01-02"}


def test_what_commands_published_is_materialized_by_a_job_that_finds_everything_up_to_date(
    project: ShopProject,
) -> None:
    daily, whole = published_key("shop.daily"), published_key("shop.whole")
    with dg.DagsterInstance.ephemeral() as instance:
        for name in ("shop.daily", "shop.whole"):
            publish(project.config, name)
        assert _run(project, instance) == {daily: ["2026-01-01", "2026-01-02"], whole: [None]}
        assert _run(project, instance) == {}
        project.land("orders", "3.jsonl", [event("c", "orders", after=order(8, 80.0, 2))])
        run_once(project.config)
        snapshots = {name: publish(project.config, name).snapshot_id for name in ("shop.daily", "shop.whole")}
        assert _run(project, instance) == {daily: ["2026-01-02"], whole: [None]}
        found = instance.get_latest_materialization_event(whole)
        assert found is not None
        assert found.asset_materialization is not None
        metadata = {name: value.value for name, value in found.asset_materialization.metadata.items()}
        assert (metadata["snapshot id"], metadata["dagster/row_count"]) == (str(snapshots["shop.whole"]), 1)
        assert (found.asset_materialization.tags or {})["dagster/data_version"] == metadata["snapshot id"]


def test_what_commands_published_is_shown_with_its_checks_by_the_sensor(project: ShopProject) -> None:
    daily, whole = published_key("shop.daily"), published_key("shop.whole")
    with dg.DagsterInstance.ephemeral() as instance:
        watcher = Watcher(project, instance)
        for name in ("shop.daily", "shop.whole"):
            publish(project.config, name, auditor=ProjectAuditor())
        events = watcher.tick()
        places = [(daily, "2026-01-01"), (daily, "2026-01-02"), (whole, None)]
        made = [event for event in events if isinstance(event, dg.AssetMaterialization)]
        assert [(e.asset_key, e.partition) for e in made if e.asset_key in {daily, whole}] == places
        checks = [event for event in events if isinstance(event, dg.AssetCheckEvaluation) and event.passed]
        shown = {(e.asset_key, e.partition, e.check_name) for e in checks if e.asset_key in {daily, whole}}
        assert shown == {(*place, check) for place in places for check in ROW_CHECKS}
        assert (watcher.tick(), _run(project, instance)) == ([], {})


@pytest.mark.parametrize(
    ("config", "made"),
    [
        ({"dry_run": True}, []),
        ({"partitions": ["2026-01-02"]}, ["2026-01-02"]),
        ({"full": True}, ["2026-01-01", "2026-01-02"]),
        ({"full": True, "dry_run": True}, []),
    ],
)
def test_the_launchpad_chooses_what_is_made(config: dict[str, Any], made: list[str], project: ShopProject) -> None:
    with dg.DagsterInstance.ephemeral() as instance:
        assert _run(project, instance)
        result = project.definitions.resolve_job_def(PUBLISH_JOB).execute_in_process(
            instance=instance,
            run_config={
                "ops": {"publish_shop_daily": {"config": config}, "publish_shop_whole": {"config": {"dry_run": True}}}
            },
        )
        assert result.success
        events = [e for e in result.all_events if e.event_type_value == "ASSET_MATERIALIZATION"]
        assert [event.partition for event in events] == made


def test_a_whole_table_is_an_asset_that_can_be_made_by_hand(project: ShopProject) -> None:
    asset = published_asset("shop.whole", project.config, None)
    result = dg.materialize([asset], resources=project.definitions.resources)
    (made,) = result.get_asset_materialization_events()
    metadata = {name: value.value for name, value in made.materialization.metadata.items()}
    assert (metadata["partitions made"], metadata["dagster/partition_row_count"]) == ("all", 1)
    assert [check.passed for check in result.get_asset_check_evaluations()] == [True, True, True]


def test_a_backfill_of_other_units_makes_its_partitions_in_one_snapshot(project: ShopProject) -> None:
    document = yaml.safe_load(project.path.read_text())
    document["published"]["shop.monthly"] = {"partition": "month(day)", "start": "2025-12", "sql": "select day, id from shop.orders"}  # fmt: skip
    project.path.write_text(yaml.safe_dump(document))
    defs = project.definitions
    tags = {"dagster/asset_partition_range_start": "2025-12", "dagster/asset_partition_range_end": "2026-01"}
    result = defs.resolve_job_def("monthly_job").execute_in_process(tags=tags)
    events = result.get_asset_materialization_events()
    rows = {e.partition: e.materialization.metadata["dagster/partition_row_count"].value for e in events}
    assert rows == {"2025-12": 0, "2026-01": 6}
