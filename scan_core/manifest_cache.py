"""The process-wide cache of decoded manifests, manifest lists and bitmap indexes.

Bounded in bytes; least recently used goes first.
"""

import os
import threading
from collections import OrderedDict
from collections.abc import Callable, Hashable
from typing import Any, TypeVar

CACHE_LIMIT_BYTES = 256 * 1024**2
"""About 200,000 decoded entries with statistics of 20 columns."""

T = TypeVar("T")

_entries: OrderedDict[Hashable, tuple[Any, int]] = OrderedDict()
_lock = threading.Lock()
_total_bytes = 0


def cached(key: Hashable, load: Callable[[], tuple[T, int]]) -> T:
    """The value under `key`; `load` returns it with its size in bytes if it is not there.

    Two threads may load the same value at once; they get equal values.
    """
    found: T | None = get(key)
    return put(key, *load()) if found is None else found


def get(key: Hashable) -> Any:
    """The value under `key`, None if there is none."""
    with _lock:
        found = _entries.get(key)
        if found is None:
            return None
        _entries.move_to_end(key)
        return found[0]


def put(key: Hashable, value: T, num_bytes: int) -> T:
    """Keep a value, in place of any other under that key, unless it alone exceeds the limit; it is given back."""
    global _total_bytes  # noqa: PLW0603 - the total belongs to the cache of the process
    with _lock:
        _total_bytes -= _entries.pop(key, (None, 0))[1]
        if num_bytes <= CACHE_LIMIT_BYTES:
            _entries[key] = (value, num_bytes)
            _total_bytes += num_bytes
            while _total_bytes > CACHE_LIMIT_BYTES:
                _, (_, freed) = _entries.popitem(last=False)
                _total_bytes -= freed
    return value


def clear() -> None:
    """Forget everything."""
    global _total_bytes  # noqa: PLW0603 - see above
    with _lock:
        _entries.clear()
        _total_bytes = 0


def total_bytes() -> int:
    """Estimated size of what is held."""
    return _total_bytes


def _forget_threads() -> None:
    """In a forked process nobody holds the lock; what the thread that did was about to change is built anew."""
    global _lock, _total_bytes  # noqa: PLW0603 - see above
    if _lock.locked():
        _entries.clear()
        _total_bytes = 0
    _lock = threading.Lock()


os.register_at_fork(after_in_child=_forget_threads)
