"""Writes the result of a published query with Spark.

Checks the columns, limits the rows to partitions, and reports errors of Spark in one line. This module imports
pyspark.
"""

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from datetime import UTC, date, datetime, timedelta
from functools import partial
from typing import Any

import pyarrow as pa
from pyspark.errors import AnalysisException, PySparkException
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as f

from nevermore.pipelines.config.published import PublishedConfig, PublishedOptions, PublishedPartition
from nevermore.pipelines.errors import ConfigError, PublishError, SchemaConflictError
from nevermore.pipelines.iceberg.schema_evolution import iceberg_fields
from nevermore.pipelines.iceberg.table_writer import FileLayout
from nevermore.pipelines.mirrors.table_shape import why_no_name
from nevermore.pipelines.publish.query import PublishedQuery, did_you_mean
from nevermore.pipelines.publish.task import (
    REPORT_SCHEMA,
    CopyTask,
    PublishTask,
    TaskReport,
    check_numbered_keys,
    numbers,
    total_report,
    write_numbered,
)
from nevermore.scan_core import NestedField, OptionError, PrimitiveType, Scan, Type, pack_splits
from nevermore.scan_core.spark import (
    SPARK_FAILURES,
    arrow_schema_of,
    fair_split_bytes,
    parallelism_of,
    quoted_name,
    require_names_apart,
    spark_message,
    spark_schema,
)


def date_literal(day: date) -> Column:
    """Write a date as a literal."""
    return f.expr(f"date '{day.isoformat()}'")


def timestamp_literal(moment: datetime) -> Column:
    """Write a moment as a literal; one without a zone is in UTC."""
    aware = moment if moment.tzinfo else moment.replace(tzinfo=UTC)
    return f.expr(f"timestamp_ltz '{aware.astimezone(UTC).isoformat(sep=' ')}'")


def timestamp_ntz_literal(moment: datetime) -> Column:
    """Write a time without a zone as a literal: what the clock of `moment` shows."""
    return f.expr(f"timestamp_ntz '{moment.replace(tzinfo=None).isoformat(sep=' ')}'")


def bound(value: Any) -> Any:
    """Convert a parameter's value to one that `spark.sql` accepts."""
    if isinstance(value, datetime):
        return timestamp_literal(value)
    return date_literal(value) if isinstance(value, date) else value


def write_result(name: str, result: DataFrame, entry: PublishedConfig, task: PublishTask) -> TaskReport:
    """Run a query and write its rows, arranged by the options of the entry.

    Raises:
        ConfigError: rows cannot be sorted or spread by a column that the config names.
        PublishError: the job failed.
    """
    is_by_key = entry.mode == "upsert" and _is_by_key(entry)
    try:
        if entry.mode == "upsert":
            result = _by_key(result, entry)
        if not is_by_key:
            result = _arranged(result, entry)
    except AnalysisException as error:
        raise ConfigError(f"published {name}: {spark_message(error)}") from error
    task = replace(task, is_by_key=is_by_key)
    return _run(name, _numbered(result), partial(write_numbered, task, result.columns))


MAX_ROWS_HERE = 100_000
"""Maximum of rows of a result that this process writes; more are worth the start of tasks."""
_TOO_LARGE = "spark.driver.maxResultSize"


def is_result_few(result: DataFrame, expected_rows: int | None) -> bool:
    """Whether a result is expected to have few rows: by its text (limits, sums over all rows), else by `expected_rows`."""
    if expected_rows is not None and expected_rows <= MAX_ROWS_HERE // 2:
        return True
    if not hasattr(result, "_jdf"):  # Connect does not tell
        return False
    most = result._jdf.queryExecution().analyzed().maxRows()  # noqa: SLF001 - no other way
    return bool(most.isDefined()) and int(most.get()) <= MAX_ROWS_HERE


def write_few(
    name: str, result: DataFrame, entry: PublishedConfig, task: PublishTask, most_bytes: int
) -> TaskReport | None:
    """Run a query and write its rows in this process, which saves the start of tasks in Python.

    Returns:
        None if the rows are too many or take more than `most_bytes`, or are to be spread over tasks; nothing is written then.

    Raises:
        ConfigError: rows cannot be sorted by a column that the config names.
        PublishError: the job failed.
    """
    is_by_key = entry.mode == "upsert" and _is_by_key(entry)
    if entry.options.distribution != "none" or (entry.mode == "upsert" and not is_by_key):
        return None
    order = tuple(dict.fromkeys((*entry.sort_by, *(entry.key if is_by_key else ()))))
    try:
        ordered = result.orderBy(*_quoted(order)) if order else result
    except AnalysisException as error:
        raise ConfigError(f"published {name}: {spark_message(error)}") from error
    try:
        rows = _numbered(ordered).limit(MAX_ROWS_HERE + 1).toArrow()
    except SPARK_FAILURES as error:
        if _TOO_LARGE in str(error):
            return None
        raise _job_failed(name, error) from error
    if rows.num_rows > MAX_ROWS_HERE or rows.nbytes > most_bytes:
        return None
    named = rows.rename_columns(result.columns).cast(arrow_schema_of(result.schema))
    return replace(task, is_by_key=is_by_key).write(named.to_batches())


def write_copy(
    name: str,
    spark: SparkSession,
    scan: Scan,
    result: DataFrame,
    task: PublishTask,
    *,
    copied: list[str | None],
    day: date | None,
) -> TaskReport:
    """Let the tasks that read the rows of one mirror by `scan` write them, too.

    `copied` holds the mirror's column for each column of the result, or None for the `day` of all rows.

    Raises:
        PublishError: the job failed.
    """
    wanted = dict.fromkeys(column for column in copied if column is not None)
    scan = scan.select(*(wanted or scan.schema.names[:1]))
    plan = scan.plan()
    split_bytes = fair_split_bytes(plan, parallelism_of(spark), task.layout.target_file_bytes)
    packed = pack_splits(plan.splits(split_bytes))
    if not packed.splits:
        return TaskReport((), plan.metrics)
    names = scan.schema.names
    copy = CopyTask(
        publish=task,
        shared=packed.shared,
        source=arrow_schema_of(spark_schema(scan.schema)),
        sources=tuple(None if column is None else names.index(column) for column in copied),
        result=arrow_schema_of(result.schema),
        day=day,
    )
    # one split per task: from a single partition, round robin deals exactly one to each
    frame = spark.createDataFrame(pa.table({"split": pa.array(packed.splits, pa.binary())}))
    report = _run(name, frame.coalesce(1).repartition(len(packed.splits)), copy)
    return TaskReport(report.files, report.metrics + plan.metrics)


def iceberg_columns(name: str, result: DataFrame) -> tuple[NestedField, ...]:
    """The Iceberg columns of a result.

    Raises:
        ConfigError: names that repeat or that a table cannot have, or columns without a type or with one unknown to
            Iceberg.
    """
    names = result.columns
    if twice := sorted({column for column in names if names.count(column) > 1}):
        raise ConfigError(f"published {name}: several columns are called {', '.join(twice)}: give them aliases")
    for column in names:
        if (reason := why_no_name(column)) is not None:
            raise ConfigError(f"published {name}: the result has a column {column!r}: {reason}; give it an alias")
    if void := [f.name for f in result.schema.fields if f.dataType.typeName() == "void"]:
        raise ConfigError(f"published {name}: column {void[0]!r} is NULL without a type: write cast(null as ...)")
    try:
        return iceberg_fields(arrow_schema_of(result.schema))
    except (PySparkException, SchemaConflictError) as error:
        raise ConfigError(f"published {name}: {spark_message(error)}; cast it") from error


def file_layout(options: PublishedOptions) -> FileLayout:
    """The file layout of the config."""
    return FileLayout(
        target_file_bytes=options.target_file_bytes,
        compression=options.compression,
        bloom_filters=options.bloom_filters,
    )


def _is_by_key(entry: PublishedConfig) -> bool:
    """Whether rows can be written in an order in which rows with the same key are neighbours."""
    return entry.options.distribution == "none" and set(entry.sort_by) <= set(entry.key)


def _by_key(result: DataFrame, entry: PublishedConfig) -> DataFrame:
    """Make rows with the same key neighbours in one task; check them there if they are rearranged later."""
    order = entry.sort_by if _is_by_key(entry) else ()
    by = _quoted(tuple(dict.fromkeys((*order, *entry.key))))
    together = result.repartition(*_quoted(entry.key)).sortWithinPartitions(*by)
    if _is_by_key(entry):
        return together
    numbered = _numbered(together)
    check = partial(check_numbered_keys, result.columns, entry.key)
    return numbered.mapInArrow(check, numbered.schema).toDF(*result.columns)


def _numbered(frame: DataFrame) -> DataFrame:
    """Number the columns for `mapInArrow`, which looks every column up by its name."""
    return frame.toDF(*numbers(len(frame.columns)))


def _arranged(result: DataFrame, entry: PublishedConfig) -> DataFrame:
    """Distribute rows to tasks and sort them in the order in which they are to be written."""
    order = _quoted(entry.sort_by)
    partition = entry.partitioning
    match entry.options.distribution:
        case "rebalance":
            result = result.hint("rebalance")
        case "range":  # a file holds one partition
            by = [] if partition is None else _quoted([partition.column])
            result = result.repartitionByRange(*dict.fromkeys([*by, *order]))
        case "none":
            pass
    return result.sortWithinPartitions(*order) if order else result


def _run(name: str, frame: DataFrame, task: Callable[..., Any]) -> TaskReport:
    try:
        reports = frame.mapInArrow(task, REPORT_SCHEMA).collect()
    except SPARK_FAILURES as error:
        raise _job_failed(name, error) from error
    return total_report(bytes(report["report"]) for report in reports)


def _job_failed(name: str, error: Exception) -> PublishError:
    return PublishError(f"published {name}: the Spark job failed: {spark_message(error)}")


def _quoted(columns: Sequence[str]) -> list[str]:
    return [quoted_name(column) for column in columns]


_UTC = frozenset({"UTC", "Etc/UTC", "Z", "GMT", "+00:00"})
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def query_result(
    spark: SparkSession, query: PublishedQuery, views: Mapping[str, str], arguments: Mapping[str, Any]
) -> DataFrame:
    """Run a query over views, given by table, with values for its parameters.

    Raises:
        ConfigError: Spark refuses it, or names of two columns of the result differ only in case.
    """
    require_utc(spark, query.name)
    try:
        result = spark.sql(query.over_views(views), args={name: bound(value) for name, value in arguments.items()})
        names = result.columns
    except SPARK_FAILURES as error:
        raise ConfigError(f"published {query.name}: {spark_message(error)}") from error
    try:
        require_names_apart("the result", names)
    except OptionError as error:
        raise ConfigError(f"published {query.name}: {error}") from error
    return result


def require_utc(spark: SparkSession, name: str) -> None:
    """Refuse a session in another time zone than UTC: its days differ from those of partitions.

    Raises:
        ConfigError: the session is in another time zone.
    """
    zone = str(spark.conf.get("spark.sql.session.timeZone"))
    if zone not in _UTC:
        raise ConfigError(
            f"published {name}: spark.sql.session.timeZone is {zone}, and published tables are made in UTC: leave the "
            "setting out, and convert in the SQL: from_utc_timestamp(at, 'Europe/Oslo')"
        )


def require_columns(name: str, result: DataFrame, columns: Iterable[str]) -> None:
    """Check that the result has the columns that the config names.

    Raises:
        ConfigError: a column is missing; names the nearest.
    """
    for column in columns:
        if column not in result.columns:
            hint = did_you_mean(column, result.columns, "it has none", cutoff=0.0, shown="{!r}")
            raise ConfigError(f"published {name}: the result has no column {column!r}; {hint}")


def partition_field(name: str, result: DataFrame, partition: PublishedPartition) -> NestedField:
    """Find the column of the result by which partitions are made.

    Raises:
        ConfigError: it is missing or has a type that cannot be partitioned this way.
    """
    require_columns(name, result, [partition.column])
    field = next(c for c in iceberg_columns(name, result.select(quoted_name(partition.column))))
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

    `values` are those of the Iceberg partition field, whose source column has the type `kind`.
    """
    return result.where(_is_in(partition, kind, values)) if values else result.limit(0)


def rows_beyond(result: DataFrame, partition: PublishedPartition, kind: Type, values: Collection[Any]) -> DataFrame:
    """The rows of all other partitions; arguments are those of `rows_of`."""
    return result.where(~f.coalesce(_is_in(partition, kind, values), f.lit(False)))


def _is_in(partition: PublishedPartition, kind: Type, values: Collection[Any]) -> Column:
    """Whether a row is in one of the partitions; NULL counts as false."""
    column = f.col(quoted_name(partition.column))
    name = kind.name if isinstance(kind, PrimitiveType) else ""
    present = sorted(v for v in values if v is not None)
    starts = [p.start for value in present for p in partition.periods([value])] if partition.is_time else []
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


def _value(physical: Any, kind: Type) -> Any:
    """Convert an identity partition's value to a value of the column."""
    match kind:
        case PrimitiveType("date"):
            return date_literal(date(1970, 1, 1) + timedelta(days=physical))
        case PrimitiveType("timestamptz"):
            return timestamp_literal(_EPOCH + timedelta(microseconds=physical))
        case PrimitiveType("timestamp"):
            return timestamp_ntz_literal(_EPOCH + timedelta(microseconds=physical))
        case _:
            return physical
