"""Commands killed at random moments, in processes of their own: no row changes, nothing reachable is gone, and a re-run finishes."""

import multiprocessing
import os
import random
import shutil
import signal
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from nevermore import scan_core
from nevermore.checks.damage import verify_table
from nevermore.pipelines.cli.main import main
from tests.pipelines.maintain.test_histories import rows_at
from tests.pipelines.project import Project, event

FORKS = multiprocessing.get_context("forkserver")
FORKS.set_forkserver_preload(["tests.pipelines.warm_ingest", "tests.pipelines.maintain.test_kills"])
NAME = "shop.people"
State = dict[int, dict[str, Any]]
ERASED = 1
CHANGES = frozenset({"os.rename", "os.remove", "os.mkdir", "os.rmdir", "os.link", "os.truncate", "sqlite3.connect"})
"""What Python tells audit hooks before it changes files, beside the opening of files for writing."""
TABLES: dict[str, dict[str, Any]] = {
    "equality": {},
    "converted": {"deletes": "converted", "partition_by": ["bucket(2, id)"]},
    "vectors": {"deletes": "vectors", "format_version": 3},
    "indexed": {"index": {"bitmap": ["name"], "every_rows": 1}},
}
KILLS = 6
"""Of each command for each table, in the long test."""
MAX_CPU_SECONDS = 0.4
"""Most commands here take 0.1 to 0.3."""
NOW = ["--keep-for", "1ms", "--keep-snapshots", "1"]
COMMANDS: dict[str, list[str]] = {
    "ingest": ["ingest"],
    "convert": ["convert", NAME],
    "upgrade": ["convert", NAME, "--upgrade"],
    "compact": ["compact", NAME, "--all"],
    "expire": ["expire", *NOW],
    "orphans": ["orphans", "--older-than", "1ms", "--delete"],
    "trim-log": ["trim-log", NAME, "--keep-log", "1ms"],
    "erase": ["erase", NAME, "--where", f"id = {ERASED}", "--delete"],
    "rollback": ["rollback", NAME, "--to"],
    "resync": ["resync", NAME],
    "replay": ["replay", NAME, "--all"],
}


def run(words: list[str], folder: str, cpu_seconds: float, change: int) -> None:
    """A command that the system ends after some CPU time, or that is killed before it changes files for the nth time.

    Without a number, the file `changes` says how often it did.
    """
    seen = 0

    def audit(name: str, arguments: Sequence[Any]) -> None:
        nonlocal seen
        writes = name == "open" and isinstance(arguments[2], int) and arguments[2] & (os.O_WRONLY | os.O_RDWR)
        if not writes and name not in CHANGES:
            return
        seen += 1
        if seen == change:
            os.kill(os.getpid(), signal.SIGKILL)

    os.chdir(folder)
    with Path(os.devnull).open("w") as nothing, Path("changes").open("w") as told:
        sys.stdout = sys.stderr = nothing
        signal.signal(signal.SIGPROF, signal.SIG_DFL)
        sys.addaudithook(audit)
        signal.setitimer(signal.ITIMER_PROF, cpu_seconds)
        try:
            main(words)
        finally:
            told.write(str(seen))


class Shop:
    """A project with five ingested files and one that waits, which returns to this state for each kill."""

    def __init__(self, folder: Path, options: dict[str, Any]) -> None:
        self.saved = folder / "saved"
        folder = folder / "project"
        folder.mkdir()
        self.options = {"key": ["id"], "maintenance": {"compact": "off"}, **options}
        self.project = Project(folder, {NAME: self.options})
        self.states: list[State] = [{}]
        self.lines: list[list[str]] = []
        chance = random.Random(len(options))
        for number in range(6):
            self.lines.append(self._changes(chance, number))
        for number in range(5):
            self.land(number)
            assert self.project.run().exit_code == 0
            if number == 2:
                self.target = self.project.table(NAME).metadata.current_snapshot_id
        (folder / "warehouse" / "shop" / "people" / "data" / "of-a-killed-one.parquet").write_bytes(b"PAR1")
        self.land(5)
        shutil.copytree(folder, self.saved)

    def _changes(self, chance: random.Random, number: int) -> list[str]:
        rows = dict(self.states[-1])
        lines = []
        for line in range(12):
            key = chance.choice([k for k in range(9) if number < 5 or k != ERASED])
            row = {"id": key, "name": f"person-{key}-{number}-{line}"}
            if key in rows and line % 3 == 0 and key != ERASED:
                lines.append(event("d", rows.pop(key), table="people"))
            else:
                lines.append(event("u" if key in rows else "c", row, before=rows.get(key), table="people"))
                rows[key] = row
        self.states.append(rows)
        return lines

    def land(self, number: int) -> None:
        self.project.land(f"{number}.jsonl", self.lines[number])

    def restore(self) -> None:
        shutil.rmtree(self.project.folder)
        shutil.copytree(self.saved, self.project.folder)

    def call(self, words: list[str], cpu_seconds: float = 0, change: int = 0) -> int:
        """The exit code of a command, or the signal that ended it."""
        process = FORKS.Process(target=run, args=(words, str(self.project.folder), cpu_seconds, change))
        process.start()
        process.join(600)
        assert process.exitcode is not None
        return process.exitcode

    @property
    def num_changes(self) -> int:
        """How often the last command that ended by itself changed files."""
        return int((self.project.folder / "changes").read_text())

    def rows(self) -> State:
        """The rows of the current snapshot, and every other one is readable."""
        table = self.project.table(NAME)
        found = {snapshot.snapshot_id: rows_at(table, snapshot.snapshot_id) for snapshot in table.metadata.snapshots}
        return found[table.metadata.current_snapshot_id]

    def is_whole(self) -> None:
        """No file is damaged or missing in any snapshot of the mirror and its log."""
        for name in (NAME, "change_log.shop_people"):
            found = verify_table(scan_core.open_table(self.project.table(name)), all_snapshots=True)
            assert not found.damage, found.damage

    def words(self, command: str) -> list[str]:
        return [*COMMANDS[command], *([str(self.target)] if command == "rollback" else [])]

    def after(self, command: str) -> State:
        """The rows that a command leads to."""
        match command:
            case "ingest":
                return self.states[6]
            case "rollback":
                return self.states[3]
            case "erase":
                return {key: row for key, row in self.states[5].items() if key != ERASED}
            case _:
                return self.states[5]

    def kill(self, command: str, chance: random.Random, num_changes: int) -> None:
        """Kill a command somewhere; run it again, remove what is left, and go on with the next ingest."""
        self.restore()
        words, before, after = self.words(command), self.states[5], self.after(command)
        is_timed = chance.random() < 0.4
        seconds = chance.uniform(0.01, MAX_CPU_SECONDS) if is_timed else 0
        change = 0 if is_timed else chance.randrange(1, num_changes + 1)
        ended = self.call(words, seconds, change)
        assert ended in {0, -signal.SIGKILL, -signal.SIGPROF}
        assert self.rows() in (before, after)
        again = self.call(words)
        if (
            again and command == "erase"
        ):  # files of the killed one have the rows, and no other run may delete them at once
            assert self.call(COMMANDS["orphans"]) == 0
            again = self.call(words)
        assert again == 0
        assert self.rows() == after
        assert self.call(COMMANDS["orphans"]) == 0
        if command == "upgrade":
            self.project.write({NAME: self.options | {"format_version": 3}})
        assert self.call(["ingest"]) == 0
        self.is_whole()
        is_gone = {ERASED} if command == "erase" else set()
        assert self.rows() == {key: row for key, row in self.states[6].items() if key not in is_gone}
        if command == "orphans":
            assert not list(self.project.folder.rglob("of-a-killed-one*"))


@pytest.fixture(scope="module")
def shops(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Shop]:
    made: dict[str, Shop] = {}

    def shop(kind: str) -> Shop:
        if kind not in made:
            made[kind] = Shop(tmp_path_factory.mktemp("shop"), TABLES[kind])
        return made[kind]

    return shop


def undisturbed(shop: Shop, command: str) -> int:
    """How often a command changes files if nobody kills it."""
    shop.restore()
    assert shop.call(shop.words(command)) == 0
    assert shop.rows() == shop.after(command)
    return shop.num_changes


@pytest.mark.each(2)
@pytest.mark.timeout(900)
@pytest.mark.parametrize("command", ["compact", "erase"])
def test_killed_at_a_random_moment_a_command_finishes_when_it_is_run_again(
    command: str, shops: Callable[[str], Shop]
) -> None:
    shops("converted").kill(command, random.Random(command), 12)


@pytest.mark.slow
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("kind", TABLES)
@pytest.mark.parametrize("command", COMMANDS)
def test_killed_at_many_moments_a_command_finishes_when_it_is_run_again(
    command: str, kind: str, shops: Callable[[str], Shop]
) -> None:
    shop, chance = shops(kind), random.Random(f"{command} {kind}")
    most = undisturbed(shop, command)
    for _ in range(KILLS):
        shop.kill(command, chance, most)
