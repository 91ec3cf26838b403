"""Did a change make a scan slower? Each shape of scan by this checkout beside another commit's, in turn, answers compared.

Both read the same tables, each in a process of its own that imports the packages of its checkout. `python -m
benchmarks.two_checkouts COMMIT [--rows N] [SHAPE ...]`; what takes longer than `MAX_RATIO` in wall and CPU time is marked.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

ROUNDS = 5
ROWS = 2_000_000
MAX_RATIO = 1.1
CAP_BYTES = 128 * 1024**2
CALLS = (("max", "s0"), ("sum", "v0"), ("min", "i0"), ("sum", "q"))
NEEDLE = "s1 = 'city-77' and v0 < 10"
BY_STATISTICS, ROW_BY_ROW = "q >= 0 and i0 >= 0", "q + i0 >= 0"
_ROOT = Path(__file__).parent.parent


def queries(location: str) -> dict[str, Callable[[], Any]]:
    """What is asked of a table, by title; only what all versions of the public surface have."""
    from nevermore import scan_core
    from nevermore.scan_core import ScanOptions

    table = scan_core.open_table(location)
    scan, built_anew = table.scan(), ScanOptions(delete_cache_bytes=0)
    few = scan.select(*(column for _, column in CALLS))

    def drained(one: scan_core.Scan) -> int:
        return sum(batch.num_rows for batch in one.to_batches())

    return {
        "count": scan.count,
        "count, deletes indexed anew": scan.with_options(built_anew).count,
        "aggregate": lambda: list(scan.aggregate(*CALLS)),
        "aggregate, deletes indexed anew": lambda: list(scan.with_options(built_anew).aggregate(*CALLS)),
        "needle": lambda: scan.where(NEEDLE).to_table().num_rows,
        "all columns": lambda: drained(scan),
        "all columns, 128 MB": lambda: drained(scan.with_options(ScanOptions(memory_limit_bytes=CAP_BYTES))),
        "filter passes everything, by statistics": lambda: drained(few.where(BY_STATISTICS)),
        "filter passes everything, row by row": lambda: drained(few.where(ROW_BY_ROW)),
    }


def answer() -> None:
    """Answer requests {"table": metadata file, "query": title} on standard input, a line each, until it ends."""
    tables: dict[str, dict[str, Callable[[], Any]]] = {}
    for line in sys.stdin:
        request = json.loads(line)
        if request["table"] not in tables:
            tables[request["table"]] = queries(request["table"])
        run = tables[request["table"]][request["query"]]
        wall, cpu = time.perf_counter(), time.process_time()
        value = run()
        reply = {"answer": value, "seconds": time.perf_counter() - wall, "cpu": time.process_time() - cpu}
        print(json.dumps(reply, default=str), flush=True)


@contextmanager
def checked_out(commit: str) -> Iterator[Path]:
    """The files of a commit in a folder of their own, removed at the end."""
    with tempfile.TemporaryDirectory(prefix="checkout-") as folder:
        archive = subprocess.run(["git", "archive", commit], cwd=_ROOT, check=True, stdout=subprocess.PIPE)
        subprocess.run(["tar", "-x", "-C", folder], input=archive.stdout, check=True)
        yield Path(folder)


@contextmanager
def answering(checkout: Path) -> Iterator[subprocess.Popen[str]]:
    """A process that answers with the packages of a checkout."""
    command = [sys.executable, str(Path(__file__)), "--answer"]
    environment = {**os.environ, "PYTHONPATH": str(checkout), "PYTHONSAFEPATH": "1"}
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=checkout, env=environment
    ) as process:
        try:
            yield process
        finally:
            assert process.stdin
            process.stdin.close()


def compare(shapes: list[str], commit: str, rows: int) -> None:
    """Print a Markdown table: every query on every shape, both checkouts and the ratio."""
    from benchmarks.race import Answer, race
    from benchmarks.shapes import build

    with checked_out(commit) as folder, answering(_ROOT) as mine, answering(folder) as other:
        print(f"| shape | query | {commit}, CPU ms | here, CPU ms | CPU | wall | |\n|---|---|---|---|---|---|---|")
        for shape in shapes:
            location = build(shape, rows).metadata_location
            for title in queries(location):

                def ask(process: subprocess.Popen[str], title: str = title, location: str = location) -> Answer:
                    assert process.stdin
                    assert process.stdout
                    print(json.dumps({"table": location, "query": title}), file=process.stdin, flush=True)
                    line = process.stdout.readline()
                    if not line:
                        raise SystemExit(f"process {process.pid} has ended at {title}")
                    reply = json.loads(line)
                    return Answer(reply["answer"], reply["seconds"], reply["cpu"])

                timings = race({"before": partial(ask, other), "here": partial(ask, mine)}, ROUNDS)
                before, here = timings["before"], timings["here"]
                cpu, wall = here.cpu / before.cpu, here.minimum / before.minimum
                mark = "**slower**" if min(cpu, wall) > MAX_RATIO else ""
                figures = f"{before.cpu * 1e3:.0f} | {here.cpu * 1e3:.0f} | {cpu:.2f} | {wall:.2f} | {mark}"
                print(f"| {shape} | {title} | {figures} |", flush=True)


if __name__ == "__main__":
    if sys.argv[1:] == ["--answer"]:
        answer()
    else:
        from benchmarks.shapes import SHAPES

        parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
        parser.add_argument("commit", help="any name that git knows of what this checkout is compared with")
        parser.add_argument("shapes", nargs="*", help=f"{', '.join(SHAPES)}; default: all but ten_million_deletes")
        parser.add_argument("--rows", type=int, default=ROWS, help=f"rows of each table; default {ROWS:,}")
        arguments = parser.parse_args()
        if wrong := [shape for shape in arguments.shapes if shape not in SHAPES]:
            parser.error(f"unknown shape: {', '.join(wrong)} (known: {', '.join(SHAPES)})")
        chosen = arguments.shapes or [shape for shape in SHAPES if shape != "ten_million_deletes"]
        compare(chosen, arguments.commit, arguments.rows)
