"""Statistics of columns as files and manifests state them, and Iceberg's binary serialisation of single values."""

import decimal
import struct
from dataclasses import dataclass
from typing import Any

from nevermore.scan_core.model.schema import PrimitiveType, Type

_MICROS_PER_DAY = 86_400_000_000
_INTEGERS = frozenset({"int", "long", "date", "time", "timestamp", "timestamptz", "timestamp_ns", "timestamptz_ns"})
NARROW = frozenset({"int", "date"})
"""Types of 32 bits."""
TICKS_PER_DAY = {
    "timestamp": _MICROS_PER_DAY,
    "timestamptz": _MICROS_PER_DAY,
    "timestamp_ns": _MICROS_PER_DAY * 1000,
    "timestamptz_ns": _MICROS_PER_DAY * 1000,
}


def text_of(data: bytes) -> str | None:
    """Bytes as text; None if they are not UTF-8, as a bound that was cut inside of a character."""
    try:
        return data.decode()
    except UnicodeDecodeError:
        return None


def decode_bound(data: bytes | None, iceberg_type: Type) -> Any:
    """The value of a bound in the given, current type; None if the bytes are absent, NaN, or do not decode."""
    if data is None or not isinstance(iceberg_type, PrimitiveType):
        return None
    name = iceberg_type.name
    if name in _INTEGERS:
        return _decode_integer(data, name)
    match name:
        case "string":
            return text_of(data)
        case "float" | "double":
            return _decode_float(data)
        case "decimal":
            return _decode_decimal(data, iceberg_type.parameters[1])
        case "boolean":
            return data != b"\0" if len(data) == 1 else None
        case "uuid":
            return data if len(data) == 16 else None
        case "fixed" | "binary":
            return data
        case _:
            return None


def decimal_of(unscaled: int, scale: int) -> decimal.Decimal:
    """The number unscaled x 10 ** -scale, exact regardless of the precision of the decimal context."""
    digits = tuple(int(c) for c in str(abs(unscaled)))
    return decimal.Decimal((int(unscaled < 0), digits, -scale))


def unscaled_value(value: decimal.Decimal, scale: int) -> int:
    """The integer value x 10 ** scale; ValueError if it is not an integer."""
    sign, digits, exponent = value.as_tuple()
    if not isinstance(exponent, int):
        raise ValueError(f"{value} is not a number")  # noqa: TRY004 - NaN and infinity are of the right type
    unscaled = int("".join(map(str, digits)))
    shift = exponent + scale
    if shift >= 0:
        unscaled *= 10**shift
    else:
        unscaled, rest = divmod(unscaled, 10**-shift)
        if rest:
            raise ValueError(f"{value} has more than {scale} digits after the point")
    return int(-unscaled if sign else unscaled)


def _decode_integer(data: bytes, name: str) -> int | None:
    if len(data) not in {4, 8}:
        return None
    value = int.from_bytes(data, "little", signed=True)
    if len(data) == 4:
        value *= TICKS_PER_DAY.get(name, 1)  # a timestamp of 4 bytes was written as date
    bits = 31 if name in NARROW else 63
    return value if -(1 << bits) <= value < 1 << bits else None


def _decode_float(data: bytes) -> float | None:
    if len(data) not in {4, 8}:
        return None
    value = float(struct.unpack("<f" if len(data) == 4 else "<d", data)[0])
    return None if value != value else value  # noqa: PLR0124 - NaN is the value that differs from itself


def _decode_decimal(data: bytes, scale: int) -> decimal.Decimal | None:
    if not 0 < len(data) <= 32:
        return None
    return decimal_of(int.from_bytes(data, "big", signed=True), scale)


@dataclass(frozen=True, slots=True)
class ColumnStatistics:
    """Known facts about the values of one column in a row group, page or file.

    Bounds are Python values: bool, int, float, str, bytes (binary, fixed, uuid), `decimal.Decimal`; dates as int days,
    times and timestamps as int in the unit of the type; None where unknown. A FileReader gives them in the file's
    type; `prune/` promotes them to the table's. Bounds may be loose (truncated strings):
    `lower <= every non-null, non-NaN value <= upper` is all they promise.
    """

    lower: Any = None
    upper: Any = None
    null_count: int | None = None
    nan_count: int | None = None
    value_count: int | None = None
