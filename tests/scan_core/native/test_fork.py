"""A process that is forked while a thread of its parent loads kernels or builds an index does not wait for that thread."""

import os
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any

import pyarrow as pa
import pytest

from nevermore.scan_core.deletes.indexes import DeleteCache
from nevermore.scan_core.files.parquet.file_layout import FOOTERS, file_columns
from nevermore.scan_core.io import cache, catalog
from nevermore.scan_core.io.location import Location
from nevermore.scan_core.io.private_files import spill_folder
from nevermore.scan_core.joins import key_set
from nevermore.scan_core.joins.column_keys import KeyField
from nevermore.scan_core.model.options import ScanMetrics, ScanOptions
from nevermore.scan_core.model.schema import PrimitiveType
from nevermore.scan_core.native import compiled, machine_code
from nevermore.scan_core.read import key_filter
from nevermore.scan_core.read.restriction import HINTS, RUNS, worth_in_run
from nevermore.scan_core.semi_join import semi_join
from nevermore.scan_core.spark import native

_PATIENCE_SECONDS = 200


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

    def slow_load(_unit: str) -> Any:
        loading.set()
        assert forked.wait(_PATIENCE_SECONDS)
        return {}

    monkeypatch.setattr(machine_code, "_STATE", machine_code._State())
    monkeypatch.setattr(machine_code, "load_kernels", slow_load)
    thread = threading.Thread(target=compiled.load)
    thread.start()
    assert loading.wait(_PATIENCE_SECONDS)

    def in_child() -> None:
        machine_code.load_kernels = lambda _unit: {}  # type: ignore[assignment,misc,return-value]
        compiled.load()

    try:
        assert ends_in_a_forked_process(in_child)
    finally:
        forked.set()
        thread.join()


def test_caches_are_usable_after_a_fork_in_the_middle_of_building() -> None:
    cache = DeleteCache()
    os.register_at_fork(after_in_child=cache.forget_threads)
    cache._building._running["key"] = Future()

    class Entry:
        num_bytes = 1

    with cache._lock, cache._building._lock, FOOTERS._layouts._lock, FOOTERS._reading._lock:
        assert ends_in_a_forked_process(lambda: (cache.get_or_build("key", Entry, 10, ScanMetrics()), FOOTERS.clear()))


def _use_the_catalog() -> None:
    location = Location("s3", "bucket", "/path")
    catalog._filesystems["s3", "bucket", ()] = "known"
    assert catalog.filesystem(location, {}) == ("known", "bucket/path")


JOIN = semi_join("k", pa.table({"k": pa.array([1, 2], pa.int32())}), is_exact=True)
COLUMNS = file_columns(pa.schema([("s", pa.struct([("a", pa.int32()), ("b", pa.int32()), ("c", pa.int32())]))]))
SHARED: dict[str, tuple[Any, Callable[[], Any]]] = {
    "manifests": (lambda: cache._DECODED._lock, lambda: cache.put("fork", "value", 1)),
    "file systems": (lambda: catalog._lock, _use_the_catalog),
    "hashes of keys": (
        lambda: key_filter._HASHES._lock,
        lambda: key_filter._HASHES.get(("fork", "", 2, ""), lambda: None, 0),
    ),
    "lookups": (
        lambda: key_set._LOOKUPS._lock,
        lambda: key_set.KeySet((), (pa.array([1]),)).lookup(ScanOptions()),
    ),
    "runs": (lambda: RUNS._lock, lambda: worth_in_run("fork")),
    "orders of conjuncts": (lambda: HINTS._lock, lambda: HINTS.find("fork")),
    "dead rows": (lambda: native._CACHE._lock, native.forget),
    "keys of a join": (lambda: JOIN._lock, lambda: JOIN.bind((KeyField(1, "k", PrimitiveType("int")),))),
    "parts of columns": (lambda: COLUMNS.lock, lambda: COLUMNS.part(0, {0, 1})),
}


@pytest.mark.each(3)
@pytest.mark.parametrize("name", SHARED)
def test_what_a_process_shares_is_usable_after_a_fork_while_another_thread_holds_it(name: str) -> None:
    lock_of, use = SHARED[name]
    with lock_of():
        assert ends_in_a_forked_process(use)


def test_an_account_of_manifests_that_was_left_half_done_begins_anew() -> None:
    cache.put("before", "value", 10)
    with cache._DECODED._lock:
        child = os.fork()
        if child == 0:
            os._exit(cache.total_bytes())
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert cache.get("before") == "value"


def test_a_part_of_a_column_that_was_being_added_is_added_anew() -> None:
    kind = pa.struct([("a", pa.int32()), ("b", pa.string()), ("c", pa.int32())])
    columns = file_columns(pa.schema([("s", kind)]))
    columns.ways.append((0,))
    columns.leaves.append((0, 2))  # another thread came so far, and is not in this process
    number = columns.part(0, {0, 1})
    assert number is not None
    assert (columns.ways[number], columns.leaves[number]) == ((0,), (0, 1))
    assert columns.fields[number].type == pa.struct(list(kind)[:2])


def test_a_forked_process_spills_to_a_folder_of_its_own() -> None:
    own = spill_folder()

    def in_child() -> None:
        if spill_folder().path == own.path:
            time.sleep(2 * _PATIENCE_SECONDS)

    assert ends_in_a_forked_process(in_child)
    assert spill_folder() is own
