"""`nevermore ui` as a process: it opens in any project, and all that it started ends with it."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import requests

from tests.support.processes import free_port, wait_for

SIGNALS = [signal.SIGINT, signal.SIGTERM, signal.SIGHUP]
_GROUP = """
import sys
from nevermore.assets.commands import _run_group
child = "import subprocess, sys, time; subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(600)']); " + sys.argv[1]
sys.exit(_run_group([sys.executable, "-c", child], None))
"""
_LOADED = """{ workspaceOrError { ... on Workspace { locationEntries { locationOrLoadError {
    ... on PythonError { message } ... on RepositoryLocation { repositories { assetNodes { assetKey { path } } } } } } } } }"""


def group_of(leader: int) -> set[int]:
    """Living processes of a group, by /proc."""
    found = set()
    for folder in Path("/proc").iterdir():
        try:
            state, _, group = (folder / "stat").read_text().rpartition(")")[2].split()[:3]
        except (OSError, ValueError):
            continue
        if group == str(leader) and state != "Z":
            found.add(int(folder.name))
    return found


def child_of(parent: int) -> int | None:
    text = Path(f"/proc/{parent}/task/{parent}/children").read_text().split()
    return int(text[0]) if text else None


@pytest.mark.parametrize("number", SIGNALS)
def test_a_signal_ends_the_whole_group(number: signal.Signals) -> None:
    command = [sys.executable, "-c", _GROUP, "time.sleep(600)"]
    with subprocess.Popen(command) as process:
        leader = wait_for("child", lambda: child_of(process.pid))
        wait_for("grandchild", lambda: len(group_of(leader)) == 2)
        process.send_signal(number)
        assert process.wait(timeout=300) == 0
    assert group_of(leader) == set()


def test_the_command_ends_when_its_parent_is_killed() -> None:
    with subprocess.Popen([sys.executable, "-c", _GROUP, "time.sleep(600)"]) as process:
        leader = wait_for("child", lambda: child_of(process.pid))
        wait_for("grandchild", lambda: len(group_of(leader)) == 2)
        process.kill()
    wait_for("end", lambda: leader not in group_of(leader))
    os.killpg(leader, signal.SIGKILL)  # Dagster ends its own children


def test_a_command_that_ends_takes_its_children_and_its_code_along() -> None:
    with subprocess.Popen(
        [sys.executable, "-c", _GROUP, "sys.stdin.readline(); sys.exit(7)"], stdin=subprocess.PIPE
    ) as process:
        assert process.stdin is not None
        leader = wait_for("child", lambda: child_of(process.pid))
        wait_for("grandchild", lambda: len(group_of(leader)) == 2)
        process.stdin.close()
        assert process.wait(timeout=300) == 7
    assert group_of(leader) == set()


@pytest.fixture
def project(tmp_path: Path) -> Iterator[Path]:
    """A project of the user's, with folders of its own that are called like our packages."""
    command = [sys.executable, "-m", "nevermore.pipelines.cli.main", "init", "--dir", str(tmp_path)]
    subprocess.run(command, check=True, capture_output=True)
    for name in ("assets", "checks", "pipelines", "scan_core"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "__init__.py").write_text("raise SystemExit('this is the package of the user')")
    return tmp_path


def loaded(port: int) -> Any:
    """What Dagster made of the code location; None while it is starting."""
    try:
        answer = requests.post(f"http://127.0.0.1:{port}/graphql", json={"query": _LOADED}, timeout=60)
    except requests.RequestException:
        return None
    (entry,) = answer.json()["data"]["workspaceOrError"]["locationEntries"]
    return entry["locationOrLoadError"]


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.parametrize("number", SIGNALS)
def test_the_ui_opens_beside_packages_of_the_user_and_ends_as_a_whole(number: signal.Signals, project: Path) -> None:
    port = free_port()
    environment = {k: v for k, v in os.environ.items() if k not in {"NEVERMORE_CONFIG", "PYTHONPATH"}}
    command = [str(Path(sys.executable).parent / "nevermore"), "ui", "--port", str(port), "--json"]
    with subprocess.Popen(
        command, cwd=project, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        assert json.loads(process.stdout.readline())["config"] == str(project / "nevermore.yaml")
        location = wait_for("answer", lambda: loaded(port))
        nodes = location["repositories"][0]["assetNodes"]
        assert {tuple(n["assetKey"]["path"]) for n in nodes} == {
            ("change_log", "shop_products"),
            ("mirror", "shop", "products"),
        }
        leader = child_of(process.pid)
        assert leader is not None
        process.send_signal(number)
        _, errors = process.communicate(timeout=300)
    assert (process.returncode, group_of(leader)) == (0, set())
    assert "SupersessionWarning" not in errors


@pytest.mark.slow
def test_dagster_dev_loads_what_init_wrote(tmp_path: Path) -> None:
    environment = {k: v for k, v in os.environ.items() if k != "NEVERMORE_CONFIG"}
    for command in (["nevermore.pipelines.cli.main", "init"], ["dagster", "definitions", "validate"]):
        done = subprocess.run(
            [sys.executable, "-m", *command], cwd=tmp_path, env=environment, capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, done.stdout + done.stderr
