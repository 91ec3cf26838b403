"""Fixtures of the whole suite: where the shared tables lie, and seeds that make random tests repeatable."""

import gc
import os
import random
import shutil
import subprocess
import sys
from collections import defaultdict
from collections.abc import Generator, Iterator
from itertools import count
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, settings
from xdist.remote import Producer
from xdist.scheduler import LoadScopeScheduling

pytest_plugins = ("tests.support.spark_session",)

settings.register_profile("busy", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("busy")  # the machine may have other work: how long an example takes proves nothing

REPOSITORY = Path(__file__).resolve().parent.parent
SEED = 20_260_101
IN_MEMORY = Path("/dev/shm")  # noqa: S108 - each run makes a folder of its own there
MIN_IN_MEMORY = 4 * 1024**3


def _hold_files_in_memory() -> None:
    """Hold the folders of tests and servers in memory where there is room: thousands of small commits wait for the disk otherwise."""
    if IN_MEMORY.is_dir():
        found = os.statvfs(IN_MEMORY)
        if found.f_bavail * found.f_frsize >= MIN_IN_MEMORY and not found.f_flag & os.ST_NOEXEC:
            os.environ.setdefault("PYTEST_DEBUG_TEMPROOT", str(IN_MEMORY))


_hold_files_in_memory()

DEMO_FILES = ("tests/docs/test_examples.py", "tests/end_to_end/")
"""Where tests work in the demo project, which takes longer to make than most files of tests to run."""


class FileScheduling(LoadScopeScheduling):
    """A file of tests goes to one process, so that what its tests share is made once; so do all files of the demo.

    `--dist loadgroup` is not possible: pytest 9.2 ignores the names by which xdist 3.8 distinguishes groups. Files keep the
    order of collection, in which the long ones come first, so that at the end one process waits for a quick file at most.
    """

    def __init__(self, config: pytest.Config, log: Producer | None = None) -> None:
        super().__init__(config, log)
        config.option.loadscopereorder = False

    def _split_scope(self, nodeid: str) -> str:
        return "demo" if nodeid.startswith(DEMO_FILES) else nodeid.split("::", 1)[0]


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Without the garbage collector, which took 40 % of the time to import and to collect, and finds nothing to free there.

    What is there by then stays until the end: later collections need not look at it. `pytest_unconfigure` thaws it.
    """
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.enable()


MAX_ID_CHARACTERS = 60
_CASES: defaultdict[str, Iterator[int]] = defaultdict(count)
"""Numbers of the cases of a test."""


def pytest_make_parametrize_id(val: object, argname: str) -> str | None:
    """Short names of parameters, which depend on the code alone: bytes may hold the time at which they were compressed."""
    if isinstance(val, bytes):
        return argname
    return val[:MAX_ID_CHARACTERS] if isinstance(val, str) and len(val) > MAX_ID_CHARACTERS else None


@pytest.hookimpl(trylast=True)
def pytest_unconfigure() -> None:
    """Let Python free everything at its end; DuckDB's binding (nanobind) prints each object that stays, as a leak."""
    gc.unfreeze()


@pytest.hookimpl(tryfirst=True)
def pytest_itemcollected(item: pytest.Item) -> None:
    """Mark all but every n-th case of a test with `each(n)` as slow: `make test` leaves them out, `make test-all` runs them."""
    if (mark := item.get_closest_marker("each")) and next(_CASES[item.nodeid.split("[")[0]]) % mark.args[0]:
        item.add_marker("slow")


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """The demo and its documentation first, then files that start Spark, then all other files."""
    with_spark = {item.path for item in items if item.get_closest_marker("spark")}
    items.sort(key=lambda item: 0 if item.nodeid.startswith(DEMO_FILES) else 1 if item.path in with_spark else 2)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Producer) -> FileScheduling:
    """Scheduler of every parallel run."""
    return FileScheduling(config, log)


def find_shared() -> Path | None:
    """The folder of shared fixtures beside the repository, if it is there."""
    folder = REPOSITORY.parent / "shared"
    return folder if (folder / "fixtures").is_dir() else None


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    """Name a failure when it happens: a run that is cut off prints no summary."""
    if report.failed and "PYTEST_XDIST_WORKER" not in os.environ:
        sys.__stderr__.write(f"\n{report.nodeid} failed in {report.when} after {report.duration:.0f} s\n")


@pytest.fixture(scope="session")
def shared_dir() -> Path:
    """Tables and event captures that lie beside the repository; without them CI fails and others skip."""
    folder = find_shared()
    if folder is None:
        reason = f"{REPOSITORY.parent / 'shared'} with the shared fixtures is missing"
        if os.environ.get("CI"):
            pytest.fail(reason)
        pytest.skip(reason)
    return folder


@pytest.fixture(autouse=True)
def _seeds() -> None:
    random.seed(SEED)
    np.random.seed(SEED)  # noqa: NPY002 - for code under test that uses the global generator


@pytest.fixture(scope="session")
def demo_template(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small project as `nevermore demo` leaves it, made once; tests work on copies."""
    folder = tmp_path_factory.mktemp("demo") / "project"
    command = [
        sys.executable,
        "-m",
        "nevermore.pipelines.cli.main",
        "demo",
        "--dir",
        str(folder),
        "--rows",
        "3000",
        "--json",
    ]
    command += ["--first-day", "2026-01-01"]  # the days that the documentation names
    done = subprocess.run(command, capture_output=True, text=True, timeout=1000, check=False)
    assert done.returncode == 0, done.stderr[-4000:]
    (folder.parent / "summary.json").write_text(done.stdout, encoding="utf-8")
    return folder


@pytest.fixture
def demo_project(demo_template: Path, tmp_path: Path) -> Iterator[Path]:
    """A demo project of the test's own, at the place it was made: table metadata holds absolute paths."""
    backup = tmp_path / "backup"
    shutil.copytree(demo_template, backup)
    yield demo_template
    shutil.rmtree(demo_template)
    shutil.copytree(backup, demo_template)
