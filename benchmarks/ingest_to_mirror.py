"""How fast landed files become a committed mirror, with its change log, per core; beside what the same rows cost others.

Run: `python -m benchmarks.ingest_to_mirror [narrow|wide|merge]`. Events per second of CPU time, all threads counted:
`floor` is decoding alone, `+ log` change log and mirror, `mirror` the mirror from decoded changes, `raw write` one plain
`pq.write_table` of the same rows. `merge` is one batch into a table that has most of its keys, beside PyIceberg's `upsert`,
Spark's `MERGE INTO` with Iceberg Java (`make interop`) and dlt's merge (`make peers`).
"""

import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import yaml

from benchmarks.ingest_decode import row, write
from benchmarks.race import Answer
from benchmarks.results import Ratio, record
from pipelines.catalog import open_catalog
from pipelines.changes.change_batch import TIMESTAMP, ChangeBatch, change_schema
from pipelines.changes.change_log import ChangeLog
from pipelines.collector import settle
from pipelines.config import change_log_name, load, parse
from pipelines.formats.feed import FeedConfig, TableFeed
from pipelines.formats.registry import decode
from pipelines.ingest import run_once
from pipelines.mirrors.mirror import Mirror
from pipelines.sources.file_options import FileOptions
from pipelines.sources.files import discover

ROUNDS = 3
TABLE = "shop.products"
_REPO = Path(__file__).parent.parent
MERGE_ENGINES = {
    "Spark MERGE INTO, merge-on-read": "spark-merge-on-read",
    "Spark MERGE INTO, copy-on-write": "spark-copy-on-write",
    "dlt merge (upsert, Iceberg)": "dlt",
}
MERGE_PEERS = {
    name: _REPO / (".venv-peers" if engine == "dlt" else ".venv-interop") / "bin" / "python"
    for name, engine in MERGE_ENGINES.items()
}
MERGE_GOALS = {"PyIceberg upsert": 50, "Spark MERGE INTO, merge-on-read": 5, "Spark MERGE INTO, copy-on-write": 5}
"""So many times as long as ours they are to take."""
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


def merge(rows: int = 1_000_000, changed: int = 50_000) -> None:
    """One batch of updates and inserts into a table of `rows`: ours from decoded changes, and the same batch by others."""
    base = pa.table({"id": pa.array(range(rows), pa.int64()), "name": [f"n{i % 1000}" for i in range(rows)]})
    ids = pa.array(range(0, 2 * changed * 10, 20), pa.int64())
    update = pa.table({"id": ids, "name": ["changed"] * len(ids)})
    print(f"{len(ids):,} changes into {rows:,} rows, wall and CPU seconds of the merge alone")
    with tempfile.TemporaryDirectory() as folder:
        files = [str(Path(folder) / name) for name in ("base.parquet", "changes.parquet")]
        for table, path in zip((base, update), files, strict=True):
            pq.write_table(table, path)
        mine = _ours(base, update, Path(folder) / "ours")
        print(f"| ours | {mine.seconds:.2f} | {mine.cpu:.2f} |")
        others = {"PyIceberg upsert": _pyiceberg(base, update, Path(folder) / "pyiceberg")}
        for name, python in MERGE_PEERS.items():
            others |= _peer(name, python, files, folder)
        for name, answer in others.items():
            print(f"| {name} | {answer.seconds:.2f} | {answer.cpu:.2f} |")
            goal = MERGE_GOALS.get(name)
            ratio = Ratio(
                "Merging 50,000 changes into 1,000,000 rows", "ours", name,
                mine.seconds / answer.seconds, mine.cpu / answer.cpu, None if goal is None else 1 / goal, mine.seconds,
            )  # fmt: skip
            record(ratio)
            print(
                f"{name}: {answer.seconds / mine.seconds:.0f} x our wall time, {answer.cpu / mine.cpu:.0f} x our CPU time"
            )


def _ours(base: pa.Table, update: pa.Table, folder: Path) -> Answer:
    """From decoded changes in memory to change log and mirror; the log's part is not counted, others have none."""
    catalog = open_catalog(parse("tables: {}", folder / "nevermore.yaml"))
    config = parse(f"tables: {{{TABLE}: {{source: {{path: x}}, key: [id]}}}}").tables[TABLE]
    log, mirror = ChangeLog(catalog, change_log_name(TABLE)), Mirror(catalog, TABLE, config, ("id",))
    taken = []
    for number, rows in enumerate((base, update, update, update)):
        appended = log.append(_updates(rows), str(number))
        wall, began = time.perf_counter(), time.process_time()
        list(mirror.catch_up(log, appended, reject=lambda _: None))
        taken.append(Answer(None, time.perf_counter() - wall, time.process_time() - began))
    return min(taken[1:], key=lambda answer: answer.cpu)


def _updates(rows: pa.Table) -> ChangeBatch:
    """Rows as changes, as a decoder hands them on."""
    row_type = pa.struct(list(rows.schema))
    count = rows.num_rows
    values = {
        "op": pa.array(["u"] * count),
        "key": pa.StructArray.from_arrays([rows.column("id").combine_chunks()], names=["id"]),
        "before": pa.nulls(count, row_type),
        "after": rows.to_struct_array().combine_chunks(),
        "unchanged": pa.nulls(count, pa.list_(pa.string())),
        "source_file": pa.array(["changes"] * count),
        "source_offset": pa.array(range(count), pa.int64()),
        "source_ts": pa.nulls(count, TIMESTAMP),
        "ingested_at": pa.array([datetime.now(UTC)] * count, TIMESTAMP),
        "schema_version": pa.array([0] * count, pa.int32()),
    }
    return ChangeBatch(pa.table(values, schema=change_schema(row_type, ("id",))), row_type, ("id",))


def _pyiceberg(base: pa.Table, update: pa.Table, folder: Path) -> Answer:
    catalog = open_catalog(parse("tables: {}", folder / "nevermore.yaml"))
    catalog.create_namespace("shop")
    table = catalog.create_table("shop.pyiceberg", base.schema)
    table.append(base)
    wall, began = time.perf_counter(), time.process_time()
    table.upsert(update, join_cols=["id"])
    return Answer(None, time.perf_counter() - wall, time.process_time() - began)


def _peer(name: str, python: Path, files: list[str], folder: str) -> dict[str, Answer]:
    """The best round of an engine in an environment of its own; none if that is missing."""
    if not python.exists():
        print(f"{name} is left out: {python} is missing", file=sys.stderr)
        return {}
    engine = MERGE_ENGINES[name]
    command = [str(python), "-W", "ignore", str(Path(__file__).with_name("merge_peer.py")), engine, *files]
    done = subprocess.run([*command, f"{folder}/{engine}", "2"], capture_output=True, text=True, check=False)
    if done.returncode:
        print(f"{name} is left out: {done.stderr.strip().splitlines()[-1:]}", file=sys.stderr)
        return {}
    best = min(json.loads(done.stdout.strip().splitlines()[-1]), key=lambda taken: taken["cpu"])
    return {name: Answer(None, best["seconds"], best["cpu"])}


def main(parts: list[str]) -> None:
    pa.set_cpu_count(1)
    pa.set_io_thread_count(1)
    settle()
    for part in parts or ["narrow", "wide", "merge"]:
        if part == "merge":
            merge()
        else:
            events_to_mirror(5 if part == "narrow" else 60)


if __name__ == "__main__":
    main(sys.argv[1:])
