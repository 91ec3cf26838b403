"""A project whose mirror has millions of rows and deletes, and what DuckDB says of its published tables."""

from collections import Counter
from pathlib import Path
from typing import Any

import duckdb
import numpy as np
import pyarrow as pa

from nevermore.checks.reference.expected_rows import live_rows
from nevermore.pipelines.config.project import Config, load
from nevermore.pipelines.iceberg.catalog import create_table, find_table, open_catalog
from nevermore.pipelines.iceberg.commit import RowDelta
from nevermore.pipelines.iceberg.schema_evolution import iceberg_fields
from nevermore.pipelines.iceberg.table_writer import WriterOptions, write_deletes, write_rows

DAYS = ("2026-01-01", "2026-01-02")
TABLES = ("shop.daily", "shop.copied", "shop.latest")
_CONFIG = """
tables:
  shop.sales: {source: {path: none}, key: [id]}
  shop.stores: {source: {path: none}, key: [id]}
published:
  shop.daily:
    partition: day
    sql: >
      select s.day, t.name, count(*) as sales, sum(s.amount) as amount, max(s.note) as note
      from shop.sales s left join shop.stores t on t.id = s.store group by s.day, t.name
  shop.copied:
    partition: day
    sql: select day, id, amount, note from shop.sales
  shop.latest:
    partition: day
    mode: upsert
    key: [store]
    sql: select day, store, max(id) as id from shop.sales group by day, store
"""


def make_project(folder: Path, num_rows: int, num_deletes: int) -> Path:
    """Sales of two days in several files, some deleted, a few of these sold again; the path of its config."""
    path = folder / "nevermore.yaml"
    folder.mkdir(parents=True, exist_ok=True)
    path.write_text(_CONFIG)
    catalog = open_catalog(load(path))
    generator = np.random.default_rng(3)
    deleted = generator.choice(num_rows, num_deletes, replace=False)
    append(catalog, "shop.sales", sales(np.arange(num_rows)))
    for part in np.array_split(deleted, 4):
        delete(catalog, "shop.sales", part)
    append(catalog, "shop.sales", sales(deleted[:1_000]))
    stores = {"id": pa.array(np.arange(40)), "name": [f"store {i}" for i in range(40)]}
    append(catalog, "shop.stores", pa.table(stores))
    delete(catalog, "shop.stores", np.array([7]))
    return path


def sales(ids: np.ndarray[Any, np.dtype[np.int64]]) -> pa.Table:
    """One row per id, decided by it."""
    days = np.datetime64(DAYS[0]) + (ids % 2).astype("timedelta64[D]")
    return pa.table(
        {
            "id": pa.array(ids, pa.int64()),
            "store": pa.array(ids % 41, pa.int64()),
            "day": pa.array(days, pa.date32()),
            "amount": pa.array((ids * 7 % 10_000).astype("float64") / 4, pa.float64()),
            "note": pa.array([f"note {i}" for i in range(97)]).take(pa.array(ids % 97)),
        }
    )


def append(catalog: Any, name: str, rows: pa.Table) -> None:
    """A batch of rows, in files of a few hundred thousand."""
    table = find_table(catalog, name) or create_table(catalog, name, iceberg_fields(rows.schema))
    delta = RowDelta(table, WriterOptions(file_bytes=rows.nbytes // 5 + 1_000, row_group_rows=50_000))
    delta.commit(write_rows(rows, delta.target, delta.default_spec, key_ids=[1]), {})


def delete(catalog: Any, name: str, ids: np.ndarray[Any, np.dtype[np.int64]]) -> None:
    """An equality delete of these ids."""
    delta = RowDelta(find_table(catalog, name))
    keys = pa.table({"id": pa.array(ids, pa.int64())})
    delta.commit(write_deletes(keys, delta.target, delta.default_spec, [1]), {})


def expected(config: Config) -> dict[str, list[tuple[Any, ...]]]:
    """By DuckDB, from the mirrors' own files: sums by store, and the rows of the published tables."""
    tables = {name: _metadata(config, name) for name in ("shop.sales", "shop.stores")}
    with duckdb.connect() as connection:
        connection.register("sales", live_rows(tables["shop.sales"]))
        connection.register("stores", live_rows(tables["shop.stores"]))
        queries = {
            "read": "select store, count(*), sum(amount) from sales group by store order by store",
            "shop.daily": """
                select s.day, t.name, count(*), sum(s.amount), max(s.note) from sales s left join stores t on t.id = s.store
                group by s.day, t.name""",
            "shop.copied": "select day, id, amount, note from sales",
            "shop.latest": """
                select max(day), store, arg_max(id, day) from
                (select day, store, max(id) as id from sales group by day, store) group by store""",
        }
        return {name: connection.execute(sql).fetchall() for name, sql in queries.items()}


def published(config: Config, name: str, columns: list[str]) -> Counter[tuple[Any, ...]]:
    """The live rows of a published table, by DuckDB."""
    rows = live_rows(_metadata(config, name)).select(columns)
    with duckdb.connect() as connection:
        connection.register("rows", rows)
        return Counter(connection.execute("select * from rows").fetchall())


def _metadata(config: Config, name: str) -> str:
    table = find_table(open_catalog(config), name)
    assert table is not None
    return str(table.metadata_location).removeprefix("file://")
