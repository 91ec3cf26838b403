"""Writes, reads and removes whole files of a table.

Local files are accessed directly, all others through their file system.

Named places at which tests end a run, chosen with NEVERMORE_CRASH_AT.
"""

import os
from collections import Counter
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

import pyarrow as pa

from scan_core.io import FileIOConfig, filesystem, parse_location, read_bytes

CrashPoint = Literal["after-files", "after-manifests", "after-commit", "before-acknowledgement"]
VARIABLE = "NEVERMORE_CRASH_AT"
EXIT_CODE = 137

_reached: Counter[str] = Counter()


def reached(point: CrashPoint) -> None:
    """Tell that the run is at `point`."""
    wanted = os.environ.get(VARIABLE)
    if wanted is None:
        return
    name, _, time = wanted.partition(":")
    _reached[point] += 1
    if name == point and _reached[point] == int(time or 1):
        os._exit(EXIT_CODE)


@dataclass(frozen=True)
class Storage:
    """The files below a table's location. `io` holds the FileIO properties of the catalog."""

    io: FileIOConfig = field(default_factory=FileIOConfig)
    _folders: set[str] = field(default_factory=set, repr=False, compare=False)

    def open_output(self, path: str) -> pa.NativeFile:
        """A new file, opened for writing; the caller closes it."""
        location = parse_location(path)
        if not location.is_local:
            remote, inner = filesystem(location, self.io.properties)
            return remote.open_output_stream(inner)
        folder = os.path.dirname(location.path)  # noqa: PTH120 - once per file
        if folder not in self._folders:
            Path(folder).mkdir(parents=True, exist_ok=True)
            self._folders.add(folder)
        return pa.OSFile(location.path, "wb")

    def open_input(self, path: str) -> pa.NativeFile:
        """A file, opened for reading at any place; the caller closes it."""
        location = parse_location(path)
        if location.is_local:
            return pa.OSFile(location.path, "rb")
        remote, inner = filesystem(location, self.io.properties)
        return remote.open_input_file(inner)

    def write(self, path: str, data: bytes) -> None:
        """A new file with these bytes."""
        with self.open_output(path) as sink:
            sink.write(data)

    def read(self, path: str) -> bytes:
        """All bytes of a file."""
        return read_bytes(path, self.io)

    def files_in(self, folder: str) -> list[str]:
        """Paths of the files directly in a folder; none if it does not exist."""
        location = parse_location(folder)
        if location.is_local:
            if not os.path.isdir(location.path):  # noqa: PTH112 - a path, not an object, is at hand
                return []
            with os.scandir(location.path) as entries:
                return [f"{folder}/{entry.name}" for entry in entries if entry.is_file()]
        from pyarrow import fs

        remote, inner = filesystem(location, self.io.properties)
        found = remote.get_file_info(fs.FileSelector(inner, allow_not_found=True))
        return [f"{folder}/{info.base_name}" for info in found if info.is_file]

    def files_below(self, folder: str) -> list[str]:
        """Paths of the files in a folder and in all folders in it; none if it does not exist."""
        location = parse_location(folder)
        if location.is_local:
            return [f"{at}/{name}" for at, _, names in os.walk(location.path) for name in names]
        from pyarrow import fs

        remote, inner = filesystem(location, self.io.properties)
        found = remote.get_file_info(fs.FileSelector(inner, allow_not_found=True, recursive=True))
        return [folder + info.path.removeprefix(inner) for info in found if info.is_file]

    def remove(self, paths: Iterable[str]) -> None:
        """Remove files that no commit names; one that is gone already is no error."""
        for path in paths:
            location = parse_location(path)
            with suppress(FileNotFoundError):
                if location.is_local:
                    os.unlink(location.path)  # noqa: PTH108 - a path, not an object, is at hand
                else:
                    remote, inner = filesystem(location, self.io.properties)
                    remote.delete_file(inner)
