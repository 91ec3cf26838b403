"""Tables with a million deletes, with and without an index of dead rows, beside the same rows without any delete.

Delete caches are emptied before every measured call, as in a process that scans once.
"""

from collections.abc import Callable
from time import perf_counter, process_time
from typing import Any

from benchmarks.count_and_aggregate import CALLS
from benchmarks.race import Goal, chosen, race, report
from benchmarks.shapes import SHAPES, MetadataCopy, build
from nevermore import scan_core
from nevermore.pipelines.iceberg.dead_row_index import index_dead_rows
from nevermore.scan_core import ScanOptions
from nevermore.scan_core.deletes.indexes import DELETE_CACHE

WITHOUT = ScanOptions.of(use_dead_row_bits=False)


def indexed(name: str) -> scan_core.Table:
    """A table of the same data and delete files, with an index of its own."""
    target = MetadataCopy(name)
    DELETE_CACHE.clear()
    began, cpu = perf_counter(), process_time()
    found = index_dead_rows(target)
    print(
        f"{name}: {found.dead_rows:,} dead rows of {found.data_files} files indexed in {perf_counter() - began:.2f} s, "
        f"{process_time() - cpu:.2f} s of CPU, {found.size_bytes:,} bytes"
    )
    return target.load()


def measure(name: str) -> None:
    """Count, aggregate and look up one row in one shape."""
    table = indexed(name)
    plain = scan_core.open_table(build("no_deletes").metadata_location)
    queries: dict[str, Callable[[Any], Any]] = {
        "count": lambda scan: scan.count(),
        "aggregate": lambda scan: scan.aggregate(*CALLS),
        "needle": lambda scan: scan.where("v0 < 0.001").select("id", "k1", "v0").to_table().num_rows,
    }

    def cold(run: Callable[[Any], Any], scan: Any) -> Callable[[], Any]:
        def from_nothing() -> Any:
            DELETE_CACHE.clear()
            return run(scan)

        return from_nothing

    for title, run in queries.items():
        candidates = {
            "with the index": cold(run, table.scan()),
            "without": cold(run, table.scan().with_options(WITHOUT)),
        }
        goals = [Goal("with the index", "without")]
        if SHAPES[name].partitions == 0:
            candidates["no deletes"] = cold(run, plain.scan())
            goals.append(Goal("with the index", "no deletes", 1.1))
        timings = race(candidates, same=False)
        report(f"dead-row index: {name}, {title}", timings, "with the index", goals)


if __name__ == "__main__":
    default = ("dense_ints", "sparse_ints", "two_strings", "thousand_files", "partitioned_2000")
    for shape in chosen(__doc__, "shape", tuple(SHAPES), default):
        measure(shape)
