"""Column chunks of a Parquet row group decoded as a whole by pyarrow, strings as dictionaries where that pays.

Choosing pages is the business of `paged_chunks.py`, going through a chunk in little memory that of `chunk_stream.py`.
"""

from collections.abc import Callable, Sequence
from typing import Any

import pyarrow as pa

from scan_core.errors import MalformedTableError
from scan_core.read.byte_ranges import ByteSource
from scan_core.read.file_reader import ReadCounts, RowGroup, refusing_malformed
from scan_core.read.page_headers import PageHeaders
from scan_core.read.parquet_layout import ParquetLayout, check_codes, open_decoder
from scan_core.read.struct_members import read_members


class WholeChunks:
    """The column chunks of an open file."""

    def __init__(self, path: str, source: ByteSource, layout: ParquetLayout) -> None:
        self._path = path
        self._source = source
        self._layout = layout
        self._headers = PageHeaders(source, layout.footer)
        self._readers: dict[tuple[int, ...], Any] = {}

    def read(
        self,
        row_group: RowGroup,
        column_indices: Sequence[int],
        counts: ReadCounts,
        check: Callable[[Sequence[int]], None] | None = None,
    ) -> list[pa.Array]:
        """All rows of columns and struct members, in file types; `check` looks at their leaves once they are fetched.

        Raises:
            MalformedTableError: pages that cannot be decoded, or hold fewer rows; names file and column.
        """
        columns = self._layout.columns
        wanted = sorted(set(column_indices))
        leaves = sorted({leaf for i in wanted for leaf in columns.leaves[i]})
        counts.whole.update(wanted)
        chunks = self._layout.footer.row_groups[row_group.index].chunks
        with (
            refusing_malformed(self._path, lambda: f"row group {row_group.index}, columns {self._names(wanted)}"),
            self._source.held(
                [
                    *((chunks[leaf].start, chunks[leaf].num_bytes) for leaf in leaves),
                    *self._headers.ranges(row_group.index, leaves),
                ]
            ),
        ):
            if check is not None:
                check(leaves)
            self._headers.check(row_group.index, leaves)
            table = self._reader(row_group).read_row_group(row_group.index, leaves, False)
            ways = [columns.ways[i] for i in wanted]
            tops = sorted({way[0] for way in ways})
            whole = {top: check_codes(_one_array(column)) for top, column in zip(tops, table.columns, strict=True)}
            arrays = dict(zip(wanted, read_members(whole, ways, columns.ranges, leaves), strict=True))
        for column, array in arrays.items():
            if len(array) != row_group.num_rows:
                raise MalformedTableError(
                    f"{self._path}: row group {row_group.index}: column {columns.fields[column].name!r} has "
                    f"{len(array)} of {row_group.num_rows} rows"
                )
        return [arrays[i] for i in column_indices]

    def close(self) -> None:
        """Let go of the decoders."""
        self._readers.clear()

    def _reader(self, row_group: RowGroup) -> Any:
        """A decoder that reads the strings of this row group as dictionaries where that pays."""
        columns = self._layout.columns
        dictionaries = tuple(
            columns.leaves[i].start for i in columns.string_columns if self._layout.keeps_dictionary(row_group.index, i)
        )
        if dictionaries not in self._readers:
            source = self._source.for_arrow()
            self._readers[dictionaries] = open_decoder(
                source, self._layout.metadata, sorted(dictionaries), verifies=self._layout.verifies
            )
        return self._readers[dictionaries]

    def _names(self, columns: Sequence[int]) -> str:
        return ", ".join(repr(self._layout.columns.fields[i].name) for i in columns)


def _one_array(column: pa.ChunkedArray) -> pa.Array:
    if column.num_chunks == 1:
        return column.chunk(0)
    if column.nbytes < 2**31:
        return column.combine_chunks()
    wide = {pa.string(): pa.large_string(), pa.binary(): pa.large_binary()}.get(column.type)
    return (column.cast(wide) if wide else column).combine_chunks()
