"""Scans as Spark DataFrames: by Spark's own Parquet reader where that gives the same rows, else by our data source.

Columns and predicate belong to the scan, and snapshots are pinned: a DataFrame may be used in any way, any number of
times. How each reader works is told in `spark_native.py` and `spark_source.py`.
"""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar
from weakref import WeakKeyDictionary, WeakSet

from pyspark.errors import PySparkAttributeError
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.functions import spark_partition_id

from scan_core.distribute.frame_arguments import require_scan, require_session
from scan_core.distribute.native_files import NativeFiles, inspect_files
from scan_core.distribute.native_limits import NativeLimits
from scan_core.distribute.native_reading import why_not_columns
from scan_core.distribute.prefilter_reading import filter_holds_everywhere, why_python_pays
from scan_core.distribute.pushed_filters import push_filters
from scan_core.distribute.reader_choice import Reader, ReaderChoice
from scan_core.distribute.report_gathering import fetching
from scan_core.distribute.source_options import SourceOptions
from scan_core.distribute.spark_join import explain_join, join  # noqa: F401  part of this surface
from scan_core.distribute.spark_native import MOST_READINGS, native_dataframe, readings_of
from scan_core.distribute.spark_source import FORMAT, NevermoreDataSource
from scan_core.distribute.spark_types import spark_schema
from scan_core.distribute.task_reports import TaskReports
from scan_core.errors import OptionError
from scan_core.metrics import ScanMetrics
from scan_core.plan.planner import ScanPlan

if TYPE_CHECKING:
    from scan_core.scan import Scan

T = TypeVar("T")
_UTC = frozenset({"UTC", "Etc/UTC", "Z"})

_reports: "WeakKeyDictionary[DataFrame, TaskReports]" = WeakKeyDictionary()
_slots: "WeakKeyDictionary[SparkSession, int]" = WeakKeyDictionary()
"""Tasks that the server of a Connect session runs at once, asked once."""
_registered: "WeakSet[SparkSession]" = WeakSet()
_choices: "WeakKeyDictionary[DataFrame, ReaderChoice]" = WeakKeyDictionary()


def dataframe(
    spark: SparkSession,
    scan: "Scan",
    reader: Reader = "auto",
    *,
    filters: Sequence[str] = (),
    metrics_dir: Path | str | None = None,
    limits: NativeLimits | None = None,
) -> DataFrame:
    """The rows of `scan` as a DataFrame, deletes applied; any SQL or DataFrame operation over it is right.

    The snapshot is fixed here: a table that moves on does not change the DataFrame. Select columns in the scan: Spark
    cannot prune those of a Python source.

    Args:
        spark: a session, classic or Connect.
        scan: what to read.
        reader: how rows reach the JVM: "native" through Spark's own Parquet reader, for scans of Parquet files that Spark
            can open, without predicate or with one that all rows fulfil, as statistics of the files tell; "python" through our tasks; "auto" is native where that is possible, unless
            prefilters leave so few rows that looking all of them up in Python is cheaper.
        filters: conditions in Spark's SQL, all of which rows must fulfil, on any columns that Spark or the scan knows.
            What the scan applies exactly it applies alone; the rest is left to Spark, on the columns of `scan`. In a
            session that is not in ANSI mode and UTC, where conditions mean something else, that is all of them.
        metrics_dir: where tasks report what they read, see `reports_of`: a folder of each host, or one that driver and
            workers share. Default: a temporary folder, removed on this host when this process ends.
        limits: how much of its work the native reader does on the driver, and what it may hold in memory.

    Raises:
        UnsupportedError: a column has a type that Spark has not.
        OptionError: no session or no scan, an unknown reader, or "native" for a scan that Spark's reader would read differently.
    """
    require_session(spark)
    require_scan(scan)
    if reader not in ("auto", "python", "native"):
        raise OptionError(f"reader must be 'auto', 'python' or 'native', not {reader!r}")
    if isinstance(filters, str):
        raise OptionError(f"filters are a sequence of conditions, not one text: [{filters!r}]")
    limits = limits or NativeLimits()
    left: Sequence[str] = filters
    if filters and _means_what_scans_mean(spark):
        pushed = push_filters(scan, filters)
        scan, left = pushed.scan, tuple(pushed.left)
    schema = spark_schema(scan.schema)
    plan = scan.plan()
    parallelism = parallelism_of(spark)
    reports = TaskReports.in_folder(metrics_dir, fetching(spark, parallelism))
    metrics = ScanMetrics()
    found: NativeFiles | str | None = "it was not asked for" if reader == "python" else None
    if found is None and reader == "auto":
        found = why_python_pays(scan, plan)
    if found is None:
        found = _native(spark, scan, plan, limits=limits, parallelism=parallelism, metrics=metrics)
    if isinstance(found, str):
        if reader == "native":
            raise OptionError(f"reader 'native' cannot read this scan: {found}; reader 'auto' or 'python' can")
        register(spark)
        choice = ReaderChoice(reader, "python", found)
        reports.write_plan(
            plan.metrics, num_splits=0
        )  # where Spark plans again on this host, it says the same and more
        options = SourceOptions.of(scan, parallelism=parallelism, metrics_dir=reports.directory)
        frame = spark.read.format(FORMAT).schema(schema).options(**options.as_text()).load()
    else:
        choice = ReaderChoice(reader, "native", bits_found_by=found.found_by)
        frame = native_dataframe(spark, found.files, plan.context, schema, limits)
        reports.write_plan(plan.metrics + metrics, num_splits=0)
    for condition in left:
        frame = frame.filter(condition)
    if scan.row_limit is not None:
        frame = frame.limit(scan.row_limit)
    _reports[frame], _choices[frame] = reports, choice
    return frame


def register(spark: SparkSession) -> None:
    """Make `format("nevermore")` and `CREATE TEMPORARY VIEW ... USING nevermore OPTIONS (...)` known to a session."""
    if spark not in _registered:
        spark.dataSource.register(NevermoreDataSource)
        _registered.add(spark)


def why_not_native(spark: SparkSession, scan: "Scan", limits: NativeLimits | None = None) -> str | None:
    """Why Spark's own reader would not give the rows of a scan; None if it would."""
    found = _native(
        spark,
        scan,
        scan.plan(),
        limits=limits or NativeLimits(),
        parallelism=parallelism_of(spark),
        metrics=ScanMetrics(),
    )
    return found if isinstance(found, str) else None


def choice_of(frame: DataFrame) -> ReaderChoice:
    """Which reader gives the rows of `frame`, and why not the other.

    Raises:
        OptionError: `frame` was not returned by `dataframe` (one derived from it does not count).
    """
    return _of(_choices, frame, "a choice of reader")


def reports_of(frame: DataFrame) -> TaskReports:
    """What planning and the tasks of all queries over `frame` read, skipped and removed so far.

    Raises:
        OptionError: `frame` was not returned by `dataframe` (one derived from it does not count).
    """
    return _of(_reports, frame, "reports")


def _of(known: "WeakKeyDictionary[DataFrame, T]", frame: DataFrame, what: str) -> T:
    try:
        return known[frame]
    except KeyError:
        raise OptionError(f"only a DataFrame that dataframe() returned has {what}, not one derived from it") from None


def _native(
    spark: SparkSession, scan: "Scan", plan: ScanPlan, *, limits: NativeLimits, parallelism: int, metrics: ScanMetrics
) -> NativeFiles | str:
    """What Spark's reader has to know of the files, or why it cannot read them."""
    context = plan.context
    if filter_holds_everywhere(scan, plan):
        context = replace(context, predicate=None)
    if (reason := why_not_columns(context)) is not None:
        return reason
    found = inspect_files(spark, plan.tasks, context, metrics, limits=limits, parallelism=parallelism)
    if not isinstance(found, str) and (number := len(readings_of(found.files))) > MOST_READINGS:
        return f"the files have to be read in {number} different ways, more than {MOST_READINGS}"
    return found


def _means_what_scans_mean(spark: SparkSession) -> bool:
    """Are casts, overflows and times of the session those of filters?"""
    zone = str(spark.conf.get("spark.sql.session.timeZone"))
    return zone in _UTC and str(spark.conf.get("spark.sql.ansi.enabled")).lower() == "true"


def parallelism_of(spark: SparkSession) -> int:
    """How many tasks a session runs at once."""
    try:
        return int(spark.sparkContext.defaultParallelism)
    except PySparkAttributeError:  # Connect has no context: what the server would use for a range tells the same
        if spark not in _slots:
            _slots[spark] = int(spark.range(0, 1_000_000).select(spark_partition_id()).distinct().count())
        return _slots[spark]
