"""Parts of objects on a disk of this machine, shared by the user's processes, so that they are not fetched again.

Only what an object store was asked for lies here, named by object, version and range: a replaced object has other names. The
end of an object, with its footer and page indexes, is kept when it is first read, any other range when it is read a second
time: so a scan of much data once does not push out what is read often.
"""

import logging
import time
from contextlib import suppress
from hashlib import blake2b

import xxhash

from scan_core.io.private_files import PrivateFolder, UnsafeFileError, user_folder
from scan_core.model.running import ProcessLock

_FOLDER = "objects"
_SWEEPING = "lock"
MAX_RANGE_BYTES = 1024**2
"""Longer ranges are limited by bandwidth rather than latency, and are not kept."""
_MAX_AGE_SECONDS = 7 * 24 * 3600
_SWEPT_SHARE = 16
"""The folder is swept whenever a process has added one part in so many of the limit."""
_LEFT_SHARE = 0.9

_log = logging.getLogger(__name__)


class DiskCache:
    """A folder of entries under names of the caller. Safe for several threads and processes.

    Args:
        folder: private to the user; holds nothing else.
        limit_bytes: beyond it, entries that were not used for longest are removed, in any case those not used for 7 days.
    """

    def __init__(self, folder: PrivateFolder, limit_bytes: int) -> None:
        self._folder = folder
        self._limit = limit_bytes
        self._added = limit_bytes // _SWEPT_SHARE  # look once at what others left
        self._lock = ProcessLock()

    def get(self, name: str) -> bytes | None:
        """The entry, if it is there and whole."""
        try:
            with self._folder.read(name) as file:
                stored = file.read()
            if len(stored) <= 8 or xxhash.xxh64_digest(stored[8:]) != stored[:8]:
                return None
            self._folder.touch(name)
        except (OSError, UnsafeFileError):
            return None
        return stored[8:]

    def put(self, name: str, data: memoryview, *, is_first: bool) -> None:
        """Keep an entry; with `is_first` only if it was put before, otherwise only note the attempt.

        A disk that is full or broken is reported once per process; nothing fails for it.
        """
        if not data or len(data) > self._limit // 2:
            return
        try:
            if is_first and not self._is_noted(name):
                with suppress(FileExistsError):
                    self._folder.create(name).close()
                return
            with self._folder.replace(name) as file:
                file.write(xxhash.xxh64_digest(data))
                file.write(data)
            with self._lock:
                self._added += len(data) + 8
                is_due = self._added >= self._limit // _SWEPT_SHARE
                self._added = 0 if is_due else self._added
            if is_due:
                self._sweep()
        except (OSError, UnsafeFileError) as error:
            if self._limit:
                _log.warning("objects of object stores are not kept in %s: %s", self._folder.path, error)
            self._limit = 0

    def clear(self) -> int:
        """Remove all entries; returns their number."""
        names = self._folder.names()
        for name in names:
            self._folder.remove(name)
        return len(names)

    def _is_noted(self, name: str) -> bool:
        with suppress(FileNotFoundError):
            return self._folder.status(name).st_size == 0
        return False

    def _sweep(self) -> None:
        """Remove entries that are too old, and those that were not used for longest beyond the limit."""
        held = self._folder.try_lock(_SWEEPING, make=True)
        if held is None:  # another process is at it
            return
        with held:
            found = []
            for name in self._folder.names():
                with suppress(FileNotFoundError):
                    status = self._folder.status(name)
                    found.append((status.st_mtime, status.st_size, name))
            left = sum(size for _, size, _ in found)
            wanted = self._limit if left <= self._limit else int(self._limit * _LEFT_SHARE)
            oldest = time.time() - _MAX_AGE_SECONDS
            for used, size, name in sorted(found):
                if name == _SWEEPING or (used >= oldest and left <= wanted):
                    continue
                self._folder.remove(name)
                left -= size


_caches: dict[int, DiskCache] = {}


def disk_cache(limit_bytes: int) -> DiskCache | None:
    """The cache of this user; None if nothing may be kept."""
    if limit_bytes <= 0:
        return None
    if (found := _caches.get(limit_bytes)) is None:
        found = _caches[limit_bytes] = DiskCache(user_folder(_FOLDER), limit_bytes)
    return found


def clear_disk_cache() -> int:
    """Remove everything that this user's cache on this machine holds; returns the number of entries."""
    return DiskCache(user_folder(_FOLDER), 0).clear()


def entry_name(*parts: str) -> str:
    """The name of an entry: a digest of the parts that identify it."""
    return blake2b("\0".join(parts).encode("utf-8", "surrogatepass"), digest_size=20).hexdigest()
