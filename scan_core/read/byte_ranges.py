"""Byte ranges of one open file, read with few requests: near ones as one.

A request to an object store costs as much time as a megabyte of its answer, one to a local disk as much as a few
kilobytes: what lies between two ranges is read over or around accordingly. Files on object stores are in
`remote_file.py`.
"""

from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Protocol

import pyarrow as pa

Range = tuple[int, int]
"""Offset and length."""

_LOCAL_BRIDGE = 16 * 1024


class ByteSource(Protocol):
    """An open file, for whoever reads ranges of it."""

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


def grouped(ranges: Sequence[Range], bridge: int, most_bytes: int | None = None) -> list[tuple[Range, list[int]]]:
    """What to request for some ranges: each range to read, and the places in `ranges` of those that it holds.

    Args:
        ranges: in any order.
        bridge: gaps of up to so many bytes are read over.
        most_bytes: of one request, unless a single range is larger.
    """
    groups: list[tuple[Range, list[int]]] = []
    for index in sorted(range(len(ranges)), key=lambda i: ranges[i]):
        offset, length = ranges[index]
        if groups:
            (start, size), members = groups[-1]
            end = max(start + size, offset + length)
            if offset <= start + size + bridge and (most_bytes is None or end - start <= most_bytes):
                groups[-1] = (start, end - start), [*members, index]
                continue
        groups.append(((offset, length), [index]))
    return groups
