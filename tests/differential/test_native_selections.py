"""Rows that a scan leaves out as bits for Spark's own reader: random filters, semi joins and samples over random tables."""

import tempfile
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pyspark.sql import SparkSession

from nevermore import scan_core
from nevermore.scan_core.spark import choice_of, dataframe, why_not_native
from nevermore.scan_core.spark.native import NativeLimits
from tests.differential.filtered_tables import draw_filtered_table
from tests.differential.test_filters_against_engines import by_duckdb
from tests.support.random_predicates import NUMBERS, Sql, predicates
from tests.support.spark_session import SPARK_TEST

pytestmark = SPARK_TEST

_QUICK = settings(
    max_examples=2, deadline=None, derandomize=True, database=None, suppress_health_check=list(HealthCheck)
)
_THOROUGH = settings(_QUICK, max_examples=100, derandomize=False, print_blob=True)
LIMITS = [NativeLimits(), NativeLimits(driver_files=0)]
"""Bits found by the driver, and by a job."""


def check(spark: SparkSession, draw: Callable[..., Any], num_queries: int) -> Counter[str]:
    """One table; each query by both readers against DuckDB over the rows that are alive."""
    seen: Counter[str] = Counter()
    with tempfile.TemporaryDirectory() as folder:
        table = draw_filtered_table(draw, Path(folder))
        whole = scan_core.open_table(table.metadata_path).scan()
        for _ in range(num_queries):
            condition, scan = draw(predicates(draw(st.integers(1, 6)))), whole.select("id")
            text = condition.duck
            if draw(st.booleans()):
                scan = scan.where(condition.spark)
            else:
                text = "true"
            if draw(st.booleans()):
                keys = sorted(draw(st.sets(st.sampled_from(NUMBERS), min_size=1)))
                scan = scan.semi_join("l", keys)
                text = f"({text}) and l in ({', '.join(map(str, keys))})"
            (expected,) = by_duckdb(table.rows, [Sql(text, text)])
            reason = why_not_native(spark, scan)
            assert reason is None or reason.endswith((" is orc", " is avro"))
            seen[str(reason is None)] += 1
            for reader in ("python", "native") if reason is None else ("python",):
                frame = dataframe(spark, scan, reader=reader, limits=draw(st.sampled_from(LIMITS)))
                assert choice_of(frame).strategy == reader
                assert sorted(row["id"] for row in frame.collect()) == expected, (reader, text)
    return seen


@_QUICK
@given(st.data())
def test_both_readers_give_the_rows_that_duckdb_selects(spark: SparkSession, data: st.DataObject) -> None:
    check(spark, data.draw, 1)


@pytest.mark.slow
@pytest.mark.timeout(5400)
@_THOROUGH
@given(st.data())
def test_both_readers_give_the_rows_that_duckdb_selects_from_many_tables(
    spark: SparkSession, data: st.DataObject
) -> None:
    check(spark, data.draw, 6)
