"""All columns of all rows: what do deletes cost, and how far is it from decoding alone?

D decodes every column, low-cardinality strings as dictionaries; a result of plain strings must also unpack those.
"""

import sys
from typing import Any

import scan_core
from benchmarks.count_and_aggregate import cpu_seconds
from benchmarks.floor import decode_floor
from benchmarks.race import race, report
from benchmarks.shapes import build

DICTIONARIES = ("k2", "s0", "s1", "s2")
GOAL = 1.15


def drain(table: Any) -> int:
    """Rows of all batches, none kept."""
    return sum(batch.num_rows for batch in table.scan().to_batches())


def measure(with_deletes: str, without: str) -> None:
    """Print both shapes beside each other."""
    deleted, plain = build(with_deletes), build(without)
    ours = {name: scan_core.open_table(t.metadata_location) for name, t in (("with", deleted), ("without", plain))}
    columns = ours["without"].schema.names
    candidates = {
        "with deletes": lambda: drain(ours["with"]),
        "without deletes": lambda: drain(ours["without"]),
        "D, dictionaries kept": lambda: decode_floor(plain, columns, DICTIONARIES),
        "D, plain strings": lambda: decode_floor(plain, columns),
    }
    report(f"select *: {with_deletes} (goal {GOAL} x without)", race(candidates, 5, same=False), "with deletes")
    spent = {label: cpu_seconds(run, 3) for label, run in candidates.items()}
    base = spent["without deletes"]
    print("\nCPU time: " + ", ".join(f"{label} {s * 1e3:.0f} ms ({s / base:.2f})" for label, s in spent.items()))


if __name__ == "__main__":
    measure(*(sys.argv[1:] or ["dense_ints", "no_deletes"]))
