"""Verdicts of a predicate from statistics of its columns: NEVER, MAYBE or ALWAYS true for the rows described.

The rules of three-valued logic stand here once. What is known of a column is either a `Domain`, of one file, row group,
page or partition, or a `DomainColumn` of `facts.py`, of all files of a manifest: both compare themselves with constants.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from enum import Enum
from typing import Any

from nevermore.scan_core.expr.bound import (
    And,
    Between,
    BoundExpr,
    Call,
    Comparison,
    InSet,
    IsNull,
    Like,
    Literal,
    Not,
    Or,
)
from nevermore.scan_core.expr.nodes import BoundPredicate
from nevermore.scan_core.expr.strings import is_like_exact, like_parts, like_prefix
from nevermore.scan_core.model.schema import Type
from nevermore.scan_core.model.statistics import ColumnStatistics
from nevermore.scan_core.prune.domains import (
    Domain,
    Facts,
    Flags,
    Values,
    constant,
    domain_from_statistics,
    domain_of,
    is_path,
)


class Match(Enum):
    """NEVER: no row matches. ALWAYS: every row does. MAYBE: look at the rows."""

    NEVER = "never"
    MAYBE = "maybe"
    ALWAYS = "always"


class Level(Enum):
    """The levels at which rows can be excluded, with their names in reports."""

    FILES = "files"
    ROW_GROUPS = "row groups"
    BLOOM_FILTERS = "Bloom filters"
    BITMAPS = "bitmap indexes"
    PAGES = "pages"
    ROWS = "rows"


@dataclass(frozen=True, slots=True)
class Outcomes:
    """What a boolean expression can be for some row: one flag, or one flag for each of many files.

    All rules below combine flags with `&`, `|` and `^ True`, which hold for a bool as for an array of them.
    """

    true: Flags = True
    false: Flags = True
    null: Flags = True
    fail: Flags = True

    @property
    def match(self) -> Match:
        """The verdict of a filter that is this expression, for a single file, row group or page."""
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
        domain = domain_from_statistics(statistics_of(field_id), type_)
        return domain if excludes_of is None else replace(domain, excludes=_on_demand(excludes_of, field_id))

    known = looked_up_once(facts)
    return tuple(outcomes(c, known).match for c in predicate.conjuncts)


def _on_demand(excludes_of: ExcludesOf, field_id: int) -> Callable[[Any], bool]:
    """The test of a column, looked up when the first value is tested: reading a filter costs a request."""
    found: list[Callable[[Any], bool] | None] = []

    def excludes(value: Any) -> bool:
        if not found:
            found.append(excludes_of(field_id))
        test = found[0]
        return test is not None and test(value)

    return excludes


def match_all(predicate: BoundPredicate, facts: Facts) -> Match:
    """Whether all conjuncts together hold for no row, all rows, or perhaps some."""
    known = looked_up_once(facts)
    return combined(tuple(outcomes(c, known).match for c in predicate.conjuncts))


def looked_up_once(facts: Facts) -> Facts:
    """The same facts, each kept: a list of ranges of one column asks for it once a range, and decoding bounds costs more."""
    known: dict[int, Values] = {}

    def of(field_id: int, type_: Type) -> Values:
        found = known.get(field_id)
        if found is None:
            found = known[field_id] = facts(field_id, type_)
        return found

    return of


def combined(verdicts: tuple[Match, ...]) -> Match:
    """The verdict of all conjuncts together."""
    if Match.NEVER in verdicts:
        return Match.NEVER
    return Match.MAYBE if Match.MAYBE in verdicts else Match.ALWAYS


def outcomes(node: BoundExpr, facts: Facts) -> Outcomes:  # noqa: C901  # one flat case per node
    """Possible results of a boolean expression, given the known facts about each column."""
    match node:
        case And(operands):
            return _all([outcomes(o, facts) for o in operands])
        case Or(operands):
            return _negated(_all([_negated(outcomes(o, facts)) for o in operands]))
        case Not(operand):
            return _negated(outcomes(operand, facts))
        case Comparison(sign, left, right):
            known = _domain(left, facts)
            if left.type != right.type:  # decimals: the constant is no value of the column, which tests of values need
                known = replace(known, excludes=None)
            return _comparison(sign, known, _domain(right, facts))
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
            return _comparison("=", _domain(node, facts), constant(True))


def takes_only_columns(node: BoundExpr) -> bool:
    """Whether all operands are columns or constants: only such conditions are decided for many files at once."""
    match node:
        case And(operands) | Or(operands):
            return all(map(takes_only_columns, operands))
        case Not(operand):
            return takes_only_columns(operand)
        case Comparison(_, operand, Literal()) | Call("startswith", (operand, Literal(str()))):
            return is_path(operand)
        case Between(operand) | InSet(operand) | IsNull(operand) | Like(operand):
            return is_path(operand)
        case _:
            return is_path(node)


def _domain(node: BoundExpr, facts: Facts) -> Values:
    if is_path(node):  # the only operands that may stand for many files
        return facts(node.field_id, node.type)

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
    can_be_true, surely_false = parts[0].true, False
    can_be_false = can_be_null = can_fail = False
    can_stay_null = True
    for part in parts:
        surely_false |= part.false & ((part.true | part.null | part.fail) ^ True)
        can_be_true = can_be_true & part.true
        can_be_false |= part.false
        can_be_null |= part.null
        can_stay_null &= part.true | part.null
        can_fail |= part.fail
    possible = surely_false ^ True  # an operand that is always false wins over NULL and failure
    return Outcomes(can_be_true & possible, can_be_false, can_be_null & can_stay_null & possible, can_fail & possible)


def _comparison(sign: str, left: Values, right: Domain) -> Outcomes:
    less, equal, greater = left.relations_to(right)
    fail = left.may_fail | right.may_fail
    null = left.may_be_null | right.may_be_null
    match sign:
        case "=":
            return Outcomes(equal, less | greater, null, fail)
        case "<>":
            return Outcomes(less | greater, equal, null, fail)
        case "<":
            return Outcomes(less, equal | greater, null, fail)
        case "<=":
            return Outcomes(less | equal, greater, null, fail)
        case ">":
            return Outcomes(greater, less | equal, null, fail)
        case ">=":
            return Outcomes(greater | equal, less, null, fail)
        case _:  # <=>
            one_null = (left.may_be_null & right.may_be_anything_but_null) | (
                right.may_be_null & left.may_be_anything_but_null
            )
            both_null = left.may_be_null & right.may_be_null
            return Outcomes(equal | both_null, less | greater | one_null, null=False, fail=fail)


def _between(node: Between, domain: Values) -> Outcomes:
    below = above = False
    inside = domain.may_be_value
    if node.lower is not None:
        found = _comparison(">=" if node.lower_inclusive else ">", domain, constant(node.lower))
        inside, below = inside & found.true, found.false
    if node.upper is not None:
        found = _comparison("<=" if node.upper_inclusive else "<", domain, constant(node.upper))
        inside, above = inside & found.true, found.false
    else:
        inside = inside | domain.may_be_nan  # NaN is above every lower bound
    if node.lower is not None and node.lower == node.upper:
        inside = domain.without_excluded(inside, node.lower)
    return Outcomes(inside, below | above, domain.may_be_null, domain.may_fail)


def _in_set(node: InSet, domain: Values) -> Outcomes:
    hit, miss = domain.membership(node.values)
    if node.has_nan:
        hit = hit | domain.may_be_nan
    else:
        miss = miss | domain.may_be_nan
    if node.has_null:  # a miss is unknown
        return Outcomes(hit, false=False, null=domain.may_be_null | miss, fail=domain.may_fail)
    return Outcomes(hit, miss, domain.may_be_null, domain.may_fail)


def _like(pattern: str, escape: str | None, domain: Values) -> Outcomes:
    if is_like_exact(pattern, escape):
        text = "".join(p for p in like_parts(pattern, escape) if isinstance(p, str))
        return _comparison("=", domain, constant(text))
    prefix, is_all = like_prefix(pattern, escape)
    return _starts_with(prefix, domain, is_all=is_all)


def _starts_with(prefix: str, domain: Values, *, is_all: bool) -> Outcomes:
    """`is_all`: everything with the prefix matches, otherwise only some of it does."""
    hit, miss = domain.prefixed(prefix)
    return Outcomes(hit, miss if is_all else domain.may_be_value, domain.may_be_null, domain.may_fail)
