"""The process-wide cache of decoded manifests, manifest lists and bitmap indexes.

Bounded in bytes; least recently used goes first.
"""

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
    global _total_bytes  # noqa: PLW0603 - the total belongs to the cache of the process
    with _lock:
        if key in _entries:
            _entries.move_to_end(key)
            found: T = _entries[key][0]
            return found
    value, size = load()
    with _lock:
        if key not in _entries and size <= CACHE_LIMIT_BYTES:
            _entries[key] = (value, size)
            _total_bytes += size
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
