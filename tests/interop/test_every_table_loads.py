"""Other engines load every kind of table that we write: mirror, change log, quarantine, published; indexed or not."""

import json
import os
import subprocess
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from pyiceberg.exceptions import ValidationError
from pyiceberg.table import StaticTable

from benchmarks.peers import running
from nevermore import scan_core
from nevermore.pipelines.config.project import load
from nevermore.pipelines.iceberg.bitmap_indexes import CatalogTarget, build_indexes
from nevermore.pipelines.iceberg.catalog import find_table, open_catalog
from nevermore.pipelines.ingest.feed_run import run_once
from tests.support.rendering import rendered
from tests.support.shop_project import ShopProject, event, order
from tests.support.spark_session import SPARK_TEST

JAVA_PYTHON = os.environ.get("NEVERMORE_INTEROP_PYTHON")
PEERS = Path(__file__).parents[2] / ".venv-peers"
READER = Path(__file__).with_name("read_with_iceberg_java.py")
INDEXED = {
    "shop.orders": "id",
    "change_log.shop_orders": "ordinal",
    "quarantine.shop_orders": "source_file",
    "shop.daily": "orders",
}


def written(folder: Path, *, is_published: bool) -> dict[str, Path]:
    """Metadata files of one table of each kind, before and after it was indexed."""
    project = ShopProject(folder)
    project.land_orders()
    project.land("orders", "3.jsonl", ["{broken"])
    for number in (4, 5):
        report = run_once(load(project.path), tables=["shop.orders"])
        assert [t.error for t in report.tables if t.error] == []
        project.land("orders", f"{number}.jsonl", [event("d", "orders", before=order(2, 25.0, 1))])
    if is_published:
        from nevermore.pipelines.publish.refresh import publish

        publish(project.config, "shop.daily", partitions=["2026-01-01", "2026-01-02"])
    catalog = open_catalog(project.config)
    found = {}
    for name, column in INDEXED.items():
        table = find_table(catalog, name)
        if table is None:
            assert name == "shop.daily", name
            assert not is_published
            continue
        found[name] = _metadata_of(table)
        assert build_indexes(CatalogTarget(table), [column]).built > 0
        indexed = find_table(catalog, name)
        assert [s.blob_metadata for s in indexed.metadata.statistics] == [[]]  # type: ignore[union-attr]
        found[f"{name} indexed"] = _metadata_of(indexed)
    return found


def _metadata_of(table: Any) -> Path:
    return Path(table.metadata_location.removeprefix("file://"))


def check_pyiceberg(tables: dict[str, Path]) -> None:
    """It loads all, and reads those without equality deletes, which it refuses by name."""
    for name, metadata in tables.items():
        table = StaticTable.from_metadata(str(metadata))
        assert table.current_snapshot() is not None
        assert table.inspect.files().num_rows > 0
        ours = scan_core.open_table(metadata).scan().to_table()
        if name.startswith("shop.orders"):
            with pytest.raises((ValueError, NotImplementedError, ValidationError), match=r"(?i)equality"):
                table.scan().to_arrow()
        else:
            assert rendered(table.scan().to_arrow().select(ours.column_names)) == rendered(ours)


@pytest.mark.slow
def test_pyiceberg_loads_every_table_of_an_ingest(tmp_path: Path) -> None:
    check_pyiceberg(written(tmp_path, is_published=False))


def with_spark(test: Any) -> Any:
    for mark in SPARK_TEST:
        test = mark(test)
    return test


@with_spark
@pytest.mark.slow
@pytest.mark.usefixtures("spark")
def test_pyiceberg_loads_all(tmp_path: Path) -> None:
    check_pyiceberg(written(tmp_path, is_published=True))


@pytest.mark.skipif(not PEERS.exists(), reason="make peers installs the engines")
@with_spark
@pytest.mark.slow
@pytest.mark.usefixtures("spark")
def test_duckdb_counts_the_rows_of_all(tmp_path: Path) -> None:
    for metadata in written(tmp_path, is_published=True).values():
        with running(["duckdb"], tmp_path) as peers:
            answer = peers["duckdb"].ask("select count(*) from {table}", metadata=str(metadata))
        assert answer.value == [[scan_core.open_table(metadata).scan().count()]]


@pytest.mark.skipif(JAVA_PYTHON is None, reason="make interop sets up the second environment")
@with_spark
@pytest.mark.slow
@pytest.mark.usefixtures("spark")
def test_iceberg_java_reads_the_rows_of_all(tmp_path: Path) -> None:
    tables = list(written(tmp_path, is_published=True).values())
    outputs = [str(tmp_path / f"{number}.parquet") for number in range(len(tables))]
    jobs = [{"metadata": str(m), "snapshot": None, "output": o} for m, o in zip(tables, outputs, strict=True)]
    (tmp_path / "jobs.json").write_text(json.dumps(jobs), encoding="utf-8")
    command = [str(JAVA_PYTHON), "-W", "ignore", str(READER), str(tmp_path / "jobs.json")]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=800)
    assert done.returncode == 0, done.stderr[-4000:]
    for metadata, output in zip(tables, outputs, strict=True):
        ours = scan_core.open_table(metadata).scan().to_table()
        assert rendered(pq.read_table(output).select(ours.column_names)) == rendered(ours)
