"""One file on an object store: near byte ranges merged into few requests, several at a time, prefetched."""

import io
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from threading import Lock
from typing import Protocol

import pyarrow as pa

Range = tuple[int, int]
"""Offset and length."""

_LOCAL_BRIDGE = 16 * 1024


class ByteSource(Protocol):
    """An open file, of which ranges are read."""

    def read(self, ranges: Sequence[Range]) -> list[memoryview]:
        """The bytes of each range, in the order given; shorter where the file ends."""
        ...

    def read_at(self, length: int, offset: int) -> bytes:
        """The bytes of one range."""
        ...

    def read_tail(self, length: int) -> bytes:
        """The last bytes, no fewer than `length` unless the file is shorter."""
        ...

    def size(self) -> int:
        """Of the file in bytes."""
        ...

    def held(self, ranges: Sequence[Range]) -> AbstractContextManager[None]:
        """As long as it lasts, pyarrow finds these ranges fetched, where that pays."""
        ...

    def for_arrow(self) -> pa.NativeFile:
        """The file as pyarrow reads it."""
        ...

    def close(self) -> None:
        """Release the file."""
        ...


class ByteRanges:
    """A file on a local disk or in memory."""

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
        """Of the file in bytes."""
        return int(self._source.size())

    def held(self, ranges: Sequence[Range]) -> AbstractContextManager[None]:  # noqa: ARG002  the system's cache holds them
        """Nothing to do: pyarrow reads them from the disk."""
        return nullcontext()

    def for_arrow(self) -> pa.NativeFile:
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
                groups[-1] = (start, end - start), [*members, index]
                continue
        groups.append(((offset, length), [index]))
    return groups


_BRIDGE = 1024 * 1024
_LARGEST_REQUEST = 8 * 1024 * 1024
"""Ranges are joined up to this size; larger requests gain nothing."""
_REQUESTS_AT_A_TIME = 16
SMALL_FILE_BYTES = 256 * 1024
"""A file up to this size is read as a whole, which takes no longer than a request for its end."""


@dataclass(slots=True)
class _Span:
    """Bytes [start, end) on their way, and the ranges in them that were not read yet."""

    start: int
    end: int
    unread: list[Range]
    data: "Future[memoryview]"
    ahead_for: int | None


class RemoteFile:
    """An open file. Safe for several threads."""

    def __init__(self, source: pa.NativeFile) -> None:
        self._source = source
        self._size = int(source.size())
        self._spans: list[_Span] = []
        self._tail: tuple[int, memoryview] | None = None
        self._lock = Lock()
        self._pool: ThreadPoolExecutor | None = None

    def size(self) -> int:
        """Of the file in bytes."""
        return self._size

    def read_tail(self, length: int) -> bytes:
        """The last bytes, all of a small file. They are kept: page indexes lie in front of the footer."""
        start = 0 if self._size <= SMALL_FILE_BYTES else max(self._size - length, 0)
        data = bytes(self._source.read_at(self._size - start, start))
        self._tail = start, memoryview(data)
        return data

    def fetch_ahead(self, ranges: Iterable[Range], row_group: int, max_bytes: int) -> int:
        """Begin to fetch ranges in the background: those that fit, in the order given, in addition to what is being fetched.

        Returns how many bytes are requested. `row_group` is for `forget_ahead`.
        """
        with self._lock:
            room = max_bytes - sum(s.end - s.start for s in self._spans if s.ahead_for is not None)
            chosen: list[Range] = []
            for offset, length in ranges:
                if length <= 0 or self._holder(offset, offset + length) is not None or self._in_tail(offset, length):
                    continue
                if (room := room - length) < 0:
                    break
                chosen.append((offset, length))
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
        """As long as it lasts, these ranges are fetched, together."""
        self._fetch(ranges)
        try:
            yield
        finally:
            self._forget(ranges)

    def _fetch(self, ranges: Sequence[Range]) -> None:
        """Request those of the ranges that are not on their way; `_forget` gives their memory back."""
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
        """Drop what was fetched ahead for a row group and never asked for; how many bytes that was."""
        with self._lock:
            in_vain = [s for s in self._spans if s.ahead_for == row_group]
            self._spans = [s for s in self._spans if s.ahead_for != row_group]
        for span in in_vain:
            span.data.cancel()
        return sum(length for span in in_vain for _, length in span.unread)

    def for_arrow(self) -> pa.NativeFile:
        """The file as pyarrow reads it."""
        return pa.PythonFile(_ArrowView(self._read_one, self._size), "r")

    def close(self) -> None:
        """Cancel requests that nobody waits for, wait for running ones, and release the file."""
        if self._pool is not None:
            self._pool.shutdown(wait=True, cancel_futures=True)
        self._spans.clear()
        self._source.close()

    def _request(self, ranges: Sequence[Range], ahead_for: int | None) -> int:
        """Submit merged requests; how many bytes they are. Called with the lock held."""
        groups = grouped(ranges, _BRIDGE, _LARGEST_REQUEST)
        if groups and self._pool is None:
            self._pool = ThreadPoolExecutor(_REQUESTS_AT_A_TIME, "scan-range")
        for (start, length), members in groups:
            assert self._pool is not None  # noqa: S101  made above
            future = self._pool.submit(self._get, start, length)
            self._spans.append(_Span(start, start + length, [ranges[i] for i in members], future, ahead_for))
        return sum(length for (_, length), _ in groups)

    def _get(self, start: int, length: int) -> memoryview:
        return memoryview(self._source.read_at(length, start))

    def _read_one(self, offset: int, length: int) -> memoryview:
        if self._tail is not None and self._in_tail(offset, length):
            start, data = self._tail
            return data[offset - start : offset - start + length]
        with self._lock:
            holder = self._holder(offset, offset + length)
        if holder is None:
            return self._get(offset, length)
        return holder.data.result()[offset - holder.start : offset - holder.start + length]

    def _holder(self, start: int, end: int) -> _Span | None:
        return next((s for s in self._spans if s.start <= start and end <= s.end), None)

    def _in_tail(self, offset: int, length: int) -> bool:
        return self._tail is not None and offset >= self._tail[0] and offset + length <= self._size


def opened_source(source: pa.NativeFile) -> ByteSource:
    """An open file by where it lies."""
    is_local = isinstance(source, pa.OSFile | pa.MemoryMappedFile | pa.BufferReader)
    return ByteRanges(source) if is_local else RemoteFile(source)


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
        """Where it is."""
        return self._position

    def readable(self) -> bool:
        """Always."""
        return True

    def seekable(self) -> bool:
        """Always."""
        return True
