"""Dates and timestamps on columns: parts, truncation, shifting, epochs. Time zone UTC, proleptic Gregorian calendar."""

import operator
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from nevermore.scan_core.expr.coercion import name_of
from nevermore.scan_core.expr.compare import numbers
from nevermore.scan_core.expr.literals import INT_RANGE, LONG_RANGE
from nevermore.scan_core.expr.vectors import OVERFLOW, Kernel, Operand, Vector, nulls_of, outcome
from nevermore.scan_core.model.schema import Type

Days = npt.NDArray[np.int64]
DAY_MICROS = 86_400_000_000
_MONDAY = 4  # 1970-01-05 was the first Monday: day 4
_TICKS = {
    "hour": 3_600_000_000,
    "minute": 60_000_000,
    "second": 1_000_000,
    "millisecond": 1_000,
    "microsecond": 1,
}


_EPOCH_TICKS = {"seconds": 1_000_000, "millis": 1_000, "micros": 1}
"""Microseconds."""


def _long(operand: Operand, type_: Type) -> Any:
    values = numbers(operand, type_)
    return values.astype(np.int64) if isinstance(values, np.ndarray) else np.int64(values)


def _on_longs(compute: Callable[..., Any]) -> Kernel:
    """The kernel that computes from 64-bit integers and never fails."""

    def kernel(arguments: tuple[Operand, ...], types: tuple[Type, ...], result: Type) -> Vector:
        longs = (_long(a, t) for a, t in zip(arguments, types, strict=True))
        return outcome(compute(*longs), nulls_of(*arguments), None, result, "")

    return kernel


def _divide_by(ticks: int) -> Callable[[Any], Any]:
    return lambda values: values // ticks


def _from_epoch(factor: int) -> Kernel:
    def kernel(arguments: tuple[Operand, ...], types: tuple[Type, ...], result: Type) -> Vector:
        values = _long(arguments[0], types[0])
        failed = (values > LONG_RANGE[1] // factor) | (values < -(LONG_RANGE[1] // factor)) if factor > 1 else None
        with np.errstate(over="ignore"):
            return outcome(values * factor, nulls_of(arguments[0]), failed, result, f"{OVERFLOW} of {result}")

    return kernel


def _months(days: Days) -> Days:
    """The month of each day, counted from 1970-01."""
    return days.astype("datetime64[D]").astype("datetime64[M]").astype(np.int64)


def civil(days: Days) -> tuple[Days, Days, Days]:
    """Year, month and day of month."""
    months = _months(days)
    return months // 12 + 1970, months % 12 + 1, days - first_day(months) + 1


def first_day(months: Days) -> Days:
    """The first day of a month; both counted from 1970-01."""
    return months.astype("datetime64[M]").astype("datetime64[D]").astype(np.int64)


def first_day_of_year(years: Days) -> Days:
    """January 1st of a year."""
    return first_day((years - 1970) * 12)


def _weekday(days: Days) -> Days:
    return (days - _MONDAY) % 7  # Monday is 0


def _week_of_year(days: Days) -> Days:
    thursday = days - _weekday(days) + 3  # the ISO week belongs to the year of its Thursday
    return (thursday - first_day_of_year(civil(thursday)[0])) // 7 + 1


_DATE_PARTS: Mapping[str, Callable[[Days], Days]] = {
    "year": lambda days: civil(days)[0],
    "quarter": lambda days: (civil(days)[1] + 2) // 3,
    "month": lambda days: civil(days)[1],
    "day": lambda days: civil(days)[2],
    "dayofweek": lambda days: (_weekday(days) + 1) % 7 + 1,
    "weekday": _weekday,
    "dayofyear": lambda days: days - first_day_of_year(civil(days)[0]) + 1,
    "weekofyear": _week_of_year,
    "last_day": lambda days: first_day(_months(days) + 1) - 1,
}


def _ticks_per_micro(type_: Type) -> int:
    return 1000 if name_of(type_).endswith("_ns") else 1


def _time_part(unit: str, modulo: int) -> Kernel:
    def kernel(arguments: tuple[Operand, ...], types: tuple[Type, ...], result: Type) -> Vector:
        ticks = _TICKS[unit] * _ticks_per_micro(types[0])
        return outcome(_long(arguments[0], types[0]) // ticks % modulo, nulls_of(*arguments), None, result, "")

    return kernel


def truncate_days(days: Any, unit: str) -> Any:
    """The first day of the year, quarter, month or week that a day lies in."""
    if unit == "week":
        return days - _weekday(days)
    months = _months(np.asarray(days))
    step = {"year": 12, "quarter": 3, "month": 1}[unit]
    return first_day(months // step * step)


def _date_trunc(arguments: tuple[Operand, ...], types: tuple[Type, ...], result: Type) -> Vector:
    values, unit = _long(arguments[0], types[0]), arguments[1].as_py()
    per_micro = _ticks_per_micro(types[0])
    if unit in _TICKS:
        step = _TICKS[unit] * per_micro
        truncated = values // step * step
    else:
        day = DAY_MICROS * per_micro
        days = values // day
        truncated = (days if unit == "day" else truncate_days(days, unit)) * day
    # only an overflow makes it later
    return outcome(truncated, nulls_of(arguments[0]), truncated > values, result, f"{OVERFLOW} of {result}")


def _trunc(arguments: tuple[Operand, ...], types: tuple[Type, ...], result: Type) -> Vector:
    days = truncate_days(_long(arguments[0], types[0]), arguments[1].as_py())
    return outcome(days, nulls_of(arguments[0]), None, result, "")


def _shift_months(days: Any, added: Any) -> Days:
    """The same day of another month, or its last one."""
    year, month, day = civil(np.asarray(days))
    months = np.asarray((year - 1970) * 12 + month - 1 + added)
    last = first_day(months + 1) - first_day(months)
    return np.asarray(first_day(months) + np.minimum(day, last) - 1)


def _add_months(arguments: tuple[Operand, ...], types: tuple[Type, ...], result: Type) -> Vector:
    values = _shift_months(*(_long(a, t) for a, t in zip(arguments, types, strict=True)))
    failed = (values < INT_RANGE[0]) | (values > INT_RANGE[1])
    return outcome(values, nulls_of(*arguments), failed, result, f"{OVERFLOW} of {result}")


def _timestamp_add_months(arguments: tuple[Operand, ...], types: tuple[Type, ...], result: Type) -> Vector:
    ticks_per_day = DAY_MICROS * _ticks_per_micro(result)
    ticks, added = (_long(a, t) for a, t in zip(arguments, types, strict=True))
    days, within_day = np.divmod(np.asarray(ticks), ticks_per_day)
    shifted = _shift_months(days, added)
    limit = LONG_RANGE[1] // ticks_per_day
    failed = (shifted >= limit) | (shifted <= -limit)
    values = np.where(failed, 0, shifted) * ticks_per_day + within_day
    return outcome(values, nulls_of(*arguments), failed, result, f"{OVERFLOW} of {result}")


def _timestamp_add(arguments: tuple[Operand, ...], types: tuple[Type, ...], result: Type) -> Vector:
    left, right = (_long(a, t) for a, t in zip(arguments, types, strict=True))
    with np.errstate(over="ignore"):
        values = left + right
    failed = ((left ^ values) & (right ^ values)) < 0
    return outcome(values, nulls_of(*arguments), failed, result, f"{OVERFLOW} of {result}")


KERNELS: Mapping[str, Kernel] = {
    **{f"unix_{unit}": _on_longs(_divide_by(ticks)) for unit, ticks in _EPOCH_TICKS.items()},
    "unix_date": _on_longs(operator.pos),
    **{f"timestamp_{unit}": _from_epoch(ticks) for unit, ticks in _EPOCH_TICKS.items()},
    "date_from_unix_date": _from_epoch(1),
    **{name: _on_longs(part) for name, part in _DATE_PARTS.items()},
    "hour": _time_part("hour", 24),
    "minute": _time_part("minute", 60),
    "second": _time_part("second", 60),
    "date_trunc": _date_trunc,
    "trunc": _trunc,
    # a sum beyond 32 bits wraps around, as in Spark
    "date_add": _on_longs(operator.add),
    **dict.fromkeys(("date_sub", "datediff"), _on_longs(operator.sub)),
    "add_months": _add_months,
    "timestamp_add": _timestamp_add,
    "timestamp_add_months": _timestamp_add_months,
}
