"""How many rows of a PostgreSQL table are loaded into a change log and mirror per second of CPU time?

Compared with COPY of the same table to a file, which is the floor, and with COPY whose rows are only received.
Rows are narrow (5 columns) or wide (30).
"""

import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psycopg2
import yaml

from benchmarks.kafka_stream import seconds
from benchmarks.race import chosen
from nevermore.pipelines.config.project import load
from nevermore.pipelines.ingest.feed_run import run_once
from tests.support.postgres_server import PostgresServer, postgres, programs_or_skip

ROUNDS = 3
TABLES = {
    "narrow": (1_000_000, "id bigint PRIMARY KEY, name text, city text, qty int, price double precision"),
    "wide": (
        150_000,
        "id bigint PRIMARY KEY, " + ", ".join(f"n{i} int, t{i} text, d{i} numeric(12,2)" for i in range(10)),
    ),
}
ROWS = {
    "narrow": "i, 'n' || i % 977, 'Oslo', i % 97, i / 8.0",
    "wide": "i, " + ", ".join(f"i % {97 + n}, 'text ' || i % {977 + n}, i % 100000 / 4.0" for n in range(10)),
}


def project(server: PostgresServer, tables: list[str], slot: str, **settings: Any) -> Path:
    """A config in a folder of its own."""
    source = {"type": "postgres", "dsn": server.dsn("postgres"), "slot": slot, "publication": "pub"}
    folder = Path(tempfile.mkdtemp())
    document = {"tables": {f"shop.{table}": {"source": source, **settings} for table in tables}}
    (folder / "nevermore.yaml").write_text(yaml.safe_dump(document))
    return folder / "nevermore.yaml"


def dropped_slot(server: PostgresServer, slot: str) -> None:
    """Let the next run begin anew."""
    connection = server.connect("postgres")
    connection.cursor().execute(
        "SELECT pg_drop_replication_slot(slot_name) FROM pg_replication_slots WHERE slot_name = %s", [slot]
    )
    connection.close()


def loaded(server: PostgresServer, table: str) -> None:
    """One load into an empty project."""
    path = project(server, [table], "load")
    try:
        report = run_once(load(path))
        assert report.tables[0].events == {"r": TABLES[table][0]}, report
    finally:
        shutil.rmtree(path.parent)


def copied(server: PostgresServer, table: str) -> None:
    """COPY to a file, by the same driver."""
    with tempfile.TemporaryFile() as file, psycopg2.connect(server.dsn("postgres")) as connection:
        connection.cursor().copy_expert(f"COPY {table} TO STDOUT", file)


class _Nothing:
    """Takes lines and keeps none."""

    def write(self, line: bytes) -> None:
        """Take a line."""


def received(server: PostgresServer, table: str) -> None:
    """COPY, line by line, to nowhere."""
    with psycopg2.connect(server.dsn("postgres")) as connection:
        connection.cursor().copy_expert(f"COPY {table} TO STDOUT", _Nothing())


def main() -> None:
    """Print the figures."""
    with postgres(programs_or_skip()) as server:
        connection = server.connect("postgres")
        for table, (count, columns) in TABLES.items():
            connection.cursor().execute(f"CREATE TABLE {table} ({columns})")
            connection.cursor().execute(f"INSERT INTO {table} SELECT {ROWS[table]} FROM generate_series(1, {count}) i")
            connection.cursor().execute(f"ANALYZE {table}")
        connection.cursor().execute("CREATE PUBLICATION pub FOR ALL TABLES")
        candidates: dict[str, Callable[[PostgresServer, str], None]] = {
            "load into change log and mirror": loaded,
            "COPY to a file": copied,
            "COPY, rows received and dropped": received,
        }
        for table, (count, _) in TABLES.items():
            best: dict[str, tuple[float, float]] = {}
            for _ in range(ROUNDS):
                for name, run in candidates.items():
                    found = seconds(lambda run=run, table=table: run(server, table))  # type: ignore[misc]
                    best[name] = min(best.get(name, found), found)
                    dropped_slot(server, "load")
            floor = best["COPY to a file"][1]
            for name, (cpu, wall) in best.items():
                print(
                    f"{table}: {name}: {count / cpu:,.0f} rows per second of CPU time, {count / wall:,.0f} per second, "
                    f"{wall / floor:.2f} x the time of COPY to a file"
                )
        connection.close()


if __name__ == "__main__":
    chosen(__doc__)
    main()
