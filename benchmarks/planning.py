"""How long does planning take: 1,001 manifests of one file each, and 100,000 data files in 20 manifests?

D is fastavro with a cached schema, which decodes every record of the same manifests and does nothing with them. The
large table is metadata alone, multiplied from that of `no_deletes`: planning opens no data file.
"""

import gc
import json
import resource
import shutil
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import fastavro

import scan_core
from benchmarks.results import Ratio, record
from benchmarks.shapes import DATA, build
from scan_core import manifest_cache
from scan_core.avro.container import read_blocks, read_header
from scan_core.file_io import read_bytes
from scan_core.manifest_list import snapshot_manifests

FILES = 100_000
MANIFESTS = 20
ROUNDS = 5


def many_files() -> str:
    """Metadata file of a table with 100,000 data files, each with its own range of `id`."""
    folder = DATA / f"planning_{FILES}"
    target = folder / "metadata" / "v1.metadata.json"
    if target.exists():
        return str(target)
    shutil.rmtree(folder, ignore_errors=True)
    target.parent.mkdir(parents=True)
    source = build("no_deletes")
    metadata_path = Path(source.metadata_location.removeprefix("file://"))
    document = json.loads(metadata_path.read_text())
    (snapshot,) = [s for s in document["snapshots"] if s["snapshot-id"] == document["current-snapshot-id"]]
    list_path = Path(snapshot["manifest-list"].removeprefix("file://"))
    (entry,), list_header, list_schema = _records(list_path)
    files, header, schema = _records(Path(entry["manifest_path"].removeprefix("file://")))
    entries = []
    per_manifest = FILES // MANIFESTS
    for number in range(MANIFESTS):
        path = target.parent / f"manifest-{number}.avro"
        copies = [_copy(files[i % len(files)], number * per_manifest + i) for i in range(per_manifest)]
        with path.open("wb") as out:
            fastavro.writer(out, schema, copies, codec="deflate", metadata=header)
        counts = {"manifest_path": str(path), "manifest_length": path.stat().st_size, "added_files_count": per_manifest}
        entries.append(entry | counts)
    list_target = target.parent / "manifest-list.avro"
    with list_target.open("wb") as out:
        fastavro.writer(out, list_schema, entries, codec="deflate", metadata=list_header)
    snapshot["manifest-list"] = str(list_target)
    target.write_text(json.dumps(document))
    return str(target)


def _records(path: Path) -> tuple[list[Any], dict[str, str], Any]:
    with path.open("rb") as file:
        reader = fastavro.reader(file)
        header = {k: v for k, v in reader.metadata.items() if not k.startswith("avro.")}
        return list(reader), header, reader.writer_schema


def _copy(entry: dict[str, Any], number: int) -> dict[str, Any]:
    """The entry as another file, its `id` from 1,000 * number on."""
    bounds = {
        name: [
            {"key": 1, "value": (1000 * number + more).to_bytes(8, "little")} if pair["key"] == 1 else pair
            for pair in entry["data_file"][name]
        ]
        for name, more in (("lower_bounds", 0), ("upper_bounds", 999))
    }
    path = f"{entry['data_file']['file_path']}-{number:06d}.parquet"
    return entry | {"data_file": entry["data_file"] | bounds | {"file_path": path}}


def decode_all(paths: list[str], io: Any, schemas: dict[bytes, Any]) -> int:
    """D: every record of the manifests as Python objects."""
    from io import BytesIO

    found = 0
    for path in paths:
        data = read_bytes(path, io)
        header = read_header(data)
        if header.schema not in schemas:
            schemas[header.schema] = fastavro.parse_schema(json.loads(header.schema))
        for count, block in read_blocks(data, header):
            buffer = BytesIO(block)
            for _ in range(count):
                fastavro.schemaless_reader(buffer, schemas[header.schema], None)
                found += 1
    return found


def cpu_seconds(run: Callable[[], Any]) -> float:
    """CPU time of one call."""
    gc.collect()
    start = time.process_time()
    run()
    return time.process_time() - start


def measure(title: str, metadata: str, where: str, goal: float | None = None) -> None:
    """Print how long a plan takes with nothing cached, with everything, and beside D."""
    table = scan_core.open_table(metadata)
    snapshot = table.scan().snapshot
    assert snapshot is not None
    paths = [m.path for m in snapshot_manifests(snapshot, table.io)]
    schemas: dict[bytes, Any] = {}

    def cold() -> Any:
        manifest_cache.clear()
        return table.scan().plan()

    def filtered() -> Any:
        manifest_cache.clear()
        return table.scan().where(where).plan()

    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    cold()
    grown = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) // 1024
    runs: dict[str, Callable[[], Any]] = {
        "plan, nothing cached": cold,
        f"the same where {where}": filtered,
        "plan, manifests cached": lambda: table.scan().plan(),
        "open the table": lambda: scan_core.open_table(metadata),
        "D: fastavro decodes the manifests": lambda: decode_all(paths, table.io, schemas),
    }
    for run in runs.values():
        run()
    taken: dict[str, list[float]] = {name: [] for name in runs}
    for _ in range(ROUNDS):
        for name, run in runs.items():
            taken[name].append(cpu_seconds(run))
    floor = min(taken["D: fastavro decodes the manifests"])
    print(f"\n### {title}: the first plan grew the process by {grown} MB\n")
    print("| | min CPU ms | median | x D |\n|---|---|---|---|")
    for name, seconds in taken.items():
        middle = statistics.median(seconds)
        print(f"| {name} | {min(seconds) * 1e3:.1f} | {middle * 1e3:.1f} | {min(seconds) / floor:.2f} |")
    ratio = min(taken["plan, nothing cached"]) / floor
    record(
        Ratio(
            f"planning, {title}",
            "plan, nothing cached",
            "D",
            ratio,
            ratio,
            goal,
            statistics.median(taken["plan, nothing cached"]),
        )
    )


if __name__ == "__main__":
    chosen = sys.argv[1:] or ["manifests", "files"]
    if "manifests" in chosen:
        measure("1,001 manifests", build("thousand_files").metadata_location, "id < 1000", 1.3)
    if "files" in chosen:
        measure("100,000 data files", many_files(), "id < 1000000")
