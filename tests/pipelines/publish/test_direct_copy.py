"""Which queries are nothing but columns of one mirror, and what the tasks that read them write."""

import datetime as dt
import pickle
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pytest

from nevermore.pipelines.config.project import parse
from nevermore.pipelines.config.published import PublishedOptions
from nevermore.pipelines.iceberg.catalog import create_table, find_table, open_catalog
from nevermore.pipelines.iceberg.commit import RowDelta
from nevermore.pipelines.iceberg.schema_evolution import iceberg_fields
from nevermore.pipelines.iceberg.table_writer import WriterOptions, write_deletes, write_rows
from nevermore.pipelines.publish.query import copied_columns, parse_query
from nevermore.pipelines.publish.task import CopyTask, PublishTask, total_report
from nevermore.pipelines.publish.writer import file_layout
from nevermore.scan_core import open_table
from nevermore.scan_core.split.tasks import pack_splits

COLUMNS = ("day", "id", "amount")


def copied(sql: str, *result: str) -> list[str | None] | None:
    return copied_columns(parse_query("shop.daily", sql, "day", ["shop.orders", "shop.items"]), COLUMNS, result, "day")


@pytest.mark.parametrize(
    ("sql", "result", "expected"),
    [
        ("select day, id from shop.orders", ["day", "id"], [None, "id"]),
        ("select ID as number, o.amount, o.Day as day from shop.orders o", ["number", "amount", "day"], ["id", "amount", None]),
        ("select *, id as twice from shop.orders", [*COLUMNS, "twice"], [None, "id", "amount", "id"]),
        ("select cast(day as date) as day, id from shop.orders", ["day", "id"], [None, "id"]),
        ("select orders.day, shop.orders.id from shop.orders", ["day", "id"], [None, "id"]),
    ],
)  # fmt: skip
def test_selected_and_renamed_columns_are_copied(sql: str, result: list[str], expected: list[str | None]) -> None:
    assert copied(sql, *result) == expected


@pytest.mark.parametrize(
    "sql",
    [
        "select day, id + 1 as id from shop.orders",
        "select day, cast(id as int) as id from shop.orders",
        "select distinct day, id from shop.orders",
        "select day, id from shop.orders where amount > 5",
        "select day, id from shop.orders order by id",
        "select day, id from shop.orders limit 3",
        "select day, id from shop.orders offset 3",
        "select day, max(id) as id from shop.orders group by day",
        "select day, id from shop.orders qualify row_number() over (partition by day order by id) = 1",
        "select o.day, o.id from shop.orders o join shop.orders p on o.id = p.id",
        "select o.day, o.id from shop.orders o, shop.items",
        "select day, id from shop.orders lateral view explode(array(1, 2)) as id",
        "select day, id from shop.orders tablesample (10 percent)",
        "select day, id from (select * from shop.orders)",
        "with o as (select * from shop.orders) select day, id from o",
        "select day, id from shop.orders union all select day, id from shop.orders",
        "select * except (amount) from shop.orders",
        "select day, (select max(id) from shop.items) as id from shop.orders",
        "select day, explode(array(id)) as id from shop.orders",
        "select day, id from shop.orders distribute by id",
        "select day, customer.id as id from shop.orders",
        "select o.day, o.customer.id as id from shop.orders o",
        "select orders.day, orders.id from shop.orders o",
        "select day, id from shop.orders as o (id, day, amount)",
    ],
)
def test_any_other_query_is_left_to_spark(sql: str) -> None:
    assert copied(sql, "day", "id") is None


def test_without_a_day_of_all_rows_its_column_is_one_like_others() -> None:
    for sql, expected in (("select day, id from shop.orders", ["day", "id"]),
                          ("select cast(day as date) as day, id from shop.orders", None)):  # fmt: skip
        query = parse_query("shop.daily", sql, "day", ["shop.orders"])
        assert copied_columns(query, COLUMNS, ("day", "id")) == expected


def test_columns_that_differ_only_in_case_are_left_to_spark() -> None:
    query = parse_query("shop.daily", "select day, id from shop.orders", "day", ["shop.orders"])
    assert copied_columns(query, ("day", "id", "ID"), ("day", "id")) is None


def test_columns_that_spark_finds_otherwise_are_left_to_spark() -> None:
    assert copied("select * from shop.orders", "day", "id") is None


def test_a_task_copies_the_live_rows_of_its_splits(tmp_path: Path) -> None:
    catalog = open_catalog(
        parse("tables: {shop.orders: {source: {path: none}, key: [id]}}", tmp_path / "nevermore.yaml")
    )
    rows = pa.table({"id": range(5_000), "amount": [i / 4 for i in range(5_000)]})
    delta = RowDelta(create_table(catalog, "shop.orders", iceberg_fields(rows.schema)))
    layout = WriterOptions(row_group_rows=1_000)
    target = replace(delta.target, options=layout)
    delta.commit(write_rows(rows, target, delta.default_spec), {})
    delta = RowDelta(find_table(catalog, "shop.orders"))
    delta.commit(write_deletes(pa.table({"id": range(0, 5_000, 5)}), delta.target, delta.default_spec, [1]), {})

    plan = open_table(find_table(catalog, "shop.orders")).scan().select("id", "amount").plan()
    packed = pack_splits(plan.splits(4_000))
    assert len(packed.splits) > 2
    wanted = pa.schema([("day", pa.date32()), ("number", pa.int64()), ("amount", pa.float64())])
    copied_to = create_table(catalog, "shop.copied", iceberg_fields(wanted))
    published = RowDelta(copied_to)
    task = CopyTask(
        publish=PublishTask(
            target=published.target,
            spec=published.default_spec,
            layout=replace(file_layout(PublishedOptions()), row_group_rows=700),
            run="run",
        ),
        shared=packed.shared,
        source=pa.schema([("id", pa.int64()), ("amount", pa.float64())]),
        sources=(None, 0, 1),
        result=wanted,
        day=dt.date(2026, 1, 31),
    )
    task = pickle.loads(pickle.dumps(task))  # noqa: S301 - as Spark does
    halves = packed.splits[:2], packed.splits[2:]
    batches = [[pa.record_batch([pa.array(half, pa.binary())], names=["split"])] for half in halves]
    report = total_report(b.column(0)[0].as_py() for batch in batches for b in task(iter(batch)))
    published.commit(report.files, {})
    found = open_table(find_table(catalog, "shop.copied")).scan().to_table().sort_by("number")
    kept = [i for i in range(5_000) if i % 5]
    assert found.to_pydict() == {
        "day": [dt.date(2026, 1, 31)] * 4_000,
        "number": kept,
        "amount": [i / 4 for i in kept],
    }
    assert report.metrics.rows_removed_by_equality_deletes == 1_000
    assert report.metrics.rows_out == 4_000
