"""A backfill as a user launches it: `dagster dev` with its daemon, over GraphQL."""

import datetime as dt
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import requests

from assets.project import published_key
from pipelines.config.document import dagster_home
from pipelines.iceberg.catalog import find_table, open_catalog
from pipelines.ingest.feed_run import run_once
from pipelines.publish.abandoned_runs import STAGED_PREFIX
from scan_core import open_table
from tests.support.processes import free_port, wait_for
from tests.support.shop_project import ShopProject, event, order

NAME = "shop.daily"
RED = "2026-01-03"
DAYS = ["2026-01-01", RED, "2026-01-05"]
"""With gaps between them, so that each is a run of its own."""

DEFINITIONS = f"""
from checks import published_equality

duckdb_sql = published_equality.duckdb_sql
published_equality.duckdb_sql = lambda *given: f"select * from ({{duckdb_sql(*given)}}) where day <> date '{RED}'"

from assets.definitions import defs
"""
"""The project's definitions, with a DuckDB that computes no row of one day."""

LOCATION = "{ repositoriesOrError { ... on RepositoryConnection { nodes { name location { name } } } } }"
LAUNCH = """mutation($params: LaunchBackfillParams!) { launchPartitionBackfill(backfillParams: $params) {
    __typename ... on LaunchBackfillSuccess { backfillId } ... on PythonError { message } } }"""
STATUS = "query($id: String!) { partitionBackfillOrError(backfillId: $id) { ... on PartitionBackfill { status } } }"
RUNS = """query($id: String!) { runsOrError(filter: {tags: [{key: "dagster/backfill", value: $id}]}) { ... on Runs { results {
    status tags { key value } } } } }"""


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
            wait_for("definitions", 600, dagster.is_loaded)
            yield dagster
        finally:
            process.send_signal(signal.SIGINT)
            try:
                process.wait(timeout=60)
            finally:
                if process.poll() is None:
                    os.killpg(process.pid, signal.SIGKILL)


@pytest.fixture
def project(tmp_path: Path) -> ShopProject:
    """Orders of three days, all published once, of which each changes afterwards."""
    project = ShopProject(tmp_path)
    orders = [order(number, 10.0 * number, day) for number, day in ((1, 1), (2, 3), (3, 5))]
    project.land("orders", "1.jsonl", [event("c", "orders", after=row) for row in orders])
    project.land("people", "1.jsonl", [event("c", "customers", after={"id": 1, "name": "Ada"})])
    run_once(project.config)
    command = [sys.executable, "-m", "pipelines.cli.main", "publish", NAME, "--config", str(project.path)]
    subprocess.run(command, check=True, capture_output=True, timeout=900)
    changes = [event("u", "orders", before=row, after={**row, "amount": row["amount"] + 1}) for row in orders]
    project.land("orders", "2.jsonl", changes)
    run_once(project.config)
    return project


def rows(table: Any, ref: str | None = None) -> list[tuple[Any, ...]]:
    scan = open_table(table).scan()
    scan = scan if ref is None else scan.at_ref(ref)
    return sorted(tuple(row.values()) for row in scan.to_table().to_pylist())


@pytest.mark.slow
@pytest.mark.spark
@pytest.mark.timeout(1800)
def test_a_red_partition_of_a_backfill_fails_alone_and_stays_as_it_was(project: ShopProject) -> None:
    with dagster_dev(project) as dagster:
        asset = {"path": published_key(NAME).path}
        params = {"assetSelection": [asset], "partitionNames": DAYS}
        launched = dagster.ask(LAUNCH, params=params)["launchPartitionBackfill"]
        assert launched["__typename"] == "LaunchBackfillSuccess", launched
        backfill = launched["backfillId"]

        def ended() -> str | None:
            status = dagster.ask(STATUS, id=backfill)["partitionBackfillOrError"]["status"]
            return None if status in {"REQUESTED", "FAILING"} else str(status)

        assert wait_for("end of the backfill", 1200, ended) == "COMPLETED_FAILED"
        runs = dagster.ask(RUNS, id=backfill)["runsOrError"]["results"]
    by_day = {}
    for run in runs:
        tags = {tag["key"]: tag["value"] for tag in run["tags"]}
        day = tags.get("dagster/partition") or tags["dagster/asset_partition_range_start"]
        by_day[day] = run["status"]
    assert by_day == {DAYS[0]: "SUCCESS", RED: "FAILURE", DAYS[2]: "SUCCESS"}
    assert len(runs) == len(DAYS)  # the red one was not tried again

    table = find_table(open_catalog(project.config), NAME)
    assert table is not None
    old, new = (dt.date(2026, 1, 3), 1, 20.0), (dt.date(2026, 1, 3), 1, 21.0)
    assert rows(table) == [(dt.date(2026, 1, 1), 1, 11.0), old, (dt.date(2026, 1, 5), 1, 31.0)]
    (branch,) = [name for name in table.metadata.refs if name.startswith(STAGED_PREFIX)]
    staged = rows(table, branch)
    assert new in staged
    assert old not in staged
