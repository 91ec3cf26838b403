"""Whole-file tasks of a plan, and splits of about equal size: big files cut at row groups, small ones combined."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import Any, Generic, TypeVar, overload

import numpy as np

from nevermore.scan_core.model.snapshot import DataFile, DeleteFile, FileFormat
from nevermore.scan_core.plan.file_set import FileSet, Indices
from nevermore.scan_core.split.tasks import EqualityDeleteGroup, FileScanTask, ScanContext, Split

T = TypeVar("T")


class LazySequence(Sequence[T], Generic[T]):
    """`length` items; equal to any sequence of equal items, and pickled as a tuple of them."""

    __slots__ = ("_length", "_make")

    def __init__(self, length: int, make: Callable[[int], T]) -> None:
        self._length = length
        self._make = make

    def __len__(self) -> int:
        return self._length

    @overload
    def __getitem__(self, index: int) -> T: ...
    @overload
    def __getitem__(self, index: slice) -> tuple[T, ...]: ...
    def __getitem__(self, index: int | slice) -> T | tuple[T, ...]:
        if isinstance(index, slice):
            return tuple(map(self._make, range(*index.indices(self._length))))
        if not -self._length <= index < self._length:
            raise IndexError(index)
        return self._make(index % self._length)

    def __iter__(self) -> Iterator[T]:
        return map(self._make, range(self._length))

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Sequence) or len(other) != self._length:
            return NotImplemented if not isinstance(other, Sequence) else False
        return all(a == b for a, b in zip(self, other, strict=True))

    __hash__ = None  # type: ignore[assignment]

    def __reduce__(self) -> tuple[Any, ...]:
        return tuple, (tuple(self),)

    def __repr__(self) -> str:
        return repr(tuple(self))


@dataclass(frozen=True, slots=True)
class MatchedDeletes:
    """Which deletes may touch each data file.

    Attributes:
        combinations: equality-delete groups that some file needs together.
        combination_of: of each file, the index of its combination.
        position_files: position-delete files by index of the data file.
        vectors: deletion vectors by index of the data file.
    """

    combinations: Sequence[tuple[EqualityDeleteGroup, ...]]
    combination_of: Indices
    position_files: Mapping[int, tuple[DeleteFile, ...]] = field(default_factory=dict)
    vectors: Mapping[int, DeleteFile] = field(default_factory=dict)

    @classmethod
    def none(cls, num_files: int) -> "MatchedDeletes":
        """Whether no file has any deletes."""
        return cls([()], np.zeros(num_files, np.int64))


class PlannedTasks(LazySequence[FileScanTask]):
    """Tasks in the order of their data files."""

    __slots__ = ("data_files", "deletes")

    def __init__(self, data_files: FileSet[DataFile], deletes: MatchedDeletes) -> None:
        super().__init__(len(data_files), self._task)
        self.data_files = data_files
        self.deletes = deletes

    def _task(self, index: int) -> FileScanTask:
        data_file, deletes = self.data_files[index], self.deletes
        return FileScanTask(
            data_file,
            0,
            data_file.file_size_bytes,
            deletes.combinations[deletes.combination_of.item(index)],
            deletes.position_files.get(index, ()),
            deletes.vectors.get(index),
        )


OPEN_FILE_COST_BYTES = 4 * 1024**2
"""Minimum weight of a file, because opening one has a cost; Iceberg's `read.split.open-file-cost`."""
MIN_SMALL_FILES = 8
"""Small files in a split: they are opened one after the other, each at the cost of some round trips."""
_SPLITTABLE = frozenset({FileFormat.PARQUET, FileFormat.ORC})
Part = tuple[int, int, int]
"""Index of a task, where its part starts, and how long it is."""


def make_splits(tasks: Sequence[FileScanTask], context: ScanContext, split_bytes: int) -> Sequence[Split]:
    """Splits in the order of the tasks, none empty, made when asked for. Parts of one file may be in several splits.

    However small splits are, eight files that weigh next to nothing go into one.

    The order is kept because files of one partition, which share delete sets, stand together.
    """
    parts, begins = _cut(tasks, split_bytes)

    def split_at(number: int) -> Split:
        first, last = begins[number], begins[number + 1] if number + 1 < len(begins) else len(parts)
        return Split(context, tuple(_task_of(part, tasks) for part in parts[first:last]))

    return LazySequence(len(begins), split_at)


def _cut(tasks: Sequence[FileScanTask], split_bytes: int) -> tuple[list[int | Part], list[int]]:
    """Indices of whole tasks and parts of others in order, and where each split begins."""
    sizes = tasks.data_files.sizes.tolist() if isinstance(tasks, PlannedTasks) else [t.length for t in tasks]
    open_cost = min(OPEN_FILE_COST_BYTES, max(1, split_bytes // MIN_SMALL_FILES))
    parts: list[int | Part] = []
    begins: list[int] = []
    weight = split_bytes
    for index, size in enumerate(sizes):
        for start, length in ((0, size),) if size <= split_bytes else _ranges(tasks[index], split_bytes):
            part_weight = max(length, open_cost)
            if weight + part_weight > split_bytes:
                begins.append(len(parts))
                weight = 0
            parts.append(index if length == size else (index, start, length))
            weight += part_weight
    return parts, begins


def _task_of(part: int | Part, tasks: Sequence[FileScanTask]) -> FileScanTask:
    if isinstance(part, int):
        return tasks[part]
    index, start, length = part
    return replace(tasks[index], start=start, length=length)


def _ranges(task: FileScanTask, split_bytes: int) -> Iterator[tuple[int, int]]:
    """Start and length of the parts of a task cut where row groups begin, each part as long as fits but at least one row group."""
    data_file = task.data_file
    size = data_file.file_size_bytes
    if data_file.format not in _SPLITTABLE:
        yield 0, size
        return
    offsets = _usable_offsets(data_file.split_offsets, size)
    if len(offsets) < 2:
        yield 0, size
        return
    ends = [*offsets[1:], size]
    start = 0
    for index, end in enumerate(ends):
        following = ends[index + 1] if index + 1 < len(ends) else None
        if following is None or following - start > split_bytes:
            yield start, end - start
            start = end


def _usable_offsets(offsets: tuple[int, ...], size: int) -> tuple[int, ...]:
    """The offsets if they ascend inside the file, else none: some writers leave wrong ones."""
    rising = all(a < b for a, b in pairwise(offsets))
    return offsets if offsets and rising and offsets[0] >= 0 and offsets[-1] < size else ()
