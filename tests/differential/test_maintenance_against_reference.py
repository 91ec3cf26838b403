"""Random tables of other writers under all maintenance, interrupted, overtaken and in any order: no snapshot changes its rows.

The rows of every snapshot, branch and tag are those that the DuckDB reference read before anything was done.
"""

import json
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest
from hypothesis import HealthCheck, given, note, settings
from hypothesis import strategies as st

from nevermore import scan_core
from nevermore.checks.damage import verify_table
from nevermore.checks.reference.expected_rows import live_rows
from nevermore.pipelines.config.project import load
from nevermore.pipelines.config.tables import RetentionConfig
from nevermore.pipelines.errors import CommitConflictError, SourceError
from nevermore.pipelines.iceberg import storage
from nevermore.pipelines.iceberg.bitmap_indexes import CatalogTarget, build_indexes
from nevermore.pipelines.iceberg.catalog import find_table, open_catalog
from nevermore.pipelines.iceberg.commit import make_current, upgrade
from nevermore.pipelines.iceberg.conversion import convert
from nevermore.pipelines.maintain.compact import CompactSettings, Order, compact
from nevermore.pipelines.maintain.manifest_order import arrange_manifests
from nevermore.pipelines.maintain.orphans import orphans_of_all
from nevermore.pipelines.maintain.retention import expire_all
from tests.differential.table_histories import History, draw_table
from tests.pipelines.project import Project
from tests.support.fixture_tables import FixtureTable, copied, fixture_tables
from tests.support.rendering import rendered

quick = settings(
    max_examples=15, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck), database=None
)
thorough = settings(quick, max_examples=700, derandomize=False, print_blob=True)
NAME = "lake.t"
POINTS = ["after-files", "after-manifests", "after-commit"]
LINEAGE = ("_row_id", "_last_updated_sequence_number")


class Interrupted(BaseException):
    """A process that ends."""


class Lake:
    """A random table in a catalog, and what it must stay like."""

    def __init__(self, folder: Path, draw: Callable[..., Any], metadata_path: str) -> None:
        self.draw = draw
        project = Project(folder, {NAME: {"key": ["a"], "source_table": "t"}})
        self.config = load(project.folder / "nevermore.yaml")
        self.catalog = open_catalog(self.config)
        self.catalog.create_namespace("lake")
        self.catalog.register_table(NAME, metadata_path)
        opened = scan_core.open_table(self.table)
        self.damage = {str(found) for found in verify_table(opened, all_snapshots=True).damage}
        self.refs = {name: _read(self.path, ref=name) for name in opened.metadata.refs if name != "main"}
        self.seen = {number: _read(self.path, snapshot_id=number) for number in opened.metadata.snapshots}
        self.of_others = frozenset(self.seen)
        self.rows = _read(self.path)
        self.lineage = self._lineage()
        self.orphan_age = 0.001

    @property
    def table(self) -> Any:
        return find_table(self.catalog, NAME)

    @property
    def path(self) -> str:
        return str(self.table.metadata_location).removeprefix("file://")

    def step(self) -> None:
        """Something that may be interrupted, or during which something else happens."""
        act, other = self.draw(st.sampled_from(ACTS)), self.draw(st.sampled_from([None, None, "interrupt", *ACTS]))
        point, time = self.draw(st.sampled_from(POINTS)), self.draw(st.sampled_from([1, 1, 2]))
        note(f"{act.__name__}, at {point} {time}: {getattr(other, '__name__', other)}")
        with self._disturbed(other, point, time), suppress(SourceError, CommitConflictError):
            act(self)
        self.look()

    @contextmanager
    def _disturbed(self, other: Any, point: str, time: int) -> Iterator[None]:
        left = [time]

        def reached(place: str) -> None:
            left[0] -= place == point
            if place != point or left[0] or other is None:
                return
            if other == "interrupt":
                raise Interrupted
            # files of a running commit are no orphans, which only their age shows
            with (
                patch.object(storage, "reached", lambda _: None),
                patch.object(self, "orphan_age", 3600.0),
                suppress(SourceError, CommitConflictError),
            ):
                other(self)

        with suppress(Interrupted), patch.object(storage, "reached", reached):
            yield

    def convert(self) -> None:
        convert(self.table)

    def compact(self) -> None:
        names = [f.name for f in self.table.schema().fields if f.field_type.is_primitive]
        order = Order((self.draw(st.sampled_from(names)),)) if names and self.draw(st.booleans()) else Order()
        size = self.draw(st.sampled_from([2**27, 2_000]))
        wanted = CompactSettings(rewrite_all=self.draw(st.booleans()), order=order, target_file_bytes=size)
        compact(self.table, wanted)

    def arrange(self) -> None:
        arrange_manifests(self.table)

    def index(self) -> None:
        names = [f.name for f in self.table.schema().fields if f.field_type.is_primitive]
        if names:
            build_indexes(CatalogTarget(self.table), [self.draw(st.sampled_from(names))])

    def expire(self) -> None:
        number = self.draw(st.integers(1, 3))
        kept = RetentionConfig(keep_snapshots=number, keep_for=0.001, orphan_age=self.orphan_age)
        for done in (
            *expire_all(self.catalog, self.config, [NAME], overrides=kept),
            *orphans_of_all(self.catalog, self.config, [NAME], overrides=kept, delete=True),
        ):
            assert done.error is None, done.error

    def raise_version(self) -> None:
        if self.table.format_version == 2:
            upgrade(self.table, 3)

    def roll_back(self) -> None:
        """Make an older snapshot, of whatever branch, the current one."""
        if self.seen and (left := sorted(self.seen.keys() & {s.snapshot_id for s in self.table.metadata.snapshots})):
            chosen = self.draw(st.sampled_from(left))
            make_current(self.table, chosen)
            self.rows, self.lineage = _read(self.path), self._lineage()

    def look(self) -> None:
        """Compare whatever can be reached with what it was."""
        opened, path = scan_core.open_table(self.table), self.path
        for number, snapshot in opened.metadata.snapshots.items():
            now = _read(path, snapshot_id=number)
            parent = snapshot.parent_id
            assert rendered(opened.scan().as_of_snapshot(number).to_table()) == now
            assert self.seen.setdefault(number, now) == now, f"snapshot {number} has other rows now"
            is_rewrite = snapshot.operation == "replace" and number not in self.of_others
            if is_rewrite and parent in opened.metadata.snapshots:
                assert opened.scan().as_of_snapshot(number).changes(parent).count() == 0
        for name, rows in self.refs.items():
            assert _read(path, ref=name) == rows, f"branch or tag {name} has other rows now"
        assert _read(path) == self.rows
        assert rendered(opened.scan().to_table()) == self.rows
        found = {str(one) for one in verify_table(opened, all_snapshots=True).damage}
        assert found <= self.damage, found - self.damage
        now = self._lineage()
        assert None in self.lineage.values() or now == self.lineage, "rows have other ids"
        self.lineage = now

    def _lineage(self) -> dict[str, int | None]:
        """The row id of each row that is unlike all others."""
        scan = scan_core.open_table(self.table).scan()
        rows = rendered(scan.select(*scan.schema.names, *LINEAGE).to_table())
        split = [json.loads(row) for row in rows]
        texts = [json.dumps([row[:-2], row[-1]]) for row in split]
        return {text: row[-2] for text, row in zip(texts, split, strict=True) if texts.count(text) == 1}


ACTS = [
    Lake.convert,
    Lake.convert,
    Lake.compact,
    Lake.compact,
    Lake.arrange,
    Lake.index,
    Lake.expire,
    Lake.raise_version,
    Lake.roll_back,
]


def _refer(history: History, draw: Callable[..., Any]) -> None:
    """Some branches, of which some have commits of their own, and tags."""
    for number in range(draw(st.integers(0, 2))):
        if history.table.snapshots:
            chosen = draw(st.sampled_from([one["snapshot-id"] for one in history.table.snapshots]))
            kind = draw(st.sampled_from(["branch", "tag"]))
            history.table.ref(f"ref_{number}", chosen, kind)
            if kind == "branch" and draw(st.booleans()):
                history.table.commit(history._data_file(), branch=f"ref_{number}")


def _read(path: str, **where: Any) -> list[str]:
    return rendered(live_rows(path, **where))


def check_lake(draw: Callable[..., Any], fixture: FixtureTable | None = None) -> None:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        if fixture is None:
            history = draw_table(draw, folder / "t", most_steps=9)
            _refer(history, draw)
            path = str(history.table.metadata_path)
        else:
            copied(fixture.folder / fixture.name, folder / "t", fixture.facts["location"])
            path = str(folder / "t" / fixture.facts["metadata"])
        lake = Lake(folder, draw, path)
        for _ in range(draw(st.integers(2, 6))):
            lake.step()


@pytest.mark.slow
@quick
@given(st.data())
def test_maintained_histories_equal_the_reference(data: st.DataObject) -> None:
    check_lake(data.draw)


@pytest.mark.slow
@pytest.mark.timeout(3600)
@thorough
@given(st.data())
def test_many_maintained_histories_equal_the_reference(data: st.DataObject) -> None:
    check_lake(data.draw)


def is_whole(fixture: FixtureTable) -> bool:
    """Whether a copy has all the snapshots that the metadata names, and no position deletes that are not Parquet."""
    named = json.loads(Path(fixture.metadata).read_text())["snapshots"]
    is_local = "://" not in fixture.facts["location"] and fixture.name != "pos_and_eq"
    return is_local and len(named) == len(fixture.facts["rows_by_snapshot"])


@pytest.mark.slow
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("name", [name for name, table in fixture_tables().items() if is_whole(table)])
@settings(thorough, max_examples=10)
@given(data=st.data())
def test_maintained_tables_of_other_writers_equal_the_reference(data: st.DataObject, name: str) -> None:
    check_lake(data.draw, fixture_tables()[name])
