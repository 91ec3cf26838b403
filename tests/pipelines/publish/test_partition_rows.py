"""Rows of a result by the partitions they lie in, as Spark chooses them."""

import datetime as dt

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

from nevermore.pipelines.config.published import PublishedPartition
from nevermore.pipelines.publish.query import parse_query
from nevermore.pipelines.publish.writer import query_result, rows_beyond, rows_of
from nevermore.scan_core.model.schema import PrimitiveType
from tests.support.spark_session import SPARK_TEST

pytestmark = SPARK_TEST


@pytest.mark.each(6)
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


@pytest.mark.each(2)
@pytest.mark.parametrize("by", ["day", "value(day)", "month(day)"])
@pytest.mark.parametrize("day", [dt.date(1, 1, 1), dt.date(999, 3, 1), dt.date(1582, 10, 10)])
def test_days_that_javas_calendar_lacks_lie_in_their_partition(ansi_spark: SparkSession, by: str, day: dt.date) -> None:
    partition, kind = PublishedPartition.parse(by), PrimitiveType("date")
    result = ansi_spark.createDataFrame(pa.table({"day": pa.array([day, dt.date(2026, 1, 1), None], pa.date32())}))
    value = partition.physical(day.isoformat()[: 7 if by == "month(day)" else 10], kind)
    assert rows_of(result, partition, kind, {value}).count() == 1


@pytest.mark.each(2)
@pytest.mark.parametrize("by", ["hour(at)", "day", "month(at)"])
@pytest.mark.parametrize("key", ["0001-01-01T00", "1582-10-10T05", "2026-01-01T00"])
def test_parameters_of_old_partitions_are_the_times_they_say(ansi_spark: SparkSession, by: str, key: str) -> None:
    partition = PublishedPartition.parse(by)
    key = key[: {"hour": 13, "day": 10, "month": 7}[partition.unit]]
    sql = "select string(:partition) p, string(:partition_start) s, string(:partition_end) e, :partition as v"
    query = parse_query("t", sql, partition.column, [])
    result = query_result(ansi_spark, query, {}, partition.parameters(key))
    period = partition.period(key)
    shown = [f"{m:%H:%M:%S}" if partition.unit == "hour" else "" for m in (period.start, period.end)]
    start, end = (
        f"{m.date().isoformat()} {clock}".strip() for m, clock in zip((period.start, period.end), shown, strict=True)
    )
    assert tuple(result.drop("v").collect()[0]) == (start, start, end)
    assert result.schema["v"].dataType.simpleString() == ("timestamp" if partition.unit == "hour" else "date")


def test_old_times_as_values_are_partitions(ansi_spark: SparkSession) -> None:
    partition, kind = PublishedPartition.parse("value(at)"), PrimitiveType("timestamptz")
    rows = pa.table({"at": pa.array([dt.datetime(1, 1, 1, tzinfo=dt.UTC), None], pa.timestamp("us", "UTC"))})
    value = partition.physical("0001-01-01T00:00:00", kind)
    assert rows_of(ansi_spark.createDataFrame(rows), partition, kind, {value}).count() == 1
