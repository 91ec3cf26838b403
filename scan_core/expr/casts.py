"""Casts on columns, and functions of dates and timestamps: parts, truncation, shifting, epochs.

They mean what they mean in Spark's ANSI mode. Time zone UTC, proleptic Gregorian calendar.
"""

import operator
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from nevermore.scan_core.expr.coercion import (
    BYTES,
    FLOATING,
    INT,
    INT_RANGE,
    INTEGRAL,
    LONG_RANGE,
    TIMESTAMPS,
    decimal_of,
    name_of,
    value_of_text,
)
from nevermore.scan_core.expr.vectors import (
    OVERFLOW,
    Kernel,
    Operand,
    Vector,
    null_mask,
    nulls_of,
    operand_values,
    outcome,
    rounded_decimal,
    union,
    with_nulls,
)
from nevermore.scan_core.model.schema import Type, arrow_type
from nevermore.scan_core.model.statistics import text_of
from nevermore.scan_core.rows.buffers import Mask

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
    values = operand_values(operand, type_)
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
        return _multiplied(_long(arguments[0], types[0]), factor, nulls_of(arguments[0]), result)

    return kernel


def _multiplied(values: Any, factor: int, null: Mask | None, result: Type) -> Vector:
    limit = LONG_RANGE[1] // factor
    failed = (values > limit) | (values < -limit) if factor > 1 else None
    with np.errstate(over="ignore"):
        return outcome(values * factor, null, failed, result, f"{OVERFLOW} of {result}")


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


_WIDEST = pa.decimal256(76, 37)
_TOO_LARGE_FOR_DECIMAL, _TOO_SMALL_FOR_DECIMAL = 1e38, 1e-21


def timestamps_to_text(array: pa.Array, source: Type) -> pa.Array:
    """Spark's text of timestamps and times: fractions without trailing zeros."""
    target = arrow_type(source)
    naive = array.cast(pa.timestamp(target.unit)) if pa.types.is_timestamp(target) else array
    text = naive.cast(pa.string())
    text = pc.replace_substring_regex(text, pattern=r"(\.\d*?)0+Z?$", replacement=r"\1")
    return pc.replace_substring_regex(text, pattern=r"\.$", replacement="")


def cast(array: pa.Array, source: Type, target: Type) -> Vector:
    """Every value in the target type; NULL and failed where it has none."""
    names = name_of(source), name_of(target)
    if names[0] == "unknown":
        return Vector(pa.nulls(len(array), arrow_type(target)))
    if names[0] == "string":
        return _from_text(array, target)
    if names[0] in BYTES and names[1] == "string":
        return _text_of_bytes(array.cast(pa.binary()))
    if names[1] == "string":
        text = _to_text(array, source)
        if names[0] in TIMESTAMPS | {"date"}:  # years of more than four digits have a sign, as in ISO 8601
            text = pc.replace_substring_regex(text, pattern=r"^(\d{5,}-)", replacement=r"+\1")
        return Vector(text)
    if names[0] in TIMESTAMPS | {"date"}:
        return _from_moment(array, source, target)
    if names[0] in BYTES:
        return Vector(array.cast(arrow_type(target)))
    return _from_number(array, source, target)


def _text_of_bytes(array: pa.Array) -> Vector:
    """Bytes as text; values that are not UTF-8 fail."""
    try:
        return Vector(array.cast(pa.string()))
    except pa.ArrowInvalid as error:
        failed = np.array([value is not None and text_of(value) is None for value in array.to_pylist()])
        return Vector(with_nulls(array, failed).cast(pa.string()), failed, str(error).partition("\n")[0])


def _from_number(array: pa.Array, source: Type, target: Type) -> Vector:
    null = null_mask(array)
    if name_of(target) == "decimal":
        return _number_to_decimal(array, source, target, null)
    if name_of(source) == "decimal":
        return _decimal_to_number(array, source, target)
    values: Any = operand_values(array, source)
    if name_of(target) == "boolean":
        return outcome(values != 0, null, None, target, "")
    if name_of(target) in FLOATING:
        with np.errstate(over="ignore"):
            return outcome(
                values.astype(np.float32 if name_of(target) == "float" else np.float64), null, None, target, ""
            )
    low, high = INT_RANGE if name_of(target) == "int" else LONG_RANGE
    if name_of(source) in FLOATING:
        with np.errstate(invalid="ignore"):
            whole = np.trunc(values.astype(np.float64))
            failed = ~((whole >= float(low)) & (whole < float(high + 1)))
            values = np.where(failed, 0, whole).astype(np.int64)
    else:
        values = values.astype(np.int64)
        failed = (values < low) | (values > high)
    return outcome(values, null, failed, target, f"{OVERFLOW}: a {source} does not fit {target}")


def _number_to_decimal(array: pa.Array, source: Type, target: Type, null: Mask | None) -> Vector:
    if name_of(source) == "boolean":
        array, source = array.cast(pa.int32()), INT
    if name_of(source) in {"decimal"} | INTEGRAL:
        exact = array.cast(pa.decimal128(*decimal_of(source)))
        return rounded_decimal(exact.cast(pa.decimal256(*decimal_of(source))), null, target)
    values = operand_values(array, source)
    null = union(null, ~np.isfinite(values))  # Spark makes NaN and infinity NULL here
    too_large = np.isfinite(values) & (np.abs(values) >= _TOO_LARGE_FOR_DECIMAL)
    usable = np.where(np.isfinite(values) & ~too_large, values, 0).astype(np.float64)
    usable[np.abs(usable) < _TOO_SMALL_FOR_DECIMAL] = 0.0
    # Spark takes the digits of the shortest text of the double
    vector = rounded_decimal(pa.array(usable).cast(pa.string()).cast(_WIDEST), null, target)
    if not too_large.any():
        return vector
    return Vector(with_nulls(vector.values, too_large), union(vector.failed, too_large), f"{OVERFLOW} of {target}")


def _decimal_to_number(array: pa.Array, source: Type, target: Type) -> Vector:
    if name_of(target) in FLOATING:
        values = array.cast(pa.string()).cast(arrow_type(target))  # Arrow's direct cast is off by an ulp
        return Vector(values)
    if name_of(target) == "boolean":
        zero = pc.equal(array, pa.scalar(0, array.type))
        return Vector(pc.invert(zero))
    wide, scale = pa.decimal256(76, 0), decimal_of(source)[1]
    whole = pc.round(array.cast(pa.decimal256(76, scale)), ndigits=0, round_mode="towards_zero").cast(wide)
    low, high = INT_RANGE if name_of(target) == "int" else LONG_RANGE
    outside = pc.or_(pc.less(whole, pa.scalar(low, wide)), pc.greater(whole, pa.scalar(high, wide)))
    failed = np.asarray(pc.fill_null(outside, False))
    values = with_nulls(whole, failed).cast(arrow_type(target))
    return Vector(values, failed if failed.any() else None, f"{OVERFLOW}: a {source} does not fit {target}")


def _from_moment(array: pa.Array, source: Type, target: Type) -> Vector:
    null, values = nulls_of(array), operand_values(array, source).astype(np.int64)
    ticks, target_ticks = _ticks_per_micro(source), _ticks_per_micro(target)
    if name_of(target) == "date":
        return outcome(values // (DAY_MICROS * ticks), null, None, target, "")
    if ticks > target_ticks:
        return outcome(values // ticks, null, None, target, "")
    return _multiplied(
        values, DAY_MICROS * target_ticks if name_of(source) == "date" else target_ticks // ticks, null, target
    )


def _to_text(array: pa.Array, source: Type) -> pa.Array:
    match name_of(source):
        case "timestamp" | "timestamptz" | "timestamp_ns" | "timestamptz_ns" | "time":
            return timestamps_to_text(array, source)
        case "uuid":
            return uuid_text(array)
        case _:
            return array.cast(pa.string())


def uuid_text(array: pa.Array) -> pa.Array:
    """Sixteen-byte values as lower-case text with hyphens, NULL kept."""
    if not len(array):  # it may have no buffer
        return pa.array([], pa.string())
    data = array.buffers()[1][16 * array.offset : 16 * (array.offset + len(array))]
    digits = pa.Array.from_buffers(pa.binary(32), len(array), [None, pa.py_buffer(data.to_pybytes().hex().encode())])
    text = pc.replace_substring_regex(
        digits.cast(pa.binary()).cast(pa.string()), pattern="^(.{8})(.{4})(.{4})(.{4})", replacement=r"\1-\2-\3-\4-"
    )
    return with_nulls(text, null_mask(array))


def _from_text(array: pa.Array, target: Type) -> Vector:
    """Values from text: Arrow reads the usual notation, `value_of_text` every other, once per distinct text."""
    if name_of(target) == "binary":
        return Vector(array.cast(pa.binary()))
    present = np.asarray(array.is_valid())
    usual, values = np.zeros(len(array), np.bool_), pa.nulls(len(array), arrow_type(target))
    if name_of(target) in _USUAL:
        found = np.asarray(pc.fill_null(pc.match_substring_regex(array, pattern=_USUAL[name_of(target)]), False))
        with suppress(pa.ArrowInvalid):  # one of them is no value, such as February 30th
            usual, values = found, _usual_values(with_nulls(array, ~found), target)
    odd = present & ~usual
    if odd.any():
        texts = array.filter(pa.array(odd)).dictionary_encode()
        read = _array_of_values([value_of_text(text, target) for text in texts.dictionary.to_pylist()], target)
        values = pc.replace_with_mask(values, pa.array(odd), read.take(texts.indices))
    failed = present & ~np.asarray(values.is_valid())
    return Vector(values, failed, f"a string is not a valid {target}") if failed.any() else Vector(values)


_NUMBER, _MOMENT = r"^-?\d{1,18}(?:\.\d{1,18})?$", r"^\d{4}-\d\d-\d\d[ T]\d\d:\d\d:\d\d(?:\.\d{1,6})?$"
_USUAL = {
    "int": r"^-?\d{1,9}$",
    "long": r"^-?\d{1,18}$",
    **dict.fromkeys(("float", "double", "decimal"), _NUMBER),
    "date": r"^\d{4}-\d\d-\d\d$",
    **dict.fromkeys(TIMESTAMPS, _MOMENT),
}
"""The notations in which Arrow reads the same values as Spark."""


def _usual_values(text: pa.Array, target: Type) -> pa.Array:
    if name_of(target) == "decimal":
        return rounded_decimal(text.cast(_WIDEST), null_mask(text), target).values
    kind = arrow_type(target)
    if name_of(target) in TIMESTAMPS:
        return text.cast(pa.timestamp(kind.unit)).view(kind)
    return text.cast(kind)


def _array_of_values(values: list[Any], target: Type) -> pa.Array:
    kind = arrow_type(target)
    if not pa.types.is_temporal(kind):
        return pa.array(values, kind)
    return pa.array(values, pa.int32() if kind.bit_width == 32 else pa.int64()).view(kind)


def uuid_values(text: pa.Array, matched: Mask) -> pa.Array:
    """The 16 bytes of uuids in text, with hyphens or without; NULL where the text was not matched."""
    usable = text if matched.all() else pc.if_else(pa.array(matched), text, pa.scalar("0" * 32, text.type))
    digits = pc.replace_substring(usable, pattern="-", replacement="")
    joined = pc.binary_join(pa.ListArray.from_arrays(pa.array([0, len(text)], pa.int32()), digits), "")
    data = pa.py_buffer(bytes.fromhex(joined[0].as_py()))
    return with_nulls(pa.Array.from_buffers(pa.binary(16), len(text), [None, data]), ~matched)
