"""Casts taken off a column that is compared with constants: the constant moves into the column's type instead.

`cast(qty as long) > 3000000000` becomes a comparison of ints (here one that is never true): cheaper to evaluate, and
bounds of `qty` can prune it. Only for casts that keep order and lose nothing; NULL stays NULL.
"""

import decimal
import math
import struct
from collections.abc import Callable
from typing import Any

from scan_core.expr.bound import BoundExpr, Cast, Comparison, InSet, Literal
from scan_core.expr.coercion import FLOATING, TIMESTAMPS, decimal_of, name_of
from scan_core.expr.constants import MICROSECONDS_PER_DAY, round_to_float
from scan_core.expr.literals import INT_RANGE, LONG_RANGE
from scan_core.schema import Type

_EXACT_IN_DOUBLE = 2.0**53
_INVERSE_LIMITS = {"int": INT_RANGE, "long": LONG_RANGE, "date": INT_RANGE}

Floor = Callable[[Any], tuple[Any, bool]]
"""The largest value of the column's type that is at most the constant, and whether it equals it."""


def unwrap(node: BoundExpr) -> BoundExpr:
    """The comparison without the cast, where that is exact; otherwise the node itself."""
    match node:
        case Comparison(sign, Cast(operand, target), Literal(value)) if value is not None and sign != "<=>":
            return _unwrap_comparison(node, sign, operand, target, value)
        case Comparison(sign, operand, Literal(value, target)) if (
            value is not None and sign != "<=>" and name_of(operand.type) == "decimal" and operand.type != target
        ):
            return _unwrap_comparison(node, sign, operand, operand.type, value)
        case InSet(Cast(operand, target), values, has_null, False):
            return _unwrap_set(node, operand, target, values, has_null=has_null)
        case InSet(operand, values, has_null, False) if name_of(operand.type) == "decimal":
            return _unwrap_set(node, operand, operand.type, values, has_null=has_null)
        case _:
            return node


def _unwrap_comparison(node: BoundExpr, sign: str, operand: BoundExpr, target: Type, value: Any) -> BoundExpr:
    floor = _floor_for(operand.type, target, value)
    if floor is None:
        return node
    below, exact = floor(value)
    limits = _limits(operand.type)
    if below is None:  # smaller than every value of the type
        return _constant_result(sign in {">", ">=", "<>"}, operand, limits)
    if limits is not None and below > limits[1]:
        return _constant_result(sign in {"<", "<=", "<>"}, operand, limits)
    literal = Literal(below, operand.type)
    if exact or sign in {"<=", ">"}:
        return Comparison(sign, operand, literal)
    if sign in {"=", "<>"}:
        return _constant_result(sign == "<>", operand, limits)
    return Comparison("<=" if sign == "<" else ">", operand, literal)


def _constant_result(result: bool, operand: BoundExpr, limits: tuple[Any, Any] | None) -> BoundExpr:  # noqa: FBT001
    """True (or false) for every value, NULL for NULL."""
    if limits is None:  # floats: NaN is the largest value
        return Comparison("<=" if result else ">", operand, Literal(math.nan, operand.type))
    return Comparison("<=" if result else ">", operand, Literal(limits[1], operand.type))


def _unwrap_set(
    node: BoundExpr, operand: BoundExpr, target: Type, values: frozenset[Any], *, has_null: bool
) -> BoundExpr:
    kept = set()
    for value in values:
        floor = _floor_for(operand.type, target, value)
        if floor is None:
            return node
        below, exact = floor(value)
        limits = _limits(operand.type)
        if exact and below is not None and (limits is None or below <= limits[1]):
            kept.add(below)
    return InSet(operand, frozenset(kept), has_null)


def _limits(type_: Type) -> tuple[Any, Any] | None:
    name = name_of(type_)
    if name == "decimal":
        precision, scale = decimal_of(type_)
        largest = decimal.Decimal(10**precision - 1).scaleb(-scale)
        return -largest, largest
    if name in FLOATING:
        return None
    return _INVERSE_LIMITS.get(name, LONG_RANGE)


def _floor_for(source: Type, target: Type, value: Any) -> Floor | None:
    match name_of(source), name_of(target):
        case ("int" | "long", "int" | "long"):
            return _whole(source) if name_of(target) == "long" else None
        case ("int" | "long" as name, "decimal"):
            precision, scale = decimal_of(target)
            return _whole(source) if precision - scale >= len(str(_INVERSE_LIMITS[name][1])) else None
        case ("int", "double") | ("long", "double") if math.isfinite(value):
            return _whole(source) if name_of(source) == "int" or abs(value) < _EXACT_IN_DOUBLE else None
        case ("float", "double"):
            return _single_precision
        case ("decimal", "decimal"):
            (p1, s1), (p2, s2) = decimal_of(source), decimal_of(target)
            return _scaled(source) if p2 - s2 >= p1 - s1 and s2 >= s1 else None  # a narrowing cast rounds
        case "date", name if name in TIMESTAMPS:
            return _ticks(MICROSECONDS_PER_DAY * (1000 if name.endswith("_ns") else 1), INT_RANGE)
        case (one, other) if one in TIMESTAMPS and other in TIMESTAMPS:
            if other.endswith("_ns") and not one.endswith("_ns"):
                return _ticks(1000, LONG_RANGE)
            return _ticks(1, LONG_RANGE) if one.endswith("_ns") == other.endswith("_ns") else None
        case _:
            return None


def _whole(source: Type) -> Floor:
    low = _INVERSE_LIMITS[name_of(source)][0]

    def floor(value: Any) -> tuple[Any, bool]:
        below = math.floor(value)
        return (None, False) if below < low else (below, below == value)

    return floor


def _ticks(factor: int, limits: tuple[int, int]) -> Floor:
    def floor(value: Any) -> tuple[Any, bool]:
        below = value // factor
        return (None, False) if below < limits[0] else (below, below * factor == value)

    return floor


def _scaled(source: Type) -> Floor:
    precision, scale = decimal_of(source)

    def floor(value: decimal.Decimal) -> tuple[Any, bool]:
        with decimal.localcontext() as context:
            context.prec = 100
            below = value.quantize(decimal.Decimal(1).scaleb(-scale), rounding=decimal.ROUND_FLOOR)
            if below <= -(decimal.Decimal(10) ** (precision - scale)):
                return None, False
            return below, below == value

    return floor


def _single_precision(value: float) -> tuple[Any, bool]:
    if value != value:  # noqa: PLR0124  # NaN is the same in both
        return value, True
    nearest = round_to_float(value)
    if nearest > value:
        bits = struct.unpack("i", struct.pack("f", nearest))[0]
        if nearest == 0.0:
            return -(2.0**-149), False
        nearest = struct.unpack("f", struct.pack("i", bits - 1 if nearest > 0 else bits + 1))[0]
    return nearest, nearest == value
