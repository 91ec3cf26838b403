"""How much faster than Spark + Iceberg Java: count and a 4-column aggregate over 8 M rows with 1 M equality deletes.

Both are asked in turn, round after round; Spark's session is warm, our delete index is built anew in every call.
Run: `make interop` once for the second environment, then `.venv/bin/python -m benchmarks.against_iceberg_java`.
"""

import json
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow.compute as pc

import scan_core
from benchmarks.race import rounded
from benchmarks.shapes import build
from scan_core.deletes.cache import DELETE_CACHE

PEER = Path(__file__).parent.parent / ".venv-interop" / "bin" / "python"
ROUNDS = 5
SHAPES = ("dense_ints", "sparse_ints", "two_strings", "thousand_files")


def count(metadata: str) -> list[Any]:
    return [[scan_core.open_table(metadata).scan().count()]]


def aggregate(metadata: str) -> list[Any]:
    table = scan_core.open_table(metadata).scan().select("v0", "v1", "i0", "s0").to_table()
    return [
        [
            pc.sum(table["v0"]).as_py(),
            pc.sum(table["v1"]).as_py(),
            pc.max(table["i0"]).as_py(),
            pc.max(table["s0"]).as_py(),
        ]
    ]


QUERIES: dict[str, tuple[Callable[[str], list[Any]], str]] = {
    "count": (count, "select count(*) from {table}"),
    "aggregate": (aggregate, "select sum(v0), sum(v1), max(i0), max(s0) from {table}"),
}


def main(shapes: list[str]) -> None:
    if not PEER.exists():
        raise SystemExit("the second environment is missing: run make interop first")
    peer = subprocess.Popen(
        [PEER, "-W", "ignore", Path(__file__).with_name("iceberg_java_peer.py")],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )
    assert peer.stdin
    assert peer.stdout
    ready = json.loads(next(line for line in peer.stdout if line.startswith("{")))
    print(
        f"\n| shape | query | scan_core median s | Spark {ready['ready']} + Iceberg Java 1.12 median s | x faster |\n|---|---|---|---|---|"
    )
    for shape in shapes:
        metadata = str(build(shape).metadata_location).removeprefix("file://")
        for name, (ours, sql) in QUERIES.items():
            seconds: tuple[list[float], list[float]] = ([], [])
            for round_number in range(ROUNDS + 1):
                DELETE_CACHE.clear()
                start = time.perf_counter()
                answer = ours(metadata)
                taken = time.perf_counter() - start
                peer.stdin.write(json.dumps({"metadata": metadata, "sql": sql}) + "\n")
                peer.stdin.flush()
                theirs = json.loads(peer.stdout.readline())
                if json.dumps(rounded(answer)) != json.dumps(rounded(theirs["answer"])):
                    raise SystemExit(f"{shape} {name}: the answers differ: {answer} and {theirs['answer']}")
                if round_number:
                    seconds[0].append(taken)
                    seconds[1].append(theirs["seconds"])
            mine, java = (statistics.median(s) for s in seconds)
            print(f"| {shape} | {name} | {mine:.3f} | {java:.2f} | {java / mine:.0f} |", flush=True)
    peer.stdin.close()
    peer.wait(60)


if __name__ == "__main__":
    main(sys.argv[1:] or list(SHAPES))
