"""Two processes publish to one table at the same time: the rows are those of one after the other, whoever is faster."""

import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

from nevermore.pipelines.publish.publish_commit import Mode
from tests.pipelines.publish.amounts import FIRST, KEYS, SECOND, Project

pytestmark = pytest.mark.slow

TIMES = 6
SECONDS = 120


def run_two(folder: Path, mode: Mode) -> None:
    command = [sys.executable, "-W", "ignore", "-m", "tests.pipelines.publish.publisher", str(folder), mode]
    both = [
        subprocess.Popen([*command, str(number), str(TIMES)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        for number in (1, 2)
    ]
    for process in both:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
    for process in both:
        assert process.stdin is not None
        process.stdin.write("go\n")
        process.stdin.flush()
    for process in both:
        process.communicate(timeout=SECONDS)
        assert process.returncode == 0


def check_tidy(project: Project) -> None:
    named = {p.removeprefix("file://") for p in project.table.inspect.all_files()["file_path"].to_pylist()}
    assert {str(p) for p in project.folder.rglob("published/data/**/*.parquet")} == named


@pytest.mark.parametrize("mode", ["replace", "upsert"])
@pytest.mark.parametrize("is_new", [False, True])
def test_each_key_is_there_once_and_all_rows_are_of_one_publication(
    mode: Mode, tmp_path: Path, *, is_new: bool
) -> None:
    project = Project(tmp_path)
    if not is_new:
        project.publish("upsert", FIRST, dict.fromkeys(range(KEYS), 0))
        project.publish("upsert", SECOND, {99: 0})
    run_two(tmp_path, mode)
    others = [] if is_new else [(2, 99, 0)]
    amount = project.rows[0][2]
    assert amount in {1_000 + TIMES - 1, 2_000 + TIMES - 1}
    assert project.rows == [*((1, key, amount) for key in range(KEYS)), *others]
    check_tidy(project)


def test_each_state_is_appended_once(tmp_path: Path) -> None:
    project = Project(tmp_path)
    run_two(tmp_path, "append")
    found = Counter(amount % 1_000 for _, _, amount in project.rows)
    assert found == Counter(dict.fromkeys(range(TIMES), KEYS))
    assert all(n == KEYS for n in Counter(amount for _, _, amount in project.rows).values())
    check_tidy(project)
