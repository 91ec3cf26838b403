"""Delete indexes as flat files that processes map read-only: shared by the workers of a host, or larger than memory.

A file holds the pickled index with its arrays laid out behind it, so that opening costs no copy. Files live in a
folder that belongs to the user and to nobody else, for what is unpickled must be our own.
"""

import fcntl
import hashlib
import mmap
import os
import pickle
import struct
import tempfile
from collections.abc import Callable, Hashable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from scan_core.errors import OptionError

MAX_FOLDER_BYTES = 4 * 1024**3
"""Of all index files together; the oldest are removed beyond it (processes that map them keep them)."""

_MAGIC = b"NVRMIDX1"
_PREFIX = struct.Struct("<8sQQ")
_ALIGNMENT = 64


class MappedIndex:
    """An index whose arrays lie in a mapped file."""

    def __init__(self, path: Path) -> None:
        with path.open("rb") as file:
            self._map = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        if len(self._map) < _PREFIX.size:
            raise ValueError(f"{path} is not a whole index file")
        magic, size, header_bytes = _PREFIX.unpack_from(self._map)
        if magic != _MAGIC or size != len(self._map):
            raise ValueError(f"{path} is not a whole index file")
        view = memoryview(self._map)
        begin = _PREFIX.size
        payload, places = pickle.loads(view[begin : begin + header_bytes])  # noqa: S301 - see the charter
        buffers = [view[offset : offset + length] for offset, length in places]
        self.index: Any = pickle.loads(payload, buffers=buffers)  # noqa: S301 - same

    def release(self) -> None:
        """Give the memory of pages that were touched back; they are read again when needed."""
        self._map.madvise(mmap.MADV_DONTNEED)


def write_index(index: Any, path: Path) -> None:
    """Write a file that `MappedIndex` opens; it appears at once, whole."""
    buffers: list[pickle.PickleBuffer] = []
    payload = pickle.dumps(index, protocol=5, buffer_callback=buffers.append)
    raw = [b.raw() for b in buffers]
    header = pickle.dumps((payload, [(0, 0)] * len(raw)))
    # offsets change the header's length by a few bytes, so that they are counted from a generous start
    offset = _aligned(_PREFIX.size + len(header) + 16 * len(raw) + _ALIGNMENT)
    places = []
    for part in raw:
        places.append((offset, part.nbytes))
        offset = _aligned(offset + part.nbytes)
    header = pickle.dumps((payload, places))
    handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=".index-")
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(_PREFIX.pack(_MAGIC, offset, len(header)))
            file.write(header)
            for (place, _), part in zip(places, raw, strict=True):
                file.seek(place)
                file.write(part)
            file.truncate(offset)
        Path(temporary).replace(path)
    except BaseException:
        Path(temporary).unlink(missing_ok=True)
        raise


def shared_index(folder: str, key: Hashable, build: Callable[[], Any]) -> Any:
    """The index of `key`, built by exactly one process of the host and mapped by all.

    Raises:
        OptionError: the folder belongs to somebody else or others may write to it.
        OSError: the file cannot be written.
    """
    root = private_folder(Path(folder))
    path = root / f"{hashlib.sha256(repr(key).encode()).hexdigest()}.index"
    if (found := _open(path)) is not None:
        return found
    with _locked(path.with_suffix(".lock")):
        if (found := _open(path)) is not None:
            return found
        built = build()
        write_index(built, path)
        _remove_oldest(root)
    return _open(path) or built


def private_folder(path: Path) -> Path:
    """The folder, made if needed; OptionError unless it is the user's alone to write to."""
    path.mkdir(mode=0o700, parents=True, exist_ok=True)
    status = path.stat()
    if status.st_uid != os.getuid() or status.st_mode & 0o022:
        raise OptionError(f"index_folder {path} must belong to you, and be writable by nobody else")
    return path


def _open(path: Path) -> Any:
    try:
        found = MappedIndex(path)
        os.utime(path)
    except (FileNotFoundError, ValueError, pickle.UnpicklingError, EOFError):
        return None
    return found.index


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    with path.open("wb") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def _remove_oldest(folder: Path) -> None:
    files = sorted(((p, p.stat()) for p in folder.glob("*.index")), key=lambda f: -f[1].st_mtime)
    total = 0
    for path, status in files:
        total += status.st_size
        if total > MAX_FOLDER_BYTES:
            path.unlink(missing_ok=True)
            path.with_suffix(".lock").unlink(missing_ok=True)


def _aligned(offset: int) -> int:
    return -(-offset // _ALIGNMENT) * _ALIGNMENT
