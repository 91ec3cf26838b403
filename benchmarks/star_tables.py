"""A star for joins: 204,000 items, and an inventory of them in three orders, with and without deletes.

As TPC-DS has them at scale 100 (item, inventory), where the paper on dynamic pruning that we follow measured; the inventory
is smaller by the factor that this machine asks for. Clustered: in the order of the item; half clustered: each file has
a window of the items, in random order; random: every file has all items.
"""

import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from benchmarks.shapes import DATA
from nevermore.pipelines.config.project import parse
from nevermore.pipelines.iceberg.catalog import create_table, open_catalog
from nevermore.pipelines.iceberg.commit import RowDelta
from nevermore.pipelines.iceberg.table_writer import WriterOptions, check_key, write_deletes, write_rows
from nevermore.scan_core.model.schema import NestedField, PrimitiveType

ITEMS = 204_000
ROWS = 32_000_000
FILE_ROWS = 2_000_000
DELETED = 1_000_000
LAYOUTS = ("clustered", "half_clustered", "random", "skewed")
_CONFIG = "catalog: {type: sql}\ntables: {}\n"
_INT, _LONG, _STRING = PrimitiveType("int"), PrimitiveType("long"), PrimitiveType("string")
_ITEM = [
    NestedField(1, "i_item_sk", _INT),
    NestedField(2, "i_category", _STRING),
    NestedField(3, "i_price", PrimitiveType("double")),
]
_INVENTORY = [
    NestedField(1, "inv_row", _LONG),
    NestedField(2, "inv_item_sk", _INT),
    NestedField(3, "inv_date_sk", _INT),
    NestedField(4, "inv_warehouse_sk", _INT),
    NestedField(5, "inv_quantity", _INT),
]


def items() -> Any:
    """The PyIceberg table of items, built on the first call."""
    return _built("item", _ITEM, lambda: [_items()], deletes=False)


def inventory(layout: str, *, deletes: bool = False) -> Any:
    """The PyIceberg table of the inventory in one of LAYOUTS; with deletes a million rows less, in ten files of keys."""
    files = (rows_of(layout, start) for start in range(0, ROWS, FILE_ROWS))
    return _built(f"inventory_{layout}{'_deletes' * deletes}", _INVENTORY, lambda: files, deletes=deletes)


def rows_of(layout: str, start: int) -> pa.Table:
    """The rows of the file that begins at row `start`."""
    random = np.random.default_rng((LAYOUTS.index(layout), start))
    row = np.arange(start, start + FILE_ROWS, dtype=np.int64)
    in_order = (row * ITEMS // ROWS + 1).astype(np.int32)
    match layout:
        case "clustered":
            item = in_order
        case "half_clustered":
            item = random.permutation(in_order)
        case "random":
            item = random.integers(1, ITEMS + 1, FILE_ROWS, dtype=np.int32)
        case _:
            item = np.minimum(random.zipf(1.3, FILE_ROWS), ITEMS).astype(np.int32)
    return pa.table(
        {
            "inv_row": row,
            "inv_item_sk": item,
            "inv_date_sk": (row % 261 + 2_450_815).astype(np.int32),
            "inv_warehouse_sk": random.integers(1, 16, FILE_ROWS, dtype=np.int32),
            "inv_quantity": random.integers(0, 1_000, FILE_ROWS, dtype=np.int32),
        }
    )


def _items() -> pa.Table:
    random = np.random.default_rng(5)
    number = np.arange(1, ITEMS + 1, dtype=np.int32)
    categories = pa.array([f"category-{i}" for i in range(12)])
    return pa.table(
        {
            "i_item_sk": number,
            "i_category": pa.DictionaryArray.from_arrays(random.integers(0, 12, ITEMS), categories).cast(pa.string()),
            "i_price": random.random(ITEMS) * 100,
        }
    )


def _built(name: str, fields: list[NestedField], rows: Any, *, deletes: bool) -> Any:
    folder = DATA / f"star_{name}_{ROWS}"
    complete, identifier = folder / "complete", ("bench", name)
    if not complete.exists():
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        _write(folder, name, fields, rows(), deletes=deletes)
        complete.touch()
    return open_catalog(parse(_CONFIG, folder / "nevermore.yaml")).load_table(identifier)


def _write(folder: Path, name: str, fields: list[NestedField], files: Any, *, deletes: bool) -> None:
    catalog = open_catalog(parse(_CONFIG, folder / "nevermore.yaml"))
    table = create_table(catalog, f"bench.{name}", fields, partition_by=[])
    delta = RowDelta(table, WriterOptions(file_bytes=1 << 40))
    key_ids = check_key(delta.schema, [fields[0].name])
    written = [f for rows in files for f in write_rows(rows, delta.target, delta.default_spec, key_ids=key_ids)]
    delta.commit(written, {})
    if deletes:
        chosen = np.random.default_rng(11).choice(ROWS, DELETED, replace=False).astype(np.int64)
        delta = RowDelta(catalog.load_table(("bench", name)))
        keys = [pa.table({fields[0].name: part}) for part in np.array_split(chosen, 10)]
        delta.commit([f for k in keys for f in write_deletes(k, delta.target, delta.default_spec, key_ids)], {})
