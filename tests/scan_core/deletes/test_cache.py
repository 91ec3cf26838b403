import gc
import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Never

import pytest

from nevermore.scan_core import ScanOptions, open_table
from nevermore.scan_core.deletes.indexes import DELETE_CACHE, DeleteCache
from nevermore.scan_core.model.options import ScanMetrics
from tests.support.iceberg_json import Column
from tests.support.table_builder import TableBuilder


@dataclass(frozen=True, slots=True, weakref_slot=True)
class Entry:
    name: str
    num_bytes: int = 10


def test_entry_is_built_once_and_hits_are_counted() -> None:
    cache, metrics, built = DeleteCache(), ScanMetrics(), []

    def build() -> Entry:
        built.append(1)
        return Entry("a")

    first = cache.get_or_build("a", build, 100, metrics)
    assert cache.get_or_build("a", build, 100, metrics) is first
    assert (len(built), metrics.delete_index_hits) == (1, 1)


def test_concurrent_threads_share_one_build() -> None:
    cache, started, built = DeleteCache(), threading.Barrier(4), []

    def build() -> Entry:
        built.append(1)
        return Entry("a")

    def ask() -> Any:
        started.wait(timeout=300)
        return cache.get_or_build("a", build, 100, ScanMetrics())

    with ThreadPoolExecutor(4) as pool:
        results = [f.result() for f in [pool.submit(ask) for _ in range(4)]]
    assert len(built) == 1
    assert all(r is results[0] for r in results)


def test_least_recently_used_is_forgotten_beyond_the_limit() -> None:
    cache, metrics = DeleteCache(), ScanMetrics()
    for name in "ab":
        cache.get_or_build(name, lambda name=name: Entry(name, 40), 100, metrics)
    cache.get_or_build("a", lambda: Entry("a", 40), 100, metrics)
    cache.get_or_build("c", lambda: Entry("c", 40), 100, metrics)
    assert cache.num_bytes == 80
    rebuilt = []
    cache.get_or_build("b", lambda: rebuilt.append(1) or Entry("b", 40), 100, metrics)
    assert rebuilt == [1]


def test_entry_in_use_is_shared_even_when_nothing_may_be_kept() -> None:
    cache, metrics = DeleteCache(), ScanMetrics()
    mine = cache.get_or_build("a", lambda: Entry("a"), 0, metrics)
    assert cache.get_or_build("a", lambda: Entry("other"), 0, metrics) is mine
    del mine
    assert cache.get_or_build("a", lambda: Entry("other"), 0, metrics).name == "other"


def test_newest_entry_stays_though_it_exceeds_the_limit() -> None:
    cache = DeleteCache()
    cache.get_or_build("big", lambda: Entry("big", 1000), 100, ScanMetrics())
    assert cache.get_or_build("big", lambda: Entry("again"), 100, ScanMetrics()).name == "big"


def test_error_of_a_build_is_raised_and_not_remembered() -> None:
    cache = DeleteCache()

    def fail() -> Never:
        raise ValueError("broken")

    with pytest.raises(ValueError, match="broken"):
        cache.get_or_build("a", fail, 100, ScanMetrics())
    assert cache.get_or_build("a", lambda: Entry("a"), 100, ScanMetrics()).name == "a"


@pytest.mark.each(6)
@pytest.mark.parametrize("parallelism", [1, 2])
@pytest.mark.parametrize("limit", [0, 1, 10**9])
@pytest.mark.parametrize("sets", [1, 3])
def test_a_scan_builds_an_index_once_however_little_is_cached(
    tmp_path: Path, limit: int, parallelism: int, sets: int
) -> None:
    columns = [Column(1, "id", "long"), Column(2, "a", "string"), Column(3, "b", "long")]
    table = TableBuilder(tmp_path, columns)
    for start in (0, 100, 200):
        ids = range(start, start + 100)
        table.commit(table.data({"id": ids, "a": [str(key) for key in ids], "b": ids}))
    for key in range(0, 300, 5):
        column = columns[key % sets]
        table.commit(table.equality_delete({column.name: [str(key) if column.name == "a" else key]}, ids=[column.id]))
    DELETE_CACHE.clear()
    options = ScanOptions(delete_cache_bytes=limit, parallelism=parallelism, split_bytes=1)
    scan = open_table(str(tmp_path)).scan().with_options(options)
    assert sum(batch.num_rows for batch in scan.to_batches()) == 240
    assert scan.metrics.delete_indexes_built == sets
    if not limit:  # nothing of it stays
        del scan
        gc.collect()
        assert not DELETE_CACHE._held
        assert not DELETE_CACHE._alive
