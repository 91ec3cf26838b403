"""Whole-file tasks -> splits of about equal size: big files cut at row-group offsets, small ones combined."""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import pairwise

from scan_core.snapshot import FileFormat
from scan_core.split import FileScanTask, ScanContext, Split

OPEN_FILE_COST_BYTES = 4 * 1024**2
"""A file is never lighter than this: opening has a price. Iceberg's `read.split.open-file-cost`."""
_SPLITTABLE = frozenset({FileFormat.PARQUET, FileFormat.ORC})


def make_splits(tasks: Sequence[FileScanTask], context: ScanContext, split_bytes: int) -> tuple[Split, ...]:
    """Splits in the order of the tasks, none empty. Parts of one file may be in several splits.

    The order is kept because files of one partition, which share delete sets, stand together.
    """
    splits: list[Split] = []
    current: list[FileScanTask] = []
    weight = 0
    open_cost = min(OPEN_FILE_COST_BYTES, max(1, split_bytes // 8))
    for task in tasks:
        for part in _parts(task, split_bytes):
            part_weight = max(part.length, open_cost)
            if current and weight + part_weight > split_bytes:
                splits.append(Split(context, tuple(current)))
                current, weight = [], 0
            current.append(part)
            weight += part_weight
    if current:
        splits.append(Split(context, tuple(current)))
    return tuple(splits)


def _parts(task: FileScanTask, split_bytes: int) -> Iterator[FileScanTask]:
    """The task cut where row groups begin, each part as long as fits but at least one row group."""
    data_file = task.data_file
    size = data_file.file_size_bytes
    if size <= split_bytes or data_file.format not in _SPLITTABLE:
        yield task
        return
    offsets = _usable_offsets(data_file.split_offsets, size)
    if len(offsets) < 2:
        yield task
        return
    ends = [*offsets[1:], size]
    start = 0
    for index, end in enumerate(ends):
        following = ends[index + 1] if index + 1 < len(ends) else None
        if following is None or following - start > split_bytes:
            yield replace(task, start=start, length=end - start)
            start = end


def _usable_offsets(offsets: tuple[int, ...], size: int) -> tuple[int, ...]:
    """The offsets if they ascend inside the file, else none: some writers leave wrong ones."""
    rising = all(a < b for a, b in pairwise(offsets))
    return offsets if offsets and rising and offsets[0] >= 0 and offsets[-1] < size else ()
