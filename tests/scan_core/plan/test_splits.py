"""Cutting and combining tasks into splits."""

from collections.abc import Sequence
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nevermore.scan_core.io.location import FileIOConfig
from nevermore.scan_core.model.options import ScanOptions
from nevermore.scan_core.model.schema import Schema
from nevermore.scan_core.model.snapshot import DataFile, FileFormat
from nevermore.scan_core.plan.file_set import make_splits
from nevermore.scan_core.split.tasks import FileScanTask, ScanContext

MB = 1024**2
CONTEXT = ScanContext("t", Schema(0, ()), None, {}, {}, None, FileIOConfig(), ScanOptions())


def task(
    size: int, offsets: Sequence[int] = (), file_format: FileFormat = FileFormat.PARQUET, name: str = "f"
) -> FileScanTask:
    return FileScanTask(DataFile(name, file_format, 0, (), 1, size, 1, split_offsets=tuple(offsets)), 0, size)


def ranges(tasks: Sequence[FileScanTask], split_bytes: int) -> list[list[tuple[int, int]]]:
    return [[(t.start, t.length) for t in split.tasks] for split in make_splits(tasks, CONTEXT, split_bytes)]


def test_a_big_file_is_cut_where_row_groups_begin() -> None:
    assert ranges([task(100, [4, 30, 55, 80])], 50) == [[(0, 30)], [(30, 50)], [(80, 20)]]


def test_small_files_are_combined() -> None:
    assert ranges([task(10), task(20), task(30), task(10)], 60) == [[(0, 10), (0, 20), (0, 30)], [(0, 10)]]


def test_a_small_file_weighs_what_opening_it_costs() -> None:
    splits = make_splits([task(1) for _ in range(100)], CONTEXT, 128 * MB)
    assert [len(s.tasks) for s in splits] == [32, 32, 32, 4]


@pytest.mark.parametrize("offsets", [(), (4,), (50, 4), (4, 4), (4, 100), (-1, 50), (4, 50, 2**60)])
def test_wrong_or_missing_offsets_leave_the_file_whole(offsets: tuple[int, ...]) -> None:
    assert ranges([task(100, offsets)], 10) == [[(0, 100)]]


def test_avro_files_are_never_cut() -> None:
    assert ranges([task(100, [4, 50], FileFormat.AVRO)], 10) == [[(0, 100)]]


def test_an_empty_file_is_one_task_and_no_files_are_no_splits() -> None:
    assert ranges([task(0)], 10) == [[(0, 0)]]
    assert ranges([], 10) == []


@given(
    st.lists(st.tuples(st.integers(0, 500), st.sets(st.integers(0, 520), max_size=6).map(sorted)), max_size=8),
    st.integers(1, 400),
)
def test_every_byte_of_every_file_is_in_exactly_one_task(files: list[tuple[int, list[int]]], split_bytes: int) -> None:
    tasks = [task(size, offsets, name=str(i)) for i, (size, offsets) in enumerate(files)]
    splits = make_splits(tasks, CONTEXT, split_bytes)
    parts = [(int(t.data_file.path), t.start, t.length) for s in splits for t in s.tasks]
    assert parts == sorted(parts)
    assert all(split.tasks for split in splits)
    for index, (size, _) in enumerate(files):
        mine = [(start, length) for name, start, length in parts if name == index]
        assert mine[0][0] == 0
        assert sum(length for _, length in mine) == size
        assert all(a + n == b for (a, n), (b, _) in pairwise(mine))
