"""Evaluation: what a bound expression yields on the columns of a batch, truth values or a vector.

A row on which an expression fails (division by zero, bad cast, overflow) is marked, and is an error only if it passes everything
else. Here are conditions, arithmetic and rounding, and members, elements and keys of nested values, taken by offsets over the
child arrays, never row by row. Casts and dates are in `casts.py`, strings in `strings.py`.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, assert_never

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from nevermore.scan_core.expr import casts, strings
from nevermore.scan_core.expr.bound import (
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
from nevermore.scan_core.expr.casts import cast
from nevermore.scan_core.expr.coercion import BYTES, INTEGRAL, decimal_of, decimal_type, name_of
from nevermore.scan_core.expr.nodes import bound_text
from nevermore.scan_core.expr.strings import lower, matches_like, unary
from nevermore.scan_core.expr.vectors import (
    OVERFLOW,
    Codes,
    Frame,
    Kernel,
    Operand,
    Truth,
    Vector,
    array_from,
    array_of,
    array_of_truth,
    compare,
    conjunction,
    contains,
    disjunction,
    failures,
    is_null_scalar,
    minus,
    negation,
    not_false,
    null_mask,
    nulls_of,
    operand_values,
    outcome,
    rounded_decimal,
    scatter,
    sole_column,
    truth_of_array,
    union,
    with_nulls,
)
from nevermore.scan_core.model.errors import EvaluationError
from nevermore.scan_core.model.schema import ListType, MapType, StructType, Type, arrow_type
from nevermore.scan_core.rows.buffers import Mask, Rows, boolean_values, scalar, true_flags, validity

DIVISION_BY_ZERO = "division by zero"


_OPERATIONS: Mapping[str, Callable[[Any, Any], Any]] = {
    "+": pc.add_checked,
    "-": pc.subtract_checked,
    "*": pc.multiply_checked,
    "/": pc.divide,
    "div": pc.divide_checked,
    "%": lambda left, right: pc.call_function("remainder", [left, right]),
}


_OF_LONGS = pa.decimal256(20, 0)


def _arithmetic(sign: str) -> Kernel:
    def kernel(arguments: tuple[Operand, ...], types: tuple[Type, ...], result: Type) -> Vector:
        left, right = arguments
        zero = None
        if sign in {"/", "div", "%"} and not (isinstance(right, pa.Scalar) and right.as_py()):
            right = array_from(right, len(left if isinstance(left, pa.Array) else right))
            zero = true_flags(pc.equal(right, pa.scalar(0, right.type)))
            right = with_nulls(right, zero)
        if name_of(result) == "decimal":
            done = _decimals(sign, (left, right), types, result)
        else:
            try:
                done = Vector(_OPERATIONS[sign](left, right))
            except pa.ArrowInvalid:  # an overflow is an error of all rows; decimals hold the results of each
                exact = _OPERATIONS[sign](*(side.cast(_OF_LONGS) for side in (left, right)))
                found = cast(exact, decimal_type(38, exact.type.scale), result)
                done = Vector(found.values, found.failed, f"{OVERFLOW} of {result}")
        failed = None if zero is None else minus(zero, nulls_of(left))
        if failed is None or not failed.any():
            return done
        return Vector(done.values, union(done.failed, failed), DIVISION_BY_ZERO)

    return kernel


def _decimals(sign: str, sides: tuple[Operand, Operand], types: tuple[Type, ...], result: Type) -> Vector:
    (p1, s1), (p2, s2) = (decimal_of(t) for t in types)
    left, right = (a.cast(pa.decimal256(*decimal_of(t))) for a, t in zip(sides, types, strict=True))
    if sign == "/":
        # Arrow cuts off after max(4, s1 + p2 - s2 + 1) digits; one digit more than wanted makes rounding half up exact
        missing = max(0, decimal_of(result)[1] + 1 - max(4, s1 + p2 - s2 + 1))
        left = left.cast(pa.decimal256(p1 + missing, s1 + missing))
    return rounded_decimal(_OPERATIONS[sign](left, right), nulls_of(left, right), result)


def _of_all_but_smallest(function: Callable[[Any], Any]) -> Kernel:
    """The same, of a function that has no result for the smallest integer."""

    def kernel(arguments: tuple[Operand, ...], types: tuple[Type, ...], result: Type) -> Vector:  # noqa: ARG001
        array = arguments[0]
        if name_of(result) not in INTEGRAL:
            return Vector(function(array))
        failed = true_flags(pc.equal(array, pa.scalar(-1 << array.type.bit_width - 1, array.type)))
        values = function(with_nulls(array, failed))
        return Vector(values, failed, f"{OVERFLOW} of {result}") if failed.any() else Vector(values)

    return kernel


_MIN_ROUNDED = 1e-20
"""Rounding to at most 15 digits leaves nothing of smaller numbers."""
_WHOLE_FROM = 2.0**53


def _floor_or_ceil(floats: Callable[[Any], Any], mode: str) -> Kernel:
    def kernel(arguments: tuple[Operand, ...], types: tuple[Type, ...], result: Type) -> Vector:
        null = nulls_of(arguments[0])
        if name_of(result) == "decimal":
            wide = arguments[0].cast(pa.decimal256(76, decimal_of(types[0])[1]))
            return rounded_decimal(pc.round(wide, ndigits=0, round_mode=mode), null, result)
        values = operand_values(arguments[0], types[0])
        if name_of(types[0]) in INTEGRAL:
            return outcome(values, null, None, result, "")
        with np.errstate(invalid="ignore"):
            whole = floats(values)
            outside = (whole < -(2.0**63)) | (whole >= 2.0**63)
            usable = np.where(outside | np.isnan(whole), 0, whole).astype(np.int64)  # NaN gives 0, as in Java
        return outcome(usable, null, outside, result, f"{OVERFLOW} of {result}")

    return kernel


def _round(arguments: tuple[Operand, ...], types: tuple[Type, ...], result: Type) -> Vector:
    null, digits = nulls_of(arguments[0]), arguments[1].as_py()
    if name_of(result) == "decimal":
        return rounded_decimal(arguments[0].cast(pa.decimal256(76, decimal_of(types[0])[1])), null, result)
    values = operand_values(arguments[0], types[0])
    with np.errstate(invalid="ignore"):
        has_fraction = (np.abs(values) < _WHOLE_FROM) & (np.trunc(values) != values)
    # Spark takes the digits of the shortest text of the number
    text = pa.array(np.where(has_fraction & (np.abs(values) > _MIN_ROUNDED), values, 0).astype(values.dtype)).cast(
        pa.string()
    )
    exact = pc.round(text.cast(pa.decimal256(76, 37)), ndigits=digits, round_mode="half_towards_infinity")
    rounded = np.asarray(exact.cast(pa.string()).cast(pa.float64())).astype(values.dtype)
    return outcome(np.where(has_fraction, rounded, values), null, None, result, "")


OUT_OF_RANGE = "a position outside the list"


def member(array: pa.Array, index: int) -> pa.Array:
    """A member of a struct, NULL where the struct is."""
    return pc.struct_field(array, [index])


def offsets_of(array: pa.Array) -> Rows:
    """Offsets of each row's elements in the child arrays, and the end of the last."""
    dtype = np.int64 if pa.types.is_large_list(array.type) else np.int32
    buffer = array.buffers()[1]
    if buffer is None:
        return np.zeros(len(array) + 1, dtype=np.int64)
    return np.frombuffer(buffer, dtype=dtype)[array.offset : array.offset + len(array) + 1].astype(np.int64)


def _size(arguments: tuple[Operand, ...], types: tuple[Type, ...], result: Type) -> Vector:  # noqa: ARG001
    return outcome(np.diff(offsets_of(arguments[0])), nulls_of(*arguments), None, result, "")


def _gather(child: pa.Array, places: Rows, present: Mask) -> pa.Array:
    return child.take(pa.array(places, mask=~present))


def _list_get(*, from_one: bool) -> Kernel:
    def kernel(arguments: tuple[Operand, ...], types: tuple[Type, ...], result: Type) -> Vector:  # noqa: ARG001
        array, positions = arguments[0], operand_values(arguments[1], types[1])
        offsets = offsets_of(array)
        lengths = np.diff(offsets)
        if from_one:
            index: Any = np.where(np.asarray(positions) < 0, lengths + positions, positions - 1)
        else:
            index = np.broadcast_to(np.asarray(positions), len(array))
        null = nulls_of(*arguments)
        present = (index >= 0) & (index < lengths)
        failed = ~present if null is None else ~present & ~null
        present = present if null is None else present & ~null
        values = _gather(array.values, offsets[:-1] + index, present)
        return Vector(values, failed if failed.any() else None, OUT_OF_RANGE if failed.any() else "")

    return kernel


def _list_member(arguments: tuple[Operand, ...], types: tuple[Type, ...], result: Type) -> Vector:
    array, name = arguments[0], arguments[1].as_py()
    (kind, *_) = types
    assert isinstance(kind, ListType)  # noqa: S101  # by binding
    assert isinstance(kind.element.type, StructType)  # noqa: S101
    index = [f.name for f in kind.element.type.fields].index(name)
    values = [member(array.values, index)]
    return Vector(
        pa.Array.from_buffers(
            arrow_type(result), len(array), array.buffers()[:2], array.null_count, array.offset, values
        )
    )


def _map_get(arguments: tuple[Operand, ...], types: tuple[Type, ...], result: Type) -> Vector:  # noqa: ARG001
    array, key = arguments
    places, present = _find_keys(array, key, types)
    return Vector(_gather(array.items, places, present))


def _find_keys(array: pa.Array, key: Operand, types: tuple[Type, ...]) -> tuple[Rows, Mask]:
    map_type = types[0]
    assert isinstance(map_type, MapType)  # noqa: S101  # binding gives map_get maps only
    return find_elements(array, array.keys, map_type.key.type, key)


def find_elements(array: pa.Array, child: pa.Array, child_type: Type, wanted: Operand) -> tuple[Rows, Mask]:
    """For each row the place in `child` of the first element that equals `wanted`, and whether there is one."""
    offsets = offsets_of(array)
    first, last = int(offsets[0]), int(offsets[-1])
    elements = child.slice(first, last - first)
    if isinstance(wanted, pa.Array):
        wanted = wanted.take(pa.array(np.repeat(np.arange(len(array)), np.diff(offsets))))
    hits = compare("=", elements, wanted, child_type, child_type)
    for side in (elements, wanted):
        valid = validity(side) if isinstance(side, pa.Array) else None
        hits = hits if valid is None else hits & valid
    found = np.flatnonzero(hits) + first
    if len(found) == len(array) and bool(((found >= offsets[:-1]) & (found < offsets[1:])).all()):
        return found, np.ones(len(array), dtype=np.bool_)  # each row has it once: no search
    places = np.searchsorted(found, offsets[:-1])
    clipped = found[np.minimum(places, len(found) - 1)] if len(found) else np.full(len(array), -1)
    null = nulls_of(array)
    present = (places < len(found)) & (clipped < offsets[1:])
    return clipped, present if null is None else present & ~null


def _array_contains(arguments: tuple[Operand, ...], types: tuple[Type, ...], result: Type) -> Vector:
    array, wanted = arguments
    list_type = types[0]
    assert isinstance(list_type, ListType)  # noqa: S101  # by binding
    _, present = find_elements(array, array.values, list_type.element.type, wanted)
    null = nulls_of(array, wanted)
    holds_null = _rows_with_null(array)
    unknown = ~present & holds_null if holds_null is not None else None
    if unknown is not None:
        null = unknown if null is None else null | unknown
    return Vector(array_of(present, null, result))


def _rows_with_null(array: pa.Array) -> Mask | None:
    offsets = offsets_of(array)
    first, last = int(offsets[0]), int(offsets[-1])
    null = null_mask(array.values.slice(first, last - first))
    if null is None:
        return None
    counts = np.concatenate(([0], np.cumsum(null)))
    return np.asarray(counts[offsets[1:] - first] > counts[offsets[:-1] - first])


def _map_contains_key(arguments: tuple[Operand, ...], types: tuple[Type, ...], result: Type) -> Vector:
    _, present = _find_keys(arguments[0], arguments[1], types)
    return Vector(array_of(present, nulls_of(*arguments), result))


_COPY_COST, _MASK_COST = 4.0, 1.0


@lru_cache(maxsize=4096)
def column_ids(node: BoundExpr) -> frozenset[int]:
    """Ids of the top-level columns that the expression reads."""
    return frozenset(part.field_id for part in walk(node) if isinstance(part, Column))


@lru_cache(maxsize=4096)
def cost_of(node: BoundExpr) -> float:
    """Relative cost per row."""
    if isinstance(node, Column | Literal | Member):
        return 0.0
    below = sum(cost_of(c) for c in children(node))
    reads_text = any(name_of(c.type) in BYTES | {"string", "uuid"} for c in children(node))
    if isinstance(node, Call | Cast) or (isinstance(node, Like) and node.ignore_case):
        return below + (60.0 if reads_text else 20.0)
    return below + (10.0 if reads_text else 1.0)


def pays_to_narrow(node: BoundExpr, rows_left: int, num_rows: int) -> bool:
    """Whether it is cheaper to filter the columns and evaluate the remaining rows than to evaluate all rows."""
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
    return _strict(boolean_values(matches_like(array, pattern, node.escape)), null_mask(array), vector)


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


def _strict(true: Mask, null: Mask | None, *vectors: Vector) -> Truth:
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
    left, right = map(nulls_of, values)
    either = union(left, right)
    if either is not None:
        equal = equal & ~either
        if left is not None and right is not None:
            equal |= left & right
    failed = union(sides[0].failed, sides[1].failed)  # NULL is a value here
    return Truth(equal if failed is None else equal & ~failed, None, failed, sides[0].reason or sides[1].reason)


_KERNELS: Mapping[str, Kernel] = {
    **{sign: _arithmetic(sign) for sign in _OPERATIONS},
    "negative": _of_all_but_smallest(pc.negate),
    "abs": _of_all_but_smallest(pc.abs),
    "isnan": unary(lambda array: pc.fill_null(pc.is_nan(array), False)),  # isnan(NULL) is false in Spark
    "floor": _floor_or_ceil(np.floor, "down"),
    "ceil": _floor_or_ceil(np.ceil, "up"),
    "round": _round,
    "size": _size,
    "list_get": _list_get(from_one=False),
    "list_element_at": _list_get(from_one=True),
    "list_member": _list_member,
    "map_get": _map_get,
    "array_contains": _array_contains,
    "map_contains_key": _map_contains_key,
    **strings.KERNELS,
    **casts.KERNELS,
}
"""By function name; `try ` forms use the same kernels."""


def truth_of(node: BoundExpr, frame: Frame, *, nulls: bool) -> Truth:
    """Truth values of a boolean expression; without `nulls`, unknown rows may be reported as false."""
    field_id = sole_column(node)
    encoded = None if field_id is None else frame.by_dictionary(field_id)
    if encoded is None:
        return _plain_truth(node, frame, nulls=nulls)
    values, codes = encoded
    truth = truth_of(node, values, nulls=True)
    unknown = None if truth.unknown is None or not truth.unknown.any() else _spread(truth.unknown, codes)
    failed = None if truth.failed is None or not truth.failed.any() else _spread(truth.failed, codes)
    return Truth(_spread(truth.true, codes), unknown, failed, truth.reason)


def _spread(flags: Mask, codes: Codes) -> Mask:
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


def _narrowed(operand: BoundExpr, frame: Frame, undecided: Mask, *, nulls: bool, otherwise: bool) -> Truth:
    """The operand on the undecided rows; decided ones may hold `otherwise`, which changes nothing."""
    left = int(np.count_nonzero(undecided))
    if left == 0:
        return Truth(np.full(frame.num_rows, otherwise))
    if not pays_to_narrow(operand, left, frame.num_rows):
        return truth_of(operand, frame, nulls=nulls)
    return scatter(truth_of(operand, frame.narrow(undecided), nulls=nulls), undecided, otherwise=otherwise)


def vector_of(node: BoundExpr, frame: Frame) -> Vector:
    """The values of an expression of any type."""
    field_id = sole_column(node)
    encoded = None if field_id is None else frame.by_dictionary(field_id)
    if encoded is None:
        return _plain_vector(node, frame)
    values, codes = encoded
    vector = vector_of(node, values)
    failed = None if vector.failed is None or not vector.failed.any() else vector.failed[codes]
    return Vector(array_from(vector.values, values.num_rows).take(pa.array(codes)), failed, vector.reason)


def _plain_vector(node: BoundExpr, frame: Frame) -> Vector:
    try:
        return _computed(node, frame)
    # what libraries raise for a value that they cannot compute with, such as text that is not UTF-8
    except (ValueError, ArithmeticError, pa.ArrowCapacityError) as error:
        if frame.num_rows == 0:
            raise
        reason = str(error).partition("\n")[0]
    if frame.num_rows == 1:
        null = pa.nulls(1, arrow_type(node.type))
        is_quiet = isinstance(node, Call) and node.function.startswith("try ")
        return Vector(null) if is_quiet else Vector(null, np.ones(1, dtype=np.bool_), reason)
    first = np.arange(frame.num_rows) < frame.num_rows // 2
    halves = [_plain_vector(node, frame.narrow(rows)) for rows in (first, ~first)]
    failed = [np.zeros(len(h.values), np.bool_) if h.failed is None else h.failed for h in halves]
    return Vector(pa.concat_arrays([h.values for h in halves]), np.concatenate(failed), reason)


def _computed(node: BoundExpr, frame: Frame) -> Vector:  # one flat case per node
    match node:
        case Column(field_id):
            return Vector(frame.column(field_id))
        case Member(operand, field_id, _, index):
            if field_id in frame:
                return Vector(frame.column(field_id))
            vector = vector_of(operand, frame)
            return Vector(member(vector.values, index), vector.failed, vector.reason)
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
            truth = truth_of(node, frame, nulls=True)
            return Vector(array_of_truth(truth), truth.failed, truth.reason)


def _call(node: Call, frame: Frame) -> Vector:
    vectors = tuple(vector_of(a, frame) for a in node.arguments)
    values = tuple(v.values for v in vectors)
    if any(is_null_scalar(v) for v in values):  # all functions are strict
        return _after_arguments(Vector(pa.nulls(frame.num_rows, arrow_type(node.type))), vectors, quiet=True)
    if not any(isinstance(v, pa.Array) for v in values):
        values = (array_from(values[0], frame.num_rows), *values[1:])
    function = node.function.removeprefix("try ")
    done = _KERNELS[function](values, tuple(a.type for a in node.arguments), node.type)
    divides = function in {"/", "div", "%"}  # Spark looks at the divisor first
    return _after_arguments(done, vectors[::-1] if divides else vectors, quiet=function != node.function)


def _after_arguments(done: Vector, arguments: tuple[Vector, ...], *, quiet: bool) -> Vector:
    """The result of a strict function: fails where an argument failed, or where it failed itself unless `quiet`."""
    failed, reason = failures(arguments)
    return Vector(done.values, failed if quiet else union(failed, done.failed), reason or done.reason)


def _case(node: Case, frame: Frame) -> Vector:
    num_rows = frame.num_rows
    default = vector_of(node.default, frame)
    values, failed, reason = default.values, default.failed, default.reason
    # from the last branch to the first, so that an earlier one replaces the values, and the failures, of later ones
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
        open_rows = minus(null_mask(values), failed)  # a row that failed stays failed: later operands cannot save it
        if open_rows is None:
            break
        vector = vector_of(operand, frame)
        values = pc.if_else(pa.array(open_rows), vector.values, values)
        if vector.failed is not None:
            failed, reason = union(failed, vector.failed & open_rows), reason or vector.reason
    return Vector(values, failed if failed is not None and failed.any() else None, reason)


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
