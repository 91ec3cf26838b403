"""Evaluation: a bound expression and the columns of a batch to truth values.

Three-valued logic as SQL has it; a row on which an expression fails (division by zero, bad cast) is marked, and is an
error only if it passes everything else. AND and OR do not care for the order of their operands: a false operand of AND
and a true one of OR win over a failing one. Whole columns at a time: nothing here iterates over rows.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import assert_never

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from scan_core.errors import EvaluationError
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
)
from scan_core.expr.casts import cast
from scan_core.expr.coercion import name_of
from scan_core.expr.compare import compare, contains
from scan_core.expr.frame import Frame, repeated_parts, sole_column
from scan_core.expr.patterns import like_matcher
from scan_core.expr.text import bound_text
from scan_core.expr.vectors import (
    BoolMask,
    Operand,
    Truth,
    Vector,
    array_of_truth,
    boolean_values,
    minus,
    null_mask,
    truth_of,
    union,
    with_nulls,
)
from scan_core.schema import Type, arrow_type

_KERNELS: Mapping[str, arithmetic.Kernel] = {
    **arithmetic.KERNELS,
    **strings.KERNELS,
    **temporal.KERNELS,
    **nested.KERNELS,
}
_CHEAP_NARROWING = 0.5
"""Later operands of AND and OR see only undecided rows if at most this share is left: filtering costs, too."""


@dataclass(frozen=True, slots=True, eq=False)
class Outcome:
    """What one conjunct says about a batch.

    Attributes:
        passed: rows for which it is true.
        failed: rows on which it could not be computed, None if there is none; such a row is an error of the query if
            it passes every other conjunct and survives all deletes. Disjoint from `passed`.
        reason: why, for the message.
    """

    passed: BoolMask
    failed: BoolMask | None
    reason: str


def evaluate(conjunct: BoundExpr, columns: Mapping[int, pa.Array], num_rows: int) -> BoolMask:
    """Rows for which the conjunct is true.

    Args:
        conjunct: a bound boolean expression.
        columns: arrays of `num_rows` values in the table's types by field id: top-level columns, or struct members
            alone (NULL where the struct is); dictionary-encoded ones are evaluated by dictionary value.
        num_rows: rows of the batch.

    Raises:
        EvaluationError: it failed on a row.
    """
    outcome = judge(conjunct, columns, num_rows)
    if outcome.failed is not None:
        raise evaluation_error(conjunct, outcome)
    return outcome.passed


def judge(conjunct: BoundExpr, columns: Mapping[int, pa.Array], num_rows: int) -> Outcome:
    """Like `evaluate`, but rows that fail are reported: the caller decides once it knows which rows survive."""
    truth = _truth(conjunct, Frame(columns, num_rows, repeated_parts(conjunct)), nulls=False)
    failed = truth.failed if truth.failed is not None and truth.failed.any() else None
    return Outcome(truth.true, failed, truth.reason if failed is not None else "")


def evaluation_error(conjunct: BoundExpr, outcome: Outcome) -> EvaluationError:
    """The error to raise when a row that failed survives everything else."""
    return EvaluationError(
        f"{outcome.reason or 'failure'} in: {bound_text(conjunct)}; a row that passes every other filter fails here "
        "(try_cast, try_divide and the like give NULL instead)"
    )


def constant_value(node: BoundExpr) -> BoundExpr:
    """A constant expression as a Literal, or as a Failure if it always fails."""
    vector = _vector(node, Frame({}, 1))
    if vector.failed is not None and vector.failed[0]:
        return Failure(vector.reason, node.type)
    array = _array(vector.values, 1)
    if array.null_count:
        return Literal(None, node.type)
    scalar = array[0]
    return Literal(scalar.value if pa.types.is_temporal(array.type) else scalar.as_py(), node.type)


def _truth(node: BoundExpr, frame: Frame, *, nulls: bool) -> Truth:
    """Truth values of a boolean expression; without `nulls`, unknown rows may be reported as false."""
    if node not in frame.repeated:
        return _by_dictionary_truth(node, frame, nulls=nulls)
    if node not in frame.truths:
        frame.truths[node] = _by_dictionary_truth(node, frame, nulls=True)
    return frame.truths[node]


def _by_dictionary_truth(node: BoundExpr, frame: Frame, *, nulls: bool) -> Truth:
    field_id = sole_column(node)
    encoded = None if field_id is None else frame.by_dictionary(field_id)
    if encoded is None:
        return _plain_truth(node, frame, nulls=nulls)
    values, codes = encoded
    truth = _truth(node, values, nulls=nulls)
    unknown = None if truth.unknown is None or not truth.unknown.any() else truth.unknown[codes]
    failed = None if truth.failed is None or not truth.failed.any() else truth.failed[codes]
    return Truth(truth.true[codes], unknown, failed, truth.reason)


def _plain_truth(node: BoundExpr, frame: Frame, *, nulls: bool) -> Truth:  # noqa: C901, PLR0912  # a case per node
    match node:
        case And(operands):
            return _all(operands, frame, nulls=nulls)
        case Or(operands):
            return _any(operands, frame, nulls=nulls)
        case Not(operand):
            return _negated(_truth(operand, frame, nulls=True), frame.num_rows)
        case Comparison("<=>", left, right):
            return _null_safe_equal(left, right, frame)
        case Comparison(sign, left, right):
            return _comparison(sign, left, right, frame)
        case Between():
            return _between(node, frame)
        case InSet(operand, values, has_null, has_nan):
            vector = _vector(operand, frame)
            array = _array(vector.values, frame.num_rows)
            truth = _masked(contains(values, has_nan, array, operand.type), null_mask(array), vector)
            if has_null:  # no match among the others is unknown
                unknown = ~truth.true if truth.failed is None else ~truth.true & ~truth.failed
                return Truth(truth.true, unknown, truth.failed, truth.reason)
            return truth
        case IsNull(operand):
            return _is_null(operand, frame)
        case Like(operand, pattern, escape, ignore_case):
            vector = _vector(operand, frame)
            array = _array(vector.values, frame.num_rows)
            if ignore_case:
                array, pattern = strings.lower(array), pattern.lower()
            result = like_matcher(pattern, escape)(array)
            return _masked(boolean_values(result), null_mask(array), vector)
        case Literal(value):
            full = np.full(frame.num_rows, value is True)
            return Truth(full, np.ones(frame.num_rows, dtype=np.bool_) if value is None else None)
        case Failure(reason):
            none = np.zeros(frame.num_rows, dtype=np.bool_)
            return Truth(none, None, ~none, reason)
        case Column() | Member() | Cast() | Case() | Coalesce() | Call():
            vector = _vector(node, frame)
            truth = truth_of(_array(vector.values, frame.num_rows))
            return Truth(truth.true, minus(truth.unknown, vector.failed), vector.failed, vector.reason)
        case _:
            assert_never(node)


def _masked(true: BoolMask, null: BoolMask | None, *vectors: Vector) -> Truth:
    """A strict boolean result: unknown where an argument is NULL, failed where one failed."""
    failed, reason = _failures(vectors)
    if null is None and failed is None:
        return Truth(true)
    dead = union(null, failed)
    assert dead is not None  # noqa: S101  # one of the two is there
    return Truth(true & ~dead, minus(null, failed), failed, reason)


def _failures(vectors: tuple[Vector, ...]) -> tuple[BoolMask | None, str]:
    failed, reason = None, ""
    for vector in vectors:
        failed, reason = union(failed, vector.failed), reason or vector.reason
    return failed, reason


def _comparison(sign: str, left: BoundExpr, right: BoundExpr, frame: Frame) -> Truth:
    sides = _vector(left, frame), _vector(right, frame)
    values = _one_array(sides, frame.num_rows)
    return _masked(compare(sign, *values, left.type, right.type), arithmetic.nulls_of(*values), *sides)


def _one_array(vectors: tuple[Vector, Vector], num_rows: int) -> tuple[Operand, Operand]:
    left, right = (v.values for v in vectors)
    return (_array(left, num_rows) if isinstance(right, pa.Scalar) or _is_null_scalar(left) else left), (
        _array(right, num_rows) if _is_null_scalar(right) else right
    )


def _is_null_scalar(operand: Operand) -> bool:
    return isinstance(operand, pa.Scalar) and not operand.is_valid


def _null_safe_equal(left: BoundExpr, right: BoundExpr, frame: Frame) -> Truth:
    sides = _vector(left, frame), _vector(right, frame)
    values = _one_array(sides, frame.num_rows)
    equal = compare("=", *values, left.type, right.type)
    nulls = [null_mask(v) if isinstance(v, pa.Array) else None for v in values]
    either = union(nulls[0], nulls[1])
    if either is not None:
        equal = equal & ~either
        if nulls[0] is not None and nulls[1] is not None:
            equal |= nulls[0] & nulls[1]
    failed, reason = _failures(sides)
    return Truth(equal if failed is None else equal & ~failed, None, failed, reason)


def _between(node: Between, frame: Frame) -> Truth:
    vector = _vector(node.operand, frame)
    array, type_ = _array(vector.values, frame.num_rows), node.operand.type
    bounds = (
        (">=" if node.lower_inclusive else ">", node.lower),
        ("<=" if node.upper_inclusive else "<", node.upper),
    )
    parts = [compare(s, array, _scalar(v, type_), type_, type_) for s, v in bounds if v is not None]
    return _masked(parts[0] if len(parts) == 1 else parts[0] & parts[1], null_mask(array), vector)


def _is_null(operand: BoundExpr, frame: Frame) -> Truth:
    if name_of(operand.type) == "boolean":
        truth = _truth(operand, frame, nulls=True)
        unknown = np.zeros(frame.num_rows, dtype=np.bool_) if truth.unknown is None else truth.unknown
        return Truth(unknown, None, truth.failed, truth.reason)
    vector = _vector(operand, frame)
    null = null_mask(_array(vector.values, frame.num_rows))
    if null is None:
        null = np.zeros(frame.num_rows, dtype=np.bool_)
    return Truth(null if vector.failed is None else null & ~vector.failed, None, vector.failed, vector.reason)


def _negated(truth: Truth, num_rows: int) -> Truth:
    dead = union(truth.unknown, truth.failed)
    true = ~truth.true if dead is None else ~(truth.true | dead)
    assert len(true) == num_rows  # noqa: S101  # a kernel that lost rows would misplace all others
    return Truth(true, truth.unknown, truth.failed, truth.reason)


def _all(operands: tuple[BoundExpr, ...], frame: Frame, *, nulls: bool) -> Truth:
    result = _truth(operands[0], frame, nulls=nulls)
    for operand in operands[1:]:
        open_rows = union(result.true, union(result.unknown, result.failed))
        assert open_rows is not None  # noqa: S101  # `true` is always there
        result = _combine_and(result, _rest(operand, frame, open_rows, nulls=nulls, otherwise=False))
    return result


def _any(operands: tuple[BoundExpr, ...], frame: Frame, *, nulls: bool) -> Truth:
    result = _truth(operands[0], frame, nulls=nulls)
    for operand in operands[1:]:
        result = _combine_or(result, _rest(operand, frame, ~result.true, nulls=nulls, otherwise=True))
    return result


def _rest(operand: BoundExpr, frame: Frame, undecided: BoolMask, *, nulls: bool, otherwise: bool) -> Truth:
    """The operand on the undecided rows; decided ones may hold `otherwise`, which changes nothing."""
    count = int(np.count_nonzero(undecided))
    if count == 0:
        return Truth(np.full(frame.num_rows, otherwise))
    if count > _CHEAP_NARROWING * frame.num_rows or not is_costly(operand):
        return _truth(operand, frame, nulls=nulls)
    part = _truth(operand, frame.narrow(undecided), nulls=nulls)
    true = np.full(frame.num_rows, otherwise)
    true[undecided] = part.true
    return Truth(true, _scatter(part.unknown, undecided), _scatter(part.failed, undecided), part.reason)


def _scatter(part: BoolMask | None, rows: BoolMask) -> BoolMask | None:
    if part is None:
        return None
    result = np.zeros(len(rows), dtype=np.bool_)
    result[rows] = part
    return result


def is_costly(node: BoundExpr) -> bool:
    """Does evaluating it per row cost more than filtering its columns?"""
    from scan_core.expr.cost import cost_of

    return cost_of(node) > 1.0


def _combine_and(left: Truth, right: Truth) -> Truth:
    true = left.true & right.true
    if left.unknown is None and left.failed is None and right.unknown is None and right.failed is None:
        return Truth(true)
    possible = np.ones(len(true), dtype=np.bool_)
    for side in (left, right):
        here = union(side.true, union(side.unknown, side.failed))
        assert here is not None  # noqa: S101
        possible &= here
    failed = union(left.failed, right.failed)
    failed = None if failed is None else failed & possible
    unknown = possible & ~true if failed is None else possible & ~true & ~failed
    return Truth(true, unknown, failed, left.reason or right.reason)


def _combine_or(left: Truth, right: Truth) -> Truth:
    true = left.true | right.true
    failed = minus(union(left.failed, right.failed), true)
    unknown = minus(minus(union(left.unknown, right.unknown), true), failed)
    return Truth(true, unknown, failed, left.reason or right.reason)


def _scalar(value: object, type_: Type) -> pa.Scalar:
    return pa.scalar(value, arrow_type(type_))


def _array(operand: Operand, num_rows: int) -> pa.Array:
    return operand if isinstance(operand, pa.Array) else pa.repeat(operand, num_rows)


def _vector(node: BoundExpr, frame: Frame) -> Vector:
    """Values of an expression."""
    if node not in frame.repeated:
        return _by_dictionary_vector(node, frame)
    if node not in frame.vectors:
        frame.vectors[node] = _by_dictionary_vector(node, frame)
    return frame.vectors[node]


def _by_dictionary_vector(node: BoundExpr, frame: Frame) -> Vector:
    field_id = sole_column(node)
    encoded = None if field_id is None else frame.by_dictionary(field_id)
    if encoded is None:
        return _plain_vector(node, frame)
    values, codes = encoded
    vector = _vector(node, values)
    failed = None if vector.failed is None or not vector.failed.any() else vector.failed[codes]
    return Vector(_array(vector.values, values.num_rows).take(pa.array(codes)), failed, vector.reason)


def _plain_vector(node: BoundExpr, frame: Frame) -> Vector:  # one flat case per node
    match node:
        case Column(field_id):
            return Vector(frame.column(field_id))
        case Member(operand, field_id, _, index):
            if field_id in frame:
                return Vector(frame.column(field_id))
            vector = _vector(operand, frame)
            return Vector(nested.member(vector.values, index), vector.failed, vector.reason)
        case Literal(value, type_):
            return Vector(_scalar(value, type_))
        case Failure(reason, type_):
            failed = np.ones(frame.num_rows, dtype=np.bool_)
            return Vector(pa.nulls(frame.num_rows, arrow_type(type_)), failed, reason)
        case Cast(operand, type_, safe):
            vector = _vector(operand, frame)
            done = cast(_array(vector.values, frame.num_rows), operand.type, type_)
            return _after_arguments(done, (vector,), quiet=safe)
        case Case():
            return _case(node, frame)
        case Coalesce(operands):
            return _coalesce(operands, frame)
        case Call():
            return _call(node, frame)
        case _:
            return _vector_of_truth(_truth(node, frame, nulls=True))


def _call(node: Call, frame: Frame) -> Vector:
    vectors = tuple(_vector(a, frame) for a in node.arguments)
    values = tuple(v.values for v in vectors)
    if any(_is_null_scalar(v) for v in values):  # all functions are strict
        return _after_arguments(Vector(pa.nulls(frame.num_rows, arrow_type(node.type))), vectors, quiet=True)
    if not any(isinstance(v, pa.Array) for v in values):
        values = (_array(values[0], frame.num_rows), *values[1:])
    function = node.function.removeprefix("try ")
    done = _KERNELS[function](values, tuple(a.type for a in node.arguments), node.type)
    return _after_arguments(done, vectors, quiet=function != node.function)


def _vector_of_truth(truth: Truth) -> Vector:
    return Vector(array_of_truth(truth), truth.failed, truth.reason)


def _after_arguments(done: Vector, arguments: tuple[Vector, ...], *, quiet: bool) -> Vector:
    """The result of a strict function: fails where an argument failed, or where it failed itself unless `quiet`."""
    failed, reason = _failures(arguments if quiet else (done, *arguments))
    return Vector(done.values, failed, reason)


def _case(node: Case, frame: Frame) -> Vector:
    num_rows = frame.num_rows
    default = _vector(node.default, frame)
    values, failed, reason = default.values, default.failed, default.reason
    for condition, branch in reversed(node.branches):
        truth, vector = _truth(condition, frame, nulls=False), _vector(branch, frame)
        values = pc.if_else(pa.array(truth.true), vector.values, values)
        chosen = None if vector.failed is None else vector.failed & truth.true
        failed, reason = union(minus(failed, truth.true), chosen), vector.reason or reason
        if truth.failed is not None:
            failed, reason = union(failed, truth.failed), truth.reason
            values = with_nulls(_array(values, num_rows), truth.failed)
    return Vector(_array(values, num_rows), failed if failed is not None and failed.any() else None, reason)


def _coalesce(operands: tuple[BoundExpr, ...], frame: Frame) -> Vector:
    first = _vector(operands[0], frame)
    values, failed, reason = _array(first.values, frame.num_rows), first.failed, first.reason
    for operand in operands[1:]:
        open_rows = minus(null_mask(values), failed)
        if open_rows is None:
            break
        vector = _vector(operand, frame)
        values = pc.if_else(pa.array(open_rows), vector.values, values)
        if vector.failed is not None:
            failed, reason = union(failed, vector.failed & open_rows), reason or vector.reason
    return Vector(values, failed if failed is not None and failed.any() else None, reason)
