"""Splits run in this process: in the calling thread, or in a few threads with a bounded queue of results."""

from collections import deque
from collections.abc import Callable, Generator, Iterator, Sequence
from threading import Condition, Lock, Semaphore, Thread
from typing import Any, Generic, TypeVar

from nevermore.scan_core.model.errors import ScanCancelledError
from nevermore.scan_core.model.options import ScanMetrics
from nevermore.scan_core.model.running import Running

T = TypeVar("T")


class Channel(Generic[T]):
    """A queue of results from `writers` threads to the consumer, holding at most `capacity`."""

    def __init__(self, capacity: int, writers: int = 1) -> None:
        self._items: deque[T] = deque()
        self._changed = Condition(Lock())
        self._capacity = capacity
        self._writers = writers
        self._cancelled = False
        self.error: BaseException | None = None

    def put(self, item: T) -> bool:
        """Wait for room and enqueue an item; False if the consumer has stopped."""
        with self._changed:
            while len(self._items) >= self._capacity and not self._cancelled:
                self._changed.wait()
            if self._cancelled:
                return False
            self._items.append(item)
            self._changed.notify_all()
            return True

    def close(self, error: BaseException | None) -> None:
        """Record that a writer has ended; after an error, all of them."""
        with self._changed:
            self.error = self.error or error
            self._writers = 0 if error is not None else self._writers - 1
            self._changed.notify_all()

    def cancel(self, error: BaseException | None = None) -> None:
        """Record that the consumer has stopped, or is to stop with an error."""
        with self._changed:
            self._cancelled = True
            self._items.clear()
            if error is not None:
                self.error, self._writers = error, 0
            self._changed.notify_all()

    def __iter__(self) -> Iterator[T]:
        """Yield the items, then raise the error if there was one."""
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


S = TypeVar("S")
ReadSplit = Callable[[S, ScanMetrics], Iterator[T]]

QUEUED_BATCHES = 2
"""Batches that may wait per split: one being handed over, one ready."""
_SPLITS_AHEAD = 2
"""Splits beyond one per thread that may be begun before the first of them is consumed."""


def run_splits(
    splits: Sequence[S],
    read: ReadSplit[S, T],
    metrics: ScanMetrics,
    parallelism: int,
    *,
    keep_order: bool = True,
    expect: Callable[[S], None] | None = None,
    num_expected: int = 1,
    running: Running | None = None,
) -> Generator[T, None, None]:
    """Yield what `read` yields for each split.

    Args:
        splits: the work.
        read: called once per split, with metrics of its own.
        metrics: receives the sum of the metrics of all splits that were read, when the generator ends.
        parallelism: threads; 1 reads in the calling thread.
        keep_order: results come in the order of the splits; otherwise as soon as there are any.
        expect: called with each split shortly before it is read, so that the split can be prepared.
        num_expected: how many splits beyond those that are being read are expected.
        running: the run that they are part of.

    Closing the generator, or an error, stops all threads and waits for them. An error of a split is raised when its
    turn comes; without order at once. If `running` is cancelled, that is raised at once, and the threads are not waited for.
    """
    expect = expect or (lambda _: None)
    if parallelism == 1 or len(splits) <= 1:
        yield from _one_by_one(splits, read, metrics, _Expected(splits, expect, num_expected))
        return
    num_threads = min(parallelism, len(splits))
    expected = _Expected(splits, expect, num_threads - 1 + num_expected, num_threads)
    pool = _Pool(splits, read, expected, num_threads, keep_order=keep_order)
    if running is not None:
        running.on_cancel(pool.interrupt)
    try:
        pool.start()
        yield from pool.results()
    finally:
        if running is not None:
            running.on_cancel(None)
            running.stop()
        pool.stop(wait=running is None or not running.is_cancelled)
        for counted in list(pool.counted):  # after the threads have ended: they count until then
            metrics.add(counted)


class _Expected(Generic[S]):
    """Announces each split once, in order, when one that is at most `distance` in front of it begins to be read."""

    def __init__(self, splits: Sequence[S], expect: Callable[[S], None], distance: int, num_threads: int = 1) -> None:
        self._splits = splits
        self._expect = expect
        self._distance = distance
        self._next = num_threads  # the first splits are read at once
        self._lock = Lock()

    def begin(self, index: int) -> None:
        """Announce that reading of a split begins."""
        with self._lock:
            first, last = max(self._next, index + 1), min(index + 1 + self._distance, len(self._splits))
            self._next = max(self._next, last)
        for number in range(first, last):
            self._expect(self._splits[number])


def _one_by_one(
    splits: Sequence[S], read: ReadSplit[S, T], metrics: ScanMetrics, expected: _Expected[S]
) -> Iterator[T]:
    for index, split in enumerate(splits):
        expected.begin(index)
        own = ScanMetrics()
        try:
            yield from read(split, own)
        finally:
            metrics.add(own)


class _Pool(Generic[S, T]):
    """Threads that take splits in order, and put what they read into a channel per split, or one channel for all."""

    def __init__(
        self,
        splits: Sequence[S],
        read: ReadSplit[S, T],
        expected: _Expected[S],
        num_threads: int,
        *,
        keep_order: bool,
    ) -> None:
        self._splits = splits
        self._read = read
        self._expected = expected
        self._next = 0
        self._stopped = False
        self._interrupted = False
        self._channels: dict[int, Channel[T]] = {}
        self._for_all: Channel[T] | None = None if keep_order else Channel(QUEUED_BATCHES * num_threads, len(splits))
        self._ahead = Semaphore(num_threads + (_SPLITS_AHEAD if keep_order else len(splits)))
        self._lock = Lock()
        self._begun = Condition(self._lock)
        self.counted: deque[ScanMetrics] = deque()
        self._threads = [Thread(target=self._work, name=f"scan-{i}", daemon=True) for i in range(num_threads)]

    def start(self) -> None:
        for thread in self._threads:
            thread.start()

    def results(self) -> Iterator[T]:
        """All results: by split, the error of a split in its turn; or as they come, the first error at once."""
        for index in range(1 if self._for_all else len(self._splits)):
            with self._begun:
                while index not in self._channels and not self._interrupted:
                    self._begun.wait()
                if self._interrupted:
                    raise ScanCancelledError
                channel = self._channels[index]
            yield from channel
            with self._lock:
                del self._channels[index]
            self._ahead.release()

    def stop(self, *, wait: bool = True) -> None:
        """Cancel running work, and wait until no thread is left."""
        with self._lock:
            self._stopped = True
        self._cancel(None)
        for thread in self._threads:
            if thread.ident is not None and wait:
                thread.join()

    def interrupt(self) -> None:
        """Make the consumer raise `ScanCancelledError` now; may be called from any thread."""
        with self._lock:
            self._stopped = self._interrupted = True
        self._cancel(ScanCancelledError())

    def _cancel(self, error: BaseException | None) -> None:
        """Wake all waiting threads so that they end, the consumer with the error if there is one."""
        with self._begun:
            channels = [*self._channels.values(), *([self._for_all] if self._for_all else [])]
            self._begun.notify_all()
        for channel in channels:
            channel.cancel(error)
        for _ in self._threads:
            self._ahead.release()

    def _work(self) -> None:
        """Read splits until none is left; the body of each thread."""
        while True:
            self._ahead.acquire()
            with self._begun:
                if self._stopped or self._next >= len(self._splits):
                    return
                index = self._next
                self._next += 1
                channel = self._channels[index] = self._for_all or Channel(QUEUED_BATCHES)
                self._begun.notify_all()
            channel.close(self._run(index, channel))

    def _run(self, index: int, channel: Channel[T]) -> BaseException | None:
        """Read one split, while those that will be taken next are prepared."""
        metrics = ScanMetrics()
        self.counted.append(metrics)
        try:
            self._expected.begin(index)
            results: Any = self._read(self._splits[index], metrics)
            for item in results:
                if not channel.put(item):
                    results.close()
                    break
        except BaseException as error:  # noqa: BLE001  it is raised again in the consumer's thread
            return error
        return None
