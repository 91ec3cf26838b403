"""Domains of value expressions: columns by what is known of them, functions by where they are monotone.

A function that is monotone in each argument takes its extremes at the corners of its arguments' ranges, and if it does
not fail there, it fails nowhere between. The corners are evaluated by the kernels themselves.
"""

from collections.abc import Callable
from dataclasses import replace
from functools import lru_cache
from itertools import product
from typing import Any

from scan_core.expr.bound import BoundExpr, Call, Case, Cast, Coalesce, Column, Failure, Literal, Member
from scan_core.expr.coercion import FLOATING, INTEGRAL, TIMESTAMPS, name_of
from scan_core.expr.evaluate import constant_value
from scan_core.prune.domain import Domain, constant, union, unknown, without_null
from scan_core.schema import Type

Facts = Callable[[int, Type], Domain]
"""Field id of a column or struct member, and its type -> what is known of it."""

_NUMBERS = INTEGRAL | FLOATING | {"decimal"}
_MONOTONE_CASTS: dict[str, frozenset[str]] = {
    **dict.fromkeys(_NUMBERS, frozenset(_NUMBERS)),
    "boolean": frozenset(_NUMBERS),
    "date": frozenset(TIMESTAMPS),
    **dict.fromkeys(TIMESTAMPS, frozenset(TIMESTAMPS | {"date"})),
}
_MONOTONE = frozenset(
    {"+", "-", "*", "negative", "floor", "ceil", "year", "date_add", "date_sub", "add_months", "last_day", "datediff"}
    | {"timestamp_add", "timestamp_add_months", "date_trunc", "trunc", "left"}
    | {f"unix_{unit}" for unit in ("date", "seconds", "millis", "micros")}
    | {"timestamp_seconds", "timestamp_millis", "timestamp_micros", "date_from_unix_date"}
)
_RANGES = {
    "quarter": (1, 4),
    "month": (1, 12),
    "day": (1, 31),
    "dayofweek": (1, 7),
    "weekday": (0, 6),
    "dayofyear": (1, 366),
    "weekofyear": (1, 53),
    "hour": (0, 23),
    "minute": (0, 59),
    "second": (0, 59),
    "length": (0, None),
    "octet_length": (0, None),
    "size": (0, None),
}
_NEVER_FAIL = frozenset(_RANGES) | {
    *(
        "year",
        "date_trunc",
        "trunc",
        "last_day",
        "floor",
        "isnan",
        "lower",
        "upper",
        "length",
        "substr",
        "left",
        "right",
    ),
    *("trim", "ltrim", "rtrim", "reverse", "startswith", "endswith", "contains", "concat", "replace", "rlike", "size"),
    *("unix_date", "unix_seconds", "unix_millis", "unix_micros", "&", "|", "^", "~", "sqrt"),
    *("map_get", "array_contains", "map_contains_key"),
}


def domain_of(node: BoundExpr, facts: Facts, condition: Callable[[BoundExpr], tuple[bool, bool]]) -> Domain:
    """What values an expression may have.

    Args:
        node: an expression that is not one of the boolean forms `bounds.py` decides itself.
        facts: what is known of columns and struct members.
        condition: of a boolean expression, whether it can be true and whether it can be something else.
    """
    match node:
        case Column(field_id, _, type_):
            return facts(field_id, type_)
        case Member(_, field_id, _, _, type_):
            return facts(field_id, type_) if is_path(node) else unknown(type_)
        case Literal(value):
            return constant(value)
        case Failure(_, type_):
            return Domain(may_be_value=False, may_be_null=False, may_be_nan=False, may_fail=True)
        case Cast():
            return _cast(node, domain_of(node.operand, facts, condition))
        case Call():
            return _call(node, [domain_of(a, facts, condition) for a in node.arguments])
        case Coalesce(operands):
            parts = [domain_of(o, facts, condition) for o in operands]
            joined = union([*(without_null(d) for d in parts[:-1]), parts[-1]])
            return replace(joined, may_be_null=all(d.may_be_null for d in parts))
        case Case(branches, default):
            return _case(branches, default, facts, condition)
        case _:
            can_be_true, can_be_other = condition(node)
            return Domain(lower=not can_be_other, upper=can_be_true, may_be_nan=False, may_fail=True)


def is_path(node: BoundExpr) -> bool:
    """Is it a column, or a member of nothing but structs?"""
    while isinstance(node, Member):
        node = node.operand
    return isinstance(node, Column)


def _case(
    branches: tuple[tuple[BoundExpr, BoundExpr], ...],
    default: BoundExpr,
    facts: Facts,
    condition: Callable[[BoundExpr], tuple[bool, bool]],
) -> Domain:
    parts = []
    for test, value in branches:
        can_be_true, can_be_other = condition(test)
        if can_be_true:
            parts.append(domain_of(value, facts, condition))
        if not can_be_other:
            break
    else:
        parts.append(domain_of(default, facts, condition))
    return replace(union(parts), may_fail=True)


def _cast(node: Cast, below: Domain) -> Domain:
    source, target = name_of(node.operand.type), name_of(node.type)
    if source == "unknown":
        return constant(None)
    if target in _MONOTONE_CASTS.get(source, frozenset()):
        result = _at_corners(node, [below], lambda values: Cast(values[0], node.type, node.safe))
        if target not in FLOATING and below.may_be_nan:  # NaN has no counterpart
            result = replace(result, may_fail=True)
    else:
        result = unknown(node.type, may_fail=below.may_fail or target != "string")
        result = replace(result, may_be_null=below.may_be_null)
    if node.safe:
        return replace(result, may_be_null=result.may_be_null or result.may_fail, may_fail=below.may_fail)
    return result


def _call(node: Call, arguments: list[Domain]) -> Domain:
    function = node.function.removeprefix("try ")
    may_be_null = any(d.may_be_null for d in arguments)
    may_fail = any(d.may_fail for d in arguments) or function not in _NEVER_FAIL
    if function in {"map_get", "array_contains"}:
        may_be_null = True
    low, high = _RANGES.get(function, (None, None))
    result = Domain(low, high, may_be_null=may_be_null, may_be_nan=name_of(node.type) in FLOATING, may_fail=may_fail)
    is_prefix = function == "substr" and len(node.arguments) == 3 and arguments[1].only_value in {0, 1}
    if function in _MONOTONE or is_prefix or (function in {"/", "div"} and _has_one_sign(arguments[1])):
        result = _at_corners(node, arguments, lambda values: Call(node.function, values, node.type))
    if function == "isnan":
        (argument,) = arguments
        return Domain(
            not argument.may_be_value and not argument.may_be_null,
            argument.may_be_nan,
            may_be_null=False,
            may_be_nan=False,
            may_fail=argument.may_fail,
        )
    if node.function != function:  # a try form: NULL instead of a failure of its own
        failing = any(d.may_fail for d in arguments)
        return replace(result, may_be_null=result.may_be_null or result.may_fail, may_fail=failing)
    return result


def _has_one_sign(domain: Domain) -> bool:
    return (domain.lower is not None and domain.lower > 0) or (domain.upper is not None and domain.upper < 0)


def _at_corners(
    node: Cast | Call, arguments: list[Domain], build: Callable[[tuple[BoundExpr, ...]], BoundExpr]
) -> Domain:
    """The domain of a function that is monotone in each argument, from its values at the ends of their ranges."""
    may_be_null = any(d.may_be_null for d in arguments)
    floating = name_of(node.type) in FLOATING
    function = node.function.removeprefix("try ") if isinstance(node, Call) else ""
    may_fail = any(d.may_fail for d in arguments)
    if not all(d.may_be_anything_but_null for d in arguments):
        return Domain(may_be_value=False, may_be_null=may_be_null, may_be_nan=False, may_fail=may_fail)
    open_ended = replace(unknown(node.type), may_be_null=may_be_null, may_fail=may_fail or function not in _NEVER_FAIL)
    if any(d.may_be_value and (d.lower is None or d.upper is None) for d in arguments):
        return replace(open_ended, may_be_nan=floating)
    operands = node.arguments if isinstance(node, Call) else (node.operand,)
    found = []
    for corner in product(*(dict.fromkeys((d.lower, d.upper)) if d.may_be_value else (None,) for d in arguments)):
        if None in corner:  # an argument that is always NaN
            return replace(open_ended, may_be_nan=floating)
        literals = tuple(Literal(v, o.type) for v, o in zip(corner, operands, strict=True))
        result = _evaluated(build(literals))
        if not isinstance(result, Literal) or result.value is None or result.value != result.value:
            return open_ended
        found.append(result.value)
    infinite = floating and any(abs(v) == float("inf") for v in found)
    return Domain(
        min(found),
        max(found),
        may_be_null=may_be_null,
        may_be_nan=floating and (infinite or any(d.may_be_nan for d in arguments)),
        may_fail=may_fail or (not floating and any(d.may_be_nan for d in arguments)),
    )


@lru_cache(maxsize=65_536)
def _evaluated(node: BoundExpr) -> Any:
    return constant_value(node)
