"""Rows of many tables by part, in one Arrow IPC file: however many parts there are, one file is open.

Each append is a record batch; which ones make a part is held in memory, and reading a part reads these alone. Which row
goes to which part is decided by whoever writes.
"""

from collections import defaultdict
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pyarrow as pa

from pipelines.changes.spill import new_spill_path, no_room


class PartFile:
    """Parts of one schema. Mutable until the first of them is read; `close` removes the file."""

    def __init__(self) -> None:
        self._path: Path | None = None
        self._sink: pa.NativeFile | None = None
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
                self._path = new_spill_path("arrow")
                self._sink = pa.OSFile(str(self._path), "wb")
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
        if self._path is None:
            return
        with pa.OSFile(str(self._path)) as source, pa.ipc.open_file(source) as reader:
            for part in sorted(self._batches):
                yield (pa.Table.from_batches([reader.get_batch(number)]) for number in self._batches[part])

    def close(self) -> None:
        """Remove the file."""
        with suppress(OSError):  # a full disk takes no end of a file either, and this one goes anyway
            self._end()
        if self._path is not None:
            self._path.unlink(missing_ok=True)
            self._path = None

    def _end(self) -> None:
        writer, sink, self._writer, self._sink = self._writer, self._sink, None, None
        if writer is not None and sink is not None:
            with sink:
                writer.close()
