"""Many data files of one partition spec against a filter at once, from the columns of their manifest."""

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from scan_core.expr.nodes import BoundPredicate
from scan_core.manifest_columns import EntryColumns, Numbers
from scan_core.prune.column_facts import NoColumnError, bounds_of, counts_of
from scan_core.prune.column_outcomes import outcome_column
from scan_core.prune.domain import Domain
from scan_core.prune.domain_columns import DomainColumn, narrowed, of_counts_and_bounds, unknown_column
from scan_core.schema import PrimitiveType, Schema, Type

Flags = npt.NDArray[np.bool_]


@dataclass(slots=True)
class Verdicts:
    """Of each file: it holds no row of the result, or it must be looked at by itself."""

    is_never: Flags
    is_open: Flags


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
    is_odd: Flags = field(default_factory=lambda: np.zeros(0, np.bool_))
    _known: dict[int, tuple[DomainColumn, Flags]] = field(default_factory=dict)

    def of(self, field_id: int, type_: Type) -> DomainColumn:
        """What is known of one column in each file."""
        if field_id not in self._known:
            self._known[field_id] = self._column(field_id, type_)
        column, is_odd = self._known[field_id]
        self.is_odd = self.is_odd | is_odd
        return column

    def _column(self, field_id: int, type_: Type) -> tuple[DomainColumn, Flags]:
        if not isinstance(type_, PrimitiveType):
            raise NoColumnError(str(type_))
        column, is_odd = self._by_statistics(field_id, type_)
        codes = self.columns.partition_codes[self.rows]
        by_code = [self.domains.get(code, {}).get(field_id) for code in range(len(self.columns.partitions))]
        return (column if not any(by_code) else narrowed(column, by_code, codes)), is_odd

    def _by_statistics(self, field_id: int, type_: PrimitiveType) -> tuple[DomainColumn, Flags]:
        stored = self.schema.field(field_id).type if field_id in self.schema else None
        if not isinstance(stored, PrimitiveType):
            return unknown_column(type_, len(self.rows)), np.zeros(len(self.rows), np.bool_)
        bounds = bounds_of(self.columns, self.rows, field_id, stored)
        return of_counts_and_bounds(type_, bounds, counts_of(self.columns, self.rows, field_id))
