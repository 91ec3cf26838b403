"""Runs whose step failed are not tried again: steps themselves try again what may pass, see `test_runs.py`."""

import dagster as dg
import pyarrow as pa
import pytest
import yaml

from nevermore.assets.jobs import CHECK_JOB, DAILY_JOB, INGEST_JOB, PUBLISH_JOB
from nevermore.pipelines.config.document import dagster_home
from nevermore.pipelines.iceberg.catalog import find_table, open_catalog
from nevermore.pipelines.iceberg.commit import RowDelta
from nevermore.pipelines.iceberg.table_writer import write_rows
from nevermore.pipelines.ingest.feed_run import run_once
from tests.support.shop_project import ShopProject

WILL_RETRY = "dagster/will_retry"


def will_retry(project: ShopProject, job: str, **tags: str) -> str | None:
    """Whether the instance of the project will run a job once more that has failed."""
    with dg.DagsterInstance.from_config(str(dagster_home(project.folder))) as instance:
        definition = project.definitions.resolve_job_def(job)
        result = definition.execute_in_process(instance=instance, raise_on_error=False, tags=tags)
        assert not result.success
        run = instance.get_run_by_id(result.run_id)
        assert run is not None
        return run.tags.get(WILL_RETRY)


def break_mirror(project: ShopProject) -> None:
    run_once(project.config)
    table = find_table(open_catalog(project.config), "shop.orders")
    delta = RowDelta(table)
    rows = pa.table({"id": [99]})
    delta.commit(write_rows(rows, delta.target, delta.default_spec), {})


@pytest.mark.parametrize("job", [CHECK_JOB, pytest.param(INGEST_JOB, marks=pytest.mark.slow)])
def test_a_run_in_which_a_check_fails_is_not_tried_again(project: ShopProject, job: str) -> None:
    break_mirror(project)
    assert will_retry(project, job) == "false"


@pytest.mark.slow
def test_a_run_that_fails_otherwise_is_not_tried_again(project: ShopProject) -> None:
    project.land("orders", "3.jsonl", ['{"op": broken}'] * 10)
    assert will_retry(project, INGEST_JOB) == "false"


@pytest.mark.slow
def test_a_publication_whose_checks_fail_is_not_tried_again(project: ShopProject) -> None:
    break_mirror(project)
    assert will_retry(project, DAILY_JOB, **{"dagster/partition": "2026-01-01"}) == "false"


@pytest.mark.slow
@pytest.mark.parametrize("is_ingested", [True, False])
def test_the_job_that_publishes_after_ingests_is_not_tried_again_if_a_check_fails_or_a_mirror_is_missing(
    project: ShopProject, *, is_ingested: bool
) -> None:
    document = yaml.safe_load(project.path.read_text())
    document["published"]["shop.whole"] = {"sql": "select count(*) as n from shop.orders"}
    project.path.write_text(yaml.safe_dump(document))
    if is_ingested:
        break_mirror(project)
    assert will_retry(project, PUBLISH_JOB) == "false"
