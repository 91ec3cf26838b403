"""The process-wide cache of decoded manifests, manifest lists and bitmap indexes, whose size only who decodes them knows."""

import os
from collections.abc import Callable, Hashable
from typing import Any, NamedTuple, TypeVar

from scan_core.bounded_cache import BoundedCache

CACHE_LIMIT_BYTES = 256 * 1024**2
"""About 200,000 decoded entries with statistics of 20 columns."""

T = TypeVar("T")


class _Decoded(NamedTuple):
    value: Any
    num_bytes: int


_DECODED: BoundedCache[Hashable, _Decoded] = BoundedCache(lambda decoded: decoded.num_bytes)
os.register_at_fork(after_in_child=_DECODED.forget_threads)


def cached(key: Hashable, load: Callable[[], tuple[T, int]]) -> T:
    """The value under `key`; `load` returns it with its size in bytes if it is not there.

    Two threads may load the same value at once; they get equal values.
    """
    found: T | None = get(key)
    return put(key, *load()) if found is None else found


def get(key: Hashable) -> Any:
    """The value under `key`, None if there is none."""
    found = _DECODED.find(key)
    return None if found is None else found.value


def put(key: Hashable, value: T, num_bytes: int) -> T:
    """Keep a value, in place of any other under that key, unless it alone exceeds the limit; it is given back."""
    _DECODED.put(key, _Decoded(value, num_bytes), CACHE_LIMIT_BYTES)
    return value


def clear() -> None:
    """Forget everything."""
    _DECODED.clear()


def total_bytes() -> int:
    """Estimated size of what is held."""
    return _DECODED.size
