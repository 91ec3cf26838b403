"""Continuous commands end with exit code 0 on a signal, even during start-up, and when nobody reads their output any more."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.pipelines.project import Project, event, product
from tests.support.processes import wait_for

_AT_IMPORT = """
import os, signal, sys
class Sender:
    def find_spec(self, name, path=None, target=None):
        if name == {module!r}:
            sys.meta_path.remove(self)
            os.kill(os.getpid(), {number})
sys.meta_path.insert(0, Sender())
# as a shell begins it: the process of the tests may ignore or hold back signals, which its children inherit
signal.signal({number}, signal.SIG_DFL)
signal.pthread_sigmask(signal.SIG_UNBLOCK, [{number}])
from nevermore.pipelines.cli.main import main
main()
"""
"""The command, to which a signal comes at the moment when it imports a module."""
_LOADED_FIRST = """
import sys
before = set(sys.modules)
import nevermore.pipelines.cli.main
print(*sorted(set(sys.modules) - before))
"""
COMMAND = str(Path(sys.executable).parent / "nevermore")


@pytest.fixture
def project(tmp_path: Path) -> Project:
    return Project(tmp_path)


def config(project: Project) -> str:
    return str(project.folder / "nevermore.yaml")


def handles(process: int, number: signal.Signals) -> bool:
    """Whether a process has a handler for a signal, by /proc."""
    status = Path(f"/proc/{process}/status").read_text()
    caught = next(line for line in status.splitlines() if line.startswith("SigCgt:"))
    return bool(int(caught.split()[1], 16) >> (number - 1) & 1)


def test_the_command_loads_nothing_before_it_handles_signals() -> None:
    loaded = subprocess.check_output([sys.executable, "-c", _LOADED_FIRST], text=True).split()
    others = {name for name in loaded if name.partition(".")[0] not in sys.stdlib_module_names}
    exports = {"nevermore.scan_core", "nevermore.scan_core.model", "nevermore.scan_core.model.exports"}
    assert (
        others
        == {"nevermore", "nevermore.pipelines", "nevermore.pipelines.cli", "nevermore.pipelines.cli.main"} | exports
    )
    assert not {"importlib.metadata", "logging", "pathlib"} & set(loaded)


@pytest.mark.each(4)
@pytest.mark.parametrize(
    ("command", "number", "module"),
    [
        ("run", signal.SIGTERM, "typer"),
        ("run", signal.SIGINT, "nevermore.pipelines.cli.ingest_commands"),
        ("run", signal.SIGTERM, "nevermore.pipelines.config.project"),
        ("run", signal.SIGINT, "nevermore.pipelines.ingest.feed_run"),
        ("run", signal.SIGTERM, "pyarrow"),
        ("ui", signal.SIGINT, "typer"),
        ("ui", signal.SIGTERM, "nevermore.assets.commands"),
        ("ui", signal.SIGHUP, "orjson"),
    ],
)
def test_a_signal_ends_a_command_that_starts(
    command: str, number: signal.Signals, module: str, project: Project
) -> None:
    folder = ["--config", config(project)] if command == "run" else ["--dir", str(project.folder)]
    words = ["--log-level", "error", command, *folder, "--json"]
    program = [sys.executable, "-c", _AT_IMPORT.format(module=module, number=int(number)), *words]
    done = subprocess.run(program, capture_output=True, timeout=300, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (0, b"", b"")


def test_other_commands_end_by_a_signal_as_any_program(project: Project) -> None:
    code = _AT_IMPORT.format(module="typer", number=int(signal.SIGTERM))
    done = subprocess.run([sys.executable, "-c", code, "ingest", "--config", config(project)], timeout=300, check=False)
    assert done.returncode == -signal.SIGTERM


def _end_after(project: Project, seconds: float) -> None:
    """Start a run, and tell it to end a time after it began to handle signals."""
    command = [COMMAND, "run", "--config", config(project), "--interval", "0.01", "--json"]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE) as process:
        wait_for("handler", lambda: handles(process.pid, signal.SIGTERM))
        time.sleep(seconds)
        process.send_signal(signal.SIGTERM)
        _, errors = process.communicate(timeout=300)
    assert process.returncode == 0, (seconds, errors.decode())


def test_a_run_ends_well_as_soon_as_it_handles_signals(project: Project) -> None:
    _end_after(project, 0)


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_a_run_ends_well_at_any_moment(project: Project) -> None:
    project.land("1.jsonl", [event("c", product(1))])
    for step in range(60):
        _end_after(project, step * 0.03)
    assert project.run().exit_code == 0
    assert [row["id"] for row in project.rows()] == [1]


@pytest.mark.slow
def test_a_run_ends_when_nobody_reads_its_lines(project: Project) -> None:
    project.land("1.jsonl", [event("c", product(1))])
    command = [COMMAND, "run", "--config", config(project), "--json", "--heartbeat", "0.2"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        while "heartbeat" not in json.loads(process.stdout.readline()):
            pass
        process.stdout.close()
        assert process.stderr.read() == b""
    assert process.returncode == 0


@pytest.fixture(scope="module")
def filled(tmp_path_factory: pytest.TempPathFactory) -> Project:
    """A mirror of 2,000 rows: more than a pipe holds."""
    project = Project(tmp_path_factory.mktemp("filled"))
    project.land("1.jsonl", [event("c", product(key, "a" * 80)) for key in range(2000)])
    assert project.run().exit_code == 0
    return project


@pytest.mark.each(36)
@pytest.mark.parametrize("is_gone", [True, False], ids=["gone before the first byte", "gone after the first line"])
@pytest.mark.parametrize(
    "words",
    [
        ["--help"],
        ["scan", "--help"],
        ["scan", "shop.products"],
        ["scan", "shop.products", "--json"],
        ["scan", "shop.products", "--count"],
        ["scan", "shop.products", "--format", "csv"],
        ["scan", "shop.products", "--format", "parquet"],
        ["scan", "shop.products", "--format", "arrow"],
        ["files", "shop.products"],
        ["changes", "shop.products"],
        ["status"],
        ["status", "--json"],
        ["explain", "shop.products"],
        ["ingest"],
    ],
    ids=" ".join,
)
def test_a_reader_that_has_enough_is_no_error(filled: Project, words: list[str], *, is_gone: bool) -> None:
    where = [] if "--help" in words else ["--config", config(filled)]
    read, write = os.pipe()
    if is_gone:
        os.close(read)
    with subprocess.Popen([COMMAND, *words, *where], stdout=write, stderr=subprocess.PIPE) as process:
        os.close(write)
        if not is_gone:
            os.read(read, 1)
            os.close(read)
        assert process.stderr is not None
        errors = process.stderr.read()
    assert (process.returncode, errors) == (0, b"")


def test_another_broken_pipe_is_an_error(
    project: Project, run: Callable[..., tuple[int, str, str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*_: object, **__: object) -> None:
        raise BrokenPipeError(32, "Broken pipe")

    monkeypatch.setattr("nevermore.pipelines.config.project.load", broken)
    code, _, errors = run("status", "--config", config(project))
    assert (code, errors) == (1, "error: Broken pipe\n")


@pytest.mark.parametrize("words", [["--help"], ["status"], ["scan"], ["nope"]])
def test_a_command_leaves_no_descriptor_open(run: Callable[..., tuple[int, str, str]], words: list[str]) -> None:
    run(*words)
    before = len(list(Path("/proc/self/fd").iterdir()))
    for _ in range(3):
        run(*words)
    assert len(list(Path("/proc/self/fd").iterdir())) <= before
