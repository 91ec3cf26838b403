"""What one more small commit costs a table that has many: change log and mirror, in one process that stays.

Run: `python -m benchmarks.commit_cost [COMMITS]`. Prints milliseconds of CPU time of the first, median and worst commit of each
table, the median of the last tenth, and what a scan's planning costs at the end.
"""

import argparse
import statistics
import tempfile
import time
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from nevermore.pipelines.changes.change_log import ChangeLog
from nevermore.pipelines.config.project import change_log_name, parse
from nevermore.pipelines.config.tables import TableConfig
from nevermore.pipelines.decode.batches import ChangeBatch, change_schema
from nevermore.pipelines.iceberg.catalog import open_catalog
from nevermore.pipelines.ingest.feed_run import freeze_imports
from nevermore.pipelines.mirrors.mirror import Mirror
from nevermore.scan_core import open_table

ROWS = 100
KEYS = 100_000
ROW = pa.struct([("id", pa.int64()), ("name", pa.string()), ("price", pa.float64())])


def changes(number: int) -> ChangeBatch:
    keys = np.random.default_rng(number).choice(KEYS, ROWS, replace=False)
    rows = pa.StructArray.from_arrays([keys, [f"n{number}"] * ROWS, keys * 0.5], fields=list(ROW))
    now = pa.array([datetime.now(UTC)] * ROWS, pa.timestamp("us", "UTC"))
    schema = change_schema(ROW, ("id",))
    values = {
        "op": pa.array(["u"] * ROWS),
        "key": pa.StructArray.from_arrays([keys], names=["id"]),
        "before": pa.nulls(ROWS, ROW),
        "after": rows,
        "unchanged": pa.nulls(ROWS, pa.list_(pa.string())),
        "source_file": pa.array([f"{number}.jsonl"] * ROWS),
        "source_offset": pa.array(range(ROWS), pa.int64()),
        "source_ts": now,
        "ingested_at": now,
        "schema_version": pa.array([0] * ROWS, pa.int32()),
    }
    return ChangeBatch(pa.table(values, schema=schema), ROW, ("id",))


def show(name: str, seconds: list[float]) -> None:
    ms = [1000 * s for s in seconds]
    first, median, last = ms[1], statistics.median(ms), statistics.median(ms[-max(1, len(ms) // 10) :])
    print(
        f"{name:<11} first {first:6.1f}  median {median:6.1f} ({median / first:.1f}x)  "
        f"last tenth {last:6.1f} ({last / first:.1f}x)  worst {max(ms[1:]):6.1f} ({max(ms[1:]) / first:.1f}x) ms"
    )


def measure(catalog: Any, name: str, commits: int) -> tuple[list[float], list[float], Mirror]:
    """CPU seconds of each commit of a log and its mirror; the one before the first creates the tables."""
    log = ChangeLog(catalog, change_log_name(name))
    mirror = Mirror(catalog, name, TableConfig.model_validate({"source": {"path": "x"}}), ("id",))
    logged, applied = [], []
    for number in range(commits + 1):
        batch = changes(number)
        began = time.process_time()
        appended = log.append(batch, f"position {number}")
        between = time.process_time()
        list(mirror.catch_up(log, appended, reject=lambda _: None))
        logged.append(between - began)
        applied.append(time.process_time() - between)
    return logged, applied, mirror


def main(commits: int) -> None:
    with tempfile.TemporaryDirectory() as folder:
        catalog = open_catalog(parse("tables: {}", Path(folder) / "nevermore.yaml"))
        measure(catalog, "shop.warm_up", 3)
        freeze_imports()  # as `nevermore ingest` and `nevermore run` do
        logged, applied, mirror = measure(catalog, "shop.t", commits)
        print(f"{commits} commits of {ROWS} changes")
        show("change log", logged)
        show("mirror", applied)
        began = time.process_time()
        plan = open_table(mirror.table).scan().plan()
        print(f"plan of {len(plan.tasks)} files: {1000 * (time.process_time() - began):.0f} ms")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("commits", nargs="?", type=int, default=1000)
    main(parser.parse_args().commits)
