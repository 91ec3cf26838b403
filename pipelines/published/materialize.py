"""Published tables: SQL over mirrors, run by Spark, one business day written in one Iceberg snapshot.

Imports pyspark. Mirrors are read through scan_core's data source, so deleted rows never reach the query; what the SQL
needs of them is found by `query.py`, and `writer.py` writes and commits the result.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from datetime import date
from typing import Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.functions import col, lit

from pipelines.catalog import find_table, open_catalog
from pipelines.config import Config, PublishedConfig
from pipelines.errors import ConfigError, PublishError
from pipelines.published.direct_copy import copied_columns
from pipelines.published.entries import arguments, published_entry, published_query
from pipelines.published.mirror_reads import MirrorRead, mirror_scans, read_of, snapshots_read, views_of
from pipelines.published.partition import PublishedPartition
from pipelines.published.partition_rows import partition_field, query_result, require_columns
from pipelines.published.query import PublishedQuery
from pipelines.published.writer import CopiedRows, QueryRows, Rows, publish
from pipelines.spark.place import project_session
from scan_core.metrics import ScanMetrics
from scan_core.scan import Scan
from scan_core.schema import PrimitiveType
from scan_core.table import open_table

_DATE = PrimitiveType("date")


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
    partition = _day_partition(name, entry)
    query = published_query(config, name)
    catalog = open_catalog(config)
    scans = mirror_scans(catalog, query)
    schemas = {table: scan.table.schema for table, scan in scans.items()}
    conditions = query.conditions(schemas, partition, {partition.physical(partition_key, _DATE)})
    scans = {t: scan.where(conditions[t].sql) if t in conditions else scan for t, scan in scans.items()}
    exact = frozenset(table for table, condition in conditions.items() if condition.is_exact)
    spark = project_session(config.spark.at(master, remote))
    with views_of(spark, scans, config.spark.reports) as (views, reports):
        result = _result(spark, query, views, day=day, entry=entry)
        rows = _rows(spark, query, {t: s for t, s in scans.items() if t in exact}, result, day=day, entry=entry)
        written = publish(catalog, name, entry, rows, day=day, sources=snapshots_read(scans))
    published = written.published
    reads = {table: read_of(scan, reports[table].total()) for table, scan in scans.items()}
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
    column = _day_partition(name, published_entry(config, name)).column.replace("`", "``")
    scan = open_table(table).scan().as_of_snapshot(snapshot_id)
    return scan.where(f"`{column}` = date '{business_day(partition_key)}'").count()


def _day_partition(name: str, entry: PublishedConfig) -> PublishedPartition:
    partition = entry.partitioning
    if partition is None or str(partition) != partition.column or partition.unit != "day":
        by = f"partitioned by {partition.unit}" if partition is not None else "not partitioned"
        raise ConfigError(f"published {name} is {by}, so that there are no days to make: nevermore publish {name}")
    return partition


def business_day(partition_key: str) -> date:
    """The day of a partition key.

    Raises:
        ConfigError: not a day.
    """
    try:
        return date.fromisoformat(partition_key)
    except ValueError as error:
        raise ConfigError(f"{partition_key!r} is no business day; write it like 2026-01-31") from error


def _result(
    spark: SparkSession, query: PublishedQuery, views: Mapping[str, str], *, day: date, entry: PublishedConfig
) -> DataFrame:
    """The rows of the day."""
    frame = query_result(spark, query, views, arguments(query, entry, day.isoformat()))
    partition = _day_partition(query.name, entry)
    key = entry.key if entry.mode == "upsert" else ()
    require_columns(query.name, frame, (*key, *entry.sort_by, *entry.options.bloom_filters))
    partition_field(query.name, frame, partition)
    return frame.where(col(f"`{partition.column}`") == lit(day))


def _rows(
    spark: SparkSession,
    query: PublishedQuery,
    exact: Mapping[str, Scan],
    result: DataFrame,
    *,
    day: date,
    entry: PublishedConfig,
) -> Rows:
    """The rows of the day, computed by Spark or, where the query only selects them, copied by those who read them.

    `exact` are the scans that give the rows of the day and no others.
    """
    is_arranged = entry.sort_by or entry.options.distribution != "none" or entry.mode == "upsert"
    if entry.options.direct_copy and not is_arranged and len(query.tables) == 1 and exact:
        (scan,) = exact.values()
        copied = copied_columns(query, scan.schema.names, result.columns)
        if copied is not None:
            return CopiedRows(spark, scan, result, name=query.name, copied=copied, day=day)
    return QueryRows(query.name, result, entry)
