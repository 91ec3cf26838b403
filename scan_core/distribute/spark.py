"""Scans as Spark DataFrames: the data source `format("nevermore")`.

Splits are planned on the driver, a task reads one split with `read_split`, and only rows of the result cross to the
JVM, as Arrow batches. Columns and predicate arrive as options. `pushFilters` is never overridden: up to Spark 4.3 a
pushed filter leaks into other uses of the same DataFrame, which silently loses rows. `dataframe(..., filters=...)` pushes.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal
from weakref import WeakKeyDictionary

import pyarrow as pa
from pyspark import TaskContext
from pyspark.errors import PySparkAttributeError
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import types as st
from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition
from pyspark.sql.functions import spark_partition_id
from pyspark.sql.pandas.types import to_arrow_schema

from scan_core.distribute.pushed_filters import push_filters
from scan_core.distribute.source_options import SourceOptions
from scan_core.distribute.spark_batches import conform
from scan_core.distribute.spark_join import explain_join, join  # noqa: F401  part of this surface
from scan_core.distribute.spark_native import native_dataframe, why_not_native
from scan_core.distribute.spark_types import spark_schema
from scan_core.distribute.task_reports import TaskReports
from scan_core.errors import OptionError
from scan_core.metrics import ScanMetrics
from scan_core.read.split_reader import read_split
from scan_core.split import Split

if TYPE_CHECKING:
    from scan_core.scan import Scan

FORMAT = "nevermore"
SPLITS_PER_CORE = 2
"""Two keep every core busy to the end; more only add the cost of starting a task."""
MIN_SPLIT_BYTES = 4 * 1024**2
"""Below this, handing a task to a Python worker costs more than reading it."""
_UTC = frozenset({"UTC", "Etc/UTC", "Z"})
Reader = Literal["auto", "python", "native"]
"""What may be asked: a strategy, or that one be chosen."""

_reports: "WeakKeyDictionary[DataFrame, TaskReports]" = WeakKeyDictionary()


def dataframe(
    spark: SparkSession,
    scan: "Scan",
    reader: Reader = "auto",
    *,
    filters: Sequence[str] = (),
    metrics_dir: Path | str | None = None,
) -> DataFrame:
    """The rows of `scan` as a DataFrame, deletes applied; any SQL or DataFrame operation over it is right.

    The snapshot is fixed here: a table that moves on does not change the DataFrame. Select columns in the scan: Spark
    cannot prune those of a Python source.

    Args:
        spark: a session, classic or Connect.
        scan: what to read.
        reader: how rows reach the JVM: "native" through Spark's own Parquet reader, for scans without predicate of
            local Parquet files; "python" through our tasks; "auto" is native where that is possible.
        filters: conditions in Spark's SQL, all of which rows must fulfil, on any columns that Spark or the scan knows.
            What the scan applies exactly it applies alone; the rest is left to Spark, on the columns of `scan`. In a
            session that is not in ANSI mode and UTC, where conditions mean something else, that is all of them.
        metrics_dir: where tasks report what they read, see `reports_of`; on a cluster a folder that driver and
            workers share. Default: a temporary folder, removed when this process ends.

    Raises:
        UnsupportedError: a column has a type that Spark has not.
        OptionError: an unknown reader, or "native" for a scan that Spark's reader would read differently.
    """
    if reader not in ("auto", "python", "native"):
        raise OptionError(f"reader must be 'auto', 'python' or 'native', not {reader!r}")
    if isinstance(filters, str):
        raise OptionError(f"filters are a sequence of conditions, not one text: [{filters!r}]")
    left: Sequence[str] = filters
    if filters and _means_what_scans_mean(spark):
        pushed = push_filters(scan, filters)
        scan, left = pushed.scan, tuple(pushed.left)
    schema = spark_schema(scan.schema)
    register(spark)
    reports = TaskReports.in_folder(metrics_dir)
    plan = scan.plan()
    obstacle = None if reader == "python" else why_not_native(plan)
    if reader == "native" and obstacle is not None:
        raise OptionError(f"reader 'native' cannot read this scan: {obstacle}; reader 'auto' or 'python' can")
    if reader == "python" or obstacle is not None:
        options = SourceOptions.of(scan, parallelism=_parallelism(spark), metrics_dir=reports.directory)
        frame = spark.read.format(FORMAT).schema(schema).options(**options.as_text()).load()
    else:
        frame, driver_metrics = native_dataframe(spark, plan, schema)
        reports.write_plan(plan.metrics + driver_metrics, num_splits=0)
    for condition in left:
        frame = frame.filter(condition)
    if scan.row_limit is not None:
        frame = frame.limit(scan.row_limit)
    _reports[frame] = reports
    return frame


def register(spark: SparkSession) -> None:
    """Make `format("nevermore")` and `CREATE TEMPORARY VIEW ... USING nevermore OPTIONS (...)` known to a session."""
    spark.dataSource.register(NevermoreDataSource)


def reports_of(frame: DataFrame) -> TaskReports:
    """What planning and the tasks of all queries over `frame` read, skipped and removed so far.

    Raises:
        OptionError: `frame` was not returned by `dataframe` (one derived from it does not count).
    """
    try:
        return _reports[frame]
    except KeyError:
        raise OptionError("only a DataFrame that dataframe() returned has reports, not one derived from it") from None


class NevermoreDataSource(DataSource):  # type: ignore[misc] # pyspark is not typed for mypy here
    """`format("nevermore")`; options are those of `SourceOptions`."""

    @classmethod
    def name(cls) -> str:
        """What SQL and `format()` call it."""
        return FORMAT

    def schema(self) -> st.StructType:
        """All columns of the scan, unless `.schema(...)` chose some."""
        return spark_schema(SourceOptions.parse(self.options).scan().schema)

    def reader(self, schema: st.StructType) -> "NevermoreReader":
        """A reader of the columns of `schema`."""
        return NevermoreReader(SourceOptions.parse(self.options), schema)


@dataclass(frozen=True, slots=True)
class SplitPartition(InputPartition):  # type: ignore[misc]
    """One split, pickled into one task."""

    index: int
    split: Split


class NevermoreReader(DataSourceReader):  # type: ignore[misc]
    """Plans on the driver (`partitions`), reads in tasks (`read`)."""

    def __init__(self, options: SourceOptions, schema: st.StructType) -> None:
        """Args: what to read, and the schema Spark was told: its names choose the columns."""
        self._options = options
        self._schema = schema

    def partitions(self) -> list[InputPartition]:
        """One partition per split. Spark asks once per load: every use of the DataFrame reads the same snapshot."""
        scan = self._options.scan().select(*self._schema.names)
        _require_same_types(spark_schema(scan.schema), self._schema)
        plan = scan.plan()
        total_bytes = sum(task.length for task in plan.tasks)
        fair_bytes = -(-total_bytes // (SPLITS_PER_CORE * self._options.parallelism))
        splits = plan.splits(max(MIN_SPLIT_BYTES, min(plan.context.options.split_bytes, fair_bytes)))
        if self._options.metrics_dir is not None:
            TaskReports(self._options.metrics_dir).write_plan(plan.metrics, len(splits))
        return [SplitPartition(index, split) for index, split in enumerate(splits)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """The rows of one split, conformed to the declared schema."""
        if not isinstance(partition, SplitPartition):
            return  # Spark makes one empty partition of an empty list
        target = to_arrow_schema(self._schema, timezone="UTC")
        metrics = ScanMetrics()
        try:
            for batch in read_split(partition.split, metrics):
                yield conform(batch, target)
        finally:
            task = TaskContext.get()
            if self._options.metrics_dir is not None and task is not None:
                TaskReports(self._options.metrics_dir).write_task(task.stageId(), partition.index, metrics)


def _require_same_types(table: st.StructType, declared: st.StructType) -> None:
    for have, want in zip(table, declared, strict=True):
        if have.dataType.simpleString() != want.dataType.simpleString():
            raise OptionError(
                f"column {want.name!r} is {have.dataType.simpleString()}, the schema given to Spark says "
                f"{want.dataType.simpleString()}"
            )


def _means_what_scans_mean(spark: SparkSession) -> bool:
    """Are casts, overflows and times of the session those of filters?"""
    zone = str(spark.conf.get("spark.sql.session.timeZone"))
    return zone in _UTC and str(spark.conf.get("spark.sql.ansi.enabled")).lower() == "true"


def _parallelism(spark: SparkSession) -> int:
    try:
        return int(spark.sparkContext.defaultParallelism)
    except PySparkAttributeError:  # Connect has no context: what the server would use for a range tells the same
        return int(spark.range(0, 1_000_000).select(spark_partition_id()).distinct().count())
