"""The tasks of a plan, one whole data file each: what is known of all of them as columns, objects on demand."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from scan_core.plan.file_set import FileSet, Indices
from scan_core.plan.lazy_sequence import LazySequence
from scan_core.snapshot import DataFile, DeleteFile
from scan_core.split import EqualityDeleteGroup, FileScanTask


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
