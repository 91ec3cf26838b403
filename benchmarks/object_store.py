"""An object store answers late: what do reading ahead and the client save, and how far is it from a store that answers at once?

The table lies behind a server of its own process, see `late_store`. D asks the same server, which then answers at once, at the
same rate of bytes. The peers (`make peers`) read the raw Parquet files of the late store, deleted rows too.
"""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

from benchmarks.late_store import BUCKET, REQUEST_SECONDS, late_store
from benchmarks.peers import running
from benchmarks.race import Goal, chosen, race, report
from benchmarks.shapes import SHAPES, build
from nevermore import scan_core
from nevermore.scan_core import ScanOptions
from nevermore.scan_core.deletes.indexes import DELETE_CACHE
from nevermore.scan_core.files.parquet.file_layout import FOOTERS

NEEDLE = "s1 = 'city-77' and v0 < 10"
PEERS = {
    "all columns": "select * from {table}",
    "count": "select count(*) from {table}",
    "needle": f"select * from {{table}} where {NEEDLE}",
}
ENGINES = ("clickhouse", "datafusion", "duckdb", "polars")
ROUNDS = 5
PLAIN = ScanOptions()


def opened(location: Path, properties: dict[str, str]) -> scan_core.Scan:
    """A scan of the table through a store."""
    root = location.parent.parent
    places = {f"file://{root}": f"s3://{BUCKET}", str(root): f"s3://{BUCKET}"}
    name = f"s3://{BUCKET}/metadata/{location.name}"
    return scan_core.open_table(name, properties=properties, relocate=places).scan()


def measure(name: str) -> None:
    """Print three queries on one shape, with and without reading ahead, beside the peers."""
    table = build(name)
    location = Path(str(table.metadata_location).removeprefix("file://"))
    root = location.parent.parent
    paths = [Path(path.removeprefix("file://")) for path in table.inspect.data_files()["file_path"].to_pylist()]
    with (
        late_store(root, REQUEST_SECONDS) as late,
        late_store(root, 0.0) as prompt,
        running(ENGINES, script="store_peer") as peers,
    ):
        asked = {
            "files": [str(path.relative_to(root)) for path in paths],
            "bucket": BUCKET,
            "endpoint": late["s3.endpoint"],
        }
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

            candidates: dict[str, Callable[[], Any]] = {
                "ahead": lambda: from_nothing("late", PLAIN),
                "ahead, pyarrow's client": lambda: from_nothing("late, by FileIO", PLAIN),
                "not ahead": lambda: from_nothing("late", replace(PLAIN, read_ahead_bytes=0)),
                "no wait (D)": lambda: from_nothing("prompt", PLAIN),
            }
            if len(answers := {run() for run in candidates.values()}) > 1:
                raise SystemExit(f"the answers differ: {answers}")
            goals = [Goal("ahead", candidate) for candidate in candidates if candidate != "ahead"]
            for engine, peer in peers.items():
                request = {"sql": PEERS[title], **asked}
                candidates[engine] = lambda p=peer, r=request: p.request(r, r["sql"])
                goals.append(Goal("ahead", engine, 1.0))
            report(f"object store, {name}: {title}", race(candidates, ROUNDS, same=False), "ahead", goals)


if __name__ == "__main__":
    for shape in chosen(__doc__, "shape", tuple(SHAPES), ("dense_ints",)):
        measure(shape)
