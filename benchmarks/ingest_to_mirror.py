"""How fast landed files become a committed mirror, with its change log, per core; beside what the same rows cost others.

Run: `python -m benchmarks.ingest_to_mirror [narrow|wide|threads]`. Events per second of CPU time, all threads counted:
`floor` is decoding alone, `+ log` change log and mirror, `mirror` the mirror from decoded changes, `raw write` one plain
`pq.write_table` of the same rows; `threads` races one thread against two over a feed of two tables. What merging a batch costs beside others is told by `benchmarks/merge.py`.
"""

import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import yaml

from benchmarks.ingest_decode import row, write
from benchmarks.race import chosen
from nevermore.pipelines.changes.change_log import ChangeLog
from nevermore.pipelines.config.project import change_log_name, load, parse
from nevermore.pipelines.decode.feed import FeedConfig, TableFeed
from nevermore.pipelines.formats.registry import decode
from nevermore.pipelines.iceberg.catalog import open_catalog
from nevermore.pipelines.ingest.feed_run import freeze_imports, run_once
from nevermore.pipelines.mirrors.mirror import Mirror
from nevermore.pipelines.sources.file_options import FileOptions
from nevermore.pipelines.sources.files import discover

ROUNDS = 3
TABLE = "shop.products"
EVENTS = {5: 400_000, 60: 60_000}


def write_dms(path: Path, events: int, columns: int) -> None:
    """DMS Parquet: rows with `Op`, every second half updating the first."""
    rows = [{"Op": "I" if n < events // 2 else "U", **row(n % (events // 2), columns)} for n in range(events)]
    pq.write_table(pa.Table.from_pylist(rows), path)


def cpu(run: Callable[[], Any]) -> tuple[float, Any]:
    start = time.process_time()
    result = run()
    return time.process_time() - start, result


def decoded(path: Path, kind: str) -> list[Any]:
    feed = FeedConfig(format=kind, tables=(TableFeed(name=TABLE, key=("id",)),))
    return [decode(batch.raw, feed).tables[TABLE] for batch in discover([str(path)], None, FileOptions())]


def project(folder: Path, path: Path, kind: str) -> Any:
    source = {"type": "files", "path": str(path), "format": kind}
    (folder / "nevermore.yaml").write_text(yaml.safe_dump({"tables": {TABLE: {"source": source, "key": ["id"]}}}))
    return load(folder / "nevermore.yaml")


def to_mirror_alone(folder: Path, batches: list[Any]) -> float:
    """CPU seconds of the mirror's part, from decoded changes in memory."""
    catalog = open_catalog(parse("tables: {}", folder / "alone" / "nevermore.yaml"))
    config = parse(f"tables: {{{TABLE}: {{source: {{path: x}}, key: [id]}}}}").tables[TABLE]
    log, mirror, seconds = ChangeLog(catalog, change_log_name(TABLE)), Mirror(catalog, TABLE, config, ("id",)), 0.0
    for number, batch in enumerate(batches):
        appended = log.append(batch, str(number))
        seconds += cpu(lambda a=appended: list(mirror.catch_up(log, a, reject=lambda _: None)))[0]
    return seconds


def measure(path: Path, kind: str, events: int) -> list[float]:
    """CPU seconds: decoding, log and mirror, mirror alone, raw write."""
    best = [float("inf")] * 4
    for _ in range(ROUNDS):
        with tempfile.TemporaryDirectory() as name:
            folder = Path(name)
            config = project(folder, path, kind)
            floor, batches = cpu(lambda: decoded(path, kind))
            whole, report = cpu(lambda c=config: run_once(c))
            assert report.exit_code == 0
            assert sum(report.tables[0].events.values()) == events
            after = pa.concat_tables(
                [pa.Table.from_struct_array(b.table.column("after").combine_chunks()) for b in batches],
                promote_options="permissive",
            )
            raw = cpu(lambda t=after, f=folder: pq.write_table(t, f / "raw.parquet", compression="zstd"))[0]
            best = [min(a, b) for a, b in zip(best, (floor, whole, to_mirror_alone(folder, batches), raw), strict=True)]
    return best


def events_to_mirror(columns: int) -> None:
    events = EVENTS[columns]
    print("| events | floor k/s | + log k/s | mirror k/s | raw write k/s |\n|---|---|---|---|---|")
    with tempfile.TemporaryDirectory() as folder:
        for name, kind in (("bare", "debezium-json"), ("envelope", "debezium-json"), ("DMS Parquet", "dms")):
            path = Path(folder) / (f"{name}.parquet" if kind == "dms" else f"{name}.jsonl")
            if kind == "dms":
                write_dms(path, events, columns)
            else:
                write(path, events, columns, envelope=name == "envelope")
            rates = (f"{events / seconds / 1000:,.0f}" for seconds in measure(path, kind, events))
            print(f"| {'narrow' if columns == 5 else 'wide'}, {name} | " + " | ".join(rates) + " |")
            sys.stdout.flush()
            path.unlink()


def one_thread_and_two(columns: int) -> None:
    """Wall seconds of a feed that carries two tables in turn, one table and two at a time."""
    best = {1: float("inf"), 2: float("inf")}
    with tempfile.TemporaryDirectory() as name:
        path = Path(name) / "feed.jsonl"
        write(path, EVENTS[columns], columns, envelope=False)
        with path.open() as file:
            lines = [
                line.replace('"table":"products"', '"table":"parts"') if n % 2 else line for n, line in enumerate(file)
            ]
        path.write_text("".join(lines))
        source = {"type": "files", "path": str(path), "format": "debezium-json"}
        tables = {
            f"shop.{table}": {"source": source, "source_table": table, "key": ["id"]} for table in ("products", "parts")
        }
        for number in range(2 * ROUNDS):
            threads = 1 + number % 2
            folder = Path(name) / str(number)
            folder.mkdir()
            (folder / "nevermore.yaml").write_text(yaml.safe_dump({"tables": tables, "parallel_tables": threads}))
            config, start = load(folder / "nevermore.yaml"), time.perf_counter()
            report = run_once(config)
            best[threads] = min(best[threads], time.perf_counter() - start)
            assert [sum(t.events.values()) for t in report.tables] == [EVENTS[columns] // 2] * 2, report.as_dict()
    one, two = best.values()
    print(f"{columns} columns, two tables: one at a time {one:.2f} s, two at a time {two:.2f} s: {one / two:.2f} x")


def main(parts: list[str]) -> None:
    pa.set_cpu_count(1)
    pa.set_io_thread_count(1)
    freeze_imports()
    for part in parts:
        if part == "threads":
            one_thread_and_two(5)
            one_thread_and_two(60)
        else:
            events_to_mirror(5 if part == "narrow" else 60)


if __name__ == "__main__":
    main(chosen(__doc__, "part", ("narrow", "wide", "threads")))
