"""Compaction: what a scan pays by file, row and deleted key, scans before and after, and many commits with it on its own.

python -m benchmarks.compact costs            the cost constants of pipelines/maintain/compact.py
python -m benchmarks.compact once             one compaction of a table of many commits
python -m benchmarks.compact commits          120 commits of three key shapes, compacted on its own as in a continuous run
"""

import tempfile
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from statistics import median
from time import perf_counter, process_time
from typing import Any

import numpy as np
import pyarrow as pa

from benchmarks.race import chosen
from nevermore import scan_core
from nevermore.pipelines.config.project import parse
from nevermore.pipelines.iceberg.catalog import create_table, find_table, open_catalog
from nevermore.pipelines.iceberg.commit import RowDelta
from nevermore.pipelines.iceberg.schema_evolution import iceberg_fields
from nevermore.pipelines.iceberg.table_writer import check_key, write_deletes, write_rows
from nevermore.pipelines.maintain.compact import CompactSettings, compact
from nevermore.pipelines.mirrors.table_shape import KEY
from nevermore.scan_core import ScanOptions
from nevermore.scan_core.deletes.indexes import DELETE_CACHE

ROWS = 10_000
COMMITS = 120
INITIAL_ROWS = 1_000_000
EVERY = 10
"""Commits between two looks of the compaction, about what a fifth of the time allows."""
_RANDOM = np.random.default_rng(17)
Keys = Callable[[int], tuple[np.ndarray, np.ndarray]]


def rows_of(keys: pa.Array) -> pa.Table:
    """Rows of about 100 bytes: numbers, times, a status, a text."""
    n = len(keys)
    return pa.table({
        "id": keys,
        "customer": _RANDOM.integers(0, 50_000, n),
        "amount": _RANDOM.random(n) * 1000,
        "at": pa.array(1_767_225_600_000_000 + _RANDOM.integers(0, 10**12, n), pa.timestamp("us", "UTC")),
        "status": pa.array(np.array(["new", "paid", "sent", "done"])[_RANDOM.integers(0, 4, n)]),
        "note": pa.array([f"note {i}" for i in _RANDOM.integers(0, 10**9, n).tolist()]),
    })  # fmt: skip


class Mirror:
    """A table in a folder of its own; `as_uuid` spreads its keys at random."""

    def __init__(self, folder: Path, *, as_uuid: bool = False) -> None:
        self.catalog = open_catalog(parse("tables: {}", folder / "nevermore.yaml"))
        self.as_uuid = as_uuid
        self.written = 0
        fields = iceberg_fields(rows_of(self.keys(np.arange(1))).schema)
        create_table(self.catalog, "shop.t", fields, properties={KEY: "id"})

    def keys(self, numbers: np.ndarray) -> pa.Array:
        """Integers, or texts of 32 hexadecimal digits without order."""
        if not self.as_uuid:
            return pa.array(numbers.astype(np.int64))
        mixed = numbers.astype(np.uint64) * np.uint64(0x9E3779B97F4A7C15)
        return pa.array(
            [
                f"{a:016x}{b:016x}"
                for a, b in zip(mixed.tolist(), (mixed ^ (mixed >> np.uint64(7))).tolist(), strict=True)
            ]
        )

    def commit(self, upserted: np.ndarray, deleted: np.ndarray) -> None:
        """One commit as ingest makes it: rows, and deletes of the keys that may exist."""
        delta = RowDelta(self.table())
        files = list(write_rows(rows_of(self.keys(upserted)), delta.target, delta.default_spec, key_ids=(1,)))
        if len(deleted):
            keys = pa.table({"id": self.keys(deleted)})
            files += write_deletes(keys, delta.target, delta.default_spec, check_key(delta.schema, ("id",)))
        delta.commit(files, {})
        self.written += sum(file.file_size_bytes for file in files)

    def table(self, name: str = "shop.t") -> Any:
        """The table as the catalog has it now."""
        return find_table(self.catalog, name)

    def compacted_copy(self) -> Any:
        """The same rows, compacted: the metadata under another name."""
        name = f"shop.copy{perf_counter():.6f}".replace(".", "_", 2).replace("shop_", "shop.", 1)
        self.catalog.register_table(name, self.table().metadata_location)
        compact(self.table(name), CompactSettings(rewrite_all=True, key=("id",)))
        return self.table(name)


def seconds_of(run: Callable[[], object], times: int = 7) -> float:
    """Least seconds of CPU of a call with empty delete caches: whatever else the machine does only adds to them."""
    found = []
    for _ in range(times):
        DELETE_CACHE.clear()
        began = process_time()
        run()
        found.append(process_time() - began)
    return min(found)


def scan(table: Any) -> int:
    """Read all columns of all rows on one core."""
    options = ScanOptions(parallelism=1)
    batches = scan_core.open_table(table).scan().with_options(options).to_batches()
    return sum(batch.num_rows for batch in batches)


def costs() -> None:
    """The seconds that the decisions assume, each from two tables that differ in one thing."""
    with tempfile.TemporaryDirectory() as folder:
        few, many = Mirror(_folder(folder, "few")), Mirror(_folder(folder, "many"))
        few.commit(np.arange(1_000_000), np.arange(0))
        for part in np.split(np.arange(1_000_000), 200):
            many.commit(part, np.arange(0))
        whole = seconds_of(partial(scan, few.table()))
        stored = few.written
        print(f"READ_SECONDS   1 / {stored / whole / 1e6:.0f}e6  ({stored:,} bytes in {whole:.3f} s)")
        print(f"OPEN_SECONDS   {(seconds_of(partial(scan, many.table())) - whole) / 199:.6f}")
        for _ in range(100):
            few.commit(np.arange(0), np.array([10**7]))
        files = seconds_of(partial(scan, few.table()))
        # a key within the bounds of the file, so that its column is looked up
        few.commit(np.arange(0), np.array([500_000]))
        probe = seconds_of(partial(scan, few.table()))
        few.commit(np.arange(0), np.arange(1_000_000, 3_000_000) // 2 * 2 + 1)
        few.commit(np.arange(0), np.array([0, 10**8]))
        keys = seconds_of(partial(scan, few.table()))
        print(
            f"PROBE_SECONDS  {(probe - files) / 1e6:.3g}   (delete files out of bounds cost {(files - whole) / 100:.6f} each)"
        )
        print(f"KEY_SECONDS    {(keys - probe) / 2e6:.3g}")
        inside = Mirror(_folder(folder, "inside"))
        inside.commit(np.arange(1_000_000), np.arange(0))
        one = None
        for number in range(100):
            inside.commit(np.arange(0), np.array([number * 9_999]))
            one = one or seconds_of(partial(scan, inside.table()))
        print(f"DELETE_SECONDS {(seconds_of(partial(scan, inside.table())) - (one or 0)) / 99:.6f}")


def once() -> None:
    """Scans before and after one compaction, and of a table that never had a delete."""
    for shape, as_uuid in (("integers", False), ("uuids", True)):
        with tempfile.TemporaryDirectory() as folder:
            mirror, plain = Mirror(_folder(folder, "t"), as_uuid=as_uuid), Mirror(_folder(folder, "p"), as_uuid=as_uuid)
            mirror.commit(np.arange(INITIAL_ROWS), np.arange(0))
            for _ in range(100):
                keys = _RANDOM.choice(INITIAL_ROWS, ROWS, replace=False)
                mirror.commit(keys, keys)
            plain.commit(np.arange(INITIAL_ROWS), np.arange(0))
            before = seconds_of(partial(scan, mirror.table()))
            began = perf_counter()
            report = compact(mirror.table(), CompactSettings(key=("id",)))
            took = perf_counter() - began
            after, without = seconds_of(partial(scan, mirror.table())), seconds_of(partial(scan, plain.table()))
            print(
                f"{shape}: scan {before:.3f} s before, {after:.3f} s after, {without:.3f} s without any delete "
                f"(after / without {after / without:.2f}); {report.files_before} files as {report.files_after}, "
                f"{report.dead_rows_removed:,} dead rows, {report.delete_files_dropped} delete files, in {took:.2f} s "
                f"({report.bytes_before / took / 1e6:.0f} MB/s)"
            )


def shapes() -> Iterator[tuple[str, bool, Keys]]:
    """(name, whether keys are random texts, the keys that a commit upserts and those that may exist)."""

    def sequential(number: int) -> tuple[np.ndarray, np.ndarray]:
        first = INITIAL_ROWS + number * ROWS
        recent = first - 1 - _RANDOM.choice(ROWS * 10, ROWS // 5, replace=False)
        return np.r_[np.arange(first, first + ROWS * 4 // 5), recent], recent

    def hot(_number: int) -> tuple[np.ndarray, np.ndarray]:
        keys = _RANDOM.choice(INITIAL_ROWS // 100, ROWS, replace=False)
        return keys, keys

    def anywhere(number: int) -> tuple[np.ndarray, np.ndarray]:
        old = _RANDOM.choice(INITIAL_ROWS, ROWS // 2, replace=False)
        new = np.arange(ROWS // 2) + INITIAL_ROWS + number * ROWS
        return np.r_[old, new], np.r_[old, new]

    yield "sequential", False, sequential
    yield "hot set", False, hot
    yield "random UUID", True, anywhere


def commits(total: int = COMMITS) -> None:
    """Many commits of each shape: scans beside the compacted table, bytes rewritten per byte ingested."""
    for name, as_uuid, keys_of in shapes():
        with tempfile.TemporaryDirectory() as folder:
            mirror = Mirror(_folder(folder, "t"), as_uuid=as_uuid)
            mirror.commit(np.arange(INITIAL_ROWS), np.arange(0))
            first, rewritten, spent = mirror.written, 0, 0.0
            ratios, runs = [], 0
            for number in range(1, total + 1):
                mirror.commit(*keys_of(number))
                if number % EVERY == 0:
                    began = perf_counter()
                    report = compact(mirror.table(), CompactSettings(is_automatic=True, key=("id",)))
                    spent += perf_counter() - began
                    rewritten += report.bytes_after
                    runs += report.has_changed
                if number % max(total // 6, 1) == 0:
                    now = seconds_of(partial(scan, mirror.table()), 3)
                    best = seconds_of(partial(scan, mirror.compacted_copy()), 3)
                    ratios.append(now / best)
                    summary = mirror.table().current_snapshot().summary
                    print(
                        f"  {name}, {number} commits: scan {now:.3f} s, compacted {best:.3f} s, ratio {now / best:.2f}; "
                        f"{summary['total-data-files']} data files, {summary['total-delete-files']} delete files, "
                        f"{rewritten / (mirror.written - first):.2f} bytes rewritten per byte ingested"
                    )
            print(
                f"{name}: ratio at most {max(ratios):.2f}, median {median(ratios):.2f}; "
                f"{rewritten / (mirror.written - first):.2f} bytes rewritten per byte ingested in {runs} runs, {spent:.1f} s"
            )


def _folder(above: str, name: str) -> Path:
    path = Path(above) / name
    path.mkdir()
    return path


if __name__ == "__main__":
    runs = {"costs": costs, "once": once, "commits": commits}
    for part in chosen(__doc__, "part", tuple(runs)):
        runs[part]()
