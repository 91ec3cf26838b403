"""Evaluation: a bound expression and the columns of a batch to the rows for which it is true.

A row on which an expression fails (division by zero, bad cast) is marked, and is an error only if it passes everything
else. How each kind of expression is computed on columns is in `kernels.py`.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import pyarrow as pa

from nevermore.scan_core.expr.bound import BoundExpr, Failure, Literal, walk
from nevermore.scan_core.expr.frame import Frame, repeated_parts
from nevermore.scan_core.expr.kernels import cost_of, truth_of, vector_of
from nevermore.scan_core.expr.nodes import bound_text
from nevermore.scan_core.expr.vectors import Truth, Vector, array_from
from nevermore.scan_core.model.errors import EvaluationError
from nevermore.scan_core.rows.buffers import Mask


@dataclass(frozen=True, slots=True, eq=False)
class Outcome:
    """What one conjunct says about a batch.

    Attributes:
        passed: rows for which it is true.
        failed: rows on which it could not be computed, None if there is none; such a row is an error of the query if
            it passes every other conjunct and survives all deletes. Disjoint from `passed`.
        reason: why, for the message.
    """

    passed: Mask
    failed: Mask | None
    reason: str


@dataclass(slots=True, eq=False)
class Shared:
    """Results of `parts` that several conjuncts have in common, for the rows of a batch that are left.

    Results for distinct values of a column are kept beyond the batch.
    """

    parts: frozenset[BoundExpr] = frozenset()
    truths: dict[BoundExpr, Truth] = field(default_factory=dict)
    vectors: dict[BoundExpr, Vector] = field(default_factory=dict)

    def where(self, rows: Mask) -> "Shared":
        """The same for fewer rows."""
        if not self.truths and not self.vectors:
            return self
        return Shared(
            self.parts,
            {node: truth.where(rows) for node, truth in self.truths.items()},
            {node: vector.where(rows) for node, vector in self.vectors.items()},
        )


def judge(
    conjunct: BoundExpr,
    columns: Mapping[int, pa.Array],
    num_rows: int,
    known: Mapping[BoundExpr, Truth] | None = None,
    shared: Shared | None = None,
) -> Outcome:
    """Evaluate a conjunct. Rows that fail are reported, not raised: the caller decides once it knows which rows survive.

    Args:
        conjunct: a bound boolean expression.
        columns: arrays of `num_rows` values in the table's types by field id: top-level columns, or struct members
            alone (NULL where the struct is); dictionary-encoded ones are evaluated by dictionary value.
        num_rows: rows of the batch.
        known: truth values of parts of the conjunct, whose columns are not needed then.
        shared: results of other conjuncts for these rows, to which those of this one are added.
    """
    frame = _frame(conjunct, columns, num_rows, known or {}, shared)
    truth = truth_of(conjunct, frame, nulls=False)
    if shared is not None and shared.parts:
        shared.truths |= {node: found for node, found in frame.truths.items() if node in shared.parts}
        shared.vectors |= {node: found for node, found in frame.vectors.items() if node in shared.parts}
    failed = truth.failed if truth.failed is not None and truth.failed.any() else None
    return Outcome(truth.true, failed, truth.reason if failed is not None else "")


def truth_values(node: BoundExpr, columns: Mapping[int, pa.Array], num_rows: int) -> Truth:
    """Rows for which a bound boolean expression is true, unknown (NULL), or fails."""
    return truth_of(node, _frame(node, columns, num_rows, {}), nulls=True)


def values_at(access: BoundExpr, columns: Mapping[int, pa.Array], num_rows: int) -> pa.Array:
    """The values of an expression.

    Raises:
        EvaluationError: it fails on a row.
    """
    vector = vector_of(access, Frame(columns, num_rows))
    if vector.failed is not None and vector.failed.any():
        raise EvaluationError(
            f"{vector.reason} in: {bound_text(access)}; try_element_at() and get() give NULL where a list has no such element"
        )
    return array_from(vector.values, num_rows)


def constant_value(node: BoundExpr) -> BoundExpr:
    """A constant expression as a Literal, or as a Failure if it always fails."""
    vector = vector_of(node, Frame({}, 1))
    if vector.failed is not None and vector.failed[0]:
        return Failure(vector.reason, node.type, node)
    array = array_from(vector.values, 1)
    if array.null_count:
        return Literal(None, node.type)
    scalar = array[0]
    return Literal(scalar.value if pa.types.is_temporal(array.type) else scalar.as_py(), node.type)


def evaluation_error(conjunct: BoundExpr, outcome: Outcome) -> EvaluationError:
    """The error to raise when a row that failed survives everything else."""
    return EvaluationError(
        f"{outcome.reason or 'failure'} in: {bound_text(conjunct)}; a row that passes every other filter fails here "
        "(try_cast, try_divide and the like give NULL instead)"
    )


def shared_parts(conjuncts: Sequence[BoundExpr]) -> frozenset[BoundExpr]:
    """Sub-expressions that occur in several conjuncts and cost more than keeping their results."""
    counts = Counter(part for conjunct in conjuncts for part in set(walk(conjunct)))
    return frozenset(part for part, count in counts.items() if count > 1 and cost_of(part) >= _MIN_SHARED_COST)


_MIN_SHARED_COST = 20.0


def _frame(
    node: BoundExpr,
    columns: Mapping[int, pa.Array],
    num_rows: int,
    known: Mapping[BoundExpr, Truth],
    shared: Shared | None = None,
) -> Frame:
    parts = frozenset[BoundExpr]() if shared is None else shared.parts
    frame = Frame(columns, num_rows, repeated_parts(node) | known.keys() | parts)
    if shared is not None:
        frame.truths.update(shared.truths)
        frame.vectors.update(shared.vectors)
    frame.truths.update(known)
    return frame
