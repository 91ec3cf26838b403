"""How long does `nevermore scan TABLE --count` take as a whole process, from the shell's prompt to the exit?

D is a process that imports pyarrow and decodes the key columns of the same files. CPU time is printed beside wall time:
it is what a busy machine leaves comparable.
"""

import os
import subprocess
import sys
import time
from collections.abc import Sequence
from functools import partial
from pathlib import Path

from benchmarks.race import Answer, Goal, chosen, race, report
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


def run_once(command: Sequence[str]) -> Answer:
    """What a process that must succeed prints, with its wall and CPU seconds."""
    environment = {k: v for k, v in os.environ.items() if k != "PYTHONDONTWRITEBYTECODE"}
    before, start = os.times(), time.perf_counter()
    printed = subprocess.run(command, check=True, capture_output=True, text=True, env=environment).stdout
    wall, after = time.perf_counter() - start, os.times()
    spent = after.children_user + after.children_system - before.children_user - before.children_system
    return Answer(printed.strip(), wall, spent)


def measure(name: str, rounds: int = ROUNDS) -> None:
    """Race the processes over the table of a shape."""
    table = build(name)
    metadata = table.metadata_location.removeprefix("file://")
    paths = [p.removeprefix("file://") for p in table.inspect.data_files()["file_path"].to_pylist()]
    nevermore = Path(sys.executable).with_name("nevermore")
    commands = {
        "nevermore scan --count": [str(nevermore), "scan", metadata, "--count"],
        "D": [sys.executable, "-c", _FLOOR, ",".join(SHAPES[name].key), *paths],
        "python -c 'import pyarrow'": [sys.executable, "-c", "import pyarrow"],
    }
    timings = race({label: partial(run_once, command) for label, command in commands.items()}, rounds, same=False)
    report(f"cold start, {name}", timings, "nevermore scan --count", [Goal("nevermore scan --count", "D")])
    median = timings["nevermore scan --count"].median
    print(f"\n{median:.2f} s as a whole, goal {GOAL_SECONDS.get(name, '-')} s")


if __name__ == "__main__":
    for shape in chosen(__doc__, "shape", tuple(GOAL_SECONDS)):
        measure(shape)
