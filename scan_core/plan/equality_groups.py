"""Equality deletes -> one group per key set and scope, and which groups each data file needs (SEMANTICS rules 1, 4, 18).

Works on columns: sequence numbers and key bounds of all files of a scope at once. The scope of a delete is its
partition, or everything if its spec is unpartitioned.
"""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from scan_core.plan.delete_keys import key_ids_of
from scan_core.plan.key_bounds import Booleans, KeyBounds, disjoint, key_bounds
from scan_core.schema import NestedField, PrimitiveType
from scan_core.snapshot import ContentFile, DataFile, DeleteFile, PartitionSpec
from scan_core.split import EqualityDeleteGroup

Scope = tuple[int, tuple[Any, ...]] | None
"""(spec id, partition); None is global."""
Indices = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class ScopedFiles:
    """The data files of a scan with what matching needs of them as columns."""

    files: Sequence[DataFile]
    sequence_numbers: npt.NDArray[np.int64]
    by_scope: Mapping[tuple[int, tuple[Any, ...]], Indices]

    @classmethod
    def of(cls, files: Sequence[DataFile]) -> "ScopedFiles":
        """Group data files by spec and partition."""
        members: dict[tuple[int, tuple[Any, ...]], list[int]] = defaultdict(list)
        for index, file in enumerate(files):
            members[file.spec_id, file.partition].append(index)
        numbers = np.fromiter((f.data_sequence_number for f in files), np.int64, len(files))
        return cls(files, numbers, {scope: np.array(indices, np.int64) for scope, indices in members.items()})

    def indices(self, scope: Scope) -> Indices:
        """The data files within a scope."""
        if scope is None:
            return np.arange(len(self.files), dtype=np.int64)
        return self.by_scope.get(scope, np.zeros(0, np.int64))


@dataclass(slots=True)
class EqualityAssignment:
    """What was found: the groups, which of them each data file needs, and which delete files met no data file."""

    groups: list[EqualityDeleteGroup]
    groups_of_file: list[tuple[EqualityDeleteGroup, ...]]
    out_of_scope: list[DeleteFile]
    out_of_bounds: list[DeleteFile]


def scope_of(delete_file: DeleteFile, specs: Mapping[int, PartitionSpec]) -> Scope:
    """Where an equality delete reaches (SEMANTICS rule 4)."""
    if specs[delete_file.spec_id].is_unpartitioned:
        return None
    return delete_file.spec_id, delete_file.partition


def assign_equality_deletes(
    deletes: Sequence[DeleteFile],
    data: ScopedFiles,
    specs: Mapping[int, PartitionSpec],
    field_paths: Mapping[int, tuple[NestedField, ...]],
    *,
    prune: bool,
) -> EqualityAssignment:
    """Group equality-delete files, and find the groups that may touch each data file.

    Args:
        deletes: equality-delete files of the snapshot.
        data: the data files of the scan.
        specs: partition specs by id.
        field_paths: fields of all schemas by id.
        prune: use key bounds to leave out deletes that cannot touch a file.

    Raises:
        MalformedTableError: a delete that meets a data file has illegal `equality_ids`.
    """
    result = EqualityAssignment([], [], [], [])
    by_group: dict[tuple[Scope, tuple[int, ...]], list[DeleteFile]] = defaultdict(list)
    oldest = _OldestInScope(data)
    for delete_file in deletes:
        scope = scope_of(delete_file, specs)
        if delete_file.data_sequence_number <= oldest.of(scope):
            result.out_of_scope.append(delete_file)
        else:
            by_group[scope, key_ids_of(delete_file, field_paths)].append(delete_file)
    needed: list[list[int]] = [[] for _ in data.files]
    scopes: list[Scope] = []
    columns = _DataBounds(data, field_paths)
    for (scope, key_ids), files in by_group.items():
        files.sort(key=lambda f: f.data_sequence_number)
        indices = data.indices(scope)
        touched, used = _match(files, indices, key_ids, columns, prune=prune)
        result.out_of_bounds.extend(f for f, is_used in zip(files, used, strict=True) if not is_used)
        if not used.any():
            continue
        number = len(result.groups)
        scopes.append(scope)
        result.groups.append(EqualityDeleteGroup(key_ids, tuple(f for f, u in zip(files, used, strict=True) if u)))
        for index in indices[touched].tolist():
            needed[index].append(number)
    if prune:
        _state_covers(result.groups, scopes)
    shared: dict[tuple[int, ...], tuple[EqualityDeleteGroup, ...]] = {(): ()}
    for numbers in needed:
        key = tuple(numbers)
        if key not in shared:
            shared[key] = tuple(result.groups[n] for n in key)
        result.groups_of_file.append(shared[key])
    return result


def _state_covers(groups: list[EqualityDeleteGroup], scopes: Sequence[Scope]) -> None:
    """Tell each group which narrower ones reach as far; narrower ones first, for their own covers are part of them."""
    by_scope: dict[Scope, list[int]] = defaultdict(list)
    for number, scope in enumerate(scopes):
        by_scope[scope].append(number)
    for number in sorted(range(len(groups)), key=lambda n: len(groups[n].key_ids)):
        group, candidates = groups[number], by_scope[scopes[number]]
        if scopes[number] is not None:
            candidates = [*by_scope[None], *candidates]
        covers = tuple(groups[n] for n in candidates if set(groups[n].key_ids) < set(group.key_ids))
        if covers:
            groups[number] = replace(group, covered_by=covers)


class _OldestInScope:
    """The lowest sequence number of the data files in a scope: a delete not above it meets none of them."""

    _NONE = np.iinfo(np.int64).max

    def __init__(self, data: ScopedFiles) -> None:
        self._data = data
        self._known: dict[Scope, int] = {}

    def of(self, scope: Scope) -> int:
        if scope not in self._known:
            numbers = self._data.sequence_numbers[self._data.indices(scope)]
            self._known[scope] = int(numbers.min()) if len(numbers) else int(self._NONE)
        return self._known[scope]


class _DataBounds:
    """Key bounds of the data files, one column at a time, made when first asked for."""

    def __init__(self, data: ScopedFiles, field_paths: Mapping[int, tuple[NestedField, ...]]) -> None:
        self.data = data
        self._field_paths = field_paths
        self._whole: dict[int, KeyBounds] = {}

    def of_data(self, field_id: int, indices: Indices) -> KeyBounds:
        if len(indices) < len(self.data.files):
            files: Sequence[ContentFile] = [self.data.files[i] for i in indices.tolist()]
            return self._bounds(files, field_id, nan_matters=False)
        if field_id not in self._whole:
            self._whole[field_id] = self._bounds(self.data.files, field_id, nan_matters=False)
        return self._whole[field_id]

    def of_deletes(self, field_id: int, files: Sequence[DeleteFile]) -> KeyBounds:
        return self._bounds(files, field_id, nan_matters=True)

    def _bounds(self, files: Sequence[ContentFile], field_id: int, *, nan_matters: bool) -> KeyBounds:
        key_type = self._field_paths[field_id][-1].type
        assert isinstance(key_type, PrimitiveType)  # noqa: S101 - key_ids_of checked it
        return key_bounds(files, field_id, key_type, nan_matters=nan_matters)


def _match(
    deletes: Sequence[DeleteFile], indices: Indices, key_ids: tuple[int, ...], columns: _DataBounds, *, prune: bool
) -> tuple[Booleans, Booleans]:
    """Which of the data files some delete may touch, and which of the deletes may touch some data file.

    Loops over the shorter side; the longer one is a column.
    """
    delete_numbers = np.array([f.data_sequence_number for f in deletes], np.int64)
    data_numbers = columns.data.sequence_numbers[indices]
    if not prune:
        return data_numbers < delete_numbers.max(), delete_numbers > data_numbers.min()
    left = [columns.of_deletes(i, deletes) for i in key_ids]
    usable = [(one, i) for one, i in zip(left, key_ids, strict=True) if one.known.any()]
    if not usable:
        return data_numbers < delete_numbers.max(), delete_numbers > data_numbers.min()
    pairs = [(one, columns.of_data(i, indices)) for one, i in usable]
    touched = np.zeros(len(indices), np.bool_)
    used = np.zeros(len(deletes), np.bool_)
    if len(deletes) <= len(indices):
        for at, number in enumerate(delete_numbers.tolist()):
            meets = data_numbers < number
            for of_deletes, of_data in pairs:
                meets &= ~disjoint(of_data, of_deletes, at)
            touched |= meets
            used[at] = meets.any()
    else:
        for at, number in enumerate(data_numbers.tolist()):
            meets = delete_numbers > number
            for of_deletes, of_data in pairs:
                meets &= ~disjoint(of_deletes, of_data, at)
            used |= meets
            touched[at] = meets.any()
    return touched, used
