"""One shape for predicates: flat AND and OR, constants folded, NOT pushed down, ranges and lists merged, casts unwrapped."""

import math
from collections.abc import Callable
from decimal import Decimal
from typing import Any, TypeVar

from nevermore.scan_core.expr.bound import (
    BOOLEAN,
    And,
    Between,
    BoundExpr,
    Call,
    Case,
    Cast,
    Coalesce,
    Column,
    Comparison,
    Failure,
    InSet,
    IsNull,
    Literal,
    Not,
    Or,
    children,
    with_children,
)
from nevermore.scan_core.expr.coercion import (
    FLOATING,
    INT_RANGE,
    INTEGRAL,
    LONG_RANGE,
    MICROSECONDS_PER_DAY,
    TIMESTAMPS,
    decimal_constant,
    decimal_of,
    is_primitive,
    name_of,
    round_to_float,
)
from nevermore.scan_core.expr.kernels import constant_value
from nevermore.scan_core.model.schema import Type

P = TypeVar("P", Between, InSet)


def merge_and(operands: tuple[BoundExpr, ...]) -> tuple[BoundExpr, ...]:
    """Bounds on one operand become one Between."""
    return _merge(operands, _as_range, _intersect, _simplest)


def merge_or(operands: tuple[BoundExpr, ...]) -> tuple[BoundExpr, ...]:
    """Equalities and IN lists on one operand become one set."""
    return _merge(operands, _as_set, _union, _boolean_comparison)


def _merge(
    operands: tuple[BoundExpr, ...],
    read: Callable[[BoundExpr], P | None],
    join: Callable[[P, P], P],
    write: Callable[[P], BoundExpr],
) -> tuple[BoundExpr, ...]:
    """Join what `read` makes of operands about one expression, in the place of the first; keep the other operands."""
    parts: dict[BoundExpr, P] = {}
    order: list[tuple[BoundExpr, bool]] = []
    for operand in operands:
        part = read(operand)
        if part is None:
            order.append((operand, False))
        elif part.operand in parts:
            parts[part.operand] = join(parts[part.operand], part)
        else:
            parts[part.operand] = part
            order.append((part.operand, True))
    return tuple(write(parts[node]) if is_part else node for node, is_part in order)


def _as_range(node: BoundExpr) -> Between | None:
    match node:
        case Between():
            return node
        case Comparison(sign, operand, Literal(value, kind)) if kind == operand.type and _is_ordered(operand, value):
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


def _intersect(left: Between, right: Between) -> Between:
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
        case Comparison("=", operand, Literal(value, kind)) if kind == operand.type and value is not None:
            if name_of(operand.type) in FLOATING and value != value:  # noqa: PLR0124
                return InSet(operand, frozenset(), has_nan=True)
            return InSet(operand, frozenset({value}))
        case _:
            return None


def _union(left: InSet, right: InSet) -> InSet:
    return InSet(
        left.operand, left.values | right.values, left.has_null or right.has_null, left.has_nan or right.has_nan
    )


_EXACT_IN_DOUBLE = 2.0**53


def unwrap(node: BoundExpr) -> BoundExpr:
    """The comparison without the cast, where its constants are values of the operand's own type."""
    match node:
        case Comparison(sign, Cast(operand, target), Literal(value)):
            return _unwrapped(node, sign, operand, target, value)
        case Comparison(sign, operand, Literal(value, target)) if operand.type != target:  # decimals
            return _unwrapped(node, sign, operand, operand.type, value)
        case InSet(Cast(operand, target), values, has_null, False):
            found = [_exact_value(value, target, operand.type) for value in values]
            return node if None in found else InSet(operand, frozenset(found), has_null)
        case _:
            return node


def _unwrapped(node: BoundExpr, sign: str, operand: BoundExpr, target: Type, value: Any) -> BoundExpr:
    found = _exact_value(value, target, operand.type)
    is_fraction = name_of(operand.type) in INTEGRAL and isinstance(value, float | Decimal) and math.isfinite(value)
    if found is None and is_fraction and sign in {"<", "<=", ">", ">="}:
        # the whole numbers below a fraction are those up to the next whole number below it
        found = _exact_value(type(value)(math.floor(value)), target, operand.type)
        sign = "<=" if sign[0] == "<" else ">"
    return node if found is None else Comparison(sign, operand, Literal(found, operand.type))


def _exact_value(value: Any, target: Type, source: Type) -> Any:
    """The value of `source` that a cast to `target`, and no other value of it, makes `value`; None if there is none."""
    if value is None or value != value:  # noqa: PLR0124  # NaN differs from itself
        return None
    match name_of(source), name_of(target):
        case ("int" | "long" as name, "long" | "double" | "decimal" as other):
            low, high = INT_RANGE if name == "int" else LONG_RANGE
            if other == "double" and abs(value) >= _EXACT_IN_DOUBLE:
                return None
            if other == "decimal" and decimal_of(target)[0] - decimal_of(target)[1] < len(str(high)):
                return None  # a cast that can fail
            return int(value) if low <= value <= high and int(value) == value else None
        case ("float", "double"):
            return value if round_to_float(value) == value else None
        case ("decimal", "decimal"):
            (p1, s1), (p2, s2) = decimal_of(source), decimal_of(target)
            found = decimal_constant(value, source) if p1 - s1 <= p2 - s2 and s1 <= s2 else None  # others round
            return found if found == value else None
        case "date", name if name in TIMESTAMPS:
            days, rest = divmod(value, MICROSECONDS_PER_DAY * (1000 if name.endswith("_ns") else 1))
            return days if rest == 0 and INT_RANGE[0] <= days <= INT_RANGE[1] else None
        case (one, other) if {one, other} <= TIMESTAMPS:
            if one.endswith("_ns") == other.endswith("_ns"):
                return value
            return value // 1000 if other.endswith("_ns") and value % 1000 == 0 else None
        case _:
            return None


_TRUE, _FALSE, _NULL = Literal(True, BOOLEAN), Literal(False, BOOLEAN), Literal(None, BOOLEAN)
_FLIPPED = {"=": "=", "<>": "<>", "<": ">", "<=": ">=", ">": "<", ">=": "<=", "<=>": "<=>"}
_NEGATED = {"=": "<>", "<>": "=", "<": ">=", "<=": ">", ">": "<=", ">=": "<"}


def conjuncts_of(predicate: BoundExpr) -> tuple[BoundExpr, ...]:
    """The conjuncts of a predicate; none if it is true for every row."""
    node = normalize(predicate)
    parts = node.operands if isinstance(node, And) else (node,)
    return tuple(_as_filter(p) for p in parts if p != _TRUE)


def _as_filter(node: BoundExpr) -> BoundExpr:
    """A conjunct, whose NULL counts as false."""
    match node:
        case Literal(None):
            return _FALSE
        case Comparison("<=>", left, Literal(value) as right) if value is not None:
            return Comparison("=", left, right)
        case InSet(operand, values, True, has_nan):
            return _simplify(InSet(operand, values, has_null=False, has_nan=has_nan))
        case _:
            return node


def normalize(node: BoundExpr) -> BoundExpr:
    """The same expression, simplified from the leaves up."""
    match node:
        case And(operands):
            return _flat(And, [normalize(o) for o in operands])
        case Or(operands):
            return _flat(Or, [normalize(o) for o in operands])
        case Not(operand):
            return _negate(normalize(operand))
        case Column() | Literal() | Failure():
            return node
        case _:
            return _simplify(with_children(node, tuple(map(normalize, children(node)))))


def _simplify(node: BoundExpr) -> BoundExpr:  # noqa: C901  # a flat case per rule
    parts = children(node)
    if all(isinstance(p, Literal) for p in parts):
        return constant_value(node)
    match node:
        case Comparison("<=>", left, Literal(None)) | Comparison("<=>", Literal(None), left):
            return IsNull(left)
        case Comparison("<=>", left, right) if left == right:
            return _TRUE
        # as in Spark, NULL also where the other side would fail
        case Comparison(_, _, Literal(None)) | Comparison(_, Literal(None)):
            return _NULL
        case InSet(_, values, True, False) if not values:
            return _NULL
        case Call() if any(isinstance(p, Literal) and p.value is None for p in parts):
            return Literal(None, node.type)
        case Comparison(sign, Literal() as left, right):
            return _simplify(Comparison(_FLIPPED[sign], right, left))
        case Comparison() | InSet() | Between():
            return _boolean_comparison(unwrap(node))
        case Case():
            return _shorter_case(node)
        case Coalesce():
            return _shorter_coalesce(node)
        case _:
            return node


def _boolean_comparison(node: BoundExpr) -> BoundExpr:
    match node:
        case Comparison("=", left, Literal(True)):
            return left
        case Comparison("=", left, Literal(False)):
            return _negate(left)
        case InSet(operand, values, False, False) if len(values) == 1:
            return Comparison("=", operand, Literal(next(iter(values)), operand.type))
        case _:
            return node


def _shorter_case(node: Case) -> BoundExpr:
    branches = []
    default = node.default
    for condition, value in node.branches:
        if condition in {_FALSE, _NULL}:
            continue
        if condition == _TRUE:
            default = value
            break
        branches.append((condition, value))
    while branches and branches[-1][1] == default:
        branches.pop()
    return Case(tuple(branches), default, node.type) if branches else default


def _shorter_coalesce(node: Coalesce) -> BoundExpr:
    kept: list[BoundExpr] = []
    for operand in node.operands:
        if isinstance(operand, Literal) and operand.value is None:
            continue
        kept.append(operand)
        if isinstance(operand, Literal):
            break
    if len(kept) == 1:
        return kept[0]
    return Coalesce(tuple(kept), node.type) if kept else node


NEVER_FAILING_CALLS = frozenset((
    "lower", "upper", "trim", "ltrim", "rtrim", "reverse", "length", "octet_length", "substr", "left", "right", "concat",
    "replace", "startswith", "endswith", "contains", "rlike", "year", "quarter", "month", "day", "dayofweek", "weekday",
    "dayofyear", "weekofyear", "hour", "minute", "second", "trunc", "last_day", "unix_date", "unix_seconds", "unix_millis",
    "unix_micros", "isnan", "array_contains", "map_contains_key", "map_get", "size",
))  # fmt: skip
"""Functions that have a value, or NULL, for all arguments."""
_NEVER_FAILING_CASTS = frozenset((
    ("timestamp", "date"), ("timestamptz", "date"), ("int", "long"), ("int", "double"), ("float", "double"),
    ("int", "string"), ("long", "string"), ("date", "string"), ("boolean", "string"),
))  # fmt: skip


def may_fail(node: BoundExpr) -> bool:
    """Whether evaluating it might fail on some row: unless it is known not to."""
    match node:
        case Failure():
            return True
        case Call(name) if name not in NEVER_FAILING_CALLS:
            return True
        case Cast(operand, kind, safe) if (
            not safe and (name_of(operand.type), name_of(kind)) not in _NEVER_FAILING_CASTS
        ):
            return True
        case _:
            return any(may_fail(child) for child in children(node))


def _flat(kind: type[And] | type[Or], operands: list[BoundExpr]) -> BoundExpr:
    absorbing, neutral = (_FALSE, _TRUE) if kind is And else (_TRUE, _FALSE)
    flat: dict[BoundExpr, None] = {}
    for operand in operands:
        for part in operand.operands if isinstance(operand, kind) else (operand,):
            if part == absorbing:
                return absorbing
            if part != neutral:
                flat[part] = None
    merged = (merge_and if kind is And else merge_or)(tuple(flat))
    if not merged:
        return neutral
    if absorbing in merged:
        return absorbing
    if len(merged) == 1:
        return merged[0]
    return And(merged) if kind is And else _factored(merged)


def _factored(operands: tuple[BoundExpr, ...]) -> BoundExpr:
    """An OR. What all operands demand becomes a condition of its own, by which files and rows are excluded first."""
    parts = [dict.fromkeys(o.operands if isinstance(o, And) else (o,)) for o in operands]
    common = [part for part in parts[0] if all(part in other for other in parts)]
    if not common or any(map(may_fail, operands)):
        return Or(operands)
    rest = [_flat(And, [part for part in own if part not in common]) for own in parts]
    return _flat(And, [*common, _flat(Or, rest)])


def _negate(node: BoundExpr) -> BoundExpr:
    match node:
        case Literal(value):
            return _NULL if value is None else Literal(not value, BOOLEAN)
        case Not(operand):
            return operand
        case And(operands):
            return _flat(Or, [_negate(o) for o in operands])
        case Or(operands):
            return _flat(And, [_negate(o) for o in operands])
        case Comparison(sign, left, right) if sign in _NEGATED:
            return Comparison(_NEGATED[sign], left, right)
        case Between(operand, lower, upper, lower_inclusive, upper_inclusive) if lower is None or upper is None:
            if lower is None:
                return Between(operand, upper, None, not upper_inclusive, True)
            return Between(operand, None, lower, True, not lower_inclusive)
        case Failure():
            return node
        case _:
            return Not(node)
