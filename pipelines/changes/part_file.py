"""Rows of many tables by part, in one Arrow IPC file: however many parts there are, one file is open.

Each append is a record batch; which ones make a part is held in memory, and reading a part reads these alone. Which row
goes to which part is decided by whoever writes.
"""

from collections import defaultdict
from collections.abc import Iterator
from contextlib import suppress
from typing import BinaryIO

import pyarrow as pa

from pipelines.changes.spill import SpillFile, no_room


class PartFile:
    """Parts of one schema. Mutable until the first of them is read; `close` removes the file."""

    def __init__(self) -> None:
        self._file: SpillFile | None = None
        self._sink: BinaryIO | None = None
        self._writer: pa.RecordBatchFileWriter | None = None
        self._batches: dict[int, list[int]] = defaultdict(list)
        self._num_batches = 0

    def append(self, part: int, rows: pa.Table) -> None:
        """Write rows behind those that the part has.

        Raises:
            PipelineError: the disk takes no more.
        """
        try:
            if self._writer is None:
                self._file = SpillFile()
                self._sink = self._file.sink
                self._writer = pa.ipc.new_file(self._sink, rows.schema)
            for batch in rows.combine_chunks().to_batches():
                self._writer.write_batch(batch)
                self._batches[part].append(self._num_batches)
                self._num_batches += 1
        except OSError as error:
            raise no_room(error) from error

    def parts(self) -> Iterator[Iterator[pa.Table]]:
        """The tables of each part that has rows, in order of the parts.

        Raises:
            PipelineError: the disk does not take the end of the file.
        """
        try:
            self._end()
        except OSError as error:
            raise no_room(error) from error
        if self._file is None:
            return
        with self._file.open() as source, pa.ipc.open_file(source) as reader:
            for part in sorted(self._batches):
                yield (pa.Table.from_batches([reader.get_batch(number)]) for number in self._batches[part])

    def close(self) -> None:
        """Remove the file."""
        with suppress(OSError):  # a full disk takes no end of a file either, and this one goes anyway
            self._end()
        if self._file is not None:
            self._file.remove()
            self._file = None

    def _end(self) -> None:
        writer, sink, self._writer, self._sink = self._writer, self._sink, None, None
        if sink is not None:
            with sink:
                if writer is not None:
                    writer.close()
