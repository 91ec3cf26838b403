"""A scan of lists, maps and structs keeps to a small memory limit: what allocators keep counts, not only what is in use."""

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from tests.support.iceberg_json import Column
from tests.support.memory import PEAK_BYTES
from tests.support.table_builder import TableBuilder

MIB = 1024**2
LIMIT, ROWS, FEW_ROWS = 16 * MIB, 800_000, 1_000
Values = Callable[[int], pa.Array]


def a_list(element_id: int, element: Any) -> dict[str, Any]:
    return {"type": "list", "element-id": element_id, "element-required": False, "element": element}


def a_struct(*members: Column) -> dict[str, Any]:
    return {"type": "struct", "fields": [member.json() for member in members]}


TYPES: dict[str, Any] = {
    "list": a_list(10, "long"),
    "list of texts": a_list(10, "string"),
    "map": {"type": "map", "key-id": 10, "key": "string", "value-id": 11, "value": "long", "value-required": False},
    "list of structs": a_list(10, a_struct(Column(11, "a", "long"), Column(12, "b", a_list(13, "long")))),
    "struct of lists": a_struct(Column(10, "a", a_list(11, "long")), Column(12, "b", a_list(13, "string"))),
}


def values_of(kind: str, rows: int) -> pa.Array:
    random = np.random.default_rng(1)

    def numbers(count: int) -> pa.Array:
        return pa.array(random.integers(0, 1 << 40, count))

    def texts(count: int) -> pa.Array:
        return numbers(count).cast(pa.string())

    def lists(count: int, values: Values, most: int) -> pa.Array:
        ends = pa.array(np.append(0, np.cumsum(random.integers(0, most, count))).astype(np.int32))
        return pa.ListArray.from_arrays(ends, values(ends[-1].as_py()))

    def structs(count: int) -> pa.Array:
        return pa.StructArray.from_arrays([numbers(count), lists(count, numbers, 4)], ["a", "b"])

    if kind == "struct of lists":
        return pa.StructArray.from_arrays([lists(rows, numbers, 6), lists(rows, texts, 4)], ["a", "b"])
    if kind != "map":
        return lists(rows, {"list": numbers, "list of texts": texts, "list of structs": structs}[kind], 4)
    keys = lists(rows, texts, 4)
    return pa.MapArray.from_arrays(keys.offsets, keys.values, numbers(len(keys.values)))


def table_of(path: Path, kind: str, rows: int, options: dict[str, Any]) -> Path:
    """One row group, of which every fifth row is deleted."""
    table = TableBuilder(path, (Column(1, "id", "long"), Column(2, "v", TYPES[kind])))
    content = {"id": np.arange(rows), "v": values_of(kind, rows)}
    table.commit(table.data(content, row_group_size=rows, **options))
    table.commit(table.equality_delete({"id": np.arange(0, rows, 5)}, ids=[1]))
    return table.metadata_path


SCAN = f"""{PEAK_BYTES}
import json
import sys
import pyarrow as pa
import scan_core
from scan_core import ScanOptions

large, small, limit, parallelism = json.loads(sys.argv[1])

def batches(path, limit):
    options = ScanOptions(memory_limit_bytes=limit, parallelism=parallelism)
    for batch in scan_core.open_table(path).scan().with_options(options).to_batches():
        yield batch.num_rows, batch.nbytes

list(batches(small, 1))
before, rows, most = peak_bytes(), 0, 0
for num_rows, num_bytes in batches(large, limit):
    rows, most = rows + num_rows, max(most, num_bytes)
used = pa.default_memory_pool().max_memory() + pa.system_memory_pool().max_memory()
print(json.dumps([rows, most, peak_bytes() - before, used]))
"""


@pytest.mark.slow
@pytest.mark.parametrize("parallelism", [1, 2])
@pytest.mark.parametrize("options", [{}, {"write_page_index": False, "use_dictionary": False, "compression": "snappy"}])
@pytest.mark.parametrize("kind", TYPES)
def test_nested_columns_keep_to_a_small_limit(
    tmp_path: Path, kind: str, options: dict[str, Any], parallelism: int
) -> None:
    """No more than 1.25 times the limit and one batch, kept by allocators or in use; the latter alone is far less."""
    large, small = (str(table_of(tmp_path / str(rows), kind, rows, options)) for rows in (ROWS, FEW_ROWS))
    given = json.dumps([large, small, LIMIT, parallelism])
    ended = subprocess.run([sys.executable, "-c", SCAN, given], capture_output=True, text=True, check=True)
    rows, batch, growth, used = json.loads(ended.stdout)
    assert rows == ROWS - ROWS // 5
    assert used <= LIMIT
    assert growth <= 1.25 * LIMIT + batch
