"""Statistics of an open data file by field id, in the types of the table."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.types as pt

from nevermore.scan_core.columns.file_reader import FileReader, OnDemand, PageStatistics, RowGroup, StatisticsOf
from nevermore.scan_core.files.parquet.bloom import is_comparable
from nevermore.scan_core.model.schema import PrimitiveType, Type, arrow_type
from nevermore.scan_core.model.statistics import ColumnStatistics
from nevermore.scan_core.prune.verdicts import Match
from nevermore.scan_core.read.projection import FileProjection
from nevermore.scan_core.rows.selection import All, RowSelection, from_ranges

_PER_SECOND = {"s": 1, "ms": 1_000, "us": 1_000_000, "ns": 1_000_000_000}
_SECONDS_PER_DAY = 86_400


def table_statistics(found: ColumnStatistics, file_type: pa.DataType, table_type: Type) -> ColumnStatistics:
    """`found` with bounds converted to the table's type, or dropped if they cannot be converted."""
    if found.lower is None and found.upper is None:
        return found
    if not isinstance(table_type, PrimitiveType) or pt.is_nested(file_type):
        return replace(found, lower=None, upper=None)
    if pt.is_dictionary(file_type):
        file_type = file_type.value_type
    target = arrow_type(table_type)
    if file_type == target:
        return found
    return replace(
        found, lower=_promoted(found.lower, file_type, target), upper=_promoted(found.upper, file_type, target)
    )


def _converted(
    pages: Sequence[ColumnStatistics], file_type: pa.DataType, table_type: Type
) -> OnDemand[ColumnStatistics]:
    return OnDemand(len(pages), lambda page: table_statistics(pages[page], file_type, table_type))


def _promoted(value: Any, source: pa.DataType, target: pa.DataType) -> Any:
    if value is None:
        return None
    if pt.is_timestamp(target):
        if pt.is_date32(source):
            return value * _SECONDS_PER_DAY * _PER_SECOND[target.unit]
        return _rescaled(value, source.unit, target.unit) if pt.is_timestamp(source) else None
    if pt.is_time(target):
        return _rescaled(value, source.unit, target.unit) if pt.is_time(source) else None
    if pt.is_string(target) and isinstance(value, bytes):
        return None  # truncated bytes may not be valid text
    if pt.is_binary(target) and isinstance(value, str):
        return value.encode()
    return value if _same_family(source, target) else None


def _rescaled(value: int, source: str, target: str) -> int | None:
    have, want = _PER_SECOND[source], _PER_SECOND[target]
    return value * (want // have) if want >= have else None


def _same_family(source: pa.DataType, target: pa.DataType) -> bool:
    families = (pt.is_signed_integer, pt.is_floating, pt.is_decimal, pt.is_fixed_size_binary)
    return any(family(source) and family(target) for family in families) or (
        (pt.is_string(target) and (pt.is_large_string(source) or pt.is_string(source)))
        or (pt.is_binary(target) and (pt.is_large_binary(source) or pt.is_binary(source)))
    )


ExclusionTest = Callable[[Any], bool]

_MAX_STRETCHES = 4_096
"""Above this number, checking bounds costs more than reading the pages."""
_SAMPLED_PARTS = 16
_MIN_SAMPLED_STRETCHES = 64


@dataclass(frozen=True, slots=True)
class PageMatches:
    """A verdict for the rows [edges[k], edges[k + 1]) of one row group, for each k."""

    edges: Sequence[int]
    verdicts: Sequence[Match]

    @classmethod
    def unknown(cls, num_rows: int) -> "PageMatches":
        """Page statistics without any information."""
        return cls((0, num_rows), (Match.MAYBE,))

    def rows(self, *wanted: Match) -> RowSelection:
        """The rows with one of these verdicts."""
        if all(verdict in wanted for verdict in self.verdicts):
            return All(self.edges[-1])
        pairs = [(self.edges[k], self.edges[k + 1]) for k, verdict in enumerate(self.verdicts) if verdict in wanted]
        return from_ranges(pairs, self.edges[-1])


@dataclass(frozen=True, slots=True)
class Stretches:
    """Runs of rows [edges[k], edges[k + 1]) of one row group, and the known facts about each.

    `tests` are those by Bloom filters of pages, by field id; empty where no column has any.
    """

    edges: Sequence[int]
    known: Sequence[StatisticsOf]
    tests: Sequence[Callable[[int], "ExclusionTest | None"]] = ()

    def match(self, match: Callable[[StatisticsOf], Match]) -> PageMatches:
        """The verdict on every stretch."""
        return PageMatches(self.edges, [match(known) for known in self.known])

    def match_if_worthwhile(self, match: Callable[[StatisticsOf], Match]) -> PageMatches:
        """The same, but with many stretches only if some of a sample of evenly spaced ones are decided.

        Of data that lie in order or in clusters some are; of values scattered at random none are.
        """
        step = max(len(self.known) // _SAMPLED_PARTS, 1)
        is_long = len(self.known) >= _MIN_SAMPLED_STRETCHES
        if is_long and all(match(known) is Match.MAYBE for known in self.known[step // 2 :: step]):
            return PageMatches.unknown(self.edges[-1])
        return self.match(match)

    def tested(
        self, found: PageMatches, match: Callable[[StatisticsOf, Callable[[int], "ExclusionTest | None"]], Match]
    ) -> PageMatches:
        """The verdicts, with undecided stretches that Bloom filters exclude changed to NEVER."""
        if not self.tests:
            return found
        is_known = len(found.verdicts) == len(self.known)
        verdicts = list(found.verdicts) if is_known else [Match.MAYBE] * len(self.known)
        for place, (known, tests) in enumerate(zip(self.known, self.tests, strict=True)):
            if verdicts[place] is Match.MAYBE and match(known, tests) is Match.NEVER:
                verdicts[place] = Match.NEVER
        return PageMatches(self.edges, verdicts)


class FileStatistics:
    """Statistics of columns and struct members of one file."""

    def __init__(self, reader: FileReader, projection: FileProjection) -> None:
        self._reader = reader
        self._projection = projection
        self._known: dict[tuple[int, int], tuple[Type, ColumnStatistics | None]] = {}

    def of(self, row_group: RowGroup, types: Mapping[int, Type]) -> StatisticsOf:
        """Statistics of a row group by field id, bounds in the types given."""

        def statistics_of(field_id: int) -> ColumnStatistics | None:
            index = self._projection.index_of(field_id)
            if index is None or field_id not in types:
                return None
            known = self._known.get((row_group.index, index))
            if known is None or known[0] != types[field_id]:
                found = self._reader.statistics(row_group, index)
                known_here = found and table_statistics(found, self._reader.field(index).type, types[field_id])
                known = self._known[row_group.index, index] = types[field_id], known_here
            return known[1]

        return statistics_of

    def stretches(self, row_group: RowGroup, types: Mapping[int, Type]) -> Stretches | None:
        """The page index of these columns; None if it adds nothing to the row group's statistics."""
        pages: dict[int, PageStatistics] = {}
        for field_id, kind in types.items():
            index = self._projection.index_of(field_id)
            if index is None or (found := self._reader.page_statistics(row_group, index)) is None:
                continue
            file_type = self._reader.field(index).type
            tests = found.tests if is_comparable(file_type, arrow_type(kind)) else None
            pages[field_id] = PageStatistics(found.edges, _converted(found.statistics, file_type, kind), tests)
        return find_stretches(pages, self.of(row_group, types)) if pages else None

    def bloom_filters(self, row_group: RowGroup, types: Mapping[int, Type]) -> Callable[[int], ExclusionTest | None]:
        """Tests by Bloom filters whether a value of these types is certainly not in a row group, by field id."""

        def excludes_of(field_id: int) -> ExclusionTest | None:
            index = self._projection.index_of(field_id)
            if index is None or field_id not in types:
                return None
            if not is_comparable(self._reader.field(index).type, arrow_type(types[field_id])):
                return None
            return self._reader.exclusion_test(row_group, index)

        return excludes_of

    def has_bloom_filter(self, row_group: RowGroup, field_id: int) -> bool:
        """Whether the file has a Bloom filter for a column; does no I/O."""
        index = self._projection.index_of(field_id)
        return index is not None and self._reader.has_exclusion_test(row_group, index)


def find_stretches(pages: Mapping[int, PageStatistics], whole: StatisticsOf) -> Stretches | None:
    """The stretches of a row group; None if its pages add nothing to the row group's statistics.

    Args:
        pages: of columns by field id, bounds in the types that `whole` uses.
        whole: statistics of the row group, for columns without page index.
    """
    edges = sorted({int(edge) for found in pages.values() for edge in found.edges})
    if not 2 < len(edges) <= _MAX_STRETCHES:
        return None
    begins = np.array(edges[:-1])
    page_of = {i: (np.searchsorted(found.edges, begins, side="right") - 1).tolist() for i, found in pages.items()}

    def known(stretch: int) -> StatisticsOf:
        def statistics_of(field_id: int) -> ColumnStatistics | None:
            if field_id not in pages:
                return whole(field_id)
            page: int = page_of[field_id][stretch]
            return pages[field_id].statistics[page]

        return statistics_of

    def tests(stretch: int) -> Callable[[int], ExclusionTest | None]:
        def test_of(field_id: int) -> ExclusionTest | None:
            of_page = pages[field_id].tests if field_id in pages else None
            return None if of_page is None else of_page(page_of[field_id][stretch])

        return test_of

    count = len(edges) - 1
    has_tests = any(found.tests is not None for found in pages.values())
    return Stretches(edges, [known(k) for k in range(count)], [tests(k) for k in range(count)] if has_tests else ())
