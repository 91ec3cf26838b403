"""Many scans in one process: they share memory and threads, any of them can be cancelled, and none leaves anything behind."""

import json
import multiprocessing
import os
import pickle
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from nevermore import scan_core
from nevermore.scan_core import Scan, ScanCancelledError, ScanOptions
from nevermore.scan_core.columns.file_reader import MemoryBudget
from nevermore.scan_core.deletes import indexes
from nevermore.scan_core.model import running
from nevermore.scan_core.plan import planner
from nevermore.scan_core.read.projection import LazyColumns
from nevermore.scan_core.rows.selection import RowSelection
from tests.scan_core.native.test_fork import ends_in_a_forked_process
from tests.support.iceberg_json import Column
from tests.support.memory import PEAK_BYTES
from tests.support.table_builder import TableBuilder

PATIENCE = 200
MIB = 1024**2
FILES, ROWS = 6, 2_000
LIVE = FILES * ROWS - len(range(0, FILES * ROWS, 7))
READS: dict[str, Callable[[Scan], object]] = {
    "rows": lambda scan: scan.to_table(),
    "rows in any order": lambda scan: scan.with_options(ScanOptions(keep_order=False)).to_table(),
    "count": lambda scan: scan.count(),
    "aggregate": lambda scan: scan.aggregate(("sum", "v")),
}


@pytest.fixture
def metadata(tmp_path: Path) -> Path:
    table = TableBuilder(tmp_path / "t", (Column(1, "id", "long"), Column(2, "v", "long"), Column(3, "s", "string")))
    for number in range(FILES):
        ids = np.arange(number * ROWS, (number + 1) * ROWS)
        rows = {"id": ids, "v": ids * 3, "s": [f"text {i % 5}" for i in ids.tolist()]}
        # stated to be large, so that each file is a split of its own
        file = table.data(rows, row_group_size=500)
        table.commit(file)
    table.commit(table.equality_delete({"id": np.arange(0, FILES * ROWS, 7)}, ids=[1]))
    return table.metadata_path


def scan_of(metadata: Path, parallelism: int = 3) -> Scan:
    options = ScanOptions(parallelism=parallelism, split_bytes=1)
    return scan_core.open_table(metadata, options=options).scan().where("v >= 0")


class Held:
    """Decoding that does not go on before it is let to."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.begun, self.released, self.loads = threading.Event(), threading.Event(), 0
        load = LazyColumns.load

        def held(columns: LazyColumns, indices: Sequence[int], selection: RowSelection) -> list[pa.Array]:
            self.begun.set()
            assert self.released.wait(PATIENCE)
            found = load(columns, indices, selection)
            self.loads += 1
            return found

        monkeypatch.setattr(LazyColumns, "load", held)


@pytest.fixture
def held(monkeypatch: pytest.MonkeyPatch) -> Iterator[Held]:
    found = Held(monkeypatch)
    yield found
    found.released.set()


@pytest.mark.parametrize("read", ["rows", "count", "aggregate"])
def test_a_scan_whose_threads_decode_is_cancelled_without_waiting_for_them(
    metadata: Path, held: Held, monkeypatch: pytest.MonkeyPatch, read: str
) -> None:
    monkeypatch.setattr(scan_core.scan, "_MIN_SPLIT_BYTES", 1)
    scan = scan_of(metadata)
    with ThreadPoolExecutor(1) as pool:
        running = pool.submit(READS[read], scan)
        assert held.begun.wait(PATIENCE)
        assert not held.released.is_set()
        scan.cancel()
        with pytest.raises(ScanCancelledError, match="the scan was cancelled"):
            running.result(PATIENCE)  # while every worker is held
    held.released.set()
    assert scan.count() == LIVE, "a later run is not affected"


def test_results_in_any_order_are_cancelled_alike(metadata: Path, held: Held, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scan_core.scan, "_MIN_SPLIT_BYTES", 1)
    scan = scan_of(metadata)
    scan = scan.with_options(ScanOptions(parallelism=3, keep_order=False, split_bytes=1))
    with ThreadPoolExecutor(1) as pool:
        running = pool.submit(scan.to_table)
        assert held.begun.wait(PATIENCE)
        scan.cancel()
        with pytest.raises(ScanCancelledError):
            running.result(PATIENCE)


def test_a_scan_in_its_callers_thread_decodes_nothing_more_once_it_is_cancelled(metadata: Path, held: Held) -> None:
    scan = scan_of(metadata, parallelism=1)
    with ThreadPoolExecutor(1) as pool:
        running = pool.submit(scan.count)
        assert held.begun.wait(PATIENCE)
        scan.cancel()
        held.released.set()
        with pytest.raises(ScanCancelledError):
            running.result(PATIENCE)
    assert held.loads == 0


def test_batches_that_nobody_asks_for_are_cancelled_when_somebody_does(metadata: Path) -> None:
    scan = scan_of(metadata, parallelism=1)
    batches = scan.to_batches()
    next(batches)
    scan.cancel()
    with pytest.raises(ScanCancelledError):
        next(batches)


def test_planning_is_cancelled(metadata: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    scan = scan_of(metadata)
    read = planner.read_data_manifests  # type: ignore[attr-defined]

    def cancelling(*args: Any, **options: Any) -> Any:
        scan.cancel()
        return read(*args, **options)

    monkeypatch.setattr(planner, "read_data_manifests", cancelling)
    monkeypatch.setattr(planner, "_PIECE_FILES", 1)
    with pytest.raises(ScanCancelledError):
        scan.plan()


def test_a_scan_that_waits_for_the_index_of_a_cancelled_one_builds_it_itself(
    metadata: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun, released = threading.Event(), threading.Event()
    keys_of = indexes._keys_of_files

    def held(*args: Any) -> Any:
        begun.set()
        assert released.wait(PATIENCE)
        return keys_of(*args)

    monkeypatch.setattr(indexes, "_keys_of_files", held)
    first, second = scan_of(metadata, 1), scan_of(metadata, 1)
    with ThreadPoolExecutor(2) as pool:
        cancelled = pool.submit(first.count)
        assert begun.wait(PATIENCE)
        waiting = pool.submit(second.count)
        first.cancel()
        released.set()
        with pytest.raises(ScanCancelledError):
            cancelled.result(PATIENCE)
        assert waiting.result(PATIENCE) == LIVE


def test_scans_share_the_memory_limit_and_threads(metadata: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scan_core.scan, "_MIN_SPLIT_BYTES", 1)
    budget = MemoryBudget(ScanOptions(memory_limit_bytes=1024 * MIB, parallelism=1))
    alone = len(budget.pieces(10_000_000, 2_000 * MIB))
    before = threading.active_count()
    batches = [scan_of(metadata, parallelism=4).to_batches() for _ in range(8)]
    for one in batches:
        next(one)
    assert running.sharing() == 8
    assert len(budget.pieces(10_000_000, 2_000 * MIB)) >= 7 * alone, "also for a scan that began before the others"
    assert threading.active_count() - before < 4 + 2 + 2, "not four for each"
    assert [1 + sum(1 for _ in one) > 1 for one in batches] == [True] * 8
    assert running.sharing() == 1
    assert len(budget.pieces(10_000_000, 2_000 * MIB)) == alone


def test_scans_at_the_same_time_give_the_same_rows_and_read_deletes_once(metadata: Path) -> None:
    expected = scan_of(metadata).to_table()
    opened = scan_core.open_table(metadata).scan()
    indexes.DELETE_CACHE.clear()

    def one(number: int) -> tuple[object, int]:
        scan = opened.where("v >= 0")
        if number % 2:
            return scan.count(), scan.metrics.delete_files_opened
        return scan.to_table() == expected, scan.metrics.delete_files_opened

    with ThreadPoolExecutor(32) as pool:
        found = list(pool.map(one, range(64)))
    assert [answer for answer, _ in found] == [True, LIVE] * 32
    assert sum(opened for _, opened in found) == 1


def _count(scan: Scan) -> int:
    return scan.count()


def test_scans_in_other_processes_while_some_run_here(metadata: Path) -> None:
    scan = scan_of(metadata)
    batches = scan.to_batches()
    next(batches)
    assert pickle.loads(pickle.dumps(scan)).count() == LIVE  # noqa: S301  its own bytes
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        assert pool.map(_count, [scan]) == [LIVE]

    def in_child() -> None:
        assert running.sharing() == 1
        if scan_of(metadata).count() != LIVE or scan.count() != LIVE:
            os._exit(1)

    assert ends_in_a_forked_process(in_child)
    batches.close()


MIX = """
import gc, json, os, sys, threading
from pathlib import Path
from nevermore import scan_core
from nevermore.scan_core.native.compiled import load
load()  # at a moment of its own choice otherwise, some 50 MB
table = scan_core.open_table(sys.argv[1])
def resident():
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
def state():
    gc.collect()
    return resident(), len(os.listdir("/proc/self/fd")), threading.active_count()
def one(number):
    scan = table.scan() if number % 3 else scan_core.open_table(sys.argv[1]).scan()
    match number % 9:
        case 0: scan.count()
        case 1: scan.where(f"id > {number % 63 * 50}").to_table()
        case 2: scan.aggregate(("sum", "id"), ("max", "s"))
        case 3: scan.semi_join("id", [number % 63, 5, 9]).to_table()
        case 4: next(scan.to_batches())
        case 5:
            try: scan.where(f"1 / (id - {number % 63 * 7 + 1}) > 0").to_table()
            except scan_core.ScanError: pass
        case 6: scan.limit(3).to_table()
        case 7:
            batches = scan.to_batches()
            next(batches)
            scan.cancel()
            try: next(batches)
            except scan_core.ScanCancelledError: pass
        case _: scan.to_dataset().count_rows()
for number in range(int(sys.argv[2])): one(number)
before = state()
for number in range(int(sys.argv[3])): one(number)
print(json.dumps([before, state()]))
"""


@pytest.mark.parametrize(
    ("warm", "scans", "most"),
    [(60, 150, 8 * MIB), pytest.param(2_000, 10_000, 16 * MIB, marks=[pytest.mark.slow, pytest.mark.timeout(3600)])],
)
def test_scans_leave_no_memory_descriptors_and_threads_behind(metadata: Path, warm: int, scans: int, most: int) -> None:
    command = [sys.executable, "-c", MIX, str(metadata), str(warm), str(scans)]
    ended = subprocess.run(command, capture_output=True, text=True, check=True)
    before, after = json.loads(ended.stdout)
    assert after[1] - before[1] <= 2, "folders that are held once"
    assert after[2] == before[2]
    assert after[0] - before[0] < most


@pytest.mark.slow
def test_sixteen_scans_keep_to_the_memory_limit_of_one(tmp_path: Path) -> None:
    rows, limit = 1_000_000, 512 * MIB
    columns = [Column(i, f"v{i}", "long") for i in range(1, 17)]
    table = TableBuilder(tmp_path, columns)
    file = table.data({c.name: [1] for c in columns})
    draw = np.random.default_rng(3)
    fields = [pa.field(c.name, pa.int64(), metadata={"PARQUET:field_id": str(c.id)}) for c in columns]
    content = pa.table([draw.integers(0, 1 << 60, rows) for _ in columns], pa.schema(fields))
    pq.write_table(content, file.local, data_page_size=64 * 1024, write_batch_size=4096, use_dictionary=False)
    file.record["record_count"], file.record["file_size_in_bytes"] = rows, file.local.stat().st_size
    for bounds in ("lower_bounds", "upper_bounds", "value_counts", "null_value_counts"):
        file.record[bounds] = []
    table.commit(file)
    code = f"""{PEAK_BYTES}
from nevermore import scan_core
from concurrent.futures import ThreadPoolExecutor
from nevermore.scan_core import ScanOptions
options = ScanOptions(memory_limit_bytes={limit})
scan = scan_core.open_table({str(table.metadata_path)!r}, options=options).scan()
next(scan.limit(1).to_batches())
before = peak_bytes()
with ThreadPoolExecutor(16) as pool:
    counted = list(pool.map(lambda _: sum(b.num_rows for b in scan.limit(10 ** 9).to_batches()), range(16)))
print(sum(counted), peak_bytes() - before)
"""
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    counted, growth = map(int, result.stdout.split())
    assert counted == 16 * rows
    assert growth <= 1.25 * limit
