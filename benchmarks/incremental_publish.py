"""What does an incremental table save? 200 days of orders; 1 % of the rows of some days change between runs.

Run: `python -m benchmarks.incremental_publish [partitions] [sums] [rows]`. In every round the mirror takes a batch of changes,
then published tables of the same SQL are brought up to date by key or by partition, and one is made in full, in one session
of Spark; all must hold the same rows. CPU time is that of this process, Java and its Python workers.

- `partitions`: sums by day and city, two days change.
- `sums`: sums by day and customer, 20 days change; by key, by day, and in full.
- `rows`: orders with the city of their customer, 20 days change; by key, by day, and in full.

Of the 5,000 customers, the changes of a day are of 4 %. With `--rows-per-day 100000 --customers 100000` they are of 1 %, in tables
so large that the fixed costs of a run hardly count.
"""

import argparse
import itertools
import json
import tempfile
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import duckdb
import numpy as np
import pyarrow as pa

from benchmarks.decoded_changes import changes_of
from benchmarks.interop_session import cpu_seconds
from benchmarks.race import Answer, Goal, race, report
from nevermore.pipelines.changes.change_log import ChangeLog
from nevermore.pipelines.config.project import Config, change_log_name, parse
from nevermore.pipelines.iceberg.catalog import find_table, open_catalog
from nevermore.pipelines.ingest.feed_run import freeze_imports
from nevermore.pipelines.mirrors.mirror import Mirror
from nevermore.pipelines.publish.refresh import publish
from nevermore.pipelines.publish.refresh_report import PublishReport
from nevermore.scan_core import open_table

ROUNDS = 5
DAYS = 200
ROWS_PER_DAY = 20_000
CUSTOMERS = 5_000
CITIES = 50
FIRST = np.datetime64("2026-01-01T00:00:00", "us")
DAY_MICROSECONDS = 86_400_000_000
TABLES = """
tables:
  shop.orders: {source: {type: files, path: none}, key: [id], partition_by: ["day(at)"]}
  shop.customers: {source: {type: files, path: none}, key: [id]}
published:
"""
SPARK = """
spark: {conf: {spark.driver.memory: 6g, spark.sql.shuffle.partitions: "2"}}
"""
JOINED = "from shop.orders o left join shop.customers c on c.id = o.customer_id"
SUMS = "count(*) as orders, sum(o.amount) as amount, max(o.amount) as most"
SQL = {
    "partitions": f"select cast(o.at as date) as day, c.city, {SUMS} {JOINED} group by 1, 2",
    "sums": f"select cast(o.at as date) as day, o.customer_id, max(c.city) as city, {SUMS} {JOINED} group by 1, 2",
    "rows": f"select cast(o.at as date) as day, o.id, c.city, o.amount, o.note {JOINED}",
}
KEYS = {"sums": "customer_id", "rows": "id"}
GOAL = 0.05
CHANGED_DAYS = {"partitions": 2, "sums": DAYS // 10, "rows": DAYS // 10}


@dataclass(frozen=True, slots=True)
class Size:
    """How large the tables are."""

    rows_per_day: int = ROWS_PER_DAY
    customers: int = CUSTOMERS


USUAL = Size()


def shop_config(folder: str, published: Mapping[str, Mapping[str, Any]]) -> Config:
    """A project with some published tables, partitioned by day."""
    entries = (f"  {name}: {json.dumps({'partition': 'day', **entry})}" for name, entry in published.items())
    return parse("\n".join((TABLES, *entries, SPARK)), Path(folder) / "nevermore.yaml")


def orders(numbers: np.ndarray, seed: int, size: Size = USUAL) -> pa.Table:
    """Orders by number, in order of time; amounts are of the seed."""
    random = np.random.default_rng(seed)
    return pa.table({
        "id": pa.array(numbers),
        "customer_id": pa.array(numbers * 7_919 % size.customers),
        "at": pa.array(FIRST + numbers * (DAY_MICROSECONDS // size.rows_per_day)).cast(pa.timestamp("us", "UTC")),
        "amount": pa.array(random.integers(1, 100_000, len(numbers))),
        "note": pa.array(np.char.add("note ", (numbers % 1_000).astype(np.str_))),
    })  # fmt: skip


class Shop:
    """The mirrors, fed with decoded changes."""

    def __init__(self, config: Config, size: Size = USUAL) -> None:
        self.config = config
        self._size = size
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
        numbers, rows_per_day = np.arange(self._size.customers), self._size.rows_per_day
        self.apply("shop.customers", pa.table({"id": numbers, "city": [f"city-{n % CITIES}" for n in numbers]}))
        for start in range(0, days, 50):
            last = min(start + 50, days)
            self.apply("shop.orders", orders(np.arange(start * rows_per_day, last * rows_per_day), 0, self._size))

    def change(self, num_days: int = 2) -> None:
        """1 % of the orders of some days get other amounts; other days in each batch."""
        batch, rows_per_day = next(self._batches), self._size.rows_per_day
        random = np.random.default_rng(batch)
        days = random.choice(DAYS, num_days, replace=False)
        chosen = [d * rows_per_day + random.choice(rows_per_day, rows_per_day // 100, replace=False) for d in days]
        self.apply("shop.orders", orders(np.sort(np.concatenate(chosen)), batch, self._size))

    def publish(self, name: str, prove: Callable[[PublishReport], None] = lambda _: None, **options: Any) -> Answer:
        """Bring a table up to date; `prove` looks at the report."""
        wall, cpu = time.perf_counter(), cpu_seconds()
        made = publish(self.config, name, **options)
        wall, cpu = time.perf_counter() - wall, cpu_seconds() - cpu
        prove(made)
        return Answer(self._digest(name), wall, cpu)

    def _digest(self, name: str) -> str:
        """A digest of all rows of a published table, in any order."""
        rows = open_table(find_table(self._catalog, name)).scan().to_table()
        columns = ", ".join(f'"{column}"' for column in rows.column_names)
        with duckdb.connect() as database:
            return str(database.sql(f"select count(*), sum(hash({columns})) from rows").fetchall())


def measure(what: str, rounds: int, size: Size) -> None:
    """Print and record the race of one kind of table."""
    ways: dict[str, dict[str, Any]] = {"incremental": {"incremental": True}, "full": {}}
    if what in KEYS:
        ways = {"by key": {"incremental": "keys", "key": [KEYS[what]]}} | ways
    names = {way: f"shop.{way.replace(' ', '_')}" for way in ways}
    num_days = CHANGED_DAYS[what]
    with tempfile.TemporaryDirectory() as folder:
        config = shop_config(folder, {names[way]: {**entry, "sql": SQL[what]} for way, entry in ways.items()})
        shop = Shop(config, size)
        shop.fill(DAYS)
        for way in [*ways][:-1]:
            shop.publish(names[way], is_full=True)

        def prove(made: PublishReport) -> None:
            assert made.partitions is None or len(made.partitions) == num_days, made

        def incremental(way: str) -> Answer:
            if way == next(iter(ways)):
                shop.change(num_days)
            return shop.publish(names[way], prove)

        candidates: dict[str, Callable[[], Any]] = {way: partial(incremental, way) for way in [*ways][:-1]}
        candidates["full"] = lambda: shop.publish(names["full"], is_full=True)
        what = "publish" if what == "partitions" else f"publish {what}"
        title = f"{what}, {DAYS} days of {size.rows_per_day:,} rows, 1 % of {'two' if num_days == 2 else num_days} days changed"
        goals = [Goal(way, "full", GOAL if way == "by key" else None) for way in [*ways][:-1]]
        report(title, race(candidates, rounds), "full", goals)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("what", nargs="*", choices=[*SQL, []], default=[*SQL])
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    parser.add_argument("--rows-per-day", type=int, default=ROWS_PER_DAY)
    parser.add_argument("--customers", type=int, default=CUSTOMERS)
    freeze_imports()
    arguments = parser.parse_args()
    for kind in arguments.what or SQL:
        measure(kind, arguments.rounds, Size(arguments.rows_per_day, arguments.customers))
