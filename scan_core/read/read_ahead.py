"""Reading ahead on object stores: files are opened, and bytes fetched, before their turn, while others are decoded.

What a row group needs is guessed from what the last one was asked for; a wrong guess costs bytes, never a result. How
bytes are requested is decided in `io/remote.py`.
"""

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import nullcontext
from itertools import chain
from threading import Lock
from typing import NamedTuple, Self
from weakref import WeakSet

from nevermore.scan_core.columns.file_reader import FileReader, Habits, RowGroup
from nevermore.scan_core.deletes.filter import DeleteFilter, open_delete_filter
from nevermore.scan_core.files import open_file
from nevermore.scan_core.io.location import relocate
from nevermore.scan_core.keys.equality_index import build_bytes
from nevermore.scan_core.model.errors import ScanCancelledError
from nevermore.scan_core.model.options import ScanMetrics, ScanOptions
from nevermore.scan_core.model.running import Running, awaited, current, sharing
from nevermore.scan_core.model.snapshot import DeleteFile
from nevermore.scan_core.split.tasks import FileScanTask, ScanContext, Split

_SHARE = 4
"""Bytes fetched ahead take at most one part in this many of the memory limit."""
_MAX_IN_VAIN = 0.5
"""If a larger part of what was fetched ahead was not needed, only the next file of each worker is fetched ahead."""
_MAX_DELETES_IN_VAIN = 8 * 1024**2
"""Larger deletes of a file wait until its statistics and dictionaries let the filter pass."""
OPENED_AT_A_TIME = 16
"""Files that are opened before their turn: each costs two round trips and keeps little more than its footer."""


class FilesAhead:
    """The files that the workers of one scan will read next. Safe for several threads.

    As a context manager it closes unused files at its end and leaves no thread running.
    """

    def __init__(self, options: ScanOptions, running: Running | None = None) -> None:
        """`running` is the run that the work ahead is for; by default that of the thread."""
        self._options = options
        self._running = running or current()
        self._habits: Habits | None = None  # of the last row group
        self._opened: dict[_Key, Future[FileReader]] = {}
        self._unread: dict[_Key, FileScanTask] = {}  # nothing but their footers was fetched
        self._deletes: dict[_Key, _Loading] = {}
        self.unasked = ScanMetrics()  # what was read of deletes that nobody asked for
        self._readers: WeakSet[FileReader] = WeakSet()
        self._fetched = self._in_vain = 0
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
            opened = self._opened[_key(task)] = self._threads().submit(_open, task, context)
            self._unread[_key(task)] = task
            self._expect_deletes(task, context, self._total_bytes)
        opened.add_done_callback(self._fetch_next)

    def open(self, task: FileScanTask, context: ScanContext) -> FileReader:
        """The file of a task, which the caller closes; raises as `open_file` does."""
        with self._lock:
            if self.is_on and self._is_remote(task, context):
                self._expect_deletes(task, context)
            future = self._opened.pop(_key(task), None)
            self._unread.pop(_key(task), None)
        self._fetch_next()
        if future is None:
            return _open(task, context)
        try:
            return awaited(future)
        except ScanCancelledError:  # nobody else knows of the file
            future.add_done_callback(_close_unused)
            raise

    def deletes(self, task: FileScanTask, context: ScanContext, metrics: ScanMetrics) -> DeleteFilter:
        """The deletes of a task, loaded ahead or now; raises as `open_delete_filter` does."""
        with self._lock:
            loading = self._deletes.pop(_key(task), None)
        if loading is None:
            return open_delete_filter(task, context, metrics)
        found = awaited(loading.deletes)
        metrics.add(loading.counted)
        return found

    def may_expect(self, reader: FileReader) -> bool:
        """Whether bytes of the file can be fetched ahead: it is remote, and reading ahead is allowed."""
        return self.is_on and reader.is_remote

    def expect_row_group(self, reader: FileReader, row_group: RowGroup, first_guess: Callable[[], Habits]) -> None:
        """Start fetching what a row group will probably need: the columns of the previous one, or `first_guess` for the first."""
        habits = self._habits
        if habits is None:
            self._habits = habits = first_guess()
        with self._lock:
            self._expect(reader, row_group, habits)
        self._fetch_next()

    def record(self, habits: Habits, fetched: int, in_vain: int) -> None:
        """Record the columns that were read of a row group, and how many of the bytes fetched ahead were not used."""
        self._habits = habits
        with self._lock:
            self._fetched += fetched
            self._in_vain += in_vain

    def close(self, *, wait: bool = True) -> None:
        """Close files that were opened but not used; either wait for all threads to end, or leave the closing to them."""
        with self._lock:
            self._is_closed = True
            waiting, self._opened = list(self._opened.values()), {}
            unasked, self._deletes = list(self._deletes.values()), {}
        if self._pool is not None:
            self._pool.shutdown(wait=wait, cancel_futures=True)
        for future in waiting:
            future.add_done_callback(_close_unused)
        for loading in unasked:
            self.unasked.add(loading.counted)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def _total_bytes(self) -> int:
        return min(self._options.read_ahead_bytes, self._options.memory_limit_bytes // sharing() // _SHARE)

    @property
    def _room(self) -> int:
        """Bytes that one row group may take now. Called with the lock held."""
        room = self._total_bytes - sum(r.num_bytes_ahead for r in list(self._readers))
        return min(room, self._total_bytes // self._options.parallelism)

    def _is_remote(self, task: FileScanTask, context: ScanContext) -> bool:
        return not relocate(task.data_file.path, context.io).is_local

    def _threads(self) -> ThreadPoolExecutor:
        """Called with the lock held."""
        if self._pool is None:
            self._pool = ThreadPoolExecutor(max(self._options.parallelism, OPENED_AT_A_TIME), "scan-ahead")
        return self._pool

    def _expect_deletes(self, task: FileScanTask, context: ScanContext, room: int | None = None) -> None:
        """Begin to load the deletes of a file while it is opened: they are asked for next. Called with the lock held.

        With a filter the file may turn out to hold no row that passes, so that only small ones are loaded. Runtime filters
        decide which keys are loaded, and may not have arrived. Those of all files that wait for their turn take `room` bytes.
        """
        files = [f for group in task.equality_deletes for f in group.files]
        if self._is_closed or _key(task) in self._deletes or not files or context.runtime_filters:
            return
        may_be_in_vain = context.predicate is not None or context.sample is not None
        if may_be_in_vain and sum(f.file_size_bytes for f in files) > _MAX_DELETES_IN_VAIN:
            return
        sizes = {id(group): _bytes_of(group.files) for group in task.equality_deletes}  # tasks share groups
        sizes |= {id(file): _bytes_of((file,)) for file in task.position_deletes}
        waiting = dict(chain(sizes.items(), *(loading.sizes.items() for loading in self._deletes.values())))
        if room is not None and sum(waiting.values()) > room:
            return
        running, counted = self._running, ScanMetrics()

        def load() -> DeleteFilter:
            with nullcontext() if running is None else running.at_work():
                return open_delete_filter(task, context, counted)

        self._deletes[_key(task)] = _Loading(self._threads().submit(load), counted, sizes)

    def _expect(self, reader: FileReader, row_group: RowGroup, habits: Habits) -> None:
        """Fetch what there is room for. Called with the lock held: others would take the same room."""
        self._readers.add(reader)
        reader.expect(row_group, habits, self._room)

    def _fetch_next(self, _: object = None) -> None:
        """Begin to fetch the first row groups of the files whose turn comes next, once they are open.

        All that are open, as far as memory allows: requests that run side by side take as long as one.
        """
        with self._lock:  # nobody takes a file meanwhile: what was read already would be fetched again
            if self._is_closed or (habits := self._habits) is None:
                return
            is_worthwhile = self._in_vain <= self._fetched * _MAX_IN_VAIN
            for key in list(self._opened)[: OPENED_AT_A_TIME if is_worthwhile else self._options.parallelism]:
                opened = self._opened[key]
                if key not in self._unread or not opened.done():
                    continue
                task = self._unread.pop(key)
                if opened.cancelled() or opened.exception() is not None:
                    continue  # whoever opens the file learns of it
                reader = opened.result()
                owned = (g for g in reader.row_groups if g.num_rows and task.owns(g.byte_offset))
                if (first := next(owned, None)) is not None and self.may_expect(reader):
                    self._expect(reader, first, habits)


_Key = tuple[str, int]


class _Loading(NamedTuple):
    """Deletes that are loaded ahead, what that counts, and the bytes that each group and file is expected to take."""

    deletes: Future[DeleteFilter]
    counted: ScanMetrics
    sizes: Mapping[int, int]


def _bytes_of(files: Sequence[DeleteFile]) -> int:
    return build_bytes(sum(f.record_count for f in files), sum(f.file_size_bytes for f in files))


def _key(task: FileScanTask) -> _Key:
    return task.data_file.path, task.start


def _close_unused(opened: Future[FileReader]) -> None:
    if not opened.cancelled() and opened.exception() is None:
        opened.result().close()


def _open(task: FileScanTask, context: ScanContext) -> FileReader:
    file, options = task.data_file, context.options
    return open_file(
        file.path,
        file.format,
        context.io,
        reads_pages=options.switches.prune_pages,
        parallelism=options.parallelism,
        verifies=options.verify_checksums,
    )
