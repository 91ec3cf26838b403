"""Replaces files of a table by others while other writers go on: what all rewrites share.

A rewrite is a chooser. It reads a snapshot (`State`), chooses files, and writes those that take their place, as many as it
likes and before anything is committed (`Replacement.written`). `Replacement.commit` then loads the table again, asks the chooser
which of the replacements are right for it (`Swap`), carries the positions of the table to the new snapshot, and commits. After a
conflict all of that is done again, with growing pauses. Files that no commit has taken are removed at the end, unless it is unknown
whether one has.

| rewrite | chooses | maps rows | stays right while | after a conflict | reports |
|---|---|---|---|---|---|
| compaction | files by what scans lose | drops dead ones, sorts | `compact.is_intact` for each group | commits the other groups, plans these again | `CompactReport` |
| conversion | all equality deletes | keys to positions | `_Resolved.holds_for` | resolves again if it must | `ConversionReport` |
| erasure | files with rows to erase | drops these | as compaction | as compaction | `ErasedTable` |
| trimmed log | files with old changes | last change of each key | nobody replaced one of them | gives up: the base was compared with the old changes | `Trimmed` |
| order of manifests | manifests, not files | none | always: it is made of the snapshot that it follows | sorts again | `ManifestReport` |

The last one goes through `RowDelta.rearrange`, as it removes no file. Indexes (`bitmap_indexes.py`) replace statistics, not files:
no snapshot is made, so their commit compares the statistics that it replaces instead.
"""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Self

from nevermore.pipelines.errors import CommitUnknownError
from nevermore.pipelines.iceberg.commit import Committed, Operation, RowDelta, retry_conflicts
from nevermore.pipelines.iceberg.loaded_table import refresh, storage_of
from nevermore.pipelines.iceberg.manifests import FileName, NamedFiles
from nevermore.pipelines.iceberg.positions import carried_positions
from nevermore.scan_core import ContentFile, DeleteFile, FileScanTask, Scan, ScanPlan, Snapshot
from nevermore.scan_core.metadata import DATA_MANIFEST, read_delete_manifests, snapshot_manifests

if TYPE_CHECKING:
    from pyiceberg.table import Table


@dataclass(frozen=True, slots=True)
class State:
    """A snapshot: its data files with the deletes that may touch them, and all its delete files."""

    snapshot: Snapshot
    format_version: int
    plan: ScanPlan
    deletes: tuple[DeleteFile, ...]
    num_manifests: int

    @classmethod
    def of(cls, scan: Scan) -> "State | None":
        """The snapshot that a scan reads; None for an empty table."""
        plan = scan.plan()
        if plan.snapshot is None:
            return None
        manifests = snapshot_manifests(plan.snapshot, plan.context.io)
        listed = [m for m in manifests if m.content != DATA_MANIFEST]
        deletes = (
            file for files in read_delete_manifests(listed, scan.table.metadata, plan.context.io) for file in files
        )
        return cls(plan.snapshot, scan.table.metadata.format_version, plan, tuple(deletes), len(manifests))

    def tasks_of(self, paths: Collection[str]) -> dict[str, FileScanTask]:
        """The data files with these paths that are live."""
        tasks = self.plan.index.tasks
        places = [i for i, path in enumerate(tasks.data_files.paths()) if path in paths]
        return {task.data_file.path: task for task in map(tasks.__getitem__, places)}


def position_deletes(task: FileScanTask) -> tuple[DeleteFile, ...]:
    """The files that name dead rows of a data file by position."""
    return task.position_deletes if task.deletion_vector is None else (*task.position_deletes, task.deletion_vector)


@dataclass(frozen=True, slots=True)
class Swap:
    """The files that a commit adds and removes, with entries for the summary of its snapshot."""

    added: Sequence[ContentFile] = ()
    removed: Collection[FileName] = ()
    properties: Mapping[str, str] = field(default_factory=dict)


class Replacement:
    """A context manager: of the files in `written`, those that no commit takes are removed.

    Args:
        table: table of a catalog; updated to show each commit.
        operation: operation of the snapshots; None derives it from the files.
        forgets: the manifests name no removed file any more.
    """

    def __init__(self, table: "Table", operation: Operation | None = "replace", *, forgets: bool = False) -> None:
        self.table = table
        self.written: list[ContentFile] = []
        self._operation = operation
        self._forgets = forgets
        self._delta: RowDelta | None = None

    def commit(self, choose: Callable[[RowDelta], Swap | None]) -> Committed | None:
        """Commit what `choose` finds right for the table as it is; it is asked again after a conflict. None if it finds nothing.

        Raises:
            CommitConflictError: other writers kept changing the table, or removing the files.
            CommitUnknownError: it is unknown whether the commit happened.
        """
        taken: set[str] = set()

        def attempt() -> Committed | None:
            refresh(self.table)
            self._delta = delta = RowDelta(self.table)
            swap = choose(delta)
            taken.clear()
            if swap is None:
                return None
            taken.update(file.path for file in swap.added)
            return delta.commit(
                swap.added,
                {**carried_positions(self.table), **swap.properties},
                remove=NamedFiles(frozenset(swap.removed)),
                operation=self._operation,
                forgets=self._forgets,
            )

        committed = retry_conflicts(attempt)
        self._delta = None  # once the commit is known to have happened, it keeps no other file
        self.drop(taken)
        return committed

    def drop(self, taken: Collection[str] = ()) -> None:
        """Remove the written files, but for those that a commit has taken."""
        left = {file.path for file in self.written} - {*taken}
        self.written.clear()
        storage_of(self.table).remove(left)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: object, error: object, trace: object) -> None:
        """Keep the files after an error that leaves open whether they are part of the table, as after Ctrl-C right after the commit."""
        if error is not None and not isinstance(error, CommitUnknownError):
            (self._delta or RowDelta(self.table)).discard(self.written)
