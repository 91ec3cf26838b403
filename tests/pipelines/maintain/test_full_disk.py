"""A disk that is full, or broken, gets no fuller: what a command could not commit, it removes."""

import errno
from itertools import count
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from nevermore.pipelines.cli.main import main
from nevermore.pipelines.config.project import load
from nevermore.pipelines.config.tables import RetentionConfig
from nevermore.pipelines.iceberg.catalog import open_catalog
from nevermore.pipelines.iceberg.storage import Storage
from nevermore.pipelines.maintain.orphans import orphans_of_all
from tests.pipelines.maintain.test_erase import NAME, people, person, three_commits
from tests.pipelines.project import Project

COMMANDS: dict[str, list[str]] = {
    "ingest": ["ingest"],
    "compact": ["compact", NAME, "--all"],
    "convert": ["convert", NAME],
    "index": ["index", NAME, "--columns", "email"],
    "resync": ["resync", NAME],
    "trim-log": ["trim-log", NAME, "--keep-log", "1ms"],
    "erase": ["erase", NAME, "--where", "id = 1", "--delete"],
    "expire": ["expire", NAME, "--keep-snapshots", "1", "--keep-for", "1ms"],
}
SHAPES: dict[str, dict[str, Any]] = {
    "plain": {},
    "converted": {"deletes": "converted"},
    "vectors": {"deletes": "vectors", "format_version": 3},
    "soft deletes": {"soft_delete": True},
    "indexed": {"index": {"bitmap": ["email"], "every_rows": 1}, "partition_by": ["bucket(2, id)"]},
}
POINTS = ("open", "write", "close")


class FullDisk:
    """Takes a number of files; the next ones fail when they are opened, half written, or closed."""

    def __init__(self, point: str, code: int, num_files: int) -> None:
        self.point, self.code, self.left = point, code, num_files
        self.has_failed = False

    def install(self, patch: pytest.MonkeyPatch) -> None:
        open_output = Storage.open_output

        def opened(storage: Storage, path: str) -> Any:
            self.left -= 1
            if self.left >= 0:
                return open_output(storage, path)
            if self.point == "open":
                with open_output(storage, path):  # a disk without room for its content
                    pass
                self.fail()
            return pa.PythonFile(FullFile(self, open_output(storage, path)), mode="w")

        patch.setattr(Storage, "open_output", opened)

    def fail(self) -> None:
        self.has_failed = True
        raise OSError(self.code, "the disk fails")


class FullFile:
    """A file on a disk that is full."""

    def __init__(self, disk: FullDisk, sink: Any) -> None:
        self.disk, self.sink = disk, sink

    closed = False

    def write(self, data: bytes) -> None:
        if self.disk.point == "write":
            self.sink.write(data[: len(data) // 2])
            self.disk.fail()
        self.sink.write(data)

    def tell(self) -> int:
        return int(self.sink.tell())

    def flush(self) -> None:
        self.sink.flush()

    def close(self) -> None:
        self.sink.close()
        if not self.closed:
            self.closed = True
            self.disk.fail()


def unreached(project: Project) -> list[str]:
    """Files below the warehouse that no table reaches."""
    config = load(project.folder / "nevermore.yaml")
    found = orphans_of_all(open_catalog(config), config, overrides=RetentionConfig(orphan_age=0.001))
    return [path for one in found for path in (*one.files, one.error or "") if path]


def run(project: Project, command: list[str]) -> int:
    with pytest.raises(SystemExit) as end:
        main([*command, "--config", str(project.folder / "nevermore.yaml")])
    return int(end.value.code or 0)


CASES = (
    [(command, "plain") for command in COMMANDS]
    + [("ingest", s) for s in SHAPES if s != "plain"]
    + [("compact", "indexed")]
)


@pytest.mark.slow
@pytest.mark.parametrize(("command", "shape"), CASES, ids=[f"{c}-{s}" for c, s in CASES])
def test_a_command_that_fails_leaves_no_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], command: str, shape: str
) -> None:
    project = three_commits(tmp_path, SHAPES[shape])
    changes = [people("u", person(4, "four@example.org"), before=person(4)), people("d", person(5)), "no json"]
    project.land("3.jsonl", changes)
    if command != "ingest":
        run(project, ["ingest"])
    if command == "trim-log":
        assert run(project, COMMANDS["expire"]) == 0
    assert unreached(project) == []
    num_failed = 0
    for number in count():
        disk = FullDisk(POINTS[number % 3], (errno.ENOSPC, errno.EIO)[number % 2], number // 3)
        with monkeypatch.context() as patch:
            disk.install(patch)
            code = run(project, COMMANDS[command])
        if not disk.has_failed:
            break
        num_failed += 1
        assert unreached(project) == [], (number, disk.point, capsys.readouterr())
    assert num_failed > 3, capsys.readouterr()
    assert code in {0, 3}, capsys.readouterr()
    said = "".join(capsys.readouterr())
    assert not [word for word in ("Traceback", "OSError", "[Errno") if word in said], said
    assert run(project, ["ingest"]) in {0, 3}
    assert run(project, ["check"]) == 0, capsys.readouterr()
