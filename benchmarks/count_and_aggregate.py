"""What do deletes cost a count and a four-column aggregate? T / D: our time over that of decoding what any plan must.

D decodes the key columns and those of the aggregate. The delete index is built inside every measured call, as in a
process that scans once; beside it the same with the index kept.
"""

from collections.abc import Callable
from typing import Any

from benchmarks.floor import decode_floor
from benchmarks.race import Goal, chosen, race, report
from benchmarks.shapes import SHAPES, build
from nevermore import scan_core
from nevermore.scan_core.deletes.indexes import DELETE_CACHE

CALLS = (("max", "s0"), ("sum", "v0"), ("min", "i0"), ("sum", "q"))
COLUMNS = tuple(column for _, column in CALLS)
DICTIONARIES = ("k2", "s0")
GOALS = {"dense_ints": 1.3, "sparse_ints": 1.8, "two_strings": 2.5}


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
        if not columns:
            continue
        dictionaries = [c for c in DICTIONARIES if c in columns]
        candidates = {
            "index built": cold(run),
            "index kept": run,
            "D": lambda c=columns, d=dictionaries: decode_floor(table, c, d),
        }
        timings = race(candidates, same=False)
        goals = [Goal("index built", "D", GOALS.get(name)), Goal("index kept", "D")]
        report(f"{name}: {title}", timings, "D", goals)


if __name__ == "__main__":
    default = ("no_deletes", "dense_ints", "sparse_ints", "two_strings", "thousand_files", "partitioned_2000")
    for shape in chosen(__doc__, "shape", tuple(SHAPES), default):
        measure(shape)
