"""How long does planning take for ten million data files and a million delete files in one table, and how much memory?

The table is metadata alone: the manifests of a small one, whose entries are written again with other paths, partitions and
bounds. Each question is planned in a process of its own, as a driver does that sees the table for the first time.
"""

import json
import subprocess
import sys
import time
import zlib
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from io import BytesIO
from pathlib import Path
from typing import Any

import fastavro
import numpy as np
import pyarrow as pa

from benchmarks.race import chosen
from benchmarks.results import Ratio, record
from benchmarks.shapes import DATA
from nevermore.pipelines.config.project import parse
from nevermore.pipelines.iceberg.catalog import create_table, open_catalog
from nevermore.pipelines.iceberg.commit import RowDelta
from nevermore.pipelines.iceberg.table_writer import WriterOptions, check_key, write_deletes, write_rows
from nevermore.scan_core.model.schema import NestedField, PrimitiveType

DAYS = 1_000
DATA_FILES = 10_000
DELETE_FILES = 1_000
"""Data files of a day, which share a manifest: as many as fit into 8 MB, where writers begin another one."""
FIRST_DAY = 10_000
"""Days take three bytes in Avro from here on."""
IDS = 1_000
"""Consecutive ids in each data file; ten data files share a delete file."""
MAX_SECONDS, MAX_BYTES = 2.0, 10**9
_NUMBER, _DAY, _LOWER, _UPPER = "00000000", FIRST_DAY, 0x1122334455667788, 0x1223344556677889
_DAY_BYTES = (0x71).to_bytes(4, "little")
_UNIQUE = "u" * 24
"""As many bits as names of files have that nothing compresses."""
_BLOCK = 500
"""Records of a block, about 64 kB as writers make them."""
_MIDDLE = FIRST_DAY + DAYS // 2
_ID = IDS * DATA_FILES * (DAYS // 2) + 5_000_000
QUESTIONS = {
    "one day of a thousand": f"day = {_MIDDLE}",
    "a hundred files of one day": f"day = {_MIDDLE} and id >= {_ID} and id < {_ID + 100 * IDS}",
    "a hundred files, no partition named": f"id >= {_ID} and id < {_ID + 100 * IDS}",
}
TABLES = {"by day": True, "not partitioned": False}


def build(name: str) -> Path:
    """The metadata file of a table of `TABLES`."""
    folder = DATA / f"large_metadata_{name.replace(' ', '_')}"
    target = folder / "large.metadata.json"
    if target.exists():
        return target
    catalog = open_catalog(parse("catalog: {type: sql}\ntables: {}\n", folder / "nevermore.yaml"))
    folder.mkdir(parents=True, exist_ok=True)
    catalog = open_catalog(parse("catalog: {type: sql}\ntables: {}\n", folder / "nevermore.yaml"))
    types = {"id": PrimitiveType("long"), "day": PrimitiveType("int"), "v": PrimitiveType("double")}
    fields = [NestedField(i, column, kind) for i, (column, kind) in enumerate(types.items(), 1)]
    table = create_table(catalog, "b.t", fields, partition_by=[("identity", "day")] if TABLES[name] else [])
    rows = pa.table({"id": [1, 2], "day": pa.array([FIRST_DAY] * 2, pa.int32()), "v": [1.0, 2.0]})
    delta = RowDelta(table, WriterOptions())
    keys = check_key(delta.schema, ("id", "day") if TABLES[name] else ("id",))
    delta.commit(list(write_rows(rows, delta.target, delta.default_spec, key_ids=keys)), {})
    delta = RowDelta(catalog.load_table(("b", "t")))
    names = ["id", "day"] if TABLES[name] else ["id"]
    delta.commit(list(write_deletes(rows.select(names), delta.target, delta.default_spec, keys)), {})
    place = Path(catalog.load_table(("b", "t")).metadata_location.removeprefix("file://"))
    _multiply(place, target)
    return target


def _multiply(metadata: Path, target: Path) -> None:
    document = json.loads(metadata.read_text())
    (snapshot,) = [s for s in document["snapshots"] if s["snapshot-id"] == document["current-snapshot-id"]]
    listed, header, schema = _records(snapshot["manifest-list"])
    with ThreadPoolExecutor(2) as pool:
        entries = [
            entry
            for one in sorted(listed, key=lambda e: e["content"])
            for entry in pool.map(_Template(one, target.parent).manifest, range(DAYS))
        ]
    place = target.with_name("large-list.avro")
    with place.open("wb") as out:
        fastavro.writer(out, schema, entries, codec="deflate", metadata=header)
    snapshot["manifest-list"] = str(place)
    target.write_text(json.dumps(document))


class _Template:
    """The one entry of a manifest as bytes, and where they differ from file to file."""

    def __init__(self, listed: Mapping[str, Any], folder: Path) -> None:
        (entry,), self._header, self._schema = _records(listed["manifest_path"])
        self._listed, self._folder = listed, folder
        file = entry["data_file"]
        file["file_path"] = file["file_path"].rpartition("/")[0] + f"/{_NUMBER}-{_UNIQUE}.parquet"
        if "day" in (file["partition"] or {}):
            file["partition"]["day"] = _DAY
        for bounds, value in (("lower_bounds", _LOWER), ("upper_bounds", _UPPER)):
            known = {1: value.to_bytes(8, "little"), 2: _DAY_BYTES}
            file[bounds] = [pair | {"value": known.get(pair["key"], pair["value"])} for pair in file[bounds]]
        out = BytesIO()
        fastavro.schemaless_writer(out, self._schema, entry)
        self._bytes = np.frombuffer(out.getvalue(), np.uint8)

    def manifest(self, number: int) -> dict[str, Any]:
        """Write the manifest of one day; its entry in the list."""
        is_delete = self._listed["content"] == 1
        each = DELETE_FILES if is_delete else DATA_FILES
        files = np.arange(number * each, (number + 1) * each, dtype=np.int64)
        day = FIRST_DAY + number
        rows = np.tile(self._bytes, (each, 1))
        digits = files[:, None] // 10 ** np.arange(len(_NUMBER) - 1, -1, -1) % 10 + ord("0")
        self._put(rows, _NUMBER.encode(), digits.astype(np.uint8))
        random = np.random.default_rng((number, is_delete)).integers(0, 16, (each, len(_UNIQUE)))
        self._put(rows, _UNIQUE.encode(), np.frombuffer(b"0123456789abcdef", np.uint8)[random])
        width = IDS * DATA_FILES // each
        for sentinel, ids in ((_LOWER, files * width), (_UPPER, files * width + width - 1)):
            self._put(rows, sentinel.to_bytes(8, "little"), ids.astype("<i8").view(np.uint8).reshape(each, 8))
        self._put(rows, _DAY_BYTES, np.frombuffer(day.to_bytes(4, "little"), np.uint8))
        if self._listed["partitions"]:
            self._put(rows, _varint(_DAY), np.frombuffer(_varint(day), np.uint8))
        path = self._folder / f"large-{self._listed['content']}-{number:04}.avro"
        path.write_bytes(self._container(rows))
        counts = {"manifest_path": str(path), "manifest_length": path.stat().st_size, "added_files_count": each}
        bound = day.to_bytes(4, "little")
        summaries = [s | {"lower_bound": bound, "upper_bound": bound} for s in self._listed["partitions"] or ()]
        return dict(self._listed) | counts | {"partitions": summaries}

    def _put(self, rows: np.ndarray, sentinel: bytes, values: np.ndarray) -> None:
        text, at = self._bytes.tobytes(), -1
        while (at := text.find(sentinel, at + 1)) >= 0:
            rows[:, at : at + len(sentinel)] = values

    def _container(self, rows: np.ndarray) -> bytes:
        out = BytesIO()
        fastavro.writer(out, self._schema, [], codec="deflate", metadata=self._header, sync_marker=b"s" * 16)
        for begin in range(0, len(rows), _BLOCK):
            part = rows[begin : begin + _BLOCK]
            stored = zlib.compress(part.tobytes(), 6, wbits=-15)
            out.write(_varint(len(part)) + _varint(len(stored)) + stored + b"s" * 16)
        return out.getvalue()


def _varint(number: int) -> bytes:
    """As Avro writes a number that is not negative."""
    rest, out = number << 1, bytearray()
    while rest >= 0x80:
        out.append(rest & 0x7F | 0x80)
        rest >>= 7
    return bytes([*out, rest])


def _records(path: str) -> tuple[list[Any], dict[str, str], Any]:
    with Path(path.removeprefix("file://")).open("rb") as file:
        reader = fastavro.reader(file)
        header = {k: v for k, v in reader.metadata.items() if not k.startswith("avro.")}
        return list(reader), header, reader.writer_schema


def plan(metadata: str, where: str) -> None:
    """Plan one question and print what it took, as JSON; importing and compiling do not count."""
    from nevermore import scan_core
    from nevermore.scan_core.native.compiled import load

    load()
    wall, cpu = time.perf_counter(), time.process_time()
    found = scan_core.open_table(metadata).scan().where(where).plan()
    splits = found.splits()
    wall, cpu = time.perf_counter() - wall, time.process_time() - cpu
    peak = int(Path("/proc/self/status").read_text().partition("VmHWM:")[2].split()[0]) * 1024
    deletes = found.metrics.delete_files_planned
    print(json.dumps([len(found.tasks), deletes, len(splits), wall, cpu, peak]))


def measure(name: str) -> None:
    """Print what planning each question takes on one table."""
    metadata = build(name)
    print(f"\n### {DAYS * DATA_FILES:,} data files, {DAYS * DELETE_FILES:,} delete files, {name}\n")
    print("| | data files | delete files | splits | s | CPU s | MB |\n|---|---|---|---|---|---|---|")
    for question, where in QUESTIONS.items():
        command = [sys.executable, "-m", "benchmarks.large_metadata", "plan", str(metadata), where]
        ended = subprocess.run(command, check=True, capture_output=True, text=True)
        data, deletes, splits, wall, cpu, peak = json.loads(ended.stdout.splitlines()[-1])
        print(f"| {question} | {data:,} | {deletes:,} | {splits} | {wall:.2f} | {cpu:.2f} | {peak / 1e6:.0f} |")
        title = f"ten million files, {name}: {question}"
        record(Ratio(title, "seconds", "the goal", wall / MAX_SECONDS, cpu / MAX_SECONDS, 1.0, wall))
        record(Ratio(title, "memory of the process", "the goal", peak / MAX_BYTES, None, 1.0, wall))


if __name__ == "__main__":
    if sys.argv[1:2] == ["plan"]:
        plan(*sys.argv[2:4])
    else:
        for table in chosen(__doc__, "table", tuple(TABLES)):
            measure(table)
