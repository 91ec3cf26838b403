"""Bitmap indexes as restrictions on one open data file: conjuncts that bitmaps answer, wholly or in parts.

What stage 1 answers is known by row position. A conjunct of stage 2 has parts that bitmaps answer: those are matched by row
position before any value is read.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from nevermore.scan_core.bitmaps.answers import Answer, Stages, split_stages
from nevermore.scan_core.columns.file_reader import RowGroup
from nevermore.scan_core.expr.bound import And, BoundExpr, Call, Case, Cast, Failure, Or, children, walk
from nevermore.scan_core.expr.evaluate import evaluation_error, judge
from nevermore.scan_core.expr.frame import not_false
from nevermore.scan_core.expr.nodes import leaf_ids
from nevermore.scan_core.expr.vectors import Truth
from nevermore.scan_core.model.metrics import ScanMetrics
from nevermore.scan_core.prune.verdicts import Level
from nevermore.scan_core.read.lazy import LazyColumns
from nevermore.scan_core.read.predicate import Conjunct, guess_cost
from nevermore.scan_core.read.projection import FromFile
from nevermore.scan_core.read.restriction import ByPosition, Cause, Restriction, ValueSource, Verdict, values_of
from nevermore.scan_core.rows.selection import All, Mask, RowSelection, refine, selected_count, to_mask
from nevermore.scan_core.split.tasks import FileScanTask, ScanContext

_MAX_COPIED_SHARE = 0.5
"""Above this share of undecided rows, columns are read for all selected rows: other steps or the result may need them."""


def answer_by_bitmaps(
    conjuncts: Sequence[Conjunct], task: FileScanTask, context: ScanContext, metrics: ScanMetrics
) -> Sequence[Restriction]:
    """The conjuncts that remain to be evaluated after bitmap indexes, and the rows that stage 1 selects.

    Reads the bitmaps that are of use. Columns that do not come from the file, but from its partition or a default, are
    not matched by its index.
    """
    sources = {i: source for conjunct in conjuncts for i, source in conjunct.columns.items()}
    stages = find_stages([conjunct.expr for conjunct in conjuncts], sources, task, context, metrics)
    left: list[Restriction] = [
        _mixed(conjunct, stages.mixed[conjunct.index]) if conjunct.index in stages.mixed else conjunct
        for conjunct in conjuncts
        if conjunct.index not in stages.answered
    ]
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


@dataclass(frozen=True, slots=True, eq=False)
class _Bounds:
    """Rows for which an expression is certainly true, and rows for which it may be true."""

    must: npt.NDArray[np.bool_]
    may: npt.NDArray[np.bool_]


@dataclass(frozen=True, slots=True, eq=False)
class _MixedConjunct(Conjunct):
    """A conjunct with the answers of some parts; rows that they decide are never looked at by value.

    The answered parts stand first in every AND and OR, and `columns` are those that the others read.
    """

    answers: Mapping[BoundExpr, Answer]
    can_fail: bool

    @property
    def first_guess(self) -> float:
        """A cost below that of a conjunct on values alone."""
        return guess_cost(self.expr, len(self.columns)) - 0.5

    @property
    def collection_id(self) -> int | None:
        """None: answers of bitmaps are not values of a collection."""
        return None

    def rows(self, columns: LazyColumns, selection: RowSelection) -> Verdict:
        """A row stays if the conjunct is true; false and NULL are not."""
        group, selected = columns.row_group, to_mask(selection)
        known = {
            node: answer.truth(group.first_row_position, group.num_rows).where(selected)
            for node, answer in self.answers.items()
        }
        bounds = self._bounds(self.expr, known, selected_count(selection))
        undecided = bounds.may & ~bounds.must
        left = int(np.count_nonzero(undecided))
        if left == 0:
            return Verdict(bounds.must)
        if left >= _MAX_COPIED_SHARE * len(undecided):
            undecided, view, rows = np.ones(len(undecided), np.bool_), columns, selection
        else:
            view, rows = columns.copy(), refine(selection, undecided)
            known = {node: truth.where(undecided) for node, truth in known.items()}
        values = {i: values_of(source, view, rows) for i, source in self.columns.items()}
        outcome = judge(self.expr, values, selected_count(rows), known)
        keep = bounds.must.copy()
        keep[undecided] |= outcome.passed
        if outcome.failed is None:
            return Verdict(keep)
        failed: npt.NDArray[np.bool_] = np.zeros(len(keep), np.bool_)
        failed[undecided] = outcome.failed
        return Verdict(keep | failed, failed, evaluation_error(self.expr, outcome))

    def record_late(self, rows_in: int, removed: int) -> None:
        """Record nothing: the column of a part already has an index."""

    def _bounds(self, node: BoundExpr, known: Mapping[BoundExpr, Truth], num_rows: int) -> _Bounds:
        """Bounds without reading values. NULL may still become an error where another part fails, and only there."""
        if (truth := known.get(node)) is not None:
            return _Bounds(truth.true, not_false(truth) if self.can_fail else truth.true)
        match node:
            case And(operands) | Or(operands):
                parts = [self._bounds(o, known, num_rows) for o in operands]
                combined = np.logical_and if isinstance(node, And) else np.logical_or
                return _Bounds(combined.reduce([p.must for p in parts]), combined.reduce([p.may for p in parts]))
            case _:
                return _Bounds(np.zeros(num_rows, np.bool_), np.ones(num_rows, np.bool_))


def _mixed(conjunct: Conjunct, answers: Mapping[BoundExpr, Answer]) -> _MixedConjunct:
    ids = _ids_of_values(conjunct.expr, answers)
    return _MixedConjunct(
        replace(conjunct.predicate, conjuncts=(_reordered(conjunct.expr, answers),)),
        conjunct.index,
        {i: source for i, source in conjunct.columns.items() if i in ids},
        conjunct.types,
        {i: kind for i, kind in conjunct.equated.items() if i in ids},
        conjunct.statistics,
        conjunct.options,
        conjunct.worth,
        conjunct.table,
        None,
        answers,
        any(isinstance(n, Call | Case | Cast | Failure) for n in walk(conjunct.expr)),
    )


def _ids_of_values(node: BoundExpr, answers: Mapping[BoundExpr, Answer]) -> frozenset[int]:
    """Ids of the columns and struct members that must be read in addition to the answers."""
    if node in answers:
        return frozenset()
    if not any(part in answers for part in walk(node)):
        return leaf_ids(node)
    return frozenset().union(*(_ids_of_values(child, answers) for child in children(node)))


def _reordered(node: BoundExpr, answers: Mapping[BoundExpr, Answer]) -> BoundExpr:
    if node in answers or not isinstance(node, And | Or):
        return node
    operands = tuple(_reordered(o, answers) for o in node.operands)
    return replace(node, operands=tuple(sorted(operands, key=lambda o: o not in answers)))
