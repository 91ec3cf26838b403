"""How long does planning take: 1,001 manifests of one file each, 100,000 data files, 10,000 with as many delete files?

D is fastavro with a cached schema, which decodes every record of the same manifests and does nothing with them. The
large tables are metadata alone, multiplied from that of smaller ones: planning opens no data file.
"""

import json
import os
import pickle
import resource
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest.mock import patch

import fastavro

from benchmarks.race import Goal, chosen, race, report
from benchmarks.shapes import DATA, build
from nevermore import scan_core
from nevermore.scan_core.io import cache
from nevermore.scan_core.io.files import read_bytes
from nevermore.scan_core.metadata.avro_container import read_blocks, read_header
from nevermore.scan_core.metadata.manifest_list import snapshot_manifests
from nevermore.scan_core.native.compiled import SWITCH, load

FILES = 100_000
MANIFESTS = 20
DELETES = 10_000
ROUNDS = 5
NOTHING_CACHED = "plan, nothing cached"
WITH_FILTER = "the same with a filter that leaves 1 %"


def many_files() -> str:
    """Metadata file of a table with 100,000 data files, each with its own range of `id`."""
    return multiplied(f"planning_{FILES}", "no_deletes", {0: FILES})


def many_deletes() -> str:
    """Metadata file of a table with 10,000 data files, and one delete file for the range of each."""
    return multiplied(f"planning_deletes_{DELETES}", "thousand_files", {0: DELETES, 1: DELETES})


def multiplied(name: str, shape: str, wanted: dict[int, int]) -> str:
    """Metadata file of a table whose manifests have so many entries by content, copied from those of another."""
    target = DATA / name / "metadata" / "v1.metadata.json"
    if target.exists():
        return str(target)
    shutil.rmtree(target.parent.parent, ignore_errors=True)
    target.parent.mkdir(parents=True)
    document = json.loads(Path(build(shape).metadata_location.removeprefix("file://")).read_text())
    (snapshot,) = [s for s in document["snapshots"] if s["snapshot-id"] == document["current-snapshot-id"]]
    listed, list_header, list_schema = _records(Path(snapshot["manifest-list"].removeprefix("file://")))
    entries = []
    for content, count in wanted.items():
        entry = next(e for e in listed if e.get("content", 0) == content)
        entries += _manifests(entry, target.parent, count)
    list_target = target.parent / "manifest-list.avro"
    with list_target.open("wb") as out:
        fastavro.writer(out, list_schema, entries, codec="deflate", metadata=list_header)
    snapshot["manifest-list"] = str(list_target)
    target.write_text(json.dumps(document))
    return str(target)


def _manifests(entry: dict[str, Any], folder: Path, count: int) -> list[dict[str, Any]]:
    files, header, schema = _records(Path(entry["manifest_path"].removeprefix("file://")))
    each = count // MANIFESTS
    entries = []
    for number in range(MANIFESTS):
        path = folder / f"manifest-{entry.get('content', 0)}-{number}.avro"
        copies = [_copy(files[i % len(files)], number * each + i) for i in range(each)]
        with path.open("wb") as out:
            fastavro.writer(out, schema, copies, codec="deflate", metadata=header)
        counts = {"manifest_path": str(path), "manifest_length": path.stat().st_size, "added_files_count": each}
        entries.append(entry | counts)
    return entries


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


def plan_parts(scan: Any) -> Any:
    """Plan without anything cached; the number of data files."""
    cache.clear()
    return len(scan.plan().tasks)


def all_splits(scan: Any) -> Any:
    """Plan without anything cached, and pickle every split, as a driver of tasks does; the number of data files."""
    cache.clear()
    splits = scan.plan().splits()
    for split in splits:
        pickle.dumps(split)
    return sum(len(split.tasks) for split in splits)


def measure(title: str, metadata: str, where: str, goal: float | None = None) -> None:
    """Race a plan with nothing cached, with everything, and with a filter beside D."""
    table = scan_core.open_table(metadata)
    load()
    scan = table.scan()
    assert scan.snapshot is not None
    paths = [m.path for m in snapshot_manifests(scan.snapshot, table.io)]
    schemas: dict[bytes, Any] = {}
    filtered = scan.where(where)

    def file_by_file() -> Any:
        with patch.dict(os.environ, {SWITCH: "off"}):
            return plan_parts(filtered)

    before = peak_mb()
    plan_parts(scan)
    print(f"\n{title}: the first plan grew the process by {peak_mb() - before} MB")
    d = "D: fastavro decodes the manifests"
    candidates: dict[str, Callable[[], Any]] = {
        NOTHING_CACHED: lambda: plan_parts(scan),
        d: lambda: decode_all(paths, table.io, schemas),
        "plan, manifests cached": lambda: len(scan.plan().tasks),
        WITH_FILTER: lambda: plan_parts(filtered),
        "the same, manifests cached": lambda: len(filtered.plan().tasks),
        "the same, file by file": file_by_file,
        "open the table": lambda: len(scan_core.open_table(metadata).metadata.snapshots),
    }
    goals = [
        Goal(NOTHING_CACHED, d, goal),
        Goal(WITH_FILTER, NOTHING_CACHED, 1.1),
        Goal(WITH_FILTER, "the same, file by file"),
    ]
    timings = race(candidates, ROUNDS, same=False)
    report(f"planning, {title}", timings, NOTHING_CACHED, goals)


def measure_deletes(title: str, metadata: str) -> None:
    """Plan 10,000 data files with 10,000 delete files, and what a task carries of them."""
    scan = scan_core.open_table(metadata).scan()
    load()
    before = peak_mb()
    plan_parts(scan)
    print(f"\n{title}: the first plan grew the process by {peak_mb() - before} MB")
    sizes = [len(pickle.dumps(split)) for split in scan.plan().splits()]
    print(f"{len(sizes)} splits, pickled {min(sizes):,} to {max(sizes):,} bytes")
    candidates = {NOTHING_CACHED: lambda: plan_parts(scan), "and every split pickled": lambda: all_splits(scan)}
    report(f"planning, {title}", race(candidates, ROUNDS), NOTHING_CACHED)


def peak_mb() -> int:
    """The most memory that the process ever had."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024


if __name__ == "__main__":
    parts = chosen(__doc__, "part", ("manifests", "files", "deletes"))
    if "manifests" in parts:
        measure("1,001 manifests", build("thousand_files").metadata_location, "id < 1000", 1.3)
    if "files" in parts:
        measure("100,000 data files", many_files(), "id < 1000000")
    if "deletes" in parts:
        measure_deletes("10,000 data files and 10,000 delete files", many_deletes())
