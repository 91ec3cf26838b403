"""Rounding of numbers, as Spark does it: to whole ones, or to digits of the shortest text of a number."""

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from scan_core.expr.coercion import INTEGRAL, decimal_of, name_of
from scan_core.expr.compare import numbers
from scan_core.expr.kernel_results import OVERFLOW, Kernel, nulls_of, outcome, rounded_decimal
from scan_core.expr.vectors import Operand, Vector
from scan_core.schema import Type

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


KERNELS: Mapping[str, Kernel] = {
    "floor": _floor_or_ceil(np.floor, "down"),
    "ceil": _floor_or_ceil(np.ceil, "up"),
    "round": _round,
}
"""By function name."""
