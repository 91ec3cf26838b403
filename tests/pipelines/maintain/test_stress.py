"""Ingest, conversion, compaction, expiry and readers at the same time, killed at random: no commit shows a wrong row."""

import multiprocessing
import random
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from nevermore import scan_core
from nevermore.checks.reference.expected_rows import live_rows
from nevermore.pipelines.config.project import load
from nevermore.pipelines.config.tables import RetentionConfig
from nevermore.pipelines.errors import PipelineError
from nevermore.pipelines.iceberg.catalog import find_table, open_catalog
from nevermore.pipelines.iceberg.conversion import convert
from nevermore.pipelines.ingest.feed_run import run_once
from nevermore.pipelines.maintain.compact import CompactSettings, compact
from nevermore.pipelines.maintain.orphans import orphans_of_all
from nevermore.pipelines.maintain.retention import expire_all
from nevermore.scan_core import MissingFileError, SnapshotNotFoundError
from tests.pipelines.project import Event, Project, event

FORKS = multiprocessing.get_context("forkserver")
FORKS.set_forkserver_preload(
    ["tests.pipelines.warm_ingest", "nevermore.pipelines.maintain.compact", "nevermore.pipelines.maintain.orphans"]
)
NAME = "shop.products"
KEPT_SECONDS = 20.0
"""How long snapshots are kept: whoever checks one must be quicker."""
State = dict[int, Event]


def history(files: int, seed: int) -> tuple[list[list[str]], list[State]]:
    """Events by landed file, and the rows after each file; before the first there are none."""
    chance = random.Random(seed)
    rows: State = {}
    states: list[State] = [{}]
    landed = []
    for number in range(files):
        lines = []
        for _ in range(chance.randrange(1, 30)):
            key = chance.randrange(60)
            if key in rows and chance.random() < 0.4:
                lines.append(event("d", rows.pop(key)))
            else:
                row = {"id": key, "name": f"{number}-{len(lines)}", "part": chance.randrange(3)}
                lines.append(event("u" if key in rows else "c", row, before=rows.get(key)))
                rows[key] = row
        landed.append(lines)
        states.append(dict(rows))
    return landed, states


def _repeat(config: str, step: Callable[[Any, Any], object]) -> None:
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    chance = random.Random(time.time_ns())
    while True:
        settings = load(Path(config))
        with suppress(PipelineError, MissingFileError):  # a conflict that did not end: the next round goes on
            step(settings, open_catalog(settings))
        time.sleep(chance.random() * 0.3)


def _ingest(config: str) -> None:
    def step(settings: Any, _catalog: Any) -> None:
        run_once(settings)

    _repeat(config, step)


def _convert(config: str) -> None:
    def step(_settings: Any, catalog: Any) -> None:
        if (table := find_table(catalog, NAME)) is not None:
            convert(table)

    _repeat(config, step)


def _compact(config: str) -> None:
    def step(_settings: Any, catalog: Any) -> None:
        if (table := find_table(catalog, NAME)) is not None:
            compact(table, CompactSettings(rewrite_all=random.random() < 0.3, key=("id",)))
        time.sleep(0.5)

    _repeat(config, step)


def _expire(config: str) -> None:
    def step(settings: Any, catalog: Any) -> None:
        kept = RetentionConfig(keep_snapshots=5, keep_for=KEPT_SECONDS, orphan_age=3600.0)
        list(expire_all(catalog, settings, [NAME], overrides=kept))
        list(orphans_of_all(catalog, settings, [NAME], overrides=kept, delete=True))
        time.sleep(1)

    _repeat(config, step)


def _read(config: str) -> None:
    def step(_settings: Any, catalog: Any) -> None:
        if (table := find_table(catalog, NAME)) is not None and table.current_snapshot() is not None:
            scan = scan_core.open_table(table).scan().as_of_snapshot(table.current_snapshot().snapshot_id)
            first = scan.to_table().sort_by("id").to_pylist()
            time.sleep(2)
            if scan.to_table().sort_by("id").to_pylist() != first:
                (Path(config).parent / "wrong").write_text(str(table.current_snapshot()))

    _repeat(config, step)


WORKERS = (_ingest, _convert, _compact, _expire, _read)


def _rows_at(table: Any, snapshot_id: int) -> State:
    found = live_rows(table.metadata_location.removeprefix("file://"), snapshot_id=snapshot_id).to_pylist()
    rows = {row["id"]: row for row in found}
    assert len(rows) == len(found), f"a key is there twice in snapshot {snapshot_id}"
    return rows


class Watch:
    """Compares every snapshot that it sees with the rows after some file, never an earlier one than before."""

    def __init__(self, project: Project, states: list[State]) -> None:
        self.project = project
        self.states = states
        self.seen: set[int] = set()
        self.place = 0
        self.operations: dict[str, int] = {}

    def look(self) -> int:
        """Check the snapshots that are new; return how many files the newest one has."""
        table = self.project.table(NAME)
        if table is None:
            return 0
        for snapshot in sorted(table.metadata.snapshots, key=lambda s: s.sequence_number):
            if snapshot.snapshot_id in self.seen:
                continue
            self.seen.add(snapshot.snapshot_id)
            try:
                rows = _rows_at(table, snapshot.snapshot_id)
                scan = scan_core.open_table(table).scan().as_of_snapshot(snapshot.snapshot_id)
                ours = {row["id"]: row for row in scan.to_table().to_pylist()}
            except (MissingFileError, SnapshotNotFoundError, FileNotFoundError):
                assert time.time() - snapshot.timestamp_ms / 1000 > KEPT_SECONDS / 2, "expired too early"
                continue
            assert ours == rows, f"snapshot {snapshot.snapshot_id}: the engine and the reference differ"
            places = [i for i in range(self.place, len(self.states)) if self.states[i] == rows]
            operation = snapshot.summary.operation.value
            assert places, f"snapshot {snapshot.snapshot_id} ({operation}) has rows of no state from {self.place} on"
            self.place = places[0]
            self.operations[operation] = self.operations.get(operation, 0) + 1
        return self.place


def run(folder: Path, seconds: float, seed: int, options: dict[str, Any]) -> Watch:
    """Land files for some time while everything runs and dies; then wait until all is applied."""
    landed, states = history(int(seconds * 2), seed)
    project = Project(folder, {NAME: {"key": ["id"], **options}})
    config = str(folder / "nevermore.yaml")
    chance = random.Random(seed)
    watch = Watch(project, states)
    started = [FORKS.Process(target=worker, args=(config,), daemon=True) for worker in WORKERS]
    for process in started:
        process.start()
    try:
        for number, lines in enumerate(landed):
            (project.landing / "new").write_text("".join(f"{line}\n" for line in lines))
            (project.landing / "new").rename(project.landing / f"{number:06}.jsonl")
            time.sleep(0.5)
            if chance.random() < 0.15:
                victim = chance.randrange(len(WORKERS))
                started[victim].kill()
                started[victim].join()
                started[victim] = FORKS.Process(target=WORKERS[victim], args=(config,), daemon=True)
                started[victim].start()
            watch.look()
            assert not (folder / "wrong").exists(), "a reader of one snapshot saw other rows later"
        for _ in _until(time.monotonic() + 60):
            if watch.look() == len(states) - 1 and "replace" in watch.operations:
                break
        assert all(process.is_alive() for process in started), "a process ended by an error"
    finally:
        for process in started:
            process.kill()
            process.join()
    assert run_once(load(folder / "nevermore.yaml")).exit_code == 0
    watch.look()
    assert {row["id"]: row for row in project.rows()} == states[-1]
    return watch


def _until(end: float) -> Iterator[None]:
    while time.monotonic() < end:
        yield
        time.sleep(0.2)


MODES: dict[str, dict[str, Any]] = {
    "equality": {},
    "partitioned": {"partition_by": ["part"]},
    "vectors": {"format_version": 3, "deletes": "vectors"},
    "converted": {"format_version": 3, "deletes": "converted", "partition_by": ["bucket(3, id)"]},
}


@pytest.mark.timeout(200)
def test_everything_at_once_and_killed(tmp_path: Path) -> None:
    watch = run(tmp_path, 5, seed=1, options=MODES["partitioned"])
    assert watch.operations["replace"] > 0


@pytest.mark.slow
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("mode", MODES)
def test_everything_at_once_and_killed_for_ten_minutes(mode: str, tmp_path: Path) -> None:
    watch = run(tmp_path, 600 / len(MODES), seed=len(mode), options=MODES[mode])
    assert watch.operations["replace"] > 0
