"""Whole-file tasks -> splits of about equal size: big files cut at row-group offsets, small ones combined."""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import pairwise

from scan_core.model.snapshot import FileFormat
from scan_core.plan.planned_tasks import LazySequence, PlannedTasks
from scan_core.split.tasks import FileScanTask, ScanContext, Split

OPEN_FILE_COST_BYTES = 4 * 1024**2
"""A file is never lighter than this: opening has a price. Iceberg's `read.split.open-file-cost`."""
_SPLITTABLE = frozenset({FileFormat.PARQUET, FileFormat.ORC})
Part = tuple[int, int, int]
"""Index of a task, where its part starts, and how long it is."""


def make_splits(tasks: Sequence[FileScanTask], context: ScanContext, split_bytes: int) -> Sequence[Split]:
    """Splits in the order of the tasks, none empty, made when asked for. Parts of one file may be in several splits.

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
    open_cost = min(OPEN_FILE_COST_BYTES, max(1, split_bytes // 8))
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
