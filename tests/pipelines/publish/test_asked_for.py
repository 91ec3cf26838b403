"""Partitions that are asked for: a day is what the SQL says of the live rows, replaced in one snapshot, as often as one likes."""

import datetime as dt
import json
from collections.abc import Mapping
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql import SparkSession

from nevermore.pipelines.config.project import Config, parse
from nevermore.pipelines.errors import ConfigError, PublishError
from nevermore.pipelines.iceberg.catalog import create_table, find_table, open_catalog
from nevermore.pipelines.iceberg.commit import RowDelta
from nevermore.pipelines.iceberg.schema_evolution import iceberg_fields
from nevermore.pipelines.iceberg.table_writer import write_deletes, write_rows
from nevermore.pipelines.publish.query import tables_read
from nevermore.pipelines.publish.refresh import publish
from nevermore.pipelines.publish.refresh_report import PublishReport
from nevermore.scan_core import open_table
from tests.support.spark_session import SPARK_TEST

pytestmark = SPARK_TEST

DAILY = """
select cast(o.ordered_at as date) as day, c.city, count(*) as orders, sum(o.amount) as amount
from shop.orders o left join shop.customers c on c.id = o.customer_id
group by cast(o.ordered_at as date), c.city
"""
DAY = "2026-01-02"


def _config(folder: Path, published: Mapping[str, Any] | None = None) -> Config:
    entry: dict[str, Any] = {"partition": "day", "sql": DAILY} if published is None else dict(published)
    lines = [
        "tables:",
        "  shop.orders: {source: {type: files, path: none}, key: [id]}",
        "  shop.customers: {source: {type: files, path: none}, key: [id]}",
        "published:",
        "  shop.orders_daily:",
        *(f"    {name}: {value!r}" if name != "sql" else "    sql: |\n      " + value.strip().replace("\n", "\n      ")
          for name, value in entry.items()),
    ]  # fmt: skip
    return parse("\n".join(lines), folder / "nevermore.yaml")


def _orders(ids: range) -> pa.Table:
    return pa.table(
        {
            "id": pa.array(ids, pa.int64()),
            "customer_id": pa.array([i % 3 or None for i in ids], pa.int64()),
            "ordered_at": pa.array(
                [dt.datetime(2026, 1, 1 + i % 3, 23, 59, 59, i, tzinfo=dt.UTC) for i in ids], pa.timestamp("us", "UTC")
            ),
            "amount": pa.array([Decimal(i) for i in ids], pa.decimal128(10, 2)),
            "note": pa.array([f"note {i}" for i in ids]),
        }
    )


def _append(catalog: Any, name: str, rows: pa.Table, deleted: pa.Table | None = None) -> None:
    """One batch of a mirror: rows, and keys deleted with it."""
    table = find_table(catalog, name) or create_table(catalog, name, iceberg_fields(rows.schema))
    delta = RowDelta(table)
    files = write_rows(rows, delta.target, delta.default_spec)
    if deleted is not None:
        files += write_deletes(deleted, delta.target, delta.default_spec, [1])
    delta.commit(files, {})


@pytest.fixture
def config(tmp_path: Path, spark: SparkSession) -> Config:
    """90 orders on three days, every fifth deleted; customers 1 and 2."""
    config = _config(tmp_path)
    catalog = open_catalog(config)
    _append(catalog, "shop.orders", _orders(range(90)))
    _append(catalog, "shop.orders", _orders(range(0)), pa.table({"id": pa.array(range(0, 90, 5), pa.int64())}))
    _append(catalog, "shop.customers", pa.table({"id": pa.array([1, 2]), "city": ["Oslo", None]}))
    return config


def _published(config: Config) -> list[dict[str, Any]]:
    table = find_table(open_catalog(config), "shop.orders_daily")
    rows: list[dict[str, Any]] = open_table(table).scan().to_table().to_pylist()
    return sorted(rows, key=lambda row: (row["day"], row["city"] or "", row["amount"]))


def _expected(day: int) -> list[dict[str, Any]]:
    alive = [i for i in range(90) if i % 5 and i % 3 == day - 1]
    city = {1: "Oslo"}.get((day - 1) % 3)
    return [{"day": dt.date(2026, 1, day), "city": city, "orders": len(alive), "amount": Decimal(f"{sum(alive)}.00")}]


def test_a_day_holds_what_the_sql_says_of_the_live_rows(config: Config) -> None:
    report = publish(config, "shop.orders_daily", partitions=[DAY])
    assert _published(config) == _expected(2)
    assert (report.rows, report.data_files) == (1, 1)
    assert report.rows_removed_by_deletes == 6
    assert report.reads["shop.orders"].columns == ("customer_id", "ordered_at", "amount") or set(
        report.reads["shop.orders"].columns
    ) == {"customer_id", "ordered_at", "amount"}
    assert report.metrics.bytes_read > 0


def test_repeating_a_day_changes_nothing_but_the_snapshot(config: Config) -> None:
    first = publish(config, "shop.orders_daily", partitions=[DAY])
    rows = _published(config)
    second = publish(config, "shop.orders_daily", partitions=[DAY])
    assert _published(config) == rows
    assert second.snapshot_id != first.snapshot_id
    assert _facts(second) == _facts(first)


def _facts(report: PublishReport) -> dict[str, Any]:
    return {k: v for k, v in report.as_dict().items() if k not in ("snapshot_id", "bytes_written")}


def test_days_are_replaced_each_on_its_own(config: Config) -> None:
    for day in (1, 2, 3):
        publish(config, "shop.orders_daily", partitions=[f"2026-01-0{day}"])
    _append(open_catalog(config), "shop.orders", _orders(range(0)), pa.table({"id": pa.array(range(90), pa.int64())}))
    report = publish(config, "shop.orders_daily", partitions=[DAY])
    assert report.rows == 0
    assert _published(config) == [*_expected(1), *_expected(3)]


def test_a_day_without_rows_is_an_empty_partition(config: Config) -> None:
    report = publish(config, "shop.orders_daily", partitions=["2030-12-31"])
    assert (report.rows, report.data_files) == (0, 0)
    assert _published(config) == []
    assert report.rows_by_partition == {"2030-12-31": 0}


def test_one_snapshot_replaces_the_day_and_says_what_it_was_made_from(config: Config) -> None:
    publish(config, "shop.orders_daily", partitions=[DAY])
    report = publish(config, "shop.orders_daily", partitions=[DAY])
    table = find_table(open_catalog(config), "shop.orders_daily")
    assert table is not None
    snapshot = table.current_snapshot()
    assert snapshot.snapshot_id == report.snapshot_id
    assert snapshot.summary.operation.value == "overwrite"
    summary = snapshot.summary.additional_properties
    assert summary["deleted-data-files"] == summary["added-data-files"] == "1"
    assert summary["nevermore.partitions"] == json.dumps([DAY])
    assert summary["nevermore.source.shop.orders"] == str(report.reads["shop.orders"].snapshot_id)
    assert len(table.metadata.snapshots) == 2


def test_files_carry_field_ids_and_lie_in_the_table(config: Config) -> None:
    publish(config, "shop.orders_daily", partitions=[DAY])
    table = find_table(open_catalog(config), "shop.orders_daily")
    assert table is not None
    path = table.inspect.data_files()["file_path"][0].as_py()
    assert path.startswith(table.location())
    schema = pq.read_schema(path.removeprefix("file://"))
    assert [schema.field(n).metadata[b"PARQUET:field_id"] for n in schema.names] == [b"1", b"2", b"3", b"4"]


def test_only_the_days_rows_are_read_where_the_sql_makes_that_certain(config: Config) -> None:
    report = publish(config, "shop.orders_daily", partitions=[DAY])
    assert report.reads["shop.orders"].where == (
        "`ordered_at` >= timestamp '2026-01-02 00:00:00+00:00' and `ordered_at` < timestamp '2026-01-03 00:00:00+00:00'"
    )
    assert report.reads["shop.orders"].metrics.rows_out == 24
    assert report.reads["shop.customers"].where is None


@pytest.mark.slow
def test_a_new_column_in_the_sql_evolves_the_table_in_the_same_snapshot(config: Config, tmp_path: Path) -> None:
    publish(config, "shop.orders_daily", partitions=["2026-01-01"])
    wider = DAILY.replace("c.city,", "c.city, max(o.note) as last_note,", 1)
    changed = _config(tmp_path, {"partition": "day", "sql": wider})
    publish(changed, "shop.orders_daily", partitions=[DAY])
    assert [row["last_note"] for row in _published(changed)] == [None, "note 88"]


@pytest.mark.each(2)
@pytest.mark.parametrize(
    ("sql", "message"),
    [
        ("select 1 as x from shop.orders", "the result has no column 'day'"),
        (
            "select ordered_at as day from shop.orders",
            r"'day' is timestamp, not date: write cast\(... as date\) as day",
        ),
        ("select cast(ordered_at as date) as day, nothing from shop.orders", "nothing"),
        ("select cast(ordered_at as date) as day, null as x from shop.orders", "column 'x' is NULL without a type"),
        ("select cast(ordered_at as date) as day, id, id from shop.orders", "several columns are called id"),
        ("select cast(ordered_at as date) as day from shop.order", "did you mean shop.orders"),
    ],
)
def test_sql_that_cannot_be_published_is_refused_and_creates_no_table(
    config: Config, tmp_path: Path, sql: str, message: str
) -> None:
    wrong = _config(tmp_path, {"partition": "day", "sql": sql})
    with pytest.raises(ConfigError, match=message):
        publish(wrong, "shop.orders_daily", partitions=[DAY])
    assert find_table(open_catalog(wrong), "shop.orders_daily") is None


def test_a_changed_type_is_refused_with_what_to_do(config: Config, tmp_path: Path) -> None:
    publish(config, "shop.orders_daily", partitions=[DAY])
    clashing = DAILY.replace("count(*) as orders", "'many' as orders")
    changed = _config(tmp_path, {"partition": "day", "sql": clashing})
    with pytest.raises(ConfigError, match="column 'orders' is long in the table and string in the result: cast it"):
        publish(changed, "shop.orders_daily", partitions=[DAY])


def test_a_failing_task_publishes_nothing_and_says_why(config: Config, tmp_path: Path) -> None:
    failing = "select cast(ordered_at as date) as day, cast(note as int) as number from shop.orders"
    broken = _config(tmp_path, {"partition": "day", "sql": failing})
    with pytest.raises(PublishError, match=r"shop\.orders_daily: the Spark job failed: .*CAST_INVALID_INPUT"):
        publish(broken, "shop.orders_daily", partitions=[DAY])
    table = find_table(open_catalog(broken), "shop.orders_daily")
    assert table is None or table.current_snapshot() is None


@pytest.mark.parametrize(
    ("name", "day", "error", "message"),
    [
        ("shop.orders_dayly", DAY, ConfigError, "did you mean shop.orders_daily"),
        ("shop.orders_daily", "yesterday", ConfigError, "write it as 2026-01-31"),
    ],
)
def test_an_unknown_name_or_day_is_told(
    config: Config, name: str, day: str, error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message):
        publish(config, name, partitions=[day])


def test_a_mirror_that_was_never_ingested_is_told(tmp_path: Path) -> None:
    with pytest.raises(PublishError, match=r"reads shop\.customers, which does not exist yet: ingest it first"):
        publish(_config(tmp_path), "shop.orders_daily", partitions=[DAY])


def test_the_tables_that_a_query_reads_are_known_without_spark(tmp_path: Path) -> None:
    assert tables_read(_config(tmp_path), "shop.orders_daily") == ("shop.customers", "shop.orders")


def test_rows_are_sorted_within_files_where_the_config_says_so(config: Config, tmp_path: Path) -> None:
    sql = "select cast(ordered_at as date) as day, id, note from shop.orders"
    sorted_config = _config(tmp_path, {"partition": "day", "sql": sql, "sort_by": ["note"]})
    publish(sorted_config, "shop.orders_daily", partitions=[DAY])
    table = find_table(open_catalog(sorted_config), "shop.orders_daily")
    assert table is not None
    for path in table.inspect.data_files()["file_path"].to_pylist():
        notes = pq.read_table(path.removeprefix("file://"))["note"].to_pylist()
        assert notes == sorted(notes)
