"""The whole worker path: from a split to record batches, a count, or aggregates; all values of one column for indexes."""

import logging
import os
import threading
from collections.abc import Callable, Generator, Hashable, Iterable, Iterator, Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass, fields, replace
from itertools import chain
from typing import TypeVar

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from nevermore.scan_core.columns.file_reader import MemoryBudget
from nevermore.scan_core.io.files import forget_object
from nevermore.scan_core.io.location import relocate
from nevermore.scan_core.model.errors import MalformedTableError
from nevermore.scan_core.model.metrics import ScanMetrics
from nevermore.scan_core.model.options import JOINED_FILES
from nevermore.scan_core.model.schema import NestedField, Schema
from nevermore.scan_core.model.snapshot import DataFile, DeleteFile, FileFormat
from nevermore.scan_core.read.aggregate import Call, Partial, aggregate_group
from nevermore.scan_core.read.lazy import LazyColumns
from nevermore.scan_core.read.order import Adaptivity
from nevermore.scan_core.read.output import OutputColumns
from nevermore.scan_core.read.projection import DELETED, METADATA_IDS, Constant, FromFile, keeps_dead_rows
from nevermore.scan_core.read.read_ahead import FilesAhead
from nevermore.scan_core.read.restriction import ByFile, Cause, Restriction, file_columns_of, refine_rows, values_of
from nevermore.scan_core.read.task import AccessPlan, Scan, Select, TaskReader, open_task
from nevermore.scan_core.rows.buffers import Mask as Flags
from nevermore.scan_core.rows.buffers import Rows
from nevermore.scan_core.rows.selection import (
    All,
    Mask,
    RowSelection,
    from_indices,
    selected_count,
    to_indices,
    to_mask,
)
from nevermore.scan_core.split.tasks import FileScanTask, ScanContext, Split

_T = TypeVar("_T")
_log = logging.getLogger(__name__)
_FEW_ROWS = 1_024
"""So few rows of a row group are read by page after all of its pieces were filtered."""


def column_batches(
    task: FileScanTask, column: NestedField, context: ScanContext
) -> Iterator[tuple[pa.Array, Rows]] | None:
    """Values in the type of `column`, possibly dictionary-encoded, with their row positions in the file.

    None if the file lacks the column, so that a partition value or default applies to all rows.

    Args:
        task: a whole file, without deletes.
        column: a top-level column or struct member.
        context: of a scan without predicate.
    """
    metrics = ScanMetrics()
    with open_task(task, context, metrics, Adaptivity(adaptive=False)) as reader:
        if not isinstance(reader.projection.leaf(column.field_id, column.type), FromFile):
            return None
    return _batches(task, column, context)


def _batches(task: FileScanTask, column: NestedField, context: ScanContext) -> Iterator[tuple[pa.Array, Rows]]:
    budget = MemoryBudget(context.options)
    with open_task(task, context, ScanMetrics(), Adaptivity(adaptive=False)) as reader:
        source = reader.projection.leaf(column.field_id, column.type)
        reader.plan_to_read(file_columns_of(source))
        for columns, _ in reader.row_groups(budget.limits):
            for piece, within in reader.pieces(columns, budget):
                first = piece.row_group.first_row_position
                yield values_of(source, piece, within), first + to_indices(within)


def read_split(split: Split, metrics: ScanMetrics, ahead: FilesAhead | None = None) -> Iterator[pa.RecordBatch]:
    """Yield the live rows of a split that match the predicate, with the columns and types of `context.projection`.

    Batches have at most `options.batch_rows` rows and are never empty. UUIDs are 16 bytes.

    Args:
        split: what to read.
        metrics: counters to add to.
        ahead: files of other splits opened in advance; those of this split are always opened in advance.

    Raises:
        MalformedTableError: a data or delete file breaks its specification; names it.
        MissingFileError: a file is gone.
        EvaluationError: the predicate fails on a row that nothing else drops.
    """

    def batches(piece: _Piece) -> Iterator[pa.RecordBatch]:
        for batch in piece.output.batches(piece.columns, piece.selection, piece.budget, metrics):
            metrics.rows_out += batch.num_rows
            yield batch

    columns = split.context.projection.fields
    yield from _read_twice(
        split, metrics, ahead, lambda known: _of_pieces(split, split.tasks, columns, metrics, known, batches)
    )


def count_split(split: Split, metrics: ScanMetrics, ahead: FilesAhead | None = None) -> int:
    """Count the rows that `read_split` would yield, decoding only what that requires."""
    tasks = [task for task in split.tasks if not _manifest_tells(task, split.context)]
    total = 0
    if len(tasks) < len(split.tasks):
        total = sum(task.data_file.record_count for task in split.tasks if _manifest_tells(task, split.context))

    def counts(known: FilesAhead | None) -> Generator[list[int], None, None]:
        yield list(_of_pieces(split, tasks, (), metrics, known, lambda p: [selected_count(p.selection)]))

    total += sum(chain.from_iterable(_read_twice(split, metrics, ahead, counts)))
    metrics.rows_out += total
    return total


def aggregate_split(
    split: Split, calls: Sequence[Call], metrics: ScanMetrics, ahead: FilesAhead | None = None
) -> Iterator[tuple[Partial, ...]]:
    """Evaluate aggregate calls for each row group, over the rows that `read_split` would yield."""

    def partials(piece: _Piece) -> Iterable[tuple[Partial, ...]]:
        metrics.rows_out += selected_count(piece.selection)
        return [aggregate_group(calls, piece.output.sources, piece.columns, piece.selection)]

    def all_partials(known: FilesAhead | None) -> Generator[list[tuple[Partial, ...]], None, None]:
        yield list(_of_pieces(split, split.tasks, split.context.projection.fields, metrics, known, partials))

    yield from chain.from_iterable(_read_twice(split, metrics, ahead, all_partials))


_Rows = TypeVar("_Rows", pa.RecordBatch, Flags, list[int], list[tuple[Partial, ...]])


def _read_twice(
    split: Split,
    metrics: ScanMetrics,
    ahead: FilesAhead | None,
    read: Callable[[FilesAhead | None], Generator[_Rows, None, None]],
) -> Iterator[_Rows]:
    """What `read` yields. If bytes of an object store are damaged, caches forget the files, and the rest is read once more.

    The rows of a split come in the same order each time, but perhaps in other batches.
    """
    before, num_rows = replace(metrics), 0
    try:
        with closing(read(ahead)) as found:
            for rows in found:
                num_rows += len(rows)
                yield rows
    except MalformedTableError as error:
        forgotten = [forget_object(path, split.context.io) for path in _paths(split)]
        if not any(forgotten):
            raise
        _log.warning("read again, as bytes may have been damaged on the way: %s", error)
    else:
        return
    from nevermore.scan_core.files.parquet.file_layout import FOOTERS  # loaded with the decoder

    FOOTERS.clear()
    for counter in fields(metrics):
        setattr(metrics, counter.name, getattr(before, counter.name))
    metrics.splits_read_again += 1
    with closing(read(None)) as found:
        for rows in found:
            num_known = min(num_rows, len(rows))
            num_rows -= num_known
            if num_known < len(rows):
                yield rows[num_known:]


def _paths(split: Split) -> set[str]:
    """Paths of the data and delete files of a split."""
    files: list[DataFile | DeleteFile | None] = []
    for task in split.tasks:
        of_keys = (file for group in task.equality_deletes for file in group.files)
        files += [task.data_file, task.deletion_vector, *task.position_deletes, *of_keys]
    return {file.path for file in files if file is not None}


@dataclass(frozen=True, slots=True, eq=False)
class _Piece:
    """A row group or a part of it that fits into memory, and its rows that are in the result."""

    columns: LazyColumns
    selection: RowSelection
    output: OutputColumns
    budget: MemoryBudget


def _of_pieces(  # noqa: PLR0917  the arguments of the three functions above
    split: Split,
    tasks: Sequence[FileScanTask],
    fields: Sequence[NestedField],
    metrics: ScanMetrics,
    ahead: FilesAhead | None,
    make: Callable[[_Piece], Iterable[_T]],
) -> Generator[_T, None, None]:
    """Results of `make` for the result rows in some tasks of a split; only the columns `fields` will be read.

    Pieces are handed to `make` and not yielded: a loop over them would hold the decoded columns of one while those of
    the next are decoded, which takes twice the memory and makes the allocator fetch new pages each time.
    """
    context = split.context
    metrics.splits_read += 1
    with ExitStack() as stack:
        known = stack.enter_context(FilesAhead(context.options)) if ahead is None else ahead
        budget = MemoryBudget(context.options, known.reserved_bytes(split))
        adaptivity = Adaptivity.of(context)
        upcoming = iter(tasks[1:])
        for run in stack.enter_context(closing(_held_open(_runs(tasks, context)))):
            with ExitStack() as files:
                pending = _SmallFiles(budget, adaptivity, metrics)
                for task in run:
                    if (following := next(upcoming, None)) is not None:
                        known.expect_task(following, context)
                    reader = files.enter_context(open_task(task, context, metrics, adaptivity, known))
                    output = OutputColumns(reader.projection, context, task.data_file, fields)
                    reader.plan_to_read(output.file_columns)
                    for columns, unread in reader.row_groups(budget.limits):
                        part = _Part(reader, columns, reader.select(columns, unread), output)
                        shape = None if len(run) == 1 else _shape_of(part, budget)
                        if shape is not None and pending.add(part, shape):
                            continue
                        yield from pending.take(make)
                        if shape is None:
                            yield from _of_row_group(part, budget, make)
                        else:
                            pending.add(part, shape)
                yield from pending.take(make)


@dataclass(frozen=True, slots=True, eq=False)
class _Part:
    """A row group of an open file, and what to read of it."""

    reader: TaskReader
    columns: LazyColumns
    plan: AccessPlan
    output: OutputColumns

    @property
    def selection(self) -> RowSelection:
        """The rows that may be wanted."""
        return All(self.columns.row_group.num_rows) if isinstance(self.plan, Scan) else self.plan.selection

    @property
    def restrictions(self) -> Sequence[Restriction]:
        """What still has to judge them."""
        return () if isinstance(self.plan, Scan) else self.plan.restrictions


def _of_row_group(part: _Part, budget: MemoryBudget, make: Callable[[_Piece], Iterable[_T]]) -> Iterator[_T]:
    reader, columns, output = part.reader, part.columns, part.output
    with reader.counting(columns):
        few: _FewRows | None = None
        plan, pieces = reader.refine_first(columns, part.plan, budget), reader.pieces(columns, budget)
        if plan is not part.plan and isinstance(plan, Select) and reader.may_read_late(columns.row_group):
            few = _FewRows(columns)
            if few.take(range(columns.row_group.num_rows), plan.selection):
                pieces = iter(())
        for piece, within in pieces:
            selection = reader.refine(piece, plan, within)
            if piece.window is not None and (few or reader.may_read_late(columns.row_group)):
                few = few or _FewRows(columns)
                if few.take(piece.window, selection):
                    continue
                for late in few.give_back():
                    yield from make(_Piece(*late, output, budget))
            yield from make(_Piece(piece, selection, output, budget))
        for late in () if few is None else few.give_back():
            yield from make(_Piece(*late, output, budget))


_SMALL_FILE_BYTES = 1024**2
_FIRST_JOINED_FILES = 8
"""The first files of a split that are read together are fewer, so that its first rows come soon."""
_MAX_OPEN_FILES = 256
"""Files that all scans of a process hold open to join them, as a process may often open no more than 1,024."""
_may_open = threading.Semaphore(_MAX_OPEN_FILES)


def _have_none_open() -> None:
    global _may_open  # noqa: PLW0603  threads that held files open are not in the child process
    _may_open = threading.Semaphore(_MAX_OPEN_FILES)


os.register_at_fork(after_in_child=_have_none_open)


def _runs(tasks: Sequence[FileScanTask], context: ScanContext) -> Iterator[Sequence[FileScanTask]]:
    """The tasks in order: small files that stand together, and each other one alone."""
    options, predicate = context.options, context.predicate
    ids = {f.field_id for f in context.projection.fields}.union(() if predicate is None else predicate.column_ids)
    may_join = options.switches.join_small_files and options.switches.lazy_columns and ids.isdisjoint(METADATA_IDS)
    run: list[FileScanTask] = []
    most = _FIRST_JOINED_FILES
    for task in tasks:
        file = task.data_file
        is_small = may_join and file.file_size_bytes <= _SMALL_FILE_BYTES and task.is_whole_file
        if is_small and file.format is FileFormat.PARQUET and relocate(file.path, context.io).is_local:
            run.append(task)
            if len(run) < most:
                continue
            most = JOINED_FILES
        elif run:
            yield run
            run = [task]
        else:
            run = [task]
        yield run
        run = []
    if run:
        yield run


def _held_open(runs: Iterable[Sequence[FileScanTask]]) -> Generator[Sequence[FileScanTask], None, None]:
    """The runs, with all their files open at once; file by file where the scans of this process hold many open."""
    room = _may_open
    for run in runs:
        held = sum(room.acquire(blocking=False) for _ in run) if len(run) > 1 else 0
        try:
            yield from [run] if held == len(run) else ([task] for task in run)
        finally:
            if held:
                room.release(held)


def _shape_of(part: _Part, budget: MemoryBudget) -> Hashable | None:
    """What must be equal for row groups of several files to be read as one; None if this one must be read alone."""
    from nevermore.scan_core.files.parquet.joined import shape_of  # loaded with the decoder

    reader, constants = part.reader, list[Hashable]()
    for source in chain(part.output.sources, *(conjunct.columns.values() for conjunct in reader.conjuncts)):
        match source:
            case FromFile() if source.is_identity:
                pass
            case Constant(value):
                constants.append(str(value) if pa.types.is_floating(value.type) else value)  # 0.0 equals -0.0
            case _:  # what fails to be converted names its file
                return None
    wanted = reader.wanted
    of_file = shape_of(reader.file)
    if of_file is None or reader.file.windows(
        part.columns.row_group, wanted, range(part.columns.row_group.num_rows), budget.limits
    ):
        return None
    return of_file, tuple(wanted), tuple(constants)


class _SmallFiles:
    """Row groups of small files of one shape, whose columns are decoded, judged and put out together."""

    def __init__(self, budget: MemoryBudget, adaptivity: Adaptivity, metrics: ScanMetrics) -> None:
        self._budget = budget
        self._adaptivity = adaptivity
        self._metrics = metrics
        self._parts: list[_Part] = []
        self._shape: Hashable = None
        self._bytes = 0

    def add(self, part: _Part, shape: Hashable) -> bool:
        """Read a row group with the next `take`; False if it has another shape, or there is no room for it."""
        if self._parts and shape != self._shape:
            return False
        num_bytes = _decoded_bytes(part)
        if self._parts and self._bytes + num_bytes > self._budget.limits.target_bytes:
            return False
        self._parts.append(part)
        self._shape = shape
        self._bytes += num_bytes
        return True

    def take(self, make: Callable[[_Piece], Iterable[_T]]) -> Iterator[_T]:
        """What is made of all row groups that were added."""
        parts, self._parts, self._bytes = self._parts, [], 0
        if len(parts) < 2:
            for part in parts:
                yield from _of_row_group(part, self._budget, make)
            return
        from nevermore.scan_core.files.parquet.joined import JoinedFiles

        with ExitStack() as counting:
            for part in parts:
                counting.enter_context(part.reader.counting(part.columns))
            joined = JoinedFiles(
                [(part.reader.file, part.columns.row_group) for part in parts], [part.columns.reads for part in parts]
            )
            columns = LazyColumns(joined, joined.row_groups[0])
            selection = _joined([part.selection for part in parts])
            restrictions = list(_restrictions_of(parts, joined.edges))
            selection = refine_rows(restrictions, columns, selection, self._adaptivity, self._metrics)
            yield from make(_Piece(columns, selection, parts[0].output, self._budget))


def _decoded_bytes(part: _Part) -> int:
    from nevermore.scan_core.files.parquet.joined import decoded_bytes

    return decoded_bytes(part.reader.file, part.columns.row_group, part.reader.wanted)


def _joined(selections: Sequence[RowSelection]) -> RowSelection:
    if all(isinstance(selection, All) for selection in selections):
        return All(sum(map(selected_count, selections)))
    return Mask(np.concatenate([to_mask(selection) for selection in selections]))


def _restrictions_of(parts: Sequence[_Part], edges: npt.NDArray[np.int64]) -> Iterator[Restriction]:
    """Conjuncts once for all files, as their columns are the same; what differs from file to file by file."""
    conjuncts: dict[object, Restriction] = {}
    others: dict[Cause, dict[int, tuple[LazyColumns, list[Restriction]]]] = {}
    for place, part in enumerate(parts):
        for restriction in part.restrictions:
            if any(restriction is conjunct for conjunct in part.reader.conjuncts):
                conjuncts.setdefault(restriction.key, restriction)
            else:
                of_cause = others.setdefault(restriction.cause, {})
                of_cause.setdefault(place, (part.columns, []))[1].append(restriction)
    yield from conjuncts.values()
    kept = parts[0].output.file_columns.union(*(conjunct.file_columns for conjunct in conjuncts.values()))
    for files in others.values():
        yield ByFile(files, edges, kept)


class _FewRows:
    """Pieces of a row group of which few rows are left: their pages are read at last, once for all of them."""

    def __init__(self, columns: LazyColumns) -> None:
        self._columns = columns
        self._windows: list[range] = []
        self._rows: list[Rows] = []
        self._count = 0

    def take(self, window: range, selection: RowSelection) -> bool:
        """Whether the rows of a piece can wait; what was decoded of them is dropped."""
        selected = selected_count(selection)
        if self._count + selected > _FEW_ROWS:
            return False
        self._windows.append(window)
        self._rows.append(to_indices(selection))
        self._count += selected
        return True

    def give_back(self) -> Iterator[tuple[LazyColumns, RowSelection]]:
        """One piece with all rows that wait, if there are pieces that do."""
        if self._windows:
            window = range(self._windows[0].start, self._windows[-1].stop)
            rows = np.concatenate(self._rows)
            self._windows, self._rows, self._count = [], [], 0
            yield self._columns.undecoded(window), from_indices(rows, self._columns.row_group.num_rows)


def _manifest_tells(task: FileScanTask, context: ScanContext) -> bool:
    """Whether the manifest's record count is the answer (rule 19): only if the option allows it, and nothing can remove a row."""
    if not context.options.trust_record_counts or not task.is_whole_file:
        return False
    if context.predicate is not None or context.sample is not None or context.runtime_filters:
        return False
    may_delete = task.equality_deletes or task.position_deletes or task.deletion_vector is not None
    return keeps_dead_rows(context) or not may_delete


def resolve_deletes(task: FileScanTask, context: ScanContext, metrics: ScanMetrics) -> Iterator[Flags]:
    """Flags of the dead rows of a whole file, in the order of its rows, a part of the file at a time.

    Only key columns are read, and of those only what statistics, Bloom filters and pages do not exclude. Columns,
    predicate, sample and runtime filters of the scan make no difference.

    Raises:
        MalformedTableError: the task is a part of a file, or a data or delete file breaks its specification.
        MissingFileError: a file is gone.
    """
    if not task.is_whole_file:
        raise MalformedTableError(f"{task.data_file.path}: deletes can be resolved for a whole file only")
    flags_only = replace(
        context,
        projection=Schema(context.projection.schema_id, (DELETED,)),
        predicate=None,
        sample=None,
        runtime_filters=(),
    )

    def flags(piece: _Piece) -> Iterable[Flags]:
        dead, count = piece.columns.dead, selected_count(piece.selection)
        if dead is None:
            return [np.zeros(count, np.bool_)]
        return [dead.flags if len(dead.flags) == count else dead.flags[to_mask(piece.selection)]]

    split = Split(flags_only, (task,))
    yield from _read_twice(
        split,
        metrics,
        None,
        lambda known: _of_pieces(split, (task,), flags_only.projection.fields, metrics, known, flags),
    )
