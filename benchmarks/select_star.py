"""All columns of all rows: what do deletes cost, how far is it from decoding alone, and what does a memory cap cost?

D decodes every column, low-cardinality strings as dictionaries; a result of plain strings must also unpack those.
"""

import argparse
from typing import Any

from benchmarks.floor import decode_floor
from benchmarks.race import Goal, race, report
from benchmarks.shapes import SHAPES, build
from nevermore import scan_core
from nevermore.scan_core import ScanOptions

DICTIONARIES = ("k2", "s0", "s1", "s2")
ROUNDS = 5
CAP_BYTES = 128 * 1024 * 1024


def drain(table: Any, options: ScanOptions | None = None) -> int:
    """Rows of all batches, none kept."""
    scan = table.scan()
    return sum(batch.num_rows for batch in (scan.with_options(options) if options else scan).to_batches())


def measure(with_deletes: str, without: str) -> None:
    """Print both shapes beside each other."""
    deleted, plain = build(with_deletes), build(without)
    ours = {name: scan_core.open_table(t.metadata_location) for name, t in (("with", deleted), ("without", plain))}
    columns = ours["without"].schema.names
    candidates = {
        "with deletes": lambda: drain(ours["with"]),
        "without deletes": lambda: drain(ours["without"]),
        "with deletes, 128 MB": lambda: drain(ours["with"], ScanOptions(memory_limit_bytes=CAP_BYTES)),
        "D, dictionaries kept": lambda: decode_floor(plain, columns, DICTIONARIES),
        "D, plain strings": lambda: decode_floor(plain, columns),
    }
    goals = [
        Goal("with deletes", "without deletes", 1.15),
        Goal("with deletes, 128 MB", "with deletes", 1.5),
        Goal("without deletes", "D, dictionaries kept"),
    ]
    report(f"select *, {with_deletes}", race(candidates, ROUNDS, same=False), "D, dictionaries kept", goals)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("with_deletes", nargs="?", choices=SHAPES, default="dense_ints")
    parser.add_argument("without", nargs="?", choices=SHAPES, default="no_deletes")
    measure(**vars(parser.parse_args()))
