"""The whole worker path: from a split to record batches, a count, or aggregates; all values of one column for indexes."""

import logging
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass, fields, replace
from itertools import chain
from typing import TypeVar

import numpy as np
import pyarrow as pa

from nevermore.scan_core.columns.file_reader import MemoryBudget
from nevermore.scan_core.io.files import forget_object
from nevermore.scan_core.model.errors import MalformedTableError
from nevermore.scan_core.model.options import ScanMetrics
from nevermore.scan_core.model.schema import NestedField, Schema
from nevermore.scan_core.model.snapshot import DataFile, DeleteFile
from nevermore.scan_core.read.output import Call, OutputColumns, Partial, aggregate_group, combine_all
from nevermore.scan_core.read.projection import DELETED, FromFile, LazyColumns, keeps_dead_rows
from nevermore.scan_core.read.read_ahead import FilesAhead
from nevermore.scan_core.read.restriction import Adaptivity, file_columns_of, values_of
from nevermore.scan_core.read.task import AccessPlan, TaskReader, open_task
from nevermore.scan_core.rows.buffers import Mask as Flags
from nevermore.scan_core.rows.buffers import Rows
from nevermore.scan_core.rows.selection import (
    RowSelection,
    selected_count,
    to_indices,
    to_mask,
)
from nevermore.scan_core.split.tasks import FileScanTask, ScanContext, Split

_T = TypeVar("_T")
_log = logging.getLogger(__name__)


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
    """Evaluate aggregate calls over the rows that `read_split` would yield."""

    def partials(piece: _Piece) -> Iterable[tuple[Partial, ...]]:
        metrics.rows_out += selected_count(piece.selection)
        return [aggregate_group(calls, piece.output.sources, piece.columns, piece.selection)]

    def all_partials(known: FilesAhead | None) -> Generator[list[tuple[Partial, ...]], None, None]:
        pieces = _of_pieces(split, split.tasks, split.context.projection.fields, metrics, known, partials)
        yield [combine_all(calls, pieces)]

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
        following: Sequence[FileScanTask | None] = [*tasks[1:], None]
        for task, upcoming in zip(tasks, following, strict=False):  # a split may have no tasks
            if upcoming is not None:
                known.expect_task(upcoming, context)
            with open_task(task, context, metrics, adaptivity, known) as reader:
                output = OutputColumns(reader.projection, context, task.data_file, fields)
                reader.plan_to_read(output.file_columns)
                for columns, unread in reader.row_groups(budget.limits):
                    yield from _of_row_group(reader, columns, reader.select(columns, unread), output, budget, make)


def _of_row_group(  # noqa: PLR0917  all of them change from one row group to the next, or are of the split
    reader: TaskReader,
    columns: LazyColumns,
    selected: AccessPlan,
    output: OutputColumns,
    budget: MemoryBudget,
    make: Callable[[_Piece], Iterable[_T]],
) -> Iterator[_T]:
    with reader.counting(columns):
        for piece, within in reader.pieces(columns, budget):
            yield from make(_Piece(piece, reader.refine(piece, selected, within), output, budget))


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
