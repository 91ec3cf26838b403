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

from nevermore.scan_core.expr.coercion import BYTES, FLOATING, decimal_of, name_of
from nevermore.scan_core.expr.vectors import (
    SHORT_DECIMAL_DIGITS,
    Operand,
    boolean_values,
    fixed_values,
    short_decimal_values,
)
from nevermore.scan_core.model.schema import PrimitiveType, Type, arrow_type
from nevermore.scan_core.model.statistics import unscaled_value
from nevermore.scan_core.rows.buffers import Mask

_FEW_VALUES = 4
"""Up to here one comparison per value beats any look-up."""
_DENSE_RANGE_PER_VALUE = 256
_MAX_DENSE_RANGE = 1 << 22
_BITMAP_SLOTS_PER_VALUE = 16
_MULTIPLIER = np.uint64(0x9E3779B97F4A7C15)

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
class _NumberSet:
    """Sorted distinct numbers, with a dense table or a hashed bitmap before them."""

    values: npt.NDArray[Any]
    low: int
    dense: Mask | None
    bitmap: Mask | None
    shift: np.uint64

    def contains(self, probes: npt.NDArray[Any]) -> Mask:
        """Which probes are members."""
        if len(self.values) <= _FEW_VALUES:
            result = np.zeros(len(probes), dtype=np.bool_)
            for value in self.values:
                result |= probes == value
            return result
        if self.dense is not None:
            offset = probes.astype(np.int64) - self.low if probes.dtype != np.int64 else probes - self.low
            inside = (probes >= self.values[0]) & (probes <= self.values[-1])
            return np.asarray(self.dense[np.where(inside, offset, 0)] & inside)
        if self.bitmap is None:
            return self._search(probes)
        candidates = np.flatnonzero(self.bitmap[(probes.astype(np.int64).view(np.uint64) * _MULTIPLIER) >> self.shift])
        result = np.zeros(len(probes), dtype=np.bool_)
        result[candidates] = self._search(probes[candidates])
        return result

    def _search(self, probes: npt.NDArray[Any]) -> Mask:
        places = np.searchsorted(self.values, probes)
        places[places == len(self.values)] = 0
        return np.asarray(self.values[places] == probes)


@lru_cache(maxsize=64)
def _number_set(values: frozenset[Any], type_: Type) -> _NumberSet:
    if name_of(type_) == "decimal":
        stored = np.array([unscaled_value(v, decimal_of(type_)[1]) for v in values], dtype=np.int64)
    else:
        dtype = {"float": np.float32, "double": np.float64, "boolean": np.bool_}.get(name_of(type_), np.int64)
        stored = np.array(list(values), dtype=dtype)
    stored.sort()
    dense = bitmap = None
    shift = np.uint64(0)
    if stored.dtype == np.int64 and len(stored) > _FEW_VALUES:
        extent = int(stored[-1]) - int(stored[0]) + 1
        if extent <= min(_DENSE_RANGE_PER_VALUE * len(stored), _MAX_DENSE_RANGE):
            dense = np.zeros(extent, dtype=np.bool_)
            dense[stored - stored[0]] = True
        else:
            log_slots = max(10, int(len(stored) * _BITMAP_SLOTS_PER_VALUE - 1).bit_length())
            shift = np.uint64(64 - log_slots)
            bitmap = np.zeros(1 << log_slots, dtype=np.bool_)
            bitmap[(stored.view(np.uint64) * _MULTIPLIER) >> shift] = True
    return _NumberSet(stored, int(stored[0]) if stored.dtype == np.int64 else 0, dense, bitmap, shift)


@lru_cache(maxsize=64)
def _value_set(values: frozenset[Any], type_: Type) -> pa.Array:
    return pa.array(list(values), type=arrow_type(type_))


def contains(values: frozenset[Any], has_nan: bool, array: pa.Array, type_: Type) -> Mask:  # noqa: FBT001
    """Which values of the array are members of the set (or NaN, if `has_nan`)."""
    if not values:
        result = np.zeros(len(array), dtype=np.bool_)
    elif is_numpy_comparable(type_):
        result = _number_set(values, type_).contains(numbers(array, type_))
    else:
        members = _value_set(values, type_)
        if members.type != array.type:
            members = members.cast(array.type)
        result = boolean_values(pc.is_in(array, value_set=members))
    if has_nan and name_of(type_) in FLOATING:
        result |= np.isnan(fixed_values(array))
    return result
