"""What keys of a join become where Spark's own reader reads the fact: fewer files, or the other reader."""

from pathlib import Path

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

from nevermore import scan_core
from nevermore.scan_core.scan import Scan
from nevermore.scan_core.spark import reader_choice
from nevermore.scan_core.spark.frames import choice_of, dataframe, reports_of
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
