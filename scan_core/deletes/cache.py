"""The process-wide cache of loaded deletes: each delete file is opened once per process and snapshot.

Entries are immutable and shared by all threads; the cache is bounded in bytes and forgets the least recently used.
What is still in use by a scan stays shared even after it was forgotten.
"""

import os
import threading
from collections.abc import Callable, Hashable
from concurrent.futures import Future
from typing import Any, Protocol
from weakref import WeakValueDictionary

from scan_core.bounded_cache import BoundedCache
from scan_core.metrics import ScanMetrics


class Sized(Protocol):
    """What can be cached: anything that knows the memory it holds and can be referenced weakly."""

    @property
    def num_bytes(self) -> int:
        """Memory held."""
        ...


class DeleteCache:
    """Least-recently-used entries within a number of bytes that each caller states."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._kept: BoundedCache[Hashable, Any] = BoundedCache(lambda entry: entry.num_bytes)
        self._alive: WeakValueDictionary[Hashable, Any] = WeakValueDictionary()
        self._building: dict[Hashable, Future[Any]] = {}

    @property
    def num_bytes(self) -> int:
        """Bytes of the entries kept."""
        return self._kept.size

    def get_or_build(self, key: Hashable, build: Callable[[], Any], limit_bytes: int, metrics: ScanMetrics) -> Any:
        """The entry of `key`, built by exactly one thread if there is none; others wait for it.

        An error of `build` is raised to everybody who waits, and not remembered.
        """
        with self._lock:
            found = self._alive.get(key)
            if found is not None:
                self._keep(key, found, limit_bytes)
                metrics.delete_index_hits += 1
                return found
            future = self._building.get(key)
            mine = future is None
            if future is None:
                future = self._building[key] = Future()
        if not mine:
            built = future.result()
            metrics.delete_index_hits += 1
            return built
        try:
            built = build()
        except BaseException as error:
            with self._lock:
                del self._building[key]
            future.set_exception(error)
            raise
        with self._lock:
            del self._building[key]
            self._alive[key] = built
            self._keep(key, built, limit_bytes)
        future.set_result(built)
        return built

    def holds(self, key: Hashable) -> bool:
        """Whether an entry is there, and need not be built."""
        with self._lock:
            return key in self._alive

    def clear(self) -> None:
        """Forget every entry."""
        with self._lock:
            self._kept.clear()
            self._alive.clear()

    def forget_threads(self) -> None:
        """In a forked process nobody holds the lock or builds anything: the threads that did were left behind."""
        self._lock = threading.Lock()
        self._kept.forget_threads()
        self._building = {}

    def _keep(self, key: Hashable, entry: Sized, limit_bytes: int) -> None:
        if limit_bytes > 0:
            self._kept.get(key, lambda: entry, limit_bytes)


DELETE_CACHE = DeleteCache()
"""The cache of this process."""
os.register_at_fork(after_in_child=DELETE_CACHE.forget_threads)
