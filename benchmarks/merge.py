"""What a batch of changes costs a table that has their keys: ours beside PyIceberg, Spark with Iceberg Java, and dlt.

Run: `python -m benchmarks.merge`. In every round each of them gets a new table with the same million rows; only the merge of
50,000 changes is timed, and the table read afterwards must hold what ours holds. `mirror` is data, deletes and commit from
decoded changes; `change log and mirror` is what an ingest does with them, and no other has; `Project.upsert` begins with a DataFrame. Spark's modes take turns in one
session (`make interop`), dlt (`make peers`) upserts 1,000 rows at a time.
"""

import argparse
import itertools
import tempfile
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from benchmarks.decoded_changes import changes_of
from benchmarks.peers import Peer, running
from benchmarks.race import Answer, Goal, race, report
from nevermore import open_project
from nevermore.pipelines.changes.change_log import ChangeLog
from nevermore.pipelines.config.project import change_log_name, parse
from nevermore.pipelines.iceberg.catalog import open_catalog
from nevermore.pipelines.ingest.feed_run import freeze_imports
from nevermore.pipelines.mirrors.mirror import Mirror
from nevermore.scan_core import open_table

ROUNDS = 3
TABLE = "shop.products"
CHANGED = "changed"
SPARK_MODES = ("merge-on-read", "copy-on-write")
FASTER = {"PyIceberg upsert": 50, **{f"Spark MERGE INTO, {mode}": 5 for mode in SPARK_MODES}, "dlt merge": None}
"""How many times as fast the mirror is to be."""


def ours(base: pa.Table, changes: pa.Table, folders: Iterator[Path], *, with_log: bool) -> Answer:
    """From decoded changes in memory to the mirror, the change log counted or not."""
    catalog = open_catalog(parse("tables: {}", next(folders) / "nevermore.yaml"))
    config = parse(f"tables: {{{TABLE}: {{source: {{path: x}}, key: [id]}}}}").tables[TABLE]
    log, mirror = ChangeLog(catalog, change_log_name(TABLE)), Mirror(catalog, TABLE, config, ("id",))
    list(mirror.catch_up(log, log.append(changes_of(base), "0"), reject=lambda _: None))
    batch = changes_of(changes)
    if not with_log:
        appended = log.append(batch, "1")
    wall, cpu = time.perf_counter(), time.process_time()
    if with_log:
        appended = log.append(batch, "1")
    list(mirror.catch_up(log, appended, reject=lambda _: None))
    wall, cpu = time.perf_counter() - wall, time.process_time() - cpu
    return Answer(_held(open_table(mirror.table).scan().to_table()), wall, cpu)


def upsert(base: pa.Table, changes: pa.Table, folders: Iterator[Path]) -> Answer:
    """As a program calls it: from a DataFrame, with decoding and checks of keys, to change log and mirror."""
    folder = next(folders)
    folder.mkdir()
    (folder / "nevermore.yaml").write_text(f"tables: {{{TABLE}: {{source: {{type: python}}, key: [id]}}}}")
    project = open_project(folder)
    project.upsert(TABLE, base)
    wall, cpu = time.perf_counter(), time.process_time()
    project.upsert(TABLE, changes)
    wall, cpu = time.perf_counter() - wall, time.process_time() - cpu
    return Answer(_held(project.scan(TABLE).to_table()), wall, cpu)


def pyiceberg(base: pa.Table, changes: pa.Table, folders: Iterator[Path]) -> Answer:
    catalog = open_catalog(parse("tables: {}", next(folders) / "nevermore.yaml"))
    catalog.create_namespace("shop")
    table = catalog.create_table("shop.pyiceberg", base.schema)
    table.append(base)
    wall, cpu = time.perf_counter(), time.process_time()
    table.upsert(changes, join_cols=["id"])
    wall, cpu = time.perf_counter() - wall, time.process_time() - cpu
    return Answer(_held(table.scan().to_arrow()), wall, cpu)


def peer(engine: Peer, files: dict[str, str], folders: Iterator[Path], mode: str) -> Answer:
    return engine.request({**files, "folder": str(next(folders)), "mode": mode}, f"merge, {mode}")


def measure(rows: int, changed: int, rounds: int, engines: list[str]) -> None:
    """Print and record the race."""
    base = pa.table({"id": pa.array(range(rows), pa.int64()), "name": [f"n{i % 1000}" for i in range(rows)]})
    ids = pa.array(range(0, 2 * rows, 2 * rows // changed), pa.int64())
    changes = pa.table({"id": ids, "name": [CHANGED] * len(ids)})
    with tempfile.TemporaryDirectory() as name, running(engines, script="merge_peer") as peers:
        folders = (Path(name) / f"merge_{number}" for number in itertools.count())
        files = {"base": f"{name}/base.parquet", "changes": f"{name}/changes.parquet"}
        pq.write_table(base, files["base"])
        pq.write_table(changes, files["changes"])
        candidates: dict[str, Callable[[], Any]] = {
            "mirror": partial(ours, base, changes, folders, with_log=False),
            "change log and mirror": partial(ours, base, changes, folders, with_log=True),
            "Project.upsert": partial(upsert, base, changes, folders),
            "PyIceberg upsert": partial(pyiceberg, base, changes, folders),
        }
        if "spark" in peers:
            for mode in SPARK_MODES:
                candidates[f"Spark MERGE INTO, {mode}"] = partial(peer, peers["spark"], files, folders, mode)
        if "dlt" in peers:
            candidates["dlt merge"] = partial(peer, peers["dlt"], files, folders, "upsert")
        timings = race(candidates, rounds)
    goals = [
        Goal("mirror", other, None if times is None else 1 / times)
        for other, times in FASTER.items()
        if other in candidates
    ]
    goals += [Goal(name, goal.against) for name in ("change log and mirror", "Project.upsert") for goal in goals]
    report(f"merge of {changed:,} changes into {rows:,} rows", timings, "mirror", goals)


def _held(rows: pa.Table) -> list[int]:
    """What is compared: rows, the sum of their ids, and how many are changed."""
    return [rows.num_rows, pc.sum(rows["id"]).as_py(), pc.sum(pc.equal(rows["name"], CHANGED)).as_py()]


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--changes", type=int, default=50_000)
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    parser.add_argument("--engines", default="spark,dlt")
    arguments = parser.parse_args()
    freeze_imports()
    measure(arguments.rows, arguments.changes, arguments.rounds, arguments.engines.split(","))
