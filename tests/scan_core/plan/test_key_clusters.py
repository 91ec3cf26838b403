"""Many delete files in parts: what a task carries of them, and that no part lacks a delete that may touch a file."""

import pickle
import struct
from dataclasses import replace
from typing import Any

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from nevermore.scan_core.io.location import FileIOConfig
from nevermore.scan_core.model.options import ScanOptions
from nevermore.scan_core.model.schema import NestedField, PrimitiveType, Schema
from nevermore.scan_core.model.snapshot import DataFile, DeleteFile, FileFormat, PartitionSpec
from nevermore.scan_core.plan.delete_index import MIN_FILES, build_delete_index, key_clusters
from nevermore.scan_core.plan.file_set import KeyBounds, disjoint, make_splits
from nevermore.scan_core.split.tasks import ScanContext

ID = NestedField(1, "id", PrimitiveType("long"), required=False)
CONTEXT = ScanContext(
    "t", Schema(0, (ID,)), None, {1: (ID,)}, {0: PartitionSpec(0, ())}, None, FileIOConfig(), ScanOptions()
)
SIZE = 40 * 1024**2


def data_file(number: int, first: int, last: int) -> DataFile:
    return DataFile(
        f"s3://bucket/data/{number:06d}.parquet", FileFormat.PARQUET, 0, (), 10, SIZE, 1, **facts(first, last)
    )


def delete_file(number: int, first: int, last: int) -> DeleteFile:
    return DeleteFile(
        f"s3://bucket/data/deletes-{number:06d}.parquet",
        FileFormat.PARQUET,
        0,
        (),
        10,
        900,
        2 + number % 3,
        equality_ids=(1,),
        **facts(first, last),
    )


def facts(first: int, last: int) -> Any:
    return {
        "lower_bounds": {1: struct.pack("<q", first)},
        "upper_bounds": {1: struct.pack("<q", last)},
        "null_value_counts": {1: 0},
        "value_counts": {1: 10},
    }


def bounds(ranges: list[tuple[int, int]]) -> KeyBounds:
    lower, upper = np.array(ranges, np.int64).reshape(-1, 2).T
    return KeyBounds(lower, upper, np.ones(len(ranges), np.bool_), np.zeros(len(ranges), np.bool_))


ranges = st.lists(st.tuples(st.integers(0, 2000), st.integers(0, 9)).map(lambda r: (r[0], sum(r))), min_size=1)


@given(ranges, ranges)
def test_no_delete_meets_a_file_of_another_cluster(deletes: list[tuple[int, int]], data: list[tuple[int, int]]) -> None:
    left, right = bounds(deletes * 40), bounds(data)
    of_delete, of_data = key_clusters([(left, right)], len(left.known))
    for at in range(len(data)):
        meets = ~disjoint(left, right, at)
        assert (of_delete[meets] == of_data[at]).all()


def test_a_task_carries_the_deletes_of_its_own_keys() -> None:
    count = 1_000
    files = [data_file(i, 100 * i, 100 * i + 99) for i in range(count)]
    deletes = [delete_file(i, 100 * i + 10, 100 * i + 20) for i in range(count)]
    index = build_delete_index(files, deletes, CONTEXT)
    named = {f.path for task in index.tasks for g in task.equality_deletes for f in g.files}
    assert len(named) == count
    for number, task in enumerate(index.tasks):
        (group,) = task.equality_deletes
        assert len(group.files) <= 2 * MIN_FILES
        assert deletes[number] in group.files
    splits = make_splits(index.tasks, CONTEXT, 128 * 1024**2)
    sizes = [len(pickle.dumps(split)) for split in splits]
    assert max(sizes) < 8_000
    assert pickle.loads(pickle.dumps(splits[7])) == splits[7]  # noqa: S301 - our own bytes


def test_deletes_all_over_the_keys_stay_together_and_are_packed_once() -> None:
    files = [data_file(i, 100 * i, 100 * i + 99) for i in range(20)]
    deletes = [delete_file(i, 0, 10_000) for i in range(500)]
    index = build_delete_index(files, deletes, CONTEXT)
    assert len(index.groups) == 1
    splits = make_splits(index.tasks, CONTEXT, 128 * 1024**2)
    first, second = (pickle.loads(pickle.dumps(splits[i])) for i in (0, 1))  # noqa: S301 - our own bytes
    assert first.tasks[0].equality_deletes[0] is second.tasks[0].equality_deletes[0]
    assert len(pickle.dumps(splits[0])) < 20 * 500


def test_null_keys_and_missing_bounds_keep_deletes_together() -> None:
    files = [data_file(i, 100 * i, 100 * i + 99) for i in range(300)]
    deletes = [delete_file(i, 100 * i, 100 * i + 9) for i in range(300)]
    no_bounds = replace(deletes[5], lower_bounds={})
    assert len(build_delete_index(files, [*deletes[:5], no_bounds, *deletes[6:]], CONTEXT).groups) == 1
    nulls = [replace(f, null_value_counts={1: 1}) for f in (files[0], deletes[299])]
    kept = build_delete_index([nulls[0], *files[1:]], [*deletes[:299], nulls[1]], CONTEXT)  # type: ignore[list-item]
    assert len(kept.groups) == 1
    assert len(build_delete_index(files, deletes, CONTEXT).groups) > 1
