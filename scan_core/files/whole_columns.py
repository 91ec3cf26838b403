"""What files have in common whose columns are decoded as a whole, without pages, Bloom filters or dictionaries."""

from collections.abc import Callable, Sequence
from typing import Any

import pyarrow as pa

from scan_core.columns.file_reader import PageStatistics, RowGroup
from scan_core.columns.memory_budget import DecodingLimits
from scan_core.model.statistics import ColumnStatistics


class WholeColumns:
    """The parts of a `FileReader` that tell what lies below a top-level column: there is nothing."""

    arrow_schema: pa.Schema

    def member(self, way: tuple[int, ...]) -> int | None:
        """No member can be read alone."""
        del way
        return None

    def field(self, column_index: int) -> pa.Field:
        """Of a top-level column."""
        return self.arrow_schema.field(column_index)

    def statistics(self, row_group: RowGroup, column_index: int) -> ColumnStatistics | None:
        """None, unless the format has them."""
        del row_group, column_index
        return None

    def page_statistics(self, row_group: RowGroup, column_index: int) -> PageStatistics | None:
        """None: there are no pages."""
        del row_group, column_index
        return None

    def has_exclusion_test(self, row_group: RowGroup, column_index: int) -> bool:
        """There is none."""
        del row_group, column_index
        return False

    def exclusion_test(self, row_group: RowGroup, column_index: int) -> Callable[[Any], bool] | None:
        """None: there is no Bloom filter that is read."""
        del row_group, column_index
        return None

    def dictionary_test(self, row_group: RowGroup, column_index: int) -> Callable[[Any], bool] | None:
        """None: there is no dictionary that is read."""
        del row_group, column_index
        return None

    def windows(
        self, row_group: RowGroup, column_indices: Sequence[int], rows: range, limits: DecodingLimits
    ) -> list[range] | None:
        """None: a row costs as much as all of them."""
        del row_group, column_indices, rows, limits
        return None

    def reads_ranges(self, row_group: RowGroup, column_indices: Sequence[int]) -> bool:
        """Never: a row costs as much as all of them."""
        del row_group, column_indices
        return False

    def reads_apart(self, row_group: RowGroup, column_indices: Sequence[int]) -> bool:
        """Never."""
        del row_group, column_indices
        return False
