"""Tables that Iceberg Java wrote keep the rows of every snapshot, branch and tag under our maintenance, interrupted or not.

Every seed is one history, see `histories/`; NEVERMORE_INTEROP_MAINTAINED tells how many there are. `tests/interop/run -k
maintained-17` repeats one.
"""

import json
import os
import random
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest

from nevermore import scan_core
from nevermore.checks.damage import verify_table
from nevermore.checks.reference.expected_rows import RefusedError, live_rows
from nevermore.pipelines.config.project import load
from nevermore.pipelines.config.tables import RetentionConfig
from nevermore.pipelines.errors import SourceError
from nevermore.pipelines.iceberg import storage
from nevermore.pipelines.iceberg.bitmap_indexes import CatalogTarget, build_indexes
from nevermore.pipelines.iceberg.catalog import find_table, open_catalog
from nevermore.pipelines.iceberg.commit import upgrade
from nevermore.pipelines.iceberg.conversion import convert
from nevermore.pipelines.maintain.compact import CompactSettings, Order, compact
from nevermore.pipelines.maintain.manifest_order import arrange_manifests
from nevermore.pipelines.maintain.orphans import orphans_of_all
from nevermore.pipelines.maintain.retention import expire_all
from nevermore.scan_core import ROW_LINEAGE, Scan, ScanError
from tests.interop.test_java_writes import JAVA_PYTHON, Writer
from tests.pipelines.project import Project
from tests.support.rendering import rendered

SEEDS = range(1000, 1000 + int(os.environ.get("NEVERMORE_INTEROP_MAINTAINED", "4")))
pytestmark = pytest.mark.skipif(JAVA_PYTHON is None, reason="make interop sets up the second environment")
NAME = "lake.t"
POINTS = ["after-files", "after-manifests", "after-commit"]
LINEAGE = [field.name for field in ROW_LINEAGE]
Rows = list[str] | str


class Interrupted(BaseException):
    """A process that ends."""


def rows_of(scan: Scan, *more: str) -> Rows:
    """The rows of a scan, or why it is refused."""
    try:
        return rendered(scan.select(*scan.schema.names, *more).to_table())
    except ScanError as error:
        return f"{type(error).__name__}: {error}"


class Lake:
    """A table of Java's in a catalog, and the rows that it had before anything was done to it."""

    def __init__(self, folder: Path, metadata: str, seed: int) -> None:
        self.draw = random.Random(seed)
        self.config = load(Project(folder, {NAME: {"key": ["a"], "source_table": "t"}}).folder / "nevermore.yaml")
        self.catalog = open_catalog(self.config)
        self.catalog.create_namespace("lake")
        self.catalog.register_table(NAME, metadata)
        self.steps: list[str] = []
        opened = scan_core.open_table(self.table)
        self.damage = set(map(str, verify_table(opened, all_snapshots=True).damage))
        self.seen = {number: rows_of(opened.scan().as_of_snapshot(number)) for number in opened.metadata.snapshots}
        self.refs = {name: rows_of(opened.scan().at_ref(name)) for name in opened.metadata.refs}
        self.rows = rows_of(opened.scan())
        self.lineage = rows_of(opened.scan(), *LINEAGE)

    @property
    def table(self) -> Any:
        return find_table(self.catalog, NAME)

    def step(self) -> None:
        """Some maintenance, which may be interrupted."""
        acts = [self.convert, self.convert, self.compact, self.compact, self.compact, self.arrange]
        acts += [self.expire, self.remove_orphans, self.index, self.raise_version]
        act, point = self.draw.choice(acts), self.draw.choice([*POINTS, *[""] * 12])

        def reached(place: str) -> None:
            if place == point:
                raise Interrupted

        self.steps.append(f"{act.__name__} {point}")
        # refused: tables of format version 1, and those without a snapshot
        with suppress(Interrupted, SourceError), patch.object(storage, "reached", reached):
            act()
        self.look()

    def convert(self) -> None:
        convert(self.table)

    def compact(self) -> None:
        draw, names = self.draw, self._columns()
        order = Order((draw.choice(names),)) if draw.random() < 0.4 and names else Order()
        size = draw.choice([2**20, 3000])
        settings = CompactSettings(rewrite_all=draw.random() < 0.7, order=order, target_file_bytes=size)
        compact(self.table, settings)

    def arrange(self) -> None:
        arrange_manifests(self.table)

    def expire(self) -> None:
        kept = RetentionConfig(keep_snapshots=self.draw.randrange(1, 4), keep_for=0.001)
        assert not [one.error for one in expire_all(self.catalog, self.config, [NAME], overrides=kept) if one.error]

    def remove_orphans(self) -> None:
        kept = RetentionConfig(orphan_age=0.001)
        found = orphans_of_all(self.catalog, self.config, [NAME], overrides=kept, delete=True)
        assert not [one.error for one in found if one.error]

    def index(self) -> None:
        types = {field.name: str(field.field_type) for field in self.table.schema().fields}
        names = [name for name in self._columns() if types[name] != "unknown"]
        if names:
            build_indexes(CatalogTarget(self.table), [self.draw.choice(names)])

    def raise_version(self) -> None:
        if self.table.format_version < 3:
            upgrade(self.table, self.table.format_version + 1)

    def _columns(self) -> list[str]:
        return [field.name for field in self.table.schema().fields if field.field_type.is_primitive]

    def look(self) -> None:
        """Compare what can be reached with what it was, and the current rows with the reference."""
        opened = scan_core.open_table(self.table)
        for number in opened.metadata.snapshots:
            now = rows_of(opened.scan().as_of_snapshot(number))
            assert self.seen.setdefault(number, now) == now, f"snapshot {number}"
        assert {name: rows_of(opened.scan().at_ref(name)) for name in opened.metadata.refs if name in self.refs} == {
            name: rows for name, rows in self.refs.items() if name in opened.metadata.refs
        }
        assert rows_of(opened.scan()) == self.rows
        if opened.metadata.current_snapshot_id is not None:
            assert self._reference(opened.metadata_path) == self.rows
        self._compare_lineage(opened)
        found = verify_table(opened, all_snapshots=True).damage
        assert set(map(str, found)) <= self.damage, found

    def _reference(self, metadata: str) -> Rows:
        try:
            return rendered(live_rows(metadata))
        except RefusedError:
            return self.rows  # Java wrote what breaks the specification; the test of its histories looks at that

    def _compare_lineage(self, opened: scan_core.Table) -> None:
        """Rows keep their ids; those from before an upgrade get one each with the next commit."""
        now = rows_of(opened.scan(), *LINEAGE)
        ids = list(_ids(now))
        assert len(set(ids) - {None}) == len(ids) - ids.count(None)
        if None not in _ids(self.lineage):
            assert now == self.lineage
        self.lineage = now


def _ids(rows: Rows) -> Iterator[int | None]:
    return (json.loads(row)[-2] for row in rows) if isinstance(rows, list) else iter(())


@pytest.fixture(scope="module")
def writer(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Writer]:
    mine = [i for i in request.session.items if isinstance(i, pytest.Function) and i.path == Path(__file__)]
    seeds = [str(item.callspec.params["seed"]) for item in mine]
    writer = Writer(tmp_path_factory.mktemp("maintained"), seeds)
    yield writer
    writer.close()


@pytest.mark.parametrize("seed", SEEDS, ids=lambda seed: f"maintained-{seed}")
def test_maintenance_changes_no_row_of_a_table_that_java_wrote(seed: int, writer: Writer, tmp_path: Path) -> None:
    history = writer.history(seed)
    assert "error" not in history, history["error"]
    lake = Lake(tmp_path, history["metadata"], seed)
    try:
        for _ in range(7):
            lake.step()
    except BaseException as error:
        error.add_note("\n".join([*(json.dumps(step) for step in history["log"]), *lake.steps]))
        raise
