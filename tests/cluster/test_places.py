"""One job, wherever Spark runs: the rows are DuckDB's, with a million deletes applied."""

from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from nevermore.pipelines.config.project import load
from tests.cluster.conftest import RunJob
from tests.cluster.connect_server import ConnectServer
from tests.cluster.sales_project import DAYS, TABLES, expected, published
from tests.cluster.standalone import StandaloneCluster

pytestmark = [pytest.mark.slow, pytest.mark.spark, pytest.mark.timeout(1500)]

COLUMNS = {
    "shop.daily": ["day", "name", "sales", "amount", "note"],
    "shop.copied": ["day", "id", "amount", "note"],
    "shop.latest": ["day", "store", "id"],
}
SMALL = {"spark.driver.memory": "1g", "spark.executor.memory": "768m", "spark.sql.shuffle.partitions": 4}


def configure(project: Path, **spark: Any) -> None:
    """Append the section `spark` to the config."""
    conf = {**SMALL, **spark.pop("conf", {})}
    with project.open("a", encoding="utf-8") as file:
        file.write(f"spark: { ({**spark, 'conf': conf}) }\n")


def check(project: Path, seen: dict[str, Any]) -> None:
    """Everything that the job has read and published is what DuckDB says."""
    config = load(project)
    truth = expected(config)
    sums = [list(row) for row in truth["read"]]
    assert seen["read"] == {"python": sums, "auto": sums}
    for table in TABLES:
        assert published(config, table, COLUMNS[table]) == Counter(truth[table]), table
    assert [(r["name"], *r["partitions"]) for r in seen["reports"]] == [(t, d) for t in TABLES for d in DAYS]
    assert {r["name"] for r in seen["reports"] if r["copied_rows"]} == {"shop.copied"}


@pytest.mark.parametrize("master", ["local[*]", "local-cluster[2,1,1024]"])
def test_on_this_machine(master: str, project: Path, run_job: RunJob) -> None:
    configure(project, conf={"spark.executor.memory": "1g"})
    check(project, run_job(project, "--master", master, tables=TABLES, days=DAYS))


def test_on_a_cluster_whose_workers_have_not_our_code(
    project: Path, run_job: RunJob, worker_path: Path, tmp_path: Path
) -> None:
    with StandaloneCluster(tmp_path / "cluster", [worker_path]) as cluster:
        configure(project, master=cluster.url, reports=str(tmp_path / "reports"))
        seen = run_job(project, tables=TABLES, days=DAYS)
    check(project, seen)
    assert seen["fallbacks"] == 0
    copied = [r for r in seen["reports"] if r["name"] == "shop.copied"]
    assert all(
        r["rows_removed_by_deletes"] and r["bytes_read"] for r in copied
    )  # what tasks tell has reached the driver


def test_through_spark_connect(project: Path, run_job: RunJob, worker_path: Path, tmp_path: Path) -> None:
    with ConnectServer(tmp_path / "connect", [worker_path]) as server:
        with project.open("a", encoding="utf-8") as file:
            file.write(f"spark: {{remote: '{server.url}'}}\n")
        check(project, run_job(project, tables=TABLES, days=DAYS))
