"""What does a memory cap cost, and is it kept? Resident growth and time under 128 MB, ten million delete keys included.

Each case runs in a process of its own, which first scans another table, so that libraries and page tables are there; growth
is the highest resident size during the scan over that before it, cap and delete index included.
"""

import json
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

from benchmarks.race import Answer, Goal, chosen, race, report
from benchmarks.results import Ratio, record
from benchmarks.shapes import SHAPES, build

CAP_BYTES = 128 * 1024**2
ROUNDS = 3
MAX_GROWTH = 1.25
MAX_SLOWDOWN = 1.5
WARM_UP = "no_deletes"
CASES = {
    "no cap": {},
    "128 MB": {"memory_limit_bytes": CAP_BYTES},
    "128 MB, any order": {"memory_limit_bytes": CAP_BYTES, "keep_order": False},
}


def scan(shape: str, query: str, options: dict[str, Any]) -> None:
    """Run one query and print what it took, as JSON."""
    from nevermore import scan_core
    from nevermore.scan_core import ScanOptions

    chosen = ScanOptions.of(**options)
    warm = scan_core.open_table(build(WARM_UP).metadata_location).scan()
    warm = warm.with_options(replace(chosen, parallelism=2))
    next(warm.to_batches())
    warm.aggregate(("sum", "q"))
    table = scan_core.open_table(build(shape).metadata_location).scan().with_options(chosen)
    queries: dict[str, Callable[[], Any]] = {
        "all columns": lambda: sum(batch.num_rows for batch in table.to_batches()),
        "aggregate": lambda: [table.aggregate(("sum", "q"), ("max", "s0"))[0]],
    }
    before, highest, done = _resident(), 0, threading.Event()

    def watch() -> None:
        nonlocal highest
        while not done.wait(0.002):
            highest = max(highest, _resident())

    watcher = threading.Thread(target=watch)
    watcher.start()
    wall, cpu = time.perf_counter(), time.process_time()
    value = queries[query]()
    wall, cpu = time.perf_counter() - wall, time.process_time() - cpu
    done.set()
    watcher.join()
    print(json.dumps({"value": value, "seconds": wall, "cpu": cpu, "growth": max(highest - before, 0)}))


def measure(shape: str) -> None:
    """Print both queries on one shape under every cap."""
    build(WARM_UP)
    build(shape)
    for query in ("all columns", "aggregate"):
        growth: dict[str, int] = {}

        def ask(case: str, query: str = query, growth: dict[str, int] = growth) -> Answer:
            command = [sys.executable, "-m", "benchmarks.memory_cap", shape, query, json.dumps(CASES[case])]
            ended = subprocess.run(command, check=True, capture_output=True, text=True)
            said = json.loads(ended.stdout.splitlines()[-1])
            growth[case] = max(growth.get(case, 0), said["growth"])
            return Answer(said["value"], said["seconds"], said["cpu"])

        timings = race({case: lambda c=case: ask(c) for case in CASES}, ROUNDS)
        goals = [Goal(case, "no cap", MAX_SLOWDOWN) for case in CASES if case != "no cap"]
        report(f"memory cap, {shape}: {query}", timings, "no cap", goals)
        for case in CASES:
            share = growth[case] / CAP_BYTES
            print(f"\n{case}: resident growth {growth[case] / 1e6:.0f} MB, {share:.2f} x 128 MB")
            if case != "no cap":
                record(
                    Ratio(
                        f"memory cap, {shape}: {query}",
                        f"{case}, resident growth",
                        "the cap",
                        share,
                        None,
                        MAX_GROWTH,
                        timings[case].median,
                    )
                )


def _resident() -> int:
    fields = Path("/proc/self/statm").read_text(encoding="ascii").split()
    return int(fields[1]) * 4096


if __name__ == "__main__":
    if len(sys.argv) == 4:
        scan(sys.argv[1], sys.argv[2], json.loads(sys.argv[3]))
    else:
        for name in chosen(__doc__, "shape", tuple(SHAPES), ("dense_ints", "ten_million_deletes")):
            measure(name)
