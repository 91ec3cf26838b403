"""One shape for predicates: flat AND and OR, constants folded, NOT pushed down, ranges and lists merged, casts unwrapped."""

import decimal
import math
import struct
from collections.abc import Callable
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
    MICROSECONDS_PER_DAY,
    TIMESTAMPS,
    decimal_of,
    is_primitive,
    name_of,
    round_to_float,
)
from nevermore.scan_core.expr.evaluate import constant_value
from nevermore.scan_core.expr.literals import INT_RANGE, LONG_RANGE
from nevermore.scan_core.model.schema import Type

P = TypeVar("P", Between, InSet)


def merge_and(operands: tuple[BoundExpr, ...]) -> tuple[BoundExpr, ...]:
    """Bounds on one operand become one Between, `<>` on one operand one NOT IN."""
    return _merge(_merge(operands, _as_range, _intersect, _simplest), _as_excluded, _union, _without)


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


def _without(excluded: InSet) -> BoundExpr:
    if len(excluded.values) == 1 and not excluded.has_nan:
        return Comparison("<>", excluded.operand, Literal(next(iter(excluded.values)), excluded.operand.type))
    return Not(excluded)


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


def _union(left: InSet, right: InSet) -> InSet:
    return InSet(
        left.operand, left.values | right.values, left.has_null or right.has_null, left.has_nan or right.has_nan
    )


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


_NEVER_FAILING_CALLS = frozenset((
    "lower", "upper", "trim", "ltrim", "rtrim", "reverse", "length", "octet_length", "startswith", "endswith", "contains",
    "year", "quarter", "month", "week", "day", "hour", "minute", "dayofweek", "weekday", "dayofyear", "isnan",
    "array_contains", "map_contains_key", "size",
))  # fmt: skip
_NEVER_FAILING_CASTS = frozenset((
    ("timestamp", "date"), ("timestamptz", "date"), ("int", "long"), ("int", "double"), ("float", "double"),
    ("int", "string"), ("long", "string"), ("date", "string"), ("boolean", "string"),
))  # fmt: skip


def may_fail(node: BoundExpr) -> bool:
    """Whether evaluating it might fail on some row: unless it is known not to."""
    match node:
        case Failure():
            return True
        case Call(name) if name not in _NEVER_FAILING_CALLS:
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
    return merged[0] if len(merged) == 1 else kind(merged)


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
