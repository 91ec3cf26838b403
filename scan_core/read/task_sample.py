"""The rows of one data file that a scan looks at, where it takes a sample: told before any column is read."""

from scan_core.metrics import ScanMetrics
from scan_core.read.file_reader import RowGroup
from scan_core.rows.sample import RowSample
from scan_core.rows.selection import All, RowSelection, intersect, selected_count
from scan_core.snapshot import DataFile


class TaskSample:
    """What a sample takes of each row group; everything where there is none."""

    def __init__(self, sample: RowSample | None, data_file: DataFile, metrics: ScanMetrics) -> None:
        self._sample = sample
        self._data_file = data_file
        self._metrics = metrics
        self._last: tuple[int, RowSelection] | None = None

    def leaves_out(self, row_group: RowGroup) -> bool:
        """Whether no row of a row group is taken, which is counted, then."""
        if selected_count(self._taken(row_group)):
            return False
        self._metrics.row_groups_pruned += 1
        self._metrics.rows_removed_by_sampling += row_group.num_rows
        return True

    def within(self, row_group: RowGroup, selection: RowSelection | None) -> RowSelection | None:
        """The rows of `selection` that are taken; None stands for all rows, as an argument and as the result."""
        if self._sample is None:
            return selection
        selection = All(row_group.num_rows) if selection is None else selection
        kept = intersect(selection, self._taken(row_group))
        self._metrics.rows_removed_by_sampling += selected_count(selection) - selected_count(kept)
        return kept

    def _taken(self, row_group: RowGroup) -> RowSelection:
        """Those of the last row group are remembered: it may be read in pieces."""
        if self._sample is None:
            return All(row_group.num_rows)
        if self._last is None or self._last[0] != row_group.index:
            file = self._data_file
            rows = self._sample.rows(file.path, file.record_count, row_group.first_row_position, row_group.num_rows)
            self._last = row_group.index, rows
        return self._last[1]
