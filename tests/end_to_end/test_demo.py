"""The demo as a newcomer runs it: twice."""

import json
import shlex
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import dagster as dg
import pytest

from nevermore.assets.commands import _print
from nevermore.assets.demo import DemoReport
from nevermore.pipelines.config.document import dagster_home

pytestmark = [pytest.mark.spark, pytest.mark.timeout(600)]


def contents(warehouse: Path) -> dict[str, bytes]:
    """All files of the tables; but not the results of checks, which run again and are kept again."""
    files = (path for path in warehouse.rglob("*") if path.is_file() and path.parent.name != "nevermore-checks")
    return {str(path.relative_to(warehouse)): path.read_bytes() for path in files}


@pytest.fixture(scope="module")
def summary(demo_template: Path) -> dict[str, Any]:
    document: dict[str, Any] = json.loads((demo_template.parent / "summary.json").read_text(encoding="utf-8"))
    return document


def test_every_kind_of_change_reached_mirrors(summary: dict[str, Any]) -> None:
    kinds = {kind for table in summary["simulated"].values() for kind in table}
    assert kinds == {"insert", "update", "delete", "re-insert", "key change"}
    for table, alive in summary["rows_alive"].items():
        events = summary["simulated"][table]
        assert alive == events["insert"] + events["re-insert"] - events["delete"]


def test_spark_published_the_days(summary: dict[str, Any]) -> None:
    assert summary["days"] == [f"2026-01-0{day}" for day in range(1, 8)]


def test_every_check_compared_something_and_passed_but_for_a_warning(summary: dict[str, Any]) -> None:
    checks = {(check["table"], check["check"]) for check in summary["checks"]}
    assert len(checks) == 37
    # since the fifth day some addresses are wrong, which only warns
    assert [check["check"] for check in summary["checks"] if not check["passed"]] == ["should_meet_expectations"]
    # nothing is in quarantine
    nothing = {check["check"] for check in summary["checks"] if not sum(check["compared"].values())}
    assert nothing == {"no_key_is_stale"}


def test_rows_that_a_script_brought_back_fail_a_check_and_why_names_the_commit(
    summary: dict[str, Any], demo_project: Path
) -> None:
    story = summary["story"]
    assert {"no_deleted_row_reappears", "mirror_equals_reference"} <= set(story["failed"])
    assert story["snapshot_id"] != story["repaired_to"]
    command = [sys.executable, "-m", "nevermore.pipelines.cli.main", *shlex.split(story["why"])[1:], "--json"]
    done = subprocess.run(command, cwd=demo_project, capture_output=True, text=True, timeout=300, check=True)
    rows = json.loads(done.stdout)["rows"]
    assert [row["alive"] for row in rows] == [False] * (len(rows) - 1) + [True]
    assert len(rows) > 1
    assert rows[-1]["written_in"] == story["snapshot_id"]


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")  # Dagster leaves files to the collector
def test_the_timeline_of_the_ui_has_all_runs(demo_project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DAGSTER_HOME", str(dagster_home(demo_project)))
    with dg.DagsterInstance.get() as instance:
        runs = [record.dagster_run for record in instance.get_run_records()]
    assert Counter((run.job_name, run.status.value) for run in runs) == {
        ("ingest_job", "SUCCESS"): 7,
        ("check_job", "FAILURE"): 1,
        ("compact_job", "SUCCESS"): 1,
        ("daily_job", "SUCCESS"): 1,
    }
    for run in runs:  # the timeline groups runs by this
        assert run.tags["dagster/code_location"] == demo_project.name
        assert run.remote_job_origin is not None
        assert run.remote_job_origin.repository_origin.get_label() == f"__repository__@{demo_project.name}"


def test_a_second_run_finds_nothing_new_and_changes_nothing(demo_project: Path) -> None:
    before = contents(demo_project / "warehouse")
    command = [sys.executable, "-m", "nevermore.pipelines.cli.main", "demo", "--dir", str(demo_project), "--json"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=600, check=False)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["nothing_new"] is True
    assert contents(demo_project / "warehouse") == before


def test_a_run_that_finds_nothing_new_says_so(capsys: pytest.CaptureFixture[str]) -> None:
    _print(DemoReport(), Path("shop"), 1.0)
    shown = capsys.readouterr().out
    assert "Nothing new. No event was applied twice, no table changed." in shown
    assert "cd shop" in shown
