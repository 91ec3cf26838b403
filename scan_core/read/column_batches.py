"""All values of one column of one data file, deleted rows included, in pieces: what indexes are built from."""

from collections.abc import Iterator

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from scan_core.columns.memory_budget import MemoryBudget
from scan_core.model.metrics import ScanMetrics
from scan_core.model.schema import NestedField
from scan_core.read.order import Adaptivity
from scan_core.read.projection import FromFile
from scan_core.read.restriction import file_columns_of, values_of
from scan_core.read.task import open_task
from scan_core.rows.selection import to_indices
from scan_core.split.tasks import FileScanTask, ScanContext

Rows = npt.NDArray[np.int64]


def column_batches(
    task: FileScanTask, column: NestedField, context: ScanContext
) -> Iterator[tuple[pa.Array, Rows]] | None:
    """Values in the type of `column`, perhaps dictionary-encoded, with the positions of their rows in the file.

    None if the file lacks the column: partition or default give one value to all of its rows.

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
        for columns, _ in reader.row_groups():
            for piece, within in reader.pieces(columns, budget):
                first = piece.row_group.first_row_position
                yield values_of(source, piece, within), first + to_indices(within)
