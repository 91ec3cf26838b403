"""Tables that do not fit into memory, in Arrow IPC files on the local disk, read back in the order they came.

Every process has a folder of its own, see `private_files.py`, which also tells where. Which tables are spilled, and when,
is decided elsewhere.
"""

import uuid
from collections.abc import Iterator
from contextlib import suppress
from typing import BinaryIO

import pyarrow as pa

from pipelines.errors import PipelineError
from scan_core.private_files import spill_folder, user_folder


class SpilledTables:
    """Tables in files, in order, as often as wanted. Mutable until it is read first; `close` removes the files."""

    def __init__(self) -> None:
        self.num_rows = 0
        self.nbytes = 0
        self._files: list[SpillFile] = []
        self._writer: pa.RecordBatchStreamWriter | None = None
        self._sink: BinaryIO | None = None
        self._schema: pa.Schema | None = None

    def append(self, table: pa.Table) -> None:
        """Write a table.

        Raises:
            PipelineError: the disk takes no more.
        """
        if table.num_rows == 0:
            return
        try:
            writer = self._writer_of(table.schema)
            writer.write_table(table)
        except OSError as error:
            raise no_room(error) from error
        self.num_rows += table.num_rows
        self.nbytes += table.nbytes

    def tables(self) -> Iterator[pa.Table]:
        """One table per record batch that was written.

        Raises:
            PipelineError: the disk does not take the last of them.
        """
        try:
            self._end_file()
        except OSError as error:
            raise no_room(error) from error
        for file in self._files:
            with file.open() as source, pa.ipc.open_stream(source) as reader:
                for batch in reader:
                    yield pa.Table.from_batches([batch])

    def close(self) -> None:
        """Remove the files."""
        with suppress(OSError):  # a full disk takes no end of a file either, and this one goes anyway
            self._end_file()
        for file in self._files:
            file.remove()
        self._files = []
        self.num_rows = self.nbytes = 0

    def _writer_of(self, schema: pa.Schema) -> pa.RecordBatchStreamWriter:
        if self._writer is None or not schema.equals(self._schema):
            self._end_file()
            file = SpillFile()
            self._files.append(file)
            self._sink = file.sink
            self._writer, self._schema = pa.ipc.new_stream(self._sink, schema), schema
        return self._writer

    def _end_file(self) -> None:
        writer, sink, self._writer, self._sink = self._writer, self._sink, None, None
        if sink is not None:
            with sink:
                if writer is not None:
                    writer.close()


class SpillFile:
    """A new file in this process's folder, to be written once, read as often as wanted, and removed.

    Raises:
        OSError: it cannot be made.
    """

    def __init__(self) -> None:
        self._folder, self._name = spill_folder(), f"{uuid.uuid4().hex}.arrow"
        self.sink: BinaryIO = self._folder.create(self._name)

    def open(self) -> BinaryIO:
        """The file, to be read."""
        return self._folder.read(self._name)

    def remove(self) -> None:
        """Remove it."""
        self._folder.remove(self._name)


def no_room(error: OSError) -> PipelineError:
    """What to say when the disk takes no more."""
    return PipelineError(
        f"changes beyond memory_limit_bytes cannot be spilled to {user_folder('spill').path}: {error}; make room there, set TMPDIR to "
        "another folder, or lower commit_rows"
    )
