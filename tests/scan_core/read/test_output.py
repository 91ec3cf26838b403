from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from nevermore import scan_core
from nevermore.scan_core import ScanOptions
from tests.support.iceberg_json import Column
from tests.support.kernels_used import kernels_used
from tests.support.table_builder import TableBuilder

COLUMNS = (
    Column(1, "id", "long"),
    Column(2, "name", "string"),
    Column(3, "price", "double"),
    Column(4, "word", "string"),
)
ROWS = 10_000


@pytest.fixture(scope="module", params=["one in eight", "all but the ends", "one run"])
def table(tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest) -> scan_core.Table:
    path: Path = tmp_path_factory.mktemp("output")
    built, numbers = TableBuilder(path, COLUMNS), np.arange(ROWS)
    names = [None if n % 5 == 0 else f"name {n * 7919 % 10_007}" for n in range(ROWS)]
    words = [None if n % 11 == 0 else f"word {n % 3}" for n in range(ROWS)]
    built.commit(built.data({"id": numbers, "name": names, "price": numbers / 8, "word": words}))
    seeded = np.random.default_rng(5)
    dead = {
        "one in eight": seeded.choice(ROWS, ROWS // 8, replace=False),
        "all but the ends": np.array([0, ROWS - 1]),
        "one run": np.arange(2_000, 3_000),
    }[request.param]
    built.commit(built.equality_delete({"id": np.sort(dead)}, ids=[1]))
    return scan_core.open_table(built.metadata_path)


@pytest.mark.each(3)
@pytest.mark.parametrize("batch_rows", [1, 333, 4_096, 100_000])
def test_rows_dropped_by_batch_leave_the_same_batches(table: scan_core.Table, batch_rows: int) -> None:
    rows = ROWS if batch_rows > 1 else 300
    for scan in (table.scan(), table.scan().select("name", "_pos", "_deleted"), table.scan().select("_file")):
        scan = scan.where(f"id < {rows}")  # noqa: PLW2901  the same scan of fewer rows
        by_batch = list(scan.with_options(ScanOptions(batch_rows=batch_rows)).to_batches())
        plain = ScanOptions(batch_rows=batch_rows)
        with kernels_used(are_on=False):
            assert pa.Table.from_batches(by_batch) == scan.with_options(plain).to_table()
        assert max(b.num_rows for b in by_batch) <= batch_rows
