"""Assertions and fixtures for CI, and the workflow of the docs, step by step."""

import os
import shlex
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
import yaml

from nevermore.checks.mirror_checks import key_text
from nevermore.checks.testing import (
    assert_checks_pass,
    assert_key_is_unique,
    assert_mirror_equals_reference,
    assert_no_deleted_row_reappears,
)
from nevermore.pipelines.cli.main import main
from nevermore.pipelines.cli.read_commands import parse_key
from nevermore.pipelines.errors import ConfigError
from nevermore.pipelines.iceberg.catalog import find_table, open_catalog
from nevermore.pipelines.iceberg.commit import RowDelta
from nevermore.pipelines.iceberg.table_writer import write_rows
from nevermore.pipelines.ingest.feed_run import run_once
from tests.checks.mirror_tables import shop
from tests.support.shop_project import ShopProject

DOCS = Path(__file__).parents[2] / "docs" / "ci"
ORDERS = "shop.orders"


@pytest.fixture
def project(tmp_path: Path) -> ShopProject:
    project = ShopProject(tmp_path)
    project.land_orders()
    project.land_people()
    return project


def bring_back(project: ShopProject) -> None:
    """Write the deleted order 1 again, and no change to the log."""
    table = find_table(open_catalog(project.config), ORDERS)
    assert table is not None
    delta = RowDelta(table)
    rows = pa.table({"id": [1], "amount": [10.0], "day": pa.array([None], pa.date32())})
    delta.commit(write_rows(rows, delta.target, delta.default_spec), {})


def code_of(*arguments: str) -> int:
    with pytest.raises(SystemExit) as ended:
        main(arguments)
    return int(ended.value.code or 0)


def test_a_failure_names_keys_snapshot_files_and_a_command_that_runs(
    project: ShopProject, capsys: pytest.CaptureFixture[str]
) -> None:
    run_once(project.config)
    assert_no_deleted_row_reappears(ORDERS, project.path)
    assert_checks_pass(ORDERS, project.config)
    bring_back(project)
    with pytest.raises(AssertionError) as failure:
        assert_no_deleted_row_reappears(ORDERS, project.path)
    text = str(failure.value)
    table = find_table(open_catalog(project.config), ORDERS)
    assert table is not None
    assert "1 deleted key in the table" in text
    assert f"in snapshot {table.metadata.current_snapshot_id} of {ORDERS}" in text
    assert "key {'id': 1}" in text
    (alive,) = [line for line in text.splitlines() if "id=1: alive in" in line]
    file = alive.split("alive in ")[1].removeprefix("file://").split(" row ")[0]
    assert Path(file).is_file()
    (command,) = [line.split(": ", 1)[1] for line in text.splitlines() if "to see more: " in line]
    assert code_of(*shlex.split(command)[1:]) == 0
    assert "1 of" in capsys.readouterr().out
    assert code_of("check", ORDERS, "--config", str(project.path)) == 1
    assert command in capsys.readouterr().out


def test_tables_without_a_project_are_asserted_by_their_metadata_files(tmp_path: Path) -> None:
    tables, batches = shop(tmp_path)
    assert_no_deleted_row_reappears(tables.subject())
    tables.mirror.commit(remove=[f for f in batches[1] if f.is_delete])
    for check in (assert_no_deleted_row_reappears, assert_mirror_equals_reference, assert_key_is_unique):
        with pytest.raises(AssertionError, match=r"nevermore why .* --key 'id=.*,region=eu'|--key id=.*,region=eu"):
            check(tables.subject())


def test_what_compares_nothing_is_not_green(project: ShopProject) -> None:
    with pytest.raises(AssertionError, match=r"nothing was compared: shop\.orders does not exist yet"):
        assert_no_deleted_row_reappears(ORDERS, project.config)
    with pytest.raises(ConfigError, match=r"shop\.nothing"):
        assert_checks_pass("shop.nothing", project.config)


@pytest.mark.parametrize(
    "key",
    [
        {"id": "5", "region": "eu"},
        {"id": None},
        {"id": "null"},
        {"id": "'quoted'"},
        {"id": 'a,b "c"'},
        {"id": ""},
        {"a b": "x=y"},
    ],
)
def test_keys_are_written_as_the_command_reads_them(key: dict[str, Any]) -> None:
    text = key_text(key)
    assert text is not None
    assert parse_key(text) == key


def test_keys_that_no_command_reads_have_no_command(tmp_path: Path) -> None:
    assert key_text({"id": b"\x00"}) is None
    tables, batches = shop(tmp_path)
    tables.mirror.commit(remove=[f for f in batches[1] if f.is_delete])
    with pytest.raises(AssertionError, match=r"returned rows? not in|not returned"):
        assert_mirror_equals_reference(replace(tables.subject(), key=()))


@pytest.mark.slow
def test_the_workflow_of_the_docs_runs_and_fails_when_a_deleted_row_is_back(project: ShopProject) -> None:
    (project.folder / "tests").mkdir()
    for name in ("conftest.py", "test_tables.py"):
        shutil.copy(DOCS / name, project.folder / "tests" / name)
    workflow = yaml.safe_load((DOCS / "check-tables.yml").read_text())
    commands = [step["run"] for step in workflow["jobs"]["check"]["steps"] if "run" in step]
    install, *steps = commands
    assert install.startswith("pip install")
    folder = Path(sys.executable).parent
    environment = {**os.environ, "PATH": f"{folder}:{os.environ['PATH']}", "PYTEST_ADDOPTS": "-p no:cacheprovider"}

    def run(command: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            shlex.split(command), cwd=project.folder, env=environment, capture_output=True, text=True, check=False
        )

    for step in steps:
        done = run(step)
        assert done.returncode == 0, done.stdout + done.stderr
    assert "6 passed" in done.stdout
    bring_back(project)
    failed = run(steps[-1])
    assert failed.returncode == 1
    assert "2 failed, 4 passed" in failed.stdout
    assert "nevermore why shop.orders --key id=1" in failed.stdout
    assert (project.folder / "check-results.xml").is_file()
