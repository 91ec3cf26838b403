"""The demo as a newcomer runs it: twice."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from assets.commands import _print
from assets.demo import DemoReport

pytestmark = [pytest.mark.spark, pytest.mark.timeout(600)]


def contents(warehouse: Path) -> dict[str, bytes]:
    """All files of the tables; but not the results of checks, which run again and are kept again."""
    files = (path for path in warehouse.rglob("*") if path.is_file() and path.parent.name != "nevermore-checks")
    return {str(path.relative_to(warehouse)): path.read_bytes() for path in files}


@pytest.fixture(scope="module")
def summary(demo_template: Path) -> dict[str, Any]:
    document: dict[str, Any] = json.loads((demo_template.parent / "summary.json").read_text(encoding="utf-8"))
    return document


def test_every_kind_of_change_reached_mirrors_with_deletes(summary: dict[str, Any]) -> None:
    kinds = {kind for table in summary["simulated"].values() for kind in table}
    assert kinds == {"insert", "update", "delete", "re-insert", "key change"}
    for counts in summary["mirrors"].values():
        assert counts["commits"] == 4
        assert counts["delete files written"] > 0
        assert counts["deleted keys written"] > 0
    for table, alive in summary["rows_alive"].items():
        events = summary["simulated"][table]
        assert alive == events["insert"] + events["re-insert"] - events["delete"]


def test_spark_published_the_days_without_deleted_rows(summary: dict[str, Any]) -> None:
    published = summary["published"]["shop.orders_daily"]
    assert summary["days"] == ["2026-01-01", "2026-01-02", "2026-01-03", "2026-01-04"]
    assert published["dagster/partition_row_count"] > 20
    assert published["rows removed by deletes"] > 0
    assert published["bytes read"] > 0


def test_every_check_compared_something_and_passed(summary: dict[str, Any]) -> None:
    checks = {(check["table"], check["check"]) for check in summary["checks"]}
    assert len(checks) == 24
    assert all(check["passed"] and sum(check["compared"].values()) > 0 for check in summary["checks"])


def test_a_second_run_finds_nothing_new_and_changes_nothing(demo_project: Path) -> None:
    before = contents(demo_project / "warehouse")
    command = [sys.executable, "-m", "pipelines.cli.main", "demo", "--dir", str(demo_project), "--json"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=600, check=False)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["nothing_new"] is True
    assert contents(demo_project / "warehouse") == before


def test_a_run_that_finds_nothing_new_says_so(capsys: pytest.CaptureFixture[str]) -> None:
    _print(DemoReport(), Path("shop"), 1.0)
    shown = capsys.readouterr().out
    assert "Nothing new. No event was applied twice, no table changed." in shown
    assert "cd shop" in shown
