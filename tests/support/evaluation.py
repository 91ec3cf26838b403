"""Evaluation of a single conjunct whose failures are errors at once."""

from collections.abc import Mapping

import pyarrow as pa

from nevermore.scan_core.expr.bound import BoundExpr
from nevermore.scan_core.expr.kernels import evaluation_error, judge
from nevermore.scan_core.rows.buffers import Mask


def evaluate(conjunct: BoundExpr, columns: Mapping[int, pa.Array], num_rows: int) -> Mask:
    """Rows for which the conjunct is true; an EvaluationError if it fails on a row."""
    outcome = judge(conjunct, columns, num_rows)
    if outcome.failed is not None:
        raise evaluation_error(conjunct, outcome)
    return outcome.passed
