"""Mirrors of a config as views: any SQL over them is right, and one state of the tables is seen until they are made anew."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

from nevermore.pipelines.config.project import Config, parse
from nevermore.pipelines.errors import ConfigError
from nevermore.pipelines.iceberg.catalog import create_table, find_table, open_catalog
from nevermore.pipelines.iceberg.commit import RowDelta
from nevermore.pipelines.iceberg.schema_evolution import iceberg_fields
from nevermore.pipelines.iceberg.table_writer import write_deletes, write_rows
from nevermore.pipelines.spark.session import register_views, view_names
from tests.support.spark_session import SPARK_TEST

pytestmark = SPARK_TEST

_CONFIG = "\n".join(
    ["tables:"]
    + [
        f"  {name}: {{source: {{type: files, path: none}}, key: [id]}}"
        for name in ("shop.orders", "shop.customers", "shop.never_ingested")
    ]
)


def _append(catalog: Any, name: str, rows: pa.Table, deleted: list[int]) -> int:
    table = find_table(catalog, name) or create_table(catalog, name, iceberg_fields(rows.schema))
    delta = RowDelta(table)
    files = write_rows(rows, delta.target, delta.default_spec)
    keys = pa.table({"id": pa.array(deleted, pa.int64())})
    files += write_deletes(keys, delta.target, delta.default_spec, [1]) if deleted else []
    return int(delta.commit(files, {}).snapshot_id)


@pytest.fixture
def config(tmp_path: Path) -> Config:
    """30 orders of which every fifth is deleted, customers 1 and 2, and a table without a mirror."""
    config = parse(_CONFIG, tmp_path / "nevermore.yaml")
    catalog = open_catalog(config)
    orders = pa.table({"id": pa.array(range(30), pa.int64()), "customer": pa.array([1 + i % 2 for i in range(30)])})
    _append(catalog, "shop.orders", orders, [])
    _append(catalog, "shop.orders", orders.slice(0, 0), list(range(0, 30, 5)))
    _append(catalog, "shop.customers", pa.table({"id": pa.array([1, 2], pa.int64()), "city": ["Oslo", "Rome"]}), [])
    return config


def test_sql_over_the_views_sees_living_rows_of_pinned_snapshots(spark: SparkSession, config: Config) -> None:
    views = register_views(spark, config)
    assert {name: (view.view, view.choice.strategy) for name, view in views.items()} == {
        "shop.orders": ("orders", "native"),
        "shop.customers": ("customers", "native"),
    }
    sql = "select city, count(*) n from orders o join customers c on c.id = o.customer group by city order by city"
    assert [tuple(row) for row in spark.sql(sql).collect()] == [("Oslo", 12), ("Rome", 12)]
    extra = pa.table({"id": pa.array([99], pa.int64()), "customer": pa.array([1])})
    newest = _append(open_catalog(config), "shop.orders", extra, [1])
    assert spark.table("orders").count() == 24
    assert register_views(spark, config, ["shop.orders"])["shop.orders"].snapshot_id == newest
    assert spark.sql(sql).collect()[0]["n"] == 13


def test_readers_and_scans_may_be_chosen(spark: SparkSession, config: Config) -> None:
    views = register_views(spark, config, ["shop.orders"], reader="python")
    assert views["shop.orders"].choice.strategy == "python"
    with pytest.raises(ConfigError, match=r"no table 'shop\.order' in the config; did you mean 'shop\.orders'\?"):
        register_views(spark, config, ["shop.order"])


def test_a_path_in_place_of_the_config_is_told_how_to_become_one(config: Config) -> None:
    session: Any = SimpleNamespace(createDataFrame=None, conf=None)
    path: Any = "nevermore.yaml"
    with pytest.raises(ConfigError, match=r"load\('nevermore\.yaml'\)"):
        register_views(session, path)
    with pytest.raises(ConfigError, match=r"not a single text: \['shop.orders'\]"):
        register_views(session, config, "shop.orders")


def test_views_of_tables_with_one_last_name_keep_what_tells_them_apart() -> None:
    assert view_names(["shop.orders", "crm.Orders", "crm.people"]) == {
        "shop.orders": "shop_orders",
        "crm.Orders": "crm_Orders",
        "crm.people": "people",
    }
