"""Evaluation: a bound expression and the columns of a batch to the rows for which it is true.

A row on which an expression fails (division by zero, bad cast) is marked, and is an error only if it passes everything
else. How each kind of expression is computed on columns is in `kernels.py`.
"""

from collections.abc import Mapping
from dataclasses import dataclass

import pyarrow as pa

from nevermore.scan_core.expr.bound import BoundExpr, Failure, Literal
from nevermore.scan_core.expr.frame import Frame
from nevermore.scan_core.expr.kernels import truth_of, vector_of
from nevermore.scan_core.expr.nodes import bound_text
from nevermore.scan_core.expr.vectors import Truth, array_from
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


def judge(
    conjunct: BoundExpr,
    columns: Mapping[int, pa.Array],
    num_rows: int,
) -> Outcome:
    """Evaluate a conjunct. Rows that fail are reported, not raised: the caller decides once it knows which rows survive.

    Args:
        conjunct: a bound boolean expression.
        columns: arrays of `num_rows` values in the table's types by field id: top-level columns, or struct members
            alone (NULL where the struct is); dictionary-encoded ones are evaluated by dictionary value.
        num_rows: rows of the batch.
    """
    truth = truth_of(conjunct, Frame(columns, num_rows), nulls=False)
    failed = truth.failed if truth.failed is not None and truth.failed.any() else None
    return Outcome(truth.true, failed, truth.reason if failed is not None else "")


def truth_values(node: BoundExpr, columns: Mapping[int, pa.Array], num_rows: int) -> Truth:
    """Rows for which a bound boolean expression is true, unknown (NULL), or fails."""
    return truth_of(node, Frame(columns, num_rows), nulls=True)


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
