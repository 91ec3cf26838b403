"""What tests on clusters share: a project with a million deletes, environments of workers, a run of the job."""

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from tests.cluster.sales_project import make_project
from tests.cluster.worker_python import bare_python, python_with_requirements

REPOSITORY = Path(__file__).parents[2]
JOB_SECONDS = 900
RunJob = Callable[..., dict[str, Any]]


@pytest.fixture(scope="session")
def million_deletes(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The config of a project, 2.5 million rows of which a million are deleted; tests work on copies of it."""
    return make_project(tmp_path_factory.mktemp("sales") / "project", 2_500_000, 1_000_000)


@pytest.fixture
def project(million_deletes: Path) -> Path:
    """The project as it was made, at the place it was made: table metadata holds absolute paths."""
    folder = million_deletes.parent
    fresh = folder.with_name("fresh")
    if fresh.exists():
        shutil.rmtree(folder)
        shutil.copytree(fresh, folder)
    else:
        shutil.copytree(folder, fresh)
    return million_deletes


@pytest.fixture(scope="session")
def worker_path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Folder of a `python3` that has the libraries we ask for, and not our code."""
    return python_with_requirements(tmp_path_factory.mktemp("worker") / "python")


@pytest.fixture(scope="session")
def bare_path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Folder of a `python3` that has nothing."""
    return bare_python(tmp_path_factory.mktemp("bare") / "python")


@pytest.fixture
def run_job(tmp_path: Path) -> RunJob:
    """Runs `tests.cluster.job` in a process of its own, as only one Spark fits into one; what it has seen."""

    def run(
        config: Path,
        *arguments: str,
        tables: Sequence[str] = (),
        days: Sequence[str] = (),
        module: str = "tests.cluster.job",
    ) -> dict[str, Any]:
        environment = {name: value for name, value in os.environ.items() if not name.startswith(("PYSPARK", "SPARK"))}
        environment |= {
            "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
            "PYTHONPATH": str(REPOSITORY),
            "SPARK_LOCAL_IP": "127.0.0.1",
            "SPARK_WORKER_DIR": str(tmp_path / "local-cluster"),
        }
        command = [sys.executable, "-W", "ignore", "-m", module, str(config), *arguments]
        if tables:
            command += ["--tables", ",".join(tables), "--days", ",".join(days)]
        done = subprocess.run(
            command, cwd=REPOSITORY, env=environment, capture_output=True, text=True, timeout=JOB_SECONDS, check=False
        )
        assert done.returncode == 0, f"{done.stdout[-2000:]}\n{done.stderr[-6000:]}"
        seen: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
        return seen

    return run
