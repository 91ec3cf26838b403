"""SQL that fails while Spark runs it: one clear line, in a process of its own as a user sees it."""

import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = [pytest.mark.slow, pytest.mark.spark, pytest.mark.timeout(600)]


def test_sql_that_fails_in_a_task_is_told_without_javas_stack_trace(demo_project: Path) -> None:
    config = demo_project / "nevermore.yaml"
    with config.open("a", encoding="utf-8") as file:
        file.write("  shop.zero:\n    sql: select id, 1 / (id - id) as n from shop.customers\n")
    command = [sys.executable, "-m", "nevermore.pipelines.cli.main", "publish", "shop.zero", "--config", str(config)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=500, check=False)
    assert (done.returncode, done.stdout) == (1, "")
    told = [line for line in done.stderr.splitlines() if not line.startswith("WARNING: Using incubator modules")]
    assert len(told) == 1, done.stderr
    assert told[0].startswith("error: published shop.zero: the Spark job failed: [DIVIDE_BY_ZERO] Division by zero.")
