"""Queries of a warehouse give what Spark gives over plain Parquet of the live rows: published, and by `sql`, by each reader."""

import math
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import pyarrow.parquet as pq
import pytest
from pyspark.sql import DataFrame, SparkSession
from sqlglot import exp

from nevermore import scan_core
from nevermore.pipelines.config.project import Config, parse
from nevermore.pipelines.iceberg.catalog import find_table, open_catalog
from nevermore.pipelines.publish import refresh
from nevermore.pipelines.publish.refresh import publish
from nevermore.scan_core.model.errors import OptionError
from nevermore.scan_core.spark import dataframe, parse_sql, planning, reader_choice, sql
from tests.differential.warehouse_queries import COMPUTED, QUERIES
from tests.differential.warehouse_tables import Warehouse, build_warehouse
from tests.support.spark_session import SPARK_TEST

pytestmark = SPARK_TEST

READERS = ("auto", "python")
WORDS = tuple(QUERIES)
SETTINGS = ("spark.sql.optimizer.excludedRules", "spark.sql.constraintPropagation.enabled")
FAILS_IN_SPARK = "reader 'native' cannot read this scan: a column of the query is a sub-query"


@dataclass(frozen=True, slots=True)
class Shop:
    """The warehouse in a catalog, with a published table per query and reader, and as views of its live rows."""

    spark: SparkSession
    warehouse: Warehouse
    config: Config

    def expected(self, text: str) -> Counter[Any]:
        tree = parse_sql(text).tree
        for table in tree.find_all(exp.Table):
            if table.db:
                view = exp.to_table(f"plain_{table.name.lower()}")
                alias = table.args.get("alias") or exp.TableAlias(this=exp.to_identifier(table.name))
                view.set("alias", alias)
                for part in ("joins", "laterals", "pivots"):
                    view.set(part, table.args.get(part))
                table.replace(view)
        with planning(self.spark, tree):
            return rows_of(self.spark.sql(tree.sql(dialect="spark")))

    def by_sql(self, text: str, reader: Any) -> Counter[Any]:
        scans = {name: scan_core.open_table(str(path)).scan() for name, path in self.warehouse.paths.items()}
        try:
            return rows_of(sql(self.spark, text, scans, reader=reader))
        except OptionError as error:
            if reader != "native" or not str(error).startswith(FAILS_IN_SPARK):
                raise
            return rows_of(sql(self.spark, text, scans))

    def published(self, number: int, reader: str) -> Counter[Any]:
        name = f"shop.{reader}_{number}"
        report = publish(self.config, name)
        if number in map(WORDS.index, COMPUTED):
            assert {str(read.reader).split()[0] for read in report.reads.values()} == {
                "native" if reader == "auto" else "python"
            }
        table = find_table(open_catalog(self.config), name)
        assert table is not None
        return rows_of(dataframe(self.spark, scan_core.open_table(table).scan(), "python"))


def rows_of(frame: DataFrame) -> Counter[Any]:
    return Counter(_comparable(tuple(row)) for row in frame.collect())


def _comparable(value: Any) -> Any:
    match value:
        case dict():
            return tuple(sorted((_comparable(k), _comparable(v)) for k, v in value.items()))
        case list() | tuple():
            return tuple(map(_comparable, value))
        case float():
            return "NaN" if math.isnan(value) else float(f"{value:.9g}")
        case _:
            return value


@pytest.fixture(scope="module")
def shop(tmp_path_factory: pytest.TempPathFactory, spark: SparkSession) -> Iterator[Shop]:
    folder = tmp_path_factory.mktemp("warehouse")
    warehouse = build_warehouse(folder / "tables")
    lines = ["tables:"]
    lines += [f"  {name}: {{source: {{type: files, path: none}}, key: [id]}}" for name in warehouse.paths]
    lines += ["published:"]
    for number, text in enumerate(QUERIES.values()):
        for reader in READERS:
            lines += [f"  shop.{reader}_{number}:", "    sql: |", f"      {text}"]
            lines += [f"    options: {{reader: {reader}}}"]
    config = parse("\n".join(lines), folder / "nevermore.yaml")
    catalog = open_catalog(config)
    catalog.create_namespace_if_not_exists("shop")
    for name, path in warehouse.paths.items():
        catalog.register_table(name, str(path))
        file = folder / f"{name}.parquet"
        pq.write_table(warehouse.rows[name], file)
        spark.read.parquet(str(file)).createOrReplaceTempView(f"plain_{name.removeprefix('shop.')}")
    before = {name: spark.conf.get(name, None) for name in SETTINGS}
    yield Shop(spark, warehouse, config)
    assert {name: spark.conf.get(name, None) for name in SETTINGS} == before
    for name in warehouse.paths:
        spark.catalog.dropTempView(f"plain_{name.removeprefix('shop.')}")


@pytest.fixture(autouse=True)
def _natively(monkeypatch: pytest.MonkeyPatch) -> None:
    """Files as small as these are otherwise never read natively by publications."""
    monkeypatch.setattr(refresh, "DRIVER_BYTES", 0)
    monkeypatch.setattr(reader_choice, "NATIVE_FILE_COST", 0)
    monkeypatch.setattr(reader_choice, "_MIN_SAMPLED_FROM", 0)


WAYS: dict[str, Callable[[Shop, int, str], Counter[Any]]] = {
    "published natively": lambda shop, number, _: shop.published(number, "auto"),
    "published in Python": lambda shop, number, _: shop.published(number, "python"),
    "sql": lambda shop, _, text: shop.by_sql(text, "auto"),
    "sql natively": lambda shop, _, text: shop.by_sql(text, "native"),
    "sql in Python": lambda shop, _, text: shop.by_sql(text, "python"),
}


@pytest.mark.slow
@pytest.mark.parametrize("what", COMPUTED[:2])
def test_sub_queries_as_columns_are_planned_over_files_read_in_several_ways(shop: Shop, what: str) -> None:
    text = QUERIES[what]
    expected = shop.expected(text)
    assert shop.published(WORDS.index(what), "auto") == expected
    assert shop.by_sql(text, "auto") == expected


@pytest.mark.slow
@pytest.mark.parametrize("what", WORDS)
def test_query_gives_the_rows_of_plain_parquet(shop: Shop, what: str) -> None:
    text = QUERIES[what]
    expected = shop.expected(text)
    for way, run in WAYS.items():
        assert run(shop, WORDS.index(what), text) == expected, way
