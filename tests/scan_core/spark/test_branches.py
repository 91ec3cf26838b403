"""DataFrames in which Spark prunes partitions: the rows of the scan whatever is asked, and nothing read for partitions that are left out."""

from datetime import date
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession

from nevermore import scan_core
from nevermore.scan_core.spark import choice_of, partitioned_dataframe, reports_of
from nevermore.scan_core.spark.branches import MAX_BRANCHES
from tests.support.iceberg_json import Column, Partition
from tests.support.spark_session import SPARK_TEST
from tests.support.table_builder import TableBuilder

pytestmark = SPARK_TEST

_VALUES: dict[str, list[Any]] = {
    "int": [None, -1, 0, 3],
    "long": [2**40, None, 5],
    "string": ["it's", "a\\b", "", None, "ü\n"],
    "date": [date(2026, 1, 1), None, date(1582, 10, 4), date(9999, 12, 31)],
    "boolean": [True, None, False],
}
_READERS = pytest.mark.parametrize("reader", ["native", "python"])


def _table(folder: Path, kind: str, values: list[Any], *, sizes_differ: bool = True) -> scan_core.Table:
    """A partition of two files for each value; of both, and of all partitions at once, rows are deleted."""
    columns = [Column(1, "id", "long"), Column(2, "p", kind)]
    builder = TableBuilder(folder / "t", columns, partitions=[Partition("p", 2)])
    for number, value in enumerate(values):
        for part in range(2):
            first = 1000 * number + 100 * part
            ids = list(range(first, first + 50 + (number * 7 + part * 3) * sizes_differ))
            stored = (value - date(1970, 1, 1)).days if isinstance(value, date) else value
            builder.commit(builder.data({"id": ids, "p": [value] * len(ids)}, partition={"p": stored}))
        gone = [1000 * number, 1000 * number + 101]
        builder.commit(builder.equality_delete({"id": gone}, ids=[1], partition={"p": stored}))
    everywhere = [1000 * number + 7 for number in range(len(values))]
    spec = builder.repartition()
    builder.commit(builder.equality_delete({"id": everywhere}, ids=[1], spec_id=spec, columns=columns[:1]))
    return scan_core.open_table(builder.metadata_path)


def _rows(frame: DataFrame) -> list[tuple[Any, ...]]:
    return sorted((tuple(row) for row in frame.collect()), key=repr)


@_READERS
@pytest.mark.parametrize("kind", _VALUES)
def test_rows_are_those_of_the_scan_and_conditions_leave_partitions_out(
    ansi_spark: SparkSession, tmp_path: Path, kind: str, reader: Any
) -> None:
    scan = _table(tmp_path, kind, _VALUES[kind]).scan()
    frame = partitioned_dataframe(ansi_spark, scan, reader)
    assert choice_of(frame).strategy == reader
    rows = sorted(((row["id"], row["p"]) for row in scan.to_table().to_pylist()), key=repr)
    assert _rows(frame) == rows
    assert frame.schema["p"].nullable
    for value in _VALUES[kind]:
        found = frame.where(frame["p"].eqNullSafe(value))
        assert _rows(found) == [row for row in rows if row[1] == value]
        plan = found._jdf.queryExecution().optimizedPlan().toString()
        assert "Union" not in plan


def test_dead_rows_are_found_by_queries_and_only_in_partitions_that_they_leave(
    spark: SparkSession, tmp_path: Path
) -> None:
    frame = partitioned_dataframe(spark, _table(tmp_path, "int", list(range(6))).scan())
    assert choice_of(frame).bits_found_by == "queries"
    assert reports_of(frame).total().delete_files_opened == 0
    frame.createOrReplaceTempView("branches")
    assert spark.sql("select * from branches where p = 3 and id > 3100").count() == 50 + 21 + 3 - 2
    found = reports_of(frame).total()
    assert (found.data_files_read, found.delete_files_opened) == (2, 2)  # of the partition, and of all
    assert spark.sql("select count(*) from branches where p > 3 and p + 1 < 6").collect()[0][0] == 2 * 50 + 56 + 3 - 3
    assert reports_of(frame).total().data_files_read == 4


def test_scans_of_branches_that_conditions_leave_out_are_never_planned(spark: SparkSession, tmp_path: Path) -> None:
    frame = partitioned_dataframe(spark, _table(tmp_path, "int", list(range(6))).scan(), "python")
    assert frame.where("p in (2, 4)").count() == 2 * (50 + 50 + 3) + 7 * 2 * (2 + 4) - 6
    found = reports_of(frame).total()
    assert (found.data_files_planned, found.data_files_read) == (4, 4)
    assert reports_of(frame).num_missing == 0


def test_files_of_one_size_and_self_joins_are_right(spark: SparkSession, tmp_path: Path) -> None:
    frame = partitioned_dataframe(spark, _table(tmp_path, "int", [1, 2, 3], sizes_differ=False).scan(), "native")
    frame.createOrReplaceTempView("alike")
    text = "select count(*) from alike a join alike b on a.id = b.id where a.p = 2 and b.p < 3"
    assert spark.sql(text).collect()[0][0] == 97
    assert spark.sql("select p, count(*) n from alike group by p").count() == 3


def test_more_partitions_than_branches_are_one_table_and_files_of_other_specs_one_branch(
    spark: SparkSession, tmp_path: Path
) -> None:
    builder = TableBuilder(
        tmp_path / "many", [Column(1, "id", "long"), Column(2, "p", "int")], partitions=[Partition("p", 2)]
    )
    builder.commit(
        *(builder.data({"id": [k], "p": [k]}, partition={"p": k}) for k in range(MAX_BRANCHES + 1)),
    )
    scan = scan_core.open_table(builder.metadata_path).scan()
    assert choice_of(partitioned_dataframe(spark, scan)).bits_found_by != "queries"
    spec = builder.repartition()
    builder.commit(builder.data({"id": [-1, -2], "p": [1, 2]}, spec_id=spec))
    few = scan_core.open_table(builder.metadata_path).scan().where("p < 3")
    for reader in ("auto", "python"):
        assert _rows(partitioned_dataframe(spark, few, reader)) == sorted(
            [(0, 0), (1, 1), (2, 2), (-1, 1), (-2, 2)], key=repr
        )
