"""`nevermore readers` says of our mirrors what the engines do with them, as `test_other_engines.py` sees it."""

import pytest

from nevermore.scan_core import Table, open_table
from nevermore.scan_core.plan.readers import ENGINES, JAVA, SPARK, Reader, readers_of
from tests.interop.mirrors import FEEDS, make_mirrors
from tests.interop.test_other_engines import DEVIATIONS
from tests.support.fixture_tables import FixtureTable, fixture_tables

PEERS = {name.split()[0].lower(): name for name in ENGINES}


@pytest.fixture(scope="module")
def metadata(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    return {proof.name: proof.metadata for proof in make_mirrors(tmp_path_factory.mktemp("mirrors"))}


def _readers(table: Table) -> list[Reader]:
    return list(readers_of(table.metadata, table.io))


@pytest.mark.slow
@pytest.mark.parametrize("feed", [feed.name for feed in FEEDS])
def test_the_verdict_on_a_mirror_is_what_the_engine_does(feed: str, metadata: dict[str, str]) -> None:
    told = {reader.engine: reader for reader in _readers(open_table(metadata[feed]))}
    for peer in ("clickhouse", "daft", "duckdb", "polars", "pyiceberg", "sail"):
        seen = DEVIATIONS.get((peer, feed))
        expected = "right" if seen is None else "refuses" if seen.startswith("stops") else "wrong rows"
        assert told[PEERS[peer]].verdict == expected, (peer, told[PEERS[peer]])
    assert told["scan_core"].verdict == "right"


@pytest.mark.each(2)
@pytest.mark.parametrize("name", [name for name, table in fixture_tables().items() if "readers" in table.facts])
def test_the_verdict_on_a_table_of_iceberg_java_is_what_its_readers_do(name: str) -> None:
    fixture: FixtureTable = fixture_tables()[name]
    told = {r.engine: r.verdict for r in _readers(open_table(fixture.metadata, relocate=fixture.relocate))}
    for engine, seen in ((SPARK, "spark"), (JAVA, "iceberg_generics")):
        did = fixture.facts["readers"][seen]
        if did == "agrees":
            assert told[engine] in {"right", "wrong rows possible"}
        else:
            assert told[engine] in ({"refuses"} if "fails" in did[-1] else {"wrong rows", "wrong rows possible"})
