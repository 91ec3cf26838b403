"""Filters on parts of nested columns: what is gained over reading and evaluating the whole column?

A struct of 16 members, lists of 12 and maps of 12 keys, 1 M rows. The baseline is pyarrow: it decodes the whole column and
takes the member, element or value of every row for every condition.
"""

import shutil
from collections.abc import Callable
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from benchmarks.race import Goal, chosen, race, report
from benchmarks.shapes import DATA
from nevermore import scan_core
from nevermore.pipelines.config.project import parse
from nevermore.pipelines.iceberg.catalog import create_table, open_catalog
from nevermore.pipelines.iceberg.commit import RowDelta
from nevermore.pipelines.iceberg.table_writer import WriterOptions, write_rows
from nevermore.scan_core.model.schema import ListType, MapType, NestedField, PrimitiveType, StructType

ROWS = 1_000_000
MEMBERS, KEYS = 16, 12
_INT, _LONG, _STRING = PrimitiveType("int"), PrimitiveType("long"), PrimitiveType("string")


def nested_rows(count: int) -> pa.Table:
    """Seeded: members and values are small integers and words; every map has the same keys in the same order."""
    random = np.random.default_rng(5)
    words = pa.array([f"word-{k}" for k in range(1_000)])
    members = [
        pa.array(random.integers(0, 1_000, count).astype(np.int32))
        if k % 2 == 0
        else pa.DictionaryArray.from_arrays(pa.array(random.integers(0, 1_000, count).astype(np.int32)), words).cast(
            pa.string()
        )
        for k in range(MEMBERS)
    ]
    offsets = pa.array(np.arange(count + 1, dtype=np.int32) * KEYS)
    values = pa.array(random.integers(0, 5, count * KEYS).astype(np.int32))
    keys = pa.array(np.tile(np.arange(KEYS, dtype=np.int32), count))
    return pa.table(
        {
            "id": np.arange(count),
            "s": pa.StructArray.from_arrays(members, [f"m{k}" for k in range(MEMBERS)]),
            "l": pa.ListArray.from_arrays(offsets, values),
            "features": pa.MapArray.from_arrays(offsets, keys, values),
        }
    )


def build() -> Any:
    """The PyIceberg table, built on the first call."""
    folder = DATA / f"nested_{ROWS}"
    config = parse("catalog: {type: sql}\ntables: {}\n", folder / "nevermore.yaml")
    if (folder / "complete").exists():
        return open_catalog(config).load_table(("bench", "nested"))
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    members = tuple(NestedField(10 + k, f"m{k}", _INT if k % 2 == 0 else _STRING) for k in range(MEMBERS))
    fields = [
        NestedField(1, "id", _LONG),
        NestedField(2, "s", StructType(members)),
        NestedField(3, "l", ListType(NestedField(40, "element", _INT))),
        NestedField(
            4,
            "features",
            MapType(NestedField(41, "key", _INT, required=True), NestedField(42, "value", _INT)),
        ),
    ]
    table = create_table(open_catalog(config), "bench.nested", fields)
    delta = RowDelta(table, WriterOptions(file_bytes=1 << 40))
    delta.commit(write_rows(nested_rows(ROWS), delta.target, delta.default_spec), {})
    (folder / "complete").touch()
    return open_catalog(config).load_table(("bench", "nested"))


def whole_column(path: str, column: str, evaluate: Callable[[pa.Array], pa.Array]) -> int:
    """Rows for which `evaluate` is true, by pyarrow, row group by row group, with one thread."""
    file, total = pq.ParquetFile(path), 0
    for k in range(file.num_row_groups):
        array = file.read_row_group(k, columns=[column], use_threads=False).column(column)
        total += pc.sum(pc.fill_null(evaluate(array.combine_chunks()), False)).as_py() or 0
    return total


def both(first: pa.Array, second: pa.Array) -> pa.Array:
    """AND of two arrays of truth values."""
    return pc.and_kleene(first, second)


CASES: dict[str, tuple[str, str, float, Callable[[pa.Array], pa.Array]]] = {
    "struct members": (
        "s.m0 = 7 and s.m1 = 'word-3'",
        "s",
        5.0,
        lambda a: both(pc.equal(pc.struct_field(a, [0]), 7), pc.equal(pc.struct_field(a, [1]), "word-3")),
    ),
    "map of 12 keys": (
        "features[3] = 4 and features[1] = 2",
        "features",
        1.5,
        lambda a: both(
            pc.equal(pc.map_lookup(a, pa.scalar(3, pa.int32()), "first"), 4),
            pc.equal(pc.map_lookup(a, pa.scalar(1, pa.int32()), "first"), 2),
        ),
    ),
    "list of 12": (
        "l[3] = 4 and l[1] = 2",
        "l",
        1.0,
        lambda a: both(pc.equal(pc.list_element(a, 3), 4), pc.equal(pc.list_element(a, 1), 2)),
    ),
}


def measure() -> None:
    """Print each case beside its baseline."""
    table = build()
    (path,) = (p.removeprefix("file://") for p in table.inspect.data_files()["file_path"].to_pylist())
    opened = scan_core.open_table(table.metadata_location)
    for name, (where, column, factor, evaluate) in CASES.items():
        scan = opened.scan().where(where).with_options(scan_core.ScanOptions(parallelism=1))
        candidates: dict[str, Callable[[], Any]] = {
            "nevermore": scan.count,
            "pyarrow, whole column": lambda c=column, e=evaluate: whole_column(path, c, e),  # type: ignore[misc]
        }
        goal = Goal("nevermore", "pyarrow, whole column", 1 / factor)
        report(f"{name}: {where}", race(candidates), "nevermore", [goal])


if __name__ == "__main__":
    chosen(__doc__)
    measure()
