"""Dictionaries where values come again, and the same rows either way."""

from pathlib import Path
from typing import Any

import duckdb
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest

from nevermore.pipelines.iceberg.parquet_output import MIN_ROWS, dictionary_columns
from nevermore.pipelines.iceberg.storage import Storage
from nevermore.pipelines.iceberg.table_writer import WriterOptions, WriteTarget, write_rows
from nevermore.scan_core.model.schema import NestedField, Schema, parse_type
from nevermore.scan_core.model.snapshot import PartitionSpec

ROWS = 30_000
COLUMNS: dict[str, tuple[pa.Array, bool]] = {
    "unique": (pa.array(range(ROWS)), False),
    "unique_text": (pa.array([f"text {n}" for n in range(ROWS)]), False),
    "twice": (pa.array([n % (ROWS // 2) for n in range(ROWS)]), False),
    "few": (pa.array([f"v{n % 100}" for n in range(ROWS)]), True),
    "thousands": (pa.array(np.random.default_rng(1).integers(0, 3_000, ROWS)), True),
    "clustered": (pa.array([n // 500 for n in range(ROWS)]), True),
    "constant": (pa.array([1.5] * ROWS), True),
    "sparse": (pa.array([n if n % 50 == 0 else None for n in range(ROWS)], pa.int64()), True),
    "never": (pa.nulls(ROWS, pa.string()), True),
    "untyped": (pa.nulls(ROWS), True),
    "flag": (pa.array([n % 2 == 0 for n in range(ROWS)]), True),
    "wide": (pa.array([f"{n % 5_000}".rjust(400) for n in range(ROWS)]), False),
}


@pytest.mark.parametrize("name", COLUMNS)
def test_column_gets_a_dictionary_where_its_values_come_again(name: str) -> None:
    values, has_one = COLUMNS[name]
    assert dictionary_columns(pa.table({name: values})) == ([name] if has_one else [])


def test_nested_columns_are_judged_leaf_by_leaf() -> None:
    numbers = pa.array(range(ROWS))
    rows = pa.table(
        {
            "s": pa.StructArray.from_arrays([numbers, pa.array([n % 3 for n in range(ROWS)])], names=["a.b", "c"]),
            "l": pa.array([[n, n + ROWS] for n in range(ROWS)]),
            "m": pa.array([[(f"k{n % 3}", n)] for n in range(ROWS)], pa.map_(pa.string(), pa.int64())),
            "u": pa.array([n.to_bytes(16, "big") for n in range(ROWS)], pa.uuid()),
        }
    )
    assert dictionary_columns(rows) == ["s.c", "m.key_value.key"]


def test_small_file_has_dictionaries_for_all() -> None:
    assert dictionary_columns(pa.table({"n": range(MIN_ROWS - 1)})) is True


@pytest.mark.parametrize("sampled", [True, False])
def test_written_rows_are_the_same_with_and_without_sampling(tmp_path: Path, *, sampled: bool) -> None:
    tags = {"type": "list", "element-id": 4, "element": "string", "element-required": False}
    kinds: dict[str, Any] = {"unique": "long", "few": "string", "tags": tags}
    fields = tuple(NestedField(i, name, parse_type(kind)) for i, (name, kind) in enumerate(kinds.items(), 1))
    options = WriterOptions(sample_dictionaries=sampled)
    target = WriteTarget(Schema(0, fields), f"file://{tmp_path}", Storage(), options)
    rows = pa.table({**{n: COLUMNS[n][0] for n in ("unique", "few")}, "tags": [[f"t{n % 7}"] for n in range(ROWS)]})
    (file,) = write_rows(rows, target, PartitionSpec(0, ()))
    path = file.path.removeprefix("file://")
    assert pq.read_table(path).to_pydict() == rows.to_pydict()
    group = pq.read_metadata(path).row_group(0)
    assert [group.column(i).has_dictionary_page for i in range(3)] == [not sampled, True, True]


def test_numbers_without_a_dictionary_are_read_by_every_engine(tmp_path: Path) -> None:
    draw = np.random.default_rng(2)
    numbers = pa.array(draw.integers(-(2**55), 2**55, ROWS))
    doubles = pa.array(draw.standard_normal(ROWS), mask=np.arange(ROWS) % 7 == 0)
    rows = pa.table(
        {
            "n": numbers,
            "few": COLUMNS["few"][0],
            "s": pa.StructArray.from_arrays(
                [doubles, numbers.cast(pa.timestamp("us"))], names=["d", "at"], mask=pa.array(np.arange(ROWS) % 5 == 0)
            ),
        }
    )
    members = [
        {"id": 4, "name": "d", "type": "double", "required": False},
        {"id": 5, "name": "at", "type": "timestamp", "required": False},
    ]
    kinds: dict[str, Any] = {"n": "long", "few": "string", "s": {"type": "struct", "fields": members}}
    fields = tuple(NestedField(i, name, parse_type(kind)) for i, (name, kind) in enumerate(kinds.items(), 1))
    target = WriteTarget(Schema(0, fields), f"file://{tmp_path}", Storage())
    (file,) = write_rows(rows, target, PartitionSpec(0, ()))
    path = file.path.removeprefix("file://")
    found = pq.read_table(path)
    assert found.column("n").to_pylist() == rows.column("n").to_pylist()
    assert pc.struct_field(found["s"], "d").equals(pc.struct_field(rows["s"], "d"))
    assert pc.struct_field(found["s"], "at").cast(pa.int64()).equals(pc.struct_field(rows["s"], "at").cast(pa.int64()))
    group = pq.read_metadata(path).row_group(0)
    encodings = {e for i in range(group.num_columns) for e in group.column(i).encodings}
    assert "DELTA_BINARY_PACKED" not in encodings  # which not every reader knows
    answer = duckdb.sql(f"select sum(n::hugeint), max(s.d), min(s.at) from '{path}'").fetchall()
    values = pc.struct_field(rows["s"], "d"), pc.struct_field(rows["s"], "at")
    assert answer == [(sum(rows["n"].to_pylist()), pc.max(values[0]).as_py(), pc.min(values[1]).as_py())]
