"""A user's project with packages of its own that are called like our folders: dg and Dagster load it with a component of ours."""

import importlib.metadata
import os
import shutil
import site
import subprocess
import sys
import venv
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.conftest import REPOSITORY
from tests.support.shop_project import ShopProject

pytestmark = [pytest.mark.slow, pytest.mark.timeout(3000)]

OURS = ("assets", "checks", "pipelines", "scan_core")
PYPROJECT = """
[tool.dg]
directory_type = "project"
[tool.dg.project]
root_module = "shop"
"""
DEFINITIONS = f"""
from pathlib import Path
import {", ".join(OURS)}
from dagster import definitions, load_from_defs_folder
assert {[f"{name}.MINE" for name in OURS]} and {" and ".join(f"{name}.MINE" for name in OURS)}
@definitions
def defs():
    return load_from_defs_folder(path_within_project=Path(__file__).parent)
"""
COMPONENT = "nevermore.assets.component.NevermoreProject"


@pytest.fixture(scope="module")
def environment(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An environment with dg, which finds all other packages in that of the tests; without an index it skips."""
    folder = tmp_path_factory.mktemp("dg") / "env"
    venv.create(folder, with_pip=True)
    python = folder / "bin" / "python"
    version = importlib.metadata.version("dagster")
    wanted = [f"dagster-dg-cli=={version}", f"dagster=={version}", "hatchling>=1.27", "editables"]
    done = subprocess.run([python, "-m", "pip", "install", "-q", *wanted], capture_output=True, text=True, check=False)
    if done.returncode:
        if os.environ.get("CI"):
            pytest.fail(done.stderr)
        pytest.skip("dagster-dg-cli cannot be installed")
    place = subprocess.run(
        [python, "-c", "import sysconfig; print(sysconfig.get_path('purelib'))"],
        capture_output=True,
        text=True,
        check=True,
    ).stdout.strip()
    (Path(place) / "zz_others.pth").write_text("\n".join(site.getsitepackages()))
    return folder


def by_wheel(python: Path, folder: Path) -> dict[str, str]:
    pip = [python, "-m", "pip"]
    subprocess.run([*pip, "wheel", "-q", "--no-deps", "--no-build-isolation", "-w", folder, REPOSITORY], check=True)
    (wheel,) = folder.glob("*.whl")
    subprocess.run([*pip, "install", "-q", "--no-deps", "--force-reinstall", wheel], check=True)
    return {}


def editable(python: Path, folder: Path) -> dict[str, str]:
    clone(python, folder)
    install = ["install", "-q", "--no-deps", "--no-build-isolation", "--force-reinstall", "-e", str(folder / "clone")]
    subprocess.run([python, "-m", "pip", *install], check=True)
    return {}


def clone(python: Path, folder: Path) -> dict[str, str]:
    """What Python finds through PYTHONPATH alone."""
    subprocess.run([python, "-m", "pip", "uninstall", "-q", "-y", "nevermore-iceberg"], check=True)
    ignored = shutil.ignore_patterns(".git", ".venv*", "__pycache__", ".*_cache", "tests", "benchmarks", "demo")
    shutil.copytree(REPOSITORY, folder / "clone", symlinks=True, ignore=ignored)
    return {"PYTHONPATH": str(folder / "clone")}


@pytest.mark.parametrize("install", [by_wheel, editable, clone])
def test_a_project_with_packages_of_these_names_loads_beside_ours(
    install: Callable[[Path, Path], dict[str, str]], environment: Path, tmp_path: Path
) -> None:
    project, elsewhere = tmp_path / "project", tmp_path / "installed"
    elsewhere.mkdir()
    for name in OURS:
        (project / name).mkdir(parents=True)
        (project / name / "__init__.py").write_text("MINE = True")
    defs = project / "shop" / "defs"
    defs.mkdir(parents=True)
    (project / "pyproject.toml").write_text(PYPROJECT)
    (project / "shop" / "__init__.py").touch()
    (defs / "__init__.py").touch()
    (project / "shop" / "definitions.py").write_text(DEFINITIONS)
    added = install(environment / "bin" / "python", elsewhere)
    # the packages of the user come first, as in an installation of the project
    path = os.pathsep.join([str(project), *added.values()])
    kept = {k: v for k, v in os.environ.items() if k not in {"NEVERMORE_CONFIG", "VIRTUAL_ENV"}}
    variables = kept | {"PYTHONPATH": path, "PATH": f"{environment / 'bin'}{os.pathsep}{os.environ['PATH']}"}

    def run(*command: str) -> str:
        done = subprocess.run(
            command, cwd=project, env=variables, capture_output=True, text=True, check=False, timeout=900
        )
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout + done.stderr

    assert sys.version_info[:2] == tuple(
        map(int, run("python", "-c", "import sys; print(*sys.version_info[:2])").split())
    )
    found = run("dg", "list", "components", "--json")
    assert COMPONENT in found
    assert "nevermore.yaml" not in found.replace("of a nevermore.yaml", "")  # no config is read, or missed
    run("dg", "scaffold", "defs", COMPONENT, "sales")
    (defs / "sales" / "nevermore.yaml").write_text(ShopProject(elsewhere).path.read_text())
    assert "All definitions loaded successfully" in run("dg", "check", "defs")
    assert "mirror/shop/orders" in run("dg", "list", "defs", "--json")
