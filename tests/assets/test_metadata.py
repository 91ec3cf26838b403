"""The published asset as a user would test it in CI: ingest files, materialize a day, look at rows and metadata."""

import datetime as dt
from pathlib import Path
from typing import Any

import dagster as dg
import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

from nevermore.assets import published
from nevermore.assets.jobs import DAILY_JOB, INGEST_JOB
from nevermore.assets.project import published_key
from nevermore.checks import published_equality
from nevermore.checks.manifest_facts import NAME as MANIFESTS
from nevermore.checks.published_equality import COMPLETE
from nevermore.checks.published_equality import NAME as EQUALS_DUCKDB
from nevermore.pipelines.iceberg.catalog import find_table, open_catalog
from nevermore.pipelines.iceberg.commit import RowDelta
from nevermore.pipelines.iceberg.table_writer import write_rows
from nevermore.pipelines.ingest.feed_run import run_once
from nevermore.pipelines.publish.publish_commit import STAGED_PREFIX
from nevermore.scan_core import open_table
from tests.support.shop_project import ShopProject
from tests.support.spark_session import SPARK_TEST

pytestmark = SPARK_TEST

NAME = "shop.daily"


@pytest.fixture
def project(tmp_path: Path, spark: SparkSession) -> ShopProject:
    project = ShopProject(tmp_path)
    project.land_orders()
    project.land_people()
    run_once(project.config)
    return project


def _run(project: ShopProject, day: str, **arguments: Any) -> dg.ExecuteInProcessResult:
    job = project.definitions.resolve_job_def(DAILY_JOB)
    return job.execute_in_process(partition_key=day, raise_on_error=False, **arguments)


def _rows(project: ShopProject) -> list[tuple[dt.date, int, float]]:
    table = find_table(open_catalog(project.config), NAME)
    return sorted(tuple(row.values()) for row in open_table(table).scan().to_table().to_pylist())


_FIRST = (dt.date(2026, 1, 1), 3, 125.0)
_SECOND = (dt.date(2026, 1, 2), 3, 150.0)


@pytest.mark.slow
def test_a_day_is_made_from_the_rows_that_are_alive(project: ShopProject) -> None:
    result = _run(project, "2026-01-01")
    assert result.success
    assert _rows(project) == [_FIRST]
    (event,) = result.get_asset_materialization_events()
    assert (event.asset_key, event.partition) == (published_key(NAME), "2026-01-01")
    metadata = {name: value.value for name, value in event.materialization.metadata.items()}
    assert metadata["dagster/partition_row_count"] == 1
    assert metadata["rows removed by deletes"] == 0
    assert metadata["bytes read"] > 0
    mirror = find_table(open_catalog(project.config), "shop.orders")
    assert mirror is not None
    assert metadata["snapshot id of shop.orders"] == str(mirror.metadata.current_snapshot_id)
    assert metadata["read of shop.orders"]["rows_read"] == metadata["rows read"]
    assert (
        metadata["read of shop.orders"]["snapshot_id"] == metadata["snapshot id of shop.orders"]
    )  # browsers round numbers
    checks = {check.check_name: check for check in result.get_asset_check_evaluations()}
    assert {name: check.passed for name, check in checks.items()} == {
        COMPLETE: True, MANIFESTS: True, EQUALS_DUCKDB: True
    }  # fmt: skip
    assert {name: value.value for name, value in checks[EQUALS_DUCKDB].metadata.items()} == {
        "rows published": 1, "rows by DuckDB": 1, "partitions": "2026-01-01"
    }  # fmt: skip
    assert all((check.description or "").startswith("of partition 2026-01-01: ") for check in checks.values())
    assert {check.partition for check in checks.values()} == {"2026-01-01"}


@pytest.mark.slow
def test_a_day_without_rows_is_a_success(project: ShopProject) -> None:
    result = _run(project, "2026-01-05")
    assert result.success
    assert _rows(project) == []


def test_days_of_one_run_are_all_made(project: ShopProject) -> None:
    asset = published.published_asset(NAME, project.config, _days(project))
    tags = {
        "dagster/asset_partition_range_start": "2026-01-01",
        "dagster/asset_partition_range_end": "2026-01-03",
    }
    result = dg.materialize([asset], resources=project.definitions.resources, tags=tags)
    assert result.success
    assert _rows(project) == [_FIRST, _SECOND]
    written = {
        event.partition: tuple(
            event.materialization.metadata[name].value
            for name in ("dagster/partition_row_count", "data files", "bytes written", "rows of the run")
        )
        for event in result.get_asset_materialization_events()
    }
    files = {
        task.data_file.partition[0]: task.data_file.file_size_bytes
        for task in open_table(find_table(open_catalog(project.config), NAME)).scan().plan().tasks
    }
    first, second = (files[day] for day in (20_454, 20_455))
    assert written == {
        "2026-01-01": (1, 1, first, 2), "2026-01-02": (1, 1, second, 2), "2026-01-03": (0, 0, 0, 2)
    }  # fmt: skip


@pytest.mark.parametrize("days", [pytest.param(1, marks=pytest.mark.slow), 3])
def test_rows_that_fail_their_check_are_not_published_and_fail_their_run_which_is_not_retried(
    project: ShopProject, monkeypatch: pytest.MonkeyPatch, days: int
) -> None:
    assert _run(project, "2026-01-01").success
    to_duckdb = published_equality.duckdb_sql
    monkeypatch.setattr(published_equality, "duckdb_sql", lambda *given: f"select * from ({to_duckdb(*given)}) limit 0")
    job = project.definitions.resolve_job_def(DAILY_JOB)
    tags = {
        "dagster/asset_partition_range_start": "2026-01-01",
        "dagster/asset_partition_range_end": f"2026-01-0{days}",
    }
    result = job.execute_in_process(tags=tags, raise_on_error=False)
    assert not result.success
    assert not result.get_asset_materialization_events()
    found = {(check.check_name, check.partition): check.passed for check in result.get_asset_check_evaluations()}
    made = [f"2026-01-0{day}" for day in range(1, days + 1)]
    wrong = made[:2]  # the third has no rows on either side
    assert found == {
        (name, day): name != EQUALS_DUCKDB or day not in wrong for name in (COMPLETE, MANIFESTS, EQUALS_DUCKDB) for day in made
    }  # fmt: skip
    (failure,) = [e for e in result.all_events if e.event_type_value == "STEP_FAILURE"]
    error = failure.step_failure_data.error
    assert error is not None
    assert "new rows fail their checks" in error.message
    assert (error.stack, error.cause) == ([], None)
    assert _rows(project) == [_FIRST]
    table = find_table(open_catalog(project.config), NAME)
    assert table is not None
    (branch,) = [name for name in table.metadata.refs if name.startswith(STAGED_PREFIX)]
    assert open_table(table).scan().at_ref(branch).count() == min(days, 2)
    monkeypatch.undo()
    assert _run(project, "2026-01-02").success
    assert _rows(project) == [_FIRST, _SECOND]


def test_ingest_and_publish_jobs_run_one_after_the_other_as_in_the_ui(project: ShopProject) -> None:
    project.land("orders", "3.jsonl", [])
    ingest = project.definitions.resolve_job_def(INGEST_JOB).execute_in_process()
    assert ingest.success
    assert len(ingest.get_asset_check_evaluations()) == 33
    assert _run(project, "2026-01-02").success
    assert _rows(project) == [_SECOND]


def _days(project: ShopProject) -> dg.DailyPartitionsDefinition:
    days = project.definitions.resolve_asset_graph().get(published_key(NAME)).partitions_def
    assert isinstance(days, dg.DailyPartitionsDefinition)
    return days


def test_a_day_is_not_made_from_a_mirror_that_another_job_left_red(project: ShopProject) -> None:
    table = find_table(open_catalog(project.config), "shop.orders")
    delta = RowDelta(table)
    rows = pa.table({"id": [99], "amount": [1e6], "day": pa.array([dt.date(2026, 1, 1)])})
    delta.commit(write_rows(rows, delta.target, delta.default_spec), {})
    result = _run(project, "2026-01-01")
    assert not result.success
    (failure,) = [e for e in result.all_events if e.event_type_value == "STEP_FAILURE"]
    assert "shop.orders fails mirror_equals_reference" in str(failure.event_specific_data)
    assert find_table(open_catalog(project.config), NAME) is None
