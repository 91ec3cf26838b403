"""How long does `nevermore check --source` take, compared with COPY of the key and the hash of each row?

The goal is three times as long. Times are those of a clock, as the database is another process; with `--profile`, by part.
"""

import argparse
import shutil
import time
from collections.abc import Iterator
from contextlib import contextmanager
from unittest.mock import patch

import psycopg2

from benchmarks.postgres_load import ROWS, TABLES, _Nothing, project
from nevermore.checks.equality import MirrorRows
from nevermore.checks.source_equality import mirror_equals_source
from nevermore.pipelines.config.project import load
from nevermore.pipelines.ingest.feed_run import run_once
from nevermore.pipelines.sources.live import HashedTable
from tests.support.postgres_server import postgres, programs_or_skip

ROUNDS = 3


@contextmanager
def timed(times: dict[str, float], name: str) -> Iterator[None]:
    """Add the time of a block."""
    began = time.perf_counter()
    yield
    times[name] = times.get(name, 0.0) + time.perf_counter() - began


def main() -> None:
    """Print the shortest times of some rounds."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--profile", action="store_true")
    is_profiled = parser.parse_args().profile
    with postgres(programs_or_skip()) as server:
        connection = server.connect("postgres")
        for table, (count, columns) in TABLES.items():
            connection.cursor().execute(f"CREATE TABLE {table} ({columns})")
            connection.cursor().execute(f"INSERT INTO {table} SELECT {ROWS[table]} FROM generate_series(1, {count}) i")
            connection.cursor().execute(f"VACUUM ANALYZE {table}")
        connection.cursor().execute(f"CREATE PUBLICATION pub FOR TABLE {', '.join(TABLES)}")
        path = project(server, list(TABLES), "checked")
        config = load(path)
        run_once(config)
        for table in TABLES:
            rounds = [times_of(server.dsn("postgres"), config, table) for _ in range(ROUNDS)]
            best = min(rounds, key=lambda times: times["check"])
            copy = min(times["copy"] for times in rounds)
            print(f"{table}: check {best['check']:.2f} s, copy {copy:.2f} s, ratio {best['check'] / copy:.2f}")
            for name, seconds in best.items() if is_profiled else ():
                print(f"  {name}: {seconds:.2f} s")
        shutil.rmtree(path.parent)


def times_of(dsn: str, config: object, table: str) -> dict[str, float]:
    """Times of one round, by part."""
    times: dict[str, float] = {}
    sums, stored = HashedTable._sums, MirrorRows.stored  # noqa: SLF001 - to time it

    def summed(of: HashedTable, *given: object) -> object:
        with timed(times, "sums of duckdb" if "//" in of.place else "sums of the database"):
            return sums(of, *given)

    def kept(*given: object) -> object:
        with timed(times, "rows of the mirror" if given[1] == "hashes" else "others"):
            return stored(*given)

    with timed(times, "copy"), psycopg2.connect(dsn) as copying:
        copying.cursor().copy_expert(f"COPY (SELECT id, md5(t::text) FROM {table} t) TO STDOUT", _Nothing())
    with patch.object(HashedTable, "_sums", summed), patch.object(MirrorRows, "stored", kept), timed(times, "check"):
        found = mirror_equals_source(config, f"shop.{table}")
    assert found.passed, found
    return times


if __name__ == "__main__":
    main()
