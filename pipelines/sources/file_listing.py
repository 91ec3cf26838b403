"""Lists event files with their names, sizes and times of arrival.

Covers local folders, and object stores through the FileIO of the catalog. `file_position.py`
decides which files are new.
"""

import errno
import glob
import os
import re
import stat
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache, partial
from pathlib import PurePosixPath
from typing import TYPE_CHECKING, Any, Protocol

import pyarrow as pa

from nevermore.pipelines.errors import SourceError, in_short
from nevermore.scan_core import MissingFileError
from nevermore.scan_core.io import filesystem, parse_location

if TYPE_CHECKING:  # only object stores need it
    import pyarrow.fs


class FileSystem(Protocol):
    """The part of pyarrow's file systems that is needed here; also implemented by `RemoteFiles`."""

    def get_file_info(self, selector: "pa.fs.FileSelector", /) -> Sequence[Any]:
        """List the files in a folder: `path`, `size`, `mtime_ns`, `is_file` of each."""
        ...

    def open_input_file(self, path: str, /) -> pa.NativeFile:
        """Open a file for reading."""
        ...


@dataclass(frozen=True, slots=True)
class RemoteFile:
    """A file of a listing; `path` is its full address."""

    path: str
    size: int
    mtime_ns: int | None
    is_file: bool


@dataclass(frozen=True)
class RemoteFiles:
    """File systems by scheme and authority.

    Attributes:
        properties: properties of FileIO (`s3.endpoint`, `s3.access-key-id` ...), as in the catalog.
    """

    properties: Mapping[str, str] = field(default_factory=dict)

    def get_file_info(self, selector: "pa.fs.FileSelector") -> list[RemoteFile]:
        """List the files in a folder."""
        from pyarrow.fs import FileSelector

        folder, inner = self._at(selector.base_dir)
        found = folder.get_file_info(FileSelector(inner, recursive=selector.recursive))
        base, skip = selector.base_dir.rstrip("/"), len(inner.strip("/"))
        return [RemoteFile(base + i.path.strip("/")[skip:], i.size, i.mtime_ns, i.is_file) for i in found]

    def is_folder(self, path: str) -> bool:
        """Whether an address is that of a folder."""
        from pyarrow.fs import FileType

        folder, inner = self._at(path)
        try:
            return bool(folder.get_file_info(inner).type == FileType.Directory)
        except (OSError, pa.ArrowException) as error:
            raise SourceError(f"cannot reach {path}: {in_short(error)}") from error

    def open_input_file(self, path: str) -> pa.NativeFile:
        """Open a file for reading."""
        folder, inner = self._at(path)
        return folder.open_input_file(inner)

    def _at(self, path: str) -> "tuple[pa.fs.FileSystem, str]":
        try:
            return filesystem(parse_location(path), self.properties)
        except MissingFileError as error:
            raise SourceError(f"cannot reach {path}: {error}") from error


@cache
def environment_files() -> RemoteFiles:
    """File systems configured by the environment."""
    return RemoteFiles()


# ruff: noqa: PTH112, PTH114, PTH115, PTH116, PTH118, PTH207 - pathlib objects double the time of listing 100,000 files


_LITERAL = re.compile(r"\[([*?\[])\]")
"""A wildcard character that stands for itself, as `glob.escape` writes it."""
_WILDCARD = re.compile(r"[*?\[]")
_UNFINISHED = re.compile(r"[._].*|.*\.(tmp|crc|inprogress|filepart|_COPYING_)")
"""Prefixes and suffixes of files that are still being written or are not data (`_SUCCESS`, checksums); wildcards
skip them.
"""
_SMALL_BYTES = 64 * 1024
"""Files of up to this many bytes are read at once: seeking would cost more than reading."""
_FULL_LOAD = re.compile(r"LOAD[0-9A-F]{8}\b")
"""Names of AWS DMS's full-load files; its change files are named by date, which sorts before them."""


@dataclass(frozen=True, slots=True)
class ListedFile:
    """A file found in a source.

    Attributes:
        name: path relative to the folder of the source, with forward slashes.
        path: path to open it.
        size: size in bytes.
        arrived_ns: time of arrival: change time of local files (a copy may keep an old modification time),
            last modification in object stores.
    """

    name: str
    path: str
    size: int
    arrived_ns: int


QUIET_SECONDS = 60
"""A file must be unmodified for this long to be memory-mapped: truncating a mapped file kills its readers."""


def is_quiet(file: ListedFile) -> bool:
    """Whether a file has been unmodified for so long that its end is final."""
    return time.time_ns() - file.arrived_ns > QUIET_SECONDS * 1_000_000_000


def place(name: str) -> str:
    """Sort key of a file: its name, with AWS DMS's full-load files first in each folder."""
    folder, slash, base = name.rpartition("/")
    return f"{folder}{slash}\0{base}" if _FULL_LOAD.match(base) else name


def list_files(patterns: Sequence[str], filesystem: FileSystem | None = None) -> list[ListedFile]:
    """The files that match any of the patterns (`*`, `?`, `[...]`, `**` over folders), in the order of `place`.

    Raises:
        SourceError: a pattern without wildcards names no file, or a folder does not exist.
    """
    if not patterns:
        return []
    base = _common_folder(patterns)
    found: dict[str, ListedFile] = {}
    for pattern in patterns:
        remote = "://" in pattern and not pattern.startswith("file:")
        files = _list_remote(pattern, base, filesystem) if remote else _list_local(_local(pattern), _local(base))
        found |= {f.path: f for f in files if not _is_skipped(f.name, pattern)}
    return sorted(found.values(), key=lambda f: place(f.name))


def open_file(file: ListedFile, filesystem: FileSystem | None = None) -> pa.NativeFile:
    """Open a listed file for reading.

    Raises:
        SourceError: it cannot be opened.
    """
    try:
        if "://" not in file.path:
            with open(file.path, "rb", buffering=0, opener=_plain) as opened:
                if file.size <= _SMALL_BYTES:
                    return pa.BufferReader(opened.read())
            return pa.OSFile(file.path)
        opens = partial((filesystem or environment_files()).open_input_file, file.path)
        return pa.PythonFile(_Repeated(file.path, opens), "r")
    except (OSError, pa.ArrowException) as error:
        raise SourceError(f"cannot open {file.path}: {in_short(error)}") from error


_ATTEMPTS = 4
_PAUSE_SECONDS = 0.25
"""Before the second attempt, doubled before each later one."""


class _Repeated:
    """A file of a store, for `pyarrow.PythonFile`. It is read again from where an answer breaks off, as scans do."""

    closed = False

    def __init__(self, path: str, open_again: Callable[[], pa.NativeFile]) -> None:
        self._path = path
        self._open_again = open_again
        self._file = open_again()
        self._size = int(self._file.size())
        self._place = 0

    def read(self, length: int | None = None) -> bytes:
        """The next bytes; fewer only where the file ends."""
        left = max(self._size - self._place, 0)
        length = left if length is None or length < 0 else min(length, left)
        for attempt in range(1, _ATTEMPTS + 1):
            error: Exception | None = None
            try:
                data: bytes = self._file.read_at(length, self._place)
            except OSError as broken:
                error = broken
            if error is None and len(data) == length:
                break
            if attempt == _ATTEMPTS or isinstance(error, FileNotFoundError | PermissionError):
                reason = f"{len(data)} of {length} bytes arrived" if error is None else in_short(error)
                raise SourceError(f"cannot read {self._path}: {reason}") from error
            time.sleep(_PAUSE_SECONDS * 2 ** (attempt - 1))
            self._file = self._open_again()
        self._place += length
        return data

    def seek(self, offset: int, whence: int = 0) -> int:
        """Go to a place, from the beginning, from here or from the end."""
        self._place = offset + (0, self._place, self._size)[whence]
        return self._place

    def tell(self) -> int:
        """The place."""
        return self._place

    def close(self) -> None:
        """Close it."""
        self.closed = True
        self._file.close()


def stored_version(file: ListedFile, filesystem: FileSystem | None = None) -> bytes | None:
    """What another content of an object in a store would change (ETag); None for local files, and where the store does not tell.

    Raises:
        SourceError: it cannot be opened.
    """
    if "://" not in file.path:
        return None
    try:
        with (filesystem or environment_files()).open_input_file(file.path) as stream:
            metadata: dict[str, bytes] = stream.metadata() or {}
    except (OSError, pa.ArrowException) as error:
        raise SourceError(f"cannot open {file.path}: {in_short(error)}") from error
    return next((value for name, value in metadata.items() if name.lower() == "etag"), None)


def _plain(path: str, flags: int) -> int:
    """Open a regular file, without blocking on a FIFO or device that has replaced it since the listing."""
    descriptor = os.open(path, flags | os.O_NONBLOCK)
    if not stat.S_ISREG(mode := os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise OSError(errno.EINVAL, f"it is {_kind(mode)}, not an event file")
    return descriptor


def _is_skipped(name: str, pattern: str) -> bool:
    """Whether a wildcard skips this file; exact names and more specific wildcards match it."""
    base, asked = name.rpartition("/")[2], pattern.rpartition("/")[2]
    if (
        base == asked
        or asked[:1] in {".", "_"}
        or (base[:1] not in {".", "_"} and asked.endswith(f".{base.rpartition('.')[2]}"))
    ):
        return False
    return _UNFINISHED.fullmatch(base) is not None


def _local(path: str) -> str:
    return re.sub(r"^file:(//)?", "", path)


def _common_folder(patterns: Sequence[str]) -> str:
    folders = [_fixed_folder(p) for p in patterns]
    if len(set(folders)) == 1:
        return folders[0]
    return os.path.commonpath([_local(f) for f in folders]) if all("://" not in f for f in folders) else ""


def _fixed_folder(pattern: str) -> str:
    match = _first_wildcard(pattern)
    fixed = _literal(pattern[: match.start()] if match else pattern)
    return fixed.rsplit("/", 1)[0] if "/" in fixed else "."


def _first_wildcard(pattern: str) -> re.Match[str] | None:
    return _WILDCARD.search(_LITERAL.sub("...", pattern))


def _literal(pattern: str) -> str:
    """The path that a pattern without wildcards names."""
    return _LITERAL.sub(r"\1", pattern)


def _list_local(pattern: str, base: str) -> list[ListedFile]:
    if os.path.isdir(_literal(pattern)):
        pattern = os.path.join(pattern, "*")
    if "**" in pattern:
        _refuse_loops(_fixed_folder(pattern))
    paths = glob.glob(pattern, recursive=True)
    if not paths and not _first_wildcard(pattern):
        raise SourceError(f"no file {_literal(pattern)}")
    if not paths and not os.path.isdir(_fixed_folder(pattern)):
        raise SourceError(f"no folder {_fixed_folder(pattern)}, so nothing matches {pattern}")
    files = []
    prefix = os.path.join(base, "")
    for path in paths:
        if not path.isprintable() and not _is_utf8(path):
            raise SourceError(
                f"the name of file {os.fsencode(path)!r} is not UTF-8, so no table can record it: rename it"
            )
        if (status := _status(path)) is None:
            continue
        inner = path[len(prefix) :] if path.startswith(prefix) else os.path.relpath(path, base)
        name = inner if os.sep == "/" else inner.replace(os.sep, "/")
        files.append(ListedFile(name, path, status.st_size, max(status.st_ctime_ns, status.st_mtime_ns)))
    return files


def _is_utf8(path: str) -> bool:
    try:
        path.encode()
    except UnicodeEncodeError:
        return False
    return True


def _status(path: str) -> os.stat_result | None:
    """The status of a file; None for a folder, and for a file that has disappeared since the listing."""
    try:
        status = os.stat(path)
    except FileNotFoundError as error:
        if os.path.islink(path):
            raise SourceError(f"{path} is a link to a missing file ({os.readlink(path)}): remove it") from error
        return None
    except OSError as error:
        raise SourceError(f"{path} cannot be read: {_reason(error)}") from error
    if stat.S_ISDIR(status.st_mode):
        return None
    if not stat.S_ISREG(status.st_mode):
        raise SourceError(f"{path} is {_kind(status.st_mode)}, not an event file: remove it, or select other files")
    return status


def _refuse_loops(folder: str, above: tuple[tuple[int, int], ...] = ()) -> None:
    """Refuse links to parent folders, through which `**` would find every file dozens of times, or endlessly."""
    try:
        status = os.stat(folder)
        here = (status.st_dev, status.st_ino)
        if here in above:
            raise SourceError(f"{folder} is a link to one of its parent folders: remove it, or use a path without **")
        with os.scandir(folder) as entries:
            below = [
                entry.path
                for entry in entries
                if entry.is_dir(follow_symlinks=False) or (entry.is_symlink() and os.path.isdir(entry.path))
            ]
    except FileNotFoundError:
        return
    except OSError as error:
        raise SourceError(f"{folder} cannot be listed: {_reason(error)}") from error
    for path in below:
        _refuse_loops(path, (*above, here))


def _reason(error: OSError) -> str:
    return "a loop of symbolic links" if error.errno == errno.ELOOP else error.strerror or str(error)


def _kind(mode: int) -> str:
    kinds = (
        (stat.S_ISFIFO, "a FIFO"),
        (stat.S_ISSOCK, "a socket"),
        (stat.S_ISCHR, "a device"),
        (stat.S_ISBLK, "a device"),
    )
    return next((name for test, name in kinds if test(mode)), "a special file")


def _list_remote(pattern: str, base: str, filesystem: FileSystem | None) -> list[ListedFile]:
    from pyarrow.fs import FileSelector

    chosen = filesystem or environment_files()
    if not _first_wildcard(pattern) and isinstance(chosen, RemoteFiles) and chosen.is_folder(pattern):
        base, pattern = pattern.rstrip("/"), f"{pattern.rstrip('/')}/*"
    folder = _fixed_folder(pattern)
    try:
        infos = chosen.get_file_info(FileSelector(folder, recursive="/" in pattern[len(folder) + 1 :]))
    except FileNotFoundError as error:
        raise SourceError(f"no folder {folder}, so nothing matches {pattern}") from error
    except (OSError, pa.ArrowException) as error:
        if "No such file or directory" in str(error):  # of Google Cloud Storage, without the number that says so
            raise SourceError(f"no folder {folder}, so nothing matches {pattern}") from error
        raise SourceError(f"cannot list {folder}: {in_short(error)}") from error
    matcher = re.compile(_pattern(pattern))
    files = []
    for info in infos:
        if not info.is_file:
            continue
        if not matcher.fullmatch(info.path):
            if info.size and "//" in info.path.partition("://")[2] and matcher.fullmatch(_without_empty(info.path)):
                raise SourceError(
                    f"{info.path} has an empty part in its name (two slashes), which cannot be opened: rename the object, or "
                    "select others"
                )
            continue
        name = str(PurePosixPath(info.path[len(base) :].lstrip("/"))) if info.path.startswith(base) else info.path
        files.append(ListedFile(name, info.path, info.size, info.mtime_ns or 0))
    return files


def _without_empty(path: str) -> str:
    scheme, inner = path.split("://", 1)
    return f"{scheme}://{re.sub('/+', '/', inner)}"


def _pattern(wildcards: str) -> str:
    """Convert a pattern to a regular expression; as in local folders, only `**` matches slashes."""
    expression = ""
    for part in re.split(r"(\*\*/|\*+|\?|\[[^\]]+\])", wildcards):
        if part == "**/":
            expression += "(?:[^/]+/)*"
        elif part[:1] == "*":
            expression += "[^/]*"
        elif part == "?":
            expression += "[^/]"
        elif part[:1] == "[" and part[-1:] == "]":
            expression += "[^" + part[2:] if part[1] == "!" else part
        else:
            expression += re.escape(part)
    return expression
