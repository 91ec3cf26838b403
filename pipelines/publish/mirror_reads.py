"""Reads mirrors for a publication: live rows at fixed snapshots, and changed rows, as DataFrames.

This module imports pyspark.
"""

import pickle
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING
from uuid import uuid4

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f
from pyspark.sql.types import LongType, StructField, StructType

from nevermore.pipelines.config.project import Config
from nevermore.pipelines.errors import PublishError, SourceError
from nevermore.pipelines.iceberg.catalog import find_table
from nevermore.pipelines.mirrors.moments import common_snapshots
from nevermore.pipelines.publish.query import PublishedQuery
from nevermore.pipelines.publish.task import ReadChanges
from nevermore.scan_core import Changes, PrimitiveType, Scan, ScanMetrics, open_table, run_splits
from nevermore.scan_core.spark import (
    SPLITS_PER_CORE,
    Pushed,
    Reader,
    TableRead,
    TaskReports,
    arrow_schema_of,
    choice_of,
    dataframe,
    parallelism_of,
    reports_of,
    spark_schema,
)

if TYPE_CHECKING:
    from nevermore.pipelines.iceberg.catalog import Catalog


def mirror_scans(catalog: "Catalog", config: Config, query: PublishedQuery) -> dict[str, Scan]:
    """Create a scan of each mirror with the columns that the query needs.

    Mirrors of one live source are read at one of its commits, unless the entry says `consistent: false`.

    Raises:
        PublishError: a mirror does not exist yet, or mirrors have no commit in common.
    """
    mirrors = {}
    for name in query.tables:
        mirror = find_table(catalog, name)
        if mirror is None:
            raise PublishError(f"published {query.name} reads {name}, which does not exist yet: ingest it first")
        mirrors[name] = mirror
    scans = {name: open_table(mirror, options=config.scan_options).scan() for name, mirror in mirrors.items()}
    if config.published[query.name].consistent:
        try:
            pinned = common_snapshots(catalog, config, mirrors)
        except SourceError as error:
            loose = "With consistent: false, each is read as it is now"
            raise PublishError(f"published {query.name}: {error}. {loose}") from error
        scans |= {name: scans[name].as_of_snapshot(snapshot_id) for name, snapshot_id in pinned.items()}
    columns = query.columns({name: scan.schema for name, scan in scans.items()})
    return {name: scan.select(*columns[name]) for name, scan in scans.items()}


@dataclass(frozen=True, slots=True)
class MirrorView:
    """A temporary view of a scan.

    Attributes:
        name: name of the view.
        reader: the reader of its rows, and why it was chosen.
        reports: reports of planning and of the tasks that read it.
        is_read: whether its rows are few and are read already.
    """

    name: str
    reader: str
    reports: TaskReports
    is_read: bool


@contextmanager
def views_of(
    spark: SparkSession,
    scans: Mapping[str, Scan],
    reports_folder: str | None,
    reader: Reader,
    driver_bytes: int = 0,
) -> Iterator[dict[str, MirrorView]]:
    """Temporary views of the scans, by table, for a query that repeats their conditions.

    Scans of which this process reads at most `driver_bytes` are read here, at once.

    Sessions are shared, and Spark's Python sources do not work in `newSession()`, so the names are unique.
    """
    token = uuid4().hex[:12]
    folders = {table: reports_folder and f"{reports_folder}/{uuid4().hex}" for table in scans}
    frames = {  # tasks in Python write the result
        table: dataframe(
            spark,
            scan,
            reader=reader,
            metrics_dir=folders[table],
            runs_python=True,
            is_filtered_again=True,
            driver_bytes=driver_bytes,
        )
        for table, scan in scans.items()
    }
    names = {table: f"nevermore_{token}_{number}" for number, table in enumerate(frames)}
    try:
        for table, frame in frames.items():
            frame.createTempView(names[table])
        choices = {table: choice_of(frame) for table, frame in frames.items()}
        yield {
            table: MirrorView(names[table], str(choices[table]), reports_of(frame), choices[table].strategy == "driver")
            for table, frame in frames.items()
        }
    finally:
        for view in names.values():
            spark.catalog.dropTempView(view)


@contextmanager
def columns_of(spark: SparkSession, scans: Mapping[str, Scan]) -> Iterator[dict[str, str]]:
    """Names of temporary views without rows, by table, which tell the columns of a query and cost Spark next to nothing."""
    names = {table: f"nevermore_{uuid4().hex[:12]}" for table in scans}
    try:
        for table, scan in scans.items():
            _without_rows(spark, spark_schema(scan.schema)).createTempView(names[table])
        yield names
    finally:
        for view in names.values():
            spark.catalog.dropTempView(view)


def _without_rows(spark: SparkSession, schema: StructType) -> DataFrame:
    if not hasattr(spark, "_jsparkSession"):
        return spark.createDataFrame([], schema)
    session = spark._jsparkSession  # noqa: SLF001 - PySpark's own way makes an RDD, which takes three times as long
    none = spark.sparkContext._jvm.java.util.ArrayList()  # noqa: SLF001
    return DataFrame(session.createDataFrame(none, session.parseDataType(schema.json())), spark)


def snapshots_read(scans: Mapping[str, Scan]) -> dict[str, int]:
    """Snapshots that are read, by table."""
    return {name: scan.snapshot.snapshot_id for name, scan in scans.items() if scan.snapshot}


def names_of(views: Mapping[str, MirrorView]) -> dict[str, str]:
    """The name of the view of each table."""
    return {table: view.name for table, view in views.items()}


def reads_of(
    scans: Mapping[str, Scan], views: Mapping[str, MirrorView], pushed: Mapping[str, Pushed] | None = None
) -> dict[str, TableRead]:
    """What each table gave to the queries over its view so far."""
    return {
        table: TableRead.of(scan, views[table].reports.total(), views[table].reader, (pushed or {}).get(table))
        for table, scan in scans.items()
    }


TIMES = "_nevermore_times"
"""The last column: how often a row appeared (positive) or disappeared (negative)."""
_FLOATS = frozenset({"float", "double"})


HERE_BYTES = 32 * 1024**2
"""Changes in files of at most this many stored bytes are read by this process: a Spark job for few rows takes seconds."""
_HERE_ROWS_BYTES = 8 * HERE_BYTES


@dataclass(frozen=True, slots=True)
class ChangesView:
    """A temporary view of rows that appeared or disappeared.

    Attributes:
        name: name of the view.
        count: how many changes there are.
        is_here: whether this process has read them, so that Spark needs no tasks to read the view.
    """

    name: str
    count: int
    is_here: bool


@contextmanager
def view_of_changes(spark: SparkSession, changes: Changes) -> Iterator[ChangesView]:
    """A temporary view of rows that appeared or disappeared, which are read once."""
    name = f"nevermore_{uuid4().hex[:12]}"
    with _changes(spark, changes) as (frame, count, is_here):
        frame.createTempView(name)
        try:
            yield ChangesView(name, count, is_here)
        finally:
            spark.catalog.dropTempView(name)


@contextmanager
def _changes(spark: SparkSession, changes: Changes) -> Iterator[tuple[DataFrame, int, bool]]:
    schema = spark_schema(changes.context.projection)
    if (rows := changed_rows_here(changes)) is not None:
        yield spark.createDataFrame(rows.drop_columns(TIMES), schema), pc.sum(rows.column(TIMES)).as_py() or 0, True
    elif (found := changed_rows(spark, changes)) is None:
        yield _without_rows(spark, schema), 0, True
    else:
        kept = found.persist()
        try:
            (total,) = kept.agg(f.sum(TIMES)).collect()
            yield kept.drop(TIMES), int(total[0] or 0), False
        finally:
            kept.unpersist()


def changed_rows_here(changes: Changes) -> pa.Table | None:
    """The rows of `changed_rows`, read by this process; None if they are in files of more than `HERE_BYTES`."""
    work = changes.work()
    if sum(split.stored_bytes for split in work.splits) > HERE_BYTES:
        return None
    fields = changes.context.projection.fields
    schema = arrow_schema_of(spark_schema(changes.context.projection)).append(pa.field(TIMES, pa.int64()))
    read, size = ReadChanges(schema), 0
    batches = []
    results = run_splits(work.splits, read.rows, ScanMetrics(), changes.context.options.parallelism)
    with closing(results):
        for batch in results:
            batches.append(batch)
            size += batch.nbytes
            if size > _HERE_ROWS_BYTES:
                return None
    rows = pa.Table.from_batches(batches, schema)
    if work.compared is not None and all(isinstance(field.type, PrimitiveType) for field in fields):
        rows = _net_here(rows)
    return rows.set_column(len(fields), TIMES, pc.abs(rows.column(len(fields))))


def _net_here(rows: pa.Table) -> pa.Table:
    """Rows whose appearances and disappearances do not cancel out, each once; signs of zeros count, those of NaN do not."""
    by = [f"c{n}" for n in range(rows.num_columns - 1)]
    columns = [
        pc.if_else(pc.is_nan(x), pa.scalar(float("nan"), x.type), x) if pa.types.is_floating(x.type) else x
        for x in rows.columns
    ]
    numbered = pa.table(columns, names=[*by, "times"]).group_by(by, use_threads=False).aggregate([("times", "sum")])
    net = numbered.filter(pc.field("times_sum") != 0).select([*by, "times_sum"])
    return net.rename_columns(rows.column_names).cast(rows.schema)


def changed_rows(spark: SparkSession, changes: Changes) -> DataFrame | None:
    """Rows that appeared or disappeared, in Spark's types, with `TIMES`; None if there are none."""
    work = changes.work()
    if not work.splits:
        return None
    fields = changes.context.projection.fields
    schema = spark_schema(changes.context.projection)
    task_schema = StructType(
        [
            *(StructField(f"c{n}", column.dataType, column.nullable) for n, column in enumerate(schema)),
            StructField(TIMES, LongType()),
        ]
    )
    num_tasks = min(len(work.splits), SPLITS_PER_CORE * parallelism_of(spark))
    packed = [pickle.dumps(work.splits[n::num_tasks], protocol=5) for n in range(num_tasks)]
    # one split per task: from a single partition, round robin deals exactly one to each
    parts = spark.createDataFrame(pa.table({"splits": pa.array(packed, pa.binary())})).coalesce(1)
    read = parts.repartition(num_tasks).mapInArrow(ReadChanges(arrow_schema_of(task_schema)), task_schema)
    # nested values are not compared: rows that were only moved then count as changed
    if work.compared is not None and all(isinstance(field.type, PrimitiveType) for field in fields):
        read = _net(read, [isinstance(x.type, PrimitiveType) and x.type.name in _FLOATS for x in fields])
    columns = [f.col(f"c{n}") for n in range(len(fields))]
    return read.select(*columns, f.abs(f.col(TIMES))).toDF(*schema.names, TIMES)


def _net(read: DataFrame, are_floats: Sequence[bool]) -> DataFrame:
    """Rows whose appearances and disappearances do not cancel out, each once."""
    by, values = [], []
    for n, is_float in enumerate(are_floats):
        column = f.col(f"c{n}")
        # text tells -0.0 from 0.0, which grouping treats as equal
        by.append(column.cast("string").alias(f"t{n}") if is_float else column)
        values += [f.first(column).alias(f"c{n}")] if is_float else []
    return read.groupBy(*by).agg(f.sum(TIMES).alias(TIMES), *values).where(f.col(TIMES) != 0)
