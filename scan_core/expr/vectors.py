"""The data that evaluation works on: the columns of a batch, vectors of values, and truth values with failed rows.

Three-valued logic, with failed rows as a fourth state; comparison and membership on columns, by how values are stored.
Floats compare as in Spark: NaN equals NaN and is larger than every number, -0.0 equals 0.0. Strings and bytes
compare by unsigned bytes. Values of NULL rows are compared too; callers mask them.
"""

import decimal
import operator
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as pt

from nevermore.scan_core.expr.bound import BoundExpr, Column, Literal, Member
from nevermore.scan_core.expr.coercion import BOOLEAN, BYTES, FLOATING, INTEGRAL, TIMESTAMPS, decimal_of, name_of
from nevermore.scan_core.expr.nodes import leaf_ids
from nevermore.scan_core.model.schema import PrimitiveType, Type, arrow_type
from nevermore.scan_core.model.statistics import unscaled_value
from nevermore.scan_core.rows.buffers import (
    Mask,
    Rows,
    boolean_array,
    boolean_values,
    numbers,
    scalar,
    validity,
    validity_bitmap,
)

Operand: TypeAlias = pa.Array | pa.Scalar


@dataclass(frozen=True, slots=True, eq=False)
class Vector:
    """Values, one per row or one scalar for all. Rows in `failed` hold NULL; `reason` says why the first one failed."""

    values: Operand
    failed: Mask | None = None
    reason: str = ""


@dataclass(frozen=True, slots=True, eq=False)
class Truth:
    """Truth values: `true`, `unknown` (NULL) and `failed` are disjoint; all other rows are false.

    `unknown` is None where the caller does not need to distinguish NULL from false.
    """

    true: Mask
    unknown: Mask | None = None
    failed: Mask | None = None
    reason: str = ""


def union(left: Mask | None, right: Mask | None) -> Mask | None:
    """Rows in either mask."""
    if left is None:
        return right
    return left if right is None else left | right


def minus(mask: Mask | None, removed: Mask | None) -> Mask | None:
    """Rows of `mask` that are not in `removed`."""
    return mask if mask is None or removed is None else mask & ~removed


def null_mask(array: pa.Array) -> Mask | None:
    """Mask of NULL rows; None if no row is NULL."""
    valid = validity(array)
    return None if valid is None else ~valid


def fixed_values(array: pa.Array) -> npt.NDArray[np.generic]:
    """The values of an array of fixed width as a view; values of NULL rows are arbitrary."""
    return numbers(array, _stored_dtype(array.type))


def _stored_dtype(kind: pa.DataType) -> Any:
    return f"i{kind.bit_width // 8}" if pt.is_temporal(kind) else kind.to_pandas_dtype()


def array_of(values: npt.NDArray[np.generic], null: Mask | None, type_: Type) -> pa.Array:
    """An array of a primitive type of fixed width from values in its representation."""
    target = arrow_type(type_)
    if pt.is_boolean(target):
        data = np.packbits(values.astype(np.bool_, copy=False), bitorder="little")
    else:
        data = np.ascontiguousarray(values, dtype=_stored_dtype(target))
    bitmap = validity_bitmap(None if null is None else ~null)
    return pa.Array.from_buffers(target, len(values), [bitmap, pa.py_buffer(data)])


def with_nulls(array: pa.Array, null: Mask | None) -> pa.Array:
    """The array with NULL also in the rows of `null`."""
    if null is None or not null.any():
        return array
    return pc.if_else(pa.array(null), pa.scalar(None, array.type), array)


def array_from(operand: Operand, num_rows: int) -> pa.Array:
    """The operand as an array, one value per row."""
    return operand if isinstance(operand, pa.Array) else pa.repeat(operand, num_rows)


def is_null_scalar(operand: Operand) -> bool:
    """Whether the vector is a constant NULL."""
    return isinstance(operand, pa.Scalar) and not operand.is_valid


def failures(vectors: Sequence[Vector]) -> tuple[Mask | None, str]:
    """Rows in which any of the vectors failed, and why; as in Spark, what follows a NULL is not evaluated."""
    failed, null, reason = None, None, ""
    if any(vector.failed is not None for vector in vectors):
        for vector in vectors:
            failed, reason = union(failed, minus(vector.failed, null)), reason or vector.reason
            null = union(null, minus(nulls_of(vector.values), vector.failed))
    return failed, reason


def truth_of_array(array: pa.Array) -> Truth:
    """A boolean array as truth values."""
    values, null = boolean_values(array), null_mask(array)
    return Truth(values if null is None else values & ~null, null)


def array_of_truth(truth: Truth) -> pa.Array:
    """Truth values as a boolean array; NULL where unknown or failed."""
    return array_of(truth.true, union(truth.unknown, truth.failed), BOOLEAN)


SHORT_DECIMAL_DIGITS = 18
"""Decimals up to here fit 64 bits."""


OVERFLOW = "overflow"

Kernel = Callable[[tuple[Operand, ...], tuple[Type, ...], Type], Vector]
"""Evaluated arguments, their types, the result type -> the result. At least one argument is an array."""


def nulls_of(*operands: Operand) -> Mask | None:
    """Rows in which an argument is NULL."""
    result = None
    for operand in operands:
        if isinstance(operand, pa.Array):
            result = union(result, null_mask(operand))
    return result


def outcome(values: npt.NDArray[Any], null: Mask | None, failed: Mask | None, type_: Type, reason: str) -> Vector:
    """Values of fixed width; rows that failed hold NULL, NULL rows do not fail."""
    failed = minus(failed, null)
    if failed is not None and not failed.any():
        failed = None
    return Vector(array_of(values, union(null, failed), type_), failed, reason if failed is not None else "")


def rounded_decimal(exact: pa.Array, null: Mask | None, result: Type) -> Vector:
    """Exact values rounded half up to a decimal type; what does not fit fails."""
    precision, scale = decimal_of(result)
    if exact.type.scale > scale:
        wide = exact.cast(pa.decimal256(76, exact.type.scale))
        exact = pc.round(wide, ndigits=scale, round_mode="half_towards_infinity")
    rounded = exact.cast(pa.decimal256(76, scale))
    limit = pa.scalar(decimal.Decimal(10) ** (precision - scale), rounded.type)
    failed = np.asarray(pc.fill_null(pc.greater_equal(pc.abs(rounded), limit), False))
    if null is not None:
        failed = failed & ~null
        rounded = with_nulls(rounded, null)
    if failed.any():
        return Vector(with_nulls(rounded, failed).cast(arrow_type(result)), failed, f"{OVERFLOW} of {result}")
    return Vector(rounded.cast(arrow_type(result)))


MIN_ROWS_PER_DISTINCT_VALUE = 2
"""A dictionary with more values than that per row costs more than it saves."""
Codes = npt.NDArray[np.integer[Any]]


class Frame:
    """Columns of `num_rows` rows by field id."""

    def __init__(
        self,
        columns: Mapping[int, pa.Array],
        num_rows: int,
    ) -> None:
        self.num_rows = num_rows
        self._columns = columns
        self._plain: dict[int, pa.Array] = {}
        self._by_dictionary: dict[int, tuple[Frame, Codes] | None] = {}

    def __contains__(self, field_id: int) -> bool:
        return field_id in self._columns

    def column(self, field_id: int) -> pa.Array:
        """A column or struct member without dictionary encoding.

        Raises:
            KeyError: the caller did not provide it.
        """
        if field_id not in self._plain:
            array = self._columns[field_id]
            if isinstance(array, pa.ExtensionArray):
                array = array.storage
            self._plain[field_id] = array.dictionary_decode() if isinstance(array, pa.DictionaryArray) else array
        return self._plain[field_id]

    def narrow(self, mask: Mask) -> "Frame":
        """The same columns, only the rows in `mask`; columns are filtered when asked for."""
        num_rows = int(np.count_nonzero(mask))
        return Frame(_Filtered(self._columns, mask), num_rows)

    def by_dictionary(self, field_id: int) -> "tuple[Frame, Codes] | None":
        """A frame of the distinct values of a dictionary-encoded column, NULL last, and for each row which of them it has.

        None if the column is not there or not encoded, or the batch has many distinct values.
        """
        if field_id not in self._by_dictionary:
            self._by_dictionary[field_id] = self._encoded(field_id)
        return self._by_dictionary[field_id]

    def _encoded(self, field_id: int) -> "tuple[Frame, Codes] | None":
        array = self._columns.get(field_id)
        if not isinstance(array, pa.DictionaryArray):
            return None
        distinct = len(array.dictionary)
        if (distinct + 1) * MIN_ROWS_PER_DISTINCT_VALUE > self.num_rows:
            return None
        values = pa.concat_arrays([array.dictionary, pa.nulls(1, array.dictionary.type)])
        indices = array.indices
        codes = numbers(indices.fill_null(0) if indices.null_count else indices)
        if (present := validity(indices)) is not None:
            codes = np.where(present, codes, distinct)
        return Frame({field_id: values}, distinct + 1), codes


class _Filtered(Mapping[int, pa.Array]):
    """Columns filtered by a mask, each when first asked for."""

    def __init__(self, columns: Mapping[int, pa.Array], mask: Mask) -> None:
        self._columns, self._mask = columns, boolean_array(mask)
        self._filtered: dict[int, pa.Array] = {}

    def __getitem__(self, field_id: int) -> pa.Array:
        if field_id not in self._filtered:
            self._filtered[field_id] = self._columns[field_id].filter(self._mask)
        return self._filtered[field_id]

    def __iter__(self):  # type: ignore[no-untyped-def]  # noqa: ANN204
        return iter(self._columns)

    def __len__(self) -> int:
        return len(self._columns)


@lru_cache(maxsize=4096)
def sole_column(node: BoundExpr) -> int | None:
    """The id of the only column or struct member that an expression reads.

    None if it reads several, or is itself a column, a member or a constant.
    """
    if isinstance(node, Column | Member | Literal):
        return None
    ids = leaf_ids(node)
    return next(iter(ids)) if len(ids) == 1 else None


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
    """NOT; the operand must distinguish NULL from false."""
    return Truth(~not_false(truth), truth.unknown, truth.failed, truth.reason)


def not_false(truth: Truth) -> Mask:
    """Rows that are true, unknown or failed: another operand of AND still matters for them."""
    dead = union(truth.unknown, truth.failed)
    return truth.true if dead is None else truth.true | dead


def scatter(part: Truth, rows: Mask, *, otherwise: bool) -> Truth:
    """Truth values of the rows in a mask, put back among all rows; the others hold `otherwise`."""
    true = np.full(len(rows), otherwise)
    true[rows] = part.true
    return Truth(true, _scatter(part.unknown, rows), _scatter(part.failed, rows), part.reason)


def _scatter(part: Mask | None, rows: Mask) -> Mask | None:
    if part is None:
        return None
    result = np.zeros(len(rows), dtype=np.bool_)
    result[rows] = part
    return result


_FEW_VALUES = 4
"""Up to here one comparison per value beats any look-up."""
_DENSE_RANGE_PER_VALUE = 256
_MAX_DENSE_RANGE = 1 << 22
_SLOTS_PER_VALUE = 16

_OPERATORS: dict[str, tuple[Callable[[Any, Any], Any], Callable[[Any, Any], Any]]] = {
    "=": (operator.eq, pc.equal),
    "<>": (operator.ne, pc.not_equal),
    "<": (operator.lt, pc.less),
    "<=": (operator.le, pc.less_equal),
    ">": (operator.gt, pc.greater),
    ">=": (operator.ge, pc.greater_equal),
}
"""On NumPy's views of numbers, and on Arrow arrays of everything else."""


def compare(sign: str, left: Operand, right: Operand, left_type: Type, right_type: Type) -> Mask:
    """`left sign right` for one of = <> < <= > >=; at least one side is an array."""
    kind = name_of(left_type)
    if kind == "unknown":  # NULL and NULL
        return np.zeros(len(left if isinstance(left, pa.Array) else right), dtype=np.bool_)
    if kind == "decimal" and left_type != right_type:
        left, right, left_type = _align_decimals(left, right, left_type, right_type)
    if kind in FLOATING:
        return _compare_floats(sign, operand_values(left, left_type), operand_values(right, left_type))
    if is_numpy_comparable(left_type):
        return np.asarray(_OPERATORS[sign][0](operand_values(left, left_type), operand_values(right, left_type)))
    return boolean_values(_OPERATORS[sign][1](left, right))


def is_numpy_comparable(type_: Type) -> bool:
    """Whether the values can be compared as NumPy numbers."""
    if name_of(type_) == "decimal":
        return decimal_of(type_)[0] <= SHORT_DECIMAL_DIGITS
    return name_of(type_) not in BYTES | {"string", "uuid", "unknown", "struct", "list", "map"}


def operand_values(operand: Operand, type_: Type) -> Any:
    """The values as a NumPy view, or the constant as a Python number of the same representation."""
    if isinstance(operand, pa.Scalar):
        return number(operand, type_)
    if name_of(type_) == "boolean":
        return boolean_values(operand)
    if name_of(type_) == "decimal":  # the low words of 16 bytes hold up to 18 digits
        return numbers(operand, (np.int64, 2))[:, 0]
    return fixed_values(operand)


def number(scalar: pa.Scalar, type_: Type) -> Any:
    """A non-NULL constant as the number that stands for it in the array's buffer."""
    if name_of(type_) == "decimal":
        return unscaled_value(scalar.as_py(), decimal_of(type_)[1])
    if pt.is_temporal(scalar.type):
        return scalar.value
    return scalar.as_py()


def _align_decimals(left: Operand, right: Operand, left_type: Type, right_type: Type) -> tuple[Operand, Operand, Type]:
    (p1, s1), (p2, s2) = decimal_of(left_type), decimal_of(right_type)
    scale = max(s1, s2)
    precision = max(p1 - s1, p2 - s2) + scale
    if precision <= 38:
        aligned = PrimitiveType("decimal", (precision, scale))
        return left.cast(arrow_type(aligned)), right.cast(arrow_type(aligned)), aligned
    wide = pa.decimal256(min(precision, 76), scale)
    return left.cast(wide), right.cast(wide), PrimitiveType("decimal", (38, 0))


def _compare_floats(sign: str, left: Any, right: Any) -> Mask:
    match sign:
        case "<>":
            return ~_compare_floats("=", left, right)
        case ">=":
            return ~_compare_floats("<", left, right)
        case "<=":
            return ~_compare_floats("<", right, left)
        case ">":
            return _compare_floats("<", right, left)
    with np.errstate(invalid="ignore"):
        if sign == "=":
            result = np.asarray(left == right)
            if _may_hold_nan(left) and _may_hold_nan(right):
                result |= np.isnan(left) & np.isnan(right)
            return result
        result = np.asarray(left < right)
        if _may_hold_nan(right):
            result |= np.isnan(right) & ~np.isnan(left)
        return result


def _may_hold_nan(side: Any) -> bool:
    return isinstance(side, np.ndarray) or side != side  # noqa: PLR0124  # NaN differs from itself


@dataclass(frozen=True, slots=True, eq=False)
class _IntegerSet:
    """Distinct integers with a table of flags: one for each integer between them, or one for their low bits."""

    values: Rows
    flags: Mask
    is_dense: bool

    def contains(self, probes: npt.NDArray[Any]) -> Mask:
        """Which probes are members."""
        if self.is_dense:
            inside = (probes >= self.values[0]) & (probes <= self.values[-1])
            return np.asarray(self.flags[np.where(inside, probes.astype(np.int64) - self.values[0], 0)] & inside)
        result = np.zeros(len(probes), dtype=np.bool_)
        candidates = np.flatnonzero(self.flags[probes & (len(self.flags) - 1)])
        found = pa.array(probes[candidates].astype(np.int64))
        result[candidates] = boolean_values(pc.is_in(found, value_set=pa.array(self.values)))
        return result


@lru_cache(maxsize=64)
def _integer_set(values: frozenset[int]) -> _IntegerSet:
    stored = np.array(sorted(values), dtype=np.int64)
    extent = int(stored[-1]) - int(stored[0]) + 1
    is_dense = extent <= min(_DENSE_RANGE_PER_VALUE * len(stored), _MAX_DENSE_RANGE)
    flags = np.zeros(extent if is_dense else 1 << (_SLOTS_PER_VALUE * len(stored)).bit_length(), dtype=np.bool_)
    flags[stored - stored[0] if is_dense else stored & (len(flags) - 1)] = True
    return _IntegerSet(stored, flags, is_dense)


@lru_cache(maxsize=64)
def _value_set(values: frozenset[Any], type_: Type) -> pa.Array:
    members = [*values, -0.0, 0.0] if 0.0 in values and name_of(type_) in FLOATING else list(values)
    kind = arrow_type(type_)
    if pt.is_temporal(kind):
        return pa.array(members, pa.int64()).view(kind)
    return pa.array(members, type=kind)


def contains(values: frozenset[Any], has_nan: bool, array: pa.Array, type_: Type) -> Mask:  # noqa: FBT001
    """Which values of the array are members of the set (or NaN, if `has_nan`)."""
    if not values:
        result = np.zeros(len(array), dtype=np.bool_)
    elif len(values) <= _FEW_VALUES:
        kind = arrow_type(type_)
        result = np.logical_or.reduce([compare("=", array, scalar(v, kind), type_, type_) for v in values])
    elif name_of(type_) in INTEGRAL | TIMESTAMPS | {"date"}:
        result = _integer_set(values).contains(operand_values(array, type_))
    else:
        members = _value_set(values, type_)
        if members.type != array.type:
            members = members.cast(array.type)
        result = boolean_values(pc.is_in(array, value_set=members))
    if has_nan and name_of(type_) in FLOATING:
        result |= np.isnan(fixed_values(array))
    return result
