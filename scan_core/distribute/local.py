"""Splits read in this process: in the calling thread, or by a few threads whose results come out in split order.

Results and metrics do not depend on the number of threads. Memory is bounded: a thread waits when its split's batches
are not taken, and no split is begun that lies too far ahead of the one being consumed.
"""

from collections import deque
from collections.abc import Callable, Generator, Iterator, Sequence
from threading import Condition, Lock, Semaphore, Thread
from typing import Any, Generic, TypeVar

from scan_core.metrics import ScanMetrics

S = TypeVar("S")
T = TypeVar("T")
ReadSplit = Callable[[S, ScanMetrics], Iterator[T]]

_QUEUED_RESULTS = 2
"""Batches that may wait per split: one being handed over, one ready."""
_SPLITS_AHEAD = 2
"""Splits beyond one per thread that may be begun before the first of them is consumed."""


def run_splits(
    splits: Sequence[S], read: ReadSplit[S, T], metrics: ScanMetrics, parallelism: int
) -> Generator[T, None, None]:
    """What `read` yields for each split, in the order of the splits.

    Args:
        splits: the work.
        read: called once per split, with metrics of its own.
        metrics: receives the sum of the splits' metrics as their last results are consumed.
        parallelism: threads; 1 reads in the calling thread.

    Closing the generator, or an error, stops all threads and waits for them. An error of a split is raised when its
    turn comes.
    """
    if parallelism == 1 or len(splits) <= 1:
        for split in splits:
            own = ScanMetrics()
            try:
                yield from read(split, own)
            finally:
                metrics.add(own)
        return
    pool = _Pool(splits, read, min(parallelism, len(splits)))
    try:
        pool.start()
        for index in range(len(splits)):
            yield from pool.results(index, metrics)
    finally:
        pool.stop()


class _Channel(Generic[T]):
    """Results of one split on their way from its thread to the consumer."""

    def __init__(self) -> None:
        self._items: deque[T] = deque()
        self._changed = Condition(Lock())
        self._closed = False
        self._cancelled = False
        self.error: BaseException | None = None
        self.metrics = ScanMetrics()

    def put(self, item: T) -> bool:
        """Wait for room and hand over; False if nobody wants it any more."""
        with self._changed:
            while len(self._items) >= _QUEUED_RESULTS and not self._cancelled:
                self._changed.wait()
            if self._cancelled:
                return False
            self._items.append(item)
            self._changed.notify_all()
            return True

    def close(self, error: BaseException | None) -> None:
        """No more items will come."""
        with self._changed:
            self._closed, self.error = True, error
            self._changed.notify_all()

    def cancel(self) -> None:
        """Nobody will take items any more."""
        with self._changed:
            self._cancelled = True
            self._items.clear()
            self._changed.notify_all()

    def __iter__(self) -> Iterator[T]:
        while True:
            with self._changed:
                while not self._items and not self._closed:
                    self._changed.wait()
                if not self._items:
                    return
                item = self._items.popleft()
                self._changed.notify_all()
            yield item


class _Pool(Generic[S, T]):
    """Threads that take splits in order."""

    def __init__(self, splits: Sequence[S], read: ReadSplit[S, T], num_threads: int) -> None:
        self._splits = splits
        self._read = read
        self._lock = Lock()
        self._next = 0
        self._stopped = False
        self._ahead = Semaphore(num_threads + _SPLITS_AHEAD)
        self._channels: dict[int, _Channel[T]] = {}
        self._begun = Condition(self._lock)
        self._threads = [Thread(target=self._work, name=f"scan-{i}", daemon=True) for i in range(num_threads)]

    def start(self) -> None:
        for thread in self._threads:
            thread.start()

    def results(self, index: int, metrics: ScanMetrics) -> Iterator[T]:
        """Results of one split; its error, if it failed."""
        with self._begun:
            while index not in self._channels:
                self._begun.wait()
            channel = self._channels[index]
        yield from channel
        metrics.add(channel.metrics)
        if channel.error is not None:
            raise channel.error
        with self._lock:
            del self._channels[index]
        self._ahead.release()

    def stop(self) -> None:
        """Cancel what is under way and wait until no thread is left."""
        with self._lock:
            self._stopped = True
            channels = list(self._channels.values())
        for channel in channels:
            channel.cancel()
        for _ in self._threads:
            self._ahead.release()
        for thread in self._threads:
            if thread.ident is not None:
                thread.join()

    def _work(self) -> None:
        while True:
            self._ahead.acquire()
            with self._begun:
                if self._stopped or self._next >= len(self._splits):
                    return
                index = self._next
                self._next += 1
                channel = self._channels[index] = _Channel()
                self._begun.notify_all()
            channel.close(self._run(self._splits[index], channel))

    def _run(self, split: S, channel: _Channel[T]) -> BaseException | None:
        try:
            results: Any = self._read(split, channel.metrics)
            for item in results:
                if not channel.put(item):
                    results.close()
                    break
        except BaseException as error:  # noqa: BLE001  it is raised again in the consumer's thread
            return error
        return None
