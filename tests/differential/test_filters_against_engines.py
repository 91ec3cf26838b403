"""Random filters on random tables with deletes, every pruner on and off: scan_core against DuckDB and against Spark.

DuckDB is asked in its own words where it means something else than Spark. Filters that can fail are asked of Spark alone,
which may fail where scan_core does not: it evaluates what another filter would have spared it.
"""

import tempfile
from collections.abc import Callable, Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from nevermore import scan_core
from nevermore.checks.reference.sql_columns import open_connection
from nevermore.scan_core import ScanOptions, Switches
from nevermore.scan_core.model.errors import EvaluationError
from tests.differential.filtered_tables import FilteredTable, draw_filtered_table
from tests.support.random_predicates import AS_WRITTEN, Sql, predicates, risky_predicates
from tests.support.spark_session import SPARK_TEST

FILTERS = 10
"""Of each table."""
MANY_TABLES = 1_000
"""10,000 filters against DuckDB, as many against Spark."""
_SWITCHES = [f.name for f in fields(Switches)]
_QUICK = settings(
    max_examples=9, deadline=None, derandomize=True, database=None, suppress_health_check=list(HealthCheck)
)
_THOROUGH = settings(_QUICK, max_examples=MANY_TABLES, derandomize=False, print_blob=True)


def kept(table: FilteredTable, condition: str, options: ScanOptions) -> list[int]:
    """Ids of the rows that the scan gives, in order."""
    scan = scan_core.open_table(table.metadata_path).scan().with_options(options).where(condition)
    ids = sorted(scan.select("id").to_table().column("id").to_pylist())
    if options == ScanOptions():
        assert scan.count() == len(ids), condition
    return ids


def draw_options(draw: Callable[..., Any]) -> list[ScanOptions]:
    """All switches on, all off, and some of them off."""
    off = dict.fromkeys(draw(st.sets(st.sampled_from(_SWITCHES), min_size=1)), False)
    return [
        ScanOptions(),
        ScanOptions.without_optimisations(),
        ScanOptions.of(parallelism=1, **off),
    ]


def by_duckdb(rows: pa.Table, conditions: Sequence[Sql]) -> list[list[int]]:
    """Ids of the rows for which each condition is true."""
    with open_connection() as connection:
        connection.execute(AS_WRITTEN)
        connection.register("rows", rows)
        return [
            [k for (k,) in connection.execute(f"select id from rows where {c.duck} order by id").fetchall()]
            for c in conditions
        ]


def by_spark(spark: SparkSession, rows: pa.Table, conditions: Sequence[Sql]) -> list[list[int]]:
    """The same, in one query."""
    listed = ", ".join(f"coalesce({c.spark}, false) as c{k}" for k, c in enumerate(conditions))
    show(spark, rows)
    found = spark.sql(f"select id, {listed} from rows order by id").collect()
    return [[row["id"] for row in found if row[f"c{k}"]] for k in range(len(conditions))]


def show(spark: SparkSession, rows: pa.Table) -> None:
    """Make the rows a view; from memory, so that no filter of Spark's own Parquet reader takes part."""
    path = Path(tempfile.gettempdir()) / "rows-for-spark.parquet"
    pq.write_table(rows, path, coerce_timestamps="us")
    spark.read.parquet(str(path)).createOrReplaceTempView("rows")


def check_against(
    draw: Callable[..., Any], expected_of: Callable[[pa.Table, Sequence[Sql]], list[list[int]]], num_filters: int
) -> None:
    """One table, some filters, each under three sets of switches."""
    with tempfile.TemporaryDirectory() as folder:
        table = draw_filtered_table(draw, Path(folder))
        conditions = [draw(predicates(draw(st.integers(1, 6)))) for _ in range(num_filters)]
        for condition, expected in zip(conditions, expected_of(table.rows, conditions), strict=True):
            for options in draw_options(draw):
                assert kept(table, condition.spark, options) == expected, (condition.spark, options)


@_QUICK
@given(st.data())
def test_filtered_rows_are_those_of_duckdb(data: st.DataObject) -> None:
    check_against(data.draw, by_duckdb, FILTERS)


@pytest.mark.slow
@pytest.mark.timeout(5400)
@_THOROUGH
@given(st.data())
def test_filtered_rows_of_many_tables_are_those_of_duckdb(data: st.DataObject) -> None:
    check_against(data.draw, by_duckdb, FILTERS)


@pytest.mark.slow
@pytest.mark.timeout(5400)
@pytest.mark.usefixtures("ansi_spark")
class TestAgainstSpark:
    """Spark 4 in ANSI mode, in UTC."""

    pytestmark = SPARK_TEST

    @_THOROUGH
    @given(st.data())
    def test_filtered_rows_of_many_tables_are_those_of_spark(self, spark: SparkSession, data: st.DataObject) -> None:
        check_against(data.draw, lambda rows, conditions: by_spark(spark, rows, conditions), FILTERS)

    @settings(_THOROUGH, max_examples=150)
    @given(st.data())
    def test_filters_fail_only_where_spark_fails(self, spark: SparkSession, data: st.DataObject) -> None:
        with tempfile.TemporaryDirectory() as folder:
            table = draw_filtered_table(data.draw, Path(folder), max_rows=12)
            show(spark, table.rows)
            for condition in [data.draw(risky_predicates()) for _ in range(5)]:
                try:
                    found = spark.sql(f"select id from rows where {condition} order by id").collect()
                except PySparkException:
                    continue
                for options in draw_options(data.draw):
                    assert kept(table, condition, options) == [row["id"] for row in found], (condition, options)


@_QUICK
@given(st.data())
def test_switches_change_neither_rows_nor_failures(data: st.DataObject) -> None:
    with tempfile.TemporaryDirectory() as folder:
        table = draw_filtered_table(data.draw, Path(folder), max_rows=12)
        for condition in [data.draw(risky_predicates()) for _ in range(5)]:
            outcomes = []
            for options in draw_options(data.draw):
                try:
                    outcomes.append(kept(table, condition, options))
                except EvaluationError:
                    outcomes.append([-1])
            assert outcomes.count(outcomes[0]) == len(outcomes), (condition, outcomes)
