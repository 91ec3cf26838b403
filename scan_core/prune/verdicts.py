"""Verdicts of a predicate from statistics of its columns: NEVER, MAYBE or ALWAYS true for the rows described.

They follow from domains, the values that an expression can have: columns are bounded by their statistics, monotone functions by the
bounds of their arguments; everything else is unbounded.

The rules of three-valued logic stand here once. What is known of a column is either a `Domain`, of one file, row group,
page or partition, or a `DomainColumn` of `facts.py`, of all files of a manifest: both compare themselves with constants.
"""

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from enum import Enum
from functools import lru_cache
from itertools import product
from typing import Any, TypeGuard

from nevermore.scan_core.expr.bound import (
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
)
from nevermore.scan_core.expr.coercion import BYTES, FLOATING, INTEGRAL, TIMESTAMPS, name_of
from nevermore.scan_core.expr.kernels import constant_value
from nevermore.scan_core.expr.nodes import BoundPredicate
from nevermore.scan_core.expr.normalize import NEVER_FAILING_CALLS
from nevermore.scan_core.expr.strings import is_like_exact, like_parts, like_prefix
from nevermore.scan_core.model.schema import Type
from nevermore.scan_core.model.statistics import ColumnStatistics

MIN_TRUNCATED_LENGTH = 16
"""Writers cut bounds of strings off at 16 characters or more; some forget to round the upper one up (rule 20)."""
MAX_MEMBERS_TESTED = 2_000
"""Of a longer IN list within the bounds, members are not tested one by one against buckets or Bloom filters."""
_TEXT = frozenset({"string", "binary", "fixed"})

Flags = Any
"""A bool of one file, row group, page or partition, or a `Mask` with a flag for each of many files."""
Values = Any
"""What is known of an operand: a `Domain`, or the domains of many files in a `facts.DomainColumn`."""


@dataclass(frozen=True, slots=True)
class Domain:
    """The values an expression may have.

    Attributes:
        lower: no value that is neither NULL nor NaN is smaller; None if unknown.
        upper: no such value is larger; None if unknown.
        may_be_value: may it be something else than NULL and NaN?
        may_be_null: may it be NULL?
        may_be_nan: may it be NaN?
        may_fail: may evaluating it fail?
        excludes: is a single value certainly not among the values? (buckets, Bloom filters, dictionaries)
    """

    lower: Any = None
    upper: Any = None
    may_be_value: bool = True
    may_be_null: bool = True
    may_be_nan: bool = True
    may_fail: bool = False
    excludes: Callable[[Any], bool] | None = None

    @property
    def only_value(self) -> Any:
        """The one value that is neither NULL nor NaN, None if there may be several."""
        return self.lower if self.lower is not None and self.lower == self.upper else None

    @property
    def may_be_anything_but_null(self) -> bool:
        """Whether a row can have a value or NaN."""
        return self.may_be_value or self.may_be_nan

    def relations_to(self, other: "Domain") -> tuple[bool, bool, bool]:
        """Whether it can be less than, equal to, or greater than the other. NaN is equal to itself and largest."""
        less = equal = greater = False
        if self.may_be_value and other.may_be_value:
            less = self.lower is None or other.upper is None or self.lower < other.upper
            greater = self.upper is None or other.lower is None or self.upper > other.lower
            equal = not _is_below(self, other) and not _is_below(other, self)
            if other.excludes is not None and self.only_value is not None:
                equal = other.without_excluded(equal, self.only_value)
            if other.only_value is not None:
                equal = self.without_excluded(equal, other.only_value)
        less |= self.may_be_value and other.may_be_nan
        greater |= self.may_be_nan and other.may_be_value
        equal |= self.may_be_nan and other.may_be_nan
        return less, equal, greater

    def overlaps(self, lower: Any, upper: Any) -> bool:
        """Whether a value that is neither NULL nor NaN can lie between these bounds, both included."""
        is_apart = (self.upper is not None and self.upper < lower) or (self.lower is not None and self.lower > upper)
        return self.may_be_value and not is_apart

    def without_excluded(self, possible: bool, value: Any) -> bool:  # noqa: FBT001
        """Whether it can be the value, which is possible by its bounds; a test is asked only if so: it may cost a read."""
        return possible and not (self.excludes is not None and self.excludes(value))

    def membership(self, values: frozenset[Any]) -> tuple[bool, bool]:
        """Whether a value that is neither NULL nor NaN can be among these, and whether one can be outside of them."""
        members = sorted_values(values)
        start = 0 if self.lower is None else bisect_left(members, self.lower)
        end = len(members) if self.upper is None else bisect_right(members, self.upper)
        hit = self.may_be_value and start < end
        if hit and self.excludes is not None and end - start <= MAX_MEMBERS_TESTED:
            hit = not all(map(self.excludes, members[start:end]))
        only = self.only_value
        return hit, self.may_be_value and (only is None or only not in values)

    def prefixed(self, prefix: str) -> tuple[bool, bool]:
        """Whether a text can start with the prefix, and whether one can start otherwise."""
        end = prefix_end(prefix) if prefix else None
        below = self.upper is not None and self.upper < prefix
        above = self.lower is not None and end is not None and self.lower >= end
        is_inside = (self.lower is not None and self.upper is not None) and (
            self.lower.startswith(prefix) and self.upper.startswith(prefix)
        )
        hit = self.may_be_value and not below and not above
        return hit, self.may_be_value and bool(prefix) and not is_inside


def _is_below(low: Domain, high: Domain) -> bool:
    return low.upper is not None and high.lower is not None and low.upper < high.lower


@lru_cache(maxsize=256)
def sorted_values(values: frozenset[Any]) -> list[Any]:
    """The values in ascending order."""
    return sorted(values)


def unknown(type_: Type, *, may_fail: bool = False) -> Domain:
    """Anything that the type holds."""
    return Domain(may_be_nan=name_of(type_) in FLOATING, may_fail=may_fail)


def constant(value: Any) -> Domain:
    """Exactly one value, or NULL."""
    if value is None:
        return Domain(may_be_value=False, may_be_nan=False)
    if value != value:  # noqa: PLR0124  # NaN differs from itself
        return Domain(may_be_value=False, may_be_null=False)
    return Domain(value, value, may_be_null=False, may_be_nan=False)


def domain_from_statistics(statistics: ColumnStatistics | None, type_: Type) -> Domain:
    """The domain of a column of this type, from statistics of a file, row group or page."""
    if statistics is None:
        return unknown(type_)
    lower, upper = statistics.lower, statistics.upper
    if lower is None or upper is None or not lower <= upper:  # one alone, or the wrong way round: not to be believed
        lower = upper = None
    if upper is not None and name_of(type_) in _TEXT and len(upper) >= MIN_TRUNCATED_LENGTH:
        upper = prefix_end(upper)
    may_be_nan = name_of(type_) in FLOATING and statistics.nan_count != 0
    empty = (statistics.null_count or 0) + (statistics.nan_count or 0)
    return Domain(
        lower,
        upper,
        may_be_value=lower is not None or statistics.value_count is None or empty < statistics.value_count,
        may_be_null=statistics.null_count != 0,
        may_be_nan=may_be_nan,
    )


def drop_unreliable_bounds(statistics: ColumnStatistics | None, type_: Type) -> ColumnStatistics | None:
    """Statistics with the bounds that `domain_from_statistics` takes from them."""
    if statistics is None:
        return None
    known = domain_from_statistics(statistics, type_)
    return replace(statistics, lower=known.lower, upper=known.upper)


def intersection(left: Domain, right: Domain) -> Domain:
    """The values that both domains admit; both describe the same rows."""
    lower = right.lower if left.lower is None else left.lower if right.lower is None else max(left.lower, right.lower)
    upper = right.upper if left.upper is None else left.upper if right.upper is None else min(left.upper, right.upper)
    excludes = left.excludes or right.excludes
    if left.excludes is not None and right.excludes is not None:
        first, second = left.excludes, right.excludes

        def excludes(value: Any) -> bool:
            return first(value) or second(value)

    may_be_value = (
        left.may_be_value and right.may_be_value and not (lower is not None and upper is not None and lower > upper)
    )
    return Domain(
        lower,
        upper,
        may_be_value,
        left.may_be_null and right.may_be_null,
        left.may_be_nan and right.may_be_nan,
        left.may_fail or right.may_fail,
        excludes,
    )


def union(domains: Iterable[Domain]) -> Domain:
    """The values that any of the domains admits."""
    parts = list(domains)
    valued = [d for d in parts if d.may_be_value]
    lowers, uppers = [d.lower for d in valued], [d.upper for d in valued]
    return Domain(
        min(lowers) if lowers and None not in lowers else None,
        max(uppers) if uppers and None not in uppers else None,
        bool(valued),
        any(d.may_be_null for d in parts),
        any(d.may_be_nan for d in parts),
        any(d.may_fail for d in parts),
    )


def without_null(domain: Domain) -> Domain:
    """The same domain for rows that are not NULL."""
    return replace(domain, may_be_null=False)


def prefix_end(prefix: Any) -> Any:
    """The smallest string or byte string above all with this prefix; None if no string is."""
    if isinstance(prefix, bytes):
        trimmed = prefix.rstrip(b"\xff")
        return trimmed[:-1] + bytes([trimmed[-1] + 1]) if trimmed else None
    trimmed_text = prefix.rstrip("\U0010ffff")
    if not trimmed_text:
        return None
    following = ord(trimmed_text[-1]) + 1
    return trimmed_text[:-1] + chr(0xE000 if 0xD800 <= following <= 0xDFFF else following)


Facts = Callable[[int, Type], Values]
"""Field id of a column or struct member, and its type -> the known facts about it."""

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
_WRAPPING, _MAX_DAYS = frozenset({"date_add", "date_sub", "datediff", "last_day", "trunc"}), 2**30
"""Functions whose results wrap around beyond 32 bits, and up to where they do not."""


def domain_of(node: BoundExpr, facts: Facts, condition: Callable[[BoundExpr], tuple[bool, bool]]) -> Domain:
    """What values an expression may have.

    Args:
        node: an expression that is not one of the boolean forms that `verdicts.py` decides itself.
        facts: the known facts about columns and struct members.
        condition: of a boolean expression, whether it can be true and whether it can be something else.
    """
    match node:
        case Column() | Member() if is_path(node):
            known: Domain = facts(node.field_id, node.type)
            return known
        case Member():
            return unknown(node.type)
        case Literal(value):
            return constant(value)
        case Failure():
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


def is_path(node: BoundExpr) -> TypeGuard[Column | Member]:
    """Whether it is a column, or a struct member that is reached through structs alone."""
    root = node
    while isinstance(root, Member):
        root = root.operand
    return isinstance(root, Column)


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
        result = unknown(node.type, may_fail=below.may_fail or target != "string" or source in BYTES)
        result = replace(result, may_be_null=below.may_be_null)
    if node.safe:
        return replace(result, may_be_null=result.may_be_null or result.may_fail, may_fail=below.may_fail)
    return result


def _call(node: Call, arguments: list[Domain]) -> Domain:
    function = node.function.removeprefix("try ")
    may_be_null = any(d.may_be_null for d in arguments)
    may_fail = any(d.may_fail for d in arguments) or function not in NEVER_FAILING_CALLS
    if function in {"map_get", "array_contains"}:
        may_be_null = True
    result = Domain(may_be_null=may_be_null, may_be_nan=name_of(node.type) in FLOATING, may_fail=may_fail)
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
    open_ended = replace(
        unknown(node.type), may_be_null=may_be_null, may_fail=may_fail or function not in NEVER_FAILING_CALLS
    )
    if any(d.may_be_value and (d.lower is None or d.upper is None) for d in arguments):
        return replace(open_ended, may_be_nan=floating)
    # a function monotone in each argument, up or down, takes its extremes where every argument is at an end of its range
    operands = node.arguments if isinstance(node, Call) else (node.operand,)
    found = []
    for corner in product(*(dict.fromkeys((d.lower, d.upper)) if d.may_be_value else (None,) for d in arguments)):
        if None in corner:  # an argument that is always NaN
            return replace(open_ended, may_be_nan=floating)
        if function in _WRAPPING and any(isinstance(v, int) and abs(v) > _MAX_DAYS for v in corner):
            return open_ended
        literals = tuple(Literal(v, o.type) for v, o in zip(corner, operands, strict=True))
        result = _evaluated(build(literals))
        if not isinstance(result, Literal) or result.value is None or result.value != result.value:
            return open_ended  # it fails or has no number at an end: nothing is known of what lies between
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
