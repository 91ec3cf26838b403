"""The bytes of an event file in runs of whole lines."""

from typing import Any

import pyarrow as pa

from pipelines.errors import SourceError

_LOOKED_AT_BYTES = 64 * 1024
"""The last line is short beside the buffer."""


def after_last_newline(data: pa.Buffer) -> int:
    """Position behind the last newline; 0 if there is none."""
    end = int(data.size)
    while end > 0:
        start = max(end - _LOOKED_AT_BYTES, 0)
        found: int = data.slice(start, end - start).to_pybytes().rfind(b"\n")
        if found >= 0:
            return start + found + 1
        end = start
    return 0


class Chunks:
    """A stream in runs of whole lines. Seekable streams go back to the begin of a cut line, others carry it."""

    def __init__(self, stream: Any, *, seekable: bool) -> None:
        self._stream = stream
        self.seekable = seekable
        self._carried = b""

    def peek(self, size: int) -> bytes:
        """The first bytes, to be read again."""
        head: bytes = self._stream.read(size)
        if self.seekable:
            self._stream.seek(0)
        else:
            self._carried = head
        return head

    def skip(self, size: int) -> int:
        """Go on behind the first `size` bytes, and behind the newline of a line that was read without it; where."""
        if not self.seekable:
            self._skip_carried(size)
            return size
        self._stream.seek(max(size - 1, 0))
        border: bytes = self._stream.read(3)
        past = 0
        if size and border[:1] != b"\n":
            past = 1 if border[1:2] == b"\n" else 2 if border[1:3] == b"\r\n" else 0
        self._stream.seek(size + past)
        return size + past

    def skip_exactly(self, size: int) -> None:
        """Go on behind the first `size` bytes."""
        if self.seekable:
            self._stream.seek(size)
        else:
            self._skip_carried(size)

    def some(self, size: int) -> tuple[pa.Buffer, bool]:
        """(the next `size` bytes, whether they are the last)."""
        data = self._read(size)
        return data, data.size < size

    def _skip_carried(self, size: int) -> None:
        while size > len(self._carried):
            size -= len(self._carried)
            self._carried = self._stream.read(1024 * 1024)
            if not self._carried:
                return
        self._carried = self._carried[size:]

    def lines(self, size: int, most_bytes: int) -> tuple[pa.Buffer, bool]:
        """(about `size` bytes of whole lines, whether they are the last): the last line may lack its newline.

        Raises:
            SourceError: a line of more than `most_bytes`.
        """
        wanted = size
        while True:
            data = self._read(wanted)
            if data.size < wanted:
                return data, True
            whole = after_last_newline(data)
            if whole:
                self.give_back(data, whole)
                return data.slice(0, whole), False
            if data.size >= most_bytes:
                raise SourceError(f"a line of more than {most_bytes} bytes; raise memory_limit_bytes, or shorten it")
            self.give_back(data, 0)
            wanted = min(2 * wanted, most_bytes)

    def whole(self, most_bytes: int) -> pa.Buffer:
        """All bytes: arrays and pretty-printed documents are split in memory.

        Raises:
            SourceError: more than `most_bytes`.
        """
        data = self._read(most_bytes + 1)
        if data.size > most_bytes:
            raise SourceError(
                f"a file of documents of more than {most_bytes} bytes; write one event per line, or raise memory_limit_bytes"
            )
        return data

    def _read(self, size: int) -> pa.Buffer:
        if self.seekable:
            return self._stream.read_buffer(size)
        parts = [self._carried]
        have = len(self._carried)
        while have < size:
            part = self._stream.read(size - have)
            if not part:
                break
            parts.append(part)
            have += len(part)
        self._carried = b""
        return pa.py_buffer(b"".join(parts))

    def give_back(self, data: pa.Buffer, used: int) -> None:
        """Read on behind the first `used` bytes of what was read last."""
        if self.seekable:
            self._stream.seek(self._stream.tell() - (data.size - used))
        else:
            self._carried = data.slice(used).to_pybytes()
