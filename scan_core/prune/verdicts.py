"""Verdicts of a predicate from statistics of its columns: NEVER, MAYBE or ALWAYS true for the rows described."""

from bisect import bisect_left, bisect_right
from collections.abc import Callable
from dataclasses import dataclass, replace
from enum import Enum
from functools import lru_cache
from typing import Any

from scan_core.expr.bound import And, Between, BoundExpr, Call, Comparison, InSet, IsNull, Like, Literal, Not, Or
from scan_core.expr.nodes import BoundPredicate
from scan_core.expr.strings import is_like_exact, like_parts, like_prefix
from scan_core.model.schema import Type
from scan_core.model.statistics import ColumnStatistics
from scan_core.prune.domains import Domain, Facts, constant, domain_of, of_statistics, prefix_end


class Match(Enum):
    """NEVER: no row matches. ALWAYS: every row does. MAYBE: look at the rows."""

    NEVER = "never"
    MAYBE = "maybe"
    ALWAYS = "always"


class Level(Enum):
    """Where rows can be excluded, with the names that people read."""

    FILES = "files"
    ROW_GROUPS = "row groups"
    BLOOM_FILTERS = "Bloom filters"
    DICTIONARIES = "dictionaries"
    BITMAPS = "bitmap indexes"
    PAGES = "pages"
    ROWS = "rows"


MAX_MEMBERS_TESTED = 2_000
"""Of a longer IN list within the bounds, members are not tested one by one against buckets or Bloom filters."""


@dataclass(frozen=True, slots=True)
class Outcomes:
    """What a boolean expression can be for some row."""

    true: bool = True
    false: bool = True
    null: bool = True
    fail: bool = True

    @property
    def match(self) -> Match:
        """The verdict of a filter that is this expression."""
        if self.fail:
            return Match.MAYBE
        if not self.true:
            return Match.NEVER
        return Match.MAYBE if self.false or self.null else Match.ALWAYS


StatisticsOf = Callable[[int], ColumnStatistics | None]
ExcludesOf = Callable[[int], Callable[[Any], bool] | None]
"""Field id -> a test whether a value is certainly not in the column: a Bloom filter, a dictionary. None if unknown."""


def match_conjuncts(
    predicate: BoundPredicate, statistics_of: StatisticsOf, excludes_of: ExcludesOf | None = None
) -> tuple[Match, ...]:
    """Does each conjunct hold for no row, all rows (then it need not be evaluated), or perhaps some?

    Args:
        predicate: bound to the table's schema.
        statistics_of: statistics by field id of a column or struct member, bounds in the table's types.
        excludes_of: tests of single values, asked for only where bounds leave an equality or IN list open.
    """

    def facts(field_id: int, type_: Type) -> Domain:
        domain = of_statistics(statistics_of(field_id), type_)
        return domain if excludes_of is None else replace(domain, excludes=_on_demand(excludes_of, field_id))

    return tuple(match_facts(c, facts) for c in predicate.conjuncts)


def _on_demand(excludes_of: ExcludesOf, field_id: int) -> Callable[[Any], bool]:
    """The test of a column, looked up when the first value is tested: reading a filter costs a request."""
    found: list[Callable[[Any], bool] | None] = []

    def excludes(value: Any) -> bool:
        if not found:
            found.append(excludes_of(field_id))
        test = found[0]
        return test is not None and test(value)

    return excludes


def combined(verdicts: tuple[Match, ...]) -> Match:
    """The verdict of all conjuncts together."""
    if Match.NEVER in verdicts:
        return Match.NEVER
    return Match.MAYBE if Match.MAYBE in verdicts else Match.ALWAYS


def match_facts(conjunct: BoundExpr, facts: Facts) -> Match:
    """The verdict of one conjunct from what is known of each column."""
    return outcomes(conjunct, facts).match


def outcomes(node: BoundExpr, facts: Facts) -> Outcomes:  # noqa: C901  # one flat case per node
    """What a boolean expression can be, given what is known of each column."""
    match node:
        case And(operands):
            return _all([outcomes(o, facts) for o in operands])
        case Or(operands):
            return _negated(_all([_negated(outcomes(o, facts)) for o in operands]))
        case Not(operand):
            return _negated(outcomes(operand, facts))
        case Comparison(sign, left, right):
            return _comparison(sign, _domain(left, facts), _domain(right, facts))
        case Between():
            return _between(node, _domain(node.operand, facts))
        case InSet():
            return _in_set(node, _domain(node.operand, facts))
        case IsNull(operand):
            domain = _domain(operand, facts)
            return Outcomes(domain.may_be_null, domain.may_be_anything_but_null, null=False, fail=domain.may_fail)
        case Like(operand, pattern, escape, False):
            return _like(pattern, escape, _domain(operand, facts))
        case Call("startswith", (operand, Literal(str(prefix)))):
            return _starts_with(prefix, _domain(operand, facts), is_all=True)
        case Like(operand):
            domain = _domain(operand, facts)
            return Outcomes(domain.may_be_value, domain.may_be_value, domain.may_be_null, domain.may_fail)
        case _:  # a boolean value
            domain = _domain(node, facts)
            return _comparison("=", domain, constant(True))


def _domain(node: BoundExpr, facts: Facts) -> Domain:
    def condition(test: BoundExpr) -> tuple[bool, bool]:
        found = outcomes(test, facts)
        return found.true or found.fail, found.false or found.null or found.fail

    if isinstance(node, And | Or | Not | Comparison | Between | InSet | IsNull | Like):
        found = outcomes(node, facts)
        return Domain(
            not found.false,
            found.true,
            may_be_value=found.true or found.false,
            may_be_null=found.null,
            may_be_nan=False,
            may_fail=found.fail,
        )
    return domain_of(node, facts, condition)


def _negated(found: Outcomes) -> Outcomes:
    return Outcomes(found.false, found.true, found.null, found.fail)


def _all(parts: list[Outcomes]) -> Outcomes:
    if any(p.false and not (p.true or p.null or p.fail) for p in parts):
        return Outcomes(true=False, false=True, null=False, fail=False)  # false wins over NULL and failure
    return Outcomes(
        all(p.true for p in parts),
        any(p.false for p in parts),
        any(p.null for p in parts) and all(p.true or p.null for p in parts),
        any(p.fail for p in parts),
    )


def _comparison(sign: str, left: Domain, right: Domain) -> Outcomes:
    less, equal, greater = _relations(left, right)
    fail = left.may_fail or right.may_fail
    null = left.may_be_null or right.may_be_null
    match sign:
        case "=":
            return Outcomes(equal, less or greater, null, fail)
        case "<>":
            return Outcomes(less or greater, equal, null, fail)
        case "<":
            return Outcomes(less, equal or greater, null, fail)
        case "<=":
            return Outcomes(less or equal, greater, null, fail)
        case ">":
            return Outcomes(greater, less or equal, null, fail)
        case ">=":
            return Outcomes(greater or equal, less, null, fail)
        case _:  # <=>
            one_null = (left.may_be_null and right.may_be_anything_but_null) or (
                right.may_be_null and left.may_be_anything_but_null
            )
            both_null = left.may_be_null and right.may_be_null
            return Outcomes(equal or both_null, less or greater or one_null, null=False, fail=fail)


def _relations(left: Domain, right: Domain) -> tuple[bool, bool, bool]:
    """Can the left side be less than, equal to, greater than the right one? NaN is equal to itself and largest."""
    less = equal = greater = False
    if left.may_be_value and right.may_be_value:
        less = left.lower is None or right.upper is None or left.lower < right.upper
        greater = left.upper is None or right.lower is None or left.upper > right.lower
        equal = not _apart(left, right) and not _apart(right, left)
        equal = equal and not _excluded(left, right) and not _excluded(right, left)
    less |= left.may_be_value and right.may_be_nan
    greater |= left.may_be_nan and right.may_be_value
    equal |= left.may_be_nan and right.may_be_nan
    return less, equal, greater


def _apart(low: Domain, high: Domain) -> bool:
    return low.upper is not None and high.lower is not None and low.upper < high.lower


def _excluded(domain: Domain, other: Domain) -> bool:
    return domain.excludes is not None and other.only_value is not None and domain.excludes(other.only_value)


def _between(node: Between, domain: Domain) -> Outcomes:
    below = above = False
    inside = domain.may_be_value
    if node.lower is not None:
        sign = ">=" if node.lower_inclusive else ">"
        found = _comparison(sign, domain, constant(node.lower))
        inside, below = inside and (found.true), found.false
    if node.upper is not None:
        sign = "<=" if node.upper_inclusive else "<"
        found = _comparison(sign, domain, constant(node.upper))
        inside, above = inside and found.true, found.false
    elif domain.may_be_nan:
        inside = True  # NaN is above every lower bound
    if node.lower is not None and node.lower == node.upper:
        inside = inside and not (domain.excludes is not None and domain.excludes(node.lower))
    return Outcomes(inside, below or above, domain.may_be_null, domain.may_fail)


@lru_cache(maxsize=256)
def _sorted_values(values: frozenset[Any]) -> list[Any]:
    return sorted(values)


def _in_set(node: InSet, domain: Domain) -> Outcomes:
    values = _sorted_values(node.values)
    start = 0 if domain.lower is None else bisect_left(values, domain.lower)
    end = len(values) if domain.upper is None else bisect_right(values, domain.upper)
    hit = domain.may_be_value and start < end
    if hit and domain.excludes is not None and end - start <= MAX_MEMBERS_TESTED:
        hit = any(not domain.excludes(v) for v in values[start:end])
    only = domain.only_value
    miss = domain.may_be_value and (only is None or only not in node.values)
    if domain.may_be_nan:
        hit, miss = hit or node.has_nan, miss or not node.has_nan
    if node.has_null:  # a miss is unknown
        return Outcomes(hit, false=False, null=domain.may_be_null or miss, fail=domain.may_fail)
    return Outcomes(hit, miss, domain.may_be_null, domain.may_fail)


def _like(pattern: str, escape: str | None, domain: Domain) -> Outcomes:
    if is_like_exact(pattern, escape):
        text = "".join(p for p in like_parts(pattern, escape) if isinstance(p, str))
        return _comparison("=", domain, constant(text))
    prefix, is_all = like_prefix(pattern, escape)
    return _starts_with(prefix, domain, is_all=is_all)


def _starts_with(prefix: str, domain: Domain, *, is_all: bool) -> Outcomes:
    """`is_all`: everything with the prefix matches, otherwise only some of it does."""
    below = domain.upper is not None and domain.upper < prefix
    end = prefix_end(prefix) if prefix else None
    above = domain.lower is not None and end is not None and domain.lower >= end
    inside = (domain.lower is not None and domain.upper is not None) and (
        domain.lower.startswith(prefix) and domain.upper.startswith(prefix)
    )
    hit = domain.may_be_value and not below and not above
    miss = domain.may_be_value and not (is_all and (inside or not prefix))
    return Outcomes(hit, miss, domain.may_be_null, domain.may_fail)
