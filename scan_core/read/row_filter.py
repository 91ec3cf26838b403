"""Steps that narrow a selection: conjuncts of the predicate and equality-delete sets, one shape for both.

A step reads the columns it needs, for the rows still alive, and says which of them stay. The order of steps is
chosen by `conjunct_order.py`; conjuncts are in `predicate_step.py`, what a delete set matches is in `deletes/`.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Protocol

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from scan_core.deletes.delete_filter import EqualityFilter
from scan_core.errors import EvaluationError
from scan_core.metrics import ScanMetrics
from scan_core.read.conjunct_order import ConjunctOrder
from scan_core.read.conversion import repeat
from scan_core.read.lazy import LazyColumns
from scan_core.read.metadata_columns import MetadataSource
from scan_core.read.projection import ColumnSource, Constant, FromFile
from scan_core.rows.algebra import relative, select_rows
from scan_core.rows.selection import All, RowSelection, intersect, refine, selected_count, to_mask

_ASIDE_SHARE = 0.5
"""Of more rows than that keys are read for all of them: other steps or the result may want them."""

Keep = npt.NDArray[np.bool_]
ValueSource = ColumnSource | MetadataSource


@dataclass(frozen=True, slots=True, eq=False)
class Verdict:
    """What a step says of the selected rows.

    Attributes:
        keep: whether each stays.
        failed: rows it could not judge, which stay for now; None if there is none.
        error: the error to raise if such a row survives everything else.
    """

    keep: Keep
    failed: Keep | None = None
    error: EvaluationError | None = None


class RefineStep(Protocol):
    """One step. `judge` answers for each row of `selection`, in order, whether it stays."""

    @property
    def key(self) -> object:
        """What stays the same for this step from file to file."""
        ...

    @property
    def first_guess(self) -> float:
        """Relative cost as long as nothing is measured."""
        ...

    @property
    def is_delete(self) -> bool:
        """Rows it removes are removed by deletes, not by the filter."""
        ...

    @property
    def is_runtime_filter(self) -> bool:
        """Rows it removes have no key in a join's other side."""
        ...

    @property
    def collection_id(self) -> int | None:
        """The list or map of the file that is all it reads; None if it reads anything else."""
        ...

    def judge(self, columns: LazyColumns, selection: RowSelection) -> Verdict:
        """Whether each selected row stays."""
        ...


@dataclass(frozen=True, slots=True)
class DeleteStep:
    """One set of equality deletes, which removes rows of `touched` alone where that is known."""

    deletes: EqualityFilter
    sources: Sequence[ColumnSource]
    touched: RowSelection | None = None
    is_delete: bool = field(default=True, init=False)
    is_runtime_filter: bool = field(default=False, init=False)
    collection_id: int | None = field(default=None, init=False)

    @property
    def key(self) -> object:
        """Its key columns."""
        return ("deletes", self.deletes.key_ids)

    @property
    def first_guess(self) -> float:
        """Behind conjuncts, which mostly let fewer rows pass."""
        return 16.0 * len(self.sources)

    def judge(self, columns: LazyColumns, selection: RowSelection) -> Verdict:
        """A row stays if its key is not deleted."""
        if all(isinstance(source, Constant) for source in self.sources):
            keys = [source.value for source in self.sources if isinstance(source, Constant)]
            is_alive = bool(self.deletes.keep([repeat(key, 1) for key in keys])[0])
            return Verdict(np.full(selected_count(selection), is_alive))
        if self.touched is None:
            return Verdict(self.deletes.keep(_keys_of(self.sources, columns, selection)))
        probed = intersect(selection, self.touched)
        stays: Keep = np.ones(selected_count(selection), np.bool_)
        if selected_count(probed) == 0:
            return Verdict(stays)
        is_few = selected_count(probed) < _ASIDE_SHARE * selected_count(selection)
        view, cut = (columns.aside(), All(selected_count(probed))) if is_few else (columns, relative(probed, selection))
        keys = _keys_of(self.sources, view, probed if is_few else selection)
        stays[to_mask(relative(probed, selection))] = self.deletes.keep(select_rows(keys, cut))
        return Verdict(stays)

    def within(self, touched: RowSelection) -> "DeleteStep":
        """The same deletes, known to touch these rows of a row group alone."""
        return replace(self, touched=touched)


def refine_rows(
    steps: Sequence[RefineStep],
    columns: LazyColumns,
    selection: RowSelection,
    order: ConjunctOrder,
    metrics: ScanMetrics,
) -> RowSelection:
    """The rows of `selection` that every step keeps.

    Raises:
        EvaluationError: a conjunct fails on a row that every other step keeps.
    """
    failures: list[tuple[RowSelection, EvaluationError]] = []
    alive: Keep = np.ones(selected_count(selection), np.bool_)
    rows_in = len(alive)
    collections: set[int | None] = set()
    for index in order.order(steps):
        if rows_in == 0:
            break
        step, started = steps[index], order.start()
        rereads = step.collection_id in collections
        if rows_in < len(alive) and order.narrows(step, rows_in, len(alive), rereads_collection=rereads):
            selection, alive = refine(selection, alive), np.ones(rows_in, np.bool_)
            collections.clear()
        if step.collection_id is not None:
            collections.add(step.collection_id)
        verdict = step.judge(columns, selection)
        if verdict.failed is not None and verdict.error is not None:
            failures.append((refine(selection, verdict.failed), verdict.error))
        alive = verdict.keep if rows_in == len(alive) else verdict.keep & alive
        rows_out = int(np.count_nonzero(alive))
        order.record(step, started, rows_in, rows_out)
        if step.is_delete:
            metrics.rows_removed_by_equality_deletes += rows_in - rows_out
        else:
            metrics.rows_removed_by_filter += rows_in - rows_out
            metrics.rows_removed_by_runtime_filters += (rows_in - rows_out) * step.is_runtime_filter
        rows_in = rows_out
    selection = refine(selection, alive)
    for failed, error in failures:
        if selected_count(intersect(failed, selection)):
            raise error
    return selection


def values_of(source: ValueSource, columns: LazyColumns, selection: RowSelection) -> pa.Array:
    """The values of a column for the rows of `selection`, in the table's type (perhaps dictionary-encoded)."""
    match source:
        case FromFile(index, convert):
            return convert(columns.load([index], selection)[0])
        case Constant(value):
            return repeat(value, selected_count(selection))
        case MetadataSource():
            return source.values(columns, selection)


def _keys_of(sources: Sequence[ColumnSource], columns: LazyColumns, selection: RowSelection) -> list[pa.Array]:
    """The key columns of the rows of `selection`, all read at once."""
    columns.load([source.index for source in sources if isinstance(source, FromFile)], selection)
    return [values_of(source, columns, selection) for source in sources]


def file_columns_of(source: ValueSource) -> frozenset[int]:
    """The file's top-level columns that a source reads."""
    match source:
        case FromFile(index):
            return frozenset({index})
        case Constant():
            return frozenset()
        case MetadataSource():
            return source.file_columns
