"""Tables that do not fit into memory, in Arrow IPC files on the local disk, read back in the order they came.

Every process has a folder of its own under the system's one for temporary files, held by a lock while it lives. What a
killed process left behind is removed by the next run; which tables are spilled, and when, is decided elsewhere.
"""

import atexit
import fcntl
import os
import shutil
import tempfile
import uuid
from collections.abc import Iterator
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import IO

import pyarrow as pa

from pipelines.errors import PipelineError

LOCK = "lock"
_PREFIX = "nevermore-spill-"


def spill_root() -> Path:
    """Where all processes of this user spill: under TMPDIR."""
    return Path(tempfile.gettempdir()) / f"{_PREFIX}{os.getuid()}"


def remove_leftovers() -> int:
    """Remove what processes that were killed have spilled; how many of them."""
    removed = 0
    for folder in _folders(spill_root()):
        held = _locked(folder)
        if held is not None:
            shutil.rmtree(folder, ignore_errors=True)
            held.close()
            removed += 1
    return removed


class SpilledTables:
    """Tables in files, in order, as often as wanted. Mutable until it is read first; `close` removes the files."""

    def __init__(self) -> None:
        self.num_rows = 0
        self.nbytes = 0
        self._paths: list[Path] = []
        self._writer: pa.RecordBatchStreamWriter | None = None
        self._sink: pa.NativeFile | None = None
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
        for path in self._paths:
            with pa.OSFile(str(path)) as source, pa.ipc.open_stream(source) as reader:
                for batch in reader:
                    yield pa.Table.from_batches([batch])

    def close(self) -> None:
        """Remove the files."""
        with suppress(OSError):  # a full disk takes no end of a file either, and this one goes anyway
            self._end_file()
        for path in self._paths:
            path.unlink(missing_ok=True)
        self._paths = []
        self.num_rows = self.nbytes = 0

    def _writer_of(self, schema: pa.Schema) -> pa.RecordBatchStreamWriter:
        if self._writer is None or not schema.equals(self._schema):
            self._end_file()
            path = new_spill_path("arrows")
            self._paths.append(path)
            self._sink = pa.OSFile(str(path), "wb")
            self._writer, self._schema = pa.ipc.new_stream(self._sink, schema), schema
        return self._writer

    def _end_file(self) -> None:
        writer, sink, self._writer, self._sink = self._writer, self._sink, None, None
        if writer is not None and sink is not None:
            with sink:
                writer.close()


def new_spill_path(suffix: str) -> Path:
    """Where a new file may be made, in this process's folder."""
    return _own_folder() / f"{uuid.uuid4().hex}.{suffix}"


def no_room(error: OSError) -> PipelineError:
    """What to say when the disk takes no more."""
    return PipelineError(
        f"changes beyond memory_limit_bytes cannot be spilled to {spill_root()}: {error}; make room there, set TMPDIR to "
        "another folder, or lower commit_rows"
    )


@cache
def _own_folder() -> Path:
    """This process's folder; it goes when the process ends in an orderly way."""
    root = spill_root()
    root.mkdir(mode=0o700, exist_ok=True)
    if root.stat().st_uid != os.getuid():
        raise PipelineError(f"{root} belongs to another user: set TMPDIR to a folder of your own")
    held = None
    while held is None:  # another run may take a folder without its lock for a leftover
        folder = root / uuid.uuid4().hex
        folder.mkdir(mode=0o700)
        held = _locked(folder, make=True)
    atexit.register(_remove, folder, held, os.getpid())
    return folder


def _remove(folder: Path, held: IO[bytes], owner: int) -> None:
    if os.getpid() == owner:
        shutil.rmtree(folder, ignore_errors=True)
    held.close()


def _locked(folder: Path, *, make: bool = False) -> IO[bytes] | None:
    """The lock of a folder, held; None if its process lives, or has only just made it."""
    try:
        file = (folder / LOCK).open("wb" if make else "rb")
    except OSError:
        return None
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        file.close()
        return None
    return file


def _folders(root: Path) -> list[Path]:
    try:
        return [entry for entry in root.iterdir() if entry.is_dir()]
    except OSError:
        return []
