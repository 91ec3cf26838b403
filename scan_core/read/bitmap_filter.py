"""Bitmap indexes as restrictions on one open data file: the rows of conjuncts that bitmaps answer, by row position."""

from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np
import numpy.typing as npt

from nevermore.scan_core.bitmaps.answers import Answers, answer_conjuncts
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
    """The conjuncts that remain to be evaluated after bitmap indexes, and the rows that these select.

    Reads the bitmaps that are of use. Columns that do not come from the file, but from its partition or a default, are
    not matched by its index.
    """
    sources = {i: source for conjunct in conjuncts for i, source in conjunct.columns.items()}
    found = find_answers([conjunct.expr for conjunct in conjuncts], sources, task, context, metrics)
    left: list[Restriction] = [conjunct for conjunct in conjuncts if conjunct.index not in found.answered]
    return [*left, rows_of_answers(found, Cause.PREDICATE)] if found.answered else left


def find_answers(
    conjuncts: Sequence[BoundExpr],
    sources: Mapping[int, ValueSource],
    task: FileScanTask,
    context: ScanContext,
    metrics: ScanMetrics,
) -> Answers:
    """Answer conjuncts, whose columns come from `sources`, by the bitmap indexes of a data file as far as possible."""
    from_file = {i for i, source in sources.items() if isinstance(source, FromFile)}
    blobs = tuple(blob for blob in task.bitmap_indexes if blob.field_id in from_file)
    return answer_conjuncts(conjuncts, replace(task, bitmap_indexes=blobs), context, metrics)


def rows_of_answers(answers: Answers, cause: Cause) -> ByPosition:
    """The rows for which everything that bitmaps answer is true."""

    def find(row_group: RowGroup) -> RowSelection:
        found: npt.NDArray[np.bool_] = np.ones(row_group.num_rows, np.bool_)
        for answer in answers.answered.values():
            found = found & answer.truth(row_group.first_row_position, row_group.num_rows).true
            if not found.any():
                break
        return All(row_group.num_rows) if found.all() else Mask(found)

    return ByPosition(cause, Level.BITMAPS, find)
