"""How long does `nevermore scan TABLE --count` take as a whole process, from the shell's prompt to the exit?

D is a process that imports pyarrow and decodes the key columns of the same files. CPU time is printed beside wall time:
it is what a busy machine leaves comparable.
"""

import os
import statistics
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from benchmarks.race import Timing
from benchmarks.results import Ratio, record
from benchmarks.shapes import SHAPES, build

ROUNDS = 7
GOAL_SECONDS = {"dense_ints": 0.6, "two_strings": 1.2}
"""On a quiet machine; what is recorded and compared is the ratio to D's process."""
_FLOOR = """
import sys
from concurrent.futures import ThreadPoolExecutor
import pyarrow.parquet as pq
columns, paths = sys.argv[1].split(","), sys.argv[2:]
jobs = [(path, group) for path in paths for group in range(pq.read_metadata(path).num_row_groups)]
def decode(job):
    return pq.ParquetFile(job[0]).read_row_group(job[1], columns=columns, use_threads=False).num_rows
with ThreadPoolExecutor(2) as pool:
    print(sum(pool.map(decode, jobs)))
"""


def run_once(command: Sequence[str]) -> tuple[float, float]:
    """Wall and CPU seconds of a process that must succeed."""
    environment = {k: v for k, v in os.environ.items() if k != "PYTHONDONTWRITEBYTECODE"}
    before, start = os.times(), time.perf_counter()
    subprocess.run(command, check=True, capture_output=True, env=environment)
    wall, after = time.perf_counter() - start, os.times()
    spent = after.children_user + after.children_system - before.children_user - before.children_system
    return wall, spent


def measure(name: str, rounds: int = ROUNDS) -> None:
    """Print a Markdown row per process for the table of a shape."""
    table = build(name)
    metadata = table.metadata_location.removeprefix("file://")
    paths = [p.removeprefix("file://") for p in table.inspect.data_files()["file_path"].to_pylist()]
    nevermore = Path(sys.executable).with_name("nevermore")
    commands = {
        "nevermore scan --count": [str(nevermore), "scan", metadata, "--count"],
        "D: pyarrow decodes the keys": [sys.executable, "-c", _FLOOR, ",".join(SHAPES[name].key), *paths],
        "python -c 'import pyarrow'": [sys.executable, "-c", "import pyarrow"],
    }
    for command in commands.values():
        run_once(command)
    taken: dict[str, list[tuple[float, float]]] = {label: [] for label in commands}
    for _ in range(rounds):
        for label, command in commands.items():
            taken[label].append(run_once(command))
    print(f"\n### Cold start, {name} (goal {GOAL_SECONDS.get(name, '-')} s)\n")
    print("| process | min s | median s | min CPU s |\n|---|---|---|---|")
    timings = {}
    for label, runs in taken.items():
        walls, spent = [wall for wall, _ in runs], min(cpu for _, cpu in runs)
        timings[label] = Timing(min(walls), statistics.median(walls), spent)
        print(f"| {label} | {min(walls):.2f} | {statistics.median(walls):.2f} | {spent:.2f} |")
    mine, floor = timings["nevermore scan --count"], timings["D: pyarrow decodes the keys"]
    ratio = mine.median / floor.median, mine.cpu / floor.cpu
    record(Ratio(f"cold start, {name}", "nevermore scan --count", "D", *ratio, None, mine.median))


if __name__ == "__main__":
    for shape in sys.argv[1:] or list(GOAL_SECONDS):
        measure(shape)
