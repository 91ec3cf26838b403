"""Conversion of equality deletes: against the decode of the key column, and ingest with deletion vectors against keys.

`bounds` resolves 50,000 keys of 8 files of 8 M rows, and of 10 of 1,000 files; `uuids` random keys that lie in every file,
and 100 of them with Bloom filters; `scan` reads a converted table beside one without deletes; `ingest` applies updates.
"""

import json
import shutil
import tempfile
import uuid
from collections.abc import Callable
from functools import partial
from pathlib import Path
from time import perf_counter, process_time
from typing import Any

import numpy as np
import pyarrow as pa

from benchmarks.floor import decode_floor
from benchmarks.race import Answer, Goal, chosen, race, report
from nevermore import scan_core
from nevermore.pipelines.config.project import load, parse
from nevermore.pipelines.iceberg.catalog import create_table, find_table, open_catalog
from nevermore.pipelines.iceberg.commit import RowDelta, upgrade
from nevermore.pipelines.iceberg.conversion import convert, dead_rows
from nevermore.pipelines.iceberg.schema_evolution import iceberg_fields
from nevermore.pipelines.iceberg.table_writer import WriterOptions, check_key, write_deletes, write_rows
from nevermore.pipelines.ingest.feed_run import freeze_imports, run_once
from nevermore.scan_core.deletes.indexes import DELETE_CACHE

KEYS = 50_000
_RANDOM = np.random.default_rng(3)


class Base:
    """A table of `files` files without deletes, from which tables with deletes are made that share its data files."""

    def __init__(self, folder: Path, files: int, file_rows: int, *, as_uuid: bool = False, bloom: bool = False) -> None:
        self.folder = folder
        self.as_uuid = as_uuid
        self._count = 0
        catalog = open_catalog(parse("tables: {}", folder / "nevermore.yaml"))
        table = create_table(catalog, "bench.base", iceberg_fields(self.rows(np.arange(1)).schema))
        delta = RowDelta(table, WriterOptions(file_bytes=1 << 40, bloom_filters=bloom))
        written = []
        for number in range(files):
            rows = self.rows(np.arange(number * file_rows, (number + 1) * file_rows))
            written += write_rows(rows, delta.target, delta.default_spec, key_ids=(1,))
        delta.commit(written, {})
        self.table = find_table(catalog, "bench.base")
        self._catalog = catalog

    def ids(self, numbers: np.ndarray) -> pa.Array:
        """The keys of rows: their numbers, or 32 hexadecimal digits without order."""
        if not self.as_uuid:
            return pa.array(numbers.astype(np.int64))
        halves = numbers.astype(np.uint64)[:, None] * np.array([0x9E3779B97F4A7C15, 0xC2B2AE3D27D4EB4F], np.uint64)
        octets = np.ascontiguousarray(halves).view(np.uint8)
        digits = np.frombuffer(b"0123456789abcdef", np.uint8)[np.stack([octets >> 4, octets & 15], axis=-1)]
        ends = np.arange(0, 32 * len(numbers) + 1, 32, np.int32)
        return pa.StringArray.from_buffers(len(numbers), pa.py_buffer(ends), pa.py_buffer(digits.tobytes()))

    def rows(self, numbers: np.ndarray) -> pa.Table:
        """A key, two numbers and a text."""
        texts = pa.array([f"note {n}" for n in range(1000)]).take(pa.array(numbers % 1000))
        return pa.table({"id": self.ids(numbers), "n": numbers, "v": numbers / 7, "note": texts})

    def with_deletes(self, numbers: np.ndarray) -> Any:
        """Another table with the same data files, and one delete file of these keys."""
        self._count += 1
        name = f"bench.t{self._count}"
        table = self._catalog.register_table(name, self.table.metadata_location)
        delta = RowDelta(table)
        keys = pa.table({"id": self.ids(numbers)})
        delta.commit(write_deletes(keys, delta.target, delta.default_spec, check_key(delta.schema, ("id",))), {})
        return find_table(self._catalog, name)


def timed(run: Callable[[], int]) -> Answer:
    """The answer of a call with empty delete caches, with its seconds."""
    DELETE_CACHE.clear()
    wall, cpu = perf_counter(), process_time()
    value = run()
    return Answer(value, perf_counter() - wall, process_time() - cpu)


def measure(title: str, base: Base, numbers: np.ndarray, goal: float | None = None, *, found: bool = True) -> None:
    """Race a conversion, in both versions of the format, and finding the rows alone with the decode of the key column."""
    expected = len(numbers) if found else 0

    def converted(version: int) -> Answer:
        table = base.with_deletes(numbers)
        if version > 2:
            upgrade(table, version)
        return timed(lambda: convert(table).added_positions)

    def resolved() -> Answer:
        table = scan_core.open_table(base.with_deletes(numbers))

        def find() -> int:
            plan = table.scan().select().plan()
            touched = [task for task in plan.tasks if task.has_deletes]
            return sum(map(len, dead_rows(touched, plan.context)))

        return timed(find)

    def floor() -> int:
        decode_floor(base.table, ("id",))
        return expected

    ways = {"resolve": resolved, "convert": partial(converted, 2), "to vectors": partial(converted, 3), "D": floor}
    report(title, race(ways, rounds=7), "resolve", [Goal(name, "D", goal) for name in ways if name != "D"])


def bounds() -> None:
    """Keys that bounds confine to some files, and keys of every file."""
    with tempfile.TemporaryDirectory() as folder:
        base = Base(Path(folder), 8, 1_000_000)
        numbers = np.unique(_RANDOM.integers(0, 8_000_000, KEYS))
        measure(f"convert: {len(numbers):,} keys of 8 files of 8 M rows", base, numbers)
    with tempfile.TemporaryDirectory() as folder:
        base = Base(Path(folder), 1_000, 100_000)
        numbers = 99_000_000 + np.unique(_RANDOM.integers(0, 1_000_000, KEYS))
        measure(f"convert: {len(numbers):,} keys of 10 of 1,000 files of 100 M rows", base, numbers)


def uuids() -> None:
    """Keys without order: every file may hold any of them."""
    with tempfile.TemporaryDirectory() as folder:
        base = Base(Path(folder), 8, 1_000_000, as_uuid=True)
        numbers = np.unique(_RANDOM.integers(0, 8_000_000, KEYS))
        measure(f"convert: {len(numbers):,} random keys of 32 digits", base, numbers, 1.2)
    with tempfile.TemporaryDirectory() as folder:
        base = Base(Path(folder), 8, 1_000_000, as_uuid=True, bloom=True)
        for where, first, end in (
            ("every file", 0, 8_000_000),
            ("one file", 3_000_000, 4_000_000),
            ("no file, as inserted rows have", 9_000_000, 99_000_000),
        ):
            numbers = np.unique(_RANDOM.integers(first, end, 100))
            title = f"convert: {len(numbers)} random keys of 32 digits of {where}, Bloom filters"
            measure(title, base, numbers, 0.1, found=first < 8_000_000)


def scan() -> None:
    """Our own scan of a converted table, beside the same table without deletes."""
    with tempfile.TemporaryDirectory() as folder:
        base = Base(Path(folder), 8, 1_000_000)
        numbers = np.unique(_RANDOM.integers(0, 8_000_000, KEYS))
        tables = {"no deletes": base.table, "equality": base.with_deletes(numbers)}
        for name, version in (("converted", 2), ("vectors", 3)):
            table = base.with_deletes(numbers)
            if version > 2:
                upgrade(table, version)
            convert(table)
            tables[name] = table

        def read(table: Any) -> Answer:
            opened = scan_core.open_table(table)
            return timed(lambda: sum(batch.num_rows for batch in opened.scan().to_batches()) and 0)

        found = race({name: partial(read, table) for name, table in tables.items()})
        goals = [Goal(name, "no deletes", 1.1) for name in ("converted", "vectors")]
        report("scan of all columns after conversion", found, "no deletes", goals)


MODES = {
    "equality": "",
    "equality, version 3": "format_version: 3",
    "converted": "deletes: converted",
    "vectors": "format_version: 3\n    deletes: vectors",
}
UPDATES = 100_000


def ingest() -> None:
    """Updates of random rows of a mirror of a million, with its change log."""
    freeze_imports()
    with tempfile.TemporaryDirectory() as above:
        first, updates = Path(above) / "1.jsonl", Path(above) / "2.jsonl"
        with first.open("w") as file:
            file.writelines(_event("c", n, 0) for n in range(1_000_000))
        with updates.open("w") as file:
            file.writelines(_event("u", n, 1) for n in _RANDOM.permutation(1_000_000)[:UPDATES].tolist())

        def run(mode: str) -> Answer:
            folder = Path(above) / uuid.uuid4().hex
            (folder / "landing").mkdir(parents=True)
            config = folder / "nevermore.yaml"
            config.write_text(
                "tables:\n  shop.products:\n    source: {path: 'landing/*.jsonl', format: debezium-json}\n"
                f"    key: [id]\n    {MODES[mode]}\n"
            )
            (folder / "landing" / "1.jsonl").hardlink_to(first)
            assert run_once(load(config)).exit_code == 0
            (folder / "landing" / "2.jsonl").hardlink_to(updates)
            answer = timed(lambda: sum(run_once(load(config)).tables[0].events.values()))
            shutil.rmtree(folder)
            return answer

        found = race({mode: partial(run, mode) for mode in MODES}, rounds=5)
        goals = [Goal("vectors", "equality", 1 / 0.6), Goal("converted", "equality")]
        report(f"ingest: {UPDATES:,} updates of a mirror of a million rows", found, "equality", goals)


def _event(op: str, key: int, version: int) -> str:
    after = {
        "id": key,
        "name": f"name {key} {version}",
        "price": key / 7,
        "stock": version,
        "city": f"city {key % 100}",
    }
    return json.dumps({"op": op, "before": None, "after": after, "source": {"table": "products"}, "ts_ms": 1}) + "\n"


if __name__ == "__main__":
    parts = {"bounds": bounds, "uuids": uuids, "scan": scan, "ingest": ingest}
    for part in chosen(__doc__, "part", tuple(parts)):
        parts[part]()
