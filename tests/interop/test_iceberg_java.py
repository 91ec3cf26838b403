"""Iceberg Java, scan_core and DuckDB read the same rows from our mirrors, before and after deletes."""

import json
import os
import subprocess
from collections.abc import Iterator
from itertools import product
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest

from nevermore import scan_core
from nevermore.checks.reference.expected_rows import live_rows
from tests.interop.mirrors import FEEDS, Proof, make_mirrors
from tests.support.bitmap_indexes import bitmaps_for_nothing
from tests.support.iceberg_json import Column
from tests.support.rendering import rendered
from tests.support.table_builder import TableBuilder

JAVA_PYTHON = os.environ.get("NEVERMORE_INTEROP_PYTHON")
pytestmark = pytest.mark.skipif(JAVA_PYTHON is None, reason="make interop sets up the second environment")
ID = Column(1, "id", "long")
READER = Path(__file__).with_name("read_with_iceberg_java.py")


@pytest.fixture(scope="module")
def read_by_java(tmp_path_factory: pytest.TempPathFactory) -> dict[Proof, pa.Table]:
    """Every snapshot of every mirror, as Iceberg Java reads it."""
    folder = tmp_path_factory.mktemp("interop")
    proofs = [*make_mirrors(folder), *_dropped_keys(folder)]
    jobs = [
        {"metadata": proof.metadata, "snapshot": proof.snapshot_id, "output": str(folder / f"{number}.parquet")}
        for number, proof in enumerate(proofs)
    ]
    (folder / "jobs.json").write_text(json.dumps(jobs), encoding="utf-8")
    command = [str(JAVA_PYTHON), "-W", "ignore", str(READER), str(folder / "jobs.json")]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=800)
    assert done.returncode == 0, done.stderr[-4000:]
    return {proof: pq.read_table(job["output"]) for proof, job in zip(proofs, jobs, strict=True)}


@pytest.mark.parametrize("name", [feed.name for feed in FEEDS])
def test_iceberg_java_reads_the_rows_of_scan_core_and_duckdb(read_by_java: dict[Proof, pa.Table], name: str) -> None:
    snapshots = [(proof, table) for proof, table in read_by_java.items() if proof.name == name]
    assert len(snapshots) == (3 if name.startswith("converted") else 2)
    for proof, by_java in snapshots:
        ours = scan_core.open_table(proof.metadata).scan().as_of_snapshot(proof.snapshot_id).to_table()
        reference = live_rows(proof.metadata, snapshot_id=proof.snapshot_id)
        assert rendered(ours) == rendered(by_java) == rendered(reference)
        assert ours.num_rows > 50


def test_filters_by_bitmap_keep_the_rows_that_iceberg_java_reads_of_the_same_tables(
    read_by_java: dict[Proof, pa.Table],
) -> None:
    for proof, by_java in read_by_java.items():
        if "note" not in by_java.column_names:
            continue
        with bitmaps_for_nothing():
            scan = scan_core.open_table(proof.metadata).scan().as_of_snapshot(proof.snapshot_id).where("note = 'v0'")
            ours = scan.to_table()
        assert scan.metrics.bitmap_indexes_used > 0, proof.name
        assert rendered(ours) == rendered(by_java.filter(pc.field("note") == "v0"))
        assert ours.num_rows > 20


def _dropped_keys(folder: Path) -> Iterator[Proof]:
    """Tables whose newest delete is by a dropped column that the newer one of two data files lacks, with and without a default."""
    for file_format, key, default in product(("parquet", "avro"), (2, 7, None), (7, None)):
        n = Column(2, "n", "long", initial_default=default)
        table = TableBuilder(folder / f"{file_format}-{key}-{default}", [ID, n], version=2 if default is None else 3)
        table.commit(table.data({"id": [1, 2, 3], "n": [1, 2, 7]}, file_format=file_format))
        table.evolve(ID)
        table.commit(table.data({"id": [11, 12]}, file_format=file_format))
        table.commit(table.equality_delete({"n": [key]}, ids=[2], columns=[n], file_format=file_format))
        yield Proof("dropped_key", str(table.metadata_path), table.current_snapshot_id)


def test_rows_that_lack_the_dropped_column_of_a_delete(read_by_java: dict[Proof, pa.Table]) -> None:
    """NULL or the default of the column (SEMANTICS rule 16), whatever the deletes' writer meant."""
    found = [(proof, rows) for proof, rows in read_by_java.items() if proof.name == "dropped_key"]
    for proof, by_java in found:
        ours = scan_core.open_table(proof.metadata).scan().to_table()
        assert rendered(ours) == rendered(by_java) == rendered(live_rows(proof.metadata)), proof.metadata
    assert sorted(by_java.num_rows for _, by_java in found) == [2, 2, 3, 3, 4, 4, 4, 4, 4, 4, 5, 5]


def test_the_proof_covers_scoped_and_global_deletes(read_by_java: dict[Proof, pa.Table]) -> None:
    newest = {proof.name: proof for proof in read_by_java}
    for name, proof in newest.items():
        text = scan_core.open_table(proof.metadata).scan().explain()
        assert "equality" in text, name
    metadata = json.loads(Path(newest["global_deletes"].metadata).read_text(encoding="utf-8"))
    assert any(not spec["fields"] for spec in metadata["partition-specs"])
