"""The files that a plan considers, and the tasks and splits made of them.

Files are kept as columns, which are compared in bulk, and become objects on demand. Splits have about equal size: big files are cut
at row groups, small ones combined.
"""

from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import accumulate, pairwise
from typing import Any, Generic, NamedTuple, TypeVar, overload

import numpy as np
import numpy.typing as npt

from nevermore.scan_core.metadata.bulk_manifests import (
    EntryColumns,
    ManifestFiles,
    Numbers,
    file_at,
    path_at,
)
from nevermore.scan_core.model.cached_property import cached_property
from nevermore.scan_core.model.schema import PrimitiveType
from nevermore.scan_core.model.snapshot import ContentFile, DataFile, DeleteFile, FileFormat
from nevermore.scan_core.model.statistics import decode_bound
from nevermore.scan_core.prune.facts import FLOATING, NoColumnError, bounds_of, counts_of, in_order
from nevermore.scan_core.rows.buffers import Mask, numbers
from nevermore.scan_core.split.tasks import EqualityDeleteGroup, FileScanTask, ScanContext, Split

_PREFIX_BYTES = 8
_TEXT_LIKE = frozenset({"string", "binary", "fixed", "uuid"})
_FLOATING = frozenset({"float", "double", "decimal"})


class KeyBounds(NamedTuple):
    """Bounds of one column in each of some files; `lower` and `upper` are undefined where `known` is False."""

    lower: Numbers
    upper: Numbers
    known: Mask
    may_have_null: Mask


def key_bounds(files: Sequence[ContentFile], field_id: int, key_type: PrimitiveType, *, nan_matters: bool) -> KeyBounds:
    """Bounds of a column in each file.

    Args:
        files: data files or delete files.
        field_id: the column.
        key_type: its type today; bounds written before a promotion are promoted.
        nan_matters: bounds of a float column count only where the file is known to hold no NaN (SEMANTICS rule 12).
    """
    dtype = _dtype(key_type)
    lower, upper = np.zeros(len(files), dtype), np.zeros(len(files), dtype)
    known = np.zeros(len(files), np.bool_)
    may_have_null = np.ones(len(files), np.bool_)
    must_lack_nan = nan_matters and key_type.name in {"float", "double"}
    for index, file in enumerate(files):
        may_have_null[index] = file.null_count(field_id) != 0
        if must_lack_nan and file.nan_value_counts.get(field_id) != 0:
            continue
        low = decode_bound(file.lower_bounds.get(field_id), key_type)
        high = decode_bound(file.upper_bounds.get(field_id), key_type)
        if low is None or high is None or low > high:
            continue
        try:
            lower[index], upper[index] = _number(low, key_type, b"\0"), _number(high, key_type, b"\xff")
        except OverflowError:
            continue
        known[index] = True
    return KeyBounds(lower, upper, known, may_have_null)


def key_bounds_of_columns(
    columns: EntryColumns,
    rows: Numbers,
    file_at: Callable[[int], ContentFile],
    field_id: int,
    key_type: PrimitiveType,
    *,
    nan_matters: bool,
) -> KeyBounds:
    """Bounds of a key column, as `key_bounds` gives them, for files held as columns.

    Args:
        columns: entries of manifests.
        rows: which of them.
        file_at: one of those as an object, by its place in `rows`, for the few that columns cannot tell of.
        field_id: the column.
        key_type: its type today.
        nan_matters: as there.
    """
    try:
        lower, upper = bounds_of(columns, rows, field_id, key_type)
    except NoColumnError:
        return key_bounds([file_at(i) for i in range(len(rows))], field_id, key_type, nan_matters=nan_matters)
    counts = counts_of(columns, rows, field_id)
    believed = in_order(lower.values, upper.values)
    if nan_matters and key_type.name in FLOATING:
        believed &= counts.nans.known & (counts.nans.values == 0)
    found = KeyBounds(
        _order_numbers(lower.values, key_type, 0),
        _order_numbers(upper.values, key_type, 0xFF),
        believed,
        ~counts.nulls.known | (counts.nulls.values != 0),
    )
    odd = np.flatnonzero(lower.is_odd | upper.is_odd | counts.is_odd | (key_type.name == "decimal"))
    if len(odd):
        single = key_bounds([file_at(i) for i in odd.tolist()], field_id, key_type, nan_matters=nan_matters)
        for whole, part in zip(found, single, strict=True):
            whole[odd] = part
    return found


def disjoint(many: KeyBounds, one: KeyBounds, index: int) -> Mask:
    """For each file of `many`: no key of it can equal a key of file `index` of `one` in this column."""
    if not one.known[index]:
        return np.zeros(len(many.known), np.bool_)
    apart: Mask = (many.lower > one.upper[index]) | (many.upper < one.lower[index])
    apart &= many.known
    if one.may_have_null[index]:
        apart &= ~many.may_have_null
    return apart


def _dtype(key_type: PrimitiveType) -> Any:
    if key_type.name in _TEXT_LIKE:
        return np.uint64
    return np.float64 if key_type.name in _FLOATING else np.int64


def _number(value: Any, key_type: PrimitiveType, padding: bytes) -> Any:
    if key_type.name in _TEXT_LIKE:
        data = value.encode() if isinstance(value, str) else value
        return int.from_bytes(data[:_PREFIX_BYTES].ljust(_PREFIX_BYTES, padding), "big")
    return float(value) if key_type.name in _FLOATING else int(value)


def _order_numbers(values: Any, key_type: PrimitiveType, padding: int) -> Numbers:
    """The order-preserving number of each value, as `_number` computes it, in a writable array."""
    if key_type.name not in _TEXT_LIKE:
        return numbers(values).astype(_dtype(key_type))
    offsets = np.frombuffer(values.buffers()[1], np.int64, len(values) + 1, 8 * values.offset)
    stored = values.buffers()[2]
    data = np.frombuffer(stored, np.uint8) if stored is not None else np.zeros(0, np.uint8)
    starts, lengths = offsets[:-1], np.diff(offsets)
    prefixes = np.full((len(values), _PREFIX_BYTES), padding, np.uint8)
    for place in range(_PREFIX_BYTES):
        reaches = lengths > place
        prefixes[reaches, place] = data[starts[reaches] + place]
    return prefixes.view(">u8")[:, 0].astype(np.uint64)


F = TypeVar("F", DataFile, DeleteFile)
Indices = npt.NDArray[np.int64]
Partition = tuple[int, tuple[Any, ...]]
"""Spec id and values."""


class ObjectPart(Generic[F]):
    """Files that were decoded one by one."""

    __slots__ = ("files",)

    def __init__(self, files: Sequence[F]) -> None:
        self.files: Sequence[F] = files

    def __len__(self) -> int:
        return len(self.files)

    def file(self, index: int) -> F:
        """One of the files."""
        return self.files[index]

    def sequence_numbers(self) -> Numbers:
        """Data sequence numbers."""
        return np.fromiter((f.data_sequence_number for f in self.files), np.int64, len(self.files))

    def sizes(self) -> Numbers:
        """Stored bytes."""
        return np.fromiter((f.file_size_bytes for f in self.files), np.int64, len(self.files))

    def partitions(self) -> tuple[Sequence[Partition], Numbers]:
        """Distinct partitions, and which of them each file has."""
        codes: dict[Partition, int] = {}
        each = [codes.setdefault((f.spec_id, f.partition), len(codes)) for f in self.files]
        return list(codes), np.array(each, np.int64)

    def paths(self) -> Iterator[str]:
        """Paths as manifests write them."""
        return (f.path for f in self.files)

    def bounds(self, indices: Indices, field_id: int, type_: PrimitiveType, *, nan_matters: bool) -> KeyBounds:
        """Bounds of a key column in the files at `indices`."""
        return key_bounds([self.files[i] for i in indices.tolist()], field_id, type_, nan_matters=nan_matters)


class ColumnPart(Generic[F]):
    """Files of one manifest, or of several that were decoded together."""

    __slots__ = ("columns", "rows")

    def __init__(self, columns: EntryColumns, rows: Indices) -> None:
        self.columns = columns
        self.rows = rows

    def __len__(self) -> int:
        return len(self.rows)

    def file(self, index: int) -> F:
        """One of the files."""
        found: F = file_at(self.columns, self.rows.item(index))
        return found

    def where(self, kept: Mask) -> "ColumnPart[F]":
        """Some of the files; the bytes of the others are released if they are the majority, as a manifest may have millions of files."""
        rows = self.rows[kept]
        if len(rows) > len(self.columns) // 2:
            return ColumnPart(self.columns, rows)
        return ColumnPart(self.columns.only(rows), np.arange(len(rows)))

    def sequence_numbers(self) -> Numbers:
        """Data sequence numbers."""
        return self.columns.sequence_numbers[self.rows]

    def sizes(self) -> Numbers:
        """Stored bytes."""
        return self.columns.file_sizes[self.rows]

    def partitions(self) -> tuple[Sequence[Partition], Numbers]:
        """Distinct partitions, and which of them each file has."""
        used, codes = np.unique(self.columns.partition_codes[self.rows], return_inverse=True)
        return [(self.columns.spec_id, self.columns.partitions[code]) for code in used.tolist()], codes

    def paths(self) -> Iterator[str]:
        """Paths as manifests write them."""
        return (path_at(self.columns, row) for row in self.rows.tolist())

    def bounds(self, indices: Indices, field_id: int, type_: PrimitiveType, *, nan_matters: bool) -> KeyBounds:
        """Bounds of a key column in the files at `indices`."""

        def file_at(place: int) -> F:
            return self.file(indices.item(place))

        return key_bounds_of_columns(
            self.columns, self.rows[indices], file_at, field_id, type_, nan_matters=nan_matters
        )


Part = ObjectPart[F] | ColumnPart[F]


class FileSet(Sequence[F], Generic[F]):
    """Files in the order of their manifests."""

    def __init__(self, parts: Iterable[Part[F]]) -> None:
        self._parts: list[Part[F]] = [part for part in parts if len(part)]
        self._begins = [0, *accumulate(map(len, self._parts))]

    @classmethod
    def of(cls, files: Sequence[F]) -> "FileSet[F]":
        """Files that are objects already; a FileSet as it is."""
        return files if isinstance(files, FileSet) else cls([ObjectPart(files)])

    def __len__(self) -> int:
        return self._begins[-1]

    @overload
    def __getitem__(self, index: int) -> F: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[F]: ...
    def __getitem__(self, index: int | slice) -> F | Sequence[F]:
        if isinstance(index, slice):
            return [self[i] for i in range(*index.indices(len(self)))]
        if not -len(self) <= index < len(self):
            raise IndexError(index)
        place = index % len(self)
        part = bisect_right(self._begins, place) - 1
        return self._parts[part].file(place - self._begins[part])

    def __iter__(self) -> Iterator[F]:
        return (part.file(i) for part in self._parts for i in range(len(part)))

    @cached_property
    def objects(self) -> Sequence[F]:
        """All files as objects, for sets of delete files: they have been made when they were decoded."""
        return list(self)

    @cached_property
    def sequence_numbers(self) -> Indices:
        """Data sequence numbers."""
        return _joined([part.sequence_numbers() for part in self._parts])

    @cached_property
    def sizes(self) -> Indices:
        """Stored bytes."""
        return _joined([part.sizes() for part in self._parts])

    @cached_property
    def partitions(self) -> dict[Partition, Indices]:
        """The files of each spec and partition."""
        codes: dict[Partition, int] = {}
        of_file = []
        for part in self._parts:
            partitions, places = part.partitions()
            of_part = np.array([codes.setdefault(p, len(codes)) for p in partitions], np.int64)
            of_file.append(of_part[places])
        joined = _joined(of_file)
        order = np.argsort(joined, kind="stable")
        ends = np.cumsum(np.bincount(joined, minlength=len(codes)))
        return dict(zip(codes, np.split(order, ends[:-1]), strict=True)) if codes else {}

    def indices(self, partition: Partition | None) -> Indices:
        """The files of a partition, or all for None."""
        if partition is None:
            return np.arange(len(self), dtype=np.int64)
        return self.partitions.get(partition, np.zeros(0, np.int64))

    def paths(self) -> Iterator[str]:
        """Paths as manifests write them."""
        return (path for part in self._parts for path in part.paths())

    def bounds(self, indices: Indices, field_id: int, type_: PrimitiveType, *, nan_matters: bool) -> KeyBounds:
        """Bounds of a key column in some files, as `key_bounds` gives them; `indices` ascend."""
        places = np.searchsorted(indices, self._begins)
        found = [
            part.bounds(indices[first:last] - begin, field_id, type_, nan_matters=nan_matters)
            for part, begin, first, last in zip(self._parts, self._begins, places, places[1:], strict=False)
            if first < last
        ]
        if len(found) == 1:
            return found[0]
        return KeyBounds(*map(np.concatenate, zip(*found, strict=True)))


def parts_of(manifests: Iterable[ManifestFiles[F]]) -> list[ColumnPart[F]]:
    """The files of manifests as few parts: those that were decoded together and stand together are one."""
    spans: list[tuple[ManifestFiles[F], int]] = []
    for files in manifests:
        if spans and spans[-1][0].columns is files.columns and spans[-1][1] == files.first:
            spans[-1] = spans[-1][0], files.last
        else:
            spans.append((files, files.last))
    return [ColumnPart(files.columns, np.arange(files.first, last)) for files, last in spans]


def _joined(arrays: Sequence[Numbers]) -> Indices:
    return np.concatenate([np.zeros(0, np.int64), *arrays]).astype(np.int64, copy=False)


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
Cut = tuple[int, int, int]
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


def _cut(tasks: Sequence[FileScanTask], split_bytes: int) -> tuple[list[int | Cut], list[int]]:
    """Indices of whole tasks and parts of others in order, and where each split begins."""
    sizes = tasks.data_files.sizes.tolist() if isinstance(tasks, PlannedTasks) else [t.length for t in tasks]
    open_cost = min(OPEN_FILE_COST_BYTES, max(1, split_bytes // MIN_SMALL_FILES))
    parts: list[int | Cut] = []
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


def _task_of(part: int | Cut, tasks: Sequence[FileScanTask]) -> FileScanTask:
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
