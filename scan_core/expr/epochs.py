"""Dates and timestamps as numbers since 1970-01-01, and back."""

from collections.abc import Mapping

import numpy as np

from scan_core.expr.compare import numbers
from scan_core.expr.kernel_results import OVERFLOW, Kernel, nulls_of, outcome
from scan_core.expr.literals import LONG_RANGE
from scan_core.expr.vectors import Operand, Vector
from scan_core.schema import Type

_TICKS = {"seconds": 1_000_000, "millis": 1_000, "micros": 1}
"""Microseconds."""


def _to_epoch(unit: str) -> Kernel:
    def kernel(arguments: tuple[Operand, ...], types: tuple[Type, ...], result: Type) -> Vector:
        ticks = numbers(arguments[0], types[0]).astype(np.int64)
        return outcome(ticks // _TICKS.get(unit, 1), nulls_of(arguments[0]), None, result, "")

    return kernel


def _from_epoch(unit: str) -> Kernel:
    factor = _TICKS.get(unit, 1)

    def kernel(arguments: tuple[Operand, ...], types: tuple[Type, ...], result: Type) -> Vector:
        values = numbers(arguments[0], types[0]).astype(np.int64)
        failed = (values > LONG_RANGE[1] // factor) | (values < -(LONG_RANGE[1] // factor)) if factor > 1 else None
        with np.errstate(over="ignore"):
            return outcome(values * factor, nulls_of(arguments[0]), failed, result, f"{OVERFLOW} of {result}")

    return kernel


KERNELS: Mapping[str, Kernel] = {
    **{f"unix_{unit}": _to_epoch(unit) for unit in (*_TICKS, "date")},
    **{f"timestamp_{unit}": _from_epoch(unit) for unit in _TICKS},
    "date_from_unix_date": _from_epoch("date"),
}
