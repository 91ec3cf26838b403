"""An object store answers late: what do reading ahead and the client save, and how far is it from a store that answers at once?

The table lies behind a server of its own process, see `late_store`. D asks the same server, which then answers at once, at the
same rate of bytes.
"""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import scan_core
from benchmarks.late_store import BUCKET, REQUEST_SECONDS, late_store
from benchmarks.race import Goal, chosen, race, report
from benchmarks.shapes import SHAPES, build
from scan_core import ScanOptions
from scan_core.deletes.indexes import DELETE_CACHE
from scan_core.files.parquet.file_layout import FOOTERS

NEEDLE = "s1 = 'city-77' and v0 < 10"
ROUNDS = 5
PLAIN = ScanOptions(disk_cache_bytes=0)


def opened(location: Path, properties: dict[str, str]) -> scan_core.Scan:
    """A scan of the table through a store."""
    root = location.parent.parent
    places = {f"file://{root}": f"s3://{BUCKET}", str(root): f"s3://{BUCKET}"}
    name = f"s3://{BUCKET}/metadata/{location.name}"
    return scan_core.open_table(name, properties=properties, relocate=places).scan()


def measure(name: str) -> None:
    """Print three queries on one shape, with and without reading ahead."""
    location = Path(str(build(name).metadata_location).removeprefix("file://"))
    root = location.parent.parent
    with late_store(root, REQUEST_SECONDS) as late, late_store(root, 0.0) as prompt:
        file_io = {"py-io-impl": "pyiceberg.io.pyarrow.PyArrowFileIO"}
        scans = {
            "late": opened(location, late),
            "late, by FileIO": opened(location, {**late, **file_io}),
            "prompt": opened(location, prompt),
        }
        queries: dict[str, Callable[[scan_core.Scan], Any]] = {
            "all columns": lambda scan: sum(b.num_rows for b in scan.to_batches()),
            "count": lambda scan: scan.count(),
            "needle": lambda scan: scan.where(NEEDLE).to_table().num_rows,
        }
        for title, query in queries.items():

            def from_nothing(store: str, options: ScanOptions, query: Any = query) -> Any:
                FOOTERS.clear()
                DELETE_CACHE.clear()
                return query(scans[store].with_options(options))

            candidates = {
                "ahead": lambda: from_nothing("late", PLAIN),
                "ahead, pyarrow's client": lambda: from_nothing("late, by FileIO", PLAIN),
                "ahead, with the disk cache": lambda: from_nothing("late", ScanOptions()),
                "not ahead": lambda: from_nothing("late", replace(PLAIN, read_ahead_bytes=0)),
                "no wait (D)": lambda: from_nothing("prompt", PLAIN),
            }
            goals = [Goal("ahead", name) for name in candidates if name != "ahead"]
            report(f"object store, {name}: {title}", race(candidates, ROUNDS), "ahead", goals)


if __name__ == "__main__":
    for shape in chosen(__doc__, "shape", tuple(SHAPES), ("dense_ints",)):
        measure(shape)
