"""Sessions that users made themselves: our code reaches workers that lack it, and what they lack else is said in one sentence."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from nevermore import scan_core
from tests.cluster.conftest import JOB_SECONDS, REPOSITORY
from tests.cluster.connect_server import ConnectServer
from tests.cluster.sales_project import make_project
from tests.cluster.standalone import StandaloneCluster
from tests.cluster.worker_python import python_with_requirements

pytestmark = [pytest.mark.slow, pytest.mark.spark, pytest.mark.timeout(900)]

NAMES_OF_USERS = ("assets", "checks", "pipelines", "scan_core")


@pytest.fixture(scope="module")
def table(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The mirror of a project with 30,000 rows."""
    from nevermore.pipelines.config.project import load
    from nevermore.pipelines.iceberg.catalog import find_table, open_catalog

    project = make_project(tmp_path_factory.mktemp("guests") / "project", 40_000, 10_000)
    return scan_core.open_table(find_table(open_catalog(load(project)), "shop.sales")).metadata_path


def run(table: str, kind: str, url: str, *py_files: str) -> tuple[dict[str, str], str]:
    """What the job has seen, and its standard error."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("PYSPARK", "SPARK"))}
    environment |= {"PYTHONPATH": str(REPOSITORY), "SPARK_LOCAL_IP": "127.0.0.1"}
    environment["PATH"] = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    command = [sys.executable, "-m", "tests.cluster.guest_job", table, kind, url, *py_files]
    done = subprocess.run(
        command, cwd=REPOSITORY, env=environment, capture_output=True, text=True, timeout=JOB_SECONDS, check=False
    )
    assert done.returncode == 0, done.stderr[-6000:]
    return json.loads(done.stdout.splitlines()[-1]), done.stderr


def packages_of_a_user(folder: Path) -> None:
    """Packages with the names of our folders, which must not be taken for ours."""
    for name in NAMES_OF_USERS:
        (folder / name).mkdir(parents=True)
        (folder / name / "__init__.py").write_text("raise RuntimeError('a package of the user')\n")


@pytest.mark.parametrize("kind", ["master", "remote"])
def test_code_reaches_workers_that_lack_it(kind: str, table: str, tmp_path: Path) -> None:
    path = python_with_requirements(tmp_path / "python")
    packages_of_a_user(next((tmp_path / "python" / "lib").iterdir()) / "site-packages")
    server = StandaloneCluster if kind == "master" else ConnectServer
    with server(tmp_path / "server", [path]) as found:
        seen, errors = run(table, kind, found.url)
    rows = str(scan_core.open_table(table).scan().count())
    assert seen == dict.fromkeys(("python", "auto", "sql", "format"), rows)
    if kind == "master":
        assert errors.count("reads all rows of") == 1


@pytest.mark.parametrize(
    ("kind", "lacking"),
    [("master", ["pyarrow"]), ("master", ["cramjam", "sqlglot"]), ("remote", ["fastavro", "pyarrow", "pyyaml"])],
)
def test_libraries_that_workers_lack_are_named_before_a_job(
    kind: str, lacking: list[str], table: str, tmp_path: Path
) -> None:
    path = python_with_requirements(tmp_path / "python", without=lacking)
    server = StandaloneCluster if kind == "master" else ConnectServer
    with server(tmp_path / "server", [path]) as found:
        seen, errors = run(table, kind, found.url)
    for way in ("python", "sql", "format"):
        assert seen[way].startswith(
            f"OptionError: the Python of Spark's workers lacks {', '.join(lacking)}; `nevermore spark-package --with"
        )
    assert "Traceback" not in errors
