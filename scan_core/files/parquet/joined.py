"""Several small files of one schema as one row group: a column of all of them is decoded by one call.

Opening a decoder for each column of each small file takes longer than decoding. The chunks, as they are stored, make up one
file in memory, with a row group for each of theirs. What does not fit into that is read file by file.
"""

from collections import Counter
from collections.abc import Hashable, Sequence

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.types as pt

from nevermore.scan_core.columns.conversion import Way
from nevermore.scan_core.columns.file_reader import FileReader, LeafNeeds, ReadCounts, RowGroup
from nevermore.scan_core.files.parquet.file_layout import (
    ParquetLayout,
    check_codes,
    has_wide_differences,
    one_array,
    open_decoder,
)
from nevermore.scan_core.files.parquet.footer import BYTE_ARRAY, DELTA_BYTE_ARRAY, Chunk
from nevermore.scan_core.files.parquet.pages import StoredPages, joined_file
from nevermore.scan_core.files.parquet.reader import ParquetFileReader
from nevermore.scan_core.model.running import check_running
from nevermore.scan_core.rows.selection import (
    All,
    RowSelection,
    from_ranges,
    relative,
    row_count,
    select_rows,
    selected_count,
    slice_selection,
    to_mask,
)

_SIZE_STATISTICS = 16
"""Field of a chunk's metadata, SizeStatistics, whose first field states the bytes of all its values."""
_WIDTH = 8
_PAGED_SHARE_OF_ROWS = 0.5
"""Below this share of the rows of a file, only some of its pages may have to be decoded."""
_MIN_PAGED_BYTES = 64 * 1024
"""A chunk with less is decoded sooner than its pages are found."""


def shape_of(reader: FileReader) -> Hashable | None:
    """What must be equal for columns of several files to be read as one; None if they must be read alone."""
    if not isinstance(reader, ParquetFileReader) or reader.is_remote:
        return None
    return id(reader.layout.columns), reader.layout.verifies


def decoded_bytes(reader: FileReader, row_group: RowGroup, columns: Sequence[int]) -> int:
    """What these columns become when decoded, each text on its own; a bound of that where the file does not state it."""
    assert isinstance(reader, ParquetFileReader)  # noqa: S101  it has a shape
    layout, total = reader.layout, 0
    chunks = layout.footer.row_groups[row_group.index].chunks
    for leaf in (leaf for column in columns for leaf in layout.columns.leaves[column]):
        chunk = chunks[leaf]
        size = max(chunk.uncompressed_bytes, _WIDTH * chunk.num_values)
        if layout.footer.leaves[leaf].physical_type == BYTE_ARRAY:
            stated = chunk.metadata.get(_SIZE_STATISTICS, {}).get(1)
            # the values of a dictionary, and prefixes, are stored once for many values
            may_repeat = chunk.has_dictionary or DELTA_BYTE_ARRAY in chunk.metadata[2]
            size += stated if isinstance(stated, int) else size * chunk.num_values if may_repeat else 0
        total += size
    return total


class JoinedFiles(FileReader):
    """Row groups of open files of one shape, one after the other, as one row group.

    Args:
        parts: the row groups; their files stay open as long as this is used.
        reads: of each part, counts how often each column was read.
    """

    def __init__(self, parts: Sequence[tuple[FileReader, RowGroup]], reads: Sequence[Counter[int]]) -> None:
        self._parts = [(reader, group) for reader, group in parts if isinstance(reader, ParquetFileReader)]
        self._reads = reads
        self._first = self._parts[0][0]
        sizes = np.array([group.num_rows for _, group in parts], np.int64)
        self.edges: npt.NDArray[np.int64] = np.concatenate([[0], np.cumsum(sizes)])
        self.arrow_schema = self._first.arrow_schema
        self.has_field_ids = self._first.has_field_ids
        self.num_rows = int(self.edges[-1])
        self.row_groups = (RowGroup(0, 0, self.num_rows, 0, sum(group.num_bytes for _, group in parts)),)
        self.counts = ReadCounts()

    def read(
        self,
        row_group: RowGroup,
        column_indices: Sequence[int],
        selection: RowSelection,
        window: range | None = None,
    ) -> list[pa.Array]:
        """Columns of all files, only the selected rows; files without any of these are not read.

        Raises:
            MalformedTableError: pages that cannot be decoded; names file and column.
        """
        del row_group, window
        touched, within = self._touched(selection)
        columns = list(dict.fromkeys(column_indices))
        if not touched:
            return [pa.array([], type=self.field(i).type) for i in column_indices]
        for place in touched:
            self._reads[place].update(columns)
        together = [i for i in columns if self._is_joinable(i, touched)]
        if selected_count(within) < _PAGED_SHARE_OF_ROWS * row_count(within):
            together = [i for i in together if not self._has_pages(i, touched)]
        found: dict[int, pa.Array] = {}
        if together and (decoded := self._decode(together, touched)) is not None:
            found = dict(zip(together, select_rows(decoded, within), strict=True))
        for column in columns:
            if column not in found:
                found[column] = self._read_each(column, touched, selection)
        return [found[i] for i in column_indices]

    def compressed_bytes(self, row_group: RowGroup, column_indices: Sequence[int]) -> int:
        """Stored size of these columns in all files."""
        del row_group
        return sum(reader.compressed_bytes(group, column_indices) for reader, group in self._parts)

    def field(self, column_index: int) -> pa.Field:
        """The Arrow field of a column or member, the same in all files."""
        return self._first.field(column_index)

    def member(self, way: Way) -> int | None:
        """The number of a struct member as a column of its own."""
        return self._first.member(way)

    def part(self, column_index: int, needs: LeafNeeds) -> tuple[int, frozenset[int]] | None:
        """See `FileReader.part`: asked of the first file, as all files have the same columns."""
        return self._first.part(column_index, needs)

    def close(self) -> None:
        """Nothing to do: the files belong to the caller."""

    @property
    def _layout(self) -> ParquetLayout:
        return self._first.layout

    def _touched(self, selection: RowSelection) -> tuple[list[int], RowSelection]:
        """The files that hold selected rows, and the selection among the rows of these."""
        places = range(len(self._parts))
        if isinstance(selection, All):
            return list(places), selection
        mask = to_mask(selection)
        is_touched = np.logical_or.reduceat(mask, self.edges[:-1])
        if is_touched.all():
            return list(places), selection
        spans = [(int(self.edges[i]), int(self.edges[i + 1])) for i in places if is_touched[i]]
        return [i for i in places if is_touched[i]], relative(selection, from_ranges(spans, self.num_rows))

    def _is_joinable(self, column: int, touched: Sequence[int]) -> bool:
        columns, leaves = self._layout.columns, self._layout.columns.leaves[column]
        if len(leaves) != 1 or len(columns.ways[column]) != 1 or pt.is_nested(columns.fields[column].type):
            return False
        parts = (self._parts[place] for place in touched)
        return not any(has_wide_differences(reader.layout, group.index, column) for reader, group in parts)

    def _keeps_dictionary(self, column: int, touched: Sequence[int]) -> bool:
        """Whether all files hold strings that are better read as a dictionary."""
        parts = (self._parts[place] for place in touched)
        return all(reader.layout.keeps_dictionary(group.index, column) for reader, group in parts)

    def _has_pages(self, column: int, touched: Sequence[int]) -> bool:
        """Whether chunks are so large that decoding some of their pages pays."""
        (leaf,) = self._layout.columns.leaves[column]
        parts = (self._parts[place] for place in touched)
        return any(
            reader.layout.footer.row_groups[group.index].chunks[leaf].uncompressed_bytes >= _MIN_PAGED_BYTES
            for reader, group in parts
        )

    def _decode(self, columns: Sequence[int], touched: Sequence[int]) -> list[pa.Array] | None:
        """All rows of columns in these files; None if they cannot be decoded together, perhaps since one is damaged."""
        check_running()
        layout = self._layout
        leaves = [layout.columns.leaves[i][0] for i in columns]
        row_groups, content = list[tuple[int, list[StoredPages]]](), list[bytes]()
        try:
            for place in touched:
                reader, group = self._parts[place]
                chunks = reader.layout.footer.row_groups[group.index].chunks
                row_groups.append((group.num_rows, [_whole(chunks[leaf]) for leaf in leaves]))
                content += reader.read_stored(group, leaves)
            stated = [pages.num_bytes for _, columns in row_groups for pages in columns]
            if [len(data) for data in content] != stated:
                return None  # a file was cut off
            dictionaries = [place for place, i in enumerate(columns) if self._keeps_dictionary(i, touched)]
            data = joined_file([layout.footer.leaves[leaf] for leaf in leaves], row_groups, content)
            decoder = open_decoder(pa.BufferReader(data), None, dictionaries, verifies=layout.verifies)
            table = decoder.read_row_groups(range(len(row_groups)), range(len(leaves)), False)
            arrays = [
                _typed(_one_of(column), self.field(i).type) for i, column in zip(columns, table.columns, strict=True)
            ]
        except (pa.ArrowException, OSError, ValueError):  # read alone, the file at fault is named
            return None
        num_rows = sum(rows for rows, _ in row_groups)
        return arrays if all(len(array) == num_rows for array in arrays) else None

    def _read_each(self, column: int, touched: Sequence[int], selection: RowSelection) -> pa.Array:
        """A column file by file."""
        found = []
        for place in touched:
            reader, group = self._parts[place]
            rows = slice_selection(selection, int(self.edges[place]), group.num_rows)
            found += reader.read(group, [column], rows)
        if len({array.type for array in found}) > 1:
            found = [a.dictionary_decode() if isinstance(a, pa.DictionaryArray) else a for a in found]
        return one_array(pa.chunked_array(found))


def _whole(chunk: Chunk) -> StoredPages:
    return StoredPages(chunk, chunk.num_values, chunk.data_page_offset - chunk.start, chunk.num_bytes)


def _one_of(column: pa.ChunkedArray) -> pa.Array:
    """A column in one piece; dictionaries that are equal are not compared value by value."""
    if not pt.is_dictionary(column.type) or not column.num_chunks:
        return one_array(column)
    chunks = column.chunks
    first = chunks[0].dictionary
    if all(chunk.dictionary.equals(first) for chunk in chunks[1:]):
        codes = pa.concat_arrays([chunk.indices for chunk in chunks])
        return check_codes(pa.DictionaryArray.from_arrays(codes, first, safe=False))
    for chunk in chunks:
        check_codes(chunk)
    return one_array(column)


def _typed(array: pa.Array, kind: pa.DataType) -> pa.Array:
    """The values in the type of the file's schema, which the joined file does not carry."""
    if array.type == kind or isinstance(array, pa.DictionaryArray) or pt.is_dictionary(kind):
        return array
    return array.cast(kind)
