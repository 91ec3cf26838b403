"""The scans that run in this process: how many share its memory and threads, and whether the one at work was stopped.

What takes long asks `check_running` now and then, wherever it is; the thread knows for which scan it works.
"""

import os
from collections.abc import Callable, Generator, Iterator
from concurrent.futures import Future, wait
from contextlib import contextmanager
from threading import Lock, local
from typing import Self, TypeVar
from weakref import WeakSet

from nevermore.scan_core.model.errors import ScanCancelledError

T = TypeVar("T")
_LOOK_SECONDS = 0.05
"""How often who waits for something else looks whether the scan was stopped."""


class Running:
    """One run of a scan, a context from its plan to its last result. Safe for several threads."""

    def __init__(self) -> None:
        self._outer = current()
        self._is_stopped = False
        self._lock = Lock()
        self._wake: Callable[[], None] | None = None
        self.is_cancelled = False

    def __enter__(self) -> Self:
        with _LOCK:
            _RUNNING.add(self)
        return self

    def __exit__(self, *_: object) -> None:
        self._is_stopped = True
        with _LOCK:
            _RUNNING.discard(self)

    def stop(self) -> None:
        """Stop the workers of this run: no more results are needed."""
        self._is_stopped = True

    def cancel(self) -> None:
        """Make this run raise `ScanCancelledError`, also while it waits."""
        with self._lock:
            self.is_cancelled = self._is_stopped = True
            wake = self._wake
        if wake is not None:
            wake()

    def on_cancel(self, wake: Callable[[], None] | None) -> None:
        """Have `wake` called by `cancel`; None removes the callback."""
        with self._lock:
            self._wake = wake

    def check(self) -> None:
        """Check that neither this run nor the run it is part of was stopped.

        Raises:
            ScanCancelledError: they were.
        """
        if self._is_stopped:
            raise ScanCancelledError
        if self._outer is not None:
            self._outer.check()

    @contextmanager
    def at_work(self) -> Iterator[None]:
        """A context in which the current thread works for this run."""
        before, _THREAD.running = current(), self
        try:
            yield
        finally:
            _THREAD.running = before

    def stepped(self, items: Iterator[T]) -> Iterator[T]:
        """The items, each made at work for this run: between two of them the thread may do something else."""
        try:
            while True:
                with self.at_work():
                    self.check()
                    try:
                        item = next(items)
                    except StopIteration:
                        return
                yield item
        finally:
            if isinstance(items, Generator):
                items.close()


class ProcessLock:
    """A lock of an object that forked processes may use, too: free in a new process, which lacks the thread that held it."""

    def __init__(self) -> None:
        self._lock = Lock()
        _PROCESS_LOCKS.add(self)

    def __enter__(self) -> None:
        self._lock.acquire()

    def __exit__(self, *_: object) -> None:
        self._lock.release()

    def forget_threads(self) -> None:
        """Replace the lock, in a forked process."""
        self._lock = Lock()


_PROCESS_LOCKS: WeakSet[ProcessLock] = WeakSet()
_THREAD = local()
_LOCK = Lock()
_RUNNING: set[Running] = set()


def current() -> Running | None:
    """The run for which this thread works."""
    found: Running | None = getattr(_THREAD, "running", None)
    return found


def check_running() -> None:
    """Check that the run for which this thread works was not stopped.

    Raises:
        ScanCancelledError: it was.
    """
    if (running := current()) is not None:
        running.check()


def awaited(future: "Future[T]") -> T:
    """What another thread makes for the run of this one. Does not wait for it once that run was stopped.

    Raises:
        ScanCancelledError: it was stopped.
    """
    while current() is not None and not wait((future,), _LOOK_SECONDS).done:
        check_running()
    return future.result()


def is_stopped() -> bool:
    """Whether the run for which this thread works was stopped."""
    try:
        check_running()
    except ScanCancelledError:
        return True
    return False


def sharing() -> int:
    """The number of runs that share the memory and threads of this process, at least one."""
    return max(len(_RUNNING), 1)


def _forget() -> None:
    """Forget all runs and release all locks: no thread continues in a forked process."""
    global _LOCK  # noqa: PLW0603  a lock that a thread of the parent may have held
    _LOCK = Lock()
    _RUNNING.clear()
    _THREAD.running = None
    for lock in _PROCESS_LOCKS:
        lock.forget_threads()


os.register_at_fork(after_in_child=_forget)
