"""The files that a plan considers: objects on demand, and what all of them are compared by as columns."""

from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence
from functools import cached_property
from itertools import accumulate
from typing import Any, Generic, TypeVar, overload

import numpy as np
import numpy.typing as npt

from scan_core.metadata.bulk_manifests import EntryColumns, ManifestFiles, Numbers, data_file_at, path_at
from scan_core.model.schema import PrimitiveType
from scan_core.model.snapshot import DataFile, DeleteFile
from scan_core.plan.key_bounds import KeyBounds, key_bounds, key_bounds_of_columns

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
        """One of them."""
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
        """Bounds of a key column in some of them."""
        return key_bounds([self.files[i] for i in indices.tolist()], field_id, type_, nan_matters=nan_matters)


class ColumnPart(Generic[F]):
    """Files of one manifest, or of several that were decoded together; `made` are the objects of all its rows."""

    __slots__ = ("columns", "made", "rows")

    def __init__(self, columns: EntryColumns, rows: Indices, made: Sequence[F] | None) -> None:
        self.columns = columns
        self.rows = rows
        self.made: Sequence[F] | None = made

    def __len__(self) -> int:
        return len(self.rows)

    def file(self, index: int) -> F:
        """One of them."""
        row = self.rows.item(index)
        return data_file_at(self.columns, row) if self.made is None else self.made[row]  # type: ignore[return-value]

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
        """Bounds of a key column in some of them."""

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
        """Bounds of a key column in some files, as `key_bounds.key_bounds` gives them; `indices` ascend."""
        places = np.searchsorted(indices, self._begins)
        found = [
            part.bounds(indices[first:last] - begin, field_id, type_, nan_matters=nan_matters)
            for part, begin, first, last in zip(self._parts, self._begins, places, places[1:], strict=False)
            if first < last
        ]
        if len(found) == 1:
            return found[0]
        return KeyBounds(*map(np.concatenate, zip(*found, strict=True)))


def parts_of(manifests: Iterable[Sequence[F]]) -> list[Part[F]]:
    """The files of manifests as few parts: those that were decoded together and stand together are one."""
    parts: list[Part[F]] = []
    objects: list[F] = []
    columns: EntryColumns | None = None
    begin = end = 0
    made: Any = None

    def finish() -> None:
        nonlocal columns, objects
        if columns is not None:
            parts.append(ColumnPart(columns, np.arange(begin, end), made))
        if objects:
            parts.append(ObjectPart(objects))
        columns, objects = None, []

    for files in manifests:
        if not isinstance(files, ManifestFiles):
            if columns is not None:
                finish()
            objects.extend(files)
        elif columns is files.columns and end == files.first:
            end = files.last
        else:
            finish()
            columns, made, begin, end = files.columns, files.made, files.first, files.last
    finish()
    return parts


def _joined(arrays: Sequence[Numbers]) -> Indices:
    return np.concatenate([np.zeros(0, np.int64), *arrays]).astype(np.int64, copy=False)
