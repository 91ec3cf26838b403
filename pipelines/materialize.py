"""Published tables: SQL over mirrors, run by Spark, one business day written in one Iceberg snapshot.

Imports pyspark. Mirrors are read through scan_core's data source, so deleted rows never reach the query; what the SQL
needs of them is found by `published_query.py`, and `published_writer.py` writes and commits the result.
"""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from datetime import date
from difflib import get_close_matches
from typing import Any
from uuid import uuid4

from pyspark.errors import AnalysisException, ParseException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.functions import col, lit

from pipelines.catalog import find_table, open_catalog
from pipelines.config import Config, PublishedConfig
from pipelines.direct_copy import copied_columns
from pipelines.errors import ConfigError, PublishError
from pipelines.published_query import PublishedQuery, parse_query
from pipelines.published_writer import CopiedRows, QueryRows, Rows, publish, spark_message
from pipelines.spark_place import project_session
from scan_core.distribute.spark import dataframe, reports_of
from scan_core.distribute.task_reports import TaskReports
from scan_core.metrics import ScanMetrics
from scan_core.scan import Scan
from scan_core.table import open_table


@dataclass(frozen=True, slots=True)
class MirrorRead:
    """What one table gave to a publication. `metrics` adds up planning and all tasks."""

    snapshot_id: int | None
    columns: tuple[str, ...]
    where: str | None
    metrics: ScanMetrics


@dataclass(frozen=True, slots=True)
class MaterializeReport:
    """What one run of `materialize` did.

    Attributes:
        name: the published table.
        partition_key: the business day.
        rows: rows written: all of that day now, unless the mode is append or upsert.
        data_files: files that hold them.
        bytes_written: their size.
        snapshot_id: of the published table, that made them visible.
        reads: what was read, by table.
        mode: what was done with rows that were there: replace, append or upsert.
        is_repeat: an earlier run had appended these very rows; nothing was written.
        is_direct_copy: the tasks that read the mirror wrote the files.
        delete_rows: keys whose earlier rows the new ones take the place of.
        leftover_files: files of failed attempts of tasks, removed.
    """

    name: str
    partition_key: str
    rows: int
    data_files: int
    bytes_written: int
    snapshot_id: int
    reads: Mapping[str, MirrorRead] = field(default_factory=dict)
    mode: str = "replace"
    is_repeat: bool = False
    is_direct_copy: bool = False
    delete_rows: int = 0
    leftover_files: int = 0

    @property
    def metrics(self) -> ScanMetrics:
        """Of all reads together."""
        return sum((read.metrics for read in self.reads.values()), ScanMetrics())

    @property
    def rows_removed_by_deletes(self) -> int:
        """Rows that files hold and deletes removed, in the Spark read."""
        return self.metrics.rows_removed_by_position_deletes + self.metrics.rows_removed_by_equality_deletes

    def as_dict(self) -> dict[str, Any]:
        """For JSON and metadata: counts and ids."""
        return {
            "name": self.name,
            "partition": self.partition_key,
            "mode": self.mode,
            "is_repeat": self.is_repeat,
            "is_direct_copy": self.is_direct_copy,
            "rows": self.rows,
            "delete_rows": self.delete_rows,
            "data_files": self.data_files,
            "bytes_written": self.bytes_written,
            "snapshot_id": self.snapshot_id,
            "rows_removed_by_deletes": self.rows_removed_by_deletes,
            "bytes_read": self.metrics.bytes_read,
            "bytes_skipped": self.metrics.bytes_skipped,
            "read_snapshots": {table: read.snapshot_id for table, read in self.reads.items()},
        }


def materialize(
    config: Config, name: str, partition_key: str, *, master: str | None = None, remote: str | None = None
) -> MaterializeReport:
    """Make one business day of the published table `name` and write it in one snapshot, as its `mode` says.

    Repeating it over unchanged mirrors changes nothing but, except with `mode: append`, the snapshot id. A day without
    rows becomes empty.

    Args:
        config: the project.
        name: an entry of `published`.
        partition_key: the day, `2026-01-31`.
        master: where Spark runs, instead of what the config says; a session that runs already is used in any case.
        remote: a Spark Connect server, likewise.

    Raises:
        ConfigError: an unknown name, no day, SQL that cannot run, or a result without its partition column.
        PublishError: a mirror does not exist yet, or the Spark job failed; nothing is published.
        CommitConflictError: others kept changing the published table.
        MissingRuntimeError: no Java.
    """
    entry = published_entry(config, name)
    day = business_day(partition_key)
    query = parse_query(name, entry.sql, entry.partition, config.tables)
    catalog = open_catalog(config)
    scans = _scans(catalog, query, day)
    spark = project_session(config.spark.at(master, remote))
    with _views(spark, scans, config.spark.reports) as (views, reports):
        result = _result(spark, query, views, day=day, entry=entry)
        rows = _rows(spark, query, scans, result, day=day, entry=entry)
        written = publish(catalog, name, entry, rows, day=day, sources=_sources(scans))
    published = written.published
    reads = {table: _read_of(scan, reports[table].total()) for table, scan in scans.items()}
    if is_direct_copy := isinstance(rows, CopiedRows):  # of one table, whose view nobody has read
        reads = {table: replace(read, metrics=read.metrics + written.metrics) for table, read in reads.items()}
    return MaterializeReport(
        name=name,
        partition_key=partition_key,
        rows=sum(file.record_count for file in published.files),
        data_files=len(published.files),
        bytes_written=sum(file.file_size_bytes for file in (*published.files, *published.delete_files)),
        snapshot_id=published.committed.snapshot_id,
        reads=reads,
        mode=entry.mode,
        is_repeat=published.is_repeat,
        is_direct_copy=is_direct_copy,
        delete_rows=sum(file.record_count for file in published.delete_files),
        leftover_files=written.leftover_files,
    )


def count_day(config: Config, name: str, partition_key: str, snapshot_id: int) -> int:
    """Rows of one business day in a snapshot of a published table, read back through scan_core.

    Raises:
        PublishError: the table does not exist.
    """
    table = find_table(open_catalog(config), name)
    if table is None:
        raise PublishError(f"published {name} does not exist yet: materialize it first")
    column = published_entry(config, name).partition.replace("`", "``")
    scan = open_table(table).scan().as_of_snapshot(snapshot_id)
    return scan.where(f"`{column}` = date '{business_day(partition_key)}'").count()


def tables_read(config: Config, name: str) -> tuple[str, ...]:
    """The mirrors that the SQL of a published table names.

    Raises:
        ConfigError: an unknown name, or SQL that cannot run.
    """
    entry = published_entry(config, name)
    return parse_query(name, entry.sql, entry.partition, config.tables).tables


def published_entry(config: Config, name: str) -> PublishedConfig:
    """The config of a published table.

    Raises:
        ConfigError: no such entry; names the nearest.
    """
    if name in config.published:
        return config.published[name]
    near = get_close_matches(name, sorted(config.published), n=1, cutoff=0.0)
    hint = f"did you mean {near[0]}?" if near else "the config publishes nothing"
    raise ConfigError(f"no published table {name!r}; {hint}")


def business_day(partition_key: str) -> date:
    """The day of a partition key.

    Raises:
        ConfigError: not a day.
    """
    try:
        return date.fromisoformat(partition_key)
    except ValueError as error:
        raise ConfigError(f"{partition_key!r} is no business day; write it like 2026-01-31") from error


def _scans(catalog: Any, query: PublishedQuery, day: date) -> dict[str, Scan]:
    """What to read of each mirror: the columns that the query needs and, where certain, only the day's rows."""
    scans = {}
    for name in query.tables:
        mirror = find_table(catalog, name)
        if mirror is None:
            raise PublishError(f"published {query.name} reads {name}, which does not exist yet: ingest it first")
        scans[name] = open_table(mirror).scan()
    schemas = {name: scan.schema for name, scan in scans.items()}
    columns = query.columns(schemas)
    condition = query.day_predicate(day, schemas)
    for name, scan in scans.items():
        narrowed = scan.select(*columns[name])
        scans[name] = narrowed.where(condition[1]) if condition and condition[0] == name else narrowed
    return scans


@contextmanager
def _views(
    spark: SparkSession, scans: Mapping[str, Scan], reports_folder: str | None
) -> Iterator[tuple[dict[str, str], dict[str, TaskReports]]]:
    """Names of temporary views of the scans, and what their tasks will report.

    By our own reader, for its tasks tell what they read. Sessions are shared and Spark's Python sources do not work in `newSession()`: the names are ours alone.
    """
    token = uuid4().hex[:12]
    frames = {
        table: dataframe(spark, scan, reader="python", metrics_dir=_fresh(reports_folder))
        for table, scan in scans.items()
    }
    names = {table: f"nevermore_{token}_{number}" for number, table in enumerate(frames)}
    try:
        for table, frame in frames.items():
            frame.createTempView(names[table])
        yield names, {table: reports_of(frame) for table, frame in frames.items()}
    finally:
        for view in names.values():
            spark.catalog.dropTempView(view)


def _result(
    spark: SparkSession, query: PublishedQuery, views: Mapping[str, str], *, day: date, entry: PublishedConfig
) -> DataFrame:
    """The rows of the day."""
    try:
        frame = spark.sql(query.over_views(views))
    except (AnalysisException, ParseException) as error:
        raise ConfigError(f"published {query.name}: {spark_message(error)}") from error
    types = {f.name: f.dataType.simpleString() for f in frame.schema.fields}
    key = entry.key if entry.mode == "upsert" else ()
    for column in (query.partition, *key, *entry.sort_by, *entry.options.bloom_filters):
        if column not in types:
            near = get_close_matches(column, list(types), n=1, cutoff=0.0)
            raise ConfigError(f"published {query.name}: the result has no column {column!r}; did you mean {near[0]!r}?")
    if types[query.partition] != "date":
        raise ConfigError(
            f"published {query.name}: partition column {query.partition!r} is {types[query.partition]}, not date: "
            f"write cast(... as date) as {query.partition}"
        )
    return frame.where(col(f"`{query.partition}`") == lit(day))


def _rows(
    spark: SparkSession,
    query: PublishedQuery,
    scans: Mapping[str, Scan],
    result: DataFrame,
    *,
    day: date,
    entry: PublishedConfig,
) -> Rows:
    """The rows of the day, computed by Spark or, where the query only selects them, copied by those who read them."""
    is_arranged = entry.sort_by or entry.options.distribution != "none" or entry.mode == "upsert"
    if entry.options.direct_copy and not is_arranged and len(scans) == 1:
        (scan,) = scans.values()
        copied = copied_columns(query, scan.schema.names, result.columns)
        if copied is not None and scan.predicates:
            return CopiedRows(spark, scan, result, name=query.name, copied=copied, day=day)
    return QueryRows(query.name, result, entry)


def _sources(scans: Mapping[str, Scan]) -> dict[str, int]:
    """The snapshots that are read, by table."""
    return {name: scan.snapshot.snapshot_id for name, scan in scans.items() if scan.snapshot}


def _fresh(folder: str | None) -> str | None:
    """A folder of its own for the reports of one read."""
    return folder and f"{folder}/{uuid4().hex}"


def _read_of(scan: Scan, metrics: ScanMetrics) -> MirrorRead:
    where = " and ".join(str(p) for p in scan.predicates) or None
    snapshot_id = scan.snapshot.snapshot_id if scan.snapshot else None
    return MirrorRead(snapshot_id, scan.columns or (), where, metrics)
