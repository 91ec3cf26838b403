"""Position-delete files and deletion vectors -> the data files they apply to (SEMANTICS rules 2, 4, 6 and 7).

Never global: spec and partition must be equal. A delete that names its data file goes to that file alone.
"""

from bisect import bisect_left
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from scan_core.errors import MalformedTableError
from scan_core.plan.file_set import FileSet
from scan_core.plan.path_index import PathIndex
from scan_core.snapshot import DataFile, DeleteFile

FILE_PATH_ID = 2147483546
"""Reserved field id of `file_path` in position-delete files."""


@dataclass(slots=True)
class PositionAssignment:
    """What was found, by index of the data file; and the deletes that met none."""

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
    try:
        return lower.decode()
    except UnicodeDecodeError:
        return None


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
    met = False
    for index in indices:
        data_file = data[index]
        _check_scope(delete_file, data_file)
        if delete_file.is_deletion_vector:
            _check_vector(delete_file, data_file, result.vectors.get(index))
            result.vectors[index] = delete_file
            met = True
        elif delete_file.data_sequence_number >= data_file.data_sequence_number:
            named[index].append(delete_file)
            met = True
    if not met:
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
