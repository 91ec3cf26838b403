"""What do deletes cost a count and a four-column aggregate? T / D: our time over that of decoding what any plan must.

D decodes the key columns and those of the aggregate. The delete index is built inside every measured call, as in a
process that scans once.
"""

import sys
import time
from collections.abc import Callable
from typing import Any

import scan_core
from benchmarks.floor import decode_floor
from benchmarks.race import race, report
from benchmarks.shapes import SHAPES, build
from scan_core.deletes.cache import DELETE_CACHE

CALLS = (("max", "s0"), ("sum", "v0"), ("min", "i0"), ("sum", "q"))
COLUMNS = tuple(column for _, column in CALLS)
DICTIONARIES = ("k2", "s0")
GOALS = {"dense_ints": 1.3, "sparse_ints": 1.8, "two_strings": 2.5}


def cpu_seconds(run: Callable[[], Any], rounds: int = 5) -> float:
    """The least CPU time of a call, all threads counted: what a busy machine leaves comparable."""
    taken = []
    for _ in range(rounds):
        start = time.process_time()
        run()
        taken.append(time.process_time() - start)
    return min(taken)


def measure(name: str) -> None:
    """Print both queries on one shape, with and without the index being built."""
    table = build(name)
    ours = scan_core.open_table(table.metadata_location)
    keys = SHAPES[name].key if SHAPES[name].delete_files else ()

    def cold(run: Callable[[], Any]) -> Callable[[], Any]:
        def from_nothing() -> Any:
            DELETE_CACHE.clear()
            return run()

        return from_nothing

    def count() -> int:
        return ours.scan().count()

    def aggregate() -> Any:
        return ours.scan().aggregate(*CALLS)

    for title, run, columns in (("count", count, keys), ("aggregate", aggregate, (*keys, *COLUMNS))):
        dictionaries = [c for c in DICTIONARIES if c in columns]
        candidates = {
            f"{title}, index built": cold(run),
            f"{title}, index cached": run,
            f"D ({', '.join(columns) or 'nothing'})": lambda c=columns, d=dictionaries: decode_floor(table, c, d),
        }
        timings = race(candidates, same=False)
        report(f"{name}: {title} (goal T/D {GOALS.get(name, '-')})", timings, f"{title}, index built")
        spent = {label: cpu_seconds(candidate) for label, candidate in candidates.items()}
        floor = spent[list(candidates)[-1]]
        ratios = ", ".join(f"{label} {s * 1e3:.0f} ms, T/D {s / floor:.2f}" for label, s in spent.items())
        print(f"\nCPU time: {ratios}")


if __name__ == "__main__":
    for shape in sys.argv[1:] or ["no_deletes", "dense_ints", "sparse_ints", "two_strings", "thousand_files"]:
        measure(shape)
