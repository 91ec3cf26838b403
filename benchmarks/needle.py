"""A needle: few rows of many, all columns, with deletes. How does it compare with engines on raw files without deletes?

D decodes the filter columns whole and nothing else: the least a plan without an index must do. The peers (`make peers`)
read the raw Parquet files, deleted rows too, so their answers are compared among themselves only.
"""

from collections.abc import Callable
from typing import Any

from benchmarks.floor import decode_floor
from benchmarks.peers import raw_files, running
from benchmarks.race import Goal, chosen, race, report
from benchmarks.shapes import DATA, ROWS, SHAPES, build
from nevermore import scan_core
from nevermore.scan_core import ScanOptions

WHERE = "s1 = 'city-77' and v0 < 10"
FILTER_COLUMNS = ("s1", "v0")
TABLE_ROWS = {"dense_ints": ROWS, "wide_120": 2_000_000}
PEERS = ("datafusion", "duckdb", "polars")


def measure(name: str, rows: int) -> None:
    """Print the needle on one shape: with and without the page-level switches, beside the peers."""
    table = build(name, rows)
    scan = scan_core.open_table(table.metadata_location).scan().where(WHERE)
    by_chunks = scan.with_options(ScanOptions.of(prune_pages=False))
    candidates: dict[str, Callable[[], Any]] = {
        "nevermore": lambda: scan.to_table().num_rows,
        "whole chunks decoded": lambda: by_chunks.to_table().num_rows,
        "D": lambda: decode_floor(table, FILTER_COLUMNS, ["s1"]),
    }
    files = raw_files(table, DATA / f"raw_{name}")
    with running(PEERS) as peers:
        for engine, peer in peers.items():
            candidates[engine] = lambda p=peer: p.ask(f"select * from {{table}} where {WHERE}", files=files)
        goals = [Goal("nevermore", engine, 1.0) for engine in peers]
        goals += [Goal("nevermore", "D"), Goal("nevermore", "whole chunks decoded")]
        report(f"{name}: needle", race(candidates, same=False), "nevermore", goals)
    scan.to_table()
    read, skipped = scan.metrics.bytes_read, scan.metrics.bytes_skipped
    print(f"\n{scan.metrics.rows_out} rows; read {read / 1e6:.1f} MB, left out {skipped / 1e6:.1f} MB")


if __name__ == "__main__":
    for shape in chosen(__doc__, "shape", tuple(SHAPES), tuple(TABLE_ROWS)):
        measure(shape, TABLE_ROWS.get(shape, ROWS))
