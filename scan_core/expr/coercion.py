"""Which types meet in which: Spark's ANSI rules, on Iceberg's types.

Iceberg's `timestamp` is Spark's TIMESTAMP_NTZ, `timestamptz` its TIMESTAMP with session time zone UTC.
"""

from scan_core.expr.literals import MAX_PRECISION
from scan_core.schema import PrimitiveType, Type

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
    """Is it int, long, float, double or decimal?"""
    return name_of(type_) in INTEGRAL | FLOATING | {"decimal"}


def is_primitive(type_: Type) -> bool:
    """Does it hold single values that can be compared?"""
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
    """Spark's result type of decimal arithmetic: beyond 38 digits the scale gives way, down to 6."""
    if precision <= MAX_PRECISION:
        return decimal_type(precision, scale)
    integral = precision - scale
    return decimal_type(MAX_PRECISION, max(MAX_PRECISION - integral, min(scale, MIN_ADJUSTED_SCALE)))


def common_type(left: Type, right: Type) -> Type | None:
    """The type in which two values are compared or put into one column; None if there is none.

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
    return other


_CASTS_FROM: dict[str, frozenset[str]] = {
    "boolean": frozenset({"int", "long", "float", "double", "decimal", "string"}),
    "int": frozenset({"boolean", "int", "long", "float", "double", "decimal", "string"}),
    "long": frozenset({"boolean", "int", "long", "float", "double", "decimal", "string"}),
    "float": frozenset({"boolean", "int", "long", "float", "double", "decimal"}),
    "double": frozenset({"boolean", "int", "long", "float", "double", "decimal"}),
    "decimal": frozenset({"boolean", "int", "long", "float", "double", "decimal", "string"}),
    "string": frozenset({"boolean", "int", "long", "float", "double", "decimal", "date", "time", "uuid", "binary"})
    | TIMESTAMPS,
    "date": frozenset({"string"}) | TIMESTAMPS,
    "time": frozenset({"string"}),
    "uuid": frozenset({"string"}),
    "binary": frozenset({"string", "binary"}),
    "fixed": frozenset({"string", "binary"}),
    **dict.fromkeys(TIMESTAMPS, frozenset({"date", "string"}) | TIMESTAMPS),
}


def can_cast(source: Type, target: Type) -> bool:
    """Does the engine evaluate this cast (with Spark's ANSI meaning)?"""
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
