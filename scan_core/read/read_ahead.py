"""Reading ahead on object stores: files are opened, and bytes fetched, before their turn, while others are decoded.

What a row group needs is guessed from what the last one was asked for; a wrong guess costs bytes, never a result. How
bytes are requested is decided in `io/remote.py`.
"""

from collections.abc import Iterable
from concurrent.futures import Future, ThreadPoolExecutor
from threading import Lock
from typing import Self

from scan_core.columns.file_reader import FileReader, Habits, RowGroup, reads_ahead
from scan_core.files.formats import open_file
from scan_core.io.location import relocate
from scan_core.model.options import ScanOptions
from scan_core.native.compiled import may_use_numba
from scan_core.split.tasks import FileScanTask, ScanContext, Split

_SHARE = 4
"""Bytes fetched ahead take at most one part in this many of the memory limit."""
_FILES_PER_WORKER = 2
"""Files of which bytes are fetched per worker: the one being read, and the next one."""
OPENED_AT_A_TIME = 16
"""Files that are opened before their turn: each costs two round trips and keeps little more than its footer."""


class FilesAhead:
    """The files that the workers of one scan will read next. Safe for several threads.

    A context: what nobody came for is closed at its end, and no thread is left.
    """

    def __init__(self, options: ScanOptions) -> None:
        self._options = options
        self._habits: Habits | None = None  # of the last row group
        self._opened: dict[_Key, Future[FileReader]] = {}
        self._unread: dict[_Key, FileScanTask] = {}  # nothing but their footers was fetched
        self._pool: ThreadPoolExecutor | None = None
        self._is_closed = False
        self._lock = Lock()

    @property
    def is_on(self) -> bool:
        """Whether anything may be read ahead."""
        return self._options.read_ahead_bytes > 0

    def reserved_bytes(self, split: Split) -> int:
        """The part of the memory limit reserved for bytes fetched ahead."""
        return self._total_bytes if any(self._is_remote(task, split.context) for task in split.tasks[:1]) else 0

    def expect(self, split: Split) -> None:
        """Begin to open the first file of a split that will be read soon."""
        if split.tasks:
            self.expect_task(split.tasks[0], split.context)

    def expect_task(self, task: FileScanTask, context: ScanContext) -> None:
        """Begin to open a file, and to fetch what its first row group will probably need."""
        if not self.is_on or not self._is_remote(task, context):
            return
        with self._lock:
            if self._is_closed or _key(task) in self._opened:
                return
            if self._pool is None:
                self._pool = ThreadPoolExecutor(max(self._options.parallelism, OPENED_AT_A_TIME), "scan-ahead")
            opened = self._opened[_key(task)] = self._pool.submit(_open, task, context)
            self._unread[_key(task)] = task
        opened.add_done_callback(self._fetch_next)

    def open(self, task: FileScanTask, context: ScanContext) -> FileReader:
        """The file of a task, which the caller closes; raises as `open_file` does."""
        with self._lock:
            future = self._opened.pop(_key(task), None)
            self._unread.pop(_key(task), None)
        self._fetch_next()
        return _open(task, context) if future is None else future.result()

    def expect_row_group(self, reader: FileReader, row_group: RowGroup, first_guess: Iterable[int]) -> bool:
        """Start fetching what a row group will probably need: the columns of the previous one, or `first_guess` for the first.

        False where the file is local or nothing may be fetched ahead.
        """
        if not self.is_on or not reads_ahead(reader) or not reader.is_remote:
            return False
        habits = self._habits or Habits(frozenset((i, reader.field(i).name) for i in first_guess))
        reader.expect(row_group, habits, self._total_bytes // (_FILES_PER_WORKER * self._options.parallelism))
        return True

    def record(self, habits: Habits) -> None:
        """Remember what a row group was asked for."""
        self._habits = habits

    def close(self) -> None:
        """Close files that were opened but not used, and wait for all threads to end."""
        with self._lock:
            self._is_closed = True
            waiting, self._opened = list(self._opened.values()), {}
        if self._pool is not None:
            self._pool.shutdown(wait=True, cancel_futures=True)
        for future in waiting:
            if not future.cancelled() and future.exception() is None:
                future.result().close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def _total_bytes(self) -> int:
        return min(self._options.read_ahead_bytes, self._options.memory_limit_bytes // _SHARE)

    def _is_remote(self, task: FileScanTask, context: ScanContext) -> bool:
        return not relocate(task.data_file.path, context.io).is_local

    def _fetch_next(self, _: object = None) -> None:
        """Begin to fetch the first row groups of the files whose turn comes next, one per worker, once they are open."""
        with self._lock:  # nobody takes a file meanwhile: what was read already would be fetched again
            if self._is_closed or self._habits is None:
                return
            for key in list(self._opened)[: self._options.parallelism]:
                opened = self._opened[key]
                if key not in self._unread or not opened.done():
                    continue
                task = self._unread.pop(key)
                if opened.cancelled() or opened.exception() is not None:
                    continue  # whoever opens the file learns of it
                reader = opened.result()
                owned = (g for g in reader.row_groups if g.num_rows and task.owns(g.byte_offset))
                if (first := next(owned, None)) is not None:
                    self.expect_row_group(reader, first, ())


_Key = tuple[str, int]


def _key(task: FileScanTask) -> _Key:
    return task.data_file.path, task.start


def _open(task: FileScanTask, context: ScanContext) -> FileReader:
    file, options = task.data_file, context.options
    return open_file(
        file.path,
        file.format,
        context.io,
        file.file_size_bytes,
        reads_pages=options.switches.prune_pages,
        parallelism=options.parallelism,
        verifies=options.verify_checksums,
        use_numba=may_use_numba(options),
    )
