"""A process that is forked while a thread of its parent loads kernels or builds an index does not wait for that thread."""

import os
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any

import pytest

from scan_core.deletes.cache import DeleteCache
from scan_core.metrics import ScanMetrics
from scan_core.native import compiled
from scan_core.read.parquet_layout import FOOTERS

_PATIENCE_SECONDS = 20


def ends_in_a_forked_process(run: Callable[[], Any]) -> bool:
    """Whether `run` returns in a child of this process."""
    child = os.fork()
    if child == 0:
        try:
            run()
        finally:
            os._exit(0)
    deadline = time.monotonic() + _PATIENCE_SECONDS
    while time.monotonic() < deadline:
        if os.waitpid(child, os.WNOHANG)[0]:
            return True
        time.sleep(0.01)
    os.kill(child, 9)
    os.waitpid(child, 0)
    return False


@pytest.mark.filterwarnings("ignore:.*multi-threaded.*fork:DeprecationWarning")
def test_kernels_are_loaded_after_a_fork_in_the_middle_of_loading(monkeypatch: pytest.MonkeyPatch) -> None:
    loading, forked = threading.Event(), threading.Event()

    def slow_load() -> Any:
        loading.set()
        assert forked.wait(_PATIENCE_SECONDS)
        return {}

    monkeypatch.setattr(compiled, "_STATE", compiled._State())
    monkeypatch.setattr(compiled, "load_kernels", slow_load)
    thread = threading.Thread(target=compiled.load)
    thread.start()
    assert loading.wait(_PATIENCE_SECONDS)

    def in_child() -> None:
        compiled.load_kernels = dict  # type: ignore[assignment,misc]
        compiled.load()

    try:
        assert ends_in_a_forked_process(in_child)
    finally:
        forked.set()
        thread.join()


def test_caches_are_usable_after_a_fork_in_the_middle_of_building() -> None:
    cache = DeleteCache()
    os.register_at_fork(after_in_child=cache.forget_threads)
    cache._building["key"] = Future()

    class Entry:
        num_bytes = 1

    with cache._lock, FOOTERS._lock:
        assert ends_in_a_forked_process(lambda: (cache.get_or_build("key", Entry, 10, ScanMetrics()), FOOTERS.clear()))
