"""A published table over orders and customers, whose mirrors tests change batch by batch."""

import datetime as dt
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pyarrow as pa

from nevermore.pipelines.config.project import Config, parse
from nevermore.pipelines.iceberg.catalog import create_table, find_table, open_catalog
from nevermore.pipelines.iceberg.commit import RowDelta
from nevermore.pipelines.iceberg.schema_evolution import iceberg_fields
from nevermore.pipelines.iceberg.table_writer import write_deletes, write_rows
from nevermore.pipelines.publish.refresh import publish
from nevermore.scan_core import open_table

NAME = "shop.daily"
BY_CITY = """
select cast(o.at as date) as day, c.city, count(*) as orders, sum(o.amount) as amount
from shop.orders o left join shop.customers c on c.id = o.customer_id
group by 1, 2
"""
Row = tuple[int, int | None, int, int]


def make_config(folder: Path, sql: str = BY_CITY, **entry: Any) -> Config:
    fields = {"partition": "day", "incremental": True} | entry
    lines = [
        "tables:",
        "  shop.orders: {source: {type: files, path: none}, key: [id]}",
        "  shop.customers: {source: {type: files, path: none}, key: [id]}",
        "published:",
        f"  {NAME}:",
        *(f"    {name}: {value!r}" for name, value in fields.items() if value is not None),
        "    sql: |",
        *("      " + line for line in sql.strip().splitlines()),
    ]
    return parse("\n".join(lines).replace("True", "true"), folder / "nevermore.yaml")


def orders(*rows: Row) -> pa.Table:
    """(id, customer, day of January, amount); noon."""
    ids, customers, days, amounts = zip(*rows, strict=True) if rows else ((), (), (), ())
    return pa.table({
        "id": pa.array(ids, pa.int64()),
        "customer_id": pa.array(customers, pa.int64()),
        "at": pa.array([dt.datetime(2026, 1, d, 12, tzinfo=dt.UTC) for d in days], pa.timestamp("us", "UTC")),
        "amount": pa.array(amounts, pa.int64()),
        "note": pa.array(["" for _ in ids], pa.string()),
    })  # fmt: skip


def customers(*rows: tuple[int, str]) -> pa.Table:
    ids, cities = zip(*rows, strict=True) if rows else ((), ())
    return pa.table({"id": pa.array(ids, pa.int64()), "city": pa.array(cities, pa.string())})


def apply(config: Config, name: str, rows: pa.Table, deleted: Iterable[int] = ()) -> None:
    """One batch of a mirror: keys deleted, rows written."""
    catalog = open_catalog(config)
    table = find_table(catalog, name) or create_table(catalog, name, iceberg_fields(rows.schema))
    delta = RowDelta(table)
    files = list(write_rows(rows, delta.target, delta.default_spec))
    if gone := list(deleted):
        files += write_deletes(pa.table({"id": pa.array(gone, pa.int64())}), delta.target, delta.default_spec, [1])
    delta.commit(files, {})


def published(config: Config) -> list[tuple[Any, ...]]:
    table = find_table(open_catalog(config), NAME)
    return sorted(
        (tuple(row.values()) for row in open_table(table).scan().to_table().to_pylist()), key=str
    )  # fmt: skip


def assert_is_what_all_gives(config: Config) -> None:
    made = published(config)
    publish(config, NAME, is_full=True)
    assert made == published(config)
