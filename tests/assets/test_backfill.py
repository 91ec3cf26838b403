"""A backfill as a user launches it: `dagster dev` with its daemon, over GraphQL."""

import datetime as dt
import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import pairwise
from typing import Any

import pytest
import requests

from nevermore.assets.project import published_key
from nevermore.pipelines.config.document import dagster_home
from nevermore.pipelines.iceberg.catalog import find_table, open_catalog
from nevermore.pipelines.ingest.feed_run import run_once
from nevermore.pipelines.publish.publish_commit import STAGED_PREFIX
from nevermore.scan_core import open_table
from tests.support.processes import free_port, wait_for
from tests.support.shop_project import ShopProject, event, order

pytestmark = [pytest.mark.slow, pytest.mark.spark, pytest.mark.timeout(1800)]

NAME = "shop.daily"
OTHERS = ("shop.daily_amounts", "shop.daily_counts")
BY_KEY = "shop.people_by_name"
RED = "2026-01-03"
DAYS = ["2026-01-01", RED, "2026-01-05"]
"""With gaps between them, so that each is a run of its own."""
PUBLISHED = """
  shop.daily_amounts: {partition: day, start: "2026-01-01", sql: "select day, sum(amount) as a from shop.orders group by day"}
  shop.daily_counts: {partition: day, start: "2026-01-01", sql: "select day, count(*) as n from shop.orders group by day"}
  shop.people_by_name:
    {partition: value(name), values: [Ada, Bob], sql: "select name, count(*) as n from shop.customers group by name"}
"""

DEFINITIONS = f"""
from pathlib import Path
from nevermore.checks import published_equality

duckdb_sql = published_equality.duckdb_sql

def without_red_day(*given):
    found = duckdb_sql(*given)
    is_broken = Path(__file__).with_name("broken").exists() and "day" in found.lower()
    return f"select * from ({{found}}) where day <> date '{RED}'" if is_broken else found

published_equality.duckdb_sql = without_red_day

from nevermore.assets.definitions import defs
"""
"""The project's definitions, with a DuckDB that computes no row of one day as long as there is a file `broken`."""

LOCATION = "{ repositoriesOrError { ... on RepositoryConnection { nodes { name location { name } } } } }"
LAUNCH = """mutation($params: LaunchBackfillParams!) { launchPartitionBackfill(backfillParams: $params) {
    __typename ... on LaunchBackfillSuccess { backfillId } ... on PythonError { message } } }"""
RETRY = """mutation($params: ReexecutionParams!) { reexecutePartitionBackfill(reexecutionParams: $params) {
    __typename ... on LaunchBackfillSuccess { backfillId } ... on PythonError { message } } }"""
STATUS = "query($id: String!) { partitionBackfillOrError(backfillId: $id) { ... on PartitionBackfill { status } } }"
CHECKED = """query($day: String!) { assetCheckExecutions(assetKey: {path: ["published", "shop", "daily"]},
    checkName: "published_equals_duckdb", limit: 9, partition: $day) { status runId partition } }"""
RUNS = """query($id: String!) { runsOrError(filter: {tags: [{key: "dagster/backfill", value: $id}]}) { ... on Runs { results {
    status tags { key value } stepStats { stepKey startTime endTime status } } } } }"""


class Dagster:
    """The GraphQL server of `dagster dev`."""

    def __init__(self, port: int) -> None:
        self._url = f"http://127.0.0.1:{port}/graphql"

    def ask(self, query: str, **variables: Any) -> Any:
        """The answer's data."""
        answer = requests.post(self._url, json={"query": query, "variables": variables}, timeout=30).json()
        assert "errors" not in answer, answer
        return answer["data"]

    def is_loaded(self) -> bool:
        """Whether the definitions are there."""
        try:
            return bool(self.ask(LOCATION)["repositoriesOrError"].get("nodes"))
        except requests.RequestException:
            return False


@contextmanager
def dagster_dev(project: ShopProject) -> Iterator[Dagster]:
    definitions = project.folder / "red_definitions.py"
    definitions.write_text(DEFINITIONS)
    port = free_port()
    home = dagster_home(project.folder)
    environment = {**os.environ, "DAGSTER_HOME": str(home), "NEVERMORE_CONFIG": str(project.path)}
    command = [sys.executable, "-m", "dagster", "dev", "-f", str(definitions), "-h", "127.0.0.1", "-p", str(port)]
    log = project.folder / "dagster.log"
    with log.open("w") as output, subprocess.Popen(
        command, cwd=project.folder, env=environment, stdout=output, stderr=subprocess.STDOUT, start_new_session=True
    ) as process:  # fmt: skip
        try:
            dagster = Dagster(port)
            wait_for("definitions", dagster.is_loaded, seconds=600)
            yield dagster
        finally:
            process.send_signal(signal.SIGINT)
            try:
                process.wait(timeout=300)
            finally:
                if process.poll() is None:
                    os.killpg(process.pid, signal.SIGKILL)


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> ShopProject:
    """Orders of three days, all published once, of which each changes afterwards."""
    project = ShopProject(tmp_path_factory.mktemp("backfill"))
    project.path.write_text(project.path.read_text().rstrip() + PUBLISHED)
    orders = [order(number, 10.0 * number, day) for number, day in ((1, 1), (2, 3), (3, 5))]
    project.land("orders", "1.jsonl", [event("c", "orders", after=row) for row in orders])
    people = [{"id": number, "name": name} for number, name in enumerate(("Ada", "Bob", "Ada"), 1)]
    project.land("people", "1.jsonl", [event("c", "customers", after=row) for row in people])
    run_once(project.config)
    command = [sys.executable, "-m", "nevermore.pipelines.cli.main", "publish", NAME, "--config", str(project.path)]
    subprocess.run(command, check=True, capture_output=True, timeout=900)
    changes = [event("u", "orders", before=row, after={**row, "amount": row["amount"] + 1}) for row in orders]
    project.land("orders", "2.jsonl", changes)
    run_once(project.config)
    (project.folder / "broken").touch()
    return project


@pytest.fixture(scope="module")
def dagster(project: ShopProject) -> Iterator[Dagster]:
    with dagster_dev(project) as dagster:
        yield dagster


def launched(dagster: Dagster, mutation: str, field: str, params: dict[str, Any]) -> tuple[str, str, list[Any]]:
    """A backfill: its id, how it ended, and its runs."""
    answer = dagster.ask(mutation, params=params)[field]
    assert answer["__typename"] == "LaunchBackfillSuccess", answer
    backfill = answer["backfillId"]

    def ended() -> str | None:
        status = dagster.ask(STATUS, id=backfill)["partitionBackfillOrError"]["status"]
        return None if status in {"REQUESTED", "FAILING", "CANCELING"} else str(status)

    status = wait_for("end of the backfill", ended, seconds=1200)
    return backfill, status, dagster.ask(RUNS, id=backfill)["runsOrError"]["results"]


def backfill_of(dagster: Dagster, names: Sequence[str], partitions: Sequence[str]) -> tuple[str, str, list[Any]]:
    params = {
        "assetSelection": [{"path": published_key(name).path} for name in names],
        "partitionNames": list(partitions),
    }
    return launched(dagster, LAUNCH, "launchPartitionBackfill", params)


def rows(project: ShopProject, name: str = NAME, ref: str | None = None) -> list[tuple[Any, ...]]:
    table = find_table(open_catalog(project.config), name)
    scan = open_table(table).scan()
    scan = scan if ref is None else scan.at_ref(ref)
    return sorted(tuple(row.values()) for row in scan.to_table().to_pylist())


def partition_of(run: Any) -> str:
    tags = {tag["key"]: tag["value"] for tag in run["tags"]}
    return str(tags.get("dagster/partition") or tags["dagster/asset_partition_range_start"])


def checked(dagster: Dagster, day: str) -> list[Any]:
    """The results of the comparison for one day, the newest first."""
    return list(dagster.ask(CHECKED, day=day)["assetCheckExecutions"])


def test_a_red_partition_fails_alone_stays_as_it_was_and_is_green_when_it_is_tried_again(
    project: ShopProject, dagster: Dagster
) -> None:
    backfill, status, runs = backfill_of(dagster, [NAME], DAYS)
    assert status == "COMPLETED_FAILED"
    assert {partition_of(run): run["status"] for run in runs} == {
        DAYS[0]: "SUCCESS",
        RED: "FAILURE",
        DAYS[2]: "SUCCESS",
    }
    assert len(runs) == len(DAYS)  # the red one was not tried again
    # before these, the sensor may have shown what the command had published
    assert [checked(dagster, day)[0]["status"] for day in DAYS] == ["SUCCEEDED", "FAILED", "SUCCEEDED"]
    spans = sorted((step["startTime"], step["endTime"]) for run in runs for step in run["stepStats"])
    assert len(spans) == len(DAYS)
    assert all(ended <= begun for (_, ended), (begun, _) in pairwise(spans))  # the pool has one slot: one writer

    old, new = (dt.date(2026, 1, 3), 1, 20.0), (dt.date(2026, 1, 3), 1, 21.0)
    first, last = (dt.date(2026, 1, 1), 1, 11.0), (dt.date(2026, 1, 5), 1, 31.0)
    assert rows(project) == [first, old, last]
    table = find_table(open_catalog(project.config), NAME)
    assert table is not None
    (branch,) = [name for name in table.metadata.refs if name.startswith(STAGED_PREFIX)]
    staged = rows(project, ref=branch)
    assert new in staged
    assert old not in staged

    (project.folder / "broken").unlink()  # what was wrong is mended
    params = {"parentRunId": backfill, "strategy": "FROM_FAILURE"}
    _, status, runs = launched(dagster, RETRY, "reexecutePartitionBackfill", params)
    assert status == "COMPLETED_SUCCESS"
    assert [(partition_of(run), run["status"]) for run in runs] == [(RED, "SUCCESS")]
    assert rows(project) == [first, new, last]
    assert [check["status"] for check in checked(dagster, RED)[:2]] == ["SUCCEEDED", "FAILED"]


def test_two_tables_of_a_run_are_made_side_by_side_in_one_process(project: ShopProject, dagster: Dagster) -> None:
    _, status, (run,) = backfill_of(dagster, OTHERS, [DAYS[0]])
    assert status == "COMPLETED_SUCCESS"
    (begun, ended), (other_begun, other_ended) = ((s["startTime"], s["endTime"]) for s in run["stepStats"])
    assert max(begun, other_begun) < min(ended, other_ended)
    assert [rows(project, name) for name in OTHERS] == [
        [(dt.date(2026, 1, 1), 11.0)],
        [(dt.date(2026, 1, 1), 1)],
    ]


def test_partitions_by_key_are_backfilled(project: ShopProject, dagster: Dagster) -> None:
    _, status, runs = backfill_of(dagster, [BY_KEY], ["Bob", "Ada"])
    assert status == "COMPLETED_SUCCESS"
    assert all(run["status"] == "SUCCESS" for run in runs)
    assert rows(project, BY_KEY) == [("Ada", 2), ("Bob", 1)]
