"""What do a publication's ways of reading its mirrors save? Spark's own reader, and conditions and keys passed to scans.

Run: `python -m benchmarks.publish_reads`. 100 days of orders, a tenth of them with a later version and so a deleted row, are
joined with customers and summed by day and city: all of them by either reader, then those of one city with high
amounts, with and without conditions and keys passed to the scans. CPU time is that of this process, Java and its Python workers.
"""

import argparse
import tempfile
from contextlib import nullcontext
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np

from benchmarks.incremental_publish import CUSTOMERS, ROWS_PER_DAY, Shop, orders
from benchmarks.race import Goal, race, report
from nevermore.pipelines.config.project import parse
from nevermore.pipelines.ingest.feed_run import freeze_imports
from nevermore.pipelines.publish import refresh
from nevermore.scan_core.spark import PushedScans

ROUNDS = 5
DAYS = 100
CONFIG = """
tables:
  shop.orders: {source: {type: files, path: none}, key: [id], partition_by: ["day(at)"]}
  shop.customers: {source: {type: files, path: none}, key: [id]}
published:
  shop.by_spark: &whole
    partition: day
    sql: >
      select cast(o.at as date) as day, c.city, count(*) as orders, sum(o.amount) as amount, max(o.note) as note
      from shop.orders o join shop.customers c on c.id = o.customer_id
      group by 1, 2
  shop.by_python: {<<: *whole, options: {reader: python}}
  shop.pushed: &narrow
    partition: day
    sql: >
      select cast(o.at as date) as day, c.city, count(*) as orders, sum(o.amount) as amount, max(o.note) as note
      from shop.orders o join shop.customers c on c.id = o.customer_id
      where c.city = 'city-7' and o.amount > 90000
      group by 1, 2
  shop.unpushed: *narrow
  shop.unpushed_by_python: {<<: *narrow, options: {reader: python}}
spark: {conf: {spark.driver.memory: 2g, spark.sql.shuffle.partitions: "2"}}
"""


def measure(rounds: int) -> None:
    """Print and record both races."""
    with tempfile.TemporaryDirectory() as folder:
        shop = Shop(parse(CONFIG, Path(folder) / "nevermore.yaml"))
        numbers = np.arange(CUSTOMERS)
        shop.fill(DAYS)
        for batch in range(2):
            chosen = np.random.default_rng(batch).choice(DAYS * ROWS_PER_DAY, DAYS * ROWS_PER_DAY // 20, replace=False)
            shop.apply("shop.orders", orders(np.sort(chosen), batch + 1))
        rows = f"{DAYS * ROWS_PER_DAY:,} orders of {len(numbers):,} customers, 10 % deleted"
        for what, names, goals in (
            ("all rows", ("by_spark", "by_python"), [Goal("by_spark", "by_python")]),
            (
                "one city, high amounts",
                ("pushed", "unpushed", "unpushed_by_python"),
                [Goal("pushed", "unpushed"), Goal("pushed", "unpushed_by_python")],
            ),
        ):
            candidates = {name: lambda name=name: publish(shop, name) for name in names}
            report(f"publish {what}, {rows}", race(candidates, rounds), names[0], goals)


def publish(shop: Shop, name: str) -> Any:
    """Publish an entry; those called unpushed without conditions and keys in the scans."""
    unpushed = patch.object(refresh, "push_down", lambda _, scans, __: PushedScans(scans, {}))
    with unpushed if name.startswith("unpushed") else nullcontext():
        return shop.publish(f"shop.{name}", is_full=True)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    freeze_imports()
    measure(parser.parse_args().rounds)
