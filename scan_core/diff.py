"""Changes between two snapshots: rows inserted and deleted, found in the files that differ."""

from collections import Counter
from collections.abc import Collection, Generator, Hashable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, field, replace
from enum import Enum
from itertools import pairwise
from typing import assert_never

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as pt

from nevermore.scan_core.columns.conversion import public_batch, public_schema
from nevermore.scan_core.columns.file_reader import MemoryBudget
from nevermore.scan_core.deletes.filter import open_delete_filter
from nevermore.scan_core.io.location import FileIOConfig
from nevermore.scan_core.metadata.manifest_list import DATA_MANIFEST, ManifestFile, snapshot_manifests
from nevermore.scan_core.model.errors import (
    ColumnNotFoundError,
    MissingFileError,
    OptionError,
    PredicateError,
    SnapshotNotFoundError,
    UnsupportedError,
)
from nevermore.scan_core.model.options import ScanMetrics
from nevermore.scan_core.model.schema import Schema, arrow_type
from nevermore.scan_core.model.snapshot import DataFile, DeleteContent, DeleteFile, Snapshot
from nevermore.scan_core.model.table_metadata import TableMetadata
from nevermore.scan_core.plan.delete_index import build_delete_index
from nevermore.scan_core.plan.file_pruner import FilePruner, PlanTrace, total
from nevermore.scan_core.plan.file_set import make_splits
from nevermore.scan_core.plan.planner import FileFinder
from nevermore.scan_core.read.output import OutputColumns
from nevermore.scan_core.read.projection import DEAD_ROW_IDS, METADATA_IDS
from nevermore.scan_core.read.restriction import Adaptivity
from nevermore.scan_core.read.split_reader import read_split
from nevermore.scan_core.read.task import open_task
from nevermore.scan_core.rows.selection import Flags, Mask, take_rows, to_indices
from nevermore.scan_core.run import run_splits
from nevermore.scan_core.split.tasks import FileScanTask, ScanContext, Split


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
    """Files in which rows may have been inserted or deleted. Tasks carry the deletes of the snapshot that has the file."""

    vanished: Sequence[FileScanTask] = ()
    appeared: Sequence[FileScanTask] = ()
    redeleted: tuple[Redeleted, ...] = ()
    metrics: ScanMetrics = field(default_factory=ScanMetrics)

    @property
    def may_insert(self) -> bool:
        """Some row may be alive only in the later snapshot."""
        return bool(self.appeared) or any(r.before.has_deletes for r in self.redeleted)

    @property
    def may_delete(self) -> bool:
        """Some row may be alive only in the earlier snapshot."""
        return bool(self.vanished) or any(r.after.has_deletes for r in self.redeleted)


def file_changes(
    metadata: TableMetadata, earlier: Snapshot | None, later: Snapshot, context: ScanContext
) -> FileChanges:
    """The files in which two snapshots differ; `earlier` None stands for an empty table.

    Raises:
        MissingFileError: a manifest is gone.
        MalformedTableError: a manifest, or a delete that applies to a data file, breaks the specification.
    """
    before = _manifests(earlier, context.io)
    after = _manifests(later, context.io)
    known_before, known_after = set(before), set(after)
    finder = FileFinder(metadata, context, FilePruner(metadata, context), PlanTrace())
    gone = finder.data_files([m for m in before if m.content == DATA_MANIFEST and m not in known_after])
    new = finder.data_files([m for m in after if m.content == DATA_MANIFEST and m not in known_before])
    vanished, kept = _split_by(gone, new)
    appeared, _ = _split_by(new, gone)
    # deletes that only one snapshot has may apply to any data file of both: then files in shared manifests matter, too
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
    return task.with_deletes(
        task.equality_deletes,
        tuple(f for f in positions.position_deletes if (_delete_identity(f) in others) is shared),
        vector if vector is not None and (_delete_identity(vector) in others) is shared else None,
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


class ChangeType(Enum):
    """What happened to a row."""

    DELETE = "delete"
    INSERT = "insert"


@dataclass(frozen=True, slots=True)
class WholeFiles:
    """Files that only one of the snapshots has: each row alive in them changed in the same way."""

    change: ChangeType
    split: Split

    @property
    def stored_bytes(self) -> int:
        """Stored bytes of the parts of data files."""
        return sum(task.length for task in self.split.tasks)


@dataclass(frozen=True, slots=True)
class RedeletedFile:
    """A file of both snapshots whose deletes differ."""

    context: ScanContext
    file: Redeleted

    @property
    def stored_bytes(self) -> int:
        """Stored bytes of the data file."""
        return self.file.common.length


ChangeSplit = WholeFiles | RedeletedFile
"""The unit of work of one worker."""
Changed = tuple[ChangeType, pa.RecordBatch]


def change_splits(changes: FileChanges, context: ScanContext) -> tuple[ChangeSplit, ...]:
    """The work of reading the files that differ, as units for workers."""
    size = context.options.split_bytes
    return (
        *(WholeFiles(ChangeType.DELETE, split) for split in make_splits(changes.vanished, context, size)),
        *(RedeletedFile(context, file) for file in changes.redeleted),
        *(WholeFiles(ChangeType.INSERT, split) for split in make_splits(changes.appeared, context, size)),
    )


def read_changes(split: ChangeSplit, metrics: ScanMetrics) -> Iterator[Changed]:
    """Rows alive in one snapshot and not in the other, with what happened to them; raises as `read_split` does."""
    match split:
        case WholeFiles(change, inner):
            for batch in read_split(inner, metrics):
                yield change, batch
        case RedeletedFile(context, file):
            metrics.splits_read += 1
            yield from _read_redeleted(file, context, metrics)
        case _:
            assert_never(split)


def _read_redeleted(file: Redeleted, context: ScanContext, metrics: ScanMetrics) -> Iterator[Changed]:
    before = open_delete_filter(file.before, context, metrics)
    after = open_delete_filter(file.after, context, metrics)
    if before.is_empty and after.is_empty:
        return
    adaptivity = Adaptivity(adaptive=True)
    with open_task(file.common, context, metrics, adaptivity) as reader:
        output = OutputColumns(reader.projection, context, file.common.data_file, context.projection.fields)
        reader.plan_to_read(output.file_columns)
        for columns, unread in reader.row_groups():
            dead_after = reader.removed_by(after, columns)
            changed = Mask(reader.removed_by(before, columns) ^ dead_after)
            with reader.counting(columns):
                if not changed.values.any():
                    continue
                selection = reader.refine(columns, reader.select(columns, unread, changed), changed)
                gone = dead_after[to_indices(selection)]
                start = 0
                for batch in output.batches(columns, selection, MemoryBudget(context.options), metrics):
                    metrics.rows_out += batch.num_rows
                    yield from _by_type(batch, pa.array(gone[start : start + batch.num_rows]))
                    start += batch.num_rows


def _by_type(batch: pa.RecordBatch, gone: pa.BooleanArray) -> Iterator[Changed]:
    if gone.true_count == len(gone):
        yield ChangeType.DELETE, batch
    elif gone.true_count == 0:
        yield ChangeType.INSERT, batch
    else:
        kept = pa.array(~gone.to_numpy(zero_copy_only=False))
        yield ChangeType.DELETE, batch.filter(gone)
        yield ChangeType.INSERT, batch.filter(kept)


Codes = npt.NDArray[np.int64]
"""One number per row, equal where values are."""


def net_changes(deleted: pa.Table, inserted: pa.Table, compared: Sequence[str]) -> tuple[Flags, Flags]:
    """Which of the deleted and which of the inserted rows remain once equal ones have cancelled out.

    Args:
        deleted: rows of one schema.
        inserted: rows of the same schema.
        compared: names of the columns that make rows equal; without any, all rows are.
    """
    both = pa.concat_tables([deleted.select(compared), inserted.select(compared)])
    codes = np.zeros(deleted.num_rows + inserted.num_rows, np.int64)
    if compared:
        codes = _combined([_codes(_flat(column)) for column in both.columns])
    gone, new = codes[: deleted.num_rows], codes[deleted.num_rows :]
    size = int(codes.max(initial=-1)) + 1
    pairs = np.minimum(np.bincount(gone, minlength=size), np.bincount(new, minlength=size))
    return _beyond(gone, pairs), _beyond(new, pairs)


def _beyond(codes: Codes, spent: Codes) -> Flags:
    """A mask that is False for the first `spent[code]` rows of each code."""
    order = np.argsort(codes, kind="stable")
    ordered = codes[order]
    rank = np.arange(len(codes)) - np.searchsorted(ordered, ordered, side="left")
    keep = np.empty(len(codes), np.bool_)
    keep[order] = rank >= spent[ordered]
    return keep


def _codes(array: pa.Array) -> Codes:
    kind = array.type
    if pt.is_null(kind):
        return np.zeros(len(array), np.int64)
    if isinstance(kind, pa.BaseExtensionType):
        return _codes(array.storage)
    if pt.is_floating(kind):
        return _numbered(_float_bits(array))
    if pt.is_struct(kind):
        return _combined([_numbered(array.is_valid()), *(_codes(child) for child in array.flatten())])
    if pt.is_map(kind):
        entry = pa.struct([("key", kind.key_type), ("value", kind.item_type)])
        return _codes(array.cast(pa.list_(pa.field("element", entry))))
    if pt.is_list(kind):
        return _list_codes(array)
    return _numbered(array)


def _list_codes(array: pa.ListArray) -> Codes:
    """Lists are equal where the numbers of their elements, as bytes, are."""
    elements = np.ascontiguousarray(_codes(array.flatten()))
    lengths = pc.fill_null(array.value_lengths(), 0).to_numpy(zero_copy_only=False).astype(np.int64)
    offsets = np.concatenate([[0], np.cumsum(lengths)]) * elements.itemsize
    as_bytes = pa.Array.from_buffers(
        pa.large_binary(), len(array), [None, pa.py_buffer(offsets.astype(np.int64)), pa.py_buffer(elements)]
    )
    return _combined([_numbered(array.is_valid()), _numbered(as_bytes)])


def _float_bits(array: pa.Array) -> pa.Array:
    values = pc.fill_null(array, 0).to_numpy(zero_copy_only=False).copy()
    values[np.isnan(values)] = np.nan
    nulls = array.is_null().to_numpy(zero_copy_only=False)
    return pa.array(values.view(f"i{values.itemsize}"), mask=nulls)


def _combined(columns: Sequence[Codes]) -> Codes:
    """One number for the numbers of several columns, two at a time."""
    result = columns[0]
    for codes in columns[1:]:
        result = _numbered(pa.array(result << 32 | codes))
    return result


def _numbered(array: pa.Array) -> Codes:
    """Numbers from 0 in the order of first occurrence, below 2**31, NULL being one of the values."""
    numbers: Codes = array.dictionary_encode(null_encoding="encode").indices.to_numpy().astype(np.int64)
    return numbers


def _flat(column: pa.ChunkedArray) -> pa.Array:
    """The column as one array, whose offsets may need 64 bits."""
    if pt.is_string(column.type):
        column = column.cast(pa.large_string())
    elif pt.is_binary(column.type):
        column = column.cast(pa.large_binary())
    return column.combine_chunks() if column.num_chunks else pa.array([], column.type)


_REPLACE = "replace"
"""The operation of snapshots that add and remove files without changing the table's rows, such as compactions."""

Stretch = tuple[Snapshot | None, Snapshot]


def earlier_snapshot(metadata: TableMetadata, earlier_id: int | None, later: Snapshot | None) -> Snapshot | None:
    """The snapshot with this id, from which `later` descends; None stands for the table before its first snapshot.

    Raises:
        SnapshotNotFoundError: there is no such snapshot, or `later` does not descend from it.
    """
    if earlier_id is None:
        return None
    earlier, _ = metadata.snapshot_for(snapshot_id=earlier_id)
    if earlier is None or later is None:
        raise SnapshotNotFoundError(f"{metadata.location} has no snapshot to compare with {earlier_id}")
    line = metadata.ancestors(later.snapshot_id)
    if any(s.snapshot_id == earlier_id for s in line):
        return earlier
    text = f"{metadata.location}: snapshot {later.snapshot_id} does not descend from {earlier_id}"
    if any(s.snapshot_id == later.snapshot_id for s in metadata.ancestors(earlier_id)):
        raise SnapshotNotFoundError(f"{text}, it is the other way round: swap them")
    if line[-1].parent_id is not None:
        raise SnapshotNotFoundError(
            f"{text}, as far as the history reaches: snapshot {line[-1].parent_id}, an ancestor, has expired"
        )
    raise SnapshotNotFoundError(f"{text}: they are on different branches, or the table was rolled back in between")


def stretches(
    metadata: TableMetadata, earlier: Snapshot | None, later: Snapshot, *, trust_rewrites: bool
) -> Iterator[Stretch]:
    """Pairs of snapshots whose differences add up to those between `earlier` and its descendant `later`.

    Args:
        metadata: of the table.
        earlier: None for the empty table before the first snapshot.
        later: a descendant of `earlier`, or `earlier` itself.
        trust_rewrites: leave out `replace` snapshots.
    """
    if earlier is None or not trust_rewrites:
        if earlier != later:
            yield earlier, later
        return
    start = earlier
    for before, after in pairwise(_line(metadata, earlier, later)):
        if after.operation == _REPLACE:
            if start != before:
                yield start, before
            start = after
    if start != later:
        yield start, later


def _line(metadata: TableMetadata, earlier: Snapshot, later: Snapshot) -> list[Snapshot]:
    """The snapshots from `earlier` to `later`, both included."""
    newest_first = metadata.ancestors(later.snapshot_id)
    return newest_first[: newest_first.index(earlier) + 1][::-1]


CHANGE_TYPE = "_change_type"


@dataclass(slots=True)
class _LastRun:
    """The metrics of the last run, the only mutable part."""

    metrics: ScanMetrics = field(default_factory=ScanMetrics)


@dataclass(frozen=True, slots=True)
class ChangeWork:
    """The parts of data files that must be read to find the changes.

    Attributes:
        splits: the parts; each is read by one worker.
        context: in which they are read; its projection has the columns that rows are compared by, too.
        compared: the columns by which rows that came and rows that went cancel out; None where all are of one kind.
    """

    splits: tuple[ChangeSplit, ...]
    context: ScanContext
    compared: Schema | None


@dataclass(frozen=True)
class Changes:
    """Rows inserted and rows deleted between two snapshots. Immutable; made by `Scan.changes`.

    Net: a row that came and went in between is not among them, nor is one that was only moved to another file. An
    update is a delete of the old row and an insert of the new one. Rows have the schema of the later snapshot behind a
    column `_change_type`, `delete` or `insert` (`_change_type_` where the table has that name); deletes come first. Where rows both came and went, both are held in
    memory until they have been compared.

    Attributes:
        metadata: of the table.
        context: columns, filter and options.
        schema: all columns in force.
        from_snapshot: the earlier snapshot; None for the empty table before the first.
        to_snapshot: the later one; None for a table without snapshots.
        trust_rewrites: believe `replace` snapshots (compactions) that they changed no row, and read nothing of what they
            rewrote, rather than compare.
        only: None for both kinds of changes.
        row_limit: most rows of the result, None for all.
    """

    metadata: TableMetadata
    context: ScanContext
    schema: Schema
    from_snapshot: Snapshot | None
    to_snapshot: Snapshot | None
    trust_rewrites: bool = False
    only: ChangeType | None = None
    row_limit: int | None = None
    _last: _LastRun = field(default_factory=_LastRun, repr=False, compare=False)

    def __post_init__(self) -> None:
        dead = [f.name for f in self.context.projection.fields if f.field_id in DEAD_ROW_IDS]
        if dead:
            raise ColumnNotFoundError(
                f"changes have no column {dead[0]!r}: `_change_type` states which of their rows were deleted"
            )
        predicate = self.context.predicate
        if predicate is not None and not METADATA_IDS.isdisjoint(predicate.column_ids):
            raise PredicateError(f"changes cannot be filtered by where a row is stored: {predicate.sql}")

    @property
    def inserts(self) -> "Changes":
        """The inserted rows alone, without `_change_type`."""
        return replace(self, only=ChangeType.INSERT, _last=_LastRun())

    @property
    def deletes(self) -> "Changes":
        """The deleted rows alone, as they were, without `_change_type`."""
        return replace(self, only=ChangeType.DELETE, _last=_LastRun())

    def limit(self, num_rows: int) -> "Changes":
        """At most `num_rows` rows, whichever come first.

        Raises:
            OptionError: negative.
        """
        if num_rows < 0:
            raise OptionError(f"limit must not be negative, not {num_rows}")
        least = num_rows if self.row_limit is None else min(num_rows, self.row_limit)
        return replace(self, row_limit=least, _last=_LastRun())

    @property
    def arrow_schema(self) -> pa.Schema:
        """The Arrow schema of the result, uuid columns as `pa.uuid()`. The first column tells the kind of change."""
        rows = public_schema(self.context.projection)
        if self.only is not None:
            return rows
        name = CHANGE_TYPE
        while name in rows.names:  # the table has such a column: both are shown
            name += "_"
        return rows.insert(0, pa.field(name, pa.string(), nullable=False))

    @property
    def metrics(self) -> ScanMetrics:
        """What the last finished run did, planning included."""
        return self._last.metrics

    def count(self) -> int:
        """Rows of the result."""
        return sum(batch.num_rows for batch in self.to_batches())

    def to_table(self) -> pa.Table:
        """All rows as one table."""
        return pa.Table.from_batches(list(self.to_batches()), self.arrow_schema)

    def to_batches(self) -> Generator[pa.RecordBatch, None, None]:
        """The rows as record batches, none empty. Closing the iterator early stops the workers.

        Raises:
            UnsupportedError: rows must be compared, and a column of the table has a type that cannot be read.
        """
        schema, rows_schema = self.arrow_schema, public_schema(self.context.projection)
        taken = 0
        try:
            with closing(self._changed()) as changed:
                rows = ((change, public_batch(batch, rows_schema)) for change, batch in changed)
                found = (batch if self.only is not None else _typed(change, batch, schema) for change, batch in rows)
                for batch in take_rows(found, self.row_limit):
                    taken += batch.num_rows
                    yield batch
        finally:
            self._last.metrics.rows_out = taken  # rows beyond a limit, or that cancel out, were read, but are no result

    def work(self) -> "ChangeWork":
        """The parts of the work, for executors of one's own: `read_changes` reads each.

        Raises:
            UnsupportedError: as `to_batches` does.
        """
        self._last.metrics = ScanMetrics()
        if self.to_snapshot is None:
            return ChangeWork((), self.context, None)
        parts = [
            file_changes(self.metadata, earlier, later, self.context)
            for earlier, later in stretches(
                self.metadata, self.from_snapshot, self.to_snapshot, trust_rewrites=self.trust_rewrites
            )
        ]
        for part in parts:
            self._last.metrics.add(part.metrics)
        possible = {
            *([ChangeType.INSERT] if any(part.may_insert for part in parts) else []),
            *([ChangeType.DELETE] if any(part.may_delete for part in parts) else []),
        }
        if possible.isdisjoint(set(ChangeType) if self.only is None else {self.only}):
            return ChangeWork((), self.context, None)
        reading, compared = self.context, None
        if len(possible) > 1:
            compared = _comparable(self.schema)
            reading = replace(self.context, projection=_widened(self.context.projection, compared))
        return ChangeWork(tuple(split for part in parts for split in change_splits(part, reading)), reading, compared)

    def _changed(self) -> Generator[Changed, None, None]:
        """Net changes of the kinds asked for, in the engine's types."""
        work = self.work()
        if work.compared is None:
            yield from self._run(work.splits)
            return
        wanted = set(ChangeType) if self.only is None else {self.only}
        yield from self._net(self._run(work.splits), work.context, work.compared, wanted)

    def _run(self, splits: Sequence[ChangeSplit]) -> Generator[Changed, None, None]:
        metrics = ScanMetrics()
        changed = run_splits(splits, read_changes, metrics, self.context.options.parallelism)
        try:
            yield from changed
        finally:
            changed.close()
            self._last.metrics.add(metrics)

    def _net(
        self, changed: Iterator[Changed], reading: ScanContext, compared: Schema, wanted: set[ChangeType]
    ) -> Iterator[Changed]:
        batches: dict[ChangeType, list[pa.RecordBatch]] = {change: [] for change in ChangeType}
        for change, batch in changed:
            batches[change].append(batch)
        schema = reading.projection.arrow_schema()
        tables = {change: pa.Table.from_batches(found, schema) for change, found in batches.items()}
        gone, new = net_changes(tables[ChangeType.DELETE], tables[ChangeType.INSERT], compared.names)
        for change, keep in ((ChangeType.DELETE, gone), (ChangeType.INSERT, new)):
            if change in wanted:
                rows = tables[change].select(self.context.projection.names).filter(pa.array(keep))
                for batch in rows.to_batches(max_chunksize=self.context.options.batch_rows):
                    if batch.num_rows:
                        yield change, batch


def _typed(change: ChangeType, rows: pa.RecordBatch, schema: pa.Schema) -> pa.RecordBatch:
    kinds = pa.repeat(pa.scalar(change.value), rows.num_rows)
    return pa.RecordBatch.from_arrays([kinds, *rows.columns], schema=schema)


def _comparable(schema: Schema) -> Schema:
    """The schema itself, if all of its columns can be read."""
    for column in schema.fields:
        try:
            arrow_type(column.type)
        except UnsupportedError as error:
            raise UnsupportedError(
                f"column {column.name!r}: type {column.type} is not supported, so deleted and inserted rows cannot be "
                "compared; snapshots between which rows were only inserted, or only deleted, can be read"
            ) from error
    return schema


def _widened(projection: Schema, compared: Schema) -> Schema:
    """The projection with all columns that rows are compared by."""
    known = {f.field_id for f in projection.fields}
    return replace(projection, fields=(*projection.fields, *(f for f in compared.fields if f.field_id not in known)))
