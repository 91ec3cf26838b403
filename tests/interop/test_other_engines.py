"""The engines of `make peers` read our mirrors: to the same rows, or in the known ways to others."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from benchmarks.peers import Peer, running
from nevermore import scan_core
from tests.interop.mirrors import FEEDS, make_mirrors

ENGINES = ("clickhouse", "daft", "duckdb", "polars", "pyiceberg", "sail")
PEERS = Path(__file__).parents[2] / ".venv-peers"
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not PEERS.exists(), reason="make peers installs the engines"),
]
DEVIATIONS = {
    ("clickhouse", "global_deletes"): "rows that a delete file of the unpartitioned spec removes are back",
    ("duckdb", "by_look_up"): "stops: Comparison on NULL values",
    **{
        (engine, feed.name): "stops: does not yet support equality deletes"
        for engine in ("daft", "polars", "pyiceberg")
        for feed in FEEDS
        if feed.deletes == "deletes: equality"
    },
    **{
        (engine, name): f"stops: {error}"
        for engine, error in (("clickhouse", "only for parquet format"), ("daft", "Corrupt footer"))
        for name in ("vectors", "converted_to_vectors")
    },
}
"""Listed in docs/compatibility.md; whoever mends one makes its test fail here."""


@pytest.fixture(scope="module")
def metadata(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """The newest metadata file of each mirror."""
    return {proof.name: proof.metadata for proof in make_mirrors(tmp_path_factory.mktemp("mirrors"))}


@pytest.fixture
def peer(request: pytest.FixtureRequest, metadata: dict[str, str]) -> Iterator[Peer]:
    """An engine of its own for every table: DuckDB does not survive its own errors."""
    folder = Path(metadata["unpartitioned"]).parents[3]
    with running([request.param], folder) as started:
        yield started[request.param]


@pytest.mark.parametrize("peer", ENGINES, indirect=True)
@pytest.mark.parametrize("feed", FEEDS, ids=lambda feed: feed.name)
def test_another_engine_reads_the_rows_of_scan_core(peer: Peer, feed: Any, metadata: dict[str, str]) -> None:
    ours = scan_core.open_table(metadata[feed.name]).scan().select(*feed.types).to_table()
    query = f"select {', '.join(feed.types)} from {{table}}"
    deviation = DEVIATIONS.get((peer.engine, feed.name))
    if deviation is None:
        assert _as_text(peer.ask(query, metadata=metadata[feed.name]).value) == _as_text(_rows(ours))
    elif deviation.startswith("stops"):
        with pytest.raises(SystemExit, match=deviation.removeprefix("stops: ")):
            peer.ask(query, metadata=metadata[feed.name])
    else:
        theirs = _as_text(peer.ask(query, metadata=metadata[feed.name]).value)
        assert set(theirs) > set(_as_text(_rows(ours)))


def _rows(table: Any) -> list[list[Any]]:
    return [list(row.values()) for row in table.to_pylist()]


def _as_text(rows: list[list[Any]]) -> list[str]:
    """Sorted: engines have orders and types of their own."""
    return sorted(str([str(value) for value in row]) for row in rows)
