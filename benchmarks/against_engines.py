"""How much faster than the engines that read equality deletes: count and a 4-column aggregate, mostly 8 M rows, 1 M deletes.

All are asked in turn, round after round, answers compared first; their sessions are warm, our delete index is built
anew in every call. DuckDB's extension is not among them: it does not finish these queries in five minutes.
"""

import argparse
from collections.abc import Callable
from functools import partial
from typing import Any

from benchmarks.peers import Peer, running
from benchmarks.race import Goal, race, report
from benchmarks.shapes import ROWS, build
from nevermore import scan_core
from nevermore.scan_core.deletes.indexes import DELETE_CACHE

ROUNDS = 5
ENGINES = ("spark", "clickhouse", "sail")
FASTER: dict[str, dict[str, int | None]] = {
    "dense_ints": {"count": 30, "aggregate": 20},
    "sparse_ints": {"count": 30, "aggregate": 20},
    "two_strings": {"count": 15, "aggregate": 15},
    "thousand_files": {"count": 20, "aggregate": 20},
    "partitioned_2000": {"count": None, "aggregate": None},
    "wide_120": {"count": None, "aggregate": None},
}
TABLE_ROWS = {"wide_120": 2_000_000}


def count(metadata: str) -> list[Any]:
    DELETE_CACHE.clear()
    return [[scan_core.open_table(metadata).scan().count()]]


def aggregate(metadata: str) -> list[Any]:
    DELETE_CACHE.clear()
    scan = scan_core.open_table(metadata).scan()
    return [list(scan.aggregate(("sum", "v0"), ("sum", "v1"), ("max", "i0"), ("max", "s0")))]


QUERIES: dict[str, tuple[Callable[[str], list[Any]], str]] = {
    "count": (count, "select count(*) from {table}"),
    "aggregate": (aggregate, "select sum(v0), sum(v1), max(i0), max(s0) from {table}"),
}


def measure(shape: str, peers: dict[str, Peer], rounds: int) -> None:
    """Race both queries on one shape."""
    metadata = str(build(shape, TABLE_ROWS.get(shape, ROWS)).metadata_location).removeprefix("file://")
    for name, (ours, sql) in QUERIES.items():
        candidates: dict[str, Callable[[], Any]] = {"scan_core": partial(ours, metadata)}
        for engine, peer in peers.items():
            candidates[engine] = partial(peer.ask, sql, metadata=metadata)
        times = FASTER[shape][name]
        goals = [Goal("scan_core", engine, None if times is None else 1 / times) for engine in peers]
        report(f"{shape}: {name}", race(candidates, rounds), "scan_core", goals)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("shapes", nargs="*", default=list(FASTER))
    parser.add_argument("--engines", default=",".join(ENGINES))
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    arguments = parser.parse_args()
    with running(arguments.engines.split(",")) as started:
        for table in arguments.shapes:
            measure(table, started, arguments.rounds)
