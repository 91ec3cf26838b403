"""Tables that PyIceberg writes, evolves and names, under maintenance that is interrupted or overtaken: no row is lost or returns."""

import random
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pyarrow as pa
import pytest
from pyiceberg.partitioning import PartitionField, PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.table.sorting import SortField, SortOrder
from pyiceberg.table.statistics import StatisticsFile
from pyiceberg.transforms import IdentityTransform
from pyiceberg.types import IntegerType, NestedField, StringType

from nevermore import scan_core
from nevermore.checks.damage import verify_table
from nevermore.checks.reference.expected_rows import live_rows
from nevermore.pipelines.config.project import load
from nevermore.pipelines.config.tables import RetentionConfig
from nevermore.pipelines.errors import CommitConflictError, SourceError
from nevermore.pipelines.iceberg import storage
from nevermore.pipelines.iceberg.catalog import find_table, open_catalog
from nevermore.pipelines.iceberg.commit import RowDelta, commit, upgrade
from nevermore.pipelines.iceberg.conversion import convert
from nevermore.pipelines.iceberg.table_writer import write_deletes
from nevermore.pipelines.maintain.compact import CompactSettings, Order, compact
from nevermore.pipelines.maintain.manifest_order import arrange_manifests
from nevermore.pipelines.maintain.orphans import orphans_of_all
from nevermore.pipelines.maintain.retention import expire_all
from tests.pipelines.project import Project

NAME = "lake.t"
COLUMNS = {"id": IntegerType(), "name": StringType(), "part": IntegerType()}
POINTS = ["after-files", "after-manifests", "after-commit"]
PUFFIN = b'PFA1PFA1{"blobs":[]}' + (12).to_bytes(4, "little") + bytes(4) + b"PFA1"
PROPERTIES = [
    {},
    {"write.metadata.compression-codec": "gzip"},
    {"write.object-storage.enabled": "true"},
    {"write.metadata.delete-after-commit.enabled": "true", "write.metadata.previous-versions-max": "2"},
]


class Interrupted(BaseException):
    """A process that ends."""


class Lake:
    """A table, the rows that it must have, and those of each of its snapshots."""

    def __init__(self, folder: Path, seed: int) -> None:
        self.draw = random.Random(seed)
        self.config = load(Project(folder, {NAME: {"key": ["id"], "source_table": "t"}}).folder / "nevermore.yaml")
        self.catalog = open_catalog(self.config)
        self.catalog.create_namespace("lake")
        fields = [NestedField(i, n, t, required=False) for i, (n, t) in enumerate(COLUMNS.items(), start=1)]
        by = [PartitionField(3, 1000, IdentityTransform(), "by_part")] if self.draw.random() < 0.5 else []
        order = SortOrder(SortField(1, IdentityTransform())) if self.draw.random() < 0.5 else SortOrder()
        properties = {"format-version": self.draw.choice("122"), **self.draw.choice(PROPERTIES)}
        spec = PartitionSpec(*by, spec_id=0)
        self.catalog.create_table(NAME, Schema(*fields), partition_spec=spec, sort_order=order, properties=properties)
        self.rows: list[dict[str, Any]] = []
        self.seen: dict[int, Counter[str]] = {}
        self.steps: list[str] = []

    @property
    def table(self) -> Any:
        return find_table(self.catalog, NAME)

    @property
    def theirs(self) -> Any:
        """The table as PyIceberg writes it, which it can unless there are vectors or equality deletes."""
        table = self.catalog.load_table(NAME)
        has_deletes = any(int(m.content) == 1 for s in [table.current_snapshot()] if s for m in s.manifests(table.io))
        return None if table.format_version == 3 or has_deletes else table

    def some_rows(self) -> list[dict[str, Any]]:
        """New rows of few keys."""
        draw = self.draw
        return [
            {"id": draw.randrange(9), "name": draw.choice([None, "", "a", "é" * 9]), "part": draw.choice([None, 0, 1])}
            for _ in range(draw.randrange(1, 7))
        ]

    # What others do.

    def append(self) -> None:
        """Add rows."""
        if (table := self.catalog.load_table(NAME)).format_version == 3:
            return
        rows = self.some_rows()
        names = table.schema().column_names
        columns = {new: [row[old] for row in rows] for old, new in zip(COLUMNS, names, strict=False)}
        types = {"id": pa.int32(), "name": pa.string(), "part": pa.int32()}
        table.append(
            pa.table({new: pa.array(columns[new], types[old]) for old, new in zip(types, names, strict=False)})
        )
        self.rows += rows

    def delete(self) -> None:
        """Rewrite files without a key."""
        key = self.draw.randrange(9)
        if self.theirs is not None and any(row["id"] == key for row in self.rows):
            self.theirs.delete(f"id = {key}")
            self.rows = [row for row in self.rows if row["id"] != key]

    def delete_by_equality(self) -> None:
        """Delete keys without a look, as Flink does, for all partitions."""
        if self.table.format_version == 1 or not self.rows:
            return
        column = self.draw.choice(["id", "id", "part"])
        place = list(COLUMNS).index(column) + 1
        gone = {self.draw.choice(self.rows)[column] for _ in range(2)}
        delta = RowDelta(self.table)
        name = next(field.name for field in delta.schema.fields if field.field_id == place)
        keys = pa.table({name: pa.array(list(gone), pa.int32())})
        delta.commit(write_deletes(keys, delta.target, delta.unpartitioned_spec(), (place,)), {})
        self.rows = [row for row in self.rows if row[column] not in gone]

    def evolve(self) -> None:
        """Another partitioning, name or column."""
        table, number = self.catalog.load_table(NAME), len(self.steps)
        if table.format_version == 3:
            return
        match self.draw.randrange(3):
            case 0:
                with table.update_spec() as change:
                    if table.spec().fields:
                        change.remove_field(table.spec().fields[0].name)
                    else:
                        change.add_field(self.draw.choice(["id", "part"]), "identity", f"by_{number}")
            case 1:
                with table.update_schema() as change:
                    change.rename_column(table.schema().find_column_name(2), f"name {number}")
            case _:
                with table.update_schema() as change:
                    change.add_column(f"more_{number}", StringType())

    def refer(self) -> None:
        """A tag, or a branch."""
        table = self.table
        if snapshots := [s.snapshot_id for s in table.metadata.snapshots]:
            named = {"ref-name": f"ref_{len(self.steps)}", "type": self.draw.choice(["tag", "branch"])}
            update = {"action": "set-snapshot-ref", **named, "snapshot-id": self.draw.choice(snapshots)}
            commit(table, [], [update])

    def describe(self) -> None:
        """Statistics of a table and of its partitions."""
        table = self.catalog.load_table(NAME)
        if table.format_version == 3 or (snapshot := table.metadata.current_snapshot_id) is None:
            return
        path = Path(table.location().removeprefix("file://")) / "metadata" / f"{len(self.steps)}.stats"
        path.write_bytes(PUFFIN)
        sizes = {"file-size-in-bytes": len(PUFFIN), "file-footer-size-in-bytes": len(PUFFIN) - 4}
        entry = {"snapshot-id": snapshot, "statistics-path": str(path), **sizes, "blob-metadata": []}
        with table.update_statistics() as change:
            change.set_statistics(StatisticsFile.model_validate(entry))

    def raise_version(self) -> None:
        """Upgrade in place, to 3 rarely, as PyIceberg does not write it."""
        version = self.table.format_version
        if version == 1 or (version == 2 and self.draw.random() < 0.2):
            upgrade(self.table, version + 1)

    # What is done for speed and space.

    def compact(self) -> None:
        order = self.draw.choice([Order(), Order(("id",)), Order(("id", "part"), is_curve=True)])
        compact(self.table, CompactSettings(rewrite_all=self.draw.random() < 0.6, order=order))

    def convert(self) -> None:
        convert(self.table)

    def arrange(self) -> None:
        arrange_manifests(self.table)

    def expire(self) -> None:
        kept = RetentionConfig(keep_snapshots=self.draw.randrange(1, 4), keep_for=0.001)
        assert not [one.error for one in expire_all(self.catalog, self.config, [NAME], overrides=kept) if one.error]

    def remove_orphans(self) -> None:
        kept = RetentionConfig(orphan_age=0.001)
        found = orphans_of_all(self.catalog, self.config, [NAME], overrides=kept, delete=True)
        assert not [one.error for one in found if one.error]

    # What must be true.

    def step(self) -> None:
        """Something that others do, or maintenance that may be interrupted or overtaken."""
        others = [self.append, self.append, self.delete, self.delete_by_equality, self.delete_by_equality, self.evolve]
        others += [self.refer, self.describe, self.raise_version]
        if self.draw.random() < 0.6:
            self.act(self.draw.choice(others))
        else:
            upkeep = [self.compact, self.compact, self.convert, self.convert]
            upkeep += [self.arrange, self.expire, self.remove_orphans]
            with self.disturbed(self.draw.choice(["nothing", "interrupt", "others"]), others):
                self.act(self.draw.choice(upkeep))
        self.look()

    def act(self, action: Callable[[], None]) -> None:
        self.steps.append(action.__name__)
        try:
            action()
        except (CommitConflictError, SourceError) as error:
            self.steps.append(f"refused: {error}")

    @contextmanager
    def disturbed(self, act: str, others: list[Callable[[], None]]) -> Iterator[None]:
        point, left = self.draw.choice(POINTS), [self.draw.choice([1, 1, 2])]

        def reached(place: str) -> None:
            left[0] -= place == point
            if place != point or left[0] or act == "nothing":
                return
            if act == "interrupt":
                self.steps.append("interrupted")
                raise Interrupted
            with patch.object(storage, "reached", lambda _: None):
                self.act(self.draw.choice(others))

        with suppress(Interrupted), patch.object(storage, "reached", reached):
            yield

    def look(self) -> None:
        """The rows now and those of all snapshots, by the engine and the reference; and every file."""
        table = self.table
        opened, location = scan_core.open_table(table), table.metadata_location.removeprefix("file://")
        if table.metadata.current_snapshot_id is not None:
            assert values(opened.scan().to_table()) == Counter(str(list(row.values())) for row in self.rows)
        for snapshot in table.metadata.snapshots:
            number = snapshot.snapshot_id
            now = values(opened.scan().as_of_snapshot(number).to_table())
            assert values(live_rows(location, snapshot_id=number)) == now
            assert self.seen.setdefault(number, now) == now, f"snapshot {number} has other rows now"
            if snapshot.summary.operation.value == "replace":
                assert self.seen.get(snapshot.parent_snapshot_id, now) == now, (
                    f"{number} replaces files and changes rows"
                )
        assert not (found := verify_table(opened, all_snapshots=True)).damage, found.damage
        for entry in table.metadata.statistics:
            assert Path(entry.statistics_path).exists()


def values(rows: pa.Table) -> Counter[str]:
    """Rows by the columns that the table had at first, whatever these are called now."""
    return Counter(str(list(row.values())[: len(COLUMNS)]) for row in rows.to_pylist())


@pytest.mark.parametrize("seed", [3, *(pytest.param(seed, marks=pytest.mark.slow) for seed in range(10, 50))])
def test_whatever_others_do_maintenance_loses_no_row(seed: int, tmp_path: Path) -> None:
    lake = Lake(tmp_path, seed)
    try:
        for _ in range(10 if seed < 10 else 25):
            lake.step()
    except Exception as error:
        error.add_note("\n".join(lake.steps))
        raise
