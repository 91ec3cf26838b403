"""What an open data file tells of its columns, by field id and in the types of the table: bounds, pages, exclusion tests.

What that proves for a predicate or a set of deletes is the business of `prune/` and `deletes/`.
"""

from collections.abc import Callable, Mapping
from typing import Any

from scan_core.read.bloom_filter import is_comparable
from scan_core.read.file_reader import ColumnStatistics, FileReader, PageStatistics, RowGroup
from scan_core.read.page_pruning import Stretches, find_stretches
from scan_core.read.projection import FileProjection
from scan_core.read.statistics import table_statistics
from scan_core.schema import Type, arrow_type

ExclusionTest = Callable[[Any], bool]


class FileStatistics:
    """Statistics of columns and struct members of one file."""

    def __init__(self, reader: FileReader, projection: FileProjection) -> None:
        self._reader = reader
        self._projection = projection
        self._known: dict[tuple[int, int], tuple[Type, ColumnStatistics | None]] = {}

    def of(self, row_group: RowGroup, types: Mapping[int, Type]) -> Callable[[int], ColumnStatistics | None]:
        """Statistics of a row group by field id, bounds in the types given."""

        def statistics_of(field_id: int) -> ColumnStatistics | None:
            index = self._projection.index_of(field_id)
            if index is None or field_id not in types:
                return None
            known = self._known.get((row_group.index, index))
            if known is None or known[0] != types[field_id]:
                found = self._reader.statistics(row_group, index)
                told = found and table_statistics(found, self._reader.field(index).type, types[field_id])
                known = self._known[row_group.index, index] = types[field_id], told
            return known[1]

        return statistics_of

    def stretches(self, row_group: RowGroup, types: Mapping[int, Type]) -> Stretches | None:
        """What the page index tells of these columns; None if it tells no more than the row group's statistics."""
        pages: dict[int, PageStatistics] = {}
        for field_id, kind in types.items():
            index = self._projection.index_of(field_id)
            if index is None or (found := self._reader.page_statistics(row_group, index)) is None:
                continue
            file_type = self._reader.field(index).type
            statistics = [table_statistics(s, file_type, kind) for s in found.statistics]
            pages[field_id] = PageStatistics(found.edges, statistics)
        return find_stretches(pages, self.of(row_group, types)) if pages else None

    def bloom_filters(self, row_group: RowGroup, types: Mapping[int, Type]) -> Callable[[int], ExclusionTest | None]:
        """Tests by Bloom filters whether a value of these types is certainly not in a row group, by field id."""
        return self._tests(row_group, types, self._reader.exclusion_test)

    def has_bloom_filter(self, row_group: RowGroup, field_id: int) -> bool:
        """Whether the file states one for a column; nothing is read to tell."""
        index = self._projection.index_of(field_id)
        return index is not None and self._reader.has_exclusion_test(row_group, index)

    def dictionaries(self, row_group: RowGroup, types: Mapping[int, Type]) -> Callable[[int], ExclusionTest | None]:
        """The same by dictionary pages."""
        return self._tests(row_group, types, self._reader.dictionary_test)

    def _tests(
        self, row_group: RowGroup, types: Mapping[int, Type], test_of: Callable[[RowGroup, int], ExclusionTest | None]
    ) -> Callable[[int], ExclusionTest | None]:
        def excludes_of(field_id: int) -> ExclusionTest | None:
            index = self._projection.index_of(field_id)
            if index is None or field_id not in types:
                return None
            if not is_comparable(self._reader.field(index).type, arrow_type(types[field_id])):
                return None
            return test_of(row_group, index)

        return excludes_of
