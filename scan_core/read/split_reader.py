"""The whole worker path, top to bottom: from a split to record batches, or to a count.

For each row group: prune by statistics, start from what position deletes leave, narrow by conjuncts and delete sets,
and only then decode the payload of the rows that survived.
"""

from collections.abc import Iterator, Sequence

import pyarrow as pa

from scan_core.metrics import ScanMetrics
from scan_core.native.compiled import may_use_numba
from scan_core.read.aggregate import Call, Partial, aggregate_group
from scan_core.read.conjunct_order import ConjunctOrder
from scan_core.read.memory_budget import MemoryBudget
from scan_core.read.metadata_columns import keeps_dead_rows
from scan_core.read.output import OutputColumns
from scan_core.read.task_reader import open_task
from scan_core.rows.selection import selected_count
from scan_core.split import FileScanTask, ScanContext, Split


def read_split(split: Split, metrics: ScanMetrics) -> Iterator[pa.RecordBatch]:
    """The live rows of a split that fulfil the predicate, in the columns and types of `context.projection`.

    Batches have at most `options.batch_rows` rows and are never empty. UUIDs are 16 bytes.

    Args:
        split: what to read.
        metrics: counters to add to.

    Raises:
        MalformedTableError: a data or delete file breaks its specification; names it.
        MissingFileError: a file is gone.
        EvaluationError: the predicate fails on a row that nothing else drops.
    """
    metrics.splits_read += 1
    order = ConjunctOrder.of(split.context)
    budget = MemoryBudget(split.context.options)
    for task in split.tasks:
        with open_task(task, split.context, metrics, order) as reader:
            output = OutputColumns(reader.projection, split.context, task.data_file)
            reader.plan_to_read(output.file_columns)
            for columns, conjuncts in reader.row_groups():
                for piece, within in reader.pieces(columns, budget):
                    selection = reader.refine(piece, conjuncts, within)
                    for batch in output.batches(piece, selection, budget, metrics):
                        metrics.rows_out += batch.num_rows
                        yield batch
                reader.count_bytes(columns)


def count_split(split: Split, metrics: ScanMetrics) -> int:
    """How many rows `read_split` would yield, decoding nothing that is not needed to tell."""
    metrics.splits_read += 1
    order = ConjunctOrder.of(split.context)
    budget = MemoryBudget(split.context.options)
    total = 0
    for task in split.tasks:
        if _manifest_tells(task, split.context):
            total += task.data_file.record_count
            continue
        with open_task(task, split.context, metrics, order) as reader:
            for columns, conjuncts in reader.row_groups():
                for piece, within in reader.pieces(columns, budget):
                    total += selected_count(reader.refine(piece, conjuncts, within))
                reader.count_bytes(columns)
    metrics.rows_out += total
    return total


def aggregate_split(split: Split, calls: Sequence[Call], metrics: ScanMetrics) -> Iterator[tuple[Partial, ...]]:
    """For each row group the calls over the rows that `read_split` would yield of it."""
    metrics.splits_read += 1
    use_numba = may_use_numba(split.context.options)
    order = ConjunctOrder.of(split.context)
    budget = MemoryBudget(split.context.options)
    for task in split.tasks:
        with open_task(task, split.context, metrics, order) as reader:
            output = OutputColumns(reader.projection, split.context, task.data_file)
            reader.plan_to_read(output.file_columns)
            for columns, conjuncts in reader.row_groups():
                for piece, within in reader.pieces(columns, budget):
                    selection = reader.refine(piece, conjuncts, within)
                    metrics.rows_out += selected_count(selection)
                    yield aggregate_group(calls, output.sources, piece, selection, use_numba=use_numba)
                reader.count_bytes(columns)


def _manifest_tells(task: FileScanTask, context: ScanContext) -> bool:
    """Rule 19: a record count is believed only if asked for, and where nothing can remove a row."""
    if not context.options.trust_record_counts or not task.is_whole_file:
        return False
    if context.predicate is not None or context.sample is not None or context.runtime_filters:
        return False
    may_delete = task.equality_deletes or task.position_deletes or task.deletion_vector is not None
    return keeps_dead_rows(context) or not may_delete
