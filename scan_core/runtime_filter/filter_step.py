"""A runtime filter as a step that narrows a selection, beside conjuncts and delete sets."""

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from scan_core.metrics import ScanMetrics
from scan_core.read.conversion import repeat
from scan_core.read.lazy import LazyColumns
from scan_core.read.projection import ColumnSource, Constant
from scan_core.read.row_filter import Verdict, values_of
from scan_core.rows.selection import RowSelection, selected_count
from scan_core.runtime_filter.key_set import KeyLookup
from scan_core.runtime_filter.request import Level
from scan_core.runtime_filter.worth import Run


@dataclass(frozen=True, slots=True, eq=False)
class RuntimeFilterStep:
    """Rows whose columns are a key of `lookup` stay."""

    lookup: KeyLookup
    sources: Sequence[ColumnSource]
    run: Run
    metrics: ScanMetrics
    number: int
    use_numba: bool
    is_delete: bool = field(default=False, init=False)
    is_runtime_filter: bool = field(default=True, init=False)
    collection_id: int | None = field(default=None, init=False)

    @property
    def key(self) -> object:
        """Its place among the filters of the scan."""
        return "runtime filter", self.number

    @property
    def first_guess(self) -> float:
        """As a delete set, which is looked up the same way; but a join mostly lets fewer rows pass."""
        return 8.0 * len(self.sources)

    def judge(self, columns: LazyColumns, selection: RowSelection) -> Verdict:
        """A row stays if it has a key."""
        num_rows = selected_count(selection)
        if all(isinstance(source, Constant) for source in self.sources):
            row = [repeat(source.value, 1) for source in self.sources if isinstance(source, Constant)]
            keep = np.full(num_rows, bool(self.lookup.contains(row, use_numba=self.use_numba)[0]))
        else:
            rows = [values_of(source, columns, selection) for source in self.sources]
            keep = self.lookup.contains(rows, use_numba=self.use_numba)
        self.run.record(Level.ROWS, num_rows, num_rows - int(np.count_nonzero(keep)), self.metrics)
        return Verdict(keep)
