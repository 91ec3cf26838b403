"""Opening the files that metadata names: local ones directly, others through the catalog library's FileIO.

Nothing here knows formats. Local files need no catalog library. Lengths that come from metadata are checked against
the file before anything is allocated.
"""

import os
import re
import stat
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import lru_cache, partial
from pathlib import Path
from typing import Any, TypeVar

import pyarrow as pa

from nevermore.scan_core.io.cache import BoundedCache, clear
from nevermore.scan_core.io.location import FileIOConfig, Location, is_within, parse_location, relocate
from nevermore.scan_core.io.object_store import ArrowObject, ReplacedObjectError, S3Object, StoredObject, open_s3
from nevermore.scan_core.io.remote import SMALL_FILE_BYTES, ByteRanges, ByteSource, Pace, RemoteFile, requested
from nevermore.scan_core.model.errors import MalformedTableError, MissingFileError, OutsideTableError

T = TypeVar("T")
INDEX_SUFFIX = "-index.puffin"
"""At the end of the name of every statistics file of ours."""

_READ = os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC
_KINDS = (
    (stat.S_ISDIR, "a folder"),
    (stat.S_ISFIFO, "a FIFO"),
    (stat.S_ISSOCK, "a socket"),
    (stat.S_ISCHR, "a device"),
    (stat.S_ISBLK, "a device"),
)

Fingerprint = tuple[str, int, int]
"""Resolved path and, of local files, time and size."""


def locate(path: str, io: FileIOConfig) -> Location:
    """The place to open: relocated, with one spelling per scheme, and one where files of the table may lie.

    Raises:
        MalformedTableError: the path climbs out of a relocated prefix.
        OutsideTableError: the file is not in a place of the table.
    """
    location = relocate(path, io)
    if io.places is not None and not _is_allowed(location, io.places):
        forget_metadata()
        raise OutsideTableError(
            f"cannot open {path}: the table was found in {io.places[0]}, and this lies outside of the places that may hold "
            f"its files ({', '.join(io.places)}){_how_to_allow(location, path, io)}"
        )
    return location


def refuse_moved(named: str, live: str, io: FileIOConfig, delete_path: str) -> None:
    """Refuse a position delete that names a live data file where it lay before the table was moved.

    Tools that move tables may rewrite metadata and leave the paths inside position-delete files as they were. The deletes
    would then meet no file, and deleted rows come back. A path outside of the table's places that ends as a live file's
    does, from the place on, is taken for such a one; every other unknown path is that of a file that is gone.

    Args:
        named: data file by the position delete.
        live: a live data file of the table.
        io: places of the table, and relocation.
        delete_path: of the delete file.

    Raises:
        MalformedTableError: it is one; says how to relocate.
    """
    if io.places is None or parse_location(named).path == parse_location(live).path:
        return  # one path in two stores names two files (SEMANTICS rule 7), wherever the table lies
    other, here = relocate(named, io), relocate(live, io)
    if not other.path.endswith(f"/{here.path.rpartition('/')[2]}") or _is_allowed(other, io.places):
        return
    for place in io.places:
        root = parse_location(place).path.rstrip("/")
        tail = here.path.removeprefix(root)
        if here.path.startswith(f"{root}/") and other.path.endswith(tail):
            before = named.removesuffix(tail)
            raise MalformedTableError(
                f"{delete_path}: deletes rows of {named}, which is where {live} lay before the table was moved: its metadata "
                f"was rewritten, this file was not; read the table with --relocate '{before}={place}' (in Python "
                "relocate={old: new}), or rewrite its position deletes"
            )


@lru_cache(maxsize=65_536)
def _is_allowed(location: Location, places: tuple[str, ...]) -> bool:
    return any(is_within(location, parse_location(place)) for place in places)


def open_input(path: str, io: FileIOConfig) -> pa.NativeFile:
    """The file for random access; the caller closes it.

    Raises:
        MissingFileError: it does not exist or cannot be opened.
    """
    location = locate(path, io)
    with _explained(path, location, io):
        if location.is_local:
            _require_plain(os.stat(location.path), path)  # noqa: PTH116 - opening a FIFO would wait for its other end
            return pa.OSFile(location.path, "rb")
        filesystem, inner = _remote(location, io)
        opened: pa.NativeFile = filesystem.open_input_file(inner)
        return opened


def open_source(path: str, io: FileIOConfig) -> ByteSource:
    """The file for ranges of bytes; the caller closes it.

    Raises:
        MissingFileError: it does not exist or cannot be read. On an object store this may be found out by the first read.
    """
    location = locate(path, io)
    stored: StoredObject | None = None if location.is_local else open_s3(location, io.properties)
    if stored is None:
        file = open_input(path, io) if location.is_local else requested(partial(open_input, path, io))
        if isinstance(file, pa.OSFile | pa.MemoryMappedFile | pa.BufferReader):
            return ByteRanges(file)
        stored = ArrowObject(file)
    pace = _pace(location.scheme, location.authority, io.properties.get("s3.endpoint", ""))
    return RemoteFile(stored, pace, lambda error: _missing(path, location, error, io))


@lru_cache(maxsize=1024)
def _pace(scheme: str, authority: str, endpoint: str) -> Pace:  # noqa: ARG001  one per store, as the cache keys it
    return Pace()


def file_size(path: str, io: FileIOConfig) -> int:
    """Size in bytes; MissingFileError if there is no such file."""
    location = locate(path, io)
    with _explained(path, location, io):
        if location.is_local:
            return Path(location.path).stat().st_size
        with open_input(path, io) as file:
            return int(file.size())


def read_bytes(
    path: str, io: FileIOConfig, offset: int = 0, length: int | None = None, *, max_bytes: int | None = None
) -> bytes:
    """The bytes [offset, offset + length) of a file, or all from `offset` on.

    Raises:
        MissingFileError: it does not exist or cannot be read.
        MalformedTableError: the range is not inside the file, or longer than `max_bytes`.
    """
    location = locate(path, io)
    if location.is_local:
        with _opened(path, location, io) as (descriptor, status):
            return _read_local(descriptor, offset, _checked_length(path, offset, length, status.st_size, max_bytes))
    with _explained(path, location, io):
        if offset == 0 and length is None and is_fixed(path, io):
            return _read_metadata(path, location, io, max_bytes)
        return _read_remote(path, io, offset, length, max_bytes=max_bytes)


def _read_remote(path: str, io: FileIOConfig, offset: int, length: int | None, *, max_bytes: int | None) -> bytes:
    location = locate(path, io)
    if (stored := open_s3(location, io.properties)) is not None:
        return requested(partial(_read_stored, stored, path, offset, length, max_bytes))
    return requested(partial(_read_opened, path, io, offset, length, max_bytes))


def is_fixed(path: str, io: FileIOConfig) -> bool:
    """Whether a path names a metadata file of a store whose content never changes."""
    return not relocate(path, io).is_local and _METADATA.search(path) is not None


_METADATA = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}(\.gz)?\.metadata\.json$")
"""Names that no other content ever has; a command asks for the metadata of a table several times."""
_MAX_METADATA_BYTES = 16 * 1024**2
_KEPT_METADATA: BoundedCache[tuple[str, tuple[tuple[str, str], ...]], bytes] = BoundedCache(len)
os.register_at_fork(after_in_child=_KEPT_METADATA.forget_threads)


def _read_metadata(path: str, location: Location, io: FileIOConfig, max_bytes: int | None) -> bytes:
    key = str(location), tuple(sorted(io.properties.items()))
    found = _KEPT_METADATA.find(key)
    if found is None or (max_bytes is not None and len(found) > max_bytes):
        found = _read_remote(path, io, 0, None, max_bytes=max_bytes)
        _KEPT_METADATA.put(key, found, _MAX_METADATA_BYTES)
    return found


def read_whole(path: str, io: FileIOConfig) -> tuple[bytes, Fingerprint]:
    """All bytes of a file, and its `fingerprint`, which costs nothing while the file is open.

    Raises:
        MissingFileError: it does not exist or cannot be read.
    """
    location = locate(path, io)
    if not location.is_local:
        return read_bytes(path, io), (str(location), 0, 0)
    found = _read_whole_local(path, location, None, io)
    assert found is not None  # noqa: S101  none is too large
    return found


def read_small(path: str, io: FileIOConfig, max_bytes: int) -> tuple[bytes, Fingerprint] | None:
    """The same of a local file of up to `max_bytes`; None of others, which are better asked for ranges.

    Raises:
        MissingFileError: it does not exist or cannot be read.
    """
    location = locate(path, io)
    return _read_whole_local(path, location, max_bytes, io) if location.is_local else None


def fingerprint(path: str, io: FileIOConfig) -> Fingerprint:
    """What identifies a file's content to a cache: resolved path and, for local files, time and size.

    Files of a table never change under one name; local ones are checked all the same, since looking is cheap.
    """
    location = locate(path, io)
    if not location.is_local:
        return str(location), 0, 0
    with _explained(path, location, io):
        status = os.stat(location.path)  # noqa: PTH116 - once per manifest: a Path costs more than the call
    return location.path, status.st_mtime_ns, status.st_size


def exists(path: str, io: FileIOConfig) -> bool:
    """True if there is a file or folder with this name."""
    return _kind(locate(path, io), io) is not None


def is_folder(path: str, io: FileIOConfig) -> bool:
    """True if the path is a folder (on object stores: a prefix with something below it)."""
    return _kind(locate(path, io), io) == "folder"


def list_folder(path: str, io: FileIOConfig) -> list[str]:
    """Names of the files directly in a folder, sorted; empty if there is no such folder."""
    return _list(path, io, folders=False)


def list_folders(path: str, io: FileIOConfig) -> list[str]:
    """Names of the folders directly in a folder, sorted; empty if there is no such folder."""
    return _list(path, io, folders=True)


def _list(path: str, io: FileIOConfig, *, folders: bool) -> list[str]:
    location = locate(path, io)
    with _explained(path, location, io), suppress(FileNotFoundError, NotADirectoryError):
        if location.is_local:
            entries = Path(location.path).iterdir()
            return sorted(e.name for e in entries if (e.is_dir() if folders else e.is_file()))
        from pyarrow import fs

        filesystem, inner = _remote(location, io)
        infos = filesystem.get_file_info(fs.FileSelector(inner, allow_not_found=True))
        wanted = fs.FileType.Directory if folders else fs.FileType.File
        return sorted(i.base_name for i in infos if i.type == wanted)
    return []


def _kind(location: Location, io: FileIOConfig) -> str | None:
    if location.is_local:
        local = Path(location.path)
        if local.is_dir():
            return "folder"
        return "file" if local.exists() else None
    from pyarrow import fs

    filesystem, inner = _remote(location, io)
    with _explained(str(location), location, io):
        kind = filesystem.get_file_info(inner).type
    return {fs.FileType.Directory: "folder", fs.FileType.File: "file"}.get(kind)


def _remote(location: Location, io: FileIOConfig) -> tuple[Any, str]:
    from nevermore.scan_core.io.catalog import filesystem

    try:
        return filesystem(location, io.properties)
    except MissingFileError as error:
        raise MissingFileError(f"{error}{_how_to_relocate(str(location), io)}") from error


def _read_whole_local(
    path: str, location: Location, max_bytes: int | None, io: FileIOConfig
) -> tuple[bytes, Fingerprint] | None:
    with _opened(path, location, io) as (descriptor, status):
        if max_bytes is not None and status.st_size > max_bytes:
            return None
        data = _read_local(descriptor, 0, status.st_size)
    return data, (location.path, status.st_mtime_ns, status.st_size)


@contextmanager
def _opened(path: str, location: Location, io: FileIOConfig) -> Iterator[tuple[int, os.stat_result]]:
    with _explained(path, location, io):
        descriptor = os.open(location.path, _READ)
        try:
            status = os.fstat(descriptor)
            _require_plain(status, path)
            yield descriptor, status
        finally:
            os.close(descriptor)


def _read_local(descriptor: int, offset: int, length: int) -> bytes:
    parts = []
    while length > 0:
        part = os.pread(descriptor, length, offset)
        if not part:
            break
        parts.append(part)
        offset += len(part)
        length -= len(part)
    return parts[0] if len(parts) == 1 else b"".join(parts)


def _read_opened(path: str, io: FileIOConfig, offset: int, length: int | None, max_bytes: int | None) -> bytes:
    remote: Any = open_input(path, io)
    with remote:
        length = _checked_length(path, offset, length, remote.size(), max_bytes)
        data: bytes = remote.read_at(length, offset)
        return data


def _read_stored(stored: S3Object, path: str, offset: int, length: int | None, max_bytes: int | None) -> bytes:
    """A range of an object in one request, if it is short or its length is known."""
    if length is None and offset == 0:
        data, size = stored.tail(SMALL_FILE_BYTES)
        if size > len(data):
            _checked_length(path, 0, None, size, max_bytes)
            data = memoryview(bytes(stored.read_at(size - len(data), 0)) + data)
        return bytes(data)
    if length is None or length < 0 or offset < 0 or (max_bytes is not None and length > max_bytes):
        length = _checked_length(path, offset, length, stored.size(), max_bytes)
    data = stored.read_at(length, offset)
    if len(data) < length:
        _checked_length(path, offset, length, stored.size(), max_bytes)
    return bytes(data)


def _checked_length(path: str, offset: int, length: int | None, size: int, max_bytes: int | None) -> int:
    if length is None:
        length = size - offset
    if offset < 0 or length < 0 or offset + length > size:
        raise MalformedTableError(f"{path}: bytes {offset} to {offset + length} are not inside its {size} bytes")
    if max_bytes is not None and length > max_bytes:
        raise MalformedTableError(f"{path}: {length} bytes, and at most {max_bytes} are read of such a file")
    return length


def _require_plain(status: os.stat_result, path: str) -> None:
    if not stat.S_ISREG(status.st_mode):
        kind = next((name for test, name in _KINDS if test(status.st_mode)), "no plain file")
        raise MissingFileError(f"cannot open {path}: it is {kind}, no file of a table")


def forget_object(path: str, io: FileIOConfig) -> bool:
    """Forget what is held of a file whose bytes are damaged.

    Returns whether other bytes may come if it is read again: those of a store may have been damaged on the way.
    """
    forget_metadata()
    return not locate(path, io).is_local


def read_twice(path: str, io: FileIOConfig, read: Callable[[], T]) -> T:
    """What `read` finds in a file; if its bytes are damaged, and came from a store, they are asked for once more.

    Raises:
        MalformedTableError: they are damaged again.
    """
    try:
        return read()
    except MalformedTableError:
        if not forget_object(path, io):
            raise
        return read()


def forget_metadata() -> None:
    """Have metadata read again, which may have been damaged on the way, as it names a file that is not there."""
    _KEPT_METADATA.clear()
    clear()


@contextmanager
def _explained(path: str, location: Location, io: FileIOConfig) -> Iterator[None]:
    try:
        yield
    except MissingFileError:
        raise
    except OSError as error:
        raise _missing(path, location, error, io) from error


def _missing(path: str, location: Location, error: OSError, io: FileIOConfig) -> MissingFileError:
    if not location.is_local and not path.endswith(INDEX_SUFFIX):  # a scan does without an index that is gone
        forget_metadata()
    opened = "" if path == str(location) else f" (opened as {location})"
    if isinstance(error, ReplacedObjectError):
        return MissingFileError(
            f"cannot read {path}{opened}: it was replaced after parts of it had been read; files of a table never change under "
            "one name: run this again, and find out which program writes there"
        )
    reason = error.strerror or str(error)
    return MissingFileError(f"cannot open {path}{opened}: {reason}{_how_to_relocate(path, io)}")


def _how_to_allow(location: Location, path: str, io: FileIOConfig) -> str:
    if io.moved is not None and path.startswith(io.moved[0]):
        return _how_to_relocate(path, io)
    folder = place = str(location).rpartition("/")[0]
    if (
        location.is_local and io.places and not folder.startswith("/")
    ):  # what a relative path is relative to is not known
        root = parse_location(io.places[0]).path.rstrip("/")
        before, name, _ = f"{folder}/".partition(root[root.rindex("/") + 1 :] + "/")
        first = folder.partition("/")[0]
        folder, place = (before + name[:-1], root) if name else (first, f"{root}/{first}")
    return f"; if it is a file of the table, allow its folder: --relocate {folder}={place} (relocate={{old: new}})"


def _how_to_relocate(path: str, io: FileIOConfig) -> str:
    if io.moved is not None and path.startswith(io.moved[0]):
        old, new = io.moved
        found = f"; by its metadata the table lies at {old}, but the metadata was found in {new}: "
        return f"{found}if it was moved, read it with --relocate '{old}={new}' (in Python relocate={{old: new}})"
    return "; if the table was moved, name the old and the new place with --relocate OLD=NEW (relocate={old: new})"
