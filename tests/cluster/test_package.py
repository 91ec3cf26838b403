"""What workers are given: our archive and the libraries by archives alone, or libraries without compiled code."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from nevermore.pipelines.config.project import load
from tests.cluster.conftest import RunJob
from tests.cluster.sales_project import expected, make_project
from tests.cluster.standalone import StandaloneCluster
from tests.cluster.worker_python import python_with_requirements

pytestmark = [pytest.mark.slow, pytest.mark.spark, pytest.mark.timeout(900)]

NUM_ROWS, NUM_DELETES = 40_000, 10_000


def run(project: Path, run_job: RunJob, **spark: Any) -> dict[str, Any]:
    """The job of a project, whose reading is what DuckDB says."""
    conf = {"spark.driver.memory": "1g", "spark.executor.memory": "768m"} | spark.pop("conf", {})
    with project.open("a", encoding="utf-8") as file:
        file.write(f"spark: { ({**spark, 'conf': conf}) }\n")
    seen = run_job(project)
    sums = [list(row) for row in expected(load(project))["read"]]
    assert seen["read"] == {"python": sums, "auto": sums}
    return seen


def test_workers_whose_python_has_nothing_get_all_by_archives(run_job: RunJob, bare_path: Path, tmp_path: Path) -> None:
    command = [sys.executable, "-m", "nevermore.pipelines.cli.main", "spark-package", "--with-dependencies", "--json"]
    done = subprocess.run([*command, "--output", str(tmp_path / "dist")], stdout=subprocess.PIPE, check=True)
    built = json.loads(done.stdout)
    project = make_project(tmp_path / "project", NUM_ROWS, NUM_DELETES)
    with StandaloneCluster(tmp_path / "cluster", [bare_path]) as cluster:
        conf = {"spark.archives": f"{built['dependencies']}#nevermore", "spark.executorEnv.PYTHONPATH": "./nevermore"}
        seen = run(
            project, run_job, master=cluster.url, package=built["package"], reports=str(tmp_path / "reports"), conf=conf
        )
    assert seen["fallbacks"] == 0


def test_workers_without_a_compiler_use_numpy_and_say_so(run_job: RunJob, tmp_path: Path) -> None:
    path = python_with_requirements(tmp_path / "python", without={"llvmlite", "numba"})
    project = make_project(tmp_path / "project", NUM_ROWS, NUM_DELETES)
    with StandaloneCluster(tmp_path / "cluster", [path]) as cluster:
        seen = run(project, run_job, master=cluster.url, reports=str(tmp_path / "reports"))
    assert seen["fallbacks"] > 0
