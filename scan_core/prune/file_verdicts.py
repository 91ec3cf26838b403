"""Verdicts of a predicate for many data files of one partition spec at once."""

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pyarrow.compute as pc

from scan_core.expr.bound import (
    And,
    Between,
    BoundExpr,
    Call,
    Column,
    Comparison,
    InSet,
    IsNull,
    Like,
    Literal,
    Member,
    Not,
    Or,
)
from scan_core.expr.nodes import BoundPredicate
from scan_core.expr.strings import is_like_exact, like_parts, like_prefix
from scan_core.metadata.bulk_manifests import EntryColumns, Numbers
from scan_core.model.arrays import Mask
from scan_core.model.schema import PrimitiveType, Schema, Type
from scan_core.prune.domains import Domain, is_path, prefix_end
from scan_core.prune.facts import (
    DomainColumn,
    NoColumnError,
    as_scalar,
    bounds_of,
    counts_of,
    narrowed,
    of_counts_and_bounds,
    unknown_column,
)
from scan_core.prune.verdicts import MAX_MEMBERS_TESTED
from scan_core.rows.buffers import true_flags

ColumnFacts = Callable[[int, Type], DomainColumn]
"""Field id and type -> what is known of it in each file; NoColumnError where that is no array."""

_SWAPPED = {"<": ">", "<=": ">=", ">": "<", ">=": "<="}
_MOST_TESTS = 64
"""Of a longer IN list on a bucketed column members are tested file by file."""


@dataclass(frozen=True, slots=True, eq=False)
class OutcomeColumn:
    """What a condition can be for some row, in each file. None of those here can fail."""

    true: Mask
    false: Mask
    null: Mask


def outcome_column(node: BoundExpr, facts: ColumnFacts) -> OutcomeColumn:  # noqa: C901, PLR0912  # one flat case per node
    """What a condition can be in each file.

    Raises:
        NoColumnError: it is none of those that are decided for many files at once.
    """
    match node:
        case And(operands):
            return _all([outcome_column(o, facts) for o in operands])
        case Or(operands):
            return _negated(_all([_negated(outcome_column(o, facts)) for o in operands]))
        case Not(operand):
            return _negated(outcome_column(operand, facts))
        case Comparison(sign, left, Literal(value)):
            return _comparison(sign, _column(left, facts), value)
        case Comparison(sign, Literal(value), right):
            return _comparison(_SWAPPED.get(sign, sign), _column(right, facts), value)
        case Between(operand):
            return _between(node, _column(operand, facts))
        case InSet(operand):
            return _in_set(node, _column(operand, facts))
        case IsNull(operand):
            column = _column(operand, facts)
            return OutcomeColumn(column.may_be_null, column.may_be_value | column.may_be_nan, _nowhere(column))
        case Like(operand, pattern, escape, False):
            return _like(pattern, escape, _column(operand, facts))
        case Like(operand):
            column = _column(operand, facts)
            return OutcomeColumn(column.may_be_value, column.may_be_value, column.may_be_null)
        case Call("startswith", (operand, Literal(str(prefix)))):
            return _starts_with(prefix, _column(operand, facts), is_all=True)
        case Column() | Member():
            return _comparison("=", _column(node, facts), value=True)
        case _:
            raise NoColumnError(type(node).__name__)


def _column(node: BoundExpr, facts: ColumnFacts) -> DomainColumn:
    match node:
        case Column(field_id, _, type_):
            return facts(field_id, type_)
        case Member(_, field_id, _, _, type_) if is_path(node):
            return facts(field_id, type_)
        case _:
            raise NoColumnError(type(node).__name__)


def _nowhere(column: DomainColumn) -> Mask:
    return np.zeros(len(column.may_be_null), np.bool_)


def _negated(found: OutcomeColumn) -> OutcomeColumn:
    return OutcomeColumn(found.false, found.true, found.null)


def _all(parts: list[OutcomeColumn]) -> OutcomeColumn:
    surely_false = np.logical_or.reduce([p.false & ~p.true & ~p.null for p in parts])
    can_be_true = np.logical_and.reduce([p.true for p in parts])
    can_be_null = np.logical_or.reduce([p.null for p in parts]) & np.logical_and.reduce(
        [p.true | p.null for p in parts]
    )
    can_be_false = np.logical_or.reduce([p.false for p in parts])
    return OutcomeColumn(can_be_true & ~surely_false, can_be_false, can_be_null & ~surely_false)


def _comparison(sign: str, column: DomainColumn, value: Any) -> OutcomeColumn:
    less, equal, greater = _relations(column, value)
    is_null = value is None
    null = column.may_be_null | is_null
    match sign:
        case "=":
            return OutcomeColumn(equal, less | greater, null)
        case "<>":
            return OutcomeColumn(less | greater, equal, null)
        case "<":
            return OutcomeColumn(less, equal | greater, null)
        case "<=":
            return OutcomeColumn(less | equal, greater, null)
        case ">":
            return OutcomeColumn(greater, less | equal, null)
        case ">=":
            return OutcomeColumn(greater | equal, less, null)
        case _:  # <=>
            one_null = column.may_be_value | column.may_be_nan if is_null else column.may_be_null
            both_null = column.may_be_null & is_null
            return OutcomeColumn(equal | both_null, less | greater | one_null, _nowhere(column))


def _relations(column: DomainColumn, value: Any) -> tuple[Mask, Mask, Mask]:
    """Can values be less than, equal to, greater than a constant? NaN is equal to itself and largest."""
    nowhere = _nowhere(column)
    if value is None:
        return nowhere, nowhere, nowhere
    if value != value:  # noqa: PLR0124  # NaN differs from itself
        return column.may_be_value, column.may_be_nan, nowhere
    less, equal, greater = _value_relations(column, value)
    if column.excludes is not None:
        equal &= ~column.excludes(value)
    return less, equal, greater | column.may_be_nan


def _value_relations(column: DomainColumn, value: Any) -> tuple[Mask, Mask, Mask]:
    """Of values that are neither NULL nor NaN, by their bounds alone."""
    scalar = as_scalar(value, column.type)
    below, above = true_flags(pc.less(column.upper, scalar)), true_flags(pc.greater(column.lower, scalar))
    less = column.may_be_value & ~true_flags(pc.greater_equal(column.lower, scalar))
    greater = column.may_be_value & ~true_flags(pc.less_equal(column.upper, scalar))
    return less, column.may_be_value & ~below & ~above, greater


def _between(node: Between, column: DomainColumn) -> OutcomeColumn:
    below = above = _nowhere(column)
    inside = column.may_be_value
    if node.lower is not None:
        found = _comparison(">=" if node.lower_inclusive else ">", column, node.lower)
        inside, below = inside & found.true, found.false
    if node.upper is not None:
        found = _comparison("<=" if node.upper_inclusive else "<", column, node.upper)
        inside, above = inside & found.true, found.false
    else:
        inside = inside | column.may_be_nan
    if node.lower is not None and node.lower == node.upper and column.excludes is not None:
        inside = inside & ~column.excludes(node.lower)
    return OutcomeColumn(inside, below | above, column.may_be_null)


def _in_set(node: InSet, column: DomainColumn) -> OutcomeColumn:
    values = [as_scalar(v, column.type).as_py() for v in sorted(node.values)]
    lowers, uppers = column.lower.to_pylist(), column.upper.to_pylist()
    starts = np.fromiter((0 if v is None else bisect_left(values, v) for v in lowers), np.int64, len(lowers))
    ends = np.fromiter((len(values) if v is None else bisect_right(values, v) for v in uppers), np.int64, len(uppers))
    hit = column.may_be_value & (starts < ends)
    if column.excludes is not None:
        hit &= _possible_members(node, column.excludes, starts, ends)
    listed = set(values)
    is_listed = np.fromiter((v in listed for v in lowers), np.bool_, len(lowers))
    miss = column.may_be_value & ~(column.has_one_value & is_listed)
    if node.has_nan:
        hit = hit | column.may_be_nan
    else:
        miss = miss | column.may_be_nan
    if node.has_null:
        return OutcomeColumn(hit, _nowhere(column), column.may_be_null | miss)
    return OutcomeColumn(hit, miss, column.may_be_null)


def _possible_members(node: InSet, excludes: Callable[[Any], Mask], starts: Any, ends: Any) -> Mask:
    """In which files some member within the bounds is not excluded."""
    members = sorted(node.values)
    if len(members) > _MOST_TESTS:
        raise NoColumnError("a long list on a bucketed column")
    possible: Mask = ends - starts > MAX_MEMBERS_TESTED
    for index, value in enumerate(members):
        possible |= (starts <= index) & (index < ends) & ~excludes(value)
    return possible


def _like(pattern: str, escape: str | None, column: DomainColumn) -> OutcomeColumn:
    if is_like_exact(pattern, escape):
        return _comparison("=", column, "".join(p for p in like_parts(pattern, escape) if isinstance(p, str)))
    prefix, is_all = like_prefix(pattern, escape)
    return _starts_with(prefix, column, is_all=is_all)


def _starts_with(prefix: str, column: DomainColumn, *, is_all: bool) -> OutcomeColumn:
    """As `verdicts._starts_with`."""
    if not isinstance(column.type, PrimitiveType) or column.type.name != "string":
        raise NoColumnError(str(column.type))
    below = true_flags(pc.less(column.upper, as_scalar(prefix, column.type)))
    end = prefix_end(prefix) if prefix else None
    above = _nowhere(column)
    if end is not None:
        above = true_flags(pc.greater_equal(column.lower, as_scalar(end, column.type)))
    stored = prefix.encode()
    inside = true_flags(pc.starts_with(column.lower, stored)) & true_flags(pc.starts_with(column.upper, stored))
    hit = column.may_be_value & ~below & ~above
    is_all_there = inside | (not prefix)
    miss = column.may_be_value & ~is_all_there if is_all else column.may_be_value
    return OutcomeColumn(hit, miss, column.may_be_null)


@dataclass(slots=True)
class Verdicts:
    """Of each file: it holds no row of the result, or it must be looked at by itself."""

    is_never: Mask
    is_open: Mask


def match_columns(
    predicate: BoundPredicate,
    columns: EntryColumns,
    rows: Numbers,
    domains: Mapping[int, Mapping[int, Domain]],
    schema: Schema,
) -> Verdicts:
    """As `partitions.match_file` for some files.

    Args:
        predicate: bound to the schema in force.
        columns: of a manifest.
        rows: which of its files.
        domains: by partition code, what the partition says about columns, by field id.
        schema: for the types of columns.
    """
    facts = _Facts(columns, rows, domains, schema)
    nowhere = np.zeros(len(rows), np.bool_)
    found = Verdicts(nowhere, nowhere)
    for conjunct in predicate.conjuncts:
        facts.is_odd = nowhere
        try:
            never = ~outcome_column(conjunct, facts.of).true & ~facts.is_odd
        except NoColumnError:
            never, facts.is_odd = nowhere, ~nowhere
        found.is_never = found.is_never | never
        found.is_open = found.is_open | facts.is_odd
    found.is_open = found.is_open & ~found.is_never
    return found


@dataclass(slots=True)
class _Facts:
    """What is known of columns; `is_odd` collects the files for which some column asked for tells too little."""

    columns: EntryColumns
    rows: Numbers
    domains: Mapping[int, Mapping[int, Domain]]
    schema: Schema
    is_odd: Mask = field(default_factory=lambda: np.zeros(0, np.bool_))
    _known: dict[int, tuple[DomainColumn, Mask]] = field(default_factory=dict)

    def of(self, field_id: int, type_: Type) -> DomainColumn:
        """What is known of one column in each file."""
        if field_id not in self._known:
            self._known[field_id] = self._column(field_id, type_)
        column, is_odd = self._known[field_id]
        self.is_odd = self.is_odd | is_odd
        return column

    def _column(self, field_id: int, type_: Type) -> tuple[DomainColumn, Mask]:
        if not isinstance(type_, PrimitiveType):
            raise NoColumnError(str(type_))
        column, is_odd = self._by_statistics(field_id, type_)
        codes = self.columns.partition_codes[self.rows]
        by_code = [self.domains.get(code, {}).get(field_id) for code in range(len(self.columns.partitions))]
        return (column if not any(by_code) else narrowed(column, by_code, codes)), is_odd

    def _by_statistics(self, field_id: int, type_: PrimitiveType) -> tuple[DomainColumn, Mask]:
        stored = self.schema.field(field_id).type if field_id in self.schema else None
        if not isinstance(stored, PrimitiveType):
            return unknown_column(type_, len(self.rows)), np.zeros(len(self.rows), np.bool_)
        bounds = bounds_of(self.columns, self.rows, field_id, stored)
        return of_counts_and_bounds(type_, bounds, counts_of(self.columns, self.rows, field_id))
