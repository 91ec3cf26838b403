"""The tasks of a plan: facts of all of them as columns, objects made on demand."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar, overload

import numpy as np

from scan_core.model.snapshot import DataFile, DeleteFile
from scan_core.plan.file_set import FileSet, Indices
from scan_core.split.tasks import EqualityDeleteGroup, FileScanTask

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
        """No file has any."""
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
