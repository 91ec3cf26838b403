"""DataFrames that tasks of a cluster write, whose workers lack our code; and machines that do not share the warehouse."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from nevermore import open_project
from tests.cluster.conftest import JOB_SECONDS, REPOSITORY
from tests.cluster.standalone import StandaloneCluster
from tests.cluster.test_separate_hosts import may_unshare

pytestmark = [pytest.mark.slow, pytest.mark.spark, pytest.mark.timeout(900)]


def run(folder: Path, url: str) -> dict[str, Any]:
    """What the job has seen."""
    (folder / "nevermore.yaml").write_text("tables: {shop.orders: {source: {type: python}, key: [id]}}")
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("PYSPARK", "SPARK"))}
    environment |= {"PYTHONPATH": str(REPOSITORY), "SPARK_LOCAL_IP": "127.0.0.1"}
    environment["PATH"] = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    command = [sys.executable, "-m", "tests.cluster.upsert_job", str(folder), url]
    done = subprocess.run(
        command, cwd=REPOSITORY, env=environment, capture_output=True, text=True, timeout=JOB_SECONDS, check=False
    )
    assert done.returncode == 0, done.stderr[-6000:]
    return json.loads(done.stdout.splitlines()[-1])


def test_tasks_of_a_cluster_write_dataframes(worker_path: Path, tmp_path: Path) -> None:
    with StandaloneCluster(tmp_path / "cluster", [worker_path]) as cluster:
        seen = run(tmp_path, cluster.url)
    assert (seen["engine"], seen["again"], seen["rows"]) == ("spark", "nothing new", 20_000)
    assert seen["sum"] == sum(-1 if n % 3 == 0 else 2 * n for n in range(20_000))
    assert "30,000 keys more than once in the data" in seen["error"]


@pytest.mark.skipif(not may_unshare(), reason="needs the right to mount file systems")
def test_a_warehouse_that_machines_do_not_share_is_refused(worker_path: Path, tmp_path: Path) -> None:
    folder = tmp_path / "project"
    folder.mkdir()
    with StandaloneCluster(tmp_path / "cluster", [worker_path], private=folder) as cluster:
        seen = run(folder, cluster.url)
    assert "on another machine: let the warehouse be an object store" in seen["error"]
    assert open_project(folder).tables == []
