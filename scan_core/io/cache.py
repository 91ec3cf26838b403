"""Caches of a process: bounded in bytes, least recently used values dropped first.

`BoundedCache` is the one cache class, and `SharedBuilds` lets one thread make what several ask for; `cached` keeps decoded
manifests, manifest lists and directories of bitmap indexes, whose sizes only their decoders know.
"""

import os
from collections import OrderedDict
from collections.abc import Callable, Hashable
from concurrent.futures import Future
from operator import itemgetter
from threading import Lock
from typing import Any, Generic, TypeVar

from nevermore.scan_core.model.errors import ScanCancelledError
from nevermore.scan_core.model.running import awaited, check_running

Key = TypeVar("Key", bound=Hashable)
Value = TypeVar("Value")


def _one(_: object) -> int:
    return 1


class BoundedCache(Generic[Key, Value]):
    """Values by key. Safe for several threads; where processes fork, have `forget_threads` called in the new one."""

    def __init__(self, size_of: Callable[[Value], int] = _one) -> None:
        """`size_of` returns what a value counts toward the limit; called once per value."""
        self._size_of = size_of
        self._kept: OrderedDict[Key, tuple[Value, int]] = OrderedDict()
        self._size = 0
        self._lock = Lock()

    @property
    def size(self) -> int:
        """Total size of the cached values."""
        return self._size

    def __len__(self) -> int:
        """Number of cached values."""
        return len(self._kept)

    def find(self, key: Key) -> Value | None:
        """The value of `key`; None if it is missing."""
        with self._lock:
            found = self._kept.get(key)
            if found is None:
                return None
            self._kept.move_to_end(key)
            return found[0]

    def put(self, key: Key, value: Value, limit: int) -> Value:
        """Keep a value, in place of any other under that key; it is given back.

        Older values are dropped until all fit into `limit`. One that alone does not is not kept.
        """
        size = self._size_of(value)
        with self._lock:
            self._size -= self._kept.pop(key, (value, 0))[1]
            if size <= limit:
                self._keep(key, value, size, limit)
        return value

    def get(self, key: Key, make: Callable[[], Value], limit: int) -> Value:
        """The value of `key`; if it is missing, one thread makes it while the others wait.

        Older values are dropped until all fit into `limit`; the newest stays even if it alone does not, because its
        caller will ask for it again.
        """
        with self._lock:
            if (found := self._kept.get(key)) is not None:
                self._kept.move_to_end(key)
                return found[0]
            value = make()
            self._keep(key, value, self._size_of(value), limit)
            return value

    def drop(self, key: Key) -> None:
        """Forget one value."""
        with self._lock:
            self._size -= self._kept.pop(key, (None, 0))[1]

    def clear(self) -> None:
        """Forget everything."""
        with self._lock:
            self._forget()

    def forget_threads(self) -> None:
        """After a fork: replace the lock, which no thread of the new process holds, and drop values that were being changed."""
        if self._lock.locked():
            self._forget()
        self._lock = Lock()

    def _keep(self, key: Key, value: Value, size: int, limit: int) -> None:
        self._kept[key] = value, size
        self._size += size
        while self._size > limit and len(self._kept) > 1:
            _, (_, freed) = self._kept.popitem(last=False)
            self._size -= freed

    def _forget(self) -> None:
        self._kept.clear()
        self._size = 0


class SharedBuilds(Generic[Key, Value]):
    """Values that are being made: one thread makes the value of a key, and those that ask meanwhile wait for it.

    Safe for several threads; where processes fork, have `forget_threads` called in the new one.
    """

    def __init__(self) -> None:
        self._running: dict[Key, Future[Value]] = {}
        self._lock = Lock()

    def get(self, key: Key, find: Callable[[], Value | None], make: Callable[[], Value]) -> tuple[Value, bool]:
        """(the value of `key`, whether this call made it).

        Args:
            key: of the value.
            find: where it is kept; called with the lock held.
            make: makes and keeps it. An error is raised to everybody who waits, and not remembered; if its scan was
                cancelled, another of them makes it.
        """
        while True:
            with self._lock:
                if (found := find()) is not None:
                    return found, False
                running = self._running.get(key)
                if is_mine := running is None:
                    running = self._running[key] = Future()
            if is_mine:
                break
            try:
                return awaited(running), False
            except ScanCancelledError:  # that of another scan, which nobody wants any more
                check_running()
        try:
            value = make()
        except BaseException as error:
            with self._lock:
                del self._running[key]
            running.set_exception(error)
            raise
        with self._lock:
            del self._running[key]
        running.set_result(value)
        return value, True

    def forget_threads(self) -> None:
        """After a fork: forget what only threads of the other process were making."""
        self._running, self._lock = {}, Lock()


CACHE_LIMIT_BYTES = 256 * 1024**2
"""About 200,000 decoded entries with statistics of 20 columns."""

T = TypeVar("T")


_DECODED: BoundedCache[Hashable, tuple[Any, int]] = BoundedCache(itemgetter(1))
"""Values with their sizes in bytes."""
os.register_at_fork(after_in_child=_DECODED.forget_threads)


def cached(key: Hashable, load: Callable[[], tuple[T, int]]) -> T:
    """The value under `key`; `load` returns it with its size in bytes if it is not there.

    Two threads may load the same value at once; they get equal values.
    """
    found: T | None = get(key)
    return put(key, *load()) if found is None else found


def get(key: Hashable) -> Any:
    """The value under `key`; None if it is missing."""
    return (_DECODED.find(key) or (None,))[0]


def put(key: Hashable, value: T, num_bytes: int) -> T:
    """Keep a value, in place of any other under that key, unless it alone exceeds the limit; it is given back."""
    _DECODED.put(key, (value, num_bytes), CACHE_LIMIT_BYTES)
    return value


def clear() -> None:
    """Forget everything."""
    _DECODED.clear()


def total_bytes() -> int:
    """Estimated size of the cached values."""
    return _DECODED.size
