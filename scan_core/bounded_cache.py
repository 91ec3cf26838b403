"""A cache of this process that is bounded in bytes and forgets what was used least recently.

For values that one thread makes while others wait. Delete indexes, which are made side by side and shared with scans that
still hold them, have their own: `deletes/cache.py`.
"""

from collections import OrderedDict
from collections.abc import Callable, Hashable
from threading import Lock
from typing import Generic, TypeVar

Key = TypeVar("Key", bound=Hashable)
Value = TypeVar("Value")


class BoundedCache(Generic[Key, Value]):
    """Values by key. Safe for several threads; where processes fork, have `forget_threads` called in the new one."""

    def __init__(self, size_of: Callable[[Value], int]) -> None:
        """`size_of` tells the bytes that a value holds."""
        self._size_of = size_of
        self._kept: OrderedDict[Key, tuple[Value, int]] = OrderedDict()
        self._num_bytes = 0
        self._lock = Lock()

    @property
    def num_bytes(self) -> int:
        """Of all values kept."""
        return self._num_bytes

    def __len__(self) -> int:
        """Values kept."""
        return len(self._kept)

    def get(self, key: Key, make: Callable[[], Value], limit_bytes: int) -> Value:
        """The value of `key`, made if there is none.

        Older values are dropped until all fit into `limit_bytes`; the newest stays even if it alone does not, for whoever
        asked will ask again.
        """
        with self._lock:
            if (found := self._kept.get(key)) is not None:
                self._kept.move_to_end(key)
                return found[0]
            value = make()
            self._kept[key] = value, self._size_of(value)
            self._num_bytes += self._kept[key][1]
            while self._num_bytes > limit_bytes and len(self._kept) > 1:
                _, (_, size) = self._kept.popitem(last=False)
                self._num_bytes -= size
            return value

    def clear(self) -> None:
        """Forget everything."""
        with self._lock:
            self._kept.clear()
            self._num_bytes = 0

    def forget_threads(self) -> None:
        """In a forked process nobody holds the lock: the thread that did was left behind."""
        self._lock = Lock()
