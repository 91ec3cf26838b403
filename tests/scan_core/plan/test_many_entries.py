"""Manifests of very many files are read in pieces, of which only what the scan may touch is kept: the plan stays the same."""

from pathlib import Path

import numpy as np
import pytest

from nevermore import scan_core
from nevermore.scan_core import ScanOptions
from nevermore.scan_core.io import cache
from nevermore.scan_core.native.compiled import load
from nevermore.scan_core.plan import planner
from nevermore.scan_core.plan.file_set import ColumnPart, FileSet
from nevermore.scan_core.plan.planner import ScanPlan
from tests.support.iceberg_json import Column, Partition
from tests.support.table_builder import TableBuilder

COLUMNS = (Column(1, "id", "long"), Column(2, "day", "int"), Column(3, "name", "string"))
FILTERS = (
    "id >= 40 and id < 60",
    "day = 1",
    "day = 2 and name = 'n3'",
    "name = 'n1'",
    "id = 21 or id = 70",
    "id < 0",
    "id is null",
    "id >= 0",
)


def build(location: Path, *, partitioned: bool, version: int) -> TableBuilder:
    """Commits of 18 data files each, and between them deletes of every kind, some with other keys, NULLs or two columns."""
    random = np.random.default_rng(7)
    table = TableBuilder(location, COLUMNS, version=version, partitions=[Partition("day", 2)] if partitioned else [])
    for commit in range(2):
        files = []
        for number in range(18):
            day, first = number % 3, commit * 54 + number * 3
            ids = [first, first + 1, None if number == 7 else first + 2]
            rows = {"id": ids, "day": [day] * 3, "name": [f"n{i % 5}" for i in range(first, first + 3)]}
            files.append(table.data(rows, partition={"day": day} if partitioned else None))
        table.commit(*files)
        deletes = []
        for number in range(20):
            day = number % 3
            partition = {"day": day} if partitioned else None
            ids = random.integers(0, 108, 2).tolist() if number % 9 else [None, 3]
            if number % 4 == 3:
                rows = {"id": ids, "name": [f"n{i % 5}" if i is not None else None for i in ids]}
                deletes.append(table.equality_delete(rows, ids=[1, 3], partition=partition))
            else:
                deletes.append(table.equality_delete({"id": ids}, ids=[1], partition=partition))
        deletes.append(table.position_delete([(files[4], 1)], referenced=files[4]))
        if version == 3:
            deletes.append(table.deletion_vector(files[5], [0]))
        table.commit(*deletes)
    return table


def outline(plan: ScanPlan) -> list[tuple[object, ...]]:
    """What is read, and which deletes with it."""
    return [
        (
            task.data_file.path,
            task.data_file.split_offsets,
            dict(task.data_file.lower_bounds),
            sorted((g.key_ids, [(f.path, f.data_sequence_number) for f in g.files]) for g in task.equality_deletes),
            [f.path for f in task.position_deletes],
            task.deletion_vector and (task.deletion_vector.path, task.deletion_vector.content_offset),
        )
        for task in plan.tasks
    ]


@pytest.mark.each(6)
@pytest.mark.parametrize("parallelism", [1, 3])
@pytest.mark.parametrize(("partitioned", "version"), [(True, 2), (False, 2), (True, 3)])
def test_pieces_and_early_pruning_leave_the_plan_as_it_is(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    partitioned: bool,  # noqa: FBT001
    version: int,
    parallelism: int,
) -> None:
    load()
    metadata = build(tmp_path, partitioned=partitioned, version=version).metadata_path
    options = ScanOptions.of(parallelism=parallelism)
    scans = [scan_core.open_table(metadata, options=options).scan().where(text) for text in FILTERS]
    usual = [(scan.plan(), sorted(map(str, scan.to_table().to_pylist()))) for scan in scans]
    monkeypatch.setattr(planner, "PRUNED_EARLY_FROM", 0)
    monkeypatch.setattr(planner, "_PIECE_FILES", 1)
    early = 0
    for scan, (plan, rows) in zip(scans, usual, strict=True):
        cache.clear()
        found = scan.plan()
        assert outline(found) == outline(plan)
        assert found.metrics == plan.metrics
        dropped = [sum(p.count for p in one.trace.delete_files.values()) for one in (found, plan)]
        assert dropped[0] == dropped[1]  # some out of scope are out of bounds, too
        assert sorted(map(str, scan.to_table().to_pylist())) == rows
        early += dropped[0]
    assert early > 50


def test_switched_off_pruning_of_deletes_drops_none_by_its_keys(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    load()
    table = build(tmp_path, partitioned=False, version=2)
    monkeypatch.setattr(planner, "PRUNED_EARLY_FROM", 0)
    scan = scan_core.open_table(table.metadata_path).scan().where("id >= 40 and id < 60")
    plain = scan.with_options(ScanOptions.of(prune_deletes=False)).plan()
    assert "key bounds" in scan.plan().trace.delete_files
    assert "key bounds" not in plain.trace.delete_files
    assert plain.metrics.delete_files_planned > scan.plan().metrics.delete_files_planned


def test_files_that_are_kept_do_not_hold_the_bytes_of_those_that_are_not(tmp_path: Path) -> None:
    load()
    table = build(tmp_path, partitioned=True, version=3)
    opened = scan_core.open_table(table.metadata_path)
    everything = opened.scan().plan().index.tasks.data_files
    (whole,) = {id(p.columns): p for p in everything._parts if isinstance(p, ColumnPart)}.values()
    narrow = whole.where(np.arange(len(whole)) % 7 == 3)
    assert list(FileSet([narrow])) == [whole.file(i) for i in range(3, len(whole), 7)]
    assert narrow.columns.paths.nbytes < whole.columns.paths.nbytes // 4
    assert whole.where(np.ones(len(whole), np.bool_)).columns is whole.columns
