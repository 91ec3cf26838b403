"""Writes, reads and removes whole files of a table: local ones directly, all others through their file system.

Also defines the crash points of tests, chosen with NEVERMORE_CRASH_AT.
"""

import os
from collections import Counter
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Literal

import pyarrow as pa

from nevermore.pipelines.errors import CommitNotWrittenError, describe
from nevermore.scan_core.io import FileIOConfig, filesystem, parse_location, read_bytes

CrashPoint = Literal["after-files", "after-manifests", "after-commit", "before-acknowledgement"]
VARIABLE = "NEVERMORE_CRASH_AT"
EXIT_CODE = 137

_reached: Counter[str] = Counter()


def reached(point: CrashPoint) -> None:
    """End the process if NEVERMORE_CRASH_AT names this point."""
    wanted = os.environ.get(VARIABLE)
    if wanted is None:
        return
    name, _, time = wanted.partition(":")
    _reached[point] += 1
    if name == point and _reached[point] == int(time or 1):
        os._exit(EXIT_CODE)


_REQUESTS = 16
"""Files of an object store that are removed at the same time: each costs a round trip."""
_RACES = 100
"""How often a folder is made again that another process finds empty, and removes, before a file is in it."""


@contextmanager
def writing(path: str) -> Iterator[None]:
    """Name the local file in the error of a full or broken disk, which Arrow raises without saying where.

    Raises:
        OSError: the system's error, with the file.
    """
    try:
        yield
    except OSError as error:
        if error.errno is None or error.filename is not None or not parse_location(path).is_local:
            raise
        raise OSError(error.errno, os.strerror(error.errno), path) from error


@dataclass(frozen=True, slots=True)
class StoredFile:
    """A file in a folder. `modified` is None where the file system does not say."""

    path: str
    size_bytes: int
    modified: datetime | None


@dataclass(frozen=True)
class Storage:
    """The files below a table's location. `io` holds the FileIO properties of the catalog."""

    io: FileIOConfig = field(default_factory=FileIOConfig)
    created: list[str] = field(default_factory=list, repr=False, compare=False)
    """Paths of the files that were opened for writing."""

    def open_output(self, path: str) -> pa.NativeFile:
        """Open a new file for writing; the caller closes it."""
        self.created.append(path)
        location = parse_location(path)
        if not location.is_local:
            remote, inner = filesystem(location, self.io.properties)
            return remote.open_output_stream(inner)
        for _ in range(_RACES):
            Path(location.path).parent.mkdir(parents=True, exist_ok=True)
            with suppress(FileNotFoundError):
                return pa.OSFile(location.path, "wb")
        raise FileNotFoundError(f"the folder of {path} is removed again and again")

    def open_input(self, path: str) -> pa.NativeFile:
        """Open a file for random access; the caller closes it."""
        location = parse_location(path)
        if location.is_local:
            return pa.OSFile(location.path, "rb")
        remote, inner = filesystem(location, self.io.properties)
        return remote.open_input_file(inner)

    def write(self, path: str, data: bytes) -> None:
        """Write a new file; nothing is left of it if that fails."""
        try:
            with writing(path), self.open_output(path) as sink:
                sink.write(data)
        except BaseException:
            self.remove([path])
            raise

    def write_for_commit(self, path: str, data: bytes) -> None:
        """Write what the catalog is to point to.

        Raises:
            CommitNotWrittenError: the disk of this machine does not take it, so nothing has happened. A store of objects may have
                taken it all the same.
        """
        try:
            self.write(path, data)
        except OSError as error:
            if error.errno is None or isinstance(error, ConnectionError | TimeoutError):
                raise
            raise CommitNotWrittenError(f"nothing was committed: {describe(error)}") from error

    def read(self, path: str) -> bytes:
        """Read all bytes of a file."""
        return read_bytes(path, self.io)

    def files_in(self, folder: str) -> list[str]:
        """Paths of the files directly in a folder; empty if it does not exist or is a symbolic link."""
        location = parse_location(folder)
        if location.is_local and Path(location.path).is_symlink():  # its files are not the table's
            return []
        return [file.path for file in self.list_files(folder, recursive=False)]

    def files_below(self, folder: str) -> list[str]:
        """Paths of the files in a folder and its subfolders; empty if it does not exist."""
        return [file.path for file in self.list_files(folder, recursive=True)]

    def list_files(self, folder: str, *, recursive: bool) -> list[StoredFile]:
        """The files in a folder, and in its subfolders if `recursive`; empty if it does not exist.

        On a local disk these are regular files alone, and links are not followed, except that the folder itself may be
        one: what a link leads to may belong to another table or program, and callers delete what they find.
        """
        from pyarrow import fs

        location = parse_location(folder)
        if location.is_local:
            return [
                StoredFile(folder + path.removeprefix(location.path), size, modified)
                for path, size, modified in _regular_files(location.path, recursive=recursive)
            ]
        system, inner = filesystem(location, self.io.properties)
        found = system.get_file_info(fs.FileSelector(inner, allow_not_found=True, recursive=recursive))
        return [
            StoredFile(folder + info.path.removeprefix(inner), info.size or 0, info.mtime)
            for info in found
            if info.is_file
        ]

    def remove(self, paths: Iterable[str]) -> None:
        """Remove files that no commit names, several at a time on object stores; missing files are not an error."""
        doomed = [*paths]
        if not doomed or parse_location(doomed[0]).is_local:
            for path in doomed:
                self._remove(path)
            return
        with ThreadPoolExecutor(_REQUESTS) as pool:
            for _ in pool.map(self._remove, doomed):
                pass

    def remove_empty_folders(self, folder: str) -> None:
        """Remove folders without files: names of partitions have values. In a store of objects there are none."""
        location = parse_location(folder)
        for path, _, _ in os.walk(location.path, topdown=False) if location.is_local else ():
            with suppress(OSError):  # it has files
                Path(path).rmdir()

    def _remove(self, path: str) -> None:
        location = parse_location(path)
        with suppress(FileNotFoundError):
            if location.is_local:
                os.unlink(location.path)  # noqa: PTH108 - a path, not an object, is at hand
            else:
                remote, inner = filesystem(location, self.io.properties)
                remote.delete_file(inner)


def _regular_files(folder: str, *, recursive: bool) -> Iterator[tuple[str, int, datetime]]:
    """Path, size and time of the last change of each regular file; files that disappear meanwhile are left out."""
    folders = [folder]
    while folders:
        try:
            entries = sorted(os.scandir(folders.pop()), key=lambda entry: entry.name)
        except FileNotFoundError:
            continue
        for entry in entries:
            if entry.is_file(follow_symlinks=False):
                with suppress(FileNotFoundError):
                    facts = entry.stat(follow_symlinks=False)
                    yield entry.path, facts.st_size, datetime.fromtimestamp(facts.st_mtime, UTC)
            elif recursive and entry.is_dir(follow_symlinks=False):
                folders.append(entry.path)
