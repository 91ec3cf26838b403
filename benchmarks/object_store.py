"""An object store answers late: what does reading ahead save, and is the rest decoding?

The table lies on the local disk behind a file system that makes every request wait, as a store in the same region does, and
then hands out bytes at a fixed rate per connection. D reads the same table without any wait.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pyarrow.fs as pafs

import scan_core
from benchmarks.race import Goal, chosen, race, report
from benchmarks.shapes import SHAPES, build
from scan_core import ScanOptions
from scan_core.deletes.indexes import DELETE_CACHE
from scan_core.files.parquet.file_layout import FOOTERS
from tests.io_patterns.recording import NO_DELAY, Delay, Recorder, RecordingHandler

LATE = Delay(open_seconds=0.030, request_seconds=0.030, bytes_per_second=80e6)
NEEDLE = "s1 = 'city-77' and v0 < 10"
ROUNDS = 5


@contextmanager
def store(root: Path) -> Iterator[Recorder]:
    """The folder of a table as `s3://bench`, in the place of a catalog's file system."""
    recorder = Recorder()
    system = pafs.PyFileSystem(RecordingHandler(pafs.LocalFileSystem(), "bench", str(root), recorder))
    with patch("scan_core.io.catalog.filesystem", lambda location, _: (system, location.authority + location.path)):
        yield recorder


def measure(name: str) -> None:
    """Print three queries on one shape, with and without reading ahead."""
    location = Path(str(build(name).metadata_location).removeprefix("file://"))
    root = location.parent.parent
    with store(root) as recorder:
        table = scan_core.open_table(
            f"s3://bench/metadata/{location.name}",
            relocate={f"file://{root}": "s3://bench", str(root): "s3://bench"},
        )
        scan = table.scan()
        queries: dict[str, Callable[[ScanOptions], Any]] = {
            "all columns": lambda o: sum(b.num_rows for b in scan.with_options(o).to_batches()),
            "count": lambda o: scan.with_options(o).count(),
            "needle": lambda o: scan.where(NEEDLE).with_options(o).to_table().num_rows,
        }
        for title, query in queries.items():

            def anew(options: ScanOptions, query: Any = query, *, waits: bool = True) -> Any:
                recorder.clear()
                recorder.delay = LATE if waits else NO_DELAY
                FOOTERS.clear()
                DELETE_CACHE.clear()
                return query(options)

            candidates = {
                "ahead": lambda: anew(ScanOptions()),
                "not ahead": lambda: anew(ScanOptions(read_ahead_bytes=0)),
                "no wait (D)": lambda: anew(ScanOptions(read_ahead_bytes=0), waits=False),
            }
            goals = [Goal("ahead", "not ahead"), Goal("ahead", "no wait (D)")]
            report(f"object store, {name}: {title}", race(candidates, ROUNDS), "ahead", goals)


if __name__ == "__main__":
    for shape in chosen(__doc__, "shape", tuple(SHAPES), ("dense_ints",)):
        measure(shape)
