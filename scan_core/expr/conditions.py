"""Conditions on evaluated operands: comparisons, ranges, lists, LIKE, IS NULL, to truth values."""

import numpy as np
import pyarrow as pa

from scan_core.expr.bound import Between, InSet, Like
from scan_core.expr.compare import compare, contains
from scan_core.expr.kernel_results import nulls_of
from scan_core.expr.patterns import like_matcher
from scan_core.expr.strings import lower
from scan_core.expr.vectors import (
    BoolMask,
    Operand,
    Truth,
    Vector,
    array_from,
    boolean_values,
    failures,
    is_null_scalar,
    minus,
    null_mask,
    truth_of,
    union,
)
from scan_core.rows.buffers import scalar
from scan_core.schema import Type, arrow_type


def comparison(sign: str, sides: tuple[Vector, Vector], types: tuple[Type, Type], num_rows: int) -> Truth:
    """`left sign right`; <=> is never unknown."""
    values = _with_an_array(sides, num_rows)
    if sign == "<=>":
        return _null_safe_equal(values, sides, types)
    return _strict(compare(sign, *values, *types), nulls_of(*values), *sides)


def between(node: Between, vector: Vector, num_rows: int) -> Truth:
    """One or two bounds."""
    array, type_ = array_from(vector.values, num_rows), node.operand.type
    bounds = (
        (">=" if node.lower_inclusive else ">", node.lower),
        ("<=" if node.upper_inclusive else "<", node.upper),
    )
    parts = [
        compare(sign, array, scalar(value, arrow_type(type_)), type_, type_)
        for sign, value in bounds
        if value is not None
    ]
    return _strict(parts[0] if len(parts) == 1 else parts[0] & parts[1], null_mask(array), vector)


def in_set(node: InSet, vector: Vector, num_rows: int) -> Truth:
    """Membership; a list with NULL makes every miss unknown."""
    array = array_from(vector.values, num_rows)
    found = contains(node.values, node.has_nan, array, node.operand.type)
    truth = _strict(found, null_mask(array), vector)
    return Truth(truth.true, minus(~truth.true, truth.failed), truth.failed, truth.reason) if node.has_null else truth


def like(node: Like, vector: Vector, num_rows: int) -> Truth:
    """SQL LIKE; ILIKE compares lower case with lower case."""
    array, pattern = array_from(vector.values, num_rows), node.pattern
    if node.ignore_case:
        array, pattern = lower(array), pattern.lower()
    return _strict(boolean_values(like_matcher(pattern, node.escape)(array)), null_mask(array), vector)


def is_null(vector: Vector, num_rows: int) -> Truth:
    """Rows that are NULL, and did not fail."""
    null = null_mask(array_from(vector.values, num_rows))
    if null is None:
        null = np.zeros(num_rows, dtype=np.bool_)
    return Truth(null if vector.failed is None else null & ~vector.failed, None, vector.failed, vector.reason)


def boolean(vector: Vector, num_rows: int) -> Truth:
    """A boolean value as a condition."""
    truth = truth_of(array_from(vector.values, num_rows))
    return Truth(truth.true, minus(truth.unknown, vector.failed), vector.failed, vector.reason)


def _strict(true: BoolMask, null: BoolMask | None, *vectors: Vector) -> Truth:
    """Unknown where an argument is NULL, failed where one failed."""
    failed, reason = failures(vectors)
    dead = union(null, failed)
    if dead is None:
        return Truth(true)
    return Truth(true & ~dead, minus(null, failed), failed, reason)


def _with_an_array(sides: tuple[Vector, Vector], num_rows: int) -> tuple[Operand, Operand]:
    """The values, at least one of them as an array, and no NULL scalar."""
    left, right = (s.values for s in sides)
    if isinstance(right, pa.Scalar) or is_null_scalar(left):
        left = array_from(left, num_rows)
    return left, array_from(right, num_rows) if is_null_scalar(right) else right


def _null_safe_equal(values: tuple[Operand, Operand], sides: tuple[Vector, Vector], types: tuple[Type, Type]) -> Truth:
    equal = compare("=", *values, *types)
    left, right = (null_mask(v) if isinstance(v, pa.Array) else None for v in values)
    either = union(left, right)
    if either is not None:
        equal = equal & ~either
        if left is not None and right is not None:
            equal |= left & right
    failed, reason = failures(sides)
    return Truth(equal if failed is None else equal & ~failed, None, failed, reason)
