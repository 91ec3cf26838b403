"""One bit per dead row of a data file, packed as Spark's own reader tests them: bit `i & 63` of word `i >> 6`.

Found by the engine's usual path over the key columns alone. Bits depend on a file and the deletes that meet it, never
on a query, so they are kept for later scans.
"""

import threading
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from scan_core.distribute.local import run_splits
from scan_core.errors import MalformedTableError
from scan_core.metrics import ScanMetrics
from scan_core.read.metadata_columns import DELETED
from scan_core.read.split_reader import read_split
from scan_core.schema import Schema
from scan_core.split import FileScanTask, ScanContext, Split

CACHE_BYTES = 256 * 1024**2
"""Bits of two billion rows."""


@dataclass(frozen=True, slots=True, eq=False)
class DeadRows:
    """Which of the first `num_rows` rows of a file are dead, as little-endian words."""

    num_rows: int
    num_dead: int
    words: npt.NDArray[np.int64]


def has_deletes(task: FileScanTask) -> bool:
    """Whether any delete may touch the file."""
    return bool(task.equality_deletes or task.position_deletes or task.deletion_vector)


def dead_rows(tasks: Sequence[FileScanTask], context: ScanContext, metrics: ScanMetrics) -> list[DeadRows]:
    """The dead rows of each file, in the order of `tasks`.

    Args:
        tasks: whole files.
        context: of the scan; its columns and predicate do not matter here.
        metrics: receives what was read for it; nothing for what is still known.
    """
    found = {index: known for index, task in enumerate(tasks) if (known := _cache.get(_key(task, context)))}
    missing = [index for index in range(len(tasks)) if index not in found]
    flags_only = replace(context, projection=Schema(context.projection.schema_id, (DELETED,)), predicate=None)
    splits = [Split(flags_only, (tasks[index],)) for index in missing]
    computed = run_splits(splits, _pack, metrics, parallelism=context.options.parallelism)
    for index, result in zip(missing, computed, strict=True):
        found[index] = result
        _cache.put(_key(tasks[index], context), result)
    return [found[index] for index in range(len(tasks))]


def _pack(split: Split, metrics: ScanMetrics) -> Iterator[DeadRows]:
    (task,) = split.tasks
    if not task.is_whole_file:
        raise MalformedTableError(f"{task.data_file.path}: dead rows are asked for a part of a file")
    flags = [batch.column(0) for batch in read_split(split, metrics)]
    array = pa.chunked_array(flags, pa.bool_()).combine_chunks()
    dead = np.asarray(array.to_numpy(zero_copy_only=False), dtype=np.bool_)
    packed = np.packbits(dead, bitorder="little")
    words = np.zeros(-(-len(dead) // 64), dtype="<i8")
    words.view(np.uint8)[: len(packed)] = packed
    yield DeadRows(len(dead), int(np.count_nonzero(dead)), words)


def _key(task: FileScanTask, context: ScanContext) -> tuple[object, ...]:
    """What the bits follow from: the file, and each delete file with its sequence number and place."""
    deletes = [
        *(f for group in task.equality_deletes for f in group.files),
        *task.position_deletes,
        *((task.deletion_vector,) if task.deletion_vector else ()),
    ]
    named = tuple(sorted((f.path, f.data_sequence_number, f.content_offset or 0) for f in deletes))
    return (task.data_file.path, task.data_file.data_sequence_number, context.io.relocate, named)


class _Cache:
    """The least recently used leave first, once `CACHE_BYTES` are exceeded."""

    def __init__(self, limit_bytes: int) -> None:
        self._limit_bytes = limit_bytes
        self._entries: OrderedDict[tuple[object, ...], DeadRows] = OrderedDict()
        self._bytes = 0
        self._lock = threading.Lock()

    def get(self, key: tuple[object, ...]) -> DeadRows | None:
        with self._lock:
            found = self._entries.get(key)
            if found is not None:
                self._entries.move_to_end(key)
            return found

    def put(self, key: tuple[object, ...], value: DeadRows) -> None:
        with self._lock:
            if key in self._entries:
                return
            self._entries[key] = value
            self._bytes += value.words.nbytes
            while self._bytes > self._limit_bytes:
                _, dropped = self._entries.popitem(last=False)
                self._bytes -= dropped.words.nbytes


_cache = _Cache(CACHE_BYTES)
