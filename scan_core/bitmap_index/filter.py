"""The bitmap indexes of an open data file as its reader uses them: rows of stage 1, and the steps left for stage 2."""

from collections.abc import Sequence
from dataclasses import replace

from scan_core.bitmap_index.stages import Stages, split_stages
from scan_core.bitmap_index.step import MixedStep, mixed_step
from scan_core.expr.vectors import BoolMask
from scan_core.metrics import ScanMetrics
from scan_core.read.file_reader import RowGroup
from scan_core.read.predicate_step import PredicateStep
from scan_core.read.projection import FromFile
from scan_core.rows.selection import All, Mask, RowSelection
from scan_core.split import FileScanTask, ScanContext


class BitmapFilter:
    """What bitmaps answer of the predicate in one data file."""

    def __init__(self, stages: Stages) -> None:
        self._stages = stages
        self._last: tuple[int, RowSelection] | None = None

    def remaining(self, steps: Sequence[PredicateStep]) -> list[PredicateStep | MixedStep]:
        """The steps that stage 1 does not answer, parts of them perhaps by row position."""
        mixed = self._stages.mixed
        return [
            mixed_step(step, mixed[step.index]) if step.index in mixed else step
            for step in steps
            if step.index not in self._stages.answered
        ]

    def rows(self, row_group: RowGroup) -> RowSelection:
        """The rows of a row group for which everything that stage 1 answers is true."""
        if not self._stages.answered:
            return All(row_group.num_rows)
        if self._last is None or self._last[0] != row_group.index:
            self._last = row_group.index, self._find(row_group)
        return self._last[1]

    def _find(self, row_group: RowGroup) -> RowSelection:
        found: BoolMask | None = None
        for answer in self._stages.answered.values():
            true = answer.truth(row_group.first_row_position, row_group.num_rows).true
            found = true if found is None else found & true
            if not found.any():
                break
        return All(row_group.num_rows) if found is None or found.all() else Mask(found)


def open_bitmap_filter(
    steps: Sequence[PredicateStep], task: FileScanTask, context: ScanContext, metrics: ScanMetrics
) -> BitmapFilter | None:
    """The filter of a task; None if no bitmap index is of use.

    Columns that do not come from the file, but from its partition or a default, are not matched by its index.
    """
    from_file = {i for step in steps for i, source in step.sources.items() if isinstance(source, FromFile)}
    blobs = tuple(blob for blob in task.bitmap_indexes if blob.field_id in from_file)
    stages = split_stages([step.conjunct for step in steps], replace(task, bitmap_indexes=blobs), context, metrics)
    return BitmapFilter(stages) if stages.answered or stages.mixed else None
