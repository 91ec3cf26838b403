"""Spark's ANSI rules of type coercion on Iceberg's types, and implicit conversion of constants."""

import decimal
import re
import struct
import unicodedata
from typing import Any

from nevermore.scan_core.expr.bound import BoundExpr, Cast, Literal
from nevermore.scan_core.expr.literals import INT_RANGE, LONG_RANGE, MAX_PRECISION, literal_text, parse_text
from nevermore.scan_core.model.schema import PrimitiveType, Type

BOOLEAN = PrimitiveType("boolean")
INT = PrimitiveType("int")
LONG = PrimitiveType("long")
FLOAT = PrimitiveType("float")
DOUBLE = PrimitiveType("double")
STRING = PrimitiveType("string")
BINARY = PrimitiveType("binary")
DATE = PrimitiveType("date")
TIME = PrimitiveType("time")
TIMESTAMP = PrimitiveType("timestamp")
TIMESTAMPTZ = PrimitiveType("timestamptz")
UNKNOWN = PrimitiveType("unknown")

INTEGRAL = frozenset({"int", "long"})
FLOATING = frozenset({"float", "double"})
TIMESTAMPS = frozenset({"timestamp", "timestamptz", "timestamp_ns", "timestamptz_ns"})
BYTES = frozenset({"binary", "fixed"})
MIN_ADJUSTED_SCALE = 6
"""Spark keeps at least this many fraction digits when a decimal result does not fit 38."""

_INTEGER_DIGITS = {"int": 10, "long": 20}


def name_of(type_: Type) -> str:
    """The name of a primitive type; struct, list or map otherwise."""
    return type_.name if isinstance(type_, PrimitiveType) else type(type_).__name__.removesuffix("Type").lower()


def is_numeric(type_: Type) -> bool:
    """Whether the type is int, long, float, double or decimal."""
    return name_of(type_) in INTEGRAL | FLOATING | {"decimal"}


def is_primitive(type_: Type) -> bool:
    """Whether the type holds single values that can be compared."""
    return isinstance(type_, PrimitiveType)


def decimal_of(type_: Type) -> tuple[int, int]:
    """Precision and scale that hold every value of an integral or decimal type."""
    if isinstance(type_, PrimitiveType) and type_.name == "decimal":
        precision, scale = type_.parameters
        return precision, scale
    return _INTEGER_DIGITS[name_of(type_)], 0


def decimal_type(precision: int, scale: int) -> PrimitiveType:
    """A decimal type."""
    return PrimitiveType("decimal", (precision, scale))


def adjusted_decimal(precision: int, scale: int) -> PrimitiveType:
    """Spark's result type of decimal arithmetic: beyond 38 digits the scale is reduced, but not below 6."""
    if precision <= MAX_PRECISION:
        return decimal_type(precision, scale)
    integral = precision - scale
    return decimal_type(MAX_PRECISION, max(MAX_PRECISION - integral, min(scale, MIN_ADJUSTED_SCALE)))


def common_type(left: Type, right: Type) -> Type | None:
    """The common type in which two values are compared or stored in one column; None if they have none.

    Decimals widen to hold both exactly where 38 digits suffice.
    """
    if left == right:
        return left
    names = {name_of(left), name_of(right)}
    if "unknown" in names:
        return right if name_of(left) == "unknown" else left
    if not is_primitive(left) or not is_primitive(right):
        return None
    if is_numeric(left) and is_numeric(right):
        return _common_number(left, right, names)
    if "string" in names:
        return _with_string(right if name_of(left) == "string" else left)
    if names <= TIMESTAMPS | {"date"}:
        zoned = "tz" if any("tz" in n for n in names) else ""
        return PrimitiveType(f"timestamp{zoned}{'_ns' if any(n.endswith('_ns') for n in names) else ''}")
    return BINARY if names <= BYTES else None


def _common_number(left: Type, right: Type, names: set[str]) -> Type:
    if names & FLOATING:
        return FLOAT if names == {"float"} else DOUBLE
    if "decimal" not in names:
        return LONG
    (left_precision, left_scale), (right_precision, right_scale) = decimal_of(left), decimal_of(right)
    scale = max(left_scale, right_scale)
    integral = max(left_precision - left_scale, right_precision - right_scale)
    if integral + scale > MAX_PRECISION:  # integral digits are worth more than fraction digits
        scale = max(0, MAX_PRECISION - integral)
    return decimal_type(min(MAX_PRECISION, integral + scale), scale)


def _with_string(other: Type) -> Type:
    if name_of(other) in INTEGRAL:
        return LONG
    if name_of(other) in FLOATING | {"decimal"}:
        return DOUBLE
    return BINARY if name_of(other) == "fixed" else other


_TRUTH_AND_NUMBERS = INTEGRAL | FLOATING | {"boolean", "decimal"}
_CASTS_FROM: dict[str, frozenset[str]] = {
    **dict.fromkeys(("boolean", *INTEGRAL, "decimal"), _TRUTH_AND_NUMBERS | {"string"}),
    **dict.fromkeys(FLOATING, _TRUTH_AND_NUMBERS),
    "string": _TRUTH_AND_NUMBERS | TIMESTAMPS | {"date", "time", "uuid", "binary"},
    "date": TIMESTAMPS | {"string"},
    **dict.fromkeys(("time", "uuid"), frozenset({"string"})),
    **dict.fromkeys(BYTES, frozenset({"string", "binary"})),
    **dict.fromkeys(TIMESTAMPS, TIMESTAMPS | {"date", "string"}),
}


def can_cast(source: Type, target: Type) -> bool:
    """Whether the engine evaluates this cast (with Spark's ANSI meaning)."""
    if source == target or name_of(source) == "unknown":
        return True
    return name_of(target) in _CASTS_FROM.get(name_of(source), frozenset())


def arithmetic_type(operator: str, left: Type, right: Type) -> Type:
    """The result type of + - * / % on numbers, and of div (always long)."""
    names = {name_of(left), name_of(right)}
    if operator == "div":
        return LONG
    if names & FLOATING:
        return FLOAT if names == {"float"} and operator != "/" else DOUBLE
    if "decimal" not in names:
        return DOUBLE if operator == "/" else (LONG if "long" in names else INT)
    (p1, s1), (p2, s2) = decimal_of(left), decimal_of(right)
    match operator:
        case "+" | "-":
            scale = max(s1, s2)
            return adjusted_decimal(max(p1 - s1, p2 - s2) + scale + 1, scale)
        case "*":
            return adjusted_decimal(p1 + p2 + 1, s1 + s2)
        case "/":
            scale = max(MIN_ADJUSTED_SCALE, s1 + p2 + 1)
            return adjusted_decimal(p1 - s1 + s2 + scale, scale)
        case _:
            scale = max(s1, s2)
            return adjusted_decimal(min(p1 - s1, p2 - s2) + scale, scale)


_INTEGER = re.compile(r"[+-]?\d+", re.ASCII)
_FLOAT = re.compile(
    r"([+-]?(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?)[dDfF]?|[+-]?(?:inf|infinity)|nan", re.ASCII | re.IGNORECASE
)
_DECIMAL = re.compile(r"[+-]?(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?", re.ASCII)
_DIGITS = {c: str(unicodedata.decimal(chr(c))) for c in range(128, 0x10000) if chr(c).isdecimal()}
"""Decimal digits of all scripts, which Java's decimals know, but not its integers."""
_TRUE_TEXTS = frozenset({"t", "true", "y", "yes", "1"})
_FALSE_TEXTS = frozenset({"f", "false", "n", "no", "0"})
_SPACES = "".join(map(chr, range(33))) + "\x7f"
MICROSECONDS_PER_DAY = 86_400_000_000


class ConversionError(ValueError):
    """A constant that has no value in the type it must take."""


def coerce(node: BoundExpr, target: Type) -> BoundExpr:
    """The expression in the target type: constants are converted, everything else is cast.

    Raises:
        ConversionError: a constant without a value in that type, or no such cast.
    """
    if isinstance(node, Literal) and node.type != target:
        return Literal(convert_constant(node.value, node.type, target), target)
    return cast_to(node, target)


def cast_to(node: BoundExpr, target: Type, *, safe: bool = False) -> BoundExpr:
    """A cast of the expression, unless it has the type already.

    Raises:
        ConversionError: the engine has no such cast.
    """
    if node.type == target:
        return node
    if not can_cast(node.type, target):
        raise ConversionError(f"a cast from {node.type} to {target} is not supported in a filter")
    # Spark's text may be any bytes, ours is UTF-8: other bytes fail also in try_cast, which is NULL for none of them
    return Cast(node, target, safe and name_of(node.type) not in BYTES)


def convert_constant(value: Any, source: Type, target: Type) -> Any:
    """A value of one type in another, as a cast would give it.

    Raises:
        ConversionError: there is no such type.
    """
    if value is None or source == target:
        return value
    converted = value_of_text(value, target) if name_of(source) == "string" else _from_value(value, source, target)
    if converted is None:
        raise ConversionError(f"{literal_text(value, source)} is not a valid {target}")
    return converted


def round_to_float(value: float) -> float:
    """The nearest single-precision number."""
    try:
        return float(struct.unpack("f", struct.pack("f", value))[0])
    except OverflowError:
        return float("inf") if value > 0 else float("-inf")


def value_of_text(text: str, target: Type) -> Any:
    """The value that Spark reads from text in a cast; None if it has none."""
    if name_of(target) == "binary":
        return text.encode()
    text = text.strip(_SPACES)
    match name_of(target):
        case "int" | "long" as name:
            low, high = INT_RANGE if name == "int" else LONG_RANGE
            # longer numbers than Python takes are out of range, too
            number = int(text) if _INTEGER.fullmatch(text) and len(text.lstrip("+-0")) < 20 else None
            return number if number is not None and low <= number <= high else None
        case "float" | "double" as name:
            if (found := _FLOAT.fullmatch(text)) is None:
                return None
            exact = float(found[1] or text)
            return round_to_float(exact) if name == "float" else exact
        case "decimal":
            text = text.translate(_DIGITS)
            try:
                return decimal_constant(decimal.Decimal(text), target) if _DECIMAL.fullmatch(text) else None
            except ArithmeticError:  # beyond what decimals hold
                return None
        case "boolean":
            folded = text.lower()
            return True if folded in _TRUE_TEXTS else False if folded in _FALSE_TEXTS else None
        case name:
            return parse_text(text, name)


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
    precision, scale = decimal_of(target)
    with decimal.localcontext() as context:
        context.prec = 100
        rounded = value.quantize(decimal.Decimal(1).scaleb(-scale), rounding=decimal.ROUND_HALF_UP)
        return rounded if abs(rounded) < decimal.Decimal(10) ** (precision - scale) else None


def _in_long(value: int) -> int | None:
    return value if LONG_RANGE[0] <= value <= LONG_RANGE[1] else None
