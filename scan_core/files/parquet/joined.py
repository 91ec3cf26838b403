"""Several small files of one schema: a column of all of them is decoded by one call.

Opening a decoder for each column of each small file takes longer than decoding. The chunks, as they are stored, make up one
file in memory, with a row group for each of theirs. What does not fit into that is read file by file.
"""

from collections.abc import Hashable, Sequence

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.types as pt

from scan_core.columns.file_reader import FileReader, RowGroup
from scan_core.files.parquet.file_layout import (
    ParquetLayout,
    check_codes,
    has_wide_differences,
    one_array,
    open_decoder,
)
from scan_core.files.parquet.footer import Chunk
from scan_core.files.parquet.pages import joined_file
from scan_core.files.parquet.reader import ParquetFileReader
from scan_core.model.running import check_running
from scan_core.rows.selection import All


def shape_of(reader: FileReader) -> Hashable | None:
    """What must be equal for columns of several files to be read as one; None if they must be read alone."""
    if not isinstance(reader, ParquetFileReader) or reader.is_remote:
        return None
    return id(reader.layout.columns), reader.layout.verifies


class JoinedFiles:
    """Row groups of open files of one shape, one after the other: rows [edges[k], edges[k + 1]) are those of number k.

    The files stay open as long as this is used.
    """

    def __init__(self, parts: Sequence[tuple[FileReader, RowGroup]]) -> None:
        self._parts = [(reader, group) for reader, group in parts if isinstance(reader, ParquetFileReader)]
        sizes = np.array([group.num_rows for _, group in parts], np.int64)
        self.edges: npt.NDArray[np.int64] = np.concatenate([[0], np.cumsum(sizes)])

    def read(self, columns: Sequence[int]) -> list[pa.Array]:
        """All rows of some columns.

        Raises:
            MalformedTableError: pages that cannot be decoded; names file and column.
        """
        together = [i for i in columns if self._is_joinable(i)]
        decoded = self._decode(together) if together else None
        found = {} if decoded is None else dict(zip(together, decoded, strict=True))
        return [found[i] if i in found else self._read_each(i) for i in columns]

    @property
    def _layout(self) -> ParquetLayout:
        return self._parts[0][0].layout

    def _is_joinable(self, column: int) -> bool:
        columns, leaves = self._layout.columns, self._layout.columns.leaves[column]
        if len(leaves) != 1 or len(columns.ways[column]) != 1 or pt.is_nested(columns.fields[column].type):
            return False
        return not any(has_wide_differences(reader.layout, group.index, column) for reader, group in self._parts)

    def _keeps_dictionary(self, column: int) -> bool:
        """Whether all files hold strings that are better read as a dictionary."""
        return all(reader.layout.keeps_dictionary(group.index, column) for reader, group in self._parts)

    def _decode(self, columns: Sequence[int]) -> list[pa.Array] | None:
        """All rows of columns; None if they cannot be decoded together, perhaps since a file is damaged."""
        check_running()
        layout = self._layout
        leaves = [layout.columns.leaves[i][0] for i in columns]
        row_groups, content = list[tuple[int, list[Chunk]]](), list[bytes]()
        try:
            for reader, group in self._parts:
                chunks = reader.layout.footer.row_groups[group.index].chunks
                row_groups.append((group.num_rows, [chunks[leaf] for leaf in leaves]))
                content += reader.read_stored(group, leaves)
            stated = [chunk.num_bytes for _, chunks in row_groups for chunk in chunks]
            if [len(data) for data in content] != stated:
                return None  # a file was cut off
            dictionaries = [place for place, i in enumerate(columns) if self._keeps_dictionary(i)]
            data = joined_file([layout.footer.leaves[leaf] for leaf in leaves], row_groups, content)
            decoder = open_decoder(pa.BufferReader(data), None, dictionaries, verifies=layout.verifies)
            table = decoder.read_row_groups(range(len(row_groups)), range(len(leaves)), False)
            arrays = [
                _typed(_one_of(column), layout.columns.fields[i].type)
                for i, column in zip(columns, table.columns, strict=True)
            ]
        except (pa.ArrowException, OSError, ValueError):  # read alone, the file at fault is named
            return None
        return arrays if all(len(array) == self.edges[-1] for array in arrays) else None

    def _read_each(self, column: int) -> pa.Array:
        """A column file by file."""
        found = [array for reader, group in self._parts for array in reader.read(group, [column], All(group.num_rows))]
        if len({array.type for array in found}) > 1:
            found = [a.dictionary_decode() if isinstance(a, pa.DictionaryArray) else a for a in found]
        return one_array(pa.chunked_array(found))


def _one_of(column: pa.ChunkedArray) -> pa.Array:
    """A column in one piece; dictionaries that are equal are not compared value by value."""
    if not pt.is_dictionary(column.type) or not column.num_chunks:
        return one_array(column)
    chunks = [check_codes(chunk) for chunk in column.chunks]
    first = chunks[0].dictionary
    if all(chunk.dictionary.equals(first) for chunk in chunks[1:]):
        return pa.DictionaryArray.from_arrays(pa.concat_arrays([chunk.indices for chunk in chunks]), first)
    return one_array(column)


def _typed(array: pa.Array, kind: pa.DataType) -> pa.Array:
    """The values in the type of the file's schema, which the joined file does not carry."""
    if array.type == kind or isinstance(array, pa.DictionaryArray) or pt.is_dictionary(kind):
        return array
    return array.cast(kind)
