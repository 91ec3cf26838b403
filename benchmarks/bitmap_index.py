"""Scattered needles with and without bitmap indexes: two filters of which one value in a thousand rows passes the first.

The table is that of `shapes.py` under metadata of its own, so that its data files are shared and never changed. Druid
(two-stage filtering, issue 2742) gives the idea and no figures; the goal is five times faster than the same scan without.
"""

from collections.abc import Callable
from time import perf_counter
from typing import Any

from benchmarks.race import Goal, chosen, race, report
from benchmarks.shapes import MetadataCopy
from nevermore import scan_core
from nevermore.pipelines.iceberg.bitmap_indexes import build_indexes
from nevermore.scan_core import ScanOptions

INDEXED = ("s1", "i0")
NEEDLE = "s1 = 'city-500' and i0 = 7"
"""Both indexed: a thousand cities and a hundred numbers, in random order over all pages."""
ONE_INDEX = "s1 = 'city-500' and v0 < 10"
SPANNING = "s1 = 'city-500' or v0 < 0.1"
MANY_VALUES = "s1 like '%5%' and v0 < 10"
WITHOUT = ScanOptions.of(use_bitmap_indexes=False)


def indexed_table() -> scan_core.Table:
    """A table of the same data files with indexes."""
    target = MetadataCopy("no_deletes")
    for column in INDEXED:
        started = perf_counter()
        found = build_indexes(target, [column])
        print(f"{column}: {found.built} files indexed in {perf_counter() - started:.1f} s, {found.size_bytes:,} bytes")
    return target.load()


def measure(
    table: scan_core.Table, title: str, where: str, read: Callable[[Any], Any], at_most: float | None = None
) -> None:
    """One filter with and without."""
    scan = table.scan().where(where)
    without = scan.with_options(WITHOUT)
    candidates = {"with indexes": lambda: read(scan), "without": lambda: read(without)}
    report(title, race(candidates), "with indexes", [Goal("with indexes", "without", at_most)])


def main() -> None:
    """Print all cases."""
    table = indexed_table()
    print(table.scan().where(NEEDLE).explain())
    measure(table, "bitmap index: count, both filters indexed", NEEDLE, lambda s: s.count(), 0.2)
    measure(
        table,
        "bitmap index: 3 columns, both filters indexed",
        NEEDLE,
        lambda s: s.select("id", "k1", "v1").to_table().num_rows,
    )
    measure(table, "bitmap index: count, one filter indexed", ONE_INDEX, lambda s: s.count())
    measure(table, "bitmap index: count, OR across both stages", SPANNING, lambda s: s.count())
    measure(table, "bitmap index: count, union of 271 bitmaps", MANY_VALUES, lambda s: s.count())


if __name__ == "__main__":
    chosen(__doc__)
    main()
