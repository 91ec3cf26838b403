"""Random histories of a mirror through every command that writes to it: each snapshot shows the rows of its time.

The engine and the reference agree on each snapshot when it appears, and on older ones later; what compaction and conversion
do changes no row.
"""

import json
import shutil
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, ClassVar
from unittest.mock import patch

import pytest
from hypothesis import HealthCheck, Phase, event, note, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from nevermore import scan_core
from nevermore.checks.damage import verify_table
from nevermore.checks.reference.expected_rows import live_rows
from nevermore.pipelines.changes.row_order import Order
from nevermore.pipelines.config.project import load
from nevermore.pipelines.config.tables import RetentionConfig
from nevermore.pipelines.errors import CommitConflictError, PositionLostError, SourceError
from nevermore.pipelines.iceberg import storage
from nevermore.pipelines.iceberg.catalog import find_table, open_catalog
from nevermore.pipelines.iceberg.commit import commit, upgrade
from nevermore.pipelines.iceberg.conversion import convert
from nevermore.pipelines.ingest.feed_run import run_once
from nevermore.pipelines.maintain.compact import CompactSettings, compact
from nevermore.pipelines.maintain.erase import erase
from nevermore.pipelines.maintain.manifest_order import arrange_manifests
from nevermore.pipelines.maintain.orphans import orphans_of_all
from nevermore.pipelines.maintain.replay import replay, resync
from nevermore.pipelines.maintain.retention import expire_all
from nevermore.pipelines.maintain.rollback import roll_back
from tests.pipelines.project import Event, Project
from tests.pipelines.project import event as change

NAME = "shop.products"
NOT_SENT = "__debezium_unavailable_value"
KEYS = st.integers(0, 7)
NAMES = st.sampled_from(["", "a", "b", "ü" * 20, NOT_SENT])
PARTITIONINGS: list[list[str]] = [[], ["part"], ["bucket(2, id)"], ["bucket(2, id)", "part"]]
LAYOUTS: list[dict[str, Any]] = [
    {},
    {"inserts": "trusted"},
    {"index": {"bitmap": ["part"], "every_rows": 1}},
    {"bloom_filters": True, "sort_by": ["name"]},
]
ORDERS = [Order(), Order(("id",)), Order(("name", "id")), Order(("part", "id"), is_curve=True)]
MAX_CHECKED = 2
"""Older snapshots that are read again after each step."""
State = dict[int, Event]


class Interrupted(BaseException):
    """Ctrl-C, or a signal that ends the process."""


class MirrorHistory(RuleBasedStateMachine):
    """A mirror, the rows it has to have, and those of each of its snapshots."""

    parent: ClassVar[Path | None] = None
    """Where the folders of projects are; None: among the temporary ones."""

    def __init__(self) -> None:
        super().__init__()
        self.folder = Path(tempfile.mkdtemp(prefix="history-", dir=self.parent))
        self.rows: State = {}
        self.options: dict[str, Any] = {}
        self.seen: dict[int, State] = {}
        self.files = 0
        self.columns = ["id", "name", "part"]
        self.is_behind = False
        self.moves: list[tuple[int, int]] = []
        self.turn = 0
        self.project = Project(self.folder)

    def teardown(self) -> None:
        """Remove the project."""
        shutil.rmtree(self.folder)

    @initialize(
        version=st.sampled_from([2, 3]), partitioning=st.sampled_from(PARTITIONINGS), layout=st.sampled_from(LAYOUTS)
    )
    def begin(self, version: int, partitioning: list[str], layout: dict[str, Any]) -> None:
        """Configure the mirror."""
        self.options = {"format_version": version, **layout}
        if partitioning:
            self.options["partition_by"] = partitioning
        self.configure()

    def configure(self) -> None:
        self.project.write({NAME: {"key": ["id"], "types": {"part": "int"}, **self.options}})
        self.config = load(self.folder / "nevermore.yaml")
        self.catalog = open_catalog(self.config)

    @property
    def table(self) -> Any:
        return find_table(self.catalog, NAME)

    @property
    def exists(self) -> bool:
        return bool(self.seen)

    # What sources do.

    @rule(data=st.data(), count=st.integers(1, 6))
    def land(self, data: st.DataObject, count: int) -> None:
        """Inserts, updates, changes of keys, deletes, re-inserts and sometimes a truncate, as one file, which is ingested."""
        self.land_only(data, count)
        self.ingest()

    @rule(data=st.data(), count=st.integers(1, 6), time=st.integers(1, 4))
    def land_and_interrupt(self, data: st.DataObject, count: int, time: int) -> None:
        """The same, interrupted at some point, some time, and repeated later."""
        self.land_only(data, count)
        with interrupted(data.draw(st.sampled_from(POINTS)), time):
            run_once(self.config)
        self.is_behind = True

    @precondition(lambda self: self.exists)
    @rule(data=st.data(), count=st.integers(1, 6), time=st.integers(1, 8), act=st.sampled_from(["convert", "compact"]))
    def land_and_overtake(self, data: st.DataObject, count: int, time: int, act: str) -> None:
        """The same, overtaken at some point by what changes no row."""
        self.land_only(data, count)
        acts: dict[str, Callable[[], object]] = {
            "convert": lambda: convert(self.table),
            "compact": lambda: compact(self.table, CompactSettings(rewrite_all=True, key=("id",))),
        }
        with interrupted(data.draw(st.sampled_from(POINTS)), time, acts[act]):
            self.ingest()

    def land_only(self, data: st.DataObject, count: int) -> None:
        time = f'"ts_ms": {self.files + 2}'  # a file with the bytes of another is taken for the same, and not read
        lines = [self.change(data).replace('"ts_ms": 1', time) for _ in range(count)]
        note(f"{self.files:04}: {lines}")
        self.project.land(f"{self.files:04}.jsonl", lines)
        self.files += 1

    def change(self, data: st.DataObject) -> str:
        """An event, whose effect the model has then."""
        key = data.draw(KEYS)
        row: Event = dict.fromkeys(self.columns, self.files) | {"id": key, "name": data.draw(NAMES)}
        row["part"] = data.draw(st.sampled_from([None, 0, 1]))
        old = self.rows.get(key)
        if old is None and row["name"] == NOT_SENT:
            row["name"] = "c"
        match data.draw(st.sampled_from(["put", "put", "put", "delete", "move", "truncate"])):
            case "delete" if old is not None:
                return change("d", self.rows.pop(key))
            case "delete":
                return change("d", {"id": key})
            case "move" if old is not None and (target := data.draw(KEYS)) not in self.rows:
                self.moves.append((key, target))
                self.rows[target] = row | {"id": target, "name": sent(row["name"], old)}
                return change("u", row | {"id": target}, before=self.rows.pop(key))
            case "truncate" if data.draw(st.integers(0, 3)) == 0:
                self.rows = {}
                return change("t")
            case _:
                self.rows[key] = row | {"name": sent(row["name"], old)}
                before = data.draw(st.sampled_from([old, None]))
                return change("c" if old is None else "u", row, before=before)

    @precondition(lambda self: self.is_behind)
    @rule()
    def ingest(self) -> None:
        """Ingest what there is."""
        report = run_once(self.config)
        assert report.exit_code == 0, report
        assert not any(table.quarantined for table in report.tables), report
        self.is_behind = False
        self.look(self.rows)

    @precondition(lambda self: len(self.columns) < 5)
    @rule()
    def add_column(self) -> None:
        """Later events have one column more."""
        self.columns.append(f"extra_{len(self.columns)}")

    # What operators do.

    @precondition(lambda self: self.exists)
    @rule(data=st.data(), raises_version=st.booleans())
    def convert(self, data: st.DataObject, raises_version: bool) -> None:  # noqa: FBT001 - drawn
        """Replace equality deletes."""
        if raises_version and self.table.format_version == 2:
            upgrade(self.table, 3)
            self.options["format_version"] = 3
            self.configure()
        with self.disturbed(data):
            event("converted" if convert(self.table).snapshot_id else "nothing to convert")

    @precondition(lambda self: self.exists)
    @rule(data=st.data(), order=st.sampled_from(ORDERS), rewrite_all=st.booleans())
    def compact(self, data: st.DataObject, order: Order, rewrite_all: bool) -> None:  # noqa: FBT001 - drawn
        """Rewrite files, all or those of some rows."""
        where = data.draw(st.sampled_from([None, "id < 4", "part = 1"]))
        wanted = CompactSettings(rewrite_all=rewrite_all, order=order, where=where, key=("id",))
        with self.disturbed(data):
            event("compacted" if compact(self.table, wanted).has_changed else "nothing to compact")

    @precondition(lambda self: self.exists)
    @rule(data=st.data())
    def arrange(self, data: st.DataObject) -> None:
        """Sort the manifests by partition."""
        with self.disturbed(data):
            event("arranged" if arrange_manifests(self.table).snapshot_id else "nothing to arrange")

    @precondition(lambda self: self.exists)
    @rule(transform=st.sampled_from(["bucket[3]", "identity", "truncate[2]", "void"]))
    def partition_anew(self, transform: str) -> None:
        """Another tool changes the partitioning, which ingest keeps then."""
        table = self.table
        field_id = (table.metadata.last_partition_id or 999) + 1
        fields = [{"source-id": 1, "field-id": field_id, "transform": transform, "name": f"other_{field_id}"}]
        number = max(table.specs()) + 1
        updates: list[dict[str, Any]] = [
            {"action": "add-spec", "spec": {"spec-id": number, "fields": [] if transform == "void" else fields}},
            {"action": "set-default-spec", "spec-id": -1},
        ]
        commit(table, [], updates)

    @rule(deletes=st.sampled_from(["equality", "converted", "vectors"]))
    def choose_deletes(self, deletes: str) -> None:
        """Change how later commits delete; vectors need format version 3, to which the mirror is upgraded."""
        self.options["deletes"] = deletes
        if deletes == "vectors":
            self.options["format_version"] = 3
        self.configure()

    @precondition(lambda self: self.exists)
    @rule(data=st.data(), keep=st.integers(1, 4))
    def expire(self, data: st.DataObject, keep: int) -> None:
        """Expire snapshots and delete orphan files at once."""
        kept = RetentionConfig(keep_snapshots=keep, keep_for=0.001, orphan_age=0.001)
        with self.disturbed(data):
            for expiry in expire_all(self.catalog, self.config, [NAME], overrides=kept):
                assert expiry.error is None, expiry
        for orphans in orphans_of_all(self.catalog, self.config, [NAME], overrides=kept, delete=True):
            assert orphans.error is None, orphans
        self.look()

    @precondition(lambda self: self.exists)
    @rule(data=st.data(), kind=st.sampled_from(["tag", "branch"]))
    def refer(self, data: st.DataObject, kind: str) -> None:
        """Give a snapshot a name, which keeps it."""
        table = self.table
        chosen = data.draw(st.sampled_from([s.snapshot_id for s in table.metadata.snapshots]))
        name = f"{kind}_{len(table.metadata.refs)}"
        update = {"action": "set-snapshot-ref", "ref-name": name, "type": kind, "snapshot-id": chosen}
        commit(table, [], [update])

    @precondition(lambda self: self.exists and not self.is_behind)
    @rule(data=st.data())
    def roll_back(self, data: st.DataObject) -> None:
        """Return to an older snapshot, which has its rows of then, until the next ingest."""
        target = data.draw(st.sampled_from([s.snapshot_id for s in self.table.metadata.snapshots]))
        try:
            done = roll_back(self.catalog, self.config, NAME, snapshot_id=target)
        except (SourceError, PositionLostError) as error:
            event(f"not rolled back: {str(error)[:40]}")
            return
        event("rolled back")
        assert rows_at(self.table, target) == self.seen[target]
        self.is_behind = bool(done.repeated)
        if not done.repeated:
            assert self.seen[target] == without_nulls(self.rows)

    @precondition(lambda self: self.exists and not self.is_behind)
    @rule()
    def replay(self) -> None:
        """Apply all changes of the log again."""
        try:
            replay(self.catalog, self.config, NAME, None, None)
        except SourceError as error:  # a truncate is repeated by resync alone
            event(f"not replayed: {str(error)[:40]}")
        self.look(self.rows)

    @precondition(lambda self: self.exists and not self.is_behind)
    @rule()
    def resync(self) -> None:
        """Rebuild the mirror from its log."""
        resync(self.catalog, self.config, NAME)
        self.look(self.rows)

    @precondition(lambda self: self.exists and not self.is_behind)
    @rule(data=st.data(), key=KEYS, time=st.integers(1, 4))
    def erase(self, data: st.DataObject, key: int, time: int) -> None:
        """Erase a key from all that tags and branches do not keep; if it is interrupted, again."""
        with interrupted(data.draw(st.sampled_from([None, *POINTS])), time):
            erase(self.catalog, self.config, NAME, f"id = {key}", is_dry=False)
        found = erase(self.catalog, self.config, NAME, f"id = {key}", is_dry=False)
        gone = self.rows.keys() - rows_at(self.table, self.table.metadata.current_snapshot_id).keys()
        assert {key} & self.rows.keys() <= gone <= self.moved(key), found
        for erased in gone:
            del self.rows[erased]
        left = {s.snapshot_id for s in self.table.metadata.snapshots}
        self.seen = {number: rows for number, rows in self.seen.items() if number in left}
        self.look(self.rows)

    def moved(self, key: int) -> set[int]:
        """The key, and those that rows of it had before or after."""
        found = {key}
        while more := {other for pair in self.moves if found & set(pair) for other in pair} - found:
            found |= more
        return found

    # What has to be true.

    @contextmanager
    def disturbed(self, data: st.DataObject) -> Iterator[None]:
        """Nothing happens meanwhile, or an interruption, or another command, which no row may suffer from."""
        act = data.draw(st.sampled_from(["nothing", "nothing", "interrupt", "ingest", "convert", "compact"]))
        point, time = data.draw(st.sampled_from(POINTS)), data.draw(st.integers(1, 2))
        if act == "ingest":
            self.land_only(data, 2)
            self.is_behind = True
        acts: dict[str, Callable[[], object]] = {
            "ingest": lambda: run_once(self.config),
            "convert": lambda: convert(self.table),
            "compact": lambda: compact(self.table, CompactSettings(rewrite_all=True, key=("id",))),
        }
        try:
            with interrupted(point, time, acts.get(act)) if act != "nothing" else suppress(Interrupted):
                yield
        except CommitConflictError as error:
            event(f"given up: {str(error)[:40]}")
        self.look()

    def look(self, wanted: State | None = None) -> None:
        """Check the snapshots that are new, and the rows of the current one if they are known."""
        table = self.table
        if table is None:
            assert not wanted
            return
        left = {s.snapshot_id: s for s in table.metadata.snapshots}
        for snapshot in sorted(left.values(), key=lambda s: s.sequence_number):
            number, parent = snapshot.snapshot_id, snapshot.parent_snapshot_id
            if number in self.seen:
                continue
            self.seen[number] = rows_at(table, number)
            if snapshot.summary.operation.value == "replace" and parent in self.seen:
                assert self.seen[number] == self.seen[parent], f"{number} replaces files of {parent}, and changes rows"
                if parent in left:
                    assert scan_core.open_table(table).scan().as_of_snapshot(number).changes(parent).count() == 0
                    before = lineage(table, parent)
                    assert None in before.values() or lineage(table, number) == before, f"{number} changes row ids"
        if wanted is not None:
            current = table.metadata.current_snapshot_id
            assert (self.seen[current] if current else {}) == without_nulls(wanted)

    @invariant()
    def every_snapshot_keeps_its_rows(self) -> None:
        """Time travel shows what was seen before; some snapshots after each step, in turn."""
        if not self.exists:
            return
        table = self.table
        left = [s.snapshot_id for s in table.metadata.snapshots if s.snapshot_id in self.seen]
        for _ in range(min(MAX_CHECKED, len(left))):
            self.turn += 1
            number = left[self.turn % len(left)]
            assert rows_at(table, number) == self.seen[number], f"snapshot {number} has other rows now"


class ThoroughHistory(MirrorHistory):
    """The same, in which every file is verified after each step."""

    @invariant()
    def no_file_is_damaged(self) -> None:
        """Manifests, sizes, counts, bounds, positions and sequence numbers are right in all snapshots."""
        if self.exists:
            found = verify_table(scan_core.open_table(self.table), all_snapshots=True)
            assert not found.damage, found.damage


POINTS = ["after-files", "after-manifests", "after-commit"]


@contextmanager
def interrupted(point: str | None, time: int, act: Callable[[], object] | None = None) -> Iterator[None]:
    """Interrupt the process when it reaches a point for the nth time, or do something else there."""
    left = [time]

    def reached(place: str) -> None:
        left[0] -= place == point
        if place == point and not left[0]:
            if act is None:
                raise Interrupted
            act()

    with suppress(Interrupted), patch.object(storage, "reached", reached):
        yield


def sent(name: str, old: Event | None) -> str:
    """The name that a row has after an event: that of before if the event does not have it."""
    return old["name"] if name == NOT_SENT and old is not None else name


def without_nulls(rows: State) -> State:
    """Rows without the columns that older rows do not have."""
    return {key: {name: v for name, v in row.items() if v is not None} for key, row in rows.items()}


def rows_at(table: Any, snapshot_id: int) -> State:
    """The rows of a snapshot, on which the engine and the reference agree."""
    expected = live_rows(table.metadata_location.removeprefix("file://"), snapshot_id=snapshot_id).to_pylist()
    found = scan_core.open_table(table).scan().as_of_snapshot(snapshot_id).to_table().to_pylist()
    assert in_order(found) == in_order(expected), f"the engine and the reference differ at {snapshot_id}"
    rows = {row["id"]: row for row in found}
    assert len(rows) == len(found), f"a key is there twice in snapshot {snapshot_id}"
    return without_nulls(rows)


def in_order(rows: list[Event]) -> list[str]:
    return sorted(json.dumps(row) for row in rows)


def lineage(table: Any, snapshot_id: int) -> dict[tuple[int, int], int]:
    """Who changed each row last, by key and row id; None and None in tables without."""
    columns = ("id", "_row_id", "_last_updated_sequence_number")
    found = scan_core.open_table(table).scan().as_of_snapshot(snapshot_id).select(*columns).to_table()
    ids = [row_id for row_id in found["_row_id"].to_pylist() if row_id is not None]
    assert len(ids) == len(set(ids)), f"a row id is there twice in snapshot {snapshot_id}"
    return {(row["id"], row["_row_id"]): row["_last_updated_sequence_number"] for row in found.to_pylist()}


quick = settings(
    max_examples=50,
    stateful_step_count=10,
    deadline=None,
    derandomize=True,
    suppress_health_check=list(HealthCheck),
    database=None,
    phases=[Phase.generate],
)
PARTS = 10
thorough = settings(quick, max_examples=1000 // PARTS, stateful_step_count=25, derandomize=False, print_blob=True)


@pytest.mark.slow
def test_every_snapshot_of_random_histories_shows_its_rows() -> None:
    run_state_machine_as_test(MirrorHistory, settings=quick)


@pytest.mark.slow
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("part", range(PARTS))
def test_every_snapshot_of_many_histories_shows_its_rows(part: int) -> None:
    """A thousand histories in all, a hundred in each part; every part draws its own."""
    run_state_machine_as_test(ThoroughHistory, settings=thorough)
