"""Comparisons of one operand with constants, merged: ranges under AND, lists under OR.

Both keep NULL and failure as they are: all merged parts read the same operand, and are unknown on the same rows.
"""

from typing import Any

from scan_core.expr.bound import Between, BoundExpr, Comparison, InSet, Literal, Not
from scan_core.expr.coercion import FLOATING, is_primitive, name_of


def merge_and(operands: tuple[BoundExpr, ...]) -> tuple[BoundExpr, ...]:
    """Bounds on one operand become one Between, `<>` on one operand one NOT IN."""
    merged: dict[object, BoundExpr] = {}
    for operand in operands:
        bounds = _as_range(operand)
        excluded = _as_excluded(operand)
        if bounds is not None:
            key: object = ("range", bounds.operand)
            before = merged.get(key)
            merged[key] = bounds if before is None else _intersect(before, bounds)
        elif excluded is not None:
            key = ("not in", excluded.operand)
            before = merged.get(key)
            merged[key] = excluded if before is None else _union(before, excluded)
        else:
            merged[operand] = operand
    return tuple(_and_part(key, node) for key, node in merged.items())


def _and_part(key: object, node: BoundExpr) -> BoundExpr:
    if isinstance(key, tuple) and key[0] == "not in":
        assert isinstance(node, InSet)  # noqa: S101  # `merge_and` keeps nothing else under this key
        if len(node.values) == 1:
            return Comparison("<>", node.operand, Literal(next(iter(node.values)), node.operand.type))
        return Not(node)
    return _simplest(node)


def merge_or(operands: tuple[BoundExpr, ...]) -> tuple[BoundExpr, ...]:
    """Equalities and IN lists on one operand become one set."""
    merged: dict[object, BoundExpr] = {}
    for operand in operands:
        found = _as_set(operand)
        if found is None:
            merged[operand] = operand
            continue
        key = ("in", found.operand)
        before = merged.get(key)
        merged[key] = found if before is None else _union(before, found)
    return tuple(_or_part(node) for node in merged.values())


def _or_part(node: BoundExpr) -> BoundExpr:
    if isinstance(node, InSet) and len(node.values) == 1 and not node.has_null and not node.has_nan:
        return Comparison("=", node.operand, Literal(next(iter(node.values)), node.operand.type))
    return node


def _as_range(node: BoundExpr) -> Between | None:
    match node:
        case Between():
            return node
        case Comparison(sign, operand, Literal(value)) if _is_ordered(operand, value):
            match sign:
                case "=":
                    return Between(operand, value, value)
                case "<" | "<=":
                    return Between(operand, None, value, True, sign == "<=")
                case ">" | ">=":
                    return Between(operand, value, None, sign == ">=", True)
    return None


def _is_ordered(operand: BoundExpr, value: Any) -> bool:
    # NaN has no place in a range; booleans gain nothing
    return value is not None and value == value and is_primitive(operand.type) and name_of(operand.type) != "boolean"  # noqa: PLR0124


def _intersect(left: BoundExpr, right: BoundExpr) -> Between:
    assert isinstance(left, Between)  # noqa: S101  # kept under a range key
    assert isinstance(right, Between)  # noqa: S101
    lower, lower_in = _tighter((left.lower, left.lower_inclusive), (right.lower, right.lower_inclusive), highest=True)
    upper, upper_in = _tighter((left.upper, left.upper_inclusive), (right.upper, right.upper_inclusive), highest=False)
    return Between(left.operand, lower, upper, lower_in, upper_in)


def _tighter(left: tuple[Any, bool], right: tuple[Any, bool], *, highest: bool) -> tuple[Any, bool]:
    if left[0] is None or right[0] is None:
        return right if left[0] is None else left
    if left[0] == right[0]:
        return left[0], left[1] and right[1]
    return max(left, right, key=lambda b: b[0]) if highest else min(left, right, key=lambda b: b[0])


def _simplest(node: BoundExpr) -> BoundExpr:
    match node:
        case Between(operand, lower, None, inclusive):
            return Comparison(">=" if inclusive else ">", operand, Literal(lower, operand.type))
        case Between(operand, None, upper, _, inclusive):
            return Comparison("<=" if inclusive else "<", operand, Literal(upper, operand.type))
        case Between(operand, lower, upper, True, True) if lower == upper:
            return Comparison("=", operand, Literal(lower, operand.type))
        case _:
            return node


def _as_set(node: BoundExpr) -> InSet | None:
    match node:
        case InSet():
            return node
        case Comparison("=", operand, Literal(value)) if value is not None:
            if name_of(operand.type) in FLOATING and value != value:  # noqa: PLR0124
                return InSet(operand, frozenset(), has_nan=True)
            return InSet(operand, frozenset({value}))
        case _:
            return None


def _as_excluded(node: BoundExpr) -> InSet | None:
    match node:
        case Not(InSet(_, _, False) as found):
            return found
        case Comparison("<>", operand, Literal()):
            return _as_set(Comparison("=", operand, node.right))
        case _:
            return None


def _union(left: BoundExpr, right: BoundExpr) -> InSet:
    assert isinstance(left, InSet)  # noqa: S101  # kept under a set key
    assert isinstance(right, InSet)  # noqa: S101
    return InSet(
        left.operand, left.values | right.values, left.has_null or right.has_null, left.has_nan or right.has_nan
    )
