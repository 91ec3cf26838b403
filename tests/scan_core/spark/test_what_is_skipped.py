"""What each way of reading in Spark skips: the cells of the table in docs/spark-readers.md."""

from collections.abc import Callable
from pathlib import Path

import pytest
from pyspark.sql import DataFrame, SparkSession

from nevermore import scan_core
from nevermore.scan_core.model.options import ScanMetrics
from nevermore.scan_core.spark import (
    TaskReports,
    dataframe,
    reads_of_sql,
    register,
    reports_of,
    sql,
)
from tests.support.bitmap_indexes import index_columns
from tests.support.iceberg_json import Column, Partition
from tests.support.spark_session import SPARK_TEST
from tests.support.table_builder import TableBuilder

pytestmark = SPARK_TEST

DAYS, ROWS = 4, 400
PARTITION, FILES, GROUPS, INDEX = "day = 3", "id = 850", "x = 25", "city = 'c7'"
"""Each is left to its own stage: days are partitions, ids differ by file, x by row group, cities are anywhere."""


@pytest.fixture(scope="module")
def table(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Four days of one file with 8 row groups each; two rows of each file are deleted."""
    builder = TableBuilder(
        tmp_path_factory.mktemp("skipped") / "t",
        [Column(1, "id", "long"), Column(2, "x", "long"), Column(3, "city", "string"), Column(4, "day", "int")],
        partitions=[Partition("day", 4)],
    )
    for day in range(DAYS):
        ids = list(range(day * ROWS, (day + 1) * ROWS))
        rows = {"id": ids, "x": [i % ROWS for i in ids], "city": [f"c{i % 10}" for i in ids], "day": [day] * ROWS}
        builder.commit(builder.data(rows, partition={"day": day}, row_group_size=50))
        builder.commit(builder.equality_delete({"id": [day * ROWS, day * ROWS + 7]}, ids=[1], partition={"day": day}))
    index_columns(builder.location, ["city"])
    return Path(builder.location)


Metrics = Callable[[], ScanMetrics]


def by_view(spark: SparkSession, table: Path, where: str) -> tuple[DataFrame, Metrics]:
    view = dataframe(spark, scan_core.open_table(table).scan())
    view.createOrReplaceTempView("skipped")
    return spark.sql(f"select id from skipped where {where}"), reports_of(view).total


def by_format(spark: SparkSession, table: Path, where: str) -> tuple[DataFrame, Metrics]:
    register(spark)
    reports = TaskReports.in_folder(None)
    options = {"where": where, "columns": "id", "metrics_dir": str(reports.directory)}
    return spark.read.format("nevermore").options(**options).load(str(table)), reports.total


def by_python(spark: SparkSession, table: Path, where: str) -> tuple[DataFrame, Metrics]:
    frame = dataframe(spark, scan_core.open_table(table).scan().select("id").where(where), "python")
    return frame, reports_of(frame).total


def by_sql(spark: SparkSession, table: Path, where: str) -> tuple[DataFrame, Metrics]:
    frame = sql(spark, f"select id from t where {where}", {"t": table})
    return frame, lambda: reads_of_sql(frame)["t"].metrics


WAYS = {"view": by_view, "format": by_format, "python": by_python, "sql": by_sql}
Way = Callable[[SparkSession, Path, str], tuple[DataFrame, Metrics]]


@pytest.mark.each(10)
@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize(
    ("where", "expected", "files"),
    [(PARTITION, DAYS, 1), (FILES, 1, 1), (GROUPS, DAYS, DAYS), (INDEX, DAYS * 39, DAYS)],
)
def test_conditions_skip_what_the_table_of_the_docs_says(
    ansi_spark: SparkSession, table: Path, way: str, where: str, expected: int, files: int
) -> None:
    frame, metrics = WAYS[way](ansi_spark, table, where)
    num_rows = frame.count()
    assert num_rows == (ROWS - 2 if where == PARTITION else expected)
    found = metrics()
    if way == "view":
        assert found.data_files_read == DAYS  # of whose rows bits were asked for
        plan = ansi_spark._jvm.PythonSQLUtils.explainString(frame._jdf.queryExecution(), "extended")
        assert "PushedFilters: [IsNotNull(" in plan  # by which Spark skips row groups
    else:
        assert found.data_files_planned == files
        assert found.data_files_pruned == DAYS - files
        assert_skipped(found, where)


def assert_skipped(found: ScanMetrics, where: str) -> None:
    if where == GROUPS:
        assert found.row_groups_pruned == DAYS * 7
    if where == INDEX:
        assert found.rows_removed_by_bitmaps > 0


def test_keys_of_joins_do_not_reach_a_view(ansi_spark: SparkSession, table: Path) -> None:
    """They do by `sql`: see `test_sql.py` and `test_spark_join.py`."""
    view = dataframe(ansi_spark, scan_core.open_table(table).scan())
    view.createOrReplaceTempView("fact")
    ansi_spark.createDataFrame([(850, "a"), (851, "b")], "id long, name string").createOrReplaceTempView("dimension")
    text = "select f.x from fact f join dimension d on d.id = f.id where d.id in (850, 851)"
    assert ansi_spark.sql(text).count() == 2
    assert reports_of(view).total().data_files_read == DAYS
