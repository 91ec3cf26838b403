"""Two snapshots -> the files in which they differ: those that came or went, and those whose deletes changed.

Reads manifests, never data. A data file of both snapshots is looked at only if some delete of one of them, and not of
the other, may touch it; manifests of data that both snapshots share are opened only if their deletes differ.
"""

from collections import Counter
from collections.abc import Collection, Hashable, Sequence
from dataclasses import dataclass, field, replace

from scan_core.errors import MissingFileError
from scan_core.manifest_list import DATA_MANIFEST, ManifestFile, snapshot_manifests
from scan_core.metadata import TableMetadata
from scan_core.metrics import ScanMetrics
from scan_core.plan.delete_index import build_delete_index
from scan_core.plan.file_pruner import FilePruner
from scan_core.plan.planner import FileFinder
from scan_core.plan.trace import PlanTrace, total
from scan_core.snapshot import DataFile, DeleteContent, DeleteFile, Snapshot
from scan_core.split import FileIOConfig, FileScanTask, ScanContext


@dataclass(frozen=True, slots=True)
class Redeleted:
    """A data file of both snapshots whose deletes differ: one task per set of deletes, all of the same file.

    Attributes:
        common: deletes of both.
        before: deletes that only the earlier snapshot has.
        after: deletes that only the later one has.
    """

    common: FileScanTask
    before: FileScanTask
    after: FileScanTask


@dataclass(frozen=True, slots=True)
class FileChanges:
    """Where rows may have come or gone. Tasks carry the deletes of the snapshot that has the file."""

    vanished: Sequence[FileScanTask] = ()
    appeared: Sequence[FileScanTask] = ()
    redeleted: tuple[Redeleted, ...] = ()
    metrics: ScanMetrics = field(default_factory=ScanMetrics)

    @property
    def may_insert(self) -> bool:
        """Some row may be alive only in the later snapshot."""
        return bool(self.appeared) or any(_has_deletes(r.before) for r in self.redeleted)

    @property
    def may_delete(self) -> bool:
        """Some row may be alive only in the earlier snapshot."""
        return bool(self.vanished) or any(_has_deletes(r.after) for r in self.redeleted)


def file_changes(
    metadata: TableMetadata, earlier: Snapshot | None, later: Snapshot, context: ScanContext
) -> FileChanges:
    """The files in which two snapshots differ; `earlier` None stands for an empty table.

    Raises:
        MissingFileError: a manifest is gone.
        MalformedTableError: a manifest, or a delete that meets a data file, breaks the specification.
    """
    before = _manifests(earlier, context.io)
    after = _manifests(later, context.io)
    known_before, known_after = set(before), set(after)
    finder = FileFinder(metadata, context, FilePruner(metadata, context), PlanTrace())
    gone = finder.data_files([m for m in before if m.content == DATA_MANIFEST and m not in known_after])
    new = finder.data_files([m for m in after if m.content == DATA_MANIFEST and m not in known_before])
    vanished, kept = _split_by(gone, new)
    appeared, _ = _split_by(new, gone)
    if any(m.content != DATA_MANIFEST for m in known_before ^ known_after):
        kept += finder.data_files([m for m in before if m.content == DATA_MANIFEST and m in known_after])
    everything = [*vanished, *appeared, *kept]
    deletes_before = finder.delete_files([m for m in before if m.content != DATA_MANIFEST], everything)
    deletes_after = finder.delete_files([m for m in after if m.content != DATA_MANIFEST], everything)
    redeleted = _redeleted(kept, deletes_before, deletes_after, context)
    gone_tasks = build_delete_index(_oldest_first(vanished), deletes_before, context)
    new_tasks = build_delete_index(_oldest_first(appeared), deletes_after, context)
    trace = finder.trace
    return FileChanges(
        gone_tasks.tasks,
        new_tasks.tasks,
        redeleted,
        ScanMetrics(
            manifests_read=trace.manifests_read,
            manifests_pruned=total(trace.manifests),
            data_files_planned=len(gone_tasks.tasks) + len(new_tasks.tasks) + len(redeleted),
            data_files_pruned=total(trace.data_files),
            delete_files_planned=gone_tasks.num_delete_files + new_tasks.num_delete_files,
            relocated_position_matches=gone_tasks.relocated_matches + new_tasks.relocated_matches,
        ),
    )


def _manifests(snapshot: Snapshot | None, io: FileIOConfig) -> tuple[ManifestFile, ...]:
    if snapshot is None:
        return ()
    try:
        return snapshot_manifests(snapshot, io)
    except MissingFileError as error:
        raise MissingFileError(f"snapshot {snapshot.snapshot_id} cannot be read any more: {error}") from error


def _split_by(files: Sequence[DataFile], others: Sequence[DataFile]) -> tuple[list[DataFile], list[DataFile]]:
    """Files that `others` lacks, and those it has; a file that is listed twice counts twice."""
    left = Counter(_data_identity(f) for f in others)
    absent, present = [], []
    for file in files:
        identity = _data_identity(file)
        if left[identity]:
            left[identity] -= 1
            present.append(file)
        else:
            absent.append(file)
    return absent, present


def _oldest_first(files: Sequence[DataFile]) -> list[DataFile]:
    return sorted(files, key=lambda f: f.data_sequence_number)


def _redeleted(
    kept: Sequence[DataFile],
    deletes_before: Sequence[DeleteFile],
    deletes_after: Sequence[DeleteFile],
    context: ScanContext,
) -> tuple[Redeleted, ...]:
    known_before = {_delete_identity(f) for f in deletes_before}
    known_after = {_delete_identity(f) for f in deletes_after}
    if known_before == known_after:
        return ()
    keys_before, positions_before = _by_content(deletes_before)
    keys_after, positions_after = _by_content(deletes_after)
    gone = build_delete_index(kept, _without(keys_before, known_after), context).tasks
    new = build_delete_index(kept, _without(keys_after, known_before), context).tasks
    by_position_before = build_delete_index(kept, positions_before, context).tasks
    by_position_after = build_delete_index(kept, positions_after, context).tasks
    touched = [
        i
        for i, task in enumerate(new)
        if task.equality_deletes
        or gone[i].equality_deletes
        or _position_identities(by_position_before[i]) != _position_identities(by_position_after[i])
    ]
    shared_keys = [f for f in keys_after if _delete_identity(f) in known_before]
    common = build_delete_index([kept[i] for i in touched], shared_keys, context).tasks
    return tuple(
        Redeleted(
            _with_positions(shared, by_position_after[i], _position_identities(by_position_before[i]), shared=True),
            _with_positions(gone[i], by_position_before[i], _position_identities(by_position_after[i]), shared=False),
            _with_positions(new[i], by_position_after[i], _position_identities(by_position_before[i]), shared=False),
        )
        for i, shared in zip(touched, common, strict=True)
    )


def _with_positions(
    task: FileScanTask, positions: FileScanTask, others: Collection[Hashable], *, shared: bool
) -> FileScanTask:
    """The task with those position deletes of `positions` that are among `others`, or with those that are not."""
    vector = positions.deletion_vector
    return replace(
        task,
        position_deletes=tuple(f for f in positions.position_deletes if (_delete_identity(f) in others) is shared),
        deletion_vector=vector if vector is not None and (_delete_identity(vector) in others) is shared else None,
    )


def _by_content(files: Sequence[DeleteFile]) -> tuple[list[DeleteFile], list[DeleteFile]]:
    equality = [f for f in files if f.content is DeleteContent.EQUALITY]
    return equality, [f for f in files if f.content is DeleteContent.POSITION]


def _without(files: Sequence[DeleteFile], known: Collection[Hashable]) -> list[DeleteFile]:
    return [f for f in files if _delete_identity(f) not in known]


def _position_identities(task: FileScanTask) -> frozenset[Hashable]:
    vector = task.deletion_vector
    return frozenset(_delete_identity(f) for f in (*task.position_deletes, *(() if vector is None else (vector,))))


def _data_identity(file: DataFile) -> Hashable:
    """Deletes meet a file by all of these."""
    return file.path, file.data_sequence_number, file.spec_id, file.partition


def _delete_identity(file: DeleteFile) -> Hashable:
    return file.path, file.content_offset, file.data_sequence_number, file.spec_id, file.partition


def _has_deletes(task: FileScanTask) -> bool:
    return bool(task.equality_deletes or task.position_deletes or task.deletion_vector is not None)
