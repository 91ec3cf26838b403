"""Workers that share no temporary folder with the driver, nor with each other: what their tasks tell reaches it."""

import shutil
import subprocess
from pathlib import Path

import pytest

from tests.cluster.conftest import RunJob
from tests.cluster.sales_project import make_project
from tests.cluster.standalone import StandaloneCluster

pytestmark = [pytest.mark.slow, pytest.mark.spark, pytest.mark.timeout(900)]


def may_unshare() -> bool:
    """Whether a process of this user may have file systems of its own."""
    program = shutil.which("unshare")
    return program is not None and subprocess.run([program, "--mount", "true"], check=False).returncode == 0


@pytest.mark.skipif(not may_unshare(), reason="needs the right to mount file systems")
def test_reports_are_fetched_from_folders_of_the_workers_hosts(
    run_job: RunJob, worker_path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    project = make_project(tmp_path / "project", 40_000, 10_000)
    folder = tmp_path / "temporary"
    folder.mkdir()
    monkeypatch.setenv("TMPDIR", str(folder))  # of the driver; to each worker another folder lies under this path
    with StandaloneCluster(tmp_path / "cluster", [worker_path], private=folder) as cluster:
        with project.open("a", encoding="utf-8") as file:
            conf = {"spark.driver.memory": "1g", "spark.executor.memory": "768m"}
            file.write(f"spark: { ({'master': cluster.url, 'conf': conf}) }\n")
        seen = run_job(project, module="tests.cluster.report_job")
    assert seen["folder"].startswith(str(folder))
    assert seen["reports_here_before"] == 0
    assert (seen["rows"], seen["rows_out"], seen["missing"]) == (31_000, 31_000, 0)
    assert seen["rows_removed"] == 10_000
    assert seen["splits"] > 1
