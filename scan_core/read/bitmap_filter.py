"""Bitmap indexes as a restriction on one open data file: what they answer of its conjuncts is known by row position."""

from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np
import numpy.typing as npt

from nevermore.scan_core.bitmaps.answers import Stages, split_stages
from nevermore.scan_core.columns.file_reader import RowGroup
from nevermore.scan_core.expr.bound import BoundExpr
from nevermore.scan_core.model.metrics import ScanMetrics
from nevermore.scan_core.prune.verdicts import Level
from nevermore.scan_core.read.predicate import Conjunct
from nevermore.scan_core.read.projection import FromFile
from nevermore.scan_core.read.restriction import ByPosition, Cause, Restriction, ValueSource
from nevermore.scan_core.rows.selection import All, Mask, RowSelection
from nevermore.scan_core.split.tasks import FileScanTask, ScanContext


def answer_by_bitmaps(
    conjuncts: Sequence[Conjunct], task: FileScanTask, context: ScanContext, metrics: ScanMetrics
) -> Sequence[Restriction]:
    """The conjuncts that remain to be evaluated after bitmap indexes, and the rows that stage 1 selects.

    Reads the bitmaps that are of use. Columns that do not come from the file, but from its partition or a default, are
    not matched by its index.
    """
    sources = {i: source for conjunct in conjuncts for i, source in conjunct.columns.items()}
    stages = find_stages([conjunct.expr for conjunct in conjuncts], sources, task, context, metrics)
    left = [conjunct for conjunct in conjuncts if conjunct.index not in stages.answered]
    return [*left, rows_of_stage_1(stages, Cause.PREDICATE)] if stages.answered else left


def find_stages(
    conjuncts: Sequence[BoundExpr],
    sources: Mapping[int, ValueSource],
    task: FileScanTask,
    context: ScanContext,
    metrics: ScanMetrics,
) -> Stages:
    """Answer conjuncts, whose columns come from `sources`, by the bitmap indexes of a data file as far as possible."""
    from_file = {i for i, source in sources.items() if isinstance(source, FromFile)}
    blobs = tuple(blob for blob in task.bitmap_indexes if blob.field_id in from_file)
    return split_stages(conjuncts, replace(task, bitmap_indexes=blobs), context, metrics)


def rows_of_stage_1(stages: Stages, cause: Cause) -> ByPosition:
    """The rows for which everything that stage 1 answers is true."""

    def find(row_group: RowGroup) -> RowSelection:
        found: npt.NDArray[np.bool_] = np.ones(row_group.num_rows, np.bool_)
        for answer in stages.answered.values():
            found = found & answer.truth(row_group.first_row_position, row_group.num_rows).true
            if not found.any():
                break
        return All(row_group.num_rows) if found.all() else Mask(found)

    return ByPosition(cause, Level.BITMAPS, find)
