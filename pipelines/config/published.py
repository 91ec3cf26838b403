"""Sections of a published table: its SQL, partition, checks, and how its files are written."""

from datetime import date
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field, field_validator, model_validator

from pipelines.config.checks import PublishedChecksConfig
from pipelines.config.publish_partition import PublishedPartition
from pipelines.config.tables import DEFAULT_TARGET_FILE_BYTES, AssetConfig, IndexConfig, RetentionConfig
from pipelines.config.values import Bytes, BytesOrZero, Count, Cron, Day, Names, Section, TableProperties, placed

DEFAULT_ROW_GROUP_BYTES = 128 * 1024**2
"""Determines the memory of a task while it writes."""


def _mode(value: Any) -> Any:
    """Also accept Spark's name of the mode."""
    return "replace" if value == "overwrite" else value


class PublishedOptions(Section):
    """How the files of a published table are written.

    Attributes:
        target_file_bytes: a task starts a new file when the current one reaches this size.
        row_group_bytes: size of the rows in memory at which they are written as a row group.
        row_group_rows: maximum number of rows in a row group.
        page_rows: maximum number of rows in a page; every column has a page index.
        compression: Parquet codec.
        bloom_filters: columns that get Bloom filters.
        distribution: `none`: the tasks that computed the rows write them; `rebalance`: rows are shuffled into files of even size; `range`: rows are also shuffled so that files do not overlap in `sort_by`.
        direct_copy: let the tasks that read a mirror write the files, if the SQL only selects columns of one mirror and no row is sorted or shuffled.
        push_down: pass conditions and join keys that the SQL puts on the rows of a mirror to its scan.
        reader: `auto` chooses for each mirror, by expected cost, between Spark's own Parquet reader and tasks in Python; `python` always reads in Python.
        driver_bytes: rows of a mirror that take at most this much memory are read, and small results written, by the process that publishes, where that costs less than starting tasks for them; 0 leaves everything to tasks.
    """

    target_file_bytes: Bytes = DEFAULT_TARGET_FILE_BYTES
    row_group_bytes: Bytes = DEFAULT_ROW_GROUP_BYTES
    row_group_rows: Count = 1_000_000
    page_rows: Count = 10_000
    compression: Literal["zstd", "snappy", "gzip", "lz4", "none"] = "zstd"
    bloom_filters: Names = ()
    distribution: Literal["none", "rebalance", "range"] = "none"
    direct_copy: bool = True
    push_down: bool = True
    reader: Literal["auto", "python"] = "auto"
    driver_bytes: BytesOrZero = 16 * 1024**2


class PublishedConfig(AssetConfig):
    """A published table, built from mirrors and rebuilt partition by partition.

    Attributes:
        description: what the table is, in Markdown.
        owners: who is responsible: e-mail addresses, or teams as `team:data`.
        tags: names with values, or a list of names, by which assets can be selected.
        group: the group of its assets; by default the namespace of the table.
        freshness: maximum time between two updates; after it, Dagster shows the table as overdue.
        column_descriptions: what columns are, by their names, in Markdown.
        sql: a query over mirrors, by their names in this config.
        partition: how the table is partitioned and rebuilt: a date column of the result, or `hour(at)`, `month(day)`, `year(day)` or `value(city)` of a column; if omitted, the table is rebuilt as a whole.
        start: first partition, for backfills and for SQL that uses `:partition`.
        values: partitions of `value(...)` that Dagster offers, and for which SQL with `:partition` is run.
        parameters: values of `:name` in the SQL, in addition to `:partition`, `:partition_start` and `:partition_end`.
        incremental: whether `publish` rebuilds only the partitions that changes of the mirrors can affect: `true` refuses SQL for which this can never be determined, `auto` then rebuilds everything; `keys` rebuilds only the keys that changes can affect, where that is certain, and otherwise works as `auto`.
        consistent: whether mirrors of one database are read at one commit of the database, so that a join never shows a state that it did not have; `false` reads each as it is now.
        key: columns that identify a row of the result, for the checks, for `mode: upsert` and for `incremental: keys`.
        mode: what a run does with the existing rows of its partition: `replace` them, `append` to them once per state of the mirrors, or `upsert` by `key`.
        sort_by: columns by which the rows of each file are sorted.
        schedule: cron expression, in UTC, for when Dagster builds the most recent completed partition.
        properties: Iceberg table properties; set when the table is created, and by the next publication after a change here.
        index: indexes that are kept up to date.
        maintenance: how many old snapshots are kept.
        checks: what must hold in addition: [expectations and freshness](checks.md#your-own-checks).
        options: how files are written.
    """

    sql: str
    partition: str | None = None
    start: Day | None = None
    values: Names = ()
    parameters: dict[str, bool | int | float | date | str] = Field(default_factory=dict)
    incremental: bool | Literal["auto", "keys"] = False
    consistent: bool = True
    key: Names = ()
    mode: Annotated[Literal["replace", "append", "upsert"], BeforeValidator(_mode)] = "replace"
    sort_by: Names = ()
    schedule: Cron | None = None
    properties: TableProperties = Field(default_factory=dict)
    index: IndexConfig | None = None
    maintenance: RetentionConfig = RetentionConfig()
    checks: PublishedChecksConfig = PublishedChecksConfig()
    options: PublishedOptions = PublishedOptions()

    @property
    def partitioning(self) -> PublishedPartition | None:
        """How the table is partitioned; None if it is not."""
        return None if self.partition is None else PublishedPartition.parse(self.partition)

    @field_validator("partition")
    @classmethod
    def _is_partition(cls, value: str | None) -> str | None:
        if value is not None:
            PublishedPartition.parse(value)
        return value

    @model_validator(mode="after")
    def _has_valid_partitions(self) -> "PublishedConfig":
        partition = self.partitioning
        if self.mode != "replace" and self.incremental:
            raise ValueError(f"incremental tables always replace partitions; remove mode: {self.mode}")
        if self.values and (partition is None or partition.is_time):
            raise ValueError("values applies only to a table with partition: value(column)")
        if self.schedule is not None and (partition is None or not partition.is_time):
            raise ValueError(
                "a schedule builds the last hour, day, month or year, so the table must be partitioned by time"
            )
        if self.start is not None and partition is None:
            raise placed("start applies only to a table with a partition; add partition: ..., or remove it", "start")
        if self.start is not None and partition is not None and partition.is_time:
            partition.period(self.start)
        if taken := sorted(set(self.parameters) & {"partition", "partition_start", "partition_end"}):
            raise ValueError(f"parameters: {taken[0]} is reserved for the partition; choose another name")
        return self

    @model_validator(mode="after")
    def _is_consistent(self) -> "PublishedConfig":
        if self.index is not None and self.index.bloom:
            raise placed(
                "choose the Bloom filters of a published table in options: bloom_filters: [...]", "index", "bloom"
            )
        if self.mode == "upsert" and not self.key:
            raise ValueError("mode: upsert requires the columns that identify a row: key: [...]")
        if self.incremental == "keys" and not self.key:
            raise ValueError("incremental: keys requires the columns by which rows are rebuilt: key: [...]")
        if self.options.distribution == "range" and not self.sort_by:
            raise ValueError("distribution: range requires the columns that define the ranges: sort_by: [...]")
        return self
