"""The archive for the workers of a cluster: all of our code in one zip, the same bytes each time, and only of this code."""

import json
import os
import shutil
import subprocess
import sys
import tarfile
import zipfile
from importlib.metadata import distribution
from pathlib import Path

import pytest

from nevermore.scan_core.model.errors import OptionError
from nevermore.scan_core.spark import package
from nevermore.scan_core.spark.package import (
    build_package,
    check_package,
    installed_files,
    pack_dependencies,
    required_distributions,
)
from tests.cluster.worker_python import python_with_requirements


@pytest.fixture(scope="module")
def archive(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build_package(tmp_path_factory.mktemp("package")).path


def test_code_runs_from_the_zip_alone(archive: Path) -> None:
    script = (
        "import nevermore.scan_core.read.split_reader, nevermore.scan_core.spark.frames, nevermore.pipelines.publish.task, nevermore.pipelines.iceberg.table_writer\n"
        "from nevermore.scan_core.native import compiled, machine_code\n"
        "from importlib.metadata import version\n"
        "machine_code._folders = lambda: iter([])\n"
        "assert machine_code.is_compiled()\n"
        "print(nevermore.pipelines.iceberg.table_writer.__file__, version('nevermore-iceberg'))"
    )
    environment = {"PYTHONPATH": str(archive), "HOME": "/nowhere", "PATH": os.environ["PATH"]}
    done = subprocess.run(
        [sys.executable, "-c", script], env=environment, cwd="/", stdout=subprocess.PIPE, text=True, check=True
    )
    assert done.stdout.startswith(str(archive))


TASKS = "import nevermore.pipelines.publish.task, nevermore.pipelines.spark.ingest, nevermore.scan_core.spark, nevermore.scan_core.spark.source, nevermore.scan_core.spark.native, nevermore.scan_core.spark.pushdown, nevermore.scan_core.spark.reports"
"""The modules of what is pickled to the workers."""


def test_tasks_import_only_what_workers_are_asked_to_have(archive: Path, tmp_path: Path) -> None:
    python = python_with_requirements(tmp_path / "worker") / "python3"
    spark = tmp_path / "worker" / "lib" / f"python{sys.version_info.major}.{sys.version_info.minor}" / "site-packages"
    for name in ("pyspark", "py4j"):  # Spark puts its own on the path
        place = Path(str(distribution(name).locate_file(name)))
        (spark / name).symlink_to(place)
    environment = {"PYTHONPATH": str(archive), "HOME": "/nowhere", "PATH": os.environ["PATH"]}
    done = subprocess.run([python, "-c", TASKS], env=environment, cwd="/", capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    without = subprocess.run(
        [python, "-c", "import typer"], env=environment, capture_output=True, text=True, check=False
    )
    assert "No module named 'typer'" in without.stderr


def test_equal_code_makes_equal_bytes(archive: Path, tmp_path: Path) -> None:
    again = build_package(tmp_path)
    assert again.path.name == archive.name
    assert again.path.read_bytes() == archive.read_bytes()
    assert any(name.startswith("pyarrow==") for name in again.requirements)


def test_an_archive_of_this_code_is_taken(archive: Path) -> None:
    check_package(str(archive))
    check_package("s3://bucket/of/the/cluster.zip")


def test_an_archive_that_is_missing_or_of_other_code_is_refused(archive: Path, tmp_path: Path) -> None:
    with pytest.raises(OptionError, match=r"no archive .*; build it with `nevermore spark-package`"):
        check_package(str(tmp_path / "none.zip"))
    (tmp_path / "text.zip").write_text("no zip")
    with pytest.raises(OptionError, match="is not an archive of this product"):
        check_package(str(tmp_path / "text.zip"))
    other = tmp_path / "other.zip"
    shutil.copy(archive, other)
    with zipfile.ZipFile(other, "w") as changed:
        changed.writestr("nevermore-package.json", json.dumps({"code": "other", "version": "0.0.9"}))
    with pytest.raises(OptionError, match=r"holds other code \(0\.0\.9\) than the driver"):
        check_package(str(other))


def test_a_folder_that_takes_no_file_is_told(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(OptionError, match="cannot write the Spark package"):
        build_package(tmp_path / "file")


def test_libraries_are_packed_with_all_that_they_require(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(package, "REQUIREMENTS", ("sqlglot", "pydantic"))
    names = {one.metadata["Name"].lower() for one in required_distributions()}
    assert names >= {"sqlglot", "pydantic", "pydantic-core", "typing-extensions"} or names >= {"pydantic_core"}
    with tarfile.open(pack_dependencies(tmp_path)) as packed:
        members = packed.getnames()
    assert "pydantic/main.py" in members
    assert not [name for name in members if "__pycache__" in name or name.startswith(("/", ".."))]


def test_a_library_that_is_not_installed_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(package, "REQUIREMENTS", ("sqlglot", "no-such-library"))
    with pytest.raises(OptionError, match="no-such-library is not installed here"):
        required_distributions()


def test_scripts_of_a_library_stay_behind() -> None:
    assert all(not name.startswith("..") for name, _ in installed_files(distribution("numpy")))


def test_the_command_tells_what_to_submit(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "nevermore.pipelines.cli.main", "spark-package", "--output", str(tmp_path), "--json"],
        stdout=subprocess.PIPE,
        check=True,
    )
    facts = json.loads(done.stdout)
    assert Path(facts["package"]).parent == tmp_path
    check_package(facts["package"])
