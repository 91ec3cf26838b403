"""Row groups that do not fit into memory: cut into windows, of which single pages are read where few rows are left."""

import numpy as np
import pyarrow as pa
import pytest

from nevermore import scan_core
from nevermore.scan_core import ScanOptions
from tests.support.iceberg_json import Column, struct
from tests.support.table_builder import TableBuilder

MIB = 1024**2
ROWS, WIDTH = 24_000, 40
LIST = {"type": "list", "element-id": 202, "element": "long", "element-required": False}
COLUMNS = (
    Column(1, "id", "long"),
    *(Column(2 + n, f"v{n}", "long") for n in range(WIDTH)),
    Column(200, "text", "string"),
    Column(201, "numbers", LIST),
    Column(203, "at", struct(Column(204, "city", "string"))),
)
IN_WINDOWS = ScanOptions.of(memory_limit_bytes=16 * MIB, parallelism=1)
FILTERS = {
    "nothing": "id + v0 < 0",
    "one row": "id = 13001",
    "few rows of each window": "id % 3000 = 5",
    "a run of rows": "id between 9000 and 9400",
    "some rows of each window": "id % 40 = 3",
    "most rows": "id % 10 <> 3",
    "by values that must be cut themselves": "text > '040'",
}


@pytest.fixture(scope="module")
def table(tmp_path_factory: pytest.TempPathFactory) -> scan_core.Table:
    builder, ids = TableBuilder(tmp_path_factory.mktemp("windows") / "t", COLUMNS), np.arange(ROWS)
    seeded = np.random.default_rng(3)
    columns = {
        "id": seeded.permutation(ids),
        **{f"v{n}": ids * (n + 1) for n in range(WIDTH)},
        "text": pa.array([f"{n:03}" * 700 for n in range(50)]).take(pa.array(ids % 50)),
        "numbers": pa.ListArray.from_arrays(np.arange(ROWS + 1, dtype=np.int32) * 2, pa.array(np.arange(ROWS * 2))),
        "at": [{"city": f"c{n % 7}"} if n % 5 else None for n in range(ROWS)],
    }
    builder.commit(builder.data(columns, data_page_size=4_096, write_page_index=True, use_dictionary=["text"]))
    builder.commit(builder.equality_delete({"id": ids[::11]}, ids=[1]))
    return scan_core.open_table(builder.metadata_path)


@pytest.mark.each(35)
@pytest.mark.parametrize("where", FILTERS)
@pytest.mark.parametrize(
    "columns",
    [("id", "v10", "v20"), ("id", "text"), ("numbers", "v30"), ("at.city", "_pos", "v10"), ("id", "_deleted", "text")],
)
def test_windows_have_the_rows_of_the_whole_row_group(
    table: scan_core.Table, where: str, columns: tuple[str, ...]
) -> None:
    scan = (
        table.scan()
        .select(*columns, *(f"v{n}" for n in range(5, WIDTH) if n not in {10, 20, 30}))
        .where(FILTERS[where])
    )
    found = scan.with_options(IN_WINDOWS)
    assert found.to_table() == scan.to_table()
    assert found.count() == scan.count()


@pytest.mark.each(7)
@pytest.mark.parametrize("where", FILTERS)
def test_aggregates_over_windows_are_those_of_the_whole_row_group(table: scan_core.Table, where: str) -> None:
    scan = table.scan().where(FILTERS[where])
    calls = [("count", "*"), *(("sum", f"v{n}") for n in range(WIDTH)), ("max", "text")]
    assert scan.with_options(IN_WINDOWS).aggregate(*calls) == scan.aggregate(*calls)


@pytest.mark.parametrize("where", ["one row", "few rows of each window"])
def test_few_rows_of_a_row_group_in_windows_are_read_by_page(table: scan_core.Table, where: str) -> None:
    everything = table.scan().select("id", *(f"v{n}" for n in range(WIDTH))).with_options(IN_WINDOWS)
    few = everything.where(FILTERS[where])
    for scan in (few, everything):
        scan.to_table()
    (task,) = everything.plan().tasks
    assert few.metrics.bytes_read < everything.metrics.bytes_read / 2
    assert everything.metrics.bytes_read <= task.data_file.file_size_bytes
