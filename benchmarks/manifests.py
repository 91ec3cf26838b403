"""Sorting the manifests of a table of many files by partition: time, memory, and the plan of one partition.

The data files do not exist: neither the sort nor a plan opens them. The sort runs in a process of its own, whose peak memory
over that before the sort is what the entries took.
"""

import json
import resource
import subprocess
import sys
import tempfile
from pathlib import Path
from time import perf_counter, process_time
from typing import Any

import numpy as np

from benchmarks.race import chosen
from nevermore.pipelines.config.project import parse
from nevermore.pipelines.iceberg.catalog import create_table, find_table, open_catalog
from nevermore.pipelines.iceberg.commit import RowDelta
from nevermore.scan_core import DataFile, FileFormat, open_table
from nevermore.scan_core.model.schema import NestedField, parse_type

COMMITS, FILES, DAYS, COLUMNS = 40, 500, 500, 12
TARGET_BYTES = 100_000
"""Of a manifest: Iceberg's default would hold all these files, whose bounds compress well."""
_NAME = "bench.t"


def catalog_in(folder: Path) -> Any:
    return open_catalog(parse("tables: {}", folder / "nevermore.yaml"))


def make(folder: Path) -> None:
    """A table whose commits touch all partitions."""
    names = ["day", *(f"c{i}" for i in range(COLUMNS))]
    fields = [NestedField(i, name, parse_type("long")) for i, name in enumerate(names, 1)]
    table = create_table(catalog_in(folder), _NAME, fields, partition_by=[("identity", "day")])
    with table.transaction() as change:
        change.set_properties({"commit.manifest.target-size-bytes": str(TARGET_BYTES)})
    draw = np.random.default_rng(1)
    for number in range(COMMITS):
        table.refresh()
        delta = RowDelta(table)
        files = []
        for place in range(FILES):
            low, high = (int(n).to_bytes(8, "little") for n in sorted(draw.integers(0, 2**40, 2)))
            ids = range(1, COLUMNS + 2)
            metrics = {
                "value_counts": dict.fromkeys(ids, 1_000),
                "null_value_counts": dict.fromkeys(ids, 0),
                "lower_bounds": dict.fromkeys(ids, low),
                "upper_bounds": dict.fromkeys(ids, high),
            }
            path = f"{delta.target.data_location}/day={place % DAYS}/{number:04}-{place:06}.parquet"
            spec = delta.default_spec.spec_id
            files.append(DataFile(path, FileFormat.PARQUET, spec, (place % DAYS,), 1_000, 10_000, **metrics))
        delta.commit(files, {})


def plan(folder: Path) -> tuple[float, int]:
    """Seconds of CPU of a plan of one day, and its files."""
    opened = open_table(find_table(catalog_in(folder), _NAME))
    began = process_time()
    tasks = opened.scan().where("day = 7").plan().tasks
    return process_time() - began, len(tasks)


def sort(folder: Path) -> None:
    """Print what a sort takes; nothing is committed."""
    from nevermore.pipelines.maintain.manifest_order import arrange_manifests

    table = find_table(catalog_in(folder), _NAME)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    wall, cpu = perf_counter(), process_time()
    report = arrange_manifests(table, is_dry=True)
    peak = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) * 1024
    seconds = perf_counter() - wall, process_time() - cpu
    print(json.dumps([*seconds, peak, report.manifests_before, report.manifests_after, report.bytes_before]))


def main() -> None:
    from nevermore.pipelines.maintain.manifest_order import arrange_manifests

    with tempfile.TemporaryDirectory() as above:
        folder = Path(above)
        make(folder)
        print("| CPU s | peak memory MiB | manifests before, after |\n|---|---|---|")
        command = [sys.executable, "-m", "benchmarks.manifests", above]
        _, cpu, peak, before, after, _ = json.loads(subprocess.run(command, check=True, capture_output=True).stdout)
        print(f"| {cpu:.1f} | {peak / 2**20:,.0f} | {before}, {after} |")
        seconds, files = plan(folder)
        report = arrange_manifests(find_table(catalog_in(folder), _NAME))
        after, same = plan(folder)
        assert files == same
        print(
            f"\nplan of one of {DAYS} days of {COMMITS * FILES:,} files: {seconds:.3f} s of CPU, {after:.3f} s sorted; "
            f"{report.read_before:,} bytes of manifests, {report.read_after:,} sorted"
        )


if __name__ == "__main__":
    if len(sys.argv) == 2 and Path(sys.argv[1]).is_dir():
        sort(Path(sys.argv[1]))
    else:
        chosen(__doc__)
        main()
