"""The stream of a PostgreSQL slot: changes per second of CPU time, lag at a steady rate, and memory for 200 tables.

Lag is the time from the commit in the database to the commit of the mirror's snapshot that has it, with 10,000 changes per second
in transactions of 1,000, and a round every 5 seconds. Memory is the peak of a process that loads and follows 200 tables.
"""

import shutil
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.kafka_stream import seconds
from benchmarks.postgres_load import dropped_slot, project
from benchmarks.race import chosen
from nevermore.pipelines.config.project import load
from nevermore.pipelines.iceberg import positions
from nevermore.pipelines.iceberg.catalog import open_catalog
from nevermore.pipelines.ingest.feed_run import run_continuously, run_once
from tests.support.postgres_server import PostgresServer, postgres, programs_or_skip

CHANGES, ROUNDS = 500_000, 3
RATE, BATCH, SECONDS, INTERVAL = 10_000, 1_000, 60, 5.0
MANY = 200
COLUMNS = "id bigint PRIMARY KEY, name text, city text, qty int, price double precision"
ROWS = "i, 'n' || i % 977, 'Oslo', i % 97, i / 8.0"


def run(connection: Any, *statements: str) -> None:
    """Run statements, each a transaction."""
    with connection.cursor() as cursor:
        for statement in statements:
            cursor.execute(statement)


def throughput(server: PostgresServer, connection: Any) -> None:
    """Print how fast changes that wait in the slot reach the mirror."""
    run(connection, f"CREATE TABLE items ({COLUMNS})", "CREATE PUBLICATION pub FOR ALL TABLES")
    best = (float("inf"), float("inf"))
    for number in range(ROUNDS):
        path = project(server, ["items"], "stream")
        run_once(load(path))
        for part in range(0, CHANGES // 2, 10_000):
            first = number * CHANGES + part
            run(connection, f"INSERT INTO items SELECT {ROWS} FROM generate_series({first}, {first + 9_999}) i")
            run(connection, f"UPDATE items SET qty = qty + 1 WHERE id BETWEEN {first} AND {first + 9_999}")
        reports: list[Any] = []
        best = min(best, seconds(lambda path=path, reports=reports: reports.append(run_once(load(path)))))  # type: ignore[misc]
        assert reports[0].tables[0].events.total() == CHANGES, reports
        shutil.rmtree(path.parent)
        dropped_slot(server, "stream")
    cpu, wall = best
    print(f"stream: {CHANGES / cpu:,.0f} changes per second of CPU time, {CHANGES / wall:,.0f} per second")


def lag(server: PostgresServer, connection: Any) -> None:
    """Print the lag at a steady rate."""
    run(connection, "TRUNCATE items")
    path = project(server, ["items"], "lag")
    config = load(path)
    run_once(config)
    committed: list[float] = []
    stop = threading.Event()

    def write() -> None:
        writer = server.connect("postgres")
        began = time.monotonic()
        for number in range(SECONDS * RATE // BATCH):
            time.sleep(max(0.0, began + number * BATCH / RATE - time.monotonic()))
            first = number * BATCH // 2
            last = first + BATCH // 2 - 1
            run(
                writer,
                f"INSERT INTO items SELECT {ROWS} FROM generate_series({first}, {last}) i; "
                f"UPDATE items SET qty = qty + 1 WHERE id BETWEEN {first} AND {last}",
            )
            committed.append(time.time())
        writer.close()
        stop.wait(2 * INTERVAL)
        stop.set()

    thread = threading.Thread(target=write)
    thread.start()
    run_continuously(config, stop, lambda _: None, interval_seconds=INTERVAL)
    thread.join()
    run_once(config)
    mirror = open_catalog(config).load_table("shop.items")
    seen = [
        (int(ordinal), snapshot.timestamp_ms / 1000)
        for snapshot in mirror.metadata.snapshots
        if (ordinal := positions.summary_properties(snapshot).get(positions.LOG_ORDINAL)) is not None
    ]
    ordinals, times = np.array([o for o, _ in seen]), np.array([t for _, t in seen])
    needed = (np.arange(len(committed)) + 1) * BATCH
    assert ordinals[-1] == needed[-1], (ordinals[-1], needed[-1])
    lags = times[np.searchsorted(ordinals, needed)] - np.array(committed)
    rate = len(committed) * BATCH / (committed[-1] - committed[0])
    middle, high = np.percentile(lags, [50, 99])
    print(
        f"lag at {rate:,.0f} changes per second, a round every {INTERVAL:g} s: median {middle:.2f} s, 99th percentile "
        f"{high:.2f} s (goal: {2 * INTERVAL:g} s)"
    )
    shutil.rmtree(path.parent)
    dropped_slot(server, "lag")


def many_tables(server: PostgresServer, connection: Any) -> None:
    """Print the memory of a process that follows many tables."""
    names = [f"many{number}" for number in range(MANY)]
    for name in names:
        run(
            connection,
            f"CREATE TABLE {name} ({COLUMNS})",
            f"INSERT INTO {name} SELECT {ROWS} FROM generate_series(1, 2000) i",
        )
    path = project(server, names, "many")
    program = (
        "import sys; from nevermore.pipelines.config.project import load; from nevermore.pipelines.ingest.feed_run import run_once; "
        "report = run_once(load(__import__('pathlib').Path(sys.argv[1]))); "
        "assert not any(t.error for t in report.tables), report; "
        "print(sum(t.events.total() for t in report.tables), "
        "[line.split()[1] for line in open('/proc/self/status') if line.startswith('VmHWM')][0], round(report.seconds, 1))"
    )
    for what in ("load", "stream"):
        command = [sys.executable, "-c", program, str(path)]
        done = subprocess.run(command, check=True, capture_output=True, text=True, cwd=Path(__file__).parent.parent)
        events, peak, wall = done.stdout.split()[-3:]
        print(
            f"{MANY} tables in one slot, {what}: {int(events):,} events in {wall} s, {int(peak) / 1024:,.0f} MB at most (goal: 512)"
        )
        for name in names:
            run(connection, f"UPDATE {name} SET qty = qty + 1")
    shutil.rmtree(path.parent)
    dropped_slot(server, "many")


def main() -> None:
    """Print the figures."""
    with postgres(programs_or_skip()) as server:
        connection = server.connect("postgres")
        throughput(server, connection)
        lag(server, connection)
        many_tables(server, connection)
        connection.close()


if __name__ == "__main__":
    chosen(__doc__)
    main()
