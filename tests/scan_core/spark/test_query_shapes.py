"""Queries that use one DataFrame or view more than once: each use sees all living rows, whatever another filters.

One test per shape in which filters of PySpark's Python sources leak into other scans when they are pushed down. The
file also runs under other versions of PySpark and under Connect, see `tests/spark_versions`.
"""

from typing import Any

import pytest
from pyspark.sql import SparkSession
from pyspark.sql import functions as f

from nevermore import scan_core
from nevermore.scan_core import Table
from nevermore.scan_core.spark.frames import choice_of, dataframe, reports_of
from nevermore.scan_core.spark.reader_choice import Reader
from tests.support.spark_session import SPARK_TEST
from tests.support.spark_table import build_spark_table
from tests.support.task_reports import of_last_stage

pytestmark = SPARK_TEST

READERS: tuple[Reader, ...] = ("python", "native")


@pytest.fixture(scope="module")
def table(tmp_path_factory: pytest.TempPathFactory) -> Table:
    """400 rows in 4 files; every tenth id deleted, then 3 of them inserted again."""
    return scan_core.open_table(build_spark_table(tmp_path_factory.mktemp("shapes")))


@pytest.mark.each(8)
@pytest.mark.parametrize(
    ("use", "expected"),
    [
        (lambda d: d.filter("qty = 3").count(), 28),
        (lambda d: (d.filter("qty = 3").count(), d.count(), d.filter("qty = 4").count(), d.count())[1::2], (363, 363)),
        (lambda d: d.alias("a").join(d.alias("b"), "id").count(), 363),
        (lambda d: d.filter("id < 100").join(d.filter("id >= 50"), "id").count(), 45),
        (lambda d: d.filter("id < 50").union(d.filter("id >= 50")).count(), 363),
        (lambda d: d.unionAll(d).count(), 726),
        (lambda d: d.filter("id < 50").join(d, "id", "left").count(), 48),
        (lambda d: d.filter("id < 50").join(d.filter("id < 10"), "id", "full_outer").count(), 48),
        (lambda d: d.join(d.filter("qty = 3"), "id", "left_anti").count(), 335),
        (lambda d: d.filter(d.id.isin(0, 10, 30)).count(), 2),
        (lambda d: d.groupBy("name").agg(f.sum("qty")).filter("name = 'n1'").count(), 1),
        (lambda d: d.limit(3).count(), 3),
    ],
    ids=[
        "count after filter", "filter count filter count", "self-join", "self-join of two filters", "union", "union all",
        "outer self-join", "full outer self-join", "anti-join", "isin", "having", "limit",
    ],
)  # fmt: skip
@pytest.mark.parametrize("reader", READERS)
def test_one_dataframe_used_in_several_ways_is_right_in_each(
    spark: SparkSession, table: Table, use: Any, expected: Any, reader: Reader
) -> None:
    frame = dataframe(spark, table.scan(), reader=reader)
    assert use(frame) == expected


@pytest.mark.each(10)
@pytest.mark.parametrize(
    ("sql", "expected"),
    [
        ("select count(*) from t", 363),
        ("select count(*) from t a join t b on a.id = b.id and a.qty = 3 and b.qty > 0", 28),
        ("select count(*) from t a right join (select * from t where qty = 3) b on a.id = b.id and a.qty = 4", 28),
        ("with x as (select * from t where qty = 3) select count(*) from x, x y where x.id = y.id", 28),
        ("select count(*) from t where id in (select id from t where qty = 3)", 28),
        ("select count(*) from t where not exists (select 1 from t u where u.id = t.id and u.qty = 3)", 335),
        ("select count(*) from (select id from t where qty = 3 union select id from t where qty = 4)", 56),
        ("select count(*) from (select id from t except select id from t where qty = 3)", 335),
        ("select (select max(id) from t where qty = 3) - (select max(id) from t)", -6),
        ("select max(n) from (select count(*) over (partition by qty) n from t where id < 100)", 8),
    ],
    ids=[
        "count", "self-join", "outer self-join", "common table expression", "in subquery", "not exists", "union", "except",
        "scalar subqueries", "window",
    ],
)  # fmt: skip
@pytest.mark.parametrize("by", ["view of the source", *READERS])
def test_a_view_is_right_in_any_query(spark: SparkSession, table: Table, sql: str, expected: int, by: Any) -> None:
    if by in READERS:
        dataframe(spark, table.scan(), reader=by).createOrReplaceTempView("t")
    else:
        spark.sql(f"CREATE OR REPLACE TEMPORARY VIEW t USING nevermore OPTIONS (path '{table.metadata_path}')")
    assert spark.sql(sql).collect()[0][0] == expected


def test_both_readers_say_who_they_are_and_what_they_removed(spark: SparkSession, table: Table) -> None:
    python = dataframe(spark, table.scan(), reader="python")
    assert (python.count(), choice_of(python).strategy) == (363, "python")
    assert of_last_stage(reports_of(python)).rows_removed_by_equality_deletes == 40
    native = dataframe(spark, table.scan())
    assert (native.count(), choice_of(native).strategy) == (363, "native")
