"""Queries over few rows are planned without what pays for many, and no other query of the session is."""

from pyspark.sql import DataFrame, SparkSession

from scan_core.spark import parse_sql, plan_for_few_rows, planning
from tests.support.spark_session import SPARK_TEST

pytestmark = SPARK_TEST

TREE = parse_sql("select 1 as a").tree
SETTINGS = ("spark.sql.adaptive.enabled", "spark.sql.shuffle.partitions")


def is_adaptive(frame: DataFrame) -> bool:
    return "AdaptiveSparkPlan" in frame._jdf.queryExecution().executedPlan().toString()


def test_only_the_query_itself_is_planned_so_and_only_if_no_other_thread_plans(spark: SparkSession) -> None:
    before = [spark.conf.get(name) for name in SETTINGS]
    frame, same = (spark.range(9).groupBy("id").count() for _ in range(2))
    with planning(spark, TREE):
        plan_for_few_rows(frame)
        with planning(spark, TREE):
            plan_for_few_rows(same)
    assert [spark.conf.get(name) for name in SETTINGS] == before
    assert not is_adaptive(frame)
    assert is_adaptive(same)
    assert frame.toArrow().sort_by("id") == same.toArrow().sort_by("id")
