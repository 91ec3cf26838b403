"""Why the rows of a key are alive or dead: every physical row that has it, and the delete that removed each.

Diagnosis: reads the files that may hold the key, dead rows included, and older snapshots where the current one has
none.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from nevermore.scan_core.expr.nodes import Constantish, Expr, col
from nevermore.scan_core.model.errors import PredicateError
from nevermore.scan_core.model.options import ScanMetrics
from nevermore.scan_core.model.snapshot import DeleteFile, PartitionSpec, Snapshot
from nevermore.scan_core.plan.file_set import make_splits
from nevermore.scan_core.plan.planner import plan_scan
from nevermore.scan_core.read.projection import DELETE_FILE, DELETED, FILE, POS
from nevermore.scan_core.read.split_reader import read_split
from nevermore.scan_core.run import run_splits
from nevermore.scan_core.scan import Scan
from nevermore.scan_core.split.tasks import FileScanTask, ScanContext


@dataclass(frozen=True, slots=True)
class DeletedBy:
    """The first delete, in the order in which they apply, that removes a row.

    Attributes:
        path: the delete file.
        kind: `equality delete`, `position delete` or `deletion vector`.
        sequence_number: of the delete.
        scope: which data files it reaches, in words.
        columns: names of the key columns of an equality delete.
    """

    path: str
    kind: str
    sequence_number: int
    scope: str
    columns: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class RowFate:
    """A physical row.

    Attributes:
        file: the data file in which it is stored.
        position: its row there, from 0 on.
        sequence_number: data sequence number of the file.
        deleted_by: what removed the row; None if it is alive.
        written_in: the snapshot with this sequence number; None if it has expired.
    """

    file: str
    position: int
    sequence_number: int
    deleted_by: DeletedBy | None
    written_in: Snapshot | None = None

    @property
    def is_alive(self) -> bool:
        """Whether no delete removes the row."""
        return self.deleted_by is None


@dataclass(frozen=True, slots=True)
class KeyReport:
    """The history of a key: all physical rows that have it.

    Attributes:
        key: the key as a predicate.
        snapshot: the snapshot asked about; None for a table without snapshots.
        rows: all rows with this key in `seen_in`, oldest first.
        seen_in: the snapshot asked about if it has such rows, dead or alive; else the newest of its ancestors that has;
            None if the key was never seen, as far back as the table's history goes.
        removed_in: where `seen_in` is an ancestor, the snapshot that took the rows' files away.
    """

    key: str
    snapshot: Snapshot | None
    rows: tuple[RowFate, ...] = ()
    seen_in: Snapshot | None = None
    removed_in: Snapshot | None = None

    @property
    def num_alive(self) -> int:
        """Rows alive in the snapshot asked about."""
        return sum(row.is_alive for row in self.rows) if self.seen_in == self.snapshot else 0


def key_report(scan: Scan, key: Mapping[str, Constantish]) -> KeyReport:
    """What became of the rows with a key, in the snapshot that the scan reads.

    Args:
        scan: table, snapshot and options; its columns do not matter, its filter does.
        key: column names, or dotted paths of struct members, and values; text is cast to the column's type, None is
            NULL.

    Raises:
        PredicateError: the schema in force has no such column, a value is none of its column's, or there is no column.
    """
    if not key:
        raise PredicateError("a key needs at least one column")
    predicates = [_is(name, value) for name, value in key.items()]
    request = scan.select(FILE.name, POS.name, DELETED.name, DELETE_FILE.name)
    for predicate in predicates:
        request = request.where(predicate)
    asked, context = request.snapshot, request.plan().context
    text = " and ".join(map(str, predicates))
    metadata = scan.table.metadata
    looked_at: set[str] = set()
    child: Snapshot | None = None
    snapshots = {s.sequence_number: s for s in metadata.snapshots.values() if s.sequence_number > 0}
    for snapshot in metadata.ancestors(asked.snapshot_id) if asked is not None else ():
        tasks = [t for t in plan_scan(metadata, snapshot, context).tasks if t.data_file.path not in looked_at]
        looked_at.update(t.data_file.path for t in tasks)
        rows = sorted(_fates(tasks, context, snapshots), key=lambda row: (row.sequence_number, row.file, row.position))
        if rows:
            return KeyReport(text, asked, tuple(rows), snapshot, child)
        child = snapshot
    return KeyReport(text, asked)


def _is(name: str, value: Constantish) -> Expr:
    return col(name).is_null() if value is None else col(name) == value


def _fates(tasks: list[FileScanTask], context: ScanContext, snapshots: Mapping[int, Snapshot]) -> Iterator[RowFate]:
    by_path = {task.data_file.path: task for task in tasks}
    splits = make_splits(tasks, context, context.options.split_bytes)
    for batch in run_splits(splits, read_split, ScanMetrics(), context.options.parallelism):
        for file, position, dead, delete_file in zip(*(c.to_pylist() for c in batch.columns), strict=True):
            task = by_path[file]
            number = task.data_file.data_sequence_number
            deleted_by = _deleted_by(delete_file, task, context) if dead else None
            yield RowFate(file, position, number, deleted_by, snapshots.get(number))


def _deleted_by(path: str, task: FileScanTask, context: ScanContext) -> DeletedBy:
    vector = task.deletion_vector
    if vector is not None and vector.path == path:
        return DeletedBy(path, "deletion vector", vector.data_sequence_number, "this data file")
    for file in task.position_deletes:
        if file.path == path:
            scope = "this data file" if file.referenced_data_file else _scope(file, context)
            return DeletedBy(path, "position delete", file.data_sequence_number, scope)
    file, ids = next((f, g.key_ids) for g in task.equality_deletes for f in g.files if f.path == path)
    names = tuple(".".join(f.name for f in context.field_paths[i]) for i in ids)
    return DeletedBy(path, "equality delete", file.data_sequence_number, _scope(file, context), names)


def _scope(file: DeleteFile, context: ScanContext) -> str:
    spec: PartitionSpec = context.specs[file.spec_id]
    if spec.is_unpartitioned:
        return "the whole table"
    values = ", ".join(f"{f.name}={v!r}" for f, v in zip(spec.fields, file.partition, strict=False))
    return f"partition {values} of spec {spec.spec_id}"
