"""Equality deletes -> one group per key set and scope, and which groups each data file needs (SEMANTICS rules 1, 4, 18).

Works on columns: sequence numbers and key bounds of all files of a scope at once. The scope of a delete is its
partition, or everything if its spec is unpartitioned.
"""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from scan_core.plan.delete_keys import key_ids_of
from scan_core.plan.file_set import FileSet, Indices
from scan_core.plan.key_bounds import Booleans, KeyBounds, disjoint
from scan_core.plan.key_clusters import LEAST_FILES, key_clusters
from scan_core.schema import NestedField, PrimitiveType
from scan_core.snapshot import DataFile, DeleteFile, PartitionSpec
from scan_core.split import EqualityDeleteGroup

Scope = tuple[int, tuple[Any, ...]] | None
"""(spec id, partition); None is global."""


@dataclass(slots=True)
class EqualityAssignment:
    """What was found: the groups, which of them data files need together, and which deletes met no data file.

    `combination_of` tells the index of each data file's combination.
    """

    groups: list[EqualityDeleteGroup]
    combinations: list[tuple[EqualityDeleteGroup, ...]]
    combination_of: Indices
    out_of_scope: list[DeleteFile]
    out_of_bounds: list[DeleteFile]


def scope_of(delete_file: DeleteFile, specs: Mapping[int, PartitionSpec]) -> Scope:
    """Where an equality delete reaches (SEMANTICS rule 4)."""
    if specs[delete_file.spec_id].is_unpartitioned:
        return None
    return delete_file.spec_id, delete_file.partition


def assign_equality_deletes(
    wanted: Sequence[int],
    deletes: FileSet[DeleteFile],
    data: FileSet[DataFile],
    specs: Mapping[int, PartitionSpec],
    field_paths: Mapping[int, tuple[NestedField, ...]],
    *,
    prune: bool,
) -> EqualityAssignment:
    """Group equality-delete files, and find the groups that may touch each data file.

    Args:
        wanted: which of `deletes` to group.
        deletes: delete files of the snapshot.
        data: the data files of the scan.
        specs: partition specs by id.
        field_paths: fields of all schemas by id.
        prune: use key bounds to leave out deletes that cannot touch a file.

    Raises:
        MalformedTableError: a delete that meets a data file has illegal `equality_ids`.
    """
    result = EqualityAssignment([], [()], np.zeros(len(data), np.int64), [], [])
    by_group: dict[tuple[Scope, tuple[int, ...]], list[int]] = defaultdict(list)
    oldest = _OldestInScope(data)
    objects = deletes.objects
    key_ids: dict[tuple[int, ...], tuple[int, ...]] = {}
    for index in wanted:
        delete_file = objects[index]
        scope = scope_of(delete_file, specs)
        if delete_file.data_sequence_number <= oldest.of(scope):
            result.out_of_scope.append(delete_file)
        else:
            ids = delete_file.equality_ids
            if ids not in key_ids or delete_file.is_deletion_vector:
                key_ids[ids] = key_ids_of(delete_file, field_paths)
            by_group[scope, key_ids[ids]].append(index)
    scopes: list[Scope] = []
    combinations = _Combinations(result.combination_of)
    matcher = _Matcher(data, deletes, field_paths, prune=prune)
    has_one_key = len(set(key_ids.values())) == 1  # covering groups must be whole
    may_split = {g for g, members in by_group.items() if prune and has_one_key and len(members) > 2 * LEAST_FILES}
    for (scope, ids), members in by_group.items():
        chosen = np.array(members, np.int64)
        indices = data.indices(scope)
        touched, used = matcher.match(chosen, indices, ids)
        result.out_of_bounds.extend(objects[i] for i in chosen[~used].tolist())
        if not used.any():
            continue
        clusters = [(chosen[used], indices[touched])]
        if (scope, ids) in may_split:
            clusters = matcher.clusters(*clusters[0], ids)
        for files, touched_files in clusters:
            combinations.add(len(result.groups), touched_files)
            scopes.append(scope)
            result.groups.append(EqualityDeleteGroup(ids, _oldest_first(deletes, files)))
    if prune:
        _state_covers(result.groups, scopes)
    result.combinations = [tuple(result.groups[n] for n in numbers) for numbers in combinations.known]
    return result


def _oldest_first(deletes: FileSet[DeleteFile], chosen: Indices) -> tuple[DeleteFile, ...]:
    order = np.argsort(deletes.sequence_numbers[chosen], kind="stable")
    return tuple([deletes.objects[i] for i in chosen[order].tolist()])


class _Combinations:
    """Which groups each data file needs, as an index of `known`."""

    def __init__(self, of_file: Indices) -> None:
        self._of_file = of_file
        self.known: list[tuple[int, ...]] = [()]

    def add(self, group: int, touched: Indices) -> None:
        """These files need one more group."""
        before, places = np.unique(self._of_file[touched], return_inverse=True)
        first = len(self.known)
        self.known.extend((*self.known[c], group) for c in before.tolist())
        self._of_file[touched] = first + places


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

    def __init__(self, data: FileSet[DataFile]) -> None:
        self._data = data
        self._known: dict[Scope, int] = {}

    def of(self, scope: Scope) -> int:
        if scope not in self._known:
            numbers = self._data.sequence_numbers[self._data.indices(scope)]
            self._known[scope] = int(numbers.min()) if len(numbers) else int(self._NONE)
        return self._known[scope]


class _Matcher:
    """Which deletes may touch which data files, by sequence numbers and key bounds."""

    def __init__(
        self,
        data: FileSet[DataFile],
        deletes: FileSet[DeleteFile],
        field_paths: Mapping[int, tuple[NestedField, ...]],
        *,
        prune: bool,
    ) -> None:
        self._data = data
        self._deletes = deletes
        self._field_paths = field_paths
        self._prune = prune
        self._whole: dict[int, KeyBounds] = {}

    def match(self, chosen: Indices, indices: Indices, key_ids: tuple[int, ...]) -> tuple[Booleans, Booleans]:
        """Which of these data files some delete may touch, and which of the chosen deletes may touch some data file.

        Loops over the shorter side; the longer one is a column.
        """
        delete_numbers = self._deletes.sequence_numbers[chosen]
        data_numbers = self._data.sequence_numbers[indices]
        left = [self._of_deletes(i, chosen) for i in key_ids] if self._prune else []
        usable = [(one, i) for one, i in zip(left, key_ids, strict=False) if one.known.any()]
        if not usable:
            return data_numbers < delete_numbers.max(), delete_numbers > data_numbers.min()
        pairs = [(one, self._of_data(i, indices)) for one, i in usable]
        touched = np.zeros(len(indices), np.bool_)
        used = np.zeros(len(chosen), np.bool_)
        if len(chosen) <= len(indices):
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

    def clusters(self, chosen: Indices, indices: Indices, key_ids: tuple[int, ...]) -> list[tuple[Indices, Indices]]:
        """The deletes and the data files they touch, in parts that have nothing to do with each other."""
        pairs = [
            (self._of_deletes(i, chosen), self._data.bounds(indices, i, self._type_of(i), nan_matters=False))
            for i in key_ids
        ]
        of_delete, of_data = key_clusters(pairs, len(chosen))
        numbers = np.unique(of_delete).tolist()
        return [(chosen[of_delete == n], indices[of_data == n]) for n in numbers]

    def _of_data(self, field_id: int, indices: Indices) -> KeyBounds:
        if len(indices) < len(self._data):
            return self._data.bounds(indices, field_id, self._type_of(field_id), nan_matters=False)
        if field_id not in self._whole:
            self._whole[field_id] = self._data.bounds(indices, field_id, self._type_of(field_id), nan_matters=False)
        return self._whole[field_id]

    def _of_deletes(self, field_id: int, chosen: Indices) -> KeyBounds:
        return self._deletes.bounds(chosen, field_id, self._type_of(field_id), nan_matters=True)

    def _type_of(self, field_id: int) -> PrimitiveType:
        key_type = self._field_paths[field_id][-1].type
        assert isinstance(key_type, PrimitiveType)  # noqa: S101 - key_ids_of checked it
        return key_type
