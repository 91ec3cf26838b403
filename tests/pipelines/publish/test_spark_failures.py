"""SQL and settings that Spark refuses, or that fail in mid-job: one line says what is wrong, and nothing is published."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from py4j.protocol import Py4JJavaError
from pyspark.sql import SparkSession

from nevermore.pipelines.errors import ConfigError, PublishError
from nevermore.pipelines.iceberg.catalog import find_table, open_catalog
from nevermore.pipelines.publish.refresh import publish
from tests.pipelines.publish.daily_orders import NAME, apply, make_config, orders, published
from tests.support.spark_session import SPARK_TEST

pytestmark = SPARK_TEST

WHOLE: dict[str, Any] = {"partition": None, "incremental": None}


@pytest.mark.each(2)
@pytest.mark.parametrize(
    ("sql", "error", "message"),
    [
        (
            "select string(parse_json(concat('{', id))) as x from shop.orders",
            PublishError,
            r"the Spark job failed: \[MALFORMED_RECORD_IN_PARSING\S+ Malformed records are detected in record parsing",
        ),
        (
            "select from_utc_timestamp(at, concat('Mars', id)) as x from shop.orders",
            PublishError,
            r"the Spark job failed: .*Mars1",
        ),
        ("select id from shop.orders where", ConfigError, "something is missing here"),
        ("select id from where", ConfigError, r"Expected table name but got 'where'\. Line 1, Col: 20"),
        (
            "select id from shop.daily",
            ConfigError,
            "no table shop.daily; it is published itself, and SQL reads mirrors",
        ),
    ],
)
def test_failure_is_one_line(
    sql: str, error: type[Exception], message: str, tmp_path: Path, spark: SparkSession
) -> None:
    config = make_config(tmp_path, sql, **WHOLE)
    apply(config, "shop.orders", orders((1, 1, 1, 1)))
    with pytest.raises(error, match=message) as told:
        publish(config, NAME)
    assert "java" not in str(told.value)
    assert find_table(open_catalog(config), NAME) is None


COMPUTED = "select * from (select id, (select {of} from shop.orders b where b.id = a.id) as v from shop.orders a union all select id, amount from shop.orders) w"
MATCHED = "left join shop.orders o on o.id = w.id where o.amount > 1"


@pytest.mark.each(3)
@pytest.mark.parametrize(
    "sql",
    [
        f"{COMPUTED} {MATCHED}".format(of="count(*)").replace("select *", "select w.*", 1),
        f"select * from ({COMPUTED} where id not in (select customer_id from shop.orders)) w where id = 3 and exists (select 1 from shop.orders a where a.id = w.id)".format(of="max(amount)"),
        f"with u as ({COMPUTED}) select w.* from u w {MATCHED}".format(of="max(amount)"),
    ],
)  # fmt: skip
def test_sub_queries_in_columns_below_a_union_are_planned(sql: str, tmp_path: Path, spark: SparkSession) -> None:
    config = make_config(tmp_path, sql, **WHOLE)
    apply(config, "shop.orders", orders((3, 1, 1, 5)))
    with pytest.raises(Py4JJavaError, match="key not found"), plain_orders(spark, tmp_path):
        spark.sql(sql.replace("shop.orders", "plain_orders")).collect()
    assert publish(config, NAME).rows == 2
    assert str(spark.conf.get("spark.sql.constraintPropagation.enabled")) == "true"


@contextmanager
def plain_orders(spark: SparkSession, folder: Path) -> Iterator[None]:
    """A view of plain Parquet, over which Spark fails, too: once it does not, `planning` is not needed any more."""
    path = str(folder / "plain")
    spark.createDataFrame([(3, 1, 5)], "id long, customer_id long, amount long").write.parquet(path)
    spark.read.parquet(path).createOrReplaceTempView("plain_orders")
    yield
    spark.catalog.dropTempView("plain_orders")


def test_rows_that_cannot_be_sorted_are_told(tmp_path: Path, spark: SparkSession) -> None:
    config = make_config(tmp_path, "select map(1, id) as x from shop.orders", sort_by=["x"], **WHOLE)
    apply(config, "shop.orders", orders((1, 1, 1, 1)))
    with pytest.raises(ConfigError, match='does not support ordering on type "MAP'):
        publish(config, NAME)


def test_columns_with_dots_and_backticks_are_written(tmp_path: Path, spark: SparkSession) -> None:
    sql = "select cast(at as date) as `a b.c`, sum(amount) as `x``y.z` from shop.orders group by 1"
    entry: dict[str, Any] = {"partition": "a b.c", "sort_by": ["x`y.z"], "options": {"distribution": "range"}}
    config = make_config(tmp_path, sql, **entry)
    apply(config, "shop.orders", orders((1, 1, 1, 1), (2, 1, 2, 5)))
    assert publish(config, NAME).rows == 2
    apply(config, "shop.orders", orders((3, 1, 2, 5)))
    assert publish(config, NAME).partitions == ("2026-01-02",)
    assert [row[1] for row in published(config)] == [1, 10]


def test_sql_of_partitions_cannot_fill_a_table_without_them(tmp_path: Path, spark: SparkSession) -> None:
    config = make_config(tmp_path, "select id from shop.orders", **WHOLE)
    apply(config, "shop.orders", orders((1, 1, 1, 1)))
    publish(config, NAME)
    sql = "select :partition as day, count(*) as id from shop.orders"
    config = make_config(tmp_path, sql, incremental=None, start="2026-01-01")
    with pytest.raises(ConfigError, match="the table is partitioned by nothing, not by day"):
        publish(config, NAME)


def test_first_partition_in_the_future_is_told(tmp_path: Path, spark: SparkSession) -> None:
    sql = "select :partition as day, count(*) as n from shop.orders"
    config = make_config(tmp_path, sql, incremental=None, start="2999-01-01")
    apply(config, "shop.orders", orders((1, 1, 1, 1)))
    with pytest.raises(ConfigError, match="start: 2999-01-01 lies in the future: the last day by now is"):
        publish(config, NAME)
