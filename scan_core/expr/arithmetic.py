"""Arithmetic, bitwise operators and rounding with Spark's ANSI meaning: an overflow fails its row, not the batch."""

import decimal
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from scan_core.expr.coercion import FLOATING, INTEGRAL, LONG, decimal_of, name_of
from scan_core.expr.compare import numbers
from scan_core.expr.literals import INT_RANGE, LONG_RANGE
from scan_core.expr.vectors import (
    OVERFLOW,
    SHORT_DECIMAL_DIGITS,
    BoolMask,
    Kernel,
    Operand,
    Vector,
    array_of,
    decimal_array,
    fixed_values,
    null_mask,
    nulls_of,
    outcome,
    rounded_decimal,
    union,
    valid_mask,
)
from scan_core.model.schema import PrimitiveType, Type

DIVISION_BY_ZERO = "division by zero"


def _binary(sign: str) -> Kernel:
    def kernel(arguments: tuple[Operand, ...], types: tuple[Type, ...], result: Type) -> Vector:
        if name_of(result) in FLOATING:
            return _floats(sign, arguments, types, result)
        if name_of(result) in INTEGRAL and name_of(types[0]) in INTEGRAL:
            return _integers(sign, arguments, types, result)
        return _decimals(sign, arguments, types, result)

    return kernel


def _floats(sign: str, arguments: tuple[Operand, ...], types: tuple[Type, ...], result: Type) -> Vector:
    left, right = (numbers(a, t) for a, t in zip(arguments, types, strict=True))
    null = nulls_of(*arguments)
    with np.errstate(all="ignore"):
        match sign:
            case "+":
                return outcome(left + right, null, None, result, "")
            case "-":
                return outcome(left - right, null, None, result, "")
            case "*":
                return outcome(left * right, null, None, result, "")
            case "/":
                zero = np.broadcast_to(np.asarray(right == 0), _length(left, right))
                return outcome(np.true_divide(left, right), null, zero, result, DIVISION_BY_ZERO)
            case _:
                zero = np.broadcast_to(np.asarray(right == 0), _length(left, right))
                return outcome(np.fmod(left, right), null, zero, result, DIVISION_BY_ZERO)


def _length(left: Any, right: Any) -> int:
    return len(left) if isinstance(left, np.ndarray) else len(right)


def _integers(sign: str, arguments: tuple[Operand, ...], types: tuple[Type, ...], result: Type) -> Vector:
    sides = [numbers(a, t) for a, t in zip(arguments, types, strict=True)]
    left: Any
    right: Any
    left, right = (s.astype(np.int64, copy=False) if isinstance(s, np.ndarray) else np.int64(s) for s in sides)
    null = nulls_of(*arguments)
    low, high = INT_RANGE if name_of(result) == "int" else LONG_RANGE
    with np.errstate(all="ignore"):
        if sign in {"/", "%", "div"}:
            return _integer_division(sign, left, right, null, result)
        if sign == "*":
            values = left * right
            failed = _product_overflows(left, right, values) if high == LONG_RANGE[1] else None
        elif sign == "+":
            values = left + right
            failed = ((left ^ values) & (right ^ values)) < 0
        else:
            values = left - right
            failed = ((left ^ right) & (left ^ values)) < 0
    if high != LONG_RANGE[1]:  # ints were computed in 64 bits
        failed = (values < low) | (values > high)
    return outcome(values, null, failed, result, f"{OVERFLOW} of {result}")


def _integer_division(sign: str, left: Any, right: Any, null: BoolMask | None, result: Type) -> Vector:
    zero = np.broadcast_to(np.asarray(right == 0), _length(left, right))
    divisor = np.where(zero, 1, right)
    quotient = left // divisor
    remainder = left - quotient * divisor
    toward_zero = (remainder != 0) & ((remainder < 0) != (left < 0))
    if sign == "%":
        return outcome(np.where(toward_zero, remainder - divisor, remainder), null, zero, result, DIVISION_BY_ZERO)
    wrapped = (left == LONG_RANGE[0]) & (divisor == -1)
    values = np.where(wrapped, 0, quotient + toward_zero)
    reason = DIVISION_BY_ZERO if zero.any() else f"{OVERFLOW} of {result}"
    return outcome(values, null, zero | wrapped, result, reason)


def _product_overflows(left: Any, right: Any, product: Any) -> BoolMask | None:
    if _magnitude(left) * _magnitude(right) <= LONG_RANGE[1]:
        return None
    safe = np.where(left == 0, 1, left)
    exact = (product // safe == right) & (product % safe == 0)
    return np.asarray((left != 0) & (~exact | ((left == -1) & (right == LONG_RANGE[0]))))


def _magnitude(side: Any) -> int:
    if not isinstance(side, np.ndarray):
        return abs(int(side))
    return max(abs(int(side.min())), abs(int(side.max()))) if len(side) else 0


def _decimals(sign: str, arguments: tuple[Operand, ...], types: tuple[Type, ...], result: Type) -> Vector:
    (p1, s1), (p2, s2) = (decimal_of(t) for t in types)
    null = nulls_of(*arguments)
    left, right = (a.cast(pa.decimal256(*decimal_of(t))) for a, t in zip(arguments, types, strict=True))
    if sign in {"+", "-"}:
        return rounded_decimal((pc.add if sign == "+" else pc.subtract)(left, right), null, result)
    if sign == "*":
        return rounded_decimal(pc.multiply(left, right), null, result)
    if sign in {"%", "div"}:  # binding allows at most 18 digits at the common scale
        return _short_decimal_division(sign, arguments, types, result)
    length = len(left) if isinstance(left, pa.Array) else len(right)
    if isinstance(right, pa.Scalar):
        zero = np.full(length, right.as_py() == 0)
    else:
        zero = np.asarray(pc.fill_null(pc.equal(right, _decimal(0, right.type)), False))
    # Arrow cuts off after max(4, s1 + p2 - s2 + 1) digits; one digit more than wanted makes rounding half up exact
    missing = max(0, decimal_of(result)[1] + 1 - max(4, s1 + p2 - s2 + 1))
    dividend = left.cast(pa.decimal256(p1 + missing, s1 + missing))
    divisor = pc.if_else(pa.array(zero), _decimal(1, right.type), right) if zero.any() else right
    vector = rounded_decimal(pc.divide(dividend, divisor), union(null, zero if zero.any() else None), result)
    failed = zero if null is None else zero & ~null
    if not failed.any():
        return vector
    return Vector(vector.values, union(vector.failed, failed), DIVISION_BY_ZERO)


def _decimal(unit: int, type_: pa.DataType) -> pa.Scalar:
    """Zero, or the smallest positive value: 1 itself does not fit a decimal(2, 2)."""
    return pa.scalar(decimal.Decimal(unit).scaleb(-type_.scale), type_)


def _short_decimal_division(sign: str, arguments: tuple[Operand, ...], types: tuple[Type, ...], result: Type) -> Vector:
    scale = max(decimal_of(t)[1] for t in types)
    aligned = pa.decimal128(SHORT_DECIMAL_DIGITS, scale)
    stored = PrimitiveType("decimal", (SHORT_DECIMAL_DIGITS, scale))
    sides = [a.cast(pa.decimal128(*decimal_of(t))).cast(aligned) for a, t in zip(arguments, types, strict=True)]
    left, right = (
        n.astype(np.int64) if isinstance(n, np.ndarray) else np.int64(n) for n in (numbers(s, stored) for s in sides)
    )
    null = nulls_of(*arguments)
    whole = _integer_division(sign, left, right, null, LONG)
    if sign == "div":
        return whole
    unscaled = fixed_values(whole.values).astype(np.int64)
    values = decimal_array(unscaled, null_mask(whole.values), scale)
    vector = rounded_decimal(values, null_mask(whole.values), result)
    return Vector(vector.values, union(vector.failed, whole.failed), whole.reason or vector.reason)


def _negative(arguments: tuple[Operand, ...], types: tuple[Type, ...], result: Type) -> Vector:
    if name_of(result) == "decimal":
        return Vector(pc.negate(arguments[0]))
    values, null = numbers(arguments[0], types[0]), nulls_of(arguments[0])
    failed = None
    if name_of(result) in INTEGRAL:
        failed = values == (INT_RANGE if name_of(result) == "int" else LONG_RANGE)[0]
    with np.errstate(over="ignore"):
        return outcome(-values, null, failed, result, f"{OVERFLOW} of {result}")


def _absolute(arguments: tuple[Operand, ...], types: tuple[Type, ...], result: Type) -> Vector:
    if name_of(result) == "decimal":
        return Vector(pc.abs(arguments[0]))
    values, null = numbers(arguments[0], types[0]), nulls_of(arguments[0])
    failed = None
    if name_of(result) in INTEGRAL:
        failed = values == (INT_RANGE if name_of(result) == "int" else LONG_RANGE)[0]
    with np.errstate(over="ignore"):
        return outcome(np.abs(values), null, failed, result, f"{OVERFLOW} of {result}")


def _square_root(arguments: tuple[Operand, ...], types: tuple[Type, ...], result: Type) -> Vector:
    with np.errstate(invalid="ignore"):
        return outcome(np.sqrt(numbers(arguments[0], types[0])), nulls_of(arguments[0]), None, result, "")


def _is_nan(arguments: tuple[Operand, ...], types: tuple[Type, ...], result: Type) -> Vector:
    values = numbers(arguments[0], types[0])
    valid = valid_mask(arguments[0])
    nan = np.isnan(values)
    return Vector(array_of(nan if valid is None else nan & valid, None, result))  # isnan(NULL) is false in Spark


KERNELS: Mapping[str, Kernel] = {
    **{sign: _binary(sign) for sign in ("+", "-", "*", "/", "%", "div")},
    "negative": _negative,
    "abs": _absolute,
    "isnan": _is_nan,
    "sqrt": _square_root,
}
"""By function name; `try ` forms use the same kernels."""


def _bitwise(operation: np.ufunc) -> Kernel:
    def kernel(arguments: tuple[Operand, ...], types: tuple[Type, ...], result: Type) -> Vector:
        left, right = (numbers(a, t) for a, t in zip(arguments, types, strict=True))
        return outcome(operation(left, right), nulls_of(*arguments), None, result, "")

    return kernel


def _invert(arguments: tuple[Operand, ...], types: tuple[Type, ...], result: Type) -> Vector:
    return outcome(np.invert(numbers(arguments[0], types[0])), nulls_of(arguments[0]), None, result, "")


BITWISE_KERNELS: Mapping[str, Kernel] = {
    "&": _bitwise(np.bitwise_and),
    "|": _bitwise(np.bitwise_or),
    "^": _bitwise(np.bitwise_xor),
    "~": _invert,
}


_LEAST_ROUNDED = 1e-20
"""Rounding to at most 15 digits leaves nothing of smaller numbers."""
_WHOLE_FROM = 2.0**53


def _floor_or_ceil(floats: Callable[[Any], Any], mode: str) -> Kernel:
    def kernel(arguments: tuple[Operand, ...], types: tuple[Type, ...], result: Type) -> Vector:
        null = nulls_of(arguments[0])
        if name_of(result) == "decimal":
            wide = arguments[0].cast(pa.decimal256(76, decimal_of(types[0])[1]))
            return rounded_decimal(pc.round(wide, ndigits=0, round_mode=mode), null, result)
        values = numbers(arguments[0], types[0])
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
    values = numbers(arguments[0], types[0])
    with np.errstate(invalid="ignore"):
        has_fraction = (np.abs(values) < _WHOLE_FROM) & (np.trunc(values) != values)
    # Spark takes the digits of the shortest text of the number
    text = pa.array(np.where(has_fraction & (np.abs(values) > _LEAST_ROUNDED), values, 0).astype(values.dtype)).cast(
        pa.string()
    )
    exact = pc.round(text.cast(pa.decimal256(76, 37)), ndigits=digits, round_mode="half_towards_infinity")
    rounded = np.asarray(exact.cast(pa.string()).cast(pa.float64())).astype(values.dtype)
    return outcome(np.where(has_fraction, rounded, values), null, None, result, "")


ROUNDING_KERNELS: Mapping[str, Kernel] = {
    "floor": _floor_or_ceil(np.floor, "down"),
    "ceil": _floor_or_ceil(np.ceil, "up"),
    "round": _round,
}
"""By function name."""
