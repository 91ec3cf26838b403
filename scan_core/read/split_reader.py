"""The whole worker path, top to bottom: from a split to record batches, or to a count.

For each row group: prune by statistics, start from what position deletes leave, narrow by conjuncts and delete sets,
and only then decode the payload of the rows that survived.
"""

from collections.abc import Generator, Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager
from itertools import zip_longest

import pyarrow as pa

from scan_core.metrics import ScanMetrics
from scan_core.native.compiled import may_use_numba
from scan_core.read.aggregate import Call, Partial, aggregate_group
from scan_core.read.conjunct_order import ConjunctOrder
from scan_core.read.memory_budget import MemoryBudget
from scan_core.read.metadata_columns import keeps_dead_rows
from scan_core.read.output import OutputColumns
from scan_core.read.read_ahead import FilesAhead
from scan_core.read.task_reader import TaskReader, open_task
from scan_core.rows.selection import selected_count
from scan_core.split import FileScanTask, ScanContext, Split


def read_split(split: Split, metrics: ScanMetrics, ahead: FilesAhead | None = None) -> Iterator[pa.RecordBatch]:
    """The live rows of a split that fulfil the predicate, in the columns and types of `context.projection`.

    Batches have at most `options.batch_rows` rows and are never empty. UUIDs are 16 bytes.

    Args:
        split: what to read.
        metrics: counters to add to.
        ahead: files that were opened before their turn; those of the split itself are, with or without it.

    Raises:
        MalformedTableError: a data or delete file breaks its specification; names it.
        MissingFileError: a file is gone.
        EvaluationError: the predicate fails on a row that nothing else drops.
    """
    with _opening(split, split.tasks, metrics, ahead) as (readers, budget):
        for task, reader in readers:
            output = OutputColumns(reader.projection, split.context, task.data_file)
            reader.plan_to_read(output.file_columns)
            for columns, conjuncts in reader.row_groups():
                for piece, within in reader.pieces(columns, budget):
                    selection = reader.refine(piece, conjuncts, within)
                    for batch in output.batches(piece, selection, budget, metrics):
                        metrics.rows_out += batch.num_rows
                        yield batch
                reader.count_bytes(columns)


def count_split(split: Split, metrics: ScanMetrics, ahead: FilesAhead | None = None) -> int:
    """How many rows `read_split` would yield, decoding nothing that is not needed to tell."""
    tasks = [task for task in split.tasks if not _manifest_tells(task, split.context)]
    total = 0
    if len(tasks) < len(split.tasks):
        total = sum(task.data_file.record_count for task in split.tasks if _manifest_tells(task, split.context))
    with _opening(split, tasks, metrics, ahead) as (readers, budget):
        for _, reader in readers:
            for columns, conjuncts in reader.row_groups():
                for piece, within in reader.pieces(columns, budget):
                    total += selected_count(reader.refine(piece, conjuncts, within))
                reader.count_bytes(columns)
    metrics.rows_out += total
    return total


def aggregate_split(
    split: Split, calls: Sequence[Call], metrics: ScanMetrics, ahead: FilesAhead | None = None
) -> Iterator[tuple[Partial, ...]]:
    """For each row group the calls over the rows that `read_split` would yield of it."""
    use_numba = may_use_numba(split.context.options)
    with _opening(split, split.tasks, metrics, ahead) as (readers, budget):
        for task, reader in readers:
            output = OutputColumns(reader.projection, split.context, task.data_file)
            reader.plan_to_read(output.file_columns)
            for columns, conjuncts in reader.row_groups():
                for piece, within in reader.pieces(columns, budget):
                    selection = reader.refine(piece, conjuncts, within)
                    metrics.rows_out += selected_count(selection)
                    yield aggregate_group(calls, output.sources, piece, selection, use_numba=use_numba)
                reader.count_bytes(columns)


_Readers = Iterator[tuple[FileScanTask, TaskReader]]


@contextmanager
def _opening(
    split: Split, tasks: Sequence[FileScanTask], metrics: ScanMetrics, ahead: FilesAhead | None
) -> Iterator[tuple[_Readers, MemoryBudget]]:
    """The files of some tasks of a split, opened one after the other, and what may be decoded of them at once."""
    metrics.splits_read += 1
    with ExitStack() as stack:
        known = stack.enter_context(FilesAhead(split.context.options)) if ahead is None else ahead
        readers = stack.enter_context(closing(_open_in_turn(split, tasks, metrics, known)))
        yield readers, MemoryBudget(split.context.options, known.reserved_bytes(split))


def _open_in_turn(
    split: Split, tasks: Sequence[FileScanTask], metrics: ScanMetrics, ahead: FilesAhead
) -> Generator[tuple[FileScanTask, TaskReader], None, None]:
    order = ConjunctOrder.of(split.context)
    for task, following in zip_longest(tasks, tasks[1:]):
        if following is not None:
            ahead.expect_task(following, split.context)
        with open_task(task, split.context, metrics, order, ahead) as reader:
            yield task, reader


def _manifest_tells(task: FileScanTask, context: ScanContext) -> bool:
    """Rule 19: a record count is believed only if asked for, and where nothing can remove a row."""
    if not context.options.trust_record_counts or not task.is_whole_file:
        return False
    if context.predicate is not None or context.sample is not None or context.runtime_filters:
        return False
    may_delete = task.equality_deletes or task.position_deletes or task.deletion_vector is not None
    return keeps_dead_rows(context) or not may_delete
