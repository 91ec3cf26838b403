"""Spark's own Parquet reader with our deletes: equal to the scan, and loud where it would not be."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

import scan_core
from scan_core.distribute import dead_rows, spark_native
from scan_core.distribute.spark import dataframe, reports_of
from scan_core.distribute.spark_native import why_not_native
from scan_core.errors import OptionError
from tests.iceberg_json import Column, Partition
from tests.spark_session import SPARK_TEST
from tests.table_builder import TableBuilder

pytestmark = SPARK_TEST

_COLUMNS = [Column(1, "id", "long"), Column(2, "name", "string")]


@pytest.fixture(autouse=True)
def _no_known_bits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dead_rows, "_cache", dead_rows._Cache(dead_rows.CACHE_BYTES))


@pytest.fixture
def builder(tmp_path: Path) -> TableBuilder:
    """Three files, two of them of one size; deletes in two, position deletes in one."""
    builder = TableBuilder(tmp_path / "a [odd] {name} *", _COLUMNS)
    files = [builder.data({"id": list(range(start, start + 200)), "name": ["x"] * 200}) for start in (0, 1000, 2000)]
    builder.commit(*files)
    builder.commit(builder.equality_delete({"id": [*range(0, 200, 3), 1007]}, ids=[1]))
    builder.commit(builder.position_delete([(files[0], 1), (files[0], 199)]))
    return builder


def _ids(frame: Any) -> list[int]:
    return sorted(row["id"] for row in frame.select("id").collect())


def test_deleted_rows_do_not_come_back_whatever_the_names_and_sizes_of_files(
    spark: SparkSession, builder: TableBuilder
) -> None:
    scan = scan_core.open_table(builder.metadata_path).scan()
    frame = dataframe(spark, scan, reader="native")
    expected = sorted(scan.to_table()["id"].to_pylist())
    assert _ids(frame) == expected
    assert frame.count() == len(expected) == 600 - 67 - 2 - 1
    assert _ids(frame.filter("id between 1000 and 1010")) == [i for i in range(1000, 1011) if i != 1007]
    assert reports_of(frame).total().delete_rows_loaded > 0


def test_no_python_task_reads_rows_and_only_used_columns_are_read(spark: SparkSession, builder: TableBuilder) -> None:
    frame = dataframe(spark, scan_core.open_table(builder.metadata_path).scan(), reader="native")
    plan = frame.select("id")._jdf.queryExecution().executedPlan().toString()
    assert "(Python)" not in plan
    assert "ReadSchema: struct<id:bigint,_tmp_metadata_row_index:bigint>" in plan


def test_bits_are_found_once_for_a_file_and_its_deletes(
    spark: SparkSession, builder: TableBuilder, monkeypatch: pytest.MonkeyPatch
) -> None:
    scan = scan_core.open_table(builder.metadata_path).scan()
    dataframe(spark, scan, reader="native")
    monkeypatch.setattr(dead_rows, "read_split", None)
    assert dataframe(spark, scan, reader="native").count() == 530
    builder.commit(builder.equality_delete({"id": [2000]}, ids=[1]))
    with pytest.raises(TypeError):
        dataframe(spark, scan_core.open_table(builder.metadata_path).scan(), reader="native")


def test_field_ids_do_not_leak_into_what_the_user_writes(
    spark: SparkSession, builder: TableBuilder, tmp_path: Path
) -> None:
    scan = scan_core.open_table(builder.metadata_path).scan()
    native, python = (dataframe(spark, scan, reader=r) for r in ("native", "python"))  # type: ignore[arg-type]
    assert native.schema == python.schema
    assert all(not field.metadata for field in native.schema.fields)


def test_a_row_beyond_its_files_bits_fails_the_query(
    spark: SparkSession, builder: TableBuilder, monkeypatch: pytest.MonkeyPatch
) -> None:
    short = dead_rows.DeadRows(100, 0, np.zeros(2, dtype=np.int64))
    monkeypatch.setattr(spark_native, "dead_rows", lambda tasks, *_: [short] * len(tasks))
    frame = dataframe(spark, scan_core.open_table(builder.metadata_path).scan(), reader="native")
    with pytest.raises(PySparkException, match="has no delete bits: the file was replaced"):
        frame.count()


def test_a_file_that_matches_no_bits_fails_the_query(
    spark: SparkSession, builder: TableBuilder, monkeypatch: pytest.MonkeyPatch
) -> None:
    sizes = iter(range(1, 100))
    monkeypatch.setattr(spark_native, "_actual_size", lambda *_: next(sizes))
    frame = dataframe(spark, scan_core.open_table(builder.metadata_path).scan(), reader="native")
    with pytest.raises(PySparkException, match="has no delete bits"):
        frame.collect()


def test_partition_folders_give_no_columns_and_empty_tables_no_rows(spark: SparkSession, tmp_path: Path) -> None:
    columns = [*_COLUMNS, Column(3, "day", "string")]
    builder = TableBuilder(tmp_path / "day=2026-01-01" / "t", columns, partitions=[Partition("day", 3, "identity")])
    scan = scan_core.open_table(builder.metadata_path).scan()
    assert dataframe(spark, scan, reader="native").collect() == []
    builder.commit(builder.data({"id": [1], "name": ["a"], "day": ["x"]}, partition={"day": "x"}))
    scan = scan_core.open_table(builder.metadata_path).scan()
    assert [tuple(row) for row in dataframe(spark, scan, reader="native").collect()] == [(1, "a", "x")]


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (lambda scan: scan.where("id > 5"), "the scan has a predicate"),
        (lambda scan: scan.select("id", "_file"), "metadata column '_file'"),
    ],
)
def test_scans_that_spark_would_answer_differently_are_refused_and_auto_reads_them_in_python(
    spark: SparkSession, builder: TableBuilder, change: Any, reason: str
) -> None:
    scan = change(scan_core.open_table(builder.metadata_path).scan())
    assert str(why_not_native(scan.plan())).startswith(reason)
    with pytest.raises(OptionError, match=f"reader 'native' cannot read this scan: {reason}"):
        dataframe(spark, scan, reader="native")
    assert dataframe(spark, scan).count() == scan.count()


@pytest.mark.parametrize(
    ("evolved", "reason"),
    [
        ([Column(1, "key", "long"), Column(2, "id", "string")], "has column 'key' under another name"),
        ([Column(1, "id", "long"), Column(7, "name", "string")], "lacks column 'name'"),
        ([Column(1, "id", "long"), Column(7, "more", "long", initial_default=5)], "lacks column 'more'"),
    ],
)
def test_evolved_files_that_spark_confuses_are_read_in_python(
    builder: TableBuilder, evolved: list[Column], reason: str
) -> None:
    builder.evolve(*evolved)
    assert reason in str(why_not_native(scan_core.open_table(builder.metadata_path).scan().plan()))


def test_a_column_that_older_files_lack_is_null_in_the_native_reader_too(
    spark: SparkSession, builder: TableBuilder
) -> None:
    builder.evolve(*_COLUMNS, Column(3, "more", "int"))
    builder.commit(builder.data({"id": [5000], "name": ["y"], "more": [7]}))
    scan = scan_core.open_table(builder.metadata_path).scan()
    frame = dataframe(spark, scan, reader="native")
    assert frame.filter("more = 7").count() == 1
    assert frame.filter("more is null").count() == 530
