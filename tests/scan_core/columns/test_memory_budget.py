import subprocess
import sys
import weakref
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from nevermore import scan_core
from nevermore.scan_core import ScanOptions
from nevermore.scan_core.columns.file_reader import MemoryBudget, halves
from nevermore.scan_core.read.projection import LazyColumns
from nevermore.scan_core.rows.selection import All, RowSelection, selected_count
from tests.support.iceberg_json import Column
from tests.support.memory import PEAK_BYTES
from tests.support.table_builder import TableBuilder

MIB = 1024**2
COLUMNS = (Column(1, "id", "long"), *(Column(i, f"v{i}", "long") for i in range(2, 42)))


def table_of(path: Path, rows: int) -> TableBuilder:
    table = TableBuilder(path, COLUMNS)
    content: dict[str, Any] = {c.name: np.arange(rows) * c.id for c in COLUMNS}
    table.commit(table.data(content, data_page_size=64 * 1024, write_batch_size=4096, use_dictionary=False))
    table.commit(table.equality_delete({"id": np.arange(0, rows, 5)}, ids=[1]))
    return table


def test_pieces_cover_all_rows_once_and_fit() -> None:
    budget = MemoryBudget(ScanOptions(memory_limit_bytes=64 * MIB, parallelism=1))
    pieces = budget.pieces(1_000_000, 100 * MIB)
    assert [row for piece in pieces for row in (piece.start, piece.stop)][1:-1:2] == [p.start for p in pieces[1:]]
    assert (pieces[0].start, pieces[-1].stop) == (0, 1_000_000)
    assert len(pieces) == 15
    budget.record(10 * MIB, 30 * MIB)
    assert len(budget.pieces(1_000_000, 100 * MIB)) == 43
    assert [selected_count(part) for part, _ in halves(All(10_001))] == [5_000, 5_001]
    assert [window for _, window in halves(All(10_001))] == [range(5_000), range(5_000, 10_001)]
    assert halves(All(100)) == []


@pytest.mark.parametrize("limit", [MIB, pytest.param(8 * MIB, marks=pytest.mark.slow), 64 * MIB])
def test_results_do_not_depend_on_the_limit(tmp_path: Path, limit: int) -> None:
    table = scan_core.open_table(table_of(tmp_path, 60_000).metadata_path)
    for scan in (table.scan(), table.scan().select("v3", "id").where("v2 % 7 = 1"), table.scan().select("_pos", "v9")):
        tight = scan.with_options(ScanOptions(memory_limit_bytes=limit))
        assert tight.to_table() == scan.to_table()
        assert tight.count() == scan.count()
        assert tight.aggregate(("sum", "v9")) == scan.aggregate(("sum", "v9"))
        if not scan.predicates:  # else measured costs decide whether deletes or the predicate come first
            assert tight.metrics.rows_removed_by_equality_deletes == scan.metrics.rows_removed_by_equality_deletes


def test_batches_become_smaller_under_a_tight_limit(tmp_path: Path) -> None:
    scan = scan_core.open_table(table_of(tmp_path, 60_000).metadata_path).scan()
    limit = 8 * MIB
    tight = scan.with_options(ScanOptions(memory_limit_bytes=limit, parallelism=1))
    assert max(batch.nbytes for batch in tight.to_batches()) < limit


def test_columns_of_one_row_group_are_freed_before_the_next_is_decoded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = TableBuilder(tmp_path, (Column(1, "id", "long"), Column(2, "v", "long")))
    table.commit(table.data({"id": range(3_000), "v": range(3_000)}, row_group_size=1_000))
    table.commit(table.equality_delete({"id": range(0, 3_000, 5)}, ids=[1]))
    scan = scan_core.open_table(table.metadata_path).scan().with_options(ScanOptions(parallelism=1))
    decoded: list[tuple[int, weakref.ref[pa.Array]]] = []
    load = LazyColumns.load

    def watched(self: LazyColumns, indices: Sequence[int], selection: RowSelection) -> list[pa.Array]:
        assert not [group for group, array in decoded if group != self.row_group.index and array() is not None]
        arrays = load(self, indices, selection)
        decoded.extend((self.row_group.index, weakref.ref(array)) for array in arrays)
        return arrays

    monkeypatch.setattr(LazyColumns, "load", watched)
    assert scan.count() == 2_400
    assert scan.aggregate(("sum", "v")) == (sum(range(3_000)) - sum(range(0, 3_000, 5)),)
    assert sum(map(len, scan.to_batches())) == 2_400
    assert {group for group, _ in decoded} == {0, 1, 2}


NESTED: dict[str, Any] = {
    "list": {
        "type": "list",
        "element-id": 3,
        "element-required": False,
        "element": {
            "type": "struct",
            "fields": [
                {"id": 4, "name": "a", "required": False, "type": "long"},
                {"id": 5, "name": "b", "required": False, "type": "string"},
            ],
        },
    },
    "map": {
        "type": "map",
        "key-id": 4,
        "key": "string",
        "value-id": 5,
        "value": "long",
        "value-required": False,
    },
}


def nested_table(path: Path, kind: str, rows: int) -> TableBuilder:
    """Rows with 0 to 16 elements each, of which texts repeat."""
    random = np.random.default_rng(1)
    offsets = pa.array(np.append(0, np.cumsum(random.integers(0, 17, rows))).astype(np.int32))
    count = offsets[-1].as_py()
    numbers = pa.array(random.integers(0, 1 << 40, count))
    texts = pa.array([f"some text {i:03}" for i in range(1000)]).take(pa.array(random.integers(0, 1000, count)))
    if kind == "list":
        values = pa.ListArray.from_arrays(offsets, pa.StructArray.from_arrays([numbers, texts], ["a", "b"]))
    else:
        values = pa.MapArray.from_arrays(offsets, texts, numbers)
    table = TableBuilder(path, (Column(1, "id", "long"), Column(2, "v", NESTED[kind])))
    table.commit(table.data({"id": np.arange(rows), "v": values}))
    return table


@pytest.mark.parametrize(
    "read",
    [
        "sum(b.num_rows for b in scan.to_batches())",
        "scan.select('id').where('cardinality(v) >= 0').count()",
    ],
)
@pytest.mark.slow
@pytest.mark.parametrize(("kind", "limit"), [("list", 16), ("list", 32), ("map", 16), ("map", 32)])
def test_a_scan_of_nested_columns_keeps_to_its_limit(tmp_path: Path, kind: str, limit: int, read: str) -> None:
    metadata = nested_table(tmp_path / "large", kind, 400_000).metadata_path
    small = nested_table(tmp_path / "small", kind, 100).metadata_path
    code = f"""{PEAK_BYTES}
from nevermore import scan_core
from nevermore.scan_core import ScanOptions
scan = scan_core.open_table({str(small)!r}).scan().with_options(ScanOptions(memory_limit_bytes=1, parallelism=1))
{read}
options = ScanOptions(memory_limit_bytes={limit * MIB}, parallelism=1)
scan = scan_core.open_table({str(metadata)!r}).scan().with_options(options)
before = peak_bytes()
print({read}, peak_bytes() - before)
"""
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    rows, growth = map(int, result.stdout.split())
    assert rows == 400_000
    assert growth <= 1.25 * limit * MIB + limit * MIB / 8


@pytest.mark.slow
def test_a_scan_keeps_to_128_mib(tmp_path: Path) -> None:
    metadata = table_of(tmp_path, 400_000).metadata_path
    code = f"""{PEAK_BYTES}
from nevermore import scan_core
from nevermore.scan_core import ScanOptions
scan = scan_core.open_table({str(metadata)!r}).scan().with_options(ScanOptions(memory_limit_bytes={128 * MIB}))
next(scan.limit(1).to_batches())
before = peak_bytes()
print(sum(b.num_rows for b in scan.to_batches()), peak_bytes() - before)
"""
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    rows, growth = map(int, result.stdout.split())
    assert rows == 320_000
    assert growth <= 1.25 * 128 * MIB
