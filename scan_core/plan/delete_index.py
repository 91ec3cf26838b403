"""DeleteFileIndex: all deletes of a snapshot matched against the data files of a scan (SEMANTICS rules 1 to 8).

A delete whose scope and sequence number meet no data file is neither opened nor validated.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

from scan_core.file_io import exists
from scan_core.plan.equality_groups import assign_equality_deletes
from scan_core.plan.file_set import FileSet
from scan_core.plan.path_index import PathIndex
from scan_core.plan.planned_tasks import MatchedDeletes, PlannedTasks
from scan_core.plan.position_deletes import assign_position_deletes
from scan_core.snapshot import DataFile, DeleteContent, DeleteFile
from scan_core.split import EqualityDeleteGroup, ScanContext


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
        MalformedTableError: a delete that meets a data file breaks the rules; names its file and the field.
    """
    data = FileSet.of(data_files)
    if not delete_files:
        return DeleteFileIndex(PlannedTasks(data, MatchedDeletes.none(len(data))))
    prune = context.options.prune_deletes
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
        "scope or sequence number": by_key.out_of_scope,
        "key bounds": by_key.out_of_bounds,
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
    """Some writers commit an empty delete file and never create it."""
    return {i for i, f in enumerate(delete_files) if f.record_count == 0 and not exists(f.path, context.io)}
