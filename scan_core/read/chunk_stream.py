"""Columns of a row group decoded from top to bottom, one window of rows after the other, in little memory.

A row group that is too large to be decoded at once is read in windows. Reading the pages of each window by themselves
would decode the dictionary of a chunk again for every one; here pyarrow goes through a chunk once, holding one page. Columns
of a window are decoded in several threads: where rows come in order other workers wait for this row group.
"""

from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor

import pyarrow as pa

from scan_core.read.byte_ranges import ByteSource
from scan_core.read.file_reader import RowGroup, refusing_malformed
from scan_core.read.page_headers import PageHeaders
from scan_core.read.parquet_layout import ParquetLayout, check_codes, open_decoder
from scan_core.read.remote_file import RemoteFile
from scan_core.read.struct_members import descended

_LOCAL_BUFFER = 256 * 1024
_REMOTE_BUFFER = 1024 * 1024
"""What is read ahead of each column at a time: a request to an object store must be worth its while."""
_MOST_SKIPPED_WINDOWS = 2
"""Beyond, decoding rows only to pass them by costs more than looking for their pages."""


class ChunkStreams:
    """The streams of an open file, one for each column of the row group being read."""

    def __init__(self, path: str, source: ByteSource, layout: ParquetLayout, parallelism: int = 1) -> None:
        self._path = path
        self._source = source
        self._layout = layout
        self._headers = PageHeaders(source, layout.footer)
        self._parallelism = parallelism
        self._pool: ThreadPoolExecutor | None = None
        self._row_group = -1
        self._streams: dict[int, _Stream] = {}

    def may_skip_to(self, row_group: RowGroup, column: int, window: range) -> bool:
        """Whether a window is so near to where the stream of a column is that it pays to go on with it."""
        stream = self._streams.get(column) if self._row_group == row_group.index else None
        position = stream.position if stream is not None else 0
        return position <= window.start <= position + _MOST_SKIPPED_WINDOWS * len(window)

    def read(
        self, row_group: RowGroup, columns: Sequence[int], window: range, batch_rows: int | None = None
    ) -> dict[int, pa.Array]:
        """Columns and struct members in the rows of a window, in the types of the file.

        No more than `batch_rows` rows of a column are decoded at a time, those of the first window unless given.

        Raises:
            MalformedTableError: pages that cannot be decoded, or hold fewer rows; names file and column.
        """
        if self._row_group != row_group.index:
            self._streams, self._row_group = {}, row_group.index
        if self._parallelism == 1 or len(columns) < 2:
            return {column: self._read_one(row_group, column, window, batch_rows) for column in columns}
        if self._pool is None:
            self._pool = ThreadPoolExecutor(self._parallelism, "scan-column")
        widest_first = sorted(columns, key=lambda i: -self._num_bytes(row_group, i))
        arrays = self._pool.map(lambda column: self._read_one(row_group, column, window, batch_rows), widest_first)
        return dict(zip(widest_first, arrays, strict=True))

    def close(self) -> None:
        """Let go of what is held for windows to come."""
        if self._pool is not None:
            self._pool.shutdown(wait=True, cancel_futures=True)
        self._streams.clear()

    def _num_bytes(self, row_group: RowGroup, column: int) -> int:
        chunks = self._layout.footer.row_groups[row_group.index].chunks
        return sum(chunks[leaf].uncompressed_bytes for leaf in self._layout.columns.leaves[column])

    def _read_one(self, row_group: RowGroup, column: int, window: range, batch_rows: int | None) -> pa.Array:
        name = self._layout.columns.fields[column].name
        with refusing_malformed(self._path, f"row group {row_group.index}, column {name!r}"):
            stream = self._streams.get(column)
            if stream is None or stream.position > window.start:
                stream = self._streams[column] = _Stream(self._open(row_group, column, batch_rows or len(window)))
            steps = (0,) * (len(self._layout.columns.ways[column]) - 1)  # nothing but the member was read
            found = check_codes(descended(stream.read(window), steps))
            if window.stop == row_group.num_rows:
                del self._streams[column]
            return found

    def _open(self, row_group: RowGroup, column: int, num_rows: int) -> Iterator[pa.RecordBatch]:
        is_local = not isinstance(self._source, RemoteFile)
        leaves = self._layout.columns.leaves[column]
        dictionary = (leaves.start,) if self._layout.keeps_dictionary(row_group.index, column) else ()
        if is_local:  # on an object store that would fetch the chunk twice
            self._headers.check(row_group.index, leaves)
        reader = open_decoder(
            self._source.for_arrow(),
            self._layout.metadata,
            dictionary,
            buffer_bytes=_LOCAL_BUFFER if is_local else _REMOTE_BUFFER,
            verifies=self._layout.verifies,
        )
        batches: Iterator[pa.RecordBatch] = reader.iter_batches(num_rows, [row_group.index], list(leaves), False)
        return batches


class _Stream:
    """One column from its top on; `position` is the first row that was not handed out."""

    def __init__(self, batches: Iterator[pa.RecordBatch]) -> None:
        self._batches = batches
        self._left: pa.Array | None = None
        self.position = 0

    def read(self, window: range) -> pa.Array:
        """The rows of a window at or behind the position; rows in front of it are passed by."""
        while self.position < window.start:
            self._next(window.start - self.position)
        parts = []
        while self.position < window.stop:
            parts.append(self._next(window.stop - self.position))
        return parts[0] if len(parts) == 1 else pa.chunked_array(parts).combine_chunks()

    def _next(self, most_rows: int) -> pa.Array:
        """Some rows, no more than `most_rows`."""
        while self._left is None:
            batch = next(self._batches, None)
            if batch is None:
                raise ValueError(f"the pages end after {self.position} rows")
            self._left = batch.column(0) if batch.num_rows else None
        part = self._left.slice(0, most_rows)
        self._left = self._left.slice(most_rows) if len(part) < len(self._left) else None  # else it would be kept
        self.position += len(part)
        return part
