"""Incremental runs over random histories of mirrors: after each, the table is what DuckDB makes of all live rows."""

import datetime as dt
import random
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa
import pytest
import sqlglot
from pyspark.sql import SparkSession

from nevermore.checks.published_equality import published_equals_duckdb
from nevermore.checks.reference.expected_rows import live_rows
from nevermore.pipelines.config.project import Config
from nevermore.pipelines.iceberg.catalog import find_table, open_catalog
from nevermore.pipelines.iceberg.commit import RowDelta, everything
from nevermore.pipelines.iceberg.table_writer import write_rows
from nevermore.pipelines.publish import refresh
from nevermore.pipelines.publish.refresh import publish
from tests.pipelines.publish.daily_orders import NAME, apply, customers, make_config, orders, published
from tests.support.spark_session import SPARK_TEST

pytestmark = [*SPARK_TEST, pytest.mark.slow]

STEPS = 5
QUERIES = [
    ("day", "select cast(o.at as date) as day, c.city, count(*) as n, sum(o.amount) as amount from shop.orders o left join shop.customers c on c.id = o.customer_id group by 1, 2"),
    ("month(day)", "with a as (select cast(at as date) as day, customer_id, amount from shop.orders where amount > 2) select a.day, a.amount, c.city from a join shop.customers c on c.id = a.customer_id"),
    ("day", "select day, id, amount, rank from (select cast(at as date) as day, id, amount, row_number() over (partition by cast(at as date) order by amount, id) as rank from shop.orders) r where rank <= 2"),
    ("value(customer_id)", "select customer_id, count(*) as n, max(at) as at from shop.orders group by customer_id union all select id, -1, null from shop.customers where city = 'Oslo'"),
    ("day", "select cast(at as date) as day, id, (select max(c.city) from shop.customers c where c.id = o.customer_id) as city from shop.orders o where exists (select 1 from shop.orders p where p.customer_id = o.customer_id and p.id <> o.id)"),
    ("day", "select cast(o.at as date) as day, o.id, t.total from shop.orders o join (select customer_id, sum(amount) as total from shop.orders group by customer_id) t on t.customer_id = o.customer_id where o.customer_id not in (select id from shop.customers where city = 'Moss')"),
]  # fmt: skip
CITIES = ["Oslo", "Moss", "Bergen"]


class History:
    """Random batches of both mirrors."""

    def __init__(self, config: Config, seed: int) -> None:
        self.config = config
        self.chance = random.Random(seed)
        self.next_id = 1

    def step(self) -> None:
        for _ in range(self.chance.randint(0, 2)):
            getattr(
                self, self.chance.choice(["_upsert", "_upsert", "_delete", "_customers", "_compact", "_truncate"])
            )()

    def _order(self, number: int) -> tuple[int, int | None, int, int]:
        return number, self.chance.choice([None, 1, 2, 3]), self.chance.randint(1, 6), self.chance.randint(1, 9)

    def _upsert(self) -> None:
        changed = self.chance.sample(range(1, self.next_id + 1), min(self.next_id, self.chance.randint(1, 2)))
        self.next_id = max(self.next_id, *changed) + 1
        apply(self.config, "shop.orders", orders(*(self._order(i) for i in changed)), deleted=changed)

    def _delete(self) -> None:
        apply(self.config, "shop.orders", orders(), deleted=[self.chance.randint(1, self.next_id)])

    def _customers(self) -> None:
        number = self.chance.randint(1, 3)
        rows = [(number, self.chance.choice(CITIES))] if self.chance.random() < 0.8 else []
        apply(self.config, "shop.customers", customers(*rows), deleted=[number])

    def _truncate(self) -> None:
        if self.chance.random() < 0.2:
            RowDelta(find_table(open_catalog(self.config), "shop.orders")).commit([], {}, remove=everything)

    def _compact(self) -> None:
        """All live rows in new files: no row changes."""
        table = find_table(open_catalog(self.config), "shop.orders")
        assert table is not None
        delta = RowDelta(table)
        files = write_rows(live_rows(table.metadata_location), delta.target, delta.default_spec)
        delta.commit(files, {}, remove=everything, operation="replace")


@pytest.mark.parametrize("seed", range(12))
def test_incremental_runs_make_what_duckdb_makes_of_all_rows(
    seed: int, tmp_path: Path, spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    partition, sql = QUERIES[seed % len(QUERIES)]
    if seed >= len(QUERIES):  # each query in this process, and in tasks
        monkeypatch.setattr(refresh, "DRIVER_BYTES", 0)
    config = make_config(tmp_path, sql, partition=partition)
    history = History(config, seed)
    apply(config, "shop.customers", customers((1, "Oslo"), (2, "Moss")))
    apply(config, "shop.orders", orders(*(history._order(i) for i in range(1, 9))))
    history.next_id = 9
    publish(config, NAME)
    traced = 0
    for _ in range(STEPS):
        history.step()
        if partition == "day" and history.chance.random() < 0.3:
            publish(config, NAME, partitions=[f"2026-01-0{history.chance.randint(1, 6)}"])
        report = publish(config, NAME)
        traced += report.partitions is not None
        assert sorted(published(config), key=str) == _expected(config, sql), (report.reason, report.why)
        check = published_equals_duckdb(config, NAME)
        assert (check.passed, check.details) == (True, [])
    assert traced == STEPS or "not in" in sql


def _expected(config: Config, sql: str) -> list[tuple[Any, ...]]:
    with duckdb.connect() as connection:
        connection.execute("create schema shop")
        for name in ("shop.orders", "shop.customers"):
            table = find_table(open_catalog(config), name)
            assert table is not None
            rows = live_rows(table.metadata_location)
            if "at" in rows.column_names:
                rows = rows.set_column(rows.column_names.index("at"), "at", rows["at"].cast(pa.timestamp("us")))
            connection.register("given", rows)
            connection.execute(f"create table {name} as select * from given")
        found = connection.execute(sqlglot.transpile(sql, "spark", "duckdb", identify=True)[0]).fetchall()
    return sorted((tuple(_in_utc(value) for value in row) for row in found), key=str)


def _in_utc(value: Any) -> Any:
    return value.replace(tzinfo=dt.UTC) if isinstance(value, dt.datetime) else value
