"""One bit per dead row of a data file, packed as Spark's own reader tests them: bit `i & 63` of word `i >> 6`.

Found by the engine's usual path over the key columns alone, kept by chunks of 65,536 rows of which only those with a
dead row take memory. Bits depend on a file and the deletes that meet it, never on a query, so they are kept for later
scans.
"""

import hashlib
import os
from collections.abc import Hashable
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from scan_core.io.cache import BoundedCache
from scan_core.model.errors import MalformedTableError
from scan_core.model.metrics import ScanMetrics
from scan_core.model.schema import Schema
from scan_core.model.snapshot import DeleteFile
from scan_core.read.metadata_columns import DELETED
from scan_core.read.split_reader import read_split
from scan_core.split.tasks import EqualityDeleteGroup, FileScanTask, ScanContext, Split

CACHE_BYTES = 256 * 1024**2
"""Bits of two billion rows."""
CHUNK_SHIFT = 16
CHUNK_ROWS = 1 << CHUNK_SHIFT
"""A chunk's bits are 8 KiB: few enough to leave out what is whole, many enough that rows of a chunk share a look-up."""
_CHUNK_WORDS = CHUNK_ROWS // 64
_ENTRY_BYTES = 1024
"""Of paths and objects: deletes may meet no row of many files."""


@dataclass(frozen=True, slots=True, eq=False)
class DeadRows:
    """Which rows of a file are dead.

    Attributes:
        num_rows: of the file.
        num_dead: of them.
        chunks: numbers of the chunks with a dead row, ascending.
        words: of each such chunk, a row of little-endian words; the last chunk's end with zeros.
    """

    num_rows: int
    num_dead: int
    chunks: npt.NDArray[np.int32]
    words: npt.NDArray[np.int64]

    @property
    def num_bytes(self) -> int:
        """Memory held, with what it takes to keep it."""
        return int(self.words.nbytes + self.chunks.nbytes) + _ENTRY_BYTES

    @property
    def all_words(self) -> npt.NDArray[np.int64]:
        """The words of all rows, those of whole chunks too."""
        words = np.zeros((-(-self.num_rows // CHUNK_ROWS), _CHUNK_WORDS), dtype="<i8")
        words[self.chunks] = self.words
        return words.reshape(-1)[: -(-self.num_rows // 64)]


def has_deletes(task: FileScanTask) -> bool:
    """Whether any delete may touch the file."""
    return bool(task.equality_deletes or task.position_deletes or task.deletion_vector)


def dead_rows(task: FileScanTask, context: ScanContext, metrics: ScanMetrics) -> DeadRows:
    """The dead rows of a whole file.

    Args:
        task: the whole file.
        context: of the scan; its columns and predicate do not matter here.
        metrics: receives what was read for it, and the dead rows: where both kinds of deletes meet the file, as removed
            by equality deletes.
    """
    if not task.is_whole_file:
        raise MalformedTableError(f"{task.data_file.path}: dead rows are asked for a part of a file")
    flags_only = replace(
        context,
        projection=Schema(context.projection.schema_id, (DELETED,)),
        predicate=None,
        sample=None,
        runtime_filters=(),
    )
    flags = [batch.column(0) for batch in read_split(Split(flags_only, (task,)), metrics)]
    found = pack(np.asarray(pa.chunked_array(flags, pa.bool_()).to_numpy(), dtype=np.bool_))
    if task.equality_deletes:
        metrics.rows_removed_by_equality_deletes += found.num_dead
    else:
        metrics.rows_removed_by_position_deletes += found.num_dead
    return found


def pack(dead: npt.NDArray[np.bool_]) -> DeadRows:
    """Flags as bits."""
    num_chunks = -(-len(dead) // CHUNK_ROWS)
    words = np.zeros((num_chunks, _CHUNK_WORDS), dtype="<i8")
    packed = np.packbits(dead, bitorder="little")
    words.reshape(-1).view(np.uint8)[: len(packed)] = packed
    chunks = np.flatnonzero(words.any(axis=1)).astype(np.int32)
    return DeadRows(len(dead), int(np.count_nonzero(dead)), chunks, words[chunks])


def known(task: FileScanTask, context: ScanContext) -> DeadRows | None:
    """The dead rows of a file if they are kept."""
    return _CACHE.find(_key(task, context))


def keep(task: FileScanTask, context: ScanContext, found: DeadRows) -> None:
    """Keep the dead rows of a file for later scans of it under the same deletes."""
    _CACHE.put(_key(task, context), found, CACHE_BYTES)


def forget() -> None:
    """Drop all that is kept; the next scan finds it anew."""
    _CACHE.clear()


def _key(task: FileScanTask, context: ScanContext) -> tuple[Hashable, ...]:
    """What the bits follow from: the file, and each delete file with its sequence number and place."""
    single = (*task.position_deletes, *((task.deletion_vector,) if task.deletion_vector else ()))
    deletes = tuple(sorted(_digest(group) for group in task.equality_deletes))
    file = task.data_file
    return (file.path, file.data_sequence_number, context.io.relocate, deletes, tuple(sorted(map(_name, single))))


def _name(file: DeleteFile) -> tuple[str, int, int]:
    return file.path, file.data_sequence_number, file.content_offset or 0


def _digest(group: EqualityDeleteGroup) -> bytes:
    """What tells a delete set from others, found once for the thousands of files that it may touch."""
    _, digest = _DIGESTS.get(id(group), lambda: (group, _digest_of(group)), _REMEMBERED_GROUPS)
    return digest


def _digest_of(group: EqualityDeleteGroup) -> bytes:
    names = repr((group.key_ids, sorted(map(_name, group.files))))
    return hashlib.sha256(names.encode()).digest()


_REMEMBERED_GROUPS = 256
_DIGESTS: BoundedCache[int, tuple[EqualityDeleteGroup, bytes]] = BoundedCache()
"""By identity: a group that is remembered lives on, so no other can have its."""
os.register_at_fork(after_in_child=_DIGESTS.forget_threads)
_CACHE: BoundedCache[tuple[Hashable, ...], DeadRows] = BoundedCache(lambda rows: rows.num_bytes)
os.register_at_fork(after_in_child=_CACHE.forget_threads)
