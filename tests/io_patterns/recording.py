"""A file system that remembers what is asked of it: which files are opened, which bytes are read.

It stands where the catalog library's file system would, in front of a folder or of an S3 endpoint, and answers as late as
it is told to.
"""

import math
import time
from collections import Counter
from dataclasses import dataclass, field
from threading import Lock
from typing import Any

import pyarrow as pa
import pyarrow.fs as pafs


@dataclass(frozen=True, slots=True)
class Request:
    """Bytes [offset, offset + length) of a file, as they were asked for."""

    path: str
    offset: int
    length: int

    def touches(self, start: int, end: int) -> bool:
        """Whether some byte of [start, end) was asked for."""
        return self.offset < end and start < self.offset + self.length


@dataclass(frozen=True, slots=True)
class Delay:
    """How late a store answers: to a file being opened, which asks for its size, and to a request, at the rate of one connection."""

    open_seconds: float = 0.0
    request_seconds: float = 0.0
    bytes_per_second: float = math.inf

    def of(self, num_bytes: int) -> float:
        """Seconds that a request takes."""
        return self.request_seconds + num_bytes / self.bytes_per_second


NO_DELAY = Delay()


@dataclass(slots=True)
class Recorder:
    """What was asked for so far, how much of it at a time; what is asked for comes after `delay`."""

    opened: Counter[str] = field(default_factory=Counter)
    requests: list[Request] = field(default_factory=list)
    lock: Any = field(default_factory=Lock)
    delay: Delay = NO_DELAY
    at_a_time: int = 0
    most_at_a_time: int = 0
    overlapping: int = 0

    def clear(self) -> None:
        """Forget everything."""
        self.opened.clear()
        self.requests.clear()
        self.overlapping = 0

    def of(self, *parts: str) -> list[Request]:
        """Requests for files whose path holds one of these parts."""
        return [r for r in self.requests if any(part in r.path for part in parts)]

    def num_bytes(self, *parts: str) -> int:
        """Bytes asked for of such files."""
        return sum(r.length for r in self.of(*parts))


class RecordingFile:
    """A file for random access; pyarrow reads through it."""

    def __init__(self, inner: pa.NativeFile, path: str, recorder: Recorder) -> None:
        self._inner = inner
        self._path = path
        self._recorder = recorder
        self._position = 0
        self.closed = False

    def read(self, length: int | None = None) -> bytes:
        """The next bytes."""
        size = self._inner.size() - self._position if length is None or length < 0 else length
        recorder = self._recorder
        with recorder.lock:
            recorder.overlapping += recorder.at_a_time > 0
            recorder.at_a_time += 1
            recorder.most_at_a_time = max(recorder.most_at_a_time, recorder.at_a_time)
        time.sleep(recorder.delay.of(size))
        data: bytes = self._inner.read_at(size, self._position)
        with recorder.lock:
            recorder.at_a_time -= 1
            recorder.requests.append(Request(self._path, self._position, len(data)))
        self._position += len(data)
        return data

    def seek(self, position: int, whence: int = 0) -> int:
        """Go to a position."""
        self._position = position + (0, self._position, self._inner.size())[whence]
        return self._position

    def tell(self) -> int:
        """Where it is."""
        return self._position

    def close(self) -> None:
        """Release the file."""
        self.closed = True
        self._inner.close()

    def readable(self) -> bool:
        """Always."""
        return not self.closed

    def seekable(self) -> bool:
        """Always."""
        return True

    def writable(self) -> bool:
        """Never."""
        return False


class RecordingHandler(pafs.FileSystemHandler):  # type: ignore[misc]  # pyarrow has no types
    """Reads from `inner`, below `root`, what is asked for below `prefix`."""

    def __init__(self, inner: pafs.FileSystem, prefix: str, root: str, recorder: Recorder) -> None:
        self._inner = inner
        self._prefix = prefix
        self._root = root
        self._recorder = recorder

    def _at(self, path: str) -> str:
        assert path.startswith(self._prefix), path
        return self._root + path.removeprefix(self._prefix)

    def open_input_file(self, path: str) -> pa.NativeFile:
        """A recorded file."""
        self._recorder.opened[path] += 1
        time.sleep(self._recorder.delay.open_seconds)
        return pa.PythonFile(RecordingFile(self._inner.open_input_file(self._at(path)), path, self._recorder), "r")

    def get_type_name(self) -> str:
        return "recording"

    def get_file_info(self, paths: list[str]) -> list[pafs.FileInfo]:
        return [self._inner.get_file_info(self._at(path)) for path in paths]

    def _refuse(self, *args: Any, **kwargs: Any) -> Any:
        raise NotImplementedError(f"reading does not need this: {args} {kwargs}")

    copy_file = create_dir = delete_dir = delete_dir_contents = delete_file = delete_root_dir_contents = _refuse
    get_file_info_selector = move = open_append_stream = open_input_stream = open_output_stream = _refuse

    def normalize_path(self, path: str) -> str:
        return path
