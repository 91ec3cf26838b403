"""AND, OR and NOT of truth values: three-valued, with failed rows as a fourth state.

A false operand of AND and a true one of OR win over everything, then a failed one over NULL. So the order of operands
never matters, and each may be evaluated only where the others left it open.
"""

import numpy as np

from scan_core.expr.vectors import BoolMask, Truth, minus, union


def conjunction(left: Truth, right: Truth) -> Truth:
    """Left AND right."""
    true = left.true & right.true
    if left.unknown is None and left.failed is None and right.unknown is None and right.failed is None:
        return Truth(true)
    possible = not_false(left) & not_false(right)
    failed = union(left.failed, right.failed)
    failed = None if failed is None else failed & possible
    unknown = minus(possible & ~true, failed)
    return Truth(true, unknown, failed, left.reason or right.reason)


def disjunction(left: Truth, right: Truth) -> Truth:
    """Left OR right."""
    true = left.true | right.true
    failed = minus(union(left.failed, right.failed), true)
    unknown = minus(minus(union(left.unknown, right.unknown), true), failed)
    return Truth(true, unknown, failed, left.reason or right.reason)


def negation(truth: Truth) -> Truth:
    """NOT; the operand must tell NULL from false."""
    return Truth(~not_false(truth), truth.unknown, truth.failed, truth.reason)


def not_false(truth: Truth) -> BoolMask:
    """Rows that are true, unknown or failed: a further operand of AND still matters for them."""
    dead = union(truth.unknown, truth.failed)
    return truth.true if dead is None else truth.true | dead


def scattered(part: Truth, rows: BoolMask, *, otherwise: bool) -> Truth:
    """Truth values of the rows in a mask, put back among all rows; the others hold `otherwise`."""
    true = np.full(len(rows), otherwise)
    true[rows] = part.true
    return Truth(true, _scattered(part.unknown, rows), _scattered(part.failed, rows), part.reason)


def _scattered(part: BoolMask | None, rows: BoolMask) -> BoolMask | None:
    if part is None:
        return None
    result = np.zeros(len(rows), dtype=np.bool_)
    result[rows] = part
    return result
