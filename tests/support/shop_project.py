"""A project as users have it: a nevermore.yaml, event files that land, and Dagster definitions over both."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import dagster as dg
import yaml

from nevermore.assets.definitions import project_definitions
from nevermore.pipelines.config.project import Config, load

_CONFIG = """
tables:
  shop.orders:
    source: {type: files, path: "landing/orders/*.jsonl", format: debezium-json}
    key: [id]
    deletes: equality
    types: {amount: double, day: date}
  shop.customers:
    source: {type: files, path: "landing/people/*.jsonl", format: debezium-json}
    key: [id]
    deletes: equality
  shop.suppliers:
    source: {type: files, path: "landing/people/*.jsonl", format: debezium-json}
    key: [id]
    deletes: equality
published:
  shop.daily:
    partition: day
    start: "2026-01-01"
    sql: select day, count(*) as orders, sum(amount) as amount from shop.orders group by day
"""


class ShopProject:
    """One project in a folder of a test."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.path = folder / "nevermore.yaml"
        self.path.write_text(_CONFIG)

    @property
    def config(self) -> Config:
        return load(self.path)

    @property
    def definitions(self) -> dg.Definitions:
        return project_definitions(self.config)

    def configure(self, **options: Any) -> None:
        """Set options at the top level of the config."""
        document = yaml.safe_load(self.path.read_text()) | options
        self.path.write_text(yaml.safe_dump(document, sort_keys=False))

    def land(self, folder: str, name: str, events: Sequence[dict[str, Any] | str]) -> None:
        """A file of Debezium events; a text stands for a broken line."""
        path = self.folder / "landing" / folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("".join(f"{e if isinstance(e, str) else json.dumps(e)}\n" for e in events))

    def land_orders(self) -> None:
        """Six orders on two days in a first file; one deleted, one changed, one new in a second."""
        first = [order(i, 10.0 * i, 1 + i % 2) for i in range(1, 7)]
        self.land("orders", "1.jsonl", [event("c", "orders", after=row) for row in first])
        self.land("orders", "2.jsonl", [
            event("d", "orders", before=first[0]),
            event("u", "orders", before=first[1], after=order(2, 25.0, 1)),
            event("c", "orders", after=order(7, 70.0, 2)),
        ])  # fmt: skip

    def land_people(self) -> None:
        """Customers and suppliers in one feed."""
        self.land("people", "1.jsonl", [
            event("c", "customers", after={"id": 1, "name": "Ada"}),
            event("c", "suppliers", after={"id": 9, "name": "Bolts"}),
            event("c", "customers", after={"id": 2, "name": None}),
            event("d", "customers", before={"id": 1, "name": "Ada"}),
        ])  # fmt: skip


def order(number: int, amount: float, day: int) -> dict[str, Any]:
    """A row of shop.orders on a day of January 2026; Debezium sends dates as days."""
    return {"id": number, "amount": amount, "day": 20_453 + day}


def event(
    operation: str, table: str, *, before: dict[str, Any] | None = None, after: dict[str, Any] | None = None
) -> dict[str, Any]:
    """A Debezium event without schema envelope."""
    return {"op": operation, "before": before, "after": after, "source": {"db": "shop", "table": table}, "ts_ms": 1}
