"""Bloom filters that pyarrow and DuckDB wrote: no value that is there is excluded, most others are."""

import datetime as dt
from collections.abc import Callable
from decimal import Decimal
from pathlib import Path
from typing import Any

import duckdb
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from nevermore.scan_core.files.parquet.bloom import BloomTest, parse_bloom_filter, plain_encoded

COUNT = 3_000
MAX_FALSE_HITS = 0.05


def columns() -> dict[str, pa.Array]:
    even = np.arange(0, 2 * COUNT, 2)
    return {
        "i": pa.array(even, pa.int32()),
        "l": pa.array(even * 10**9, pa.int64()),
        "s": pa.array([f"{'value ' * (k % 9)}{k}" for k in even]),
        "d": pa.array(even * 0.5),
        "f": pa.array(even * 0.5, pa.float32()),
        "dec": pa.array([Decimal(int(k)).scaleb(-2) for k in even], pa.decimal128(9, 2)),
        "dt": pa.array(even, pa.int32()).cast(pa.date32()),
        "ts": pa.array(even * 10**6, pa.int64()).cast(pa.timestamp("us")),
    }


def excludes(path: Path, column: str) -> Callable[[Any], bool]:
    file = pq.ParquetFile(path)
    index = file.schema_arrow.get_field_index(column)
    chunk = file.metadata.row_group(0).column(index)
    data = path.read_bytes()[chunk.bloom_filter_offset :]
    found = parse_bloom_filter(data)
    assert found is not None
    physical = {"INT32": 1, "INT64": 2, "FLOAT": 4, "DOUBLE": 5, "BYTE_ARRAY": 6, "FIXED_LEN_BYTE_ARRAY": 7}
    return BloomTest(found, file.schema_arrow.field(index).type, physical[chunk.physical_type])


@pytest.fixture(scope="module", params=["pyarrow", "duckdb"])
def path(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    target = tmp_path_factory.mktemp("bloom") / "file.parquet"
    table = pa.table(columns())
    if request.param == "pyarrow":
        filters = {n: {"ndv": COUNT, "fpp": 0.01} for n in table.column_names}
        pq.write_table(table, target, bloom_filter_options=filters, store_decimal_as_integer=True)
    else:
        con = duckdb.connect()
        con.register("t", table)
        con.execute(f"copy t to '{target}' (format parquet, dictionary_size_limit 100000)")
        con.close()
    return target


@pytest.mark.each(3)
@pytest.mark.parametrize("column", ["i", "l", "s", "d", "f", "dec", "dt", "ts"])
def test_present_values_are_never_excluded_and_absent_ones_mostly_are(path: Path, column: str) -> None:
    test = excludes(path, column)
    array = columns()[column]
    present = [v.value if pa.types.is_temporal(array.type) else v.as_py() for v in array]
    step = {"d": 0.25, "f": 0.25, "dec": Decimal("0.01"), "s": "?"}.get(column, 1)
    absent = [v + step for v in present]
    assert not any(test(v) for v in present)
    assert sum(not test(v) for v in absent) <= MAX_FALSE_HITS * COUNT


def test_values_the_file_cannot_hold_are_excluded_and_unknown_ones_kept() -> None:
    assert plain_encoded(2**40, pa.int32(), 1) == ()
    assert plain_encoded(0.1, pa.float32(), 4) == ()
    assert plain_encoded(1e300, pa.float32(), 4) == ()
    assert plain_encoded(Decimal("0.001"), pa.decimal128(9, 2), 1) == ()
    assert plain_encoded(1_500, pa.timestamp("ms"), 2) == ()
    assert plain_encoded(0.0, pa.float64(), 5) == (bytes(8), bytes(7) + b"\x80")
    for value, type_, physical in [
        (float("nan"), pa.float64(), 5),
        (True, pa.bool_(), 0),
        (1, pa.timestamp("ns"), 3),
        (Decimal(1), pa.decimal128(38, 0), 7),
        (1, pa.string(), 6),
        (dt.date(2020, 1, 1), pa.date32(), 1),
    ]:
        assert plain_encoded(value, type_, physical) is None


@pytest.mark.parametrize("data", [b"", b"\0", b"\x15\x80\x80\x80\x80\x08", bytes(range(256)), b"\x15\x40" * 20])
def test_broken_bytes_are_no_filter(data: bytes) -> None:
    assert parse_bloom_filter(data) is None


def test_cut_off_or_foreign_filters_are_none(path: Path) -> None:
    chunk = pq.ParquetFile(path).metadata.row_group(0).column(0)
    data = path.read_bytes()[chunk.bloom_filter_offset :]
    whole = parse_bloom_filter(data)
    assert whole is not None
    assert parse_bloom_filter(data[: whole.blocks.nbytes // 2]) is None
