"""Rows of a result by the partitions they lie in, as Spark chooses them."""

import datetime as dt

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

from pipelines.published.partition import PublishedPartition
from pipelines.published.partition_rows import rows_beyond, rows_of
from scan_core.schema import PrimitiveType
from tests.spark_session import SPARK_TEST

pytestmark = SPARK_TEST


@pytest.mark.parametrize("zone", [None, "UTC"])
@pytest.mark.parametrize(
    ("by", "key"),
    [("year(at)", "0001"), ("month(at)", "1500-03"), ("day(at)", "1582-10-04"), ("hour(at)", "0001-01-01T00")],
)
def test_times_before_the_gregorian_calendar_lie_in_their_partition(
    ansi_spark: SparkSession, by: str, key: str, zone: str | None
) -> None:
    partition, kind = PublishedPartition.parse(by), PrimitiveType("timestamptz" if zone else "timestamp")
    inside = partition.period(key).start.replace(tzinfo=None)
    times = [inside, inside + dt.timedelta(minutes=59), inside.replace(year=2026), None]
    rows = pa.table({"at": pa.array(times, pa.timestamp("us")).cast(pa.timestamp("us", zone))})
    result = ansi_spark.createDataFrame(rows)
    value = partition.physical(key, kind)
    assert rows_of(result, partition, kind, {value}).count() == 2
    assert rows_beyond(result, partition, kind, {value}).count() == 2


def test_old_times_as_values_are_partitions(ansi_spark: SparkSession) -> None:
    partition, kind = PublishedPartition.parse("value(at)"), PrimitiveType("timestamptz")
    rows = pa.table({"at": pa.array([dt.datetime(1, 1, 1, tzinfo=dt.UTC), None], pa.timestamp("us", "UTC"))})
    value = partition.physical("0001-01-01T00:00:00", kind)
    assert rows_of(ansi_spark.createDataFrame(rows), partition, kind, {value}).count() == 1
