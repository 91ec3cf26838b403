"""Implicit conversion of constants and expressions to the type that an operator needs."""

import decimal
import re
import struct
from typing import Any

from scan_core.expr.bound import BoundExpr, Cast, Literal
from scan_core.expr.coercion import BYTES, TIMESTAMPS, name_of
from scan_core.expr.literals import INT_RANGE, LONG_RANGE, literal_text, parse_text
from scan_core.schema import PrimitiveType, Type

INTEGER_TEXT = r"^\s*[+-]?\d+\s*$"
FLOAT_TEXT = r"^\s*(?:[+-]?(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?[dDfF]?|[+-]?(?i:inf|infinity)|(?i:nan))\s*$"
TRUE_TEXTS = frozenset({"t", "true", "y", "yes", "1"})
FALSE_TEXTS = frozenset({"f", "false", "n", "no", "0"})
MICROSECONDS_PER_DAY = 86_400_000_000

_INTEGER, _FLOAT = re.compile(INTEGER_TEXT), re.compile(FLOAT_TEXT)


class ConversionError(ValueError):
    """A constant that has no value in the type it must take."""


def coerce(node: BoundExpr, target: Type) -> BoundExpr:
    """The expression in the target type: constants are converted, everything else is cast.

    Raises:
        ConversionError: a constant without a value in that type.
    """
    if node.type == target:
        return node
    if isinstance(node, Literal):
        return Literal(convert_constant(node.value, node.type, target), target)
    return Cast(node, target)


def convert_constant(value: Any, source: Type, target: Type) -> Any:
    """A value of one type in another, as a cast would give it.

    Raises:
        ConversionError: there is none.
    """
    if value is None or source == target:
        return value
    converted = _from_text(value, target) if name_of(source) == "string" else _from_value(value, source, target)
    if converted is None:
        raise ConversionError(f"{literal_text(value, source)} is no {target}")
    return converted


def round_to_float(value: float) -> float:
    """The nearest single-precision number."""
    try:
        return float(struct.unpack("f", struct.pack("f", value))[0])
    except OverflowError:
        return float("inf") if value > 0 else float("-inf")


def _from_text(text: str, target: Type) -> Any:
    match name_of(target):
        case "int" | "long" as name:
            number = int(text) if _INTEGER.match(text) else None
            low, high = INT_RANGE if name == "int" else LONG_RANGE
            return number if number is not None and low <= number <= high else None
        case "float" | "double" as name:
            if not _FLOAT.match(text):
                return None
            number_text = (
                text.strip()
                if text.strip()[-1:].lower() in "fy" and "inf" in text.lower()
                else text.strip().rstrip("dDfF")
            )
            return round_to_float(float(number_text)) if name == "float" else float(number_text)
        case "boolean":
            folded = text.strip().lower()
            return True if folded in TRUE_TEXTS else False if folded in FALSE_TEXTS else None
        case "binary" | "fixed":
            return text.encode()
        case "date" | "time" | "uuid" | "timestamp" | "timestamptz" | "timestamp_ns" | "timestamptz_ns" as name:
            return parse_text(text, name)
        case _:
            return None


def _from_value(value: Any, source: Type, target: Type) -> Any:  # one flat case per pair of types
    match name_of(source), name_of(target):
        case ("int" | "long", "int" | "long" as name):
            low, high = INT_RANGE if name == "int" else LONG_RANGE
            return value if low <= value <= high else None
        case ("int" | "long" | "decimal", "decimal"):
            return decimal_constant(decimal.Decimal(value), target)
        case ("int" | "long" | "decimal" | "float" | "double", "double"):
            return float(value)
        case ("int" | "long" | "decimal" | "double", "float"):
            return round_to_float(float(value))
        case "date", name if name in TIMESTAMPS:
            return _in_long(value * MICROSECONDS_PER_DAY * (1000 if name.endswith("_ns") else 1))
        case (one, other) if one in TIMESTAMPS and other in TIMESTAMPS:
            ratio = (1000 if other.endswith("_ns") else 1, 1000 if one.endswith("_ns") else 1)
            return _in_long(value * ratio[0] // ratio[1])
        case (one, other) if one in BYTES and other in BYTES:
            return value
        case _:
            return None


def decimal_constant(value: decimal.Decimal, target: Type) -> decimal.Decimal | None:
    """The value rounded half up to the scale of a decimal type; None if its digits do not fit."""
    assert isinstance(target, PrimitiveType)  # noqa: S101  # callers matched the name "decimal"
    precision, scale = target.parameters
    with decimal.localcontext() as context:
        context.prec = 100
        rounded = value.quantize(decimal.Decimal(1).scaleb(-scale), rounding=decimal.ROUND_HALF_UP)
        return rounded if abs(rounded) < decimal.Decimal(10) ** (precision - scale) else None


def _in_long(value: int) -> int | None:
    return value if LONG_RANGE[0] <= value <= LONG_RANGE[1] else None
