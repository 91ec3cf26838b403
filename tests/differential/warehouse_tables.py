"""Three mirrors of a small shop with what makes mirrors hard to read: deletes by key, evolved columns, partitions, NULL keys."""

import datetime as dt
from collections.abc import Mapping
from dataclasses import dataclass
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa

from nevermore.checks.reference.expected_rows import live_rows
from tests.support.iceberg_json import Column, Partition, list_of, map_of, struct
from tests.support.table_builder import TableBuilder

Rows = dict[str, list[Any]]
DAYS = [dt.date(2026, 1, 30), dt.date(2026, 1, 31), dt.date(2026, 2, 28), None]
CITIES = ["Oslo", "Moss", "Bergen", None, "oslo", ""]


@dataclass(frozen=True, slots=True)
class Warehouse:
    """The tables by name: their metadata files, and the rows that no delete removes."""

    paths: Mapping[str, Path]
    rows: Mapping[str, pa.Table]


def build_warehouse(folder: Path) -> Warehouse:
    """Build `shop.customers`, `shop.orders` and `shop.products`."""
    built = {"shop.customers": _customers, "shop.orders": _orders, "shop.products": _products}
    paths = {name: make(folder / name).metadata_path for name, make in built.items()}
    return Warehouse(paths, {name: live_rows(str(path)) for name, path in paths.items()})


def _customers(folder: Path) -> TableBuilder:
    """Three ways of reading: before a type was promoted, before a column was added and one renamed, and now."""
    place = struct(Column(21, "street", "string"), Column(22, "zip", "int"))
    first = [
        Column(1, "id", "long"), Column(2, "town", "string"), Column(3, "credit", "decimal(7, 2)"),
        Column(4, "score", "float"), Column(5, "place", place),
    ]  # fmt: skip
    promoted = [*first[:2], Column(3, "credit", "decimal(12, 2)"), Column(4, "score", "double"), first[4]]
    renamed = [
        first[0], Column(2, "City", "string"), *promoted[2:4],
        Column(5, "place", struct(Column(21, "road", "string"), Column(22, "zip", "long"))), Column(6, "parent", "long"),
    ]  # fmt: skip
    table = TableBuilder(folder, first)
    table.commit(table.data(_customer_rows(range(10), "town", "street")))
    table.evolve(*promoted)
    table.commit(table.data(_customer_rows(range(10, 18), "town", "street")))
    table.commit(table.equality_delete({"id": [3, 11, None]}, ids=[1]))
    table.evolve(*renamed)
    later = _customer_rows(range(18, 26), "City", "road") | {"parent": [None, 1, 1, 2, 18, 19, 99, None]}
    table.commit(table.data(later))
    table.commit(table.data(_customer_rows([3, None], "City", "road") | {"parent": [4, None]}))
    table.commit(table.equality_delete({"id": [20, 5]}, ids=[1]))
    return table


def _customer_rows(ids: Any, city: str, street: str) -> Rows:
    ids = list(ids)
    numbers = [99 if i is None else i for i in ids]
    places = [None if n % 4 == 3 else {street: None if n % 5 == 0 else f"Road {n % 3}", "zip": n * 7} for n in numbers]
    return {
        "id": ids,
        city: [CITIES[n % len(CITIES)] for n in numbers],
        "credit": [None if n % 7 == 6 else Decimal(n * 11) / 4 for n in numbers],
        "score": [None if n % 6 == 5 else float("nan") if n % 6 == 4 else -0.0 if n == 0 else n / 4 for n in numbers],
        "place": places,
    }


def _orders(folder: Path) -> TableBuilder:
    """A partition per day, one of them NULL; the last partition has no deletes."""
    line = struct(Column(31, "sku", "string"), Column(32, "n", "int"))
    columns = [
        Column(1, "id", "long"), Column(2, "customer_id", "long"), Column(3, "day", "date"), Column(4, "at", "timestamptz"),
        Column(5, "amount", "decimal(10, 2)"), Column(6, "qty", "int"), Column(7, "lines", list_of(30, line)),
        Column(8, "tags", map_of(33, "string", 34, "string")),
    ]  # fmt: skip
    table = TableBuilder(folder, columns, partitions=[Partition("day", 3)])
    rows = [_order(i) for i in range(60)]
    by_day = {day: [row for row in rows if row["day"] == day] for day in DAYS}
    table.commit(*(table.data(_by_column(of_day), partition={"day": _days(day)}) for day, of_day in by_day.items()))
    for day in DAYS[:3]:
        gone = [row["id"] for row in by_day[day]][::5]
        deletes = table.equality_delete({"id": gone}, ids=[1], partition={"day": _days(day)}, columns=columns[:1])
        table.commit(deletes)
    again = [_order(i) | {"qty": None, "day": DAYS[0]} for i in (0, 20, 100)]
    table.commit(table.data(_by_column(again), partition={"day": _days(DAYS[0])}))
    return table


def _days(day: dt.date | None) -> int | None:
    return None if day is None else (day - dt.date(1970, 1, 1)).days


def _by_column(rows: list[dict[str, Any]]) -> Rows:
    return {name: [row[name] for row in rows] for name in rows[0]}


def _order(number: int) -> dict[str, Any]:
    day = DAYS[number % len(DAYS)]
    lines = [{"sku": f"p{(number + k) % 5}", "n": None if k == 2 else k + 1} for k in range(number % 4)]
    return {
        "id": number,
        "customer_id": None if number % 11 == 10 else number % 28,
        "day": day,
        "at": dt.datetime(2026, 1, 1, tzinfo=dt.UTC) + dt.timedelta(hours=13 * number, microseconds=number),
        "amount": None if number % 9 == 8 else Decimal(number * 37 % 500) / 4,
        "qty": number % 6,
        "lines": None if number % 13 == 12 else lines,
        "tags": None if number % 5 == 4 else {"channel": ["web", "shop"][number % 2], "n": str(number)},
    }


def _products(folder: Path) -> TableBuilder:
    """A small table with a key of two columns, one of them NULL."""
    table = TableBuilder(folder, [Column(1, "sku", "string"), Column(2, "size", "int"), Column(3, "price", "double")])
    rows = {
        "sku": ["p0", "p0", "p1", "p2", "P3", None],
        "size": [1, None, 1, 1, 2, 1],
        "price": [1.5, 2.5, 0.1, 0.2, 1e9, 7.0],
    }
    table.commit(table.data(rows))
    table.commit(table.equality_delete({"sku": ["p0", "p2"], "size": [None, 1]}, ids=[1, 2]))
    table.commit(table.data({"sku": ["p2", "p4"], "size": [3, None], "price": [0.3, None]}))
    return table
