"""Reading the files in which two snapshots differ: which of their rows came and which went.

The worker half of `changes()`; payload columns are decoded only for rows that are alive in one snapshot and not in the
other.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from enum import Enum
from typing import assert_never

import pyarrow as pa

from scan_core.changes.file_changes import FileChanges, Redeleted
from scan_core.deletes.delete_filter import open_delete_filter
from scan_core.metrics import ScanMetrics
from scan_core.plan.splits import make_splits
from scan_core.read.memory_budget import MemoryBudget
from scan_core.read.order import Adaptivity
from scan_core.read.output import OutputColumns
from scan_core.read.split_reader import read_split
from scan_core.read.task import open_task
from scan_core.rows.selection import Mask, to_indices
from scan_core.split import ScanContext, Split


class ChangeType(Enum):
    """What happened to a row."""

    DELETE = "delete"
    INSERT = "insert"


@dataclass(frozen=True, slots=True)
class WholeFiles:
    """Files that only one of the snapshots has: each row alive in them changed in the same way."""

    change: ChangeType
    split: Split


@dataclass(frozen=True, slots=True)
class RedeletedFile:
    """A file of both snapshots whose deletes differ."""

    context: ScanContext
    file: Redeleted


ChangeSplit = WholeFiles | RedeletedFile
"""The unit of work of one worker."""
Changed = tuple[ChangeType, pa.RecordBatch]


def change_splits(changes: FileChanges, context: ScanContext) -> tuple[ChangeSplit, ...]:
    """The work that a difference of files makes."""
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
    adaptivity = Adaptivity(adaptive=context.options.adaptive_order)
    with open_task(file.common, context, metrics, adaptivity) as reader:
        output = OutputColumns(reader.projection, context, file.common.data_file, context.projection.fields)
        reader.plan_to_read(output.file_columns)
        for columns, unread in reader.row_groups():
            dead_after = reader.removed_by(after, columns)
            changed = Mask(reader.removed_by(before, columns) ^ dead_after)
            if changed.values.any():
                selection = reader.refine(columns, reader.select(columns, unread, changed), changed)
                gone = dead_after[to_indices(selection)]
                start = 0
                for batch in output.batches(columns, selection, MemoryBudget(context.options), metrics):
                    metrics.rows_out += batch.num_rows
                    yield from _by_type(batch, pa.array(gone[start : start + batch.num_rows]))
                    start += batch.num_rows
            reader.count_bytes(columns)


def _by_type(batch: pa.RecordBatch, gone: pa.BooleanArray) -> Iterator[Changed]:
    if gone.true_count == len(gone):
        yield ChangeType.DELETE, batch
    elif gone.true_count == 0:
        yield ChangeType.INSERT, batch
    else:
        kept = pa.array(~gone.to_numpy(zero_copy_only=False))
        yield ChangeType.DELETE, batch.filter(gone)
        yield ChangeType.INSERT, batch.filter(kept)
