"""Row groups that a Bloom filter excludes are not read; whatever the filter holds, the rows are the same."""

from pathlib import Path

import duckdb
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from nevermore import scan_core
from nevermore.scan_core import Scan, ScanOptions
from nevermore.scan_core.files.parquet.bloom import is_comparable
from tests.support.iceberg_json import Column
from tests.support.table_builder import TableBuilder

COLUMNS = (Column(1, "id", "long"), Column(2, "name", "string"), Column(3, "at", "timestamp"))
ROWS = 8_000
IDS = np.random.default_rng(4).permutation(ROWS) * 3
OFF = ScanOptions.of(parallelism=1, use_bloom_filters=False)


def table_of(path: Path) -> TableBuilder:
    """Four row groups whose bounds tell nothing of single ids."""
    table = TableBuilder(path, COLUMNS)
    rows = {"id": IDS.tolist(), "name": [f"n{i}" for i in IDS], "at": [int(i) * 10**6 for i in IDS]}
    filters = {name: {"ndv": ROWS // 4, "fpp": 0.001} for name in rows}
    table.commit(table.data(rows, row_group_size=ROWS // 4, bloom_filter_options=filters))
    return table


def scan_of(table: TableBuilder, where: str) -> Scan:
    return scan_core.open_table(table.metadata_path).scan().where(where).with_options(ScanOptions(parallelism=1))


@pytest.mark.parametrize(
    ("where", "rows"),
    [
        ("id = 3003", 1),
        ("id = 3004", 0),
        ("id in (3003, 3004, 3005)", 1),
        ("name = 'n3003'", 1),
        ("name = 'absent' or id = 3003", 1),
        ("at = timestamp '1970-01-01 00:50:03'", 1),
        ("cast(id as int) = 3003", 1),
    ],
)
def test_row_groups_without_the_value_are_not_read(tmp_path: Path, where: str, rows: int) -> None:
    scan = scan_of(table_of(tmp_path), where)
    found = scan.to_table()
    assert found.num_rows == rows
    if "cast" not in where:
        assert scan.metrics.row_groups_pruned_by_bloom_filters == scan.metrics.row_groups_pruned == 4 - rows
        assert scan.metrics.bloom_filters_read > 0
        assert scan.metrics.bloom_bytes_read > 0
    without = scan.with_options(OFF)
    assert without.to_table() == found
    assert (without.metrics.bloom_filters_read, without.metrics.row_groups_pruned_by_bloom_filters) == (0, 0)


@pytest.mark.parametrize("where", ["id <> 3004", "id > 3003", "id is not null and at < timestamp '2000-01-01'"])
def test_only_equalities_ask_for_filters(tmp_path: Path, where: str) -> None:
    scan = scan_of(table_of(tmp_path), where)
    scan.to_table()
    assert scan.metrics.bloom_filters_read == 0


def test_bounds_are_asked_before_filters(tmp_path: Path) -> None:
    scan = scan_of(table_of(tmp_path), "id = 99999999")
    assert scan.to_table().num_rows == 0
    assert scan.metrics.bloom_filters_read == 0


def test_filters_that_duckdb_wrote_exclude(tmp_path: Path) -> None:
    table = TableBuilder(tmp_path, COLUMNS)
    rows = {"id": IDS.tolist(), "name": [f"n{i}" for i in IDS], "at": [0] * ROWS}
    table.commit(table.data(rows))
    (path,) = tmp_path.rglob("*.parquet")
    content = pq.read_table(path)
    con = duckdb.connect()
    con.register("rows", content)
    con.execute(
        f"copy rows to '{path}' (format parquet, row_group_size 2048, dictionary_size_limit 100000, "
        'field_ids {id: 1, name: 2, "at": 3})'
    )
    con.close()
    scan = scan_of(table, "id = 3003")
    assert scan.to_table()["name"].to_pylist() == ["n3003"]
    assert scan.metrics.row_groups_pruned_by_bloom_filters == 3


def test_a_damaged_filter_is_not_believed(tmp_path: Path) -> None:
    table = table_of(tmp_path)
    (path,) = tmp_path.rglob("*.parquet")
    offset = pq.ParquetFile(path).metadata.row_group(0).column(0).bloom_filter_offset
    content = bytearray(path.read_bytes())
    content[offset] = 0xFF
    path.write_bytes(bytes(content))
    scan = scan_of(table, "id = 3003")
    assert scan.to_table().num_rows == 1
    assert scan.metrics.fallbacks >= 1


@pytest.mark.parametrize(
    ("file_type", "table_type", "expected"),
    [
        (pa.int32(), pa.int64(), True),
        (pa.float32(), pa.float64(), True),
        (pa.date32(), pa.timestamp("us"), False),
        (pa.timestamp("us"), pa.timestamp("ns"), False),
        (pa.timestamp("ms", "UTC"), pa.timestamp("us", "UTC"), True),
        (pa.date32(), pa.date32(), True),
        (pa.int32(), pa.date32(), False),
        (pa.string(), pa.binary(), True),
    ],
)
def test_values_whose_encoding_a_promotion_changes_are_not_tested(
    file_type: pa.DataType, table_type: pa.DataType, *, expected: bool
) -> None:
    assert is_comparable(file_type, table_type) == expected
