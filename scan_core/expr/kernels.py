"""What each kind of bound expression computes from the columns of a batch: truth values or a vector.

Conditions (comparison, range, list, LIKE, IS NULL) are evaluated here; arithmetic, strings, dates, casts and nested
values have modules of their own. `cost` estimates are relative costs per row.

"""

from collections.abc import Mapping
from functools import lru_cache
from typing import assert_never

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from scan_core.expr import arithmetic, nested, strings, temporal
from scan_core.expr.bound import (
    And,
    Between,
    BoundExpr,
    Call,
    Case,
    Cast,
    Coalesce,
    Column,
    Comparison,
    Failure,
    InSet,
    IsNull,
    Like,
    Literal,
    Member,
    Not,
    Or,
    children,
    walk,
)
from scan_core.expr.casts import cast
from scan_core.expr.coercion import BYTES, name_of
from scan_core.expr.compare import compare, contains
from scan_core.expr.frame import Codes, Frame, conjunction, disjunction, negation, not_false, scattered, sole_column
from scan_core.expr.strings import like_matcher, lower
from scan_core.expr.vectors import (
    BoolMask,
    Kernel,
    Operand,
    Truth,
    Vector,
    array_from,
    array_of_truth,
    boolean_values,
    failures,
    is_null_scalar,
    minus,
    null_mask,
    nulls_of,
    truth_of_array,
    union,
    with_nulls,
)
from scan_core.model.schema import Type, arrow_type
from scan_core.rows.buffers import scalar

_COPY_COST, _MASK_COST = 4.0, 1.0
_STRING_COST = 8.0
_CALL_COST = {
    "rlike": 40.0,
    **dict.fromkeys(("lower", "upper", "reverse", "replace", "concat"), 30.0),
    **dict.fromkeys(("substr", "left", "right", "trim", "ltrim", "rtrim"), 25.0),
    **dict.fromkeys(("startswith", "endswith", "contains", "length"), 10.0),
    **dict.fromkeys(("map_get", "array_contains", "map_contains_key"), 30.0),
    **dict.fromkeys(("list_get", "list_element_at", "size"), 8.0),
    **dict.fromkeys(("year", "month", "quarter", "day", "trunc", "date_trunc", "add_months"), 8.0),
}


@lru_cache(maxsize=4096)
def column_ids(node: BoundExpr) -> frozenset[int]:
    """Ids of the top-level columns that the expression reads."""
    return frozenset(part.field_id for part in walk(node) if isinstance(part, Column))


@lru_cache(maxsize=4096)
def cost_of(node: BoundExpr) -> float:
    """Units per row."""
    below = sum(cost_of(c) for c in children(node))
    match node:
        case Column() | Literal() | Member():
            return below
        case InSet(operand):
            return below + (20.0 if name_of(operand.type) in BYTES | {"string", "uuid"} else 5.0)
        case Like(ignore_case=True):
            return below + 60.0
        case Like():
            return below + 15.0
        case Cast(operand):
            return below + (200.0 if name_of(operand.type) == "string" else 3.0)
        case Call(function):
            return below + _CALL_COST.get(function.removeprefix("try "), 3.0)
        case _:
            reads_text = any(name_of(c.type) in BYTES | {"string", "uuid"} for c in children(node))
            return below + (_STRING_COST if reads_text else 1.0)


def pays_to_narrow(node: BoundExpr, rows_left: int, num_rows: int) -> bool:
    """Is it cheaper to filter the columns and evaluate the rows left than to evaluate all rows?"""
    copied = rows_left * _COPY_COST * max(1, len(column_ids(node)))
    return copied + num_rows * _MASK_COST < (num_rows - rows_left) * cost_of(node)


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
    truth = truth_of_array(array_from(vector.values, num_rows))
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


_KERNELS: Mapping[str, Kernel] = {
    **arithmetic.KERNELS,
    **arithmetic.ROUNDING_KERNELS,
    **arithmetic.BITWISE_KERNELS,
    **strings.KERNELS,
    **temporal.KERNELS,
    **nested.KERNELS,
}


def truth_of(node: BoundExpr, frame: Frame, *, nulls: bool) -> Truth:
    """Truth values of a boolean expression; without `nulls`, unknown rows may be reported as false."""
    if node not in frame.repeated:
        return _by_dictionary_truth(node, frame, nulls=nulls)
    if node not in frame.truths:
        frame.truths[node] = _by_dictionary_truth(node, frame, nulls=True)
    return frame.truths[node]


def _by_dictionary_truth(node: BoundExpr, frame: Frame, *, nulls: bool) -> Truth:
    field_id = sole_column(node)
    encoded = None if field_id is None else frame.by_dictionary(field_id, cost_of(node))
    if encoded is None:
        return _plain_truth(node, frame, nulls=nulls)
    values, codes = encoded
    truth = truth_of(node, values, nulls=nulls)
    unknown = None if truth.unknown is None or not truth.unknown.any() else _spread(truth.unknown, codes)
    failed = None if truth.failed is None or not truth.failed.any() else _spread(truth.failed, codes)
    return Truth(_spread(truth.true, codes), unknown, failed, truth.reason)


def _spread(flags: BoolMask, codes: Codes) -> BoolMask:
    """The flag of each row's distinct value; a single value that has it is compared, 10 times as fast."""
    flagged = np.flatnonzero(flags)
    if len(flagged) == 1:
        return np.asarray(codes == int(flagged[0]))
    return np.take(flags, codes)


def _plain_truth(node: BoundExpr, frame: Frame, *, nulls: bool) -> Truth:  # noqa: C901  # a case per node
    match node:
        case And(operands):
            return _all(operands, frame, nulls=nulls)
        case Or(operands):
            return _any(operands, frame, nulls=nulls)
        case Not(operand):
            return negation(truth_of(operand, frame, nulls=True))
        case Comparison(sign, left, right):
            sides = vector_of(left, frame), vector_of(right, frame)
            return comparison(sign, sides, (left.type, right.type), frame.num_rows)
        case Between(operand):
            return between(node, vector_of(operand, frame), frame.num_rows)
        case InSet(operand):
            return in_set(node, vector_of(operand, frame), frame.num_rows)
        case IsNull(operand):
            return is_null(vector_of(operand, frame), frame.num_rows)
        case Like(operand):
            return like(node, vector_of(operand, frame), frame.num_rows)
        case Literal(value):
            full = np.full(frame.num_rows, value is True)
            return Truth(full, np.ones(frame.num_rows, dtype=np.bool_) if value is None else None)
        case Failure(reason):
            none = np.zeros(frame.num_rows, dtype=np.bool_)
            return Truth(none, None, ~none, reason)
        case Column() | Member() | Cast() | Case() | Coalesce() | Call():
            return boolean(vector_of(node, frame), frame.num_rows)
        case _:
            assert_never(node)


def _all(operands: tuple[BoundExpr, ...], frame: Frame, *, nulls: bool) -> Truth:
    result = truth_of(operands[0], frame, nulls=nulls)
    for operand in operands[1:]:
        result = conjunction(result, _narrowed(operand, frame, not_false(result), nulls=nulls, otherwise=False))
    return result


def _any(operands: tuple[BoundExpr, ...], frame: Frame, *, nulls: bool) -> Truth:
    result = truth_of(operands[0], frame, nulls=nulls)
    for operand in operands[1:]:
        result = disjunction(result, _narrowed(operand, frame, ~result.true, nulls=nulls, otherwise=True))
    return result


def _narrowed(operand: BoundExpr, frame: Frame, undecided: BoolMask, *, nulls: bool, otherwise: bool) -> Truth:
    """The operand on the undecided rows; decided ones may hold `otherwise`, which changes nothing."""
    left = int(np.count_nonzero(undecided))
    if left == 0:
        return Truth(np.full(frame.num_rows, otherwise))
    if not pays_to_narrow(operand, left, frame.num_rows):
        return truth_of(operand, frame, nulls=nulls)
    return scattered(truth_of(operand, frame.narrow(undecided), nulls=nulls), undecided, otherwise=otherwise)


def vector_of(node: BoundExpr, frame: Frame) -> Vector:
    """The values of an expression of any type."""
    """Values of an expression."""
    if node not in frame.repeated:
        return _by_dictionary_vector(node, frame)
    if node not in frame.vectors:
        frame.vectors[node] = _by_dictionary_vector(node, frame)
    return frame.vectors[node]


def _by_dictionary_vector(node: BoundExpr, frame: Frame) -> Vector:
    field_id = sole_column(node)
    encoded = None if field_id is None else frame.by_dictionary(field_id, cost_of(node))
    if encoded is None:
        return _plain_vector(node, frame)
    values, codes = encoded
    vector = vector_of(node, values)
    failed = None if vector.failed is None or not vector.failed.any() else vector.failed[codes]
    return Vector(array_from(vector.values, values.num_rows).take(pa.array(codes)), failed, vector.reason)


def _plain_vector(node: BoundExpr, frame: Frame) -> Vector:  # one flat case per node
    match node:
        case Column(field_id):
            return Vector(frame.column(field_id))
        case Member(operand, field_id, _, index):
            if field_id in frame:
                return Vector(frame.column(field_id))
            vector = vector_of(operand, frame)
            return Vector(nested.member(vector.values, index), vector.failed, vector.reason)
        case Literal(value, type_):
            return Vector(scalar(value, arrow_type(type_)))
        case Failure(reason, type_):
            failed = np.ones(frame.num_rows, dtype=np.bool_)
            return Vector(pa.nulls(frame.num_rows, arrow_type(type_)), failed, reason)
        case Cast(operand, type_, safe):
            vector = vector_of(operand, frame)
            done = cast(array_from(vector.values, frame.num_rows), operand.type, type_)
            return _after_arguments(done, (vector,), quiet=safe)
        case Case():
            return _case(node, frame)
        case Coalesce(operands):
            return _coalesce(operands, frame)
        case Call():
            return _call(node, frame)
        case _:
            return _vector_of_truth(truth_of(node, frame, nulls=True))


def _call(node: Call, frame: Frame) -> Vector:
    vectors = tuple(vector_of(a, frame) for a in node.arguments)
    values = tuple(v.values for v in vectors)
    if any(is_null_scalar(v) for v in values):  # all functions are strict
        return _after_arguments(Vector(pa.nulls(frame.num_rows, arrow_type(node.type))), vectors, quiet=True)
    if not any(isinstance(v, pa.Array) for v in values):
        values = (array_from(values[0], frame.num_rows), *values[1:])
    function = node.function.removeprefix("try ")
    done = _KERNELS[function](values, tuple(a.type for a in node.arguments), node.type)
    return _after_arguments(done, vectors, quiet=function != node.function)


def _vector_of_truth(truth: Truth) -> Vector:
    return Vector(array_of_truth(truth), truth.failed, truth.reason)


def _after_arguments(done: Vector, arguments: tuple[Vector, ...], *, quiet: bool) -> Vector:
    """The result of a strict function: fails where an argument failed, or where it failed itself unless `quiet`."""
    failed, reason = failures(arguments if quiet else (done, *arguments))
    return Vector(done.values, failed, reason)


def _case(node: Case, frame: Frame) -> Vector:
    num_rows = frame.num_rows
    default = vector_of(node.default, frame)
    values, failed, reason = default.values, default.failed, default.reason
    for condition, branch in reversed(node.branches):
        truth, vector = truth_of(condition, frame, nulls=False), vector_of(branch, frame)
        values = pc.if_else(pa.array(truth.true), vector.values, values)
        chosen = None if vector.failed is None else vector.failed & truth.true
        failed, reason = union(minus(failed, truth.true), chosen), vector.reason or reason
        if truth.failed is not None:
            failed, reason = union(failed, truth.failed), truth.reason
            values = with_nulls(array_from(values, num_rows), truth.failed)
    return Vector(array_from(values, num_rows), failed if failed is not None and failed.any() else None, reason)


def _coalesce(operands: tuple[BoundExpr, ...], frame: Frame) -> Vector:
    first = vector_of(operands[0], frame)
    values, failed, reason = array_from(first.values, frame.num_rows), first.failed, first.reason
    for operand in operands[1:]:
        open_rows = minus(null_mask(values), failed)
        if open_rows is None:
            break
        vector = vector_of(operand, frame)
        values = pc.if_else(pa.array(open_rows), vector.values, values)
        if vector.failed is not None:
            failed, reason = union(failed, vector.failed & open_rows), reason or vector.reason
    return Vector(values, failed if failed is not None and failed.any() else None, reason)
