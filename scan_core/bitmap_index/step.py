"""A conjunct of stage 2 with parts that bitmaps answer: those are matched by row position, before any value is read."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

import numpy as np
import numpy.typing as npt

from scan_core.bitmap_index.answers import Answer
from scan_core.expr.bound import And, BoundExpr, Call, Case, Cast, Failure, Or, children, walk
from scan_core.expr.evaluate import evaluation_error, judge
from scan_core.expr.logic import not_false
from scan_core.expr.nodes import leaf_ids
from scan_core.expr.vectors import Truth
from scan_core.read.lazy import LazyColumns
from scan_core.read.predicate_step import PredicateStep
from scan_core.read.row_filter import Keep, ValueSource, Verdict, values_of
from scan_core.rows.selection import RowSelection, refine, selected_count, to_mask

_ASIDE_SHARE = 0.5
"""Of more undecided rows than that, columns are read for all selected rows: other steps or the result may want them."""


@dataclass(frozen=True, slots=True, eq=False)
class _Bounds:
    """Rows for which an expression must be true, and those for which it may be."""

    must: npt.NDArray[np.bool_]
    may: npt.NDArray[np.bool_]


@dataclass(frozen=True, slots=True, eq=False)
class MixedStep:
    """`step` with the answers of some parts; rows that they decide are never looked at by value."""

    step: PredicateStep
    answers: Mapping[BoundExpr, Answer]
    conjunct: BoundExpr
    sources: Mapping[int, ValueSource]
    can_fail: bool
    is_delete: bool = field(default=False, init=False)
    is_runtime_filter: bool = field(default=False, init=False)
    collection_id: int | None = field(default=None, init=False)

    @property
    def key(self) -> object:
        """Its place in the predicate."""
        return self.step.key

    @property
    def first_guess(self) -> float:
        """Cheaper than a conjunct on values alone."""
        return self.step.first_guess - 0.5

    def judge(self, columns: LazyColumns, selection: RowSelection) -> Verdict:
        """A row stays if the conjunct is true; false and NULL are not."""
        group, selected = columns.row_group, to_mask(selection)
        known = {
            node: answer.truth(group.first_row_position, group.num_rows).where(selected)
            for node, answer in self.answers.items()
        }
        bounds = self._bounds(self.conjunct, known, selected_count(selection))
        undecided = bounds.may & ~bounds.must
        left = int(np.count_nonzero(undecided))
        if left == 0:
            return Verdict(bounds.must)
        if left >= _ASIDE_SHARE * len(undecided):
            undecided, view, rows = np.ones(len(undecided), np.bool_), columns, selection
        else:
            view, rows = columns.aside(), refine(selection, undecided)
            known = {node: truth.where(undecided) for node, truth in known.items()}
        values = {i: values_of(source, view, rows) for i, source in self.sources.items()}
        outcome = judge(self.conjunct, values, selected_count(rows), known)
        keep = bounds.must.copy()
        keep[undecided] |= outcome.passed
        if outcome.failed is None:
            return Verdict(keep)
        failed: Keep = np.zeros(len(keep), np.bool_)
        failed[undecided] = outcome.failed
        return Verdict(keep | failed, failed, evaluation_error(self.conjunct, outcome))

    def _bounds(self, node: BoundExpr, known: Mapping[BoundExpr, Truth], num_rows: int) -> _Bounds:
        """Without values. NULL may still turn into an error where another part fails, and only there."""
        if (truth := known.get(node)) is not None:
            return _Bounds(truth.true, not_false(truth) if self.can_fail else truth.true)
        match node:
            case And(operands) | Or(operands):
                parts = [self._bounds(o, known, num_rows) for o in operands]
                combined = np.logical_and if isinstance(node, And) else np.logical_or
                return _Bounds(combined.reduce([p.must for p in parts]), combined.reduce([p.may for p in parts]))
            case _:
                return _Bounds(np.zeros(num_rows, np.bool_), np.ones(num_rows, np.bool_))


def mixed_step(step: PredicateStep, answers: Mapping[BoundExpr, Answer]) -> MixedStep:
    """A conjunct whose answered parts stand first in every AND and OR."""
    ids = _ids_of_values(step.conjunct, answers)
    return MixedStep(
        step,
        answers,
        _reordered(step.conjunct, answers),
        {i: source for i, source in step.sources.items() if i in ids},
        any(isinstance(n, Call | Case | Cast | Failure) for n in walk(step.conjunct)),
    )


def _ids_of_values(node: BoundExpr, answers: Mapping[BoundExpr, Answer]) -> frozenset[int]:
    """Ids of the columns and members that must be read beside the answers."""
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
