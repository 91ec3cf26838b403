"""An upsert by Spark: the keys of the rows that tasks write are deleted."""

from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from pyspark.sql import SparkSession

from nevermore.pipelines.errors import PublishError
from nevermore.pipelines.iceberg.catalog import find_table, open_catalog
from nevermore.pipelines.publish.refresh import publish
from tests.pipelines.publish.daily_orders import NAME, Row, apply, make_config, orders, published
from tests.support.spark_session import SPARK_TEST

pytestmark = [*SPARK_TEST, pytest.mark.slow]

SQL = "select cast(at as date) as day, id, amount from shop.orders"


@pytest.mark.parametrize(("partition", "key"), [("day", ["day", "id"]), ("day", ["id"]), (None, ["id"])])
def test_keys_that_tasks_write_are_deleted(
    partition: str | None, key: list[str], tmp_path: Path, spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("nevermore.pipelines.mirrors.delete_scope.AFFORDABLE_ROWS", -1)
    monkeypatch.setattr("nevermore.pipelines.mirrors.delete_scope.AFFORDABLE_RATIO", 0)
    config = make_config(tmp_path, SQL, mode="upsert", key=key, partition=partition, incremental=None)
    rows: list[Row] = [(i, 1, 1 + i % 3, i) for i in range(3_000)]
    apply(config, "shop.orders", orders(*rows))
    assert publish(config, NAME).delete_rows == 0
    changed: list[Row] = [(i, 1, 1 + i % 3, -i) for i in range(2_000, 4_000)]
    apply(config, "shop.orders", orders(*changed), deleted=range(2_000, 3_000))
    report = publish(config, NAME)
    assert (report.rows, report.delete_rows) == (4_000, 3_000)
    assert sum(report.rows_by_partition.values()) == (4_000 if partition else 0)
    assert sorted((row[1], row[2]) for row in published(config)) == [(i, i if i < 2_000 else -i) for i in range(4_000)]
    table = find_table(open_catalog(config), NAME)
    assert table is not None
    files = table.inspect.delete_files().to_pylist()
    assert {"/day=" in f["file_path"] for f in files} == {"day" in key}
    folder = Path(table.location().removeprefix("file://"))
    named = {p.removeprefix("file://") for p in table.inspect.all_files()["file_path"].to_pylist()}
    assert {str(p) for p in folder.rglob("*.parquet")} == named


@pytest.mark.parametrize("options", [{}, {"distribution": "rebalance"}, {"distribution": "range"}])
def test_equal_keys_are_found_however_rows_are_sorted_and_spread(
    options: dict[str, str], tmp_path: Path, spark: SparkSession
) -> None:
    sql = "select id as `a.key`, amount as `the ``amount`, at from shop.orders"
    rows: list[Row] = [(i, 1, 1, i * 7919 % 1_000) for i in range(1_000)]
    entry: dict[str, Any] = {"mode": "upsert", "partition": None, "incremental": None, "key": ["a.key"]}
    entry |= {"sort_by": ["the `amount"], "options": options}
    config = make_config(tmp_path, sql, **entry)
    apply(config, "shop.orders", orders(*rows))
    for _ in range(2):
        publish(config, NAME)
    assert sorted(row[:2] for row in published(config)) == sorted((row[0], row[3]) for row in rows)
    table = find_table(open_catalog(config), NAME)
    assert table is not None
    for path in table.inspect.data_files()["file_path"].to_pylist()[:2]:
        amounts = pq.read_table(path.removeprefix("file://"))["the `amount"].to_pylist()
        assert amounts == sorted(amounts)
    apply(config, "shop.orders", orders((2_000, 1, 1, 5)))
    twice = make_config(tmp_path, f"{sql} union all {sql} where id = 2000", **entry)
    with pytest.raises(PublishError, match=r"several rows of the result have the same key \(a.key\): \(2000,\)"):
        publish(twice, NAME)
    assert len(published(config)) == 1_000


def test_keys_stay_unique_where_sql_is_run_for_each_partition(tmp_path: Path, spark: SparkSession) -> None:
    """Partitions that share a key are upserted one after the other, as those that are asked for."""
    entry: dict[str, Any] = {"mode": "upsert", "incremental": None, "partition": "value(run)", "key": ["id"]}
    sql = "select :partition as run, id, amount from shop.orders where amount <= :partition"
    config = make_config(tmp_path, sql, **entry, values=["10", "20"])
    apply(config, "shop.orders", orders((1, 1, 1, 10), (2, 1, 1, 20)))
    report = publish(config, NAME)
    assert published(config) == [("20", 1, 10), ("20", 2, 20)]
    assert report.partitions is None
    assert report.rows_by_partition == {"10": 1, "20": 2}
    assert publish(config, NAME).is_unchanged
    assert publish(config, NAME, is_full=True).rows == 3
    assert published(config) == [("20", 1, 10), ("20", 2, 20)]
