"""The threads of a run: what may run at the same time is given to them, and its results are taken in order.

Compiled kernels, Arrow, decompression and file access run outside of Python's global lock, so that threads use all cores.
"""

import os
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import contextmanager
from contextvars import ContextVar
from typing import TypeVar

T = TypeVar("T")


def num_cores() -> int:
    """Number of cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


POOL: ContextVar[ThreadPoolExecutor | None] = ContextVar("workers", default=None)
"""The threads of this run; None does everything in turn, as do the threads themselves: none waits for another."""
_THREADS: ContextVar[int] = ContextVar("threads", default=1)


@contextmanager
def workers(threads: int) -> Iterator[None]:
    """Let `ahead` use this many threads within the context; 1 does everything in turn, in the calling thread."""
    if threads <= 1:
        yield
        return
    with ThreadPoolExecutor(threads, "nevermore-worker") as pool:
        chosen, number = POOL.set(pool), _THREADS.set(threads)
        try:
            yield
        finally:
            POOL.reset(chosen)
            _THREADS.reset(number)


def num_threads() -> int:
    """Number of threads of this run; 1 outside of `workers`."""
    return _THREADS.get()


def ahead(tasks: Iterable[Callable[[], T]]) -> Iterator[T]:
    """Yield the results of tasks in order; as many tasks as there are threads run ahead of the caller.

    Raises:
        Exception: what a task raises, or `tasks` itself, in its turn. Tasks that have begun end before this does.
    """
    pool = POOL.get()
    if pool is None:
        for task in tasks:
            yield task()
        return
    begun: deque[Future[T]] = deque()
    failure: Exception | None = None
    left = iter(tasks)
    try:
        while failure is None:
            try:
                begun.append(pool.submit(next(left)))
            except StopIteration:
                break
            except Exception as error:  # noqa: BLE001 - raised in its turn
                failure = error
            if len(begun) > num_threads():
                yield begun.popleft().result()
        while begun:
            yield begun.popleft().result()
        if failure is not None:
            raise failure
    finally:
        wait([future for future in begun if not future.cancel()])
