"""DeleteFileIndex: all deletes of a snapshot matched against the data files of a scan (SEMANTICS rules 1 to 8).

The rule that a delete applies to older data only is here: equality deletes to data files with a lower data sequence number,
position deletes to those with the same or a lower one. Equality deletes become groups of one key set and scope; position
deletes and deletion vectors apply to single files.
"""

from bisect import bisect_left
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import pyarrow as pa

from nevermore.scan_core.io.files import exists, refuse_moved
from nevermore.scan_core.io.location import FileIOConfig, parse_location, relocate
from nevermore.scan_core.metadata.bulk_manifests import EQUALITY_CONTENT, FORMATS, path_at
from nevermore.scan_core.model.errors import MalformedTableError
from nevermore.scan_core.model.schema import NestedField, PrimitiveType, StructType
from nevermore.scan_core.model.snapshot import DataFile, DeleteContent, DeleteFile, FileFormat, PartitionSpec
from nevermore.scan_core.model.statistics import text_of
from nevermore.scan_core.plan.file_pruner import EXAMPLES, PlanTrace
from nevermore.scan_core.plan.file_set import (
    ColumnPart,
    FileSet,
    Indices,
    KeyBounds,
    MatchedDeletes,
    PlannedTasks,
    disjoint,
)
from nevermore.scan_core.rows.buffers import Mask, index_array, numbers, scalar
from nevermore.scan_core.split.tasks import EqualityDeleteGroup, ScanContext


def key_ids_of(delete_file: DeleteFile, field_paths: Mapping[int, tuple[NestedField, ...]]) -> tuple[int, ...]:
    """Sorted ids of the key columns of an equality-delete file; looked up over all schemas of the table.

    Raises:
        MalformedTableError: no ids, an id no schema has, of something that is not primitive, or inside a list or map.
    """
    if delete_file.is_deletion_vector:
        raise MalformedTableError(f"{delete_file.path}: content (134) of a deletion vector is 2; it must be 1")
    if not delete_file.equality_ids:
        raise MalformedTableError(f"{delete_file.path}: equality_ids (135) is missing or empty in its manifest entry")
    for field_id in delete_file.equality_ids:
        path = field_paths.get(field_id)
        if path is None:
            raise _malformed(delete_file, field_id, "which no schema of the table has")
        if not isinstance(path[-1].type, PrimitiveType):
            raise _malformed(delete_file, field_id, f"which is a {path[-1].type}; keys are primitive")
        if any(not isinstance(parent.type, StructType) for parent in path[:-1]):
            raise _malformed(delete_file, field_id, "which is inside a list or map")
    return tuple(sorted(set(delete_file.equality_ids)))


def _malformed(delete_file: DeleteFile, field_id: int, reason: str) -> MalformedTableError:
    return MalformedTableError(f"{delete_file.path}: equality_ids (135) names field {field_id}, {reason}")


_BY_SCOPE, _BY_KEYS = "scope or sequence number", "key bounds"
"""Why a delete file is not used."""
MIN_FILES = 64
"""Delete files of a bundle: their keys are loaded in a few milliseconds, and a task that names them stays small."""


def key_clusters(pairs: Sequence[tuple[KeyBounds, KeyBounds]], num_deletes: int) -> tuple[Indices, Indices]:
    """The number of the cluster of each delete file and each data file; all 0 if there is a single cluster.

    Args:
        pairs: for each key column with bounds, those of the delete files and of the data files that some may touch.
        num_deletes: how many delete files there are.
    """
    best = None
    for deletes, data in pairs:
        found = _by_column(deletes, data)
        if found is not None and (best is None or found[0].max() > best[0].max()):
            best = found
    num_data = len(pairs[0][1].known) if pairs else 0
    return best or (np.zeros(num_deletes, np.int64), np.zeros(num_data, np.int64))


def _by_column(deletes: KeyBounds, data: KeyBounds) -> tuple[Indices, Indices] | None:
    """Clusters by the bounds of one column; None if bounds are missing, or NULL may be on both sides: then every delete may touch every file."""
    if not deletes.known.all() or not data.known.all():
        return None
    if deletes.may_have_null.any() and data.may_have_null.any():
        return None
    lower = np.concatenate([deletes.lower, data.lower])
    order = np.argsort(lower, kind="stable")
    reached = np.maximum.accumulate(np.concatenate([deletes.upper, data.upper])[order])
    begins = np.concatenate([[False], lower[order][1:] > reached[:-1]])
    is_delete = order < len(deletes.known)
    chains = np.cumsum(begins)
    files = np.bincount(chains, weights=is_delete).cumsum() - 1
    bundles = np.maximum(files, 0).astype(np.int64) // MIN_FILES
    of_row = np.empty(len(order), np.int64)
    of_row[order] = np.unique(bundles[chains], return_inverse=True)[1]
    return of_row[: len(deletes.known)], of_row[len(deletes.known) :]


Scope = tuple[int, tuple[Any, ...]] | None
"""(spec id, partition); None is global."""


@dataclass(slots=True)
class EqualityAssignment:
    """The groups, which of them data files need together, and the deletes that apply to no data file.

    `combination_of` tells the index of each data file's combination.
    """

    groups: list[EqualityDeleteGroup]
    combinations: list[tuple[EqualityDeleteGroup, ...]]
    combination_of: Indices
    out_of_scope: list[DeleteFile]
    out_of_bounds: list[DeleteFile]


def scope_of(delete_file: DeleteFile, specs: Mapping[int, PartitionSpec]) -> Scope:
    """The scope of an equality delete: one partition or the whole table (SEMANTICS rule 4)."""
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
        MalformedTableError: a delete that applies to a data file has illegal `equality_ids`.
    """
    result = EqualityAssignment([], [()], np.zeros(len(data), np.int64), [], [])
    by_group: dict[tuple[Scope, tuple[int, ...]], list[int]] = defaultdict(list)
    oldest_in: dict[Scope, int] = {}
    objects = deletes.objects
    key_ids: dict[tuple[int, ...], tuple[int, ...]] = {}
    for index in wanted:
        delete_file = objects[index]
        scope = scope_of(delete_file, specs)
        if scope not in oldest_in:  # of its data files; a delete that is not newer applies to none of them
            oldest_in[scope] = int(data.sequence_numbers[data.indices(scope)].min(initial=np.iinfo(np.int64).max))
        if delete_file.data_sequence_number <= oldest_in[scope]:
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
    may_split = {g for g, members in by_group.items() if prune and has_one_key and len(members) > 2 * MIN_FILES}
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


class DeleteReach:
    """Tells by columns which delete files cannot touch any of some data files, before they become objects."""

    def __init__(self, data: FileSet[DataFile], context: ScanContext) -> None:
        self._data = data
        self._specs = context.specs
        self._field_paths = context.field_paths
        self._may_compare_bounds = context.options.switches.prune_deletes
        self._oldest = int(data.sequence_numbers.min(initial=np.iinfo(np.int64).max))
        self._hulls: dict[int, KeyBounds | None] = {}

    def prune(self, part: ColumnPart[DeleteFile], trace: PlanTrace) -> ColumnPart[DeleteFile]:
        """The delete files that may touch a data file, and all that are not equality deletes; the others are traced."""
        columns = part.columns
        is_vector = columns.formats[part.rows] == FORMATS.index(FileFormat.PUFFIN)
        is_equality = (columns.contents[part.rows] == EQUALITY_CONTENT) & ~is_vector
        out_of_scope = columns.sequence_numbers[part.rows] <= self._oldest
        if not self._specs[columns.spec_id].is_unpartitioned:
            scopes = [(columns.spec_id, partition) in self._data.partitions for partition in columns.partitions]
            out_of_scope |= ~np.array(scopes, np.bool_)[columns.partition_codes[part.rows]]
        out_of_scope &= is_equality
        out_of_bounds = np.zeros(len(part), np.bool_)
        if self._may_compare_bounds:
            left = np.flatnonzero(is_equality & ~out_of_scope)
            for ids, chosen in _by_lists(columns.equality_ids.take(index_array(part.rows[left]))):
                out_of_bounds[left[chosen]] = self._beyond(part, left[chosen], ids)
        for reason, left_out in ((_BY_SCOPE, out_of_scope), (_BY_KEYS, out_of_bounds)):
            if left_out.any():
                names = [path_at(columns, row) for row in part.rows[left_out][:EXAMPLES].tolist()]
                trace.delete_files[reason].add(*names, count=int(left_out.sum()))
        return part.where(~(out_of_scope | out_of_bounds))

    def _beyond(self, part: ColumnPart[DeleteFile], chosen: Indices, ids: tuple[int, ...]) -> Mask:
        """The files whose keys all lie outside the bounds of all data files; none if their field ids are invalid."""
        found = np.zeros(len(chosen), np.bool_)
        paths = [self._field_paths.get(i, ()) for i in ids]
        if not all(path and isinstance(path[-1].type, PrimitiveType) for path in paths):
            return found
        for field_id, path in zip(ids, paths, strict=True):
            kind = path[-1].type
            assert isinstance(kind, PrimitiveType)  # noqa: S101  compared above
            if (hull := self._hull(field_id, kind)) is not None:
                found |= disjoint(part.bounds(chosen, field_id, kind, nan_matters=True), hull, 0)
        return found

    def _hull(self, field_id: int, kind: PrimitiveType) -> KeyBounds | None:
        """The bounds of a column over all data files together; None if a file lacks them."""
        if field_id not in self._hulls:
            indices = np.arange(len(self._data), dtype=np.int64)
            found = self._data.bounds(indices, field_id, kind, nan_matters=False)
            each = found.lower.min(keepdims=True), found.upper.max(keepdims=True)
            has_null = np.array([found.may_have_null.any()])
            self._hulls[field_id] = KeyBounds(*each, found.known[:1], has_null) if found.known.all() else None
        return self._hulls[field_id]


def _by_lists(lists: pa.ListArray) -> Iterator[tuple[tuple[int, ...], Indices]]:
    """The distinct lists, and the places of each."""
    counts, values = numbers(lists.value_lengths().fill_null(scalar(0, pa.int32()))), numbers(lists.flatten())
    ends = np.cumsum(counts)
    for count in np.unique(counts[counts > 0]).tolist():
        chosen = np.flatnonzero(counts == count)
        each = values[ends[chosen][:, None] - np.arange(count, 0, -1)]
        distinct, which = np.unique(each, axis=0, return_inverse=True)
        for number, ids in enumerate(distinct.tolist()):
            yield tuple(ids), chosen[which.reshape(-1) == number]


def _oldest_first(deletes: FileSet[DeleteFile], chosen: Indices) -> tuple[DeleteFile, ...]:
    order = np.argsort(deletes.sequence_numbers[chosen], kind="stable")
    return tuple([deletes.objects[i] for i in chosen[order].tolist()])


class _Combinations:
    """Which groups each data file needs, as an index of `known`."""

    def __init__(self, of_file: Indices) -> None:
        self._of_file = of_file
        self.known: list[tuple[int, ...]] = [()]

    def add(self, group: int, touched: Indices) -> None:
        """Add one group to those that these files need."""
        before, places = np.unique(self._of_file[touched], return_inverse=True)
        first = len(self.known)
        self.known.extend((*self.known[c], group) for c in before.tolist())
        self._of_file[touched] = first + places


def _state_covers(groups: list[EqualityDeleteGroup], scopes: Sequence[Scope]) -> None:
    """Record for each group which narrower groups reach as far; narrower ones first, because their own covers are part of them."""
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
        self._of_all: dict[tuple[int, bool], KeyBounds] = {}

    def match(self, chosen: Indices, indices: Indices, key_ids: tuple[int, ...]) -> tuple[Mask, Mask]:
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
        pairs = [(self._of_deletes(i, chosen), self._of_data(i, indices)) for i in key_ids]
        of_delete, of_data = key_clusters(pairs, len(chosen))
        numbers = np.unique(of_delete).tolist()
        return [(chosen[of_delete == n], indices[of_data == n]) for n in numbers]

    def _of_data(self, field_id: int, indices: Indices) -> KeyBounds:
        return self._bounds(self._data, field_id, indices, nan_matters=False)

    def _of_deletes(self, field_id: int, chosen: Indices) -> KeyBounds:
        return self._bounds(self._deletes, field_id, chosen, nan_matters=True)

    def _bounds(
        self, files: FileSet[DataFile] | FileSet[DeleteFile], field_id: int, indices: Indices, *, nan_matters: bool
    ) -> KeyBounds:
        """Bounds of a key column in some files.

        They are decoded for all files at once: a table of many partitions asks for a few files thousands of times, and a
        call costs as much as decoding some hundred bounds.
        """
        name = (field_id, nan_matters)
        if name not in self._of_all:
            everything = np.arange(len(files), dtype=np.int64)
            self._of_all[name] = files.bounds(everything, field_id, self._type_of(field_id), nan_matters=nan_matters)
        found = self._of_all[name]
        return found if len(indices) == len(files) else KeyBounds(*(column[indices] for column in found))

    def _type_of(self, field_id: int) -> PrimitiveType:
        key_type = self._field_paths[field_id][-1].type
        assert isinstance(key_type, PrimitiveType)  # noqa: S101 - key_ids_of checked it
        return key_type


class PathIndex:
    """Indices of data files by the path that a delete states."""

    def __init__(self, paths: Iterable[str], io: FileIOConfig) -> None:
        self._io = io
        self._exact: dict[str, list[int]] = {}
        self._by_path: dict[str, list[tuple[str, int]]] = {}
        for index, path in enumerate(paths):
            self._exact.setdefault(path, []).append(index)
            self._by_path.setdefault(relocate(path, io).path, []).append((path, index))
        self._sorted: list[str] | None = None
        self._by_name: dict[str, list[str]] | None = None

    def find(self, path: str) -> tuple[list[int], bool]:
        """Indices of the data files at `path`, and whether only relocation or leniency found them."""
        exact = self._exact.get(path)
        if exact is not None:
            return exact, False
        wanted = relocate(path, self._io)
        named = self._by_path.get(wanted.path, ())
        return [index for other, index in named if wanted.may_equal(relocate(other, self._io))], True

    def refuse_moved(self, path: str, delete_path: str) -> None:
        """Refuse a path that is no live file's, but was one before the table was moved, see `io.files.refuse_moved`.

        Raises:
            MalformedTableError: it was.
        """
        if self._by_name is None:
            self._by_name = {}
            for live in self._exact:
                self._by_name.setdefault(_name(live), []).append(live)
        for live in self._by_name.get(_name(path), ()):
            refuse_moved(path, live, self._io, delete_path)

    def starts_some_path(self, prefix: str) -> bool:
        """Whether some live path begins with `prefix`, which may be a path cut off by a writer of bounds."""
        if self._sorted is None:
            self._sorted = sorted(set(self._by_path) | {parse_location(path).path for path in self._exact})
        for wanted in {parse_location(prefix).path, relocate(prefix, self._io).path}:
            at = bisect_left(self._sorted, wanted)
            if at < len(self._sorted) and self._sorted[at].startswith(wanted):
                return True
        return False


def _name(path: str) -> str:
    return path.rpartition("/")[2]


FILE_PATH_ID = 2147483546
"""Reserved field id of `file_path` in position-delete files."""


@dataclass(slots=True)
class PositionAssignment:
    """Vectors and delete files by index of the data file, and the deletes that apply to none."""

    vectors: dict[int, DeleteFile] = field(default_factory=dict)
    files: dict[int, tuple[DeleteFile, ...]] = field(default_factory=dict)
    unmatched: list[DeleteFile] = field(default_factory=list)
    relocated_matches: int = 0


def assign_position_deletes(
    deletes: Sequence[DeleteFile], data: FileSet[DataFile], paths: PathIndex, *, prune: bool
) -> PositionAssignment:
    """Find the data files of each position delete.

    Args:
        deletes: position-delete files and deletion vectors of the snapshot.
        data: the data files of the scan.
        paths: the same data files by path.
        prune: let equal bounds of `file_path` stand for a named data file.

    Raises:
        MalformedTableError: a delete names a data file of another partition or spec, or one where it lay before the table
            was moved; two vectors for one data file, a
            vector older than it, or one that lacks a reference, offset or size.
    """
    result = PositionAssignment()
    named: dict[int, list[DeleteFile]] = defaultdict(list)
    scoped: dict[tuple[int, tuple[Any, ...]], list[DeleteFile]] = defaultdict(list)
    for delete_file in deletes:
        target = _named_target(delete_file, paths, prune=prune)
        if target is not None:
            found = paths.find(target)
            if not found[0]:
                paths.refuse_moved(target, delete_file.path)
            _assign_named(delete_file, found, data, result, named)
        elif delete_file.is_deletion_vector:
            _check_unnamed_vector(delete_file, data)
            result.unmatched.append(delete_file)
        elif prune and _names_only_dead_files(delete_file, paths):
            paths.refuse_moved(_only_path(delete_file) or "", delete_file.path)
            result.unmatched.append(delete_file)
        else:
            scoped[delete_file.spec_id, delete_file.partition].append(delete_file)
    for scope, files in scoped.items():
        _assign_scoped(scope, files, data, result, named)
    for index, files in named.items():
        if index not in result.vectors:  # a vector replaces the files (rule 6)
            result.files[index] = tuple(files)
    return result


def _named_target(delete_file: DeleteFile, paths: PathIndex, *, prune: bool) -> str | None:
    if delete_file.referenced_data_file is not None:
        return delete_file.referenced_data_file
    if prune and not delete_file.is_deletion_vector:
        path = _only_path(delete_file)
        if path is not None and paths.find(path)[0]:
            return path
    return None


def _only_path(delete_file: DeleteFile) -> str | None:
    """The one path in the file, if its bounds say so."""
    lower = delete_file.lower_bounds.get(FILE_PATH_ID)
    if lower is None or lower != delete_file.upper_bounds.get(FILE_PATH_ID):
        return None
    return text_of(lower)


def _names_only_dead_files(delete_file: DeleteFile, paths: PathIndex) -> bool:
    """Its one path is no live file, nor the beginning of one cut off by the writer of the bounds."""
    path = _only_path(delete_file)
    return path is not None and not paths.starts_some_path(path)


def _assign_named(
    delete_file: DeleteFile,
    found: tuple[list[int], bool],
    data: FileSet[DataFile],
    result: PositionAssignment,
    named: dict[int, list[DeleteFile]],
) -> None:
    indices, is_relocated = found
    if not indices:
        result.unmatched.append(delete_file)
        return
    result.relocated_matches += is_relocated
    applies = False
    for index in indices:
        data_file = data[index]
        _check_scope(delete_file, data_file)
        if delete_file.is_deletion_vector:
            _check_vector(delete_file, data_file, result.vectors.get(index))
            result.vectors[index] = delete_file
            applies = True
        elif delete_file.data_sequence_number >= data_file.data_sequence_number:
            named[index].append(delete_file)
            applies = True
    if not applies:
        result.unmatched.append(delete_file)


def _assign_scoped(
    scope: tuple[int, tuple[Any, ...]],
    files: list[DeleteFile],
    data: FileSet[DataFile],
    result: PositionAssignment,
    named: dict[int, list[DeleteFile]],
) -> None:
    files.sort(key=lambda f: f.data_sequence_number)
    numbers = [f.data_sequence_number for f in files]
    first_used = len(files)
    for index in data.indices(scope).tolist():
        first = bisect_left(numbers, data.sequence_numbers.item(index))
        first_used = min(first_used, first)
        named[index].extend(files[first:])
    result.unmatched.extend(files[:first_used])


def _check_scope(delete_file: DeleteFile, data_file: DataFile) -> None:
    if (delete_file.spec_id, delete_file.partition) != (data_file.spec_id, data_file.partition):
        raise MalformedTableError(
            f"{delete_file.path}: partition (102) {delete_file.partition} of spec {delete_file.spec_id} is not that of "
            f"its data file {data_file.path}: {data_file.partition} of spec {data_file.spec_id}"
        )


def _check_vector(vector: DeleteFile, data_file: DataFile, other: DeleteFile | None) -> None:
    if other is not None:
        raise MalformedTableError(
            f"{data_file.path}: two deletion vectors in one snapshot: {other.path} at {other.content_offset} and "
            f"{vector.path} at {vector.content_offset}"
        )
    if vector.data_sequence_number < data_file.data_sequence_number:
        raise MalformedTableError(
            f"{vector.path}: sequence_number (3) {vector.data_sequence_number} of the deletion vector is older than "
            f"its data file {data_file.path} ({data_file.data_sequence_number})"
        )
    for name, value in (
        ("content_offset (144)", vector.content_offset),
        ("content_size_in_bytes (145)", vector.content_size_bytes),
    ):
        if value is None or value < 0:
            raise MalformedTableError(f"{vector.path}: {name} of a deletion vector is {value}")


def _check_unnamed_vector(vector: DeleteFile, data: FileSet[DataFile]) -> None:
    numbers = data.sequence_numbers[data.indices((vector.spec_id, vector.partition))]
    if len(numbers) and numbers.min() <= vector.data_sequence_number:
        raise MalformedTableError(f"{vector.path}: referenced_data_file (143) of a deletion vector is missing")


@dataclass(slots=True)
class DeleteFileIndex:
    """The tasks, whole files each, with the deletes that may touch them.

    Attributes:
        tasks: one per data file, in the order given.
        groups: the equality-delete groups that the tasks share.
        position_files: position-delete files that tasks name.
        vectors: deletion vectors that tasks name.
        pruned: delete files no task names, by why.
        relocated_matches: deletes whose data file was found only after relocation.
    """

    tasks: PlannedTasks
    groups: tuple[EqualityDeleteGroup, ...] = ()
    position_files: tuple[DeleteFile, ...] = ()
    vectors: tuple[DeleteFile, ...] = ()
    pruned: dict[str, list[DeleteFile]] = field(default_factory=dict)
    relocated_matches: int = 0

    @property
    def num_delete_files(self) -> int:
        """Delete files and vectors that some task names."""
        return sum(len(g.files) for g in self.groups) + len(self.position_files) + len(self.vectors)


def build_delete_index(
    data_files: Sequence[DataFile], delete_files: Sequence[DeleteFile], context: ScanContext
) -> DeleteFileIndex:
    """Match the delete files of a snapshot against the data files of a scan.

    Raises:
        MalformedTableError: a delete that applies to a data file breaks the rules; names its file and the field.
    """
    data = FileSet.of(data_files)
    if not delete_files:
        return DeleteFileIndex(PlannedTasks(data, MatchedDeletes.none(len(data))))
    prune = context.options.switches.prune_deletes
    deletes = FileSet.of(delete_files)
    objects = deletes.objects
    absent = _absent(objects, context)
    equality = [i for i, f in enumerate(objects) if f.content is DeleteContent.EQUALITY and i not in absent]
    positions = [f for i, f in enumerate(objects) if f.content is DeleteContent.POSITION and i not in absent]
    by_key = assign_equality_deletes(equality, deletes, data, context.specs, context.field_paths, prune=prune)
    paths = PathIndex(data.paths() if positions else (), context.io)
    by_position = assign_position_deletes(positions, data, paths, prune=prune)
    matched = MatchedDeletes(by_key.combinations, by_key.combination_of, by_position.files, by_position.vectors)
    tasks = PlannedTasks(data, matched)
    named = {id(f): f for files in by_position.files.values() for f in files}
    vectors = {id(v): v for v in by_position.vectors.values()}
    unmatched = {id(f) for f in by_position.unmatched}
    superseded = [f for f in positions if id(f) not in named and id(f) not in vectors and id(f) not in unmatched]
    pruned = {
        _BY_SCOPE: by_key.out_of_scope,
        _BY_KEYS: by_key.out_of_bounds,
        "no such data file": by_position.unmatched,
        "replaced by a deletion vector": superseded,
        "no rows and no file": [objects[i] for i in sorted(absent)],
    }
    return DeleteFileIndex(
        tasks=tasks,
        groups=tuple(by_key.groups),
        position_files=tuple(named.values()),
        vectors=tuple(vectors.values()),
        pruned={why: files for why, files in pruned.items() if files},
        relocated_matches=by_position.relocated_matches,
    )


def _absent(delete_files: Sequence[DeleteFile], context: ScanContext) -> set[int]:
    """Indices of empty delete files that do not exist: some writers commit an empty file without creating it."""
    return {i for i, f in enumerate(delete_files) if f.record_count == 0 and not exists(f.path, context.io)}
