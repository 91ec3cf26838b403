"""One object of a store: near byte ranges merged into few requests, long ones cut, several at a time, fetched ahead."""

import io
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, CancelledError, Future, ThreadPoolExecutor, wait
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from threading import Lock
from time import perf_counter
from typing import Any, TypeAlias, TypeVar

import pyarrow as pa

from nevermore.scan_core.io.object_store import ReplacedObjectError, StoredObject
from nevermore.scan_core.model.running import awaited, check_running, current, is_stopped

T = TypeVar("T")
Range = tuple[int, int]
"""Offset and length."""

_LOCAL_BRIDGE = 16 * 1024


class ByteRanges:
    """A file on a local disk or in memory."""

    version = None

    def __init__(self, source: pa.NativeFile) -> None:
        self._source = source

    def read(self, ranges: Sequence[Range]) -> list[memoryview]:
        """The bytes of each range, in the order given; shorter where the file ends."""
        found: list[memoryview] = [memoryview(b"")] * len(ranges)
        for (start, length), members in grouped(ranges, _LOCAL_BRIDGE):
            data = memoryview(self._source.read_at(length, start))
            for index in members:
                offset, size = ranges[index]
                found[index] = data[offset - start : offset - start + size]
        return found

    def read_at(self, length: int, offset: int) -> bytes:
        """The bytes of one range."""
        data: bytes = self._source.read_at(length, offset)
        return data

    def read_tail(self, length: int) -> bytes:
        """The last bytes."""
        size = self.size()
        return self.read_at(min(size, length), max(size - length, 0))

    def size(self) -> int:
        """Size of the file in bytes."""
        return int(self._source.size())

    def held(self, ranges: Sequence[Range]) -> AbstractContextManager[None]:  # noqa: ARG002  the system's cache holds them
        """Nothing to do: pyarrow reads them from the disk."""
        return nullcontext()

    def for_arrow(self) -> pa.NativeFile:
        """The file as pyarrow reads it."""
        return self._source

    def streamed(self, ranges: Sequence[Range]) -> pa.NativeFile:  # noqa: ARG002  the system reads ahead
        """The file as pyarrow reads it."""
        return self._source

    def close(self) -> None:
        """Release the file."""
        self._source.close()


def grouped(ranges: Sequence[Range], bridge: int, max_bytes: int | None = None) -> list[tuple[Range, list[int]]]:
    """What to request for some ranges: each range to read, and the places in `ranges` of those that it holds.

    Args:
        ranges: in any order.
        bridge: gaps of up to so many bytes are read over.
        max_bytes: of one request, unless a single range is larger.
    """
    groups: list[tuple[Range, list[int]]] = []
    for index in sorted(range(len(ranges)), key=lambda i: ranges[i]):
        offset, length = ranges[index]
        if groups:
            (start, size), members = groups[-1]
            end = max(start + size, offset + length)
            if offset <= start + size + bridge and (max_bytes is None or end - start <= max_bytes):
                members.append(index)
                groups[-1] = (start, end - start), members
                continue
        groups.append(((offset, length), [index]))
    return groups


SMALL_FILE_BYTES = 256 * 1024
"""So much of the end of a file is read at once, which takes no longer than a request for less: all of a small file, and the page
indexes of most others."""
_REQUESTS_AT_A_TIME = 64
"""Of all files of a process, and as many that are made ahead: 16 connections reach the bandwidth of most stores, and several scans may run at a time."""
_LARGEST_SPAN = 8 * 1024**2
"""Ranges are joined up to this size: all of it is held until the last of them is read."""
BLOCK_BYTES = 512 * 1024
"""Of each column that is read in windows of rows, two such blocks are held."""
_MIN_PATIENCE_SECONDS = 0.5
_LOOK_SECONDS = 0.05
"""How often who waits for an answer looks whether the scan was stopped."""


_POOLS: dict[bool, ThreadPoolExecutor] = {}
_POOL_LOCK = Lock()


def _requests(*, ahead: bool) -> ThreadPoolExecutor:
    """The threads of this process in which requests wait for their answers; requests made ahead have threads of their own."""
    with _POOL_LOCK:
        if ahead not in _POOLS:
            _POOLS[ahead] = ThreadPoolExecutor(_REQUESTS_AT_A_TIME, "store-ahead" if ahead else "store")
        return _POOLS[ahead]


def requested(request: Callable[[], T]) -> T:
    """The answer to a request; who is at work for a scan waits for it only as long as that is not stopped.

    Raises:
        ScanCancelledError: it was stopped.
    """
    return request() if current() is None else awaited(_requests(ahead=False).submit(request))


def _forget_threads() -> None:
    global _POOL_LOCK  # noqa: PLW0603  its holder may be a thread of the other process
    _POOL_LOCK = Lock()
    _POOLS.clear()


os.register_at_fork(after_in_child=_forget_threads)


class Pace:
    """How fast a store answers, learned from its answers. Safe for several threads: each value is written at once.

    Waiting and transfer of a request should take about the same time: a longer range is cut into requests that run side by
    side. An eighth of that is read over between two ranges, as the bytes in between cost CPU time too.

    Attributes:
        latency: seconds until a small request is answered, a moving average.
        bytes_per_second: of one request, likewise.
    """

    _WEIGHT = 0.1
    _SMALL = 64 * 1024

    def __init__(self, latency: float = 0.03, bytes_per_second: float = 80e6) -> None:
        self.latency = latency
        self.bytes_per_second = bytes_per_second

    def record(self, num_bytes: int, seconds: float) -> None:
        """Record the size of an answer and the seconds it took."""
        if num_bytes <= self._SMALL:
            self.latency += self._WEIGHT * (seconds - self.latency)
        elif num_bytes >= 4 * self._SMALL:
            rate = min(num_bytes / max(seconds - self.latency, 1e-3), 10e9)
            self.bytes_per_second += self._WEIGHT * (rate - self.bytes_per_second)

    @property
    def bridge_bytes(self) -> int:
        """Largest gap in bytes that is read together with the ranges around it."""
        return min(max(self._balanced_bytes // 8, 128 * 1024), 2 * 1024**2)

    @property
    def request_bytes(self) -> int:
        """Bytes per request when a longer range is cut."""
        return min(max(self._balanced_bytes, 1024**2), 8 * 1024**2)

    def patience(self, num_bytes: int) -> float:
        """Seconds after which a request of this size is sent a second time."""
        return max(_MIN_PATIENCE_SECONDS, 6 * (self.latency + num_bytes / self.bytes_per_second))

    @property
    def _balanced_bytes(self) -> int:
        return int(self.latency * self.bytes_per_second)


@dataclass(slots=True, eq=False)
class _Part:
    """A request for the bytes [start, start + length)."""

    start: int
    length: int
    answer: "Future[memoryview]"


@dataclass(slots=True, eq=False)
class _Span:
    """Bytes [start, end) on their way in one or more requests, and the ranges in them that were not read yet."""

    start: int
    end: int
    unread: list[Range]
    parts: list[_Part]
    ahead_for: int | None
    joined: memoryview | None = None


class RemoteFile:
    """An open object of a store. Safe for several threads.

    Args:
        source: the object.
        pace: of its store.
        describe: what to raise where a request fails.
    """

    def __init__(
        self, source: StoredObject, pace: Pace | None = None, describe: Callable[[OSError], Exception] | None = None
    ) -> None:
        self._source = source
        self._pace = Pace() if pace is None else pace
        self._describe = describe
        self._size: int | None = None
        self._spans: list[_Span] = []
        self._tail: tuple[int, memoryview] | None = None
        self._lock, self._tail_lock = Lock(), Lock()
        self._running: set[Future[Any]] = set()
        self._forget_facts: Callable[[], None] | None = None
        self.num_repeated = 0

    def size(self) -> int:
        """Size of the file in bytes."""
        if self._size is None:
            self.read_tail(SMALL_FILE_BYTES)
        assert self._size is not None  # noqa: S101  found with the tail
        return self._size

    def read_tail(self, length: int) -> bytes:
        """The last bytes, all of a small file. They are kept: page indexes lie in front of the footer."""
        length = max(length, SMALL_FILE_BYTES)
        if (found := self._known_tail(length)) is None:
            found = awaited(self._submit(False, self._load_tail, length))
        return bytes(found)

    def _known_tail(self, length: int) -> memoryview | None:
        tail, size = self._tail, self._size
        return None if tail is None or size is None or len(tail[1]) < min(length, size) else tail[1]

    def _load_tail(self, length: int) -> memoryview:
        """The last bytes; in a thread for requests."""
        with self._tail_lock:
            if (found := self._known_tail(length)) is None:
                with self._described():
                    found, size = self._source.tail(length)
                self._size, self._tail = size, (size - len(found), found)
            return found

    @property
    def version(self) -> str | None:
        """What tells the object from one that replaces it; None before the first answer, or if the store does not say."""
        return self._source.version

    def expect(self, size: int, version: str | None, forget: Callable[[], None]) -> None:
        """Set what is known because the file was opened before. Its end is then read only if needed.

        Args:
            size: of the file in bytes.
            version: any other is refused.
            forget: called if the file has another version: what is remembered of it does not hold.

        Raises:
            MissingFileError: this one has read another version.
        """
        self._forget_facts = forget
        if version is not None:
            with self._described():
                self._source.expect(version)
        if self._size is None:
            self._size = size

    @property
    def num_bytes_ahead(self) -> int:
        """Bytes that were fetched ahead, or are on their way, and were not read yet."""
        with self._lock:
            return sum(s.end - s.start for s in self._spans if s.ahead_for is not None)

    def fetch_ahead(self, ranges: Iterable[Range], row_group: int, max_bytes: int) -> int:
        """Begin to fetch ranges in the background: those that fit into `max_bytes`, in the order given.

        Returns how many bytes are requested. `row_group` is for `forget_ahead`.
        """
        with self._lock:
            room = max_bytes
            chosen: list[Range] = []
            for offset, length in ranges:
                if length <= 0 or self._holder(offset, offset + length) is not None or self._in_tail(offset, length):
                    continue
                if (room := room - length) < 0:
                    break
                chosen.append((offset, length))
            if self._tail is None:  # page indexes will be asked for
                self._submit(True, self._load_tail, SMALL_FILE_BYTES)
            return self._request(chosen, row_group)

    def read(self, ranges: Sequence[Range]) -> list[memoryview]:
        """The bytes of each range, in the order given; shorter where the file ends."""
        with self.held(ranges):
            return [self._read_one(offset, length) for offset, length in ranges]

    def read_at(self, length: int, offset: int) -> bytes:
        """The bytes of one range."""
        return bytes(self._read_one(offset, length))

    @contextmanager
    def held(self, ranges: Sequence[Range]) -> Iterator[None]:
        """A context in which these ranges are held in memory, fetched together."""
        self._fetch(ranges)
        try:
            yield
        finally:
            self._forget(ranges)

    def _fetch(self, ranges: Sequence[Range]) -> None:
        """Request those of the ranges that are not on their way; `_forget` gives their memory back."""
        if any(self._is_near_end(offset) for offset, _ in ranges):
            self.read_tail(SMALL_FILE_BYTES)
        with self._lock:
            missing = [
                (offset, length)
                for offset, length in ranges
                if self._holder(offset, offset + length) is None and not self._in_tail(offset, length)
            ]
            self._request(missing, None)

    def _forget(self, ranges: Sequence[Range]) -> None:
        """Drop what was fetched for these ranges: each is read once."""
        read = set(ranges)
        with self._lock:
            for span in self._spans:
                span.unread = [r for r in span.unread if r not in read]
            self._spans = [s for s in self._spans if s.unread]

    def forget_ahead(self, row_group: int) -> int:
        """Drop what was fetched ahead for a row group and not used; returns its number of bytes."""
        with self._lock:
            in_vain = [s for s in self._spans if s.ahead_for == row_group]
            self._spans = [s for s in self._spans if s.ahead_for != row_group]
        for span in in_vain:
            for part in span.parts:
                part.answer.cancel()
        return sum(length for span in in_vain for _, length in span.unread)

    def for_arrow(self) -> pa.NativeFile:
        """The file as pyarrow reads it; closing it does not close this one."""
        return pa.PythonFile(_ArrowView(self._read_one, self.size()), "r")

    def streamed(self, ranges: Sequence[Range]) -> pa.NativeFile:
        """The file as pyarrow reads it, if it will read these ranges from top to bottom, little by little.

        One block of each range is held in memory while the next one is fetched.
        """
        blocks = [_Blocks(self, offset, offset + length) for offset, length in ranges]

        def read(offset: int, length: int) -> memoryview:
            holder = next((b for b in blocks if b.start <= offset and offset + length <= b.end), None)
            return self._read_one(offset, length) if holder is None else holder.read(offset, length)

        return pa.PythonFile(_ArrowView(read, self.size()), "r")

    def request(self, offset: int, length: int) -> Callable[[], memoryview]:
        """Begin to read a range, which the caller holds; from what was fetched ahead, if it is in there."""
        with self._lock:
            is_known = self._holder(offset, offset + length) is not None
        if is_known:
            return partial(self._read_one, offset, length)
        return partial(awaited, self._submit(True, self._get, offset, length))

    def close(self) -> None:
        """Cancel requests that nobody waits for, wait for running ones, and release the file.

        If a request was sent twice, the slower answer is not waited for; nor is any if the scan was stopped.
        """
        running = {future for future in list(self._running) if not future.cancel()}
        self._spans.clear()
        is_cut_short = is_stopped()  # asked once: the scan may be stopped at any time
        if is_cut_short and running and not self._source.may_repeat:
            _requests(ahead=False).submit(self._close_after, running)
            return
        if not self.num_repeated and not is_cut_short:
            wait(running)
        self._source.close()

    def _close_after(self, running: "set[Future[Any]]") -> None:
        wait(running)
        self._source.close()

    def _request(self, ranges: Sequence[Range], ahead_for: int | None) -> int:
        """Submit merged requests; returns their bytes. Called with the lock held."""
        most = self._pace.request_bytes
        groups = grouped(ranges, self._pace.bridge_bytes, _LARGEST_SPAN)
        for (start, length), members in groups:
            count = max(round(length / most), 1)
            edges = [start + length * i // count for i in range(count + 1)]
            parts = [
                _Part(a, b - a, self._submit(ahead_for is not None, self._get, a, b - a)) for a, b in pairwise(edges)
            ]
            self._spans.append(_Span(start, start + length, [ranges[i] for i in members], parts, ahead_for))
        return sum(length for (_, length), _ in groups)

    def _submit(self, ahead: bool, task: Callable[..., T], *arguments: int) -> "Future[T]":  # noqa: FBT001
        """Run a request in a thread; it must not wait for another."""
        future = _requests(ahead=ahead).submit(task, *arguments)
        self._running.add(future)
        future.add_done_callback(self._running.discard)
        return future

    def _get(self, start: int, length: int) -> memoryview:
        began = perf_counter()
        with self._described():
            data = self._source.read_at(length, start)
        self._pace.record(len(data), perf_counter() - began)
        return data

    def _is_near_end(self, offset: int) -> bool:
        """Whether the bytes lie in the tail of the file, which is read in one request, and that has not happened yet."""
        return self._tail is None and self._size is not None and offset >= self._size - SMALL_FILE_BYTES

    def _read_one(self, offset: int, length: int) -> memoryview:
        if self._is_near_end(offset):
            self.read_tail(SMALL_FILE_BYTES)
        if self._tail is not None and self._in_tail(offset, length):
            start, data = self._tail
            return data[offset - start : offset - start + length]
        with self._lock:
            holder = self._holder(offset, offset + length)
        if holder is None:
            return awaited(self._submit(False, self._get, offset, length))
        if holder.joined is None:
            try:
                found = [self._answer(part) for part in holder.parts]
            except CancelledError:  # it was forgotten meanwhile, as another thread needs none of it
                return awaited(self._submit(False, self._get, offset, length))
            holder.joined = found[0] if len(found) == 1 else memoryview(b"".join(found))
        return holder.joined[offset - holder.start : offset - holder.start + length]

    def _answer(self, part: _Part) -> memoryview:
        """The bytes of a request; one that takes far longer than others is sent again, and the first answer counts."""
        first = part.answer
        patient_until = perf_counter() + self._pace.patience(part.length)
        while self._source.may_repeat and not first.done() and (left := patient_until - perf_counter()) > 0:
            wait((first,), min(left, _LOOK_SECONDS))
            check_running()
        if first.done() or not first.running() or not self._source.may_repeat:
            return awaited(first)
        self.num_repeated += 1
        second = self._submit(False, self._get, part.start, part.length)
        while not (done := wait((first, second), _LOOK_SECONDS, FIRST_COMPLETED).done):
            check_running()
        answered = next((f for f in done if f.exception() is None), None)
        return awaited(answered or (second if first.done() else first))

    @contextmanager
    def _described(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            if isinstance(error, ReplacedObjectError) and self._forget_facts is not None:
                self._forget_facts()
            if self._describe is None:
                raise
            raise self._describe(error) from error

    def _holder(self, start: int, end: int) -> _Span | None:
        return next((s for s in self._spans if s.start <= start and end <= s.end), None)

    def _in_tail(self, offset: int, length: int) -> bool:
        return self._tail is not None and self._size is not None and self._tail[0] <= offset <= self._size - length


ByteSource: TypeAlias = ByteRanges | RemoteFile
"""An open file whose ranges can be read. `version` changes if another file takes its name; None if the store does not tell, and for
files that cannot change while they are open."""


class _Blocks:
    """Bytes [start, end) of a file, read from top to bottom by one thread: pyarrow asks for single pages."""

    def __init__(self, file: RemoteFile, start: int, end: int) -> None:
        self.start = start
        self.end = end
        self._file = file
        self._at = start
        self._held = memoryview(b"")
        self._next: Callable[[], memoryview] | None = None

    def read(self, offset: int, length: int) -> memoryview:
        """A range that begins at or after the last one; any other range starts the stream again."""
        if not self._at <= offset <= self._at + len(self._held):
            self._at, self._held, self._next = offset, memoryview(b""), None
        if offset + length > self._at + len(self._held):
            parts = [self._held[offset - self._at :]]
            self._at = offset
            while sum(map(len, parts)) < length and (part := self._take(offset + sum(map(len, parts)))):
                parts.append(part)
            self._held = memoryview(b"".join(parts))
            if self._next is None:
                self._next = self._begin(self._at + len(self._held))
        return self._held[offset - self._at : offset - self._at + length]

    def _take(self, offset: int) -> memoryview:
        block = self._next or self._begin(offset)
        self._next = None
        return memoryview(b"") if block is None else block()

    def _begin(self, offset: int) -> Callable[[], memoryview] | None:
        length = min(BLOCK_BYTES, self.end - offset)
        return self._file.request(offset, length) if length > 0 else None


class _ArrowView(io.RawIOBase):
    """A position in a remote file. pyarrow seeks and reads under a lock of its own."""

    def __init__(self, read_at: Callable[[int, int], memoryview], size: int) -> None:
        super().__init__()
        self._read_at = read_at
        self._size = size
        self._position = 0

    def read_buffer(self, length: int = -1) -> pa.Buffer:
        """The next bytes, not copied."""
        rest = max(self._size - self._position, 0)
        data = self._read_at(self._position, rest if length < 0 else min(length, rest))
        self._position += len(data)
        return pa.py_buffer(data)

    def read(self, length: int = -1) -> bytes:
        """The next bytes."""
        return bytes(memoryview(self.read_buffer(length)))

    def seek(self, position: int, whence: int = 0) -> int:
        """Go to a position."""
        self._position = position + (0, self._position, self._size)[whence]
        return self._position

    def tell(self) -> int:
        """The current position."""
        return self._position

    def readable(self) -> bool:
        """True."""
        return True

    def seekable(self) -> bool:
        """True."""
        return True
