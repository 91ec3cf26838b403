"""A scan as Arrow stream and DataFrame; what is missing is named."""

import gc
import importlib
import sys
import threading
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa
import pytest
from pyiceberg.table import StaticTable

from nevermore import scan_core
from nevermore.scan_core.model.errors import MissingPackageError
from tests.scan_core.small_scans import many_row_groups, scan_of, with_deletes


def test_any_reader_of_arrow_data_takes_a_scan(tmp_path: Path) -> None:
    table, _ = with_deletes(tmp_path)
    scan = scan_of(table)
    assert pa.table(scan).equals(scan.to_table())
    assert pa.RecordBatchReader.from_stream(scan).schema.equals(scan.arrow_schema)
    assert duckdb.sql("select count(*) from scan").fetchall() == [(8,)]
    assert duckdb.sql("select count(*) from scan").fetchall() == [(8,)]  # read anew
    wider = pa.schema([("id", pa.int64()), ("name", pa.large_string()), ("qty", pa.int64())])
    assert pa.RecordBatchReader.from_stream(scan, schema=wider).read_all().schema.equals(wider)


@pytest.mark.parametrize("parallelism", [1, 2])
def test_a_stream_reads_as_it_is_consumed_and_stops_when_it_is_dropped(tmp_path: Path, parallelism: int) -> None:
    scan = scan_of(many_row_groups(tmp_path), parallelism=parallelism, batch_rows=10, split_bytes=1)
    before = set(threading.enumerate())
    stream = pa.RecordBatchReader.from_stream(scan)
    assert set(threading.enumerate()) <= before
    assert stream.read_next_batch().num_rows == 10
    del stream
    gc.collect()
    assert set(threading.enumerate()) <= before
    assert 0 < scan.metrics.rows_out < scan.count()


def test_an_error_reaches_the_reader_with_its_message(tmp_path: Path) -> None:
    table, _ = with_deletes(tmp_path)
    with pytest.raises(pa.ArrowInvalid, match="division by zero in"):
        pa.table(scan_of(table).where("1 / (id - 7) > 5"))


def test_a_table_of_pyiceberg_is_opened_as_it_is(tmp_path: Path) -> None:
    table, _ = with_deletes(tmp_path)
    theirs = StaticTable.from_metadata(str(table.metadata_path))
    assert scan_core.open_table(theirs).scan().count() == 8


def test_frames_have_the_columns_of_the_scan(tmp_path: Path) -> None:
    table, _ = with_deletes(tmp_path)
    scan = scan_of(table).select("qty", "name")
    assert scan.to_pandas().equals(scan.to_table().to_pandas())
    empty = scan.where("qty > 100")
    assert list(empty.to_pandas().columns) == ["qty", "name"]
    polars = pytest.importorskip("polars")
    assert scan.to_polars().equals(polars.from_arrow(scan.to_table()))
    assert empty.to_polars().schema == {"qty": polars.Int32, "name": polars.String}


@pytest.mark.parametrize(
    ("package", "use"),
    [
        ("polars", lambda scan: scan.to_polars()),
        ("polars", lambda scan: importlib.import_module("nevermore.scan_core.polars").scan_iceberg(scan)),
    ],
)
def test_a_missing_package_is_named_with_the_command_that_installs_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, package: str, use: Any
) -> None:
    table, _ = with_deletes(tmp_path)
    scan = scan_of(table)
    monkeypatch.setitem(sys.modules, package, None)
    monkeypatch.delitem(sys.modules, f"{package}.io.plugins", raising=False)
    with pytest.raises(MissingPackageError, match=rf"requires {package}: pip install 'nevermore-iceberg\[{package}\]'"):
        use(scan)
