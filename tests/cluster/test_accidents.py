"""A process is killed, a task fails or is overtaken in mid-job: the job succeeds, once, and leaves nothing behind."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from nevermore.pipelines.config.project import load
from nevermore.pipelines.iceberg.catalog import find_table, open_catalog
from tests.cluster.conftest import RunJob
from tests.cluster.faulty_job import FAULTS
from tests.cluster.sales_project import make_project, published
from tests.cluster.standalone import StandaloneCluster

pytestmark = [pytest.mark.slow, pytest.mark.spark, pytest.mark.timeout(900)]

_SOLD = """
  shop.sold:
    partition: day
    mode: {mode}
    key: [id]
    sql: select day, through(id) as id, amount from shop.sales
    options: {{target_file_bytes: 1MiB}}
spark:
  master: {master}
  conf:
    spark.driver.memory: 1g
    spark.executor.memory: 768m
    spark.sql.adaptive.enabled: false
    spark.sql.shuffle.partitions: 4
    spark.speculation: {speculation}
    spark.speculation.interval: 200ms
    spark.speculation.multiplier: 1.1
    spark.speculation.quantile: 0.25
    spark.speculation.minTaskRuntime: 1s
"""


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory, worker_path: Path) -> Iterator[StandaloneCluster]:
    with StandaloneCluster(tmp_path_factory.mktemp("cluster"), [worker_path]) as running:
        yield running


_MODES = [*((fault, "replace") for fault in FAULTS), ("executor", "append"), ("overtaken", "append")]
_MODES += [("fails-after-file", "upsert"), ("overtaken", "upsert")]


@pytest.mark.parametrize(("fault", "mode"), _MODES)
def test_the_job_succeeds_once(
    fault: str, mode: str, cluster: StandaloneCluster, run_job: RunJob, tmp_path: Path
) -> None:
    path = make_project(tmp_path / "project", 40_000, 10_000)
    with path.open("a", encoding="utf-8") as config_file:
        speculation = str(fault == "overtaken").lower()
        config_file.write(_SOLD.format(master=cluster.url, mode=mode, speculation=speculation))
    (tmp_path / "happened").mkdir()
    seen = run_job(path, fault, str(tmp_path / "happened"), module="tests.cluster.faulty_job")
    assert seen["happened"] == [fault]

    config = load(path)
    truth = published(config, "shop.sales", ["day", "id", "amount"])
    assert truth.total() == 31_000
    assert published(config, "shop.sold", ["day", "id", "amount"]) == truth
    assert [r["unchanged"] for r in seen["reports"]] == [False, False, mode == "append"]

    table = find_table(open_catalog(config), "shop.sold")
    assert table is not None
    folder = Path(table.location().removeprefix("file://")) / "data"
    named = {p.removeprefix("file://") for p in table.inspect.all_files()["file_path"].to_pylist()}
    assert {str(p) for p in folder.rglob("*.parquet")} == named
