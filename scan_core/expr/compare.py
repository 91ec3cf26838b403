"""Comparisons and membership on columns, by physical representation.

Floats compare as Spark does: NaN equals NaN and is larger than every number, -0.0 equals 0.0. Strings and bytes
compare by unsigned bytes. Values of NULL rows are compared too; callers mask them.
"""

import operator
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from nevermore.scan_core.expr.coercion import BYTES, FLOATING, INTEGRAL, TIMESTAMPS, decimal_of, name_of
from nevermore.scan_core.expr.vectors import (
    SHORT_DECIMAL_DIGITS,
    Operand,
    boolean_values,
    fixed_values,
    short_decimal_values,
)
from nevermore.scan_core.model.schema import PrimitiveType, Type, arrow_type
from nevermore.scan_core.model.statistics import unscaled_value
from nevermore.scan_core.rows.buffers import Mask, scalar

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
        return _compare_floats(sign, numbers(left, left_type), numbers(right, left_type))
    if is_numpy_comparable(left_type):
        return np.asarray(_OPERATORS[sign][0](numbers(left, left_type), numbers(right, left_type)))
    return boolean_values(_OPERATORS[sign][1](left, right))


def is_numpy_comparable(type_: Type) -> bool:
    """Whether the values can be compared as NumPy numbers."""
    if name_of(type_) == "decimal":
        return decimal_of(type_)[0] <= SHORT_DECIMAL_DIGITS
    return name_of(type_) not in BYTES | {"string", "uuid", "unknown", "struct", "list", "map"}


def numbers(operand: Operand, type_: Type) -> Any:
    """The values as a NumPy view, or the constant as a Python number of the same representation."""
    if isinstance(operand, pa.Scalar):
        return number(operand, type_)
    if name_of(type_) == "boolean":
        return boolean_values(operand)
    return short_decimal_values(operand) if name_of(type_) == "decimal" else fixed_values(operand)


def number(scalar: pa.Scalar, type_: Type) -> Any:
    """A non-NULL constant as the number that stands for it in the array's buffer."""
    if name_of(type_) == "decimal":
        return unscaled_value(scalar.as_py(), decimal_of(type_)[1])
    if pa.types.is_temporal(scalar.type):
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

    values: npt.NDArray[np.int64]
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
    if pa.types.is_temporal(kind):
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
        result = _integer_set(values).contains(numbers(array, type_))
    else:
        members = _value_set(values, type_)
        if members.type != array.type:
            members = members.cast(array.type)
        result = boolean_values(pc.is_in(array, value_set=members))
    if has_nan and name_of(type_) in FLOATING:
        result |= np.isnan(fixed_values(array))
    return result
