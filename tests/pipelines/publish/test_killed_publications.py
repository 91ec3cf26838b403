"""Publications killed before any of their changes of files: old rows or new ones, never others, and what is left is an orphan."""

import multiprocessing
import os
import random
import shutil
import signal
import sys
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from nevermore.checks.damage import verify_table
from nevermore.pipelines.publish.publish_commit import Mode
from nevermore.scan_core import open_table
from tests.pipelines.maintain.test_kills import CHANGES
from tests.pipelines.maintain.test_orphans import age, find
from tests.pipelines.publish.amounts import FIRST, SECOND, Project

FORKS = multiprocessing.get_context("forkserver")
FORKS.set_forkserver_preload(["tests.pipelines.publish.test_killed_publications"])
MODES: tuple[Mode, ...] = ("replace", "append", "upsert")
BEFORE = [(1, 1, 10), (1, 2, 20), (2, 3, 30)]
AFTER = {
    "replace": [(1, 2, 21), (1, 4, 40), (2, 3, 30)],
    "append": [(1, 1, 10), (1, 2, 20), (1, 2, 21), (1, 4, 40), (2, 3, 30)],
    "upsert": [(1, 1, 10), (1, 2, 21), (1, 4, 40), (2, 3, 30)],
}
KILLS = 4
"""After some CPU time, of each way to publish."""
MAX_CPU_SECONDS = 0.06
"""What a publication takes here."""


def publish(folder: Path, mode: Mode, run: str, *, is_audited: bool) -> None:
    audit = (lambda _: None) if is_audited else None
    Project(folder).publish(mode, FIRST, {2: 21, 4: 40}, state="2", run=run, audit=audit)


def killed(folder: str, mode: Mode, change: int, cpu_seconds: float, *, is_audited: bool) -> None:
    """Publish, and be killed before Python changes files for the nth time, or after some CPU time; the file `changes` counts."""
    seen = 0

    def audit(name: str, arguments: Sequence[Any]) -> None:
        nonlocal seen
        writes = name == "open" and isinstance(arguments[2], int) and arguments[2] & (os.O_WRONLY | os.O_RDWR)
        if writes or name in CHANGES:
            seen += 1
            if seen == change:
                os.kill(os.getpid(), signal.SIGKILL)

    path = Path(folder)
    signal.signal(signal.SIGPROF, signal.SIG_DFL)
    sys.addaudithook(audit)
    signal.setitimer(signal.ITIMER_PROF, cpu_seconds)
    publish(path, mode, "killed", is_audited=is_audited)
    count = seen
    (path / "changes").write_text(str(count))


class Shelf:
    """A published table that returns to its first state for each kill."""

    def __init__(self, folder: Path, mode: Mode, *, is_audited: bool) -> None:
        self.mode, self.is_audited = mode, is_audited
        self.folder, self.saved = folder / "project", folder / "saved"
        self.folder.mkdir()
        project = Project(self.folder)
        project.must_publish("replace", FIRST, {1: 10, 2: 20})
        project.must_publish("replace", SECOND, {3: 30})
        shutil.copytree(self.folder, self.saved)

    def call(self, change: int = 0, cpu_seconds: float = 0) -> int | None:
        """How a publication ended."""
        shutil.rmtree(self.folder)
        shutil.copytree(self.saved, self.folder)
        act = partial(killed, str(self.folder), self.mode, change, cpu_seconds, is_audited=self.is_audited)
        process = FORKS.Process(target=act)
        process.start()
        process.join(300)
        return process.exitcode

    @property
    def rows(self) -> list[tuple[int, int, int]]:
        return Project(self.folder).rows

    def kill(self, change: int = 0, cpu_seconds: float = 0) -> int | None:
        """Kill a publication, run it again, and look at what is left; returns how the first one ended."""
        ended = self.call(change, cpu_seconds)
        assert self.rows in (BEFORE, AFTER[self.mode])
        publish(self.folder, self.mode, "again", is_audited=self.is_audited)
        assert self.rows == AFTER[self.mode]
        project = Project(self.folder)
        assert not verify_table(open_table(project.table), all_snapshots=True).damage
        age(self.folder)
        find(project.table, 0.0, delete=True)
        named = {Path(p.removeprefix("file://")) for p in project.table.inspect.all_files()["file_path"].to_pylist()}
        assert set(self.folder.rglob("killed-*.parquet")) <= named, "files of the killed run are left"
        return ended


SLOW = pytest.mark.slow
"""One way is quick; the others differ by what they commit."""


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize(
    ("mode", "is_audited"),
    [
        pytest.param("replace", True),
        pytest.param("replace", False, marks=SLOW),
        *(pytest.param(mode, is_audited, marks=SLOW) for mode in MODES[1:] for is_audited in (True, False)),
    ],
)
def test_killed_at_any_moment_a_publication_finishes_when_it_is_run_again(
    tmp_path: Path, mode: Mode, *, is_audited: bool
) -> None:
    shelf = Shelf(tmp_path, mode, is_audited=is_audited)
    assert shelf.call() == 0
    assert shelf.rows == AFTER[mode]
    for change in range(1, int((shelf.folder / "changes").read_text()) + 1):
        assert shelf.kill(change=change) == -signal.SIGKILL
    chance = random.Random(f"{mode} {is_audited}")
    for _ in range(KILLS):
        assert shelf.kill(cpu_seconds=chance.uniform(0.001, MAX_CPU_SECONDS)) in {0, -signal.SIGPROF}
