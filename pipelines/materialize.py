"""Published tables: SQL over mirrors, run by Spark, one business day replaced in one Iceberg snapshot.

Imports pyspark. Mirrors are read through scan_core's data source, so deleted rows never reach the query; what the SQL
needs of them is found by `published_query.py`, and `day_replacement.py` writes and commits the result.
"""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import date
from difflib import get_close_matches
from typing import Any
from uuid import uuid4

from pyspark.errors import AnalysisException, ParseException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.functions import col, lit

from pipelines.catalog import find_table, open_catalog
from pipelines.config import Config, PublishedConfig
from pipelines.day_replacement import DayReplacement, spark_message
from pipelines.errors import ConfigError, PublishError
from pipelines.published_query import PublishedQuery, parse_query
from scan_core.distribute.spark import dataframe, reports_of
from scan_core.distribute.spark_session import spark_session
from scan_core.distribute.task_reports import TaskReports
from scan_core.metrics import ScanMetrics
from scan_core.scan import Scan
from scan_core.table import open_table

LOCAL = "local[*]"


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
        rows: rows of that day now.
        data_files: files that hold them.
        bytes_written: their size.
        snapshot_id: of the published table, that made them visible.
        reads: what was read, by table.
    """

    name: str
    partition_key: str
    rows: int
    data_files: int
    bytes_written: int
    snapshot_id: int
    reads: Mapping[str, MirrorRead] = field(default_factory=dict)

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
            "rows": self.rows,
            "data_files": self.data_files,
            "bytes_written": self.bytes_written,
            "snapshot_id": self.snapshot_id,
            "rows_removed_by_deletes": self.rows_removed_by_deletes,
            "bytes_read": self.metrics.bytes_read,
            "bytes_skipped": self.metrics.bytes_skipped,
            "read_snapshots": {table: read.snapshot_id for table, read in self.reads.items()},
        }


def materialize(config: Config, name: str, partition_key: str, *, master: str = LOCAL) -> MaterializeReport:
    """Make one business day of the published table `name` anew and replace it in one snapshot.

    Repeating it over unchanged mirrors changes nothing but the snapshot id. A day without rows becomes empty.

    Args:
        config: the project.
        name: an entry of `published`.
        partition_key: the day, `2026-01-31`.
        master: where Spark runs, unless a session runs already.

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
    spark = spark_session(master=master)
    with _views(spark, scans) as (views, reports):
        result = _result(spark, query, views, day=day, entry=entry)
        replacement = DayReplacement(catalog, name, result, entry.partition)
        committed = replacement.commit(day, _summary(scans, partition_key))
    files = replacement.files
    return MaterializeReport(
        name=name,
        partition_key=partition_key,
        rows=sum(file.record_count for file in files),
        data_files=len(files),
        bytes_written=sum(file.file_size_bytes for file in files),
        snapshot_id=committed.snapshot_id,
        reads={table: _read_of(scan, reports[table]) for table, scan in scans.items()},
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
def _views(spark: SparkSession, scans: Mapping[str, Scan]) -> Iterator[tuple[dict[str, str], dict[str, TaskReports]]]:
    """Names of temporary views of the scans, and what their tasks will report.

    By our own reader, for its tasks tell what they read. Sessions are shared and Spark's Python sources do not work in `newSession()`: the names are ours alone.
    """
    token = uuid4().hex[:12]
    frames = {table: dataframe(spark, scan, reader="python") for table, scan in scans.items()}
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
    """The rows of the day, sorted within tasks where the config says so."""
    try:
        frame = spark.sql(query.over_views(views))
    except (AnalysisException, ParseException) as error:
        raise ConfigError(f"published {query.name}: {spark_message(error)}") from error
    types = {f.name: f.dataType.simpleString() for f in frame.schema.fields}
    for column in (query.partition, *entry.sort_by):
        if column not in types:
            near = get_close_matches(column, list(types), n=1, cutoff=0.0)
            raise ConfigError(f"published {query.name}: the result has no column {column!r}; did you mean {near[0]!r}?")
    if types[query.partition] != "date":
        raise ConfigError(
            f"published {query.name}: partition column {query.partition!r} is {types[query.partition]}, not date: "
            f"write cast(... as date) as {query.partition}"
        )
    frame = frame.where(col(f"`{query.partition}`") == lit(day))
    return frame.sortWithinPartitions(*(f"`{c}`" for c in entry.sort_by)) if entry.sort_by else frame


def _summary(scans: Mapping[str, Scan], partition_key: str) -> dict[str, str]:
    """Into the snapshot's summary: which day, made from which snapshots."""
    sources = {
        f"nevermore.source.{name}": str(scan.snapshot.snapshot_id) for name, scan in scans.items() if scan.snapshot
    }
    return {"nevermore.partition": partition_key, **sources}


def _read_of(scan: Scan, reports: TaskReports) -> MirrorRead:
    where = " and ".join(str(p) for p in scan.predicates) or None
    snapshot_id = scan.snapshot.snapshot_id if scan.snapshot else None
    return MirrorRead(snapshot_id, scan.columns or (), where, reports.total())
