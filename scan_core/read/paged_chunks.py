"""Column chunks of one Parquet file read by page: which pages hold the rows wanted, and what the page index says.

Bytes of all columns are fetched together and decoded page by page (`page_reader.py`); a column whose pages would be most
of its chunk is left to the caller.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.types as pt

from scan_core.read.byte_ranges import ByteSource, Range
from scan_core.read.checksums import COLUMN_INDEX, OFFSET_INDEX, check_part
from scan_core.read.file_reader import PageStatistics, ReadCounts, RowGroup, refusing_malformed
from scan_core.read.footer import Chunk
from scan_core.read.footer_schema import Leaf
from scan_core.read.page_headers import page_encodings
from scan_core.read.page_index import PageLocations, Positions, parse_column_index, parse_offset_index
from scan_core.read.page_reader import decode_pages, pick_rows
from scan_core.read.parquet_layout import ParquetLayout
from scan_core.read.struct_members import descended

_PAGED_SHARE_OF_BYTES = 0.6
"""Above, reading the chunk as a whole is cheaper than choosing among its pages."""
_LEAST_PAGED_BYTES = 64 * 1024
_LEAST_PAGED_VALUES = 100_000
"""A chunk with less of both is decoded sooner than its offset index."""


@dataclass(frozen=True, slots=True, eq=False)
class _Wanted:
    """The pages of one column that hold the rows wanted."""

    column: int
    chunk: Chunk
    leaf: Leaf
    locations: PageLocations
    page_of_row: Positions
    pages: Positions
    keeps_dictionary: bool

    @property
    def dictionary(self) -> Range | None:
        """Where the dictionary page lies: in front of the data pages."""
        before = int(self.locations.offsets[0]) - self.chunk.start
        return (self.chunk.start, before) if before else None


class PagedChunks:
    """The pages of an open file."""

    def __init__(self, path: str, source: ByteSource, layout: ParquetLayout) -> None:
        self._path = path
        self._ranges = source
        self._layout = layout
        self._locations: dict[tuple[int, int], PageLocations | None] = {}
        self._statistics: dict[tuple[int, int], PageStatistics | None] = {}

    def has_pages(self, row_group: RowGroup, column: int) -> bool:
        """Whether the column can be read by page: it has one leaf, and an offset index."""
        leaves = self._layout.columns.leaves[column]
        if len(leaves) != 1 or not self._layout.footer.leaves[leaves.start].elements:
            return False
        return self._chunk(row_group, leaves.start).offset_index is not None

    def read(
        self, row_group: RowGroup, columns: Sequence[int], rows: Positions, counts: ReadCounts
    ) -> dict[int, pa.Array]:
        """Those of the columns that are cheaper read by page, only the rows given, in the types of the file.

        Raises:
            MalformedTableError: pages that cannot be decoded; names file and column.
        """
        candidates = [i for i in columns if self._is_large(row_group, i) and self.has_pages(row_group, i)]
        self._load_locations(row_group, [self._layout.columns.leaves[i].start for i in candidates], counts)
        wanted = [w for i in candidates if (w := self._wanted(row_group, i, rows)) is not None]
        arrays: dict[int, pa.Array] = {}
        for item, (dictionary, pages, num_bytes) in zip(wanted, self._fetch(wanted), strict=True):
            name = self._layout.columns.fields[item.column].name
            with refusing_malformed(self._path, f"row group {row_group.index}, pages of column {name!r}"):
                array = self._decode(item, rows, dictionary, pages)
            if array is None:
                counts.fallbacks += 1
                continue
            arrays[item.column] = array
            counts.paged.add(item.column)
            counts.pages_read += len(item.pages)
            counts.pages_left_out += item.locations.num_pages - len(item.pages)
            counts.bytes_left_out += item.chunk.num_bytes - num_bytes
        return arrays

    def statistics(self, row_group: RowGroup, column: int, counts: ReadCounts) -> PageStatistics | None:
        """Of the pages of a primitive column; bounds in the file's type."""
        field_type, leaf = self._layout.columns.fields[column].type, self._layout.columns.leaves[column].start
        chunk = self._chunk(row_group, leaf)
        if pt.is_nested(field_type) or chunk.offset_index is None or chunk.column_index is None:
            return None
        if not self._layout.footer.has_column_orders:
            return None
        key = row_group.index, leaf
        if key not in self._statistics:
            self._statistics[key] = self._read_statistics(row_group, leaf, field_type, counts)
        return self._statistics[key]

    def _chunk(self, row_group: RowGroup, leaf: int) -> Chunk:
        return self._layout.footer.row_groups[row_group.index].chunks[leaf]

    def _is_large(self, row_group: RowGroup, column: int) -> bool:
        leaves = self._layout.columns.leaves[column]
        if len(leaves) != 1:
            return False
        chunk = self._chunk(row_group, leaves.start)
        return chunk.uncompressed_bytes >= _LEAST_PAGED_BYTES or chunk.num_values >= _LEAST_PAGED_VALUES

    def _wanted(self, row_group: RowGroup, column: int, rows: Positions) -> _Wanted | None:
        """The pages to read; None where the whole chunk is cheaper."""
        leaf = self._layout.columns.leaves[column].start
        chunk, facts = self._chunk(row_group, leaf), self._layout.footer.leaves[leaf]
        if (locations := self._locations[row_group.index, leaf]) is None:
            return None
        pages, page_of_row = locations.pages_of(rows)
        keeps_dictionary = self._layout.keeps_dictionary(row_group.index, column)
        if locations.lengths[pages].sum() > _PAGED_SHARE_OF_BYTES * chunk.num_bytes:
            return None
        return _Wanted(column, chunk, facts, locations, page_of_row, pages, keeps_dictionary)

    def _fetch(self, wanted: Sequence[_Wanted]) -> list[tuple[memoryview | None, list[memoryview], int]]:
        """Of each column the dictionary page, if it has one, its data pages, and how many bytes that is."""
        ranges: list[Range] = []
        for item in wanted:
            if item.dictionary is not None:
                ranges.append(item.dictionary)
            ranges += zip(
                item.locations.offsets[item.pages].tolist(), item.locations.lengths[item.pages].tolist(), strict=True
            )
        with refusing_malformed(self._path, "pages"):
            found = iter(self._ranges.read(ranges))
        parts: list[tuple[memoryview | None, list[memoryview], int]] = []
        for item in wanted:
            dictionary = None if item.dictionary is None else next(found)
            pages = [next(found) for _ in item.pages]
            parts.append((dictionary, pages, len(dictionary or b"") + sum(len(p) for p in pages)))
        return parts

    def _decode(
        self,
        item: _Wanted,
        rows: Positions,
        dictionary: memoryview | None,
        pages: Sequence[memoryview],
    ) -> pa.Array | None:
        """The rows of a column; None if its pages do not hold the rows that the index states."""
        encodings: list[int] | None = None
        if self._layout.footer.checksums is not None and (
            stated := page_encodings(item.chunk, item.locations.num_pages)
        ):
            encodings = [stated[page] for page in item.pages.tolist()]
        found = decode_pages(
            item.chunk,
            item.leaf,
            (dictionary or b"", pages),
            item.locations.counts_of(item.pages),
            encodings,
            as_dictionary=item.keeps_dictionary,
            verifies=self._layout.verifies,
        )
        if found is None:
            return None
        found = descended(found, (0,) * (len(self._layout.columns.ways[item.column]) - 1))
        return self._typed(item.column, pick_rows(found, rows, item.page_of_row, item.pages, item.locations))

    def _typed(self, column: int, array: pa.Array) -> pa.Array:
        """In the type of the file's schema: pages know nothing of the Arrow schema stored beside them."""
        wanted = self._layout.columns.fields[column].type
        if array.type == wanted or isinstance(array, pa.DictionaryArray) or pt.is_dictionary(wanted):
            return array
        return array.cast(wanted)

    def _load_locations(self, row_group: RowGroup, leaves: Sequence[int], counts: ReadCounts) -> None:
        """Read the offset indexes of these leaves, which lie together, at once."""
        chunks = self._layout.footer.row_groups[row_group.index].chunks
        places = {
            leaf: found
            for leaf in leaves
            if (row_group.index, leaf) not in self._locations and (found := chunks[leaf].offset_index) is not None
        }
        with refusing_malformed(self._path, "offset index"):
            for leaf, data in zip(places, self._ranges.read(list(places.values())), strict=True):
                check_part(self._layout.footer.checksums, row_group.index, leaf, OFFSET_INDEX, data)
                locations = parse_offset_index(bytes(data), chunks[leaf], row_group.num_rows)
                counts.fallbacks += locations is None
                self._locations[row_group.index, leaf] = locations

    def _read_statistics(
        self, row_group: RowGroup, leaf: int, field_type: pa.DataType, counts: ReadCounts
    ) -> PageStatistics | None:
        self._load_locations(row_group, [leaf], counts)
        place = self._chunk(row_group, leaf).column_index
        if (locations := self._locations[row_group.index, leaf]) is None or place is None:
            return None
        with refusing_malformed(self._path, "column index"):
            data = bytes(self._ranges.read([place])[0])
            check_part(self._layout.footer.checksums, row_group.index, leaf, COLUMN_INDEX, data)
        found = parse_column_index(data, self._layout.footer.leaves[leaf], field_type, locations)
        counts.fallbacks += found is None
        return None if found is None else PageStatistics(locations.first_rows, found)
