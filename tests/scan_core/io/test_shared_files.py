"""What threads of a scan share of remote files, stopped between two steps of one thread while another takes its own."""

import threading
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor, wait
from typing import Any

import numpy as np
import pytest

from nevermore.scan_core import ScanCancelledError, ScanOptions
from nevermore.scan_core.columns.file_reader import Habits, RowGroup
from nevermore.scan_core.io import remote
from nevermore.scan_core.io.remote import RemoteFile
from nevermore.scan_core.model.running import Running
from nevermore.scan_core.read import read_ahead
from nevermore.scan_core.read.read_ahead import FilesAhead

PATIENCE = 200
DATA = np.arange(500_000, dtype="<u4").tobytes()
GROUP = RowGroup(0, 0, 1, 4, 1)
HABITS = Habits(frozenset())


class Store:
    """An object that answers requests once `released` is set."""

    may_repeat = False

    def __init__(self) -> None:
        self.begun, self.released, self.is_closed = threading.Event(), threading.Event(), False

    def tail(self, length: int) -> tuple[memoryview, int]:
        return memoryview(DATA)[-length:], len(DATA)

    def size(self) -> int:
        return len(DATA)

    def read_at(self, length: int, offset: int) -> memoryview:
        self.begun.set()
        assert self.released.wait(PATIENCE)
        assert not self.is_closed, "the object was closed while it was read"
        return memoryview(DATA)[offset : offset + length]

    def kept(self, *_: int) -> memoryview | None:
        return None

    def keep(self, offset: int, data: memoryview) -> None:
        """Nothing is kept."""

    def close(self) -> None:
        self.is_closed = True


@pytest.fixture
def store() -> Iterator[Store]:
    found = Store()
    yield found
    found.released.set()


@pytest.fixture
def one_at_a_time(monkeypatch: pytest.MonkeyPatch) -> Iterator[dict[bool, ThreadPoolExecutor]]:
    """One thread for requests that are waited for, and one for those made ahead."""
    pools = {ahead: ThreadPoolExecutor(1) for ahead in (False, True)}
    monkeypatch.setattr(remote, "_requests", lambda *, ahead: pools[ahead])
    yield pools
    for pool in pools.values():
        pool.shutdown()


@pytest.mark.parametrize("offset", [0, 4_000], ids=["the same range", "another range of one request"])
def test_what_was_fetched_ahead_is_forgotten_while_another_thread_waits_for_it(
    store: Store, one_at_a_time: dict[bool, ThreadPoolExecutor], offset: int
) -> None:
    waiting, go_on = threading.Event(), threading.Event()

    class Watched(RemoteFile):
        def _answer(self, part: Any) -> memoryview:
            waiting.set()
            return super()._answer(part)

    file = Watched(store)
    file.read_tail(1)
    one_at_a_time[True].submit(go_on.wait, PATIENCE)  # the request stays in the queue, and can be cancelled
    assert file.fetch_ahead([(0, 1_000), (4_000, 1_000)], 7, 10**6) == 5_000
    with ThreadPoolExecutor(1) as thread:
        found = thread.submit(file.read_at, 1_000, offset)
        assert waiting.wait(PATIENCE)
        file.forget_ahead(7)
        store.released.set()
        assert found.result(PATIENCE) == DATA[offset : offset + 1_000]
    go_on.set()
    file.close()


def test_a_file_is_not_closed_under_a_request_when_the_scan_is_stopped_meanwhile(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = RemoteFile(store)
    begin = file.request(0, 1_000)
    assert store.begun.wait(PATIENCE)
    asked: list[bool] = []

    def is_stopped() -> bool:
        """It is stopped after the first question."""
        asked.append(True)
        return len(asked) > 1

    monkeypatch.setattr(remote, "is_stopped", is_stopped)
    with ThreadPoolExecutor(1) as thread:
        closed = thread.submit(file.close)
        with pytest.raises(TimeoutError):
            closed.result(0.2)
        assert not store.is_closed
        store.released.set()
        closed.result(PATIENCE)
    assert begin() == DATA[:1_000]
    assert store.is_closed


class Reader:
    """A file of which everything that there is room for is fetched ahead."""

    is_remote = True

    def __init__(self) -> None:
        self.taken = 0
        self.asked = lambda: None

    @property
    def num_bytes_ahead(self) -> int:
        taken = self.taken
        self.asked()
        return taken

    def expect(self, _row_group: RowGroup, _habits: Habits, max_bytes: int) -> None:
        self.taken += max_bytes


def test_workers_that_fetch_ahead_together_share_the_room() -> None:
    readers: list[Any] = [Reader() for _ in range(4)]
    with FilesAhead(ScanOptions(parallelism=1, read_ahead_bytes=100)) as ahead, ThreadPoolExecutor(1) as thread:
        for reader in readers[:2]:
            ahead.expect_row_group(reader, GROUP, lambda: ())
            reader.taken = 0
        others: list[Future[None]] = []

        def interrupted() -> None:
            """Another worker comes while the bytes of all files are added up."""
            for reader in readers:
                reader.asked = lambda: None
            others.append(thread.submit(ahead.expect_row_group, readers[3], GROUP, lambda: ()))
            wait(others, 0.2)

        for reader in readers[:2]:
            reader.asked = interrupted
        ahead.expect_row_group(readers[2], GROUP, lambda: ())
        others[0].result(PATIENCE)
        assert sum(reader.taken for reader in readers) == 100


def test_a_file_that_opens_after_its_scan_was_cancelled_is_closed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    opening, go_on, closed = threading.Event(), threading.Event(), threading.Event()

    class Opened(Reader):
        def close(self) -> None:
            closed.set()

    def slow(*_: object) -> Opened:
        opening.set()
        assert go_on.wait(PATIENCE)
        return Opened()

    monkeypatch.setattr(read_ahead, "_open", slow)
    monkeypatch.setattr(read_ahead, "_key", lambda task: task)
    monkeypatch.setattr(FilesAhead, "_is_remote", lambda *_: True)
    monkeypatch.setattr(FilesAhead, "_expect_deletes", lambda *_: None)
    ahead: Any = FilesAhead(ScanOptions(read_ahead_bytes=100))
    ahead.expect_task("task", None)
    assert opening.wait(PATIENCE)
    running = Running()

    def open_it() -> None:
        with running, running.at_work():
            ahead.open("task", None)

    with ThreadPoolExecutor(1) as thread:
        asked = thread.submit(open_it)
        while ahead._opened:
            pass
        running.cancel()
        with pytest.raises(ScanCancelledError):
            asked.result(PATIENCE)
    ahead.close(wait=False)
    go_on.set()
    assert closed.wait(PATIENCE)
