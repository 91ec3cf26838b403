"""What memory does a check against the reference need? It must not grow with the table.

Run: `python -m benchmarks.check_memory [--published] [ROWS in millions]...`. For each number of rows, a mirror is filled, a tenth
of its rows changes, a fiftieth goes; then a process of its own, which may take 1 GiB, compares all of it with its files and its
change log. With `--published`, it compares a published table that has all rows of the mirror instead.
"""

import argparse
import itertools
import json
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from benchmarks.decoded_changes import changes_of
from benchmarks.results import Ratio, record
from nevermore.pipelines.changes.change_log import ChangeLog
from nevermore.pipelines.config.project import Config, change_log_name, parse
from nevermore.pipelines.decode.batches import ChangeBatch
from nevermore.pipelines.iceberg.catalog import create_table, find_table, open_catalog
from nevermore.pipelines.iceberg.commit import RowDelta
from nevermore.pipelines.iceberg.schema_evolution import iceberg_fields
from nevermore.pipelines.iceberg.table_writer import write_rows
from nevermore.pipelines.mirrors.mirror import Mirror
from nevermore.pipelines.publish.state import STATE, current_state
from nevermore.scan_core import open_table

NAME = "shop.orders"
PUBLISHED = "shop.notes"
TABLES = """tables: {shop.orders: {source: {type: files, path: none}, key: [id]}}
published:
  shop.notes:
    sql: select id, customer_id, amount / 7 as part, note from shop.orders
"""
BATCH_ROWS = 500_000
LIMIT_BYTES = 1024**3
CHECKS = ("no_deleted_row_reappears", "mirror_equals_reference", "key_is_unique")


def config_in(folder: str) -> Config:
    """The project in a folder."""
    return parse(TABLES, Path(folder) / "nevermore.yaml")


def orders(numbers: np.ndarray, seed: int) -> pa.Table:
    """Orders by number, about 60 bytes each."""
    random = np.random.default_rng(seed)
    return pa.table({
        "id": pa.array(numbers),
        "customer_id": pa.array(numbers * 7_919 % 100_000),
        "amount": pa.array(random.integers(1, 100_000, len(numbers))),
        "note": pa.array(np.char.add("note of order ", (numbers % 100_000).astype(np.str_))),
    })  # fmt: skip


def batches(num_rows: int) -> Iterator[ChangeBatch]:
    """All rows, then updates of a tenth of them and deletes of a fiftieth."""
    for start in range(0, num_rows, BATCH_ROWS):
        yield changes_of(orders(np.arange(start, min(start + BATCH_ROWS, num_rows)), 0))
    random = np.random.default_rng(1)
    for start in range(0, num_rows // 10, BATCH_ROWS):
        count = min(BATCH_ROWS, num_rows // 10 - start)
        yield changes_of(orders(np.sort(random.choice(num_rows, count, replace=False)), 2))
    gone = changes_of(orders(np.sort(random.choice(num_rows, min(num_rows // 50, BATCH_ROWS), replace=False)), 3))
    rows = gone.table.set_column(0, "op", pa.array(["d"] * gone.table.num_rows))
    place = rows.schema.get_field_index("after")
    nothing = pa.nulls(rows.num_rows, rows.schema.field("after").type)
    yield ChangeBatch(rows.set_column(place, rows.schema.field(place), nothing), gone.row_type, gone.key)


def fill(folder: str, num_rows: int) -> None:
    """Write the mirror and its log."""
    config = config_in(folder)
    catalog = open_catalog(config)
    log, mirror = ChangeLog(catalog, change_log_name(NAME)), Mirror(catalog, NAME, config.tables[NAME], ("id",))
    positions = itertools.count()
    for batch in batches(num_rows):
        list(mirror.catch_up(log, log.append(batch, str(next(positions))), reject=lambda _: None))


def publish(folder: str) -> None:
    """Write a published table with the rows of its SQL, as a run of Spark would."""
    config = config_in(folder)
    catalog = open_catalog(config)
    scan = open_table(find_table(catalog, NAME)).scan()
    state = current_state(config, config.published[PUBLISHED], {NAME: scan}).as_json()
    target: RowDelta | None = None
    files = []
    for batch in scan.to_batches():
        rows = pa.Table.from_batches([batch])
        part = pc.divide(rows["amount"].cast(pa.float64()), 7.0)
        rows = rows.set_column(2, "part", part)
        if target is None:
            target = RowDelta(create_table(catalog, PUBLISHED, iceberg_fields(rows.schema)))
        files += write_rows(rows, target.target, target.default_spec)
    assert target is not None
    target.commit(files, {STATE: state})


def check(folder: str, *, is_published: bool) -> None:
    """Run the checks of rows, and print what they took, as JSON."""
    from nevermore.checks.mirror_checks import run_checks
    from nevermore.checks.published_equality import published_equals_duckdb

    resource.setrlimit(resource.RLIMIT_DATA, (4 * LIMIT_BYTES, 4 * LIMIT_BYTES))
    started, cpu = time.perf_counter(), time.process_time()
    config = config_in(folder)
    results = [published_equals_duckdb(config, PUBLISHED)] if is_published else list(run_checks(config, NAME, CHECKS))
    taken = {"seconds": time.perf_counter() - started, "cpu": time.process_time() - cpu}
    peak = next(line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith("VmHWM"))
    assert all(result.passed and not result.details for result in results), results
    compared = {name: count for result in results for name, count in result.compared.items()}
    print(json.dumps({"peak": int(peak.split()[1]) * 1024, "compared": compared, **taken}))


def measure(millions: float, *, is_published: bool) -> int:
    """Print the peak of a check of so many rows, in bytes."""
    what = "published rows" if is_published else "rows"
    with tempfile.TemporaryDirectory() as folder:
        fill(folder, round(millions * 1e6))
        command = [sys.executable, "-m", "benchmarks.check_memory", "--check", folder]
        if is_published:
            publish(folder)
            command.append("--published")
        ended = subprocess.run(command, check=True, capture_output=True, text=True)
    said = json.loads(ended.stdout.splitlines()[-1])
    print(
        f"{millions:g} M {what}: peak {said['peak'] / 2**20:,.0f} MiB, {said['seconds']:.0f} s, CPU {said['cpu']:.0f} s"
    )
    print(f"    {said['compared']}", flush=True)
    record(
        Ratio(
            f"check of {millions:g} M {what}",
            "peak memory",
            "1 GiB",
            said["peak"] / LIMIT_BYTES,
            None,
            1.0,
            said["seconds"],
        )
    )
    return int(said["peak"])


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("millions", nargs="*", type=float, default=[1, 5, 10], help="rows in millions; default: 1 5 10")
    parser.add_argument("--published", action="store_true", help="compare a published table")
    parser.add_argument("--check", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.check:
        check(given.check, is_published=given.published)
    else:
        for number in given.millions:
            measure(number, is_published=given.published)
