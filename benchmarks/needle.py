"""A needle: few rows of many, all columns, with deletes. What is read and decoded beside what is needed?

D decodes the filter columns whole and nothing else: the least a plan without an index must do. Engines that read raw
Parquet files run beside it when they are installed; they see the deleted rows too, so their answers are not compared.
"""

import sys
from collections.abc import Callable
from importlib import import_module
from importlib.util import find_spec
from typing import Any

import scan_core
from benchmarks.count_and_aggregate import cpu_seconds
from benchmarks.floor import decode_floor
from benchmarks.race import race, report
from benchmarks.shapes import build
from scan_core import ScanOptions

WHERE = "s1 = 'city-77' and v0 < 10"
FILTER_COLUMNS = ("s1", "v0")


def peers(table: Any) -> dict[str, Callable[[], Any]]:
    """The same filter over the raw data files."""
    paths = [p.removeprefix("file://") for p in table.inspect.data_files()["file_path"].to_pylist()]
    found: dict[str, Callable[[], Any]] = {}
    if find_spec("duckdb"):
        import duckdb

        found["DuckDB on raw files"] = lambda: duckdb.sql(
            f"select * from read_parquet({paths!r}) where {WHERE}"
        ).fetchall()
    if find_spec("polars"):
        polars: Any = import_module("polars")
        found["Polars on raw files"] = lambda: (
            polars.scan_parquet(paths)
            .filter((polars.col("s1") == "city-77") & (polars.col("v0") < 10))
            .collect()
            .height
        )
    return found


def measure(name: str) -> None:
    """Print the needle on one shape, with and without the page-level switches."""
    table = build(name)
    scan = scan_core.open_table(table.metadata_location).scan().where(WHERE)
    whole_chunks = scan.with_options(ScanOptions(prune_pages=False))
    candidates: dict[str, Callable[[], Any]] = {
        "nevermore": lambda: scan.to_table().num_rows,
        "nevermore, whole chunks": lambda: whole_chunks.to_table().num_rows,
        "D: filter columns decoded": lambda: decode_floor(table, FILTER_COLUMNS, ["s1"]),
        **peers(table),
    }
    report(f"{name}: needle", race(candidates, same=False), "nevermore")
    spent = {label: cpu_seconds(run) for label, run in candidates.items()}
    print("\nCPU time: " + ", ".join(f"{label} {s * 1e3:.0f} ms" for label, s in spent.items()))
    scan.to_table()
    read, skipped = scan.metrics.bytes_read, scan.metrics.bytes_skipped
    print(f"{scan.metrics.rows_out} rows; read {read / 1e6:.1f} MB, left out {skipped / 1e6:.1f} MB")


if __name__ == "__main__":
    for shape in sys.argv[1:] or ["no_deletes", "dense_ints"]:
        measure(shape)
