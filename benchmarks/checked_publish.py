"""What do its checks add to a publication? 1 % of the rows of a mirror change between runs, in one of its days.

Run: `python -m benchmarks.checked_publish`. In every round the mirror takes a batch of changes, then a published table is brought
up to date with all checks, of the mirrors by the keys that changed and of the staged rows; its twin, of the same SQL, without
any. All rows of the mirror were compared before the first round.
"""

import argparse
import tempfile
import time
from pathlib import Path

import numpy as np
import pyarrow as pa

from benchmarks.incremental_publish import CITIES, CUSTOMERS, ROWS_PER_DAY, Shop, orders
from benchmarks.interop_session import cpu_seconds
from benchmarks.race import Answer, Goal, race, report
from checks.published_equality import ProjectAuditor
from pipelines.config.project import parse
from pipelines.ingest.feed_run import settle
from pipelines.publish.refresh import publish

ROUNDS = 5
DAYS = 20
CHANGED = 0.01
MOST = 1.5
CONFIG = """
tables:
  shop.orders: {source: {type: files, path: none}, key: [id], partition_by: ["day(at)"]}
  shop.customers: {source: {type: files, path: none}, key: [id]}
published:
  shop.checked: &daily
    partition: day
    incremental: true
    sql: >
      select cast(o.at as date) as day, c.city, count(*) as orders, sum(o.amount) as amount, max(o.amount) as most
      from shop.orders o left join shop.customers c on c.id = o.customer_id
      group by 1, 2
  shop.unchecked: *daily
spark: {conf: {spark.driver.memory: 2g, spark.sql.shuffle.partitions: "2"}}
"""


class CheckedShop(Shop):
    """Mirrors that change by the rows of one day."""

    def change_day(self, batch: int) -> None:
        """1 % of all orders get other amounts: those of one day, other ones in each batch."""
        random = np.random.default_rng(batch)
        chosen = random.choice(ROWS_PER_DAY, round(DAYS * ROWS_PER_DAY * CHANGED), replace=False)
        self.apply("shop.orders", orders(np.sort(batch % DAYS * ROWS_PER_DAY + chosen), batch))

    def publish_one(self, name: str, *, is_checked: bool) -> Answer:
        """Bring a table up to date; its rows."""
        wall, cpu = time.perf_counter(), cpu_seconds()
        made = publish(self.config, name, auditor=ProjectAuditor() if is_checked else None)
        wall, cpu = time.perf_counter() - wall, cpu_seconds() - cpu
        assert all(verdict.passed for verdict in made.checks), made.checks
        assert made.is_unchecked is not is_checked
        if is_checked and made.partitions is not None:
            assert any(verdict.text.startswith("since snapshot") for verdict in made.checks), made.checks
        return Answer(self._held(name), wall, cpu)


def measure(rounds: int) -> None:
    """Print and record the race."""
    with tempfile.TemporaryDirectory() as folder:
        shop = CheckedShop(parse(CONFIG, Path(folder) / "nevermore.yaml"))
        cities = [f"city-{n % CITIES}" for n in range(CUSTOMERS)]
        numbers = np.arange(CUSTOMERS)
        shop.apply("shop.customers", pa.table({"id": numbers, "city": cities}))
        shop.apply("shop.orders", orders(np.arange(DAYS * ROWS_PER_DAY), 0))
        for name, is_checked in (("shop.checked", True), ("shop.unchecked", False)):
            shop.publish_one(name, is_checked=is_checked)
        batches = iter(range(1, 1_000))
        asked = {"n": 0}

        def run(name: str, *, is_checked: bool) -> Answer:
            if asked["n"] % 2 == 0:  # both candidates of a round see one batch
                shop.change_day(next(batches))
            asked["n"] += 1
            return shop.publish_one(name, is_checked=is_checked)

        candidates = {
            "with checks": lambda: run("shop.checked", is_checked=True),
            "without": lambda: run("shop.unchecked", is_checked=False),
        }
        title = f"publish and check, {DAYS} days of {ROWS_PER_DAY:,} rows, 1 % of all changed"
        report(title, race(candidates, rounds), "with checks", [Goal("with checks", "without", MOST)])


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    settle()
    measure(parser.parse_args().rounds)
