"""The result of a published query in Spark: its columns checked, its rows narrowed to partitions.

Imports pyspark.
"""

from collections.abc import Collection, Iterable, Mapping
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from difflib import get_close_matches
from typing import Any

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as f

from pipelines.errors import ConfigError
from pipelines.published.partition import PublishedPartition
from pipelines.published.query import PublishedQuery, require_names_apart
from pipelines.published.spark_failures import SPARK_FAILURES, spark_message
from pipelines.published.spark_literals import bound, date_literal, timestamp_literal, timestamp_ntz_literal
from pipelines.published.writer import iceberg_columns
from scan_core.schema import NestedField, PrimitiveType, Type

_UTC = frozenset({"UTC", "Etc/UTC", "Z", "GMT", "+00:00"})
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def query_result(
    spark: SparkSession, query: PublishedQuery, views: Mapping[str, str], arguments: Mapping[str, Any]
) -> DataFrame:
    """The rows of a query over views, by table, with values for its parameters.

    Raises:
        ConfigError: Spark refuses it, or two columns of the result differ in case alone.
    """
    require_utc(spark, query.name)
    try:
        result = spark.sql(query.over_views(views), args={name: bound(value) for name, value in arguments.items()})
        names = result.columns
    except SPARK_FAILURES as error:
        raise ConfigError(f"published {query.name}: {spark_message(error)}") from error
    require_names_apart(query.name, "the result", names)
    return result


def require_utc(spark: SparkSession, name: str) -> None:
    """What a session in another zone calls a day is not what partitions call one.

    Raises:
        ConfigError: such a session.
    """
    zone = str(spark.conf.get("spark.sql.session.timeZone"))
    if zone not in _UTC:
        raise ConfigError(
            f"published {name}: spark.sql.session.timeZone is {zone}, and published tables are made in UTC: leave the "
            "setting out, and convert in the SQL: from_utc_timestamp(at, 'Europe/Oslo')"
        )


def require_columns(name: str, result: DataFrame, columns: Iterable[str]) -> None:
    """The result has the columns that the config names.

    Raises:
        ConfigError: one is missing; names the nearest.
    """
    for column in columns:
        if column not in result.columns:
            near = get_close_matches(column, result.columns, n=1, cutoff=0.0)
            raise ConfigError(f"published {name}: the result has no column {column!r}; did you mean {near[0]!r}?")


def partition_field(name: str, result: DataFrame, partition: PublishedPartition) -> NestedField:
    """The column of the result that partitions are made by.

    Raises:
        ConfigError: it is missing, or of a type that cannot be partitioned so.
    """
    require_columns(name, result, [partition.column])
    field = next(c for c in iceberg_columns(name, result.select(_quoted(partition.column))))
    if not partition.fits(field.type):
        spark_type = result.schema[partition.column].dataType.simpleString()
        wanted = {"value": "plain value or date", "hour": "timestamp"}.get(partition.unit, "date or timestamp")
        if partition.transform == "identity" and partition.unit == "day":
            wanted = "date"
        cast = f": write cast(... as date) as {partition.column}" if wanted == "date" else ": cast it"
        raise ConfigError(
            f"published {name}: partition column {partition.column!r} is {spark_type}, not {wanted}{cast}"
        )
    return field


def rows_of(result: DataFrame, partition: PublishedPartition, kind: Type, values: Collection[Any]) -> DataFrame:
    """The rows of some partitions.

    Args:
        result: of the query.
        partition: by what it is partitioned.
        kind: Iceberg type of the partition column.
        values: of the Iceberg partition field.
    """
    present = [v for v in values if v is not None]
    return result.where(_is_in(partition, kind, values)) if present or None in values else result.limit(0)


def rows_beyond(result: DataFrame, partition: PublishedPartition, kind: Type, values: Collection[Any]) -> DataFrame:
    """The rows of all partitions but some, given as for `rows_of`."""
    return result.where(~f.coalesce(_is_in(partition, kind, values), f.lit(False)))


def _is_in(partition: PublishedPartition, kind: Type, values: Collection[Any]) -> Column:
    """Whether a row is of some partitions; NULL as false."""
    column = f.col(_quoted(partition.column))
    name = kind.name if isinstance(kind, PrimitiveType) else ""
    present = sorted(v for v in values if v is not None)
    starts = [period.start for period in _starts(partition, present)] if partition.is_time else []
    within: Column
    if not partition.is_time:
        within = column.isin([_value(v, kind) for v in present])
    elif name != "date":
        within = f.date_trunc(partition.unit, column).isin([timestamp_literal(start) for start in starts])
    else:
        day = column if partition.unit == "day" else f.trunc(column, partition.unit)
        within = day.isin([date_literal(start.date()) for start in starts])
    if None in values:
        return within | column.isNull() if present else column.isNull()
    return within


def _quoted(name: str) -> str:
    return "`" + name.replace("`", "``") + "`"


def _starts(partition: PublishedPartition, present: Iterable[Any]) -> list[Any]:
    return [period for value in present for period in partition.periods([value])]


def _value(physical: Any, kind: Type) -> Any:
    """A value of the column from that of its identity partition."""
    match kind:
        case PrimitiveType("date"):
            return date_literal(date(1970, 1, 1) + timedelta(days=physical))
        case PrimitiveType("timestamptz"):
            return timestamp_literal(_EPOCH + timedelta(microseconds=physical))
        case PrimitiveType("timestamp"):
            return timestamp_ntz_literal(_EPOCH + timedelta(microseconds=physical))
        case PrimitiveType("decimal", (_, scale)):
            return Decimal(physical).scaleb(-scale)
        case _:
            return physical
