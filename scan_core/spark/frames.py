"""Scans as Spark DataFrames: by Spark's own Parquet reader where that gives the same rows, else by our data source.

Columns and predicate belong to the scan and snapshots are pinned, so a DataFrame may be used any number of times.
"""

from collections.abc import Iterable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from functools import reduce
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar
from weakref import WeakKeyDictionary, WeakSet

import pyarrow as pa
from pyspark.errors import PySparkAttributeError
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.functions import spark_partition_id
from pyspark.sql.types import StructType

from nevermore.scan_core.expr.normalize import may_fail
from nevermore.scan_core.model.errors import ColumnNotFoundError, OptionError, PredicateError
from nevermore.scan_core.model.options import ScanMetrics
from nevermore.scan_core.plan.planner import ScanPlan
from nevermore.scan_core.read.split_reader import read_split
from nevermore.scan_core.spark.native import (
    MAX_READINGS,
    NativeFiles,
    NativeLimits,
    given_to_spark,
    how_to_read,
    inspect_files,
    native_frames,
    readings_of,
    selects_rows,
    why_not_columns,
)
from nevermore.scan_core.spark.package import equip
from nevermore.scan_core.spark.reader_choice import (
    READERS,
    Reader,
    ReaderChoice,
    expected_bytes,
    filter_holds_everywhere,
    require_scan,
    require_session,
    why_python_pays,
)
from nevermore.scan_core.spark.reports import TaskReports, fetching
from nevermore.scan_core.spark.source import FORMAT, NevermoreDataSource, SourceOptions
from nevermore.scan_core.spark.types import arrow_schema_of, conform, spark_schema
from nevermore.scan_core.split.tasks import ScanContext

if TYPE_CHECKING:
    from nevermore.scan_core.scan import Scan


@dataclass(frozen=True)
class PushedFilters:
    """Result of pushing filters.

    Attributes:
        scan: the scan, narrowed by the filters in `applied`.
        applied: filters that every row of `scan` fulfils.
        left: filters that are not applied by `scan`, each with the reason.
    """

    scan: "Scan"
    applied: tuple[str, ...]
    left: Mapping[str, str]


def push_filters(scan: "Scan", filters: Iterable[str], *, never_failing: bool = False) -> PushedFilters:
    """Narrow `scan` by as many of `filters` as it applies exactly.

    As soon as one filter is left, so are those that can fail, such as casts: a row that the one removes must not fail
    the query in another.

    Args:
        scan: the scan to narrow.
        filters: SQL conditions, all of which rows must fulfil.
        never_failing: leave all filters that can fail, as conditions that are not known here may remove the rows.
    """
    left: dict[str, str] = {}
    fallible: list[str] = []
    wanted = tuple(dict.fromkeys(filters))
    for text in wanted:
        try:
            predicate = replace(scan, predicates=(text,)).predicate
        except (PredicateError, ColumnNotFoundError) as error:
            left[text] = str(error)
        else:
            if predicate is not None and any(map(may_fail, predicate.conjuncts)):
                fallible.append(text)
    if left or never_failing:
        what = "the rest of the query" if never_failing else f"a filter not applied here removes: {next(iter(left))}"
        reason = f"it can fail, perhaps on a row that {what}" + (" removes" if never_failing else "")
        left |= dict.fromkeys(fallible, reason)
    applied = tuple(text for text in wanted if text not in left)
    for text in applied:
        scan = scan.where(text)
    return PushedFilters(scan, applied, left)


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
    runs_python: bool = False,
    is_filtered_again: bool = False,
    driver_bytes: int = 0,
    is_one_relation: bool = False,
) -> DataFrame:
    """The rows of `scan` as a DataFrame, deletes applied; any SQL or DataFrame operation over it is right.

    The snapshot is fixed here: a table that moves on does not change the DataFrame. Select columns in the scan: Spark
    cannot prune those of a Python source.

    Args:
        spark: a session, classic or Connect.
        scan: what to read.
        reader: how rows reach the JVM: "native" through Spark's own Parquet reader, for scans of Parquet files that Spark
            can open; rows that predicate, semi joins and sample leave out are then found here and now, as deleted rows are.
            "python" through our tasks. "auto" is native where that is possible, unless conditions or prefilters leave so few
            rows that handing them over from Python is cheaper.
        filters: conditions in Spark's SQL, all of which rows must fulfil, on any columns that Spark or the scan knows.
            What the scan applies exactly it applies alone; the rest is left to Spark, on the columns of `scan`. In a
            session that is not in ANSI mode and UTC, where conditions mean something else, that is all of them.
        metrics_dir: where tasks report what they read, see `reports_of`: a folder of each host, or one that driver and
            workers share. Default: a temporary folder, removed on this host when this process ends.
        limits: how much of its work the native reader does on the driver, and what it may hold in memory.
        runs_python: whether the query runs tasks in Python in any case, which makes the python reader cheaper for "auto".
        is_filtered_again: whether every query over the DataFrame has the conditions of the scan itself. The DataFrame may
            then have rows that do not fulfil them, which allows the native reader in more cases. Conditions of `filters`
            are applied in any case.
        driver_bytes: rows of at most this many bytes in memory, which reader "auto" would read in Python, are read at once,
            by this process: for a single query over few rows that is much cheaper than starting tasks. 0 never does.
        is_one_relation: whether the DataFrame must not be a union, which the native reader makes of files that are read in
            different ways: Spark fails with "key not found" to plan a query over it that has a correlated sub-query as a
            column. (`planning` makes it plan any query, as long as it is open.)

    Raises:
        UnsupportedError: a column has a type that Spark has not.
        OptionError: no session or no scan, an unknown reader, or "native" for a scan that Spark's reader would read differently.
    """
    require_session(spark)
    require_scan(scan)
    if reader not in READERS:
        raise OptionError(f"reader must be 'auto', 'python' or 'native', not {reader!r}")
    if isinstance(filters, str):
        raise OptionError(f"filters are a sequence of conditions, not one text: [{filters!r}]")
    limits = limits or NativeLimits()
    left: Sequence[str] = filters
    if filters and means_what_scans_mean(spark):
        pushed = push_filters(scan, filters)
        scan, left = pushed.scan, tuple(pushed.left)
        is_filtered_again &= not pushed.applied
    is_filtered_again &= scan.row_limit is None
    schema = spark_schema(scan.schema)
    plan = scan.plan()
    parallelism = parallelism_of(spark)
    reports = TaskReports.in_folder(metrics_dir, fetching(spark, parallelism))
    metrics = ScanMetrics()
    context = read_natively(scan, plan, is_filtered_again=is_filtered_again)
    found: NativeFiles | str | None = "it was not asked for" if reader == "python" else None
    if reader == "auto":
        found = why_python_pays(scan, plan, context, runs_python=runs_python, is_filtered_again=is_filtered_again)
    found = found or _native(spark, plan, context, limits=limits, parallelism=parallelism, metrics=metrics)
    parts: list[DataFrame] = []
    if not isinstance(found, str):
        parts = native_frames(spark, found.files, context, schema)
        found = _UNION if is_one_relation and len(parts) > 1 else found
    if isinstance(found, str):
        if reader == "native":
            raise OptionError(f"reader 'native' cannot read this scan: {found}; reader 'auto' or 'python' can")
        rows = rows_here(scan, plan, schema, driver_bytes) if reader == "auto" else None
        choice = ReaderChoice(reader, "python" if rows is None else "driver", found)
        # where Spark plans again on this host, it says the same and more
        reports.write_plan(plan.metrics if rows is None else scan.metrics, num_splits=0)
        frame = (
            frame_by_source(spark, scan, parallelism, reports) if rows is None else spark.createDataFrame(rows, schema)
        )
    else:
        choice = ReaderChoice(reader, "native", bits_found_by=found.found_by)
        frame = reduce(DataFrame.union, parts)
        given = given_to_spark(plan.tasks, found.files, metrics, is_selective=selects_rows(context))
        reports.write_plan(plan.metrics + given, num_splits=0)
    frame = _narrowed(frame, left, scan.row_limit)
    remember(frame, reports, choice)
    return frame


def _narrowed(frame: DataFrame, conditions: Sequence[str], limit: int | None) -> DataFrame:
    for condition in conditions:
        frame = frame.filter(condition)
    return frame if limit is None else frame.limit(limit)


_UNION = "a column of the query is a sub-query, which Spark fails to plan over files that it reads in several ways"
MOST_STORED = 16
"""Data files that this process reads for a DataFrame have at most this many stored bytes for each byte of rows."""


def is_read_here(plan: ScanPlan, driver_bytes: int) -> bool:
    """Whether the files of a plan are small enough to be read by this process; their rows may still be too large."""
    return driver_bytes > 0 and sum(task.length for task in plan.tasks) <= MOST_STORED * driver_bytes


def rows_here(scan: "Scan", plan: ScanPlan, schema: StructType, driver_bytes: int) -> pa.Table | None:
    """The rows of a scan in Spark's types, read by this process; None if they take more than `driver_bytes`."""
    if not is_read_here(plan, driver_bytes):
        return None
    target = arrow_schema_of(schema)
    batches, size = [], 0
    with closing(scan.run(plan, read_split)) as results:
        for batch in results:
            batches.append(conform(batch, target))
            size += batches[-1].nbytes
            if size > driver_bytes:
                return None
    return pa.Table.from_batches(batches, target)


def remember(frame: DataFrame, reports: TaskReports, choice: ReaderChoice) -> None:
    """Keep the answers of `reports_of` and `choice_of` for a frame, as long as it exists."""
    _reports[frame], _choices[frame] = reports, choice


def frame_by_source(spark: SparkSession, scan: "Scan", parallelism: int, reports: TaskReports) -> DataFrame:
    """The rows of a scan by our data source; planned when Spark plans a query over them."""
    register(spark)
    options = SourceOptions.of(scan, parallelism=parallelism, metrics_dir=reports.directory)
    return spark.read.format(FORMAT).schema(spark_schema(scan.schema)).options(**options.as_text()).load()


def register(spark: SparkSession) -> None:
    """Make `format("nevermore")` and `CREATE TEMPORARY VIEW ... USING nevermore OPTIONS (...)` known to a session."""
    equip(spark)
    if spark not in _registered:
        spark.dataSource.register(NevermoreDataSource)
        _registered.add(spark)


def why_not_native(spark: SparkSession, scan: "Scan", limits: NativeLimits | None = None) -> str | None:
    """Why Spark's own reader would not give the rows of a scan; None if it would."""
    limits, parallelism = limits or NativeLimits(), parallelism_of(spark)
    plan = scan.plan()
    context = read_natively(scan, plan)
    found = _native(spark, plan, context, limits=limits, parallelism=parallelism, metrics=ScanMetrics())
    return found if isinstance(found, str) else None


def expected_choice(
    scan: "Scan",
    plan: ScanPlan,
    reader: Reader = "auto",
    *,
    runs_python: bool = False,
    is_filtered_again: bool = False,
    driver_bytes: int = 0,
) -> ReaderChoice:
    """The reader that `dataframe` is expected to choose for a scan of local files; needs no session, reads little of them.

    Args:
        scan: what would be read.
        plan: its plan.
        reader: as for `dataframe`.
        runs_python: as for `dataframe`.
        is_filtered_again: as for `dataframe`.
        driver_bytes: as for `dataframe`.
    """
    reason: str | None = "it was not asked for"
    context = read_natively(scan, plan, is_filtered_again=is_filtered_again)
    if reader != "python":
        reason = why_python_pays(scan, plan, context, runs_python=runs_python, is_filtered_again=is_filtered_again)
    reason = reason or why_not_columns(context)
    for task in plan.tasks[: NativeLimits().driver_files] if reason is None else ():
        if isinstance(found := how_to_read(task, plan.context), str):
            reason = found
            break
    if reason is None:
        return ReaderChoice(reader, "native")
    is_here = reader == "auto" and is_read_here(plan, driver_bytes) and expected_bytes(plan) <= driver_bytes
    return ReaderChoice(reader, "driver" if is_here else "python", reason)


def read_natively(scan: "Scan", plan: ScanPlan, *, is_filtered_again: bool = False) -> ScanContext:
    """What Spark's reader has to apply: no predicate that all rows fulfil or that the query applies."""
    if is_filtered_again or filter_holds_everywhere(scan, plan):
        return replace(plan.context, predicate=None)
    return plan.context


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
    spark: SparkSession,
    plan: ScanPlan,
    context: ScanContext,
    *,
    limits: NativeLimits,
    parallelism: int,
    metrics: ScanMetrics,
) -> NativeFiles | str:
    """The facts that Spark's reader needs about the files, or why it cannot read them."""
    if (reason := why_not_columns(context)) is not None:
        return reason
    found = inspect_files(spark, plan.tasks, context, metrics, limits=limits, parallelism=parallelism)
    if not isinstance(found, str) and (number := len(readings_of(found.files))) > MAX_READINGS:
        return f"the files have to be read in {number} different ways, more than {MAX_READINGS}"
    return found


def means_what_scans_mean(spark: SparkSession) -> bool:
    """Whether names, casts, overflows and times mean what they mean in filters of scans: without case, in ANSI mode and UTC."""
    zone = str(spark.conf.get("spark.sql.session.timeZone"))
    is_ansi = str(spark.conf.get("spark.sql.ansi.enabled")).lower() == "true"
    return zone in _UTC and is_ansi and not compares_case(spark)


def compares_case(spark: SparkSession) -> bool:
    """Whether names that differ in case are different names in the session."""
    return str(spark.conf.get("spark.sql.caseSensitive")).lower() == "true"


def parallelism_of(spark: SparkSession) -> int:
    """How many tasks a session runs at once."""
    try:
        return int(spark.sparkContext.defaultParallelism)
    except PySparkAttributeError:  # Connect has no context: what the server would use for a range tells the same
        if spark not in _slots:
            _slots[spark] = int(spark.range(0, 1_000_000).select(spark_partition_id()).distinct().count())
        return _slots[spark]
