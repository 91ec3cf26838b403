"""What does an incremental table save? 200 days of orders by city; 1 % of the rows of two days change between runs.

Run: `python -m benchmarks.incremental_publish`. In every round the mirror takes a batch of changes, then one published table is
brought up to date incrementally and its twin, of the same SQL, is made in full, in one session of Spark; both must hold the
same rows. CPU time is that of this process, Java and its Python workers.
"""

import argparse
import hashlib
import itertools
import json
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from benchmarks.decoded_changes import changes_of
from benchmarks.interop_session import cpu_seconds
from benchmarks.race import Answer, Goal, race, report
from pipelines.changes.change_log import ChangeLog
from pipelines.config.project import Config, change_log_name, parse
from pipelines.iceberg.catalog import find_table, open_catalog
from pipelines.ingest.feed_run import freeze_imports
from pipelines.mirrors.mirror import Mirror
from pipelines.publish.refresh import publish
from pipelines.publish.refresh_report import PublishReport
from scan_core import open_table

ROUNDS = 5
DAYS = 200
ROWS_PER_DAY = 20_000
CUSTOMERS = 5_000
CITIES = 50
FIRST = np.datetime64("2026-01-01T00:00:00", "us")
DAY_MICROSECONDS = 86_400_000_000
CONFIG = """
tables:
  shop.orders: {source: {type: files, path: none}, key: [id], partition_by: ["day(at)"]}
  shop.customers: {source: {type: files, path: none}, key: [id]}
published:
  {first}: &daily
    partition: day
    incremental: true
    sql: >
      select cast(o.at as date) as day, c.city, count(*) as orders, sum(o.amount) as amount, max(o.amount) as most
      from shop.orders o left join shop.customers c on c.id = o.customer_id
      group by 1, 2
  {second}: *daily
spark: {conf: {spark.driver.memory: 2g, spark.sql.shuffle.partitions: "2"}}
"""


def shop_config(folder: str, first: str, second: str) -> Config:
    """A project with two published tables of the same SQL."""
    return parse(CONFIG.replace("{first}", first).replace("{second}", second), Path(folder) / "nevermore.yaml")


def orders(numbers: np.ndarray, seed: int) -> pa.Table:
    """Orders by number, in order of time; amounts are of the seed."""
    random = np.random.default_rng(seed)
    return pa.table({
        "id": pa.array(numbers),
        "customer_id": pa.array(numbers * 7_919 % CUSTOMERS),
        "at": pa.array(FIRST + numbers * (DAY_MICROSECONDS // ROWS_PER_DAY)).cast(pa.timestamp("us", "UTC")),
        "amount": pa.array(random.integers(1, 100_000, len(numbers))),
        "note": pa.array(np.char.add("note ", (numbers % 1_000).astype(np.str_))),
    })  # fmt: skip


class Shop:
    """The mirrors, fed with decoded changes."""

    def __init__(self, config: Config) -> None:
        self.config = config
        self._catalog = open_catalog(config)
        self._positions = itertools.count()
        self._batches = itertools.count(1)

    def apply(self, name: str, rows: pa.Table) -> None:
        log = ChangeLog(self._catalog, change_log_name(name))
        mirror = Mirror(self._catalog, name, self.config.tables[name], ("id",))
        appended = log.append(changes_of(rows), str(next(self._positions)))
        list(mirror.catch_up(log, appended, reject=lambda _: None))

    def fill(self, days: int) -> None:
        """All customers, and the orders of some days."""
        numbers = np.arange(CUSTOMERS)
        self.apply("shop.customers", pa.table({"id": numbers, "city": [f"city-{n % CITIES}" for n in numbers]}))
        for start in range(0, days, 50):
            last = min(start + 50, days)
            self.apply("shop.orders", orders(np.arange(start * ROWS_PER_DAY, last * ROWS_PER_DAY), 0))

    def change(self) -> None:
        """1 % of the orders of two days get other amounts; other days in each batch."""
        batch = next(self._batches)
        random = np.random.default_rng(batch)
        days = random.choice(DAYS, 2, replace=False)
        chosen = [d * ROWS_PER_DAY + random.choice(ROWS_PER_DAY, ROWS_PER_DAY // 100, replace=False) for d in days]
        self.apply("shop.orders", orders(np.sort(np.concatenate(chosen)), batch))

    def publish(self, name: str, prove: Callable[[PublishReport], None] = lambda _: None, **options: Any) -> Answer:
        """Bring a table up to date; `prove` looks at the report."""
        wall, cpu = time.perf_counter(), cpu_seconds()
        made = publish(self.config, name, **options)
        wall, cpu = time.perf_counter() - wall, cpu_seconds() - cpu
        prove(made)
        return Answer(self._digest(name), wall, cpu)

    def _digest(self, name: str) -> str:
        """A digest of all rows of a published table."""
        rows = (
            open_table(find_table(self._catalog, name))
            .scan()
            .to_table()
            .sort_by([(c, "ascending") for c in ("day", "city")])
        )
        return hashlib.sha256(json.dumps(rows.to_pydict(), default=str).encode()).hexdigest()


def measure(rounds: int) -> None:
    """Print and record the race."""
    with tempfile.TemporaryDirectory() as folder:
        shop = Shop(shop_config(folder, "shop.incremental", "shop.full"))
        shop.fill(DAYS)
        shop.publish("shop.incremental", is_full=True)

        def prove(made: PublishReport) -> None:
            assert made.partitions is None or len(made.partitions) == 2, made

        def incremental() -> Answer:
            shop.change()
            return shop.publish("shop.incremental", prove)

        candidates: dict[str, Callable[[], Any]] = {
            "incremental": incremental,
            "full": lambda: shop.publish("shop.full", is_full=True),
        }
        title = f"publish, {DAYS} days of {ROWS_PER_DAY:,} rows, 1 % of two days changed"
        report(title, race(candidates, rounds), "incremental", [Goal("incremental", "full")])


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    freeze_imports()
    measure(parser.parse_args().rounds)
