"""One shape for predicates: flat and / or, constants folded, NOT pushed down, ranges and lists merged.

The shape stays compact; conjunctive normal form is an option and capped, for it multiplies what OR holds. Every rewrite
keeps the value of the expression for every row, NULL and failure included, unless it says that it holds only where
NULL counts as false.
"""

from itertools import product
from typing import Literal as Choice

from scan_core.expr.bound import (
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
    Like,
    Literal,
    Member,
    Not,
    Or,
    children,
)
from scan_core.expr.evaluate import constant_value
from scan_core.expr.ranges import merge_and, merge_or
from scan_core.expr.unwrap import unwrap

Normalization = Choice["compact", "cnf"]
MAX_CNF_CLAUSES = 64
"""More clauses than this cost more to evaluate than any of them prunes; the predicate then stays compact."""

_TRUE, _FALSE, _NULL = Literal(True, BOOLEAN), Literal(False, BOOLEAN), Literal(None, BOOLEAN)
_FLIPPED = {"=": "=", "<>": "<>", "<": ">", "<=": ">=", ">": "<", ">=": "<=", "<=>": "<=>"}
_NEGATED = {"=": "<>", "<>": "=", "<": ">=", "<=": ">", ">": "<=", ">=": "<"}


def conjuncts_of(predicate: BoundExpr, normalization: Normalization = "compact") -> tuple[BoundExpr, ...]:
    """The conjuncts of a predicate; none if it is true for every row."""
    node = normalize(predicate)
    if normalization == "cnf":
        node = normalize(_cnf(node))
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
            return _simplify(_rebuild(node, tuple(normalize(c) for c in children(node))))


def _rebuild(node: BoundExpr, parts: tuple[BoundExpr, ...]) -> BoundExpr:  # noqa: C901  # one flat case per node
    match node:
        case Member(_, field_id, name, index, type_):
            return Member(parts[0], field_id, name, index, type_)
        case Comparison(sign):
            return Comparison(sign, *parts)
        case InSet(_, values, has_null, has_nan):
            return InSet(parts[0], values, has_null, has_nan)
        case Between(_, lower, upper, lower_inclusive, upper_inclusive):
            return Between(parts[0], lower, upper, lower_inclusive, upper_inclusive)
        case IsNull():
            return IsNull(parts[0])
        case Like(_, pattern, escape, ignore_case):
            return Like(parts[0], pattern, escape, ignore_case)
        case Cast(_, type_, safe):
            return Cast(parts[0], type_, safe)
        case Case(_, _, type_):
            return Case(tuple(zip(parts[:-1:2], parts[1::2], strict=True)), parts[-1], type_)
        case Coalesce(_, type_):
            return Coalesce(parts, type_)
        case Call(function, _, type_):
            return Call(function, parts, type_)
        case _:
            return node


def _simplify(node: BoundExpr) -> BoundExpr:
    parts = children(node)
    if all(isinstance(p, Literal | Failure) for p in parts) and not any(isinstance(p, Failure) for p in parts):
        return constant_value(node)
    match node:
        case Comparison("<=>", left, Literal(None)) | Comparison("<=>", Literal(None), left):
            return IsNull(left)
        case Comparison(_, left, Literal(None)) | Comparison(_, Literal(None), left) if not may_fail(left):
            return _NULL
        case Comparison(sign, Literal() as left, right):
            return _simplify(Comparison(_FLIPPED[sign], right, left))
        case Comparison() | InSet() | Between():
            return _boolean_comparison(unwrap(node))
        case Case():
            return _shorter_case(node)
        case Coalesce(operands, type_):
            return _shorter_coalesce(operands, node, type_)
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
    return Case(tuple(branches), default, node.type) if branches else default


def _shorter_coalesce(operands: tuple[BoundExpr, ...], node: BoundExpr, type_: object) -> BoundExpr:
    kept: list[BoundExpr] = []
    for operand in operands:
        if isinstance(operand, Literal) and operand.value is None:
            continue
        kept.append(operand)
        if isinstance(operand, Literal):
            break
    if len(kept) == 1:
        return kept[0]
    return Coalesce(tuple(kept), node.type) if kept and type_ else node


def may_fail(node: BoundExpr) -> bool:
    """Might evaluating it fail on some row."""
    return isinstance(node, Cast | Call | Failure) or any(may_fail(c) for c in children(node))


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


def _cnf(node: BoundExpr) -> BoundExpr:
    """Conjunctive normal form, or the node itself where it would have more than MAX_CNF_CLAUSES clauses."""
    match node:
        case And(operands):
            return And(tuple(_cnf(o) for o in operands))
        case Or(operands):
            sides = [_clauses(o) for o in operands]
            count = 1
            for side in sides:
                count *= len(side)
                if count > MAX_CNF_CLAUSES:
                    return node
            if count == 1:
                return node
            return And(tuple(Or(clause) for clause in product(*sides)))
        case _:
            return node


def _clauses(node: BoundExpr) -> tuple[BoundExpr, ...]:
    """What an operand of OR multiplies; one clause where an AND may fail.

    Within AND a failure wins over NULL, but a conjunct that is NULL drops the row and hides the failure of another.
    """
    found = _cnf(node)
    if not isinstance(found, And):
        return (found,)
    return (node,) if may_fail(found) else found.operands
