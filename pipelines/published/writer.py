"""Rows of a published table on their way through Spark: tasks write files and report them.

Imports pyspark. Rows come from a query, or from tasks that read and write by themselves (`direct_copy.py`).
"""

from collections.abc import Callable, Sequence
from dataclasses import replace
from datetime import date
from typing import Any, Protocol

import pyarrow as pa
from pyspark.errors import AnalysisException, PySparkException
from pyspark.sql import DataFrame, SparkSession

from pipelines.config import PublishedConfig
from pipelines.errors import ConfigError, PublishError, SchemaConflictError
from pipelines.published.direct_copy import CopyTask
from pipelines.published.sections import PublishedOptions
from pipelines.published.spark_failures import SPARK_FAILURES, spark_message
from pipelines.published.task import (
    REPORT_SCHEMA,
    KeyCheck,
    NumberedColumns,
    PublishTask,
    TaskReport,
    numbers,
    total_report,
)
from pipelines.tables.rolling_writer import FileLayout
from pipelines.tables.schema_evolution import iceberg_fields
from pipelines.tables.table_shape import why_no_name
from scan_core.distribute.spark import parallelism_of
from scan_core.distribute.spark_source import fair_split_bytes
from scan_core.distribute.spark_types import arrow_schema_of, spark_schema
from scan_core.distribute.split_packing import pack_splits
from scan_core.scan import Scan
from scan_core.schema import NestedField

_HINT = "; the Python of the workers lacks it: `nevermore spark-package` builds what they need, see docs/spark.md"


class Rows(Protocol):
    """Rows of a result, of which tasks make files."""

    def write(self, task: PublishTask) -> TaskReport:
        """Run the job; what its tasks report."""


class QueryRows:
    """The result of a query, arranged as the entry's options ask."""

    def __init__(self, name: str, result: DataFrame, entry: PublishedConfig) -> None:
        self._name = name
        self._result = result
        self._entry = entry

    def write(self, task: PublishTask) -> TaskReport:
        """Run the query and write its rows.

        Raises:
            ConfigError: rows cannot be sorted or spread by a column that the config names.
            PublishError: the job failed.
        """
        is_by_key = self._entry.mode == "upsert" and _is_by_key(self._entry)
        try:
            result = self._result if self._entry.mode != "upsert" else _by_key(self._result, self._entry)
            arranged = result if is_by_key else _arranged(result, self._entry)
        except AnalysisException as error:
            raise ConfigError(f"published {self._name}: {spark_message(error)}") from error
        task = replace(task, is_by_key=is_by_key)
        return _run(self._name, _numbered(arranged), NumberedColumns(task, tuple(arranged.columns)))


class CopiedRows:
    """Rows of one mirror, read and written by the same tasks.

    Args:
        spark: where tasks run.
        scan: gives the rows, and no others.
        result: what the query would give.
        name: of the published table.
        copied: for each column of the result the one of the mirror; None for the day.
        day: of all rows, if it is a column of the result.
    """

    def __init__(
        self,
        spark: SparkSession,
        scan: Scan,
        result: DataFrame,
        *,
        name: str,
        copied: list[str | None],
        day: date | None,
    ) -> None:
        self._spark = spark
        self._scan = scan.select(
            *dict.fromkeys(column for column in copied if column is not None) or scan.schema.names[:1]
        )
        self._result = arrow_schema_of(result.schema)
        self._name = name
        self._copied = copied
        self._day = day

    def write(self, task: PublishTask) -> TaskReport:
        """Read the splits and write their rows.

        Raises:
            PublishError: the job failed.
        """
        plan = self._scan.plan()
        parallelism = parallelism_of(self._spark)
        packed = pack_splits(
            plan.splits(fair_split_bytes(plan.total_bytes, parallelism, task.layout.target_file_bytes))
        )
        names = self._scan.schema.names
        copy = CopyTask(
            publish=task,
            shared=packed.shared,
            source=arrow_schema_of(spark_schema(self._scan.schema)),
            sources=tuple(None if column is None else names.index(column) for column in self._copied),
            result=self._result,
            day=self._day,
        )
        if not packed.splits:
            return TaskReport((), plan.metrics)
        # one split per task: of a single partition, round robin deals exactly one to each
        frame = self._spark.createDataFrame(pa.table({"split": pa.array(packed.splits, pa.binary())}))
        report = _run(self._name, frame.coalesce(1).repartition(len(packed.splits)), copy)
        return TaskReport(report.files, report.metrics + plan.metrics)


def iceberg_columns(name: str, result: DataFrame) -> tuple[NestedField, ...]:
    """The Iceberg columns of a result.

    Raises:
        ConfigError: names that occur twice or cannot be in a table, columns without a type, or of types that Iceberg has not.
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
    """The layout that a config asks for."""
    return FileLayout(
        target_file_bytes=options.target_file_bytes,
        row_group_bytes=options.row_group_bytes,
        row_group_rows=options.row_group_rows,
        page_rows=options.page_rows,
        compression=options.compression,
        bloom_filters=options.bloom_filters,
    )


def _is_by_key(entry: PublishedConfig) -> bool:
    """Whether rows can be written in an order in which those with the same key are neighbours."""
    return entry.options.distribution == "none" and set(entry.sort_by) <= set(entry.key)


def _by_key(result: DataFrame, entry: PublishedConfig) -> DataFrame:
    """Rows of which those with the same key meet in one task, as neighbours; found there, where they are arranged anew."""
    order = entry.sort_by if _is_by_key(entry) else ()
    met = result.repartition(*_quoted(entry.key)).sortWithinPartitions(
        *_quoted(tuple(dict.fromkeys((*order, *entry.key))))
    )
    if _is_by_key(entry):
        return met
    numbered = _numbered(met)
    check = KeyCheck(tuple(met.columns), entry.key)
    return numbered.mapInArrow(check, numbered.schema).toDF(*met.columns)


def _numbered(frame: DataFrame) -> DataFrame:
    """For `mapInArrow`, which looks every column up by its name."""
    return frame.toDF(*numbers(len(frame.columns)))


def _arranged(result: DataFrame, entry: PublishedConfig) -> DataFrame:
    """Rows in the tasks and in the order in which they are to be written."""
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
        message = spark_message(error)
        hint = _HINT if "No module named" in message else ""
        raise PublishError(f"published {name}: the Spark job failed: {message}{hint}") from error
    return total_report(bytes(report["report"]) for report in reports)


def _quoted(columns: Sequence[str]) -> list[str]:
    return ["`" + column.replace("`", "``") + "`" for column in columns]
