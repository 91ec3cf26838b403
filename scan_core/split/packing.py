"""Splits as bytes for tasks: shared facts once, large splits cut into shares of their rows."""

import hashlib
import io
import os
import pickle
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeVar

from scan_core.io.cache import BoundedCache
from scan_core.model.snapshot import ContentFile, FileFormat
from scan_core.split.tasks import DeadRowBits, EqualityDeleteGroup, FileScanTask, ScanContext, Split

SHARED_GROUP_FILES = 64
"""A delete set of fewer files costs a task less than a millisecond, wherever it comes from."""
_REMEMBERED = 4
"""Reads whose shared part a worker keeps unpacked."""

F = TypeVar("F", bound=ContentFile)


@dataclass(frozen=True, slots=True)
class PackedSplits:
    """Splits as bytes.

    Attributes:
        shared: what several of them name.
        splits: what each has of its own, in order.
    """

    shared: bytes
    splits: tuple[bytes, ...]


def pack_splits(splits: Sequence[Split]) -> PackedSplits:
    """The splits of one plan as bytes, from which `unpack_split` restores each split."""
    splits = tuple(splits)  # a plan makes them when asked, others each time
    lean = _Lean()
    uses: Counter[int] = Counter()
    for split in splits:
        uses.update({id(group) for task in split.tasks for group in _groups_of(task)})
    shared: dict[int, Any] = {}
    for split in splits:
        shared.setdefault(id(split.context), split.context)
        for task in split.tasks:
            for group in _groups_of(task):
                if uses[id(group)] > 1 and len(group.files) >= SHARED_GROUP_FILES:
                    shared.setdefault(id(group), group)
    numbers = {key: number for number, key in enumerate(shared)}
    packed = tuple(
        _dump([numbers[id(split.context)], [lean.task(task) for task in split.tasks]], lean.twins(numbers))
        for split in splits
    )
    bodies = [lean.group(s) if isinstance(s, EqualityDeleteGroup) else s for s in shared.values()]
    return PackedSplits(pickle.dumps(bodies, protocol=5), packed)


def unpack_split(shared: bytes, packed: bytes) -> Split:
    """One split; what it shares with others is unpacked once per process, and the same object for all of them."""
    digest = hashlib.sha256(shared).digest()
    parts = _SHARED.get(digest, lambda: pickle.loads(shared), _REMEMBERED)  # noqa: S301 - see the charter
    number, tasks = _Loader(io.BytesIO(packed), parts).load()
    context: ScanContext = parts[number]
    return Split(context, tuple(tasks))


class _Lean:
    """Files without statistics, each group made once."""

    def __init__(self) -> None:
        self._groups: dict[int, tuple[EqualityDeleteGroup, EqualityDeleteGroup]] = {}

    def task(self, task: FileScanTask) -> FileScanTask:
        vector, bits = task.deletion_vector, task.dead_row_bits
        return replace(
            task,
            data_file=_without_statistics(task.data_file),
            equality_deletes=tuple(map(self.group, task.equality_deletes)),
            position_deletes=tuple(map(_without_statistics, task.position_deletes)),
            deletion_vector=None if vector is None else _without_statistics(vector),
            dead_row_bits=None if bits is None else self._bits(bits),
        )

    def _bits(self, bits: DeadRowBits) -> DeadRowBits:
        newer = tuple(map(_without_statistics, bits.position_deletes))
        return DeadRowBits(bits.vector, tuple(map(self.group, bits.equality_deletes)), newer)

    def group(self, group: EqualityDeleteGroup) -> EqualityDeleteGroup:
        if (known := self._groups.get(id(group))) is not None:
            return known[1]
        files = tuple(map(_without_statistics, group.files))
        lean = replace(group, files=files, covered_by=tuple(map(self.group, group.covered_by)))
        self._groups[id(group)] = group, lean
        return lean

    def twins(self, numbers: dict[int, int]) -> dict[int, int]:
        """Numbers by the identity of the lean groups."""
        return {id(lean): numbers[key] for key, (_, lean) in self._groups.items() if key in numbers}


def _groups_of(task: FileScanTask) -> tuple[EqualityDeleteGroup, ...]:
    newer = () if task.dead_row_bits is None else task.dead_row_bits.equality_deletes
    return task.equality_deletes + newer


def _without_statistics(file: F) -> F:
    return replace(
        file,
        lower_bounds={},
        upper_bounds={},
        value_counts={},
        null_value_counts={},
        nan_value_counts={},
        split_offsets=(),
    )


def _dump(value: Any, numbers: dict[int, int]) -> bytes:
    buffer = io.BytesIO()
    _Dumper(buffer, numbers).dump(value)
    return buffer.getvalue()


class _Dumper(pickle.Pickler):
    """Pickles the number of a shared object instead of the object."""

    def __init__(self, file: io.BytesIO, numbers: dict[int, int]) -> None:
        super().__init__(file, protocol=5)
        self._numbers = numbers

    def persistent_id(self, obj: Any) -> int | None:
        return self._numbers.get(id(obj)) if isinstance(obj, EqualityDeleteGroup) else None


class _Loader(pickle.Unpickler):
    """Replaces the number of a shared object by the object."""

    def __init__(self, file: io.BytesIO, parts: list[Any]) -> None:
        super().__init__(file)
        self._parts = parts

    def persistent_load(self, number: int) -> Any:
        return self._parts[number]


_SHARED: BoundedCache[bytes, list[Any]] = BoundedCache()
"""The shared parts of recent reads, unpacked."""
os.register_at_fork(after_in_child=_SHARED.forget_threads)


MIN_SHARES = 3
"""A third of a row group is read by page; of larger parts whole columns are decoded."""


def share_row_groups(splits: Iterable[Split], split_bytes: int) -> Iterator[Split]:
    """The splits, those of a single part of a Parquet file that is longer than two splits in shares.

    Args:
        splits: of a plan, cut at row groups already.
        split_bytes: what a split should weigh.
    """
    for split in splits:
        (task, *others) = split.tasks
        is_large = task.length > 2 * split_bytes and task.data_file.format is FileFormat.PARQUET
        if others or not is_large or not split.context.options.switches.split_row_groups:
            yield split
            continue
        of = max(MIN_SHARES, -(-task.length // split_bytes))
        for number in range(of):
            yield Split(split.context, (replace(task, row_share=(number, of)),))
