"""What keys of a join become where Spark's own reader reads the fact: fewer files, lists, ranges, or nothing."""

from pathlib import Path

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

from nevermore import scan_core
from nevermore.scan_core.scan import Scan
from nevermore.scan_core.spark import reader_choice
from nevermore.scan_core.spark.frames import choice_of, dataframe, reports_of
from nevermore.scan_core.spark.joins import explain_join, join
from nevermore.scan_core.spark.reader_choice import may_cover, within_keys
from tests.support.iceberg_json import Column
from tests.support.spark_session import SPARK_TEST
from tests.support.table_builder import TableBuilder

pytestmark = SPARK_TEST
_FILES, _ROWS = 4, 100


@pytest.fixture(scope="module")
def fact(tmp_path_factory: pytest.TempPathFactory) -> Scan:
    """Four files with a hundred keys each in order, some of them deleted."""
    builder = TableBuilder(tmp_path_factory.mktemp("t") / "fact", [Column(1, "k", "long"), Column(2, "q", "int")])
    starts = range(0, _FILES * _ROWS, _ROWS)
    builder.commit(*(builder.data({"k": list(range(s, s + _ROWS)), "q": [s] * _ROWS}) for s in starts))
    builder.commit(builder.equality_delete({"k": [5, 105, 305]}, ids=[1]))
    return scan_core.open_table(builder.metadata_path).scan()


@pytest.mark.parametrize(
    ("keys", "condition"),
    [
        ([3, 5, 380], "IN (3,5,380)"),
        ([*range(10, 30), *range(350, 370)], "OR"),
        ([*range(20, 300, 3)], "AND"),
        ([*range(_FILES * _ROWS)], None),
    ],
)
def test_keys_become_conditions_that_prune_and_none_where_none_would(
    spark: SparkSession, fact: Scan, keys: list[int], condition: str | None
) -> None:
    frame = within_keys(dataframe(spark, fact), fact, ["k"], pa.table({"k": keys}))
    plan = frame._jdf.queryExecution().optimizedPlan().toString()
    assert condition is None or condition in plan
    assert ("(k#" in plan and ">=" in plan) is (condition in {"OR", "AND"})
    kept = {row["k"] for row in frame.collect()}
    assert kept >= set(keys) - {5, 105, 305}


def test_a_native_fact_is_planned_without_files_that_hold_no_key(
    spark: SparkSession, fact: Scan, tmp_path: Path
) -> None:
    frame = dataframe(spark, fact.prefilter("k", pa.table({"k": [101, 105]})), metrics_dir=tmp_path)
    assert choice_of(frame).strategy == "native"
    assert sorted(row["k"] for row in frame.collect()) == [k for k in range(100, 200) if k != 105]
    assert reports_of(frame).total().data_files_pruned_by_runtime_filters == _FILES - 1


def test_auto_reads_in_python_where_few_of_many_rows_have_a_key(
    spark: SparkSession, fact: Scan, monkeypatch: pytest.MonkeyPatch
) -> None:
    keyed = fact.prefilter("k", pa.table({"k": [0, 399]}))
    monkeypatch.setattr(reader_choice, "PYTHON_START", 0)
    assert "are expected to have a key" in str(choice_of(dataframe(spark, keyed)).why_not_native)
    monkeypatch.undo()
    assert choice_of(dataframe(spark, keyed)).strategy == "native"


def test_no_file_is_left_where_one_of_two_dimensions_is_empty(spark: SparkSession, fact: Scan) -> None:
    nothing = pa.table({"k": pa.array([], pa.int64())})
    frame = dataframe(spark, fact.prefilter("k", pa.table({"k": [7]})).prefilter("k", nothing))
    assert frame.count() == 0


@pytest.mark.parametrize("how", ["inner", "left_semi"])
def test_joins_read_natively_give_the_rows_of_plain_spark(spark: SparkSession, fact: Scan, how: str) -> None:
    keys = pa.table({"k": [2, 5, 101, 305, 399, 1000]})
    dimension = spark.createDataFrame(keys)
    expected = dataframe(spark, fact, "python").join(dimension, "k", how)
    joined = join(fact, dimension, on="k", how=how, reader="native")
    assert sorted(map(tuple, joined.collect())) == sorted(map(tuple, expected.collect())) != []


def test_facts_join_by_dates_that_python_does_not_have(spark: SparkSession, tmp_path: Path) -> None:
    builder = TableBuilder(tmp_path / "fact", [Column(1, "d", "date")])
    days = pa.array([0, 1, 2_932_897, -719_163, None], pa.int32()).cast(pa.date32())
    builder.commit(builder.data({"d": days.slice(0, 2)}))
    fact = scan_core.open_table(builder.metadata_path).scan()
    dimension = spark.createDataFrame(pa.table({"d": days.take([0, 2, 3, 4])}))
    assert join(fact, dimension, on="d", reader="native").count() == 1


@pytest.mark.parametrize(
    ("keys", "condition", "covers"),
    [
        (range(400), None, True),
        (range(400), "k >= 0", True),
        (range(400), "k >= 1", False),
        (range(0, 800, 2), None, False),
        (range(399), None, False),
        ([*range(400), None], "k is not null", False),
    ],
)
def test_keys_that_may_be_all_that_the_fact_has_are_not_collected(
    spark: SparkSession, fact: Scan, tmp_path: Path, *, keys: list[int], condition: str | None, covers: bool
) -> None:
    builder = TableBuilder(tmp_path / "dimension", [Column(1, "k", "long")])
    builder.commit(builder.data({"k": list(keys)}))
    dimension = scan_core.open_table(builder.metadata_path).scan()
    dimension = dimension if condition is None else dimension.where(condition)
    assert may_cover(dimension, "k", fact, "k", plans=(dimension.plan(), fact.plan())) is covers
    joined = join(fact, dimension, on="k", spark=spark)
    assert ("may contain all keys of the fact table" in explain_join(joined)) is covers
    expected = set(fact.to_table()["k"].to_pylist()) & set(dimension.to_table()["k"].to_pylist())
    assert sorted(row["k"] for row in joined.select("k").collect()) == sorted(expected)
