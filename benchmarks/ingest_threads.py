"""A feed with one thread on one core beside two on two: wall and CPU time, and how much of it only one thread can do.

Log and mirror of narrow and wide Debezium JSON, bare and in its envelope, DMS Parquet, Avro, and a feed of eight tables.
Each measurement is a process of its own that is given its cores; the least of several rounds counts. `serial` is the
share of the CPU time that the busiest of the threads without a twin takes, of eight threads: the one that applies and
commits, and the one that reads. It bounds what more cores can give.
"""

import json
import os
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import Any, Self

import fastavro
import pyarrow as pa
import yaml

from benchmarks.ingest_decode import row, write
from benchmarks.ingest_to_mirror import write_dms
from benchmarks.race import chosen
from benchmarks.results import Ratio, record
from nevermore.pipelines.config.project import load
from nevermore.pipelines.ingest.feed_run import freeze_imports, run_once

ROUNDS = 5
TABLES = 8
EVENTS = {
    "narrow": 1_200_000,
    "narrow envelope": 600_000,
    "wide": 150_000,
    "wide envelope": 100_000,
    "narrow DMS": 1_600_000,
    "wide DMS": 200_000,
    "narrow Avro": 800_000,
    "tables": 1_200_000,
}


def columns(case: str) -> int:
    return 60 if "wide" in case else 5


def write_avro(path: Path, events: int) -> None:
    kinds = {int: "long", str: "string", float: "double"}
    members = [{"name": n, "type": ["null", kinds[type(v)]]} for n, v in row(1, 5).items()]
    schema = {"type": "record", "name": "product", "fields": [{"name": "op", "type": "string"}, *members]}
    rows = ({"op": "c" if n < events // 2 else "u", **row(n % (events // 2), 5)} for n in range(events))
    with path.open("wb") as file:
        fastavro.writer(file, fastavro.parse_schema(schema), rows, codec="deflate")


def prepare(folder: Path, case: str) -> None:
    """Write the files and the config of a case."""
    events, kind = EVENTS[case], "debezium-json"
    if "DMS" in case:
        path, kind = folder / "feed.parquet", "dms"
        write_dms(path, events, columns(case))
    elif "Avro" in case:
        path, kind = folder / "feed.avro", "rows"
        write_avro(path, events)
    else:
        path = folder / "feed.jsonl"
        write(path, events, columns(case), envelope="envelope" in case)
    names = ["products"]
    if case == "tables":
        names = [f"t{n}" for n in range(TABLES)]
        with path.open() as file, (folder / "tables.jsonl").open("w") as out:
            for n, line in enumerate(file):
                out.write(line.replace('"table":"products"', f'"table":"t{n % TABLES}"'))
        path.unlink()
        path = folder / "tables.jsonl"
    source = {"type": "files", "path": str(path), "format": kind}
    tables = {f"shop.{name}": {"source": source, "key": ["id"]} for name in names}
    (folder / "tables.yaml").write_text(yaml.safe_dump({"tables": tables}))


class Threads:
    """CPU seconds of each thread of this process by its name, sampled while it runs."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}
        self._ended = threading.Event()
        self._sampler = threading.Thread(target=self._sample, name="sampler")

    def _sample(self) -> None:
        while not self._ended.wait(0.005):
            for thread in threading.enumerate():
                if thread.ident is not None and thread.is_alive():
                    try:
                        clock = time.pthread_getcpuclockid(thread.ident)
                        self.seconds[f"{thread.name} {thread.ident}"] = time.clock_gettime(clock)
                    except OSError:
                        continue

    def __enter__(self) -> Self:
        self._main = time.thread_time()
        self._sampler.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._sampler.join()
        self.seconds = {k: v for k, v in self.seconds.items() if not k.startswith(("MainThread", "sampler"))}
        self.seconds["main"] = time.thread_time() - self._main


def measured(folder: Path, threads: int, rounds: int) -> dict[str, float]:
    """The least wall and CPU seconds of an ingest into a new catalog, and the share of the busiest thread without a twin."""
    pa.set_cpu_count(threads)
    freeze_imports()
    best = {"wall": float("inf"), "cpu": float("inf"), "serial": 0.0}
    for number in range(rounds + 1):
        with tempfile.TemporaryDirectory(dir=folder) as name:
            tables = yaml.safe_load((folder / "tables.yaml").read_text())["tables"]
            config = Path(name) / "nevermore.yaml"
            config.write_text(yaml.safe_dump({"threads": threads, "tables": tables}))
            wall, cpu = time.perf_counter(), time.process_time()
            if threads > 2:
                with Threads() as watched:
                    report = run_once(load(config))
            else:
                report = run_once(load(config))
            wall, cpu = time.perf_counter() - wall, time.process_time() - cpu
        assert report.exit_code == 0, report.as_dict()
        if number == 0:
            continue  # compiles and fills caches
        if threads > 2:
            alone = [s for k, s in watched.seconds.items() if k.startswith(("main", "nevermore-reader"))]
            best["serial"] = max(alone) / cpu if cpu < best["cpu"] else best["serial"]
        best["wall"], best["cpu"] = min(best["wall"], wall), min(best["cpu"], cpu)
    return best


def in_process(folder: Path, threads: int, cores: int, rounds: int) -> dict[str, Any]:
    mask = ",".join(map(str, sorted(os.sched_getaffinity(0))[:cores]))
    command = ["taskset", "-c", mask, sys.executable, "-m", "benchmarks.ingest_threads", "--measure"]
    done = subprocess.run(
        [*command, str(folder), str(threads), str(rounds)], capture_output=True, text=True, check=True
    )
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


def main(cases: list[str]) -> None:
    print("| events | one core, k/s CPU | two cores / one, wall | CPU | serial of 8 threads |\n|---|---|---|---|---|")
    for case in cases:
        with tempfile.TemporaryDirectory() as name:
            folder = Path(name)
            prepare(folder, case)
            pairs = [(in_process(folder, 1, 1, ROUNDS), in_process(folder, 2, 2, ROUNDS)) for _ in range(2)]
            one, two = ({k: min(found[k] for found in side) for k in side[0]} for side in zip(*pairs, strict=True))
            eight = in_process(folder, 8, 2, 2)
        rate = EVENTS[case] / one["cpu"] / 1000
        wall, cpu = two["wall"] / one["wall"], two["cpu"] / one["cpu"]
        print(f"| {case} | {rate:,.0f} | {1 / wall:.2f} x | {cpu:.2f} | {eight['serial']:.0%} |", flush=True)
        record(Ratio(f"ingest, {case}", "two cores", "one core", wall, None, 1 / 1.7, two["wall"]))


if __name__ == "__main__":
    if sys.argv[1:2] == ["--measure"]:
        print(json.dumps(measured(Path(sys.argv[2]), int(sys.argv[3]), int(sys.argv[4]))))
    else:
        main(chosen(__doc__, "case", tuple(EVENTS)))
