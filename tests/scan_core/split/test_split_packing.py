"""What travels to a task: its own files and what deletes them, nothing of the other tasks."""

import copy
import pickle
import tracemalloc
from pathlib import Path

import pytest

from nevermore import scan_core
from nevermore.scan_core.model.options import ScanMetrics
from nevermore.scan_core.read.split_reader import read_split
from nevermore.scan_core.split.tasks import pack_splits, unpack_split
from tests.support.iceberg_json import Column, Partition
from tests.support.table_builder import TableBuilder

_COLUMNS = [Column(1, "id", "long"), Column(2, "name", "string"), Column(3, "part", "int")]


def _table(folder: Path, num_data: int, num_deletes: int, *, partitions: int = 0) -> scan_core.Table:
    """Manifests alone name so many files; one of each kind is written."""
    by = [Partition("part", 3, "identity")] if partitions else []
    builder = TableBuilder(folder, _COLUMNS, partitions=by)
    rows = {"id": [1, 2], "name": ["a", "b"], "part": [0, 0]}
    data = builder.data(rows, partition={"part": 0} if partitions else None)
    delete = builder.equality_delete({"id": [1]}, ids=[1], partition={"part": 0} if partitions else None)
    for file, number in ((data, num_data), (delete, num_deletes)):
        clones = []
        for i in range(number):
            clone = copy.copy(file)
            clone.record = copy.copy(file.record) | {
                "file_path": f"{file.path}-{i:05}",
                "file_size_in_bytes": 32 * 2**20,
            }
            if partitions:
                clone.record["partition"] = {"part": i % partitions}
            clones.append(clone)
        builder.commit(*clones)
    return scan_core.open_table(builder.metadata_path)


def test_an_unpacked_split_reads_as_the_one_that_was_packed(tmp_path: Path) -> None:
    builder = TableBuilder(tmp_path / "t", _COLUMNS)
    files = [builder.data({"id": [i, i + 1], "name": ["a", "b"], "part": [1, 2]}) for i in (0, 10, 20)]
    builder.commit(*files)
    builder.commit(builder.equality_delete({"id": [1, 11]}, ids=[1]), builder.position_delete([(files[2], 1)]))
    scan = scan_core.open_table(builder.metadata_path).scan().where("id < 21")
    plan = scan.plan()
    splits = tuple(plan.splits(1))
    packed = pack_splits(splits)
    again = [unpack_split(packed.shared, split) for split in packed.splits]
    assert len(again) == len(splits) == 3
    assert all(split.context is again[0].context for split in again)
    kept = [batch for split in again for batch in read_split(split, ScanMetrics())]
    assert sum(batch.num_rows for batch in kept) == scan.count() == 3


@pytest.mark.parametrize("partitions", [0, 20])
def test_a_task_carries_its_own_files_and_delete_references_alone(tmp_path: Path, partitions: int) -> None:
    plan = _table(tmp_path / "t", 400, 1_000, partitions=partitions).scan().plan()
    splits = tuple(plan.splits())
    packed = pack_splits(splits)
    assert len(splits) >= 100
    assert max(map(len, packed.splits)) < 4_000
    if partitions:
        assert len(packed.shared) < 4_000  # delete sets of single partitions stay with their tasks
    else:
        assert len(pickle.dumps(splits[0])) > 4_000  # what all share is packed once
        first, last = (unpack_split(packed.shared, packed.splits[i]) for i in (0, -1))
        (group,) = first.tasks[0].equality_deletes
        assert last.tasks[0].equality_deletes[0] is group  # so a worker looks at its files once
        assert len(group.files) == 1_000
        assert not group.files[0].lower_bounds


@pytest.mark.slow
def test_ten_thousand_data_and_delete_files_are_planned_and_packed_in_bounded_memory(tmp_path: Path) -> None:
    table = _table(tmp_path / "t", 10_000, 10_000)
    tracemalloc.start()
    try:
        packed = pack_splits(table.scan().plan().splits())
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < 150 * 2**20
    assert len(packed.shared) < 4 * 2**20
    assert max(map(len, packed.splits)) < 6_000
    assert sum(map(len, packed.splits)) < 20 * 2**20
