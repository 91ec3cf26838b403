"""Settings that Spark needs to plan some queries are those of the session again afterwards."""

from contextlib import suppress

import pytest
from pyspark.sql import SparkSession

from nevermore.scan_core.spark import parse_sql, planning
from tests.support.spark_session import SPARK_TEST

pytestmark = SPARK_TEST

TREE = parse_sql("select 1 as a").tree
COMPUTED = parse_sql("select (select max(b.id) from b where b.id = a.id) as x from a").tree
IN_UNION = parse_sql("select (select max(b.id) from b where b.id = a.id) as x from a union all select 1").tree
RULES, CONSTRAINTS = "spark.sql.optimizer.excludedRules", "spark.sql.constraintPropagation.enabled"
RULE = "org.apache.spark.sql.catalyst.optimizer.ColumnPruning"


@pytest.mark.parametrize("own", [{}, {RULES: RULE, CONSTRAINTS: "true"}, {RULES: "", CONSTRAINTS: "false"}], ids=str)
def test_settings_that_a_query_needs_are_given_back_after_the_last_block(
    spark: SparkSession, own: dict[str, str]
) -> None:
    for name, value in own.items():
        spark.conf.set(name, value)

    def now() -> dict[str, str | None]:
        return {name: spark.conf.get(name, None) for name in (RULES, CONSTRAINTS)}

    before = now()
    try:
        with planning(spark, TREE):
            assert now() == before
        with suppress(ZeroDivisionError), planning(spark, COMPUTED):
            rules = str(now()[RULES]).split(",")
            assert ("PushProjectionThroughUnion" in str(rules), RULE in rules) == (True, own.get(RULES) == RULE)
            assert now()[CONSTRAINTS] == before[CONSTRAINTS]
            with planning(spark, IN_UNION):
                assert now() == {RULES: ",".join(rules), CONSTRAINTS: "false"}
            assert now() == {RULES: ",".join(rules), CONSTRAINTS: before[CONSTRAINTS]}
            raise ZeroDivisionError
        assert now() == before
    finally:
        for name in own:
            spark.conf.unset(name)
