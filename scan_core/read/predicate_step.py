"""One conjunct of the predicate as a step that narrows a selection; what it means is in `expr/`."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from scan_core.expr.bound import BoundExpr, Column, Member, walk
from scan_core.expr.cost import cost_of
from scan_core.expr.evaluate import evaluation_error, judge
from scan_core.read.lazy import LazyColumns
from scan_core.read.projection import FromFile
from scan_core.read.row_filter import ValueSource, Verdict, values_of
from scan_core.rows.selection import RowSelection, selected_count
from scan_core.schema import ListType, MapType

_READ_COST = 4.0
"""Of a column, in the units of `expr/cost.py`: about a nanosecond per row."""


@dataclass(frozen=True, slots=True)
class PredicateStep:
    """One conjunct of the predicate; `sources` by id of the column or struct member."""

    conjunct: BoundExpr
    sources: Mapping[int, ValueSource]
    index: int
    is_delete: bool = field(default=False, init=False)
    is_runtime_filter: bool = field(default=False, init=False)

    @property
    def key(self) -> object:
        """Its place in the predicate."""
        return ("predicate", self.index)

    @property
    def first_guess(self) -> float:
        """Reading its columns and evaluating it; beside cheap conjuncts, delete sets come later."""
        return _READ_COST * len(self.sources) + cost_of(self.conjunct)

    @property
    def collection_id(self) -> int | None:
        """The list or map of the file that is all it reads; None if it reads anything else."""
        if len(self.sources) != 1:
            return None
        ((field_id, source),) = self.sources.items()
        types = {n.type for n in walk(self.conjunct) if isinstance(n, Column | Member) and n.field_id == field_id}
        is_collection = all(isinstance(type_, ListType | MapType) for type_ in types)
        return field_id if is_collection and isinstance(source, FromFile) else None

    def judge(self, columns: LazyColumns, selection: RowSelection) -> Verdict:
        """A row stays if the conjunct is true; false and NULL are not."""
        values = {i: values_of(source, columns, selection) for i, source in self.sources.items()}
        outcome = judge(self.conjunct, values, selected_count(selection))
        if outcome.failed is None:
            return Verdict(outcome.passed)
        return Verdict(outcome.passed | outcome.failed, outcome.failed, evaluation_error(self.conjunct, outcome))
