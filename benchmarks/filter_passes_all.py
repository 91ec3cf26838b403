"""What does a filter cost that every row passes? Beside the same scan without a filter, all columns and four of them.

One kind is decided by the statistics of row groups, the other only by looking at every row.
"""

from functools import partial

from benchmarks.race import Goal, chosen, race, report
from benchmarks.shapes import SHAPES, build
from nevermore import scan_core

FILTERS = {"by statistics": "q >= 0 and i0 >= 0", "row by row": "q + i0 >= 0"}
COLUMNS = {"all columns": None, "four columns": ("s0", "v0", "i0", "q")}
MAX_RATIO = 1.05


def measure(name: str) -> None:
    """Print both filters beside none."""
    table = scan_core.open_table(build(name).metadata_location)
    for title, columns in COLUMNS.items():
        scan = table.scan() if columns is None else table.scan().select(*columns)
        scans = {"no filter": scan} | {kind: scan.where(where) for kind, where in FILTERS.items()}
        candidates = {kind: partial(_drain, one) for kind, one in scans.items()}
        goals = [Goal(kind, "no filter", MAX_RATIO if columns is None else None) for kind in FILTERS]
        report(f"{name}: filter that passes everything, {title}", race(candidates), "no filter", goals)


def _drain(scan: scan_core.Scan) -> int:
    """Rows of all batches, none kept."""
    return sum(batch.num_rows for batch in scan.to_batches())


if __name__ == "__main__":
    for shape in chosen(__doc__, "shape", tuple(SHAPES), ("no_deletes", "dense_ints")):
        measure(shape)
