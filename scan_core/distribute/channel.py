"""Results on their way from threads to the one that consumes them, bounded in number.

Who writes what, and in which order channels are read, is the business of `local.py`.
"""

from collections import deque
from collections.abc import Iterator
from threading import Condition, Lock
from typing import Generic, TypeVar

T = TypeVar("T")


class Channel(Generic[T]):
    """Results on their way from `writers` threads to the consumer, no more than `capacity` at a time."""

    def __init__(self, capacity: int, writers: int = 1) -> None:
        self._items: deque[T] = deque()
        self._changed = Condition(Lock())
        self._capacity = capacity
        self._writers = writers
        self._cancelled = False
        self.error: BaseException | None = None

    def put(self, item: T) -> bool:
        """Wait for room and hand over; False if nobody wants it any more."""
        with self._changed:
            while len(self._items) >= self._capacity and not self._cancelled:
                self._changed.wait()
            if self._cancelled:
                return False
            self._items.append(item)
            self._changed.notify_all()
            return True

    def close(self, error: BaseException | None) -> None:
        """No more items will come from one of the writers; after an error from none."""
        with self._changed:
            self.error = self.error or error
            self._writers = 0 if error is not None else self._writers - 1
            self._changed.notify_all()

    def cancel(self) -> None:
        """Nobody will take items any more."""
        with self._changed:
            self._cancelled = True
            self._items.clear()
            self._changed.notify_all()

    def __iter__(self) -> Iterator[T]:
        """The items, then the error if there was one."""
        while True:
            with self._changed:
                while not self._items and self._writers > 0:
                    self._changed.wait()
                if not self._items:
                    break
                item = self._items.popleft()
                self._changed.notify_all()
            yield item
        if self.error is not None:
            raise self.error
